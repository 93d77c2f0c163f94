"""Pictures of an evaluation: sample predictions, rollouts, the confusion."""

from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh
from jaxtyping import UInt8

from vit_jax import data
from vit_jax.data import splits
from vit_jax.evaluation.confusion import Tally
from vit_jax.inference.predictor import class_name, make_predict_step
from vit_jax.inspection import attention_maps
from vit_jax.models import ResNet, Vit
from vit_jax.runtime import extras
from vit_jax.training import sharding

_TOP = 5  # Classes shown of an example.


class EvalPictures:
  """Draws the same examples of the eval split at every evaluation.

  Args:
    config: Of the run; its `eval_pictures` says how many.
    model: That is trained.
    mesh: Of devices.
    source: The eval split.

  Raises:
    ValueError: if matplotlib is not installed.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    model: Vit | ResNet,
    mesh: Mesh,
    source: data.Source,
  ):
    self._figures = extras.load("vit_jax.inspection.figures", "figures")
    self._charts = extras.load("vit_jax.inspection.charts", "figures")
    self._model, self._normalization = model, dict(config.normalization)
    names = source.class_names
    self._names = [class_name(names, k) for k in range(model.num_classes)]
    self._examples = _examples(config, source)
    self._gather = jax.jit(
      lambda params: params, out_shardings=sharding.replicated(mesh)
    )
    predict_step = make_predict_step(
      model,
      **self._normalization,
      loss=config.loss.kind,
      top=_TOP,
      features=False,
    )
    self._predict = jax.jit(predict_step)

  def __call__(
    self, params: Any, tally: Tally
  ) -> dict[str, UInt8[np.ndarray, "H W 3"]]:
    """Pictures by name; all hosts have to call, and the first draws.

    Args:
      params: Laid out in any way over the mesh.
      tally: Of the answers to the whole split.
    """
    whole = self._gather(params)
    if jax.process_index():
      return {}
    local = jax.tree.map(lambda array: array.addressable_data(0), whole)
    drawn = {
      f"eval/example_{number}": self._sheet(local, image, label)
      for number, (image, label) in enumerate(self._examples, 1)
    }
    most = self._charts.MOST_CLASSES
    if classes := tally.shown(len(self._names), most):
      drawn["eval/confusion"] = self._charts.confusion_figure(
        tally.confusion(classes), [self._names[k] for k in classes]
      )
    return {key: self._figures.pixels(one) for key, one in drawn.items()}

  def _sheet(self, params: Any, image: np.ndarray, label: int) -> Any:
    """An example, what the model says of it, and where that came from."""
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


def _examples(
  config: ml_collections.ConfigDict, source: data.Source
) -> list[tuple[np.ndarray, int]]:
  """Images and labels, from all over the split; only what can be read."""
  transform = splits.eval_transform(config)
  count = min(config.eval_pictures, len(source))
  found = []
  for index in np.linspace(0, len(source) - 1, count).round().astype(int):
    try:
      example = source[int(index)]
      found.append((transform(example["image"]), example["label"]))
    except data.UnreadableImageError:
      continue
  return found
