"""Published checkpoints: the publishers' logits, keywords and messages."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import published, tiny
from tests.rows import some_slow
from vit_jax import load_pretrained
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.models import Origin
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.opened import with_preprocessing
from vit_jax.workdir.checkpoint import is_run, open_run


@pytest.mark.parametrize(
  "name",
  some_slow(  # Fast tests of sizes and of formats read the other libraries.
    published.CHECKPOINTS,
    (
      "google_vit_linen.npz",
      "big_vision_tok.npz",
      "hf_vit",
    ),
  ),
)
def test_the_publishers_logits_are_reproduced(name):
  model, params = load_pretrained(
    published.path(name), **published.CHECKPOINTS[name]
  )
  published.assert_same_logits(model, params, *published.examples(name))


@pytest.mark.parametrize(
  "name, format, fields",
  [
    ("google_vit.npz", "google", {"gelu": "tanh", "pooling": "token"}),
    ("google_vit_prelogits.npz", "google", {"representation_size": 40}),
    ("google_hybrid.npz", "google", {"resnet_layers": (1, 1)}),
    ("big_vision_tok.npz", "big_vision", {"position": "learned_grid"}),
    ("big_vision_gap.npz", "big_vision", {"position": "sincos2d"}),
    ("tips_vit.npz", "tips", {"registers": 1, "position_grid": (4, 4)}),
    ("hf_vit", "hf", {"gelu": "exact", "layer_norm_epsilon": 1e-12}),
    ("timm_vit.safetensors", "timm", {"layer_norm_epsilon": 1e-6}),
    ("torchvision_vit.safetensors", "torchvision", {"gelu": "exact"}),
  ],
)
def test_the_model_reports_what_it_was_read_as(name, format, fields):
  path = published.path(name)
  pretrained = open_checkpoint(path, **published.CHECKPOINTS[name])
  model, origin = pretrained.model, pretrained.origin
  assert (origin.format, origin.source) == (format, path)
  assert {key: getattr(model, key) for key in fields} == fields
  size = {"google_hybrid.npz": (64, 64), "big_vision_gap.npz": None}
  assert origin.image_size == size.get(name, (32, 32))
  if format == "torchvision":
    assert origin.mean == (0.485, 0.456, 0.406)
    assert origin.std == (0.229, 0.224, 0.225)
  elif format == "tips":
    assert (origin.mean, origin.std) == ((0,) * 3, (1,) * 3)
  else:
    assert origin.mean == origin.std == (0.5, 0.5, 0.5)


def test_what_was_loaded_is_told_in_three_lines():
  loaded = load_pretrained(published.path("google_vit.npz"))
  values = sum(array.size for array in jax.tree.leaves(loaded.params))
  first, source, images = repr(loaded).splitlines()
  assert first.startswith("Loaded Vit: ")
  assert f"{values:,} parameters, {loaded.model.num_classes} classes" in first
  assert "google_vit.npz (google)" in source and "32 x 32" in images


def test_keywords_go_before_the_format():
  path = published.path("google_vit.npz")
  model, params = load_pretrained(
    path, gelu="exact", mean=(0, 0, 0), std=(1, 1, 1)
  )
  assert model.origin.mean == (0, 0, 0) and model.origin.std == (1, 1, 1)
  images, expected = published.examples("google_vit.npz")
  logits = jax.jit(model.apply)({"params": params}, jnp.asarray(images))
  assert 1e-6 < np.abs(logits - expected).max() < 1e-2


def test_positions_are_resized_to_another_image_size():
  path = published.path("google_vit.npz")
  model, params = load_pretrained(path, image_size=(48, 64))
  assert model.origin.image_size == (48, 64)
  assert params["position"]["E_pos"].shape == (1 + 6 * 8, 48)
  images = jnp.zeros((2, 48, 64, 3))
  assert jax.jit(model.apply)({"params": params}, images).shape == (2, 10)


def test_half_precision_weights_come_as_float32(tmp_path):
  arrays = published.arrays("google_vit.npz")
  half = {name: array.astype(np.float16) for name, array in arrays.items()}
  save_arrays(tmp_path / "half.npz", half)
  _, params = load_pretrained(str(tmp_path / "half.npz"))
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))


def changed(name, tmp_path, change):
  """Saves a copy of a fixture after `change` has modified its arrays."""
  arrays = published.arrays(name)
  change(arrays)
  save_arrays(tmp_path / "changed.npz", arrays)
  return str(tmp_path / "changed.npz")


POSITIONS = "Transformer/posembed_input/pos_embedding"


def drop_biases(arrays):
  for name in [*arrays]:
    if name.endswith(("query/bias", "key/bias", "value/bias")):
      del arrays[name]


@pytest.mark.parametrize(
  "change, message",
  [
    (
      lambda a: a.update({"Transformer/extra/gamma": np.zeros(3, "f4")}),
      r"1 unknown: Transformer/extra/gamma \(3,\). Likely cause: .*LayerScale",
    ),
    (drop_biases, "6 missing: .* and 2 more. .*without these biases"),
    (
      lambda a: a.update({"head/kernel": np.zeros((48, 9), "f4")}),
      r"1 wrong shape: head/kernel is \(48, 9\) and should be \(48, 10\)",
    ),
    (
      lambda a: a.update({POSITIONS: np.zeros((1, 7, 48), "f4")}),
      r"6 positions do not form a square grid: give grid=\(h, w\)",
    ),
    (lambda a: a.pop("head/kernel"), "only part of the model was saved"),
    (
      lambda a: a.pop("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"),
      "no array '.*Dense_0/kernel', from which the model's size is read",
    ),
  ],
)
def test_what_does_not_fit_is_listed_with_its_cause(tmp_path, change, message):
  path = changed("google_vit.npz", tmp_path, change)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(path)
  assert "\n" not in str(info.value)
  assert str(info.value).startswith(path)


def test_a_strange_grid_can_be_told(tmp_path):
  def widen(arrays):
    arrays[POSITIONS] = np.zeros((1, 1 + 2 * 3, 48), np.float32)

  path = changed("google_vit.npz", tmp_path, widen)
  model, params = load_pretrained(path, grid=(2, 3))
  assert model.origin.image_size == (16, 24)
  images = jnp.zeros((1, 16, 24, 3))
  assert jax.jit(model.apply)({"params": params}, images).shape == (1, 10)


@pytest.mark.parametrize("source", [None, 3, ["runs/x"]])
def test_a_checkpoint_is_a_name_or_a_path(source):
  kind = type(source).__name__
  with pytest.raises(ValueError, match=f"is given as a {kind}: give a name"):
    load_pretrained(source)


@pytest.mark.parametrize(
  "name, overrides, message",
  [
    ("timm_vit.safetensors", {}, "heads cannot be inferred .* of 48: give num"),
    ("google_vit.npz", {"heads": 3}, "heads; did you mean num_heads[?] It has"),
    ("google_vit.npz", {"step": 3}, "step is for a workdir's checkpoints, and"),
    ("google_vit.npz", {"as_trained": True}, "no decoder. as_trained=True is"),
    ("google_vit.npz", {"image_size": 30}, r"stride of 8 pixels; \(32, 32\)"),
    ("google_vit.npz", {"interpolation": "foo"}, "'foo' is unknown; choose"),
    ("google_vit.npz", {"interpolation": "linear"}, "and none is given: give"),
    ("google_vit.npz", {"image_size": (48,)}, r"image_size=\(48,\) must be a"),
    ("google_vit.npz", {"scan": True}, "scan=True is a setting for training"),
    ("google_vit.npz", {"image_size": "48"}, "image_size='48' must be a heig"),
    ("google_vit.npz", {"grid": (4, 0)}, r"grid=\(4, 0\) must be a height an"),
    ("google_vit.npz", {"mean": 0.5}, "mean=0.5 must be a finite number"),
    ("google_vit.npz", {"std": (0, 1, 1)}, r"std=.* must be .* above 0"),
    ("google_vit.npz", {"dtype": "foo"}, "dtype='foo' is not a type; choose"),
    ("google_vit.npz", {"num_heads": "3"}, "num_heads='3' must be a whole n"),
    (
      "google_vit.npz",
      {"layer_norm_epsilon": -1},
      "epsilon=-1.0 must be",
    ),
  ],
)
def test_bad_keywords_are_one_line(name, overrides, message):
  path = published.path(name)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(path, **overrides)
  assert "\n" not in str(info.value)


def test_a_run_knows_the_grid_of_its_positions(whole_run):
  with pytest.raises(ValueError, match="is a run, which does: leave out grid"):
    load_pretrained(whole_run.folder, grid=(3, 5))


def test_another_architecture_is_named(tmp_path):
  save_arrays(tmp_path / "x.npz", {"conv1/w": np.zeros(3), "fc/b": np.zeros(2)})
  with pytest.raises(ValueError, match=r"2 arrays \(conv1/w, fc/b, ...\) are"):
    load_pretrained(str(tmp_path / "x.npz"))


def test_no_address_but_gs_is_a_workdir():
  for path in ("http://x/a.npz", "hf://owner/name", "s3://bucket/run", "x://y"):
    assert not is_run(path)


def test_without_gcsfs_a_public_object_is_fetched(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
  with pytest.raises((ValueError, OSError), match="127.0.0.1:9/bucket/a.npz"):
    load_pretrained("gs://bucket/a.npz")
  with pytest.raises(ValueError, match="gcsfs is not installed: pip install"):
    open_run("gs://bucket/run")


def test_the_origin_follows_the_inputs_of_a_loaded_model():
  loaded, _ = tiny.random_model()
  assert [*loaded.inputs] == ["image"]
  tokens = object()
  loaded = dataclasses.replace(loaded, inputs={**loaded.inputs, "text": tokens})
  model = loaded.model
  images = Preprocessing((32, 48), mean=(0.1,) * 3, std=(0.2,) * 3)
  other = dataclasses.replace(loaded, inputs={**loaded.inputs, "image": images})
  assert other.preprocessing is images
  assert other.model.origin == Origin(
    "ours", "test", (32, 48), (0.1,) * 3, (0.2,) * 3, ("a", "b")
  )
  assert repr(other).endswith(f"  for images {images} and text")
  grey = with_preprocessing(other, size=(8, 8), mean=(0.3,), std=(0.4,))
  assert grey.inputs["text"] is tokens
  assert (grey.origin.image_size, grey.origin.mean) == ((8, 8), (0.3,))
  assert loaded.model is model and model.origin.image_size == (16, 24)
  with pytest.raises(ValueError, match="ours takes no images.*inputs are text"):
    _ = dataclasses.replace(loaded, inputs={"text": tokens}).preprocessing


@pytest.mark.parametrize("fault", [AssertionError, AttributeError, TypeError])
@pytest.mark.parametrize(
  "place",
  [
    "vit_jax.pretrained.arrays.open_npz",
    "vit_jax.pretrained.npz._read_layout",
    "vit_jax.pretrained.npz._read_array",
    "vit_jax.pretrained.naming._recognise_below",
    "vit_jax.pretrained.published._fit",
    "vit_jax.pretrained.published.read_all",
  ],
)
def test_a_fault_of_ours_is_not_called_damage(monkeypatch, place, fault):
  """A published file is not blamed for it; it keeps its trace."""

  def broken(*_, **__):
    raise fault("a slip")

  monkeypatch.setattr(place, broken)
  with pytest.raises(fault, match="^a slip$"):
    load_pretrained(published.path("google_vit.npz"))


def test_the_device_that_jax_uses_may_be_named():
  source = published.path("timm_vit.safetensors")
  assert load_pretrained(source, num_heads=3, device="cpu").num_params > 0
  with pytest.raises(ValueError, match="no field device; JAX chooses"):
    load_pretrained(source, num_heads=3, device="cuda")
