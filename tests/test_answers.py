"""Every way to ask a model gives the same answer as `model.apply`.

The ways are `predict_images`, the steps of `evaluate` and of the probes, and
the exported programs, of which ONNX Runtime runs one. Pictures are not square,
nor of the model's size.
"""

import contextlib
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tifffile

from tests import encoders, published, tiny
from vit_jax import predict_images
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference.exporter import export_model
from vit_jax.inference.onnx.export import export_onnx
from vit_jax.inference.predictor import predict
from vit_jax.inference.reading import read_images
from vit_jax.models import Origin, ResNet, make_vit
from vit_jax.models.masked_vit import masked_vit
from vit_jax.models.model import normalize, represent
from vit_jax.pretrained.load import load_pretrained
from vit_jax.tasks.choose import answering
from vit_jax.tasks.classification.evaluation import make_measure
from vit_jax.training.losses import probabilities

CHECKPOINTS = pathlib.Path(__file__).parent / "checkpoints"
RUNS = sorted(
  str(path.parent.relative_to(CHECKPOINTS))
  for path in CHECKPOINTS.glob("*/*/checkpoints")
)
SIZES = dict(hidden_size=24, num_layers=2, mlp_size=36, num_heads=3)
EXTRAS = dict(registers=2, distilled=True, qk_norm=True)
MODELS = {
  "token": dict(representation_size=7),
  "gap": dict(pooling="gap", scan=True),
  "map": dict(pooling="map", representation_size=7),
  "relative": dict(position="relative"),
  "every_layer": dict(position_at="every_layer"),
  "sincos": dict(pooling="gap", position="sincos2d"),
  "hybrid": dict(
    variant="R50+Ti/16", resnet_layers=(1,), resnet_width=32, patch_size=2
  ),
  "axial": dict(variant="Axial-Ti/8"),
  "dinov2": dict(block="dinov2", pooling="token_gap"),
  "dinov3": dict(block="dinov3", scan=True),
  "clip": dict(block="clip", projection=True, representation_size=7),
  "distilled": dict(block="deit3", **EXTRAS),
  "norm_pooled": dict(block="dinov2", pooling="gap", norm_pooled=True),
}
NO_HEAD = ("token", "map", "clip", "distilled")
HEADLESS = [f"{name} without head" for name in (*NO_HEAD, "resnet")]
OWN = (*MODELS, *HEADLESS, "masked")


@functools.cache
def opened(name):
  """A model, its parameters, its preprocessing and its loss."""
  if name in published.CHECKPOINTS:
    return _load(published.path(name), **published.CHECKPOINTS[name])
  if name in encoders.NAMES:
    return _load(encoders.path(name))
  if name in RUNS:
    with contextlib.chdir(CHECKPOINTS):  # Runs name others by relative paths.
      loaded = load_pretrained(name, **_given(name))
    return *loaded, loaded.preprocessing, loaded.loss
  if name == "resnet without head":
    return _random(ResNet(0, layers=(1, 1), width=32))
  fields = SIZES | MODELS.get(name.removesuffix(" without head"), {})
  if name.endswith("without head"):
    fields["num_classes"] = 0
  variant = fields.pop("variant", "Ti/8")
  model = make_vit(variant, fields.pop("num_classes", 5), **fields)
  model = masked_vit(model, 0) if name == "masked" else model
  return _random(model)


def _given(run):
  """What the description of a run cannot hold."""
  if not run.endswith("own_block"):
    return {}
  from tests.saved_data import ParallelBlock

  return {"block": ParallelBlock}


def _random(model):
  size = 2 * model.stride, 3 * model.stride
  model = model.clone(origin=Origin("test", "google", size))
  params = tiny.random_params(model, size, 0)
  return model, params, Preprocessing(size), "softmax"


def _load(path, **options):
  """A published model at a size that is not square."""
  stride = load_pretrained(path, **options).model.stride
  loaded = load_pretrained(path, **options, image_size=(2 * stride, 3 * stride))
  return *loaded, loaded.preprocessing, loaded.loss


