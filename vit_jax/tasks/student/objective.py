"""The objective of a student that learns a frozen encoder's outputs.

The student's outputs are projected to the teacher's width, and compared by the
cosine and the smooth L1 distance. Labels are not used. `models.student` has the
model.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.models.grid import grid_of
from vit_jax.models.model import Inputs, Model
from vit_jax.models.patches import Layout, Patches
from vit_jax.models.student import CLASS, OUTPUTS, PATCHES, outputs_of
from vit_jax.tasks.student.settings import StudentSettings
from vit_jax.training.distillation import Teacher
from vit_jax.training.inputs import TakesImages, weights_of
from vit_jax.training.losses import Loss, Objective, StepContext

Sides = tuple[int, int]
Outputs = Mapping[str, Float[Array, "..."]]
_LEAST = 1e-12  # Added to squared lengths, which are divisors.


def cosine(
  x: Float[Array, "*axes D"], y: Float[Array, "*axes D"]
) -> Float[Array, "*axes"]:
  """The cosine between the vectors along the last axis."""
  squared_x = jnp.sum(jnp.square(x), axis=-1) + _LEAST
  squared_y = jnp.sum(jnp.square(y), axis=-1) + _LEAST
  return jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squared_x * squared_y)


def smooth_l1(
  x: Float[Array, "*axes D"], y: Float[Array, "*axes D"]
) -> Float[Array, "*axes"]:
  """The mean of d^2 / 2, or |d| - 1/2 where |d| > 1, with d = x - y.

  It is taken over the last axis.
  """
  return optax.losses.huber_loss(x, y, delta=1.0).mean(axis=-1)


def resized(
  patches: Float[Array, "B h w D"], grid: Sides
) -> Float[Array, "B H W D"]:
  """Interpolates a map of patches linearly to another grid.

  It is smoothed if the new grid is coarser.
  """
  B, h, w, D = patches.shape
  if (h, w) == grid:
    return patches
  return jax.image.resize(patches, (B, *grid, D), "linear")


def size_for(teacher: Teacher, grid: Sides) -> Sides:
  """The size of images at which the teacher sees a student's grid of patches.

  A teacher that resizes its positions sees images with as many patches as the
  student's; any other teacher sees images of its own size.
  """
  model: Any = teacher.model
  if not model.resizes_positions:
    return teacher.image_size
  h, w = grid
  return h * model.stride, w * model.stride


@dataclasses.dataclass(frozen=True)
class Imitation(TakesImages, Objective):
  """The objective of a student, a `losses.Objective`.

  Attributes:
    settings: Which outputs it learns, and the weights of the losses.
    size: Height and width at which the teacher sees the images.
    mean, std: The normalisation of the student's images.
  """

  settings: StudentSettings
  teacher: Teacher
  size: Sides
  mean: Sequence[float]
  std: Sequence[float]
  metric = "cosine"

  def with_answers(self, teacher: Teacher) -> "Imitation":
    """The objective itself, which has its teacher already."""
    del teacher
    return self

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Inputs, dict[str, Any]]:
    """Returns a batch's normalised images; the teacher makes the targets."""
    del key
    return self.inputs(batch), {}

  def loss(
    self,
    apply: Callable[..., Any],
    inputs: Inputs,
    targets: Any,
    context: StepContext,
  ) -> Loss:
    """The loss of each image, and the mean cosine of what it learns."""
    del targets
    predicted = apply(inputs)
    teacher = self.teacher_outputs(context.frozen["teacher"], inputs)
    layout = inputs.layout if isinstance(inputs, Patches) else None
    losses, cosines = self.compare(predicted, teacher, layout)
    score = jnp.stack([*cosines.values()]).mean(axis=0)
    return Loss(losses, score, weight=weights_of(inputs))

  def teacher_outputs(self, params: Any, images: Inputs) -> Outputs:
    """The teacher's outputs for the student's images, without gradient."""
    seen = self.teacher.images(images, self.mean, self.std, self.size)
    variables = {"params": params}
    model = self.teacher.model
    outputs: Any = model.apply(variables, seen, method=outputs_of)
    return jax.lax.stop_gradient(outputs)

  def compare(
    self, predicted: Outputs, teacher: Outputs, layout: Layout | None = None
  ) -> tuple[Float[Array, " B"], dict[str, Float[Array, " B"]]]:
    """The loss of each image, and the cosine of each output, both (B,).

    The loss of an image is the sum over its outputs of (1 - s) (1 - cosine) +
    s (smooth L1), where s is the setting `smooth_l1`. The term of the patches
    is the mean over them, multiplied by `patch_weight`. Outputs of `Patches`
    come with their `layout`, and rows of M images give B M losses.
    """

    def means(name: str, values: Array) -> Array:
      """The mean of each image, from the values of the output `name`."""
      if layout is None:
        return values.reshape(len(values), -1).mean(axis=1)
      return (layout.means(values) if name == PATCHES else values).reshape(-1)

    share = self.settings.smooth_l1
    weights = {CLASS: 1.0, PATCHES: self.settings.patch_weight}
    total: Any = 0.0
    cosines = {}
    for name, output in predicted.items():
      target = teacher[name].astype(jnp.float32)
      if name == PATCHES and layout is None:
        _, h, w, _ = output.shape
        target = resized(target, (h, w))
      near = cosine(output, target)
      loss = (1 - share) * (1 - near) + share * smooth_l1(output, target)
      total += weights[name] * means(name, loss)
      cosines[name] = means(name, near)
    return total, cosines


def learned_outputs(settings: StudentSettings) -> tuple[str, ...]:
  """The names of the outputs that a student learns."""
  return OUTPUTS if settings.learns == "both" else (settings.learns or "",)


def grids(
  teacher: Teacher, model: Model, image_size: Sides
) -> tuple[Sides, Sides]:
  """The student's grid of patches, and the teacher's on the same images."""
  grid = grid_of(model, image_size)
  teacher_model: Any = teacher.model
  return grid, grid_of(teacher_model, size_for(teacher, grid))
