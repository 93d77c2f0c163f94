"""Names, folders and patterns of image files on the command line."""

import os
import pathlib
import re

import pytest

from tests.memory import bounded_memory
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.image_files import find_images, read_file, say_missing

IN_P = ["p/a-b/3.gif", "p/a/1.jpeg", "p/a/2.JPG", "p/b.png", "p/z.heic"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  hidden = "p/.hidden.png", "p/.git/4.png"
  others = "p/notes.txt", "q [1].png", "q 1.png", "~x.bmp"
  for name in (*IN_P, *hidden, *others):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
  (tmp_path / "p" / "a" / "itself").symlink_to(tmp_path / "p" / "a")
  (tmp_path / "empty").mkdir()


@pytest.mark.parametrize(
  "names, found",
  [
    (["p"], IN_P),
    (["p/"], IN_P),
    (["p/*"], [*IN_P[1:3], IN_P[0], *IN_P[3:]]),
    (["q [1].png"], ["q [1].png"]),
    (["q [[]1].png"], ["q [1].png"]),
    (["q*"], ["q 1.png", "q [1].png"]),
    (["p/b.png", "q 1.png", "p/b.png"], ["p/b.png", "q 1.png", "p/b.png"]),
    (["p/notes.txt"], ["p/notes.txt"]),
    (["./~x.bmp"], ["./~x.bmp"]),
    ("p/b.png", ["p/b.png"]),
    (pathlib.Path("p"), IN_P),
    ([pathlib.Path("p/b.png")], ["p/b.png"]),
  ],
)
def test_find_images(folder, names, found):
  assert list(find_images(names)) == found
  assert not say_missing(names)


def test_a_pattern_finds_each_image_once(folder):
  assert sorted(find_images(["p/**"])) == IN_P
  assert sorted(find_images(["**/*.JPG"]))[0] == "p/a/2.JPG"


@pytest.mark.parametrize(
  "name, message",
  [
    ("http://x.org/a.png", "no image: it is an address: download it"),
    ("none.png", "'none.png' matches no image: give files, folders or quoted"),
    ("digits", "quoted patterns. If it is the data set of a run, `vit_jax ev"),
    ("*.webp", "'[*].webp' matches no image"),
    ("p/*.txt", "matches no image"),
    ("empty", r"folder 'empty' holds no images \(.jpg, .jpeg, .jfif, .png"),
  ],
)
def test_a_name_without_images_is_refused(folder, name, message, capsys):
  with pytest.raises(ValueError, match=message):
    say_missing([name])
  assert say_missing(["p", name])
  assert re.search(message, capsys.readouterr().err)


def test_what_is_no_regular_file_is_an_unreadable_image(tmp_path):
  """A FIFO would hang, and the others would fill the memory."""
  os.mkfifo(tmp_path / "fifo.png")
  (tmp_path / "device.png").symlink_to("/dev/zero")
  with (tmp_path / "sparse.png").open("wb") as file:
    file.truncate(6 * 2**30)
  reasons = {
    "fifo.png": "a FIFO, not a regular file",
    "device.png": "a device (by a link), not a regular file",
    "sparse.png": "larger than the",
  }
  for name, reason in reasons.items():
    said = re.escape(f"{name}: {reason}")
    with bounded_memory(2**24), pytest.raises(UnreadableImageError, match=said):
      read_file(os.fsencode(tmp_path / name))


def test_a_table_names_images_from_its_folder_on(folder):
  """By absolute names too; elsewhere, one line says where it belongs."""
  here = os.path.abspath("p")
  for place, names in (
    ("p/new.csv", ["b.png", "none.png"]),
    ("empty/new.csv", [f"{here}/b.png", f"{here}/z.heic"]),
  ):
    pathlib.Path(place).write_text("\n".join(["image", *names]) + "\n")
    found = [*map(os.path.abspath, find_images(place))]
    assert found == [os.path.join(here, name) for name in names]
  pathlib.Path("empty/new.csv").write_text("image\nb.png\nz.heic\n")
  match = (
    r"empty/new\.csv names 2 images, such as 'b\.png', and none .* in empty"
  )
  with pytest.raises(ValueError, match=match):
    say_missing(["empty/new.csv", "p"])
