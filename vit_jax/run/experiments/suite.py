"""Scores an ImageNet model on many test sets, as one table."""

import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.batching.loader import make_loader
from vit_jax.data.reading import imagenet_sets
from vit_jax.data.reading.imagenet_sets import (
  ALEXNET_ERRORS,
  SETS,
  SEVERITIES,
  AbsentError,
  TestSet,
)
from vit_jax.data.settings import LoaderSettings
from vit_jax.models.model import normalize
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run.experiments.probe import probe_shots
from vit_jax.run.experiments.study_file import csv_text
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import Display, Track
from vit_jax.runtime.files import CSV, output_file, replacing
from vit_jax.tasks.finite import NO_ANSWER, is_answer
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.settings import DataSettings
from vit_jax.training import sharding

FEW_SHOT = (
  "caltech101",
  "cifar100",
  "dtd",
  "oxford_flowers102",
  "oxford_iiit_pet",
)
SHOTS = (1, 5, 10, 25)
NAMES = (*SETS, "c", *(f"few_shot/{name}" for name in FEW_SHOT))
COLUMNS: tuple[str, ...] = ("set", "top1", "top5", "mce", "examples", "skipped")
_BATCH = 64

Row = dict[str, Any]


def run_suite(
  checkpoint: str,
  names: Sequence[str] = NAMES,
  *,
  root: str | None = None,
  data_dir: str | None = None,
  out: str | None = None,
  **overrides: Any,
) -> list[Row]:
  """Prints a table with a row for each test set that can be opened.

  The arguments are those of the command, and keywords of `load_pretrained`. A
  name is one of `NAMES`, or "few_shot/NAME" for any other data set. Raises
  ValueError if a name is unknown, the model is not for ImageNet's classes, none
  of the sets can be opened, or there are several processes. Returns the rows,
  with values by `COLUMNS`.
  """
  path, kind = None, ""
  if out is not None:
    path, kind = output_file(out, CSV | {"JSON": (".json",)})
  for name in names:
    if name not in NAMES and not name.startswith("few_shot/"):
      raise ValueError(
        f"--suite has no {name!r}; it has {', '.join(NAMES)}, and few_shot/ "
        "with any other data set."
      )
  if jax.process_count() > 1:
    raise ValueError("--suite runs in one process: start it on one host.")
  display = Display()
  loaded = open_checkpoint(checkpoint, hold=Loaded.read_params, **overrides)
  for line in loaded.notes:
    display.note(line)
  scorer = None
  if not all(name.startswith("few_shot/") for name in names):
    _check_classes(checkpoint, loaded)
    if loaded.class_names != imagenet_sets.WORDNET_IDS:
      display.note(
        f"The classes of {checkpoint} are taken for ImageNet's in their usual "
        "order."
      )
    scorer = _Scorer(loaded, display.track)
  places = {"root": root, "data_dir": data_dir}
  rows: list[Row] = []
  for name in names:
    try:
      if name.startswith("few_shot/"):
        rows += _few_shot(loaded, name, display, **places)
      else:
        assert scorer is not None
        rows += _scores(scorer, name, display, **places)
    except AbsentError as error:
      display.note(f"{name} is skipped: {error}")
  if not rows:
    raise ValueError("none of the suite's sets is there: see the lines above.")
  display.table(COLUMNS, [[_cell(row, c) for c in COLUMNS] for row in rows])
  if path is not None:
    with replacing(path) as file:
      text = json.dumps([*rows], indent=1) + "\n"
      if kind == "CSV":
        text = csv_text(rows, COLUMNS)
      file.write(text.encode())
    display.note(f"Wrote {path}.")
  return rows


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
  """mCE in percent (arXiv:1903.12261).

  `errors` has for each corruption the top-1 errors at its severities, as
  shares.
  """
  each = [np.mean(errors[name]) / e for name, e in ALEXNET_ERRORS.items()]
  return 100 * float(np.mean(each))


