"""What is written is on the disk before it has its name; the name is soon."""

import errno
import os
import pathlib

import pytest

from vit_jax.runtime import files


@pytest.fixture
def calls(monkeypatch):
  """The names of what is synced, and the word "rename", in their order."""
  calls, replace = [], os.replace

  def fsync(number):
    calls.append(pathlib.Path(os.readlink(f"/proc/self/fd/{number}")).name)

  def rename(*paths):
    calls.append("rename")
    replace(*paths)

  monkeypatch.setattr(os, "fsync", fsync)
  monkeypatch.setattr(os, "replace", rename)
  return calls


def test_a_file_is_synced_before_its_name_and_its_folder_after(tmp_path, calls):
  with files.replacing(tmp_path / "a") as file:
    file.write(b"1")
  (part, *rest) = calls
  assert part.startswith(".a.")
  assert rest == ["rename", tmp_path.name]
  assert (tmp_path / "a").read_bytes() == b"1"


TABLES = {"CSV": (".csv", ".txt"), "JSON": (".json",)}


@pytest.mark.parametrize(
  "name, chosen, expected",
  [
    ("a", None, "CSV"),
    ("a.csv", None, "CSV"),
    ("A.CSV", None, "CSV"),
    ("a.csv.json", None, "JSON"),
    ("a.v2", None, "CSV"),
    ("2026.01", "JSON", "JSON"),
    ("a.json", "JSON", "JSON"),
    (".json", None, "CSV"),
  ],
)
def test_an_ending_chooses_the_format(name, chosen, expected, capsys):
  """A line says what becomes of an ending that names none of them."""
  path = pathlib.Path("new folder.xlsx", name)
  found = files.output_file(str(path), TABLES, chosen)
  assert found == (path, expected)
  said = ""
  if name == "a.v2":
    said = (
      f"{path}: .v2 names no format, so it becomes CSV; endings of formats are "
      ".csv and .txt and .json.\n"
    )
  assert capsys.readouterr().err == said


@pytest.mark.parametrize(
  "name, chosen, message",
  [
    (
      "a.xlsx",
      None,
      r"a.xlsx': .xlsx says .* CSV \(.csv, .txt\) or JSON ",
    ),
    ("a.csv.GZ", None, "a.csv.GZ': .GZ says another format than what"),
    ("a.csv", "JSON", r".csv says another .* written, JSON \(.json\): give"),
    ("a.onnx", "JSON", r".onnx says another .* written, JSON \(.json\): give"),
    ("", None, "the path to write to is empty"),
    ("gs://a/a.csv", None, "only local files can be written"),
  ],
)
def test_an_ending_of_another_format_is_refused(name, chosen, message):
  with pytest.raises(ValueError, match=message):
    files.output_file(name, TABLES, chosen)


def test_a_folder_has_no_ending_of_a_file(tmp_path):
  for name in ("new", "vit.v2"):
    path = tmp_path / name
    assert files.output_folder(str(path)) == path
  with pytest.raises(ValueError, match="b.npz' is the name of a .npz file"):
    files.output_folder(str(tmp_path / "b.npz"))
  (tmp_path / "b.npz").mkdir()
  files.output_folder(str(tmp_path / "b.npz"))
  (tmp_path / "file").touch()
  with pytest.raises(ValueError, match="file' is a file; name the folder"):
    files.output_folder(str(tmp_path / "file"))


def test_a_folder_is_synced_with_all_that_it_holds(tmp_path, calls):
  with files.filling(tmp_path / "folder") as folder:
    (folder / "in").mkdir()
    (folder / "in" / "a").touch()
    (folder / "b").touch()
  before = calls[: calls.index("rename")]
  assert {"in", "a", "b"} < {*before} and len(before) == 4
  assert calls[5:] == [tmp_path.name]
  calls.clear()
  (tmp_path / "there").mkdir()
  with files.filling(tmp_path / "there") as folder:
    (folder / "c").touch()
  assert calls == ["c", "rename", "there"]


def test_a_file_system_that_cannot_sync_folders_stops_nobody(
  tmp_path, monkeypatch
):
  def fsync(_):
    raise OSError(errno.EINVAL, "Invalid argument")

  monkeypatch.setattr(os, "fsync", fsync)
  files.sync(tmp_path)

  def fail(_):
    raise OSError(errno.EIO, "Input/output error")

  monkeypatch.setattr(os, "fsync", fail)
  with (
    pytest.raises(OSError, match="Input/output"),
    files.replacing(tmp_path / "a"),
  ):
    pass
  assert not (tmp_path / "a").exists()
