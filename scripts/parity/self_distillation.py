"""The row of DINOv2: its crops, its trajectory and its faults."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from configs import dino
from scripts.parity import inputs as given_inputs
from scripts.parity import ours
from scripts.parity.inputs import SIDE, Arrays, Inputs
from scripts.parity.ours import Setup, Trajectory
from scripts.parity.row import BATCH, STEPS, Row, normalized
from vit_jax.models.model import unit
from vit_jax.pretrained.formats import dinov2
from vit_jax.pretrained.formats.mapping import Rule
from vit_jax.run import build
from vit_jax.training.losses import StepContext

PROTOTYPES, HEAD, BOTTLENECK, SMALL = 40, 24, 8, 3
HELD, WARM = 10, 30  # Steps.
RATE = 2e-3
GRAM, RENEWED = 2.0, 25


def config() -> Any:
  """DINOv2's recipe with small heads, for few steps."""
  c = dino.get_config("S/16")
  c.self_distillation.update(
    prototypes=PROTOTYPES,
    head_size=HEAD,
    bottleneck=BOTTLENECK,
    small_crops=SMALL,
    small_size=SIDE // 2,
    temperature_warmup_steps=WARM,
    freeze_last_steps=HELD,
  )
  c.model.drop_path_rate = None
  c.optimizer.peak_lr = RATE
  c.fewshot.neighbours = 0
  return c


def gram_config() -> Any:
  """The same with Gram anchoring, whose teacher is renewed a few times."""
  c = config()
  c.self_distillation.update(gram_weight=GRAM, gram_every_steps=RENEWED)
  return c


def rules(model: Any) -> list[Rule]:
  """DINOv2's names of the student's arrays, with those of its head."""
  own = [
    dataclasses.replace(rule, theirs=f"backbone.{rule.theirs}")
    for rule in dinov2.rules(model)
  ]
  own.append(Rule("backbone.mask_token", ("mask_token",), "1 d -> d"))
  for layer in range(3):
    ours_at = f"class_head/layer_{layer}"
    theirs_at = f"dino_head.mlp.{2 * layer}"
    own += [
      Rule(f"{theirs_at}.weight", (f"{ours_at}/kernel",), "o i -> i o"),
      Rule(f"{theirs_at}.bias", (f"{ours_at}/bias",)),
    ]
  last = "dino_head.last_layer.weight"
  own += [
    Rule(f"{last}_v", ("class_head/direction",), "o i -> i o"),
    Rule(f"{last}_g", ("class_head/length",), "o 1 -> o"),
  ]
  return own


class SelfDistilled(Row):
  """Two large and some small crops of each image, and masks, for both sides."""

  def setup(self) -> Setup:
    setup = super().setup()
    arrays = crops(setup, self.seed)
    mean_and_std = build.make_preprocessing(setup.settings)
    theirs = {
      name: normalized(arrays[name], mean_and_std)
      for name in ("second", "small")
    }
    masks = [draw["masks"] for draw in map(_draw(setup), range(STEPS))]
    masks = np.stack(masks).reshape(STEPS, BATCH, 2, -1)
    return dataclasses.replace(setup, theirs={**theirs, "masks": masks})

  def drawn(self, setup: Setup) -> list[Any]:
    return []

  def run(
    self, setup: Setup, inputs: Inputs, marks: tuple[int, ...]
  ) -> Trajectory:
    """Trains as `ours.run` does; the logits end with both centers."""
    plan = ours.planned(setup, STEPS)
    init, train_step = plan.init, plan.train_step
    params = unflatten_dict(inputs.params, sep="/")
    state = jax.jit(lambda key: nn.unbox(init(key)))(jax.random.key(0))
    state = state.replace(
      params=params, averaged_params=jax.tree.map(jnp.copy, params)
    )
    step = jax.jit(train_step)
    more = crops(setup, self.seed)

    @jax.jit
    def told(state: Any) -> Any:
      probe = jnp.asarray(inputs.probe)
      answers = setup.model.apply({"params": state.params}, probe)
      kept = state.objective_state
      centers = [kept["class"][None], kept["patch"][None]]
      return jnp.concatenate([answers["answers"], *centers])

    losses, trained, averaged, logits = [], {}, {}, {}
    for t in range(max(marks, default=0)):
      batch = {"image": inputs.images[t], "label": inputs.labels[t]}
      batch |= {name: array[t] for name, array in more.items()}
      state, metrics = step(state, batch)
      losses.append(metrics["loss"])
      if t + 1 in marks:
        trained[t + 1] = ours.flat(state.params)
        averaged[t + 1] = ours.flat(state.averaged_params)
        logits[t + 1] = np.asarray(told(state))
    # Clipped updates would show Adam's epsilon in the rate.
    own = dataclasses.replace(
      vars(setup.settings)["self_distillation"], clip_norm=0.0
    )
    task = build.task_of(
      dataclasses.replace(setup.settings, self_distillation=own)
    )
    whole = dataclasses.replace(plan, task=task)
    rate, decay = ours.rates(whole, inputs.params, marks)
    loss = np.asarray(jax.device_get(losses), np.float64)
    return Trajectory(loss, rate, decay, trained, averaged, logits)


