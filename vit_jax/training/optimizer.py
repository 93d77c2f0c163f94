"""The optimizer: Adam with decoupled weight decay, or another.

Adam is that of arXiv:2010.11929, App. B.1, and the schedules are in Table 3.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from optax import contrib

from vit_jax.models.parts import Parts, guess_parts
from vit_jax.models.paths import beside, is_kernel, merge_qkv
from vit_jax.training.schedules import cosine
from vit_jax.training.settings import OptimizerSettings

_LEAST_NORM = 1e-7  # Added to the norm of a matrix, as in Muon's code.
Tx = optax.GradientTransformation


def make_schedule(
  settings: OptimizerSettings,
  total_steps: int,
  warmup_steps: int = 0,
  epoch_steps: float = 1.0,
) -> optax.Schedule:
  """Learning rate by step: linear warm-up from 0, then decay.

  With w warm-up steps out of T in all, step t < w gets peak t / w. Later steps
  get final + (peak - final) f(s) with s = (t - w) / (T - w), where f(s) is 1 -
  s for linear and (1 + cos(pi s)) / 2 for cosine decay; the constant schedule
  stays at the peak. DeiT's schedule has one rate for the `epoch_steps` steps of
  an epoch. Raises ValueError if the warm-up leaves no step for the decay.

  >>> from vit_jax.training.optimizer import make_schedule
  >>> from vit_jax.training.settings import OptimizerSettings
  >>> settings = OptimizerSettings(peak_lr=0.5, decay="linear")
  >>> rate = make_schedule(settings, total_steps=10, warmup_steps=2)
  >>> [float(rate(step)) for step in (0, 1, 2, 6, 10)]
  [0.0, 0.25, 0.5, 0.25, 0.0]
  """
  peak_lr, final_lr = settings.peak_lr, settings.final_lr
  if warmup_steps and warmup_steps >= total_steps:
    raise ValueError(
      f"optimizer.warmup_steps={warmup_steps} leaves none of the run's "
      f"{total_steps} steps: shorten the warm-up (in _steps, _epochs or "
      "_examples) or train longer."
    )
  if settings.decay == "deit":
    return _deit_schedule(
      peak=peak_lr,
      final=final_lr,
      epoch_steps=epoch_steps,
      total=total_steps / epoch_steps,
      warmup=warmup_steps / epoch_steps,
    )
  decay_steps = max(1, total_steps - warmup_steps)
  if settings.decay == "cosine":
    alpha = final_lr / peak_lr if peak_lr else 0.0
    after = optax.cosine_decay_schedule(peak_lr, decay_steps, alpha)
  elif settings.decay == "linear":
    after = optax.linear_schedule(peak_lr, final_lr, decay_steps)
  else:
    after = optax.constant_schedule(peak_lr)
  if not warmup_steps:
    return after
  warmup = optax.linear_schedule(0.0, peak_lr, warmup_steps)
  return optax.join_schedules([warmup, after], [warmup_steps])


def _deit_schedule(
  peak: float, final: float, epoch_steps: float, total: float, warmup: float
) -> optax.Schedule:
  """The schedule of DeiT's code, for `total` epochs and `warmup` of them.

  Epoch e has the rate of t = max(0, e - 1). With w warm-up epochs, it is 1e-6 +
  (peak - 1e-6) t / w for t < w, and then that of the cosine decay over all
  epochs, which the warm-up does not shift.
  """
  w = round(warmup)

  def rate(step: Any) -> Array:
    t = jnp.maximum(jnp.floor(step / epoch_steps) - 1, 0)
    rising = 1e-6 + (peak - 1e-6) * t / max(w, 1)
    falling = final + (peak - final) * (1 + jnp.cos(jnp.pi * t / total)) / 2
    return jnp.where(t < w, rising, falling)

  return rate


def make_optimizer(
  settings: OptimizerSettings,
  learning_rate: optax.Schedule,
  *,
  is_trainable: Callable[[str], bool] | None = None,
  parts: Parts | None = None,
  total_steps: int = 0,
) -> optax.GradientTransformation:
  """Makes the optimizer: clipping, Adam or momentum, weight decay, rate.

  A weight w that decays loses lr * weight_decay * w at each step. LAMB then
  scales the updates of these arrays, decay included, to the norm of the array,
  and leaves other arrays to Adam, as apex and timm do. Muon is for the kernels
  of the blocks, and Adam for all other parameters. Parameters that are not
  trained keep their values and take no memory in the optimizer.

  >>> import jax.numpy as jnp
  >>> import optax
  >>> from vit_jax.training.optimizer import make_optimizer
  >>> from vit_jax.training.settings import OptimizerSettings
  >>> settings = OptimizerSettings(kind="sgd", clip_norm=0.0)
  >>> tx = make_optimizer(settings, optax.constant_schedule(0.5))
  >>> params = {"head": {"bias": jnp.zeros(2)}}
  >>> gradient = {"head": {"bias": jnp.array([1.0, -2.0])}}
  >>> updates, _ = tx.update(gradient, tx.init(params), params)
  >>> updates["head"]["bias"].tolist()
  [-0.5, 1.0]

  Args:
    learning_rate: The schedule, from `make_schedule`.
    is_trainable: Tells by a parameter's path whether it is trained; by default
      all parameters are.
    parts: The model's parts; by default those that the parameters' names
      suggest (`models.parts.guess_parts`), and `settings.layer_decay` then has
      no effect.
    total_steps: Length of the run, for a weight decay with a schedule.
  """
  clip_norm = settings.clip_norm
  core = optax.scale_by_adam(settings.b1, settings.b2, settings.epsilon)
  if settings.kind == "sgd":
    core = optax.trace(settings.momentum)
  elif settings.kind == "muon":
    muon = _scale_by_muon(settings, parts)
    kinds: Any = {"muon": muon, "adam": core}
    core = optax.partition(kinds, functools.partial(_muon_or_adam, parts))
  decays = functools.partial(_decay_mask, settings)
  decay = optax.add_decayed_weights(
    _weight_decay(settings, total_steps), mask=decays
  )
  if settings.kind == "lamb":
    trust_ratio = optax.masked(_scale_by_trust_ratio(parts), decays)
    decay = optax.chain(decay, trust_ratio)
  tx = optax.chain(
    clip_to(clip_norm) if clip_norm else optax.identity(),
    core,
    decay,
    _scale_by_place(settings, parts),
    optax.scale_by_learning_rate(learning_rate),
  )
  return tx if is_trainable is None else _train_only(is_trainable, tx)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A gradient and its global norm, for an optimizer that needs it as well.

  XLA does not see that a branch computes once more what is known outside.
  """

  gradient: Any
  norm: Array

  @classmethod
  def of(cls, gradient: Any) -> "Measured":
    return cls(gradient, optax.tree.norm(gradient))

  def norm_of(self, updates: Any) -> Array:
    """The global norm of a tree, which is known if it is the gradient."""
    arrays, known = map(jax.tree.leaves, (updates, self.gradient))
    is_known = [*map(id, arrays)] == [*map(id, known)]
    return self.norm if is_known else optax.tree.norm(updates)


