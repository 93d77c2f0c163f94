"""PatchDropout leaves out patches in training, and only there."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax import models
from vit_jax.models import flops, masked_vit
from vit_jax.models.patch_dropout import PatchDropout

SIDE, P, N, B = 24, 4, 36, 6


def make(rate, block=None, **fields):
  sizes = dict(hidden_size=16, num_layers=2, mlp_size=32, num_heads=2)
  return models.make_vit(
    f"S/{P}", 5, block=block, patch_dropout_rate=rate, **(sizes | fields)
  )


@pytest.fixture(scope="module")
def images():
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.normal(size=(B, SIDE, SIDE, 3)), jnp.float32)


def params_of(model, images):
  return jax.jit(model.init)(jax.random.key(0), images)["params"]


def places(rate, prefix=0, count=B, seed=1):
  """The places of the tokens that stay, for each of `count` images."""
  rows = jnp.arange(prefix + N, dtype=jnp.float32)[None, :, None]
  z = rows + 1000 * jnp.arange(count, dtype=jnp.float32)[:, None, None]
  layer = PatchDropout(rate, prefix)
  key = {"dropout": jax.random.key(seed)}
  left = np.asarray(layer.apply({}, z, train=True, rngs=key))[..., 0]
  assert (left // 1000 == np.arange(count)[:, None]).all()  # Of its own image.
  return (left % 1000).astype(int)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("rate, left", [(0.5, 18), (0.3, 25), (0.99, 1)])
def test_so_many_patches_stay_and_every_other_token(rate, left, prefix):
  found = places(rate, prefix)
  assert found.shape == (B, prefix + left)
  np.testing.assert_array_equal(found[:, :prefix], [range(prefix)] * B)
  assert (np.diff(found) > 0).all()  # In their order, none twice.


def test_the_draw_is_another_for_each_image_and_step_and_is_uniform():
  rows = [*places(0.5), *places(0.5, seed=2)]
  assert len({tuple(row) for row in rows}) == 2 * B
  counts = np.bincount(places(0.5, count=300).ravel(), minlength=N)
  # Each of 300 draws keeps a patch with probability 1/2: 150 +- 8.7.
  assert abs(counts - 150).max() < 5 * np.sqrt(300 / 4)


def test_devices_draw_for_their_own_images():
  mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  layer = PatchDropout(0.5, 1)

  def loss(z):
    key = {"dropout": jax.random.key(0)}
    return jnp.square(layer.apply({}, z, train=True, rngs=key)).sum()

  z = jax.ShapeDtypeStruct((16, 1 + N, 8), jnp.float32, sharding=rows)
  step = jax.jit(jax.grad(loss), out_shardings=rows).lower(z).compile()
  assert not re.search("all-gather|all-to-all|collective", step.as_text())


@pytest.mark.parametrize(
  "fields, prefix, left",
  [
    ({}, 1, 19),
    ({"pooling": "gap", "position": "sincos2d", "scan": True}, 0, 18),
    ({"block": "dinov2", "registers": 3}, 4, 22),
  ],
)
def test_every_layer_gets_the_tokens_that_stay(images, fields, prefix, left):
  model = make(0.5, **fields)
  shapes = []

  def note(call, args, kwargs, context):
    block = type(context.module).__name__ in ("EncoderBlock", "ModernBlock")
    if block and context.method_name == "__call__":
      shapes.append(args[0].shape)
    if isinstance(context.module, PatchDropout):
      assert context.module.prefix == prefix
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    jax.eval_shape(lambda x: model.init(keys, x, train=True), images)
  assert set(shapes) == {(B, left, 16)}


def test_outside_training_nothing_is_left_out(images):
  plain, ours = (make(rate).clone(num_classes=0) for rate in (0.0, 0.5))
  params = params_of(plain, images)
  assert jax.tree.structure(params) == jax.tree.structure(
    params_of(ours, images)
  )
  answer = plain.apply({"params": params}, images)
  assert jnp.std(answer) > 0.1
  np.testing.assert_array_equal(ours.apply({"params": params}, images), answer)


def test_the_answer_depends_on_the_patches_that_stay_alone(images):
  """Each patch of an image is changed in turn; n of them make a difference."""
  model = make(0.5, num_layers=1).clone(num_classes=0)
  params = params_of(model, images)
  key = {"dropout": jax.random.key(1)}

  def answer(scales):  # (h, w)
    x = images * jnp.repeat(jnp.repeat(scales, P, 0), P, 1)[None, ..., None]
    return model.apply({"params": params}, x, train=True, rngs=key)

  changed = jnp.ones((N, N)) + jnp.eye(N)
  answers = jax.jit(jax.vmap(answer))(changed.reshape(N, 6, 6))  # (N, B, K)
  plain = jax.jit(answer)(jnp.ones((6, 6)))
  differs = abs(np.asarray(answers - plain[None])).max(axis=-1) > 1e-4  # (N, B)
  np.testing.assert_array_equal(differs.sum(axis=0), N // 2)
  assert len({tuple(column) for column in differs.T}) == B


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
  with pytest.raises(ValueError, match="set it to 0 for masked patches"):
    masked_vit.masked(make(0.5), 3)
