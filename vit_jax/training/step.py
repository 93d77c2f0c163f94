"""The train step: one pure function from (state, batch) to (state, metrics)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from vit_jax.models.partitioning import for_cpu
from vit_jax.runtime import hints
from vit_jax.training.losses import (
  Apply,
  Classification,
  CoupledObjective,
  Loss,
  Objective,
  StepContext,
)
from vit_jax.training.optimizer import Measured, map_paths
from vit_jax.training.settings import LossSettings
from vit_jax.training.state import Extras, TrainState, check_optimizer

Metrics = dict[str, Array]
TrainStep = Callable[..., tuple[TrainState, Metrics]]


@hints.accepts(
  "vit_jax.make_train_step(model, tx)",
  same=dict.fromkeys(("optimizer", "opt", "optim"), "tx"),
)
def make_train_step(
  model: nn.Module,
  tx: optax.GradientTransformation,
  learning_rate: optax.ScalarOrSchedule | None = None,
  *,
  seed: int = 0,
  mean: Sequence[float] = (0.5, 0.5, 0.5),
  std: Sequence[float] = (0.5, 0.5, 0.5),
  loss: LossSettings = LossSettings(),
  objective: Objective | None = None,
  extras: Extras = Extras(),
  accumulation_steps: int = 1,
  ema_decay: float = 0.0,
  ema_warmup: bool = True,
  is_trainable: Callable[[str], bool] | None = None,
) -> TrainStep:
  """Returns a function from (state, batch) to (next state, metrics).

  With a teacher or LoRA, it takes a third argument, the element of
  `extras.frozen_params`, which gets no gradient.

  If the loss or the gradient is not finite, the update is skipped: only `step`
  advances, while the parameters and the optimizer's state stay.

  A batch holds `image`, uint8 (B, H, W, C), and `label`, integer (B,); a label
  beyond the model's classes makes the loss NaN. It may hold `skipped`, true for
  rows that replace an unreadable image, which are then counted. The metric
  `top1` is the accuracy on the batch as it was trained on: augmented, with
  dropout, and before the update. Random numbers depend on the seed and the step
  alone. The step raises ValueError if the batch is not a dictionary, or if the
  objective keeps a state and `accumulation_steps` is above 1. Raises TypeError
  if `tx` is no optimizer, and ValueError if the objective's loss cannot be
  computed in several parts.

  >>> import jax
  >>> import numpy as np
  >>> import optax
  >>> import vit_jax
  >>> model = vit_jax.Vit(
  ...   num_classes=2,
  ...   patch_size=8,
  ...   hidden_size=16,
  ...   num_layers=1,
  ...   mlp_size=32,
  ...   num_heads=2,
  ... )
  >>> params = vit_jax.init_params(model, jax.random.key(0), image_size=16)
  >>> tx = optax.sgd(1e-3)
  >>> state = vit_jax.TrainState(0, params, tx.init(params))
  >>> step = jax.jit(vit_jax.make_train_step(model, tx, 1e-3))
  >>> images = np.zeros((4, 16, 16, 3), np.uint8)
  >>> batch = {"image": images, "label": np.array([0, 1, 0, 1])}
  >>> state, metrics = step(state, batch)
  >>> int(state.step), sorted(metrics)[:3]
  (1, ['gradient_norm', 'learning_rate', 'loss'])

  Args:
    tx: The optimizer.
    learning_rate: The schedule or the number in `tx`, for the metrics; without
      it, they have no `learning_rate`.
    seed: Seed of Mixup, dropout and masks.
    mean, std, loss: The normalisation and the loss of the default objective,
      `losses.Classification`. They have no effect if `objective` is given, as
      in all runs of `run.plan`.
    objective: The objective; None takes `losses.Classification`.
    accumulation_steps: Number of parts in which a batch is computed, to save
      memory. The gradient is the same, also that of a `CoupledObjective`, but
      each part draws its own dropout.
    ema_decay: Decay of the parameters' Polyak average; 0 is off.
    ema_warmup: Whether the decay after step t is at most (1 + t) / (10 + t), so
      that the first parameters are soon forgotten.
    is_trainable: Tells by a parameter's path whether it is trained; gradients
      of the others are zero and are not computed. By default all are trained.
  """
  objective = objective or Classification(model.num_classes, loss, mean, std)
  model_of = model_function(model.apply, is_trainable, extras)
  gradient = _make_gradient(model_of, objective, accumulation_steps)
  average = _make_average(objective, ema_decay, ema_warmup)
  check_optimizer(tx)
  optimizer = optax.with_extra_args_support(tx)
  schedule = _as_schedule(learning_rate)

  def train_step(
    state: TrainState, batch: Any, frozen_params: Any = None
  ) -> tuple[TrainState, Metrics]:
    _check_batch(batch)
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    objective_key, dropout_key = jax.random.split(key)
    inputs, targets = objective.prepare(batch, objective_key)
    context = context_of(extras, state, frozen_params)
    (mean_loss, means), grads = gradient(
      state.params, context, dropout_key, inputs, targets
    )
    measured = Measured.of(grads)
    finite = jnp.isfinite(mean_loss) & jnp.isfinite(measured.norm)

    def update() -> TrainState:
      """The next state, but for its step, if the update is applied."""
      updates, opt_state = optimizer.update(
        grads, state.opt_state, state.params, measured=measured
      )
      params = optax.apply_updates(state.params, updates)
      averaged = average(state, params)
      return TrainState(state.step, params, opt_state, averaged, means.state)

    next_state: Any = _update_if_finite(finite, update, state)
    metrics = {
      "loss": mean_loss,
      objective.metric: means.score,
      "gradient_norm": measured.norm,
      "skipped_steps": 1 - finite.astype(jnp.int32),
      **means.metrics,
    }
    if schedule is not None:
      metrics["learning_rate"] = schedule(_count_updates(state))
    if "skipped" in batch:
      metrics["skipped_images"] = batch["skipped"].sum()
    return next_state.replace(step=state.step + 1), metrics

  return train_step


def _as_schedule(
  learning_rate: optax.ScalarOrSchedule | None,
) -> Callable[[Any], Any] | None:
  """The schedule of a learning rate, which may be a number; None for None."""
  if learning_rate is None or callable(learning_rate):
    return learning_rate
  return optax.constant_schedule(jnp.float32(learning_rate))


def _update_if_finite(
  finite: Array, update: Callable[[], TrainState], state: TrainState
) -> TrainState:
  """The state after `update` if `finite` is true, else the old `state`."""

  def update_in_types() -> TrainState:
    return jax.tree.map(_cast_like, update(), state)

  if for_cpu():
    # With a selection, XLA's CPU compiler would copy each moment before it is
    # overwritten. Other devices might wait for the host to choose a branch.
    return jax.lax.cond(finite, update_in_types, lambda: state)
  select = functools.partial(jnp.where, finite)
  return jax.tree.map(select, update_in_types(), state)


def _cast_like(new: Any, old: Any) -> Any:
  """The new array in the type of the old one."""
  dtype = jnp.result_type(old)
  return new if jnp.result_type(new) == dtype else jnp.asarray(new, dtype)


class Means(NamedTuple):
  """Means over a batch, or a part of it, besides the mean loss.

  Attributes:
    score: The mean score.
    metrics: The objective's own metrics.
    state: The next state of the objective; None if it has no state.
    weight: The sum of the examples' weights, which weighs this part among
      others; None if all examples count alike.
  """

  score: Array
  metrics: Any
  state: Any
  weight: Array | None


def context_of(
  extras: Extras, state: TrainState, frozen_params: Any
) -> StepContext:
  """The values that an objective may read, from the state before the step."""
  context = StepContext(
    step=state.step, state=state.objective_state, frozen=frozen_params or {}
  )
  if state.averaged_params is None:
    return context
  average_of = functools.partial(
    extras.merged_params, state.averaged_params, frozen_params
  )
  return dataclasses.replace(context, average_of=average_of)


def model_function(
  model_apply: Apply,
  is_trainable: Callable[[str], bool] | None,
  extras: Extras,
) -> Callable[[Any, Any, Array], Apply]:
  """A function from (params, frozen_params, key) to an objective's `apply`."""

  def stop_frozen(path: str, leaf: Array) -> Array:
    is_trained = is_trainable is None or is_trainable(path)
    return leaf if is_trained else jax.lax.stop_gradient(leaf)

  def model_of(params: Any, frozen_params: Any, key: Array) -> Apply:
    """The `apply` of an objective, with these parameters and dropout's key."""
    params = map_paths(stop_frozen, params)
    params = extras.merged_params(params, frozen_params)

    def apply(inputs: Any, *, method: Any = None, **collections: Any) -> Any:
      variables = {"params": params, **collections}
      rngs = {"dropout": key}
      return model_apply(
        variables, inputs, method=method, rngs=rngs, train=True
      )

    return apply

  return model_of


