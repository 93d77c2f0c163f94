"""The files beside a checkpoint's weights."""

import json
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import encoders, published
from vit_jax import load_pretrained
from vit_jax.pretrained.arrays import open_arrays, save_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint

TRIALS = published.FOLDER / "trials"
PICTURE = (TRIALS / "picture.png").read_bytes()
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
  """A folder with a ViT of Hugging Face's, which may be changed."""
  return pathlib.Path(shutil.copytree(published.path("hf_vit"), tmp_path / "x"))


def expected(name):
  with np.load(TRIALS / "expected.npz") as arrays:
    return arrays[name]


@pytest.mark.parametrize("older", [False, True])
def test_release_5_keeps_the_processor_in_a_section(tmp_path, capsys, older):
  """An older file beside it does not count, as in transformers."""
  shutil.copytree(encoders.path("hf_clip"), tmp_path, dirs_exist_ok=True)
  shutil.copy(TRIALS / "processor_config.json", tmp_path)
  if older:
    (tmp_path / "preprocessor_config.json").write_text('{"size": 16}')
  loaded = open_checkpoint(str(tmp_path))
  (line,) = capsys.readouterr().err.splitlines()
  assert "its features are" in line and loaded.guessed == ()
  ours = loaded.preprocessing.transform()(PICTURE).astype(int)
  assert np.abs(ours - expected("clip_levels")).max() <= 1


@pytest.mark.parametrize(
  "nested, message",
  [
    ('{"image_processor": 3}', "processor_config.json says image_processor=3,"),
    (
      '{"image_processor": {"do_pad": true}}',
      "its processor_config.json: do_pad=True: this is not supported",
    ),
  ],
)
def test_a_section_that_cannot_be_done_names_its_file(folder, nested, message):
  (folder / "processor_config.json").write_text(nested)
  with pytest.raises(ValueError, match=message):
    open_checkpoint(str(folder))


def test_defaults_that_are_taken_are_said(folder, capsys):
  open_checkpoint(str(folder))
  said = capsys.readouterr().err
  assert "is guessed: --mean=0.5,0.5,0.5 --std=0.5,0.5,0.5, and pict" in said
  path = folder / "preprocessor_config.json"
  path.write_text('{"size": 32, "resample": 2}')
  assert open_checkpoint(str(folder)).guessed == ()
  said = capsys.readouterr().err
  assert "names no image_processor_type, so ViT's image_mean, image_std" in said
  path.write_text('{"image_processor_type": "ViTImageProcessor", "size": 32}')
  open_checkpoint(str(folder))
  assert capsys.readouterr().err == ""


def answer(source):
  loaded = open_checkpoint(str(source))
  model, params = loaded
  pixels = loaded.preprocessing.transform()(PICTURE)
  images = (pixels[None] / 255 - loaded.origin.mean) / loaded.origin.std
  found = model.apply({"params": params}, jnp.asarray(images, jnp.float32))
  return loaded, np.asarray(found)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["hf", "timm", "big_vision"])
def test_pixels_that_fill_no_patch_are_left_out(tmp_path, to):
  """transformers resizes to 48, and its patches of 14 see 42 pixels.

  So does what is written in another format, once it is read back.
  """
  source, out = TRIALS / "siglip_48_by_14", tmp_path / "out"
  loaded, found = answer(source)
  assert loaded.preprocessing.whole == (48, 48)
  assert loaded.preprocessing.image_size == (42, 42)
  encoders.assert_close(found, expected("siglip_pooled"), 1e-5)
  gelu = {"gelu": "tanh"} if to == "timm" else {}
  convert(str(source), str(out), to, **gelu)
  files = [json.loads(path.read_text()) for path in out.glob("*.json")]
  assert "42" not in json.dumps(files) and "48" in json.dumps(files)
  again, same = answer(out)
  assert again.preprocessing.whole == (48, 48)
  np.testing.assert_allclose(same, found, rtol=0, atol=1e-5)


def test_the_whole_size_may_be_given_as_well():
  source = str(TRIALS / "siglip_48_by_14")
  found = open_checkpoint(source, image_size=48)
  assert found.preprocessing == open_checkpoint(source).preprocessing


@pytest.mark.parametrize(
  "new",
  [
    "model.fp16.safetensors",
    pytest.param("model-00001-of-00001.safetensors", marks=pytest.mark.slow),
    "weights.safetensors",
  ],
)
def test_weights_of_another_name_are_read(folder, new):
  (folder / WEIGHTS).rename(folder / new)
  model, params = load_pretrained(str(folder))
  published.assert_same_logits(model, params, *published.examples("hf_vit"))


def test_of_several_weights_one_has_to_be_named(folder):
  shutil.copy(folder / WEIGHTS, folder / "model.bf16.safetensors")
  (folder / WEIGHTS).rename(folder / "model.fp16.safetensors")
  with pytest.raises(
    ValueError, match="files of weights, model.bf16.saf.*: name"
  ):
    open_checkpoint(str(folder))


def test_shards_without_an_index_are_read_together(folder):
  with open_arrays(folder / WEIGHTS) as arrays:
    every = {name: np.array(arrays[name]) for name in arrays.shapes}
  (folder / WEIGHTS).unlink()
  for i, names in enumerate(np.array_split([*every], 3), 1):
    part = {str(name): every[str(name)] for name in names}
    save_arrays(folder / f"model-{i:05}-of-00003.safetensors", part)
  first, last = (folder / f"model-0000{i}-of-00003.safetensors" for i in (1, 3))
  for source in (folder, last):
    model, params = load_pretrained(str(source))
    published.assert_same_logits(model, params, *published.examples("hf_vit"))
  first.unlink()
  with pytest.raises(
    ValueError, match="one of 3 shards, and 'model-00001-of-.*not b"
  ):
    open_checkpoint(str(last))


