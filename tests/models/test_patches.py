"""Images of any size: packed, padded and one by one they are the same."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.models.tiny_vit import P, apply, random_params, tiny
from tests.rows import some_slow
from vit_jax.models import Patches, make_resnet
from vit_jax.models.masked_vit import masked_vit
from vit_jax.pretrained.interpolation import resized

TABLE = (4, 4)  # The grid that learned positions are for.
SIZES = ((4, 4), (2, 7), (1, 5), (6, 1), (3, 3), (5, 2), (4, 4))
SQUARE = (0, 6)  # Those of the grid that positions are for.
ROWS = ((0, 4), (2, 3, 1), (5,))  # Which images lie in each packed row.
N = 32  # Patches of a row, at the most.
DINOV2 = dict(block="dinov2", position_grid=TABLE)
BEIT = dict(block="beit", position_grid=TABLE)
DINOV3 = dict(block="dinov3", hidden_size=24)
KINDS: dict[str, dict[str, Any]] = {
  "token": {},
  "gap": dict(pooling="gap", position="sincos2d", scan=True),
  "map": dict(pooling="map", position="learned_grid", remat="dots"),
  "sincos1d": dict(position="sincos1d"),
  "learned2d": dict(position="learned2d"),
  "none": dict(position="none"),
  "every layer": dict(position_at="every_layer"),
  "shared": dict(position_at="shared"),
  "registers": dict(DINOV2, registers=2, pooling="token_gap"),
  "smooth": dict(DINOV2, antialias=True),
  "linear": dict(DINOV2, position_resize="bilinear", antialias=True),
  "square": dict(DINOV2, position_resize="square"),
  "two heads": dict(block="deit", distilled=True, position_grid=TABLE),
  "map of all": dict(block="pe", position_grid=TABLE, pool_prefix=True),
  "query": dict(block="aimv2", position_grid=TABLE, hidden_size=24),
  "prefix": dict(DINOV2, registers=2, pooling="prefix", scan=True),
  "rotary": dict(DINOV3, registers=2),
  "counted": dict(block="rope_axial", hidden_size=24, position_grid=TABLE),
  "side": dict(block="eva02", hidden_size=24, position_grid=TABLE),
  "mixed": dict(block="rope_mixed", scan=True, position_grid=TABLE),
  "biases": dict(BEIT),
  "biases of all": dict(BEIT, relative_shared=True, relative_bilinear=True),
  "scanned biases": dict(BEIT, scan=True),
  "computed biases": dict(block="beit", relative="mlp"),
  "first turns": dict(block="mlcd", hidden_size=24, scan=True, remat="full"),
}
QUICK = ("token",)
NEAR: dict[str, Any] = dict(rtol=1e-5, atol=1e-5)


def pixels(seed=0):
  rng = np.random.default_rng(seed)
  return [
    rng.normal(size=(1, h * P, w * P, 3)).astype(np.float32) for h, w in SIZES
  ]


def packed(images, rows):
  """Patches of images, of which each row holds some, and NaN as padding."""
  M = max(map(len, rows))
  shape = len(rows), N
  values = np.full((*shape, P * P * 3), np.nan, np.float32)
  place = np.full((*shape, 2), 99, np.int32)
  image = np.full(shape, -1, np.int32)
  size = np.zeros((len(rows), M, 2), np.int32)
  for b, row in enumerate(rows):
    start = 0
    for m, i in enumerate(row):
      h, w = SIZES[i]
      here = slice(start, start := start + h * w)
      patches = images[i].reshape(h, P, w, P, 3).swapaxes(1, 2)
      values[b, here] = patches.reshape(h * w, -1)
      place[b, here] = np.indices((h, w)).reshape(2, -1).T
      image[b, here] = m
      size[b, m] = h, w
  return Patches(*map(jnp.asarray, (values, place, image, size)))


def of_size(params, grid):
  """Parameters with tables for images of one grid of patches."""
  flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
  flat = {k: resized(k, v, TABLE, grid, "bicubic") for k, v in flat.items()}
  return traverse_util.unflatten_dict(flat, sep="/")


@functools.cache
def model_of(kind):
  layers = 2 if "every" in kind or kind == "shared" else 1
  model = tiny(**{"hidden_size": 48, "num_layers": layers, **KINDS[kind]})
  square = np.zeros((1, TABLE[0] * P, TABLE[1] * P, 3), np.float32)
  params = random_params(model, square)
  return model, jax.tree.map(jnp.asarray, params)


def alone(model, params, x, grid):
  if not model.extended:
    params = of_size(params, grid)
  return apply(model, params, x)


@pytest.mark.parametrize("kind", some_slow(KINDS, QUICK))
def test_packed_and_padded_are_one_by_one(kind):
  model, params = model_of(kind)
  images = pixels()
  together = apply(model, params, packed(images, ROWS))
  assert together.shape == (3, 3, 5)
  assert np.isfinite(together).all()
  answer: Any = jax.jit(lambda p, x: model.apply({"params": p}, x))
  padded = [answer(params, packed(images, [(i,)])) for i in range(6)]
  assert answer._cache_size() == 1  # One program for six proportions.
  for b, row in enumerate(ROWS):
    for m, i in enumerate(row):
      assert padded[i].shape == (1, 1, 5)
      np.testing.assert_allclose(together[b, m], padded[i][0, 0], **NEAR)
  for i in (1, 5):
    one = alone(model, params, images[i], SIZES[i])
    np.testing.assert_allclose(padded[i][:, 0], one, **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
  "kind",
  ["token", "gap", "map", "registers", "rotary", "biases", "computed biases"],
)
def test_gradients_of_packed_and_padded_are_those_of_one_by_one(kind):
  model, params = model_of(kind)
  images = pixels()
  rng = np.random.default_rng(2)
  weights = jnp.asarray(rng.normal(size=(2, 1, 5)), jnp.float32)

  def gradients(answers):
    def loss(params) -> Any:
      return sum(
        (w * y).sum() for w, y in zip(weights, answers(params), strict=True)
      )

    tree = jax.jit(jax.grad(loss))(params)
    flat: dict[str, Any] = traverse_util.flatten_dict(tree, sep="/")
    return flat

  def of_patches(rows):
    x = packed(images, rows)
    return lambda params: jnp.reshape(
      model.apply({"params": params}, x), (2, 1, 5)
    )

  def one_by_one(params):
    # Images that the table of positions is for, so that it has a gradient.
    return [
      model.apply({"params": params}, jnp.asarray(images[i])) for i in SQUARE
    ]

  packed_ones = gradients(of_patches([SQUARE]))
  padded = gradients(of_patches([(i,) for i in SQUARE]))
  one = gradients(one_by_one)
  largest = max(float(abs(found).max()) for found in one.values())
  near: dict[str, Any] = dict(rtol=1e-5, atol=1e-5 * largest)
  for path, found in packed_ones.items():
    np.testing.assert_allclose(found, padded[path], **near, err_msg=path)
    np.testing.assert_allclose(found, one[path], **near, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["biases", "computed biases"])
def test_taken_patches_keep_the_offsets_of_the_whole_image(kind):
  """Some of them are farther apart than there are patches left."""
  model, params = model_of(kind)
  (thin,) = (i for i, size in enumerate(SIZES) if size == (1, 5))
  images = pixels()

  def answer(model, x):
    tokens = model.embed(x).take(jnp.array([[0, 4]]))
    return model.pool(model.run(tokens))

  found = apply(model, params, packed(images, [(thin,)]), method=answer)
  expected = apply(model, params, images[thin], method=answer)
  np.testing.assert_allclose(found[:, 0], expected, **NEAR)


@pytest.mark.slow
def test_patches_that_do_not_count_are_padding():
  model, params = model_of("gap")
  x = packed(pixels(), [(2,), (3,)])
  mask = np.ones((2, N), bool)
  mask[0, 3:] = False
  found = apply(model, params, x, mask=jnp.asarray(mask))
  image = np.where(mask, x.image, -1)
  cut = dataclasses.replace(x, image=jnp.asarray(image))
  np.testing.assert_array_equal(found, apply(model, params, cut))


def test_images_of_one_size_are_patches():
  model, params = model_of("registers")
  images = jnp.asarray(np.concatenate([pixels(seed)[1] for seed in (0, 1)]))
  x = Patches.of(images, P)
  assert x.exists.tolist() == [[True], [True]]
  both = apply(model, params, (x, images), method=lambda m, x: [*map(m, x)])
  found, expected = both
  np.testing.assert_allclose(found[:, 0], expected, **NEAR)


@pytest.mark.parametrize(
  "fields, reason",
  [
    (dict(resnet_layers=(1,), patch_size=1), "its ResNet reads whole images"),
    (dict(block="axial", pooling="gap"), "block=AxialBlock goes along"),
    (dict(position="relative"), "position='relative' counts along a s"),
  ],
)
def test_models_of_one_size_refuse_patches(fields, reason):
  with pytest.raises(ValueError, match=f"no Patches: {reason}"):
    jax.eval_shape(
      tiny(**fields).init, jax.random.key(0), packed(pixels(), ROWS)
    )


@pytest.mark.parametrize(
  "model",
  [make_resnet("R50x1"), masked_vit(tiny(0), 3)],
  ids=lambda model: type(model).__name__,
)
def test_models_that_are_no_encoders_of_patches_refuse_them(model):
  kind = type(model).__name__
  with pytest.raises(ValueError, match=f"a {kind} takes images of one size"):
    model.apply({"params": {}}, packed(pixels(), ROWS))


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(size=jnp.zeros((3, 2), jnp.int32)), r"size \(3, 2\); B rows of N"),
    (dict(image=jnp.zeros((3, N))), "image float32 and size int32; the values"),
    (dict(values=jnp.zeros((3, N, 40))), "40 values each; patches of 4 x 4"),
  ],
)
def test_patches_of_wrong_shapes_are_refused(changes, message):
  x = dataclasses.replace(packed(pixels(), ROWS), **changes)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(tiny().init, jax.random.key(0), x)


@pytest.mark.parametrize(
  "fields, message",
  [
    ({}, "initialise the model with images of one size"),
    (dict(block="dinov2"), r"set position_grid=\(h, w\), to which Patches"),
  ],
)
def test_patches_do_not_say_what_grid_a_table_is_for(fields, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
      tiny(**fields).init, jax.random.key(0), packed(pixels(), ROWS)
    )


def test_tables_of_a_plain_model_must_be_square():
  model = tiny()
  params = random_params(model, jnp.zeros((1, 2 * P, 3 * P, 3)))
  with pytest.raises(
    ValueError, match="learned for 6 patches, which are no sq"
  ):
    model.apply({"params": params}, packed(pixels(), ROWS))
