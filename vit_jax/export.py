"""Exports a model and its parameters to one file, which runs without vit_jax.

vit_jax export runs/digits digits.stablehlo --platforms=cpu,tpu
vit_jax export runs/digits digits.onnx

CHECKPOINT is a workdir, a file or a folder of published weights, an address, or
a name that `vit_jax convert --list` shows. The file takes uint8 images
(b, H, W, C) for any b, normalises them, and returns float32 logits (b, K); if
images keep their proportions, it takes their patches and how many there are
along height and width. It is a `jax.export` artifact (StableHLO), which JAX
promises that its releases of the next six months can read; or, if OUT_FILE ends
in .onnx or --to says so, an ONNX file, for ONNX Runtime.
--tower=text exports the text tower of a model of images and text, from the ids
of tokens, int32 (b, T), to embeddings (b, R).
"""

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from vit_jax.inference import DTYPES, KNOWN_PLATFORMS, PLATFORMS
from vit_jax.runtime import aliases, callable_module, command, hints
from vit_jax.runtime.checks import checked
from vit_jax.runtime.printable import say

if TYPE_CHECKING:
  from vit_jax.inference.exporter import Form
  from vit_jax.models import Model
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.pretrained.text import LoadedText

TOWERS = ("image", "text")
TARGETS = {"stablehlo": (".stablehlo", ".jaxexport"), "onnx": (".onnx",)}
_WEIGHTS = (".pt", ".pth", ".safetensors", ".npz")
_RUN = """\
import jax
{make}
content = bytearray(numpy.fromfile({path}, numpy.uint8))
exported = jax.export.deserialize(content)
{call} = jax.jit(exported.call)
{outputs} = {call}({inputs})  # {takes} -> {gives}"""
_RUN_ONNX = """\
import json
import onnxruntime
{make}
session = onnxruntime.InferenceSession({path})
# {takes} -> {gives}
({outputs},) = session.run(["{outputs}"], {{{feeds}}})
facts = session.get_modelmeta().custom_metadata_map  # Texts, and JSON."""
_PRINT_NAME_ONNX = """
print(json.loads(facts["class_names"])[{outputs}[0].argmax()])"""
_PRINT_NAME = """
class_names = {class_names}
print(class_names[{outputs}[0].argmax()])"""
_PRINT_NUMBER = """
print({outputs}[0].argmax())  # The number of the class, from 0."""
MOST_NAMES = 100  # More names would bury the code; an ONNX file holds them all.
_CALLS = {"logits": "classify", "embeddings": "embed"}


@dataclasses.dataclass(frozen=True)
class _Program:
  """The content of an exported file, and how to run it.

  Attributes:
    runtimes: The programs that run it, such as "JAX on cpu, tpu (StableHLO)".
    needs: Which packages to install, with the verb, as "JAX{} and NumPy are";
      `{}` is the `package` of what is exported.
    run: Code that runs it, with fields for `path`, `takes`, `gives`, the code
      that makes its inputs, `make`, the names `call`, `inputs`, `feeds` and
      `outputs`, and `class_names`.
    takes: Types and shapes of its inputs.
    gives: Type and shape of its output.
  """

  content: bytes | bytearray
  runtimes: str
  needs: str
  run: str
  takes: str
  gives: str


