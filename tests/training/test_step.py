"""The train step: accumulation, averaging, randomness and sharding."""

import functools
import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.rows import some_slow
from vit_jax import make_vit
from vit_jax.models import attention, partitioning
from vit_jax.training import sharding
from vit_jax.training.inputs import ImageInputs
from vit_jax.training.losses import Classification, Loss, Objective, StepContext
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import LossSettings, OptimizerSettings
from vit_jax.training.state import TrainState, make_init
from vit_jax.training.step import make_train_step, share_of_start

SIZE = (8, 8)
RATE = 1e-2


def _batch(seed=0, batch_size=16):
  rng = np.random.default_rng(seed)
  return {
    "image": rng.integers(0, 256, (batch_size, *SIZE, 3), np.uint8),
    "label": rng.integers(0, 5, batch_size).astype(np.int32),
    "skipped": np.arange(batch_size) < 3,
  }


PLAIN = LossSettings()
MIXUP = LossSettings(mixup_alpha=0.2)
SMOOTH = LossSettings(mixup_alpha=0.2, label_smoothing=0.1)


def _model(**fields):
  sizes = dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=4)
  return make_vit("Ti/4", 5, **{**sizes, "representation_size": 16, **fields})


@functools.cache
def _functions(
  dropout_rate=0.0,
  weight_decay=0.1,
  ema_decay=0.0,
  fields=(),
  loss=PLAIN,
  **options,
):
  model = _model(dropout_rate=dropout_rate, **dict(fields))
  tx = make_optimizer(
    OptimizerSettings(weight_decay=weight_decay), lambda _: RATE
  )
  init = make_init(model, tx, (*SIZE, 3), ema_decay)
  step = make_train_step(
    model, tx, lambda _: RATE, loss=loss, ema_decay=ema_decay, **options
  )
  return init, jax.jit(step)


@functools.cache
def _start(init):
  return jax.jit(lambda key: nn.unbox(init(key)))(jax.random.key(0))


def _train(steps=3, batch_size=16, **options):
  init, step = _functions(**options)
  state = _start(init)
  for number in range(steps):
    state, metrics = step(state, _batch(number, batch_size))
  return state, metrics


def _assert_close(one, other, rtol=2e-4):
  """Compares trees leaf by leaf, relative to each leaf's largest value."""
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    scale = max(float(jnp.abs(jnp.asarray(a)).max()), 1e-6)
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


@pytest.mark.slow  # Fast ones take steps with losses in parts and a whole run.
def test_the_first_loss_is_the_logarithm_of_the_classes():
  _, metrics = _train(steps=1)
  assert float(metrics["loss"]) == pytest.approx(np.log(5), rel=1e-5)
  assert float(metrics["learning_rate"]) == pytest.approx(RATE)
  assert int(metrics["skipped_images"]) == 3


@pytest.mark.slow
def test_a_rate_may_be_a_number_and_a_batch_must_be_a_dictionary():
  init, step = _functions()
  plain = make_train_step(_model(), optax.adam(RATE), RATE)
  params = _start(init).params
  state = TrainState(jnp.int32(0), params, optax.adam(RATE).init(params))
  _, metrics = jax.jit(plain)(state, _batch())
  assert float(metrics["learning_rate"]) == pytest.approx(RATE)
  batch = _batch()
  with pytest.raises(
    ValueError, match="a batch is a dictionary .* not a tuple"
  ):
    step(_start(init), (batch["image"], batch["label"]))


def test_top1_counts_the_larger_part_of_a_mixture():
  """By NumPy, of logits that are given."""
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(16, 5)).astype(np.float32)
  labels = _batch()["label"]
  mixed = 0.7 * np.eye(5)[labels] + 0.3 * np.eye(5)[labels[::-1]]
  objective = Classification(5, PLAIN, (0.5,) * 3, (0.5,) * 3)
  images = jnp.zeros((16, 8, 8, 3))
  mixed = jnp.array(mixed, jnp.float32)
  right = objective.loss(
    lambda _: jnp.array(logits), images, mixed, StepContext()
  ).score
  np.testing.assert_array_equal(right, logits.argmax(1) == labels)
  assert 0 < right.sum() < 16


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_gives_the_same_run(parts):
  # Weights are not compared: Adam divides by the gradient's size, so rounding
  # decides their updates where the gradient is nearly 0. Adam's second moments
  # hold the squared gradients themselves.
  whole, metrics = _train(loss=SMOOTH)
  split, split_metrics = _train(loss=SMOOTH, accumulation_steps=parts)
  for key in ("loss", "gradient_norm", "top1"):
    assert float(metrics[key]) == pytest.approx(
      float(split_metrics[key]), rel=1e-4
    )
  _assert_close(whole.opt_state[1].nu, split.opt_state[1].nu, rtol=1e-3)


