"""Opens a folder or a file of labels, and recognises what labels it has."""

import dataclasses

from vit_jax.data.reading import recognise
from vit_jax.data.reading.column_roles import as_text
from vit_jax.data.reading.label_file import locate
from vit_jax.data.reading.labels import NONE as UNUSED
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.letters import without_tokens
from vit_jax.data.reading.places import place_of
from vit_jax.data.reading.sources import Splits, open_splits
from vit_jax.tasks.settings import DataSettings


def open_found(root: str, data: DataSettings, labels: Labels) -> Splits:
  """The splits of a folder or a file.

  Raises ValueError as `open_splits` does, and for a folder of packed images.
  """
  place = place_of(root)
  if place and place.is_packed:
    raise ValueError(
      f"{root!r} is packed, and its images were decoded for that: give the "
      "folder or the file that it was packed from."
    )
  key = place.key if place else "root"
  return open_splits(dataclasses.replace(data, **{key: root}), labels)


def recognised(
  root: str, data: DataSettings, task_is_given: bool = False
) -> tuple[DataSettings, Labels, list[str]]:
  """The settings, the kind of labels, and a line if the data have no classes.

  The line is in a list, which is empty otherwise. Unless the user gave a task,
  the kind is recognised from the data, as by `vit_jax train`, and so are the
  columns of labels unless the settings name some. A task that is not the
  default one is always kept.
  """
  kind: Labels = data.label_kind or SINGLE
  notes: list[str] = []
  path = place_of(root)
  file = root if path and path.is_file else data.labels_file
  if not data.labels:
    kind = UNUSED
  elif kind == SINGLE and not task_is_given:
    if file:
      place = locate(dataclasses.replace(data, root=root), file)
      result = recognise.recognise_file(
        place, data if data.labels_file else None
      )
    else:
      result = recognise.recognise_folder(root)
    if result.why:
      kind = result.labels if result.labels.are_used else UNUSED
      notes = [f"There are no class labels, as {result.why}."]
      data = dataclasses.replace(data, labels=result.labels.are_used)
    if result.why and result.columns and not data.label_columns:
      columns = as_text(result.columns)
      data = dataclasses.replace(data, labels_file=file, label_columns=columns)
  return data, without_tokens(kind), notes