def clip_to(largest: float) -> optax.GradientTransformationExtraArgs:
  """Scales a gradient to the global norm `largest` if its own is larger.

  `optax.clip_by_global_norm` divides each array by the norm, and XLA then
  stores all quotients on a CPU; one factor for all is applied where an array is
  used. Its update takes the norm from `measured`, a `Measured`, if it is given.
  """

  def update(
    updates: Any,
    state: Any,
    params: Any = None,
    *,
    measured: Measured | None = None,
    **others: Any,
  ) -> tuple[Any, Any]:
    del params, others
    norm = (measured or Measured.of(updates)).norm_of(updates)
    factor = jnp.where(norm < largest, 1.0, largest / norm)
    return jax.tree.map(lambda x: x * factor.astype(x.dtype), updates), state

  return optax.GradientTransformationExtraArgs(
    lambda params: optax.EmptyState(), update
  )


def _weight_decay(settings: OptimizerSettings, total_steps: int) -> Any:
  """The weight decay, or its schedule by step."""
  first, last = settings.weight_decay, settings.final_weight_decay
  if last is None:
    return first
  return lambda step: cosine(step, first, last, total_steps)


def _decay_mask(settings: OptimizerSettings, params: Any) -> Any:
  """A tree that says of each parameter whether it decays.

  Raises ValueError if weights are to decay and no parameter does.
  """
  pattern = settings.weight_decay_on
  path_decays = re.compile(pattern).search
  mask = map_paths(lambda path, _: path_decays(path) is not None, params)
  needed = settings.weight_decay or settings.kind == "lamb"
  if needed and not any(jax.tree.leaves(mask)):
    raise ValueError(
      f"optimizer.weight_decay_on={pattern!r} is found in the path of no "
      "trained parameter; paths are such as head/kernel."
    )
  return mask


