"""Tokens that do not count or are left out: as if they had never been there."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models.tiny_vit import (
  HEADS,
  B,
  D,
  P,
  apply,
  random_params,
  shapes_of,
  tiny,
)
from tests.rows import some_slow
from vit_jax.models import masked_vit, partitioning
from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig, PatchDropout
from vit_jax.models.parts import stack, unstack
from vit_jax.models.tokens import Tokens
from vit_jax.models.vit import BaseVit, EncoderBlock, Vit

H, W = 3, 4  # Patches along height and width.
N = H * W
# Of the first image, 2 x 2 patches count, and of the second the highest row.
REAL = np.zeros((B, H, W), bool)
REAL[0, :2, :2] = REAL[1, 0] = True
REAL = REAL.reshape(B, N)
# The same patches, in another order.
KEEP = np.array([[5, 0, 4, 1], [2, 3, 0, 1]])

FAMILIES = {
  "token": {},
  "gap": dict(pooling="gap", position="sincos2d", scan=True),
  "one layer": dict(pooling="gap", position="sincos2d", num_layers=1),
  "map": dict(pooling="map", remat="dots"),
  "relative": dict(position="relative"),
  "every layer": dict(position_at="every_layer"),
  "shared": dict(position_at="shared"),
  "dinov2": dict(block="dinov2", registers=2, pooling="token_gap"),
  "dinov3": dict(block="dinov3", hidden_size=24, scan=True, remat="full"),
  "normed": dict(block="dinov3", hidden_size=24, qk_norm=True, pooling="gap"),
  "clip": dict(block="clip"),
  "beit": dict(block="beit"),
  "deit": dict(block="deit"),
  "norm_pooled": dict(block="dinov2", pooling="gap", norm_pooled=True),
  "rope_mixed": dict(block="rope_mixed", scan=True),
  "mlcd": dict(block="mlcd", hidden_size=24, scan=True, remat="full"),
  "eva02": dict(block="eva02", norm_inner_msa=True),
  "pe": dict(block="pe"),
  "masked": dict(pooling="gap"),
}
QUICK = ("one layer",)


def pixels(seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(B, H * P, W * P, 3))
  return jnp.asarray(x, jnp.float32)


@functools.cache
def made(name):
  """A model of a family, and parameters none of which is zero."""
  model = tiny(**FAMILIES[name])
  if name == "masked":
    model = masked_vit.masked_vit(model, 5).clone(num_classes=0)
  unrolled = random_params(model.clone(scan=False), pixels())
  params = stack(unrolled) if model.scan else unrolled
  return model, jax.tree.map(jnp.asarray, params)


def answer(model, x, keep=None, mask=None):
  """What the model answers; from the patches `keep` alone if they are given."""
  vit = getattr(model, "encoder", model)
  if vit is model:
    tokens = vit.embed(x, mask=mask)
  else:
    tokens = model.by_encoder("embed", x, mask=mask)
  if keep is not None:
    tokens = tokens.take(keep)
  tokens = vit.run(tokens)
  if vit is model:
    return model.head(model.pool(tokens))
  return model.head(vit.normed(tokens).mean())  # Of masked patches.


def gradients(model, method=answer, **options):
  """A function from parameters and images to the answers and gradients.

  The gradients are those of the answers' squares, by both arguments.
  """

  def squares(params, x):
    y = model.apply({"params": params}, x, method=method, **options)
    return jnp.square(y).sum(), y

  both = jax.jit(jax.grad(squares, argnums=(0, 1), has_aux=True))
  return lambda *args: both(*args)[::-1]


def assert_alike(found, expected):
  largest = max(np.abs(a).max() for a in jax.tree.leaves(expected))
  close = functools.partial(
    np.testing.assert_allclose, rtol=1e-5, atol=1e-6 * max(largest, 1)
  )
  jax.tree.map(close, found, expected)


@pytest.mark.parametrize("name", some_slow(FAMILIES, QUICK))
def test_what_does_not_count_is_as_if_left_out(name):
  """Whatever it shows, in values and gradients, and each patch has its place.

  The same model on the patches that count alone, in another order, is compared.
  """
  model, params = made(name)
  of_pixels = np.kron(REAL.reshape(B, H, W), np.ones((P, P), bool))[..., None]
  x = jnp.where(of_pixels, pixels(), 0.0)
  expected = gradients(model, keep=KEEP)(params, x)
  assert np.abs(expected[0]).min() > 1e-3
  masked = gradients(model, mask=REAL)
  found = masked(params, x)
  assert_alike(found, expected)
  for padding in (1e30, np.nan):
    y, (by_params, by_x) = masked(params, jnp.where(of_pixels, x, padding))
    again = y, (by_params, by_x)
    jax.tree.map(np.testing.assert_array_equal, again, found)


@pytest.mark.slow
def test_an_image_of_padding_alone_has_no_gradient_and_no_nan():
  model, params = made("map")
  mask = REAL & np.array([[True], [False]])
  y, (by_params, by_x) = gradients(model, mask=mask)(params, pixels())
  assert all(np.isfinite(x).all() for x in jax.tree.leaves([y, by_params]))
  assert by_x[0].any() and not by_x[1].any()


@pytest.mark.slow
def test_the_tokens_of_the_padding_may_have_any_value():
  """As a caller may set the mask after Eq. 1."""
  model, params = made("dinov3")
  mask = jnp.asarray(REAL)
  seen = jnp.pad(mask, ((0, 0), (model.prefix, 0)), constant_values=True)

  def method(model, x, padding):
    tokens = model.embed(x)
    z = jnp.where(seen[..., None], tokens.z, padding)
    tokens = model.run(tokens.replace(z=z, mask=mask))
    return model.head(model.pool(tokens))

  results = [
    gradients(model, method, padding=padding)(params, pixels())
    for padding in (0.0, np.nan)
  ]
  # The two constants are compiled apart, so the last bit may differ.
  assert_alike(*results)


def _attention(mask, scale=1.0, dtype=jnp.float32):
  """Tokens, parameters, and values and gradients of Eq. 5-8 on the tokens.

  Those that do not count are `scale` times as large.
  """
  z = jax.random.normal(jax.random.key(0), (2, 7, D))
  z = z * jnp.where(mask, 1.0, scale)[..., None]
  layer = Msa(HEADS, LayerConfig(attention_dtype=dtype))
  params = jax.tree.map(jnp.asarray, random_params(layer, z))

  def loss(params, z):
    y = layer.apply({"params": params}, z, mask=mask)
    return jnp.square(jnp.where(mask[..., None], y, 0)).sum(), y

  grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  (_, y), found = jax.jit(grad)(params, z)
  return z, params, y, found


@pytest.mark.parametrize(
  "dtype, rounding",
  some_slow(
    [(jnp.float32, 1e-6), (jnp.bfloat16, 2**-8)], [(jnp.float32, 1e-6)]
  ),
)
def test_attention_with_huge_logits_of_keys_that_do_not_count(dtype, rounding):
  """Against Eq. 5-8 in NumPy, and gradients against those of small logits.

  The logits of such keys are of some 1e30, where those that count are of 1.
  """
  mask = jnp.arange(7)[None] < jnp.array([5, 2])[:, None]
  z, params, y, found = _attention(mask, 1e30, dtype)
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  for row, (real, count) in enumerate(zip(np.asarray(z), (5, 2), strict=True)):
    expected = equations.msa(np.asarray(real[:count], np.float64), params)
    most = {"rtol": rounding, "atol": rounding * np.abs(expected).max()}
    np.testing.assert_allclose(y[row, :count], expected, **most)
  *_, small = _attention(mask, dtype=dtype)
  assert_alike(found, small)


@pytest.mark.parametrize(
  "dtype", some_slow([jnp.float32, jnp.bfloat16], [jnp.bfloat16])
)
def test_where_no_key_counts_nothing_is_attended_to(dtype):
  mask = jnp.array([[True] * 7, [False] * 7])
  _, params, y, found = _attention(mask, dtype=dtype)
  bias = np.broadcast_to(params["out"]["bias"], (7, D))
  np.testing.assert_array_equal(y[1], bias)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
  assert not found[1][1].any()


def test_the_weights_of_what_does_not_count_are_zero():
  model, params = made("token")

  @jax.jit
  def weights(params, x):
    variables, sown = {"params": params}, "intermediates"
    _, seen = model.apply(variables, x, mask=REAL, mutable=sown)
    return seen["intermediates"]["block_1"]["msa"]["attention"][0]

  A = np.asarray(weights(params, pixels()))
  of_patches = A[..., 1:]
  counts = np.broadcast_to(REAL[:, None, None], of_patches.shape)
  np.testing.assert_array_equal(of_patches != 0, counts)
  np.testing.assert_allclose(A.sum(axis=-1), 1, rtol=1e-6)


def test_an_encoder_of_a_part_of_the_patches_by_the_equations():
  """`run(embed(x).take(keep))` in NumPy, each patch with its position."""
  model, params = made("token")
  keep = np.array([[7, 2, 3], [0, 11, 4]])

  def method(model, x, keep):
    return model.run(model.embed(x).take(keep))

  answer = jax.jit(functools.partial(model.apply, method=method))
  tokens = answer({"params": params}, pixels(), keep)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "normed", "mlcd"])
def test_rotary_places_of_some_patches_in_the_form_for_tpus(monkeypatch, name):
  model, params = made(name)
  model = model.clone(scan=False, remat="none")
  params = unstack(params)
  expected = gradients(model, keep=KEEP)(params, pixels())
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  found = gradients(model, keep=KEEP)(params, pixels())
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
  jax.tree.map(close, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, platform",
  [
    ("token", "cpu"),
    ("dinov3", "tpu"),
    ("dinov3", "cpu"),
    ("token", "tpu"),
  ],
)
def test_no_mask_is_the_same_program_as_none_given(monkeypatch, name, platform):
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  model, params = made(name)

  def text(**options):
    def squares(params, x):
      return jnp.square(model.apply({"params": params}, x, **options)).sum()

    traced = jax.jit(jax.grad(squares)).trace(params, pixels())
    return traced.lower(lowering_platforms=(platform,)).as_text()

  plain = text()
  assert text(mask=None) == plain
  assert text(mask=jnp.asarray(REAL)) != plain


class Own(EncoderBlock):
  """A class of layers that knows neither masks nor places."""

  def __call__(self, z, R=None, *, train=False):
    return z * 2


@pytest.mark.parametrize(
  "position, mask, message",
  [
    ("learned", None, None),
    ("learned", REAL, "layers of class Own take no mask, so they cannot leave"),
    ("relative", None, "class Own take no `where`, so they cannot tell relat"),
  ],
)
def test_layers_of_ones_own_need_not_know_of_tokens(position, mask, message):
  model = tiny(block=Own, position=position, patch_dropout_rate=0.5)
  keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

  def answer(x):
    return model.init_with_output(keys, x, mask=mask, train=True)[0]

  if message is None:
    assert jax.eval_shape(answer, pixels()).shape == (B, 5)
    return
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(answer, pixels())


AFTER = dict(block="dinov2", norm_after=True, layer_scale=None)


READ = [
  ({}, 1),
  ({"gelu": "exact", "remat": "dots"}, 1),
  ({"position": "relative"}, 1),
  ({"position_at": "shared"}, 1),
  ({"patch_dropout_rate": 0.5}, 1),
  ({"pooling": "gap"}, N),
  ({"pooling": "map"}, N),
  ({"scan": True}, N + 1),
  ({"dropout_rate": 0.1}, N + 1),
  ({"attention_dropout_rate": 0.1}, N + 1),
  ({"block": "dinov2"}, 1),
  ({"block": "dinov3"}, 1),
  ({**AFTER, "norm_inner_msa": True}, 1),
  ({"block": "dinov2", "registers": 2, "pooled_tokens": (0, 2)}, 3),
  ({"block": "dinov2", "pooling": "token_gap"}, N + 1),
  ({"block": "deit"}, 2),
  ({"block": "pixio"}, 8),
  ({"block": "beit", "pooling": "token", "norm_pooled": False}, 1),
  ({"block": "rope_mixed"}, 1),
  ({"block": "mlcd"}, 1),
]
"""Fields of a model, and the tokens that its head reads."""
QUICK_READ = [READ[i] for i in (0, 5, 7, 13, 15, 16)]


def _methods(fields):
  """The head's input of the tokens that it reads, and of all, in training."""
  mask = None if fields.get("position") == "relative" else jnp.asarray(REAL)

  def pooled(bound, x):
    return bound.pooled(x, mask=mask, train=True)

  def encoded(bound, x):
    return bound.encode(x, mask=mask, train=True)[1]

  return pooled, encoded


