"""Operations of the tasks' train steps, against counts by hand."""

import pytest

from tests import encoders
from tests.tasks.made_up import plan, settings
from vit_jax import make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.run import build
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import replaced
from vit_jax.training import sharding
from vit_jax.training.distillation import Teacher
from vit_jax.training.settings import DistillSettings
from vit_jax.training.state import Extras, make_params_init

# Ti/4 of one layer on images of 16 x 16, and a teacher that is wider.
N, P2C, D, M, CLASSES = 16, 48, 16, 32, 5
D_TEACHER, M_TEACHER = 24, 40
HALF = (0.5, 0.5, 0.5)
SIZES = dict(num_layers=1, hidden_size=D, mlp_size=M, num_heads=2)
DINO = dict(
  self_distillation__prototypes=64,
  self_distillation__head_size=32,
  self_distillation__bottleneck=8,
  self_distillation__small_size=8,
  self_distillation__small_crops=3,
  ema_decay=0.9,
)


@pytest.mark.parametrize(
  "changes, is_said",
  [
    ({}, True),
    ({"data.task": "segmentation"}, False),
    ({"data.task": "dense_regression"}, False),
    ({"data.task": "pairs", "data.labels_file": "pairs.csv"}, True),
    ({"autoencoder.rate": 0.5}, False),
  ],
)
def test_the_vector_of_an_image_is_told_to_tasks_that_read_it(
  capsys, changes, is_said
):
  options = {"pretrained": encoders.path("hf_dinov3"), **changes}
  chosen = replaced(Settings(), options)
  build.open_start(chosen, build.task_of(chosen))
  assert ("its features are" in capsys.readouterr().err) == is_said


def test_bands_are_the_channels_and_have_a_mean_each():
  sizes = {"image_size": (8, 8), "data.bands": "red, green,blue,nir"}
  values = {"normalization.mean": (0.5,) * 4, "normalization.std": (0.5,) * 4}
  preprocessing = build.make_preprocessing(
    build.resolved(replaced(Settings(), sizes | values), None)
  )
  assert preprocessing.channels == 4
  assert preprocessing.bands == ("red", "green", "blue", "nir")
  for more, message in (
    ({}, "channels=4 needs as many means and standard deviations, and there"),
    (values | {"channels": 5}, "data.bands names 4 bands and channels=5: name"),
    ({"data.bands": "red,,nir"}, "bands='red,,nir' must name each band once"),
  ):
    with pytest.raises(ValueError, match=message):
      build.resolved(replaced(Settings(), sizes | more), None)


def test_bands_take_the_normalization_of_their_names():
  """A run that starts from another run goes on with its bands."""
  start = Preprocessing(
    (8, 8), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), bands=("a", "b", "c")
  )
  for bands, mean in ((None, (0.1, 0.2, 0.3)), ("C,a,b", (0.3, 0.1, 0.2))):
    settings = replaced(Settings(), {"data.bands": bands})
    found = build.make_preprocessing(build.resolved(settings, start))
    assert found.mean == mean
    assert found.std == tuple(10 * x for x in mean)
    assert found.bands == tuple((bands or "a,b,c").split(","))
  settings = replaced(Settings(), {"data.bands": "a,b,d"})
  with pytest.raises(ValueError, match="data.bands has d, and the checkpoint"):
    build.resolved(settings, start)
  pictures = Preprocessing((8, 8), mean=start.mean, std=start.std)
  settings = replaced(Settings(), {"data.bands": "blue,green,red"})
  assert build.resolved(settings, pictures).normalization.mean == (
    *(0.3, 0.2, 0.1),
  )
  settings = replaced(Settings(), {"channels": 3})
  assert build.resolved(settings, pictures).data.bands is None


def embedded(N, D):
  return 2 * N * P2C * D


def layers(S, D, M, number=1):
  return 2 * number * (4 * S * D * D + 2 * S * S * D + 2 * S * D * M)


def last_layer(S, D, M, heads=2):
  """That of a class token, whose query is compared with the tokens themselves.

  Four products with D x D matrices, of which those of keys and values take the
  query and the result in the place of all tokens.
  """
  return 2 * (4 * D * D + 2 * heads * S * D + 2 * D * M)


