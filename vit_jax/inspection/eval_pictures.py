"""Pictures of an evaluation: predictions, rollouts and a confusion matrix."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import UInt8

from vit_jax.data.example import Source, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.evaluation.confusion import Tally
from vit_jax.inference.predictor import class_name, make_predict_step
from vit_jax.inspection import attention_maps
from vit_jax.models import ResNet, Vit
from vit_jax.runtime import extras
from vit_jax.training import sharding

_TOP = 5  # Number of classes shown for an example.


class EvalPictures:
  """Draws the same examples of the eval split at every evaluation.

  Args:
    model: The model in training.
    mesh: The mesh of devices.
    source: The eval split.
    preprocessing: The model's preprocessing.
    loss: The model's loss; it decides between softmax and sigmoid.
    count: Number of examples to draw.

  Raises:
    ValueError: if matplotlib is not installed.
  """

  def __init__(
    self,
    model: Vit | ResNet,
    mesh: Mesh,
    source: Source,
    preprocessing: Preprocessing,
    *,
    loss: str,
    count: int,
  ):
    self._figures = extras.load("vit_jax.inspection.figures", "figures")
    self._canvas = extras.load("vit_jax.inspection.canvas", "figures")
    self._charts = extras.load("vit_jax.inspection.charts", "figures")
    self._model, self._normalization = model, preprocessing.normalization
    names = source.class_names
    self._names = [class_name(names, k) for k in range(model.num_classes)]
    self._examples = chosen_examples(source, preprocessing, count)
    self._gather = jax.jit(
      lambda params: params, out_shardings=sharding.replicated(mesh)
    )
    predict_step = make_predict_step(
      model,
      **self._normalization,
      loss=loss,
      top=_TOP,
      features=False,
    )
    self._predict = jax.jit(predict_step)

  def __call__(
    self, params: Any, tally: Tally
  ) -> dict[str, UInt8[np.ndarray, "H W 3"]]:
    """Draws pictures by name; all hosts must call, and only the first draws.

    Args:
      params: The model's parameters, sharded in any way over the mesh.
      tally: Counts of the answers to the whole split.
    """
    whole = self._gather(params)
    if jax.process_index():
      return {}
    local = jax.tree.map(lambda array: array.addressable_data(0), whole)
    drawn = {
      f"eval/example_{number}": self._sheet(local, image, label)
      for number, (_, image, label) in enumerate(self._examples, 1)
    }
    most = self._charts.MOST_CLASSES
    if classes := tally.shown(len(self._names), most):
      drawn["eval/confusion"] = self._charts.confusion_figure(
        tally.confusion(classes), [self._names[k] for k in classes]
      )
    return {key: self._canvas.pixels(one) for key, one in drawn.items()}

  def _sheet(self, params: Any, image: np.ndarray, label: int) -> Any:
    """Draws an example, the model's answer and its attention rollout."""
    best = jax.device_get(self._predict(params, image[None]))
    rollout = attention_maps.image_rollout(
      self._model, params, image, **self._normalization
    )
    return self._figures.sheet_figure(
      image,
      [self._names[index] for index in best["index"][0]],
      best["probability"][0],
      rollout,
      title=f"Class {self._names[label]}",
    )


def chosen_examples(
  source: Source, preprocessing: Preprocessing, count: int
) -> list[tuple[int, np.ndarray, int]]:
  """Readable images, spread evenly over the split.

  Returns:
    The index, the pixels (H, W, 3) and the label of each.
  """
  transform = preprocessing.transform()
  last, count = len(source) - 1, min(count, len(source))
  found = []
  for index in np.linspace(0, last, count).round().astype(int).tolist():
    try:
      example = source[index]
      found.append((index, transform(example["image"]), example["label"]))
    except UnreadableImageError:
      continue
  return found