def _make_gradient(
  model_of: Callable[..., Apply], objective: Objective, parts: int
) -> Callable:
  """A function from (params, context, key, inputs, targets).

  It returns ((mean loss, `Means`), gradient), as functions that
  `jax.value_and_grad` makes do, and computes the batch in `parts` parts. Raises
  ValueError if the objective cannot be computed in several parts.
  """
  if parts > 1 and objective.couples:
    if not isinstance(objective, CoupledObjective):
      raise ValueError(
        f"accumulation_steps={parts} computes a batch in parts, and the loss "
        "of an example depends on the whole batch: set it to 1."
      )
    return _coupled_gradient_in_parts(model_of, objective, parts)
  loss_of = loss_function(model_of, objective)
  return _average_over_parts(jax.value_and_grad(loss_of, has_aux=True), parts)


def loss_function(
  model_of: Callable[..., Apply], objective: Objective
) -> Callable[..., tuple[Array, Means]]:
  """A function from (params, context, key, inputs, targets).

  It returns the mean loss and `Means`.
  """

  def loss_of(
    params: Any, context: StepContext, key: Array, inputs: Any, targets: Any
  ) -> tuple[Array, Means]:
    apply = model_of(params, context.frozen, key)
    return _means(objective.loss(apply, inputs, targets, context))

  return loss_of