def classification():
  """Its model's passes and its teacher's for an image."""
  return embedded(N, D) + last_layer(N + 1, D, M) + 2 * D * CLASSES, 0


def autoencoder():
  """A quarter of the patches is seen, and the others are predicted."""
  width, seen = 8, N // 4
  decoder = 2 * (seen + 1) * D * width
  decoder += layers(N + 1, width, 4 * width, number=2)
  decoder += 2 * (N - seen) * width * P2C
  return embedded(N, D) + layers(seen + 1, D, M) + decoder, 0


def student():
  teacher = embedded(N, D_TEACHER) + layers(N + 1, D_TEACHER, M_TEACHER)
  projections = 2 * (N + 1) * D * D_TEACHER
  return embedded(N, D) + layers(N + 1, D, M) + projections, teacher


def self_distillation():
  """Two large crops for both, three small crops, and half of the patches."""
  head = 2 * (D * 32 + 32 * 32 + 32 * 8 + 8 * 64)
  large = embedded(N, D) + layers(N + 1, D, M) + (1 + N // 2) * head
  small = embedded(4, D) + layers(4 + 1, D, M) + head
  return 2 * large + 3 * small, 2 * large


@pytest.mark.parametrize(
  "by_hand, changes",
  [
    (classification, {}),
    (
      autoencoder,
      dict(
        autoencoder__rate=0.75,
        autoencoder__decoder_size=8,
        autoencoder__decoder_layers=2,
        autoencoder__decoder_heads=2,
      ),
    ),
    (student, dict(student__learns="both", distill__teacher="teacher")),
    pytest.param(self_distillation, DINO, marks=pytest.mark.slow),
  ],
)
def test_operations_of_a_step(by_hand, changes):
  """The backward pass of the model, but not of a teacher, takes twice more."""
  plain = dict(image_size=(16, 16), batch_size=4, loss__label_smoothing=0.0)
  given = settings(**plain | changes)
  task, extras = build.task_of(given), Extras()
  if by_hand is student:
    task, extras = taught(task)
  outputs = CLASSES if task.answers else 0
  vit = make_vit("Ti/4", outputs, **SIZES, position="sincos2d")
  model = task.adapted(vit)
  count = plan(given, task, model, extras, classes=CLASSES).operations
  model_pass, teacher_pass = by_hand()
  # The products of the losses themselves are left out by hand.
  forward, step = model_pass + teacher_pass, 3 * model_pass + teacher_pass
  assert count.forward * 1e9 == pytest.approx(forward, rel=0.01)
  assert count.step * 1e9 == pytest.approx(step, rel=0.01)


def taught(task):
  sizes = dict(SIZES, hidden_size=D_TEACHER, mlp_size=M_TEACHER)
  model = make_vit("Ti/4", 0, block="dinov2", position_grid=(4, 4), **sizes)
  teacher = Teacher(model, (16, 16), HALF, HALF, DistillSettings())
  init = make_params_init(model, (16, 16, 3))
  shapes = sharding.array_shapes(init, sharding.make_mesh())
  frozen = ({"teacher": shapes},)
  return task.with_teacher(teacher), Extras(
    teacher=teacher, frozen_params=frozen
  )


def test_layers_computed_again_do_not_count():
  given = settings(image_size=(16, 16), batch_size=8)
  task = build.task_of(given)
  for remat in ("none", "full"):
    model = make_vit("Ti/4", CLASSES, **SIZES, remat=remat)
    count = plan(given, task, model, classes=CLASSES).operations
    assert count.step == pytest.approx(3 * classification()[0] / 1e9)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_run_says_which_of_its_keys_are_deprecated(is_new, capsys):
  """A run that was begun with one goes on without a line."""
  changes = {
    "ema_decay": 0.9,
    "self_distillation.prototypes": 8,
    "self_distillation.class_weight": 2.0,
    "self_distillation.patch_weight": 2.0,
  }
  settings = replaced(Settings(), changes)
  build.check_run(settings, build.task_of(settings), is_new=is_new)
  said = capsys.readouterr().err
  line = (
    "self_distillation.class_weight=2.0 is deprecated, and works for now: "
    "weigh the other losses by patch_weight and koleo_weight.\n"
  )
  assert said == (line if is_new else "")
