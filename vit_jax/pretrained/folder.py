"""The files of a published checkpoint: its weights, and what lies beside them.

The folder comes from anywhere: only regular files of a bounded size are read.
"""

import dataclasses
import os
import pathlib
import re
from typing import Any

from vit_jax.data.reading.folders import images_below
from vit_jax.data.reading.tokenizer import FILES
from vit_jax.pretrained import known
from vit_jax.pretrained.flax_arrays import FILE as FLAX
from vit_jax.pretrained.formats import hf_dpt, open_clip, processor
from vit_jax.runtime import hints
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.json_files import read_json, read_text
from vit_jax.runtime.printable import quoted
from vit_jax.runtime.settings import changed
from vit_jax.workdir.checkpoint import is_run
from vit_jax.workdir.records import METRICS

# Names of files of weights, as other libraries and `convert` write them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", FLAX)
_WEIGHTS += ("model.npz",)
# Patterns of weights in another precision, and of a first shard without index.
_OTHER_WEIGHTS = ("model.*.safetensors", "model.safetensors.index.*.json")
_OTHER_WEIGHTS += ("model-00001-of-*.safetensors",)
# The names of weights beside which the other files of a model may lie.
_USUAL_NAME = re.compile(r"model(-\d+-of-\d+)?(\.\w+)*\.(safetensors|npz|json)")
OF_TEXTS = (*FILES, open_clip.CONFIG)
"""Files beside the weights that only a text tower needs."""
_ADAPTER = "adapter_config.json"
# Hugging Face's `model_type` of encoders whose head reads two poolings, and
# their families in `known.csv`.
_DINO = ("dinov2", "dinov2_with_registers", "dinov3_vit")
_DINO_FAMILIES = ("DINOv2", "DINOv3")
_TOKEN_AND_PATCHES = "token_gap"  # The class token and the patches' mean.


@dataclasses.dataclass(frozen=True)
class Files:
  """The files of a checkpoint, and the contents of its JSON files.

  Attributes:
    weights: The file of weights, one of its shards, or their index.
    config: The contents of `config.json`; {} if there is none.
    pictures: The contents of the file that tells how images are prepared, or
      {} if there is none.
    pictures_file: The name of that file.
    labels: The file that may name the classes, if there is one.
  """

  weights: pathlib.Path
  config: dict[str, Any]
  pictures: dict[str, Any]
  pictures_file: str
  labels: pathlib.Path | None

  def class_names(self, num_classes: int) -> tuple[str, ...]:
    """The names of the classes in `labels`, or () if there is no such file.

    Raises ValueError if there are more of them than classes.
    """
    if not num_classes or self.labels is None:
      return ()
    names = read_text(self.labels).removesuffix("\n").split("\n")
    while len(names) > num_classes and not names[-1]:  # Empty lines at the end.
      names.pop()
    if len(names) > num_classes:
      raise ValueError(
        f"{self.labels} names {len(names)} classes and the model has "
        f"{num_classes}: correct the file or remove it."
      )
    return tuple(names)


def probe_pooling(source: str) -> str | None:
  """The pooling that suits a linear head on weights of a known name or path.

  For DINOv2 and DINOv3, which were trained without labels, it is the class
  token together with the mean of the patches; None means the checkpoint's own.
  Raises ValueError or OSError if a folder cannot be read.
  """
  if checkpoint := known.find(source):
    is_dino = checkpoint.family in _DINO_FAMILIES
    return _TOKEN_AND_PATCHES if is_dino else None
  path = pathlib.Path(source).expanduser()
  if not path.exists():
    return None
  kind = open_folder(path).config.get("model_type")
  return _TOKEN_AND_PATCHES if kind in _DINO else None


def depth_head(source: str) -> dict[str, Any]:
  """The settings of `dense_regression`, by key, of a depth model's own head.

  They are {} for other weights, for a run, and for a source that is no folder
  or file. Raises ValueError if the head is of a kind that is not read, and as
  `open_folder` does.
  """
  path = pathlib.Path(source).expanduser()
  if not source or not path.exists() or is_run(source):
    return {}
  config = open_folder(path).config
  if not hf_dpt.is_depth(config):
    return {}
  layers = hf_dpt.of_encoder(config).get("num_hidden_layers")
  layers = checked("num_hidden_layers", int, layers, COUNT)
  settings = hf_dpt.settings(config, layers)
  return {f"dense_regression.{k}": v for k, (v, _) in changed(settings).items()}


