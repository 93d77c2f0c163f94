"""Tokens that do not count or are left out: as if they had never been there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import HEADS, B, D, P, random_params, tiny
from vit_jax.models import masked_vit, partitioning, scan
from vit_jax.models.attention import Msa
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import EncoderBlock

H, W = 3, 4  # Patches along height and width.
N = H * W
# The right column and the lowest row are padding; of the second image, more.
REAL = np.ones((2, H, W), bool)
REAL[:, 2:] = REAL[:, :, 3:] = REAL[1, :, 1:] = False
REAL = REAL.reshape(2, N)

FAMILIES = {
  "token": {},
  "gap": dict(pooling="gap", position="sincos2d", scan=True),
  "map": dict(pooling="map", remat="dots"),
  "relative": dict(position="relative"),
  "every layer": dict(position_at="every_layer"),
  "shared": dict(position_at="shared"),
  "dinov2": dict(block="dinov2", registers=2, pooling="token_gap"),
  "dinov3": dict(block="dinov3", hidden_size=24, scan=True, remat="full"),
  "normed": dict(block="dinov3", hidden_size=24, qk_norm=True, pooling="gap"),
  "clip": dict(block="clip"),
  "deit": dict(block="deit"),
  "norm_pooled": dict(block="dinov2", pooling="gap", norm_pooled=True),
  "masked": dict(pooling="gap"),
}
SLOW = ("shared", "clip", "deit", "norm_pooled", "normed")
EACH = [
  pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
  for name in FAMILIES
]


def pixels(seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(B, H * P, W * P, 3))
  return jnp.asarray(x, jnp.float32)


@functools.cache
def made(name):
  """A model of a family, and parameters none of which is zero."""
  model = tiny(**FAMILIES[name])
  if name == "masked":
    model = masked_vit.masked(model, 5).clone(num_classes=0)
  unrolled = random_params(model.clone(scan=False), pixels())
  params = scan.stack(unrolled) if model.scan else unrolled
  return model, jax.tree.map(jnp.asarray, params)


def subset(model, x, real):
  """The answer to one image that has the patches `real` alone."""
  keep = np.flatnonzero(real)[None]
  return model.head(model.pool(model.run(model.embed(x).take(keep))))


def squares(model, params, x, *args, **options):
  """The sum of squares of the answers, which are in what it returns too."""
  y = model.apply({"params": params}, x, *args, **options)
  return jnp.square(y).sum(), y


def gradients(model, *args, **options):
  function = functools.partial(squares, model, **options)
  both = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)
  (_, y), found = jax.jit(both)(*args)
  return y, found


def assert_alike(found, expected):
  largest = max(float(jnp.abs(a).max()) for a in jax.tree.leaves(expected))
  close = functools.partial(
    np.testing.assert_allclose, rtol=1e-5, atol=1e-6 * max(largest, 1)
  )
  jax.tree.map(close, found, expected)


@pytest.mark.parametrize("name", EACH)
def test_what_does_not_count_is_as_if_left_out(name):
  """Values and gradients, by the same model on the patches that count alone."""
  model, params = made(name)
  x, mask = pixels(), jnp.asarray(REAL)
  y, (by_params, by_x) = gradients(model, params, x, mask=mask)
  expected = []
  for image, real in zip(x, REAL, strict=True):
    method = functools.partial(subset, real=real)
    expected.append(gradients(model, params, image[None], method=method))
  assert_alike(y, jnp.concatenate([one for one, _ in expected]))
  assert_alike(by_x, jnp.concatenate([grads[1] for _, grads in expected]))
  assert_alike(
    by_params, jax.tree.map(jnp.add, *(grads[0] for _, grads in expected))
  )
  assert jnp.abs(y).min() > 1e-3


@pytest.mark.parametrize("padding", [1e30, np.nan, np.inf])
@pytest.mark.parametrize("name", ["token", "map", "dinov3"])
def test_what_the_padding_shows_never_matters(name, padding):
  model, params = made(name)
  x, mask = pixels(), jnp.asarray(REAL)
  of_pixels = np.kron(REAL.reshape(B, H, W), np.ones((P, P), bool))[..., None]
  expected = gradients(model, params, jnp.where(of_pixels, x, 0.0), mask=mask)
  found = gradients(model, params, jnp.where(of_pixels, x, padding), mask=mask)
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_tokens_of_the_padding_may_have_any_value():
  """As a caller may set the mask after Eq. 1."""
  model, params = made("dinov3")
  seen = jnp.asarray(REAL)
  wide = jnp.pad(seen, ((0, 0), (model.prefix, 0)), constant_values=True)

  def answer(model, x, padding):
    tokens = model.embed(x)
    z = jnp.where(wide[..., None], tokens.z, padding)
    tokens = model.run(tokens.replace(z=z, mask=seen))
    return model.head(model.pool(tokens))

  results = [
    gradients(
      model,
      params,
      pixels(),
      method=functools.partial(answer, padding=padding),
    )
    for padding in (0.0, np.nan)
  ]
  jax.tree.map(np.testing.assert_array_equal, *results)


def _attention(mask, scale=1.0):
  """Tokens, parameters, and values and gradients of Eq. 5-8 on the tokens.

  Those that do not count are `scale` times as large.
  """
  z = jax.random.normal(jax.random.key(0), (2, 7, D))
  z = z * jnp.where(mask, 1.0, scale)[..., None]
  layer = Msa(HEADS)
  params = jax.tree.map(jnp.asarray, random_params(layer, z))

  def loss(params, z):
    y = layer.apply({"params": params}, z, mask=mask)
    return jnp.square(jnp.where(mask[..., None], y, 0)).sum(), y

  grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  (_, y), found = jax.jit(grad)(params, z)
  return z, params, y, found


def test_attention_with_huge_logits_of_keys_that_do_not_count():
  """Against Eq. 5-8 in NumPy, and gradients against those of small logits.

  The logits of such keys are of some 1e30, where those that count are of 1.
  """
  mask = jnp.arange(7)[None] < jnp.array([5, 2])[:, None]
  z, params, y, found = _attention(mask, 1e30)
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  for row, (real, count) in enumerate(zip(np.asarray(z), (5, 2), strict=True)):
    expected = equations.msa(np.asarray(real[:count], np.float64), params)
    np.testing.assert_allclose(y[row, :count], expected, rtol=1e-5, atol=1e-6)
  *_, small = _attention(mask)
  assert_alike(found, small)


def test_where_no_key_counts_nothing_is_attended_to():
  mask = jnp.array([[True] * 7, [False] * 7])
  _, params, y, found = _attention(mask)
  bias = np.broadcast_to(params["out"]["bias"], (7, D))
  np.testing.assert_array_equal(y[1], bias)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
  assert not found[1][1].any()


def test_the_weights_of_what_does_not_count_are_zero():
  model, params = made("token")
  _, seen = model.apply(
    {"params": params}, pixels(), mask=REAL, mutable="intermediates"
  )
  (A,) = seen["intermediates"]["block_1"]["msa"]["attention"]
  assert not A[..., 1:][
    ~np.broadcast_to(REAL[:, None, None], A[..., 1:].shape)
  ].any()
  np.testing.assert_allclose(A.sum(axis=-1), 1, rtol=1e-6)
  assert A[..., 1:][
    np.broadcast_to(REAL[:, None, None], A[..., 1:].shape)
  ].all()


def test_an_encoder_of_a_part_of_the_patches_by_the_equations():
  """`run(embed(x).take(keep))` in NumPy, each patch with its position."""
  model, params = made("token")
  keep = np.array([[7, 2, 3], [0, 11, 4]])

  def method(model, x, keep):
    return model.run(model.embed(x).take(keep))

  tokens = model.apply({"params": params}, pixels(), keep, method=method)
  np.testing.assert_array_equal(tokens.where, keep)
  assert tokens.z.shape == (B, 4, D) and tokens.grid == (H, W)
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  x = np.asarray(pixels()).reshape(B, H, P, W, P, 3).transpose(0, 1, 3, 2, 4, 5)
  patches = x.reshape(B, N, -1).astype(np.float64)
  E_pos = params["position"]["E_pos"]
  for image, chosen, found in zip(patches, keep, tokens.z, strict=True):
    z = equations.dense(image[chosen], params["patches"]["E"])
    z = z + E_pos[1:][chosen]
    z = np.concatenate([(params["x_class"] + E_pos[0])[None], z])
    for layer in range(2):
      z = equations.block(z, params[f"block_{layer}"], 1e-6, "tanh")
    np.testing.assert_allclose(found, z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EACH)
def test_all_patches_in_another_order_give_the_same_answer(name):
  """Each takes its position with it, whichever kind the model has."""
  model, params = made(name)
  rng = np.random.default_rng(3)
  order = jnp.asarray([rng.permutation(N) for _ in range(B)])

  def method(model, x):
    return model.head(model.pool(model.run(model.embed(x).take(order))))

  x = pixels()
  expected = gradients(model, params, x)
  assert_alike(gradients(model, params, x, method=method), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "normed"])
def test_rotary_places_of_some_patches_in_the_form_for_tpus(monkeypatch, name):
  model, params = made(name)
  keep = jnp.array([[7, 2, 3], [0, 11, 4]])

  def method(model, x):
    return model.head(model.pool(model.run(model.embed(x).take(keep))))

  model = model.clone(scan=False, remat="none")
  params = scan.unstack(params)
  expected = gradients(model, params, pixels(), method=method)
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  found = gradients(model, params, pixels(), method=method)
  assert_alike(found[0], expected[0])
  # The keys' biases have gradients of rounding errors in the plain form alone.
  rounded = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
  jax.tree.map(rounded, found[1], expected[1])


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("name", ["token", "map", "dinov3"])
def test_no_mask_is_the_same_program_as_none_given(monkeypatch, name, platform):
  """And the layers of such a program are given z and R alone."""
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  model, params = made(name)

  def text(**options):
    function = functools.partial(squares, model, **options)
    step = jax.jit(jax.grad(function, argnums=(0, 1), has_aux=True))
    traced = step.trace(params, pixels())
    return traced.lower(lowering_platforms=(platform,)).as_text()

  plain = text()
  assert text(mask=None) == plain
  assert text(mask=jnp.asarray(REAL)) != plain


def test_layers_of_ones_own_are_called_as_before_without_a_mask():
  """A class of layers need not know of masks or places."""

  class Own(EncoderBlock):
    def __call__(self, z, R=None, *, train=False):
      return z * 2

  model = tiny(
    block=Own, pooling="gap", position="none", patch_dropout_rate=0.5
  )
  x = pixels()
  params = random_params(model, x)
  key = {"dropout": jax.random.key(0)}
  y = model.apply({"params": params}, x, train=True, rngs=key)
  assert y.shape == (B, 5)
  with pytest.raises(ValueError, match="layers of class Own take no mask, so"):
    model.apply({"params": params}, x, mask=REAL)
  model = model.clone(position="relative")
  params = random_params(model, x)
  with pytest.raises(ValueError, match="class Own take no `where`, so they"):
    model.apply({"params": params}, x, train=True, rngs=key)


def test_patch_dropout_leaves_out_padding_first():
  model = tiny(patch_dropout_rate=0.75)  # Keeps 3 of 12 patches.
  params = random_params(model, pixels())

  def method(model, x, mask):
    return model.embed(x, mask=mask, train=True)

  tokens = model.apply(
    {"params": params},
    pixels(),
    jnp.asarray(REAL),
    method=method,
    rngs={"dropout": jax.random.key(0)},
  )
  assert tokens.where.shape == (B, 3)
  np.testing.assert_array_equal(tokens.mask, [[True] * 3, [True, True, False]])
  kept = np.take_along_axis(REAL, np.asarray(tokens.where), axis=1)
  np.testing.assert_array_equal(kept, tokens.mask)


def test_taking_twice_is_taking_once():
  z = jnp.arange(5.0)[None, :, None] + jnp.zeros((2, 1, 1))
  mask = jnp.array([[True, False, True, True], [True] * 4])
  tokens = Tokens(z, mask=mask, prefix=1, grid=(2, 2))
  tokens = tokens.take(jnp.array([[3, 1, 0]])).take(jnp.array([[1], [2]]))
  np.testing.assert_array_equal(tokens.where, [[1], [0]])
  np.testing.assert_array_equal(tokens.z[..., 0], [[0, 2], [0, 1]])
  np.testing.assert_array_equal(tokens.mask, [[False], [True]])
  np.testing.assert_array_equal(tokens.patches[..., 0], [[2], [1]])


def test_the_mean_is_over_the_patches_that_count():
  z = np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32)
  mask = np.array([[True, False, True, True], [False] * 4, [True] * 4])
  mean = Tokens(jnp.asarray(z), mask=jnp.asarray(mask), prefix=1).mean()
  expected = [z[0, [1, 3, 4]].mean(axis=0), np.zeros(2), z[2, 1:].mean(axis=0)]
  np.testing.assert_allclose(mean, expected, rtol=1e-6)


@pytest.mark.parametrize(
  "fields, mask, message",
  [
    ({}, REAL[:1], r"mask of shape \(1, 12\) and type bool; 2 images of 3 x 4"),
    ({}, REAL * 1, r"type int32; .* need booleans of shape \(2, 12\)"),
    (dict(block="axial", pooling="gap"), REAL, "of class AxialBlock take no m"),
    (
      dict(resnet_layers=(1,), resnet_width=32, patch_size=1),
      np.ones((B, N)),
      "a hybrid's ResNet mixes neighbouring patches, so none can be left out",
    ),
  ],
)
def test_masks_that_have_no_meaning_are_refused(fields, mask, message):
  model = tiny(**fields)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
      lambda x: model.init(jax.random.key(0), x, mask=mask), pixels()
    )


@pytest.mark.parametrize(
  "keep, message",
  [
    (np.arange(3), r"keep of shape \(3,\) and type int32; take needs whole"),
    (np.zeros((2, 3)), "type float32; take needs whole numbers"),
    (np.zeros((3, 3), int), r"\(B, K\) or \(1, K\) for B=2 images"),
  ],
)
def test_patches_to_keep_that_name_none_are_refused(keep, message):
  with pytest.raises(ValueError, match=message):
    Tokens(jnp.zeros((2, 5, 3)), prefix=1, grid=(2, 2)).take(keep)


def test_axial_attention_needs_all_patches():
  model = tiny(block="axial", pooling="gap")

  def method(model, x):
    return model.run(model.embed(x).take(jnp.array([[1, 5, 6]])))

  with pytest.raises(
    ValueError, match="9 of 12 patches were left out: give it"
  ):
    jax.eval_shape(
      lambda x: model.init(jax.random.key(0), x, method=method), pixels()
    )
