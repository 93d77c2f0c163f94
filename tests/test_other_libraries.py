"""A run, exported: other libraries see the same pixels and answer the same."""

import dataclasses
import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.data.pictures import photographs
from tests.pretrained.test_convert_card import load_as_said
from vit_jax.config import base_config
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.inference.predictor import predict
from vit_jax.pretrained.convert import convert, usage
from vit_jax.pretrained.formats import processor, timm, timm_shared
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import check_expressible, save_as, sidecar_files

NAMES = tuple("abcdefg")
CENTER = {"crop": "center", "resize_ratio": 1.25, "interpolation": "bicubic"}


def cornered(loaded, corner):
  """The same with another rounding of half a pixel in the crop's place."""
  crop = dataclasses.replace(loaded.preprocessing.crop, corner=corner)
  own = dataclasses.replace(loaded.preprocessing, crop=crop)
  return dataclasses.replace(loaded, inputs={"image": own})


def make_run(folder, *, loss="softmax", crop=CENTER, **fields) -> str:
  """Writes a workdir with random parameters."""
  fields = {"num_classes": len(NAMES)} | fields
  loaded, flat = tiny.random_model((32, 32), **fields)
  config = base_config()
  config.data.name, config.loss.kind = "digits", loss
  config.eval_transform.update(crop)
  params = tiny.nested(flat)
  options = dict(config=config, train_examples=1438)
  tiny.save_run(folder, loaded.model, params, (32, 32), NAMES, **options)
  return str(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Files of the photographs, without those whose transparency is dropped."""
  folder = tmp_path_factory.mktemp("photos")
  for name, encoded in photographs().items():
    if name != "alpha":
      (folder / f"{name}.png").write_bytes(encoded)
  return sorted(map(str, folder.iterdir()))


def pixels(loaded, photos):
  transform = loaded.preprocessing.transform()
  seen = np.stack(
    [transform(pathlib.Path(path).read_bytes()) for path in photos]
  )
  preprocessing = loaded.preprocessing
  return (seen / 255 - preprocessing.mean) / preprocessing.std


def answers(source, photos):
  """Probabilities of the classes for each photo, as `predict` gives them."""
  loaded = open_checkpoint(source)
  batches = predict(
    loaded.model,
    loaded.params,
    photos,
    preprocessing=loaded.preprocessing,
    task=loaded.task,
    top=len(NAMES),
  )
  return [
    dict(zip(p.index, p.probability, strict=True)) for b in batches for p in b
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  "to, crop",
  [
    *(("hf", "squash"), ("hf", "resize"), ("hf", "center")),
    *(("timm", "center"), ("big_vision", "center")),
  ],
)
def test_the_export_of_a_run_has_its_pixels(tmp_path, photos, to, crop):
  run = make_run(
    tmp_path / "run", crop=CENTER | {"crop": crop}, layer_norm_epsilon=1e-6
  )
  convert(run, str(tmp_path / "out"), to)
  first, again = open_checkpoint(run), open_checkpoint(str(tmp_path / "out"))
  ours, theirs = pixels(first, photos), pixels(again, photos)
  if to == "timm" and crop == "center":  # It rounds half a pixel to even.
    assert again.preprocessing.crop.corner == "even"
    again = cornered(again, "floor")
    theirs = pixels(again, photos)
  np.testing.assert_allclose(ours, theirs, atol=1e-6)
  card = (tmp_path / "out" / "README.md").read_text()
  said = {
    "resize": "resized to 32 x 32 (bicubic)",
    "center": "resized to cover 40 x 40 and cut to 32 x 32 from the centre",
    "squash": "resized to 40 x 40 and cut to 32 x 32 from the centre",
  }
  assert said[crop] in card


@pytest.mark.parametrize(
  "crop, ratio, share, mode",
  [
    ("resize", 1.25, 1.0, "squash"),
    ("center", 1.25, 0.8, "center"),
    ("squash", 1.25, 0.8, "squash"),
    ("center", 37 / 32, 32 / 37, "center"),
  ],
)
def test_timm_is_told_how_to_crop(crop, ratio, share, mode):
  """It rounds the side before the crop down: 32 / share."""
  loaded, _ = tiny.random_model((32, 32))
  cut = Preprocessing((32, 32), EvalTransformSettings(crop, ratio, "bicubic"))
  (config,) = timm.files(loaded.model, cut, loaded.task).values()
  found = config["pretrained_cfg"]
  assert found["crop_pct"] == pytest.approx(share, rel=0.02)
  assert (found["crop_mode"], found["interpolation"]) == (mode, "bicubic")
  before = 32 if crop == "resize" else round(32 * ratio)
  assert math.floor(32 / found["crop_pct"]) == before
  assert timm_shared.preprocessing(found).crop.crop == crop


@pytest.mark.slow
def test_a_sigmoid_is_kept_or_missed_in_a_line(tmp_path, photos, capsys):
  run = make_run(tmp_path / "run", loss="sigmoid")
  convert(run, str(tmp_path / "hf"), "hf")
  assert "take a sigmoid" not in capsys.readouterr().out
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["problem_type"] == "multi_label_classification"
  assert open_checkpoint(str(tmp_path / "hf")).loss == "sigmoid"
  before, after = answers(run, photos), answers(str(tmp_path / "hf"), photos)
  assert before[0] == pytest.approx(after[0], abs=1e-5)
  convert(run, str(tmp_path / "google"), "google")
  assert "take a sigmoid of its logits" in capsys.readouterr().out
  card = (tmp_path / "google" / "README.md").read_text()
  assert "Probabilities are the sigmoid of the logits." in card


def test_what_a_filter_becomes_is_said():
  loaded, _ = tiny.random_model((32, 32))
  area = EvalTransformSettings("center", 1.25, "area")
  loaded = dataclasses.replace(
    loaded, inputs={"image": Preprocessing((32, 32), area)}
  )
  (line,) = check_expressible(loaded, "hf")
  assert "hf cannot resize pictures by 'area', and will by 'bilinear'" in line
  assert check_expressible(loaded, "google") == []
  loaded = cornered(loaded, "even")
  even = loaded.preprocessing
  found = json.loads(sidecar_files(loaded, "google")[processor.FILE])
  assert processor.read(found) == even
  lines = check_expressible(loaded, "hf")
  assert "hf rounds half a pixel in the crop's offset differently" in lines[1]
  assert len(check_expressible(loaded, "timm")) == 1


def test_a_crop_of_the_upper_left_is_said_and_no_file_denies_it():
  loaded, _ = tiny.random_model((32, 32))
  cut = dataclasses.replace(loaded.preprocessing, cut_from=(40, 40))
  loaded = dataclasses.replace(loaded, inputs={"image": cut})
  (line,) = check_expressible(loaded, "hf")
  assert "resized to 40 x 40, of which the upper left 32 x 32 is kept" in line
  assert processor.FILE not in sidecar_files(loaded, "google")


def test_a_longest_side_is_kept_by_hugging_face_alone():
  loaded, _ = tiny.random_model((32, 32))
  crop = EvalTransformSettings(
    "center", 1.0, resizer="torchvision", longest_ratio=1.5
  )
  preprocessing = dataclasses.replace(loaded.preprocessing, crop=crop)
  loaded = dataclasses.replace(loaded, inputs={"image": preprocessing})
  assert "with a long side of at most 48, and cut to" in str(preprocessing)
  assert check_expressible(loaded, "hf") == []
  written = json.loads(sidecar_files(loaded, "hf")[processor.FILE])
  assert processor.read(written) == preprocessing
  lines = check_expressible(loaded, "timm")
  assert "timm cannot limit the long side" in lines[0]


def test_a_centre_that_is_no_square_is_refused_by_hugging_face():
  loaded, _ = tiny.random_model((16, 24))
  wide = dataclasses.replace(
    loaded.preprocessing,
    crop=dataclasses.replace(loaded.preprocessing.crop, crop="center"),
  )
  with pytest.raises(ValueError, match="cut to 16 x 24 from the centre, but"):
    check_expressible(dataclasses.replace(loaded, inputs={"image": wide}), "hf")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("crop", ["resize", "center", "squash"])
def test_transformers_answers_as_the_run_does(tmp_path, photos, crop, loss):
  transformers = pytest.importorskip("transformers", reason="needs it")
  run = make_run(tmp_path / "run", loss=loss, crop=CENTER | {"crop": crop})
  out = str(tmp_path / "out")
  convert(run, out, "hf")
  prepare = transformers.AutoImageProcessor.from_pretrained(out)
  seen = prepare(
    [transformers.image_utils.load_image(path) for path in photos],
    return_tensors="np",
  )["pixel_values"].transpose(0, 2, 3, 1)
  difference = np.abs(pixels(open_checkpoint(run), photos) - seen)
  assert (difference.mean((0, 1, 2)) * (51, 63.75, 76.5)).max() <= 0.25
  classify = transformers.pipeline("image-classification", out)
  found = classify(photos, top_k=5)
  for ours, theirs in zip(answers(run, photos), found, strict=True):
    best = sorted(ours, key=lambda index: -ours[index])[:5]
    assert [NAMES[index] for index in best] == [p["label"] for p in theirs]
    expected = [ours[index] for index in best]
    np.testing.assert_allclose(
      [p["score"] for p in theirs], expected, atol=5e-3
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
  "crop, num_classes",
  [("resize", 7), ("center", 7), ("squash", 7), ("center", 0)],
)
@pytest.mark.parametrize("to", ["timm", "torchvision"])
def test_the_printed_lines_answer_as_the_run_does(
  tmp_path, photos, to, crop, num_classes
):
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  pytest.importorskip(to, reason=f"needs {to}")
  from tests.checkpoints.make_pixels import opened

  run = make_run(
    tmp_path / "run",
    crop=CENTER | {"crop": crop},
    num_classes=num_classes,
    gelu="exact",
  )
  loaded = open_checkpoint(run)
  folder = tmp_path / "out"
  convert(run, str(folder), to)
  names = {}
  exec(usage(loaded, to, str(folder)), names)
  images = [opened(pathlib.Path(path).read_bytes()) for path in photos]
  seen = torch.stack([names["transform"](image) for image in images])
  ours = pixels(cornered(loaded, "even"), photos)
  theirs = seen.numpy().transpose(0, 2, 3, 1)
  np.testing.assert_allclose(ours, theirs, atol=1e-4)
  with torch.no_grad():
    logits = names["model"].eval()(seen).numpy()
  expected = loaded.model.apply({"params": loaded.params}, jnp.asarray(theirs))
  np.testing.assert_allclose(logits, np.asarray(expected), atol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_makes_no_pooler_for_a_model_without_a_head(tmp_path):
  transformers = pytest.importorskip("transformers", reason="needs it")
  loaded, _ = tiny.random_model((32, 32), num_classes=0)
  save_as(loaded, "hf", tmp_path / "out")
  names = {}
  exec(usage(loaded, "hf", str(tmp_path / "out")), names)
  kind = type(names["model"])
  assert kind is transformers.ViTForImageClassification
  _, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
  assert not any(report.values())
  assert names["model"].vit.pooler is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchvisions_files_are_resized_as_its_weights_say():
  models = pytest.importorskip("torchvision.models", reason="needs torchvision")
  from vit_jax.pretrained.formats.torchvision import preprocessing

  seen = 0
  for name in ("B_16", "B_32", "L_16", "L_32", "H_14"):
    for weights in getattr(models, f"ViT_{name}_Weights"):
      found, guesses = preprocessing(weights.url.rpartition("/")[2])
      said, seen = weights.transforms(), seen + 1
      (side,), (short,) = said.crop_size, said.resize_size
      assert round(side * found.crop.resize_ratio) == short and not guesses
      assert found.crop.interpolation == said.interpolation.value
      assert (list(found.mean), list(found.std)) == (said.mean, said.std)
  assert seen == 10


def test_the_card_of_an_export_gives_its_pixels(tmp_path):
  run = make_run(tmp_path / "run", gelu="exact")
  convert(run, str(tmp_path / "out"), "torchvision")
  model, line = load_as_said(tmp_path / "out")
  assert line.endswith("num_heads=3)") and model.num_heads == 3
