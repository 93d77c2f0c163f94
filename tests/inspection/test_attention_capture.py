"""Maps of models with a token for each channel of a patch."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import images, random_params, tiny
from vit_jax import features
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inspection import attention_maps as maps
from vit_jax.inspection.attention_capture import captured
from vit_jax.inspection.attention_views import batch_size

GRID, C = (2, 3), 3
HAS = jnp.array([0, 2])


def make(pooling):
  model = tiny(channel_tokens=True, pooling=pooling)
  x = images(channels=C)
  params = random_params(model, x)
  fewer = {**params, "E_channel": params["E_channel"][HAS]}
  return model, params, fewer, x, x.at[..., 1].set(jnp.nan)


def of(attention, gradients=None):
  """All maps that `visualize` draws of an `Attention`."""
  found = {
    "rollout": maps.rollout(attention),
    "discard": maps.rollout(attention, discard=0.3),
    "output": maps.output_attention(attention, 1),
    "distance": maps.mean_attention_distance(attention),
  }
  if gradients is not None:
    found["relevance"] = maps.relevance(attention, gradients)
  return found


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["gap", "token", "map"])
def test_maps_of_missing_channels_are_those_without_them(pooling):
  model, params, fewer, x, lacks = make(pooling)
  classes = np.array([1, 4])
  found = of(*maps.attention_gradients(model, params, lacks, classes))
  some = x[..., HAS]
  expected = of(*maps.attention_gradients(model, fewer, some, classes))
  assert found["relevance"].shape == (2, *GRID)
  assert found["distance"].shape[1] == 2
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
  # A rollout sums to 1, less the share of the class token.
  rest = 1 - maps.rollout(maps.attention_weights(model, fewer, some)).sum(
    (1, 2)
  )
  assert (np.abs(rest) < 1e-5).all() == (pooling != "token")
  (of_layer,) = features(model, params, lacks, layers=[2], as_maps=True)
  (other,) = features(model, fewer, some, layers=[2], as_maps=True)
  assert of_layer.shape == (2, *GRID, 24)
  np.testing.assert_allclose(of_layer, other, atol=1e-5)


@pytest.mark.slow
def test_each_image_of_a_batch_has_maps_of_its_own_channels():
  model, params, fewer, x, lacks = make("gap")
  both = jnp.stack([lacks[0], x[1]])
  batch = captured(model, params, both)
  first = of(batch.of_image(0, GRID))
  expected = of(captured(model, fewer, x[:1][..., HAS]))
  for name, value in expected.items():
    np.testing.assert_allclose(first[name], value, atol=1e-5, err_msg=name)
  second = of(batch.of_image(1, GRID))
  for name, value in of(captured(model, params, x[1:])).items():
    np.testing.assert_allclose(second[name], value, atol=1e-5, err_msg=name)


def test_patches_that_are_left_out_lose_all_their_channels():
  model, params, _, x, _ = make("gap")
  attention = captured(model, params, x)
  left_out = np.zeros((2, *GRID), bool)
  left_out[:, 1, 0] = True
  found = maps.output_attention(attention.without(left_out), 0)
  whole = maps.output_attention(attention, 0)
  assert (found[:, :, 1, 0] == 0).all()
  kept = ~left_out[0]
  np.testing.assert_array_equal(found[..., kept], whole[..., kept])


def test_batches_are_smaller_for_as_many_more_tokens():
  """The attention of S tokens has S^2 weights."""
  bands = ("a", "b", "c", "d")
  half = (0.5,) * 4
  one, four = (
    batch_size(
      tiny(channel_tokens=flag),
      8,
      Preprocessing((96, 96), mean=half, std=half, bands=bands),
    )
    for flag in (False, True)
  )
  assert one == 8
  assert four == 2**29 // (2 * 4 * 2 * 3 * (4 * 24**2 + 1) ** 2) == 2
