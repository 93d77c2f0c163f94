"""Metrics of parts of a split add up to that of the whole, for every task."""

import functools
import itertools
import operator

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pytest import approx
from sklearn.metrics import average_precision_score, confusion_matrix, r2_score

from tests.rows import some_slow
from tests.tasks.answering import (
  FIRST,
  FLAGS,
  LABELS,
  NUMBERS,
  RNG,
  TASKS,
  K,
  N,
  OneBatch,
  P,
  rows_of,
)
from vit_jax.tasks.metrics import Evaluator, evaluate
from vit_jax.training import sharding

ROWS = 4  # Of each batch of a part.


def unit(z):
  return z / np.linalg.norm(z, axis=-1, keepdims=True)


def patches(images):
  """The pixels of the patches, (N, 4, P * P * 3), row by row."""
  parts = images.reshape(N, 2, P, 2, P, 3).swapaxes(2, 3)
  return parts.reshape(N, 4, -1)


def drawn(given, model, stream):
  objective = given.objective(model, stream.preprocessing)
  _, targets = jax.jit(objective.prepare)(stream.batch, jax.random.key(0))
  return jax.device_get(targets["draw"])


def of_classes(z, **_):
  log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
  loss = -log_p[np.arange(N), LABELS].mean()
  return {"loss": loss, "top1": (z.argmax(1) == LABELS).mean()}


def of_sigmoids(z, **_):
  loss = np.log1p(np.exp(np.where(FLAGS, -z, z))).sum(1).mean()
  return {"loss": loss, "top1": (z.argmax(1) == LABELS).mean()}


def of_several(z, **_):
  columns = zip(FLAGS.T, z.T, strict=True)
  return {"map": np.mean([average_precision_score(*c) for c in columns])}


def of_numbers(z, **_):
  error = z - NUMBERS
  scores = {"loss": (error**2).mean(), "mae": np.abs(error).mean()}
  return scores | {"r2": r2_score(NUMBERS, z)}


