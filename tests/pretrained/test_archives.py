"""Named arrays in files: what comes back, and what is refused in a line."""

import contextlib
import io
import json
import pickle
import re
import struct
import zipfile
import zlib

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.memory import bounded_memory
from vit_jax.pretrained import archives

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


def assert_same(found, expected):
  assert set(found) == set(expected)
  for name, array in expected.items():
    assert found[name].dtype == array.dtype, name
    np.testing.assert_array_equal(found[name], array, err_msg=name)


def read_all(path):
  with archives.open_arrays(path) as arrays:
    assert len(arrays) == len(list(arrays))
    assert arrays.shapes == {name: arrays[name].shape for name in arrays}
    return dict(arrays)


@contextlib.contextmanager
def refused(path, words, kind=ValueError):
  """The error is one line that names the file and, besides, says `words`."""
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


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(tmp_path, save):
  path = tmp_path / "model.npz"
  save(path, **ARRAYS)
  found = read_all(path)
  assert_same(found, ARRAYS)
  assert list(found) == list(ARRAYS)
  assert found["fortran"].flags.f_contiguous


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_reads_what_numpy_streams(tmp_path, save):
  """As to a bucket: sizes come behind each member, not before."""

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


def test_numpy_reads_what_we_write(tmp_path):
  path = tmp_path / "model.npz"
  archives.save_npz(path, ARRAYS)
  with np.load(path) as found:
    found = dict(found)
  assert list(found) == list(ARRAYS)
  found["brain"] = found["brain"].view(BFLOAT16)  # NumPy knows its size only.
  assert_same(found, ARRAYS)
  assert_same(read_all(path), ARRAYS)


def test_reads_what_safetensors_writes(tmp_path):
  path = tmp_path / "model"
  contiguous = {k: np.asarray(v, order="C") for k, v in ARRAYS.items()}
  safetensors.numpy.save_file(contiguous, path, metadata={"format": "np"})
  assert_same(read_all(path), ARRAYS)


def test_safetensors_reads_what_we_write(tmp_path):
  path = tmp_path / "model"
  archives.save_safetensors(path, ARRAYS, {"config": "{}", "who": "Größe"})
  assert_same(safetensors.numpy.load_file(path), ARRAYS)
  assert_same(read_all(path), ARRAYS)
  with safetensors.safe_open(path, framework="np") as opened:
    assert opened.metadata() == {"config": "{}", "who": "Größe"}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_other_byte_order_is_converted(tmp_path, save):
  path = tmp_path / "model.npz"
  big = {"a": np.arange(5, dtype=">f4"), "b": np.arange(6, dtype=">i8")}
  native = {"a": big["a"].astype("=f4"), "b": big["b"].astype("=i8")}
  save(path, **big)
  assert_same(read_all(path), native)
  archives.save_npz(path, big)
  assert_same(read_all(path), native)
  archives.save_safetensors(path, big)
  assert_same(safetensors.numpy.load_file(path), native)


def test_content_decides_not_the_name(tmp_path):
  archives.save_npz(tmp_path / "a.safetensors", ARRAYS)
  archives.save_safetensors(tmp_path / "a.npz", ARRAYS)
  assert_same(read_all(tmp_path / "a.safetensors"), ARRAYS)
  assert_same(read_all(tmp_path / "a.npz"), ARRAYS)


def test_no_arrays(tmp_path):
  for save in (archives.save_npz, archives.save_safetensors):
    save(tmp_path / "model", {})
    assert read_all(tmp_path / "model") == {}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_ours_to_change_and_to_hand_over(tmp_path, save):
  path = tmp_path / "model.npz"
  save(path, a=np.ones(1000, np.float32), b=np.ones(3, np.float32))
  for array in read_all(path).values():
    assert array.flags.writeable and array.flags.c_contiguous
    # No copy: jax takes over what is aligned to 64 bytes.
    assert array.ctypes.data % 64 == 0
  array = read_all(path)["b"]
  assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data


