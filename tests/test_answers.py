"""Every way to ask a model gives the same answer as `model.apply`.

The ways are `predict`, the steps of `evaluate` and of the probes, and the
exported programs, of which ONNX Runtime runs one. Pictures are not square, nor
of the model's size.
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
    variant="R50+Ti/16",
    resnet_layers=(1,),
    resnet_width=32,
    resnet_epsilon=1e-8,
    patch_size=2,
    gelu="exact",
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
# Models of the same fields as another of these, but for their sizes: a way sees
# the model alone, and not the file that it was read from.
TWINS = {
  "google_vit_linen.npz": "google_vit.npz",
  "hf_clip_text": "hf_clip",
  "hf_mae_decoder": "hf_mae",
  "hf_mim": "hf_mae",
  "hf_msn": "timm_vit.safetensors",
  "hf_siglip_text": "hf_siglip",
  "hf_tips_text": "hf_tips",
  "timm_hybrid_r26": "hybrid",
  "timm_hybrid_r50": "hybrid",  # Its 16 blocks take as long as ten others.
  "timm_test_vit": "timm_vit.safetensors",
}
READ = [n for n in (*published.CHECKPOINTS, *encoders.NAMES) if n not in TWINS]


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
  """What `model.apply` makes of pixels: logits, answers and features.

  Answers are (B, K) probabilities or numbers; logits without classes, (B, D).
  Features are what probes read. The same program has a step of `evaluate`, on
  each picture with each class as label, and the step is checked: one program
  compiles faster than two.
  """
  model, params, preprocessing, loss = opened(name)
  B, K = len(pixels), model.num_classes
  has_classes = K > 0 and loss != "mse"
  batch, compute = {"image": jnp.asarray(pixels)}, lambda *_: (None, None)
  if has_classes:
    batch["image"] = batch["image"].repeat(K, axis=0)
    batch["label"] = np.tile(np.arange(K, dtype=np.int32), B)
    normalization = preprocessing.normalization
    compute = make_measure(model, **normalization, loss=loss).compute

  @jax.jit
  def run(params, batch):
    x = normalize(batch["image"], **preprocessing.normalization)
    logits = model.apply({"params": params}, x)
    answer = probabilities(loss, logits) if has_classes else logits
    features = represent(model, params, x)
    return (logits, answer, features), compute(params, batch, 0)[1]

  found, evaluated = jax.device_get(run(params, batch))
  if has_classes:
    _assert_evaluated(evaluated, found[1], batch["label"], loss)
  return [array[:: len(array) // B] for array in found]


def _assert_same(found, expected, tolerance=1e-5):
  """Compares to a share of the largest value, or of 1 if all are smaller."""
  assert found.shape == expected.shape
  atol = tolerance * max(1, np.abs(expected).max())
  np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", (*READ, *RUNS, *OWN))
def test_every_way_gives_the_answer_of_the_model(name, tmp_path):
  model, params, preprocessing, loss = opened(name)
  pictures = _pictures(preprocessing.channels, tmp_path)
  pixels = read_images(preprocessing, pictures)
  logits, expected, represented = _applied(name, pixels)
  K = model.num_classes
  (batch,) = predict(
    model,
    params,
    pictures,
    preprocessing=preprocessing,
    task=answering(loss),
    top=max(1, K),
    features=True,
  )
  _assert_same(np.stack([one.features for one in batch]), represented)
  if K:
    dense = np.zeros_like(expected)
    for row, one in zip(dense, batch, strict=True):
      row[list(one.index or range(K))] = one.probability or one.values
    _assert_same(dense, expected)
  else:
    _assert_same(represented, expected)
  size, described = preprocessing.image_size, _with_origin(name)
  exported = export_model(described, params, size, ("cpu",))
  _assert_same(exported.call(jnp.asarray(pixels)), logits)
  pytest.importorskip("onnx", reason="needs the extra onnx")
  runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
  session = runtime.InferenceSession(export_onnx(described, params))
  (found,) = session.run(["logits"], {"images": pixels})
  _assert_same(found, logits)


def _assert_evaluated(answers, expected, label, loss):
  """Checks the answers of a step of `evaluate` to each row's probabilities."""
  _assert_same(answers.probability, expected.max(axis=1))
  assert (answers.answer == expected.argmax(axis=1)).all()
  if loss == "softmax":
    likelihood = np.take_along_axis(expected, label[:, None], axis=1)[:, 0]
    _assert_same(np.exp(-answers.loss), likelihood)


def _with_origin(name):
  """The model with an origin that says how its images are normalised."""
  model, _, preprocessing, _ = opened(name)
  origin = model.origin or Origin("test", "google", None)
  size, mean, std = preprocessing.size, preprocessing.mean, preprocessing.std
  changed = dataclasses.replace(origin, image_size=size, mean=mean, std=std)
  return model.clone(origin=changed)
