"""A model and its parameters as an ONNX file, compared with the model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from vit_jax.inference.exporter import (
  Form,
  check_bytes,
  form_of,
  outputs_function,
)
from vit_jax.inference.onnx.convert import to_onnx
from vit_jax.inference.onnx.graph import Unsupported
from vit_jax.models import Model
from vit_jax.models.parts import unstack
from vit_jax.runtime import extras

# The largest difference of logits between JAX and ONNX, relative to the largest
# logit; rounding alone gives 1e-6.
_MOST_DIFFERENCE = 1e-4


def export_onnx(
  model: Model,
  params: Any,
  metadata: Mapping[str, str] | None = None,
  tokens: int | None = None,
) -> bytes:
  """Exports the function of `export_model` as the content of an ONNX file.

  It takes `images`, uint8 (B, H, W, C) for any B, and returns `logits`; that of
  a text tower takes `ids`, int32 (B, T), and returns `embeddings`. It computes
  in float32. ONNX Runtime's outputs for random inputs are compared with the
  model's.

  Args:
    model: The model.
    params: Its parameters.
    metadata: Texts to store in the file's `metadata_props`, by name.
    tokens: As in `export_model`; the second input is then named `size`.

  Raises:
    ValueError: if a library is missing, the parameters take more than 2 GB, the
      model cannot be converted, or the outputs differ.
  """
  check_bytes(params, "float32")
  onnx = extras.load("onnx", "onnx")
  runtime = extras.load("onnxruntime", "onnx")
  model, params = _in_float32(model, nn.unbox(params))
  form = form_of(model, tokens=tokens)
  function = outputs_function(model, params)
  (b,) = export.symbolic_shape("b")
  names = [one.name for one in form.inputs]
  inputs = dict(zip(names, form.of_batch(b), strict=True))
  try:
    content = to_onnx(function, inputs, form.outputs, metadata or {}, onnx)
  except Unsupported as error:
    raise ValueError(
      f"this model has no ONNX form: {error} has no counterpart there. "
      "Export it to StableHLO, for JAX, with --to=stablehlo."
    ) from error
  _compare(runtime, content, form, function)
  return content


def _in_float32(model: Model, params: Any) -> tuple[Model, Any]:
  """The model and its parameters, with all types float32 and without scan."""
  fields = {field.name for field in dataclasses.fields(model)}
  names = {"dtype", "param_dtype", "attention_dtype"} & fields
  changes: dict[str, Any] = dict.fromkeys(names, jnp.float32)
  if model.scan:
    changes["scan"] = False
    params = unstack(params)
  return model.clone(**changes), params


def _compare(runtime: Any, content: bytes, form: Form, function: Any) -> None:
  """Raises ValueError unless ONNX Runtime gives the function's outputs."""
  options = runtime.SessionOptions()
  options.log_severity_level = 3  # Errors.
  session = runtime.InferenceSession(content, options)
  random = np.random.default_rng(0)
  batch = {
    one.name: random.integers(one.least, one.below, (2, *one.shape), one.dtype)
    for one in form.inputs
  }
  arrays = map(jnp.asarray, batch.values())
  expected = np.asarray(jax.jit(function)(*arrays))
  (outputs,) = session.run([form.outputs], batch)
  largest = np.abs(expected).max() or 1.0  # All outputs of a new head are 0.
  difference = np.abs(outputs - expected).max() / largest
  if not difference <= _MOST_DIFFERENCE:
    raise ValueError(
      f"the ONNX file of this model is wrong: on random {form.inputs[0].name} "
      f"its {form.outputs} differ by {difference:.1e} of the largest."
    )
