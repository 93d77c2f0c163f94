"""Makes folders of small images."""

import io

import numpy as np
from PIL import Image


def encode(image: Image.Image, file_format: str, **options) -> bytes:
  file = io.BytesIO()
  image.save(file, file_format, **options)
  return file.getvalue()


def plain(colour=(9, 90, 200), size=(20, 16)) -> Image.Image:
  return Image.new("RGB", size, colour)


GOOD = encode(plain(), "PNG")


def write_noise(root, *folders, count=1, size=(16, 16), seed=0):
  """Writes so many images of noise, 0.png, 1.png ..., to each folder of `root`.

  Returns `root`.
  """
  rng = np.random.default_rng(seed)
  for folder in folders:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
      pixels = rng.integers(0, 256, (*size, 3), np.uint8)
      Image.fromarray(pixels).save(root / folder / f"{number}.png")
  return root


def make_folder(tmp_path, files) -> str:
  """Makes a data set folder, from file names to contents.

  A training class of its own makes sure that there are two.
  """
  if any(name.startswith("train/") for name in files):
    files = {"train/other/0.png": GOOD, **files}
  for name, content in files.items():
    path = tmp_path / "photos" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return str(tmp_path / "photos")
