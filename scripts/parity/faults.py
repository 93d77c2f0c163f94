"""Faults that are put into our side one at a time: each must be found."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax

from scripts.parity import pairs, self_distillation
from scripts.parity.ours import Setup
from vit_jax.models import autoencoder, two_towers
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.models.parts import Parts
from vit_jax.models.paths import within
from vit_jax.run import plan
from vit_jax.runtime.settings import Duration
from vit_jax.tasks.autoencoder import objective as reconstruction
from vit_jax.tasks.pairs import objective as pair_objective
from vit_jax.tasks.self_distillation import (
  objective as self_distillation_objective,
)
from vit_jax.tasks.self_distillation.objective import SelfDistillation
from vit_jax.training import losses, optimizer, step
from vit_jax.training.distillation import Teacher
from vit_jax.training.optimizer import map_paths

Fault = Callable[[Setup], contextlib.AbstractContextManager[Setup]]


def _settings(section: str, **fields: Any) -> Fault:
  """Another setting."""

  def change(setup: Setup) -> Any:
    kept = getattr(setup.settings, section)
    own = {section: dataclasses.replace(kept, **fields)}
    settings = dataclasses.replace(setup.settings, **own)
    return contextlib.nullcontext(dataclasses.replace(setup, settings=settings))

  return change


def _run(**fields: Any) -> Fault:
  """Another setting outside of the sections."""

  def change(setup: Setup) -> Any:
    settings = dataclasses.replace(setup.settings, **fields)
    return contextlib.nullcontext(dataclasses.replace(setup, settings=settings))

  return change


def _model(**fields: Any) -> Fault:
  """Another field of the model; a function is given its value."""

  def change(setup: Setup) -> Any:
    own = {
      k: v(getattr(setup.model, k)) if callable(v) else v
      for k, v in fields.items()
    }
    model = setup.model.clone(**own)
    return contextlib.nullcontext(dataclasses.replace(setup, model=model))

  return change


def _patch(
  place: Any, name: str, make: Callable[[Any], Any], create: bool = False
) -> Fault:
  """Another function in the place of one of ours, or of optax's."""

  @contextlib.contextmanager
  def change(setup: Setup) -> Iterator[Setup]:
    new = make(getattr(place, name, None))
    with mock.patch.object(place, name, new, create=create):
      yield setup

  return change


def _both(*faults: Fault) -> Fault:
  """Several changes that are one fault."""

  @contextlib.contextmanager
  def change(setup: Setup) -> Iterator[Setup]:
    with contextlib.ExitStack() as stack:
      for fault in faults:
        setup = stack.enter_context(fault(setup))
      yield setup

  return change


def _optimizer(after: Callable[[Any, Any, Any], Any], **fields: Any) -> Fault:
  """Another optimizer: from one with these fields, the settings and the rate.

  The one that is given has a rate of 1, so that what follows it can be put
  before the learning rate.
  """

  def make(make_optimizer: Any) -> Any:
    def faulty(settings: Any, learning_rate: Any, **by_layer: Any) -> Any:
      changed = dataclasses.replace(settings, **fields)
      one = optax.constant_schedule(1.0)
      tx = make_optimizer(changed, one, **by_layer)
      tx = after(tx, settings, learning_rate)
      return optax.chain(tx, optax.scale_by_schedule(learning_rate))

    return faulty

  return _patch(plan, "make_optimizer", make)


def _scaled(module: str, factor: float) -> Fault:
  """Another rate of a module's arrays."""

  def scale(path: str, update: Any) -> Any:
    return update * (factor if within(path, module) else 1.0)

  own = optax.stateless(lambda updates, _: map_paths(scale, updates))
  return _optimizer(lambda tx, *_: optax.chain(tx, own))


def _shifted(schedule: Any, steps: int) -> Any:
  return lambda step: schedule(jnp.maximum(step + steps, 0))