def test_shapes_come_without_the_data(tmp_path):
  path = tmp_path / "model.npz"
  archives.save_npz(path, {"a": np.ones((2, 300)), "b": np.ones(3)})
  raw = bytearray(path.read_bytes())
  raw[raw.index(np.ones(9).tobytes())] ^= 1
  path.write_bytes(raw)
  with archives.open_arrays(path) as arrays:
    assert arrays.shapes == {"a": (2, 300), "b": (3,)}
    assert arrays.path == path
    assert "a" in arrays and "c" not in arrays
    with refused(path, "array 'a' does not match its checksum"):
      arrays["a"]
    np.testing.assert_array_equal(arrays["b"], np.ones(3))
    with pytest.raises(KeyError, match="c"):
      arrays["c"]
  with refused(path, "closed"):
    arrays["b"]


def test_one_array_in_memory_at_a_time(tmp_path):
  path = tmp_path / "model.npz"
  arrays = {str(i): np.full(MIB, i, np.uint8) for i in range(20)}
  for save in (np.savez, np.savez_compressed):
    save(path, **arrays)
    with archives.open_arrays(path) as found:
      with bounded_memory(3.2 * MIB):
        for name in found:
          assert found[name][-1] == int(name)


def test_equal_arrays_give_equal_bytes(tmp_path):
  for save in (archives.save_npz, archives.save_safetensors):
    save(tmp_path / "a", ARRAYS)
    save(tmp_path / "b", {name: array.copy() for name, array in ARRAYS.items()})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
  archives.save_npz(tmp_path / "a", ARRAYS)
  with zipfile.ZipFile(tmp_path / "a") as archive:
    assert {m.date_time for m in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_safetensors_written_are_aligned(tmp_path):
  path = tmp_path / "model"
  archives.save_safetensors(path, ARRAYS)
  size = struct.unpack("<Q", path.read_bytes()[:8])[0]
  header = json.loads(path.read_bytes()[8 : 8 + size])
  assert size % 8 == 0
  for name, array in ARRAYS.items():
    assert header[name]["data_offsets"][0] % array.itemsize == 0


@pytest.mark.parametrize("save", [archives.save_npz, archives.save_safetensors])
def test_writing_is_whole_or_not_at_all(tmp_path, save):
  class Failing(dict):
    def __getitem__(self, name):
      if name == "b":
        raise RuntimeError("no b")
      return super().__getitem__(name)

  path = tmp_path / "model"
  save(path, {"a": np.ones(3)})
  with pytest.raises(RuntimeError, match="no b"):
    save(path, Failing(a=np.zeros(3), b=np.zeros(3)))
  assert_same(read_all(path), {"a": np.ones(3)})
  with refused(path, "'c' of type complex128; convert it"):
    save(path, {"c": np.ones(3, np.complex128)})
  with refused(path, "rename it"):
    save(path, {"a\0b": np.ones(3)})
  assert [p.name for p in tmp_path.iterdir()] == ["model"]
  nowhere = path / "model"
  with refused(nowhere, r"cannot be written \(Not a directory\)", kind=OSError):
    save(nowhere, {"a": np.ones(3)})
  save(tmp_path / "new" / "folder" / "model", {"a": np.ones(3)})
  assert_same(
    read_all(tmp_path / "new" / "folder" / "model"), {"a": np.ones(3)}
  )


def test_metadata_that_could_not_be_read_is_not_written(tmp_path):
  path = tmp_path / "model"
  with refused(path, "has to be of strings"):
    archives.save_safetensors(path, {}, {"a": 1})  # type: ignore[dict-item]
  with refused(path, "at most 4194304 can be read back"):
    archives.save_safetensors(path, {}, {"a": "x" * 5 * MIB})
  assert not path.exists()


def npy_header(descr="'<f4'", fortran="False", shape="(2,)"):
  return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n"


def npy(header, data=bytes(8), version=(1, 0), length=None):
  text = header.encode("latin-1")
  size = struct.pack(
    "<H" if version == (1, 0) else "<I", len(text) if length is None else length
  )
  return b"\x93NUMPY" + bytes(version) + size + text + data


def write_zip(path, *members, method=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, "w", method) as archive:
    for name, content in members:
      archive.writestr(name, content)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
  "descr, shape, words",
  [
    (
      "'|O'",
      "(1,)",
      "holds items of type object;.*pickled objects are refused",
    ),
    ("'<U2'", "(1,)", "holds items of type <U2"),
    ("'|S8'", "(1,)", r"holds items of type \|S8"),
    ("'<c8'", "(1,)", "holds items of type complex64"),
    ("'<M8[s]'", "(1,)", "holds items of type datetime64"),
    ("'<f16'", "()", "holds items of type"),
    ("[('a', '<f4')]", "(2,)", "holds items of type"),
    ("('<i1', (2,))", "(4,)", "holds items of type"),
    ("'|V0'", "(8,)", "holds items of type"),
    ("'<f4'", "(3,)", "does not take the 8 bytes"),
    ("'<f4'", "(1,)", "does not take the 8 bytes"),
    ("'<f4'", "(1099511627776,)", "does not take the 8 bytes"),
    ("'<f4'", f"(0, {2**62}, {2**62})", "impossible shape"),
    ("'<f4'", "(-1, -2)", "impossible shape"),
    ("'<f4'", "(True, 2)", "impossible shape"),
    ("'<f4'", f"({'1,' * 40})", "impossible shape"),
    ("'<f4'", f"({'9' * 1800},)", "impossible shape"),
    ("'<f4'", "(2.0,)", "no header as numpy.savez writes it"),
    ("'no'", "(2,)", "no header as numpy.savez writes it"),
    ("'\\d'", "(2,)", "no header as numpy.savez writes it"),
    ("open('/dev/null')", "(2,)", "no header as numpy.savez writes it"),
    ("{'names': ['a']}", "(2,)", "no header as numpy.savez writes it"),
    ("'V2147483647'", "()", "holds items of type"),
  ],
)
def test_lying_npy_headers(tmp_path, method, descr, shape, words):
  path = tmp_path / "model.npz"
  header = npy_header(descr, shape=shape)
  write_zip(path, ("head/kernel.npy", npy(header)), method=method)
  with refused(path, f"array 'head/kernel' .*{words}"):
    archives.open_arrays(path)


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"\x93NUMPY",
    b"not an array, but more than ten bytes",
    npy(npy_header(), version=(3, 0)),
    npy(npy_header(), version=(9, 9)),
    npy(npy_header(), version=(2, 0), length=0xFFFFFFFF),
    npy(npy_header() + " " * 5000),
    npy("(" * 1900),
    npy("-" * 1900 + "1"),
    npy("1" + "+1" * 950),
    npy("[" * 1900 + "]" * 100),
    npy("{[]: 1}"),
    npy("{1: 2, 'a': 3}"),
    npy("{\0}"),
    npy("\xff\xfe"),
  ],
)
def test_no_npy_header(tmp_path, content):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", content))
  with refused(path, "array 'a' has no header as numpy.savez writes it"):
    archives.open_arrays(path)


