"""A loaded model: its parameters, its answers, and what a shell completes."""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image

import vit_jax
from tests import tiny
from tests.photos import (
  ORIGIN,
  PARAMS,
  VIT,
  logits_of,
  normalized,
  pixels_of,
  softmax,
  write_photos,
)
from vit_jax.inspection.attention_maps import (
  attention_gradients,
  attention_weights,
)

NAMES = ("ant", "bee", "cat", "dog", "eel")


def loaded_of(model):
  flat = traverse_util.flatten_dict(PARAMS, sep="/")
  if not model.num_classes:
    flat = {path: value for path, value in flat.items() if "head" not in path}
  shapes = {path: value.shape for path, value in flat.items()}
  reads = []

  def read():
    reads.append(model)
    return ((path, np.asarray(value)) for path, value in flat.items())

  return tiny.loaded(model, shapes, read), reads


@pytest.fixture(scope="module")
def loaded():
  origin = dataclasses.replace(ORIGIN, class_names=NAMES)
  return loaded_of(VIT.clone(origin=origin))[0]


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


def test_params_are_read_once_and_unpack_after_the_model():
  loaded, reads = loaded_of(VIT)
  assert reads == []
  model, params = loaded
  assert params is loaded.params and model is loaded.model
  assert len(reads) == 1
  ours, theirs = (traverse_util.flatten_dict(p) for p in (params, PARAMS))
  assert ours.keys() == theirs.keys()
  for path, value in theirs.items():
    np.testing.assert_array_equal(ours[path], value)


def test_a_folder_is_predicted_with_names_and_probabilities(loaded, photos):
  logits = logits_of(VIT, PARAMS, normalized([*map(pixels_of, photos)]))
  folder = pathlib.Path(photos[0]).parent
  answers = loaded.predict(folder, top=2)
  assert [answer.image for answer in answers] == photos
  for answer, row in zip(answers, logits, strict=True):
    best = np.argsort(-row)[:2]
    assert answer.names == tuple(NAMES[k] for k in best)
    expected = softmax(row[None])[0, best]
    np.testing.assert_allclose(answer.probability, expected, atol=1e-6)
  shown = f"Prediction(image={photos[0]!r}, index={answers[0].index}, "
  assert repr(answers[0]).startswith(f"{shown}probability=(")
  assert repr(answers[0]).endswith(f", names={answers[0].names})")


@pytest.mark.slow
def test_features_of_all_kinds_of_images_are_the_heads_input(loaded, photos):
  pictures = [photos[0], Image.open(photos[1]), pixels_of(photos[2])]
  x = normalized([pixels_of(path) for path in photos[:3]])
  y = logits_of(VIT.clone(num_classes=0), PARAMS, x)
  np.testing.assert_allclose(loaded.features(pictures), y, atol=1e-5)
  (tokens,) = loaded.features(pictures, layers=[1])
  assert tokens.shape == (3, 1 + 4, VIT.hidden_size)
  np.testing.assert_allclose(tokens[:, 0], y, atol=1e-5)
  (maps,) = loaded.features(pictures, layers=[1], as_maps=True)
  np.testing.assert_array_equal(maps.reshape(3, 4, -1), tokens[:, 1:])


def test_logits_are_the_outputs_of_the_head(loaded, photos):
  expected = logits_of(VIT, PARAMS, normalized([*map(pixels_of, photos)]))
  found = loaded.logits(pathlib.Path(photos[0]).parent, batch_size=2)
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, expected, atol=1e-5)
  with pytest.raises(ValueError, match=r"x\]\.pn: No such file"):
    loaded.logits([photos[0], "x].pn"])
  with pytest.raises(ValueError, match="there are no images"):
    loaded.logits([])


def test_layers_count_from_the_last_too(loaded, photos):
  """The maps of patches are those of the last layer."""
  (maps,) = loaded.features(photos[:2], layers=[1], as_maps=True)
  (last,) = loaded.features(photos[:2], layers=[-1], as_maps=True)
  np.testing.assert_array_equal(last, maps)
  found = loaded.patch_features(photos[:2])
  np.testing.assert_array_equal(found, maps)
  pictures = [loaded.attention(photos[0], layer=n) for n in (1, -1)]
  np.testing.assert_array_equal(*map(np.asarray, pictures))
  for layer in (-2, 0, 2):
    with pytest.raises(ValueError, match=f"layer={layer}: the .* are 1 to 1;"):
      loaded.attention(photos[0], layer=layer)


