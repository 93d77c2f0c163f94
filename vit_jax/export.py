"""Exports a model and its parameters to one file, which runs with JAX alone.

python -m vit_jax.export CHECKPOINT OUT_FILE [--platforms=cpu,tpu]
  [--param_dtype=bfloat16] [--image_size=384]

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `python -m vit_jax.convert --list` shows. The file is a `jax.export`
artifact (StableHLO). It takes uint8 images (b, H, W, 3) for any b, normalises
them, and returns float32 logits (b, K). JAX promises that its releases of the
next six months can read it.
"""

import json
import warnings
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import export
from jaxtyping import Array, Float, UInt8

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Origin, ResNet, Vit
from vit_jax.models.normalize import normalize
from vit_jax.pretrained.load import load_pretrained
from vit_jax.runtime import command
from vit_jax.runtime.atomic_file import local_file, replacing

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_DTYPES = ("float32", "bfloat16")
# jax.export writes flatbuffers, whose size is limited to 31 bits. The program
# itself takes far less than the margin that is left for it.
_MOST_BYTES = 2**31 - 2**24

_RUN = """\
import jax
exported = jax.export.deserialize(bytearray(open({path}, "rb").read()))
classify = jax.jit(exported.call)
logits = classify(images)  # {images} -> {logits}"""


def export_model(
  model: Vit | ResNet,
  params: Any,
  image_size: int | tuple[int, int] | None = None,
  platforms: Sequence[str] = PLATFORMS,
  param_dtype: str = "float32",
) -> export.Exported:
  """Exports the function from images to logits, with the parameters inside.

  `jax.export.deserialize(exported.serialize()).call` restores the function on a
  machine that has JAX and flatbuffers but not vit_jax. It takes uint8 images
  (b, H, W, 3) for any b and normalises them as `model.origin` says, or to
  [-1, 1] if the model has no origin. A model with `num_classes=0` returns its
  features. Serialising takes memory for about seven copies of the parameters.

  Args:
    model: The model, from images to logits.
    params: The model's parameters.
    image_size: Height and width, or one number for both; by default that of
      `model.origin`.
    platforms: Platforms that it can run on: "cpu", "cuda", "rocm", "tpu".
    param_dtype: Type to store the parameters in, "float32" or "bfloat16", which
      takes half the space and keeps three digits. The computation still uses
      the model's own `dtype`.

  Raises:
    ValueError: if an argument is unknown or missing, the images do not fit the
      model, or the parameters take more than the 2 GB that can be written.
  """
  origin = model.origin or Origin("", "", None)
  size = image_size or Preprocessing(origin.image_size).image_size
  height, width = (size, size) if isinstance(size, int) else size
  _check_platforms(platforms)
  _check_bytes(params, param_dtype)
  # JAX arrays, since NumPy arrays would be cast before they are stored.
  stored = jax.tree.map(
    lambda x: jnp.asarray(np.asarray(x), param_dtype), nn.unbox(params)
  )

  def to_logits(images: UInt8[Array, "b H W 3"]) -> Float[Array, "b K"]:
    whole = jax.tree.map(lambda x: x.astype(model.param_dtype), stored)
    inputs = normalize(images, origin.mean, origin.std)
    logits: Any = model.apply({"params": whole}, inputs)
    return logits.astype(jnp.float32)

  (b,) = export.symbolic_shape("b")
  images = jax.ShapeDtypeStruct((b, height, width, 3), jnp.uint8)
  with warnings.catch_warnings():
    # JAX warns of large constants; here they are the parameters.
    warnings.filterwarnings("ignore", ".* constants were captured")
    return export.export(jax.jit(to_logits), platforms=tuple(platforms))(images)


def _check_platforms(platforms: Sequence[str]) -> None:
  unknown = [name for name in platforms if name not in _KNOWN_PLATFORMS]
  if unknown or not platforms:
    raise ValueError(
      f"platforms={','.join(platforms)}; give one or more of "
      f"{', '.join(_KNOWN_PLATFORMS)}."
    )


def _check_bytes(params: Any, param_dtype: str) -> None:
  """Raises ValueError unless the parameters fit into an exported file."""
  if param_dtype not in _DTYPES:
    raise ValueError(
      f"param_dtype={param_dtype!r} is unknown; choose one of "
      f"{', '.join(_DTYPES)}."
    )
  count = sum(x.size for x in jax.tree.leaves(params))
  wide, narrow = (count * jnp.dtype(dtype).itemsize for dtype in _DTYPES)
  size = narrow if param_dtype == "bfloat16" else wide
  if size > _MOST_BYTES:
    advice = "run it with vit_jax.load_pretrained instead"
    if narrow <= _MOST_BYTES:
      advice = "halve their size with param_dtype=bfloat16"
    raise ValueError(
      f"{count:,} parameters take {size / 1e9:.2f} GB, and an exported file "
      f"holds at most {_MOST_BYTES / 1e9:.2f}: {advice}."
    )


def export_checkpoint(
  checkpoint: str,
  path: str,
  *,
  platforms: Sequence[str] = PLATFORMS,
  param_dtype: str = "float32",
  **overrides: Any,
) -> None:
  """Exports a checkpoint to a file, and prints how to run it.

  Args:
    checkpoint: Any source that `load_pretrained` takes.
    path: The file to write, which appears once it is complete.
    platforms: Platforms that it can run on, see `export_model`.
    param_dtype: Type to store the parameters in, see `export_model`.
    **overrides: Keywords of `load_pretrained`.

  Raises:
    ValueError: as `export_model` does.
    OSError: if the file cannot be written.
  """
  _check_platforms(platforms)
  out = local_file(path)
  with replacing(out) as file:
    model, params = load_pretrained(checkpoint, **overrides)
    exported = export_model(
      model, params, platforms=platforms, param_dtype=param_dtype
    )
    artifact = exported.serialize()
    file.write(artifact)
  images, logits = (
    f"{aval.dtype} {aval.shape!s}"
    for aval in (*exported.in_avals, *exported.out_avals)
  )
  print(
    f"Wrote {out}: {len(artifact) / 1e6:,.1f} MB, for "
    f"{', '.join(exported.platforms)}.\n"
    "To run it, where JAX and flatbuffers are installed:\n"
  )
  print(_RUN.format(path=json.dumps(str(out)), images=images, logits=logits))


def define_flags() -> None:
  flags.DEFINE_list(
    "platforms",
    list(PLATFORMS),
    f"Platforms that the file can run on, of {', '.join(_KNOWN_PLATFORMS)}.",
  )
  flags.DEFINE_enum(
    "param_dtype", _DTYPES[0], _DTYPES, "Type to store the parameters in."
  )
  command.define_overrides()


def main(arguments: list[str]) -> None:
  options = flags.FLAGS
  export_checkpoint(
    *arguments,
    platforms=options.platforms,
    param_dtype=options.param_dtype,
    **command.overrides(),
  )


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT OUT_FILE", define=define_flags)
