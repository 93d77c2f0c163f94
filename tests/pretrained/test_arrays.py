"""Arrays from .npz and .safetensors files, as they were stored."""

import io
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from tests.array_files import (
  ARRAYS,
  BFLOAT16,
  DENSE,
  MIB,
  assert_same,
  entry,
  npy,
  read_all,
  refused,
  write_safetensors,
  write_zip,
)
from tests.memory import bounded_memory
from vit_jax.pretrained.arrays import open_arrays, save_arrays

both_ways_numpy_saves = pytest.mark.parametrize(
  "save", [np.savez, np.savez_compressed]
)


@both_ways_numpy_saves
def test_reads_what_numpy_writes(tmp_path, save):
  path = tmp_path / "model.npz"
  save(path, **ARRAYS)
  found = read_all(path)
  assert_same(found, ARRAYS)
  assert list(found) == list(ARRAYS)
  assert found["fortran"].flags.f_contiguous


@both_ways_numpy_saves
def test_reads_what_numpy_streams(tmp_path, save):
  """A stream, as to a bucket, has the size after each member, not before."""

  class Stream(io.RawIOBase):
    written = b""

    def writable(self):
      return True

    def write(self, data):
      self.written += bytes(data)
      return len(data)

  stream = Stream()
  save(stream, **ARRAYS)
  path = tmp_path / "model.npz"
  path.write_bytes(stream.written)
  assert_same(read_all(path), ARRAYS)


def test_reads_what_safetensors_writes(tmp_path):
  path = tmp_path / "model"
  safetensors.numpy.save_file(DENSE, path, metadata={"format": "np"})
  assert_same(read_all(path), ARRAYS)


PACKED = "{'shape':(2,),'fortran_order':False,'descr':'<f4'}"


def test_headers_of_other_writers(tmp_path):
  """Headers may have other spacing, version 2.0, or Python 2's integers."""
  path = tmp_path / "model.npz"
  data = np.arange(2, dtype=np.float32).tobytes()
  write_zip(
    path,
    ("a.npy", npy(header=PACKED, data=data)),
    ("b.npy", npy(header=PACKED, data=data, length=len(PACKED))),
    ("c.npy", npy(shape="(2L,)", data=data)),
    ("d.npy", npy("'|V2'", "(4,)", data)),
  )
  floats = np.arange(2, dtype=np.float32)
  brain = floats.view(BFLOAT16)
  expected = {"a": floats, "b": floats, "c": floats, "d": brain}
  assert_same(read_all(path), expected)


def test_safetensors_header_that_starts_as_json_does(tmp_path):
  """A header of 123 bytes: the length's first byte is JSON's first brace."""
  path = tmp_path / "model.safetensors"
  text = json.dumps({"a": entry()}).encode().ljust(ord("{"))
  write_safetensors(path, text, np.float32(7).tobytes())
  assert_same(read_all(path), {"a": np.array([7], np.float32)})


@both_ways_numpy_saves
def test_other_byte_order_is_converted(tmp_path, save):
  path = tmp_path / "model.npz"
  big = {"a": np.arange(5, dtype=">f4"), "b": np.arange(6, dtype=">i8")}
  native = {"a": big["a"].astype("=f4"), "b": big["b"].astype("=i8")}
  save(path, **big)
  assert_same(read_all(path), native)
  save_arrays(tmp_path / "big.safetensors", big)
  assert_same(safetensors.numpy.load_file(tmp_path / "big.safetensors"), native)


def test_content_decides_not_the_name(tmp_path):
  save_arrays(tmp_path / "a.npz", DENSE)
  save_arrays(tmp_path / "b.safetensors", DENSE)
  (tmp_path / "a.npz").rename(tmp_path / "a.safetensors")
  (tmp_path / "b.safetensors").rename(tmp_path / "b.npz")
  assert_same(read_all(tmp_path / "a.safetensors"), ARRAYS)
  assert_same(read_all(tmp_path / "b.npz"), ARRAYS)


def test_names_are_only_names(tmp_path):
  path = tmp_path / "model.npz"
  names = ["../../up", "/etc/passwd", "a\nb\x1b[31m", "", ".", "x" * 9000]
  write_zip(path, *[(f"{name}.npy", npy()) for name in names])
  assert list(read_all(path)) == names


def test_zero_initialised_head_is_no_bomb(tmp_path):
  """The ImageNet-21k head of a ViT-B is 67 MB of zeros, packed in 65 kB."""
  path = tmp_path / "model.npz"
  np.savez_compressed(path, head=np.zeros((768, 21_843), np.float32))
  assert path.stat().st_size < MIB
  with open_arrays(path) as arrays:
    assert arrays["head"].shape == (768, 21_843)
    assert not arrays["head"].any()


@both_ways_numpy_saves
def test_jax_takes_over_arrays_of_an_npz(tmp_path, save):
  path = tmp_path / "model.npz"
  save(path, a=np.ones(1000, np.float32), b=np.ones(3, np.float32))
  for array in read_all(path).values():
    assert array.flags.writeable and array.flags.c_contiguous
    assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


def test_shapes_come_without_the_data(tmp_path):
  path = tmp_path / "model.npz"
  save_arrays(path, {"a": np.ones((2, 300)), "b": np.ones(3)})
  raw = bytearray(path.read_bytes())
  raw[raw.index(np.ones(9).tobytes())] ^= 1
  path.write_bytes(raw)
  with open_arrays(path) as arrays:
    assert arrays.shapes == {"a": (2, 300), "b": (3,)}
    assert "a" in arrays and "c" not in arrays
    with refused(path, "Bad CRC-32 for file 'a.npy'"):
      arrays["a"]
    np.testing.assert_array_equal(arrays["b"], np.ones(3))
    with pytest.raises(KeyError, match="c"):
      arrays["c"]
  with refused(path, "closed"):
    arrays["b"]


def test_one_array_in_memory_at_a_time(tmp_path):
  arrays = {str(i): np.full(MIB, i, np.uint8) for i in range(20)}
  np.savez(tmp_path / "a", **arrays)
  np.savez_compressed(tmp_path / "b", **arrays)
  save_arrays(tmp_path / "c.safetensors", arrays)
  for path in tmp_path.iterdir():
    with open_arrays(path) as found, bounded_memory(3.2 * MIB):
      for name in found:
        assert found[name][-1] == int(name)


def test_shards_read_as_one_file(tmp_path):
  names = ["scalar", "head/bias", "brain"]
  weight_map = {name: f"{name[0]}-1.safetensors" for name in names}
  for name, shard in weight_map.items():
    save_arrays(tmp_path / shard, {name: ARRAYS[name]})
  path = tmp_path / "model.safetensors.index.json"
  index = {"metadata": {"total_size": 40}, "weight_map": weight_map}
  path.write_text(json.dumps(index, indent=2))
  found = read_all(path)
  assert list(found) == names
  assert_same(found, {name: ARRAYS[name] for name in names})
