"""The images and labels of the saved runs, and their own block.

The runs in `tests/checkpoints/saved_runs/` were trained on these, and the
description of one holds this file's name. So nothing here may change, but for
the lines that import; a new kind of run may add what it needs.
"""

import csv
import pathlib

import flax.linen as nn
import numpy as np
import tifffile
from PIL import Image

from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig, layer_norm
from vit_jax.models.vit import Mlp

# Three in five images are of the first class.
PHOTO_CLASSES = ("bird", "bird", "bird", "cat", "dog")
BAND_CLASSES = ("field", "lake")
TRAIN, ALL = 40, 56  # Images of the training split, and of both.
BANDS = 5
# Height and width of the pictures to predict.
PICTURES = ((12, 20), (30, 9), (9, 14))


class ParallelBlock(nn.Module):
  """z + MSA(LN(z)) + MLP(LN(z)); (B, S, D) -> (B, S, D)."""

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, z, R=None, *, train=False):
    y = layer_norm(self.config, name="norm")(z)
    attended = Msa(self.num_heads, self.config, name="msa")(y, R, train=train)
    mlp = Mlp(self.mlp_size, self.config, name="mlp")
    return z + attended + mlp(y, train=train)


def write_data(folder: pathlib.Path) -> None:
  """Writes all images and labels of the runs, the same every time.

  `photos/` has RGB images, `bands/` images of five channels of 12 bits. The
  file `labels.csv` has several labels and two numbers for each photograph.
  """
  rng = np.random.default_rng(0)
  rows = [("file", "label", "height", "angle", "split")]
  for k in range(ALL):
    split = "train" if k < TRAIN else "val"
    name = PHOTO_CLASSES[k % 5]
    photo = rng.integers(0, 128, (12, 20, 3), np.uint8)
    photo[..., sorted(set(PHOTO_CLASSES)).index(name)] += 90
    file = pathlib.Path("photos", split, name, f"{k:02}.png")
    _save(folder / file, photo)
    labels = [word for n, word in ((2, "wet"), (3, "young")) if k % n == 0]
    height, angle = rng.uniform(1, 9), rng.uniform(-90, 90)
    row = file, ";".join(labels), f"{height:.3f}", f"{angle:.2f}", split
    rows.append(tuple(map(str, row)))
    name = BAND_CLASSES[k % 2]
    bands = rng.integers(0, 3000, (12, 20, BANDS), np.uint16)
    bands[..., -1] += 1000 * (k % 2)
    _save(folder / "bands" / split / name / f"{k:02}.tif", bands)
  with (folder / "labels.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)


def write_captions(folder: pathlib.Path) -> None:
  """Writes `captions.csv`: one or two texts on each photograph."""
  rows = [("file", "caption", "split")]
  for k in range(ALL):
    split = "train" if k < TRAIN else "val"
    name = PHOTO_CLASSES[k % 5]
    file = str(pathlib.Path("photos", split, name, f"{k:02}.png"))
    rows.append((file, f"a {name} in the noise, number {k}", split))
    if k % 3 == 0:
      rows.append((file, f"{name} {k}", split))
  with (folder / "captions.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)


def write_scenes(folder: pathlib.Path) -> None:
  """Writes `scenes/`: images with a coloured stripe, and masks of it."""
  rng = np.random.default_rng(3)
  for k in range(ALL):
    split = "train" if k < TRAIN else "val"
    image = rng.integers(0, 128, (12, 20, 3), np.uint8)
    mask = np.zeros((12, 20), np.uint8)
    left = rng.integers(0, 6)
    mask[:, left : left + 14] = 1 + k % 2
    image[mask > 0, k % 2] += 120
    mask[0, 0] = 255
    _save(folder / "scenes" / "images" / split / f"{k:02}.png", image)
    _save(folder / "scenes" / "masks" / split / f"{k:02}.png", mask)


def write_depth(folder: pathlib.Path) -> None:
  """Writes `depths/`: images with a stripe, and its depth in millimetres."""
  rng = np.random.default_rng(4)
  for k in range(ALL):
    split = "train" if k < TRAIN else "val"
    depth = np.full((12, 20), 8000, np.uint16)
    left = rng.integers(0, 6)
    depth[:, left : left + 14] = rng.integers(1000, 6000)
    noise = rng.integers(0, 20, (12, 20, 3))
    depth_in_levels = 255 - depth[..., None] // 40
    image = np.clip(depth_in_levels + noise, 0, 255).astype(np.uint8)
    depth[0, :3] = 0
    _save(folder / "depths" / "images" / split / f"{k:02}.png", image)
    _save(folder / "depths" / "depth" / split / f"{k:02}.png", depth)


def write_pictures(folder: pathlib.Path) -> None:
  """Writes pictures to predict, none of them square, in each kind of file.

  The last one of `png/` is grey.
  """
  rng = np.random.default_rng(1)
  for k, size in enumerate(PICTURES):
    photo = rng.integers(0, 256, (*size, 3), np.uint8)
    _save(folder / "png" / f"{k}.png", photo if k < 2 else photo[..., 0])
    _save(
      folder / "tif" / f"{k}.tif",
      rng.integers(0, 4096, (*size, BANDS), np.uint16),
    )


def _save(path: pathlib.Path, pixels: np.ndarray) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == ".png":
    Image.fromarray(pixels).save(path)
  else:
    tifffile.imwrite(
      path, pixels, photometric="minisblack", planarconfig="contig"
    )
