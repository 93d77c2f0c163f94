"""Prints constraints.txt with direct dependencies at their lowest versions.

pyproject.toml names those versions; all other packages stay pinned, so that
tomorrow's test is the same. Uses only the standard library, since it says what
to install into an environment that is still empty.
"""

import pathlib
import re
import sys
import tomllib

# name[extras]>=version, the one form that names a lowest version.
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def lowest(pyproject: str, constraints: str) -> str:
  """The new constraints, from the texts of the two files.

  Raises:
    ValueError: if a requirement does not name its lowest version.
  """
  tables = tomllib.loads(pyproject)
  # Where several versions of Python have their own, the oldest's comes first.
  pins: dict[str, str] = {}
  for name, version in re.findall(r"(?m)^([\w.-]+)==(\S+)", constraints):
    pins.setdefault(name, version)
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
  """A package's name in its normalised spelling (PEP 503)."""
  return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
  root = pathlib.Path(__file__).parent.parent
  sys.stdout.write(
    lowest(
      (root / "pyproject.toml").read_text(),
      (root / "constraints.txt").read_text(),
    )
  )
