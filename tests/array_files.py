"""Makes files of arrays byte by byte, and checks how they are refused."""

import contextlib
import json
import re
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from vit_jax.pretrained.arrays import open_arrays

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MIB = 1 << 20

rng = np.random.default_rng(0)
ARRAYS = {
  "Transformer/encoderblock_0/kernel": rng.standard_normal((6, 7, 2)),
  "head/bias": rng.standard_normal(5).astype(np.float32),
  "half": rng.standard_normal((3, 3)).astype(np.float16),
  "brain": rng.standard_normal((4, 2)).astype(BFLOAT16),
  "fortran": np.asfortranarray(rng.standard_normal((3, 4, 2))),
  "strided": np.arange(40, dtype=np.int64)[::3],
  "byte": np.arange(7, dtype=np.uint8),
  "flag": np.array([[True], [False]]),
  "scalar": np.array(2.5, np.float32),
  "empty": np.zeros((0, 4), np.int16),
  "zeros": np.zeros((64, 500), np.float32),
  "Größe": np.arange(3, dtype=np.int32),
}
DENSE = {name: np.asarray(array, order="C") for name, array in ARRAYS.items()}
"""Copies of these arrays without strides, as files hold them."""


def read_all(path):
  with open_arrays(path) as arrays:
    assert len(arrays) == len(list(arrays))
    assert arrays.shapes == {name: arrays[name].shape for name in arrays}
    return dict(arrays)


def assert_same(found, expected):
  assert set(found) == set(expected)
  for name, array in expected.items():
    assert found[name].dtype == array.dtype, name
    np.testing.assert_array_equal(found[name], array, err_msg=name)


@contextlib.contextmanager
def refused(path, words, kind=ValueError):
  """Checks for an error of one line that names the file and says `words`."""
  name = repr(str(path))
  with pytest.raises(kind, match=re.escape(name)) as caught:
    yield
  message = str(caught.value)
  assert len(message.splitlines()) == 1 and message.isprintable()
  assert len(message) < 600
  assert re.search(words, message.replace(name, "")), message


def assert_refused(path, words):
  with refused(path, words):
    read_all(path)


def npy(descr="'<f4'", shape="(2,)", data=bytes(8), header=None, length=None):
  """The bytes of an .npy file; `length` is the header's claimed length."""
  if header is None:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
  version = b"\1\0" if length is None else b"\2\0"
  size = struct.pack("<H", len(header)) if length is None else b""
  size = size or struct.pack("<I", length)
  return b"\x93NUMPY" + version + size + header.encode("latin-1") + data


def write_zip(path, *members, method=zipfile.ZIP_STORED, **claims):
  """Writes a .zip file whose list makes given claims about the last member."""
  with zipfile.ZipFile(path, "w", method) as archive:
    for name, content in members:
      archive.writestr(name, content)
    for field, value in claims.items():
      setattr(archive.infolist()[-1], field, value)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
  return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write_safetensors(path, header, data=b"1234", size=None):
  """Writes a .safetensors file; `size` is the header's claimed length."""
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  size = len(text) if size is None else size
  path.write_bytes(struct.pack("<Q", size) + text + data)
