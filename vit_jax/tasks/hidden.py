"""Evaluation and pictures of objectives that hide patches and predict them.

Such an objective has `predict`, as `masked.objective.Masking` has it. An image
has the same patches hidden in every evaluation, and in its picture.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vit_jax.models.masked_vit import MASK
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.pictures import Draw, Panels, Photograph, side_by_side

_GREY = 128


def hidden_measure(
  model: Any,
  objective: Any,
  sums: Callable[[Any, Mapping[str, Array], Any, Array], dict[str, Array]],
  outcome: Callable[..., Any],
) -> Measure:
  """Returns the measure of predictions of hidden patches.

  `sums` is a function from the objective, a batch, its targets and the
  predictions to sums over the batch; `outcome` makes the outcome of the sums of
  all batches.
  """

  def compute(
    params: Any, batch: Mapping[str, Array], first: Array
  ) -> dict[str, Array]:
    examples = first + jnp.arange(len(batch["mask"]))
    targets, predicted = objective.predict(model, params, batch, examples)
    return sums(objective, batch, targets, predicted)

  return Measure(compute, outcome)


def hidden_panels(
  predict: Callable[[Any, Any, Any], Any],
  sheet_of: Callable[[np.ndarray, Any], Photograph],
) -> Draw:
  """Returns a function from parameters and examples to a picture per example.

  Args:
    predict: A function from parameters, images and their places in the split to
      arrays with a row for each; it is compiled.
    sheet_of: A function from an image and its rows to the picture.
  """
  step = jax.jit(predict)

  def draw(params: Any, examples: Sequence[tuple]) -> list[Photograph]:
    if not examples:
      return []
    indices, images, _ = zip(*examples, strict=True)
    results = step(params, np.stack(images), jnp.array(indices, jnp.int32))
    arrays = jax.device_get(results)

    def rows_of(n: int) -> Any:
      return jax.tree.map(lambda array: array[n], arrays)

    return [sheet_of(image, rows_of(n)) for n, image in enumerate(images)]

  return draw


def report_panels(make: Callable[[Any, Any], Draw]) -> Panels:
  """The panels of a report, with their text; `make` is as in `Panels`."""
  return Panels(
    make,
    "What it fills in",
    "The image that the model saw is on the left, grey where patches are "
    "hidden; its predictions fill them in the middle, and the right shows what "
    "they should be.",
    "Three panels: what the model saw, its predictions, the truth",
  )


def sheet(
  image: Photograph,
  source: np.ndarray,
  positions: np.ndarray,
  guess: np.ndarray,
  truth: np.ndarray,
) -> Photograph:
  """Draws three panels: what the model saw, its predictions, and the image.

  Args:
    source: The patch that the model saw at each place, or `MASK`, (N,).
    positions: The places of the patches in `guess` and `truth`, (M,).
    guess: The predicted patches, (M, P, P, 3).
    truth: The true patches, (M, P, P, 3).
  """
  P = guess.shape[1]
  H, W, _ = image.shape
  panels = np.stack([image] * 3)
  cut = panels.reshape(3, H // P, P, W // P, P, 3).swapaxes(2, 3)  # A view.
  corrupted = cut[0][np.divmod(source, W // P)]  # (N, P, P, 3)
  corrupted[source == MASK] = _GREY
  cut[0] = corrupted.reshape(cut[0].shape)
  places = np.divmod(positions, W // P)
  cut[1][places] = guess
  cut[2][places] = truth
  return side_by_side([*panels])
