"""A run on smaller images, opened at the size that its positions are for."""

import numpy as np
import pytest

from configs import finetune
from tests import published
from vit_jax import load_pretrained
from vit_jax.models.grid import grid_of
from vit_jax.run import loop
from vit_jax.run.settings import read


@pytest.mark.slow
def test_a_run_is_opened_at_the_size_of_its_positions(config, tmp_path):
  source = str(published.path("tips_vit.npz"))
  start = load_pretrained(source)
  patch = start.model.patch_size
  native = [side * patch for side in start.model.position_grid]
  tuned = finetune.get_config("small")
  tuned.pretrained, tuned.image_size = source, (2 * patch, 2 * patch)
  tuned.data.root, tuned.batch_size = config.data.root, 8
  loop.train(read(tuned), str(tmp_path))
  for size in (native, (3 * patch, 2 * patch)):
    run = load_pretrained(str(tmp_path), image_size=tuple(size))
    assert grid_of(run.model, run.preprocessing.image_size) == tuple(
      side // patch for side in size
    )
    np.testing.assert_array_equal(
      run.params["position"]["E_pos"], start.params["position"]["E_pos"]
    )
