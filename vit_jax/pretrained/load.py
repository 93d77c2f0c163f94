"""Loads published checkpoints of all supported formats, and our workdirs."""

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from vit_jax.models.grid import Grid, grid_of, param_shapes
from vit_jax.pretrained import interpolation, training_parts
from vit_jax.pretrained import text as towers
from vit_jax.pretrained.fetch import without_secrets
from vit_jax.pretrained.folder import OF_TEXTS
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.locate import check_trusted, locate
from vit_jax.pretrained.opened import with_preprocessing
from vit_jax.pretrained.published import open_published
from vit_jax.pretrained.run_checkpoint import open_run_checkpoint
from vit_jax.pretrained.run_text import text_of_run
from vit_jax.pretrained.settings import INTERPOLATIONS
from vit_jax.pretrained.text import Leaves, LoadedText
from vit_jax.pretrained.transfer import with_head
from vit_jax.runtime import hints
from vit_jax.runtime.checks import IMAGE_VALUES, checked
from vit_jax.runtime.printable import printable, say_once
from vit_jax.workdir.checkpoint import is_run
from vit_jax.workdir.checkpoint_reader import again_if_deleted

# Keywords about images, not fields of the model: type, condition and choices.
_IMAGE_OPTIONS: dict[str, tuple] = {
  **{name: (*values, ()) for name, values in IMAGE_VALUES.items()},
  "interpolation": (str, None, INTERPOLATIONS),
}
_RUN_KEYWORDS = {"step", "best", "task", "base"}
_USER_KEYWORDS = ("task", "base")  # A file may not name these.

# Names of a device in other libraries, by JAX's name of its kind.
_DEVICE_NAMES = collections.defaultdict[str, tuple[str, ...]](
  tuple, cpu=("cpu",), gpu=("cuda", "gpu"), tpu=("tpu",)
)


@hints.accepts('vit_jax.load_pretrained("b16_augreg")')
def load_pretrained(source: str, **overrides: Any) -> Loaded:
  """Loads a published model and its parameters, as `model, params`.

  The format is recognised from the content; the architecture, the activation,
  the epsilon, the pooling and the preprocessing follow from it.
  `model.origin` records the format and how images have to be normalised.
  `run_checkpoint.open_run_checkpoint` opens the workdir of a run, and
  `published.open_published` all else.

  >>> import tempfile
  >>> import jax
  >>> import vit_jax
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=1)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> folder = tempfile.mkdtemp()
  >>> vit_jax.save(vit, params, folder, to="big_vision", image_size=32)
  Wrote a model in memory as big_vision to ...
  >>> loaded = vit_jax.load_pretrained(folder)
  >>> model, params = loaded
  >>> model.num_classes, loaded.preprocessing.size
  (3, (32, 32))

  Args:
    source: One of the following: an .npz file of Google's vision_transformer,
      of big_vision or of TIPS; a .safetensors file of timm, torchvision,
      Hugging Face, open_clip or DINOv2's authors, or a flax_model.msgpack; a
      folder that holds such a file and its config.json, or that `convert`
      wrote; the workdir of a run; an https://, gs:// or hf://owner/name address
      of one of these; or a name that `vit_jax convert --list` shows.
    **overrides: Values that replace those of the format: any field of `Vit`
      (`num_heads=3`, `gelu="exact"`), where another `num_classes` gives a new
      head of zeros, and 0 none; `mean` and `std`; `grid`, the number of
      patches along height and width that the stored positions are for;
      `image_size`, the height and width to use the model at, for which
      positions are resized as the format's library does, or by
      `interpolation`, see `interpolation.resized`. For a workdir, `step`
      chooses the checkpoint, and `base` is its LoRA's base.

  Returns:
    A `Loaded`, with everything that is known about the model. It unpacks into
    the model and its parameters, for `model.apply({"params": params}, images)`.

  Raises:
    ValueError: if there is no such checkpoint, it is damaged, its format is
      unknown, or an override is not known or invalid; or if its arrays are not
      those of the model, where the message lists the differences.
  """
  for name in overrides:
    if hint := hints.hint_instead(name, "vit_jax.load_pretrained()"):
      raise ValueError(f"{name} is not a setting of a model{hint}")
  return _open_and_read(
    lambda: open_checkpoint(source, **overrides).with_scaled_head(),
    Loaded.read_params,
  )


