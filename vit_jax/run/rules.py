"""Keys that say nothing without another one."""

import functools
from typing import Any

from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import Duration, flat, to_dict

_OFF = (None, False, 0, "", Duration())
NEEDS = {
  "masked.rate": "masked.target",
  "pretrained": "lora.rank transfer.",
  "lora.rank": "lora.alpha lora.kernels",
  "distill.teacher": "distill.",
  "distill.kind=soft": "distill.temperature",
  "eval_every": (
    "early_stop_evaluations eval_per_class eval_pictures fewshot.shots"
  ),
  "save_every": "keep_last",
  "fewshot.shots": "fewshot.",
  "ema_decay": "ema_warmup",
  "data.labels_file": "data.outside",
  "data.root": "data.labels data.eval_fraction",
  "data.name or data.dir": "data.train_split",
  "train_transform.crop=inception": "train_transform.min_area",
  "train_transform.crop=pad": "train_transform.pad",
  "train_transform.randaugment_layers": "train_transform.randaugment_magnitude",
  "eval_transform.crop=center or eval_transform.crop=squash": (
    "eval_transform.resize_ratio"
  ),
  "loss.mixup_alpha or loss.cutmix_alpha": "loss.binary_targets",
  "model.drop_path_rate or pretrained": "model.drop_path_grows",
  "optimizer.kind=sgd or optimizer.kind=muon": "optimizer.momentum",
  "optimizer.kind!=sgd": "optimizer.b1 optimizer.b2 optimizer.epsilon",
  "optimizer.decay!=constant": "optimizer.final_lr",
  "optimizer.weight_decay or optimizer.kind=lamb": "optimizer.weight_decay_on",
}
"""What has to be on, or have a value or not -> keys that say nothing without.

A key that ends with a dot stands for the others of its section.
"""


def check(settings: Settings) -> None:
  """Raises ValueError for a key that is set, and says nothing."""
  given, default = (flat(to_dict(s)) for s in (settings, Settings()))
  changed = [key for key in given if given[key] != default[key]]
  for needed, keys in NEEDS.items():
    others = needed.split(" or ")
    starts = tuple(key for key in keys.split() if key.endswith("."))
    said = [k for k in changed if k in keys.split() or k.startswith(starts)]
    said = [key for key in said if key not in others]
    if said and not any(_is_on(settings, other) for other in others):
      raise ValueError(
        f"{said[0]}={given[said[0]]!r} says nothing without {needed}: set "
        f"that, or leave {said[0]} out."
      )
  repeats, size = settings.train_transform.repeats, settings.batch_size
  if repeats > size:
    raise ValueError(
      f"train_transform.repeats={repeats} is more than batch_size={size}: a "
      "batch would show copies of a single image."
    )


def _is_on(settings: Any, other: str) -> bool:
  """Whether "key" is on, or "key=value" or "key!=value" holds."""
  key, _, wanted = other.partition("=")
  names = key.removesuffix("!").split(".")
  value = functools.reduce(getattr, names, settings)
  if wanted:
    return (value == wanted) != key.endswith("!")
  return value not in _OFF
