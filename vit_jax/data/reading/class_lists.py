"""Checks the lists of class names beside a data set that TFDS prepared.

TFDS accepts a list that a power cut or an interrupted copy has shortened, and
names the classes of an empty one by their numbers.
"""

import hashlib
from collections.abc import Iterable, Mapping

from etils import epath

from vit_jax.runtime.files import read_regular
from vit_jax.runtime.printable import quoted

SUMS = "sha256sums.txt"  # The file with the checksums of a packed folder.


def check_class_lists(folder: epath.Path, counts: Mapping[str, int]) -> None:
  """Raises ValueError, which names the file, unless the lists are complete.

  A missing list is an error only if a checksum names it.

  Args:
    folder: The folder of the data set; it may have checksums, as `pack` writes.
    counts: The number of classes of each feature, as features.json says.
  """
  sums = read_sums(_read(folder / SUMS) or b"")
  for feature, count in counts.items():
    # As TFDS names the file. Without a slash, no name leads to another folder.
    file = feature.replace("/", ".")
    path = folder / f"{file}.labels.txt"
    content = _read(path)
    checksum = sums.get(path.name)
    if content is None:
      if checksum is not None:
        raise ValueError(f"{path} is missing: copy it again, or pack again.")
      continue
    lines = content.decode(errors="replace").split("\n")
    names = sum(bool(line.strip()) for line in lines)  # As TFDS counts them.
    if names != count:
      raise ValueError(
        f"{path} names {names:,} classes, and features.json counts {count:,}: "
        "copy it again, or pack again."
      )
    if checksum not in (None, hashlib.sha256(content).hexdigest()):
      raise ValueError(
        f"{path} differs from {SUMS}: copy it again, or pack again; if you "
        "changed the names yourself, remove its line there."
      )


def check_names(names: Iterable[str]) -> None:
  """Raises ValueError unless TFDS's list of classes can hold these names.

  The list has a name in each line, and TFDS strips the lines.
  """
  for name in names:
    text = name.encode(errors="replace").decode().replace("\r", "\n")
    if not text or "\n" in text or text.strip() != name:
      raise ValueError(
        f"TFDS cannot list a class called {quoted(name)}: a name is one line "
        "of text, without spaces around it. Rename the class."
      )


def read_sums(content: bytes) -> dict[str, str]:
  """The checksums in a file of `sha256sum`, by the files' names."""
  text = content.decode(errors="replace")
  lines = (line.partition("  ") for line in text.splitlines())
  return {name: digest for digest, _, name in lines}


def _read(path: epath.Path) -> bytes | None:
  """The content of a file; None if there is none."""
  return read_regular(path) if path.exists() else None
