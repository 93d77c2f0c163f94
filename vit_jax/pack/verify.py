"""Compares a packed data set with the checksums that it was written with."""

import hashlib
from typing import Any

from etils import epath

from vit_jax.runtime.printable import printable

SUMS = "sha256sums.txt"


def verify(out: str) -> None:
  """Prints each file that is not as it was; then raises ValueError.

  Without checksums, it raises FileNotFoundError.
  """
  folder = epath.Path(out).expanduser()
  text = (folder / SUMS).read_bytes().decode(errors="replace")
  lines = (line.partition("  ") for line in text.splitlines())
  sums = {name: digest for digest, _, name in lines}
  shards = {p.name for p in folder.iterdir() if "array_record" in p.name}
  names, bad = sorted(shards | {*sums}), 0
  for name in names:
    if (found := digest(folder / name)) != sums.get(name):
      wrong = "is missing" if found is None else f"differs from {SUMS}"
      print(f"{printable(str(folder / name))} {wrong}")
      bad += 1
  if bad or not names:
    raise ValueError(
      f"{bad} of {len(names)} files of {folder} are not as they were packed: "
      "copy them again, or remove them and repeat the command that packed them."
    )
  print(f"{folder}: all {len(names)} files are as they were packed.")


def digest(path: epath.Path) -> str | None:
  """The SHA-256 of a file; None if there is none."""
  try:
    with path.open("rb") as file:
      opened: Any = file
      return hashlib.file_digest(opened, "sha256").hexdigest()
  except (FileNotFoundError, IsADirectoryError, ValueError):
    return None
