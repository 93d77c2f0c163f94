"""Dense regression: losses, answers and files that NumPy computes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.rows import some_slow
from tests.tasks.made_up import HALF, Split, rows_of, task
from tests.tiny import random_params
from vit_jax import make_vit
from vit_jax.data.example import RGB
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.pixel_numbers.statistics import Statistics
from vit_jax.inference.mask_files import write_masks
from vit_jax.tasks.dense_regression.files import NumberFiles
from vit_jax.tasks.dense_regression.objective import PixelErrors, Scaling
from vit_jax.tasks.dense_regression.outcome import PixelNumbersOutcome, sums
from vit_jax.tasks.dense_regression.pictures import heat
from vit_jax.tasks.dense_regression.settings import DenseRegressionSettings
from vit_jax.tasks.metrics import Gathered
from vit_jax.tasks.segmentation.objective import enlarged

RNG = np.random.default_rng(0)
SIZES = dict(num_layers=2, hidden_size=16, mlp_size=32, num_heads=2)
LOGS = Scaling(4.0, 2.0, 1.0, 0.5)
PLAIN = Scaling(4.0, 2.0)


def targets(*shape, share=0.3):
  numbers = RNG.uniform(0.5, 9, shape)
  return np.where(RNG.random(shape) < share, np.nan, numbers).astype("f4")


def objective(scaling, **settings):
  return PixelErrors(HALF, HALF, scaling, DenseRegressionSettings(**settings))


@pytest.mark.parametrize("scaling", [LOGS, PLAIN])
def test_l1_is_the_mean_over_known_pixels(scaling):
  z = RNG.normal(size=(3, 6, 8, 1)).astype(np.float32)
  label = targets(3, 6, 8)
  label[2] = np.nan
  loss, mae = jax.jit(objective(scaling).compare)(z, label)
  y = np.exp(0.5 * z + 1) if scaling is LOGS else 2 * z + 4
  error = np.abs(y[..., 0] - label)
  expected = [*np.nanmean(error[:2], axis=(1, 2)), 0]
  np.testing.assert_allclose(mae, expected, rtol=1e-5)
  np.testing.assert_allclose(loss, np.array(expected) / 2, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.85, 1.0])
def test_silog_is_that_of_its_paper(share):
  """With the whole share, a factor common to an image costs nothing."""
  z = RNG.normal(size=(2, 5, 7, 1)).astype(np.float32)
  label = targets(2, 5, 7)
  settings = dict(loss="silog", silog_lambda=share)
  compare = jax.jit(objective(LOGS, **settings).compare)
  loss, _ = compare(z, label)
  d = 0.5 * z[..., 0] + 1 - np.log(label)
  known = (~np.isnan(d)).sum(axis=(1, 2))
  expected = np.nansum(d**2, (1, 2)) / known
  expected -= share * np.nansum(d, (1, 2)) ** 2 / known**2
  np.testing.assert_allclose(loss, expected, rtol=1e-4)
  moved, _ = compare(z + 1, label)
  assert np.allclose(moved, loss, rtol=1e-4) == (share == 1)


@pytest.mark.parametrize("loss", some_slow(["l1", "silog"], ["silog"]))
def test_unknown_pixels_have_no_gradient(loss):
  """Nor do they make one NaN; those of 0 are left out of logarithms."""
  label = targets(1, 4, 4)
  label[0, 0, :2] = np.nan, 0
  compare = objective(LOGS, loss=loss).compare
  z = jnp.array(RNG.normal(size=(1, 4, 4, 1)), jnp.float32)
  gradient = jax.jit(jax.grad(lambda z: compare(z, label)[0].sum()))(z)
  known = ~np.isnan(label) & ((label > 0) | (loss == "l1"))
  np.testing.assert_array_equal(np.asarray(gradient)[..., 0] != 0, known)
  assert np.isfinite(gradient).all()


def outcome(y, label):
  arrays = jax.device_get(jax.jit(sums)(y, label, 4.0, 2.0))
  arrays["loss"] = np.arange(len(label), dtype=np.float32)
  gathered = Gathered(np.arange(len(label)), arrays, 0)
  return PixelNumbersOutcome("depth", "m", 2.0, gathered)


def test_ratios_are_there_if_all_targets_are_positive(tmp_path):
  label, y = targets(5, 9, 7), RNG.uniform(0.5, 9, (5, 9, 7))
  y = y.astype(np.float32)
  found = outcome(y, label)
  known = ~np.isnan(label)
  np.testing.assert_allclose(
    found.scores["abs_rel"], np.abs(y / label - 1)[known].mean(), rtol=1e-5
  )
  assert ["mean absolute error", f"{found.scores['mae']:.5g} m"] in (
    found.table()[1]
  )
  (worst,) = found.telling()  # All five: none is left to be the best.
  errors = np.nanmean(np.abs(y - label), axis=(1, 2))
  assert worst.examples[0].index == np.argmax(errors)
  rows = rows_of(found, tmp_path, Split(label))
  assert [row[0] for row in rows[1:]] == [f"{k}.png" for k in range(5)][::-1]
  assert float(rows[-1][2]) == pytest.approx(errors[0], rel=1e-5)
  label[0, 0, 0] = -1
  assert {"abs_rel", "delta1"}.isdisjoint(outcome(y, label).scores)
  with pytest.raises(ValueError, match="no readable, known pixel"):
    _ = outcome(y, np.full_like(y, np.nan)).scores


def test_equal_targets_have_no_r2():
  label = np.full((2, 3, 3), 4.0, np.float32)
  assert outcome(label + 1, label).scores["r2"] == -np.inf


def of(*pictures):
  """A source whose statistics are those of these pictures."""
  source = Split(np.zeros(1))
  source.statistics = Statistics.of(map(np.float32, pictures))
  return source


def test_outputs_are_logarithms_where_all_targets_are_positive():
  given = task(data__task="dense_regression")
  numbers = RNG.uniform(1, 9, (4, 4))
  fitted = given.fitted(of(numbers, [[np.nan, 3.0]]))
  logs = np.log([*numbers.ravel(), 3.0])
  assert fitted.scaling.log_mean == pytest.approx(logs.mean())
  assert fitted.scaling.log_std == pytest.approx(logs.std())
  assert not given.fitted(of(numbers, [[0.0]])).scaling.of_logarithms
  again = given.with_facts({"targets": fitted.facts()})
  assert again == fitted
  with pytest.raises(ValueError, match="all targets looked at are 3"):
    given.fitted(of([[3.0, 3.0]]))
  given = task(data__task="dense_regression", dense_regression__loss="silog")
  with pytest.raises(ValueError, match="silog' needs targets above 0, but"):
    given.fitted(of(numbers, [[0.0]]))


@pytest.mark.slow
def test_an_image_is_answered_at_its_own_size():
  given = dataclasses.replace(task(data__task="dense_regression"), scaling=LOGS)
  model = given.adapted(make_vit("Ti/4", 0, **SIZES, position="sincos2d"))
  params = random_params(model, (16, 16), 0)
  preprocessing = Preprocessing((16, 16), mean=HALF, std=HALF)
  image = RNG.integers(0, 256, (16, 16, 3), np.uint8)
  whole = given.answers.marker(model, preprocessing)(params, image)
  x = jnp.array(image[None] / np.float32(127.5) - 1)
  z = jax.jit(model.apply)({"params": params}, x)
  expected = np.exp(0.5 * enlarged(z, 16, 16)[0, ..., 0] + 1)
  np.testing.assert_allclose(whole, expected, rtol=1e-5)
  large = np.kron(image, np.ones((2, 3, 1), np.uint8))
  assert given.answers.marker(model, preprocessing)(params, large).shape == (
    *(32, 48),
  )
  draw = given.panels.make(model, given.objective(model, preprocessing))
  (sheet,) = draw(params, [(0, image, targets(32, 32))])
  assert sheet.shape == (192, 3 * 192 + 8, 3)


@pytest.mark.parametrize("level, ending", [(0.001, "png"), (0.0, "tif")])
def test_files_have_the_numbers(tmp_path, capsys, level, ending):
  numbers = RNG.uniform(0, 60, (4, 6)).astype(np.float32)
  numbers[0, 0] = 80 if level else -3
  photo = tmp_path / "x.jpg"
  Image.new("RGB", (6, 4)).save(photo)
  kind = NumberFiles("depth", "m", level)
  out = str(tmp_path / "out")
  count, bad, lines = write_masks(
    lambda image: numbers, [str(photo)], out, RGB, kind
  )
  assert (count, bad) == (1, 0)
  with Image.open(tmp_path / "out" / "numbers" / f"x.{ending}") as file:
    found = np.asarray(file).astype(np.float64) * (level or 1)
  expected = numbers.clip(None, 65.535) if level else numbers
  np.testing.assert_allclose(found, expected, atol=level / 2 + 1e-6)
  assert (tmp_path / "out" / "overlays" / "x.png").is_file()
  assert f"mean {numbers.mean(dtype=np.float64):.6g}, as " in lines[0]
  assert lines[1:] == (
    ["4.17% of the numbers are beyond what 16 bits hold, and are cut."]
    if level
    else []
  )


def test_unknown_numbers_are_grey():
  drawn = heat(np.array([[1.0, 2.0, np.nan]]), 1.0, 2.0)
  assert drawn.tolist() == [[[68, 1, 84], [253, 231, 37], [128, 128, 128]]]
  assert (heat(np.ones((2, 2)), 1.0, 1.0) == [68, 1, 84]).all()
