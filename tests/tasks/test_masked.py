"""The evaluation of masked patches, against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.tasks.masked import Totals, _summary, make_eval_step
from vit_jax.tasks.masking import COLOURS, Masking

HALF = (0.5, 0.5, 0.5)


class Always(nn.Module):
  """Gives colour 0 a logit of 2, and all others 0."""

  def __call__(self, images):
    return jnp.zeros((len(images), 3, COLOURS)).at[..., 0].set(2.0)


def test_colours_are_counted_over_the_examples_that_count():
  masking = Masking(0.5, "colour", 4, HALF, HALF)
  step = jax.jit(make_eval_step(Always(), masking))
  rng = np.random.default_rng(0)
  totals, colours, losses, examples = Totals.zeros(), [], [], 0
  for first in (0, 4):
    # Patches are black, or white, which is the last colour.
    white = rng.integers(0, 2, (4, 2, 3, 1)).astype(np.uint8)
    image = 255 * white.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)
    mask = np.float32([1, 1, first == 0, first == 0])
    batch = {"image": image, "mask": mask, "skipped": mask == 0}
    batch = jax.tree.map(jnp.array, batch)
    totals = step(totals, {}, batch, jnp.int32(first))
    numbers = first + jnp.arange(4)
    _, targets = masking.prepare(batch, jax.random.key(0), numbers)
    where = np.array(targets["draw"]["where"])
    for n in np.flatnonzero(mask):
      true = white[n].ravel()[where[n]]
      colours += [COLOURS - 1 if one else 0 for one in true]
      log_sum = np.log(np.exp(2) + COLOURS - 1)
      losses += [log_sum - (0 if one else 2) for one in true]
    examples += int(mask.sum())
  found = _summary(jax.device_get(totals))
  black = np.mean(np.array(colours) == 0)
  assert found["eval/examples"] == examples == 6
  assert found["eval/skipped_images"] == 2
  assert found["eval/colours_right"] == pytest.approx(black)
  assert found["eval/commonest_colour"] == pytest.approx(max(black, 1 - black))
  assert found["eval/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_split_without_a_readable_image_is_refused():
  with pytest.raises(ValueError, match="split has no readable image"):
    _summary(Totals.zeros())
