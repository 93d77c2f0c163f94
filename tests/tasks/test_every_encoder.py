"""Every objective with every encoder: one step, and the encoder that leaves.

An objective's model holds its encoder, so each takes all families, of which
those that differ within their layers alone are tried with one objective. Those
that cannot be are listed with the reason.
"""

import contextlib
import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import traverse_util

from tests import runs
from tests.tasks import made_up
from tests.tiny import SIZES
from tests.workdir import saved
from vit_jax import make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.captions import TEXT
from vit_jax.families import FAMILIES
from vit_jax.models import make_model, to_fields
from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.grid import param_shapes
from vit_jax.models.model import ABSENT, Model
from vit_jax.models.parts import Parts
from vit_jax.models.student import student
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import two_towers
from vit_jax.tasks import choose
from vit_jax.training.distillation import Teacher
from vit_jax.training.losses import StepContext
from vit_jax.training.settings import DistillSettings
from vit_jax.training.state import Extras, TrainState
from vit_jax.training.step import make_train_step
from vit_jax.workdir.checkpoint import Checkpoints, open_run

SIZE, HALF = (16, 16), (0.5, 0.5, 0.5)
OBJECTIVES = {
  "classification": {},
  "student": dict(student__learns="both", distill__teacher="teacher"),
  "self_distillation": dict(
    image_size=SIZE,
    ema_decay=0.9,
    self_distillation__prototypes=8,
    self_distillation__head_size=8,
    self_distillation__bottleneck=4,
    self_distillation__small_size=8,
    self_distillation__small_crops=1,
    self_distillation__gram_weight=1.0,
  ),
  "lejepa": dict(
    image_size=SIZE,
    lejepa__weight=0.5,
    lejepa__projections=8,
    lejepa__projector_size=8,
    lejepa__small_size=8,
    lejepa__small_crops=1,
  ),
  "pairs": dict(
    data__task="pairs",
    pairs__text_size=8,
    pairs__text_layers=1,
    pairs__text_heads=2,
    pairs__text_length=4,
    pairs__vocabulary=9,
  ),
  "autoencoder": dict(
    autoencoder__rate=0.75,
    autoencoder__decoder_size=8,
    autoencoder__decoder_layers=1,
    autoencoder__decoder_heads=2,
  ),
  "masked": dict(masked__rate=0.5),
  "segmentation": dict(data__task="segmentation"),
  "dense_regression": dict(data__task="dense_regression"),
}
ENCODERS = {
  "vit": {},
  "map": dict(pooling="map"),
  "relative": dict(position="relative"),
  "axial": dict(block="axial", pooling="gap"),
  "hybrid": dict(resnet_layers=(1,), resnet_width=32, patch_size=1),
  "resnet": None,
  "pe_token": dict(block="pe", pooling="token"),
  "channels": dict(channel_tokens=True, channel_sampling=True),
  **{family: dict(block=family) for family in FAMILIES},
}
_NO_PATCHES = "a ResNet has no patches in its layers"
_POOLS = "pooling='map' and .* take another pooling"
_MIXES = "a hybrid's ResNet mixes neighbouring patches"
_CHANNELS = "channel_tokens=True gives a patch a token for each channel"
# What an objective cannot take, and the reason that is given.
REFUSED = {
  ("self_distillation", "hybrid"): _MIXES,
  ("self_distillation", "axial"): "its layers are for one grid of patches",
  ("self_distillation", "relative"): "does not fit crops of two sizes",
  ("lejepa", "axial"): "its layers are for one grid of patches",
  ("lejepa", "relative"): "does not fit crops of two sizes",
  ("autoencoder", "hybrid"): _MIXES,
  ("autoencoder", "axial"): "its layers need all patches",
  ("self_distillation", "resnet"): _NO_PATCHES,
  ("autoencoder", "resnet"): _NO_PATCHES,
  ("masked", "resnet"): _NO_PATCHES,
  ("segmentation", "resnet"): _NO_PATCHES,
  ("dense_regression", "resnet"): _NO_PATCHES,
  ("autoencoder", "channels"): _CHANNELS,
  ("masked", "channels"): _CHANNELS,
  ("self_distillation", "channels"): _CHANNELS,
  ("student", "channels"): _CHANNELS,
  ("autoencoder", "map"): _POOLS,
  ("autoencoder", "pe"): _POOLS,
  ("masked", "map"): _POOLS,
  ("masked", "pe"): _POOLS,
}
# Families that differ from others within their layers alone: in norms, scales,
# activations and biases, or in a position that another has. An objective meets
# an encoder at its tokens, positions and pooling: one objective tries these.
WITHIN_LAYERS = (
  *("dinov2", "rope_axial", "eva", "deit3", "clip", "beit3", "internvit"),
  "parallel",
)
CELLS = [
  (objective, encoder)
  for objective in OBJECTIVES
  for encoder in ENCODERS
  if objective == "classification" or encoder not in WITHIN_LAYERS
]
QUICKLY = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}