def _clip_by_array(_: Any) -> Any:
  def make(norm: float) -> Any:
    def clip(x: Any) -> Any:
      return x * jnp.minimum(1, norm / jnp.linalg.norm(x))

    return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))

  return make


def _clip_late(tx: Any, settings: Any, _: Any) -> Any:
  return optax.chain(tx, optax.clip_by_global_norm(settings.clip_norm or 1.0))


def _coupled(tx: Any, settings: Any, _: Any) -> Any:
  """Weight decay as a part of the gradient."""
  return optax.chain(
    optax.add_decayed_weights(
      settings.weight_decay,
      mask=lambda params: map_paths(lambda k, _: k.endswith("kernel"), params),
    ),
    tx,
  )


def _summed(in_parts: Any) -> Any:
  def make(gradient: Any, parts: int) -> Any:
    mean = in_parts(gradient, parts)

    def total(*args: Any) -> Any:
      found, grads = mean(*args)
      return found, jax.tree.map(lambda x: x * parts, grads)

    return total

  return make


def _late(_: Any) -> Any:
  def averaging(objective: Any, decay: float, warmup: bool) -> Any:
    del objective, warmup
    return lambda state, params: optax.incremental_update(
      state.params, state.averaged_params, 1 - decay
    )

  return averaging


def _wrong_mass(_: Any) -> Any:
  """The share of the other classes is e / (K - 1), and the right has 1 - e."""

  def targets(label: Any, num_classes: int, label_smoothing: float = 0) -> Any:
    one_hot, e = jax.nn.one_hot(label, num_classes), label_smoothing
    return (1 - e) * one_hot + e / (num_classes - 1) * (1 - one_hot)

  return targets


def _ratio_first(chain: Any) -> Any:
  """LAMB's chain of decay and trust ratio, the other way round."""

  def make(*parts: Any) -> Any:
    return chain(*reversed(parts)) if len(parts) == 2 else chain(*parts)

  return make


def _teaching(**fields: Any) -> Fault:
  """Another setting of distillation; a function is given its value."""

  def change(setup: Setup) -> Any:
    teacher: Any = setup.extras.teacher
    own = {
      k: v(getattr(teacher.settings, k)) if callable(v) else v
      for k, v in fields.items()
    }
    settings = dataclasses.replace(teacher.settings, **own)
    teacher = dataclasses.replace(teacher, settings=settings)
    extras = dataclasses.replace(setup.extras, teacher=teacher)
    return contextlib.nullcontext(dataclasses.replace(setup, extras=extras))

  return change


def _lora(**fields: Any) -> Fault:
  """Another setting of LoRA; a function is given its value."""

  def change(setup: Setup) -> Any:
    kept = setup.extras.lora
    own = {k: v(getattr(kept, k)) for k, v in fields.items()}
    lora = dataclasses.replace(kept, **own)
    extras = dataclasses.replace(setup.extras, lora=lora)
    return contextlib.nullcontext(dataclasses.replace(setup, extras=extras))

  return change


def _muon(**fields: Any) -> Fault:
  def make(muon: Any) -> Any:
    return lambda **options: muon(**options, **fields)

  return _patch(optimizer.contrib, "scale_by_muon", make)


def _depth(changed: Callable[[str, Any, int], Any]) -> Fault:
  """Another layer of some parameters, from path, depth and number of layers."""

  def make(depth: Any) -> Any:
    def other(parts: Parts, path: str) -> Any:
      return changed(path, depth(parts, path), parts.num_layers)

    return other

  return _patch(Parts, "depth", make)


def _untempered(loss: Any) -> Any:
  def found(self: Any, *args: Any) -> Any:
    w, T = self.settings.weight, self.settings.temperature
    labelled = (1 - w) * args[-1]
    return labelled + (loss(self, *args) - labelled) / T**2

  return found


def _heads_swapped(by_head: Any) -> Any:
  return lambda *args, **options: by_head(*args, **options)[::-1]


