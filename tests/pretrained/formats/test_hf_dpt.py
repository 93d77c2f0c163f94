"""DINOv2's models for depth as transformers saves them.

`tests/checkpoints/make_dpt.py` says what the fixture has.
"""

import ast
import importlib.util
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from vit_jax.data.transforming.sizes import OwnSize
from vit_jax.pretrained.folder import depth_head
from vit_jax.pretrained.formats import hf_dpt, processor
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run.data_choice import suited
from vit_jax.tasks.segmentation import marking

PLACE = pathlib.Path(__file__).parents[2] / "checkpoints"
DPT = PLACE / "dpt"
CONFIG = json.loads((DPT / "config.json").read_text())
ENCODER = CONFIG["backbone_config"]


def maker():
  spec: Any = importlib.util.spec_from_file_location(
    "dpt", PLACE / "make_dpt.py"
  )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder as transformers saves it, with the weights of the fixture."""
  place = tmp_path_factory.mktemp("dpt")
  shapes = json.loads((DPT / "shapes.json").read_text())
  save_file(maker().arrays(shapes), place / "model.safetensors")
  shutil.copy(DPT / "config.json", place)
  return place


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["padded", "resized"])
def test_depth_is_that_of_transformers(folder, kind):
  """In metres at the pictures' own sizes, from files of pictures."""
  shutil.copy(DPT / kind / "preprocessor_config.json", folder)
  loaded = open_checkpoint(str(folder), as_trained=True)
  answers: Any = loaded.task.answers
  mark = answers.marker(loaded.model, loaded.preprocessing)
  params = loaded.read_params()
  with np.load(DPT / "expected.npz") as expected:
    for i, picture in enumerate(maker().pictures()):
      depth = expected[f"{kind}_{i}"]
      found = mark(params, picture)
      assert found.shape == depth.shape and found.dtype == np.float32
      assert np.abs(found - depth).max() < 1e-4, np.abs(found - depth).max()
      assert depth.std() > 0.01


@pytest.mark.slow
def test_a_run_goes_on_with_the_head(folder, tmp_path):
  """Its first parameters are those of the folder, and so are its answers."""
  from vit_jax.run.plan import make_plan
  from vit_jax.run.settings import base_config, read
  from vit_jax.run.start import fresh_state

  rng = np.random.default_rng(0)
  for number in range(24):
    for kind, high in (("images", 255), ("depth", 9_000)):
      (tmp_path / kind).mkdir(exist_ok=True)
      array = rng.integers(1, high, (56, 56))
      array = array.astype(np.uint8 if kind == "images" else np.uint16)
      Image.fromarray(array).save(tmp_path / kind / f"{number}.png")
  values = {"config": "dense_regression", "pretrained": str(folder)}
  chosen, why = suited(str(tmp_path), values)
  assert "depth head of these weights" in why
  config = base_config()
  config.update(pretrained=str(folder), image_size=(56, 56), total_steps=1)
  config.batch_size = 8
  config.data.update(root=str(tmp_path), task="dense_regression")
  config.data.update(target_scale=0.001)
  section = config.dense_regression
  section.head = chosen["dense_regression.head"]
  section.layers = ast.literal_eval(chosen["dense_regression.layers"])
  section.head_size = int(chosen["dense_regression.head_size"])
  section.unit = chosen["dense_regression.unit"]
  plan = make_plan(read(config))
  state = fresh_state(plan)
  loaded = open_checkpoint(str(folder), as_trained=True)
  params = loaded.read_params()
  for part in ("conv0", "readout2", "outputs"):
    ours = np.asarray(state.params["dpt"][part]["kernel"])
    np.testing.assert_array_equal(ours, params["dpt"][part]["kernel"])
  assert plan.model == loaded.model.clone(origin=plan.model.origin)
  task: Any = plan.task
  assert (task.scaling.mean, task.scaling.std) == (0, 1)