def open_folder(path: pathlib.Path) -> Files:
  """Reads the files beside a file of weights, or in a checkpoint's folder.

  Beside weights of an unusual name, only `config.json` is read, and with it the
  file on images. Beside open_clip's weights, open_clip's own configuration is
  read in place of both. Raises ValueError if there are no weights, they are an
  adapter's or pickles, or a file is not what its name says, and OSError if one
  cannot be read.
  """
  if path.is_dir():
    folder = path
    weights = _weights_in(path)
  else:
    folder = path.parent
    weights = path
  if weights.name.startswith("adapter_"):
    raise ValueError(_why_no_adapter(folder))
  may_have_config = weights.name.endswith((".safetensors", ".json", ".msgpack"))
  config = read_json(folder / "config.json") if may_have_config else {}
  has_usual_name = _USUAL_NAME.fullmatch(weights.name)
  pictures: dict[str, Any] = {}
  file = processor.FILE
  if weights.name == open_clip.WEIGHTS:
    content = read_json(folder / open_clip.CONFIG)
    config = open_clip.read(content) if content else {}
    pictures = open_clip.pictures(content) if content else {}
    file = open_clip.CONFIG
  elif has_usual_name or config:
    pictures, file = _pictures(folder)
  labels = folder / "labels.txt"
  has_labels = has_usual_name and labels.exists()
  return Files(
    weights=weights,
    config=config,
    pictures=pictures,
    pictures_file=file,
    labels=labels if has_labels else None,
  )


def _weights_in(folder: pathlib.Path) -> pathlib.Path:
  """The file of weights in a folder.

  Raises ValueError if there is none, or it is not clear which one is meant.
  """
  present = [folder / name for name in _WEIGHTS if (folder / name).exists()]
  if present:
    return present[0]
  present = sorted(
    file for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)
  )
  if not present and (folder / _ADAPTER).exists():
    raise ValueError(_why_no_adapter(folder))
  present = present or sorted(folder.glob("*.safetensors"))
  if len(present) == 1:
    return present[0]
  if present:
    names = ", ".join(file.name for file in present[:3])
    raise ValueError(
      f"{folder} holds several files of weights, {names}: name one."
    )
  if run := hints.find_run(str(folder)):
    raise ValueError(
      f"{folder} is a folder without weights: did you mean {run}?"
    )
  # A run without its checkpoints may have pictures too.
  has_metrics = (folder / METRICS).exists()
  below = () if has_metrics else images_below(os.fsencode(folder))
  pictures = next(iter(below), None) is not None
  files = folder.iterdir()
  pickles = sorted(file for file in files if file.suffix in known.PICKLES)
  if pickles and ((folder / "config.json").exists() or not pictures):
    raise ValueError(_why_no_pickles(folder, pickles))
  if pictures:
    raise ValueError(
      f"{folder} is a folder of images, not of weights: "
      f"`vit_jax train {folder}` trains a model on it, and "
      "loaded.predict(folder) takes it."
    )
  raise ValueError(
    f"{folder} is a folder without checkpoints/, which a workdir has, and "
    f"without {_WEIGHTS[0]} or {_WEIGHTS[-1]}: name a file of weights in "
    "it, or another folder."
  )


def _why_no_pickles(folder: pathlib.Path, pickles: list[pathlib.Path]) -> str:
  """Why a folder whose weights are pickles is not read, and what to do."""
  name = pickles[0].name
  if len(pickles) == 1:
    return (
      f"{folder} has its weights only as {name}, "
      f"{known.conversion(str(pickles[0]))}, and give the folder again."
    )
  return (
    f"{folder} has its weights only as {len(pickles)} pickles ({name} and "
    "others), which can run code when they are loaded: open the folder once "
    "with the library that wrote it and save the model as safetensors, as "
    "save_pretrained of transformers does, and give the new folder."
  )


def _why_no_adapter(folder: pathlib.Path) -> str:
  """Why an adapter is not read, with its base, and what to do."""
  base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
  of_base = f" of {quoted(base)}" if base else ""
  return (
    f"{folder} is an adapter{of_base} that peft saved, which holds only what "
    "was added to its base: load both in peft, then save what "
    "model.merge_and_unload() returns with save_pretrained, and give that."
  )


def _pictures(folder: pathlib.Path) -> tuple[dict[str, Any], str]:
  """How images are prepared, and the name of the file that says it.

  If `processor_config.json` has a section on images, it takes precedence over
  `preprocessor_config.json`, as in transformers. Raises ValueError if that
  section is not a JSON object.
  """
  section = read_json(folder / processor.NESTED).get(processor.SECTION)
  if section is None:
    return read_json(folder / processor.FILE), processor.FILE
  if not isinstance(section, dict):
    raise ValueError(
      f"its {processor.NESTED} says {processor.SECTION}={quoted(section)}, "
      "which must be a JSON object."
    )
  return section, processor.NESTED
