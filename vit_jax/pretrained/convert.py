"""Converts a checkpoint to another library's format, with a model card."""

import importlib.resources
import json
import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from etils import epath

from vit_jax.models import to_fields, variant_of
from vit_jax.models.grid import grid_of
from vit_jax.pretrained import hub, known
from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.formats.architecture import guess_num_heads
from vit_jax.pretrained.licenses import LICENSES
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.naming import say_encoder_alone, say_left_out
from vit_jax.pretrained.save import (
  TARGETS,
  as_recorded,
  check_expressible,
  save_as,
)
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import output_folder
from vit_jax.runtime.printable import first_of
from vit_jax.tasks.scores import kept_folds
from vit_jax.workdir.checkpoint_reader import again_if_deleted
from vit_jax.workdir.records import read_metrics

_FOR_ONNX = "For ONNX, there is `vit_jax export SOURCE model.onnx`."
_READ_BY_PYTORCH = ("pytorch", "torch", "transformers", "huggingface")
_FILE = importlib.resources.files("vit_jax.pretrained") / "model_card.toml"
_TEMPLATES = tomllib.loads(_FILE.read_text("utf-8"))
# Fields whose names alone might be taken for those of the preprocessing.
_OTHER_ROWS = {"antialias": "antialias (of resized positions)"}


def convert(
  source: str | os.PathLike[str] | Loaded,
  folder: str | os.PathLike[str],
  to: str,
  *,
  push: str | None = None,
  license: str | None = None,
  **overrides: Any,
) -> None:
  """Converts a checkpoint, and prints how to load the result.

  Args:
    source: Any checkpoint that `load_pretrained` reads, or its result.
    folder: The folder to write, which has to be new or empty.
    to: The format: google, big_vision, hf, timm, tips or torchvision.
    push: Repository on Hugging Face, owner/name, to upload the folder to.
    license: Licence that the card names, such as "apache-2.0"; by default the
      source's.
    **overrides: Keywords of `load_pretrained`, for a source to load.

  Raises:
    ValueError: if the source cannot be read, or is loaded already and keywords
      are given; if `as_trained` is given for a model alone; if the format is
      unknown or cannot express the model; if the folder is not empty; or if
      `push` is no owner/name, or is given and no licence is known. Nothing is
      written then.
    OSError: if the upload fails.
  """
  check_format(to)
  if isinstance(source, Loaded):
    if overrides:
      raise ValueError(
        f"{', '.join(overrides)}: the model is loaded already: give such "
        "settings to load_pretrained."
      )
    name = source.origin.source
  elif isinstance(source, str | os.PathLike):
    name = os.fspath(source)
  else:
    raise ValueError(
      f"the checkpoint is of type {type(source).__name__}: give a path, a name "
      "or what load_pretrained returned; vit_jax.save(model, params, folder) "
      "writes a model in memory."
    )
  license = license or known.license_of(name)
  if push is not None:
    hub.check_repository(push)
    if license is None:
      raise ValueError(
        "a published model needs a licence, and the source's is not known: "
        "name one, as in --license=apache-2.0."
      )
  folder = os.fspath(folder)
  if folder.lower().endswith(".onnx"):
    raise ValueError(f"{folder!r}: {_FOR_ONNX}")
  target = output_folder(folder).resolve()
  display = Display()

  def write() -> tuple[Loaded, list[str]]:
    """Writes the folder; returns the model, and lines on what is lost."""
    if isinstance(source, Loaded):
      loaded = source.read_from(source.params).with_scaled_head()
    else:
      loaded = open_checkpoint(name, **overrides).with_scaled_head()
      if overrides.get("as_trained") and loaded.model.trunk is loaded.model:
        raise ValueError(
          f"{name} has no decoder or text tower, and its model is written "
          "anyway: leave out as_trained."
        )
    lost = check_expressible(loaded, to)
    card = model_card(loaded, to, target.name, license)
    save_as(loaded, to, target, card, display.track)
    return loaded, lost

  loaded, lost = again_if_deleted(write, display.note)
  say_encoder_alone(loaded)
  say_left_out(name, [*loaded.unread])  # The new file does not have them.
  display.note(f"Wrote {name} as {to} to {folder}. Load it with:")
  display.note(usage(loaded, to, folder))
  for line in lost:
    display.note(f"Note: {line}.")
  if push is not None:
    display.note(f"Uploaded it as {hub.push(target, push)}")