def run_choice(overrides: Mapping[str, Any]) -> dict[str, Any]:
  """Those of the overrides that only a run takes: step, best, task and base."""
  return {k: v for k, v in overrides.items() if k in _RUN_KEYWORDS}


def load_text(
  source: str, tokenizer: str | None = None, **of_run: Any
) -> LoadedText:
  """Loads the text tower of a run on pairs, or of a published model.

  Its `embed` gives the vectors of texts, (N, R), which lie near those of the
  images that the texts describe, and its `head` a classifier of images. With a
  model that is loaded already, `loaded.embed_texts` gives the same vectors.

  Args:
    source: A run on pairs, or a path, an address or a name, as for
      `load_pretrained`. The file is a CLIP, MetaCLIP 2, SigLIP, SigLIP 2 or
      TIPSv2 that transformers saved, or its text tower alone, a model of
      open_clip, or a SigLIP of big_vision.
    tokenizer: A folder with the tokenizer; by default that of the weights.
    **of_run: For a run, `step` chooses the checkpoint, and `best` takes the
      one with the best score.

  Raises:
    ValueError: if there is no such checkpoint, it has no text tower, its
      tokenizer is missing or has more tokens than the tower, the libraries of
      the extra `text` are not installed, `source` is a loaded model, or `step`
      or `best` is given and `source` is no run.
  """

  if not isinstance(source, str | os.PathLike):
    raise ValueError(
      f"the checkpoint is given as a {type(source).__name__}: give a name, a "
      "path or an address; a loaded model has loaded.embed_texts(texts) and "
      "loaded.text_tower."
    )

  def read() -> LoadedText:
    text = open_text(source, tokenizer, **of_run)
    _ = text.params, text.scale_and_bias  # They are read now.
    return text

  return again_if_deleted(read, lambda line: None)


def open_text(
  source: str, tokenizer: str | None = None, **of_run: Any
) -> LoadedText:
  """Opens what `load_text` loads, and reads no array until it is needed.

  Raises ValueError as `load_text` does. The error is a `NoTextTowerError` if
  the checkpoint has no text tower.
  """
  source = os.fspath(source)
  if is_run(source):
    if tokenizer is not None:
      raise ValueError(
        f"tokenizer={tokenizer!r}: the run {source} has its own tokenizer, so "
        "leave this one out."
      )
    return text_of_run(open_checkpoint(source, as_trained=True, **of_run))
  if of_run:
    names = ", ".join(of_run)
    raise ValueError(
      f"{names} can only be given for a run's checkpoints, and {source} is no "
      f"run: leave out {names}."
    )
  text = towers.open_text(source, locate(source, OF_TEXTS), tokenizer)
  for note in text.notes:
    say_once(f"{source}: {note}.")
  return text


def open_checkpoint(
  source: str,
  *,
  hold: Callable[[Loaded], Any] | None = None,
  as_trained: bool = False,
  reads_patches: bool = False,
  **overrides: Any,
) -> Loaded:
  """Opens what `load_pretrained` loads, and reads no array until it is needed.

  All other code opens checkpoints by this function.

  Args:
    source: As in `load_pretrained`.
    hold: Reads the parameters at once, as `Loaded.read_params` does; its result
      becomes `Loaded.held`. If the run deletes the checkpoint meanwhile, the
      next checkpoint that fits is opened, with a note.
    as_trained: Whether to give the model as its run trains it, with stacked
      layers and its task's own parts. `source` is then a workdir, and of the
      overrides only `step`, `best`, `task` and `base` may be given. It may also
      be a `ViTMAEForPreTraining` of transformers, whose decoder is then read,
      or a model of images and text, whose text tower is then read.
    reads_patches: Whether the caller reads the tokens of patches. If so, no
      line says which vector an encoder gives for a whole image.
    **overrides: As in `load_pretrained`. For a workdir, `best` takes the
      checkpoint with the best score, and `task` is the run's task, as
      "file.py:Class", if that is one of the user's own.

  Raises:
    ValueError: as `load_pretrained` does; also if `as_trained` is given with
      other overrides, or for a source that holds no training parts.
  """
  if hold is not None:
    options: Any = {
      "as_trained": as_trained,
      "reads_patches": reads_patches,
      **overrides,
    }
    return _open_and_read(lambda: open_checkpoint(source, **options), hold)
  if as_trained:
    return _with_text(_open_as_trained(os.fspath(source), overrides), overrides)
  if "num_classes" in overrides:
    num_classes = overrides.pop("num_classes")
    opened = open_checkpoint(source, reads_patches=reads_patches, **overrides)
    return with_head(opened, num_classes)
  if not isinstance(source, str | os.PathLike):
    raise ValueError(
      f"the checkpoint is given as a {type(source).__name__}: give a name, a "
      'path or an address, as in load_pretrained("runs/my_photos").'
    )
  source = os.fspath(source)
  if overrides.get("device") in _DEVICE_NAMES[jax.default_backend()]:
    del overrides["device"]  # JAX runs on this device anyway.
  image_options = _pop_image_options(overrides)
  if overrides.pop("scan", False):
    raise ValueError(
      "scan=True is a setting for training; weights are always read layer by "
      "layer. Leave it out, and train with --config.model.scan=True."
    )
  try:
    if is_run(source):
      return _open_run_for_images(source, image_options, overrides)
    path = locate(source)
    source = without_secrets(source)
    for name in _RUN_KEYWORDS & overrides.keys():
      raise ValueError(
        f"{name} is for a workdir's checkpoints, and {source} is not a "
        f"workdir: leave out {name}."
      )
    with _name_in_errors(source):
      loaded, grid = open_published(
        source,
        path,
        overrides,
        image_options,
        says_features=not reads_patches,
      )
      return _at_size(_with_text(loaded, {}), grid, image_options)
  except ValueError as error:
    text = str(error)
    if text.isprintable():
      raise
    # It may quote names of arrays or folders, which may hold any character.
    raise ValueError(printable(text)) from error


