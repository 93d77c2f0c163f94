"""Segmentation: losses, counts and answers that NumPy and others compute."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import libraries
from tests.tasks.made_up import HALF, Split, rows_of, task
from tests.tiny import random_params
from vit_jax import features, make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.mask_folder import IGNORED
from vit_jax.models.parts import Parts
from vit_jax.tasks.metrics import Gathered
from vit_jax.tasks.probes.linear_probe import Probe
from vit_jax.tasks.probes.segmentation import answers, count
from vit_jax.tasks.segmentation import marking
from vit_jax.tasks.segmentation.objective import PixelClasses, enlarged
from vit_jax.tasks.segmentation.pictures import overlay, palette
from vit_jax.tasks.segmentation.task import SegmentationOutcome, counts

RNG = np.random.default_rng(0)
SIZES = dict(num_layers=2, hidden_size=16, mlp_size=32, num_heads=2)
K = 3


def segmenter(**settings):
  """A model with random parameters, and its task."""
  changes = {f"segmentation__{key}": value for key, value in settings.items()}
  given = task(data__task="segmentation", **changes)
  model = given.adapted(make_vit("Ti/4", K, **SIZES, position="sincos2d"))
  return given, model, random_params(model, (16, 16), 0)


def masks(*shape):
  return RNG.choice([*range(K), IGNORED], shape).astype(np.int32)


def test_the_loss_is_the_mean_over_pixels_of_a_class():
  logits = RNG.normal(size=(3, 6, 8, K)).astype(np.float32)
  label = masks(3, 6, 8)
  label[2] = IGNORED
  loss, right = jax.jit(PixelClasses(HALF, HALF).compare)(logits, label)
  expected = np.zeros((2, 3))
  for n in range(2):
    pixels = [*zip(*np.nonzero(label[n] != IGNORED), strict=True)]
    for place in pixels:
      x, k = logits[n][place].astype(np.float64), label[n][place]
      expected[0, n] += (np.log(np.exp(x).sum()) - x[k]) / len(pixels)
      expected[1, n] += (x.argmax() == k) / len(pixels)
  np.testing.assert_allclose([loss, right], expected, rtol=1e-5)


@pytest.mark.slow
def test_pixels_of_no_class_have_no_gradient():
  label = jnp.array(masks(1, 4, 4))
  objective = PixelClasses(HALF, HALF)
  gradient = jax.grad(lambda x: objective.compare(x, label)[0].sum())(
    jnp.array(RNG.normal(size=(1, 4, 4, K)), jnp.float32)
  )
  np.testing.assert_array_equal(
    np.asarray(gradient).any(axis=-1), np.asarray(label) != IGNORED
  )


@pytest.mark.slow
def test_a_linear_head_is_the_fit_of_scikit_learn():
  """With the mean over an image's pixels, and an L2 as scikit-learn has it."""
  from sklearn.linear_model import LogisticRegression

  B, h, D = 4, 4, 5
  maps = RNG.normal(size=(B, h, h, D)).astype(np.float32)
  label = masks(B, 2 * h, 2 * h)
  objective, C = PixelClasses(HALF, HALF), 3.0

  def loss_of(params):
    W, b = params
    loss, _ = objective.compare(maps @ W + b[None, None, None], label)
    return loss.sum() + (W**2).sum() / (2 * C)

  step = jax.jit(jax.value_and_grad(loss_of))
  from scipy.optimize import minimize

  def flat(x):
    value, grads = step((jnp.array(x[: D * K].reshape(D, K)), x[D * K :]))
    return float(value), np.concatenate([np.ravel(g) for g in grads])

  with jax.enable_x64(True):
    found = minimize(flat, np.zeros((D + 1) * K), jac=True, tol=1e-12).x
  pixels = np.asarray(enlarged(jnp.array(maps), 2 * h, 2 * h))
  has_class = label != IGNORED
  weight = np.broadcast_to(
    1 / has_class.sum(axis=(1, 2), keepdims=True), label.shape
  )
  fit = LogisticRegression(C=C, tol=1e-10, max_iter=10_000)
  fit.fit(pixels[has_class], label[has_class], weight[has_class])
  W = found[: D * K].reshape(D, K)
  np.testing.assert_allclose(W, fit.coef_.T, atol=2e-4)
  b = found[D * K :]
  np.testing.assert_allclose(
    b - b.mean(), fit.intercept_ - fit.intercept_.mean(), atol=2e-4
  )


