"""Checkpoints given back: bits, key sets, functions, and refusals."""

import dataclasses
import errno
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests import fixtures, tiny
from tests.commands import run
from vit_jax import load_pretrained
from vit_jax.config import base_config
from vit_jax.models import Origin, make_resnet, make_vit, to_fields
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_pretrained
from vit_jax.pretrained.model_card import model_card
from vit_jax.pretrained.save import TARGETS, check_expressible, save_as
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints

# Fixture, format it is written in, and the published file to compare with.
SAME = [
  ("google_vit.npz", "google", "google_vit.npz"),
  ("google_vit_linen.npz", "google", None),
  ("google_vit_prelogits.npz", "google", "google_vit_prelogits.npz"),
  ("google_hybrid.npz", "google", "google_hybrid.npz"),
  ("big_vision_tok.npz", "big_vision", "big_vision_tok.npz"),
  ("big_vision_gap.npz", "big_vision", "big_vision_gap.npz"),
  ("hf_vit", "hf", "hf_vit/model.safetensors"),
  ("timm_vit.safetensors", "timm", "timm_vit.safetensors"),
  (
    "torchvision_vit.safetensors",
    "torchvision",
    "torchvision_vit.safetensors",
  ),
]


def write(name, to, folder, **overrides):
  options = fixtures.CHECKPOINTS[name] | overrides
  convert(fixtures.path(name), str(folder), to, **options)
  return folder


@pytest.mark.parametrize("name, to, reference", SAME)
def test_the_same_format_comes_back_bit_by_bit(tmp_path, name, to, reference):
  folder = write(name, to, tmp_path / "out")
  again = open_pretrained(str(folder / TARGETS[to].file), **_heads(name))
  first = open_pretrained(fixtures.path(name), **_heads(name))
  before, after = dict(first.read()), dict(again.read())
  assert before.keys() == after.keys()
  for path, array in before.items():
    np.testing.assert_array_equal(array, after[path])
  if reference is None:
    return
  published = pathlib.Path(fixtures.path(reference))
  with open_arrays(published) as expected:
    with open_arrays(folder / TARGETS[to].file) as found:
      assert dict(found.shapes) == dict(expected.shapes)
      for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])


def _heads(name):
  return fixtures.CHECKPOINTS[name]


@pytest.mark.parametrize(
  "name, to",
  [
    ("google_vit.npz", "hf"),
    ("google_vit.npz", "timm"),
    ("google_vit.npz", "big_vision"),
    ("google_vit_linen.npz", "hf"),
    ("google_vit_prelogits.npz", "big_vision"),
    ("big_vision_tok.npz", "google"),
    ("big_vision_tok.npz", "hf"),
    ("big_vision_tok.npz", "timm"),
    ("timm_vit.safetensors", "hf"),
    ("timm_vit.safetensors", "torchvision"),
    ("torchvision_vit.safetensors", "timm"),
    ("torchvision_vit.safetensors", "hf"),
  ],
)
def test_another_format_gives_the_same_logits(tmp_path, name, to):
  folder = write(name, to, tmp_path / "out")
  overrides = {"num_heads": 3} if to == "torchvision" else {}
  model, params = load_pretrained(
    str(folder) if to in ("hf", "timm") else str(folder / TARGETS[to].file),
    **overrides,
  )
  fixtures.assert_same_logits(model, params, *fixtures.examples(name))


def test_computed_positions_become_a_table(tmp_path):
  """sincos2d of big_vision, written as timm's learned positions."""
  folder = write("big_vision_gap.npz", "timm", tmp_path / "out", image_size=32)
  model, params = load_pretrained(str(folder))
  assert (model.pooling, model.position) == ("gap", "learned")
  examples = fixtures.examples("big_vision_gap.npz")
  fixtures.assert_same_logits(model, params, *examples)
  arguments = json.loads((folder / "config.json").read_text())["model_args"]
  assert arguments["global_pool"] == "avg"
  assert arguments["class_token"] is False and arguments["fc_norm"] is False


