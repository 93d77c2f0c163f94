"""Projections are an MLP of what the encoder's head would read."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from vit_jax import init_params, make_vit
from vit_jax.tasks.lejepa.model import with_projector

SIZES = dict(num_layers=1, hidden_size=8, mlp_size=8, num_heads=2)
KEY = jax.random.key(0)


def made(**fields):
  """A model of two sizes of crops, and parameters none of which is zero."""
  model = with_projector(make_vit("Ti/4", 0, **SIZES, **fields), 5, 6, (4, 4))
  shapes = jax.eval_shape(partial(init_params, model, image_size=16), KEY)
  rng = np.random.default_rng(0)
  return model, jax.tree.map(
    lambda x: jnp.asarray(np.float32(rng.normal(size=x.shape))), shapes
  )


def mlp(y, params):
  """Layers with layer norms and exact GELUs between them, in NumPy."""
  for layer in range(3):
    kernel, bias = (
      params[f"layer_{layer}"][name] for name in ("kernel", "bias")
    )
    y = y @ kernel + bias
    if layer < 2:
      norm = params[f"norm_{layer}"]
      y = (y - y.mean(1, keepdims=True)) / np.sqrt(
        y.var(1, keepdims=True) + 1e-6
      )
      y = y * norm["scale"] + norm["bias"]
      y = y * (1 + np.asarray(erf(y / np.sqrt(2)))) / 2
  return y


def test_projections_are_of_what_the_head_reads():
  model, params = made(pooling="gap")
  x = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))
  encoder = {k: v for k, v in params.items() if k != "projector"}
  outputs, y = jax.jit(
    lambda p, e: (
      model.apply({"params": p}, x),
      model.trunk.apply({"params": e}, x),
    )
  )(params, encoder)
  np.testing.assert_allclose(outputs["y"], y, rtol=1e-5, atol=1e-5)
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  expected = mlp(np.asarray(y, np.float64), params["projector"])
  np.testing.assert_allclose(outputs["z"], expected, rtol=1e-3, atol=1e-3)


def test_small_crops_have_learned_positions():
  """Interpolated from those of the large ones."""
  model, params = made()
  small = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)
  outputs = jax.eval_shape(model.apply, {"params": params}, small)
  assert outputs["z"].shape == (2, 5)
