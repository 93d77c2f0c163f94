"""Puts the configurations into wheels, as vit_jax/configs.

In a clone they are at the top, in configs/. setuptools runs this when it builds
a wheel or an editable install; pyproject.toml names it. Wheels of the same
files have the same bytes, whenever, where and by whom they are built.
"""

import os
import pathlib
import shutil

from setuptools.command import build_py

SOURCE = pathlib.Path("configs")
EPOCH = "315532800"  # 1980-01-01, with which the dates of ZIP files begin.


class BuildPy(build_py.build_py):
  """Builds the package, with the configurations in it."""

  def run(self) -> None:
    super().run()
    if self.editable_mode:  # The clone's own folder is found.
      return
    for path, copy in self._configs():
      copy.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(path, copy)
    # What the wheel records of each file besides its bytes: date and rights.
    os.environ.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    os.umask(0o022)
    built, here = pathlib.Path(self.build_lib).rglob("*"), pathlib.Path()
    for path in (*built, *here.glob("*.egg-info/*"), here / "LICENSE"):
      path.chmod(0o755 if path.is_dir() else 0o644)

  def get_outputs(self, include_bytecode: bool = True) -> list[str]:
    """All files that are installed, the configurations included."""
    outputs = super().get_outputs(include_bytecode)
    if not self.editable_mode:
      outputs += [str(copy) for _, copy in self._configs()]
    return outputs

  def _configs(self) -> list[tuple[pathlib.Path, pathlib.Path]]:
    """Each file of the configurations, and where it goes."""
    folder = pathlib.Path(self.build_lib, "vit_jax", "configs")
    files = [p for suffix in ("py", "csv") for p in SOURCE.rglob(f"*.{suffix}")]
    return [(p, folder / p.relative_to(SOURCE)) for p in files]
