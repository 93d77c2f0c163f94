"""A ViT that predicts masked patches: what it sees, and what it predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import SIZES, random_params
from vit_jax.models import from_fields, make_vit, to_fields
from vit_jax.models.masked_vit import MASK, masked_vit

P, GRID, K = 4, (2, 3), 5


def _vit(**fields):
  return make_vit("Ti/4", num_classes=7, **SIZES | fields)


def _model(**fields):
  """A model, its parameters and two images."""
  model = masked_vit(_vit(**fields), K)
  size = GRID[0] * P, GRID[1] * P
  images = np.random.default_rng(1).normal(size=(2, *size, 3))
  return model, random_params(model, size, 0), jnp.asarray(images, jnp.float32)


def _patch(images, n):
  """A view of the pixels of patch n."""
  y, x = n // GRID[1] * P, n % GRID[1] * P
  return images[y : y + P, x : x + P]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_a_corrupted_embedding_is_that_of_other_pixels(pooling):
  """The embedding of a patch is a function of its pixels alone."""
  model, params, images = _model(pooling=pooling)
  E = params["patches"]["E"]
  params["mask"] = E["bias"] + 0.5 * E["kernel"].sum(axis=0)  # Of grey 0.5.
  source = np.tile(np.arange(6), (2, 1))
  source[0, [1, 4]] = [MASK, 2]
  source[1, [0, 5]] = [5, MASK]
  where = np.array([[1, 4, 3], [5, 0, 2]])
  edited = np.array(images)
  for example, row in enumerate(source):
    for n, taken in enumerate(row):
      pixels = 0.5 if taken == MASK else _patch(images[example], taken)
      _patch(edited[example], n)[:] = pixels
  draw = {"source": jnp.array(source), "where": jnp.array(where)}
  answer = jax.jit(model.apply)
  found = answer({"params": params, "corruption": draw}, images)
  all_patches = answer({"params": params}, jnp.array(edited))
  assert all_patches.shape == (2, 6, K)
  expected = np.take_along_axis(np.array(all_patches), where[..., None], axis=1)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_each_place_gets_the_embedding_that_the_draw_says():
  model = masked_vit(_vit(), K)
  x_p = np.random.default_rng(0).normal(size=(1, 1, 4, 16)).astype(np.float32)
  mask = jnp.arange(16.0)
  draw = {"source": jnp.array([[0, MASK, 3, 1]])}
  variables = {"params": {"mask": mask}, "corruption": draw}
  found = model.apply(variables, jnp.array(x_p), method="corrupt")
  rows = x_p[0, 0]
  expected = np.stack([rows[0], mask, rows[3], rows[1]])[None, None]
  np.testing.assert_array_equal(found, expected)


def test_without_a_head_it_gives_the_mean_of_the_patches():
  model, params, images = _model()
  headless = model.clone(num_classes=0)
  y = jax.jit(headless.apply)({"params": params}, images)
  head = params["head"]
  predicted = jax.jit(model.apply)({"params": params}, images).mean(axis=1)
  expected = y @ head["kernel"] + head["bias"][None]
  np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-4)


def test_the_trunk_is_the_model_that_was_masked():
  vit = _vit(dropout_rate=0.1)
  assert masked_vit(vit, K).trunk == vit.clone(num_classes=0)
  assert vit.trunk is vit
  model, params, images = _model()
  del params["mask"], params["head"]
  y = jax.eval_shape(model.trunk.apply, {"params": params}, images)
  assert y.shape == (2, 16)
  fields = to_fields(model)
  assert fields.pop("adapted") and from_fields(fields) == model.trunk
  # Older descriptions have the whole model.
  fields |= {"kind": "MaskedVit", "num_classes": K}
  assert from_fields(fields) == model


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(pooling="map"), "pooling='map' and .* take another pooling"),
    (dict(representation_size=8), "representation_size=8: the outputs of tok"),
  ],
)
def test_models_that_masks_cannot_train_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    masked_vit(_vit(**fields), K)