def random_model(size=(16, 24), **fields):
  """A tiny pretrained model of ours, as `save_as` takes it."""
  sizes = dict(hidden_size=24, num_layers=2, mlp_size=36, num_heads=3)
  origin = Origin("ours", "test", size, class_names=("a", "b"))
  model = make_vit("Ti/8", 2, **(sizes | fields)).clone(origin=origin)
  shapes = param_shapes(model, (size[0] // 8, size[1] // 8))
  rng = np.random.default_rng(0)
  params = {
    path: rng.normal(size=shape).astype(np.float32) / 4
    for path, shape in shapes.items()
  }
  return tiny.loaded(model, shapes, lambda: params.items()), params


@pytest.mark.parametrize(
  "to, fields",
  [
    ("timm", {"position": "learned2d"}),
    ("hf", {"position": "sincos1d"}),
    ("google", {"position": "none", "pooling": "gap"}),
    ("big_vision", {"position": "sincos2d"}),
    ("big_vision", {"pooling": "map", "representation_size": 7}),
    ("timm", {"position": "learned_grid"}),
    ("hf", {"gelu": "exact", "layer_norm_epsilon": 1e-3}),
  ],
)
def test_every_additive_position_and_wide_images_survive(tmp_path, to, fields):
  pretrained, flat = random_model(**fields)
  save_as(pretrained, to, tmp_path / "out")
  path = tmp_path / "out"
  path = path if to in ("hf", "timm") else path / TARGETS[to].file
  overrides = {} if to in ("hf", "timm") else {"grid": (2, 3)}
  model, params = load_pretrained(str(path), **overrides)
  images = jnp.asarray(np.random.default_rng(1).normal(size=(2, 16, 24, 3)))
  own = _nested(flat)
  expected = jax.jit(pretrained.model.apply)({"params": own}, images)
  fixtures.assert_same_logits(model, params, images, np.asarray(expected))
  if to == "hf":
    assert model.origin.class_names == ("a", "b")
    assert model.origin.image_size == (16, 24)


def test_timm_keeps_the_class_token_of_a_wide_image(tmp_path):
  """3 x 5 patches and a class token have 16 positions, a square number."""
  pretrained, flat = random_model(size=(24, 40))
  save_as(pretrained, "timm", tmp_path / "out")
  model, params = load_pretrained(str(tmp_path / "out"))
  assert model.origin.image_size == (24, 40)
  E_pos = flat["position/E_pos"]
  np.testing.assert_array_equal(params["position"]["E_pos"], E_pos)


@pytest.mark.parametrize("to", ["google", "big_vision", "torchvision"])
def test_the_folder_and_the_file_give_the_names_of_classes(tmp_path, to):
  out = tmp_path / "out"
  gelu = "exact" if to == "torchvision" else "tanh"
  save_as(random_model((16, 16), gelu=gelu)[0], to, out)
  for path in (out, out / TARGETS[to].file):
    origin = open_pretrained(str(path), num_heads=3).origin
    assert origin.class_names == ("a", "b")
  (out / "labels.txt").write_text("a\nb\nc\n")
  with pytest.raises(ValueError, match="labels.txt names 3 classes and the mo"):
    open_pretrained(str(out), num_heads=3)


def _nested(flat):
  tree = {}
  for path, array in flat.items():
    *modules, leaf = path.split("/")
    node = tree
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = jnp.asarray(array)
  return tree


@pytest.mark.parametrize(
  "to, fields, reason",
  [
    ("hf", {"pooling": "gap"}, "pooling='gap', and the format has only token"),
    ("torchvision", {"pooling": "gap"}, "pooling='gap'.*gelu='tanh', and the"),
    (
      "timm",
      {"pooling": "map"},
      "pooling='map', and the format has only token or",
    ),
    ("google", {"position": "relative"}, "position='relative' at 'input'"),
    ("hf", {"position_at": "every_layer"}, "position='learned' at 'every_la"),
    ("google", {"gelu": "exact"}, "always uses 'tanh' .with --gelu=tanh"),
    ("timm", {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05, and the"),
    ("hf", {"representation_size": 5}, "a representation layer"),
    (
      "timm",
      {"resnet_layers": (1,)},
      "it is a hybrid, and the format has no ResNet",
    ),
    (
      "torchvision",
      {"gelu": "exact"},
      "its images are 16 x 24, and the format",
    ),
  ],
)
def test_what_a_format_cannot_say_is_refused(to, fields, reason):
  size = (32, 32) if "resnet_layers" in fields else (16, 24)
  if "resnet_layers" in fields:
    fields = fields | {"resnet_width": 32}
  pretrained, _ = random_model(size, **fields)
  with pytest.raises(ValueError, match=reason) as info:
    check_expressible(pretrained.model, to)
  assert "\n" not in str(info.value)


def test_a_resnet_is_refused():
  with pytest.raises(ValueError, match="a ResNet cannot be written as hf"):
    check_expressible(make_resnet("R50x1", 3), "hf")


def test_an_unknown_format_is_refused_before_the_source_is_read(tmp_path):
  message = "format 'keras' is unknown; choose one of google, big_vision, hf"
  with pytest.raises(ValueError, match=message):
    convert("no checkpoint", str(tmp_path / "out"), "keras")


def load_as_said(folder):
  """Runs the line of a card that loads with vit_jax; gives the model."""
  text = (folder / "README.md").read_text()
  (line,) = (x for x in text.splitlines() if "load_pretrained" in x)
  code = line.removeprefix("# Or: ").replace(folder.name, str(folder))
  found = {"vit_jax": vit_jax}
  exec(code, found)
  return found["model"], line


@pytest.mark.parametrize(
  "name, to, overrides, words",
  [
    (
      "torchvision_vit.safetensors",
      "google",
      {"gelu": "tanh"},
      ", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))",
    ),
    ("timm_vit.safetensors", "torchvision", {}, "num_heads=3, mean=(0.5, "),
    ("torchvision_vit.safetensors", "torchvision", {}, ", num_heads=3)"),
    ("google_vit.npz", "big_vision", {}, 'model.npz")'),
    ("google_vit.npz", "big_vision", {"std": (0.5, 0.5, 1.0)}, "std=(0.5"),
  ],
)
def test_the_card_loads_what_was_converted(
  tmp_path, name, to, overrides, words
):
  folder = write(name, to, tmp_path / "out", **overrides)
  model, line = load_as_said(folder)
  source = open_pretrained(fixtures.path(name), **_heads(name) | overrides)
  assert words in line
  for field in ("mean", "std", "image_size"):
    assert getattr(model.origin, field) == getattr(source.origin, field)
  assert model.num_heads == source.model.num_heads


@pytest.mark.parametrize("to", ["google", "big_vision"])
def test_the_card_tells_a_grid_that_is_no_square(tmp_path, to):
  """2 x 8 positions are as many as those of 4 x 4."""
  pretrained, _ = random_model((16, 64))
  save_as(pretrained, to, tmp_path, model_card(pretrained, to, tmp_path.name))
  model, line = load_as_said(tmp_path)
  assert line.endswith('model.npz", grid=(2, 8))')
  assert model.origin.image_size == (16, 64)


def test_the_card_of_a_model_for_any_image_size(tmp_path):
  folder = write("big_vision_gap.npz", "big_vision", tmp_path / "out")
  card = (folder / "README.md").read_text()
  assert (
    "Images are taken at any height and width that are multiples of 8" in card
  )


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
  (tmp_path / "kept").write_text("mine")
  with pytest.raises(ValueError, match="exists and is not empty"):
    write("google_vit.npz", "hf", tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_the_folder_one_stands_in_is_filled(tmp_path, monkeypatch):
  folder = tmp_path / "empty"
  folder.mkdir()
  monkeypatch.chdir(folder)
  write("google_vit.npz", "big_vision", ".")
  assert sorted(os.listdir()) == ["README.md", "model.npz"]
  assert "# empty\n" in (folder / "README.md").read_text()
  assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize(
  "folder, message",
  [
    ("notes.txt/x", "notes.txt/x' cannot be written .Not a directory.: choose"),
    ("notes.txt/x/y", "notes.txt/x/y' cannot be written .Not a directory."),
    ("/proc/x", "'/proc/x' cannot be written "),
    ("gs://bucket/x", "gs://bucket/x is an address, and only local files"),
    ("", "the path to write to is empty: give a path"),
  ],
)
def test_a_folder_that_cannot_be_written_is_named(
  tmp_path, monkeypatch, folder, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises((ValueError, OSError), match=message):
    write("google_vit.npz", "big_vision", folder)
  assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_is_said_of_the_folder(tmp_path, monkeypatch):
  def fail(_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "fsync", fail)
  with pytest.raises(OSError, match="out' cannot be written .No space left"):
    write("google_vit.npz", "big_vision", tmp_path / "out")
  assert not [*tmp_path.iterdir()]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
  from vit_jax.pretrained import save

  def fail(*_):
    raise OSError("disk full")

  monkeypatch.setattr(save, "beside", fail)
  with pytest.raises(OSError, match="disk full"):
    write("google_vit.npz", "hf", tmp_path / "out")
  assert not [*tmp_path.iterdir()]


def test_the_card_says_what_it_is(tmp_path):
  folder = write("hf_vit", "timm", tmp_path / "out", layer_norm_epsilon=1e-6)
  card = (folder / "README.md").read_text()
  for words in ("library_name: timm", "| hidden_size | 48 |", "local-dir:out"):
    assert words in card
  config = json.loads((folder / "config.json").read_text())
  ratio = config["model_args"]["mlp_ratio"]
  assert int(48 * ratio) == 96


@pytest.mark.parametrize("source", ["hf://owner/name", "http://host/x.npz"])
def test_the_card_of_an_address_looks_for_no_workdir_there(source):
  pretrained, _ = random_model()
  origin = Origin(source, "hf", (16, 24))
  model = pretrained.model.clone(origin=origin)
  card = model_card(dataclasses.replace(pretrained, model=model), "hf", "out")
  assert f"read from `{source}` (hf) and written as hf" in card
  assert "Trained on" not in card


@pytest.fixture
def workdir(tmp_path):
  """A run evaluated after its steps 1 and 2, as training leaves it."""
  pretrained, flat = random_model()
  config = base_config()
  config.image_size = (16, 24)
  config.normalization.update(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
  config.data.name = "digits"
  description = {
    "config": config.to_dict(),
    "model": to_fields(pretrained.model),
    "class_names": ["a", "b"],
    "train_examples": 1438,
  }
  folder = tmp_path / "run"
  checkpoints = Checkpoints(str(folder))
  for step in (1, 2):
    state = TrainState(jnp.int32(step), _nested(flat), {"count": np.zeros(1)})
    checkpoints.save(state, step, description, None)
  checkpoints.close()
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


def test_the_hugging_face_configuration_is_the_publishers(tmp_path):
  """Every key that both have says the same."""
  folder = write("hf_vit", "hf", tmp_path / "out")
  found = json.loads((folder / "config.json").read_text())
  published = json.loads(
    pathlib.Path(fixtures.path("hf_vit"), "config.json").read_text()
  )
  unsaid = {  # Of other uses of the model, or of the library itself.
    "dtype",
    "encoder_stride",
    "initializer_range",
    "pooler_act",
    "pooler_output_size",
    "transformers_version",
  }
  assert found == {k: v for k, v in published.items() if k not in unsaid}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  ["google_vit.npz", "big_vision_tok.npz", "torchvision_vit.safetensors"],
)
def test_transformers_loads_it_to_the_same_logits(tmp_path, name):
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  transformers = pytest.importorskip("transformers", reason="needs it")
  folder = write(name, "hf", tmp_path / "out")
  model, report = transformers.ViTForImageClassification.from_pretrained(
    folder, output_loading_info=True
  )
  assert not any(report.values())
  images, expected = fixtures.examples(name)
  with torch.no_grad():
    logits = model(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
  difference = np.abs(logits - expected).max()
  assert difference <= 1e-4 * np.abs(expected).max()


def test_the_command(tmp_path):
  path = fixtures.path("google_vit.npz")
  done = run("vit_jax.convert", path, str(tmp_path / "out"), "--to", "hf")
  assert (done.returncode, done.stderr) == (0, "")
  assert "ViTForImageClassification.from_pretrained" in done.stdout
  listed = run("vit_jax.convert", "--list")
  assert listed.returncode == 0
  assert any(row.startswith("b16_augreg ") for row in listed.stdout.split("\n"))
  refused = run(
    "vit_jax.convert", path, str(tmp_path / "other"), "--to", "torchvision"
  )
  assert refused.returncode == 2
  assert refused.stderr.startswith("error: torchvision cannot express this")
  assert refused.stderr.count("\n") == 1
  assert [path.name for path in tmp_path.iterdir()] == ["out"]
  both = run("vit_jax.convert", "--list", path)
  assert both.returncode == 2 and both.stderr.count("\n") == 1
  assert "--list only lists checkpoints, and " in both.stderr
  bare = run("vit_jax.convert", path)
  assert bare.returncode == 2 and bare.stderr.count("\n") == 1
