"""The command draws figures and arrays from a published checkpoint."""

import copy
import os
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import encoders, tiny
from tests.commands import run
from tests.photos import write_photos
from tests.tiny import random_params
from vit_jax.config import base_config
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.inference.features import features
from vit_jax.inspection import attention_maps as maps
from vit_jax.inspection import embedding_maps
from vit_jax.inspection.attention_views import Options, batch_size
from vit_jax.inspection.draw import visualize_files
from vit_jax.inspection.embedding_maps import patch_colours
from vit_jax.models import Origin, make_vit
from vit_jax.models.model import normalize
from vit_jax.pretrained.load import load_pretrained
from vit_jax.visualize import visualize

ORIGIN = Origin("test", "google", (16, 24))
VIT = tiny.vit(ORIGIN).clone(num_layers=2)
OF_AN_IMAGE = [
  f"{kind}.png"
  for kind in ("attention", "layers", "patches", "rollout", "sheet")
]


def save(path, model):
  tiny.save_google(path, model, random_params(model, (16, 24), 0))
  return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  return save(tmp_path_factory.mktemp("published") / "vit.npz", VIT)


@pytest.fixture
def photos(tmp_path):
  """Two photos with the same name in two folders, and a file that is none."""
  rng = np.random.default_rng(1)
  paths = [tmp_path / "photos" / f"{k}" / "a photo.png" for k in "xyz"]
  for path in paths:
    path.parent.mkdir(parents=True)
    pixels = rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
  paths[1].write_bytes(b"no image")
  return [str(path) for path in paths]


@pytest.mark.slow
def test_the_command(photos, tmp_path, checkpoint):
  out = str(tmp_path / "out")
  done = run(
    "vit_jax.visualize",
    checkpoint,
    *photos,
    "nowhere/x.jpg",
    f"--out={out}",
    "--grid=2,3",
    "--layer=1",
    "--head_fusion=max",
    "--discard=0.5",
    "--top=2",
    "--class_name=3",
    "--pca",
    "--leave_out",
  )
  assert done.returncode == 1, done.stderr
  missing, unreadable = done.stderr.splitlines()
  assert missing.startswith("'nowhere/x.jpg' matches no image: ")
  assert unreadable == f"{photos[1]}: not an image of a known format."
  stems = ["01_a_photo", "03_a_photo"]
  kinds = sorted([*OF_AN_IMAGE, "pca.png"])
  expected = [f"{stem}_{kind}" for stem in stems for kind in kinds]
  expected += ["arrays.npz", "distance.png", "filters.png", "positions.png"]
  assert sorted(os.listdir(out)) == expected
  # A line for the model, each image, all images together and the arrays.
  first, *lines, both, last = done.stdout.splitlines()
  assert first == f"model: {out}/{{filters,positions}}.png"
  assert both == f"all images: {out}/{{distance,*_pca}}.png"
  assert last == f"arrays: {out}/arrays.npz"
  of_each = "{sheet,rollout,attention,layers,patches}.png"
  assert lines == [
    f"{photos[0]}: {out}/01_a_photo_{of_each}",
    f"{photos[2]}: {out}/03_a_photo_{of_each}",
  ]
  for name in expected:
    if name.endswith(".png"):
      with Image.open(os.path.join(out, name)) as image:
        assert min(image.size) > 100

  model, params = load_pretrained(checkpoint, grid=(2, 3))
  readable = [photos[0], photos[2]]
  pixels = np.stack([np.array(Image.open(path)) for path in readable])
  images = jnp.asarray(pixels / 127.5 - 1, jnp.float32)
  A, dA = maps.attention_gradients(model, params, images, np.array([3, 3]))
  logits = jax.jit(model.apply)({"params": params}, images)
  (last,) = features(
    model, params, images, layers=[2], as_maps=True, norm=False
  )
  left_out = maps.outliers(A, np.linalg.norm(last, axis=-1))
  A = A.without(left_out)
  filters = embedding_maps.filter_components(
    embedding_maps.embedding_filters(model, params)
  )
  E_pos = embedding_maps.position_embeddings(model, params, (16, 24))
  with np.load(os.path.join(out, "arrays.npz")) as found:
    assert found["images"].tolist() == readable
    for name, array in {
      "index": np.argsort(-logits)[:, :2],
      "probability": -np.sort(-jax.nn.softmax(logits))[:, :2],
      "rollout": maps.rollout(A, "max", 0.5),
      "relevance": maps.relevance(A, dA),
      "relevance_index": [3, 3],
      "attention": A.layers[0, :, :, 0, 1:].reshape(2, 3, 2, 3),
      "attention_layer": [1, 1],
      "layers": A.layers[:, :, :, 0, 1:]
      .mean(axis=2)
      .swapaxes(0, 1)
      .reshape(2, 2, 2, 3),
      "left_out": left_out,
      "distance": maps.mean_attention_distance(A).mean(axis=1),
      "filters": filters,
      "position_similarity": embedding_maps.position_similarity(E_pos),
    }.items():
      np.testing.assert_allclose(found[name], array, atol=1e-5)
    assert len(found.files) == 15
    (patches,) = features(model, params, images, layers=[1], as_maps=True)
    np.testing.assert_allclose(found["patches"], patches, atol=1e-5)
    colours = patch_colours([*found["patches"]])
    np.testing.assert_allclose(found["pca"], colours, atol=1e-5)


