"""Names, folders and patterns of image files on the command line."""

import os
import pathlib
import re

import pytest

from vit_jax.data.reading.named_images import (
  find_images,
  say_missing,
  with_root,
)

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


def test_masks_beside_images_are_left_out_with_a_line(tmp_path, capsys):
  """In one folder, in those of splits, and as numbers; named, they are read."""
  for name in ("images/a.jpg", "masks/a.png", "images/b.jpg", "masks/b.png"):
    for root in ("plain", "split/train", "split/val"):
      path = tmp_path / root / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(b"")
  for name in ("images/a.jpg", "depth/a.png"):
    path = tmp_path / "numbers" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
  plain = tmp_path / "plain"
  assert [*find_images(plain)] == [
    str(plain / "images" / name) for name in ("a.jpg", "b.jpg")
  ]
  assert not say_missing([str(plain)])
  line = f"{plain / 'masks'} belongs to the images beside it, and is left out"
  assert capsys.readouterr().err.startswith(line)
  assert len([*find_images(tmp_path / "split")]) == 4
  assert len([*find_images(tmp_path / "numbers")]) == 1
  assert len([*find_images(plain / "masks")]) == 2
  (plain / "masks" / "a.png").rename(plain / "masks" / "other.png")
  (plain / "masks" / "b.png").unlink()
  assert len([*find_images(plain)]) == 3  # They are no pairs.


def test_the_images_of_a_table_may_be_in_another_folder(tmp_path):
  pictures, table = tmp_path / "pictures", tmp_path / "tables" / "new.csv"
  for file in (pictures / "a.jpg", pictures / "b.jpg", table):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")
  table.write_text("file,size\nb.jpg,3\na.jpg,4\n")
  found = [str(pictures / name) for name in ("b.jpg", "a.jpg")]
  assert with_root([str(table), "x.jpg"], str(pictures)) == [*found, "x.jpg"]
  with pytest.raises(ValueError, match="by --root of `vit_jax predict`"):
    list(find_images([str(table)]))
  with pytest.raises(ValueError, match="there is no table: leave it out"):
    with_root(["x.jpg"], str(pictures))
