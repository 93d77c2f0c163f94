"""Finds the metrics of a run by the names that other trainers use for them."""

from collections.abc import Iterable
from typing import Any

from vit_jax.runtime import hints
from vit_jax.runtime.display import Split

_OTHERS = {"accuracy": "top1", "acc": "top1", "top1_accuracy": "top1"}
# `val_loss`, as other trainers write it, is of the evaluation split.
_SPLITS = {"val_": Split.EVAL.key(""), "test_": Split.TEST.key("")}


def key_of(name: str, keys: Iterable[str], first: str) -> str:
  """The key that a name stands for, such as "eval/top1" for "accuracy".

  Args:
    name: A key, its part after the split, or what other trainers call it.
    keys: The keys of all metrics.
    first: The split to take if several have the metric, such as "eval/".

  Raises:
    KeyError: if no key has this name; the message lists all keys.
  """
  keys = [*keys]
  if name in keys:
    return name
  plain, splits = name, [first, *_SPLITS.values()]
  for start, split in _SPLITS.items():
    if name.startswith(start):
      plain = name.removeprefix(start)
      splits = [split]
  plain = _OTHERS.get(plain, plain)
  for split in splits:
    if split + plain in keys:
      return split + plain
  raise KeyError(
    f"there is no {name!r}; the measured keys are {', '.join(keys)}"
  )


class Metrics(dict[str, Any]):
  """Metrics by their keys; `metrics["accuracy"]` is that of "eval/top1"."""

  def __missing__(self, name: str) -> Any:
    """The metric of another name; raises KeyError as `key_of` does."""
    return self[key_of(name, self, Split.EVAL.key(""))]


class History(list[dict[str, Any]]):
  """Rows of metrics by step; `history["loss"]` is the list of training losses.

  A name is a key, or its part after the split. Without a split, the metric of
  training is taken if there is one; `val_loss` is the loss of the evaluation.
  """

  @property
  def history(self) -> "History":
    """The object itself, as Keras has the metrics in `history.history`."""
    return self

  def _keys(self) -> list[str]:
    """The keys of all rows, each once."""
    return [*dict.fromkeys(key for row in self for key in row)]

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError, with what to write instead."""
    hint = hints.hint_instead(name, "history") or (
      "; it is a list of rows, each a dictionary of what was measured at one "
      'step, and run.history["step"] is a column of it: '
      f"{', '.join(self._keys())}."
    )
    raise AttributeError(
      f"a run's history has no attribute {name!r}{hint}", name=name, obj=self
    )

  def __getitem__(self, index: Any) -> Any:
    """A row or a slice of rows; by a metric's name, the list of its values.

    Rows without the metric are left out. Raises KeyError as `key_of` does.
    """
    if not isinstance(index, str):
      return super().__getitem__(index)
    key = key_of(index, self._keys(), Split.TRAIN.key(""))
    return [row[key] for row in self if key in row]