@pytest.mark.slow
def test_a_linear_head_with_the_probes_numbers_answers_as_the_probe():
  _, model, params = segmenter()
  images = jnp.array(RNG.normal(size=(2, 16, 16, 3)), jnp.float32)
  maps = features(model.trunk, params, images, layers=(2,), as_maps=True)[0]
  mean, scale = RNG.normal(size=(2, 16))
  scale = np.abs(scale) + 0.5
  W = RNG.normal(size=(17, K))
  probe = Probe(mean=mean, scale=scale, W=W, l2=1.0)
  expected = answers(probe, maps, (16, 16))
  kernel = W[:-1] / scale[:, None]
  params["head"] = {"kernel": kernel, "bias": W[-1] - mean @ kernel}
  logits = jax.jit(model.apply)({"params": params}, images)
  found = enlarged(logits, 16, 16).argmax(axis=-1)
  assert (np.asarray(found) == np.asarray(expected)).mean() > 0.999


@pytest.mark.slow
def test_the_head_reads_several_layers():
  layers = (1, 2)
  _, model, params = segmenter(layers=layers, head_size=8)
  images = jnp.array(RNG.normal(size=(2, 16, 16, 3)), jnp.float32)
  maps = features(model.trunk, params, images, layers=layers, as_maps=True)
  y = np.concatenate(maps, axis=-1)
  hidden, head = jax.device_get((params["head_hidden"], params["head"]))
  y = np.asarray(y) @ hidden["kernel"] + hidden["bias"]
  y = np.asarray(jax.nn.gelu(y, approximate=False))
  expected = y @ head["kernel"] + head["bias"]
  logits = jax.jit(model.apply)({"params": params}, images)
  assert logits.shape == (2, 4, 4, K) and logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
  # A head of its own task, which another task leaves out.
  parts = Parts.of(model, params)
  for name in ("head", "head_hidden"):
    assert parts.is_head(f"{name}/kernel") and parts.own_task(f"{name}/kernel")
  assert not {"head", "head_hidden"} & {*model.trunk.parts()}


@pytest.mark.slow
def test_scanned_layers_give_the_last():
  given, model, params = segmenter()
  images = jnp.array(RNG.normal(size=(1, 16, 16, 3)), jnp.float32)
  stacked = Parts.of(model, params).stack(params)
  np.testing.assert_allclose(
    jax.jit(model.clone(scan=True).apply)({"params": stacked}, images),
    jax.jit(model.apply)({"params": params}, images),
    rtol=1e-5,
    atol=1e-6,
  )
  assert type(given.adapted(make_vit("Ti/4", K, **SIZES, scan=True)))


@pytest.mark.parametrize(
  "settings, fields, message",
  [
    ({}, {"patch_dropout_rate": 0.5}, "would leave out patches"),
    ({"layers": (1, 3)}, {}, r"layers=\(1, 3\): the model has layers 1 to 2"),
    ({"layers": (1, 2)}, {"scan": True}, "set model.scan=False"),
  ],
)
def test_models_that_do_not_fit_are_refused(settings, fields, message):
  given, _, _ = segmenter()
  sections = {f"segmentation__{k}": v for k, v in settings.items()}
  given = task(data__task="segmentation", **sections)
  with pytest.raises(ValueError, match=message):
    given.adapted(make_vit("Ti/4", K, **SIZES, **fields))


@pytest.mark.slow
def test_a_dpt_head_marks_by_windows_that_overlap():
  """As many of its cells for each patch as fit; where all are alike, so is
  the mean.
  """
  given, model, params = segmenter(head="dpt", head_size=8)
  image = RNG.integers(0, 256, (12, 12, 3), np.uint8)
  preprocessing = Preprocessing((12, 12), mean=HALF, std=HALF)  # 3 x 3 patches.
  mark = given.answers.marker(model, preprocessing)
  x = jnp.array(image[None] / np.float32(127.5) - 1)
  logits = jax.jit(model.apply)({"params": params}, x)
  assert logits.shape == (1, 64, 64, K)
  expected = np.asarray(enlarged(logits, 12, 12)[0].argmax(axis=-1))
  assert (mark(params, image) == expected).mean() > 0.99
  windows = given.answers.marker(model, preprocessing, 16)
  params["dpt"]["outputs"]["kernel"] *= 0
  params["dpt"]["outputs"]["bias"] = np.float32([0, 2, 1])
  assert (windows(params, image) == 1).all()