def test_images_are_prepared_for_the_model(loaded, photos):
  """Of every kind, one or several; they are what `model.apply` takes."""
  x = normalized([pixels_of(path) for path in photos[:3]])
  kinds = [photos[0], Image.open(photos[1]), pixels_of(photos[2])]
  np.testing.assert_allclose(loaded.preprocess(kinds), x, atol=1e-6)
  for one, expected in zip(kinds, x, strict=True):
    np.testing.assert_allclose(loaded.preprocess(one)[0], expected, atol=1e-6)


@pytest.mark.parametrize("opened", [str, pixels_of])
def test_attention_is_a_picture_of_the_photograph_and_its_maps(
  loaded, photos, opened
):
  """On the left the photograph, unchanged; then two maps and the evidence."""
  pixels = pixels_of(photos[0])
  picture = loaded.attention(opened(photos[0]), layer=1, class_name="bee")
  drawn = np.asarray(picture)
  times = 256 // len(pixels)
  large = pixels.repeat(times, 0).repeat(times, 1)
  assert drawn.shape[1] >= 4 * 256
  gap = 4 * 256 // 160
  at = [
    y
    for y in range(drawn.shape[0] - 255)
    if (drawn[y : y + 256, gap : gap + 256] == large).all()
  ]
  assert len(at) == 1


def test_a_model_without_classes_has_features(photos):
  loaded, _ = loaded_of(VIT.clone(num_classes=0))
  assert loaded.features(photos[0]).shape == (1, VIT.hidden_size)
  with pytest.raises(ValueError, match="no head, and no logits: loaded.feat"):
    loaded.logits(photos[0])


def test_a_shell_completes_what_is_meant_to_be_used(loaded):
  shown = dir(loaded)
  assert {"model", "params", "predict", "features", "class_names"} <= {*shown}
  assert not {"read", "held", "restore", "open_task", "mapped"} & {*shown}
  assert all(hasattr(loaded, name) for name in shown)


@pytest.mark.parametrize(
  "name, meant",
  [
    ("feature_map", "loaded.patch_features(images)"),
    ("get_intermediate_layers", "loaded.features(images, layers=[6, 12])"),
    ("push_to_hub", "loaded.save(folder), whose folder another program"),
    ("param", "loaded.params"),
    ("labels", "loaded.class_names"),
    ("layers", "loaded.summary(), or loaded.model.num_layers"),
    ("forward", "loaded.model.apply("),
    ("kneighbors", "loaded.find_similar(image, folder)"),
    ("reset_classifier", "vit_jax.load_pretrained(name, num_classes=3)"),
    ("attention_map", "loaded.attention(image)"),
    ("preprocessor", "loaded.preprocess(images)"),
    ("half", 'vit_jax.load_pretrained(name, dtype="bfloat16")'),
    ("add_head", "loaded.fit(folder), which trains a head"),
    ("probe", "loaded.fit(folder), which trains a head"),
  ],
)
def test_an_attribute_that_is_none_names_the_near_one(loaded, name, meant):
  text = f"no attribute '{name}'; did you mean {meant}"
  with pytest.raises(AttributeError, match=re.escape(text)):
    getattr(loaded, name)
  assert not hasattr(loaded, "_repr_png_")  # As IPython asks.


def test_a_notebook_shows_a_table_in_which_nothing_is_markup():
  origin = dataclasses.replace(
    ORIGIN, source="hf_s14_dinov2", class_names=("<b>", *NAMES[1:])
  )
  loaded = loaded_of(VIT.clone(origin=origin))[0]
  count = sum(value.size for value in jax.tree.leaves(PARAMS))
  assert loaded.num_params == count and loaded.image_size == (16, 16)
  text = loaded._repr_html_()
  rows = re.findall(r"<tr><th[^>]*>(.*?)</th><td[^>]*>(.*?)</td></tr>", text)
  assert len(rows) == text.count("<tr>")
  shown = dict(rows)
  assert shown["parameters"] == f"{count:,}"
  assert shown["classes"] == "5: &lt;b&gt;, bee, cat, dog, eel"
  assert shown["licence"] == "apache-2.0"
  assert "16 x 16" in shown["images"]


def test_the_summary_is_a_table_of_all_layers(loaded):
  text = loaded.summary()
  assert repr(text) == str(text)
  rows = {row.split()[0]: row.split(None, 2)[1:] for row in text.splitlines()}
  count, *_ = rows.pop("all")
  assert count == f"{loaded.num_params:,}"
  counts = {
    k: int(row[0].replace(",", "")) for k, row in rows.items() if k != "layer"
  }
  assert sum(counts.values()) == loaded.num_params
  D, M = VIT.hidden_size, VIT.mlp_size
  assert counts["block_0/mlp"] == 2 * D * M + D + M
  assert f"kernel {(D, 5)}" in rows["head"][1]