def _squares(model, method):
  """The sum of the squares of its answer, and the answer, by the parameters."""

  def loss(params):
    keys = {"dropout": jax.random.key(0)}
    y = model.apply({"params": params}, pixels(), method=method, rngs=keys)
    return jnp.square(y).sum(), y

  return loss


@pytest.mark.parametrize("fields, read", some_slow(READ, QUICK_READ))
def test_the_last_layer_computes_so_many_tokens(monkeypatch, fields, read):
  """On every platform; every fourth model is asked on two."""
  platforms = ("cpu", "tpu")[: 1 if READ.index((fields, read)) % 4 else 2]
  model, rows, run = tiny(**fields), [], BaseVit.run

  def noted(*args, **options):
    tokens = run(*args, **options)
    rows.append(tokens.z.shape[1])
    return tokens

  params = nn.unbox(shapes_of(model, pixels()))
  monkeypatch.setattr(BaseVit, "run", noted)
  for platform in platforms:
    monkeypatch.setattr(partitioning, "platform", lambda name=platform: name)
    jax.eval_shape(_squares(model, _methods(fields)[0]), params)
  assert rows == [read] * len(platforms)


@pytest.mark.slow
@pytest.mark.parametrize(
  "platform, fields",
  [(name, fields) for name in ("cpu", "tpu") for fields, _ in READ],
)
def test_the_last_layer_computes_what_is_read(monkeypatch, platform, fields):
  """The head's input is that of all tokens, and so are all gradients."""
  model = tiny(**fields)
  params = random_params(model, pixels())
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  both = [
    jax.grad(_squares(model, method), has_aux=True)
    for method in _methods(fields)
  ]
  # As one program, which has the layers before the last once.
  found, expected = jax.jit(lambda p: [one(p) for one in both])(params)
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"block": "deit"}])
def test_weights_that_are_perturbed_are_those_of_all_queries(fields):
  """Their gradient is the same whether they are sown or not."""
  model = tiny(**fields)
  params = jax.tree.map(jnp.asarray, random_params(model, pixels()))
  S = N + model.prefix
  block = {"msa": {"attention": jnp.zeros((B, HEADS, S, S))}}
  zeros = {"block_0": block, "block_1": block}

  def gradient(A, mutable):
    def total(A):
      variables = {"params": params, "perturbations": A}
      y = model.apply(variables, pixels(), mutable=mutable)
      return (y[0] if mutable else y).sum()

    return jax.grad(total)(A)

  both = jax.jit(lambda A: [gradient(A, m) for m in (False, "intermediates")])
  found, expected = both(zeros)
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class ReadsTheSecond:
  """Reads another token than `Vit` does."""

  def pool(self, tokens):
    return tokens.z[:, 1]


