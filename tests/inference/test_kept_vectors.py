"""Vectors that are kept: read back, or computed anew if they are damaged."""

import io
import os
import struct
import zipfile

import numpy as np
import pytest

from tests.memory import bounded_memory
from vit_jax.inference.kept_vectors import KeptVectors

FILES = ("a.png", "b\n.png")
KEPT = KeptVectors(
  FILES,
  np.array([[1, 2], [3, 4]]),
  np.arange(6, dtype=np.float32).reshape(2, 3),
)
PRINT = "f" * 64


def _arrays(**changes):
  return {
    "fingerprint": np.array(PRINT),
    "files": np.array(FILES),
    "stamps": KEPT.stamps,
    "vectors": KEPT.vectors,
    **changes,
  }


def _npz(save=np.savez, **changes):
  file = io.BytesIO()
  save(file, **_arrays(**changes))
  return file.getvalue()


def _npy(array):
  file = io.BytesIO()
  np.save(file, array, allow_pickle=True)
  return file.getvalue()


def _zip(vectors, kind=zipfile.ZIP_STORED):
  """An archive whose `vectors` are these bytes."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", kind) as archive:
    for name, array in _arrays().items():
      content = vectors if name == "vectors" else _npy(array)
      archive.writestr(f"{name}.npy", content)
  return file.getvalue()


def _claiming(shape):
  """An array's header with other sides than the bytes after it have."""
  whole = _npy(KEPT.vectors)
  return whole.replace(
    b"(2, 3), }" + b" " * 20, f"{shape}, }}".encode().ljust(29)
  )


def _damaged(content, at):
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


def _many_members():
  """A list of members that takes more memory than the file has bytes."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive:
    for number in range(3000):
      archive.writestr(f"{number}.npy", b"")
  return file.getvalue()


def test_vectors_are_read_back(tmp_path):
  path = tmp_path / "vectors.npz"
  KEPT.write(path, PRINT)
  found = KeptVectors.read(path, PRINT)
  assert found.files == FILES
  np.testing.assert_array_equal(found.stamps, KEPT.stamps)
  np.testing.assert_array_equal(found.vectors, KEPT.vectors)
  with pytest.raises(ValueError, match="holds vectors of another model, size"):
    KeptVectors.read(path, "0" * 64)
  assert KeptVectors.read(tmp_path / "none.npz", PRINT).files == ()


DAMAGED = {
  "no archive": b"no archive",
  "empty": b"",
  "cut short": _npz()[:-40],
  "a changed number": _damaged(_npz(), _npz().index(KEPT.vectors.tobytes())),
  "a changed list": _damaged(_npz(), len(_npz()) - 10),
  "an array alone": _npy(KEPT.vectors),
  "an array of an array": _zip(
    _npy(np.frombuffer(_npy(KEPT.vectors), np.uint8))
  ),
  "no array": _zip(b"no array"),
  "compressed": _npz(np.savez_compressed),
  "a damaged deflate": _damaged(
    _npz(np.savez_compressed), _npz(np.savez_compressed).rindex(b"PK\1\2") - 20
  ),
  "a bomb": _zip(bytes(10**8), zipfile.ZIP_DEFLATED),
  "6 TB": _zip(_claiming((2**40, 3))),
  "sides below 0": _zip(_claiming((-2, -3))),
  "objects": _zip(_npy(np.array([{}, {}]))),
  "strings": _npz(vectors=np.array([["a"], ["b"]])),
  "files that are numbers": _npz(files=np.arange(2)),
  "a row too few": _npz(stamps=KEPT.stamps[:1]),
  "three stamps": _npz(stamps=np.zeros((2, 3), np.int64)),
  "one axis": _npz(vectors=np.zeros(2, np.float32)),
  "NaN": _npz(vectors=np.full((2, 3), np.nan, np.float32)),
  "a long list": _many_members(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_vectors_are_computed_anew(tmp_path, name, capsys):
  path = tmp_path / "vectors.npz"
  path.write_bytes(DAMAGED[name])
  with bounded_memory(2**22):
    found = KeptVectors.read(path, PRINT)
  assert found.files == () and found.vectors.size == 0
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(
    f"{path} is damaged or not a file that this command wr"
  )
  assert line.endswith("): its vectors are computed anew.")
  KEPT.write(path, PRINT)  # What is computed takes its place.
  assert KeptVectors.read(path, PRINT).files == FILES


def test_a_claim_of_terabytes_in_the_list_takes_no_memory(tmp_path, capsys):
  content = _npz()
  at = content.rindex(b"PK\1\2")
  sizes = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
  path = tmp_path / "vectors.npz"
  path.write_bytes(content[: at + 20] + sizes + content[at + 28 :])
  with bounded_memory(2**22):
    assert KeptVectors.read(path, PRINT).files == ()
  assert "computed anew" in capsys.readouterr().err


def test_a_fifo_is_not_waited_for(tmp_path, capsys):
  path = tmp_path / "vectors.npz"
  os.mkfifo(path)
  assert KeptVectors.read(path, PRINT).files == ()
  assert "a FIFO, not a regular file" in capsys.readouterr().err


def test_somebodys_own_arrays_are_not_replaced(tmp_path):
  path = tmp_path / "vectors.npz"
  np.savez(path, weights=np.zeros(3))
  with pytest.raises(ValueError, match="holds no vectors of images: remove it"):
    KeptVectors.read(path, PRINT)
  with pytest.raises(ValueError, match="is a folder: give another --out"):
    KeptVectors.read(tmp_path, PRINT)