def test_attention_maps_are_the_class_tokens_attention(loaded, photos):
  x = normalized([pixels_of(path) for path in photos])
  A = attention_weights(VIT, PARAMS, x).layers[-1]  # (B, k, S, S)
  found = loaded.attention_maps(photos)
  assert found.shape[2:] == (2, 2)
  np.testing.assert_allclose(
    found.reshape(*A.shape[:2], -1), A[:, :, 0, 1:], atol=1e-6
  )
  with pytest.raises(ValueError, match="layer=2: the .* are 1 to 1;"):
    loaded.attention_maps(photos[0], layer=2)


def test_a_loaded_model_is_saved_and_read_again(loaded, photos, tmp_path):
  loaded.save(tmp_path / "mine", to="timm")
  with pytest.raises(
    ValueError, match="mine exists .* written over: choose an"
  ):
    loaded.save(tmp_path / "mine")
  with pytest.raises(TypeError, match="'overwrite'; another folder, or shutil"):
    loaded.save(tmp_path / "mine", overwrite=True)
  again = vit_jax.load_pretrained(tmp_path / "mine")
  np.testing.assert_allclose(
    again.logits(photos[:3]), loaded.logits(photos[:3]), atol=1e-5
  )


def test_what_is_no_run_is_not_evaluated(loaded):
  with pytest.raises(ValueError, match="test is no run, and only a run has a"):
    loaded.evaluate("folder")


@pytest.mark.slow
def test_functions_of_a_model_and_its_parameters_take_both_in_one(
  loaded, photos
):
  x = normalized([pixels_of(path) for path in photos[:2]])
  y = vit_jax.features(*loaded, x)
  np.testing.assert_array_equal(vit_jax.features(loaded, x), y)
  np.testing.assert_array_equal(vit_jax.features(loaded, images=x), y)
  prepared = vit_jax.features(loaded, photos[:2])
  np.testing.assert_array_equal(prepared, loaded.features(photos[:2]))
  weights = attention_weights(*loaded, x).layers
  for images in (x, photos[:2]):
    found = attention_weights(loaded, images).layers
    np.testing.assert_allclose(found, weights, atol=1e-6)
  classes = np.array([0, 3])
  found, gradients = attention_gradients(loaded, jnp.asarray(x), classes)
  np.testing.assert_allclose(found.layers, weights, atol=1e-6)
  assert gradients.layers.shape == weights.shape
  logits = logits_of(loaded.model, loaded.params, x)
  np.testing.assert_allclose(
    vit_jax.as_nnx(loaded)(jnp.asarray(x)), logits, atol=1e-5
  )
  model, params = vit_jax.new_head(loaded, 7)
  assert model.num_classes == 7 and params["head"]["bias"].shape == (7,)


def test_a_layer_need_not_be_in_a_list(loaded, photos):
  x = loaded.preprocess(photos[:2])
  (tokens,) = vit_jax.features(loaded, x, layers=[1])
  for found in (
    vit_jax.features(loaded, x, layers=1),
    loaded.features(photos[:2], layers=np.int64(-1)),
  ):
    np.testing.assert_allclose(found[0], tokens, atol=1e-6)


def test_platforms_may_be_a_text(loaded):
  exported = vit_jax.export_model(loaded, platforms="cpu,tpu")
  assert exported.platforms == ("cpu", "tpu")


def test_a_call_and_predict_images_are_predict(loaded, photos):
  expected = loaded.predict(photos[:2], top=2)
  assert loaded(photos[:2], top=2) == expected
  assert vit_jax.predict_images(loaded, photos[:2], top=2) == expected
  assert vit_jax.predict_images(loaded, images=photos[:2], top=2) == expected