@pytest.mark.parametrize("name", ["", "adapter_model.safetensors"])
def test_an_adapter_of_peft_says_what_to_do(folder, name):
  (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
  text = json.dumps({"base_model_name_or_path": "google/vit", "r": 8})
  (folder / "adapter_config.json").write_text(text)
  with pytest.raises(
    ValueError, match=r"an adapter of 'google/vit' that peft .*merge_and_unload"
  ):
    open_checkpoint(str(folder / name))


NAMES = {str(i): f"kind {i}" for i in range(10)}


@pytest.mark.parametrize(
  "labels, names, said",
  [
    (NAMES, tuple(NAMES.values()), ""),
    (
      {"0": "cat", "9": "owl"},
      ("cat", "class 1"),
      "2 of 10 classes; .*class 1",
    ),
    (
      {**NAMES, "12": "x"},
      ("kind 0", "kind 1"),
      "names a class 12, and the hea",
    ),
    ({"0": 5, "1": "x"}, ("5", "x"), "names 2 of 10 classes"),
    ({"0": "LABEL_0", "3": "LABEL_3"}, (), ""),
  ],
)
def test_a_class_keeps_its_own_name(folder, capsys, labels, names, said):
  path = folder / "config.json"
  config = json.loads(path.read_text()) | {"id2label": labels}
  path.write_text(json.dumps(config))
  found = open_checkpoint(str(folder)).class_names
  assert found[:2] == names[:2] and len(found) in (0, 10)
  err = capsys.readouterr().err
  assert re.search(said, err) and ("id2label" in err) == bool(said)


@pytest.mark.parametrize(
  "labels, message",
  [
    ('{"0": "a", "00": "b"}', "id2label names class 0 twice: correct it"),
    ('{"0": "a", "0": "b"}', "config.json is not JSON: it has two .* key '0'"),
    ('{"0": true}', "id2label names class 0 True, which is not a name"),
    ('{"true": "a"}', "id2label has the key 'true'; all must be numbers"),
  ],
)
def test_names_that_are_none_are_refused(folder, labels, message):
  path = folder / "config.json"
  config = json.loads(path.read_text()) | {"id2label": "LABELS"}
  path.write_text(json.dumps(config).replace('"LABELS"', labels))
  with pytest.raises(ValueError, match=message):
    open_checkpoint(str(folder))


@pytest.mark.parametrize(
  "channels, processor",
  [
    pytest.param(4, "", marks=pytest.mark.slow),
    (12, "preprocessor_config.json"),
  ],
)
def test_images_may_have_other_channels(folder, capsys, channels, processor):
  """Channels that the kernel multiplies with 0 change no answer."""
  with open_arrays(folder / WEIGHTS) as arrays:
    every = {name: np.array(arrays[name]) for name in arrays.shapes}
  (name,) = (name for name in every if "projection.weight" in name)
  kernel = every[name][:, :1]
  every[name] = np.pad(kernel, ((0, 0), (0, channels - 1), (0, 0), (0, 0)))
  wide = kernel.repeat(3, axis=1) / 3
  save_arrays(folder / WEIGHTS, every)
  if processor:
    told = {"image_processor_type": "ViTImageProcessor", "size": 32}
    told |= {"image_mean": [0.2, 0.3, 0.7], "image_std": [0.1, 0.2, 0.3]}
    (folder / processor).write_text(json.dumps(told))
  loaded = load_pretrained(str(folder))
  assert (
    f"{channels} channel(s), and a mean and a dev" in capsys.readouterr().err
  )
  mean, std = loaded.origin.mean, loaded.origin.std
  assert mean == pytest.approx((0.4 if processor else 0.5,) * channels)
  assert std == pytest.approx((0.2 if processor else 0.5,) * channels)
  save_arrays(folder / WEIGHTS, {**every, name: wide})
  usual = load_pretrained(str(folder))
  images = np.random.default_rng(0).normal(size=(2, 32, 32, channels))
  grey = images[..., :1].repeat(3, axis=3)
  found, expected = (
    jax.jit(one.model.apply)({"params": one.params}, jnp.asarray(x))
    for one, x in ((loaded, images), (usual, grey))
  )
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_mean_of_other_channels_is_refused(folder):
  """A user's numbers count, but have to be as many as the channels."""
  with open_arrays(folder / WEIGHTS) as arrays:
    every = {name: np.array(arrays[name]) for name in arrays.shapes}
  (name,) = (name for name in every if "projection.weight" in name)
  save_arrays(folder / WEIGHTS, every | {name: every[name][:, :1].copy()})
  given = dict(mean=(0.1, 0.2), std=(0.3, 0.4))
  with pytest.raises(
    ValueError, match="mean has 2 numbers, .* 1 channel.*: gi"
  ):
    open_checkpoint(str(folder), **given)
  grey = open_checkpoint(str(folder), mean=(0.1,), std=(0.3,))
  assert (grey.origin.mean, grey.origin.std) == ((0.1,), (0.3,))


@pytest.mark.parametrize(
  "names, message",
  [
    (
      ("pytorch_model.bin",),
      "only as pytorch_model.bin, which can run code wh",
    ),
    (("model.pt", "optimizer.pt"), "2 pickles .model.pt and others., .* safet"),
  ],
)
def test_a_folder_of_pickles_says_what_to_do(folder, names, message):
  (folder / WEIGHTS).unlink()
  for name in names:
    (folder / name).write_bytes(b"PK")
  with pytest.raises(ValueError, match=message) as info:
    open_checkpoint(str(folder))
  assert "\n" not in str(info.value)
