"""The objective of self-distillation, and its masks.

A student learns the answers of a teacher to other crops of the same image, and
to patches that are masked for the student. The teacher is the average of the
student's parameters. The formulas are in `losses`, the model in
`models.self_distilled`. Labels are not used.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from vit_jax.models.grid import grid_of
from vit_jax.models.interpolation import bicubic_weights
from vit_jax.models.model import normalize
from vit_jax.models.partitioning import with_axes
from vit_jax.tasks.crops import check_positions
from vit_jax.tasks.self_distillation.losses import (
  centered,
  class_loss,
  cross_entropy,
  deviation,
  entropy,
  gram,
  koleo,
  next_center,
  patch_loss,
  sinkhorn_knopp,
)
from vit_jax.tasks.self_distillation.settings import SelfDistillationSettings
from vit_jax.training.losses import Apply, Loss, Objective, StepContext
from vit_jax.training.schedules import RunLength, cosine, ramp

FINAL_MOMENTUM = 1.0
_ATTEMPTS = 10  # A mask is complete after this many failures in a row.
_LEAST_BLOCK = 4  # Patches of the smallest block that is drawn.
# The range of the logarithm of a block's height over its width.
_LOG_RATIOS = math.log(0.3), math.log(1 / 0.3)


class TeacherAnswers(NamedTuple):
  """The teacher's answers to the large crops.

  Attributes:
    classes: Probabilities for the class tokens of the two crops of each image.
    patches: Probabilities for the masked patches; None without masks.
    metrics: Metrics of the answers.
    state: The centers for the next step; None without centers.
  """

  classes: Float[Array, "B 2 K"]
  patches: Float[Array, "R M K"] | None
  metrics: dict[str, Any]
  state: Any


@dataclasses.dataclass(frozen=True)
class SelfDistillation(Objective):
  """The objective of self-distillation, which keeps centers as its state.

  A batch to train on has `image` and `second`, the large crops, and `small`, as
  `data.transforming.multi_crop` makes them. For a batch with `image` alone, as
  an evaluation has it, the loss is `mirrored_loss`: that of the class token,
  where the second crop is the mirrored image, and student and teacher are the
  same.

  Attributes:
    model: A `models.self_distilled.SelfDistilled`.
    settings: Weights and temperatures of the losses, and the masks.
    grid: Patches along height and width of an image of the run's size.
    mean, std: As in `losses.Classification`.
    momentum: Decay of the teacher's average at first; it rises to 1.
    total_steps: Length of the run.
    warmup_steps: Steps in which the teacher's temperature rises.
    gram_steps: Number of steps after which Gram anchoring takes a new teacher;
      0 keeps the teacher of the first step.
  """

  model: Any
  settings: SelfDistillationSettings
  grid: tuple[int, int]
  mean: Sequence[float]
  std: Sequence[float]
  momentum: float = 0.992
  total_steps: int = 1
  warmup_steps: int = 0
  gram_steps: int = 0
  metric = "entropy"
  couples = True
  reads_average = True

  def for_run(self, model: Any, length: RunLength) -> "SelfDistillation":
    """The objective of a run.

    Raises ValueError for a batch of one image, if the loss needs more, and for
    crops of several sizes, if the model's positions fit one size alone.
    """
    s = self.settings
    if s.koleo_weight and length.batch_size < 2:
      raise ValueError(
        f"batch_size={length.batch_size}: KoLeo compares the images of a "
        "batch, so take 2 or more, or self_distillation.koleo_weight=0."
      )
    check_positions(s.small_crops or s.crop_sizes, model)
    return dataclasses.replace(
      self,
      total_steps=length.total_steps,
      warmup_steps=length.steps(s.temperature_warmup),
      gram_steps=length.steps(s.gram_every),
    )

  def inputs(self, batch: Mapping[str, Array]) -> Any:
    """The images, or the crops: `large` (2B, H, W, C), `small` (n B, h, w, C).

    The crops of an image follow one another. If the teacher of Gram anchoring
    sees larger crops, these are `detailed`, (2B, k H, k W, C).
    """
    images = self._normalized(batch["image"])
    if "second" not in batch:
      return images
    large = jnp.stack([images, self._normalized(batch["second"])], axis=1)
    crops = {"large": large.reshape(-1, *large.shape[2:])}
    for name in ("small", "detailed"):
      if name in batch:
        flat = batch[name].reshape(-1, *batch[name].shape[2:])
        crops[name] = self._normalized(flat)
    return crops

  def _normalized(self, pixels: Array) -> Float[Array, "B H W C"]:
    return normalize(pixels, self.mean, self.std)

  def prepare(
    self, batch: Mapping[str, Array], key: Key[Array, ""]
  ) -> tuple[Any, dict[str, Array]]:
    """Returns the model's inputs, and the masks of the large crops."""
    inputs = self.inputs(batch)
    if "second" not in batch or not self.settings.patch_weight:
      return inputs, {}
    return inputs, self.draw(key, len(inputs["large"]), self._grid_of(inputs))

  def _grid_of(self, crops: Mapping[str, Array]) -> tuple[int, int]:
    """Patches along height and width of the large crops of a batch."""
    _, height, width, _ = crops["large"].shape
    return grid_of(self.model, (height, width))

  def draw(
    self, key: Key[Array, ""], crops: int, grid: tuple[int, int]
  ) -> dict[str, Array]:
    """Draws the masks of this number of crops, (R, N), for the model.

    The numbers of the masked patches are `where`, (R, M), and `counts` tells
    which of these entries are used.
    """
    s = self.settings
    h, w = grid
    masks = block_masks(
      key,
      crops,
      grid,
      probability=s.mask_probability,
      share=(s.mask_from, s.mask_to),
    )
    most = most_masked(h * w, s.mask_to)
    return {"masks": masks, **masked_places(masks, most)}

  def init(self) -> Any:
    """The first state: zeros for the centers and the teacher of Gram anchoring.

    The centers of both kinds of tokens are (K,). The teacher has the encoder's
    parameters, which the first step fills in. None if there are neither.
    """
    state: dict[str, Any] = {}
    if self.settings.centering == "mean":
      zeros = with_axes(nn.initializers.zeros_init(), ("prototypes",))
      shape = (self.model.heads.prototypes,)
      names = ["class", "patch"] if self.settings.patch_weight else ["class"]
      for name in names:
        state[name] = zeros(jax.random.key(0), shape, jnp.float32)
    if self.settings.gram_weight:
      state["gram"] = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._encoder_shapes()
      )
    return state or None

  def _encoder_shapes(self) -> dict[str, Any]:
    """Shapes of the encoder's parameters, boxed with their logical axes."""
    height, width = (side * self.model.stride for side in self.grid)  # Pixels.
    inputs = self.model.inputs((height, width, len(self.mean)))
    init = jax.eval_shape(self.model.init, jax.random.key(0), inputs)
    heads = {part.prefix for part in self.model.parts() if part.own_task}
    return {k: v for k, v in init["params"].items() if k not in heads}

  def gram_teacher(self, context: StepContext) -> dict[str, Any]:
    """The parameters of the teacher of Gram anchoring at a step."""
    previous = context.state["gram"]
    current = {name: context.averaged[name] for name in previous}
    is_due = context.step == 0
    if self.gram_steps:
      is_due = context.step % self.gram_steps == 0
    choose = functools.partial(jnp.where, is_due)
    return jax.tree.map(choose, current, previous)

  def anchors(
    self,
    params: dict[str, Any],
    images: Float[Array, "R H W C"],
    crops_grid: tuple[int, int],
  ) -> Float[Array, "R N D"]:
    """An earlier teacher's features of the patches of large crops.

    If it sees larger images, their features are resized to the grid of the
    crops by bicubic interpolation without antialiasing, as in DINOv3.
    """
    features = self.model.apply(
      {"params": params}, images, method="patch_features"
    )
    height, width = images.shape[1:3]
    grid = grid_of(self.model, (height, width))
    if grid == crops_grid:
      return features
    rows, columns = (
      bicubic_weights(old, new, antialias=False)
      for old, new in zip(grid, crops_grid, strict=True)
    )
    features = features.reshape(len(images), *grid, -1)
    resized = jnp.einsum("Hh,Ww,rhwd->rHWd", rows, columns, features)
    return resized.reshape(len(images), -1, features.shape[-1])

  def decay(self, step: Array) -> Array:
    """The teacher's momentum."""
    return cosine(step, self.momentum, FINAL_MOMENTUM, self.total_steps)

  def temperature(self, step: Array) -> Array:
    """The teacher's temperature."""
    s = self.settings
    return ramp(
      step, s.first_temperature, s.teacher_temperature, self.warmup_steps
    )

  def loss(
    self,
    apply: Apply,
    inputs: Any,
    targets: dict[str, Array],
    context: StepContext,
  ) -> Loss:
    """The loss of each image, its score, the metrics, and the next state.

    The score is the entropy of the teacher's answers. The metrics are the parts
    of the loss, the metrics of the teacher's answers, and its momentum and
    temperature.
    """
    if not isinstance(inputs, dict):  # The batch has `image` alone.
      return Loss(*self.mirrored_loss(apply, inputs))
    s = self.settings
    teacher = self._teach(inputs["large"], targets, context)
    draw = {k: v for k, v in targets.items() if k != "counts"}
    large = apply(inputs["large"], **({"draw": draw} if draw else {}))
    parts = {"class_loss": self._class_loss(apply, inputs, large, teacher)}
    loss = s.class_weight * parts["class_loss"]
    if s.koleo_weight:
      spread = _spread(large["y"])
      parts["koleo_loss"] = spread / 2
      loss += s.koleo_weight * spread
    if draw:
      parts["patch_loss"] = self._patch_loss(large, targets, teacher)
      loss += s.patch_weight * parts["patch_loss"]
    state = teacher.state
    if s.gram_weight:
      gram_params = self.gram_teacher(context)
      parts["gram_loss"] = self._gram_loss(large, inputs, gram_params)
      loss += s.gram_weight * parts["gram_loss"]
      state = {**(state or {}), "gram": gram_params}
    metrics = {name: value.mean() for name, value in parts.items()}
    metrics |= teacher.metrics
    metrics |= {
      "teacher_momentum": self.decay(context.step),
      "teacher_temperature": self.temperature(context.step),
    }
    score = entropy(teacher.classes).mean(axis=1)
    return Loss(loss, score, metrics, state)

  def _class_loss(
    self,
    apply: Apply,
    crops: Mapping[str, Array],
    large: Mapping[str, Array],
    teacher: TeacherAnswers,
  ) -> Float[Array, " B"]:
    """The loss of the class tokens; `large` are the outputs of large crops."""
    B = len(crops["large"]) // 2
    small = None
    if "small" in crops:
      small = apply(crops["small"])["answers"]
      small = small.reshape(B, -1, small.shape[-1])
    answers = large["answers"].reshape(B, 2, -1)
    return class_loss(
      teacher.classes,
      large=answers,
      small=small,
      temperature=self.settings.student_temperature,
    )

  def _patch_loss(
    self,
    large: Mapping[str, Array],
    targets: Mapping[str, Array],
    teacher: TeacherAnswers,
  ) -> Float[Array, " B"]:
    """The loss of the masked patches of the large crops."""
    assert teacher.patches is not None
    losses = patch_loss(
      teacher.patches,
      student=large["patches"],
      counts=targets["counts"],
      temperature=self.settings.student_temperature,
    )
    return _mean_of_two(losses)

  def _gram_loss(
    self,
    large: Mapping[str, Array],
    crops: Mapping[str, Array],
    gram_params: dict[str, Any],
  ) -> Float[Array, " B"]:
    """The loss of Gram anchoring; `gram_params` are its teacher's."""
    images = crops.get("detailed", crops["large"])
    anchors = self.anchors(gram_params, images, self._grid_of(crops))
    losses = gram(large["features"], jax.lax.stop_gradient(anchors))
    return _mean_of_two(losses)

  def teacher_draw(self, targets: dict[str, Array]) -> dict[str, Array]:
    """The teacher's draw: it answers for masked patches, and sees them."""
    return {"where": targets["where"]}

  def _teach(
    self, large: Array, targets: dict[str, Array], context: StepContext
  ) -> TeacherAnswers:
    """The teacher's answers to the large crops, which it sees without masks."""
    s = self.settings
    variables = {"params": context.averaged}
    if targets:
      variables["draw"] = self.teacher_draw(targets)
    outputs = self.model.apply(variables, large)
    temperature = self.temperature(context.step)
    answers = outputs["answers"]
    # By the kind of tokens: their logits, and which rows count.
    kinds: dict[str, tuple[Array, Any]] = {"class": (answers, None)}
    if targets:
      K = answers.shape[-1]
      kinds["patch"] = (
        outputs["patches"].reshape(-1, K),
        targets["counts"].reshape(-1),
      )
    state = None
    if s.centering == "mean":
      state = {
        name: next_center(
          context.state[name], rows, s.center_momentum, counts=counts
        )
        for name, (rows, counts) in kinds.items()
      }
    probabilities = {
      name: self._probabilities(rows, counts, context, name, temperature)
      for name, (rows, counts) in kinds.items()
    }
    classes = probabilities["class"]
    patches = None
    if targets:
      patches = probabilities["patch"].reshape(outputs["patches"].shape)
    result = TeacherAnswers(
      classes=classes.reshape(len(large) // 2, 2, -1),
      patches=patches,
      metrics={
        "deviation": deviation(outputs["y"]),
        "entropy_of_mean": entropy(classes.mean(axis=0)),
      },
      state=state,
    )
    return jax.lax.stop_gradient(result)

  def _probabilities(
    self,
    rows: Array,
    counts: Any,
    context: StepContext,
    name: str,
    temperature: Any,
  ) -> Float[Array, "R K"]:
    """The teacher's probabilities for one kind of tokens, `name`."""
    if self.settings.centering == "mean":
      return centered(rows, context.state[name], temperature)
    return sinkhorn_knopp(rows, temperature, counts)

  def mirrored_loss(
    self, apply: Apply, images: Float[Array, "B H W C"]
  ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The loss of an evaluation, and the entropy of its answers.

    Each image learns from its mirror image, without a center.
    """
    pair = [apply(x)["answers"] for x in (images, images[:, :, ::-1])]
    s = self.settings
    loss, score = 0.0, 0.0
    for teacher, student in (pair, pair[::-1]):
      sharp = jax.nn.softmax(teacher / s.teacher_temperature)
      loss += cross_entropy(sharp, student, s.student_temperature) / 2
      score += entropy(sharp) / 2
    return jnp.asarray(loss), jnp.asarray(score)


def _spread(y: Float[Array, "R D"]) -> Array:
  """KoLeo of the first large crops, and of the second, added."""
  y = y.reshape(len(y) // 2, 2, -1)
  return koleo(y[:, 0]) + koleo(y[:, 1])


def _mean_of_two(values: Float[Array, " R"]) -> Float[Array, " B"]:
  """The mean over the two large crops of each image."""
  return values.reshape(-1, 2).mean(axis=1)


def most_masked(N: int, share: float) -> int:
  """The number of patches of the largest mask, among N patches.

  A mask covers at most `share` of them, but may always have one.
  """
  return max(1, int(N * share))


def masked_places(masks: Bool[Array, "R N"], most: int) -> dict[str, Array]:
  """`where`, the masked patches' places in order, and which of them `counts`.

  Both are (R, M), where M is `most`. Entries of `where` that do not count are
  places of other patches.
  """
  order = jnp.argsort(~masks, axis=1, stable=True)[:, :most]
  return {
    "where": order,
    "counts": jnp.take_along_axis(masks, order, axis=1),
  }


def block_masks(
  key: Key[Array, ""],
  crops: int,
  grid: tuple[int, int],
  probability: float,
  share: tuple[float, float],
) -> Bool[Array, "R N"]:
  """Masks of blocks of patches for a share of the crops (arXiv:2106.08254).

  `probability` is the share of crops to mask. As in DINOv2, the shares of
  patches to mask are spread evenly over the range `share`, one for each masked
  crop. A mask has at most that share of patches: blocks are added until no more
  fit.
  """
  h, w = grid
  num_masked = int(crops * probability)
  order_key, share_key, block_key = jax.random.split(key, 3)
  rank = jax.random.permutation(order_key, crops)
  place = (rank + jax.random.uniform(share_key, (crops,))) / max(num_masked, 1)
  shares = share[0] + (share[1] - share[0]) * place
  most = most_masked(h * w, share[1])
  count = jnp.minimum((shares * h * w).astype(jnp.int32), most)
  count = jnp.where(rank < num_masked, count, 0)
  keys = jax.random.split(block_key, crops)
  draw = functools.partial(_block_mask, grid=grid)
  return jax.vmap(draw)(keys, count).reshape(crops, h * w)


def _block_mask(
  key: Key[Array, ""], count: Array, grid: tuple[int, int]
) -> Bool[Array, "h w"]:
  """At most `count` masked patches, from blocks of about 4 patches or more."""
  h, w = grid
  rows = jnp.arange(h)[:, None]
  columns = jnp.arange(w)[None]

  def unfinished(carry: Any) -> Array:
    mask, failures, _ = carry
    return (mask.sum() < count) & (failures < _ATTEMPTS)

  def add_block(carry: Any) -> Any:
    """Draws a block, and adds it if it fits and masks further patches."""
    mask, failures, key = carry
    key, *keys = jax.random.split(key, 5)
    room = count - mask.sum()
    low, high = _LOG_RATIOS
    area = _LEAST_BLOCK + jax.random.uniform(keys[0]) * (room - _LEAST_BLOCK)
    ratio = jnp.exp(jax.random.uniform(keys[1], minval=low, maxval=high))
    height = jnp.round(jnp.sqrt(area * ratio)).astype(jnp.int32)
    width = jnp.round(jnp.sqrt(area / ratio)).astype(jnp.int32)
    fits = (height < h) & (width < w)
    top = jax.random.randint(keys[2], (), 0, jnp.maximum(h - height, 0) + 1)
    left = jax.random.randint(keys[3], (), 0, jnp.maximum(w - width, 0) + 1)
    block = (rows >= top) & (rows < top + height)
    block = block & (columns >= left) & (columns < left + width)
    new = (block & ~mask).sum()
    is_added = fits & (0 < new) & (new <= room)
    mask = jnp.where(is_added, mask | block, mask)
    return mask, jnp.where(is_added, 0, failures + 1), key

  start = jnp.zeros(grid, bool), jnp.int32(0), key
  mask, _, _ = jax.lax.while_loop(unfinished, add_block, start)
  return mask