def test_the_gradient_is_that_of_the_mean_loss():
  """Checks the gradient against finite differences of the loss along it."""
  init, step = _functions()
  # Drawing the first parameters as a run does would compile for a second.
  rng = np.random.default_rng(1)
  shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  params = jax.tree.map(
    lambda x: jnp.float32(rng.normal(0, 0.3, x.shape)), shapes.params
  )
  state = state.replace(params=params)
  batch = _batch()
  after, _ = step(state, batch)
  first = jax.tree.map(lambda mu: np.asarray(mu) / 0.1, after.opt_state[1].mu)

  def loss_at(t):
    moved = jax.tree.map(
      lambda p, g: np.float32(p + t * g), jax.device_get(state.params), first
    )
    return float(step(state.replace(params=moved), batch)[1]["loss"])

  squares = sum(float((g**2).sum()) for g in jax.tree.leaves(first))
  slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
  # Clipping at 1 scaled what Adam saw by 1 / max(1, norm).
  scale = min(1.0, 1.0 / float(step(state, batch)[1]["gradient_norm"]))
  assert slope * scale == pytest.approx(squares, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [False, True])
def test_polyak_average_is_the_recursion(warmup):
  init, step = _functions(ema_decay=0.3, ema_warmup=warmup)
  state = _start(init)
  expected = np.float64(state.params["patches"]["E"]["kernel"])
  for number in range(3):
    state, _ = step(state, _batch(number))
    now = np.float64(state.params["patches"]["E"]["kernel"])
    # The third of 2 / 11, 3 / 12 and 4 / 13 is the first above 0.3.
    decay = min(0.3, (2 + number) / (11 + number)) if warmup else 0.3
    expected = decay * expected + (1 - decay) * now
  found = state.averaged_params["patches"]["E"]["kernel"]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
  assert state.eval_params is state.averaged_params


@pytest.mark.parametrize("warmup", [True, False])
def test_the_share_of_the_first_parameters_is_the_product_of_decays(warmup):
  decays = np.full(9, 0.3)
  if warmup:
    t = np.arange(1, 10)
    decays = np.minimum(decays, (1 + t) / (10 + t))
  objective = Classification(5, PLAIN, (0.5,) * 3, (0.5,) * 3)
  share = share_of_start(objective, 0.3, warmup, 9)
  assert share == pytest.approx(decays.prod(), rel=1e-5)
  assert share_of_start(objective, 0.0, warmup, 9) == 0


@pytest.mark.slow
def test_randomness_is_a_function_of_seed_and_step():
  one, metrics = _train(dropout_rate=0.5, loss=MIXUP)
  same, same_metrics = _train(dropout_rate=0.5, loss=MIXUP)
  _, other = _train(dropout_rate=0.5, loss=MIXUP, seed=1)
  assert jax.tree.all(
    jax.tree.map(lambda a, b: bool((a == b).all()), one, same)
  )
  assert float(metrics["loss"]) == float(same_metrics["loss"])
  assert float(metrics["loss"]) != float(other["loss"])


WHOLE = (
  ("dropout_rate", 0.1),
  ("loss", MIXUP),
  ("accumulation_steps", 2),
  ("ema_decay", 0.9),
)


def _losses_on(mesh, fields, steps=3):
  """Losses of a few steps."""
  init, step = _functions(fields=fields, **dict(WHOLE))
  shapes = sharding.array_shapes(init, mesh)
  shardings = sharding.shardings_of(shapes)
  make = jax.jit(lambda key: nn.unbox(init(key)), out_shardings=shardings)
  state = make(jax.random.key(0))
  step = sharding.jit_train_step(step, shapes, mesh)
  rows = sharding.batch_sharding(mesh)
  found = []
  for batch in sharding.to_device(map(_batch, range(steps)), rows, ahead=1):
    state, metrics = step(state, batch)
    found.append(float(metrics["loss"]))
  return found


@functools.cache
def _losses_on_one_device(fields):
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  return _losses_on(mesh, fields)


SCANNED = (("num_layers", 2), ("scan", True), ("remat", "dots"))
AXIAL = (("block", "axial"), ("pooling", "gap"))
MODERN = (
  ("block", "dinov3"),
  ("gated_mlp", True),
  ("qk_norm", True),
  ("num_layers", 2),
  ("scan", True),
)


