"""Estimates the dense products of a train step on TPUs, each compiled alone.

python scripts/bench/products.py B/16 --images=64 --parts=2 --topology=v6e:2x4

The products are those of the patches, of queries, keys and values, of
attention's output, and of both layers of the MLP: the forward product and the
gradients of the input and of the kernel. The table has the cycles of a step on
one device, and the share of its peak. Inputs have the layouts that XLA prefers,
and each product gets the better of two forms: a matrix of tokens for each
image, or one matrix of all tokens. What the step has besides comes on top, so
this bounds what it can reach while XLA compiles products as it does here.

The patches are cut before, and their gradient is not needed. --dtype gives
other factors, such as int8; the results are bfloat16 all the same.
"""

import argparse
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from vit_jax.estimate import set_environment

# A product's name, and its axes: b images, s tokens, d and f features.
FORMS = {
  "forward": ("bsd,df->bsf", "nd,df->nf"),
  "gradient of the input": ("bsf,df->bsd", "nf,df->nd"),
  "gradient of the kernel": ("bsd,bsf->df", "nd,nf->df"),
}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("variant", help="a model of Table 1, such as B/16")
  parser.add_argument("--images", type=int, default=64, help="on each chip")
  parser.add_argument("--parts", type=int, default=1, help="of the batch")
  parser.add_argument("--pooling", choices=("token", "gap"), default="token")
  parser.add_argument("--dtype", default="bfloat16")
  parser.add_argument("--topology", default="v5e:2x4")
  options = parser.parse_args()
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate.compiler import devices_of

  chip, devices = devices_of(options.topology)
  peak = chip.flop_per_cycle and chip.flop_per_cycle / chip.devices
  images = options.images // options.parts // chip.devices
  print(f"| product of {options.variant} | times | Mcycles | MFU |")
  print("| --- | --- | --- | --- |")
  total = flop_total = 0
  for name, tokens, d, f, layers in sizes(options.variant, options.pooling):
    shape = {"b": images, "s": tokens, "n": images * tokens, "d": d, "f": f}
    for kind, forms in FORMS.items():
      if name == "patches" and kind == "gradient of the input":
        continue
      times = layers * options.parts
      found = [cycles(form, shape, options.dtype, devices[0]) for form in forms]
      flop = 2 * shape["n"] * d * f * times
      print(_row(f"{name}, {kind}", times, min(found) * times, flop, peak))
      total, flop_total = total + min(found) * times, flop_total + flop
  print(_row("all", "", total, flop_total, peak))


def sizes(variant: str, pooling: str) -> list[tuple[str, int, int, int, int]]:
  """(name, tokens, inputs, outputs, how many) of the dense products at 224."""
  from vit_jax import make_vit

  vit = make_vit(variant, 0, pooling=pooling)
  N, L = (224 // vit.patch_size) ** 2, vit.num_layers
  S, D, mlp_size = N + vit.class_token, vit.hidden_size, vit.mlp_size
  return [
    ("patches", N, 3 * vit.patch_size**2, D, 1),
    ("queries, keys, values", S, D, D, 3 * L),
    ("attention's output", S, D, D, L),
    ("first of the MLP", S, D, mlp_size, L),
    ("second of the MLP", S, mlp_size, D, L),
  ]


def cycles(form: str, shape: dict[str, int], dtype: str, device: Any) -> int:
  """XLA's estimate of one product, with the layouts that it prefers."""
  import jax
  import jax.numpy as jnp
  from jax.experimental.layout import Format, Layout
  from jax.sharding import SingleDeviceSharding

  from vit_jax.estimate import hlo

  def product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(form, a, b, preferred_element_type=jnp.bfloat16)

  any_layout: Any = Format(Layout.AUTO, SingleDeviceSharding(device))
  factors = [
    jax.ShapeDtypeStruct([shape[axis] for axis in axes], dtype)
    for axes in form.partition("->")[0].split(",")
  ]
  jitted = jax.jit(product, in_shardings=any_layout, out_shardings=any_layout)
  text = jitted.lower(*factors).compile().as_text()
  return hlo.total_cycles(hlo.read(text or ""))


def _row(name: str, times: Any, count: int, flop: int, peak: Any) -> str:
  share = f"{flop / count / peak:.3f}" if peak else "-"
  return f"| {name} | {times} | {count / 1e6:.2f} | {share} |"


if __name__ == "__main__":
  main()