class _Scorer:
  """Scores a model on one set after another.

  `loaded` holds the parameters; `track` shows the progress on each set.
  """

  def __init__(self, loaded: Loaded, track: Track):
    self._preprocessing, self._track = loaded.preprocessing, track
    self._mesh = sharding.make_mesh()
    whole = sharding.replicated_sharding(self._mesh)
    self._params = jax.device_put(nn.unbox(loaded.params), whole)
    model, normalization = loaded.model, loaded.preprocessing.normalization

    def best(params: Any, images: Any, among: Any) -> jax.Array:
      """The five likeliest classes in `among`, (B, 5); -1 if logits are NaN."""
      x = normalize(images, **normalization)
      logits: Any = model.apply({"params": params}, x)
      known = is_answer(logits)[:, None]
      _, index = jax.lax.top_k(logits[:, among], min(5, len(among)))
      return jnp.where(known, among[index], NO_ANSWER)

    split = sharding.batch_sharding(self._mesh)
    self._best = jax.jit(
      best, in_shardings=(whole, split, whole), out_shardings=whole
    )
    self._num_classes = model.num_classes

  def __call__(self, name: str, test_set: TestSet) -> Row:
    """The scores on a test set, as shares, and the numbers of its images.

    Raises ValueError if no image is readable.
    """
    among = np.array(test_set.candidates or range(self._num_classes))
    loader = make_loader(
      LoaderSettings(on_unreadable="skip"),
      photographs=True,
      image_size=self._preprocessing.image_size,
    )
    rows = min(_BATCH, len(test_set.source))
    stream = Stream(
      source=test_set.source,
      mesh=self._mesh,
      preprocessing=self._preprocessing,
      loader=loader,
      batch_size=rows,
    )

    def answers(batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
      """The likeliest classes, the labels, which rows count, which are bad."""
      best = self._best(self._params, batch["image"], among)
      return best, batch["label"], batch["mask"] > 0, batch["skipped"]

    with contextlib.closing(stream) as batches:
      results = map(answers, batches(self._track, name))
      parts = zip(*sharding.fetch_results(results), strict=True)
      best, label, counted, skipped = map(np.concatenate, parts)
    if not counted.any():
      raise ValueError(f"{name}: none of its images is readable.")
    pairs = zip(best[counted], label[counted], strict=True)
    right = np.array(
      [[one in test_set.correct[k] for one in ranked] for ranked, k in pairs]
    )
    return {
      "set": name,
      "top1": float(right[:, 0].mean()),
      "top5": float(right.any(axis=1).mean()),
      "examples": len(right),
      "skipped": int(skipped.sum()),
    }


def _scores(
  scorer: _Scorer, name: str, display: Display, **places: str | None
) -> list[Row]:
  """The rows of a test set: one, or for "c" one for each part and the mean.

  If parts of "c" are missing, there is no mean. Raises AbsentError if all are.
  """
  if name != "c":
    test_set = imagenet_sets.open_set(name, **places)
    if test_set.missing_note:
      display.note(f"{name}: {test_set.missing_note}.")
    return [scorer(name, test_set)]
  errors: dict[str, list[float]] = {}
  rows, missing, lacking = [], [], []
  for corruption in ALEXNET_ERRORS:
    for severity in SEVERITIES:
      part = f"c/{corruption}/{severity}"
      try:
        test_set = imagenet_sets.open_set(part, **places)
      except AbsentError:
        missing.append(part)
        continue
      if test_set.missing_note:
        lacking.append(f"in {part} {test_set.missing_note}")
      rows.append(scorer(part, test_set))
      errors.setdefault(corruption, []).append(1 - rows[-1]["top1"])
  if not rows:
    raise AbsentError("no folder imagenet-c in --root, and TFDS has none.")
  if lacking:
    parts = f"{len(lacking)} of its parts lack classes"
    display.note(f"c: {parts}: {lacking[0]}.")
  if missing:
    display.note(
      f"ImageNet-C (c) has no mCE: {len(missing)} of 75 parts are missing, "
      f"the first {missing[0]}."
    )
    return rows
  top1 = float(np.mean([row["top1"] for row in rows]))
  examples = sum(row["examples"] for row in rows)
  mce = mean_corruption_error(errors)
  skipped = sum(row["skipped"] for row in rows)
  whole = {"top1": top1, "mce": mce, "examples": examples, "skipped": skipped}
  return [*rows, {"set": "c", **whole}]


def _few_shot(
  loaded: Loaded,
  name: str,
  display: Display,
  root: str | None,
  data_dir: str | None,
) -> list[Row]:
  """A row for each number of shots that the data set has images for.

  Raises AbsentError if it has too few for one shot, or cannot be opened.
  """
  dataset = name.removeprefix("few_shot/")
  data = DataSettings(name=dataset, data_dir=data_dir)
  if root and (folder := pathlib.Path(root).expanduser() / dataset).is_dir():
    data = DataSettings(root=str(folder))
  settings = ProbeSettings(data=data)
  shots = [*SHOTS]
  each = None
  skipped: list[str] = []
  while each is None:
    try:
      each = probe_shots(loaded, settings, shots)
    except ValueError as error:
      most = shots.pop()
      if not shots:
        raise AbsentError(str(error)) from error
      skipped.append(f"{name} with {most} shots is skipped: {error}")
  for line in skipped:
    display.note(line)
  return [
    {
      "set": f"{name}, {n} shots",
      "top1": outcome.top1,
      "examples": outcome.examples,
      "skipped": outcome.skipped_images,
    }
    for n, outcome in zip(shots, each, strict=True)
  ]


def _check_classes(checkpoint: str, loaded: Loaded) -> None:
  """Raises ValueError if the number or the order of classes is not ImageNet's.

  1,000 classes whose names are not WordNet ids are taken for ImageNet's.
  """
  ids = imagenet_sets.WORDNET_IDS
  if loaded.model.num_classes != len(ids):
    raise ValueError(
      f"{checkpoint} has {loaded.model.num_classes} classes, and the suite's "
      "sets are for ImageNet's 1,000: give --suite=few_shot/cifar100."
    )
  names = loaded.class_names
  if set(names) == set(ids) and names != ids:
    raise ValueError(
      f"{checkpoint} has ImageNet's classes in another order than the usual "
      "one: the suite cannot tell which answer is right."
    )


def _cell(row: Row, column: str) -> str:
  """The text of a row in a column; "" if the row has no such value."""
  if column not in row or column == "set":
    return row.get(column, "")
  formats = {"top1": ".2%", "top5": ".2%", "mce": ".1f"}
  return format(row[column], formats.get(column, ","))
