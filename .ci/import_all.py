"""Imports every module of vit_jax, as the Python that runs this file can."""

import importlib
import pkgutil
import sys

import vit_jax


def main() -> None:
  names = [
    module.name
    for module in pkgutil.walk_packages(vit_jax.__path__, "vit_jax.")
  ]
  for name in names:
    importlib.import_module(name)
  version = ".".join(map(str, sys.version_info[:2]))
  print(f"Python {version} imports all {len(names)} modules of vit_jax.")


if __name__ == "__main__":
  main()
