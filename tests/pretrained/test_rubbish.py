"""Odd files and folders: used rightly, or refused in a line.

Files of weights are in `test_archives`, `test_load` and `test_fuzz`; what each
kind of image decodes to is in `test_data_decode`; folders that are no data sets
and names that are not UTF-8 are in `test_data_sources`.
"""

import io
import json
import os
import time

import jax
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image

from tests import tiny
from vit_jax import data, load_pretrained
from vit_jax.data import decode_rgb
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.models import Origin
from vit_jax.models.grid import param_shapes
from vit_jax.predict import predict_files
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.save import save_as


def encode(image: Image.Image, file_format: str, **options) -> bytes:
  file = io.BytesIO()
  image.save(file, file_format, **options)
  return file.getvalue()


def plain(colour=(9, 90, 200), size=(20, 16)) -> Image.Image:
  return Image.new("RGB", size, colour)


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


EPS = (
  b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage"
)
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


def make_folder(tmp_path, files) -> str:
  """A data set of a folder from names below `train` and `test` to contents."""
  for name, content in files.items():
    path = tmp_path / "photos" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return str(tmp_path / "photos")


def one_pass(root: str, on_unreadable: str) -> list[dict]:
  source = data.open_source("eval", data.DataSettings(root=root))
  batches = data.eval_batches(
    source,
    data.make_eval_transform(8),
    batch_size=4,
    on_unreadable=on_unreadable,
  )
  with batches:
    return list(batches)


GOOD = encode(plain(), "PNG")


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_image_is_named_in_one_line_or_left_out(tmp_path, name):
  content, reason = UNREADABLE[name]
  files = {
    "train/c/0.png": GOOD,
    "test/c/0.png": GOOD,
    f"test/c/{name}": content,
  }
  root = make_folder(tmp_path, files)
  printed = name.replace("\n", r"\n").replace("\x1b", r"\x1b")
  with pytest.raises(data.UnreadableImageError) as info:
    one_pass(root, "stop")
  message = str(info.value)
  assert f"test/c/{printed}: " in message and reason in message
  assert message.isprintable()
  (batch,) = one_pass(root, "skip")
  assert batch["mask"].sum() == 1 and batch["skipped"].sum() == 1


@pytest.mark.parametrize("name", READABLE)
def test_odd_images_are_read(tmp_path, name):
  root = make_folder(
    tmp_path, {f"train/c/{name}": READABLE[name], f"test/c/{name}": GOOD}
  )
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
  assert source.class_names == (r"a\nb",)
  assert source.name == r"\n\xff"
  with pytest.raises(ValueError, match="batch_size=2 is more than") as info:
    data.train_batches(source, lambda *_: None, batch_size=2, seed=0)
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


@pytest.fixture
def checkpoint(tmp_path):
  """A tiny model, as Google would write it; it has no names for its classes."""
  model = tiny.vit(Origin("ours", "test", (16, 16)))
  params = tiny.random_params(model, (16, 16), 0)
  flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
  pretrained = Loaded(
    model, param_shapes(model, (2, 2)), lambda: iter(flat.items())
  )
  save_as(pretrained, "google", tmp_path / "model")
  return tmp_path / "model"


@pytest.mark.parametrize("as_json", [False, True])
def test_predictions_of_files_with_odd_names(
  checkpoint, tmp_path, as_json, capsys
):
  folder = os.fsencode(tmp_path) + b"/photos"
  os.mkdir(folder)
  for name in (b"a\nb.png", b"\xff.png", b'it\'s "c".png'):
    with open(folder + b"/" + name, "wb") as file:
      file.write(GOOD)
  with open(folder + b"/not\n\xfe.png", "wb") as file:
    file.write(b"no image")
  code = predict_files(
    str(checkpoint), [os.fsdecode(folder)], top=1, as_json=as_json
  )
  assert code == 1
  out, err = capsys.readouterr()
  out.encode(), err.encode()  # Nothing that a terminal could not be given.
  lines = out.splitlines()
  names = [r"a\nb.png", r"it's \"c\".png" if as_json else 'it\'s "c".png']
  names.append(r"\xff.png")
  assert len(lines) == 3 + as_json
  if as_json:
    images = [json.loads(line)["image"] for line in lines]
    assert any(image.endswith(r"/a\nb.png") for image in images)
    assert any(
      image.endswith(r"/it's \"c\".png".replace("\\", "")) for image in images
    )
  else:
    for name in names:
      assert sum(name in line for line in lines) == 1
  assert err.splitlines()[0].endswith(
    r"/not\n\xfe.png: not an image of a known format."
  )
  assert err.splitlines()[1:] == ["1 of 4 images could not be read."]


