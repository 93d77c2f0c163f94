"""Files of arrays that we write, read back by us and by other libraries."""

import resource
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from tests.array_files import (
  ARRAYS,
  BFLOAT16,
  DENSE,
  MIB,
  assert_same,
  read_all,
)
from tests.memory import bounded_memory
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.runtime.files import filling

both_formats = pytest.mark.parametrize("name", ["m.npz", "m.safetensors"])


@both_formats
def test_written_arrays_are_read_back(tmp_path, name):
  save_arrays(tmp_path / name, DENSE)
  assert_same(read_all(tmp_path / name), ARRAYS)
  save_arrays(tmp_path / name, {})
  assert read_all(tmp_path / name) == {}


def test_other_programs_read_what_we_write(tmp_path):
  save_arrays(tmp_path / "m.npz", DENSE)
  with np.load(tmp_path / "m.npz") as found:
    found = dict(found)
  found["brain"] = found["brain"].view(BFLOAT16)  # NumPy knows its size only.
  assert_same(found, ARRAYS)
  path = tmp_path / "m.safetensors"
  save_arrays(path, DENSE)
  assert_same(safetensors.numpy.load_file(path), ARRAYS)
  with safetensors.safe_open(path, framework="np") as opened:
    assert opened.metadata() == {"format": "pt"}


@both_formats
def test_equal_arrays_give_equal_bytes(tmp_path, name):
  for folder in (tmp_path / "a", tmp_path / "b"):
    folder.mkdir()
    save_arrays(folder / name, {k: array.copy() for k, array in DENSE.items()})
  assert (tmp_path / "a" / name).read_bytes() == (
    tmp_path / "b" / name
  ).read_bytes()
  if name == "m.npz":
    with zipfile.ZipFile(tmp_path / "a" / name) as archive:
      dates = {member.date_time for member in archive.infolist()}
    assert dates == {(1980, 1, 1, 0, 0, 0)}


@both_formats
def test_others_may_read_what_we_write(tmp_path, name):
  save_arrays(tmp_path / name, {"a": np.ones(3)})
  (tmp_path / "plain").touch()
  modes = {path.stat().st_mode for path in tmp_path.iterdir()}
  assert len(modes) == 1


@both_formats
def test_written_with_little_more_memory(tmp_path, name):
  arrays = {str(i): np.full(4 * MIB, i, np.uint8) for i in range(8)}
  with bounded_memory(17 * MIB):  # NumPy copies up to 16 MiB at a time.
    save_arrays(tmp_path / name, arrays)


def test_strided_arrays_are_not_written_in_another_order(tmp_path):
  with pytest.raises(AssertionError):
    save_arrays(tmp_path / "m.safetensors", {"a": ARRAYS["strided"]})


# NumPy's older versions leave their zip file open when a write fails.
@pytest.mark.filterwarnings(
  "ignore:.*ZipFile.__del__:pytest.PytestUnraisableExceptionWarning"
)
@both_formats
def test_a_full_disk_is_said_of_the_folder(tmp_path, name):
  """A limit of 1 MiB per file fails in the same way as a full disk."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
  try:
    with pytest.raises(OSError, match="out' cannot be written .File too large"):
      with filling(tmp_path / "out") as draft:
        save_arrays(draft / name, {"a": np.zeros(4 * MIB, np.uint8)})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert not [*tmp_path.iterdir()]
