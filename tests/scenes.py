"""Images of coloured blocks with masks of their classes."""

import numpy as np
from PIL import Image

from vit_jax.data.reading.mask_folder import IGNORED

COLOURS = np.array([[30, 30, 30], [220, 40, 40], [40, 60, 220]])


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


def write_all(root, **counts):
  """Writes that many images of each split; returns the folder."""
  rng = np.random.default_rng(1)
  for split, images in counts.items():
    for number in range(images):
      write(root, split, number, rng)
  return root
