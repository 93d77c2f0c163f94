"""Model cards: their text, and the code in them that loads the model."""

import dataclasses
import json

import pytest

import vit_jax
from tests import encoders, published, tiny
from vit_jax.config import base_config
from vit_jax.models import Origin
from vit_jax.pretrained import known
from vit_jax.pretrained.convert import convert, metadata, model_card
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import save_as


def load_as_said(folder):
  """Runs the card's line for vit_jax; returns the model and the line."""
  text = (folder / "README.md").read_text()
  (line,) = (x for x in text.splitlines() if "load_pretrained" in x)
  code = line.removeprefix("# Or: ").replace(folder.name, str(folder))
  found = {"vit_jax": vit_jax}
  exec(code, found)
  return found["model"], line


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, to, overrides, words",
  [
    ("torchvision_vit.safetensors", "google", {"gelu": "tanh"}, 'model.npz")'),
    ("timm_vit.safetensors", "torchvision", {}, ", num_heads=3)"),
    ("torchvision_vit.safetensors", "torchvision", {}, ", num_heads=3)"),
    ("google_vit.npz", "big_vision", {}, 'model.npz")'),
    ("google_vit.npz", "big_vision", {"std": (0.5, 0.5, 1.0)}, 'z")'),
  ],
)
def test_the_card_loads_what_was_converted(
  tmp_path, name, to, overrides, words
):
  folder = published.converted(name, to, tmp_path / "out", **overrides)
  model, line = load_as_said(folder)
  source = open_checkpoint(
    published.path(name), **published.CHECKPOINTS[name] | overrides
  )
  assert words in line
  for field in ("mean", "std", "image_size"):
    assert getattr(model.origin, field) == getattr(source.origin, field)
  found = open_checkpoint(str(folder), num_heads=model.num_heads)
  before, after = (
    dataclasses.replace(
      x.preprocessing.crop,
      resize_ratio=round(x.preprocessing.crop.resize_ratio * 32),
    )
    for x in (source, found)
  )
  assert before == after  # The same number of pixels before the crop.
  assert model.num_heads == source.model.num_heads


@pytest.mark.parametrize("to", ["google", "big_vision"])
def test_the_card_tells_a_grid_that_is_no_square(tmp_path, to):
  """A grid of 2 x 8 has as many positions as one of 4 x 4."""
  loaded, _ = tiny.random_model((16, 64))
  save_as(loaded, to, tmp_path, model_card(loaded, to, tmp_path.name))
  model, line = load_as_said(tmp_path)
  assert line.endswith('model.npz", grid=(2, 8))')
  assert model.origin.image_size == (16, 64)


def test_the_card_of_a_model_for_any_image_size(tmp_path):
  out = tmp_path / "out"
  folder = published.converted("big_vision_gap.npz", "big_vision", out)
  card = (folder / "README.md").read_text()
  assert "taken at any height and width that are multiples of 8" in card


def test_the_card_names_the_class_of_the_model():
  loaded = open_checkpoint(encoders.path("hf_dinov2"))
  card = model_card(loaded, "hf", "out")
  assert "| kind | ExtendedVit |" in card
  assert "| antialias (of resized positions) | False |" in card
  assert "| antialias |" not in card  # Pictures are resized with it.


def test_the_card_says_what_it_is(tmp_path):
  folder = published.converted(
    "hf_vit", "timm", tmp_path / "out", layer_norm_epsilon=1e-6
  )
  card = (folder / "README.md").read_text()
  for words in ("library_name: timm", "| hidden_size | 48 |", "local-dir:out"):
    assert words in card
  config = json.loads((folder / "config.json").read_text())
  ratio = config["model_args"]["mlp_ratio"]
  assert int(48 * ratio) == 96