def tiny_encoder(name, **fields):
  given = ENCODERS[name]
  if given is None:
    return make_model("R50x1", 0, layers=(1, 1), width=32)
  classes = 3 if fields.pop("headed", False) else 0
  return make_vit("Ti/4", classes, **{**SIZES, **given, **fields})


@functools.cache
def teacher():
  model = make_vit("Ti/4", 0, **SIZES)
  return Teacher(model, SIZE, HALF, HALF, DistillSettings())


def made(objective, encoder, **fields):
  """The task, its model, its objective, and a batch."""
  task = made_up.task(**OBJECTIVES[objective])
  if objective == "student":
    task = task.with_teacher(teacher())
  if objective == "segmentation":
    task = dataclasses.replace(task, classes=3)
  headed = objective == "classification"
  if headed and ENCODERS[encoder] is None:
    vit = make_model("R50x1", 3, layers=(1, 1), width=32)
  else:
    vit = tiny_encoder(encoder, headed=headed, **fields)
  model = task.adapted(vit)
  preprocessing = Preprocessing(SIZE, mean=HALF, std=HALF)
  return task, model, task.objective(model, preprocessing), batch(objective)


def batch(objective):
  rng = np.random.default_rng(0)
  images = {"image": rng.integers(0, 256, (2, *SIZE, 3), np.uint8)}
  if objective == "classification":
    images["label"] = np.array([0, 2])
  elif objective == "segmentation":
    images["label"] = rng.integers(0, 3, (2, *SIZE)).astype(np.int32)
  elif objective == "dense_regression":
    images["label"] = rng.uniform(1, 9, (2, *SIZE)).astype(np.float32)
  elif objective == "pairs":
    images[TEXT] = np.array([[1, 2, 0, 0], [3, 4, 5, 0]])
  elif objective in ("self_distillation", "lejepa"):
    images["second"] = images["image"][::-1].copy()
    images["small"] = rng.integers(0, 256, (2, 1, 8, 8, 3), np.uint8)
  return jax.tree.map(jnp.asarray, images)


def step_of(model, objective, arrays):
  """A function from parameters to the loss, for gradients."""

  def loss(params):
    inputs, targets = objective.prepare(arrays, jax.random.key(1))

    def apply(x, **collections):
      variables = {"params": params, **collections}
      rngs = {"dropout": jax.random.key(2)}
      return model.apply(variables, x, train=True, rngs=rngs)

    frozen = {}
    if hasattr(objective, "teacher"):
      shapes = init_of(teacher().model)
      frozen["teacher"] = jax.tree.map(lambda x: jnp.full(x.shape, 0.1), shapes)
    context = StepContext(
      jnp.int32(0), nn.unbox(objective.init()), frozen, lambda: params
    )
    return objective.loss(apply, inputs, targets, context).value.mean()

  return loss


def init_of(model):
  """The shapes of a model's parameters."""
  inputs = model.inputs((*SIZE, 3))
  shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
  return nn.unbox(shapes)


def drawn(shapes):
  rng = np.random.default_rng(3)
  return jax.tree.map(
    lambda x: np.float32(0.2 * rng.normal(size=x.shape)), shapes
  )


def flat(tree) -> dict[str, Any]:
  return traverse_util.flatten_dict(tree, sep="/")


def pooled(model, variables, images):
  """Features of the encoder, which another model may hold."""
  if isinstance(model, Composed):
    return model.apply(variables, "pooled", images, method="by_encoder")
  return model.apply(variables, images, method="pooled")


def first_state(model, objective, tx):
  params = drawn(init_of(model))
  own = nn.unbox(jax.jit(objective.init)())
  averaged = jax.tree.map(np.copy, params)
  shapes = jax.eval_shape(tx.init, params)  # That of SGD starts at zero.
  opt_state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  return TrainState(jnp.int32(0), params, opt_state, averaged, own)


def save_and_restore(state, folder):
  with contextlib.closing(Checkpoints(folder)) as checkpoints:
    assert checkpoints.save(state, 1, saved.description(), None) is None
  with contextlib.closing(open_run(folder)) as checkpoints:
    return checkpoints.restore(1, saved.shapes(state))