def test_headers_of_other_writers(tmp_path):
  """Another spacing, version 2.0, Python 2's integers, plain void items."""
  path = tmp_path / "model.npz"
  data = np.arange(2, dtype=np.float32).tobytes()
  write_zip(
    path,
    ("a.npy", npy("{'shape':(2,),'fortran_order':False,'descr':'<f4'}", data)),
    ("b.npy", npy(npy_header(), data, version=(2, 0))),
    ("c.npy", npy(npy_header(shape="(2L,)"), data)),
    ("d.npy", npy(npy_header("'|V2'", shape="(4,)"), data)),
  )
  floats = np.arange(2, dtype=np.float32)
  brain = floats.view(BFLOAT16)
  expected = {"a": floats, "b": floats, "c": floats, "d": brain}
  assert_same(read_all(path), expected)


@pytest.mark.parametrize(
  "name, words",
  [
    ("config.json", r"\.zip file that holds 'config.json'"),
    ("a/", r"\.zip file that holds 'a/'"),
    ("archive/data.pkl", "pickle of PyTorch's.*weights_only=True"),
    ("data.pkl", "pickle of PyTorch's.*save_file"),
    ("x" * 60_000, r"holds 'xxx.*\.\.\.;"),
  ],
)
def test_other_zip_files(tmp_path, name, words):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy(npy_header())), (name, b"x"))
  assert_refused(path, words)


