"""Likely label errors of a data set: a file of them, and their pictures."""

import bisect
import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from vit_jax.data.batching.loader import make_loader
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.example import Example, ImageSpec, Source
from vit_jax.data.reading.sources import check_classes
from vit_jax.data.settings import LoaderSettings
from vit_jax.inspection.found_data import open_found, recognised
from vit_jax.inspection.panels import Drawing, Panel, put_together
from vit_jax.inspection.photograph import Photograph, in_colours
from vit_jax.models.model import represent
from vit_jax.pretrained.folder import probe_pooling
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.runtime import callable_module, hints
from vit_jax.runtime.display import Display, Track, untracked
from vit_jax.runtime.files import CSV, check_apart, output_file, replacing
from vit_jax.runtime.shown import path_of_run
from vit_jax.tasks.outcome import Stream, write_rows
from vit_jax.tasks.probes import label_errors
from vit_jax.tasks.probes.label_errors import LabelErrors
from vit_jax.tasks.probes.whole_set import make_represent
from vit_jax.tasks.settings import DataSettings
from vit_jax.training import sharding

_SHOWN = 3  # Images named on the screen.
PICTURES = 60  # Images in the picture.
_TILE, _COLUMNS = 192, 6
_BATCH = 32
_COLUMN_NAMES = (
  "given",
  "likely",
  "probability_given",
  "probability_likely",
  "margin",
  "listed",
)


@dataclasses.dataclass(frozen=True)
class IssueFiles:
  """The files to write.

  Attributes:
    issues: The CSV file of likely label errors.
    picture: A picture of the first of them.
    probabilities: The .npz file of all images' out-of-fold probabilities, if
      there is to be one.
  """

  issues: pathlib.Path
  picture: pathlib.Path
  probabilities: pathlib.Path | None

  @property
  def each(self) -> tuple[pathlib.Path | None, ...]:
    """All of the files."""
    return self.issues, self.picture, self.probabilities

  @classmethod
  def of_paths(cls, issues: str, probabilities: str | None) -> "IssueFiles":
    """The files by their names; the picture has the name of the CSV file.

    Raises ValueError if one cannot be written.
    """
    path, _ = output_file(issues, CSV)
    picture, _ = output_file(str(path.with_suffix(".png")), {"png": (".png",)})
    if not probabilities:
      return cls(path, picture, None)
    arrays, _ = output_file(probabilities, {"NumPy arrays": (".npz",)})
    return cls(path, picture, arrays)


class LabelIssue(NamedTuple):
  """An image whose label may be wrong.

  Attributes:
    image: The file.
    given: Its label.
    likely: The class that contradicts it.
    margin: The probability of the label minus that of the likeliest other
      class, in [-1, 1].
  """

  image: str
  given: str
  likely: str
  margin: float


@hints.accepts(
  "vit_jax.label_errors(loaded, folder)",
  same={
    "model": "checkpoint",
    **dict.fromkeys(("folder", "root", "path", "dataset"), "data"),
    **dict.fromkeys(("issues", "save", "save_to"), "out"),
  },
  first_by_name=True,
)
def find_label_errors(
  checkpoint: "str | os.PathLike[str] | Loaded",
  data: "str | os.PathLike[str] | Loaded",
  *,
  out: str | os.PathLike[str] | None = None,
  **overrides: Any,
) -> list[LabelIssue]:
  """Likely label errors, as `vit_jax inspect_data --model` lists them::

    vit_jax.label_errors("hf_s14_dinov2", "my_photos", out="issues.csv")

  Linear probes of the representations answer each image of all splits without
  having seen it, and lines say how many labels they contradict. Hard images are
  contradicted too, so look at the first ones first.

  Args:
    checkpoint: As `load_pretrained` takes it, or what it or `vit_jax.train`
      returned; an encoder that was not trained on these labels is best.
    data: A folder of class folders, or a file of labels. These two arguments
      may change places if the model is loaded.
    out: The CSV file to write, with a row for every readable image; a picture
      of the images that are listed is written beside it.
    **overrides: Keywords of `load_pretrained`, unless the model is loaded.

  Returns:
    The images that are listed, the lowest margin first.

  Raises:
    ValueError: if there are too few images, their labels are no classes, the
      checkpoint cannot be opened, or keywords are given for a loaded model.
  """
  if isinstance(data, Loaded):
    checkpoint, data = data, path_of_run(checkpoint)
  files = IssueFiles.of_paths(os.fspath(out), None) if out else None
  root = os.path.expanduser(os.fspath(data))
  check_apart(files.each if files else (), [root])
  settings, labels, notes = recognised(root, DataSettings())
  splits = open_found(root, settings, labels)
  check_classes(splits.train, "label_errors")
  if isinstance(checkpoint, Loaded):
    if overrides:
      raise ValueError(
        f"{', '.join(overrides)}: give these to vit_jax.load_pretrained, as "
        "this model is loaded already."
      )
    mesh = sharding.make_mesh()
    loaded = checkpoint.read_and_hold(lambda one: one.params_on(mesh))
  else:
    loaded = open_for_features(path_of_run(checkpoint), **overrides)
  every: Any = [splits.train, splits.eval, splits.test]
  display = Display()
  display.header([("data", splits.found)])
  for line in notes:
    display.note(line)
  return inspect_labels(
    loaded,
    [split for split in every if split is not None],
    files,
    display,
    num_workers=0 if callable_module.is_script() else -1,
  )


