"""Prints constraints.txt with what pyproject.toml names at its lowest version.

The rest stays pinned, so that the same is tested tomorrow. Needs Python alone:
it says what to install in an environment that is still empty.
"""

import pathlib
import re
import sys
import tomllib

# name[extras]>=version, the one form that names a lowest version.
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def lowest(pyproject: str, constraints: str) -> str:
  """Of the texts of the two files; ValueError where no lowest is named."""
  tables = tomllib.loads(pyproject)
  pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints, re.MULTILINE))
  pins = {_canonical(name): version for name, version in pins.items()}
  for requirement in (
    *tables["build-system"]["requires"],
    *tables["project"]["dependencies"],
    *tables["project"]["optional-dependencies"]["dev"],
  ):
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None:
      raise ValueError(f"{requirement!r} is not given as name>=version.")
    name, version = match.groups()
    pins[_canonical(name)] = version
  return "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def _canonical(name: str) -> str:
  """The spelling in which two names of one package are equal (PEP 503)."""
  return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
  root = pathlib.Path(__file__).parent.parent
  sys.stdout.write(
    lowest(
      (root / "pyproject.toml").read_text(),
      (root / "constraints.txt").read_text(),
    )
  )
