"""Settings of the data of a run, which name its task.

Importing this module needs the standard library alone.
"""

import dataclasses
from typing import TYPE_CHECKING

from vit_jax.data import settings as data_settings
from vit_jax.runtime import checks
from vit_jax.runtime.checks import COUNT, Rule
from vit_jax.runtime.settings import setting
from vit_jax.tasks.table import LABELLED_TASKS, labels_of

if TYPE_CHECKING:
  from vit_jax.data.reading.labels import Labels


@dataclasses.dataclass(frozen=True)
class DataSettings(data_settings.DataSettings):
  """Where the images come from, and the task, which says what labels they have.

  The other settings of the data are in the base class.
  """

  _of_labels_file = (
    *data_settings.DataSettings._of_labels_file,
    "task",
    "unknown",
  )

  task: str = setting(
    "classification",
    'What is learned for an image: a class ("classification"); from a file of '
    'labels, several labels ("multilabel"), numbers ("regression") or captions '
    '("pairs"); from a folder of masks, the class of each pixel '
    '("segmentation"); from a folder of targets, numbers for each pixel '
    '("dense_regression"); or a task of your own, as "file.py:Class".',
    must=Rule(
      f"be one of {', '.join(LABELLED_TASKS)}, or file.py:Class",
      lambda name: name in LABELLED_TASKS or ":" in name,
    ),
  )

  tokens: int | None = setting(
    None,
    "Keep the proportions of each image, and resize it so that at most this "
    "many patches cover it, such as 256; None resizes all images to "
    "`image_size`.",
    must=checks.up_to(
      16_384, "an image of 1792 x 1792 pixels has that many patches of 14 x 14"
    ),
  )

  images_per_row: int = setting(
    1,
    "Images that share a row of a training batch, on average: a batch has "
    "batch_size / images_per_row rows.",
    must=checks.up_to(256, "a row would be longer than a device can take"),
    needs="tokens",
  )
  row_tokens: int | None = setting(
    None,
    "Number of patches of a row that several images share; None takes `tokens` "
    "times `images_per_row`. If images do not fit into the rows that are "
    "filled together, the larger ones are shown with fewer patches.",
    must=COUNT,
    needs="tokens",
  )
  min_tokens: int | None = setting(
    None,
    "Draw each training image's maximum number of patches between this and "
    "`tokens`, for images that share rows; None always takes `tokens`.",
    must=COUNT,
    needs="tokens",
  )

  def refuse_keys_of_batches(self, command: str) -> None:
    """Raises ValueError for a key of batches that a command does not make."""
    for name in ("tokens", "sampling"):
      value = getattr(self, name)
      if value != getattr(type(self), name):
        raise ValueError(
          f"data.{name}={value} is for the batches of a training run, and has "
          f"no effect on {command}: leave it out."
        )

  @property
  def label_kind(self) -> "Labels":
    """The kind of labels that the task reads."""
    return labels_of(self.task)

  @property
  def _pixels_may_be_unknown(self) -> bool:
    return labels_of(self.task).pixels_may_be_unknown

  def _needs_labels_file(self, name: str) -> bool:
    """Whether a field of `_of_labels_file`, as set, needs a file of labels."""
    if name == "unknown":
      # Another check refuses it where there is no folder.
      return bool(self.root) and not self._pixels_may_be_unknown
    if name != "task":
      return True
    if self.task not in LABELLED_TASKS:
      return False
    kind = labels_of(self.task)
    # A kind's own reader reads folders, and records have their labels.
    come_with_images = kind.reader or (kind.records and (self.dir or self.name))
    return not come_with_images

  def _alternatives(self, name: str) -> str:
    """Words on what else a field may need.

    They name packed images, if records may have the task's labels, and for
    `unknown` the task of pixels; they are "" for other fields.
    """
    if name == "unknown":
      return ", or task=dense_regression, numbers for each pixel of a folder"
    if name == "task" and labels_of(self.task).records:
      return ", or dir, which vit_jax pack wrote (of .tar files too)"
    return ""
