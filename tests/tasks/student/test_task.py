"""A student of a frozen encoder: losses, grids and images, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.rows import some_slow
from tests.tasks import made_up
from tests.tiny import SIZES, random_params
from vit_jax import features, make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import ResNet
from vit_jax.models.parts import Parts
from vit_jax.models.student import student, widths_of
from vit_jax.run import build
from vit_jax.tasks.student.objective import Imitation, resized, size_for
from vit_jax.training.distillation import Teacher
from vit_jax.training.settings import DistillSettings

LEARNS = dict(student__learns="both", distill__teacher="teacher")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
OWN_MEAN, OWN_STD = (0.5, 0.5, 0.5), (0.5, 0.4, 0.3)


def dinov2(**fields):
  return make_vit(
    "Ti/4",
    0,
    block="dinov2",
    position_grid=(3, 3),
    **{**SIZES, "hidden_size": 24, **fields},
  )


def teacher_of(model, size=(12, 12)):
  return Teacher(model, size, MEAN, STD, DistillSettings())


def imitation(teacher, size=(16, 16), **changes):
  task = made_up.task(**LEARNS | changes).with_teacher(teacher)
  model = task.adapted(make_vit("Ti/4", 0, **SIZES))
  preprocessing = Preprocessing(size, mean=OWN_MEAN, std=OWN_STD)
  return model, task.objective(model, preprocessing)


def batch(B=2, side=16):
  rng = np.random.default_rng(0)
  return {"image": jnp.array(rng.integers(0, 256, (B, side, side, 3)), "uint8")}


def by_formula(x, y, share):
  """(1 - s) (1 - cosine) + s (smooth L1) of rows, in float64."""
  x, y = np.float64(x), np.float64(y)
  lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
  near = (x * y).sum(-1) / lengths
  d = np.abs(x - y)
  far = np.where(d < 1, d**2 / 2, d - 0.5).mean(-1)
  return (1 - share) * (1 - near) + share * far, near


@pytest.mark.parametrize(
  "share, weight", some_slow([(0.1, 1.0), (0.5, 2.0)], [(0.1, 1.0)])
)
def test_the_loss_is_that_of_the_formula(share, weight):
  """It is of each image, and the gradient is that of differences."""
  _, objective = imitation(
    teacher_of(dinov2()),
    student__smooth_l1=share,
    student__patch_weight=weight,
  )
  rng = np.random.default_rng(1)
  shapes = {"class": (2, 24), "patches": (2, 4, 4, 24)}
  mine, theirs = (
    {k: 2 * rng.normal(size=shape) for k, shape in shapes.items()}
    for _ in range(2)
  )
  of_class, near_class = by_formula(mine["class"], theirs["class"], share)
  of_patches, near = by_formula(mine["patches"], theirs["patches"], share)
  expected = of_class + weight * of_patches.mean((1, 2))
  as_float = [
    {k: jnp.float32(v) for k, v in one.items()} for one in (mine, theirs)
  ]
  loss, cosines = jax.jit(objective.compare)(*as_float)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  np.testing.assert_allclose(cosines["class"], near_class, rtol=1e-4)
  np.testing.assert_allclose(cosines["patches"], near.mean((1, 2)), rtol=1e-3)

  slope = jax.grad(lambda x: objective.compare(x, as_float[1])[0].sum())
  slope = jax.jit(slope)
  found = slope(as_float[0])["class"][0, :3]
  for k in range(3):
    step = np.zeros((2, 24))
    step[0, k] = 1e-5
    more, _ = by_formula(mine["class"] + step, theirs["class"], share)
    less, _ = by_formula(mine["class"] - step, theirs["class"], share)
    assert found[k] == pytest.approx((more - less)[0] / 2e-5, rel=1e-3)


def test_equal_outputs_have_no_loss_and_zeros_a_finite_slope():
  _, objective = imitation(teacher_of(dinov2()))
  y = {"class": jnp.ones((1, 24)), "patches": jnp.ones((1, 4, 4, 24))}
  loss, cosines = jax.jit(objective.compare)(y, y)
  assert abs(float(loss[0])) < 1e-6 and float(cosines["class"][0]) > 1 - 1e-6
  zeros = jax.tree.map(jnp.zeros_like, y)
  slope = jax.jit(jax.grad(lambda x: objective.compare(x, y)[0].sum()))(zeros)
  assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(slope))


@pytest.mark.slow
@pytest.mark.parametrize(
  "model",
  [
    dinov2(),
    dinov2(pooling="gap", norm_pooled=True, class_token=False),
    make_vit("Ti/4", 3, pooling="map", **SIZES),
    make_vit("Ti/4", 3, representation_size=5, scan=True, **SIZES),
  ],
)
def test_the_teacher_sees_the_same_images_with_its_own_normalisation(model):
  """Its outputs are those of the pixels, prepared as it needs, in NumPy."""
  teacher = teacher_of(model, size=(16, 16))
  params = random_params(model, (16, 16), 0)
  _, objective = imitation(teacher)
  one = batch()
  images, _ = objective.prepare(one, jax.random.key(0))
  found = jax.jit(objective.teacher_outputs)(params, images)
  pixels = (np.asarray(one["image"]) / 255 - MEAN) / STD
  x = jnp.float32(pixels)
  options = {} if model.representation_size is None else dict(num_classes=0)
  plain = model.clone(representation_size=None, **options)
  np.testing.assert_allclose(
    found["class"], features(plain, params, x), rtol=1e-3, atol=1e-4
  )
  (last,) = features(model, params, x, layers=[1], as_maps=True)
  np.testing.assert_allclose(found["patches"], last, rtol=1e-3, atol=1e-4)


def test_a_resnet_teaches_and_learns_its_feature_map():
  model = ResNet(num_classes=2, layers=(1, 1), width=32)
  teacher = teacher_of(model, size=(64, 64))
  assert widths_of(model, (64, 64, 3)) == {"class": 256, "patches": 256}
  task = made_up.task(**LEARNS).with_teacher(teacher)
  learner = task.adapted(model)
  assert type(learner.trunk) is ResNet
  images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
  outputs, variables = jax.eval_shape(
    learner.init_with_output, jax.random.key(0), images
  )
  assert outputs["patches"].shape == (1, 8, 8, 256)
  assert "project_patches" in variables["params"]


def test_grids_are_brought_together_by_the_teacher_or_by_interpolation():
  """A teacher that takes any size sees as many patches as the student."""
  _, objective = imitation(teacher_of(dinov2(patch_size=7), size=(21, 21)))
  assert objective.size == (28, 28)
  fixed = teacher_of(make_vit("Ti/4", 0, **SIZES))
  assert size_for(fixed, (4, 4)) == (12, 12)
  task = made_up.task(**LEARNS).with_teacher(fixed)
  about = task.about_teacher(
    fixed, make_vit("Ti/4", 0, **SIZES), Preprocessing((16, 8))
  )
  assert about == (
    "on images of 12 x 12; its 3 x 3 patches are resized to the student's 4 x 2"
  )
  rows = np.arange(8).reshape(1, 8, 1, 1) + 0.5
  ramp = np.broadcast_to(rows, (1, 8, 8, 2))
  half = resized(jnp.float32(ramp), (4, 8))
  inner = np.arange(4)[1:-1] * 2 + 1
  np.testing.assert_allclose(half[0, 1:-1, 0, 0], inner, rtol=1e-5)


@pytest.mark.slow
def test_a_student_is_its_model_with_projections_of_its_own():
  model, objective = imitation(teacher_of(dinov2()))
  params = random_params(model, (16, 16), 0)
  assert params["project_class"]["kernel"].shape == (16, 24)
  parts = Parts.of(model, params)
  own = [name for name in params if parts.own_task(f"{name}/kernel")]
  assert sorted(own) == ["project_class", "project_patches"]
  one = jnp.float32(np.random.default_rng(0).normal(size=(2, 16, 16, 3)))
  plain = model.trunk
  assert plain == make_vit("Ti/4", 0, **SIZES)
  trunk = {k: v for k, v in params.items() if k not in own}
  y = jax.jit(plain.apply)({"params": trunk}, one)
  kernel = params["project_class"]
  expected = y @ kernel["kernel"] + kernel["bias"][None]
  found = jax.jit(model.apply)({"params": params}, one)
  np.testing.assert_allclose(found["class"], expected, rtol=1e-4, atol=1e-4)
  alone, _ = imitation(teacher_of(dinov2()), student__learns="class")
  outputs = jax.eval_shape(alone.apply, {"params": params}, one)
  assert list(outputs) == ["class"]
  assert isinstance(objective, Imitation)


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"distill__teacher": None},
      "learns='both' needs a teacher: set d",
    ),
    ({"masked__rate": 0.5}, "the sections masked and student each choose a"),
  ],
)
def test_what_a_student_cannot_do_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    made_up.task(**LEARNS | changes)


def test_a_student_of_too_small_images_or_without_all_patches_is_refused():
  task = made_up.task(**LEARNS).with_teacher(teacher_of(dinov2()))
  model = task.adapted(make_vit("Ti/16", 0, **SIZES))
  with pytest.raises(ValueError, match="does not divide by the model's stride"):
    task.objective(model, Preprocessing((8, 8)))
  with pytest.raises(
    ValueError, match="patch_dropout_rate=0.5 would leave out"
  ):
    task.adapted(make_vit("Ti/4", 0, patch_dropout_rate=0.5, **SIZES))
  with pytest.raises(ValueError, match="a Student is no encoder of images"):
    student(model, {})


def test_a_task_is_the_same_whatever_its_teachers_parameters():
  """Arrays have no single answer to whether they are equal, and no hash."""
  task = made_up.task(**LEARNS)
  one, two = (
    dataclasses.replace(task, teacher_params={"w": np.full(2, n)})
    for n in range(2)
  )
  assert one == two and hash(one) == hash(two)


def test_the_settings_name_the_task():
  task = build.task_of(made_up.settings(**LEARNS))
  assert task.name == "student" and task.answers is None