def _means(loss: Loss) -> tuple[Array, Means]:
  """The mean loss over a batch, and its `Means`."""
  if loss.weight is None:
    means = Means(loss.score.mean(), loss.metrics, loss.state, None)
    return loss.value.mean(), means
  weight = loss.weight
  total_weight = loss.weight.sum()

  def mean(values: Array) -> Array:
    # A part may have no example that counts.
    total = jnp.where(weight > 0, values * weight, 0).sum()
    return total / jnp.where(total_weight > 0, total_weight, 1)

  means = Means(mean(loss.score), loss.metrics, loss.state, total_weight)
  return mean(loss.value), means


def _check_batch(batch: Any) -> None:
  """Raises ValueError if a batch is not a dictionary."""
  if not issubclass(type(batch), Mapping):
    raise ValueError(
      f"a batch is a dictionary with image and label, not a "
      f"{type(batch).__name__}: give dict(image=images, label=labels)."
    )


def _make_average(
  objective: Objective, decay: float, warmup: bool
) -> Callable[[TrainState, Any], Any]:
  """A function from a state and the next parameters to their next average."""
  if not decay:
    return lambda state, params: state.averaged_params
  decay_at = _make_decay(objective, decay, warmup)

  def average(state: TrainState, params: Any) -> Any:
    share = 1 - decay_at(state.step)
    return optax.incremental_update(params, state.averaged_params, share)

  return average


def _make_decay(
  objective: Objective, decay: float, warmup: bool
) -> Callable[[Array], Any]:
  """The decay of the parameters' average, as a function of the step.

  The objective's own decay, if it has one, takes the place of `decay`.
  """

  def decay_at(step: Array) -> Any:
    own = objective.decay(step)
    if own is not None:
      return own
    if not warmup:
      return decay
    t = step + 1  # Early on, the average covers about the last tenth of steps.
    return jnp.minimum(decay, (1 + t) / (10 + t))

  return decay_at


def share_of_start(
  objective: Objective, ema_decay: float, ema_warmup: bool, total_steps: int
) -> float:
  """The share that the first parameters have in the average after a run.

  It is the product of the decays of all steps; 0 where `ema_decay` is 0, as
  there is no average then.
  """
  if not ema_decay:
    return 0.0
  decay_at = _make_decay(objective, ema_decay, ema_warmup)

  def remaining(step: Array, share: Array) -> Array:
    return share * decay_at(step)

  count = jnp.int32(total_steps)
  return float(jax.lax.fori_loop(0, count, remaining, jnp.float32(1)))


def _count_updates(state: TrainState) -> Array:
  """The number of updates so far, without skipped steps, for the schedule."""
  counts = optax.tree.get_all_with_path(state.opt_state, "count")
  return counts[0][1] if counts else state.step