def _pictures(channels, folder):
  rng = np.random.default_rng(0)
  coarse = rng.integers(0, 256, (2, 5, 8, channels), np.uint8)
  pictures = coarse.repeat(11, axis=1).repeat(9, axis=2)
  if channels <= 4:
    return [*pictures]
  files = [folder / f"{number}.tif" for number in range(len(pictures))]
  for file, pixels in zip(files, pictures.astype(np.uint16), strict=True):
    form = dict(photometric="minisblack", planarconfig="contig")
    tifffile.imwrite(file, 16 * pixels, **form)
  return files


def _applied(name, pixels):
  """What `model.apply` makes of pixels, and the features that probes read.

  The answer is (B, K), or (B, D) without classes.
  """
  model, params, preprocessing, loss = opened(name)

  @jax.jit
  def run(params, pixels):
    x = normalize(pixels, **preprocessing.normalization)
    return model.apply({"params": params}, x), represent(model, params, x)

  answer, features = run(params, jnp.asarray(pixels))
  return _probabilities(model, answer, loss), np.asarray(features)


def _probabilities(model, logits, loss):
  """Probabilities of the classes; features and numbers as they are."""
  classes = model.num_classes and loss != "mse"
  return np.asarray(probabilities(loss, logits) if classes else logits)


def _assert_same(found, expected, tolerance=1e-5):
  """Compares to a share of the largest value, or of 1 if all are smaller."""
  assert found.shape == expected.shape
  atol = tolerance * max(1, np.abs(expected).max())
  np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", (*published.CHECKPOINTS, *encoders.NAMES, *RUNS, *OWN)
)
def test_every_way_gives_the_answer_of_the_model(name, tmp_path):
  model, params, preprocessing, loss = opened(name)
  pictures = _pictures(preprocessing.channels, tmp_path)
  pixels = read_images(preprocessing, pictures)
  expected, represented = _applied(name, pixels)
  options = dict(preprocessing=preprocessing)
  if K := model.num_classes:
    found = predict_images(model, params, pictures, top=K, loss=loss, **options)
    dense = np.zeros_like(expected)
    for row, one in zip(dense, found, strict=True):
      row[list(one.index or range(K))] = one.probability or one.values
    _assert_same(dense, expected)
    if loss != "mse":  # Numbers have no likeliest class.
      _assert_evaluated(name, pixels, expected)
  (batch,) = predict(
    model, params, pictures, task=answering(loss), features=True, **options
  )
  _assert_same(np.stack([one.features for one in batch]), represented)
  if not model.num_classes:
    _assert_same(represented, expected)
  size, described = preprocessing.image_size, _with_origin(name)
  exported = export_model(described, params, size, ("cpu",))
  logits = exported.call(jnp.asarray(pixels))
  _assert_same(_probabilities(model, logits, loss), expected)
  pytest.importorskip("onnx", reason="needs the extra onnx")
  runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
  session = runtime.InferenceSession(export_onnx(described, params))
  (logits,) = session.run(["logits"], {"images": pixels})
  found = _probabilities(model, jnp.asarray(logits), loss)
  _assert_same(found, expected)


def _assert_evaluated(name, pixels, expected):
  """Checks a step of `evaluate`, on each picture with each class as label."""
  model, params, preprocessing, loss = opened(name)
  B, K = expected.shape
  measure = make_measure(model, **preprocessing.normalization, loss=loss)
  label = np.tile(np.arange(K, dtype=np.int32), B)
  batch = {"image": pixels.repeat(K, axis=0), "label": label}
  _, answers = jax.jit(measure.compute)(params, batch, 0)
  likeliest = expected.max(axis=1).repeat(K)
  _assert_same(np.asarray(answers.probability), likeliest)
  assert (answers.answer == expected.argmax(axis=1).repeat(K)).all()
  if loss == "softmax":
    _assert_same(np.exp(-np.asarray(answers.loss)), expected.ravel())


def _with_origin(name):
  """The model with an origin that says how its images are normalised."""
  model, _, preprocessing, _ = opened(name)
  origin = model.origin or Origin("test", "google", None)
  size, mean, std = preprocessing.size, preprocessing.mean, preprocessing.std
  changed = dataclasses.replace(origin, image_size=size, mean=mean, std=std)
  return model.clone(origin=changed)
