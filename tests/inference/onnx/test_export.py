"""ONNX files: what is in them, and that ONNX Runtime gives our answers."""

import json
import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.models import test_patches
from tests.tiny import MEAN, STD, random_params
from vit_jax.export import export_checkpoint
from vit_jax.inference.onnx import export
from vit_jax.inference.onnx.export import export_onnx
from vit_jax.models import Origin, Patches, ResNet
from vit_jax.pretrained.load import load_pretrained

CHECKPOINTS = pathlib.Path(__file__).parents[2] / "checkpoints"
TEXTS = CHECKPOINTS / "texts"
SIZE = (16, 24)
VIT = tiny.vit(Origin("test", "google", SIZE, MEAN, STD))
PARAMS = random_params(VIT, SIZE, 1)
NAMES = ("ant", "bee", "cat", "dog", "elk")


def _session(content):
  runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
  return runtime.InferenceSession(content)


def _graph(content):
  onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
  model = onnx.load_model_from_string(content)
  onnx.checker.check_model(model, full_check=True)
  constants = {
    tensor.name: onnx.numpy_helper.to_array(tensor)
    for tensor in model.graph.initializer
  }
  return model.graph.node, constants


def _needs_onnx():
  pytest.importorskip("onnx", reason="needs the extra onnx")
  pytest.importorskip("onnxruntime", reason="needs the extra onnx")


def test_a_file_holds_its_parameters_once_and_nothing_that_changes_nothing():
  """The scales of a new model are ones, and it has dropout while it trains."""
  _needs_onnx()
  model = VIT.clone(dropout_rate=0.1, pooling="gap")
  params = random_params(model, SIZE, 1)
  ones = jax.tree.map(jnp.ones_like, params["norm"])
  params = {**params, "norm": ones}
  content = export_onnx(model, params)
  nodes, constants = _graph(content)
  assert not [node for node in nodes if node.op_type == "Dropout"]
  for node in nodes:
    if node.op_type in ("Mul", "Div"):
      factors = [constants[name] for name in node.input if name in constants]
      assert not [one for one in factors if (one == 1).all()]
  size = sum(array.nbytes for array in jax.tree.leaves(params))
  assert sum(array.nbytes for array in constants.values()) < 1.05 * size + 4000


@pytest.mark.slow
def test_a_file_says_how_it_is_used_and_answers_as_the_run(
  tmp_path, capsys, monkeypatch
):
  """The pictures are not of the model's size, nor of its proportions."""
  _needs_onnx()
  run, out = tmp_path / "run", tmp_path / "model.onnx"
  tiny.save_run(run, VIT, PARAMS, SIZE, NAMES)
  export_checkpoint(str(run), str(out))
  said = capsys.readouterr().out
  assert "(B, 16, 24, 3) -> float32 (B, 5)" in said
  assert "custom_metadata_map" in said
  session = _session(out.read_bytes())
  facts = session.get_modelmeta().custom_metadata_map
  assert json.loads(facts["class_names"]) == [*NAMES]
  assert json.loads(facts["image_size"]) == [*SIZE]
  resize = json.loads(facts["resize"])
  assert resize["crop"] == "resize" and resize["interpolation"] == "bilinear"
  assert not {"resize_ratio", "corner", "longest_ratio"} & {*resize}
  assert json.loads(facts["mean"]) == pytest.approx(MEAN)
  assert json.loads(facts["std"]) == pytest.approx(STD)
  assert json.loads(facts["value_range"]) == [0, 255]
  assert facts["preprocessing"].startswith("resized to 16 x 24 (")
  assert facts["loss"] == "softmax"

  loaded = load_pretrained(str(run))
  rng = np.random.default_rng(0)
  photograph = rng.integers(0, 256, (40, 30, 3), np.uint8)
  Image.fromarray(photograph).save(tmp_path / "photo.jpg")
  monkeypatch.chdir(tmp_path)
  exec(said.partition("installed:\n")[2], {})  # As it is printed.
  (answer,) = loaded.predict("photo.jpg", top=1)
  assert capsys.readouterr().out == f"{answer.names[0]}\n"
  pictures = [*rng.integers(0, 256, (3, 31, 50, 3), np.uint8)]
  pixels = np.stack([loaded.preprocessing.transform()(x) for x in pictures])
  (logits,) = session.run(["logits"], {"images": pixels})
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  found = exponentials / exponentials.sum(axis=1, keepdims=True)
  answers = loaded.predict(pictures, top=5)
  for row, one in zip(found, answers, strict=True):
    expected = dict(zip(one.names, one.probability, strict=True))
    np.testing.assert_allclose(row, [expected[n] for n in NAMES], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    dict(scan=True),
    dict(attention_dtype=jnp.bfloat16),
    dict(position="relative"),
  ],
  ids=str,
)
def test_layers_are_unrolled_and_types_are_float32(fields):
  """A scanned run, attention in bfloat16, and biases by relative places."""
  _needs_onnx()
  model = VIT.clone(**fields)
  params = random_params(model, SIZE, 1)
  images = np.random.default_rng(0).integers(0, 256, (5, *SIZE, 3), np.uint8)
  session = _session(export_onnx(model, params))
  (found,) = session.run(["logits"], {"images": images})
  plain = model.clone(attention_dtype=jnp.float32)
  x = ((images / 255 - MEAN) / STD).astype(np.float32)
  expected = jax.jit(lambda x: plain.apply({"params": params}, x))(x)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_onnx_runtime_runs_a_resnet_of_two_stages():
  """Its pool and the first convolutions of the second stage have strides."""
  _needs_onnx()
  model = ResNet(5, layers=(1, 1), width=32, origin=VIT.origin)
  params = random_params(model, SIZE, 1)
  images = np.random.default_rng(0).integers(0, 256, (3, *SIZE, 3), np.uint8)
  session = _session(export_onnx(model, params))
  (found,) = session.run(["logits"], {"images": images})
  x = ((images / 255 - MEAN) / STD).astype(np.float32)
  expected = jax.jit(model.apply)({"params": params}, x)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_clip", "hf_siglip", "hf_tips"])
