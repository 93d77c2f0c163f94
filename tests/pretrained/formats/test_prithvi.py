"""Prithvi's encoder, as its authors' code computes it."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import encoders, published
from vit_jax import load_pretrained

PATH = published.path("prithvi")


def changed(folder, change=lambda arrays: arrays, **published_facts):
  """A copy of the checkpoint with other arrays and facts."""
  shutil.copytree(PATH, folder)
  file = folder / "model.safetensors"
  save_file(change(load_file(file)), file)
  config = json.loads((folder / "config.json").read_text())
  config["pretrained_cfg"] |= published_facts
  (folder / "config.json").write_text(json.dumps(config))
  return str(folder)


def without_prefixes(arrays):
  """The names of release 1."""
  return {
    name.removeprefix("encoder.").removeprefix("decoder."): array
    for name, array in arrays.items()
  }


def expected(name):
  with np.load(f"{PATH}/expected.npz") as stored:
    return stored[f"{name}_images"], stored[f"{name}_tokens"]


def answers(model, params, images):
  """All tokens after the last norm, and the answer."""

  @jax.jit
  def run(params, images):
    z = model.apply({"params": params}, images, method="encode")[0]
    return z, model.apply({"params": params}, images)

  z, answer = map(np.asarray, run(params, images))
  deviation = np.sqrt(z.var(axis=-1, keepdims=True) + 1e-5)
  normed = (z - z.mean(axis=-1, keepdims=True)) / deviation
  norm = jax.tree.map(np.asarray, params["norm"])
  return normed * norm["scale"] + norm["bias"], answer


@pytest.mark.parametrize("release", [1, 2])
def test_tokens_of_an_image_are_the_authors(tmp_path, release):
  """Their model is of four images at as many times; it was given one."""
  path = PATH
  if release == 1:
    path = changed(tmp_path / "one", without_prefixes)
  model, params = load_pretrained(path)
  images, tokens = expected("square")
  found, answer = answers(model, params, images)
  encoders.assert_close(found, tokens, 1e-5)
  encoders.assert_close(answer, tokens[:, 0], 1e-5)


def test_positions_of_other_sizes_are_the_authors():
  """They are bicubic between the corners."""
  model, params = load_pretrained(PATH, image_size=(24, 40))
  images, tokens = expected("wide")
  encoders.assert_close(answers(model, params, images)[0], tokens, 1e-5)


def test_pixels_are_normalised_in_units_of_white():
  """A reflectance of 1 is 10,000 in a file, which is white."""
  loaded = load_pretrained(PATH)
  pictures = loaded.preprocessing
  np.testing.assert_allclose(pictures.mean[:2], [0.1087, 0.1342], rtol=1e-6)
  np.testing.assert_allclose(pictures.std[-1], 0.1049, rtol=1e-6)
  assert (pictures.channels, pictures.window) == (6, (0, 10_000))


def test_a_line_says_how_files_are_read(capsys):
  load_pretrained(PATH)
  said = capsys.readouterr().err
  assert "the values of its images are reflectances times 10,000: 10," in said


@pytest.mark.parametrize(
  "facts, options, says",
  [
    ({"img_size": None}, {}, "its 64 positions are those of one or of several"),
    ({"img_size": 24}, {}, "its 64 positions are those of one or of several"),
    ({"img_size": 0}, {}, "img_size"),
    ({"mean": [1.0]}, {}, "must have a number for each channel: give both"),
  ],
)
def test_what_does_not_fit_is_one_line(tmp_path, facts, options, says):
  path = changed(tmp_path / "other", **facts)
  with pytest.raises(ValueError, match=says) as caught:
    load_pretrained(path, **options)
  assert "\n" not in str(caught.value)


def test_a_grid_tells_the_positions_of_one_image(tmp_path):
  path = changed(tmp_path / "unknown", img_size=None)
  model, params = load_pretrained(path, grid=(4, 4))
  images, tokens = expected("square")
  encoders.assert_close(answers(model, params, images)[0], tokens, 1e-5)


def test_patches_of_several_times_are_refused(tmp_path):
  kernel = "encoder.patch_embed.proj.weight"

  def twice(arrays):
    return arrays | {kernel: arrays[kernel].repeat(2, axis=2)}

  path = changed(tmp_path / "tubelets", twice)
  with pytest.raises(
    ValueError, match="each of its patches covers 2 images of"
  ):
    load_pretrained(path)


def test_kernels_from_wavelengths_are_said(tmp_path):
  """As in Clay and DOFA."""
  name = "model.encoder.patch_embedding.weight_generator.weight_tokens"
  save_file({name: np.zeros((4, 8), "f4")}, tmp_path / "clay.safetensors")
  with pytest.raises(ValueError, match="from the wavelengths of the bands"):
    load_pretrained(str(tmp_path / "clay.safetensors"))
