"""Runs on images that keep their proportions: what does not fit them."""

from vit_jax.models import Model
from vit_jax.models.patches import check_any_size
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import changed
from vit_jax.tasks.task import Task

# Keys that say nothing for such images, and why.
_REFUSED = {
  "loss.mixup_alpha": "mixes images of one size",
  "loss.cutmix_alpha": "mixes images of one size",
  "cut_from": "cuts images of one size",
  "eval_transform.crop": "cuts images to one size",
  "eval_transform.longest_ratio": "cuts images to one size",
  "train_transform.as_published": "draws boxes of other proportions",
  "distill.teacher": "answers for images of one size",
  "eval_pictures": "draws images of one size",
}


def check(settings: Settings, task: Task, model: Model) -> None:
  """Raises ValueError if a run cannot take `data.tokens`, which is set."""
  tokens = settings.data.tokens
  if not task.takes_any_size:
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and the task "
      f"{task.name} takes images of one size: leave it out."
    )
  changes = changed(settings)
  for name in changes.keys() & _REFUSED.keys():
    value, default = changes[name]
    raise ValueError(
      f"data.tokens={tokens} keeps the proportions of images, and "
      f"{name}={value!r} {_REFUSED[name]}: set it to {default!r}, or leave "
      "data.tokens out."
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
