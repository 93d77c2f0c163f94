"""Objectives on images of any size: padding and packing change nothing."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny_vit import random_params
from tests.rows import some_slow
from vit_jax.data.preprocessing import HALF
from vit_jax.models import make_vit
from vit_jax.models.autoencoder import autoencoder
from vit_jax.models.patches import Layout, Patches
from vit_jax.models.student import student, widths_of
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import two_towers
from vit_jax.tasks.autoencoder.objective import Reconstruction, draw_of_rows
from vit_jax.tasks.pairs.objective import Contrast
from vit_jax.tasks.student.objective import Imitation
from vit_jax.tasks.student.settings import StudentSettings
from vit_jax.training.distillation import Distilled, Teacher
from vit_jax.training.inputs import inputs_of, places
from vit_jax.training.losses import Classification, StepContext
from vit_jax.training.settings import DistillSettings, LossSettings

P, TOKENS = 4, 12
GRIDS = np.array([(3, 3), (2, 6), (6, 2), (1, 9), (7, 1), (3, 4)], np.int32)
B = len(GRIDS)
DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (B, TOKENS, P * P * 3), np.uint8)
LABELS = np.arange(B) % 3
TEXTS = DRAW.integers(1, 9, (B, 5)).astype(np.int32)
SIZES = dict(num_layers=1, hidden_size=16, mlp_size=32, num_heads=2)
COLOURS: Any = dict(mean=HALF, std=HALF)


def batch(grids=GRIDS, tokens=TOKENS, rows=slice(None)):
  """A batch of patches, those beyond an image of other numbers than 0."""
  return {
    "image": jnp.asarray(PIXELS[rows, :tokens]),
    "size": jnp.asarray(grids[rows, None]),
  }


ROWS, MOST, LENGTH = ((3, 0), (1,), (5, 2, 4)), 4, 40
SLOTS = [(r, m) for r, images in enumerate(ROWS) for m in range(len(images))]
ORDER = np.argsort([n for images in ROWS for n in images])


def packed(data):
  """The images of a batch in the rows of `ROWS`, with their other arrays."""
  rows: dict[str, Any] = {
    name: np.zeros((len(ROWS), MOST, *x.shape[1:]), x.dtype)
    for name, x in data.items()
  }
  rows["size"] = np.zeros((len(ROWS), MOST, 2), np.int32)
  rows["image"] = np.full((len(ROWS), LENGTH, P * P * 3), 255, np.uint8)
  for row, images in enumerate(ROWS):
    start = 0
    for place, n in enumerate(images):
      stop = start + math.prod(GRIDS[n])
      rows["image"][row, start:stop] = data["image"][n, : stop - start]
      rows["size"][row, place] = GRIDS[n]
      for name in data.keys() - {"image", "size"}:
        rows[name][row, place] = data[name][n]
      start = stop
  return jax.tree.map(jnp.asarray, rows)


def by_number(values):
  """The values of the images of `packed`, in the order of the batch."""
  rows = np.asarray(values).reshape(len(ROWS), MOST, *values.shape[1:])
  return np.stack([rows[slot] for slot in SLOTS])[ORDER]


def mean_of(loss):
  """The mean loss over the images that there are."""
  weight = jnp.ones(B) if loss.weight is None else loss.weight
  return (loss.value * weight).sum() / weight.sum()


def vit(num_classes=0, **fields):
  return make_vit("Ti/4", num_classes, **SIZES, pooling="gap", **fields)


def pairs():
  text = TextTower(
    0, 9, 5, hidden_size=16, num_layers=1, mlp_size=16, num_heads=2
  )
  return two_towers(vit(), text)


def classifier(loss):
  return Classification(3, LossSettings(kind=loss), HALF, HALF)


KINDS = {
  "softmax": (lambda: vit(3), classifier("softmax"), {"label": LABELS}),
  "sigmoid": (lambda: vit(3), classifier("sigmoid"), {"label": LABELS}),
  "pairs": (pairs, Contrast("sigmoid", True, **COLOURS), {"text": TEXTS}),
  "clip": (pairs, Contrast("softmax", True, **COLOURS), {"text": TEXTS}),
}


def joined(*rows):
  return jnp.concatenate(rows) if rows[0].ndim else rows[0]


def alone(model, params):
  """Applies a model to one image after the other, without its padding."""

  def of_one(row, patches, *others):
    h, w = GRIDS[row]
    one = jax.tree.map(lambda x: x[row : row + 1], (patches, *others))
    patches = one[0].replace(
      values=one[0].values[:, : h * w],
      place=one[0].place[:, : h * w],
      image=one[0].image[:, : h * w],
    )
    x = (patches, *one[1:]) if others else patches
    return model.apply({"params": params}, x)

  def apply(inputs, **_):
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    answers = [of_one(row, *inputs) for row in range(B)]
    return jax.tree.map(joined, *answers)

  return apply


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_loss_of_rows_is_that_of_each_image_alone(name):
  """And its gradient; with an image in each row, and with several."""
  make, objective, targets = KINDS[name]
  model = make()
  data = batch() | jax.tree.map(jnp.asarray, targets)
  example = jnp.zeros((1, 12, 12, 3))
  if "text" in data:
    example = example, TEXTS[:1]
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  context = StepContext(step=jnp.int32(0), state=None, frozen={})

  @functools.partial(jax.jit, static_argnums=2)
  @functools.partial(jax.grad, has_aux=True)
  def found(params, data, one_by_one=False):
    inputs, targets = objective.prepare(data, jax.random.key(0))

    def rows(inputs, **_):
      return model.apply({"params": params}, inputs)

    apply = alone(model, params) if one_by_one else rows
    loss = objective.loss(apply, inputs, targets, context)
    return mean_of(loss), loss

  gradient, expected = found(params, data, one_by_one=True)
  padded_gradient, padded = found(params, data)
  packed_gradient, of_rows = found(params, packed(data))
  assert padded.value.shape == (B,) and of_rows.weight.sum() == B
  for name in ("value", "score"):
    each = getattr(expected, name)
    assert_close(getattr(padded, name), each)
    assert_close(by_number(getattr(of_rows, name)), each)
  for other in (padded_gradient, packed_gradient):
    jax.tree.map(assert_close, other, gradient)


def assert_close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def autoencoder_of(encoder, rate):
  sizes = dict(decoder_size=8, decoder_layers=1, decoder_heads=2)
  model = autoencoder(encoder, **sizes)
  return model, Reconstruction(rate, True, P, HALF, HALF)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.75, 0.4])
def test_an_image_hides_its_own_share_of_its_own_patches(rate):
  """The same patches, whether it has a row of its own or shares one."""
  key = jax.random.key(0)

  @jax.jit
  def drawn(batch, numbers):
    patches: Any = inputs_of(batch, HALF, HALF)
    return draw_of_rows(key, numbers, patches.layout, rate)

  alone = jax.device_get(drawn(batch(), np.arange(B)[:, None]))
  numbers = np.full((len(ROWS), MOST), B)
  for row, images in enumerate(ROWS):
    numbers[row, : len(images)] = images
  shared = jax.device_get(drawn(packed(batch()), numbers))
  for row, images in enumerate(ROWS):
    start, found = 0, {k: set(shared[k][row]) - {-1} for k in shared}
    for number in images:
      n = math.prod(GRIDS[number])
      shown = max(1, int(n * (1 - rate)))
      seen, hidden = (alone[k][number] for k in ("seen", "hidden"))
      seen, hidden = seen[seen >= 0], hidden[hidden >= 0]
      assert len(seen) == shown and len(hidden) == n - shown
      assert sorted([*seen, *hidden]) == [*range(n)]
      assert {*(start + seen)} == found["seen"] & {*range(start, start + n)}
      assert {*(start + hidden)} <= found["hidden"]
      start += n
    assert found["seen"] | found["hidden"] == {*range(start)}
    each = [shared[k][row][shared[k][row] >= 0] for k in shared]
    assert sum(map(len, each)) == start


@pytest.mark.parametrize(
  "rate", some_slow([0.75, 0.7, 0.5, 0.1, 0.9], [0.75, 0.1])
)
def test_rows_have_room_for_what_their_images_hide_and_show(rate):
  """Whatever their sizes: no patch is left out of the draw."""
  N, M = 30, 6
  draw = np.random.default_rng(0)
  sizes = np.zeros((200, M, 2), np.int32)
  for row in sizes:
    images = draw.integers(1, M + 1)
    cuts = np.sort(draw.choice(np.arange(1, N), images - 1, replace=False))
    row[:images, 0] = np.diff([0, *cuts, N])
    row[:images, 1] = 1
  numbers = np.arange(200 * M).reshape(200, M)
  key = jax.random.key(0)

  @jax.jit
  def drawn(sizes, numbers):
    layout = Layout(*places(sizes, N), sizes)
    return draw_of_rows(key, numbers, layout, rate)

  found = jax.device_get(drawn(sizes, numbers))
  both = np.concatenate([found["seen"], found["hidden"]], axis=1)
  for row in both:
    assert sorted(row[row >= 0]) == [*range(N)]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["gap", "token"])
@pytest.mark.parametrize("rate", [0.75, 0.4])
def test_an_autoencoder_fills_in_each_image_as_if_it_were_alone(rate, pooling):
  encoder = make_vit("Ti/4", 0, **SIZES, pooling=pooling, position="sincos2d")
  model, objective = autoencoder_of(encoder, rate)
  example = jnp.zeros((1, 12, 12, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  images: Any
  images, targets = objective.prepare(batch(), jax.random.key(1))
  context = StepContext(step=jnp.int32(0), state=None, frozen={})

  def apply(inputs, draw):
    return model.apply({"params": params, "draw": draw}, inputs)

  found = objective.loss(apply, images, targets, context).value
  for row, (h, w) in enumerate(GRIDS):
    # The same patches hidden of the image, as one of a single size.
    n = h * w
    kept = {}
    for name, drawn in targets["draw"].items():
      drawn = np.asarray(drawn[row])
      kept[name] = jnp.asarray(drawn[drawn >= 0])[None]
    grid = images.values[row, :n].reshape(h, w, P, P, 3)
    image = grid.swapaxes(1, 2).reshape(1, h * P, w * P, 3)
    alone = {"draw": kept, "pixels": objective.targets(image, kept)}
    expected = objective.loss(apply, image, alone, context).value
    np.testing.assert_allclose(found[row], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_padding_changes_no_draw_and_no_gradient():
  model, objective = autoencoder_of(vit(position="sincos2d"), 0.75)
  example = jnp.zeros((1, 12, 12, 3))
  params = jax.tree.map(jnp.asarray, random_params(model, example))
  context = StepContext(step=jnp.int32(0), state=None, frozen={})
  short = batch(rows=slice(0, 1), tokens=9)  # Nine patches, and no padding.
  long = batch(rows=slice(0, 1))

  def loss(params, data):
    images, targets = objective.prepare(data, jax.random.key(1))

    def apply(inputs, draw):
      return model.apply({"params": params, "draw": draw}, inputs)

    return objective.loss(apply, images, targets, context).value.mean()

  found = jax.jit(jax.value_and_grad(loss))
  for one, other in zip(
    jax.tree.leaves(found(params, short)),
    jax.tree.leaves(found(params, long)),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.75, 0.4])
def test_an_autoencoder_fills_in_images_that_share_rows(rate):
  """Loss, score and gradient are those of a row for each image."""
  model, objective = autoencoder_of(vit(position="sincos2d"), rate)
  params = random_params(model, jnp.zeros((1, 12, 12, 3)))
  params = jax.tree.map(jnp.asarray, params)
  context = StepContext(step=jnp.int32(0), state=None, frozen={})
  numbers = np.full((len(ROWS), MOST), B)
  for row, images in enumerate(ROWS):
    numbers[row, : len(images)] = images

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def found(params, data, numbers):
    images, targets = objective.prepare(data, jax.random.key(1), numbers)

    def apply(inputs, draw):
      return model.apply({"params": params, "draw": draw}, inputs)

    loss = objective.loss(apply, images, targets, context)
    return mean_of(loss), loss

  gradient, padded = found(params, batch(), jnp.arange(B))
  packed_gradient, of_rows = found(params, packed(batch()), numbers)
  assert of_rows.weight.sum() == B
  assert_close(by_number(of_rows.value), padded.value)
  assert_close(by_number(of_rows.score), padded.score)
  jax.tree.map(assert_close, packed_gradient, gradient)


def taught(kind):
  """A student and its objective, and the parameters of both models."""
  sizes: Any = {**SIZES, "hidden_size": 24}
  teacher_model = make_vit("Ti/4", 3, **sizes, position="sincos2d")
  teacher = Teacher(
    teacher_model, (12, 12), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), TAUGHT[kind]
  )
  if kind == "features":
    model = student(vit(), widths_of(teacher_model, (12, 12, 3)))
    settings = StudentSettings("both", smooth_l1=0.5, patch_weight=2.0)
    objective = Imitation(settings, teacher, (12, 12), **COLOURS)
  else:
    fields: Any = {"pooling": "gap"}
    if kind == "deit":  # Its positions are learned, on the grid of a run.
      fields = {"block": "deit", "pooling": "token", "position_grid": (3, 3)}
    model = make_vit("Ti/4", 3, **{**SIZES, **fields})
    objective = Distilled(classifier("softmax"), teacher)
  example = jnp.zeros((1, 12, 12, 3))
  params = [random_params(m, example) for m in (model, teacher_model)]
  return model, objective, *jax.tree.map(jnp.asarray, params)


TAUGHT = {
  "features": DistillSettings(),
  "answers": DistillSettings(temperature=2.0, weight=0.25),
  "deit": DistillSettings(form="deit", kind="hard"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAUGHT)
def test_a_teacher_sees_the_patches_of_its_student(kind):
  """Images in rows of their own, in shared rows, and whole, of one size."""
  model, objective, params, teacher_params = taught(kind)

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def found(params, inputs, targets):

    def apply(inputs, *, method=None):
      return model.apply({"params": params}, inputs, method=method)

    context = StepContext(frozen={"teacher": teacher_params})
    loss = objective.loss(apply, inputs, targets, context)
    return mean_of(loss), loss

  def prepared(data):
    return objective.prepare(data, jax.random.key(0))

  data = batch() | {"label": jnp.asarray(LABELS)}
  gradient, padded = found(params, *prepared(data))
  packed_gradient, of_rows = found(params, *prepared(packed(data)))
  assert padded.value.shape == (B,) and of_rows.weight.sum() == B
  for name in ("value", "score"):
    each = getattr(padded, name)
    assert_close(by_number(getattr(of_rows, name)), each)
  jax.tree.map(assert_close, packed_gradient, gradient)
  pixels = DRAW.integers(0, 256, (B, 12, 12, 3), np.uint8)
  square = {"image": jnp.asarray(pixels), "label": data["label"]}
  images: Any
  images, targets = prepared(square)
  gradient, whole = found(params, images, targets)
  cut_gradient, cut = found(params, Patches.of(images, P), targets)
  assert_close(cut.value, whole.value)
  jax.tree.map(assert_close, cut_gradient, gradient)
