"""Files that are refused, with one line, before memory is taken for them."""

import json
import pickle
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from tests.array_files import (
  MIB,
  assert_refused,
  assert_same,
  entry,
  npy,
  read_all,
  refused,
  write_safetensors,
  write_zip,
)
from tests.fuzzing import TALLY, outcome
from tests.memory import bounded_memory
from vit_jax.pretrained.arrays import save_arrays

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
  "content, words",
  [
    (npy("'|O'", "(1,)"), "type dtype.'O'.;.*pickled objects are refused"),
    (npy("'<c8'", "(1,)"), "holds items of type dtype.'complex64'"),
    (npy("'<f16'", "()"), "holds items of type"),
    (npy("[('a', '<f4')]"), "holds items of type"),
    (npy("('<i1', (2,))", "(4,)"), "holds items of type"),
    (npy(shape="(3,)"), r"of shape \(3,\) and type float32 does not"),
    (npy(shape="(-1, -2)"), "does not take the 8 bytes"),
    (npy(shape=f"({'9' * 1800},)"), "does not take the 8 bytes"),
    (npy(shape="(2.0,)"), "has no header as numpy.savez writes it"),
    (npy("open('/dev/null')"), "has no header as numpy.savez writes it"),
    (npy("'\\d'"), "has no header as numpy.savez writes it"),
    (npy(header="(" * 1900), "has no header as numpy.savez writes it"),
    (npy(length=(1 << 32) - 1), "has no header as numpy.savez writes it"),
    (b"no array, but more than ten bytes", "has no header as numpy.savez wri"),
    (npy(shape=f"(0, {2**62}, {2**62})", data=b""), "damaged or incomplete"),
  ],
)
def test_npy_files_that_lie(tmp_path, content, words):
  path = tmp_path / "model.npz"
  write_zip(path, ("head/kernel.npy", content))
  assert_refused(path, words)


