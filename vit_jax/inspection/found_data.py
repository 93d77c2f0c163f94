"""Opens a folder or a file of labels, and tells what labels it has."""

import dataclasses

from vit_jax.data.reading import recognise
from vit_jax.data.reading.column_roles import as_text
from vit_jax.data.reading.label_file import located
from vit_jax.data.reading.labels import NONE as UNUSED
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.letters import without_tokens
from vit_jax.data.reading.places import place_of
from vit_jax.data.reading.sources import Splits, open_splits
from vit_jax.tasks.settings import DataSettings


def open_found(
  root: str, data: DataSettings, labels: Labels, windowed: bool
) -> Splits:
  """The splits of a folder or a file.

  Raises ValueError as `open_splits`, and for a folder of packed images.
  """
  place = place_of(root)
  if place and place.is_packed:
    raise ValueError(
      f"{root!r} is packed, and each of its images was decoded then: give the "
      "folder or the file that it was packed from."
    )
  key = place.key if place else "root"
  return open_splits(dataclasses.replace(data, **{key: root}), windowed, labels)


def recognised(
  root: str, data: DataSettings, task_is_given: bool = False
) -> tuple[DataSettings, Labels, list[str]]:
  """The settings, the kind of labels, and a line if the data tell it.

  Without a task or columns, what the data are for is told as `vit_jax train`
  does. A task that is given, if it is the default one, is not second-guessed.
  """
  kind: Labels = data.label_kind or SINGLE
  told: list[str] = []
  path = place_of(root)
  file = root if path and path.is_file else data.labels_file
  if not data.labels:
    kind = UNUSED
  elif kind == SINGLE and not task_is_given:
    if file:
      place = located(dataclasses.replace(data, root=root), file)
      found = recognise.of_file(place, data if data.labels_file else None)
    else:
      found = recognise.of_folder(root)
    if found.why:
      kind = found.labels if found.labels.are_used else UNUSED
      told = [f"There are no class labels, as {found.why}."]
      data = dataclasses.replace(data, labels=found.labels.are_used)
    if found.columns and not data.label_columns:
      columns = as_text(found.columns)
      data = dataclasses.replace(data, labels_file=file, label_columns=columns)
  return data, without_tokens(kind), told
