"""The share of padding, told from the headers of a folder."""

import jax
import numpy as np
import pytest
from PIL import Image

from configs import any_size
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.estimate import compiler, padding
from vit_jax.run.settings import read
from vit_jax.training import sharding

SHAPES = ((20, 20), (40, 20), (20, 40), (90, 10), (10, 70), (33, 29))
SIZE = AnySize(tokens=12, patch_size=8)
ALONE = 1 - sum(h * w for h, w in map(SIZE.grid, SHAPES)) / (12 * 6)


@pytest.fixture
def config(tmp_path):
  for name in ("a", "b"):
    for k, shape in enumerate(SHAPES * 2):
      path = tmp_path / "train" / name / f"{k}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(np.zeros((*shape, 3), np.uint8)).save(path)
  c = any_size.get_config()
  c.data.update(root=str(tmp_path), tokens=12, eval_fraction=0.25)
  c.update(batch_size=24, image_size=(24, 24))
  c.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=2
  )
  return c


def test_rows_of_one_image(config):
  config.data.root += "/train"  # Of which a quarter is held out.
  config.data.eval_fraction = 0.5
  settings = read(config)
  found = padding.shares(settings, SIZE, None, tflop=2.0)
  assert 0 < found["share"] < 1 and found["tflop"] == 2 * found["share"]
  assert 0 <= found["packed"] < found["share"]
  # No shorter row has room for all images.
  assert 12 < found["row_tokens"] < 48
  text = padding.describe(found)
  assert text == (
    f"{found['share']:.1%} of the patches, {found['tflop']:.2f} TFLOP/chip; "
    f"{found['packed']:.1%} with data.images_per_row=4, "
    f"data.row_tokens={found['row_tokens']}"
  )


def test_rows_of_several_images(config):
  config.data.update(images_per_row=2, row_tokens=15, min_tokens=3)
  settings = read(config)
  devices = jax.devices()[:2]
  (lowered,) = compiler.lower(settings, devices, 2, 24)
  packing = lowered.plan.packing
  assert "tensor<12x15x192xui8>" in lowered.step.as_text()
  found = padding.shares(settings, SIZE, packing, tflop=2.0)
  assert found["alone"] > ALONE  # Images have fewer patches than they may.
  assert 0 < found["share"] < found["alone"]
  assert "with data.images_per_row=2, data.row_tokens=15; " in (
    padding.describe(found)
  )


def test_without_a_folder_the_share_is_unknown(config):
  config.data.root = None
  config.data.name = "imagenet2012"
  found = padding.shares(read(config), SIZE, None, tflop=2.0)
  assert padding.describe(found).endswith("folder as --config.data.root")


def test_a_prediction_counts_the_patches_of_a_row(config):
  """Not those of the images that the positions belong to."""
  config.image_size = (48, 48)
  mesh = sharding.make_mesh(devices=jax.devices()[:2])
  counts = []
  for config.data.tokens in (12, 24):
    found = compiler.lower_forward(read(config), mesh, 2)
    counts.append(found.gflops * 1e9)
  embedding = 2 * 12 * 192 * 24  # Of twelve patches more, and little else.
  assert embedding < counts[1] - counts[0] < 1.5 * embedding