class JoinedSplits(Source):
  """Several splits of one data set, one after the other.

  The splits are sources with a method `ids`, as those of files are. Some may
  have `groups`, the number of each example's group.
  """

  def __init__(self, splits: Sequence[Any]):
    self.name = splits[0].name
    self.class_names = splits[0].class_names
    self._splits = splits
    self._starts = [0, *itertools.accumulate(map(len, splits))]

  def __len__(self) -> int:
    return self._starts[-1]

  def __getitem__(self, index: int) -> Example:
    split, inside = self._place(index)
    return split[inside]

  def ids(self, indices: Sequence[int]) -> list[str]:
    """The ids of some examples, without reading any file."""
    places = [self._place(int(index)) for index in indices]
    return [split.ids([inside])[0] for split, inside in places]

  def groups(self, indices: Int[np.ndarray, " n"]) -> np.ndarray | None:
    """The numbers of the examples' groups; None if a split has no groups."""
    groups_of_splits = [getattr(one, "groups", None) for one in self._splits]
    joined = []
    start = 0
    for groups in groups_of_splits:
      if groups is None:
        return None
      joined.append(groups + start)
      start += groups.max() + 1
    return np.concatenate(joined)[indices]

  def _place(self, index: int) -> tuple[Any, int]:
    """The split of an example, and its place in it."""
    number = bisect.bisect_right(self._starts, index) - 1
    return self._splits[number], index - self._starts[number]


def inspect_labels(
  loaded: Loaded,
  splits: Sequence[Any],
  files: IssueFiles | None,
  display: Display,
  num_workers: int = -1,
) -> list[LabelIssue]:
  """Looks for label errors in all splits together, and writes any files.

  Returns those that are listed. `num_workers` is as in `LoaderSettings`, and
  `loaded` is what `open_for_features` returned. Raises ValueError as
  `check_enough` does.
  """
  source = JoinedSplits(splits)
  names = source.class_names
  for line in loaded.notes:
    display.note(line)
  features, labels, places = read_features(
    loaded, source, display.track, num_workers
  )
  label_errors.check_enough(labels, names)
  p = label_errors.out_of_fold(
    features,
    labels,
    len(names),
    groups=source.groups(places),
    track=display.track,
  )
  ranked = label_errors.label_errors(labels, p)
  if files:
    rows = _rows(names, labels, p, ranked)
    write_rows(files.issues, source, _COLUMN_NAMES, places[ranked.index], rows)
  errors = ranked.only_listed()
  order = places[errors.index]
  given_names = [names[k] for k in labels[errors.index]]
  likely_names = [names[k] for k in errors.likely]
  written = str(files.issues) if files else ""
  if files and len(order):
    spec = loaded.preprocessing.spec
    captions = list(map("{}: {}?".format, given_names, likely_names))
    sheet = issue_sheet(source, order, captions, spec)
    with replacing(files.picture) as file:
      sheet.savefig(file)
    written += f", the first {min(len(order), PICTURES):,} in {files.picture}"
  if files and files.probabilities:
    with replacing(files.probabilities) as file:
      np.savez(
        file,
        files=np.array(source.ids(places.tolist())),
        labels=labels,
        class_names=np.array(names),
        probabilities=p,
        features=features,
      )
    written += f"; out-of-fold probabilities: {files.probabilities}"
  right = float((p.argmax(axis=1) == labels).mean())
  margins = errors.margin.tolist()
  columns = source.ids(order.tolist()), given_names, likely_names, margins
  issues = [*map(LabelIssue, *columns)]
  shown = [issue[:3] for issue in issues[:_SHOWN]]
  lines = issue_lines(
    given_names, likely_names, shown, images=len(labels), right=right
  )
  for line in lines:
    display.note(line)
  if written:
    display.note(f"label errors: {written}")
  return issues


def open_for_features(checkpoint: str, **overrides: Any) -> Loaded:
  """Opens a checkpoint, with its parameters on all devices.

  The arguments are those of `load_pretrained`. The pooling is by default that
  of a linear head which `vit_jax train` fits to few images.
  """
  if not {"pooling", "as_trained"} & overrides.keys():
    # If this fails, opening the checkpoint raises the error that says why.
    with contextlib.suppress(ValueError, OSError):
      pooling = probe_pooling(checkpoint)
      overrides |= {"pooling": pooling} if pooling else {}
  mesh = sharding.make_mesh()
  return open_checkpoint(
    checkpoint, hold=lambda one: one.params_on(mesh), **overrides
  )


