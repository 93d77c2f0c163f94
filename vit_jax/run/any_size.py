"""Checks the settings of runs on images that keep their proportions."""

from vit_jax.models import Model
from vit_jax.models.patches import check_any_size, why_one_size
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import changed
from vit_jax.tasks.task import Task

# Keys that do not apply to images that keep their proportions, and why.
_REFUSED = {
  "loss.mixup_alpha": "mixes images of one size",
  "loss.cutmix_alpha": "mixes images of one size",
  "cut_from": "cuts images of one size",
  "eval_transform.crop": "cuts images to one size",
  "eval_transform.longest_ratio": "cuts images to one size",
  "train_transform.as_published": "draws boxes of other proportions",
}
_PACKING_KEYS = {"data.row_tokens", "data.min_tokens"}


def check(settings: Settings, task: Task, model: Model) -> None:
  """Raises ValueError if a run cannot have the `data.tokens` that is set."""
  tokens = settings.data.tokens
  assert tokens is not None
  if not task.any_size:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and the task "
      f"{task.name} takes images of one size: leave data.tokens out."
    )
  _check_packing(settings)
  changes = changed(settings)
  for name in changes.keys() & _REFUSED.keys():
    value, default = changes[name]
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and "
      f"{name}={value!r} {_REFUSED[name]}: set it to {default!r}, or leave "
      "data.tokens out."
    )
  drawn = settings.eval_pictures
  if drawn and task.panels is not None:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and "
      f"eval_pictures={drawn} draws the task {task.name} on images of one "
      "size: set it to 0, or leave data.tokens out."
    )
  if not model.any_size:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and a "
      f"{type(model).__name__} takes images of one size: take another model, "
      "such as B/16."
    )
  try:
    check_any_size(model)
  except ValueError as error:
    raise ValueError(f"data.tokens={tokens}: {error}") from error


def check_teacher(settings: Settings, teacher: Model, student: Model) -> None:
  """Raises ValueError if a teacher cannot see the patches of its student."""
  tokens, name = settings.data.tokens, settings.distill.teacher
  reason = why_one_size(teacher) if teacher.any_size else type(teacher).__name__
  if reason:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and "
      f"distill.teacher={name!r} takes images of one size ({reason}): take "
      "another teacher, or leave data.tokens out."
    )
  if teacher.stride != student.stride:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and "
      f"distill.teacher={name!r} has patches of {teacher.stride} x "
      f"{teacher.stride} pixels, and the student of {student.stride} x "
      f"{student.stride}: take models with patches of one size, or leave "
      "data.tokens out."
    )


def _check_packing(settings: Settings) -> None:
  """Raises ValueError if images cannot share rows as the settings say."""
  data = settings.data
  images, tokens, row = data.images_per_row, data.tokens or 0, data.row_tokens
  if images == 1:
    for name in _PACKING_KEYS & changed(settings).keys():
      value, _ = changed(settings)[name]
      raise ValueError(
        f"{name}={value} is for images that share rows: set "
        f"data.images_per_row, or leave {name} out."
      )
    return
  if row is not None and row < max(tokens, images):
    raise ValueError(
      f"data.row_tokens={row} has no room for an image of data.tokens={tokens}"
      f", or for data.images_per_row={images} images of one patch each: set it "
      f"to {max(tokens, images)} or more."
    )
  if data.min_tokens is not None and data.min_tokens > tokens:
    raise ValueError(
      f"data.min_tokens={data.min_tokens} is more than data.tokens={tokens}, "
      "which is the most that an image may have: set data.min_tokens to "
      f"{data.tokens} or less."
    )