class Second(Vit):
  pool = ReadsTheSecond.pool


class Mixed(ReadsTheSecond, Vit):
  pass


@pytest.mark.parametrize("cls", [Second, Mixed])
def test_a_class_with_a_pool_of_its_own_reads_what_it_likes(cls):
  model = cls.like(tiny(num_layers=1))
  params = random_params(model, pixels())
  found, z = apply(
    model, params, pixels(), method=lambda m, x: (m.pooled(x), m.encode(x)[0])
  )
  np.testing.assert_allclose(found, z[:, 1], rtol=1e-5, atol=1e-6)


class OfAllTokens(Msa):
  """An attention that does not know what is read of its result."""

  @nn.compact
  def __call__(self, z, R=None, *, mask=None, where=None, train=False):
    return super().__call__(z, R, mask=mask, where=where, train=train)


class WithAll(EncoderBlock):
  attention = OfAllTokens


def test_an_attention_of_ones_own_need_not_know_what_is_read():
  model = tiny(num_layers=1)
  params = random_params(model, pixels())
  models = model.clone(block=WithAll), model

  @jax.jit
  def answers(params, x):
    return [model.apply({"params": params}, x) for model in models]

  found, expected = answers(params, pixels())
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_products_that_are_replaced_are_those_of_the_projections(
  monkeypatch, platform
):
  """A library that adapts them would not find those of our other forms."""
  params = random_params(tiny(), pixels())
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  product = jax.lax.dot_general
  names = []

  def other(*args, **options):
    return product(*args, **options)

  def noted(run, args, options, context):
    if context.method_name == "__call__":
      names.append(context.module.name)
    return run(*args, **options)

  monkeypatch.setattr(jax.lax, "dot_general", other)
  with nn.intercept_methods(noted):
    jax.eval_shape(lambda p: tiny().apply({"params": p}, pixels()), params)
  for name in ("query", "key", "value", "out"):
    assert names.count(name) == 2  # One for each layer.