def export_checkpoint(
  checkpoint: "str | Loaded",
  path: str,
  *,
  to: str | None = None,
  platforms: Sequence[str] = PLATFORMS,
  param_dtype: str = "float32",
  tower: str = "image",
  **overrides: Any,
) -> None:
  """Exports a checkpoint to a file, and prints how to run it.

  The arguments are those of the command; a loaded model stands for its
  checkpoint. Raises ValueError as `export_model` and `export_onnx` do, and if
  an option does not fit the format or the tower, and OSError if the file cannot
  be written.
  """
  from vit_jax.inference import exporter
  from vit_jax.pretrained.facts import facts_of
  from vit_jax.runtime.files import replacing

  platforms = exporter.platform_names(platforms)
  checked("tower", str, tower, choices=TOWERS)
  out, to = _output_file(path, to)
  if to == "onnx" and (platforms != PLATFORMS or param_dtype != DTYPES[0]):
    raise ValueError(
      "platforms and param_dtype are for StableHLO: an ONNX file holds float32 "
      "and runs wherever ONNX Runtime does. Leave them out."
    )
  with replacing(out) as file:
    if tower == "text":
      chosen = _text_tower(checkpoint, overrides)
    else:
      chosen = _image_tower(checkpoint, overrides)
    form = exporter.form_of(chosen.model, tokens=chosen.tokens)
    facts = facts_of(chosen.source)
    class_names = _class_names(facts)
    if to == "onnx":
      program = _onnx(chosen, form, facts, class_names)
    else:
      program = _stablehlo(chosen, platforms, param_dtype, class_names)
    file.write(program.content)
  say(
    f"Wrote {out}: {len(program.content) / 1e6:,.1f} MB, for "
    f"{program.runtimes}.\n"
    f"{chosen.about}\n"
    f"To run it, where {program.needs.format(chosen.package)} installed:\n",
    sys.stdout,
  )
  code = program.run.format(
    path=json.dumps(str(out)),
    make=chosen.make,
    takes=program.takes,
    gives=program.gives,
    call=_CALLS[form.outputs],
    inputs=", ".join(one.name for one in form.inputs),
    feeds=", ".join(f'"{one.name}": {one.name}' for one in form.inputs),
    outputs=form.outputs,
    class_names=class_names,
  )
  say(code, sys.stdout, whole=True)


def _output_file(path: str, to: str | None) -> tuple[pathlib.Path, str]:
  """The file to write and its format.

  Raises ValueError as `runtime.files.output_file` does, and for the format of
  another library.
  """
  from vit_jax.runtime.files import output_file

  ending = os.path.splitext(path)[1].lower()
  if to not in (None, *TARGETS) or ending in _WEIGHTS:
    asked = ending if to is None else f"to={to!r}"
    raise ValueError(
      f"{asked} is no format of an exported program; the formats are "
      f"{' and '.join(TARGETS)}; for PyTorch's libraries, there is `vit_jax "
      "convert SOURCE out_dir --to hf` (or timm, or torchvision)."
    )
  return output_file(path, TARGETS, to)


class _Tower(NamedTuple):
  """A tower to export, and how to give it inputs.

  Attributes:
    about: A sentence on its inputs.
    make: Code that makes an input.
    package: A further package which that code needs, after a comma, or "".
    tokens: The most patches of an image that keeps its proportions, or None.
  """

  source: "Loaded | LoadedText"
  model: "Model"
  about: str
  make: str
  package: str
  tokens: int | None = None


def _image_tower(
  checkpoint: "str | Loaded", overrides: Mapping[str, Any]
) -> _Tower:
  """The image tower of a checkpoint.

  Raises ValueError as `load_pretrained` does.
  """
  from vit_jax.inference.pillow_code import images_code
  from vit_jax.pretrained.load import load_pretrained
  from vit_jax.pretrained.loaded import Loaded
  from vit_jax.pretrained.naming import say_encoder_alone

  is_loaded = isinstance(checkpoint, Loaded)
  loaded = checkpoint if is_loaded else load_pretrained(checkpoint, **overrides)
  say_encoder_alone(loaded)
  any_size = loaded.preprocessing.patches
  return _Tower(
    source=loaded,
    model=loaded.model,
    about=f"It normalises images itself; they are {loaded.preprocessing}.",
    make=images_code(loaded.preprocessing),
    package=", Pillow",
    tokens=any_size.tokens if any_size else None,
  )


def _text_tower(
  checkpoint: "str | Loaded", overrides: Mapping[str, Any]
) -> _Tower:
  """The text tower of a checkpoint.

  Raises ValueError as `load_text` does, and if there are overrides.
  """
  from vit_jax.inference.pillow_code import ids_code
  from vit_jax.pretrained.load import load_text
  from vit_jax.pretrained.loaded import Loaded

  if overrides:
    raise ValueError(
      f"{', '.join(overrides)}: these are for image towers; leave them out "
      "with tower=text."
    )
  is_loaded = isinstance(checkpoint, Loaded)
  text = checkpoint.text_tower if is_loaded else load_text(checkpoint)
  tokenizer = text.tokenizer
  side = "before" if tokenizer.left else "after"
  about = (
    f"It takes the ids that {tokenizer.file} gives, {tokenizer.length} for a "
    f"text, filled up with {tokenizer.pad} {side} it."
  )
  return _Tower(
    source=text,
    model=text.tower,
    about=about,
    make=ids_code(tokenizer),
    package="",
  )