def _train_only(is_trainable: Callable[[str], bool], tx: Tx) -> Tx:
  """The optimizer `tx` for trained parameters, and no updates for others."""

  def label(path: str, _: Any) -> str:
    return "trained" if is_trainable(path) else "frozen"

  kinds: dict[Any, Tx] = {"trained": tx, "frozen": optax.set_to_zero()}
  return optax.partition(kinds, functools.partial(map_paths, label))


def _scale_by_trust_ratio(parts: Parts | None) -> optax.GradientTransformation:
  """Scales each array's update to the array's norm (arXiv:1904.00962).

  Query, key and value of a layer are one array, as in DeiT III's code. The
  stacked arrays of scanned blocks have one norm per block. An update stays as
  it is if its norm or that of its array is 0.
  """

  def scale(updates: Any, params: Any) -> Any:
    """All updates, each scaled to the norm of its array."""
    totals: dict[str, Any] = {}
    model_parts = parts or guess_parts(updates)

    def add(path: str, update: Any, param: Any) -> None:
      """Adds the squares of an update and its array to `totals`."""
      axes = tuple(range(model_parts.stacked_axes(path), update.ndim))
      squares = [
        jnp.sum(jnp.square(x), axes, keepdims=True) for x in (update, param)
      ]
      name = merge_qkv(path)
      # Axis 0 holds the update and the parameter.
      totals[name] = totals.get(name, 0) + jnp.stack(squares)

    def scale_one(path: str, update: Any) -> Any:
      update_norm, param_norm = jnp.sqrt(totals[merge_qkv(path)])
      is_zero = (param_norm == 0) | (update_norm == 0)
      ratio = param_norm / jnp.where(is_zero, 1, update_norm)
      return update * jnp.where(is_zero, 1, ratio)

    map_paths(add, updates, params)
    return map_paths(scale_one, updates)

  return optax.stateless(scale)


def _scale_by_muon(settings: OptimizerSettings, parts: Parts | None) -> Tx:
  """Replaces a matrix's momentum by roughly the nearest orthogonal matrix.

  With momentum b, gradient g and m = b m + (1 - b) g, Nesterov's momentum is
  b m + (1 - b) g. Optax divides the first term by 1 - b^(t + 2) and the second
  by 1 - b^(t + 1) at step t = 0, 1, ...; the authors' code does not.

  A factor of 0.2 times the root of the longer side makes the update's elements
  as large as Adam's, so that the same learning rate fits (arXiv:2502.16982).
  """

  def orthogonalize(model_parts: Parts, path: str, update: Array) -> Array:
    """An update, orthogonalised as a matrix of inputs and outputs."""
    inputs, outputs = model_parts.kernel_axes(path, update.ndim)
    rows = math.prod(update.shape[axis] for axis in inputs)
    columns = math.prod(update.shape[axis] for axis in outputs)
    x = update.reshape(*update.shape[: inputs[0]], rows, columns)
    if not settings.momentum_correction:
      norms = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
      x = x / (norms + _LEAST_NORM)
    x = _newton_schulz(x) if rows <= columns else _newton_schulz(x.mT).mT
    return x.reshape(update.shape) * (0.2 * math.sqrt(max(rows, columns)))

  def dimensions(
    model_parts: Parts, path: str, array: Array
  ) -> contrib.MuonDimensionNumbers:
    inputs, outputs = model_parts.kernel_axes(path, array.ndim)
    return contrib.MuonDimensionNumbers(
      reduction_axis=inputs, output_axis=outputs
    )

  def map_kernels(function: Callable[..., Any], tree: Any) -> Any:
    model_parts = parts or guess_parts(tree)
    return map_paths(functools.partial(function, model_parts), tree)

  # Optax only divides by the norm here: its iteration is on stacks of one
  # matrix, which takes 1.6 times as long on a CPU.
  axes = functools.partial(map_kernels, dimensions)
  momentum = contrib.scale_by_muon(
    beta=settings.momentum, ns_steps=0, weight_dimension_numbers=axes
  )
  if not settings.momentum_correction:  # The same but for the factor 1 - b.
    momentum = optax.trace(settings.momentum, nesterov=True)

  def orthogonalize_all(updates: Any, _: Any) -> Any:
    return map_kernels(orthogonalize, updates)

  return optax.chain(momentum, optax.stateless(orthogonalize_all))


def _newton_schulz(x: Array) -> Array:
  """Five quintic steps that bring the singular values of (..., m, n) near 1."""
  for _ in range(5):
    A = x @ x.mT
    x = 3.4445 * x + (-4.7750 * A + 2.0315 * (A @ A)) @ x
  return x


