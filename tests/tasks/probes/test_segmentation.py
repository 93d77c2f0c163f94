"""The probe of segmentation: counts by a loop, and shapes that it must find."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests import tiny
from tests.photos import VIT
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.segmentation import (
  IGNORED,
  SegmentationFolder,
  resize_mask,
)
from vit_jax.data.settings import DataSettings
from vit_jax.run.experiments.probe import probe_segmentation
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.probes.segmentation import count

COLOURS = np.array([[30, 30, 30], [220, 40, 40], [40, 60, 220]])


def test_pixels_are_counted_by_class_and_answer():
  rng = np.random.default_rng(0)
  label = rng.integers(0, 4, (2, 5, 6))
  label[label == 3] = IGNORED
  answer = rng.integers(0, 3, (2, 5, 6))
  expected = np.zeros((3, 3), int)
  for place in np.ndindex(label.shape):
    if label[place] != IGNORED:
      expected[label[place], answer[place]] += 1
  assert (count(label.astype(np.float32), answer, 3) == expected).all()
  with pytest.raises(ValueError, match="the class 2, and the training mask"):
    count(label, answer, 2)


@pytest.mark.parametrize("size", [(5, 7), (24, 9), (12, 30)])
def test_masks_are_resized_by_nearest_neighbour(size):
  mask = np.random.default_rng(0).integers(0, 200, (12, 15), np.uint8)
  pillow = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)
  assert (resize_mask(mask, size) == np.asarray(pillow)).all()


def write(root, split, number, rng):
  """Writes an image of 64 x 48 pixels with two blocks, and its mask."""
  mask = np.zeros((48, 64), np.uint8)
  for k in (1, 2):
    row, column = 8 * rng.integers(0, 4), 8 * rng.integers(0, 6)
    mask[row : row + 16, column : column + 16] = k
  image = COLOURS[mask] + rng.normal(0, 8, (48, 64, 3))
  mask[:, :4] = IGNORED
  for kind, array in (("images", image), ("masks", mask)):
    path = root / kind / split / f"{number:02}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(array, 0, 255).astype(np.uint8)).save(path)
  return mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  root, rng = tmp_path_factory.mktemp("shapes"), np.random.default_rng(1)
  for split, images in (("train", 20), ("val", 6)):
    for number in range(images):
      write(root, split, number, rng)
  return root


@pytest.mark.slow
def test_coloured_shapes_are_found(folder, tmp_path):
  checkpoint = tmp_path / "vit.npz"
  tiny.save_google(checkpoint, VIT, tiny.random_params(VIT, (48, 64), 0))
  settings = replaced(ProbeSettings(), {"data.root": str(folder)})
  found = probe_segmentation(str(checkpoint), settings, grid=(6, 8))
  assert len(found.iou) == 3 and min(found.iou) > 0.7  # Chance is about 0.3.
  assert found.mean_iou == pytest.approx(np.mean(found.iou))
  assert found.pixels_right > 0.9
  assert (found.examples, found.train_examples) == (6, 20)


def test_a_part_of_an_unsplit_folder_is_held_out(folder, tmp_path):
  for kind in ("images", "Annotations"):
    source = "images" if kind == "images" else "masks"
    (tmp_path / kind).symlink_to(folder / source / "train")
  settings = DataSettings(root=str(tmp_path))
  train, val = (
    SegmentationFolder(settings, split, (24, 32)) for split in ("train", "val")
  )
  assert (len(train), len(val)) == (17, 3) and train.num_classes() == 3
  assert not {e["id"] for e in train} & {e["id"] for e in val}
  assert train[0]["label"].shape == (24, 32)
  assert {*np.unique(train[0]["label"])} <= {0, 1, 2, IGNORED}


def test_a_test_folder_is_called_by_its_name(tmp_path):
  rng = np.random.default_rng(0)
  for number, split in enumerate(("train", "test")):
    write(tmp_path, split, number, rng)
  settings = DataSettings(root=str(tmp_path))
  for split, name in (("train", "train"), ("val", "test")):
    found = SegmentationFolder(settings, split, (24, 32))
    assert (found.split, len(found)) == (name, 1)
    assert found.name == f"{tmp_path.name}, {name}"


def test_the_highest_index_of_16_bits_is_no_class(tmp_path):
  rng = np.random.default_rng(0)
  mask = write(tmp_path, "train", 0, rng).astype(np.uint16)
  mask[mask == IGNORED] = 65535
  Image.fromarray(mask).save(tmp_path / "masks" / "train" / "00.png")
  write(tmp_path, "val", 0, rng)
  found = SegmentationFolder(
    DataSettings(root=str(tmp_path)), "train", mask.shape
  )
  assert found.num_classes() == 3
  ignored = np.asarray(found[0]["label"]) == IGNORED
  assert (ignored == (mask == 65535)).all()


def test_mistakes_are_one_line(folder, tmp_path):
  def opened():
    return SegmentationFolder(DataSettings(root=str(tmp_path)), "train", (8, 8))

  with pytest.raises(ValueError, match="has 0 folders named images, ima"):
    opened()
  write(tmp_path, "train", 0, np.random.default_rng(0))
  colours = Image.new("RGB", (64, 48))
  colours.save(tmp_path / "masks/train/00.png")
  with pytest.raises(ValueError, match="mode RGB: a mask has one numbe"):
    opened().num_classes()
  # Read as 64 x 48: the Exif turns it by a quarter.
  exif = Image.Exif()
  exif[ExifTags.Base.Orientation] = 6
  colours.save(tmp_path / "images/train/00.png", "JPEG", exif=exif)
  Image.new("L", (64, 48)).save(tmp_path / "masks/train/00.png")
  with pytest.raises(UnreadableImageError, match="is 64 x 48, .* mask 48 x 64"):
    opened()[0]
  Image.new("L", (24, 32)).save(tmp_path / "masks/train/00.png")
  assert opened()[0]["label"].shape == (8, 8)
  # Pillow tells a file's type by its content, not by its name.
  negative = Image.fromarray(np.full((48, 64), -1, np.int32))
  negative.save(tmp_path / "masks/train/00.png", "TIFF")
  with pytest.raises(ValueError, match="has the class -1: classes are counted"):
    opened().num_classes()
  (tmp_path / "masks/train/00.png").unlink()
  with pytest.raises(ValueError, match="no mask .*00.png for '00.png'"):
    opened()
  with pytest.raises(ValueError, match="segment takes --config.data.ro"):
    probe_segmentation("no checkpoint", ProbeSettings())