def test_names_are_only_names(tmp_path):
  """Nothing is ever written; what the names could do to a terminal, is not."""
  path = tmp_path / "model.npz"
  names = ["../../up", "/etc/passwd", "a\nb\x1b[31m", "", ".", "x" * 9000]
  write_zip(path, *[(f"{name}.npy", npy(npy_header())) for name in names])
  assert list(read_all(path)) == names
  write_zip(path, ("a\nb\x1b[31m.npy", npy(npy_header(shape="(3,)"))))
  assert_refused(path, r"'a\\nb\\x1b\[31m'")
  write_zip(path, ("a__b.npy", npy(npy_header())))
  path.write_bytes(path.read_bytes().replace(b"a__b", b"a\0_b"))
  assert_refused(path, r"holds 'a\\x00_b.npy'")


def test_duplicate_names(tmp_path):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy(npy_header())), ("b.npy", npy(npy_header())))
  path.write_bytes(path.read_bytes().replace(b"b.npy", b"a.npy"))
  assert_refused(path, "two of its arrays have the same name")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression(tmp_path, method):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy(npy_header())), method=method)
  assert_refused(
    path, "packed as numpy.savez and numpy.savez_compressed do not"
  )


def test_encrypted(tmp_path):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy(npy_header())))
  raw = bytearray(path.read_bytes())
  raw[raw.index(b"PK\1\2") + 8] |= 1
  path.write_bytes(raw)
  assert_refused(path, "it is encrypted")