@pytest.mark.slow
@pytest.mark.parametrize(
  "objective, encoder", [cell for cell in CELLS if cell not in REFUSED]
)
def test_it_trains_goes_on_to_the_bit_and_gives_its_encoder(
  objective, encoder, tmp_path
):
  """Gradients are finite, and the next step of a saved state is the same.

  The encoder that leaves has the features that it had within the model.
  """
  noise = {} if ENCODERS[encoder] is None else {"dropout_rate": 0.1}
  task, model, trained, arrays = made(objective, encoder, **noise)
  frozen = {}
  if objective == "student":
    frozen["teacher"] = drawn(init_of(teacher().model))
  tx = optax.sgd(1e-2, momentum=0.9)
  first = first_state(model, trained, tx)
  step = make_train_step(
    model,
    tx,
    1e-2,
    objective=trained,
    extras=Extras(frozen_params=(frozen,)),
    ema_decay=0.9,
  )
  compiled = jax.jit(step).lower(first, arrays, frozen).compile(QUICKLY)
  state, metrics = compiled(first, arrays, frozen)
  assert np.isfinite(metrics["loss"]) and not int(metrics["skipped_steps"])
  grads = flat(state.opt_state[0].trace)  # After one step.
  assert grads.keys() == flat(first.params).keys()
  for path, grad in grads.items():
    assert np.isfinite(grad).all(), path

  restored = save_and_restore(state, str(tmp_path))
  found, expected = (compiled(x, arrays, frozen)[0] for x in (restored, state))
  assert int(found.step) == 2
  assert runs.identical(found, expected)
  assert not runs.identical(found.params, restored.params)

  described = json.loads(json.dumps(to_fields(model)))
  described_model = choose.model_of(task, described)
  assert described_model == model
  left = described_model.trunk
  shapes = param_shapes(left, (SIZE[0] // model.stride,) * 2)
  own = {path: flat(restored.params)[path] for path in shapes}
  assert {path: x.shape for path, x in own.items()} == shapes
  others = grads.keys() - own.keys()
  for stack in filter(None, (own, others)):
    assert any(np.any(grads[path]) for path in stack)
  images = np.random.default_rng(4).normal(size=(2, *SIZE, 3))
  images = jnp.asarray(images, jnp.float32)

  @jax.jit
  def features(params, own):
    inside = pooled(model, {"params": params}, images)
    return inside, pooled(left, {"params": own}, images)

  own_params = traverse_util.unflatten_dict(own, sep="/")
  compiled = features.lower(restored.params, own_params).compile(QUICKLY)
  inside, alone = compiled(restored.params, own_params)
  np.testing.assert_allclose(inside, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  "objective, encoder",
  [
    cell
    for cell in CELLS
    if cell not in REFUSED and cell[1] not in ("resnet", "relative")
  ],
)
def test_scanned_layers_have_the_same_parameters_stacked(objective, encoder):
  """And the step is traced with them."""
  _, plain, _, _ = made(objective, encoder)
  _, model, trained, arrays = made(objective, encoder, scan=True)
  shapes = init_of(model)
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), init_of(plain))
  stacked = Parts.of(plain, zeros).stack(zeros)
  assert {k: x.shape for k, x in flat(shapes).items()} == {
    k: x.shape for k, x in flat(stacked).items()
  }
  loss, grads = jax.eval_shape(
    jax.value_and_grad(step_of(model, trained, arrays)), shapes
  )
  assert loss.shape == () and flat(grads).keys() == flat(shapes).keys()


@pytest.mark.parametrize("objective, encoder", REFUSED)
def test_what_cannot_be_is_refused_with_its_reason(objective, encoder):
  with pytest.raises(ValueError, match=REFUSED[objective, encoder]):
    made(objective, encoder)


def test_facts_and_methods_are_the_encoders():
  """`Model` has no values itself, which would hide them."""
  values = {
    name
    for name, value in vars(Model).items()
    if not name.startswith("_")
    and isinstance(value, bool | float | tuple | str)
  }
  assert not values
  vit = make_vit("Ti/4", 0, **SIZES, block="radio", position_grid=(4, 4))
  model = student(vit, {"class": 4})
  for name in (*ABSENT, "stride", "prefix", "patch_size", "rope_theta"):
    assert getattr(model, name) == getattr(vit, name), name
  assert not model.norm_final and model.registers == 7
  changed = model.clone(scan=True, widths=())
  assert changed.encoder == vit.clone(scan=True) and changed.widths == ()
  shapes = init_of(model)
  images = jax.ShapeDtypeStruct((2, *SIZE, 3), jnp.float32)
  tokens = [
    jax.eval_shape(
      lambda p, x, m=m: m.apply({"params": p}, x, method="embed"),
      shapes,
      images,
    )
    for m in (model, vit)
  ]
  assert tokens[0] == tokens[1] and tokens[0].z.shape == (2, 24, 16)


def test_only_a_model_of_images_is_held():
  text = TextTower(
    num_classes=0,
    vocabulary=5,
    length=4,
    **dict.fromkeys(("hidden_size", "mlp_size"), 8),
    num_layers=1,
    num_heads=2,
  )
  inner = student(make_vit("Ti/4", 0, **SIZES), {})
  for model in (text, inner, two_towers(make_vit("Ti/4", 0, **SIZES), text)):
    with pytest.raises(ValueError, match="key: a .* is no encoder of images"):
      encoder_of(model, Needs("key"))


def test_layers_that_cannot_tell_places_see_no_part_of_an_image():
  vit = make_vit("Ti/4", 0, **SIZES, position="relative", block=NoPlaces)
  with pytest.raises(ValueError, match="take no `where`, so they do not know"):
    made_up.task(**OBJECTIVES["autoencoder"]).adapted(vit)


class NoPlaces(nn.Module):
  """Layers that take neither places nor a mask."""

  num_heads: int
  mlp_size: int
  config: object

  def __call__(self, z, R=None, *, train=False):
    return z
