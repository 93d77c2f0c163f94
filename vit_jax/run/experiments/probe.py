"""Probes a published checkpoint, or a run's: few-shot, k-NN, linear, pixels."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from vit_jax.data.example import Source
from vit_jax.data.reading import mask_folder
from vit_jax.data.reading.image_folder import UnlabelledError
from vit_jax.data.reading.sources import (
  channel_warnings,
  check_classes,
  check_same_classes,
  looked_at,
  open_source,
)
from vit_jax.inference.features import features
from vit_jax.models.model import represent
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run import build
from vit_jax.run.settings import ProbeSettings, ProbeTransformSettings
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.runtime.printable import counted
from vit_jax.runtime.settings import untuned
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.probes import PROBES
from vit_jax.tasks.probes.few_shot import FewShot, Outcome
from vit_jax.tasks.probes.segmentation import Segmentation, segment
from vit_jax.tasks.probes.whole_set import (
  Represented,
  Score,
  linear,
  make_represent,
  nearest_neighbours,
)
from vit_jax.training import sharding


def probe_checkpoint(
  checkpoint: str | Loaded,
  settings: ProbeSettings,
  *,
  probe: str = "few_shot",
  shots: int = 5,
  seeds: int = 3,
  neighbours: int = 20,
  pre_logits: bool = True,
  display: Display | None = None,
  **overrides: Any,
) -> Outcome | Score:
  """Classifies by the representations of a published checkpoint, or of a run.

  The arguments are those of the command. Returns an `Outcome` if `probe` is
  "few_shot", and else a `Score`. Raises ValueError if the checkpoint, the data
  and the settings do not fit together.

  Args:
    settings: Data, crop, loader and mesh.
    display: Display for the header and the progress; nothing is shown without
      one.
    **overrides: Keywords of `load_pretrained`.
  """
  checked("probe", str, probe, choices=PROBES)
  checked("neighbours", int, neighbours, COUNT)
  if probe == "few_shot":
    options: Any = {"pre_logits": pre_logits, "display": display, **overrides}
    (outcome,) = probe_shots(
      checkpoint, settings, (shots,), seeds=seeds, **options
    )
    return outcome
  splits = _open_splits(settings, checkpoint)
  check_classes(splits[0], "a probe")
  names = [split.class_names for split in splits]
  check_same_classes(
    names[0], "the training split", names[1], "the evaluation split"
  )
  most = len(splits[0])
  score = partial(linear, train_examples=most)
  fitted = f"a linear classifier, fitted to all {most:,} training images"
  if probe == "knn":
    score = partial(nearest_neighbours, k=neighbours)
    if neighbours > most:
      raise ValueError(
        f"neighbours={neighbours} is more than the {most:,} training images: "
        "give fewer."
      )
    fitted = f"the {neighbours:,} nearest of all {most:,} training images vote"
  opened = _Opened(checkpoint, settings, overrides)
  params, track = opened.show_and_read(splits, fitted, display)
  read = partial(represent, opened.model, pre_logits=pre_logits)
  with opened.reading(read, splits, params, track) as (train, test):
    return score(train, test, len(names[0]))


def probe_shots(
  checkpoint: str | Loaded,
  settings: ProbeSettings,
  shots: Sequence[int],
  *,
  seeds: int = 3,
  pre_logits: bool = True,
  display: Display | None = None,
  **overrides: Any,
) -> list[Outcome]:
  """Few-shot evaluation for several numbers of shots.

  The images are read once for all of them, and there is an outcome for each of
  `shots`. The other arguments and the errors are those of `probe_checkpoint`.
  The checkpoint may be open already and hold its parameters.
  """
  splits = _open_splits(settings, checkpoint)
  opened = _Opened(checkpoint, settings, overrides)
  train, test = splits
  few_shot = FewShot(
    opened.model,
    opened.mesh,
    train,
    test,
    opened.preprocessing,
    loader=opened.loader,
    batch_size=opened.batch_size,
    shots=max(shots),
    seeds=seeds,
    pre_logits=pre_logits,
  )
  times = f" in each of {seeds:,} random draws" if seeds > 1 else ""
  each = counted(max(shots), "training image")
  fitted = (
    f"a linear classifier, fitted to {each} of each class{times}: "
    f"{few_shot.num_shots:,} of the {len(train):,} are used in all"
  )
  params, track = opened.show_and_read(splits, fitted, display)
  return few_shot.measure_each(params, shots, track)


def probe_segmentation(
  checkpoint: str | Loaded,
  settings: ProbeSettings,
  display: Display | None = None,
  **overrides: Any,
) -> Segmentation:
  """Fits a linear probe of each pixel's class to the last layer's patches.

  Whole images are resized to the model's size, whatever its crop is, so that
  masks and images fit. The arguments are those of `probe_checkpoint`;
  `data.root` holds images and masks. Raises ValueError if the checkpoint is no
  ViT, or the folder does not hold images and masks.
  """
  if not settings.data.root or settings.data.labels_file:
    raise ValueError(
      "--probe=segment takes --config.data.root, a folder that holds images "
      "and masks."
    )
  if settings.eval_transform != ProbeTransformSettings():
    raise ValueError(
      "eval_transform has no effect on --probe=segment, which resizes whole "
      "images: leave it out."
    )
  opened = _Opened(
    checkpoint, settings, overrides, reads_patches=True, crop="resize"
  )
  model: Any = opened.loaded.model
  if not model.num_layers:
    raise ValueError("a ResNet has no patches to probe: give a ViT.")
  size = opened.preprocessing.image_size
  opened_folder = mask_folder.open_folder(settings.data, size=size)
  splits = opened_folder["train"], opened_folder["eval"]
  class_names = splits[0].class_names
  if display is not None:
    counts = " + ".join(f"{len(split):,}" for split in splits)
    names = f"{splits[0].name} + {splits[1].split}"
    classes = counted(len(class_names), "class", "classes")
    data = f"{names}: {counts} images, {classes}"
    opened.show(display, [("data", data)], splits[0])

  def last_layer(params: Any, x: Any) -> Any:
    """The maps of the patches after the last layer, (B, h, w, D)."""
    layers = (model.num_layers,)
    return features(model, params, x, layers=layers, as_maps=True)[0]

  params = opened.loaded.held
  track = display.track if display else untracked
  with opened.reading(last_layer, splits, params, track) as (train, test):
    return segment(train, test, class_names)


_ONE_CLASS = (
  "a probe takes one class for each image, and --config.data.label_columns "
  "names its column"
)
# The advice of errors on a table of several labels, as a pattern, and what is
# said in its place: a probe takes one label of each image.
_IN_PLACE = {
  r"data\.task=multilabel takes any number": _ONE_CLASS,
  r"Several labels of an image, .*": f"{_ONE_CLASS.replace('a p', 'A p', 1)}.",
}


def _open_splits(
  settings: ProbeSettings, checkpoint: str | Loaded
) -> tuple[Source, Source]:
  """The splits to fit on and to evaluate.

  Raises ValueError as `open_source` does; for a folder without labels, the
  message has commands for this checkpoint.
  """
  from vit_jax.data.reading.tables import advising

  data = settings.data
  try:
    with advising(_IN_PLACE):
      return open_source("train", data), open_source("eval", data)
  except UnlabelledError as error:
    if isinstance(checkpoint, Loaded):
      raise
    raise error.with_weights(checkpoint) from None


class _Opened:
  """An open checkpoint, and how images are prepared for its model.

  `reads_patches` is as `open_checkpoint` takes it, and `crop` replaces fields
  of the checkpoint's crop, in place of the settings'. Raises ValueError for
  overrides if the checkpoint is open already.
  """

  def __init__(
    self,
    checkpoint: str | Loaded,
    settings: ProbeSettings,
    overrides: dict[str, Any],
    reads_patches: bool = False,
    **crop: Any,
  ):
    self.mesh = mesh = sharding.make_mesh(**vars(settings.mesh))

    def on_mesh(loaded: Loaded) -> Any:
      return loaded.params_on(mesh)

    if isinstance(checkpoint, Loaded):
      if overrides:
        name = next(iter(overrides))
        raise ValueError(
          f"{name} is no option of a probe, and {checkpoint.origin.source} is "
          f"loaded already: for a setting of the model, give {name} to "
          "vit_jax.load_pretrained."
        )
      self.loaded = checkpoint.read_and_hold(on_mesh)
    else:
      # An argument of the function takes precedence over the settings.
      overrides.setdefault("interpolation", settings.transfer.interpolation)
      self.loaded = open_checkpoint(
        checkpoint, reads_patches=reads_patches, hold=on_mesh, **overrides
      )
    self.model = self.loaded.task.probed(self.loaded.model)[""]
    changes = {k: v for k, v in vars(settings.eval_transform).items() if v}
    preprocessing = self.loaded.preprocessing
    crops = dataclasses.replace(preprocessing.crop, **(crop or changes))
    self.preprocessing = dataclasses.replace(preprocessing, crop=crops)
    self.notes = [
      f"eval_transform.{key}={changes[key]!r} has no effect {why}."
      for key, why in untuned(crops).items()
      if key in changes and not crop
    ]
    self.loader = build.open_loader(settings, self.preprocessing)
    self.batch_size = settings.eval_batch_size or settings.batch_size
    height, width = self.preprocessing.image_size
    self.name = f"{self.loaded.origin.source} at {height} x {width}"

  def show_and_read(
    self,
    splits: tuple[Source, Source],
    probe: str,
    display: Display | None,
  ) -> tuple[Any, Track]:
    """Shows the header; returns the parameters and a function for progress.

    `probe` describes in words what is fitted, and to what.
    """
    if display is not None:
      if self.model is not self.loaded.model:
        display.note(self.loaded.task.probe_note)
      train, test = splits
      classes = counted(len(train.class_names), "class", "classes")
      data = f"{train.name}, {classes}, {counted(len(test), 'test image')}"
      self.show(display, [("data", data), ("probe", probe)], train)
    return self.loaded.held, display.track if display else untracked

  def show(
    self, display: Display, rows: Sequence[tuple[str, str]], train: Source
  ) -> None:
    """Shows notes on damaged checkpoints, a header, and notes on the images."""
    for line in (*self.loaded.notes, *self.notes):
      display.note(line)
    display.header([("model", self.name), *rows])
    images = looked_at(train)
    for line in channel_warnings(images, self.preprocessing.spec):
      display.note(line)

  @contextlib.contextmanager
  def reading(
    self,
    represent: Callable[[Any, Any], Any],
    splits: Sequence[Source],
    params: Any,
    track: Track,
  ) -> Iterator[list[Represented]]:
    """Opens the two splits, and yields the representations of each.

    They are computed as they are iterated over, and can be read only once.
    """
    read = make_represent(represent, self.mesh, self.preprocessing)
    rows = min(self.batch_size, max(map(len, splits)))
    with contextlib.ExitStack() as stack:
      representations = []
      for split, name in zip(splits, ("training", "evaluation"), strict=True):
        stream = Stream(split, self.mesh, self.preprocessing, self.loader, rows)
        stack.enter_context(contextlib.closing(stream))
        representations.append(
          read(params, stream, f"reading the {name} split", track)
        )
      yield representations