def crops(setup: Setup, seed: int) -> Arrays:
  """The second large crop of each image, and the small ones."""
  second, _ = given_inputs.make_batches(STEPS, BATCH, 6, seed + 2)
  side = vars(setup.settings)["self_distillation"].small_size
  rng = np.random.default_rng([seed, 4])
  shape = (STEPS, BATCH, SMALL, side, side, 3)
  return {"second": second, "small": rng.integers(0, 256, shape, np.uint8)}


def _draw(setup: Setup) -> Any:
  """A function from a step to its masks, as the train step draws them."""
  task = build.task_of(setup.settings)
  preprocessing = build.make_preprocessing(setup.settings)
  objective: Any = task.objective(setup.model, preprocessing)

  @jax.jit
  def draw(step: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(setup.settings.seed), step)
    key, _ = jax.random.split(key)
    return objective.draw(key, 2 * BATCH, objective.grid)

  return lambda step: jax.device_get(draw(step))


def late_center(teach: Any) -> Any:
  """The teacher with the centers of the step before the last one."""

  def late(self: Any, large: Any, targets: Any, context: StepContext) -> Any:
    old, new = context.state["old"], context.state["new"]

    def of_state(state: Any) -> StepContext:
      return dataclasses.replace(context, state=state)

    found = teach(self, large, targets, of_state(old))
    after = teach(self, large, targets, of_state(new)).state
    return found._replace(state={"old": new, "new": after, **after})

  return late


def two_centers(init: Any) -> Any:
  def make(self: Any) -> Any:
    first = init(self)
    return {"old": first, "new": first, **first}

  return make


def masked_teacher(_: Any) -> Any:
  return lambda self, targets: {k: targets[k] for k in ("masks", "where")}


def raw_koleo(_: Any) -> Any:
  """KoLeo of features as they are."""

  def found(x: Any) -> Any:
    gaps = jnp.sum((x[:, None] - x[None]) ** 2, axis=2)
    nearest = jnp.argmin(gaps + 1e9 * jnp.eye(len(x)), axis=1)
    squared = jnp.sum((x - x[nearest] + 1e-8) ** 2, axis=1)
    return -jnp.log(jnp.sqrt(squared) + 1e-8)

  return found


def raw_gram(_: Any) -> Any:
  """Gram anchoring of features as they are."""

  def found(x: Any, y: Any) -> Any:
    return jnp.square(x @ x.mT - y @ y.mT).mean(axis=(1, 2))

  return found


def positive_gram(_: Any) -> Any:
  """Gram anchoring without products below 0."""

  def found(x: Any, y: Any) -> Any:
    x, y = (jnp.maximum(unit(z) @ unit(z).mT, 0) for z in (x, y))
    return jnp.square(x - y).mean(axis=(1, 2))

  return found


def late_anchor(anchor: Any) -> Any:
  """The teacher of Gram anchoring renewed a step late."""

  def late(self: Any, context: StepContext) -> Any:
    step = jnp.maximum(context.step - 1, 0)
    return anchor(self, dataclasses.replace(context, step=step))

  return late


def end_momentum(_: Any) -> Any:
  return lambda self, step: jnp.ones_like(step, jnp.float32)