def _split(x: Array, parts: int) -> Array:
  """Splits (B, ...) into (parts, B / parts, ...).

  Part p takes the rows p, p + parts, ... So a device that holds consecutive
  rows has its share of every part, and no row moves between devices.
  """
  return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)


def _join_parts(x: Array) -> Array:
  """The inverse of `_split`: joins (parts, B / parts, ...) into (B, ...)."""
  return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])


def _average_over_parts(gradient: Callable, parts: int) -> Callable:
  """A function that averages `gradient` over parts of equal size.

  Each part has its own random key. If examples have weights, a part counts as
  much as the sum of its weights.
  """
  if parts == 1:
    return gradient

  def mean(
    params: Any, context: StepContext, key: Array, inputs: Any, targets: Any
  ):
    """As `gradient`, averaged over the parts of a batch."""

    def add_part(total, xs):
      """Adds the loss, the score and the gradient of a part.

      Raises ValueError if the objective keeps a state.
      """
      part, (part_inputs, part_targets) = xs
      part_key = jax.random.fold_in(key, part)
      (loss, means), grads = gradient(
        params, context, part_key, part_inputs, part_targets
      )
      if means.state is not None:
        raise ValueError(
          f"accumulation_steps={parts}: the objective keeps a state, and takes "
          "a whole batch: set it to 1."
        )
      sums = (loss, means.score), grads
      if means.weight is not None:
        times = functools.partial(jnp.multiply, means.weight)
        sums = jax.tree.map(times, sums)
      total = jax.tree.map(jnp.add, total, sums)
      return total, (means.metrics, means.weight)

    data = jax.tree.map(lambda x: _split(x, parts), (inputs, targets))
    loss_and_score = jnp.zeros(()), jnp.zeros(())
    start = loss_and_score, jax.tree.map(jnp.zeros_like, params)
    total, (metrics, weights) = jax.lax.scan(
      add_part, start, (jnp.arange(parts), data)
    )
    weight = None if weights is None else weights.sum()
    whole = parts if weight is None else weight
    (loss, score), grads = jax.tree.map(lambda x: x / whole, total)
    metrics = jax.tree.map(lambda x: x.mean(axis=0), metrics)
    return (loss, Means(score, metrics, None, weight)), grads

  return mean


def _coupled_gradient_in_parts(
  model_of: Callable[..., Apply], objective: CoupledObjective, parts: int
) -> Callable:
  """As `_make_gradient`, for a loss that couples the parts (arXiv:2101.06983).

  First, all parts are embedded, and only the embeddings are kept. From the
  loss's gradient for the embeddings, its gradient for the parameters is
  computed part by part; each part is embedded again with the same dropout.
  """

  def gradient(
    params: Any, context: StepContext, key: Array, inputs: Any, targets: Any
  ):
    """((mean loss, `Means`), gradient) of a batch, part by part."""

    def embed(params: Any, part: Array, inputs: Any) -> tuple[Any, Any]:
      apply = model_of(params, context.frozen, jax.random.fold_in(key, part))
      return objective.embed(apply, inputs, context)

    def embed_part(none: None, xs: tuple[Array, Any]):
      return none, embed(params, *xs)

    def couple(rows: Any, shared: Any) -> tuple[Array, Means]:
      return _means(objective.couple(rows, shared, targets))

    split = functools.partial(jax.tree.map, lambda x: _split(x, parts))
    xs = jnp.arange(parts), split(inputs)
    _, (rows, shared) = jax.lax.scan(embed_part, None, xs)
    rows = jax.tree.map(_join_parts, rows)
    shared = jax.tree.map(lambda x: x[0], shared)  # The same in all parts.
    couple_gradient = jax.value_and_grad(couple, argnums=(0, 1), has_aux=True)
    loss_and_means, gradients = couple_gradient(rows, shared)
    rows_gradient, shared_gradient = gradients
    # Each part's backward pass adds the gradient of what all parts share.
    shared_gradient = jax.tree.map(lambda x: x / parts, shared_gradient)

    def add_part(total: Any, xs: tuple[Array, Any, Any]):
      """Adds a part's gradient, from that of its embeddings."""
      part, part_inputs, rows_gradient = xs
      back = jax.vjp(lambda p: embed(p, part, part_inputs), params)[1]
      (part_gradient,) = back((rows_gradient, shared_gradient))
      return jax.tree.map(jnp.add, total, part_gradient), None

    zero = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add_part, zero, (*xs, split(rows_gradient)))
    return loss_and_means, total

  return gradient