def test_a_head_has_one_width():
  with pytest.raises(ValueError, match="head_size=8 is the width of a hidden"):
    segmenter(head="linear", head_size=8)
  assert segmenter(head="small")[1].head_size == 256
  assert segmenter(head_size=8)[1].head_size == 8
  assert segmenter(head="linear")[1].head_size == 0


def test_a_resnet_and_odd_layers_are_refused():
  from vit_jax.models import make_model

  given, _, _ = segmenter()
  with pytest.raises(ValueError, match="a ResNet has no patches in its layers"):
    given.adapted(make_model("R50x1", K))
  with pytest.raises(
    ValueError, match="different numbers from 1 on, in ascending"
  ):
    task(data__task="segmentation", segmentation__layers=(2, 1))


def outcome(label, answer):
  arrays = jax.device_get(counts(jnp.array(label), jnp.array(answer), K))
  arrays["loss"] = np.arange(len(label), dtype=np.float32)
  gathered = Gathered(np.arange(len(label)), arrays, 0)
  return SegmentationOutcome(("sky", "road", "car"), gathered)


def confusion(label, answer):
  """By a loop over the pixels."""
  pairs = np.zeros((K, K), int)
  for true, given in zip(label.ravel(), answer.ravel(), strict=True):
    if true != IGNORED:
      pairs[true, given] += 1
  return pairs


def test_the_scores_are_those_of_a_confusion_matrix(tmp_path):
  label = masks(5, 9, 7)
  answer = RNG.integers(0, K, label.shape)
  label[label == 2] = IGNORED
  answer[answer == 2] = np.where(RNG.random((answer == 2).sum()) < 0.2, 2, 1)
  pairs = confusion(label, answer)
  counted = [pairs.diagonal(), pairs.sum(1), pairs.sum(0)]
  np.testing.assert_array_equal(count(label, answer, K), counted)
  union = pairs.sum(0) + pairs.sum(1) - pairs.diagonal()
  iou = pairs.diagonal() / union
  found = outcome(label, answer)
  assert found.scores["mean_iou"] == pytest.approx(iou.mean())
  share = pairs.trace() / pairs.sum()
  assert found.scores["pixels_right"] == pytest.approx(share)
  by_class = found.by_class()["eval/iou_by_class"]
  assert [*by_class.values()] == pytest.approx(iou.tolist())
  # Each image by itself, the worst and the best of which are told.
  each = []
  for one in zip(label, answer, strict=True):
    pairs = confusion(*one)
    union = pairs.sum(0) + pairs.sum(1) - pairs.diagonal()
    each.append((pairs.diagonal()[union > 0] / union[union > 0]).mean())
  np.testing.assert_allclose(found.each_iou, each)
  (worst,) = found.telling()  # All five: none is left to be the best.
  assert worst.examples[0].index == np.argmin(each)
  assert f"{min(each):.1%}" in worst.examples[0].caption
  shown = [x.index for x in worst.examples]
  assert sorted(shown) == [0, 1, 2, 3, 4]
  rows = rows_of(found, tmp_path, Split(label))
  assert [row[0] for row in rows[1:]] == [f"{k}.png" for k in range(5)][::-1]
  assert float(rows[-1][1]) == pytest.approx(each[0], rel=1e-5)


def test_a_class_that_occurs_nowhere_does_not_count():
  label, answer = np.zeros((2, 1, 4, 4), np.int32)
  label[0, 0] = 1
  found = outcome(label, answer)
  assert found.scores["mean_iou"] == pytest.approx((12 / 16 + 0) / 2)
  assert [*found.by_class()["eval/iou_by_class"]] == ["sky", "road"]
  assert found.table()[1][2] == ["car", "-", "0.0%", "0.0%"]
  assert found.chance == pytest.approx(12 / 16 / 2)
  with pytest.raises(ValueError, match="no readable pixel of the evaluation"):
    _ = outcome(np.full((1, 2, 2), IGNORED), answer[:, :2, :2]).scores


def test_pixels_are_between_patches_as_jax_resizes():
  logits = RNG.normal(size=(4, 5, K)).astype(np.float32)
  expected = enlarged(jnp.array(logits)[None], 33, 41)[0].argmax(axis=-1)
  found = marking.classes(logits, 33, 41)
  assert (found == np.asarray(expected)).mean() > 0.999


def test_strips_change_nothing(monkeypatch):
  logits = RNG.normal(size=(4, 5, K)).astype(np.float32)
  whole = marking.classes(logits, 33, 41)
  monkeypatch.setattr(marking, "MOST_VALUES", 41 * K * 4)
  np.testing.assert_array_equal(marking.classes(logits, 33, 41), whole)


