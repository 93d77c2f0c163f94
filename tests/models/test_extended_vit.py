"""Encoders after the paper, against formulas and other libraries."""

import dataclasses
import json
import math

import cv2
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import encoders
from tests.models.tiny_vit import apply, images, random_params, tiny
from tests.rows import some_slow
from vit_jax import Vit, make_vit
from vit_jax.families import FAMILIES
from vit_jax.models import ExtendedVit, from_fields, to_fields
from vit_jax.models.attention import Msa, QueryPool
from vit_jax.models.extended_block import (
  ExtendedBlock,
  ExtendedConfig,
  ExtendedMlp,
  ExtendedMsa,
)
from vit_jax.models.grid import param_shapes
from vit_jax.models.interpolation import bicubic_weights, linear_weights
from vit_jax.models.layer import LayerConfig, layer_norm
from vit_jax.models.parts import stack
from vit_jax.models.position import ResizedPositions
from vit_jax.models.rotary import Rope, rotate
from vit_jax.models.variants import OwnBlockError
from vit_jax.models.vit import EncoderBlock, Mlp
from vit_jax.pretrained.load import load_pretrained

GIANT = dict(
  hidden_size=1536,
  num_layers=40,
  num_heads=24,
  mlp_size=4096,
  gated_mlp=True,
  position_grid=(37, 37),
)


CLIP = dict(block="clip", projection=True, representation_size=512)


