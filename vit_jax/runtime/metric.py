"""How a metric is named and shown, wherever a person meets it."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Metric:
  """A metric of a task.

  Attributes:
    key: Its name in `metrics.jsonl`, after "eval/" or "train/".
    label: Its name in tables and charts.
    format: How its value is written.
    higher_is_better: None if it is neither good nor bad.
    words: What stands before the value in a line; the label by default.
  """

  key: str
  label: str
  format: str = "{:.2%}"
  higher_is_better: bool | None = True
  words: str | None = None

  def text(self, values: Mapping[str, Any], kind: str = "eval") -> str | None:
    """The metric in words, as "top-1 98.33%"; None if it was not measured."""
    value = values.get(f"{kind}/{self.key}")
    if value is None:
      return None
    return f"{self.words or self.label} {self.format.format(value)}"