def _muon_or_adam(parts: Parts | None, params: Any) -> Any:
  """A tree with the optimizer of each parameter, "muon" or "adam".

  Raises ValueError if there is no parameter for Muon.
  """

  model_parts = parts or guess_parts(params)

  def label(path: str, _: Any) -> str:
    inside = model_parts.in_layer(path) or model_parts.in_residual_unit(path)
    return "muon" if inside and is_kernel(path) else "adam"

  labels = map_paths(label, params)
  if "muon" not in jax.tree.leaves(labels):
    raise ValueError(
      "optimizer.kind='muon' is for the kernels of a ViT's blocks and of a "
      "ResNet's units, and none is trained here; choose adam."
    )
  return labels


def _scale_by_layer(decay: float, parts: Parts | None) -> Tx:
  """Multiplies each update by decay ** (number of layers up to the head)."""
  if decay == 1 or parts is None:
    return optax.identity()

  def scale_one(path: str, update: Any) -> Any:
    rate = jnp.asarray(decay ** parts.depth(path), update.dtype)  # () or (L,)
    return update * rate.reshape(rate.shape + (1,) * (update.ndim - rate.ndim))

  return optax.stateless(lambda updates, _: map_paths(scale_one, updates))


def _scale_by_place(settings: OptimizerSettings, parts: Parts | None) -> Tx:
  """Scales updates by where a parameter lies in the model.

  The result is always one member of the optimizer's chain: a checkpoint stores
  the states of the members by their numbers.
  """
  by_layer = _scale_by_layer(settings.layer_decay, parts)
  if settings.patches_lr == 1:
    return by_layer
  return optax.chain(by_layer, _scale_patches(settings.patches_lr, parts))


def _scale_patches(factor: float, parts: Parts | None) -> Tx:
  """Multiplies the updates of the embedding of patches by `factor`."""

  def scale(updates: Any, _: Any) -> Any:
    model_parts = parts or guess_parts(updates)

    def scale_one(path: str, update: Any) -> Any:
      of_patches = model_parts.reads_pixels(beside(path, "kernel"))
      return update * factor if of_patches else update

    return map_paths(scale_one, updates)

  return optax.stateless(scale)


def trainable_filter(
  freeze_layers: int, parts: Parts | int, scanned: bool = False
) -> Callable[[str], bool] | None:
  """Returns a function that tells whether the parameter at a path is trained.

  Returns None if all parameters are trained. Otherwise, the embeddings and the
  first `freeze_layers` of the encoder's L layers are frozen, in each encoder if
  there are several, and a decoder is trained. With -1, only the head is
  trained. Raises ValueError if the model has fewer layers, or if some of its
  layers, which are stacked, are to be frozen.

  >>> from vit_jax.training.optimizer import trainable_filter
  >>> is_trainable = trainable_filter(freeze_layers=1, parts=12)
  >>> is_trainable("block_0/msa/out/bias"), is_trainable("block_1/msa/out/bias")
  (False, True)

  Args:
    parts: The model's parts, or L for a plain encoder with a head.
    scanned: Whether the layers' parameters are stacked.
  """
  model_parts = Parts.plain(parts) if isinstance(parts, int) else parts
  num_layers = model_parts.num_layers
  if not -1 <= freeze_layers <= num_layers:
    raise ValueError(
      f"optimizer.freeze_layers={freeze_layers} must be between 0 and the "
      f"model's {num_layers} layers, or -1 for all but the head."
    )
  if freeze_layers > 0 and scanned:
    raise ValueError(
      f"optimizer.freeze_layers={freeze_layers} needs layers whose parameters "
      "are not stacked: set model.scan=False."
    )
  if freeze_layers == 0:
    return None
  if freeze_layers == -1:
    return model_parts.is_head
  return lambda path: not model_parts.is_frozen(path, freeze_layers)


def map_paths(function: Callable[..., Any], *trees: Any) -> Any:
  """The tree of function(path, *leaves); "block_0/msa/out/bias" is a path.

  >>> from vit_jax.training.optimizer import map_paths
  >>> params = {"head": {"bias": 1.0, "kernel": 2.0}}
  >>> map_paths(lambda path, value: f"{path} is {value}", params)
  {'head': {'bias': 'head/bias is 1.0', 'kernel': 'head/kernel is 2.0'}}
  """

  def call(path: tuple, *leaves: Any) -> Any:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return function(name, *leaves)

  return jax.tree_util.tree_map_with_path(call, *map(nn.unbox, trees))