@pytest.mark.parametrize(
  "name, method, words",
  [
    ("config.json", 0, r"\.zip file that holds 'config.json', unlike numpy.sa"),
    ("archive/data.pkl", 0, "PyTorch pickle.*save_file.*weights_only=T"),
    ("b.npy", zipfile.ZIP_BZIP2, "holds 'b.npy', unlike numpy.savez and nump"),
    ("b.npy", zipfile.ZIP_LZMA, "holds 'b.npy', unlike numpy.savez and numpy"),
    ("a.npy", 0, "two of its arrays have the same name"),
  ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_other_zip_files(tmp_path, name, method, words):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", npy()), (name, npy()), compress_type=method)
  assert_refused(path, words)


def test_names_do_not_break_the_line(tmp_path):
  path = tmp_path / "model.npz"
  write_zip(path, ("a\nb\x1b[31m.npy", npy(shape="(3,)")))
  assert_refused(path, r"'a\\nb\\x1b\[31m'")
  write_zip(path, ("a__b.npy", npy()))
  path.write_bytes(path.read_bytes().replace(b"a__b", b"a\0_b"))
  assert_refused(path, r"holds 'a\\x00_b.npy'")


LONG = npy("'|u1'", "(9000,)", b"")
SHORT = npy("'|u1'", "(2,)", b"")


@pytest.mark.parametrize(
  "content, claims, words",
  [
    (LONG, {"file_size": len(LONG) + 9000}, "different structures"),
    (SHORT + bytes(99 * MIB), {"file_size": len(SHORT) + 2}, "Bad CRC-32"),
    (LONG, {"compress_type": 0, "file_size": 9200}, "claim to hold 9200, "),
    (LONG, {"compress_size": 1 << 40}, "claim to hold 1099511627776, "),
    (LONG, {"file_size": 1 << 40}, "or 1099511627776 unpacked; at most"),
    (LONG, {"header_offset": 7}, "Bad magic number for file header"),
    (LONG, {"flag_bits": 1}, "is encrypt"),
  ],
  ids=["long", "short", "stored", "packed", "unpacked", "place", "encrypted"],
)
def test_lists_of_members_that_lie(tmp_path, content, claims, words):
  path = tmp_path / "model.npz"
  write_zip(path, ("a.npy", content), method=zipfile.ZIP_DEFLATED, **claims)
  with bounded_memory(4 * MIB):
    assert_refused(path, words)


def test_absurdly_many_members(tmp_path):
  path = tmp_path / "model.npz"
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("a.npy", b"")
    archive.filelist *= 90_000
  with bounded_memory(MIB):
    assert_refused(path, r"list of members takes \d+ bytes; 4194304 are enough")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_damage_to_an_npz_goes_unnoticed(tmp_path, save):
  """A file with changed bytes or a cut end is refused, or reads the same."""
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
  found = []
  for content in damaged:
    path.write_bytes(content)
    outcome("damage", lambda: found.append(read_all(path)))
  for read in found:
    assert_same(read, arrays)
  assert TALLY["damage", "refused"] > TALLY["damage", "read"]


@pytest.mark.parametrize(
  "header, size, words",
  [
    ({"a": entry(shape=(2,), offsets=(0, 8))}, None, "incomplete"),
    ({"a": entry(shape=(2**62, 8))}, None, "overflow"),
    ({"a": entry(shape=(1,) * 99)}, None, "maximum supported dimension"),
    ({"a": entry("F8_E4M3", (4,))}, None, "type F8_E4M3; one of BOOL"),
    (b'{"a":' + b"[" * 100_000, None, "recursion limit"),
    (b"{}".ljust(5 * MIB), None, "claims 5242880 bytes; 4194304 are enough"),
    ({"a": entry()}, 2**20, "invalid header length"),
    ({"a": entry()}, 2**64 - 1, "claims 18446744073709551615 bytes"),
  ],
)
def test_safetensors_that_lie(tmp_path, header, size, words):
  path = tmp_path / "model.safetensors"
  write_safetensors(path, header, size=size)
  assert_refused(path, words)


CLAIMS = """
import pathlib, resource, sys
from vit_jax.pretrained.arrays import UnreadableFileError, open_arrays

used = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
limit = used * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
  try:
    with open_arrays(path) as arrays:
      dict(arrays)
  except UnreadableFileError as error:
    assert "MemoryError" not in str(error), error
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="others count otherwise")
def test_absurd_claims_take_no_memory(tmp_path):
  """Uses the system's count of memory, which includes C and Rust libraries."""
  huge = 1 << 40
  claim = npy(shape=f"({huge},)")
  write_zip(tmp_path / "a", ("a.npy", claim))
  write_zip(tmp_path / "b", ("a.npy", claim), file_size=len(claim) + 4 * huge)
  write_zip(tmp_path / "c", ("a.npy", npy(length=(1 << 32) - 1)))
  np.savez_compressed(tmp_path / "d.npz", a=np.zeros(500 * MIB, np.uint8))
  write_safetensors(tmp_path / "e", {"a": entry("F32", (huge,), (0, 4 * huge))})
  write_safetensors(tmp_path / "f", {"a": entry()}, size=99 * MIB)
  write_safetensors(tmp_path / "g", {"a": entry()}, size=huge)
  (tmp_path / "h").write_text("{")
  with open(tmp_path / "h", "r+b") as file:
    file.truncate(huge)  # A sparse file takes no space on the disk.
  files = sorted(map(str, tmp_path.iterdir()))
  command = [sys.executable, "-c", CLAIMS, *files]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  refusals = done.stdout.splitlines()
  assert len(refusals) == len(files) == 8
  assert "at most" in refusals[3] and "hardly compress" in refusals[3]


def write_shards(folder, changes):
  """Writes an index of two shards with changes; None removes an entry."""
  save_arrays(folder / "one.safetensors", {"a": np.ones(2), "b": np.ones(3)})
  save_arrays(folder / "two.safetensors", {"c": np.ones(1)})
  weight_map = {"a": "one", "b": "one", "c": "two"}
  weight_map = {k: f"{shard}.safetensors" for k, shard in weight_map.items()}
  changed = {k: v for k, v in (weight_map | changes).items() if v is not None}
  path = folder / "model.safetensors.index.json"
  path.write_text(json.dumps({"weight_map": changed}))
  return path


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"more": "two.safetensors"}, "disagree on array 'more'"),
    ({"b": None}, "disagree on array 'b'"),
    ({"more": "../two.safetensors"}, "'../two.safetensors', which is no .saf"),
    ({"more": "..\\two.safetensors"}, "which is no .safetensors file beside"),
    ({"more": ".."}, "'..', which is no .safetensors file beside it"),
    ({"more": "a\0b.safetensors"}, r"'a\\x00b.*, which is no .safetensors fi"),
    ({"more": "line\nbreak" + "x" * 99}, r"line\\nbreak"),
    ({"more": ["two.safetensors"]}, "which is no .safetensors file beside it"),
  ],
)
def test_index_that_does_not_fit_its_shards(tmp_path, changes, words):
  assert_refused(write_shards(tmp_path, changes), words)


