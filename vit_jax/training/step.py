"""The train step: one pure function from (state, batch) to (state, metrics)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from vit_jax.models.normalize import normalize
from vit_jax.training import losses
from vit_jax.training.distillation import Teacher
from vit_jax.training.lora import merged
from vit_jax.training.masking import Masking
from vit_jax.training.optimizer import map_paths
from vit_jax.training.settings import LoraSettings, LossSettings
from vit_jax.training.state import TrainState

Metrics = dict[str, Array]
TrainStep = Callable[..., tuple[TrainState, Metrics]]


def make_train_step(
  model: nn.Module,
  tx: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  *,
  seed: int = 0,
  mean: Sequence[float] = (0.5, 0.5, 0.5),
  std: Sequence[float] = (0.5, 0.5, 0.5),
  loss: LossSettings = LossSettings(),
  objective: "Labels | Masking | None" = None,
  teacher: Teacher | None = None,
  lora: LoraSettings = LoraSettings(),
  accumulation_steps: int = 1,
  ema_decay: float = 0.0,
  ema_warmup: bool = True,
  trained: Callable[[str], bool] | None = None,
) -> TrainStep:
  """Returns a function from (state, batch) to (next state, metrics).

  With a teacher or LoRA, it takes a third argument, a dictionary with the
  teacher's parameters as `teacher`, and those to which LoRA's products are
  added as `base`. Neither gets a gradient.

  If the loss or the gradient is not finite, the update is skipped: only `step`
  advances, while the parameters and the optimizer's state stay.

  A batch holds `image`, uint8 (B, H, W, C), and `label`, integer (B,). It may
  hold `skipped`, true for rows that replace an unreadable image, which are then
  counted. The metric `top1` is the accuracy on the batch as it was trained on:
  augmented, with dropout, and before the update. Random numbers depend on the
  seed and the step alone.

  Args:
    model: The model, from images to logits.
    tx: The optimizer.
    learning_rate: The schedule in `tx`, which the metrics report.
    seed: Seed of Mixup, dropout and masks.
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    loss: The loss and its targets.
    objective: Trains on something else than the class of an image; `mean`,
      `std`, `loss` and `teacher` do not matter then.
    teacher: A teacher of labels' classes, whose answers are learned as well.
    lora: With a rank, the state holds the parameters of `lora.trained_init`.
    accumulation_steps: Number of parts that a batch is computed in, to save
      memory. The gradient is the same; each part draws its own dropout.
    ema_decay: Decay of the parameters' Polyak average; 0 is off.
    ema_warmup: Whether the decay after step t is at most (1 + t) / (10 + t), so
      that the first parameters are soon forgotten.
    trained: Maps a parameter's path to whether it is trained; the gradients of
      the others are zero and are not computed. By default all are trained.
  """
  objective = objective or Labels(
    model.num_classes, loss, mean, std, teacher=teacher
  )
  loss_of = _loss_function(model, objective, trained, lora)
  gradient = _in_parts(
    jax.value_and_grad(loss_of, has_aux=True), accumulation_steps
  )

  def train_step(
    state: TrainState, batch: dict[str, Array], fixed: Any = None
  ) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    objective_key, dropout_key = jax.random.split(key)
    images, targets = objective.prepare(batch, objective_key)
    (mean_loss, right), grads = gradient(
      state.params, fixed or {}, dropout_key, images, targets
    )
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(mean_loss) & jnp.isfinite(norm)
    updated = _updated(state, grads, tx, ema_decay, ema_warmup)
    kept = jax.tree.map(functools.partial(jnp.where, finite), updated, state)
    metrics = {
      "loss": mean_loss,
      objective.score: right,
      "gradient_norm": norm,
      "learning_rate": learning_rate(_updates(state)),
      "skipped_steps": 1 - finite.astype(jnp.int32),
    }
    if "skipped" in batch:
      metrics["skipped_images"] = batch["skipped"].sum()
    return kept.replace(step=state.step + 1), metrics

  return train_step


@dataclasses.dataclass(frozen=True)
class Labels:
  """The objective of a classifier: what a step feeds, and what it minimises.

  Attributes:
    num_classes: K, the number of classes.
    settings: The loss and its targets.
    mean: Mean subtracted from each channel, in units of full scale.
    std: Standard deviation that then divides each channel.
    teacher: A teacher whose answers are learned as well.
    class_weights: A factor for each class's part of the loss.
  """

  num_classes: int
  settings: LossSettings
  mean: Sequence[float]
  std: Sequence[float]
  teacher: Teacher | None = None
  class_weights: Sequence[float] | None = None
  score = "top1"  # The metric of what is right.

  def prepare(self, batch: dict[str, Array], key: Array) -> tuple[Array, Array]:
    """Returns a batch's images and targets; the key is Mixup's and CutMix's."""
    settings = self.settings
    images = normalize(batch["image"], self.mean, self.std)
    images, targets = losses.mixup_or_cutmix(
      key,
      images,
      self.targets(batch["label"]),
      settings.mixup_alpha,
      settings.cutmix_alpha,
    )
    if settings.binary_targets:
      targets = (targets > 0).astype(targets.dtype)
    return images, targets

  def targets(self, label: Array) -> Array:
    """The targets (B, K) of the labels of a batch."""
    smoothing = self.settings.label_smoothing
    return losses.make_targets(label, self.num_classes, smoothing)

  def loss(
    self,
    apply: Callable[..., Any],
    images: Array,
    targets: Array,
    teacher_params: Any = None,
  ) -> tuple[Array, Array]:
    """The loss and the score of each example; `apply` gives the logits."""
    logits, kind = apply(images), self.settings.kind
    loss, score = self.judge(logits, targets)
    if self.teacher is not None:
      taught = self.teacher.logits(teacher_params, images, self.mean, self.std)
      loss = self.teacher.loss(kind, logits, taught, loss)
    return loss, score

  def judge(self, logits: Array, targets: Array) -> tuple[Array, Array]:
    """The loss of each example, and whether the answer is right.

    Of a mixture of two images, the larger part counts as right.
    """
    right = logits.argmax(axis=-1) == targets.argmax(axis=-1)
    loss = losses.cross_entropy(
      self.settings.kind, logits, targets, self.class_weights
    )
    return loss, right


