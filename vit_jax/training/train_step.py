"""The train step: one pure function from (state, batch) to (state, metrics)."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Int

from vit_jax.models.normalize import normalize
from vit_jax.training import losses
from vit_jax.training.optimizer import map_paths

Metrics = dict[str, Array]


@struct.dataclass
class TrainState:
  """All that changes while training; what a checkpoint holds.

  `averaged_params` is their Polyak average, or None where it is off.
  """

  step: Int[Array, ""]
  params: Any
  opt_state: Any
  averaged_params: Any = None

  @property
  def eval_params(self) -> Any:
    """The parameters to evaluate, averaged ones where there are any."""
    if self.averaged_params is None:
      return self.params
    return self.averaged_params


def make_params_init(
  model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[Array], Any]:
  """A function from a random key to the model's parameters.

  They are boxed with their logical axes; `nn.unbox` strips those.
  """
  return lambda key: model.init(key, jnp.zeros((1, *image_shape)))["params"]


def make_init(
  model: nn.Module,
  tx: optax.GradientTransformation,
  image_shape: tuple[int, int, int],
  ema_decay: float = 0.0,
) -> Callable[[Array], TrainState]:
  """A function from a random key to the first state, parameters boxed."""
  params_init = make_params_init(model, image_shape)

  def init(key: Array) -> TrainState:
    params = params_init(key)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=tx.init(params),
      averaged_params=jax.tree.map(jnp.copy, params) if ema_decay else None,
    )

  return init


def with_params(
  state: TrainState, leaves: Iterable[tuple[str, np.ndarray]]
) -> TrainState:
  """The state with other parameters, and their average the same.

  Args:
    state: On its devices.
    leaves: (path, whole array) of those to replace, read one at a time; each
      device keeps its part of them.
  """
  names = map_paths(lambda path, _: path, state.params)
  params = dict(
    zip(jax.tree.leaves(names), jax.tree.leaves(state.params), strict=True)
  )
  for path, array in leaves:
    old = params[path]
    params[path] = jax.make_array_from_callback(
      old.shape,
      old.sharding,
      lambda part, array=array, dtype=old.dtype: array[part].astype(dtype),
    )
  tree = jax.tree.map(lambda path: params[path], names)
  averaged = state.averaged_params
  if averaged is not None:
    averaged = jax.tree.map(jnp.copy, tree)
  return TrainState(state.step, tree, state.opt_state, averaged)


def make_train_step(
  model: nn.Module,
  tx: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  *,
  seed: int = 0,
  mean: Sequence[float] = (0.5, 0.5, 0.5),
  std: Sequence[float] = (0.5, 0.5, 0.5),
  loss: str = "softmax",
  label_smoothing: float = 0.0,
  mixup_alpha: float = 0.0,
  accumulation_steps: int = 1,
  ema_decay: float = 0.0,
  trained: Callable[[str], bool] | None = None,
) -> Callable[[TrainState, dict[str, Array]], tuple[TrainState, Metrics]]:
  """A function from (state, batch) to (next state, metrics).

  Where the loss or the gradient is not finite, only the step counts on: the
  parameters and all that the optimizer knows stay as they are.

  A batch holds `image`, uint8 (B, H, W, C), `label`, integer (B,), and
  `skipped`, true for rows that stand in for an unreadable image. Random numbers
  come from the seed and the step alone.

  Args:
    model: Images to logits.
    tx: The optimizer.
    learning_rate: The schedule in `tx`, to be reported.
    seed: Of Mixup and dropout.
    mean: Of each channel, in units of full scale.
    std: The same.
    loss: One of `losses.KINDS`.
    label_smoothing: Share of the uniform distribution in the targets.
    mixup_alpha: Of Mixup's Beta distribution; 0 is off.
    accumulation_steps: Parts that a batch is computed in, to save memory. The
      gradient is the same; dropout draws anew for each part.
    ema_decay: Of the parameters' Polyak average; 0 is off.
    trained: Whether the parameter at a path is; the others' gradients are zero
      and are not computed. By default all are.
  """

  def stopped(path: str, leaf: Array) -> Array:
    keep = trained is None or trained(path)
    return leaf if keep else jax.lax.stop_gradient(leaf)

  def loss_of(params: Any, key: Array, images: Array, targets: Array) -> Array:
    params = map_paths(stopped, params)
    logits: Any = model.apply(
      {"params": params}, images, train=True, rngs={"dropout": key}
    )
    return losses.cross_entropy(loss, logits, targets).mean()

  gradient = _in_parts(jax.value_and_grad(loss_of), accumulation_steps)

  def train_step(
    state: TrainState, batch: dict[str, Array]
  ) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    mixup_key, dropout_key = jax.random.split(key)
    images = normalize(batch["image"], mean, std)
    targets = losses.make_targets(
      batch["label"], model.num_classes, label_smoothing
    )
    if mixup_alpha:
      images, targets = losses.mixup(mixup_key, images, targets, mixup_alpha)
    mean_loss, grads = gradient(state.params, dropout_key, images, targets)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    averaged = state.averaged_params
    if ema_decay:
      averaged = optax.incremental_update(params, averaged, 1 - ema_decay)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(mean_loss) & jnp.isfinite(norm)
    new, old = (
      (params, opt_state, averaged),
      (state.params, state.opt_state, state.averaged_params),
    )
    kept = jax.tree.map(functools.partial(jnp.where, finite), new, old)
    metrics = {
      "loss": mean_loss,
      "gradient_norm": norm,
      "learning_rate": learning_rate(state.step),
      "skipped_images": batch["skipped"].sum(),
      "skipped_steps": 1 - finite.astype(jnp.int32),
    }
    return TrainState(state.step + 1, *kept), metrics

  return train_step


def _in_parts(gradient: Callable, parts: int) -> Callable:
  """A function to the mean loss and gradient of a batch, part by part.

  Args:
    gradient: (params, key, images, targets) to (loss, gradient), both means.
    parts: Equal ones, each with a key of its own; of 1 it is `gradient`.
  """
  if parts == 1:
    return gradient

  def mean(params: Any, key: Array, images: Array, targets: Array):
    def add_part(total, xs):
      part, (part_images, part_targets) = xs
      part_key = jax.random.fold_in(key, part)
      found = gradient(params, part_key, part_images, part_targets)
      return jax.tree.map(jnp.add, total, found), None

    split = jax.tree.map(_split(parts), (images, targets))
    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add_part, zero, (jnp.arange(parts), split))
    return jax.tree.map(lambda x: x / parts, total)

  return mean


def _split(parts: int) -> Callable[[Array], Array]:
  """Splits (B, ...) to (parts, B / parts, ...), each device's rows evenly.

  Part p takes the rows p, p + parts, ...: a device that holds a run of rows
  holds its share of every part, and none moves.
  """

  def split(x: Array) -> Array:
    return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

  return split
