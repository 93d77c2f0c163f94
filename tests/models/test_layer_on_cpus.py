"""What CPUs compute in forms of their own: gradients, which stay the same."""

import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.bench.fusions import operations
from tests.models.tiny_vit import LAYERS, images, random_params, tiny
from tests.rows import some_slow
from vit_jax.inference.exporter import export_model
from vit_jax.inference.onnx.export import export_onnx
from vit_jax.models import layer, partitioning
from vit_jax.models.autoencoder import autoencoder
from vit_jax.models.model import Origin
from vit_jax.models.text import TextTower
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import OptimizerSettings
from vit_jax.training.state import make_init
from vit_jax.training.step import make_train_step

OURS = "name=gradient_barrier"
DECODER = dict(
  decoder_size=16, decoder_layers=3, decoder_heads=2, decoder_mlp_size=32
)
TEXT = TextTower(
  num_classes=0,
  vocabulary=9,
  length=5,
  hidden_size=16,
  num_layers=LAYERS,
  mlp_size=32,
  num_heads=2,
)
# Models, an input of each, and the number of their layers that are compiled.
STACKS = {
  "paper's": (tiny(), images(), LAYERS),
  "extended": (tiny(block="dinov2"), images(), LAYERS),
  "axial": (tiny(block="axial", pooling="gap"), images(), LAYERS),
  "scanned": (tiny(scan=True), images(), 1),
  "rematerialised": (tiny(remat="full"), images(), LAYERS),
  "both": (tiny(scan=True, remat="dots"), images(), 1),
  "autoencoder": (autoencoder(tiny(), **DECODER), images(), LAYERS + 3),
  "text": (TEXT, jnp.ones((2, 5), jnp.int32), LAYERS),
}