def _unmixed(mix: Any) -> Any:
  def mixed(key: Any, images: Any, targets: Any, alpha: float) -> Any:
    return mix(key, images, targets, alpha)[0], targets

  return mixed


def _biased(_: Any) -> Any:
  """The variance of a patch as the mean of the squares, with ddof=0."""

  def normalize(pixels: Any) -> Any:
    mean = pixels.mean(axis=-1, keepdims=True)
    deviation = jnp.sqrt(pixels.var(axis=-1, keepdims=True) + 1e-6)
    values = (pixels - mean) / deviation
    return reconstruction.Normalized(values, mean, deviation)

  return normalize


def _rows_first(sincos: Any) -> Any:
  """Positions of y, then of x."""

  def swapped(h: int, w: int, D: int) -> Any:
    return jnp.roll(sincos(h, w, D), D // 2, axis=1)

  return swapped


def _at_seen(at: Any) -> Any:
  """The positions of all patches in order, also where some are seen."""

  def placed(E_pos: Any, places: Any) -> Any:
    if places is None:
      return at(E_pos, places)
    return at(E_pos, jnp.sort(places, axis=1))

  return placed


FAULTS: dict[str, Fault] = {
  "a mean over all pairs of the batch": _patch(
    pair_objective, "sigmoid_loss", pairs.averaged
  ),
  "the scale for its logarithm": _patch(
    pair_objective, "sigmoid_loss", pairs.plain_scale
  ),
  "the bias within the scale": _patch(
    pair_objective, "sigmoid_loss", pairs.scaled_bias
  ),
  "equal captions are negatives": _patch(
    pair_objective, "text_groups", pairs.all_distinct
  ),
  "vectors that are not normalised": _patch(
    two_towers, "unit", pairs.as_they_are
  ),
  "the mean of a text's tokens": _model(text=lambda x: x.clone(pooling="mean")),
  "a patch's variance is biased": _patch(
    reconstruction, "normalize_patches", _biased
  ),
  "pixels that are not normalised": _settings("autoencoder", norm_pixels=False),
  "the decoder's positions of y first": _patch(
    autoencoder, "sincos", _rows_first
  ),
  "the decoder's positions in order": _patch(
    autoencoder, "positions_at", _at_seen
  ),
  "one more patch is seen": _settings("autoencoder", rate=0.68),
  "a center one step late": _both(
    _patch(SelfDistillation, "_teach", self_distillation.late_center),
    _patch(SelfDistillation, "init", self_distillation.two_centers),
  ),
  "the teacher's temperature": _settings(
    "self_distillation", teacher_temperature=0.072
  ),
  "masks for the teacher too": _patch(
    SelfDistillation, "teacher_draw", self_distillation.masked_teacher
  ),
  "KoLeo on unnormalised features": _patch(
    self_distillation_objective, "koleo", self_distillation.raw_koleo
  ),
  "Gram of features as they are": _patch(
    self_distillation_objective, "gram", self_distillation.raw_gram
  ),
  "Gram without products below 0": _patch(
    self_distillation_objective, "gram", self_distillation.positive_gram
  ),
  "Gram's teacher a step late": _patch(
    SelfDistillation, "gram_teacher", self_distillation.late_anchor
  ),
  "Gram's teacher never renewed": _settings(
    "self_distillation", gram_every=Duration()
  ),
  "momentum at its end value": _patch(
    SelfDistillation, "decay", self_distillation.end_momentum
  ),
  "a last layer that is not held": _settings(
    "self_distillation", freeze_last=Duration()
  ),
  "a constant weight decay": _settings("optimizer", final_weight_decay=None),
  "warm-up off by one": _patch(
    plan,
    "make_schedule",
    lambda make: lambda *a: _shifted(make(*a), 1),
  ),
  "the schedule a step late": _patch(
    plan,
    "make_schedule",
    lambda make: lambda *a: _shifted(make(*a), -1),
  ),
  "LAMB for all arrays": _patch(optax, "masked", lambda _: lambda tx, _: tx),
  "query, key and value by themselves": _patch(
    optimizer, "merge_qkv", lambda _: lambda path: path
  ),
  "Hinton's form": _teaching(form="hinton"),
  "soft for hard": _teaching(kind="soft"),
  "hard for soft": _teaching(kind="hard"),
  "the loss without T squared": _patch(Teacher, "loss", _untempered),
  "the other share for the teacher": _teaching(weight=lambda w: 0.9 - w),
  "the teacher's head for the labels": _patch(
    ExtendedVit, "by_head", _heads_swapped
  ),
  "layers counted from another end": _depth(lambda _, d, L: L + 1 - d),
  "embeddings with the first block": _depth(lambda _, d, L: min(d, L)),
  "the last norm with the last block": _depth(
    lambda path, d, _: d + within(path, "norm")
  ),
  "another layer decay": _settings("optimizer", layer_decay=0.66),
  "LoRA's alpha by the root of the rank": _lora(alpha=lambda x: 2 * x),
  "LoRA's alpha not divided by the rank": _lora(alpha=lambda x: 4 * x),
  "LoRA's products decayed": _settings(
    "optimizer", weight_decay_on=r"(kernel|lora_[ab])$"
  ),
  "Muon without Nesterov's momentum": _muon(nesterov=False),
  "Muon's momentum of 0.9": _settings("optimizer", momentum=0.9),
  "Muon's factor by the other side": _patch(
    optimizer, "max", lambda _: min, create=True
  ),
  "four iterations of Muon": _patch(
    optimizer, "range", lambda _: lambda count: range(count - 1), create=True
  ),
  "trust ratio before decay": _patch(optax, "chain", _ratio_first),
  "a clip of the mean's size": _settings("optimizer", clip_norm=1.0),
  "targets that are shares": _settings("loss", binary_targets=False),
  "momentum as an average": _patch(
    optax, "trace", lambda _: lambda m: optax.ema(m, debias=False)
  ),
  "Nesterov's momentum": _patch(
    optax, "trace", lambda trace: lambda m: trace(m, nesterov=True)
  ),
  "a clip of each array": _patch(optimizer, "clip_to", _clip_by_array),
  "a clip after the momentum": _optimizer(_clip_late, clip_norm=0.0),
  "a clip after decay": _optimizer(_clip_late, clip_norm=0.0),
  "1 % of smoothing": _settings("loss", label_smoothing=0.01),
  "smoothing of the wrong mass": _patch(losses, "make_targets", _wrong_mass),
  "the head's rate": _scaled("head", 0.9),
  "a decay of 1e-3": _settings("optimizer", weight_decay=1e-3),
  "biases decayed": _settings("optimizer", weight_decay_on=r"(kernel|bias)$"),
  "no decay of the head": _settings(
    "optimizer", weight_decay_on=r"^(?!head).*kernel$"
  ),
  "decay in the gradient": _optimizer(_coupled, weight_decay=0.0),
  "Adam's epsilon": _settings("optimizer", epsilon=1e-6),
  "b2 of 0.99": _settings("optimizer", b2=0.99),
  "another GELU": _model(gelu=lambda x: "tanh" if x == "exact" else "exact"),
  "1 % more dropout": _model(dropout_rate=lambda x: x + 0.01),
  "gradient summed over the parts": _patch(
    step, "_average_over_parts", _summed
  ),
  "an average one step late": _patch(step, "_make_average", _late),
  "an average that warms up": _run(ema_warmup=True),
  "drop path that grows": _model(drop_path_grows=True),
  "drop path that does not grow": _model(drop_path_grows=False),
  "labels that are not mixed": _patch(losses, "mixup", _unmixed),
  "a final rate of a tenth": _settings("optimizer", final_lr=1e-4),
}