def check_format(to: str) -> None:
  """Raises ValueError unless `to` is a format that `convert` writes."""
  if to in TARGETS:
    return
  formats = ", ".join(TARGETS)
  other = "For one file that runs with JAX alone, there is `vit_jax export`."
  if str(to).lower() == "onnx":
    other = _FOR_ONNX
  elif str(to).lower() in _READ_BY_PYTORCH:
    other = "PyTorch's libraries read hf (transformers), timm and torchvision."
  raise ValueError(
    f"the format {to!r} is unknown; choose one of {formats}. {other}"
  )


def model_card(
  loaded: Loaded, to: str, name: str, license: str | None = None
) -> str:
  """The README.md of a model that is converted to the format `to`.

  `name` is that of the folder, and the title of the card.
  """
  origin, model = loaded.origin, loaded.model
  fields = to_fields(model) | {"kind": type(model).__name__}
  fields = {k: v for k, v in fields.items() if v not in (None, ())}
  rows = (
    f"| {_OTHER_ROWS.get(key, key)} | {value} |"
    for key, value in fields.items()
  )
  source = origin.source
  if "://" not in source:  # A path is of no use elsewhere, but its end is.
    source = pathlib.Path(source).name
  variant = variant_of(model)
  image_text = str(loaded.preprocessing)
  if loaded.preprocessing.size is None:
    image_text = (
      f"taken at any height and width that are multiples of {model.stride}"
    )
  classes = first_of(origin.class_names, 20)
  return _TEMPLATES["card"].format(
    library={"hf": "transformers", "timm": "timm"}.get(to, "vit_jax"),
    metadata=metadata(loaded, license),
    name=name,
    title="Vision Transformer" + (f" ViT-{variant}" if variant else ""),
    source=source,
    format=origin.format,
    to=to,
    usage=usage(loaded, to, name),
    used=image_text,
    mean=list(origin.mean),
    std=list(origin.std),
    meaning=_meaning(loaded),
    terms=terms(loaded, license),
    classes=classes or "not named by the source",
    training=_training(loaded),
    rows="\n".join(rows),
  )


def _meaning(loaded: Loaded) -> str:
  """A sentence on what the model's outputs mean.

  For a model without a head, it says what the outputs of a head that is trained
  with the model's loss would mean.
  """
  from vit_jax.tasks.answers import answers_of
  from vit_jax.tasks.choose import answering

  has_head = loaded.model.num_classes > 0
  task = loaded.task if has_head else answering(loaded.loss)
  return answers_of(task).meaning


def metadata(loaded: Loaded, license: str | None) -> str:
  """Lines of the card's header on licence, data and base model."""
  header = {"license": license}
  record = LICENSES.get(license or "")
  if record and record.hub == "other":
    header = dict(
      license="other", license_name=license, license_link=record.url
    )
  start = loaded.origin.source
  if loaded.description:
    header["datasets"], start = _data_and_start(loaded.description)
  if checkpoint := known.find(start):
    start = checkpoint.url
  if start.startswith("hf://"):  # Only the hub's own names are links.
    header["base_model"] = start.removeprefix("hf://").partition("@")[0]
  return "".join(f"{k}: {json.dumps(v)}\n" for k, v in header.items() if v)


def terms(loaded: Loaded, license: str | None) -> str:
  """Lines of the card on its licence, and on that of a run's first weights."""
  lines = []
  if license:
    lines.append(f"Licence: {LICENSES.get(license, license)}\n")
  start = ""
  if loaded.description:
    _, start = _data_and_start(loaded.description)
  if known.find(start):
    name = known.license_of(start) or "unknown"
    lines.append(f"It started from `{start}`, of licence {LICENSES[name]}\n")
  return "\n".join(lines)


