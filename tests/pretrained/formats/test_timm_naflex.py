"""Published encoders of images of any size answer as their libraries do."""

import dataclasses
import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import vit_jax
from tests.checkpoints.encoders import drawn
from tests.libraries import needed
from tests.models.tiny_vit import apply
from tests.rows import some_slow
from vit_jax import load_pretrained
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.models import Patches, to_fields
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.save import check_expressible

FOLDER = pathlib.Path(__file__).parents[2] / "checkpoints" / "any_size"
ENCODERS = json.loads((FOLDER / "encoders.json").read_text())
SIZES = ((40, 60), (60, 40), (5, 7), (1, 90), (70, 9), (64, 64))
QUICK = ("hf_siglip2", "naflexvit_base_patch16_par_gap")
TIMM = "naflexvit_base_patch16_par_gap"


def written(tmp_path, name, arrays=(), **config):
  """The folder of an encoder, with other arrays and another configuration."""
  told = ENCODERS[name]
  shapes = {**told["shapes"], **dict(arrays)}
  kept = {k: v for k, v in shapes.items() if v is not None}
  save_file(drawn.parameters(kept), tmp_path / "model.safetensors")
  config = json.dumps({**told["config"], **config})
  (tmp_path / "config.json").write_text(config)
  return str(tmp_path)


def given():
  """Patches, a row for each image, and what is expected of them."""
  arrays = {**np.load(FOLDER / "expected.npz")}
  counts = arrays["counts"]
  place = np.where(counts[..., None], arrays["place"], 0)
  patches = Patches(
    jnp.asarray(arrays["values"]),
    jnp.asarray(place, jnp.int32),
    jnp.asarray(np.where(counts, 0, -1), jnp.int32),
    jnp.asarray(place.max(axis=1, keepdims=True) + 1, jnp.int32),
  )
  return patches, arrays


def answers(loaded, patches):
  return np.asarray(apply(loaded.model, loaded.params, patches))[:, 0]


@pytest.mark.parametrize("name", some_slow(ENCODERS, QUICK[:1]))
def test_answers_are_the_librarys(tmp_path, name):
  loaded = load_pretrained(written(tmp_path, name))
  patches, arrays = given()
  near: Any = dict(rtol=1e-5, atol=1e-5)
  found = answers(loaded, patches)
  np.testing.assert_allclose(found, arrays[f"answer_{name}"], **near)
  if f"tokens_{name}" not in arrays:
    return
  vit = loaded.model
  tokens = apply(vit, loaded.params, patches, method="embed")
  tokens = apply(vit, loaded.params, tokens, method="run")
  if not vit.norm_pooled:
    tokens = apply(vit, loaded.params, tokens, method="normed")
  counts = np.asarray(tokens.counts)
  expected = arrays[f"tokens_{name}"][counts]
  np.testing.assert_allclose(np.asarray(tokens.z)[counts], expected, **near)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_answers_in_bfloat16_are_near(tmp_path, name):
  loaded = load_pretrained(written(tmp_path, name))
  patches, _ = given()
  half = loaded.model.clone(dtype=jnp.bfloat16)

  def tokens_and_pooled(model):
    tokens = apply(model, loaded.params, patches, method="embed")
    tokens = apply(model, loaded.params, tokens, method="run")
    pooled = apply(model, loaded.params, tokens, method="pool")
    z = apply(model, loaded.params, tokens, method="normed").z
    return np.asarray(z, np.float32)[np.asarray(tokens.counts)], pooled

  both = zip(
    tokens_and_pooled(half), tokens_and_pooled(loaded.model), strict=True
  )
  for found, expected in both:
    most = np.abs(np.asarray(expected)).max()
    error = np.abs(np.asarray(found, np.float32) - expected).max()
    assert error < 2e-2 * most


OF_TIMM = [name for name in ENCODERS if name.startswith("naflexvit")]


@pytest.mark.parametrize("name", some_slow(OF_TIMM, QUICK))
def test_what_timm_has_for_any_size_is_written_as_it_was_read(tmp_path, name):
  (tmp_path / "read").mkdir()
  loaded = load_pretrained(written(tmp_path / "read", name))
  assert not check_expressible(loaded, "timm")
  vit_jax.save(loaded, str(tmp_path / "new"), to="timm")
  again = load_pretrained(str(tmp_path / "new"))
  assert fields_of(again.model) == fields_of(loaded.model)
  assert again.preprocessing == loaded.preprocessing
  old, new = (
    load_file(tmp_path / place / "model.safetensors")
    for place in ("read", "new")
  )
  assert old.keys() == new.keys()
  for key, array in new.items():
    np.testing.assert_allclose(array, old[key], rtol=1e-6, atol=1e-7)


def fields_of(vit):
  fields = to_fields(vit)
  free = ("layer_scale", "dtype")  # Its first value changes no answer.
  return {k: v for k, v in fields.items() if k not in free}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_TIMM)