NEAR = r"x\]\.pn: No such file or directory; did you mean .*x\]\.png\?"
REFUSED = {
  "a file that is not there": (
    lambda model, photos: model.preprocess("nowhere.png"),
    r"nowhere\.png: No such file",
  ),
  "nothing to prepare": (
    lambda model, photos: model.preprocess([]),
    "there is no image: give at least one",
  ),
  "attention of two images": (
    lambda model, photos: model.attention(photos[:2]),
    "2 images were given, .* shows one",
  ),
  "attention of none": (
    lambda model, photos: model.attention("nowhere.png"),
    r"nowhere\.png: No such file",
  ),
  "attention of a layer too many": (
    lambda model, photos: model.attention(photos[0], layer=2),
    "layer=2: the model's layers are 1 to",
  ),
  "evidence of no class": (
    lambda model, photos: model.attention(photos[0], class_name="fox"),
    "class_name='fox' is none of the 5",
  ),
  "evidence of a class that is near": (
    lambda model, photos: model.attention(photos[0], class_name="cta"),
    "counted from 0. Did you mean 'cat'",
  ),
  "a name that is near": (
    lambda model, photos: model.predict(photos[0].removesuffix("g")),
    NEAR,
  ),
  "features of such a name": (
    lambda model, photos: model.features([*photos, photos[0][:-1]]),
    NEAR,
  ),
  "features of nothing": (
    lambda model, photos: model.features([]),
    "there are no images",
  ),
  "features of a layer too many": (
    lambda model, photos: model.features(photos, layers=[2]),
    r"layers=\(2,\): .* layers 1 to 1",
  ),
  "classes of a model without": (
    lambda model, photos: loaded_of(VIT.clone(num_classes=0))[0].predict(
      photos
    ),
    r"no classes .* loaded\.features",
  ),
  "files for a function of arrays": (
    lambda model, photos: vit_jax.features(*model, photos[:2]),
    "images of type list: give floats",
  ),
  "a file to export to": (
    lambda model, photos: vit_jax.export_model(model, "m.onnx"),
    r"^image_size='m\.onnx': .*write_bytes",
  ),
  "parameters without their name": (
    lambda model, photos: model.model.apply(model.params, np.zeros(1)),
    'give model.apply.{"params": params},',
  ),
  "parameters beside the model that has them": (
    lambda model, photos: vit_jax.predict_images(model, model.params, photos),
    r"^params: .* has its own, .* or call predict_images\(loaded\.model",
  ),
  "a loss beside the model that has one": (
    lambda model, photos: vit_jax.predict_images(model, photos, loss="mse"),
    "^loss: what load_pretrained returned has its own",
  ),
  "other parameters for features": (
    lambda model, photos: vit_jax.features(
      model, model.params, model.preprocess(photos[0])
    ),
    r"^params: .* or call features\(loaded\.model, params, images\)",
  ),
  "other parameters for attention": (
    lambda model, photos: vit_jax.attention_weights(
      model, model.params, model.preprocess(photos[0])
    ),
    "^params: what load_pretrained returned has its own",
  ),
  "tokens of files without the norm": (
    lambda model, photos: vit_jax.features(
      model, photos, layers=[1], norm=False
    ),
    "norm=False is for images that are prepared already",
  ),
  "a head's input without the norm": (
    lambda model, photos: vit_jax.features(
      model, model.preprocess(photos[0]), norm=False
    ),
    "norm=False needs layers",
  ),
  "a layer and a half": (
    lambda model, photos: model.features(photos[0], layers=[1.5]),
    r"layers=\(1\.5,\): the model has layers 1 to 1",
  ),
  "attention of a layer that is a text": (
    lambda model, photos: model.attention_maps(photos[0], layer="1"),
    "layer='?1'?: the model's layers are 1 to 1",
  ),
  "a path for a function of a model": (
    lambda model, photos: vit_jax.features("runs/mine", photos[0]),
    r"^features takes a model .*load_pretrained\('runs/mine'\) makes one",
  ),
  "a path for a function that takes both in one": (
    lambda model, photos: vit_jax.new_head("runs/mine", 2),
    r"^new_head takes a model .*load_pretrained\('runs/mine'\) makes one",
  ),
  "sizes to draw what is there": (
    lambda model, photos: vit_jax.as_nnx(model, image_size=16),
    "image_size and channels are for parameters to be drawn",
  ),
  "a size that is no size": (
    lambda model, photos: vit_jax.export_model(model, model.params),
    r"^image_size=[\s\S]* must be a height and a width",
  ),
  "probabilities of nothing": (
    lambda model, photos: model.predict_proba([]),
    "there are no images",
  ),
  "a loss that no task takes": (
    lambda model, photos: vit_jax.predict_images(
      *model, photos, preprocessing=model.preprocessing, loss="hinge"
    ),
    "^loss='hinge' is unknown; choose one of softmax, sigmoid, mse",
  ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused(loaded, photos, kind):
  call, message = REFUSED[kind]
  with pytest.raises(ValueError, match=message):
    call(loaded, photos)


def test_a_file_of_several_that_cannot_be_read_has_an_error(loaded, photos):
  good, bad = loaded.predict([photos[0], "nowhere.png"])
  assert good.error is None and "No such file" in bad.error
