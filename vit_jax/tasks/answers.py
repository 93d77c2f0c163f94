"""How the outputs of a trained model become an answer about an image.

A task whose models answer has `answers`. Predictions, reports, exports and
calibration each call the methods that they need.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol, runtime_checkable

import flax.linen as nn
import numpy as np
from jaxtyping import Array, Float

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.tasks.outcome import Stream


@runtime_checkable
class Answer(Protocol):
  """A model's answer to one image, such as `inference.predictor.Prediction`.

  `index` and `probability` are those of the likeliest classes, and `values` the
  numbers of a regression; what a task does not answer is ().
  """

  @property
  def index(self) -> tuple[int, ...]: ...
  @property
  def probability(self) -> tuple[float, ...]: ...
  @property
  def values(self) -> tuple[float, ...]: ...


class PixelFiles(Protocol):
  """Writes masks, or other answers for each pixel, and keeps statistics.

  Attributes:
    one: The word for one of the files, such as "mask".
    folder, ending: The name of their folder, and the ending of their files.
  """

  @property
  def one(self) -> str: ...
  @property
  def folder(self) -> str: ...
  @property
  def ending(self) -> str: ...

  def add(self, mask: np.ndarray, /) -> None:
    """Adds one more mask, (H, W), to the statistics."""
    ...

  def save(self, mask: np.ndarray, out: IO[bytes], /) -> None:
    """Writes a mask, (H, W), to an open file."""
    ...

  def overlay(self, image: np.ndarray, mask: np.ndarray, /) -> np.ndarray:
    """The mask (H, W) in colours, uint8 (H, W, 3).

    The picture may show the image below the colours. `image` is uint8 (H, W,
    3).
    """
    ...

  def lines(self) -> list[str]:
    """Lines with the statistics of all masks."""
    ...


class Answers:
  """The answers of a task's models; the base class of each kind of answer.

  Answers for whole images have `outputs`, `as_json`, `lines` and `text`, and
  answers for each pixel have `marker`.
  """

  @property
  def meaning(self) -> str:
    """A sentence on what the model's outputs mean."""
    return ""

  @property
  def legend(self) -> str | None:
    """A line that explains the rows of `lines`; None if they need none."""
    return None

  @property
  def are_ranked(self) -> bool:
    """Whether an answer is a list of classes, the likeliest first."""
    return True

  @property
  def given_from(self) -> float | None:
    """The least probability with which a label is given to an image.

    It is None where an image has one class.
    """
    return None

  def outputs(self, logits: Float[Array, "B K"], top: int) -> dict[str, Array]:
    """The parts of an answer, on the device.

    They are `index` and `probability` of at most `top` classes, both (B, n), or
    the `values` of all targets, (B, K).
    """
    raise NotImplementedError

  def as_json(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> dict[str, Any]:
    """An answer as JSON.

    `names` has the names of classes or targets, as far as they are known, and
    `top` is the largest number of classes to give; by default all that the
    answer has.
    """
    raise NotImplementedError

  def lines(
    self, answer: Answer, names: Sequence[str], top: int | None = None
  ) -> list[str]:
    """An answer as lines of text; the arguments are those of `as_json`."""
    raise NotImplementedError

  def text(self, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """One image's `outputs` in a few words."""
    raise NotImplementedError

  def marker(
    self,
    model: nn.Module,
    preprocessing: Preprocessing,
    short_side: int | None = None,
  ) -> Callable[..., np.ndarray] | None:
    """Makes the function that answers for each pixel of an image.

    It is a function from parameters and an image's pixels (H, W, C), of any
    size, to the class or the number of each pixel (H, W); None if pixels get no
    answer. If images may lack bands, it also takes booleans (C,), which say
    which bands the image has. With `short_side`, the image is resized to that
    shorter side and processed in overlapping windows.
    """
    return None

  def pixel_files(self, names: Sequence[str]) -> "PixelFiles":
    """A writer of the answers of `marker`.

    `names` are the names of the classes, or the name of the numbers.
    """
    raise NotImplementedError

  def leaf_in_unit(self, path: str, array: np.ndarray) -> np.ndarray:
    """An output head's parameter, with the scale of the answers folded in.

    The head's outputs are then in the unit of the answers. `path` is the
    parameter's, such as "head/kernel".
    """
    return array

  def temperatures(self, names: Sequence[str]) -> int:
    """How many temperatures divide the logits of these classes."""
    del names
    return 0

  def calibrator(
    self, model: nn.Module, stream: Stream
  ) -> Callable[..., Any] | None:
    """Makes a function from (params, track) to the `Calibration` of a split.

    `stream` yields the split. The function is None if the answers are not the
    probabilities of the model's logits.
    """
    return None


def answers_of(task: Any) -> Answers:
  """The answers of a task; raises ValueError if it has none."""
  if task.answers is None:
    raise ValueError(
      f"the task {task.name} gives no answer for an image by itself."
    )
  return task.answers


def calibrator_of(
  task: Any, model: nn.Module, stream: Stream
) -> Callable[..., Any]:
  """The function that fits temperatures of a task's answers on a split.

  Raises ValueError if the answers are not the probabilities of the model's
  logits.
  """
  calibrator = task.answers and task.answers.calibrator(model, stream)
  if calibrator is None:
    raise ValueError(
      f"the task {task.name} gives no probabilities that a temperature could "
      "calibrate: leave out --calibrate."
    )
  return calibrator