def small_bomb(claimed, name="a.npy"):
  """A file of zeros that unpacks to `claimed` bytes, written in pieces."""
  header = npy(npy_header("'|u1'", shape=f"({claimed},)"), b"")
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    with archive.open(name, "w") as member:
      member.write(header)
      for _ in range(claimed // MIB):
        member.write(bytes(MIB))
  return file.getvalue()


def test_zip_bomb(tmp_path):
  path = tmp_path / "model.npz"
  path.write_bytes(small_bomb(300 * MIB))
  assert path.stat().st_size < MIB
  with bounded_memory(MIB):
    assert_refused(path, "claim to unpack to .*, as no weights do")


def test_zero_initialised_head_is_no_bomb(tmp_path):
  """ImageNet-21k's for ViT-B: 67 MB of zeros in 65 kB."""
  path = tmp_path / "model.npz"
  np.savez_compressed(path, head=np.zeros((768, 21_843), np.float32))
  assert path.stat().st_size < MIB
  with archives.open_arrays(path) as arrays:
    assert arrays["head"].shape == (768, 21_843)
    assert not arrays["head"].any()


def local_part(name, packed, claimed, crc=0, method=zipfile.ZIP_DEFLATED):
  sizes = crc, len(packed), claimed, len(name), 0
  header = struct.pack("<4sHHHIIIIHH", b"PK\3\4", 20, 0, method, 0, *sizes)
  return header + name.encode() + packed


def by_hand(parts, listed):
  """A .zip file of `parts` with a list of (name, offset in the file)."""
  body, entries = b"".join(parts), io.BytesIO()
  for name, offset in listed:
    fields = body[offset + 4 : offset + 30]
    entries.write(b"PK\1\2" + struct.pack("<H", 20) + fields)
    entries.write(struct.pack("<HHHII", 0, 0, 0, 0, offset) + name.encode())
  count, size = len(listed) & 0xFFFF, entries.tell()
  end = struct.pack("<HHHHIIH", 0, 0, count, count, size, len(body), 0)
  return body + entries.getvalue() + b"PK\5\6" + end


def deflated(*pieces):
  stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
  return b"".join(map(stream.compress, pieces)) + stream.flush()


def byte_header(length):
  return npy(npy_header("'|u1'", shape=f"({length},)"), b"")


def test_member_that_unpacks_to_more_than_it_claims(tmp_path):
  path = tmp_path / "model.npz"
  header = byte_header(2)
  packed = deflated(header, bytes(100 * MIB))
  part = local_part("a.npy", packed, len(header) + 2, crc=1)
  path.write_bytes(by_hand([part], [("a.npy", 0)]))
  with bounded_memory(4 * MIB):
    assert_refused(path, "array 'a' does not match its checksum")


def test_member_that_unpacks_to_less_than_it_claims(tmp_path):
  path = tmp_path / "model.npz"
  header = byte_header(9000)
  part = local_part("a.npy", deflated(header), len(header) + 9000)
  path.write_bytes(by_hand([part], [("a.npy", 0)]))
  assert_refused(path, "it ends too early")


def test_hand_made_file_is_one(tmp_path):
  """The builder of the files that are refused can make one that is not."""
  path = tmp_path / "model.npz"
  content = byte_header(3) + b"\1\2\3"
  crc = zlib.crc32(content)
  part = local_part("a.npy", deflated(content), len(content), crc)
  path.write_bytes(by_hand([part], [("a.npy", 0)]))
  assert_same(read_all(path), {"a": np.array([1, 2, 3], np.uint8)})


@pytest.mark.parametrize(
  "at, change",
  [(0, 1), (6, 1), (7, 8), (8, 8), (30, 2)],
  ids=["magic", "encrypted", "utf8", "method", "name"],
)
def test_member_that_is_not_the_one_listed(tmp_path, at, change):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy(npy_header())), ("b.npy", npy(npy_header())))
  raw = bytearray(path.read_bytes())
  raw[raw.rindex(b"PK\3\4") + at] ^= change
  path.write_bytes(raw)
  assert_refused(path, "member 'b.npy' is not what its list says")


def test_stored_member_that_claims_more_than_it_has(tmp_path):
  """It would reach into the next one."""
  path = tmp_path / "model.npz"
  content = byte_header(200)
  sizes = len(content) + 200, 0, zipfile.ZIP_STORED
  parts = [local_part("a.npy", content, *sizes)]
  parts.append(local_part("b.npy", bytes(200), 200, 0, zipfile.ZIP_STORED))
  path.write_bytes(by_hand(parts, [("a.npy", 0), ("b.npy", len(parts[0]))]))
  assert_refused(path, "its list of members is damaged")


def test_overlapping_members(tmp_path):
  """Of members inside another's data each byte would count many times."""
  path = tmp_path / "model.npz"
  content = byte_header(0)
  crc = zlib.crc32(content)
  inner = local_part("b.npy", content, len(content), crc, zipfile.ZIP_STORED)
  content = byte_header(len(inner)) + inner
  crc = zlib.crc32(content)
  outer = local_part("a.npy", content, len(content), crc, zipfile.ZIP_STORED)
  path.write_bytes(by_hand([outer], [("a.npy", 0)]))
  assert set(read_all(path)) == {"a"}
  listed = [("a.npy", 0), ("b.npy", len(outer) - len(inner))]
  path.write_bytes(by_hand([outer], listed))
  assert_refused(path, "its members overlap")


