"""Exports a model and its parameters to one file, which runs without vit_jax.

vit_jax export runs/digits digits.stablehlo --platforms=cpu,tpu
vit_jax export runs/digits digits.onnx

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `vit_jax convert --list` shows. The file takes uint8
images (b, H, W, C) for any b, normalises them, and returns float32 logits
(b, K). It is a `jax.export` artifact (StableHLO), which JAX promises that its
releases of the next six months can read; or, if OUT_FILE ends in .onnx or --to
says so, an ONNX file, for ONNX Runtime.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.inference import DTYPES, KNOWN_PLATFORMS, PLATFORMS
from vit_jax.runtime import command
from vit_jax.runtime.printable import say

if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded

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


@dataclasses.dataclass(frozen=True)
class _Program:
  """The content of an exported file, and what its user has to know.

  Attributes:
    runtimes: Platforms that it runs on, such as "cpu, tpu".
    needs: Packages that have to be installed to run it.
    run: Code that runs it, with fields for `path`, `images` and `logits`.
    images: Type and shape of its input.
    logits: Type and shape of its output.
  """

  content: bytes | bytearray
  runtimes: str
  needs: str
  run: str
  images: str
  logits: str


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
  from vit_jax.runtime.files import output_file, replacing

  exporter.check_platforms(platforms)
  out, to = output_file(path, TARGETS, to)
  if to == "onnx" and ((*platforms,) != PLATFORMS or param_dtype != DTYPES[0]):
    raise ValueError(
      "platforms and param_dtype are for StableHLO: an ONNX file holds float32 "
      "and runs wherever ONNX Runtime does. Leave them out."
    )
  with replacing(out) as file:
    loaded = load_pretrained(checkpoint, **overrides)
    if to == "onnx":
      program = _onnx(loaded)
    else:
      program = _stablehlo(loaded, platforms, param_dtype)
    file.write(program.content)
  say(
    f"Wrote {out}: {len(program.content) / 1e6:,.1f} MB, for "
    f"{program.runtimes}.\n"
    f"It normalises images itself; they are {loaded.preprocessing}.\n"
    f"To run it, where {program.needs} installed:\n",
    sys.stdout,
  )
  path = json.dumps(str(out))
  code = program.run.format(
    path=path, images=program.images, logits=program.logits
  )
  say(code, sys.stdout, whole=True)


def _onnx(loaded: "Loaded") -> _Program:
  from vit_jax.inference import exporter

  shape = ", ".join(map(str, loaded.preprocessing.image_shape))
  return _Program(
    content=exporter.export_onnx(*loaded),
    runtimes="ONNX Runtime",
    needs="onnxruntime is",
    run=_RUN_ONNX,
    images=f"uint8 (B, {shape})",
    logits=f"float32 (B, {loaded.model.num_classes or 'D'})",
  )


def _stablehlo(
  loaded: "Loaded", platforms: Sequence[str], param_dtype: str
) -> _Program:
  from vit_jax.inference import exporter

  exported = exporter.export_model(
    *loaded, platforms=platforms, param_dtype=param_dtype
  )
  (images,) = exported.in_avals
  (logits,) = exported.out_avals
  return _Program(
    content=exported.serialize(),
    runtimes=", ".join(exported.platforms),
    needs="JAX and flatbuffers are",
    run=_RUN,
    images=f"{images.dtype} {images.shape!s}",
    logits=f"{logits.dtype} {logits.shape!s}",
  )


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
