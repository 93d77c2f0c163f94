"""Folders as people have them, in code: image files of one pixel or a few."""

import os
import pathlib
from collections.abc import Iterable, Mapping

from tests.image_files import GOOD


def write(root: pathlib.Path, files: Mapping[str, int | bytes | str]) -> str:
  """Writes files below a folder, and returns its path.

  The value of a name is what the file holds; of a folder, which ends in a
  slash, it is how many images it gets, or the ending of their names.
  """
  for name, value in files.items():
    path = root / name
    if not name.endswith("/"):
      path.parent.mkdir(parents=True, exist_ok=True)
      content = value.encode() if isinstance(value, str) else value
      path.write_bytes(content if isinstance(content, bytes) else GOOD)
      continue
    path.mkdir(parents=True, exist_ok=True)
    for number in range(int(value)):
      (path / f"{number}.png").write_bytes(GOOD)
  return os.fspath(root)


def classes(folder: str, names: Iterable[str], count: int) -> dict[str, int]:
  """So many images of each of these classes in a folder, for `write`."""
  return {os.path.join(folder, name, ""): count for name in names}