def test_list_that_leaves_members_out(tmp_path):
  """In the list of a damaged file a member may be lost, or all."""
  path = tmp_path / "model.npz"
  archives.save_npz(path, {"a": np.ones(2), "b": np.ones(2)})
  raw = path.read_bytes()
  at = raw.index(b"PK\1\2")
  size = raw.rindex(b"PK\1\2") - at
  lost = bytearray(raw)
  lost[at + 32] = size  # The second entry is the first one's comment.
  path.write_bytes(lost)
  assert zipfile.ZipFile(path).namelist() == ["a.npy"]
  assert_refused(path, "its list leaves some out")
  path.write_bytes(raw[:-22] + b"PK\5\6" + bytes(18))
  assert zipfile.ZipFile(path).namelist() == []
  assert_refused(path, "its list leaves some out")
  path.write_bytes(raw + raw)
  assert_refused(path, "its list leaves some out")


def test_absurdly_many_members(tmp_path):
  path = tmp_path / "model.npz"
  part = local_part("a.npy", b"", 0)
  path.write_bytes(by_hand([part], [("a.npy", 0)] * 90_000))
  with bounded_memory(MIB):
    assert_refused(path, r"list of members takes \d+ bytes; at most 4194304")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_damage_to_an_npz_goes_unnoticed(tmp_path, save):
  """Bytes changed, or the end cut off: the same arrays or a refusal."""
  path = tmp_path / "model.npz"
  arrays = {
    "a": np.arange(4, dtype=np.float32),
    "ü": np.asfortranarray([[1, 2], [3, 4]]),
    "e": np.zeros((0, 3)),
  }
  save(path, **arrays)
  raw = path.read_bytes()
  damaged = [raw[:size] for size in range(0, len(raw), 20)]
  members = raw.index(b"PK\1\2")
  for at in [*range(0, members, 5), *range(members, len(raw))]:
    change = 1 << rng.integers(8)
    damaged.append(raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :])
  num_refused = 0
  for content in damaged:
    path.write_bytes(content)
    try:
      found = read_all(path)
    except (ValueError, OSError) as error:
      assert len(str(error).splitlines()) == 1
      assert repr(str(path)) in str(error)
      num_refused += 1
    else:
      assert_same(found, arrays)
  assert num_refused > len(damaged) / 2


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
  return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write_safetensors(path, header, data=b"1234", size=None):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  size = len(text) if size is None else size
  path.write_bytes(struct.pack("<Q", size) + text + data)


@pytest.mark.parametrize(
  "header, data, words",
  [
    ({"a": entry()}, b"123", "incomplete"),
    ({"a": entry()}, b"12345", "incomplete"),
    ({"a": entry()}, b"", "incomplete"),
    ({"a": entry(offsets=(4, 8))}, b"12345678", "offset"),
    ({"a": entry(), "b": entry()}, b"1234", "offset"),
    ({"a": entry(offsets=(4, 0))}, b"1234", "offset"),
    ({"a": entry(offsets=(0, 2**62))}, b"1234", "incomplete"),
    ({"a": entry(shape=(2,))}, b"1234", "invalid shape, data type, or offset"),
    ({"a": entry(shape=(-1,))}, b"1234", "invalid"),
    ({"a": entry(shape=(2**62, 8))}, b"1234", "overflow"),
    (
      {"a": entry(shape=(0, 2**62, 8), offsets=(0, 0))},
      b"",
      "impossible shape",
    ),
    ({"a": entry(shape=(1,) * 50)}, b"1234", "impossible shape"),
    ({"a": entry("F8_E4M3", (4,))}, b"1234", "type F8_E4M3; one of F64"),
    ({"a": entry("C64", (1,), (0, 8))}, b"12345678", "type C64"),
    ({"a": entry("F31")}, b"1234", "invalid JSON"),
    ({"a": 1}, b"", "invalid JSON"),
    ({"__metadata__": {"a": 1}}, b"", "invalid JSON"),
    (b'{"a', b"", "invalid JSON"),
    (b'{"\xff": 1}', b"", "invalid UTF-8"),
    (b'{"a":' + b"[" * 100_000, b"", "recursion limit"),
    (b'{"a":[' + b"[]," * MIB + b"[]]}", b"", "invalid JSON"),
  ],
)
def test_lying_safetensors_headers(tmp_path, header, data, words):
  path = tmp_path / "model.safetensors"
  write_safetensors(path, header, data)
  assert_refused(path, words)