def of_colours(z, given, model, stream):
  where = drawn(given, model, stream)["where"]
  pixels = patches(stream.batch["image"]).reshape(N, 4, -1, 3)
  levels = (pixels.mean(axis=2) // 32) @ [64, 8, 1]
  true = np.take_along_axis(levels, where, axis=1)
  if given.masked.target == "colour":
    found = z.reshape(N, 2, -1).argmax(-1)
  else:
    means = z.reshape(N, 2, -1, 3).mean(axis=2) * 127.5 + 127.5
    found = np.trunc(means / 32).clip(0, 7) @ [64, 8, 1]
  _, counts = np.unique(true, return_counts=True)
  common = counts.max() / true.size
  return {"colours_right": (found == true).mean(), "commonest_colour": common}


def of_pixels(z, given, model, stream):
  places = drawn(given, model, stream)["hidden"][..., None]
  pixels = patches(stream.batch["image"] / 127.5 - 1)
  true = np.take_along_axis(pixels, places, axis=1)
  variance = true.var(axis=2, ddof=1, keepdims=True)
  true = (true - true.mean(axis=2, keepdims=True)) / np.sqrt(variance + 1e-6)
  errors = (z.reshape(true.shape) - true) ** 2
  spread = true.var(axis=(1, 2)).sum()
  explained = 1 - errors.mean(axis=(1, 2)).sum() / spread
  return {"loss": errors.mean(), "explained": explained}


def of_features(z, **_):
  y = unit(z.astype(np.float64))
  distances = ((y - y.mean(0)) ** 2).sum(1)
  shares = np.linalg.svd(y, compute_uv=False)
  shares /= shares.sum()
  rank = np.exp(-(shares * np.log(shares)).sum()) / z.shape[1]
  return {"deviation": np.sqrt(distances.mean()), "rank": rank}


def of_teacher(z, given, **_):
  return {
    "cosine": (unit(z) * unit(np.asarray(given.teacher_params))).sum(1).mean()
  }


def of_pairs(z, **_):
  u, v = unit(z[:, :4]), unit(z[:, 4:])
  cosines = u @ v.T
  best = [(x.argmax(1) == np.arange(N)).mean() for x in (cosines, cosines.T)]
  return {"recall1": np.mean(best), "text_recall1": best[0]}


def of_masks(z, **_):
  answer = z.reshape(N, 4, K)[:, 0].argmax(1)
  counts = confusion_matrix(LABELS, answer)
  hits = counts.diagonal()
  iou = hits / (counts.sum(0) + counts.sum(1) - hits)
  return {"mean_iou": iou.mean(), "pixels_right": hits.sum() / N}


def of_pixel_numbers(z, stream, **_):
  outputs = z.reshape(N, 2, 2)
  y = np.stack([cv2.resize(x, (8, 8)) for x in outputs]).astype(np.float64)
  y, true = np.exp(0.5 * y + 1.0)[:, 1:], stream.batch["label"][:, 1:]
  error, ratio = y - true, y / true
  return {
    "loss": np.abs(error).mean() / 2.0,
    "mae": np.abs(error).mean(),
    "rmse": np.sqrt((error**2).mean()),
    "abs_rel": np.abs(ratio - 1).mean(),
    "delta1": (np.maximum(ratio, 1 / ratio) < 1.25).mean(),
    "r2": r2_score(true.ravel(), y.ravel()),
  }


FORMULAS = {
  "classification": of_classes,
  "sigmoid": of_sigmoids,
  "multilabel": of_several,
  "regression": of_numbers,
  "segmentation": of_masks,
  "dense_regression": of_pixel_numbers,
  "pairs": of_pairs,
  "masked": of_colours,
  "masked_pixels": of_colours,
  "autoencoder": of_pixels,
  "student": of_teacher,
  "self_distillation": of_features,
  "lejepa": of_features,
  "own": of_classes,
}


def part(batch, start, stop):
  """The examples from `start` to `stop`, in a batch with padding."""
  rows = np.arange(start, start + ROWS)
  counts = rows < stop
  some = {key: np.asarray(x)[rows % N] for key, x in batch.items()}
  return some | {"mask": some["mask"] * counts, "skipped": np.zeros(ROWS, bool)}


@pytest.mark.parametrize("name", some_slow(TASKS, FIRST))
def test_parts_add_up_to_the_whole_as_numpy_has_it(name):
  """The whole is on eight devices, and parts of any size are on one."""
  given, model, label = TASKS[name]()
  stream = OneBatch(label)
  rows = rows_of(given, model, label).astype(np.float32)
  rows[:3] = rows[[4, 6, 7]]  # Some answers are wrong.
  if name == "pairs":  # Equal vectors would be ties.
    rows = RNG.normal(size=rows.shape).astype(np.float32)
  params, batch = jnp.asarray(rows), stream.batch
  expected = FORMULAS[name](rows, given=given, model=model, stream=stream)

  measure = given.measure(model, stream)
  assert stream.mesh.size == 8
  split = sharding.batch_sharding(stream.mesh)
  stream.batch = jax.device_put(batch, split)
  whole = Evaluator(measure, stream)(params, detail=True, examples=True)
  found = {key: whole.scores[key] for key in expected}
  assert found == approx(expected, rel=1e-4, abs=1e-6)
  assert given.scores.best in expected and whole.scores["examples"] == N

  compute = jax.jit(measure.compute)
  for cuts in ((0, 4, 8), (0, 3, 7, 8), (0, 1, 2, 5, 8)):
    parts = [
      evaluate(
        measure,
        params,
        [part(batch, start, stop)],
        compute=compute,
        first=start,
        detail=True,
        examples=True,
      )
      for start, stop in itertools.pairwise(cuts)
    ]
    summed = functools.reduce(operator.add, parts).result()
    assert summed.scores == approx(whole.scores, rel=1e-5, abs=1e-6)
    assert (summed.chance, summed.constant) == (whole.chance, whole.constant)
    if name != "pairs":  # It has no tokenizer.
      assert summed.telling() == whole.telling()


def test_an_evaluation_of_no_batch_is_refused():
  given, model, label = TASKS["classification"]()
  measure = given.measure(model, OneBatch(label))
  with pytest.raises(ValueError, match="there is no batch to evaluate on: giv"):
    evaluate(measure, None, [])
