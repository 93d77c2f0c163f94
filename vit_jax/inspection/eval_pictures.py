"""Pictures of an evaluation: answers, rollouts and charts, or a task's own."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.example import Source, UnreadableImageError, evenly_spread
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.patches import pictures
from vit_jax.inference.predictor import make_predict_step
from vit_jax.inspection import attention_maps
from vit_jax.inspection.photograph import Photograph, in_colours
from vit_jax.models import Model
from vit_jax.runtime import extras
from vit_jax.runtime.display import Split
from vit_jax.tasks.answers import answers_of
from vit_jax.tasks.outcome import Outcome
from vit_jax.tasks.pictures import to_draw
from vit_jax.tasks.task import Task, class_names
from vit_jax.training import sharding

Row = tuple[int, Mapping[str, Any], Any]
"""An example: its index, the arrays of a batch's row, and its label."""

_TOP = 5  # Number of classes shown for an example.

# A function from parameters, sharded in any way over the mesh, and the outcome
# of an evaluation to pictures by name. All hosts must call it, and only the
# first draws.
Pictures = Callable[[Any, Outcome], dict[str, Photograph]]


def make_pictures(
  task: Task,
  model: Model,
  mesh: Mesh,
  preprocessing: Preprocessing,
  source: Source,
  count: int,
) -> Pictures:
  """Returns a function that draws the same examples at every evaluation.

  They are `count` examples of the evaluation split, `source`. Raises ValueError
  if matplotlib is needed and not installed.
  """
  examples = chosen_rows(source, preprocessing, count)
  draw = _make_draw(task, model, preprocessing, source, examples)
  gather = jax.jit(
    lambda x: x, out_shardings=sharding.replicated_sharding(mesh)
  )

  def on_first_host(params: Any, outcome: Outcome) -> dict[str, Photograph]:
    """The pictures by name; {} on the other hosts, which only gather."""
    whole = gather(params)
    if jax.process_index():
      return {}
    local = jax.tree.map(lambda array: array.addressable_data(0), whole)
    return draw(local, outcome)

  return on_first_host


def _make_draw(
  task: Task,
  model: Model,
  preprocessing: Preprocessing,
  source: Source,
  examples: list[Row],
) -> Pictures:
  """Returns a function that draws the task's own panels, or the answers."""
  if task.panels is None:
    return _make_answers(task, model, preprocessing, source, examples)
  draw = task.panels.make(model, task.objective(model, preprocessing))
  images = [to_draw(*example) for example in examples]

  def draw_panels(params: Any, _: Outcome) -> dict[str, Photograph]:
    """The task's pictures of the examples, by names with their number."""
    sheets = enumerate(draw(params, images), 1)
    drawn = {f"{task.name}_{number}": sheet for number, sheet in sheets}
    return Split.EVAL.keyed(drawn)

  return draw_panels


def _make_answers(
  task: Task,
  model: Model,
  preprocessing: Preprocessing,
  source: Source,
  examples: list[Row],
) -> Pictures:
  """Returns a function that draws each example's answer, and the charts."""
  figures, canvas, charts = (
    extras.load(f"vit_jax.inspection.{name}", "figures")
    for name in ("figures", "canvas", "charts")
  )
  normalization = preprocessing.normalization
  answers = answers_of(task)
  names = class_names(source.class_names, model.num_classes)
  predict_step = jax.jit(
    make_predict_step(model, **normalization, task=task, top=_TOP)
  )

  def sheet(params: Any, arrays: Mapping[str, Any], label: Any) -> Photograph:
    """Draws an example, the model's answer and its attention rollout."""
    batch = {name: np.asarray(array)[None] for name, array in arrays.items()}
    (image,) = pictures(batch, preprocessing.channels)
    answer = jax.device_get(predict_step(params, batch))
    row = {key: array[0] for key, array in answer.items()}
    several = np.ndim(label) > 0
    true = task.labels.describe(label, names)
    title = f"{'Labels' if several else 'Class'} {true}"
    if "index" not in row:
      title += f" (answer {answers.text(row, names)})"
    drawn = figures.sheet_figure(
      in_colours(image),
      [names[index] for index in row.get("index", ())],
      row.get("probability", ()),
      attention_maps.image_rollout(model, params, arrays, **normalization),
      title,
      None if several else {true},
    )
    return np.asarray(drawn.image)

  def draw(params: Any, outcome: Outcome) -> dict[str, Photograph]:
    """The sheet of each example, and the charts to show while training."""
    drawn = {
      f"example_{number}": sheet(params, arrays, label)
      for number, (_, arrays, label) in enumerate(examples, 1)
    }
    for chart in outcome.charts():
      if chart.while_training:
        figure = charts.figure_of_chart(chart)
        drawn[chart.kind] = canvas.pixels(figure)
    return Split.EVAL.keyed(drawn)

  return draw


def chosen_examples(
  source: Source, preprocessing: Preprocessing, count: int
) -> list[tuple]:
  """Readable images to draw, spread evenly over the split, at most `count`."""
  return [to_draw(*row) for row in chosen_rows(source, preprocessing, count)]


def chosen_rows(
  source: Source, preprocessing: Preprocessing, count: int
) -> list[Row]:
  """Readable images, spread evenly over the split, at most `count`.

  The arrays of a row are those that the evaluation's transform makes.
  """
  transform = preprocessing.transform()
  examples = []
  for index in evenly_spread(count, len(source)):
    with contextlib.suppress(UnreadableImageError):
      example = source[index]
      examples.append((index, transform.row(example), example["label"]))
  return examples