def loss_of(model, x):
  """A loss that gives each output its own weight, and parameters."""
  params = jax.tree.map(jnp.asarray, random_params(model, x))

  def loss(params):
    y = model.apply({"params": params}, x, train=True)
    return (y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()

  return loss, params


FAST = ["paper's"]


@pytest.mark.parametrize("kind", some_slow(STACKS, FAST))
def test_the_gradient_between_layers_is_held_and_nothing_forward(kind):
  model, x, count = STACKS[kind]
  loss, params = loss_of(model, x)
  forward = jax.jit(loss).lower(params).as_text()
  backward = jax.jit(jax.grad(loss)).lower(params).as_text()
  assert "optimization_barrier" not in forward
  # Those that hold several arrays are of layers that are computed again.
  held = re.findall(r"optimization_barrier %\S+ : ", backward)
  assert len(held) == count


@pytest.mark.parametrize("platform", some_slow(["tpu", "gpu"], ["tpu"]))
@pytest.mark.parametrize("kind", some_slow(STACKS, FAST))
def test_other_platforms_have_nothing_of_it(monkeypatch, kind, platform):
  model, x, _ = STACKS[kind]
  loss, params = loss_of(model, x)
  assert OURS in str(jax.make_jaxpr(loss)(params))
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  assert OURS not in str(jax.make_jaxpr(loss_of(model, x)[0])(params))


@pytest.mark.slow
@pytest.mark.parametrize("kind", STACKS)
def test_the_loss_and_both_kinds_of_derivatives_stay(monkeypatch, kind):
  model, x, _ = STACKS[kind]

  def computed():
    loss, params = loss_of(model, x)
    return jax.jit(
      lambda p: (jax.value_and_grad(loss)(p), jax.jvp(loss, (p,), (p,)))
    )(params)

  found = computed()
  monkeypatch.setattr(layer, "for_cpu", lambda: False)
  jax.tree.map(np.testing.assert_array_equal, found, computed())


def test_an_exported_program_holds_nothing_of_it():
  vit = tiny().clone(origin=Origin("test", "google", (8, 12)))
  params = jax.tree.map(jnp.asarray, random_params(vit, images()))
  text = export_model(vit, params, platforms=["cpu", "tpu"]).mlir_module()
  assert "optimization_barrier" not in text and "gradient_barrier" not in text


@pytest.mark.slow
def test_an_onnx_file_holds_nothing_of_it(monkeypatch):
  pytest.importorskip("onnx", reason="needs the extra onnx")
  pytest.importorskip("onnxruntime", reason="needs the extra onnx")
  vit = tiny().clone(origin=Origin("test", "google", (8, 12)))
  params = jax.tree.map(jnp.asarray, random_params(vit, images()))
  found = export_onnx(vit, params)
  monkeypatch.setattr(layer, "for_cpu", lambda: False)
  assert len(found) == len(export_onnx(vit, params))


def compiled_step(model, B):
  """The text of a train step that is compiled for images of 8 x 12."""
  tx = make_optimizer(OptimizerSettings(), lambda _: 0.1)
  shapes = jax.eval_shape(make_init(model, tx, (8, 12, 3)), jax.random.key(0))
  batch = {"image": np.zeros((B, 8, 12, 3), np.uint8), "label": np.arange(B)}
  step = jax.jit(make_train_step(model, tx, lambda _: 0.1))
  return step.lower(nn.unbox(shapes), batch).compile().as_text() or ""


@pytest.mark.slow
def test_no_part_of_a_step_computes_the_gradient_again_through_the_layers():
  model, B = tiny(num_layers=4), 8
  tokens = B * 7 * model.hidden_size * 4
  parts = operations(compiled_step(model, B))
  most = max(operation.large(tokens) for operation in parts)
  # It was 17, and 4 more with each layer.
  assert 3 <= most <= 12


@pytest.mark.slow
def test_no_product_of_a_step_in_bfloat16_has_a_form_that_is_slow():
  model = tiny(num_layers=2, dtype=jnp.bfloat16)
  # A product of two axes, and the axis of its first operand that it sums.
  product = r" = \w+\[\d+,\d+\]\S* dot\(.*?lhs_contracting_dims={(\d)}"
  summed = [
    axis
    for line in compiled_step(model, 8).splitlines()
    for axis in re.findall(product, line)
    if "/head/" not in line  # It is computed in float32.
  ]
  # A layer has four kernels in attention and two in the MLP, but the last layer
  # computes keys and values otherwise. The gradients of kernels were sums over
  # the rows of both operands, {0}.
  assert len(summed) >= 3 * (2 * 6 - 2) and set(summed) == {"1"}


@pytest.mark.parametrize("kind", some_slow(["dense", "projection"], ["dense"]))
def test_gradients_in_bfloat16_are_those_of_float64(kind):
  config = layer.LayerConfig(dtype=jnp.bfloat16)
  init = nn.initializers.normal()
  if kind == "dense":
    module = layer.dense(10, ("embed", "mlp"), config, name="dense")
  else:
    module = partitioning.Projection(
      shape=(6, 2, 5),
      num_inputs=1,
      axes=("embed", "heads", "head_size"),
      bias_axes=("heads", "head_size"),
      kernel_init=init,
      bias_init=init,
      dtype=jnp.bfloat16,
    )
  rng = np.random.default_rng(0)
  x, g = (
    jnp.asarray(rng.normal(size=(4, 300, size)), jnp.bfloat16)
    for size in (6, 10)
  )
  params = nn.unbox(module.init(jax.random.key(0), x))

  def loss(params):
    y: Any = module.apply(params, x)
    return (y.astype(jnp.float32) * g.reshape(y.shape)).sum()

  found = jax.grad(loss)(params)["params"]
  x, g = np.float64(x), np.float64(g)
  for name, wanted in {
    "kernel": np.einsum("bsd,bsf->df", x, g),
    "bias": g.sum((0, 1)),
  }.items():
    error = np.float64(found[name]).reshape(wanted.shape) - wanted
    assert abs(error).max() < abs(wanted).max() / 2**8
