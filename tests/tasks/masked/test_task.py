"""The evaluation of masked patches, against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks import made_up
from tests.tasks.made_up import HALF
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import make_model
from vit_jax.models.masked_vit import MaskedVit
from vit_jax.tasks.hidden import hidden_measure
from vit_jax.tasks.masked.objective import COLOURS, Masking
from vit_jax.tasks.masked.task import MaskedOutcome, sums
from vit_jax.tasks.metrics import Metric


class Always(nn.Module):
  """Gives colour 0 a logit of 2, and all others 0."""

  def __call__(self, images):
    return jnp.zeros((len(images), 3, COLOURS)).at[..., 0].set(2.0)


@pytest.mark.slow
def test_colours_are_counted_over_the_examples_that_count():
  masking = Masking(0.5, "colour", 4, HALF, HALF)
  measure = hidden_measure(Always(), masking, sums, MaskedOutcome)
  step = jax.jit(measure.compute)
  rng = np.random.default_rng(0)
  parts, colours, losses, examples = [], [], [], 0
  for first in (0, 4):
    # Patches are black, or white, which is the last colour.
    white = rng.integers(0, 2, (4, 2, 3, 1)).astype(np.uint8)
    image = 255 * white.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)
    mask = np.float32([1, 1, first == 0, first == 0])
    batch = {"image": image, "mask": mask, "skipped": mask == 0}
    batch = jax.tree.map(jnp.array, batch)
    parts.append(step({}, batch, jnp.int32(first)))
    numbers = first + jnp.arange(4)
    _, targets = masking.prepare(batch, jax.random.key(0), numbers)
    where = np.array(targets["draw"]["where"])
    for n in np.flatnonzero(mask):
      true = white[n].ravel()[where[n]]
      colours += [COLOURS - 1 if one else 0 for one in true]
      log_sum = np.log(np.exp(2) + COLOURS - 1)
      losses += [log_sum - (0 if one else 2) for one in true]
    examples += int(mask.sum())
  one, other = (Metric(measure, jax.device_get(part)) for part in parts)
  found = (one + other).result().metrics
  black = np.mean(np.array(colours) == 0)
  assert found["eval/examples"] == examples == 6
  assert found["eval/skipped_images"] == 2
  assert found["eval/colours_right"] == pytest.approx(black)
  assert found["eval/commonest_colour"] == pytest.approx(max(black, 1 - black))
  assert found["eval/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_split_without_a_readable_image_is_refused():
  with pytest.raises(ValueError, match="split has no readable image"):
    _ = MaskedOutcome({"examples": 0, "colours": np.zeros(COLOURS)}).metrics


@pytest.mark.parametrize(
  "rate, side, variant, message",
  [
    (0.001, 32, "Ti/16", "0.001 corrupts none of the 2 x 2 patch"),
    (0.5, 32, "Ti/32", "masked.rate=0.5 corrupts none of the 1 x 1 patches: s"),
    (0.5, 64, "R50x1", "a ResNet has no patches in its layers"),
  ],
)
def test_what_masks_cannot_train_is_refused(rate, side, variant, message):
  task = made_up.task(masked__rate=rate)
  with pytest.raises(ValueError, match=message):
    model = task.adapted(make_model(variant, num_classes=0))
    task.objective(model, Preprocessing((side, side)))


def test_grey_images_have_no_colours_to_predict():
  task = made_up.task(masked__rate=0.5)
  model = task.adapted(make_model("Ti/16", num_classes=0))
  grey = Preprocessing((32, 32), mean=(0.5,), std=(0.5,))
  with pytest.raises(ValueError, match="images have 1 channel"):
    task.objective(model, grey)


def test_a_hybrid_predicts_the_pixels_that_a_patch_sees():
  task = made_up.task(masked__rate=0.5, masked__target="pixels")
  model = task.adapted(make_model("R50+Ti/16", num_classes=0))
  assert isinstance(model, MaskedVit) and model.num_classes == 16 * 16 * 3