@pytest.mark.parametrize("source", ["hf://owner/name", "http://host/x.npz"])
def test_the_card_of_an_address_looks_for_no_workdir_there(source):
  loaded, _ = tiny.random_model()
  origin = Origin(source, "hf", (16, 24))
  model = loaded.model.clone(origin=origin)
  card = model_card(dataclasses.replace(loaded, model=model), "hf", "out")
  assert f"read from `{source}` (hf) and written as hf" in card
  assert "Trained on" not in card


@pytest.fixture
def workdir(tmp_path):
  """A run's folder after training, evaluated at steps 1 and 2."""
  loaded, flat = tiny.random_model()
  config = base_config()
  config.data.name = "digits"
  folder = tiny.save_run(
    tmp_path / "run",
    loaded.model,
    tiny.nested(flat),
    (16, 24),
    "ab",
    steps=(1, 2),
    config=config,
    train_examples=1438,
  )
  rows = [{"step": step, "eval/top1": step / 10} for step in (1, 2)]
  text = "".join(json.dumps(row) + "\n" for row in rows)
  (folder / "metrics.jsonl").write_text(text)
  return folder


@pytest.mark.parametrize(
  "step, said",
  [({"step": 1}, "after 1 steps: 10.00%"), ({}, "after 2 steps: 20.00%")],
)
def test_the_card_is_of_the_step_that_was_chosen(tmp_path, workdir, step, said):
  convert(str(workdir), str(tmp_path / "out"), "google", **step)
  card = (tmp_path / "out" / "README.md").read_text()
  assert "Trained on digits: 1,438 examples of 2 classes" in card
  assert card.count("Top-1") == 1 and said in card


def test_the_sentences_of_a_card_begin_with_capitals(tmp_path, workdir):
  row = {"step": 2, "eval/top1": 0.9, "eval/examples": 359}
  (workdir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
  convert(str(workdir), str(tmp_path / "out"), "google")
  card = (tmp_path / "out" / "README.md").read_text()
  assert "steps: 90.00%. Top-1 90% (95 % interval" in card


@pytest.mark.parametrize(
  "data, said",
  [
    (None, "data that the run does not name.\n"),  # A loop of one's own.
    ({"name": None, "root": None, "dir": "x/flowers"}, "flowers.\n"),
    ({"name": None, "root": None, "labels_file": "a/b.csv"}, "b.csv.\n"),
  ],
)
def test_the_card_of_a_run_that_names_no_data_set(data, said):
  loaded, _ = tiny.random_model()
  config = {"image_size": (16, 24)} | ({"data": data} if data else {})
  run = dataclasses.replace(loaded, step=1, description={"config": config})
  card = model_card(run, "google", "out")
  assert f"Trained on {said}" in card
  assert ("datasets:" in card) == (data is not None)


def test_licences_and_base_models_of_known_sources():
  assert known.license_of("b16_augreg") == "apache-2.0"
  assert known.license_of("hf_b16_224") == "apache-2.0"
  assert known.license_of("torchvision_b16") == "bsd-3-clause"
  assert known.license_of("torchvision_h14_swag_518") == "cc-by-nc-4.0"
  assert known.license_of("runs/mine") is None
  custom = metadata(tiny.random_model()[0], "dinov3-license")
  assert 'license: "other"\nlicense_name: "dinov3-license"\n' in custom
  loaded, _ = tiny.random_model()
  config = {"data": {"name": "cifar10", "root": None}, "pretrained": "x.npz"}
  run = dataclasses.replace(loaded, description={"config": config})
  assert metadata(run, None) == 'datasets: "cifar10"\n'
  config["pretrained"] = "hf_l16_224"
  config["pretrained"] = "torchvision_h14_swag_518"
  card = model_card(run, "google", "out", "mit")
  assert (
    "Licence: mit (commercial use is allowed if its notice is kept)" in card
  )
  assert "`torchvision_h14_swag_518`, of licence cc-by-nc-4.0 (no com" in card
  config["pretrained"] = "hf_l16_224"
  text = metadata(run, "mit")
  assert 'base_model: "google/vit-large-patch16-224"\n' in text
