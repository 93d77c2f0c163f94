"""Prepares the parts of a run: each function makes or checks one of them.

Settings that do not fit the task or the data, or that no part can be made from,
raise a ValueError before anything is compiled.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader, make_loader
from vit_jax.data.preprocessing import Preprocessing, band_places
from vit_jax.data.reading.sources import Splits, check_same_classes
from vit_jax.data.settings import NormalizationSettings
from vit_jax.data.transforming.transforms import check_colours
from vit_jax.models import Model, make_model
from vit_jax.models.layer import DTYPE_FIELDS, EXECUTION
from vit_jax.models.parts import Parts
from vit_jax.models.variants import with_block
from vit_jax.run.settings import ProbeSettings, Settings
from vit_jax.runtime import extras as libraries
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import (
  changed,
  check_needs,
  deprecations,
  replaced,
)
from vit_jax.tasks import choose
from vit_jax.tasks.table import switches
from vit_jax.tasks.task import Task
from vit_jax.training import sharding
from vit_jax.training.state import make_params_init

# For the annotations alone: only runs that start from a checkpoint, or pack
# images, import these modules.
if TYPE_CHECKING:
  from vit_jax.data.batching.packing import Packing
  from vit_jax.pretrained.loaded import Loaded

# Fields of a model in which a run may differ from the checkpoint it starts
# from; they do not change how the checkpoint itself is opened.
_FREE_FIELDS = (
  "num_classes",
  "representation_size",
  "channel_tokens",
  "channel_sampling",
  *DTYPE_FIELDS,
  *EXECUTION,
)


def open_start(settings: Settings, task: Task) -> "Loaded":
  """Opens the checkpoint that `pretrained` names; no array is read yet.

  Fields set in `settings.model` override those that the format records. With
  `transfer.keep_head`, a task without answers keeps its own parts, such as a
  decoder; `Task.keeps_parts` tells which tasks always do. For a task that reads
  texts, the parameters include those of the text tower, if there is one. Raises
  ValueError if there is no such checkpoint, or the settings name a variant as
  well.
  """
  assert settings.pretrained
  if settings.model.variant:
    name = settings.data.name
    data = f", and set data.name={name!r}" if name else ""
    raise ValueError(
      f"model.variant={settings.model.variant!r} and "
      f"pretrained={settings.pretrained!r} both choose the model: leave one "
      "of them out, or, if the configuration sets model.variant, take "
      '--config=finetune (config="finetune" in Python), which sets no '
      f"variant{data}."
    )
  from vit_jax.pretrained.load import open_checkpoint

  options = start_fields(settings)
  keeps_parts = settings.transfer.keep_head and task.answers is None
  if keeps_parts or task.keeps_parts:
    options["as_trained"] = True
  options["reads_patches"] = task.reads_patches
  loaded = open_checkpoint(settings.pretrained, **options)
  if task.text_setup is None:
    return loaded
  from vit_jax.run import texts

  return texts.with_text_weights(loaded)


def start_leaves(
  start: "Loaded",
  model: Model,
  preprocessing: Preprocessing,
  interpolation: str | None,
  *,
  keep_head: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
  """The parameters of a run's model that a checkpoint gives, by path.

  Their paths and shapes are those of the model without `scan`. `interpolation`
  is the method for position embeddings; None takes that of `start`. Parts that
  serve only the task, such as the head, are left out unless `keep_head` is set.
  Raises ValueError as `transfer.leaves` does.
  """
  from vit_jax.pretrained import transfer

  return transfer.leaves(
    start,
    model.clone(scan=False) if model.scan else model,
    preprocessing.image_size,
    interpolation,
    channels=preprocessing.channels,
    bands=preprocessing.bands,
    keep_head=keep_head,
  )


def start_fields(settings: Settings) -> dict[str, Any]:
  """The fields in `settings.model` that override those of the checkpoint."""
  fields = with_block(settings.model.given())
  return {k: v for k, v in fields.items() if k not in _FREE_FIELDS}


def resolved(settings: Settings, start: Preprocessing | None) -> Settings:
  """Fills in the settings that are left to the preprocessing of a checkpoint.

  `start` is that preprocessing, or None without a checkpoint. Raises ValueError
  if neither the settings nor a checkpoint give the image size, or a mean and a
  standard deviation for each channel; if `cut_from` is smaller than the image
  size; or if other settings do not fit the number of channels.
  """
  start = start or Preprocessing(None)
  if start.bands and settings.channels in (None, start.channels):
    bands = settings.data.bands or ",".join(start.bands)
    settings = replaced(settings, {"data.bands": bands})
  size, cut_from = settings.image_size or start.size, settings.cut_from
  if size is None:
    raise ValueError(
      "image_size is not set, and no checkpoint records it: set it, as in "
      "--config.image_size=(224,224)."
    )
  if settings.image_size is None:
    cut_from = cut_from or start.cut_from
  normalization = _normalization(settings, start)
  if cut_from and (cut_from[0] < size[0] or cut_from[1] < size[1]):
    raise ValueError(
      f"cut_from={cut_from} is smaller than image_size={size}, which is cut "
      "from it: set it to None or to a larger size."
    )
  return dataclasses.replace(
    settings, image_size=size, cut_from=cut_from, normalization=normalization
  )


def _normalization(
  settings: Settings, start: Preprocessing
) -> NormalizationSettings:
  """The normalisation, with the checkpoint's values where none are set.

  Raises ValueError if it does not have a value for each channel, `data.bands`
  has another number of names, or the augmentation needs colours that the images
  do not have.
  """
  own_values = settings.normalization
  bands = settings.data.band_names
  channels = settings.channels or len(bands) or start.channels
  if bands and len(bands) != channels:
    raise ValueError(
      f"data.bands names {len(bands)} bands and channels={channels}: name as "
      "many bands as channels, or leave channels out."
    )
  mean, std = own_values.mean, own_values.std
  if mean is None or std is None:
    their_mean, their_std = _normalization_of(bands, start)
    mean, std = mean or their_mean, std or their_std
  if not len(mean) == len(std) == channels:
    half = str((0.5,) * channels).replace(" ", "")
    raise ValueError(
      f"channels={channels} needs as many means and standard deviations, and "
      f"there are {len(mean)} and {len(std)}: set channels, normalization.mean "
      f"and normalization.std, such as {half}; `vit_jax inspect_data` "
      "measures them."
    )
  check_colours(settings.train_transform, channels)
  window = own_values.window or start.window
  return dataclasses.replace(own_values, mean=mean, std=std, window=window)


def _normalization_of(
  bands: Sequence[str], start: Preprocessing
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """The mean and deviation of a checkpoint for some bands, by their names.

  Where the names tell nothing, they are in the checkpoint's order. Raises
  ValueError for a band that the checkpoint does not know.
  """
  places = band_places(bands, start.channels, start.bands)
  if places is None or (None in places and len(bands) != start.channels):
    return start.mean, start.std
  if None in places:
    name = bands[places.index(None)]
    raise ValueError(
      f"data.bands has {name}, and the checkpoint has no mean and deviation of "
      "it: set normalization.mean and normalization.std, a number for each of "
      f"{', '.join(bands)}; `vit_jax inspect_data` measures them."
    )
  at = [place for place in places if place is not None]
  return tuple(start.mean[i] for i in at), tuple(start.std[i] for i in at)


def make_preprocessing(
  settings: Settings, model: Model | None = None
) -> Preprocessing:
  """The preprocessing of a run whose settings are resolved.

  With `data.tokens`, `model` gives the size of a patch; without a model, images
  are prepared in one size. The model also tells whether images may lack bands.
  """
  fields: Any = {**vars(settings.normalization), "cut_from": settings.cut_from}
  fields["bands"] = settings.data.band_names
  fields["some_bands"] = getattr(model, "channel_tokens", False)
  if model is not None and settings.data.tokens is not None:
    from vit_jax.data.transforming.sizes import AnySize

    fields["patches"] = AnySize(settings.data.tokens, model.stride)
  return Preprocessing(settings.image_size, settings.eval_transform, **fields)


def make_packing(settings: Settings) -> Optional["Packing"]:
  """How the images of a batch share its rows; None if each has its own."""
  data = settings.data
  if data.tokens is None or data.images_per_row == 1:
    return None
  from vit_jax.data.batching.packing import Packing

  images = data.images_per_row
  tokens = data.row_tokens or images * data.tokens
  return Packing(images, tokens, data.min_tokens)


def check_rows(settings: Settings, mesh: Mesh) -> None:
  """Raises ValueError unless a batch is whole rows, split evenly by devices."""
  name, images = "batch_size", settings.data.images_per_row
  if images > 1:
    if settings.batch_size % images:
      fits = -(-settings.batch_size // images) * images
      raise ValueError(
        f"batch_size={settings.batch_size} is no multiple of "
        f"data.images_per_row={images}; the next multiple is {fits}."
      )
    name = "rows (batch_size / data.images_per_row)"
  sharding.check_batch(name, settings.rows, mesh, settings.parts)


def open_loader(
  settings: Settings | ProbeSettings, preprocessing: Preprocessing
) -> Loader:
  """Makes the data loader of this host."""
  return make_loader(
    settings.loader,
    photographs=settings.data.photographs,
    image_size=preprocessing.image_size,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def task_of(settings: Settings) -> Task:
  """The task of the settings, without the facts of its labels.

  Raises ValueError if a key that is set does not apply to the task.
  """
  task = choose.configured(settings.data.task, vars(settings))
  _check_task(settings, task)
  return task


def _check_task(settings: Settings, task: Task) -> None:
  """Raises ValueError if a key that is set does not apply to the task."""
  unlabelled = bool(settings.data.root) and not settings.data.labels
  if task.refuses or unlabelled:
    _check_keys(settings, task, unlabelled)


def _check_keys(settings: Settings, task: Task, unlabelled: bool) -> None:
  """Raises ValueError for keys that the task or unlabelled data refuse."""
  if unlabelled and task.labels.are_used:
    raise ValueError(
      "data.labels=False leaves no classes to train on: leave it out, or set "
      f"{' or '.join(switches())} to train without labels."
    )
  few_shot = settings.fewshot
  has_own_data = few_shot.data.name or few_shot.data.photographs
  changes = changed(settings)
  for key in task.refuses:
    if key in changes and not (key == "fewshot.shots" and has_own_data):
      value, default = changes[key]
      raise ValueError(
        f"{key}={value!r} {task.why_refused}: set it to {default!r}."
      )
  if few_shot.shots and unlabelled and not has_own_data:
    raise ValueError(
      f"fewshot.shots={few_shot.shots} needs labels: set data.labels=True "
      "for a folder of class folders, or give fewshot.data.root."
    )


def open_texts(
  settings: Settings,
  task: Task,
  saved: Mapping[str, Any] | None = None,
  *,
  with_data: bool = True,
) -> tuple[Settings, Task, Optional["Loaded"]]:
  """The settings and the task, completed by `texts.with_text_setup`.

  A task that reads no texts is returned as it is, and so are its settings. The
  third result is the checkpoint that a new run begins with, which is opened for
  its text tower; None if it was not opened.
  """
  if task.text_setup is None:
    return settings, task, None
  from vit_jax.run import texts

  new = saved is None and settings.pretrained
  start = open_start(settings, task) if new else None
  settings, task = texts.with_text_setup(
    settings, task, saved, start=start, with_data=with_data
  )
  return settings, task, start


def check_run(settings: Settings, task: Task, *, is_new: bool) -> None:
  """Raises ValueError if settings contradict each other or lack what they need.

  They may need another key, or a library that is not installed. Keys that need
  another key are checked only in a new run, since a run of an older version may
  have set them. Lines on deprecated keys, too, are printed only for a new run.
  """
  if is_new:
    check_needs(settings)
    if jax.process_index() == 0:
      for line in deprecations(settings):
        say(line)
    _check_repeats(settings)
  if settings.eval_pictures and task.panels is None:
    libraries.check("matplotlib", "figures", "eval_pictures")
  if settings.wandb_project:
    libraries.check("wandb", "wandb", "wandb_project")
  rank, frozen = settings.lora.rank, settings.optimizer.freeze_layers
  if rank and frozen:
    raise ValueError(
      f"lora.rank={rank} freezes all layers, so "
      f"optimizer.freeze_layers={frozen} has no effect: leave one of the two "
      "out; lora.kernels chooses the layers of LoRA."
    )


def _check_repeats(settings: Settings) -> None:
  """Raises ValueError if a batch is too small for all repeats of an image."""
  repeats, size = settings.train_transform.repeats, settings.batch_size
  if repeats > size:
    raise ValueError(
      f"train_transform.repeats={repeats} is more than batch_size={size}: a "
      "batch would show copies of a single image. Raise batch_size or lower "
      "the repeats."
    )


def check_workdir(settings: Settings, workdir: str) -> None:
  """Raises ValueError if a run would write among the images' class folders."""
  root = settings.data.root
  if not root:
    return
  # Imported here, since only runs on folders need all readers of layouts.
  from vit_jax.data.reading.image_folder import lies_among_classes

  if lies_among_classes(settings.data, workdir):
    raise ValueError(
      f"--workdir={workdir} lies in {root}, whose folders are the classes: "
      "name a folder outside, or start the command in the folder above "
      f"{root}."
    )


