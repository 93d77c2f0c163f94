"""Attention by cuDNN's kernels, in whose place a form of XLA's stands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny_vit
from vit_jax.models import gpu, partitioning
from vit_jax.models.text import TextTower

MODELS = {
  "paper": {},
  "gap": dict(pooling="gap", num_layers=1),
  "scan": dict(scan=True),
  "layer scale, registers": dict(block="dinov2", registers=3),
  "rotary": dict(block="dinov3", position="none", hidden_size=48),
  "norms inside": dict(block="eva02"),
  "text": None,
}


def _model(fields, attention):
  if fields is not None:
    return tiny_vit.tiny(**fields, attention=attention)
  return TextTower(
    num_classes=0,
    vocabulary=9,
    length=7,
    hidden_size=24,
    num_layers=2,
    mlp_size=32,
    num_heads=3,
    causal=True,
    attention=attention,
  )


@pytest.fixture
def calls(monkeypatch):
  """The calls of the function, on a GPU as it were, by XLA and in float32."""
  calls, function = [], jax.nn.dot_product_attention

  def attend(q, *args, **options):
    if q.shape[0] > 1:  # Not what asks whether there is cuDNN.
      calls.append(q.shape)
    return function(q, *args, **options)

  monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
  monkeypatch.setattr(gpu, "IMPLEMENTATION", "xla")
  monkeypatch.setattr(gpu, "TYPES", ("float32",))
  monkeypatch.setattr(partitioning, "platform", lambda: "gpu")
  return calls


def _differentiated(model, params, x):
  """The answer, and its gradients by parameters."""

  def loss(params):
    y = jnp.asarray(model.apply({"params": params}, x))
    return (y**2).sum(), y

  (_, y), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
  return y, gradients


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, side", [(name, side) for name in MODELS for side in (8, 12)]
)
def test_answers_and_gradients_are_those_of_the_plain_form(calls, name, side):
  fields = MODELS[name]
  x = tiny_vit.images(side, 12)  # 6 or 9 patches.
  if fields is None:
    x = jnp.array([[1, 4, 2, 8, 5, 7, 0], [3, 1, 4, 1, 5, 0, 0]])
    x = x[:, : side // 2]
  plain = _model(fields, "plain")
  params = tiny_vit.random_params(plain, x)
  y, gradients = _differentiated(plain, params, x)
  assert not calls
  found, by_params = _differentiated(_model(fields, "cudnn"), params, x)
  assert calls
  assert all(tokens % 2 == 0 for _, tokens, *_ in calls)
  np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-5)
  largest = max(np.abs(g).max() for g in jax.tree.leaves(gradients))
  close = functools.partial(
    np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest
  )
  jax.tree.map(close, by_params, gradients)


def test_what_shows_attention_or_drops_it_keeps_the_plain_form(calls):
  x = tiny_vit.images()
  model = _model({"attention_dropout_rate": 0.1}, "cudnn")
  params = jax.tree.map(jnp.asarray, tiny_vit.random_params(model, x))
  rngs = {"dropout": jax.random.key(0)}
  apply = functools.partial(model.apply, {"params": params}, x, rngs=rngs)
  jax.eval_shape(functools.partial(apply, train=True))
  jax.eval_shape(functools.partial(apply, mutable="intermediates"))
  assert not calls
  jax.eval_shape(apply)
  assert calls


@pytest.mark.parametrize("tokens", ["odd", "even"])
def test_a_train_step_for_cuda_has_cudnns_calls_for_each_layer(
  monkeypatch, tokens
):
  """Without a card JAX finds no cuDNN, of which only the version is needed."""
  fused = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
  monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91300)
  x = tiny_vit.images(8, 12)
  fields = dict(
    hidden_size=48,
    pooling="token_gap",
    block="dinov2",
    registers=int(tokens == "odd"),
  )
  model = _model(fields | dict(dtype=jnp.bfloat16), "cudnn")
  params = tiny_vit.random_params(model, x)

  def loss(params, x):
    return model.apply({"params": params}, x).astype(jnp.float32).sum()

  monkeypatch.setattr(partitioning, "platform", lambda: "gpu")
  traced = jax.jit(jax.grad(loss)).trace(params, x)
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("@__cudnn$fmhaSoftmax(") == tiny_vit.LAYERS
  assert text.count("@__cudnn$fmhaSoftmaxBackward(") == tiny_vit.LAYERS


def test_why_cudnn_cannot_is_said(monkeypatch):
  assert gpu.refusal(jnp.bfloat16, 64) == "it needs a GPU, and this is a CPU"
  monkeypatch.setattr(partitioning, "platform", lambda: "gpu")
  assert gpu.refusal(jnp.float32, 64) == (
    "it needs bfloat16 or float16, and dtype is float32"
  )
  assert gpu.refusal(jnp.bfloat16, 64) == "cuDNN is not detected"
  said = gpu.remark("cudnn", jnp.bfloat16, 64)
  assert said == "; cuDNN's kernels are not used: cuDNN is not detected"
  assert gpu.remark("auto", jnp.bfloat16, 64) is None
