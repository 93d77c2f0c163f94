"""Exports a model and its parameters to one file, which runs without vit_jax.

python -m vit_jax.export runs/digits digits.stablehlo --platforms=cpu,tpu
python -m vit_jax.export runs/digits digits.onnx

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `python -m vit_jax.convert --list` shows. The file takes uint8
images (b, H, W, C) for any b, normalises them, and returns float32 logits
(b, K). It is a `jax.export` artifact (StableHLO), which JAX promises that its
releases of the next six months can read; or, if OUT_FILE ends in .onnx or --to
says so, an ONNX file, for ONNX Runtime.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from vit_jax.inference import DTYPES, KNOWN_PLATFORMS, PLATFORMS
from vit_jax.runtime import command
from vit_jax.runtime.printable import say

TARGETS = {"stablehlo": (".stablehlo",), "onnx": (".onnx",)}
_RUN = """\
import jax
exported = jax.export.deserialize(bytearray(open({path}, "rb").read()))
classify = jax.jit(exported.call)
logits = classify(images)  # {images} -> {logits}"""
_RUN_ONNX = """\
import onnxruntime
session = onnxruntime.InferenceSession({path})
# {images} -> {logits}
(logits,) = session.run(["logits"], {{"images": images}})"""


def export_checkpoint(
  checkpoint: str,
  path: str,
  *,
  to: str | None = None,
  platforms: Sequence[str] = PLATFORMS,
  param_dtype: str = "float32",
  **overrides: Any,
) -> None:
  """Exports a checkpoint to a file, and prints how to run it.

  The arguments are those of the command. Raises ValueError as `export_model`
  and `export_onnx` do, and OSError if the file cannot be written.
  """
  from vit_jax.inference import exporter
  from vit_jax.pretrained.load import load_pretrained
  from vit_jax.runtime.atomic_file import output_file, replacing

  exporter.check_platforms(platforms)
  out, to = output_file(path, TARGETS, to)
  if to == "onnx" and ((*platforms,) != PLATFORMS or param_dtype != DTYPES[0]):
    raise ValueError(
      "platforms and param_dtype are for StableHLO: an ONNX file holds float32 "
      "and runs wherever ONNX Runtime does. Leave them out."
    )
  with replacing(out) as file:
    loaded = load_pretrained(checkpoint, **overrides)
    model, params = loaded
    if to == "onnx":
      content, where = exporter.export_onnx(model, params), "ONNX Runtime"
      shape = ", ".join(map(str, loaded.preprocessing.image_shape))
      images, logits = f"uint8 (B, {shape})", model.num_classes or "D"
      logits = f"float32 (B, {logits})"
      run, needs = _RUN_ONNX, "onnxruntime is"
    else:
      exported = exporter.export_model(
        model, params, platforms=platforms, param_dtype=param_dtype
      )
      content, where = exported.serialize(), ", ".join(exported.platforms)
      images, logits = (
        f"{aval.dtype} {aval.shape!s}"
        for aval in (*exported.in_avals, *exported.out_avals)
      )
      run, needs = _RUN, "JAX and flatbuffers are"
    file.write(content)
  say(
    f"Wrote {out}: {len(content) / 1e6:,.1f} MB, for {where}.\n"
    f"It normalises images itself; they are {loaded.preprocessing}.\n"
    f"To run it, where {needs} installed:\n",
    sys.stdout,
  )
  path = json.dumps(str(out))
  say(run.format(path=path, images=images, logits=logits), sys.stdout)


def define_flags() -> None:
  flags.DEFINE_enum(
    "to",
    None,
    [*TARGETS],
    "Format of the file; by default what its ending says.",
  )
  flags.DEFINE_list(
    "platforms",
    list(PLATFORMS),
    f"Platforms that StableHLO can run on, of {', '.join(KNOWN_PLATFORMS)}.",
  )
  flags.DEFINE_enum(
    "param_dtype", DTYPES[0], DTYPES, "Type to store the parameters in."
  )
  command.define_overrides()


def main(arguments: list[str]) -> None:
  options = command.values("to", "platforms", "param_dtype")
  export_checkpoint(*arguments, **options, **command.overrides())


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT OUT_FILE", define=define_flags)