@pytest.mark.slow
@pytest.mark.parametrize(
  "axes, fields",
  [
    ((2, 2, 2), ()),
    ((8, 1, 1), ()),
    ((2, 4, 1), ()),
    ((2, 2, 2), SCANNED),
    ((2, 2, 2), MODERN),
    ((2, 2, 2), AXIAL),
    ((2, 2, 2), (("pooling", "map"),)),
  ],
)
def test_eight_devices_do_as_one(axes, fields):
  losses = _losses_on(sharding.make_mesh(*axes), fields)
  expected = _losses_on_one_device(fields)
  np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "whole, own",
  [
    *((512, ()), (512, MODERN), (1, ()), (1, MODERN)),
    (1, (("splash", True),)),
  ],
)
def test_eight_devices_do_as_one_in_the_form_for_tpu(
  monkeypatch, interpreted, whole, own
):
  monkeypatch.setattr(partitioning, "platform", lambda: "tpu")
  monkeypatch.setattr(attention, "WHOLE", whole)
  fields = (("num_layers", 2), ("num_heads", 4), ("remat", "full"), *own)
  expected = _losses_on_one_device(fields)
  for axes in ((2, 4, 1), (2, 2, 2)):
    found = _losses_on(sharding.make_mesh(*axes), fields)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("ema_decay", some_slow([0.0, 0.9], [0.0]))
def test_a_step_that_is_not_finite_changes_nothing_but_its_number(ema_decay):
  init, step = _functions(ema_decay=ema_decay)
  state, metrics = step(_start(init), _batch())
  assert int(metrics["skipped_steps"]) == 0
  spoilt = state.replace(
    params=jax.tree.map(
      lambda x: np.where(
        np.arange(x.size) == 0, np.float32(np.nan), np.ravel(x)
      ).reshape(x.shape),
      state.params,
    )
  )
  after, metrics = step(spoilt, _batch(1))
  assert int(metrics["skipped_steps"]) == 1
  assert int(after.step) == int(state.step) + 1
  same = jax.tree.map(
    functools.partial(np.array_equal, equal_nan=True),
    (after.params, after.opt_state, after.averaged_params),
    (spoilt.params, spoilt.opt_state, spoilt.averaged_params),
  )
  assert jax.tree.all(same)


@pytest.mark.parametrize("platform, branches", [("cpu", 1), ("tpu", 0)])
def test_cpus_alone_choose_a_branch_where_an_update_may_be_skipped(
  monkeypatch, platform, branches
):
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  model = _model()
  tx = make_optimizer(OptimizerSettings(), lambda _: RATE)
  step = make_train_step(model, tx, RATE)
  state = jax.eval_shape(make_init(model, tx, (*SIZE, 3)), jax.random.key(0))
  traced = jax.make_jaxpr(step)(nn.unbox(state), _batch())
  names = [equation.primitive.name for equation in traced.eqns]
  assert names.count("cond") == branches


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_an_update_of_other_types_leaves_those_of_the_state(
  monkeypatch, platform
):
  """An optimizer of one's own may return float32 for moments in bfloat16."""
  monkeypatch.setattr(partitioning, "platform", lambda: platform)
  zeros = functools.partial(jnp.zeros_like, dtype="bfloat16")
  tx = optax.GradientTransformation(
    lambda params: jax.tree.map(zeros, params),
    lambda updates, state, params=None: (
      updates,
      jax.tree.map(jnp.add, state, updates),
    ),
  )
  model = _model()
  state = jax.eval_shape(make_init(model, tx, (*SIZE, 3)), jax.random.key(0))
  state = nn.unbox(state)
  step = make_train_step(model, tx, RATE)
  after, _ = jax.eval_shape(step, state, _batch())
  assert after.opt_state == state.opt_state


@pytest.mark.slow
def test_the_rate_that_is_reported_is_applied_also_after_a_skipped_step():
  def rate(count):
    return 1e-3 * (count + 1)

  model = make_vit(
    "Ti/4",
    num_classes=5,
    **dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=4),
  )
  settings = OptimizerSettings(kind="sgd", momentum=0.0, clip_norm=0.0)
  tx = make_optimizer(settings, rate)
  step = jax.jit(make_train_step(model, tx, rate))
  state = _start(make_init(model, tx, (*SIZE, 3)))
  params = state.params
  spoilt = jax.tree.map(lambda x: x * jnp.nan, params)
  state, _ = step(state.replace(params=spoilt), _batch())
  after, metrics = step(state.replace(params=params), _batch())
  moved = jax.tree.map(jnp.subtract, after.params, params)
  length = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(moved)))
  applied = length / float(metrics["gradient_norm"])
  assert applied == pytest.approx(1e-3, rel=1e-4)
  assert float(metrics["learning_rate"]) == pytest.approx(1e-3)


@pytest.mark.slow
def test_a_batch_needs_no_more_than_images_and_labels():
  init, step = _functions()
  batch = _batch()
  state, metrics = step(_start(init), batch)
  del batch["skipped"]
  same, fewer = step(_start(init), batch)
  jax.tree.map(np.testing.assert_array_equal, state, same)
  assert set(metrics) - set(fewer) == {"skipped_images"}


