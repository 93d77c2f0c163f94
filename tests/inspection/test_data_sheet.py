"""The lines about a folder, and the picture of an augmented batch."""

import re

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests import captioned, commands
from tests.data.pictures import encode, noise, png
from vit_jax.data.settings import NormalizationSettings, TrainTransformSettings
from vit_jax.inspection.data_sheet import inspect_folder
from vit_jax.inspection.settings import InspectSettings
from vit_jax.tasks.settings import DataSettings

SETTINGS = InspectSettings(image_size=(18, 18))


def fill(root, classes):
  for label in range(classes):
    folder = root / f"class {label:02}"
    folder.mkdir(parents=True)
    for i in range(8):
      pixels = noise(20, 30)[:, : 16 + i] // (label + 1)
      (folder / f"{i}.png").write_bytes(encode(Image.fromarray(pixels), "PNG"))
  return root


def test_lines_and_picture(tmp_path, capsys):
  root = fill(tmp_path / "photos", 2)
  (root / "class 01" / "bad.jpg").write_bytes(b"no image")
  (root / "class 01" / "copy.png").write_bytes(
    (root / "class 01" / "0.png").read_bytes()
  )
  out = tmp_path / "batch.png"
  settings = InspectSettings(
    image_size=(18, 18),
    train_transform=TrainTransformSettings(crop="resize", flip=False),
  )
  assert inspect_folder(str(root), settings, str(out)) == 1
  said = capsys.readouterr().out.splitlines()
  header, rule, titles, *rows = said
  assert rule.startswith("Images are held out by the count of their class")
  assert header.startswith("data     photos: train 14, held out 4 images of 2")
  assert titles.split() == ["class", "train", "held", "out"]
  assert [row.split() for row in rows[:2]] == [
    ["class", "00", "6", "2"],
    ["class", "01", "8", "2"],
  ]
  text = "\n".join(rows)
  assert "sizes: 16 x 20 to 23 x 20, the middle one 19 x 20" in text
  assert (
    "1 unreadable: class 01/bad.jpg: not an image of a known format." in text
  )
  assert "17 under 32 pixels: " in text
  assert "1 picture is " in text and "class 01/copy.png" in text
  with Image.open(out) as sheet:
    assert sheet.width >= 8 * 7 * 18 and sheet.format == "PNG"
  as_high = InspectSettings(image_size=(20, 18))
  inspect_folder(str(root), as_high, str(tmp_path / "batch.jpg"))
  assert "are smaller" not in capsys.readouterr().out
  with Image.open(tmp_path / "batch.jpg") as sheet:
    assert sheet.format == "JPEG"
  with pytest.raises(ValueError, match="is a folder; name the file"):
    inspect_folder(str(root), settings, str(tmp_path))


@pytest.mark.parametrize("window", [None, (0, 255)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_the_normalization_of_bands_is_measured(
  tmp_path, capsys, dtype, window
):
  """Of the training images, as shares of full scale, by NumPy.

  Without a window, the values of 16 bits are levels of 256.
  """
  is_dark = dtype == np.uint16 and window is None
  rng = np.random.default_rng(0)
  images = []
  for i in range(4):
    split = "train" if i < 3 else "val"
    for label in "ab":
      pixels = rng.integers(0, 50 * (i + 1), (40, 40, 4)).astype(np.uint8)
      file = tmp_path / "tiles" / split / label / f"{i}.tif"
      file.parent.mkdir(parents=True, exist_ok=True)
      stored = pixels.astype(dtype) * (10 if is_dark else 1)
      tifffile.imwrite(file, stored, planarconfig="contig")
      seen = stored // 256 if is_dark else stored
      images += [seen / 255] * (split == "train")
  mean, std = np.mean(images, (0, 1, 2)), np.std(images, (0, 1, 2))
  settings = InspectSettings(
    image_size=(18, 18),
    data=DataSettings(bands="blue,green, red,nir"),
    normalization=NormalizationSettings(window=window),
  )
  inspect_folder(str(tmp_path / "tiles"), settings, str(tmp_path / "b.png"))
  said = capsys.readouterr().out
  (line,) = (x for x in said.splitlines() if x.startswith("mean and deviation"))
  assert line.startswith(
    "mean and deviation of blue, green, red, nir: --config"
  )
  found = [float(x) for x in re.findall(r"0\.\d+", line)]
  np.testing.assert_allclose(found, [*mean, *std], rtol=6e-3)
  assert ("; normalization.window changes them: give" in line) == is_dark


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv"])
def test_a_file_of_labels_is_looked_through(tmp_path, capsys, name):
  fill(tmp_path, 1)
  mark = "\t" if name.endswith("tsv") else ";"
  rows = [f"class 00/{k}.png{mark}{'ab'[k % 2]}" for k in range(8)]
  file = tmp_path / name
  file.write_text("\n".join([f"\ufefffile{mark}label", *rows]))
  out = str(tmp_path / "batch.png")
  settings = InspectSettings(image_size=(21, 18))
  assert inspect_folder(str(file), settings, out) == 0
  said = capsys.readouterr().out
  assert f"{name}: train 4, held out 4 images, 2 classes" in said
  assert "sizes: 16 x 20 to 23 x 20" in said
  assert "; 2 are smaller than 18 x 21" in said  # Those 16 and 17 wide.


@pytest.mark.parametrize(
  "given, found, says",
  [
    ([], "1 target", "There are no class labels, as age has 12 different nu"),
    (
      ["--config.data.task=classification"],
      "12 classes",
      "the labels are whole numbers and taken for classes; --config.data.task",
    ),
  ],
)
def test_a_task_that_is_given_is_taken(tmp_path, given, found, says):
  lines = ["file,age"]
  for k in range(20):
    (tmp_path / f"{k}.png").write_bytes(png(np.full((4, 4, 3), k, np.uint8)))
    lines.append(f"{k}.png,{20 + k % 12}")
  file = tmp_path / "ages.csv"
  file.write_text("\n".join(lines))
  out = f"--out={tmp_path / 'batch.png'}"
  done = commands.run("vit_jax.inspect_data", str(file), out, *given)
  assert f"images, {found}\n" in done.stdout, done.stderr
  assert says in done.stdout


def test_captions_are_counted_and_shown(tmp_path, capsys):
  made = captioned.pairs()
  made[1].captions[0] = made[2].captions[0]
  file = captioned.write_csv(tmp_path, made)
  out = tmp_path / "batch.png"
  assert inspect_folder(str(file), SETTINGS, str(out)) == 0
  said = capsys.readouterr().out
  (line,) = [line for line in said.splitlines() if "captions," in line]
  texts = [text for p in made if p.split == "train" for text in p.captions]
  assert line == (
    f"train: 36 captions, {len({*texts})} of them different; 1 to 2 an image, "
    "of 2 to 4 words"
  )
  rows = [line.split() for line in said.splitlines()]
  assert ["caption", "27", "18"] in rows and "sizes: 12 x 24 to" in said
  with Image.open(out) as sheet:
    assert sheet.format == "PNG"
  with pytest.raises(ValueError, match="^--model takes one class for each im"):
    inspect_folder(str(file), SETTINGS, str(out), model="b16")


def test_packed_images_were_looked_at_before(tmp_path):
  (tmp_path / "dataset_info.json").touch()
  with pytest.raises(
    ValueError, match="is packed, and its images were decoded"
  ):
    inspect_folder(str(tmp_path), InspectSettings(), str(tmp_path / "a.png"))