def test_patch_dropout_leaves_out_padding_first():
  """Of 12 patches 6 stay, and 4 of them count."""

  @jax.jit
  def dropped(mask, key):
    tokens = Tokens(jnp.zeros((B, N, 1)), mask=mask, grid=(H, W))
    rngs = {"dropout": key}
    tokens = PatchDropout(0.5).apply({}, tokens, train=True, rngs=rngs)
    return tokens.where, tokens.mask

  where, mask = dropped(REAL, jax.random.key(0))
  kept = np.take_along_axis(REAL, np.asarray(where), axis=1)
  np.testing.assert_array_equal(kept, mask)
  np.testing.assert_array_equal(kept.sum(axis=1), [4, 4])
  assert kept.shape == (B, 6)


def test_taking_twice_is_taking_once():
  z = np.broadcast_to(np.arange(5, dtype=np.float32)[:, None], (2, 5, 1))
  mask = np.array([[True, False, True, True], [True] * 4])

  @jax.jit
  def taken(z, mask):
    tokens = Tokens(z, mask=mask, prefix=1, grid=(2, 2))
    tokens = tokens.take(jnp.array([[3, 1, 0]])).take(jnp.array([[1], [2]]))
    return tokens.where, tokens.z, tokens.mask, tokens.patches

  where, z, mask, patches = jax.device_get(taken(z, mask))
  np.testing.assert_array_equal(where, [[1], [0]])
  np.testing.assert_array_equal(z[..., 0], [[0, 2], [0, 1]])
  np.testing.assert_array_equal(mask, [[False], [True]])
  np.testing.assert_array_equal(patches[..., 0], [[2], [1]])


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
