"""Saving models: what each format keeps, and what it refuses."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import published, tiny
from vit_jax import load_pretrained
from vit_jax.models import make_resnet
from vit_jax.pretrained.formats import equivalent
from vit_jax.pretrained.save import TARGETS, check_expressible, save_as


@pytest.mark.slow
def test_computed_positions_become_a_table(tmp_path):
  """big_vision's sincos2d is written as timm's learned positions."""
  name, out = "big_vision_gap.npz", tmp_path / "out"
  folder = published.converted(name, "timm", out, image_size=32)
  model, params = load_pretrained(str(folder))
  assert (model.pooling, model.position) == ("gap", "learned")
  published.assert_same_logits(model, params, *published.examples(name))
  arguments = json.loads((folder / "config.json").read_text())["model_args"]
  assert arguments["global_pool"] == "avg"
  assert arguments["class_token"] is False and arguments["fc_norm"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
  "to, fields",
  [
    ("timm", {"position": "learned2d"}),
    ("google", {"position": "none", "pooling": "gap"}),
    ("hf", {"position": "sincos1d"}),
    ("big_vision", {"position": "sincos2d"}),
    ("big_vision", {"pooling": "map", "representation_size": 7}),
    ("timm", {"position": "learned_grid"}),
    ("hf", {"gelu": "exact", "layer_norm_epsilon": 1e-3}),
  ],
)
def test_every_additive_position_and_wide_images_survive(tmp_path, to, fields):
  loaded, flat = tiny.random_model(**fields)
  save_as(loaded, to, tmp_path / "out")
  path = tmp_path / "out"
  path = path if to in ("hf", "timm") else path / TARGETS[to].file
  overrides = {} if to in ("hf", "timm") else {"grid": (2, 3)}
  model, params = load_pretrained(str(path), **overrides)
  images = jnp.asarray(np.random.default_rng(1).normal(size=(2, 16, 24, 3)))
  own = tiny.nested(flat)
  expected = jax.jit(loaded.model.apply)({"params": own}, images)
  published.assert_same_logits(model, params, images, np.asarray(expected))
  if to == "hf":
    assert model.origin.class_names == ("a", "b")
    assert model.origin.image_size == (16, 24)


@pytest.mark.parametrize("pooling, tokens", [("token", 7), ("gap", 6)])
def test_no_positions_become_a_table_of_zeros(pooling, tokens):
  """For 2 x 3 patches, and the class token if there is one."""
  loaded, flat = tiny.random_model(position="none", pooling=pooling)
  new = loaded.model.clone(position="learned")
  table = equivalent.refit(loaded.model, new, flat).pop("position/E_pos")
  np.testing.assert_array_equal(table, np.zeros((tokens, 24)))


def test_a_projection_becomes_a_head_without_a_bias():
  loaded, _ = tiny.random_model(num_classes=0)
  kernel = np.ones((24, 5), np.float32)
  found = equivalent.refit(
    loaded.model,
    loaded.model.clone(num_classes=5),
    {"pre_logits/kernel": kernel},
  )
  assert found.keys() == {"head/kernel", "head/bias"}
  assert found["head/kernel"] is kernel
  np.testing.assert_array_equal(found["head/bias"], np.zeros(5))


def test_timm_keeps_the_class_token_of_a_wide_image(tmp_path):
  """3 x 5 patches and a class token have 16 positions, a square number."""
  loaded, flat = tiny.random_model(size=(24, 40))
  check_expressible(loaded, "timm")  # It takes images that are no squares.
  save_as(loaded, "timm", tmp_path / "out")
  model, params = load_pretrained(str(tmp_path / "out"))
  assert model.origin.image_size == (24, 40)
  E_pos = flat["position/E_pos"]
  np.testing.assert_array_equal(params["position"]["E_pos"], E_pos)


@pytest.mark.slow
@pytest.mark.parametrize(
  "to, fields, reason",
  [
    ("hf", {"pooling": "gap", "num_classes": 0}, "for images of 16 x 24, not"),
    (
      "hf",
      {"pooling": "gap", "position": "none"},
      "for images of 16 x 24, not",
    ),
    ("torchvision", {"pooling": "gap"}, "pooling='gap'.*gelu='tanh', and the"),
    ("timm", {"pooling": "map", "position": "sincos2d"}, "has only token or"),
    ("google", {"position": "relative"}, "position='relative' at 'input'"),
    ("hf", {"position_at": "every_layer"}, "position='learned' at 'every_la"),
    ("google", {"gelu": "exact"}, "always uses 'tanh' .--gelu=tanh acc"),
    ("timm", {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon=1e-05, and the"),
    ("hf", {"representation_size": 5}, "a representation layer"),
    ("google", {"block": "axial", "pooling": "gap"}, "AxialBlock, which no fo"),
    ("timm", {"resnet_layers": (1,)}, "its ResNet has 1 units of width 32"),
    ("torchvision", {"resnet_layers": (1,)}, "it is a hybrid, and the format"),
    ("torchvision", {"gelu": "exact"}, "its images are 16 x 24, and the"),
  ],
)
def test_what_a_format_cannot_say_is_refused(to, fields, reason):
  size = (32, 32) if "resnet_layers" in fields else (16, 24)
  if "resnet_layers" in fields:
    fields = fields | {"resnet_width": 32}
  loaded, _ = tiny.random_model(size, **fields)
  with pytest.raises(ValueError, match=reason) as info:
    check_expressible(loaded, to)
  assert "\n" not in str(info.value)


def test_a_flag_is_not_said_to_be_enough_beside_another_reason():
  loaded, _ = tiny.random_model((16, 16), pooling="gap")
  with pytest.raises(ValueError, match="only token.*--gelu=exact") as caught:
    check_expressible(loaded, "torchvision")
  assert "written nevertheless" not in str(caught.value)


def test_a_resnet_is_refused():
  with pytest.raises(ValueError, match="a ResNet cannot be written as hf"):
    loaded, model = tiny.random_model()[0], make_resnet("R50x1", 3)
    check_expressible(dataclasses.replace(loaded, model=model), "hf")


def test_the_hugging_face_configuration_is_the_publishers(tmp_path):
  """All keys that both files have hold the same values."""
  folder = published.converted("hf_vit", "hf", tmp_path / "out")
  found = json.loads((folder / "config.json").read_text())
  theirs = json.loads(
    pathlib.Path(published.path("hf_vit"), "config.json").read_text()
  )
  # Keys for other uses of the model, or for the library itself.
  unsaid = {"dtype", "encoder_stride", "initializer_range", "pooler_act"}
  unsaid |= {"pooler_output_size", "transformers_version"}
  assert found == {k: v for k, v in theirs.items() if k not in unsaid}


@pytest.mark.parametrize("name", ["hf", "timm", "google"])
def test_a_window_is_lost_and_said(name):
  loaded = load_pretrained(published.path("google_vit.npz"))
  windowed = dataclasses.replace(loaded.preprocessing, window=(0.0, 4095.0))
  lines = check_expressible(
    dataclasses.replace(loaded, inputs={"image": windowed}), name
  )
  assert any("4095 white in 16-bit images" in line for line in lines)


def _is_expressible(to, **fields):
  loaded, _ = tiny.random_model((16, 16), **fields)
  try:
    check_expressible(loaded, to)
  except ValueError:
    return False
  return True


# The words in a cell of the page -> the models that it is about.
_POOLINGS = {"token": "token", "average": "gap", "attention": "map"}
_WITHIN = {
  "yes, without a head": [dict(num_classes=0)],
  "yes, with learned positions": [dict(), dict(num_classes=0)],
  "yes": [dict(), dict(num_classes=0)],
  "": [],
}
_GELUS = {"both": ("exact", "tanh"), "exact": ("exact",), "tanh": ("tanh",)}


@pytest.mark.parametrize("to", sorted(TARGETS.keys() - {"tips"}))
def test_the_page_has_the_models_that_a_format_expresses(to):
  page = pathlib.Path(__file__).parents[2] / "docs/howto/weights.md"
  lines = page.read_text().splitlines()
  titles = next(line for line in lines if line.startswith("| format | token"))
  row = next(line for line in lines if line.startswith(f"| {to} | yes"))
  cells = dict(
    zip(
      *([c.strip() for c in x.split("|")] for x in (titles, row)), strict=True
    )
  )
  gelus = _GELUS[cells["GELU"]]
  for gelu in ("exact", "tanh"):
    assert _is_expressible(to, gelu=gelu) == (gelu in gelus)
  for name, pooling in _POOLINGS.items():
    for fields in (dict(), dict(num_classes=0)):
      given = dict(gelu=gelus[0], pooling=pooling, **fields)
      assert _is_expressible(to, **given) == (fields in _WITHIN[cells[name]])
