"""Models for self-distillation: masks, crops of two sizes, heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import random_params
from vit_jax import make_vit
from vit_jax.models import to_fields
from vit_jax.models.interpolation import bicubic_weights
from vit_jax.models.parts import Parts
from vit_jax.models.self_distilled import Heads, self_distilled

HEADS = Heads(10, 12, 3, 6, separate=False)
SIZES = dict(num_layers=2, hidden_size=16, mlp_size=32, num_heads=2)
RNG = np.random.default_rng(0)


def made(block=None, heads=HEADS, **fields):
  own = SIZES | fields | ({"block": block} if block else {})
  vit = make_vit("Ti/4", 0, **own)
  model = self_distilled(vit, heads, (4, 4))
  return vit, model, random_params(model, (16, 16), 0)


def images(B=2, side=16):
  return jnp.array(RNG.normal(size=(B, side, side, 3)), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
  "block, fields",
  [
    (None, {}),
    (None, dict(position="learned_grid", pooling="gap")),
    (None, dict(position="sincos2d")),
    ("dinov2", {}),
    ("dinov2", dict(registers=2)),
    ("dinov3", {}),
  ],
)
def test_small_crops_are_what_the_trunk_would_see(block, fields):
  """A plain encoder whose table was resized gives the same features."""
  vit, model, params = made(block, num_layers=1, **fields)
  small, large = images(side=8), images()
  trunk = model.trunk
  assert type(trunk) is type(vit) and to_fields(model)["adapted"]
  whole = {
    k: params[k] for k in params if k not in ("mask_token", "class_head")
  }
  plain = whole
  if "position" in plain and not trunk.resizes_positions:
    table = np.asarray(plain["position"]["E_pos"])
    first = len(table) - 16
    weights = bicubic_weights(4, 2, antialias=False)
    grid = table[first:].reshape(4, 4, -1)
    grid = np.einsum("yh,xw,hwd->yxd", weights, weights, grid).reshape(4, -1)
    resized = np.concatenate([table[:first], grid]).astype(np.float32)
    plain = plain | {"position": {"E_pos": jnp.array(resized)}}

  @jax.jit
  def answers(params, plain, whole):
    """Of small crops; and of large ones, which are read as whole images."""
    told = [model.apply({"params": params}, x)["y"] for x in (small, large)]
    cases = (plain, small), (whole, large)
    return told, [trunk.apply({"params": p}, x) for p, x in cases]

  for found, expected in zip(*answers(params, plain, whole), strict=True):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_masked_patches_show_nothing():
  _, model, params = made("dinov2", registers=1)
  masks = jnp.array(RNG.random((2, 16)) < 0.4)
  where = jnp.tile(jnp.arange(16)[None], (2, 1))
  draw = {"masks": masks, "where": where}
  x = images()
  other = np.array(x)
  for b, place in zip(*np.nonzero(np.asarray(masks)), strict=True):
    row, column = divmod(place, 4)
    other[b, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 9.0
  apply = jax.jit(model.apply)
  one, two = (
    apply({"params": params, "draw": draw}, jnp.array(image))
    for image in (x, other)
  )
  for key in ("y", "answers", "patches"):
    np.testing.assert_array_equal(one[key], two[key])
  assert one["patches"].shape == (2, 16, 10)
  seen = apply({"params": params}, jnp.array(other))
  assert np.abs(np.asarray(seen["y"] - two["y"])).max() > 1e-3


@pytest.mark.slow
def test_the_head_is_cosines_with_prototypes():
  _, model, params = made()
  told = jax.jit(model.apply)({"params": params}, images())
  head = jax.tree.map(lambda x: np.asarray(x, np.float64), params["class_head"])
  x = np.float64(told["y"])
  for layer in range(3):
    own = head[f"layer_{layer}"]
    x = x @ own["kernel"] + own["bias"]
    if layer < 2:
      x = np.asarray(jax.nn.gelu(jnp.array(x), approximate=False))
  v, g = head["direction"], head["length"]
  x = x / np.linalg.norm(x, axis=1, keepdims=True)
  x = x @ (v / np.linalg.norm(v, axis=0)) * g
  np.testing.assert_allclose(told["answers"], x, rtol=1e-4, atol=1e-5)


def test_only_the_heads_and_the_mask_belong_to_the_task():
  _, model, params = made(heads=Heads(10, 12, 2, 6, separate=True))
  parts = Parts.of(model, params)
  own = {path for path in params if parts.own_task(path)}
  assert own == {"mask_token", "class_head", "patch_head"}
  assert parts.depth("class_head/layer_0/kernel") == 0
  assert parts.depth("mask_token") == 3 == parts.depth("patches/E/kernel")
  assert parts.is_head("patch_head/direction")


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(representation_size=8), "representation_size=8: the outputs of tok"),
    (dict(block="dinov2", pooling="token_gap"), "set self_distillation.separ"),
    (dict(block="axial", pooling="gap"), "its layers are for one grid of pat"),
    (dict(patch_dropout_rate=0.5), "patch_dropout_rate=0.5 would leave out"),
    (dict(position="relative"), "position='relative' does not fit crops of"),
    (dict(position_at="shared"), "position_at='shared': crops of two sizes"),
  ],
)
def test_fields_that_do_not_fit_are_refused(fields, message):
  vit = make_vit("Ti/4", 0, **SIZES | fields)
  with pytest.raises(ValueError, match=message):
    self_distilled(vit, HEADS, (4, 4))
  with pytest.raises(ValueError, match="takes no mask of patches that count"):
    _, model, params = made()
    mask = jnp.ones((2, 16), bool)
    model.apply({"params": params}, images(), mask=mask)