def read_features(
  loaded: Loaded,
  source: Source,
  track: Track = untracked,
  num_workers: int = -1,
) -> tuple[
  Float[np.ndarray, "n D"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]
]:
  """The representations and labels of all readable images, and their places.

  A place is the index of an image in `source`. `loaded` is open with its
  parameters on all devices. The representations are those that a linear probe
  reads.
  """
  mesh = sharding.make_mesh()
  preprocessing = loaded.preprocessing
  loader = make_loader(
    LoaderSettings(on_unreadable="skip", num_workers=num_workers),
    photographs=True,
    image_size=preprocessing.image_size,
  )
  model = loaded.task.probed(loaded.model)[""]
  read = make_represent(partial(represent, model), mesh, preprocessing)
  rows = min(_BATCH, len(source))
  stream = Stream(source, mesh, preprocessing, loader, rows)
  labels = np.zeros(len(source), int)
  readable = np.zeros(len(source), bool)
  features = None
  first = 0
  with contextlib.closing(stream):
    batches = read(loaded.held, stream, "reading representations", track)
    for both in batches:
      y, row_info = jax.device_get(both)
      if features is None:
        features = np.zeros((len(source), y.shape[-1]), np.float32)
      part = slice(first, min(first + len(y), len(source)))
      count = part.stop - first
      features[part] = y[:count]
      labels[part] = row_info["label"][:count]
      readable[part] = row_info["mask"][:count] > 0
      first = part.stop
  assert features is not None
  places = np.flatnonzero(readable)
  return features[readable], labels[readable], places


def issue_lines(
  given: Sequence[str],
  likely: Sequence[str],
  shown: Sequence[tuple[str, str, str]],
  *,
  images: int,
  right: float,
) -> list[str]:
  """Lines on the likely label errors, with the labels given and likely.

  `shown` has the first files with both labels, and `images` is the number of
  images. `right` is the share of the images that the probe answers as labelled.
  """
  answers = (
    f"a probe that was fitted to other images and agrees with {right:.1%} of "
    "all labels"
  )
  if not given:
    return [f"no label of {images:,} images is contradicted by {answers}"]
  count = "1 label" if len(given) == 1 else f"{len(given):,} labels"
  verb = "is" if len(given) == 1 else "are"
  lines = [f"{count} of {images:,} images {verb} contradicted by {answers}"]
  lines.append(
    "  some of these labels may be right, as hard images are contradicted too: "
    "look at the first ones first"
  )
  lines += [f"  {name}: {a}, perhaps {b}" for name, a, b in shown]
  pairs = collections.Counter(zip(given, likely, strict=True)).most_common(1)
  (a, b), most = pairs[0]
  if most > 1:
    lines.append(f"  most often {a}, perhaps {b}: {most:,}")
  return lines


def issue_sheet(
  source: Source,
  order: Int[np.ndarray, " n"],
  captions: Sequence[str],
  spec: ImageSpec,
) -> Drawing:
  """Draws the first images at `order`, uncropped, below their captions."""
  panels = [
    Panel(_tile(decode_image(source[int(index)]["image"], spec)), caption)
    for index, caption in zip(order[:PICTURES], captions, strict=False)
  ]
  return put_together(panels, columns=min(_COLUMNS, len(panels)))


def _tile(pixels: np.ndarray) -> Photograph:
  """A whole image in a white square; small ones are enlarged."""
  image = Image.fromarray(in_colours(pixels))
  scale = _TILE / max(image.size)
  size = [max(1, round(scale * side)) for side in image.size]
  method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
  square = Image.new("RGB", (_TILE, _TILE), "white")
  corner = ((_TILE - size[0]) // 2, (_TILE - size[1]) // 2)
  square.paste(image.resize((size[0], size[1]), method), corner)
  return np.asarray(square)


def _rows(
  names: Sequence[str],
  labels: Int[np.ndarray, " N"],
  probabilities: Float[np.ndarray, "N K"],
  ranked: LabelErrors,
) -> Iterator[list[str]]:
  """The cells below `_COLUMN_NAMES` of each image, in the order of `ranked`."""
  for row, index in enumerate(ranked.index.tolist()):
    label = int(labels[index])
    likely = int(ranked.likely[row])
    numbers = (
      probabilities[index, label],
      probabilities[index, likely],
      ranked.margin[row],
    )
    yield [
      names[label],
      names[likely],
      *(f"{number:.6f}" for number in numbers),
      "yes" if ranked.listed[row] else "no",
    ]
