"""Compares a packed data set with the checksums that it was written with."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from vit_jax.runtime.printable import printable

SUMS = "sha256sums.txt"
_THREADS = 8  # Files read at the same time.


def verify(out: str) -> None:
  """Prints the files that differ or are missing, or that there are none.

  Raises:
    ValueError: if there are some, or the folder has no checksums.
  """
  folder = epath.Path(out).expanduser()
  if not (folder / SUMS).exists():
    raise ValueError(f"{folder} has no {SUMS}: it holds no complete packing.")
  text = (folder / SUMS).read_bytes().decode(errors="replace")
  lines = (line.partition("  ") for line in text.splitlines())
  sums = {name: digest for digest, _, name in lines}
  found = {p.name for p in folder.iterdir() if "array_record" in p.name}
  names = sorted({*sums} | found)
  with ThreadPoolExecutor(_THREADS) as threads:
    digests = threads.map(lambda name: _digest(folder / name), names)
    bad = 0
    for name, digest in zip(names, digests, strict=True):
      if digest == sums.get(name):
        continue
      wrong = "is missing" if digest is None else "differs"
      wrong = wrong if name in sums else f"is not in {SUMS}"
      print(f"{printable(str(folder / name))} {wrong}")
      bad += 1
  if bad or not names:
    raise ValueError(
      f"{bad} of {len(names)} files of {folder} are not as they were packed: copy "
      "them again, or remove them and repeat the command that packed them."
    )
  print(f"{folder}: all {len(names)} files are as they were packed.")


def _digest(path: epath.Path) -> str | None:
  """The SHA-256 of a file; None if there is none."""
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except (FileNotFoundError, IsADirectoryError, ValueError):
    return None
