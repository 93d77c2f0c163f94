"""Pictures of an evaluation: predictions, rollouts and a confusion matrix."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.example import Source, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.evaluation.confusion import Tally
from vit_jax.inference.predictor import class_name, make_predict_step
from vit_jax.inference.printing import label_text
from vit_jax.inspection import attention_maps
from vit_jax.inspection.photograph import Photograph, in_colours
from vit_jax.models import ResNet, Vit
from vit_jax.runtime import extras
from vit_jax.training import sharding

_TOP = 5  # Number of classes shown for an example.

# Draws pictures by name from parameters, sharded in any way over the mesh, and
# counts of the answers. All hosts must call it, and only the first draws.
Pictures = Callable[[Any, Tally], dict[str, Photograph]]


def make_pictures(
  model: Vit | ResNet,
  mesh: Mesh,
  source: Source,
  preprocessing: Preprocessing,
  *,
  loss: str,
  count: int,
  targets: Mapping[str, Any],
) -> Pictures:
  """Draws the same examples of the eval split at every evaluation.

  Args:
    targets: Facts about the labels; `mean` and `std` of those that are numbers.

  Raises:
    ValueError: if matplotlib is not installed.
  """
  figures, canvas, charts = (
    extras.load(f"vit_jax.inspection.{name}", "figures")
    for name in ("figures", "canvas", "charts")
  )
  normalization = preprocessing.normalization
  names = [class_name(source.class_names, k) for k in range(model.num_classes)]
  examples = chosen_examples(source, preprocessing, count)
  predict_step = jax.jit(
    make_predict_step(
      model, **normalization, loss=loss, top=_TOP, features=False
    )
  )

  def sheet(params: Any, image: np.ndarray, label: Any) -> Any:
    """Draws an example, the model's answer and its attention rollout."""
    best = jax.device_get(predict_step(params, image[None]))
    kind = "Labels" if np.ndim(label) else "Class"
    title = f"{kind} {label_text(names, label, loss)}"
    if "values" in best:
      values = best["values"][0] * targets["std"] + targets["mean"]
      title += f" (answer {label_text(names, values, loss)})"
    return figures.sheet_figure(
      in_colours(image),
      [names[index] for index in best.get("index", [()])[0]],
      best.get("probability", [()])[0],
      attention_maps.image_rollout(model, params, image, **normalization),
      title=title,
    )

  def draw(params: Any, tally: Tally) -> dict[str, Photograph]:
    drawn = {
      f"eval/example_{number}": sheet(params, image, label)
      for number, (_, image, label) in enumerate(examples, 1)
    }
    classes = tally.shown(len(names), charts.MOST_CLASSES)
    if classes and tally.pairs:
      drawn["eval/confusion"] = charts.confusion_figure(
        tally.confusion(classes), [names[k] for k in classes]
      )
    return {key: canvas.pixels(one) for key, one in drawn.items()}

  return on_first_host(draw, mesh)


def on_first_host(draw: Pictures, mesh: Mesh) -> Pictures:
  """Calls `draw` on the first host alone, with the whole parameters."""
  gather = jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))

  def pictures(params: Any, tally: Tally) -> dict[str, Photograph]:
    whole = gather(params)
    if jax.process_index():
      return {}
    local = jax.tree.map(lambda array: array.addressable_data(0), whole)
    return draw(local, tally)

  return pictures


def chosen_examples(
  source: Source, preprocessing: Preprocessing, count: int
) -> list[tuple[int, np.ndarray, Any]]:
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