def test_names_of_classes_from_a_file_are_printable(checkpoint):
  (checkpoint / "labels.txt").write_text("a\x1b[31m\nb\tc\n\n\n\n\n")
  model, _ = load_pretrained(str(checkpoint))
  names = model.origin.class_names
  assert names == (r"a\x1b[31m", r"b\tc", "", "", "")


def test_names_of_arrays_do_not_break_the_line(tmp_path):
  np.savez(tmp_path / "x.npz", **{"a\nb": np.zeros(2), "c": np.zeros(2)})
  with pytest.raises(ValueError, match=r"2 arrays \(a\\nb, c, ...\)") as info:
    load_pretrained(str(tmp_path / "x.npz"))
  assert str(info.value).isprintable()


def deep(kind: str) -> dict[str, np.ndarray]:
  """Few bytes that are named as the arrays of an absurdly deep model."""
  msa = "MultiHeadDotProductAttention_0/query/kernel"
  block, depth = "Transformer/encoderblock_0", 1
  arrays = {"embedding/kernel": np.zeros((8, 8, 3, 24), np.uint8)}
  if kind == "scanned":
    block, depth = "Transformer/encoderblock", 10**6
  if kind == "timm":
    arrays = {
      "patch_embed.proj.weight": np.zeros((24, 3, 8, 8), np.uint8),
      "pos_embed": np.zeros((1, 4, 24), np.uint8),
      "blocks.0.mlp.fc1.weight": np.zeros((48, 24), np.uint8),
    }
    return arrays | {f"blocks.{i}.x": np.zeros(0) for i in range(2000)}
  stacked = (depth,) if kind == "scanned" else ()
  arrays[f"{block}/{msa}"] = np.zeros((*stacked, 1, 3, 1), np.uint8)
  arrays[f"{block}/MlpBlock_0/Dense_0/kernel"] = np.zeros(
    (*stacked, 1, 9), "u1"
  )
  if kind == "stages":
    arrays["conv_root/kernel"] = np.zeros((1, 1, 1, 64), np.uint8)
    arrays |= {f"block{i}/unit1/x": np.zeros(1) for i in range(1, 60)}
  return arrays


@pytest.mark.parametrize(
  "kind, message",
  [
    ("scanned", "it would have 1000000 layers, in 0 stages of a ResNet and a"),
    ("timm", "it would have 2000 layers, .* at most 300 and 8 are built"),
    ("stages", "it would have 60 layers, in 59 stages of a ResNet and"),
  ],
)
def test_absurdly_deep_models_are_refused_at_once(tmp_path, kind, message):
  np.savez_compressed(tmp_path / "deep.npz", **deep(kind))
  with pytest.raises(ValueError, match=message):
    load_pretrained(str(tmp_path / "deep.npz"), num_heads=3)


@pytest.mark.parametrize(
  "name, array, message",
  [
    ("head/bias", np.zeros(()), r"'head/bias' is \(\), not of 1 axes"),
    ("head/bias", np.zeros(0), r"'head/bias' is \(0,\), which is empty"),
    (
      "embedding/kernel",
      np.zeros((8, 8, 0, 2**40)),
      r"'embedding/kernel' is \(8, 8, 0, 1099511627776\), which is empty",
    ),
  ],
)
def test_arrays_that_tell_no_size_are_refused(
  checkpoint, tmp_path, name, array, message
):
  with np.load(checkpoint / "model.npz") as stored:
    arrays = dict(stored)
  np.savez(tmp_path / "changed.npz", **{**arrays, name: array})
  with pytest.raises(ValueError, match=message):
    load_pretrained(str(tmp_path / "changed.npz"))
