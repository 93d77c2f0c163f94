"""The optimizer: Adam with decoupled weight decay, or SGD (App. B.1)."""

import re
from typing import Any

import flax.linen as nn
import jax
import optax

DECAYS = ("cosine", "linear", "constant")
KINDS = ("adam", "sgd")


def make_schedule(
  *,
  peak_lr: float,
  total_steps: int,
  warmup_steps: int = 0,
  decay: str = "cosine",
  final_lr: float = 0.0,
) -> optax.Schedule:
  """Learning rate by step: linear warm-up from 0, then decay (Table 3).

  With w warm-up steps of T, step t gets peak t / w until w, and then, for
  s = (t - w) / (T - w): final + (peak - final) f(s), where f is 1 - s (linear)
  or (1 + cos(pi s)) / 2 (cosine).

  Raises:
    ValueError: if the decay is unknown or the warm-up leaves no step.
  """
  if decay not in DECAYS:
    raise ValueError(
      f"optimizer.decay={decay!r} is unknown; "
      f"choose one of {', '.join(DECAYS)}."
    )
  if warmup_steps and warmup_steps >= total_steps:
    raise ValueError(
      f"a warm-up of {warmup_steps} steps leaves nothing of {total_steps}: "
      "shorten optimizer.warmup_steps (or _epochs, _examples) or train longer."
    )
  rest = max(1, total_steps - warmup_steps)
  if decay == "cosine":
    alpha = final_lr / peak_lr if peak_lr else 0.0
    after = optax.cosine_decay_schedule(peak_lr, rest, alpha)
  elif decay == "linear":
    after = optax.linear_schedule(peak_lr, final_lr, rest)
  else:
    after = optax.constant_schedule(peak_lr)
  if not warmup_steps:
    return after
  warmup = optax.linear_schedule(0.0, peak_lr, warmup_steps)
  return optax.join_schedules([warmup, after], [warmup_steps])


def make_optimizer(
  learning_rate: optax.Schedule,
  *,
  kind: str = "adam",
  b1: float = 0.9,
  b2: float = 0.999,
  momentum: float = 0.9,
  weight_decay: float = 0.0,
  weight_decay_on: str = r"kernel$",
  clip_norm: float = 1.0,
) -> optax.GradientTransformation:
  """Clipping, then Adam or momentum, then decay, times the learning rate.

  Args:
    learning_rate: From `make_schedule`.
    kind: "adam", or "sgd" with momentum (fine-tuning, App. B.1.1).
    b1: Adam's decay of the mean gradient.
    b2: Adam's decay of the mean squared gradient.
    momentum: SGD's.
    weight_decay: lambda; each step takes lr * lambda * w off a weight w.
    weight_decay_on: Regular expression searched in paths such as
      "block_0/mlp/expand/kernel"; what it finds decays.
    clip_norm: Largest global norm of the gradient; 0 does not clip.

  Raises:
    ValueError: if the kind is unknown or the expression is not valid.
  """
  if kind not in KINDS:
    raise ValueError(
      f"optimizer.kind={kind!r} is unknown; choose one of {', '.join(KINDS)}."
    )
  try:
    pattern = re.compile(weight_decay_on)
  except re.error as error:
    raise ValueError(
      f"optimizer.weight_decay_on={weight_decay_on!r} is not a regular "
      f"expression: {error}."
    ) from error
  core = (
    optax.scale_by_adam(b1, b2) if kind == "adam" else optax.trace(momentum)
  )
  return optax.chain(
    optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
    core,
    optax.add_decayed_weights(
      weight_decay, mask=lambda params: matches(pattern, params)
    ),
    optax.scale_by_learning_rate(learning_rate),
  )


def matches(pattern: re.Pattern[str], params: Any) -> Any:
  """A tree of booleans: whether the pattern is found in each leaf's path."""

  def found(path, _) -> bool:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return pattern.search(name) is not None

  return jax.tree_util.tree_map_with_path(found, nn.unbox(params))