@pytest.mark.parametrize(
  "content, words",
  [
    (None, "'two.safetensors', which is no .safetensors file beside it"),
    (pickle.dumps({"a": 1}), "two.safetensors': it is a pickle"),
    (b'{"weight_map": {}}', "two.safetensors': it starts with b'.\"weight"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
  ],
)
def test_damaged_shard_is_named(tmp_path, content, words):
  path = write_shards(tmp_path, {})
  shard = tmp_path / "two.safetensors"
  shard.unlink() if content is None else shard.write_bytes(content)
  assert_refused(path, words)


@pytest.mark.parametrize(
  "content, words",
  [
    (b"", "is empty; an .npz or a .safetensors file is needed"),
    (b"hello", "starts with b'hello'"),
    (pickle.dumps([1], 2), "it is a pickle .*refused; convert it once.*save_f"),
    (pickle.dumps({}, 5), "it is a pickle"),
    (b"./a".ljust(257, b"\0") + b"ustar  \0", "it is a tar file .*convert it"),
    (b"\x89HDF\r\n\x1a\n" + bytes(20), "is an HDF5 file"),
    (b"\x1f\x8b\x08" + bytes(20), "is a gzip file"),
    (npy(), "is a single array"),
    (b"<!DOCTYPE html>", "is a web page"),
    (b"\n<HTML>", "is a web page"),
    (b"<?xml version='1.0'?><Error>", "is a web page or an error in XML"),
    (b"<\0\0\0\x10\0\x14\0", r"starts with b'<\\x00"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    (b"PK\3\4" + bytes(100), "damaged or incomplete .BadZipFile: File is not"),
    (b"{}", 'not JSON with a "weight_map"'),
    (b'{"weight_map": ' + b"[" * 100_000, 'not JSON with a "weight_map"'),
    (b'{"weight_map": {}}' + b" " * 5 * MIB, "at most 4194304 bytes"),
  ],
)
def test_other_kinds_of_file(tmp_path, content, words):
  path = tmp_path / "model\n.npz"  # The name does not break the line.
  path.write_bytes(content)
  assert_refused(path, words)


def test_what_is_no_file(tmp_path):
  assert_refused(tmp_path, "a folder or a device")
  missing = tmp_path / "missing.npz"
  with refused(missing, "No such file", kind=FileNotFoundError):
    read_all(missing)


def test_pickles_are_never_loaded(tmp_path):
  """Neither a bare pickle nor an object array in an .npz file is loaded."""
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


def test_an_exported_model_is_told_from_weights(tmp_path):
  """An ONNX file begins with its version, 8, and the name of its producer."""
  path = tmp_path / "model.onnx"
  path.write_bytes(b"\x08\x08\x12\x07vit_jax\x1a\x050.1.0")
  advice = "give the run or the weights that it was exported from"
  assert_refused(path, f"an ONNX file, which onnxruntime runs; {advice}")
  exported = export.export(jax.jit(jnp.sin))(jnp.ones(3))
  path.write_bytes(exported.serialize())
  assert_refused(path, f"exported program, which jax.export reads; {advice}")