def _onnx(
  tower: _Tower,
  form: "Form",
  facts: dict[str, str],
  class_names: Sequence[str],
) -> _Program:
  """The model as an ONNX file, whose metadata are `facts`."""
  from vit_jax.inference.onnx.export import export_onnx

  width = (
    "R" if form.outputs == "embeddings" else tower.model.num_classes or "D"
  )
  return _Program(
    content=export_onnx(tower.model, tower.source.params, facts, tower.tokens),
    runtimes="ONNX Runtime",
    needs="onnxruntime{} and NumPy are",
    run=_RUN_ONNX + (_PRINT_NAME_ONNX if class_names else ""),
    takes=", ".join(
      f"{one.dtype.__name__} (B, {', '.join(map(str, one.shape))})"
      for one in form.inputs
    ),
    gives=f"float32 (B, {width})",
  )


def _class_names(facts: Mapping[str, str]) -> list[str]:
  """The names of the classes; [] if the outputs do not stand for classes."""
  if facts.get("loss") not in ("softmax", "sigmoid"):
    return []
  return json.loads(facts["class_names"])


def _stablehlo(
  tower: _Tower,
  platforms: Sequence[str],
  param_dtype: str,
  class_names: Sequence[str],
) -> _Program:
  """The model as a StableHLO file."""
  from vit_jax.inference import exporter

  end = ""
  if class_names:
    is_short = len(class_names) <= MOST_NAMES
    end = _PRINT_NAME if is_short else _PRINT_NUMBER
  exported = exporter.export_model(
    tower.model,
    tower.source.params,
    platforms=platforms,
    param_dtype=param_dtype,
    tokens=tower.tokens,
  )
  (outputs,) = exported.out_avals
  return _Program(
    content=exported.serialize(),
    runtimes=f"JAX on {', '.join(exported.platforms)} (StableHLO)",
    needs="JAX{} and flatbuffers are",
    run=_RUN + end,
    takes=", ".join(f"{x.dtype} {x.shape!s}" for x in exported.in_avals),
    gives=f"{outputs.dtype} {outputs.shape!s}",
  )


def define_flags() -> None:
  flags.DEFINE_string(
    "to",
    None,
    f"Format of the file, {' or '.join(TARGETS)}; by default the one that its "
    "ending stands for.",
  )
  flags.DEFINE_list(
    "platforms",
    list(PLATFORMS),
    "Platforms to export a StableHLO file for, from "
    f"{', '.join(KNOWN_PLATFORMS)}, separated by commas.",
  )
  flags.DEFINE_enum(
    "param_dtype", DTYPES[0], DTYPES, "Type to store the parameters in."
  )
  flags.DEFINE_enum(
    "tower",
    TOWERS[0],
    TOWERS,
    "Which tower of a model of images and text to export.",
  )
  command.define_overrides()


def main(arguments: list[str]) -> None:
  """Exports CHECKPOINT to OUT_FILE; raises as `export_checkpoint` does."""
  options = command.values("to", "platforms", "param_dtype", "tower")
  export_checkpoint(*arguments, **options, **command.overrides())


@hints.accepts('vit_jax.export(loaded, "model.onnx")')
def export(
  model: "str | os.PathLike[str] | Loaded",
  path: str | os.PathLike[str],
  **options: Any,
) -> None:
  """Writes one file that runs without vit_jax, as `loaded.export(path)` does::

    vit_jax.export("runs/my_photos", "model.onnx")

  Args:
    model: As `load_pretrained` takes it, or what it or `vit_jax.train`
      returned.
    path: The file: ONNX if it ends in .onnx, else StableHLO.
    **options: Those of `loaded.export`, such as `to` and `platforms`.

  Raises:
    TypeError: if the model is none of these; `vit_jax.export_model` takes a
      module and its parameters.
    ValueError: as `loaded.export` does.
    OSError: if the file cannot be written.
  """
  aliases.of_loaded("export")(model, path, **options)


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT OUT_FILE", define=define_flags)
else:
  callable_module.make_callable(__name__, export)