def test_onnx_runtime_runs_a_text_tower(name, tmp_path):
  _needs_onnx()
  out = tmp_path / "text.onnx"
  export_checkpoint(str(TEXTS / name), str(out), tower="text")
  with np.load(TEXTS / name / "expected.npz") as stored:
    ids, expected = stored["ids"], stored["features"]
  session = _session(out.read_bytes())
  outputs: Any = session.run(["embeddings"], {"ids": ids.astype(np.int32)})
  (found,) = outputs
  scale = np.abs(expected).max()
  np.testing.assert_allclose(found, expected, atol=1e-5 * scale)
  facts = session.get_modelmeta().custom_metadata_map
  assert json.loads(facts["length"]) == ids.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize(
  "kind",
  [
    "token",
    "map",
    "map of all",
    "mixed",
    "biases",
    "first turns",
    "square",
    "computed biases",
  ],
)
def test_images_of_any_size_are_patches_with_their_sizes(kind):
  """What the runtime answers is what the model does for each image alone."""
  _needs_onnx()
  model, params = test_patches.model_of(kind)
  P, tokens = test_patches.P, 12
  session = _session(export_onnx(model, params, tokens=tokens))
  sizes = [(2, 3), (3, 4), (1, 5), (6, 2)]
  rng = np.random.default_rng(0)
  images = np.zeros((len(sizes), tokens, P * P * 3), np.uint8)
  for row, (h, w) in zip(images, sizes, strict=True):
    row[: h * w] = rng.integers(0, 256, (h * w, P * P * 3))
  size = np.array(sizes, np.int32)
  (found,) = session.run(["logits"], {"images": images, "size": size})

  @jax.jit
  def alone(x):
    return model.apply({"params": params}, x)

  for row, (h, w), answer in zip(images, sizes, found, strict=True):
    pixels = row[: h * w].reshape(h, w, P, P, 3).swapaxes(1, 2)
    x = jnp.float32(pixels.reshape(1, h * P, w * P, 3) / 127.5 - 1)
    expected = alone(Patches.of(x, P))[0, 0]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def _fake(monkeypatch, answer):
  """Stands in for the converter and ONNX Runtime, which gives `answer`."""
  session = SimpleNamespace(
    run=lambda names, inputs: [answer(*inputs.values())]
  )
  runtime = SimpleNamespace(
    InferenceSession=lambda *_: session, SessionOptions=SimpleNamespace
  )
  monkeypatch.setattr(export, "to_onnx", lambda *_: b"")
  monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace())
  monkeypatch.setitem(sys.modules, "onnxruntime", runtime)


def test_a_wrong_conversion_is_refused(monkeypatch):
  model = VIT.clone(pooling="gap")
  params = random_params(model, SIZE, 1)
  _fake(monkeypatch, lambda images: np.ones((len(images), 5)))
  with pytest.raises(ValueError, match="wrong: on random images its logits"):
    export_onnx(model, params)
  # Small outputs are not right because their differences are small.
  small = {k: 1e-6 * x for k, x in params["head"].items()}
  _fake(monkeypatch, lambda images: np.zeros((len(images), 5)))
  with pytest.raises(ValueError, match="differ by 1.0e.00 of the largest"):
    export_onnx(model, params | {"head": small})
  zero = jax.tree.map(jnp.zeros_like, params["head"])
  assert export_onnx(model, params | {"head": zero}) == b""


def test_a_model_that_has_no_form_in_onnx_is_refused(monkeypatch):
  pytest.importorskip("onnx", reason="needs the extra onnx")

  def sorted_logits(model, params):
    return lambda images: jnp.sort(images.astype(jnp.float32), axis=1)

  monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace())
  monkeypatch.setattr(export, "outputs_function", sorted_logits)
  with pytest.raises(ValueError, match="no ONNX form: JAX's sort has no count"):
    export_onnx(VIT, PARAMS)


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library):
  monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace())
  monkeypatch.setitem(sys.modules, library, None)
  message = rf"{library} is not installed: pip install .vit_jax\[onnx\]"
  with pytest.raises(ValueError, match=message):
    export_onnx(VIT, PARAMS)
