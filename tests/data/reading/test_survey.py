"""A folder with every oddity and every kind of duplicate, surveyed."""

from typing import Any

import numpy as np
import pillow_heif
import pytest
import tifffile
from PIL import Image

from tests.data.pictures import encode, noise
from vit_jax import data
from vit_jax.data.example import ImageSpec
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.reading.survey import Survey, look_at

pillow_heif.register_heif_opener()


@pytest.fixture
def survey(tmp_path):
  exif = Image.Exif()
  exif[0x0112] = 6
  plain = [Image.fromarray(noise(40, 60 + i)) for i in range(8)]
  wide = Image.fromarray(np.full((33, 33), 9000, np.uint16))
  frames = dict(save_all=True, append_images=[plain[1]])
  files = {
    "train/x/same.png": encode(plain[0], "PNG"),
    "train/x/again.bmp": encode(plain[0], "BMP"),
    "train/x/twice.tif": encode(plain[0], "TIFF"),
    "train/y/label.png": encode(plain[1], "PNG"),
    "train/x/label.png": encode(plain[1], "PNG"),
    "train/x/leak.png": encode(plain[2], "PNG"),
    "test/x/leak.webp": encode(plain[2], "WEBP", lossless=True),
    "train/y/turned.jpg": encode(plain[3], "JPEG", exif=exif),
    "train/y/inks.jpg": encode(plain[4].convert("CMYK"), "JPEG"),
    "train/y/grey.jpg": encode(plain[4].convert("L"), "JPEG"),
    "train/y/alpha.png": encode(plain[5].convert("RGBA"), "PNG"),
    "train/y/frames.gif": encode(plain[6], "GIF", **frames),
    "train/y/wide.png": encode(wide, "PNG"),
    "train/y/named.jpg": encode(plain[7], "PNG"),
    "train/y/phone.png": encode(plain[6], "HEIF"),
    "test/y/cut.jpg": encode(plain[7], "JPEG")[:300],
    "test/y/small.png": encode(Image.new("RGB", (31, 31)), "PNG"),
    "test/y/long.png": encode(Image.new("RGB", (40, 161)), "PNG"),
  }
  for name, content in files.items():
    path = tmp_path / "odd" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  splits = open_splits(data.DataSettings(root=str(tmp_path / "odd")))
  found = look_at([splits.train, splits.eval])
  return Survey(splits.train.class_names, list(found))


def test_counts_and_sizes(survey):
  assert survey.overview == {
    "train": {"x": "5", "y": "9"},
    "test": {"x": "1", "y": "3"},
  }
  assert len(survey.sizes) == 17  # All but the one that is cut.
  sizes = {look.id: look.size for look in survey.looks}
  assert sizes["train/y/turned.jpg"] == (63, 40)
  assert sizes["test/y/long.png"] == (161, 40)
  assert sizes["train/x/same.png"] == (40, 60)


def test_odd_files(survey):
  found = {what: sorted(names) for what, names in survey.oddities.items()}
  (cut,) = found.pop("unreadable")
  assert cut.startswith("test/y/cut.jpg: ") and "odd/" not in cut
  assert found == {
    "under 32 pixels": ["test/y/small.png"],
    "longer than 4 : 1": ["test/y/long.png"],
    "turned by EXIF": ["train/y/turned.jpg"],
    "CMYK": ["train/y/inks.jpg"],
    "grey": ["train/y/grey.jpg", "train/y/wide.png"],
    "transparent": ["train/y/alpha.png"],
    "of several frames": ["train/y/frames.gif"],
    "of 16 bits": ["train/y/wide.png"],
    "of another format than their name": [
      "train/y/named.jpg",
      "train/y/phone.png",
    ],
  }


def test_bands_that_a_run_takes_are_no_odd_files(tmp_path):
  """Pillow sees a grey first page, or no image, where all bands are taken."""
  samples = np.dstack([noise(40, 40), noise(40, 40)])[..., :4]
  layouts: Any = (("contig", {"planarconfig": "contig"}), ("pages", {}))
  for name, layout in layouts:
    folder = tmp_path / name
    folder.mkdir()
    bands = samples.astype(np.uint16) * 257
    bands = bands if layout else np.moveaxis(bands, 2, 0)
    for k in range(3):
      file = folder / f"{k}.tif"
      tifffile.imwrite(file, bands + k, photometric="minisblack", **layout)
  splits = open_splits(data.DataSettings(root=str(tmp_path)))
  looks = [*look_at([splits.train, splits.eval], ImageSpec(4))]
  assert {look.odd for look in looks} == {("of 16 bits",)}
  assert {look.kind for look in looks} == {"TIFF"}


def test_duplicates(survey):
  """By pixels: the files differ."""
  found = {
    where: [sorted(group) for group in groups]
    for where, groups in survey.copies.items()
  }
  same = ["again.bmp", "same.png", "twice.tif"]
  assert found == {
    "twice in a class": [[f"train/x/{name}" for name in same]],
    "in several classes": [["train/x/label.png", "train/y/label.png"]],
    "in several splits": [["test/x/leak.webp", "train/x/leak.png"]],
  }