# Counted in transformers 5.23.0 at the published sizes, less the mask tokens.
@pytest.mark.parametrize(
  "variant, fields, params",
  [
    ("B/14", dict(block="dinov2", position_grid=(37, 37)), 86_579_712),
    ("B/14", dict(block="dinov2", position_grid=(37, 37), registers=4), None),
    ("g/14", dict(block="dinov2", **GIANT), 1_136_479_232),
    ("B/16", dict(block="dinov3"), 85_659_648),
    ("B/16", CLIP, 86_192_640),
  ],
)
def test_parameter_count(variant, fields, params):
  model = make_vit(variant, 0, scan=True, **fields)
  shapes = param_shapes(model, (224 // model.patch_size,) * 2)
  found = sum(int(np.prod(shape)) for shape in shapes.values())
  # The registers' class counts its table for images of 224 x 224 here.
  assert found == (params or 86_579_712 + 4 * 768)


@pytest.mark.parametrize("registers", [1, 4])
def test_registers_have_a_row_each(registers):
  shapes = param_shapes(tiny(block="dinov2", registers=registers), (2, 2))
  assert shapes["registers"] == (registers, 24)


@pytest.mark.parametrize(
  "fields, places",
  [
    (dict(position="learned_all"), 1 + 3),
    (dict(position="learned"), 1),
    (dict(position="learned_grid"), 0),
    (dict(position="learned_all", class_token=False, pooling="gap"), 3),
    (dict(position="learned", class_token=False, pooling="gap"), 0),
  ],
)
def test_the_tokens_before_the_patches_that_have_a_position(fields, places):
  model = tiny(block="dinov2", registers=3, **fields)
  shapes = param_shapes(model, (2, 2))
  assert shapes["position/E_pos"] == (places + 4, 24)
  assert ("x_class" in shapes) == model.class_token
  assert model.prefix == 3 + model.class_token


@pytest.mark.parametrize("old, new", [(5, 9), (9, 5), (37, 16), (4, 4), (2, 7)])
def test_bicubic_weights_are_those_of_opencv_and_pillow(old, new):
  points = np.eye(old, dtype=np.float32)
  plain = cv2.resize(points, (old, new), interpolation=cv2.INTER_CUBIC)
  found = bicubic_weights(old, new, antialias=False)
  np.testing.assert_allclose(found, plain, atol=1e-4)
  smooth = Image.fromarray(points).resize((old, new), Image.Resampling.BICUBIC)
  found = bicubic_weights(old, new, antialias=True)
  np.testing.assert_allclose(found, np.asarray(smooth), atol=1e-5)


def test_rotated_products_depend_on_the_offset_alone():
  rng = np.random.default_rng(0)
  q, k = rng.normal(size=(2, 8)).astype(np.float32)
  h, w, prefix = 3, 4, 2
  tokens, rope = jnp.ones((1, 1, prefix + h * w, 1)), Rope((h, w), 100.0)
  turn = jax.jit(lambda x: rotate(tokens * x[None, None, None], rope))
  q, k = turn(q), turn(k)
  assert (np.asarray(q[0, 0, :prefix]) == np.asarray(q[0, 0, 0])).all()
  logits = np.asarray(q @ k.mT)[0, 0, prefix:, prefix:].reshape(h, w, h, w)
  for dy, dx in ((0, 1), (1, 0), (1, 2)):
    moved = [
      logits[y, x, y + dy, x + dx] for y in range(h - dy) for x in range(w - dx)
    ]
    np.testing.assert_allclose(moved, moved[0], rtol=1e-4)
  assert np.ptp(logits) > 0.1


def test_with_a_side_rotary_places_are_those_of_that_grid():
  """Two patches of four lie at 0 and 2; the pair turns by 1 radian a unit."""
  x = np.broadcast_to(np.eye(4, dtype=np.float32)[0], (1, 1, 2, 4))
  turned = jax.jit(lambda x: rotate(x, Rope((2, 1), 100.0, 4)))(x)
  expected = [[1, 0, 0, 0], [np.cos(2), 0, np.sin(2), 0]]
  np.testing.assert_allclose(np.asarray(turned)[0, 0], expected, atol=1e-6)


def test_rotations_of_bfloat16_are_exact_but_for_the_result():
  """Cosines, sines and products are float32: the result is rounded once."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(1, 1, 9, 8)), jnp.bfloat16)
  turned = jax.jit(lambda x: rotate(x, Rope((3, 3), 100.0)))(x)
  assert turned.dtype == jnp.bfloat16
  y, x_of = np.divmod(np.arange(9), 3)
  angles = np.stack([y, y, x_of, x_of], axis=1) * 2 / 3 - 2 / 3
  angles = 2 * np.pi * angles / (1, 10, 1, 10)  # 100^0 and 100^(1/2).
  a, b = np.split(np.asarray(x[0, 0], np.float64), 2, axis=1)
  cos, sin = np.cos(angles), np.sin(angles)
  expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)
  rounding = 2.0**-8  # Of a number with eight significant bits.
  found = np.asarray(turned[0, 0], np.float64)
  np.testing.assert_allclose(found, expected, rtol=rounding, atol=1e-5)


def test_layer_scale_of_zero_leaves_the_tokens_as_they_are():
  z = jax.random.normal(jax.random.key(0), (2, 5, 24))
  block = ExtendedBlock(3, 40, ExtendedConfig(layer_scale=0.5))

  @jax.jit
  def first_scale(key):
    return nn.unbox(block.init(key, z)["params"])["scale_mlp"]

  assert (np.asarray(first_scale(jax.random.key(1))) == 0.5).all()
  zero = np.zeros(24, np.float32)
  params = random_params(block, z) | dict(scale_msa=zero, scale_mlp=zero)
  np.testing.assert_array_equal(apply(block, params, z), z)


def test_without_extras_it_is_the_papers_layer():
  z = jax.random.normal(jax.random.key(0), (2, 5, 24))
  params = random_params(EncoderBlock(3, 40), z)
  np.testing.assert_array_equal(
    apply(ExtendedBlock(3, 40), params, z),
    apply(EncoderBlock(3, 40), params, z),
  )


@pytest.mark.slow
def test_a_dropped_path_is_skipped_and_the_others_count_for_more():
  z = jax.random.normal(jax.random.key(0), (64, 3, 8))
  config = ExtendedConfig(layer_scale=1.0)
  block = ExtendedBlock(2, 16, config, drop_path_rate=0.75)
  params = random_params(block, z) | dict(scale_mlp=np.zeros(8, np.float32))
  branch = apply(block, params, z) - z
  rngs = {"dropout": jax.random.key(1)}
  found = apply(block, params, z, train=True, rngs=rngs)
  ratio = np.asarray((found - z) / branch).reshape(64, -1)
  kept = ratio.mean(axis=1) > 2
  np.testing.assert_allclose(ratio[kept], 4, rtol=1e-2)
  np.testing.assert_array_equal(ratio[~kept], 0)
  assert 6 <= kept.sum() <= 26  # 16 expected.


def test_dropped_paths_may_become_more_with_depth():
  model = tiny(
    block="dinov2", num_layers=3, drop_path_rate=0.4, drop_path_grows=True
  )
  rates = {}

  def note(next_fun, args, kwargs, context):
    if isinstance(context.module, ExtendedBlock):
      rates[context.module.name] = context.module.drop_path_rate
    return next_fun(*args, **kwargs)

  with nn.intercept_methods(note):
    jax.eval_shape(model.init, jax.random.key(0), images(8, 8))
  assert rates == {"block_0": 0, "block_1": 0.2, "block_2": 0.4}


def test_normed_queries_and_keys_ignore_their_scale():
  z = jax.random.normal(jax.random.key(0), (2, 5, 24))
  msa = ExtendedMsa(3, ExtendedConfig(qk_norm=True))
  params = random_params(msa, z)
  before = apply(msa, params, z)
  for name in ("query", "key"):
    params[name] = jax.tree.map(lambda x: 7 * x, params[name])
  np.testing.assert_allclose(apply(msa, params, z), before, atol=1e-4)


def test_norms_after_the_branches_by_the_formula():
  """z' = z + LN(MSA(z)), and then z' + LN(MLP(z')), without norms before."""
  z = jax.random.normal(jax.random.key(0), (1, 3, 8))
  block = ExtendedBlock(2, 12, ExtendedConfig(norm_after=True))
  params = random_params(block, z)
  result = jax.jit(block.apply)({"params": params}, z)

  def norm(x, name):
    scale, bias = (params[name][leaf] for leaf in ("scale", "bias"))
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale + bias

  y = np.asarray(apply(Msa(2), params["msa"], z))
  z = np.asarray(z) + norm(y, "norm_msa")
  y = np.asarray(apply(Mlp(12), params["mlp"], jnp.asarray(z)))
  z = z + norm(y, "norm_mlp")
  np.testing.assert_allclose(result, z, atol=1e-5)


@pytest.mark.slow
def test_sides_of_a_layer_are_added_up():
  """Attentions first and then MLPs; each side alone is a layer without."""
  z = jax.random.normal(jax.random.key(0), (2, 5, 24))
  config = ExtendedConfig(layer_scale=0.5)
  block = ExtendedBlock(3, 40, dataclasses.replace(config, parallel=3))
  p = random_params(block, z)
  sides = [{k: v for k, v in p.items() if "side" not in k}]
  sides += [p["side_1"], p["side_2"]]

  def branches(name, z):
    """What each side adds to z by one of its branches, the other being zero."""
    layer = ExtendedBlock(3, 40, config)
    zero = {f"scale_{name}": np.zeros(24, np.float32)}
    return [apply(layer, side | zero, z) - z for side in sides]

  expected = z + sum(branches("mlp", z))
  expected = expected + sum(branches("msa", expected))
  np.testing.assert_allclose(apply(block, p, z), expected, atol=2e-5)
  read = apply(block, p, z, read=1)
  np.testing.assert_allclose(read, expected[:, :1], atol=2e-5)


@pytest.mark.parametrize(
  "gate, act",
  [
    ("silu", lambda x: x / (1 + np.exp(-x))),
    ("quick", lambda x: x / (1 + np.exp(-1.702 * x))),
    ("exact", lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2),
  ],
)
def test_a_gated_mlp_is_swiglu_or_has_another_gate(gate, act):
  z = jax.random.normal(jax.random.key(0), (2, 5, 8))
  mlp = ExtendedMlp(12, ExtendedConfig(gated_mlp=True, gate=gate))
  p = random_params(mlp, z)
  opened, expand = (
    np.asarray(z) @ p[n]["kernel"] + p[n]["bias"] for n in ("gate", "expand")
  )
  hidden = act(opened) * expand
  expected = hidden @ p["contract"]["kernel"] + p["contract"]["bias"]
  np.testing.assert_allclose(apply(mlp, p, z), expected, atol=1e-5)


def test_rms_norm_divides_by_the_root_of_the_mean_square():
  z = np.asarray(jax.random.normal(jax.random.key(0), (2, 5, 8))) + 3
  norm = layer_norm(LayerConfig(norm_kind="rms", layer_norm_epsilon=0.1), "x")
  p = random_params(norm, z)
  expected = z / np.sqrt((z**2).mean(axis=-1, keepdims=True) + 0.1)
  np.testing.assert_allclose(
    apply(norm, p, z), expected * p["scale"], atol=1e-5
  )


def test_a_norm_over_all_heads_is_one_of_the_whole_width():
  """The queries and keys of all heads, of a token, as one vector."""
  z = np.asarray(jax.random.normal(jax.random.key(0), (2, 5, 24)))
  config = ExtendedConfig(
    norm_kind="rms", layer_norm_epsilon=0.1, qk_norm=True, qk_norm_whole=True
  )
  msa = ExtendedMsa(3, config)
  p = random_params(msa, z)

  def project(name):
    y = np.einsum("bsd,dke->bske", z, p[name]["kernel"]) + p[name]["bias"]
    if name != "value":
      y /= np.sqrt((y**2).mean(axis=(2, 3), keepdims=True) + 0.1)
      y *= p[f"norm_{name}"]["scale"]
    return y

  q, k, v = map(project, ("query", "key", "value"))
  A = np.exp(np.einsum("bqke,bske->bkqs", q, k) / np.sqrt(8))
  A /= A.sum(axis=-1, keepdims=True)
  y = np.einsum("bkqs,bske->bqke", A, v)
  expected = (
    np.einsum("bqke,ked->bqd", y, p["out"]["kernel"]) + p["out"]["bias"]
  )
  np.testing.assert_allclose(apply(msa, p, z), expected, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_a_query_of_its_own_attends_to_the_tokens(masked):
  z = jax.random.normal(jax.random.key(0), (2, 5, 24))
  mask = jnp.asarray([[True] * 5, [True, False, True, False, True]])
  pool = QueryPool(3)
  p = random_params(pool, z)
  k, v = (
    np.einsum("bsd,dke->bkse", z, p[n]["kernel"]) for n in ("key", "value")
  )
  A = np.exp(np.einsum("ke,bkse->bks", p["query"], k) / np.sqrt(8))
  A = A * np.asarray(mask)[:, None] if masked else A
  y = np.einsum("bks,bkse->bke", A / A.sum(axis=-1, keepdims=True), v)
  expected = np.einsum("bke,ked->bd", y, p["out"]["kernel"]) + p["out"]["bias"]
  found = jax.jit(pool.apply)({"params": p}, z, mask if masked else None)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("old, new", [(4, 4), (4, 7), (7, 4), (9, 2), (3, 8)])
def test_linear_weights_are_those_of_jax(old, new):
  for antialias in (False, True):
    expected = jax.image.resize(
      np.eye(old), (new, old), "linear", antialias=antialias
    )
    found = linear_weights(old, new, antialias=antialias)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_positions_of_c_radio_are_of_a_square_that_is_cut():
  """A table of 4 x 4 on 2 x 3 patches: three rows and columns, less one row."""
  table = ResizedPositions((4, 4), 8, 0, antialias=False, resize="square")
  E = np.asarray(jax.random.normal(jax.random.key(0), (16, 8)))
  square = jax.image.resize(
    E.reshape(4, 4, 8), (3, 3, 8), "linear", antialias=False
  )
  found = table.apply({"params": {"E_pos": jnp.asarray(E)}}, (2, 3))
  np.testing.assert_allclose(found, square[:2].reshape(6, 8), atol=1e-5)


@pytest.mark.parametrize(
  "fields, rows",
  [
    (dict(block="pixio"), [*range(8)]),
    pytest.param(
      *(dict(block="radio", pooled_tokens=(0,)), [0]), marks=pytest.mark.slow
    ),
    (dict(block="radio", pooled_tokens=(2, 1)), [2, 1]),
    pytest.param(
      *(dict(block="internvit", pooling="gap"), [1, 2, 3, 4]),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_the_tokens_that_a_pooling_reads(fields, rows):
  """Of a class token, seven registers and 2 x 2 patches, before the head."""
  x = images(8, 8)
  model = tiny(**fields, num_classes=0, num_layers=1)
  params = jax.tree.map(jnp.asarray, random_params(model, x))
  z, y = apply(model, params, x, method="encode")
  if "norm" in params:
    z = apply(nn.LayerNorm(), params["norm"], z)
  z = np.asarray(z)
  joined = "pooled_tokens" in fields
  expected = z[:, rows].reshape(2, -1) if joined else z[:, rows].mean(axis=1)
  np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    dict(block="aimv2", pooling="query"),
    dict(block="internvit", qk_norm=True, qk_norm_whole=True, norm_kind="rms"),
    dict(block="radio", pooled_tokens=(0, 2)),
  ],
)
def test_every_parameter_of_new_parts_has_a_gradient(fields):
  x = images(8, 8)
  model = tiny(**fields, position_grid=(3, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, x))
  norm = jax.jit(jax.grad(lambda p: (model.apply({"params": p}, x) ** 2).sum()))
  for path, slope in jax.tree_util.tree_leaves_with_path(norm(params)):
    size = float(jnp.abs(slope).max())
    assert np.isfinite(size)
    # The keys' bias adds the same to all logits of a query.
    assert size > 1e-6 or "key" in jax.tree_util.keystr(path), path


@pytest.mark.parametrize("block", some_slow(FAMILIES, ["dinov3"]))
def test_a_family_is_scanned_described_and_made_again(block):
  x = images(8, 8)
  model = tiny(block=block, drop_path_rate=0.1)
  assert isinstance(model, ExtendedVit)
  params = random_params(model, x)
  scanned = model.clone(scan=True)
  np.testing.assert_allclose(
    apply(scanned, stack(params), x), apply(model, params, x), atol=1e-5
  )
  again = from_fields(json.loads(json.dumps(to_fields(model))))
  assert again == model
  assert from_fields(to_fields(model) | {"kind": ExtendedVit}) == model


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(pooling="max"), "pooling='max' is unknown; choose one of token, gap"),
    (dict(position="relative"), "position='relative' is unknown; choose one"),
    (dict(qkv_bias="vq"), "qkv_bias='vq' is unknown"),
    (dict(relative="x"), "relative='x' is unknown; choose one of table, mlp"),
    (dict(relative="mlp", registers=1), "knows one token before the patches"),
    (dict(registers=-1), "registers=-1 must be 0 or more"),
    (dict(drop_path_rate=1), r"drop_path_rate=1 must be in \[0, 1\)"),
    (dict(norm_pooled=True), "norm_pooled=True needs pooling='gap', not 'tok"),
    (dict(pool_unnormed=True), "pool_unnormed=True needs pooling='gap', not"),
    (dict(class_token=False), "class_token=False needs pooling='gap', not 't"),
    (dict(drop_path_grows=True, scan=True), "and scan=True compiles one for"),
    (dict(resnet_layers=(1,)), "ExtendedVit has no field resnet_layers"),
    (dict(distilled=True, pooling="gap"), "leaves the distillation token unus"),
    (dict(rope_theta=9.0, num_heads=4), "a size divisible by 4, not 6"),
    (dict(gate="exact"), "gate='exact' needs gated_mlp=True"),
    (dict(gate="relu", gated_mlp=True), "gate='relu' is unknown; choose one"),
    (dict(norm_after=True), "norm_after=True needs layer_scale=None"),
    (dict(qk_norm_whole=True), "qk_norm_whole=True needs qk_norm=True"),
    (dict(norm_kind="batch"), "norm_kind='batch' is unknown; choose one of la"),
    (dict(position_resize="x"), "position_resize='x' is unknown; choose one"),
    (dict(pooled_tokens=(1,)), r"pooled_tokens=\(1,\) must be .* from 0 to 0"),
    (dict(pooled_tokens=()), r"pooled_tokens=\(\) must be numbers of tokens"),
    (
      dict(pooled_tokens=(1,), pooling="gap"),
      "needs pooling='token' and no di",
    ),
    (
      dict(norm_final=False, pooling="gap", norm_pooled=True),
      "norm_pooled=True needs norm_final=True",
    ),
    (
      dict(class_token=False, pooling="prefix"),
      "pooling='prefix' needs a class token or registers",
    ),
    (dict(block="dinov4"), "block='dinov4' is unknown .*; choose one of din"),
    (dict(block="json:Nobody"), "module 'json' has no attribute 'Nobody'"),
  ],
)
def test_fields_that_do_not_fit_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    tiny(**{"block": "dinov2", **fields})


class Halved(EncoderBlock):
  """The paper's layer, of which half is taken."""

  @nn.compact
  def __call__(self, z, R=None, *, train=False):
    return super().__call__(z, R, train=train) / 2


def test_a_block_of_ones_own_replaces_the_papers():
  x = images(8, 8)
  plain = tiny(num_layers=1, pooling="gap", num_classes=0)
  own = plain.clone(block=Halved)
  params = random_params(plain, x)
  halved = own.clone(layer_norm_epsilon=1e-12)
  whole = plain.clone(layer_norm_epsilon=4e-12)  # Of the doubled tokens.
  np.testing.assert_allclose(
    apply(halved, params, x), apply(whole, params, x), atol=1e-3
  )
  assert tiny(block=f"{__name__}:Halved").block.__name__ == "Halved"


@pytest.mark.parametrize("block", ["os:system", "pathlib:Path"])
def test_what_is_no_module_of_flax_is_never_called(block, monkeypatch):
  calls = []
  monkeypatch.setattr("os.system", lambda *given: calls.append(given))
  monkeypatch.setattr("pathlib.Path.__init__", lambda *x: calls.append(x))
  with pytest.raises(ValueError, match="must be a class of layers, a flax Mod"):
    apply(tiny(block=block, pooling="gap"), {}, images(8, 8))
  assert calls == []


def test_a_described_block_of_ones_own_has_to_be_given():
  fields = to_fields(tiny(block=Halved))
  assert fields["block"] == f"{__name__}:Halved"
  with pytest.raises(OwnBlockError, match="Halved, a class of your own: open"):
    from_fields(fields)
  assert from_fields({**fields, "block": Halved}).block is Halved
  assert "block" not in to_fields(tiny())
  with pytest.raises(ValueError, match="'dinov2' chooses the layers of a new"):
    from_fields({**fields, "block": "dinov2"})
  sizes = dict(patch_size=4, hidden_size=8, num_layers=1, mlp_size=8)
  with pytest.raises(ValueError, match="block='dinov2' must be a class of lay"):
    Vit(num_classes=2, num_heads=2, block="dinov2", **sizes)


def _encoders():
  """All stored encoders of images; two of them are tested at once."""
  fast = ("hf_dinov2_reg", "hf_dinov3")
  names = [name for name in encoders.NAMES if not name.endswith("_text")]
  return [name if name in fast else _slow(name) for name in names]


def _slow(name):
  return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", _encoders())
def test_a_table_of_the_layers_has_every_parameter(name):
  """Flax's, which builds modules without a scope."""
  loaded = load_pretrained(encoders.path(name))
  size = loaded.preprocessing.size or (32, 32)
  images = jnp.zeros((1, *size, loaded.preprocessing.channels))
  text = loaded.model.tabulate(jax.random.key(0), images)
  values = sum(map(math.prod, loaded.shapes.values()))
  assert f"Total Parameters: {values:,}" in text