@pytest.mark.parametrize("size", [60, 200, 2**24, 2**40, 2**64 - 1])
def test_safetensors_header_of_another_length(tmp_path, size):
  path = tmp_path / "model.safetensors"
  write_safetensors(path, {"a": entry()}, size=size)
  with bounded_memory(MIB):
    assert_refused(path, "header claims|deserializing header")


def test_absurdly_long_safetensors_header(tmp_path):
  path = tmp_path / "model.safetensors"
  write_safetensors(path, json.dumps({"a": entry()}).encode().ljust(5 * MIB))
  assert_refused(path, "header claims .* at most 4194304 are read")


def test_header_that_starts_as_json_does(tmp_path):
  """123 bytes: the length's first byte is the brace that JSON starts with."""
  path = tmp_path / "model.safetensors"
  text = json.dumps({"a": entry()}).encode().ljust(ord("{"))
  write_safetensors(path, text, np.float32(7).tobytes())
  assert_same(read_all(path), {"a": np.array([7], np.float32)})


def test_damaged_safetensors_never_raise_otherwise(tmp_path):
  path = tmp_path / "model.safetensors"
  archives.save_safetensors(path, {"a": np.ones(2, BFLOAT16), "b": np.ones(3)})
  raw = path.read_bytes()
  damaged = [raw[:size] for size in range(0, len(raw), 5)]
  for at in range(0, len(raw), 3):
    changed = bytes([rng.integers(256)])
    damaged.append(raw[:at] + changed + raw[at + 1 :])
  for content in damaged:
    path.write_bytes(content)
    with contextlib.suppress(archives.UnreadableFileError):
      read_all(path)


@pytest.fixture
def sharded(tmp_path):
  shards = {"model-1": ["head/bias", "brain"], "model-2": ["scalar"]}
  for shard, names in shards.items():
    shard_path = tmp_path / f"{shard}.safetensors"
    archives.save_safetensors(
      shard_path, {name: ARRAYS[name] for name in names}
    )
  path = tmp_path / "model.safetensors.index.json"
  weight_map = {
    name: f"{shard}.safetensors"
    for shard, names in reversed(shards.items())
    for name in names
  }
  index = {"metadata": {"total_size": 40}, "weight_map": weight_map}
  path.write_text(json.dumps(index, indent=2))
  return path


def test_shards_read_as_one_file(sharded):
  found = read_all(sharded)
  assert list(found) == ["scalar", "head/bias", "brain"]
  assert_same(found, {name: ARRAYS[name] for name in found})


