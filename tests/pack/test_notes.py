"""What a power cut leaves of a packing: the same command mends all of it.

An ext4 file system that is cut for real is in `tests/test_power_cut.py`.
"""

import contextlib
import io
import os
import pathlib
import shutil

import pytest

from tests.image_files import write_noise
from tests.pack.test_writer import stopping_with
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.pack import notes, writer
from vit_jax.pack.__main__ import verify
from vit_jax.pack.shards import Encoding
from vit_jax.pack.sources import open_sources

FILES = (
  *("dataset_info.json", "features.json", "label.labels.txt"),
  *("sha256sums.txt", "unreadable.txt", "notes/plan.json"),
  *("notes/train-00000.json", "notes/train-00001.json"),
  "notes/validation-00000.json",
  *(f"out-train.array_record-0000{k}-of-00002" for k in range(2)),
  "out-validation.array_record-00000-of-00001",
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
  """Four images for training, of which one is broken, two for evaluation."""
  root = tmp_path_factory.mktemp("photos")
  write_noise(root, "train/cat", "train/dog", count=2, size=(20, 30))
  write_noise(root, "val/cat", "val/dog", size=(20, 30), seed=1)
  broken = root / "train" / "dog" / "1.png"
  broken.write_bytes(broken.read_bytes()[:100])
  return root


def _pack(photographs, out, encoding=None):
  sources = open_sources(str(photographs))
  encoding = encoding or Encoding()
  writer.pack(sources, str(out), encoding, workers=1, shard_bytes=4_000)


def _content(folder):
  """The bytes of every file, by its path in the folder."""
  paths = (path for path in folder.rglob("*") if path.is_file())
  return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def whole(photographs, tmp_path_factory):
  """A packing that nothing has disturbed; not to be changed."""
  out = tmp_path_factory.mktemp("whole") / "out"
  _pack(photographs, out)
  assert {*_content(out)} == {*FILES}
  return out


@pytest.fixture(scope="module")
def half(photographs, tmp_path_factory):
  """A packing that was stopped after its first shard; not to be changed."""
  out = tmp_path_factory.mktemp("half") / "out"
  with pytest.raises(KeyboardInterrupt):
    _pack(photographs, out, stopping_with(1, out))
  names = {"notes/plan.json", "notes/train-00000.json", FILES[9]}
  assert {*_content(out)} == names
  return out


@pytest.mark.parametrize("part", [0, 2], ids=["empty", "half"])
@pytest.mark.parametrize("state", ["whole", "half"])
def test_the_same_command_mends_each_file(
  request, photographs, tmp_path, capsys, state, part
):
  """All are tried one after the other, as each is mended before the next."""
  out = tmp_path / "out"
  start = request.getfixturevalue(state)
  expected = _content(request.getfixturevalue("whole"))
  for name in _content(start):
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(start, out)
    file = out / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size * part // 4])
    if state == "whole":
      with pytest.raises(ValueError, match="are not as they were packed"):
        verify(str(out))
      said = capsys.readouterr().out
      named = "out-train" if name == "sha256sums.txt" else name
      assert f"{out / named}" in said
    _pack(photographs, out)
    assert _content(out) == expected, name
    if "notes" in name or "array_record" in name:
      lines = capsys.readouterr().out.splitlines()
      assert [line for line in lines if line.startswith(f"{file} ")], name
    verify(str(out))


def test_all_files_at_once_are_mended(photographs, whole, tmp_path):
  out = tmp_path / "out"
  shutil.copytree(whole, out)
  for name in FILES:
    (out / name).write_bytes(b"")
  (out / ".out-train.array_record-00000-of-00002.0123abcd.part").touch()
  _pack(photographs, out)
  assert _content(out) == _content(whole)


def test_a_note_whose_digest_is_wrong_is_not_believed(
  photographs, whole, tmp_path
):
  """One with another number is read as JSON without complaint."""
  out = tmp_path / "out"
  shutil.copytree(whole, out)
  path = notes.path_of(out, "train", 0)
  text = path.read_text()
  path.write_text(text.replace('"bytes": ', '"bytes": 1'))
  assert path.read_text() != text
  _pack(photographs, out)
  assert path.read_text() == text


def test_a_lost_plan_opens_no_door_to_another_packing(
  photographs, whole, tmp_path
):
  other = tmp_path / "other"
  shutil.copytree(photographs, other)
  extra = other / "train" / "cat" / "9.png"
  shutil.copy(other / "train" / "dog" / "0.png", extra)
  for damaged in (["notes/plan.json"], [n for n in FILES if "notes" in n]):
    out = tmp_path / str(len(damaged)) / "out"
    shutil.copytree(whole, out)
    for name in damaged:
      (out / name).write_bytes(b"")
    shutil.rmtree(other / "val", ignore_errors=True)  # One has other shards.
    with pytest.raises(ValueError, match="from other images or labels"):
      _pack(other, out)


class Disk:
  """Keeps what a cut at any moment would leave of the files in a folder.

  Content is kept once a file is synced, and a name once its folder is: the
  least that a file system has to do. A name may also be kept before.
  """

  def __init__(self, root, monkeypatch):
    self._root = root
    self._content = {}  # Bytes by inode.
    self._names = {root: {}}  # Inodes by name, by folder.
    self.states = []
    self._fsync = os.fsync
    monkeypatch.setattr(os, "fsync", self._synced)

  def _synced(self, number):
    self._fsync(number)
    path = pathlib.Path(os.readlink(f"/proc/self/fd/{number}"))
    if self._root not in (path, *path.parents):
      return
    self._remember(self.kept(_names_in))  # Before this call has returned.
    if path.is_dir():
      self._names[path] = _names_in(path)
    else:
      self._content[path.stat().st_ino] = path.read_bytes()
    self._remember(self.kept(self._known))

  def _remember(self, kept):
    if kept not in self.states:
      self.states.append(kept)

  def _known(self, folder):
    return self._names.get(folder, {})

  def kept(self, names=None, folder=None, at=""):
    """Bytes by path: b"" of a file that was not synced, None of a folder."""
    names, folder = names or self._known, folder or self._root
    found = {}
    for name, inode in names(folder).items():
      path = f"{at}{name}"
      if (folder / name).is_dir():
        found[path] = None
        found |= self.kept(names, folder / name, f"{path}/")
      else:
        found[path] = self._content.get(inode, b"")
    return found


def _names_in(folder):
  return {path.name: path.stat().st_ino for path in folder.iterdir()}


def _laid_out(kept, folder):
  for name, content in kept.items():
    path = folder / name
    if content is None:
      path.mkdir(parents=True)
    else:
      path.write_bytes(content)


def test_all_is_on_the_disk_before_the_last_line(
  photographs, whole, tmp_path, monkeypatch
):
  (tmp_path / "disk").mkdir()
  disk, at_the_end = Disk(tmp_path / "disk", monkeypatch), []

  class Screen(io.StringIO):
    def write(self, text):
      if text.startswith("Train on it with"):
        at_the_end.append(disk.kept())
      return len(text)

  with contextlib.redirect_stdout(Screen()):
    _pack(photographs, tmp_path / "disk" / "deep" / "out")
  (kept,) = at_the_end
  expected = {f"deep/out/{k}": v for k, v in _content(whole).items()}
  assert {k: v for k, v in kept.items() if v is not None} == expected


def test_a_cut_at_any_moment_is_mended(
  photographs, whole, tmp_path, monkeypatch
):
  (tmp_path / "disk").mkdir()
  with monkeypatch.context() as patch:
    disk = Disk(tmp_path / "disk", patch)
    _pack(photographs, tmp_path / "disk" / "out")
  states = disk.states
  assert len(states) > 2 * len(FILES)
  for number, kept in enumerate(states):
    root = tmp_path / str(number)
    root.mkdir()
    _laid_out(kept, root)
    with contextlib.redirect_stdout(None):
      _pack(photographs, root / "out")
    assert _content(root / "out") == _content(whole)


@pytest.mark.parametrize(
  "content, message",
  [
    (b"", "names 0 classes, and features.json counts 2"),
    (b"cat\n", "names 1 classes, and features.json counts 2"),
    (b"cat\ndo", "differs from sha256sums.txt"),
    (None, "is missing"),
  ],
)
def test_a_cut_list_of_classes_is_refused(whole, tmp_path, content, message):
  out = tmp_path / "out"
  shutil.copytree(whole, out)
  path = out / "label.labels.txt"
  path.write_bytes(content or b"")
  if content is None:
    path.unlink()
  with pytest.raises(ValueError, match=f"^{path} {message}") as error:
    open_splits(DataSettings(dir=str(out)))
  assert "\n" not in str(error.value)


def test_own_names_are_read_once_their_checksum_is_gone(whole, tmp_path):
  out = tmp_path / "out"
  shutil.copytree(whole, out)
  (out / "label.labels.txt").write_text("kitten\npuppy\n")
  sums = out / "sha256sums.txt"
  lines = sums.read_text().splitlines(keepends=True)
  sums.write_text("".join(x for x in lines if "label.labels.txt" not in x))
  names = open_splits(DataSettings(dir=str(out))).train.class_names
  assert names == ("kitten", "puppy")