@pytest.mark.slow
def test_binary_targets_count_every_class_that_is_mixed_in():
  batch = {"image": jnp.zeros((4, 8, 8, 3), jnp.uint8), "label": jnp.arange(4)}
  mixed = dict(kind="sigmoid", mixup_alpha=0.8, cutmix_alpha=1.0)
  settings = LossSettings(**mixed, binary_targets=True)
  labels = Classification(4, settings, (0.5,) * 3, (0.5,) * 3)
  _, targets = labels.prepare(batch, jax.random.key(0))
  expected = np.eye(4) + np.eye(4)[[3, 0, 1, 2]]
  np.testing.assert_array_equal(targets, expected)
  with pytest.raises(ValueError, match="binary_targets=True needs kind='sigm"):
    LossSettings(binary_targets=True)


class Remembering(ImageInputs, Objective):
  """Pulls logits to 2 and away from the average; its state counts steps."""

  metric = "score"

  def prepare(self, batch, key):
    return self.inputs(batch), ()

  def init(self):
    return {"seen": jnp.zeros(())}

  def decay(self, step):
    return jnp.where(step == 0, 0.5, 0.75)

  def loss(self, apply, inputs, targets, context):
    loss = (apply(inputs)[:, 0] - 2.0) ** 2
    average = context.averaged["head"]["bias"][0]
    state = {"seen": context.state["seen"] + context.step + 1}
    return Loss(loss, loss * 0, {"average": average}, state)


@pytest.mark.slow
def test_an_objective_with_a_state_reads_the_average_before_the_step():
  model = _model()
  objective = Remembering(mean=(0.5,) * 3, std=(0.5,) * 3)
  tx = optax.sgd(0.1)
  options = dict(objective=objective, ema_decay=0.9)
  init = make_init(model, tx, (*SIZE, 3), 0.9, objective=objective)
  step = jax.jit(make_train_step(model, tx, 0.1, **options))
  state, biases, averages = _start(init), [0.0], [0.0]
  seen = []
  for number in range(3):
    state, metrics = step(state, _batch(number))
    seen.append(float(metrics["average"]))
    biases.append(float(state.params["head"]["bias"][0]))
    keep = 0.5 if number == 0 else 0.75
    averages.append(keep * averages[-1] + (1 - keep) * biases[-1])
  np.testing.assert_allclose(seen, averages[:3], rtol=1e-6)
  last = state.averaged_params["head"]["bias"][0]
  assert float(last) == pytest.approx(averages[3], rel=1e-6)
  assert float(state.objective_state["seen"]) == 1 + 2 + 3
  # A step that is not finite changes neither.
  broken = jax.tree.map(lambda x: x * jnp.nan, state.params)
  again, metrics = step(state.replace(params=broken), _batch())
  assert int(metrics["skipped_steps"]) == 1
  assert float(again.objective_state["seen"]) == 6
  for wrong, why in (
    (dict(accumulation_steps=2), "=2: the objective keeps a state, and takes"),
    (dict(ema_decay=0.0), "ema_decay=0: the objective reads the average of"),
  ):
    init = make_init(
      model, tx, (*SIZE, 3), wrong.get("ema_decay", 0.9), objective=objective
    )
    step = make_train_step(model, tx, 0.1, **{**options, **wrong})
    state = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
    with pytest.raises(ValueError, match=why):
      jax.eval_shape(step, state, _batch())


@pytest.mark.parametrize(
  "keywords, said",
  [
    ({"lr": 1e-3}, "; did you mean learning_rate, the number or the schedule"),
    (
      {"params": {}},
      r"TrainState\.create\(params=params, tx=tx\), which is the",
    ),
    ({"tx": 1}, "multiple values"),
  ],
)
def test_a_step_that_is_made_otherwise_says_how(keywords, said):
  with pytest.raises(TypeError, match=said):
    operator.call(make_train_step, _model(), optax.sgd(0.1), **keywords)


def test_a_step_needs_an_optimizer():
  with pytest.raises(
    TypeError, match=r"missing .*'tx'; as in vit_jax\.make_tr"
  ):
    operator.call(make_train_step, _model())
  with pytest.raises(TypeError, match=r"tx is of type str: .* optax\.adamw"):
    operator.call(make_train_step, _model(), "adamw")


@pytest.mark.parametrize("name", ["tx", "optimizer", "opt"])
def test_without_a_learning_rate_the_metrics_have_none(name):
  model, tx = _model(), optax.sgd(RATE)
  step = operator.call(make_train_step, model, **{name: tx})
  with_rate = make_train_step(model, tx, RATE)
  init = make_init(model, tx, (*SIZE, 3))
  state = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
  _, metrics = jax.eval_shape(step, state, _batch())
  _, expected = jax.eval_shape(with_rate, state, _batch())
  del expected["learning_rate"]
  assert metrics == expected
