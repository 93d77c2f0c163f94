"""Writes a model in the format of another library.

A model that the format cannot express is refused, with the reasons, before
anything is written. Positions that are computed, or learned per axis, are
written as the equivalent table.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vit_jax.models import BaseVit
from vit_jax.models.two_towers import TwoTowers
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.pretrained.formats import (
  equivalent,
  google,
  hf_encoders,
  hf_pairs,
  processor,
  timm,
  timm_naflex,
  tips,
  torchvision,
)
from vit_jax.pretrained.formats.architecture import channels_of
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.opened import with_preprocessing
from vit_jax.runtime.display import Track, untracked
from vit_jax.runtime.files import check_new_folder, filling


@dataclasses.dataclass(frozen=True)
class Target:
  """A format to write, and what it can express."""

  rules: Callable[[BaseVit], list[Rule]]
  poolings: tuple[str, ...]
  # GELUs that the format can record; the first is its default.
  gelus: tuple[str, ...] = ("tanh",)
  # Epsilon of all layer norms; None if the format records it.
  epsilon: float | None = 1e-6
  hybrids: bool = False  # Whether a ResNet may precede the patches.
  # The models that may have a representation layer: True is those with a head,
  # False those without.
  pre_logits: tuple[bool, ...] = ()
  any_shape: bool = True  # Whether images may have another shape than a square.
  file: str = "model.safetensors"
  # The module that writes models with other parts than the paper's, and JSON
  # files beside the weights, which record the grid of patches as well.
  module: Any = None
  pairs: Any = None  # The same for pairs of towers.
  # The same for models that the format has only for images of any size.
  any_size: Any = None

  def encoder_writer(self, model: Any) -> Any:
    """The module that writes a model with other parts than the paper's.

    None for a model of the paper, or if the format has no such module.
    """
    writer = self.writer(model)
    return writer if writer and writer.is_encoder(model) else None

  def writer(self, model: Any) -> Any:
    """The module that writes JSON files beside the weights, if one does."""
    if isinstance(model, TwoTowers):
      return self.pairs
    if self.any_size is not None and self.any_size.is_naflex(model):
      return self.any_size
    return self.module

  def rules_for(self, model: Any) -> list[Rule]:
    """Which array holds which parameter of the model."""
    writer = self.writer(model)
    if writer is self.module:
      return self.rules(model)
    return writer.rules(model)


_NPZ, _ANY = "model.npz", (True, False)
TARGETS = {
  "google": Target(
    google.rules, ("token", "gap"), hybrids=True, pre_logits=_ANY, file=_NPZ
  ),
  "big_vision": Target(
    google.big_vision_rules, ("token", "gap", "map"), pre_logits=_ANY, file=_NPZ
  ),
  "hf": Target(
    hf_encoders.rules,
    ("token",),
    ("exact", "tanh"),
    epsilon=None,
    pre_logits=(False,),
    module=hf_encoders,
    pairs=hf_pairs,
  ),
  "timm": Target(
    timm.rules,
    ("token", "gap"),
    ("exact", "tanh"),
    module=timm,
    any_size=timm_naflex,
  ),
  "torchvision": Target(
    torchvision.rules, ("token",), ("exact",), pre_logits=_ANY, any_shape=False
  ),
  "tips": Target(tips.rules, (), file=_NPZ, module=tips),
}

# Losses that only transformers records, and what their outputs mean.
_UNRECORDED = {
  "mse": "the logits are predicted numbers: take them as they are",
  "sigmoid": (
    "the model was trained with the sigmoid loss: take a sigmoid of its "
    "logits, not a softmax"
  ),
}


def as_recorded(loaded: Loaded, name: str) -> Loaded:
  """The model with the image size that files of the format `name` record.

  If patches do not fill an image, other libraries record its whole size, and
  leave out its last pixels. If the whole size would give other patches, or the
  library would refuse it, the model keeps its own size.
  """
  old, model = loaded.preprocessing, loaded.model
  if old.cut_from is None or name == "torchvision":  # It refuses such sizes.
    return loaded
  whole_grid, grid = (
    (height // model.stride, width // model.stride)
    for height, width in (old.cut_from, old.image_size)
  )
  positions_fit = model.position_grid in (None, grid)
  if whole_grid != grid or (name == "timm" and not positions_fit):
    return loaded
  return with_preprocessing(loaded, size=old.cut_from)


def check_expressible(loaded: Loaded, name: str) -> list[str]:
  """Raises ValueError with the reasons why a format cannot express the model.

  A ResNet, layers of an own class and tokens of channels are each reported
  alone; all other reasons are listed together. Returns a line on each thing
  that the format keeps only approximately, or loses.
  """
  model = loaded.model
  target = TARGETS[name]
  preprocessing = as_recorded(loaded, name).preprocessing
  if not model.num_layers:
    raise ValueError(f"a ResNet cannot be written as {name}; only a Vit can.")
  if model.block is not None:
    raise ValueError(
      f"{name} cannot express this model: its layers are of the class "
      f"{model.block.__qualname__}, which no format has."
    )
  if model.channel_tokens:
    raise ValueError(
      f"{name} cannot express this model: it has no place for a token for each "
      "channel."
    )
  if writer := target.encoder_writer(model):
    reasons = writer.reasons(model)
  elif isinstance(model, TwoTowers):
    reasons = ["it has no place for a text tower"]
  elif model.extended:
    reasons = [f"it has no place for {equivalent.extended_part(model)}"]
  else:
    reasons = [*_reasons(model, target)]
  if name == "hf" and preprocessing.size and not preprocessing.cut_from:
    reasons += filter(None, [processor.reason(preprocessing)])
  if reasons:
    writers = {to: other.encoder_writer(model) for to, other in TARGETS.items()}
    able = [to for to, w in writers.items() if w and not w.reasons(model)]
    hint = f" (--to {' or '.join(able)} can)" if able else ""
    raise ValueError(
      f"{name} cannot express this model: {'; '.join(reasons)}{hint}."
    )
  return [*_losses(as_recorded(loaded, name), name)]


def _losses(loaded: Loaded, name: str) -> Iterator[str]:
  """A line on each thing that a format keeps only approximately, or loses."""
  preprocessing = loaded.preprocessing
  near = processor.nearest(preprocessing)
  crop = preprocessing.crop
  torch = name in ("hf", "timm", "torchvision")
  if torch and near.crop != dataclasses.replace(crop, corner="floor"):
    plain = "" if crop.antialias else " without antialiasing"
    yield (
      f"{name} cannot resize pictures by {crop.interpolation!r}{plain}, and "
      f"will by {near.crop.interpolation!r}: pixels change by one to four "
      "levels of 255 on average"
    )
  if preprocessing.cut_from:
    yield f"the format does not record how images are cut: {preprocessing}"
  if crop.longest_ratio is not None and name in ("timm", "torchvision"):
    yield f"{name} cannot limit the long side of a picture: {preprocessing}"
  writer = TARGETS[name].writer(loaded.model)
  keeps = getattr(writer, "keeps_proportions", lambda model: False)
  if preprocessing.patches is not None and not keeps(loaded.model):
    yield f"the format does not record how images are resized: {preprocessing}"
  if preprocessing.window is not None:
    low, high = preprocessing.window
    yield (
      f"the format does not record that {low:g} is black and {high:g} white in "
      "16-bit images: scale them to 8 bits first"
    )
  corner = "floor" if name == "hf" else "even"
  if torch and crop.crop == "center" and crop.corner != corner:
    yield (
      f"{name} rounds half a pixel in the crop's offset differently: where an "
      "odd number of pixels is cut away, its crop lies one pixel off"
    )
  model = loaded.model
  if model.resnet_layers and _changes_resnet_epsilon(model, name):
    yield (
      f"{name} standardises a ResNet's kernels with another epsilon: logits "
      "change by about a ten-thousandth"
    )
  if encoder_writer := TARGETS[name].encoder_writer(model):
    yield from encoder_writer.not_kept(model)
  if loaded.loss in _UNRECORDED and name != "hf":
    yield f"the format does not record that {_UNRECORDED[loaded.loss]}"


def _changes_resnet_epsilon(model: Any, name: str) -> bool:
  """Whether the format's library uses another epsilon in a model's ResNet."""
  has_timms_epsilon = model.resnet_epsilon is not None
  return has_timms_epsilon != (name == "timm")


def _reasons(model: Any, target: Target) -> Iterator[str]:
  """Why a format cannot express a model of the paper; nothing if it can."""
  if model.pooling not in target.poolings:
    names = " or ".join(target.poolings)
    yield (
      f"pooling={model.pooling!r}, and for such a model the format has only "
      f"{names}"
    )
  if model.position == "relative" or model.position_at != "input":
    yield (
      f"position={model.position!r} at {model.position_at!r}, and the format "
      "adds one table at the input"
    )
  if model.gelu not in target.gelus:
    yield (
      f"gelu={model.gelu!r}, and the format always uses {target.gelus[0]!r} "
      f"(--gelu={target.gelus[0]} accepts that, and changes logits by about a "
      "thousandth)"
    )
  epsilon = model.layer_norm_epsilon
  if target.epsilon is not None and epsilon != target.epsilon:
    yield (
      f"layer_norm_epsilon={epsilon}, and the format always uses "
      f"{target.epsilon} (--layer_norm_epsilon={target.epsilon} accepts that)"
    )
  if model.resnet_layers and not target.hybrids:
    yield "it is a hybrid, and the format has no ResNet before the patches"
  has_head = bool(model.num_classes)
  has_pre_logits = model.representation_size is not None
  if has_pre_logits and has_head not in target.pre_logits:
    place = "below" if has_head else "without"
    yield f"it has a representation layer (pre_logits) {place} a head"
  if target is TARGETS["torchvision"] and channels_of(model) != 3:
    yield f"its images have {channels_of(model)} channel(s), and not 3"
  size = model.origin.image_size if model.origin else None
  if size and size[0] != size[1] and not target.any_shape:
    yield f"its images are {size[0]} x {size[1]}, and the format needs squares"


def save_as(
  loaded: Loaded,
  name: str,
  folder: pathlib.Path,
  card: str = "",
  track: Track = untracked,
) -> None:
  """Writes a folder with the weights, the format's other files and a README.md.

  Call `check_expressible` first. The folder appears complete or not at all.
  Raises ValueError if the folder exists and is not empty.
  """
  check_new_folder(folder)
  model, params = _express(loaded, name)
  target = TARGETS[name]
  sizes = axis_sizes(model)
  rules = target.rules_for(model)
  writer = target.writer(model)
  if hasattr(writer, "stored"):
    params = writer.stored(model, params)
  arrays = {}
  for rule in track(rules, "converting", len(rules)):
    array = rule.write([params.pop(path) for path in rule.ours], sizes)
    arrays[rule.theirs] = np.asarray(array, order="C")
  if hasattr(writer, "constants"):
    arrays |= writer.constants(model)
  assert not params, f"no rule writes {list(params)}"
  with filling(folder) as draft:
    save_arrays(draft / target.file, arrays)
    written = as_recorded(dataclasses.replace(loaded, model=model), name)
    for file, content in sidecar_files(written, name).items():
      (draft / file).write_text(content, "utf-8")
    for file, content in tokenizer_files(loaded).items():
      (draft / file).write_bytes(content)
    (draft / "README.md").write_text(card, "utf-8")


def _express(loaded: Loaded, name: str) -> tuple[Any, equivalent.Params]:
  """An equivalent model that the format can express, and its parameters."""
  model: Any = loaded.model
  params = dict(loaded.read())
  if encoder_writer := TARGETS[name].encoder_writer(model):
    written = encoder_writer.equivalent(model)
  else:
    # The positions that the format has; all others are written as the first.
    own_position = {"big_vision": "sincos2d", "timm": "learned_grid"}.get(name)
    grid_only = name == "big_vision" and model.pooling == "token"
    native = ("learned_grid",) if grid_only else ("learned", own_position)
    is_native = model.position in native
    written = model if is_native else model.clone(position=native[0])
  return written, equivalent.refit(model, written, params)


def sidecar_files(loaded: Loaded, name: str) -> dict[str, str]:
  """The name and text of each file that a format keeps beside its weights."""
  preprocessing = loaded.preprocessing
  names = "".join(f"{label}\n" for label in loaded.class_names)
  if module := TARGETS[name].writer(loaded.model):
    near = processor.nearest(preprocessing)
    contents = module.files(loaded.model, near, loaded.task)
  else:
    contents = processor.file_of_one_size(preprocessing)
  texts = {file: json.dumps(contents[file], indent=2) for file in contents}
  return texts if module or not names else {**texts, "labels.txt": names}


def tokenizer_files(loaded: Loaded) -> dict[str, bytes]:
  """The name and content of each file of a pair's tokenizer; {} for others."""
  if not isinstance(loaded.model, TwoTowers):
    return {}
  setup = loaded.task.text_setup
  if setup is not None and setup.files is not None:  # It is a run's.
    return dict(setup.files.files)
  return loaded.inputs["text"].contents()
