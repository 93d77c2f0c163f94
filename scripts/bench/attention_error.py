"""How far attention in bfloat16 is from float64, for both of its types.

python -m scripts.bench.attention_error [CHECKPOINT] --images FILE ...

CHECKPOINT is an encoder with weights; without one, it is a B/16 with drawn
weights, and --std multiplies its queries' and keys' weights so that they have
this standard deviation in the first layer. Tokens and weights are bfloat16, and
`model.attention_dtype` is float32 or bfloat16, in the form of any platform and
in that of TPUs. An error is the norm of the difference from float64 over the
norm: of each layer's attention on the tokens that float64 gives it, rounded to
bfloat16, and of the whole encoder's output. Nothing is compiled as a whole, as
XLA may then leave roundings out.
"""

import argparse
import dataclasses
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vit_jax import init_params, make_vit
from vit_jax.models import Origin, attention, partitioning
from vit_jax.models.attention import Msa
from vit_jax.models.layer import ATTENTION_DTYPES
from vit_jax.models.model import normalize, represent
from vit_jax.pretrained.load import open_checkpoint

FORMS = {"plain": "cpu", "for TPUs": "tpu"}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("checkpoint", nargs="?")
  parser.add_argument("--images", nargs="+", required=True)
  parser.add_argument("--image_size", type=int, default=224)
  parser.add_argument("--std", type=float)
  options = parser.parse_args()
  jax.config.update("jax_enable_x64", True)
  model, params = encoder(options.checkpoint, options.image_size)
  images = pixels(options.images, options.image_size, model.origin)
  if options.std:
    params = scaled(model, params, images, options.std)
  exact, layers = in_float64(model, params, images)
  print("| form | attention_dtype | attention, median, largest | encoder |")
  print("| --- | --- | --- | --- |")
  for form, platform in FORMS.items():
    for dtype in ATTENTION_DTYPES:
      with mock.patch.object(partitioning, "platform", lambda p=platform: p):
        each = [of_layer(msa, own, z, dtype) for msa, own, z in layers]
        found = computed(represent, model, params, images, dtype)
      middle, largest = np.median(each), max(each)
      whole = error(found, exact)
      print(f"| {form} | {dtype} | {middle:.2%}, {largest:.2%} | {whole:.2%} |")


def encoder(checkpoint: str | None, size: int) -> tuple[Any, Any]:
  """The model and its parameters, in float32."""
  if checkpoint:
    loaded = open_checkpoint(checkpoint)
    return loaded.model, loaded.params
  origin = Origin("drawn", "vit_jax", (size, size))
  model = make_vit("B/16", 0).clone(origin=origin)
  return model, init_params(model, jax.random.key(0), image_size=size)


def pixels(files: list[str], size: int, origin: Origin) -> jax.Array:
  images = [Image.open(f).convert("RGB").resize((size, size)) for f in files]
  stacked = jnp.asarray(np.stack([np.asarray(image) for image in images]))
  return normalize(stacked, origin.mean, origin.std)


def scaled(model: Any, params: Any, images: Any, std: float) -> Any:
  """The parameters with queries and keys of this deviation in every layer."""
  _, layers = in_float64(model, params, images)
  _, own, z = layers[0]
  q = np.einsum("bnd,dhe->bnhe", z, np.asarray(own["query"]["kernel"]))
  factor = std / q.std()

  def change(path: Any, leaf: Any) -> Any:
    names = {key.key for key in path}
    return leaf * factor if {"query", "key"} & names else leaf

  return jax.tree_util.tree_map_with_path(change, params)


def in_float64(model: Any, params: Any, images: Any) -> tuple[Any, list]:
  """The encoder's output, and each layer's attention with its tokens."""
  layers = []

  def watch(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    msa = context.module
    if isinstance(msa, Msa) and context.method_name == "__call__":
      layers.append((msa.clone(parent=None), msa.variables["params"], args[0]))
    return call(*args, **kwargs)

  with nn.intercept_methods(watch):
    return computed(represent, model, params, images, "float64"), layers


def of_layer(msa: Any, params: Any, z: Any, dtype: str) -> float:
  """The error of one layer's attention, from what bfloat16 can hold."""
  params, z = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, z))

  def attend(msa: Any, params: Any, z: Any) -> Any:
    return msa.apply({"params": params}, z)

  with mock.patch.object(partitioning, "platform", lambda: "cpu"):
    exact = computed(attend, msa, params, z, "float64")
  return error(computed(attend, msa, params, z, dtype), exact)


def computed(f: Any, module: Any, params: Any, x: Any, dtype: str) -> Any:
  """f in bfloat16 with attention of a type, or all in float64."""
  kind = "float64" if dtype == "float64" else "bfloat16"
  types: dict[str, Any] = dict.fromkeys(
    ("dtype", "param_dtype"), jnp.dtype(kind)
  )
  if kind != "float64":
    types["attention_dtype"] = jnp.dtype(dtype)
  if isinstance(module, Msa):
    types = {"config": dataclasses.replace(module.config, **types)}
  inputs = jax.tree.map(lambda leaf: jnp.asarray(leaf, kind), (params, x))
  softmax = attention.softmax if kind != "float64" else float64_softmax
  with mock.patch.object(attention, "softmax", softmax):
    return f(module.clone(**types), *inputs)


def float64_softmax(logits: jax.Array, _: Any) -> jax.Array:
  return nn.softmax(logits)


def error(found: jax.Array, exact: jax.Array) -> float:
  difference = jnp.asarray(found, exact.dtype) - exact
  return float(jnp.linalg.norm(difference) / jnp.linalg.norm(exact))


if __name__ == "__main__":
  main()