def test_damaged_shard_is_named(sharded):
  shard = sharded.with_name("model-2.safetensors")
  shard.write_bytes(shard.read_bytes()[:-1])
  with refused(shard, "incomplete"):
    archives.open_arrays(sharded)
  shard.write_bytes(pickle.dumps({"a": 1}))
  with refused(shard, "it is a pickle"):
    archives.open_arrays(sharded)
  shard.unlink()
  assert_refused(
    sharded, "the shard 'model-2.safetensors', which is not beside"
  )
  shard.write_text(sharded.read_text())
  with refused(shard, "it is text; a shard has to be a .safetensors file"):
    archives.open_arrays(sharded)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"more": "model-2.safetensors"}, "disagree on whether array 'more'"),
    ({"scalar": "model-1.safetensors"}, "disagree on whether array 'scalar'"),
    ({"more": "model-3.safetensors"}, "'model-3.safetensors', which is not"),
    ({"brain": None}, "disagree on whether array 'brain'"),
    ({"more": "../model-2.safetensors"}, "shards in other folders"),
    ({"more": "/etc/passwd"}, "shards in other folders"),
    ({"more": "..\\model"}, "shards in other folders"),
    ({"more": "C:model"}, "shards in other folders"),
    ({"more": ".."}, "shards in other folders"),
    ({"more": "."}, "shards in other folders"),
    ({"more": ""}, "shards in other folders"),
    ({"more": "a\0b"}, "shards in other folders"),
    ({"more": 3}, 'no JSON with a "weight_map"'),
    ({"more": ["model-2.safetensors"]}, 'no JSON with a "weight_map"'),
    ({"more": "line\nbreak" + "x" * 99}, r"line\\nbreak"),
  ],
)
def test_index_that_does_not_fit_its_shards(sharded, changes, words):
  index = json.loads(sharded.read_text())
  changed = {**index["weight_map"], **changes}
  changed = {k: v for k, v in changed.items() if v is not None}
  sharded.write_text(json.dumps({"weight_map": changed}))
  assert_refused(sharded, words)


def old_pickle():
  return pickle.dumps({"a": np.ones(3)}, protocol=2)


def tar_file():
  return b"./storages".ljust(257, b"\0") + b"ustar  \0".ljust(255, b"\0")


@pytest.mark.parametrize(
  "content, words",
  [
    (b"", "is empty; an .npz or a .safetensors file is needed"),
    (b"hello", "starts with b'hello'"),
    (bytes(100), r"starts with b'\\x00"),
    (old_pickle(), "it is a pickle .*refused; convert it once.*save_file"),
    (pickle.dumps({}, protocol=5), "it is a pickle"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "it is a pickle"),
    (tar_file(), "it is a tar file .*convert it once"),
    (b"\x89HDF\r\n\x1a\n" + bytes(20), "is an HDF5 file"),
    (b"\x1f\x8b\x08" + bytes(20), "is a gzip file"),
    (npy(npy_header()), "is a single array"),
    (b"<!DOCTYPE html>", "is a web page"),
    (b"<?xml version='1.0'?><Error>", "is a web page or an error in XML"),
    (b"<\0\0\0\x10\0\x14\0", r"starts with b'<\\x00"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    (b"PK\3\4", "cut short or damaged"),
    (b"PK\3\4" + bytes(100), "cut short or damaged"),
    (b"{}", 'no JSON with a "weight_map"'),
    (b'{"weight_map": [1]}', 'no JSON with a "weight_map"'),
    (b'{"weight_map": ' + b"[" * 100_000, 'no JSON with a "weight_map"'),
    (b'{"weight_map": "\xff"}', 'no JSON with a "weight_map"'),
    (b'{"weight_map": {}}' + b" " * 5 * MIB, "at most 4194304"),
  ],
)
def test_other_kinds_of_file(tmp_path, content, words):
  path = tmp_path / "model\n.npz"  # Nor does the name break the line.
  path.write_bytes(content)
  assert_refused(path, words)


def test_what_is_no_file(tmp_path):
  assert_refused(tmp_path, "a folder or a device")
  missing = tmp_path / "missing.npz"
  with refused(missing, "No such file", kind=FileNotFoundError):
    archives.open_arrays(missing)


def test_pickles_are_never_loaded(tmp_path):
  """Neither a bare one, nor the object array in an .npz file."""
  touched = tmp_path / "touched"

  class Evil:
    def __reduce__(self):
      return open, (str(touched), "w")

  path = tmp_path / "model"
  path.write_bytes(pickle.dumps(Evil()))
  assert_refused(path, "it is a pickle")
  np.savez(tmp_path / "model.npz", a=np.array([Evil()], object))
  assert_refused(tmp_path / "model.npz", "pickled objects are refused")
  assert not touched.exists()