def usage(loaded: Loaded, to: str, folder: str) -> str:
  """Lines of Python that load the converted model from a folder."""
  model = loaded.model
  assert model.num_layers  # A ResNet cannot be converted.
  preprocessing, crop = loaded.preprocessing, loaded.preprocessing.crop
  size = preprocessing.size and preprocessing.size[0]
  arguments = [f'"{folder}/{TARGETS[to].file}"']
  keywords = _keywords_needed(loaded, to)
  arguments += [f"{name}={value}" for name, value in keywords.items()]
  load = f"model, params = vit_jax.load_pretrained({', '.join(arguments)})"
  # The other library resizes to this: the short side, or height and width.
  resized = size and round(size * crop.resize_ratio)
  if crop.crop != "center":
    resized = (resized, resized) if crop.crop == "squash" else (size, size)
  near = processor.nearest(preprocessing).crop.interpolation
  hf_class = TARGETS[to].writer(model).class_name(model) if to == "hf" else ""
  return _TEMPLATES["usage"][to].format(
    **to_fields(model),
    load=load,
    folder=folder,
    size=size,
    resized=resized,
    filter=near.upper(),
    mean=preprocessing.mean,
    std=preprocessing.std,
    hf_class=hf_class,
    headless="" if model.num_classes else "model.heads.head = nn.Identity()\n",
  )


def _keywords_needed(loaded: Loaded, to: str) -> dict[str, Any]:
  """Keywords with their values, which `load_pretrained` needs for the files.

  They give what the format does not record.
  """
  model: Any = loaded.model
  origin = loaded.origin
  if TARGETS[to].module:  # The configuration holds all of them.
    return {}
  keywords: dict[str, Any] = {}
  guess = guess_num_heads(model.hidden_size)
  if to == "torchvision" and guess != model.num_heads:
    keywords["num_heads"] = model.num_heads
  preprocessing = as_recorded(loaded, to).preprocessing
  if preprocessing.size is None or processor.reason(preprocessing):
    keywords |= preprocessing.normalization
  if origin.image_size and origin.image_size[0] != origin.image_size[1]:
    keywords["grid"] = grid_of(model, origin.image_size)
  return keywords


def _data_and_start(description: Mapping[str, Any]) -> tuple[str, str]:
  """Names of a run's data and of the checkpoint that it started from.

  Either is "" if the run's description does not give it.
  """
  config = description["config"]
  data = config.get("data") or {}
  places = (data.get(key) for key in ("root", "dir", "labels_file"))
  name = data.get("name") or pathlib.Path(next(filter(None, places), "")).name
  return name, config.get("pretrained") or ""


def _training(loaded: Loaded) -> str:
  """A run's training data and its score in words; "" for other sources."""
  description = loaded.description
  if description is None or loaded.step is None:
    return ""
  data, start = _data_and_start(description)
  text = f"Trained on {data or 'data that the run does not name'}"
  if "train_examples" in description:  # A user's own loop may not record it.
    text += (
      f": {description['train_examples']:,} examples of "
      f"{loaded.task.labels.counted(len(description['class_names']))}"
    )
  if start:
    text += f", starting from `{start}`"
  workdir = epath.Path(loaded.origin.source).expanduser()
  rows = read_metrics(workdir).rows
  score = loaded.task.scores.metric
  key = loaded.task.scores.key
  scored = (row for row in rows if row.get(key) is not None)
  if evaluated := [row for row in scored if row["step"] <= loaded.step]:
    last = evaluated[-1]
    text += (
      f". {score.label[0].upper()}{score.label[1:]} on its evaluation split "
      f"after {last['step']:,} steps: {score.format.format(last[key])}"
    )
    verdict = str(loaded.task.scores.verdict({**last, **kept_folds(rows)}))
    return f"{text}. {verdict[:1].upper()}{verdict[1:]}".rstrip() + "\n"
  return f"{text}.\n"