def check_splits(settings: Settings, splits: Splits) -> None:
  """Raises ValueError if the data do not fit the settings or each other."""
  names = splits.train.class_names
  check_same_classes(
    names, "the training split", splits.eval.class_names, "the evaluation split"
  )
  num_classes = settings.model.num_classes
  if num_classes is not None and num_classes < len(names):
    raise ValueError(
      f"model.num_classes={num_classes} is less than the {len(names)} classes "
      f"of the data: set it to {len(names)} or more."
    )
  loader = Loader(
    on_unreadable=settings.loader.on_unreadable,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  loader.check(splits.train, settings.batch_size, settings.seed)


def build_model(
  settings: Settings,
  task: Task,
  class_names: tuple[str, ...],
  start: Optional["Loaded"] = None,
) -> Model:
  """Makes the model, with a head for the task unless set otherwise.

  Raises ValueError if the fields or the checkpoint do not fit the data, or if
  there is neither a variant nor a checkpoint.
  """
  fields = with_block(settings.model.given())
  fields |= {k: jnp.dtype(fields[k]) for k in DTYPE_FIELDS if k in fields}
  fields.setdefault("num_classes", task.num_outputs(class_names))
  if start is not None:
    from vit_jax.pretrained import transfer

    keep: Any = {**vars(settings.transfer)}
    for later in ("interpolation", "probe_head"):  # Used for arrays only.
      del keep[later]
    # In a model of images and text, this layer is the image tower's projection.
    keep["keep_pre_logits"] |= task.text_setup is not None
    return task.adapted(
      transfer.adapt_model(start, class_names, fields, **keep)
    )
  if "variant" not in fields:
    if settings.optimizer.freeze_layers:
      raise ValueError(
        "the run trains only the head or the last layers, and "
        "config.pretrained, which gives the weights of the other layers, is "
        "not set: name published weights, as in --pretrained hf_s14_dinov2."
      )
    raise ValueError(
      "model.variant is not set: set it, as in --config.model.variant=B/16, or "
      "--config.pretrained=CHECKPOINT."
    )
  try:
    return task.adapted(make_model(**fields))
  except ValueError as error:
    # If the message begins with a field, name it by its key.
    if str(error).partition("=")[0] in fields:
      raise ValueError(f"model.{error}") from error
    raise


def parts_of(model: Model, image_shape: tuple[int, int, int]) -> Parts:
  """The parts of a model, taken from its parameters if it lists no parts.

  `image_shape` is the height, the width and the channels of an image.
  """
  init = make_params_init(model, image_shape)
  return Parts.of(model, lambda: jax.eval_shape(init, jax.random.key(0)))