def test_a_users_own_head_is_not_replaced(folder):
  values = {"config": "dense_regression", "pretrained": str(folder)}
  assert suited("depth", {**values, "dense_regression.head": "small"})[0] == {}
  head = depth_head(str(folder))
  assert head["dense_regression.layers"] == (1, 2, 3, 4)
  assert head["dense_regression.unit"] == "m"
  assert depth_head("hf_s14_dinov2") == {} == depth_head("")
  mae = PLACE / "mae"
  assert suited("depth", {**values, "pretrained": str(mae)})[0] == {}


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"is_hybrid": True}, "whose backbone_config is no dinov2"),
    ({"backbone_config": None}, "whose backbone_config is no dinov2"),
    ({"backbone_config": {"model_type": "swinv2"}}, "only DINOv2's models"),
    ({"architectures": ["DPTForSemanticSegmentation"]}, "only DPTForDepth"),
    ({"add_projection": False}, "add_projection=False: DINOv2's .* have True"),
    ({"readout_type": "ignore"}, "readout_type='ignore': DINOv2's"),
    ({"backbone_config": {**ENCODER, "apply_layernorm": True}}, "have False"),
    ({"backbone_config": {**ENCODER, "out_indices": [0, 1]}}, "layers are 1"),
    ({"backbone_config": {**ENCODER, "out_indices": "all"}}, "out_indices"),
  ],
)
def test_other_heads_are_refused(changes, message):
  config = {**CONFIG, **changes}
  with pytest.raises(ValueError, match=message):
    hf_dpt.of_encoder(config)
    hf_dpt.settings(config, 4)


def test_layers_are_counted_from_either_end():
  counted = {**ENCODER, "out_indices": [1, 2, 3, -1]}
  settings = hf_dpt.settings({**CONFIG, "backbone_config": counted}, 4)
  assert settings.layers == (1, 2, 3, 4)
  assert hf_dpt.of_encoder({"model_type": "vit"}) == {"model_type": "vit"}


def test_a_transposed_convolution_is_a_dense_layer():
  """Pixel (s y + p, s x + q) is the sum over inputs of x[i] W[i, o, p, q]."""
  rng = np.random.default_rng(0)
  name = "neck.reassemble_stage.layers.1.resize."
  W, b = rng.normal(size=(3, 5, 2, 2)), rng.normal(size=5)
  stored = {f"{name}weight": W, f"{name}bias": b, "other": b}
  found = hf_dpt.Converted(stored)
  x = rng.normal(size=3)
  y = (x @ found[f"{name}weight"] + found[f"{name}bias"]).reshape(2, 2, 5)
  for p in range(2):
    for q in range(2):
      for o in range(5):
        expected = sum(x[i] * W[i, o, p, q] for i in range(3)) + b[o]
        assert y[p, q, o] == pytest.approx(expected)
  shapes = hf_dpt.shapes({k: v.shape for k, v in stored.items()})
  assert shapes == {k: found[k].shape for k in found}


def test_processor_keeps_sizes():
  """Sizes are those that transformers' processor gave for the pictures."""
  read: Any = {
    kind: processor.read(
      json.loads((DPT / kind / "preprocessor_config.json").read_text())
    )
    for kind in ("padded", "resized")
  }
  padded, resized = read["padded"].own_size, read["resized"].own_size
  assert padded.of((61, 95)) == (61, 95)
  assert padded.padding((61, 95)) == ((4, 5), (1, 2))
  assert resized.of((61, 95)) == (56, 84)
  assert resized.of((84, 56)) == (84, 56)
  mean = np.array(read["padded"].mean) * 255
  np.testing.assert_allclose(mean, [123.675, 116.28, 103.53], rtol=1e-6)
  cut = {"image_processor_type": "DPTImageProcessor", "do_center_crop": True}
  with pytest.raises(ValueError, match="do_center_crop=True"):
    processor.read(cut)


def test_a_large_picture_is_refused_with_advice():
  whole = processor.read({"image_processor_type": "DPTImageProcessor"})
  assert whole.own_size == OwnSize((384, 384))
  limit = marking.MOST_PATCHES
  marking._check_patches((14 * limit, 14), 14)
  with pytest.raises(ValueError, match="give --short_side"):
    marking._check_patches((14 * limit + 1, 14), 14)