def _loss_function(
  model: nn.Module,
  objective: Labels | Masking,
  trained: Callable[[str], bool] | None,
  lora: LoraSettings,
) -> Callable[[Any, Any, Array, Array, Any], tuple[Array, Array]]:
  """A function from (params, fixed, key, images, targets) to loss and score."""

  def stopped(path: str, leaf: Array) -> Array:
    keep = trained is None or trained(path)
    return leaf if keep else jax.lax.stop_gradient(leaf)

  def loss_of(
    params: Any, fixed: Any, key: Array, images: Array, targets: Any
  ) -> tuple[Array, Array]:
    params = map_paths(stopped, params)
    if lora.rank:
      params = merged(lora, fixed["base"], params)

    def apply(images: Array, **collections: Any) -> Any:
      variables = {"params": params, **collections}
      return model.apply(variables, images, train=True, rngs={"dropout": key})

    teacher = [fixed["teacher"]] if "teacher" in fixed else []
    loss, right = objective.loss(apply, images, targets, *teacher)
    return loss.mean(), right.mean()

  return loss_of


def _updated(
  state: TrainState,
  grads: Any,
  tx: optax.GradientTransformation,
  ema_decay: float,
  ema_warmup: bool,
) -> TrainState:
  """The state after an update, but for its step."""
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  averaged = state.averaged_params
  if ema_decay:
    t = state.step + 1  # At first, the average is of the last tenth alone.
    decay = jnp.minimum(ema_decay, (1 + t) / (10 + t))
    averaged = optax.incremental_update(
      params, averaged, 1 - (decay if ema_warmup else ema_decay)
    )
  return TrainState(state.step, params, opt_state, averaged)


def _updates(state: TrainState) -> Array:
  """Number of updates so far, by which the optimizer reads its schedule.

  Steps that were skipped do not count.
  """
  counts = optax.tree.get_all_with_path(state.opt_state, "count")
  return counts[0][1] if counts else state.step


def _in_parts(gradient: Callable, parts: int) -> Callable:
  """Averages `gradient` over equal parts, each with its own random key.

  It maps (params, fixed, key, images, targets) to ((mean loss, mean score),
  gradient).
  """
  if parts == 1:
    return gradient

  def mean(params: Any, fixed: Any, key: Array, images: Array, targets: Any):
    def add_part(total, xs):
      part, (part_images, part_targets) = xs
      part_key = jax.random.fold_in(key, part)
      found = gradient(params, fixed, part_key, part_images, part_targets)
      return jax.tree.map(jnp.add, total, found), None

    split = jax.tree.map(_split(parts), (images, targets))
    means = jnp.zeros(()), jnp.zeros(())
    zero = (means, jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add_part, zero, (jnp.arange(parts), split))
    return jax.tree.map(lambda x: x / parts, total)

  return mean


def _split(parts: int) -> Callable[[Array], Array]:
  """Returns a function that splits (B, ...) into (parts, B / parts, ...).

  Part p takes the rows p, p + parts, ... A device that holds a run of rows
  thus holds its share of every part, and no row moves between devices.
  """

  def split(x: Array) -> Array:
    return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

  return split