def test_timm_answers_alike_for_what_is_written(tmp_path, name):
  (timm,) = needed("timm")
  import torch  # pyright: ignore[reportMissingImports]

  (tmp_path / "read").mkdir()
  loaded = load_pretrained(written(tmp_path / "read", name))
  vit_jax.save(loaded, str(tmp_path / "new"), to="timm")
  place = f"local-dir:{tmp_path / 'new'}"
  model = timm.create_model(place, pretrained=True).eval()
  _, arrays = given()
  with torch.no_grad():
    inputs = dict(
      patches=torch.tensor(arrays["values"]),
      patch_coord=torch.tensor(arrays["place"]),
      patch_valid=torch.tensor(arrays["counts"]),
    )
    found = model(inputs)
  near: Any = dict(rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(found, arrays[f"answer_{name}"], **near)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_siglip2", "hf_siglip2_head"])
def test_a_siglip2_is_written_as_it_was_read(tmp_path, name):
  (tmp_path / "read").mkdir()
  loaded = load_pretrained(written(tmp_path / "read", name))
  vit_jax.save(loaded, str(tmp_path / "new"), to="hf")
  patches, arrays = given()
  found = answers(load_pretrained(str(tmp_path / "new")), patches)
  expected = arrays[f"answer_{name}"]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def as_big_vision(hf):
  """Arrays of transformers under big_vision's names, and in its layout."""
  heads, D = 2, 16
  new = {
    "embedding/kernel": hf["embeddings.patch_embedding.weight"].T,
    "embedding/bias": hf["embeddings.patch_embedding.bias"],
    "pos_embedding": hf["embeddings.position_embedding.weight"].reshape(
      4, 4, D
    ),
    "MAPHead_0/probe": hf["head.probe"],
  }
  block, head = "Transformer/encoderblock_0/", "MAPHead_0/"
  norms = {
    "Transformer/encoder_norm": "post_layernorm",
    f"{block}LayerNorm_0": "encoder.layers.0.layer_norm1",
    f"{block}LayerNorm_1": "encoder.layers.0.layer_norm2",
    f"{head}LayerNorm_0": "head.layernorm",
  }
  for ours, theirs in norms.items():
    new[f"{ours}/scale"] = hf[f"{theirs}.weight"]
    new[f"{ours}/bias"] = hf[f"{theirs}.bias"]
  for ours, theirs in ((block, "encoder.layers.0"), (head, "head")):
    for number in (0, 1):
      dense, fc = (
        f"{ours}MlpBlock_0/Dense_{number}",
        f"{theirs}.mlp.fc{number + 1}",
      )
      new[f"{dense}/kernel"] = hf[f"{fc}.weight"].T
      new[f"{dense}/bias"] = hf[f"{fc}.bias"]
  weights = {"MAPHead_0/": np.split(hf["head.attention.in_proj_weight"], 3)}
  biases = {"MAPHead_0/": np.split(hf["head.attention.in_proj_bias"], 3)}
  projections = [f"encoder.layers.0.self_attn.{x}_proj" for x in "qkv"]
  weights[block] = [hf[f"{name}.weight"] for name in projections]
  biases[block] = [hf[f"{name}.bias"] for name in projections]
  outs = {
    "MAPHead_0/": "head.attention.out_proj",
    block: "encoder.layers.0.self_attn.out_proj",
  }
  for ours, out in outs.items():
    msa = f"{ours}MultiHeadDotProductAttention_0/"
    three = zip(
      ("query", "key", "value"), weights[ours], biases[ours], strict=True
    )
    for name, W, b in three:
      new[f"{msa}{name}/kernel"] = W.T.reshape(D, heads, -1)
      new[f"{msa}{name}/bias"] = b.reshape(heads, -1)
    new[f"{msa}out/kernel"] = hf[f"{out}.weight"].T.reshape(heads, -1, D)
    new[f"{msa}out/bias"] = hf[f"{out}.bias"]
  return new


@pytest.mark.parametrize("prefix", some_slow(["", "params/img/"], [""]))
def test_siglip2_in_big_visions_form_answers_as_in_transformers(
  tmp_path, prefix
):
  hf = drawn.parameters(ENCODERS["hf_siglip2"]["shapes"])
  arrays = {prefix + name: x for name, x in as_big_vision(hf).items()}
  np.savez(tmp_path / "naflex.npz", **arrays)
  loaded = load_pretrained(str(tmp_path / "naflex.npz"))
  assert loaded.preprocessing.patches == AnySize(256, 4)
  assert loaded.preprocessing.size == (16, 16)
  patches, expected = given()
  found = answers(loaded, patches)
  near: Any = dict(rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(found, expected["answer_hf_siglip2"], **near)


def test_patches_in_big_visions_form_are_squares_of_three_colours(tmp_path):
  hf = drawn.parameters(ENCODERS["hf_siglip2"]["shapes"])
  arrays: Any = as_big_vision(hf)
  arrays["embedding/kernel"] = np.zeros((50, 16))
  np.savez(tmp_path / "naflex.npz", **arrays)
  with pytest.raises(ValueError, match="50 values are no square patch of thr"):
    load_pretrained(str(tmp_path / "naflex.npz"))


def with_processor(tmp_path, **changes):
  processor = dict(
    image_processor_type="Siglip2ImageProcessorFast",
    max_num_patches=20,
    patch_size=4,
    image_mean=[0.1] * 3,
    resample=2,
  )
  file = tmp_path / "preprocessor_config.json"
  file.write_text(json.dumps(processor | changes))
  return written(tmp_path, "hf_siglip2")


def pictures():
  draw = np.random.default_rng(0)
  return [draw.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]


# Each picture alone is a program of its own.
@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_pictures_keep_the_proportions_that_their_processor_keeps(
  tmp_path, number
):
  picture = pictures()[number]
  loaded = load_pretrained(with_processor(tmp_path))
  images = loaded.preprocessing
  assert images.patches == AnySize(20, 4) and images.mean == (0.1,) * 3
  found = loaded.features(pictures())[number]
  size = AnySize(20, 4).of(picture.shape[:2])
  alone = dataclasses.replace(images, size=size, patches=None)
  pixels = alone.transform()(picture) / 255
  x = jnp.asarray((pixels - 0.1) / 0.5, jnp.float32)[None]
  expected = apply(loaded.model, loaded.params, x, method="pooled")[0]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_image_size_takes_the_place_of_proportions(tmp_path):
  folder = with_processor(tmp_path)
  loaded = load_pretrained(folder, image_size=(12, 16))
  assert loaded.preprocessing.patches is None
  assert loaded.preprocess(pictures()).shape == (6, 12, 16, 3)


def test_a_processor_of_other_patches_is_refused(tmp_path):
  folder = with_processor(tmp_path, patch_size=8)
  with pytest.raises(ValueError, match="patches of 8 x 8, and its model has"):
    load_pretrained(folder)


@pytest.mark.slow
def test_a_processor_is_written_as_it_was_read(tmp_path, capsys):
  (tmp_path / "read").mkdir()
  loaded = load_pretrained(with_processor(tmp_path / "read"))
  convert(loaded, str(tmp_path / "new"), to="hf")
  assert "how images are resized" not in capsys.readouterr().err
  again = load_pretrained(str(tmp_path / "new"))
  assert again.preprocessing == loaded.preprocessing
  found, expected = again.features(pictures()), loaded.features(pictures())
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_sees_the_same_in_pictures(tmp_path):
  (transformers,) = needed("transformers")
  (tmp_path / "read").mkdir()
  loaded = load_pretrained(with_processor(tmp_path / "read"))
  new = str(tmp_path / "new")
  convert(loaded, new, to="hf")
  made = transformers.AutoImageProcessor.from_pretrained(new)
  model = transformers.Siglip2VisionModel.from_pretrained(new).eval()
  images = [Image.fromarray(picture) for picture in pictures()]
  theirs = model(**made(images, return_tensors="pt")).pooler_output
  found = loaded.features(pictures())
  np.testing.assert_allclose(found, theirs.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind, resizer", [("", None), ("Pil", "pillow")])
def test_pixels_are_those_of_transformers(kind, resizer):
  (transformers,) = needed("transformers")
  config: Any = dict(max_num_patches=20, patch_size=4, resample=2)
  made = getattr(transformers, f"Siglip2ImageProcessor{kind}")(**config)
  config["image_processor_type"] = "Siglip2ImageProcessor"
  transform = processor.read(config | dict(resizer=resizer)).transform()
  for picture in pictures():
    theirs = made([Image.fromarray(picture)], return_tensors="np")
    example: Any = {"image": picture, "label": 0, "id": ""}
    row = transform.row(example)
    assert row["size"].tolist() == theirs["spatial_shapes"].tolist()
    pixels = row["image"][: row["size"].prod()] / 255 * 2 - 1
    expected = theirs["pixel_values"][0, : len(pixels)]
    np.testing.assert_allclose(pixels, expected, atol=1e-5)


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(rope_type="axial"), "'rope_type'='axial' in model_args"),
    (dict(dynamic_img_pad=True), "only False is"),
    (dict(pos_embed_use_grid_sample=True), "only False is"),
    (dict(block_fn="Block"), "only its own is"),
    (dict(unheard=1), "NaFlexVit has no such argument"),
    (dict(pos_embed_interp_mode="area"), "resized bicubically or bilinearly"),
    (dict(patch_size=5), "48 values, which are no patches of 5 x 5"),
    (dict(pool_include_prefix=True), "average is over all tokens"),
  ],
)
def test_arguments_that_are_not_read_are_refused(tmp_path, arguments, message):
  told = ENCODERS[TIMM]["config"]["model_args"]
  folder = written(tmp_path, TIMM, model_args={**told, **arguments})
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(folder)
  assert "\n" not in str(info.value)


def test_an_unnamed_architecture_is_said(tmp_path, capsys):
  load_pretrained(written(tmp_path, TIMM, architecture=None))
  assert "how its positions are resized is guessed" in capsys.readouterr().err
