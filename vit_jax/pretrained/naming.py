"""Recognises a checkpoint's format by the names of its arrays.

Trainers and larger models put a prefix before every name, such as `module.` or
`visual.trunk.`. It is dropped, and a line says so.
"""

import dataclasses
import re
from typing import Any

from vit_jax.models.variants import ADAPTED
from vit_jax.pretrained.formats import (
  dinov2,
  google,
  hf_encoders,
  huggingface,
  prithvi,
  timm,
  timm_naflex,
  tips,
  torchvision,
)
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.runtime.printable import quoted, say, say_once

# A format recognises its files by its function `prefix`, which returns the
# prefix of all names, "" if there is none, or None for files of other formats.
# The first format that fits is taken. The order matters: timm's would take
# files of DINOv2 as well.
FORMATS = (
  google,
  tips,
  hf_encoders,
  dinov2,
  prithvi,
  timm_naflex,
  timm,
  torchvision,
)
# Ends of the names of patch embeddings, in the formats that have dots in names.
_ENDS = (
  "patch_embed.proj.weight",
  "embeddings.patch_embeddings.projection.weight",
  "embeddings.patch_embeddings.weight",
  "embeddings.patch_embedding.weight",
  "conv_proj.weight",
)
_MOST_PARTS = 6  # The most parts, such as "module.", that a prefix may have.
# Parts of a prefix that mark the averaged model, where a file holds several.
_AVERAGES = {"teacher", "ema", "model_ema", "target_encoder"}


@dataclasses.dataclass(frozen=True)
class Naming:
  """A format, and the names that its arrays have in a file.

  Attributes:
    reader: The module of `formats` that reads the format, such as `timm`.
    names: The format's name of each array -> the name in the file.
    notes: Lines on what was dropped.
    outside: Names in the file that lack the prefix, so of other arrays.
  """

  reader: Any
  names: dict[str, str]
  notes: tuple[str, ...] = ()
  outside: tuple[str, ...] = ()


def recognise(stored: Shapes) -> Naming:
  """The format of a file's arrays, and their names in the file.

  Raises ValueError if no known format fits, or if the file holds several models
  and not exactly one of them is named as an average, such as "ema.".
  """
  if (plain := _recognise_below(stored, "")) is not None:
    return plain
  models: dict[str, Naming] = {}
  for prefix in _prefixes(stored):
    is_inside = any(prefix.startswith(other) for other in models)
    naming = None if is_inside else _recognise_below(stored, prefix)
    if naming is not None:
      models[prefix] = naming
  if not models:
    raise ValueError(_why_unknown(stored))
  chosen = [*models]
  if len(models) > 1:
    chosen = [x for x in models if _AVERAGES & {*x.split(".")}]
  if len(chosen) != 1:
    names = ", ".join(map(quoted, [*models][:3]))
    raise ValueError(
      f"it holds {len(models)} models, whose names start with {names}: save "
      "one of them in a file of its own."
    )
  naming = models[chosen[0]]
  note = f"{quoted(chosen[0])} is dropped from the start of its arrays' names"
  outside = (name for name in stored if not name.startswith(chosen[0]))
  return dataclasses.replace(naming, notes=(note,), outside=tuple(outside))


def say_left_out(source: str, names: list[str]) -> None:
  """Says once for a source which arrays are not read, if there are any."""
  if not names:
    return
  number = f"{len(names)} arrays are" if names[1:] else "1 array is"
  them = "them" if names[1:] else "it"
  few = ", ".join(names[:2] + ["..."] * bool(names[2:]))
  say_once(
    f"{source}: {number} not read, as this model does not use {them} ({few})."
  )


def say_encoder_alone(loaded: Any) -> None:
  """Says if an encoder is written without what its task added to it."""
  run = loaded.description or {}
  if run.get("model", {}).get(ADAPTED) and loaded.model.trunk is loaded.model:
    say(
      f"{loaded.origin.source}: the encoder alone is written, which gives "
      "features; what the run trained beside it for the task "
      f"{loaded.task.name} is left out."
    )


def _recognise_below(stored: Shapes, outer_prefix: str) -> Naming | None:
  """The format of the arrays whose names start with `outer_prefix`.

  None if they are in no known format.
  """
  inside = {
    name.removeprefix(outer_prefix): name
    for name in stored
    if name.startswith(outer_prefix)
  }
  # This renames only arrays of transformers.
  saved = huggingface.saved_names(inside)
  short = {_drop_chunk_number(new): inside[old] for new, old in saved.items()}
  shapes = {name: stored[short[name]] for name in short}
  for reader in FORMATS:
    prefix = reader.prefix(shapes)
    if prefix is not None:
      names = {
        name.removeprefix(prefix): short[name]
        for name in short
        if name.startswith(prefix)
      }
      return Naming(reader, names)
  return None


def _drop_chunk_number(name: str) -> str:
  """Turns blocks.2.17.norm into blocks.17.norm.

  DINOv2's authors store layers in chunks; the second number counts all layers.
  """
  return re.sub(r"^blocks\.[0-9]+\.([0-9]+\.)", r"blocks.\1", name)


def _prefixes(stored: Shapes) -> list[str]:
  """The prefixes that all names of one model may share, the shortest first."""
  prefixes = set()
  for name in stored:
    for end in _ENDS:
      if name.endswith(f".{end}"):
        parts = name.removesuffix(end).split(".")[:-1][:_MOST_PARTS]
        for count in range(1, len(parts) + 1):
          prefixes.add(".".join(parts[:count]) + ".")
  return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def _why_unknown(stored: Shapes) -> str:
  """A message on arrays that are in no known format."""
  if any(".lora_" in name for name in stored):
    return (
      "it holds what LoRA added to a model, and not the model: load both in "
      "peft, and save what model.merge_and_unload() returns."
    )
  if any("weight_generator.weight_tokens" in name for name in stored):
    return (
      "it makes the kernel of its patches from the wavelengths of the bands "
      "(Clay, DOFA), and the models here have a kernel for given bands: it is "
      "not read."
    )
  return (
    f"its {len(stored)} arrays ({', '.join([*stored][:3])}, ...) are not named "
    "as in any supported format (vision_transformer, big_vision, Hugging Face "
    "ViT, timm, torchvision): it may be another architecture."
  )