@pytest.fixture
def many(tmp_path):
  """Eleven photographs: more than are looked at at once."""
  return write_photos(tmp_path)


@pytest.mark.slow
def test_several_images_are_compiled_once(many, tmp_path, checkpoint):
  """Each has the arrays and figures of one that is drawn alone."""
  six, out, alone = (tmp_path / name for name in ("six", "out", "alone"))

  def draw(images, folder):
    assert (
      visualize_files(checkpoint, images, out=str(folder), grid=(2, 3)) == 0
    )

  draw(many[:6], six)
  with tiny.compilations() as found:
    draw(many, out)  # In two batches of six, of which one is filled up.
  assert not found
  draw(many[-1:], alone)
  with (
    np.load(out / "arrays.npz") as all_,
    np.load(alone / "arrays.npz") as one,
  ):
    assert all_["images"].tolist() == many
    for key in ("rollout", "relevance", "probability", "attention", "layers"):
      np.testing.assert_allclose(all_[key][-1], one[key][0], atol=1e-5)
  assert sum(name.endswith("rollout.png") for name in os.listdir(out)) == 11


@pytest.mark.parametrize(
  "side, patches", [(224, None), (448, AnySize(256, 14))]
)
def test_memory_bounds_the_images_at_once(side, patches):
  """L k S^2 floats, twice, of an image; S/14 at 518 pixels has 1,370 tokens."""
  small = make_vit("S/14", 10)

  def at_once(images, side, patches=None):
    images_of = Preprocessing((side, side), patches=patches)
    return batch_size(small, images, images_of)

  assert at_once(30, side, patches) == 6  # Five full batches.
  assert at_once(32, side, patches) == 8
  assert [at_once(n, side, patches) for n in (0, 3, 9)] == [1, 3, 5]
  each = 2 * 4 * 12 * 6 * 1370**2
  assert at_once(30, 518) == max(1, 2**29 // each)
  assert at_once(30, 2002) == 1


def test_a_foreground_needs_the_components():
  for options in ({"foreground": 0.5}, {"pca": True, "foreground": 1.0}):
    with pytest.raises(
      ValueError, match="give a number between 0 and 1, and --pca"
    ):
      Options(**options)


def test_without_images_the_parameters_are_drawn(tmp_path, checkpoint, capsys):
  out = tmp_path / "out"
  assert visualize_files(checkpoint, [], out=str(out), grid=(2, 3)) == 0
  names = ["arrays.npz", "filters.png", "positions.png"]
  assert sorted(os.listdir(out)) == names
  assert capsys.readouterr().err == ""
  with np.load(out / "arrays.npz") as found:
    assert sorted(found.files) == ["filters", "position_similarity"]
    assert found["filters"].shape == (23, 8, 8, 3)
    assert found["position_similarity"].shape == (2, 3, 2, 3)


@pytest.mark.parametrize("options", [{"layer": 1}, {"pca": True}, {"top": 3}])
def test_options_for_images_need_images(tmp_path, checkpoint, options):
  (name,) = options
  with pytest.raises(ValueError, match=f"--{name} is for the figures of image"):
    vit_jax.visualize(checkpoint, (), str(tmp_path / "out"), **options)
  assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pictures_unlike_the_digits_of_a_run_are_told(tmp_path, capsys):
  config = base_config()
  config.data.name = "digits"
  model, run = make_vit("Ti/4", 10, num_layers=1), tmp_path / "run"
  params = random_params(model, (8, 8), 0)
  options = {"config": config, "mean": (0.5,) * 3, "std": (0.5,) * 3}
  tiny.save_run(run, model, params, (8, 8), "0123456789", **options)
  Image.new("L", (16, 16), 255).save(tmp_path / "white.png")
  out = str(tmp_path / "out")
  visualize_files(str(run), str(tmp_path / "white.png"), out=out)
  assert "The border of this picture is bright: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_without_head_has_no_sheet(photos, tmp_path, capsys):
  path = save(tmp_path / "headless.npz", VIT.clone(num_classes=0))
  out = tmp_path / "out"
  code = visualize_files(path, photos[:1], out=str(out), grid=(2, 3))
  assert code == 0
  names = [name for name in os.listdir(out) if name.startswith("01")]
  assert sorted(names) == [f"01_a_photo_{kind}" for kind in OF_AN_IMAGE[:-1]]
  with np.load(out / "arrays.npz") as found:
    assert "relevance" not in found and found["rollout"].shape == (1, 2, 3)
  with pytest.raises(ValueError, match="--top=3 is for classes, and the model"):
    options = {"options": Options(top=3), "grid": (2, 3)}
    visualize_files(path, photos[:1], out=str(out), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, prefix",
  [("hf_dinov2_reg", 5), ("hf_dinov3", 5), ("hf_siglip", 0), ("hf_deit", 2)],
)
def test_only_an_encoders_patches_are_on_its_maps(
  photos, tmp_path, name, prefix
):
  out, path = tmp_path / "out", encoders.path(name)
  assert visualize_files(path, photos[:1], out=str(out), image_size=32) == 0
  loaded = load_pretrained(path, image_size=32)
  model, params = loaded
  with open(photos[0], "rb") as file:
    pixels = jnp.asarray(loaded.preprocessing.transform()(file.read()))[None]
  images = normalize(pixels, model.origin.mean, model.origin.std)
  _, seen = model.apply({"params": params}, images, mutable="intermediates")
  (A,) = seen["intermediates"]["block_1"]["msa"]["attention"]
  rows = A.mean(axis=2) if name == "hf_siglip" else A[:, :, 0]
  with np.load(out / "arrays.npz") as found:
    attention = rows[:, :, prefix:].reshape(1, 2, 4, 4)
    np.testing.assert_allclose(found["attention"], attention, atol=1e-5)
    assert found["rollout"].shape == (1, 4, 4)
    assert ("position_similarity" in found) == (name != "hf_dinov3")


@pytest.mark.parametrize(
  "options, message",
  [
    ({"layer": 3}, "layer=3: the model's layers are 1 to 2"),
    ({"layer": 0}, "layer=0: the model's layers are 1 to 2"),
    ({"class_name": "cat"}, "--class_name='cat' is none of the 5 classes"),
    ({"discard": 1.0}, r"discard=1.0 must be in \[0, 1\)"),
    ({"discard": "all"}, "discard='all' must be a finite number"),
    ({"top": 0}, "top=0 must be 1 or more"),
    ({"head_fusion": "sum"}, "head_fusion='sum' is unknown; choose one of mea"),
    ({"foreground": 0.5}, "--foreground=0.5: give .* and --pca=True"),
    ({"class_name": 5}, "--class_name='5' is none of the 5 classes"),
    ({"class_name": "5"}, "--class_name='5' is none of the 5 classes"),
  ],
)
def test_what_the_model_has_not_is_refused_first(
  photos, tmp_path, checkpoint, options, message
):
  out = tmp_path / "out"
  with pytest.raises(ValueError, match=message):
    visualize_files(
      checkpoint, photos, out=str(out), options=Options(**options), grid=(2, 3)
    )
  assert not out.exists()


def test_names_that_cannot_be_are_refused(tmp_path, photos):
  with pytest.raises(ValueError, match="photo.png' is a file; name the folder"):
    visualize_files("no checkpoint", [], out=photos[0])
  with pytest.raises(ValueError, match="'none.png' matches no image"):
    visualize_files("no checkpoint", ["none.png"], out=str(tmp_path))


def test_a_missing_matplotlib_is_one_line(tmp_path, monkeypatch):
  for name in [*sys.modules]:
    if (
      name.split(".")[0] == "matplotlib" or name == "vit_jax.inspection.figures"
    ):
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr("vit_jax.inspection.figures", raising=False)
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(ValueError, match=r"not installed: pip install .*figu"):
    visualize_files("no checkpoint", [], out=str(tmp_path))


@pytest.mark.slow
def test_a_loaded_model_draws_images_in_memory(tmp_path, photos, checkpoint):
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  picture = Image.open(photos[0])
  pixels = np.asarray(picture)
  given = [
    (loaded, photos[:1]),
    (loaded, picture),
    (loaded, pixels[None]),
    (loaded, [picture]),
  ]
  drawn = []
  for number, (model, images) in enumerate(given):
    folder = tmp_path / str(number)
    shown = visualize(model, images, folder, layer=1)
    (path,) = shown.paths
    with np.load(folder / "arrays.npz") as found:
      drawn.append((pathlib.Path(path).name, found["attention"]))
  assert drawn[0][0] == "01_a_photo_rollout.png"
  assert {name for name, _ in drawn[1:]} == {"01_image_1_rollout.png"}
  for _, attention in drawn:
    np.testing.assert_array_equal(attention, drawn[0][1])
  shown = loaded.visualize(picture, out=tmp_path / "own", layer=1)
  assert os.path.dirname(shown.paths[0]) == str(tmp_path / "own")


def test_what_is_shown_is_what_a_call_drew(tmp_path, photos, checkpoint):
  """And not the figures that were in the folder before."""
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  assert len(visualize(loaded, photos[::2], tmp_path).paths) == 2
  (path,) = visualize(loaded, photos[0], tmp_path).paths
  assert os.path.basename(path) == "01_a_photo_rollout.png"
  assert visualize(loaded, [], tmp_path).paths == tuple(
    str(tmp_path / name) for name in ("filters.png", "positions.png")
  )


def test_the_class_may_be_given_by_its_number(photos, checkpoint):
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  by_number, by_text, other = (
    np.asarray(loaded.attention(photos[0], class_name=name))
    for name in (1, "1", 2)
  )
  np.testing.assert_array_equal(by_number, by_text)
  assert (by_number != other).any()


def test_a_loaded_model_takes_no_settings_of_loading(tmp_path, checkpoint):
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  with pytest.raises(ValueError, match="^grid: give these to vit_jax.load_pre"):
    visualize(loaded, [], tmp_path / "out", grid=(2, 3))


@pytest.mark.parametrize(
  "name, kind", [("a.png", "PNG"), ("A.JPG", "JPEG"), ("new/a.jpeg", "JPEG")]
)
def test_one_image_is_drawn_to_a_file(
  tmp_path, photos, checkpoint, name, kind, capsys
):
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  file = tmp_path / name
  shown = loaded.visualize(photos[0], out=file, layer=1)
  assert shown.paths == (str(file),) and not (tmp_path / "figures").exists()
  assert f'<img src="data:image/{kind.lower()};' in shown._repr_html_()
  assert (
    "the attention of a layer, attention rollout" in capsys.readouterr().err
  )
  with Image.open(file) as drawn:
    assert drawn.format == kind
    expected = loaded.attention(photos[0], layer=1)
    assert drawn.size == expected.size
    if kind == "PNG":
      np.testing.assert_array_equal(drawn, expected)
  with pytest.raises(ValueError, match="exists and is not written over"):
    visualize(loaded, photos[0], photos[2])
  with pytest.raises(ValueError, match="2 images were given, and a picture of"):
    visualize(checkpoint, photos[::2], tmp_path / "two.png", grid=(2, 3))
  with pytest.raises(ValueError, match="a .png file, and a folder is written"):
    visualize(loaded, photos[0], tmp_path / "pca.png", pca=True)


def test_a_picture_of_attention_is_an_image_and_no_array(photos, checkpoint):
  loaded = load_pretrained(checkpoint, grid=(2, 3))
  picture: Any = loaded.attention(photos[0])
  assert isinstance(picture, Image.Image)
  pixels = np.asarray(picture)
  assert pixels.shape == (picture.height, picture.width, 3)
  for other in (picture.copy(), copy.deepcopy(picture)):
    np.testing.assert_array_equal(other, pixels)
  assert picture._repr_png_().startswith(b"\x89PNG")
  for name in ("shape", "mean", "numpy"):
    with pytest.raises(
      AttributeError, match=r"mean loaded\.attention_maps\(im"
    ):
      getattr(picture, name)
  with pytest.raises(TypeError, match=r"mean loaded\.attention_maps\(image"):
    picture[0]
  assert not hasattr(picture, "something_else")