@pytest.mark.slow
def test_an_image_of_the_models_size_is_marked_whole():
  given, model, params = segmenter()
  preprocessing = Preprocessing((16, 16), mean=HALF, std=HALF)
  image = RNG.integers(0, 256, (16, 16, 3), np.uint8)
  whole = given.answers.marker(model, preprocessing)(params, image)
  x = jnp.array(image[None] / np.float32(127.5) - 1)
  logits = jax.jit(model.apply)({"params": params}, x)
  expected = np.asarray(enlarged(logits, 16, 16)[0].argmax(axis=-1))
  assert (whole == expected).mean() > 0.999
  windows = given.answers.marker(model, preprocessing, 16)(params, image)
  np.testing.assert_array_equal(whole, windows)


@pytest.mark.parametrize("shape", [(40, 90), (31, 16)])
def test_windows_cover_a_larger_image(shape):
  """Where a patch's logits are its mean colour, windows change nothing."""
  given, _, _ = segmenter()
  preprocessing = Preprocessing((16, 16), mean=HALF, std=HALF)

  class Colours:
    stride = 4

    def apply(self, variables, images):
      B, H, W, C = images.shape
      return images.reshape(B, H // 4, 4, W // 4, 4, C).mean(axis=(2, 4))

  marker = partial(given.answers.marker, Colours(), preprocessing)
  image = RNG.integers(0, 256, (*shape, 3), np.uint8)
  image[: shape[0] // 2, :, 0] = 255
  found = marker(32)({}, image)
  assert found.shape == shape
  sides = [max(32, round(s * 32 / min(shape) / 4) * 4) for s in shape]
  resized = marking.resize_by_settings(image, tuple(sides), preprocessing.crop)
  means = Colours().apply({}, resized[None] / np.float32(127.5) - 1)[0]
  np.testing.assert_array_equal(found, marking.classes(means, *shape))
  with pytest.raises(ValueError, match="short_side=8 is less than the windows"):
    marker(8)


def test_windows_overlap_by_a_third():
  for length in (16, 20, 64, 100):
    places = marking.starts(length, 16, 4)
    assert places[0] == 0 and places[-1] == length - 16
    assert not any(place % 4 for place in places)
    steps = np.diff(places)
    assert len(steps) == 0 or 0 < steps.max() <= 16 * 2 / 3


def test_overlays_leave_pixels_of_no_class():
  image = RNG.integers(0, 256, (4, 6, 3), np.uint8)
  mask = np.full((4, 6), IGNORED)
  np.testing.assert_array_equal(overlay(image, mask), image)
  mask[:2] = 1
  drawn = overlay(image, mask)
  expected = 0.6 * palette()[1] + 0.4 * image[:2]
  np.testing.assert_allclose(drawn[:2], expected, atol=0.51)
  assert len({tuple(colour) for colour in palette(30).tolist()}) == 30


def test_panels_show_image_mask_and_answer():
  given, model, params = segmenter()
  preprocessing = Preprocessing((16, 16), mean=HALF, std=HALF)
  image = RNG.integers(0, 256, (16, 16, 3), np.uint8)
  draw = given.panels.make(model, given.objective(model, preprocessing))
  (sheet,) = draw(params, [(0, image, masks(32, 32))])
  assert sheet.shape == (192, 3 * 192 + 8, 3)
  np.testing.assert_array_equal(sheet[::12, :192:12], image)


def test_the_facts_come_back():
  given = dataclasses.replace(segmenter()[0], classes=4)
  found = segmenter()[0].with_facts({"targets": given.facts()})
  assert found == given and found.adapted(make_vit("Ti/4", 0)).num_classes == 4
  with pytest.raises(ValueError, match="classes"):
    given.with_facts({"targets": {"classes": "many"}})
  assert (
    given.labels.describe([[0, 2], [IGNORED, 2]], ("a", "b", "c")) == "a, c"
  )


@pytest.mark.slow
def test_mean_iou_is_that_of_torchmetrics():
  (library,) = libraries.needed("torchmetrics")
  torch = pytest.importorskip("torch")
  label, answer = masks(20, 40, 30), RNG.integers(0, K, (20, 40, 30))
  found = outcome(label, answer)
  for average, ours in (
    ("none", found.iou),
    ("macro", found.scores["mean_iou"]),
  ):
    theirs = library.classification.MulticlassJaccardIndex(
      K, average=average, ignore_index=IGNORED
    )(torch.tensor(answer), torch.tensor(label))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
