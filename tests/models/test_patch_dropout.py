"""PatchDropout leaves out patches in training, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import flops

SIDE, P, N = 24, 4, 36


def make(rate, block=None, **fields):
  fields = dict(hidden_size=16, num_layers=2, mlp_size=32, num_heads=2) | fields
  return models.make_vit(
    f"S/{P}", 5, block=block, patch_dropout_rate=rate, **fields
  )


@pytest.fixture(scope="module")
def images():
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(6, SIDE, SIDE, 3)), jnp.float32)


def params_of(model, images):
  return jax.jit(model.init)(jax.random.key(0), images)["params"]


def tokens(model, images, params, seed=1):
  """The tokens before and after patches are left out."""
  _, state = model.apply(
    {"params": params},
    images,
    train=True,
    rngs={"dropout": jax.random.key(seed)},
    capture_intermediates=True,
    mutable="intermediates",
  )
  found = state["intermediates"]
  before, after = found["Dropout_0"], found["PatchDropout_0"]
  return np.asarray(before["__call__"][0]), np.asarray(after["__call__"][0])


def places(before, after):
  """For each image, the place of each remaining token among all of them."""
  same = (after[:, :, None] == before[:, None]).all(axis=-1)  # (B, s, S)
  assert (same.sum(axis=-1) == 1).all()
  return same.argmax(axis=-1)


@pytest.mark.parametrize(
  "fields, prefix",
  [
    ({}, 1),
    ({"pooling": "gap", "position": "sincos2d"}, 0),
    ({"scan": True}, 1),
    ({"block": "dinov2", "registers": 3}, 4),
  ],
)
@pytest.mark.parametrize("rate, left", [(0.5, 18), (0.3, 25), (0.99, 1)])
def test_so_many_patches_stay_and_every_other_token(
  images, rate, left, fields, prefix
):
  model = make(rate, **fields)
  params = params_of(model, images)
  before, after = tokens(model, images, params)
  assert before.shape[1] == prefix + N
  found = places(before, after)
  assert found.shape == (len(images), prefix + left)
  np.testing.assert_array_equal(found[:, :prefix], [range(prefix)] * 6)
  assert (np.diff(found) > 0).all()  # In their order, none twice.


def test_the_draw_is_another_for_each_image_and_step_and_is_uniform(images):
  model = make(0.5)
  params = params_of(model, images)
  first = places(*tokens(model, images, params))
  second = places(*tokens(model, images, params, seed=2))
  assert len({tuple(row) for row in [*first, *second]}) == 12

  many = jnp.tile(images, (50, 1, 1, 1))
  kept = places(*tokens(model, many, params))[:, 1:] - 1
  counts = np.bincount(kept.ravel(), minlength=N)
  # Each of 300 draws keeps a patch with probability 1/2: 150 +- 8.7.
  assert abs(counts - 150).max() < 5 * np.sqrt(300 / 4)


def test_outside_training_nothing_is_left_out(images):
  plain, ours = make(0.0), make(0.5)
  params = params_of(plain, images)
  assert jax.tree.structure(params) == jax.tree.structure(
    params_of(ours, images)
  )
  np.testing.assert_array_equal(
    plain.apply({"params": params}, images),
    ours.apply({"params": params}, images),
  )


def test_the_encoder_sees_the_remaining_tokens_alone(images):
  """Changing a patch that was left out changes nothing."""
  model = make(0.5, position="learned")
  params = params_of(model, images)
  left = places(*tokens(model, images, params)) - 1
  rng = np.random.default_rng(1)
  grid = rng.normal(size=(6, 6, P, 6, P, 3))
  for image, kept in zip(grid, left, strict=True):
    for place in kept[1:]:
      image[place // 6, :, place % 6] = 0
  mask = grid == 0
  original = images.reshape(grid.shape)
  changed = jnp.where(mask, original, grid).reshape(images.shape)
  answers = [
    model.apply(
      {"params": params}, x, train=True, rngs={"dropout": jax.random.key(1)}
    )
    for x in (images, changed)
  ]
  assert not np.array_equal(images, changed)
  np.testing.assert_allclose(*answers, rtol=1e-5, atol=1e-6)


def test_the_operations_of_a_training_step_are_fewer():
  model = make(0.5, pooling="gap")
  params = jax.eval_shape(
    model.init, jax.random.key(0), jnp.zeros((1, SIDE, SIDE, 3))
  )["params"]
  shape = (SIDE, SIDE, 3)
  whole = flops.forward_gflops(model, params, shape) * 1e9
  part = flops.forward_gflops(model, params, shape, train=True) * 1e9
  D, M, embed, head = 16, 32, 2 * N * P * P * 3 * 16, 2 * 16 * 5

  def encoder(S):
    return 2 * (S * (4 * D * D + 2 * D * M) * 2 + 2 * 2 * S * S * D)

  assert whole == pytest.approx(embed + encoder(N) + head)
  assert part == pytest.approx(embed + encoder(N // 2) + head)


@pytest.mark.parametrize(
  "fields, named",
  [
    ({"position": "relative"}, "position='relative'"),
    ({"position_at": "every_layer"}, "position_at='every_layer'"),
    ({"block": "dinov3"}, "rope_theta"),
    ({"block": "axial", "pooling": "gap"}, "block=AxialBlock"),
    ({"rate": 1.0}, r"patch_dropout_rate=1.0 must be in \[0, 1\)"),
  ],
)
def test_models_that_need_all_patches_are_refused(fields, named):
  with pytest.raises(ValueError, match=named):
    make(**({"rate": 0.5} | fields))


def test_masked_patches_are_not_left_out():
  from vit_jax.models import masked_vit

  with pytest.raises(ValueError, match="set it to 0 for masked patches"):
    masked_vit.masked(make(0.5), 3)