def _pop_image_options(overrides: dict[str, Any]) -> dict[str, Any]:
  """Takes the keywords about images out of the overrides, and checks them.

  Raises ValueError if one of them has an invalid value.
  """
  image_options: dict[str, Any] = {}
  for name, (kind, *rules) in _IMAGE_OPTIONS.items():
    value = overrides.pop(name, None)
    if value is not None:
      image_options[name] = checked(name, kind, value, *rules)
  return image_options


def _open_run_for_images(
  workdir: str, image_options: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Loaded:
  """Opens a checkpoint of a run for images of the given size, mean and std.

  Raises ValueError for a `grid`, which a run records itself.
  """
  if "grid" in image_options:
    raise ValueError(
      "grid is for a file whose format does not record it, and "
      f"{workdir} is a run, which does: leave out grid."
    )
  loaded = _with_text(_open_run(workdir, **overrides), overrides)
  given = {k: image_options[k] for k in ("mean", "std") if k in image_options}
  loaded = with_preprocessing(loaded, **given)
  grid = grid_of(loaded.model, loaded.preprocessing.image_size)
  return _at_size(loaded, grid, image_options)


def _open_as_trained(source: str, overrides: Mapping[str, Any]) -> Loaded:
  """Opens a run, or published weights with their training parts.

  Raises ValueError for overrides that do not choose a checkpoint of a run.
  """
  others = sorted(overrides.keys() - _RUN_KEYWORDS)
  if others:
    raise ValueError(
      f"as_trained=True opens {source} as its run trains it: leave out "
      f"{', '.join(others)}."
    )
  if overrides or is_run(source):
    return _open_run(source, as_trained=True, **overrides)
  path = locate(source, OF_TEXTS)
  source = without_secrets(source)
  with _name_in_errors(source):
    loaded, grid = open_published(source, path, {}, {}, training_parts.OTHERS)
    return training_parts.as_trained(loaded, grid, path)


def _with_text(loaded: Loaded, overrides: Mapping[str, Any]) -> Loaded:
  """A copy whose `open_text` opens the text tower of the same source.

  The text tower of a run is that of the same step.
  """
  options = {k: v for k, v in overrides.items() if k in _USER_KEYWORDS}
  if loaded.step is not None:
    options["step"] = loaded.step
  text = functools.partial(open_text, loaded.origin.source, **options)
  return dataclasses.replace(loaded, open_text=text)


def _open_run(workdir: str, *, base: str | None = None, **options) -> Loaded:
  """Opens a checkpoint of a run; `base` is where the base of its LoRA is now.

  If a teacher measures the run, `base` is where that is now, which
  `run.saved.open_saved_run` reads. Raises ValueError for the `base` of any
  other run. Reading the arrays of a run with LoRA raises as `open_base` does.
  """
  loaded, added = open_run_checkpoint(workdir, **options)
  if added is None:
    if base is not None and not _is_measured_by_teacher(loaded, **options):
      raise ValueError(
        f"base={base} is where the base of a run with LoRA is, or the teacher "
        f"that a run is evaluated by, and {workdir} reads neither: leave out "
        "base."
      )
    return loaded

  def read() -> Leaves:
    opened_base = open_base(added.base, base, **added.base_fields)
    leaves = added.merge_into(opened_base)
    return ((path, array) for path, array in leaves if path in loaded.shapes)

  return dataclasses.replace(loaded, read=read)


def _is_measured_by_teacher(
  loaded: Loaded, as_trained: bool = False, **options
) -> bool:
  """Whether a run as it was trained learned the features of a teacher."""
  has_teacher = as_trained and "teacher" in (loaded.description or {})
  return has_teacher and loaded.task.answers is None


def open_base(
  saved: Mapping[str, Any], user_source: str | None, **fields: Any
) -> Loaded:
  """Opens the base of a LoRA run again.

  `saved` is the run's record of the base, `user_source` the base's place if the
  user gives it, and `fields` are fields of the model that JSON cannot hold.
  Raises ValueError if the base cannot be read, or if it has an address that
  only the record names and that is not trusted.
  """
  if saved["step"] is not None:
    fields["step"] = saved["step"]
  source = saved["source"] if user_source is None else user_source
  if user_source is None:
    check_trusted(source, "the base of this LoRA run", "base")
  # Only the user may name a class to import or an address to open.
  saved_fields = {
    name: value
    for name, value in saved["fields"].items()
    if name not in _USER_KEYWORDS
  }
  try:
    # With reads_patches no line says which vector the base gives for an image,
    # as the run answers with its own.
    loaded = open_checkpoint(
      source, reads_patches=True, **saved_fields, **fields
    )
  except ValueError as error:
    raise ValueError(
      f"the base of this LoRA run cannot be opened: {error} The run holds "
      "only what was added to it, so the base has to be put back."
    ) from error
  # Older records have None; this is how positions were interpolated then.
  former_method = "bicubic" if loaded.model.pooling == "map" else "linear"
  method = saved["interpolation"] or former_method
  return dataclasses.replace(loaded, interpolation=method)


def _open_and_read(
  open_: Callable[[], Loaded], read: Callable[[Loaded], Any]
) -> Loaded:
  """Opens a checkpoint and reads its parameters, which the result then holds.

  If its run deletes it meanwhile, the next checkpoint that fits is opened, with
  a note in `Loaded.notes`. Raises as `again_if_deleted` does.
  """
  notes: list[str] = []

  def open_and_hold() -> Loaded:
    loaded = open_().read_and_hold(read)
    return dataclasses.replace(loaded, notes=(*notes, *loaded.notes))

  return again_if_deleted(open_and_hold, notes.append)


@contextlib.contextmanager
def _name_in_errors(source: str) -> Iterator[None]:
  """Puts the source in front of an error's message."""
  try:
    yield
  except ValueError as error:
    text = str(error)
    raise ValueError(
      text if text.startswith((source, repr(source))) else f"{source}: {text}"
    ) from error


def _at_size(
  loaded: Loaded, grid: Grid, image_options: Mapping[str, Any]
) -> Loaded:
  """A copy whose positions fit the requested image size, if there is one.

  `grid` has the patches along height and width that the stored positions are
  for. Raises ValueError if patches do not fill images of that size, or if an
  interpolation is given without a size, or for a model that interpolates its
  positions itself.
  """
  if "image_size" not in image_options:
    if method := image_options.get("interpolation"):
      raise ValueError(
        f"interpolation={method!r} is how positions are resized for another "
        "image_size, and none is given: give image_size, or leave out "
        "interpolation."
      )
    return loaded
  size = image_options["image_size"]
  if size == loaded.preprocessing.cut_from:
    return loaded  # The model takes this size already, cut to whole patches.
  method = image_options.get("interpolation", loaded.interpolation)
  new = grid_of(loaded.model, size)
  old = loaded.model.position_grid or grid
  resized = with_preprocessing(loaded, size=size, patches=None)
  if loaded.model.position_grid in (None, new):
    return resized.map_arrays(
      lambda path, array: interpolation.resized(path, array, old, new, method),
      shapes=param_shapes(loaded.model, new),
    )
  if "interpolation" in image_options:
    raise ValueError(
      f"interpolation={method!r}: this model interpolates its positions for "
      "every image by itself: leave out interpolation."
    )
  return resized
