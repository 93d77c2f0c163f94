"""Odd files and folders of images: used rightly, or refused in a line.

What each kind of image decodes to is in `test_decode`; folders that are no data
sets and names that are not UTF-8 are in `test_sources`.
"""

import os
import time

import numpy as np
import pytest

from tests.image_files import GOOD, encode, make_folder, plain
from vit_jax import data
from vit_jax.data import decode_rgb
from vit_jax.data.settings import TrainTransformSettings


def bomb() -> bytes:
  """The header of a PNG of 20000 x 20000, which is all that may be read."""
  raw = bytearray(encode(plain(), "PNG"))
  raw[16:24] = (20_000).to_bytes(4, "big") * 2
  return bytes(raw)


def many_scans(count: int) -> bytes:
  """A progressive JPEG whose last scan comes again and again."""
  raw = encode(plain(), "JPEG", progressive=True)
  last = raw.rindex(b"\xff\xda")
  first = raw.count(b"\xff\xda") - 1
  return raw[:last] + raw[last:-2] * (count - first) + b"\xff\xd9"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
UNREADABLE = {
  "cut.jpg": (encode(plain(), "JPEG")[:300], "Truncated"),
  "cut.png": (encode(plain(), "PNG")[:60], "truncated"),
  "empty.png": (b"", "the file is empty"),
  "text.jpg": (b"see the attached file", "not an image of a known format"),
  "page.png": (b"<!DOCTYPE html><html></html>", "not an image of a known"),
  "script.jpg": (EPS, "not an image of a known format"),
  "bomb.png": (bomb(), "pixels"),
  "scans.jpg": (many_scans(101), "stored in 101 scans, more than 100"),
  "line\nbreak.jpg": (b"", "the file is empty"),
  "\x1b[2Jescape.jpg": (b"", "the file is empty"),
}
READABLE = {
  "named.jpg": encode(plain(), "PNG"),
  "one.png": encode(plain(size=(1, 1)), "PNG"),
  "thin.png": encode(plain(size=(1, 300)), "PNG"),
  "scans.jpg": many_scans(100),
  "a 'quoted' \"name\"\n.png": encode(plain(), "PNG"),
}


def one_pass(root: str, on_unreadable: str) -> list[dict]:
  source = data.open_source("eval", data.DataSettings(root=root))
  loader = data.Loader(on_unreadable=on_unreadable)
  with loader.evaluate(source, data.make_eval_transform(8), 4) as batches:
    return list(batches)


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_image_is_named_in_one_line_or_left_out(tmp_path, name):
  content, reason = UNREADABLE[name]
  files = {"train/c/0.png": GOOD, "test/c/0.png": GOOD}
  root = make_folder(tmp_path, {**files, f"test/c/{name}": content})
  printed = name.replace("\n", r"\n").replace("\x1b", r"\x1b")
  with pytest.raises(data.UnreadableImageError) as info:
    one_pass(root, "stop")
  message = str(info.value)
  assert f"test/c/{printed}: " in message and reason in message
  assert message.endswith("on_unreadable=skip passes over such images.")
  assert message.isprintable()
  (batch,) = one_pass(root, "skip")
  assert batch["mask"].sum() == 1 and batch["skipped"].sum() == 1


@pytest.mark.parametrize("name", READABLE)
def test_odd_images_are_read(tmp_path, name):
  files = {f"train/c/{name}": READABLE[name], f"test/c/{name}": GOOD}
  root = make_folder(tmp_path, files)
  source = data.open_source("train", data.DataSettings(root=root))
  assert source[0]["id"].isprintable()
  transform = data.make_train_transform(
    8, TrainTransformSettings(randaugment_layers=2)
  )
  image = transform(source[0]["image"], np.random.default_rng(0))
  assert image.shape == (8, 8, 3)
  whole = data.make_eval_transform(8)(source[0]["image"])
  # JPEG's colours are not exact, all else is one plain colour.
  assert np.abs(whole.astype(int) - (9, 90, 200)).max() <= 3


def test_the_first_picture_of_those_that_move():
  frames = [plain((250, 0, 0)), plain((0, 250, 0))]
  for file_format in ("PNG", "WEBP"):
    options = {"lossless": True} if file_format == "WEBP" else {}
    moving = encode(
      frames[0], file_format, save_all=True, append_images=frames[1:], **options
    )
    assert decode_rgb(moving)[0, 0].tolist() == [250, 0, 0]


def test_a_link_to_itself_is_an_image_that_cannot_be_read(tmp_path):
  root = make_folder(
    tmp_path, {"train/c/0.png": GOOD, "test/c/deep/er/0.png": GOOD}
  )
  os.symlink("self.png", tmp_path / "photos/test/c/self.png")
  os.symlink("folder", tmp_path / "photos/test/c/folder")
  with pytest.raises(data.UnreadableImageError, match="self.png: Too many lev"):
    one_pass(root, "stop")
  (batch,) = one_pass(root, "skip")
  assert batch["mask"].sum() == 1 and batch["skipped"].sum() == 1


def test_names_that_break_lines_are_refused_in_one(tmp_path):
  root = make_folder(tmp_path, {"train/a\nb/0.png": GOOD, "test/x/0.png": GOOD})
  with pytest.raises(ValueError, match="has the class 'x', which") as info:
    data.open_source("eval", data.DataSettings(root=root))
  assert str(info.value).isprintable()
  (tmp_path / "photos/train/c\nd").mkdir()
  with pytest.raises(ValueError, match="has no images") as info:
    data.open_source("train", data.DataSettings(root=root))
  assert str(info.value).isprintable()
  strange = os.fsdecode(os.fsencode(tmp_path) + b"/\n\xff")
  os.rename(root, strange)
  os.rmdir(strange + "/train/c\nd")
  source = data.open_source("train", data.DataSettings(root=strange))
  assert source.class_names == (r"a\nb", "other")
  assert source.name == r"\n\xff"
  with pytest.raises(ValueError, match="batch_size=3 is more than") as info:
    data.Loader().train(source, lambda *_: None, batch_size=3, seed=0)
  assert str(info.value).isprintable()


def test_thousands_of_classes_are_listed_in_seconds(tmp_path):
  root = tmp_path / "photos"
  for k in range(2000):
    for split in ("train", "test"):
      folder = root / split / f"class {k}"
      folder.mkdir(parents=True)
      (folder / "0.png").touch()
  start = time.perf_counter()
  source = data.open_source("eval", data.DataSettings(root=str(root)))
  # It takes a tenth of a second; what grows with the square takes far longer.
  assert time.perf_counter() - start < 10
  assert len(source.class_names) == len(source) == 2000
