"""Published pairs of towers as one model, against other libraries' answers."""

import dataclasses
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

import vit_jax
from tests import published
from tests.commands import run
from tests.data.pictures import png
from tests.libraries import needed
from tests.pretrained.test_text import FOLDER, stored
from vit_jax.data.reading.tokenizer import FILES
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.export import export_checkpoint
from vit_jax.models.model import represent
from vit_jax.pretrained import training_parts
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.formats import open_clip, processor
from vit_jax.pretrained.load import load_pretrained, load_text, open_checkpoint
from vit_jax.pretrained.pair import with_text
from vit_jax.pretrained.published import open_published
from vit_jax.pretrained.save import check_expressible
from vit_jax.pretrained.text import open_text

SLOW = pytest.mark.slow
NAMES = (
  "hf_siglip",
  *(
    pytest.param(name, marks=SLOW)
    for name in (
      *("hf_clip", "hf_metaclip2", "hf_siglip2", "hf_tips"),
      *("open_clip", "two_towers", "two_towers_scan"),
    )
  ),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_answers_as_its_library_does(name):
  expected = stored(name)
  loaded = open_checkpoint(str(FOLDER / name), as_trained=True)
  ids = loaded.inputs["text"](expected["captions"])
  apply = jax.jit(loaded.model.apply)
  images = jnp.asarray(expected["images"])
  params = jax.tree.map(jnp.asarray, loaded.params)
  answer = apply({"params": params}, (images, ids))
  scale = np.abs(expected["logits"]).max()
  np.testing.assert_allclose(
    answer.logits(), expected["logits"], atol=1e-5 * scale
  )
  features = expected["features"]
  lengths = np.linalg.norm(features, axis=1, keepdims=True)
  np.testing.assert_allclose(answer.text, features / lengths, atol=1e-5)


def test_arrays_are_those_that_were_said():
  loaded = open_checkpoint(str(FOLDER / "hf_clip"), as_trained=True)
  assert {path: array.shape for path, array in loaded.read()} == loaded.shapes


def test_an_encoder_alone_is_no_pair():
  encoder = pathlib.Path(FOLDER).parent / "encoders" / "hf_dinov2"
  with pytest.raises(ValueError, match="no decoder.*keep_head=False"):
    open_checkpoint(str(encoder), as_trained=True)


def test_an_image_tower_of_open_clip_is_prepared_as_it_says(capsys):
  loaded = load_pretrained(str(FOLDER / "open_clip"))
  assert loaded.preprocessing.size == (16, 16)
  assert loaded.preprocessing.mean == (0.5, 0.5, 0.5)
  crop = EvalTransformSettings("center", 1.0, "bicubic", corner="even")
  assert loaded.preprocessing.crop == crop
  assert not loaded.guessed


def test_a_rectangle_of_open_clip_is_covered_and_cut_from_the_centre():
  """A place on half a pixel is rounded to the even one, as in torchvision."""
  told = {"size": [24, 32], "resize_mode": "shortest"}
  found = processor.read(open_clip.pictures({"preprocess_cfg": told}))
  picture = np.random.default_rng(0).integers(0, 256, (27, 32, 3), np.uint8)
  pixels = found.transform()(png(picture))
  np.testing.assert_array_equal(pixels, picture[2:26])


@pytest.mark.slow
def test_a_tower_of_timms_in_open_clip_answers_beside_its_texts():
  expected, source = stored("open_siglip"), str(FOLDER / "open_siglip")
  model, params = load_pretrained(source, num_heads=2)
  y = represent(model, params, jnp.asarray(expected["images"]))
  head = load_text(source).head(expected["captions"], ["{}"])
  np.testing.assert_allclose(head.logits(y), expected["logits"], atol=1e-4)


@pytest.mark.slow
def test_a_loaded_model_embeds_texts_beside_its_images(tmp_path):
  """The logits of the library follow from both, by the formula."""
  expected, source = stored("hf_clip"), str(FOLDER / "hf_clip")
  loaded = load_pretrained(source)
  text = vit_jax.load_text(source)
  captions = [str(caption) for caption in expected["captions"]]
  v = loaded.embed_texts(captions)
  np.testing.assert_array_equal(v, text.embed(captions))
  np.testing.assert_allclose(loaded.embed_texts(captions[0]), v[:1], atol=1e-6)
  model, params = loaded
  y = jax.jit(lambda p, x: represent(model, p, x))(
    params, jnp.asarray(expected["images"])
  )
  u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (y, v))
  logits = text.scale * u @ v.T
  np.testing.assert_allclose(logits, expected["logits"], atol=1e-4)
  with pytest.raises(
    ValueError, match="^step can only .* for a run's .* is no run"
  ):
    vit_jax.load_text(source, step=3)


def test_a_model_without_texts_embeds_none():
  loaded = load_pretrained(published.path("google_vit.npz"))
  with pytest.raises(ValueError, match="npz has no text tower, and cannot"):
    loaded.embed_texts(["a cat"])
  in_memory = dataclasses.replace(loaded, open_text=None)
  with pytest.raises(ValueError, match="has no text tower, and cannot"):
    in_memory.embed_texts("a cat")


@pytest.mark.parametrize("others", [(), training_parts.OTHERS])
def test_arrays_of_a_text_tower_that_is_read_are_not_left_out(others, capsys):
  folder = FOLDER / "open_siglip"
  open_published(str(folder), folder, {"num_heads": 2}, {}, others)
  said = capsys.readouterr().err
  assert (
    "'visual.trunk.' is dropped from the start of its arrays' names"
  ) in said
  assert ("are not read, as this model does not use " in said) == (not others)


def written(name, folder, **options):
  """A pair, written whole for transformers."""
  source = str(FOLDER / name)
  convert(source, str(folder), "hf", as_trained=True, **options)
  return folder


@pytest.mark.parametrize(
  "name",
  [
    "hf_tips",
    *(
      pytest.param(name, marks=SLOW)
      for name in ("hf_clip", "hf_metaclip2", "hf_siglip", "hf_siglip2")
    ),
  ],
)
def test_what_was_read_is_written_again(tmp_path, name):
  out = written(name, tmp_path / "out")
  with (
    open_arrays(FOLDER / name / "model.safetensors") as old,
    open_arrays(out / "model.safetensors") as new,
  ):
    assert old.shapes == new.shapes
    for key in old:
      if not key.endswith("mask_token"):
        np.testing.assert_allclose(new[key], old[key], rtol=1e-6, err_msg=key)
  again = load_text(str(out))
  expected = load_text(str(FOLDER / name))
  assert again.tower == expected.tower
  for file in FILES:
    before = FOLDER / name / file
    if before.exists():
      assert (out / file).read_bytes() == before.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
  "name",
  [
    *("hf_clip", "hf_metaclip2", "hf_siglip", "hf_siglip2", "hf_tips"),
    *("open_clip", "two_towers", "two_towers_scan"),
  ],
)
def test_transformers_gives_the_same_logits_for_what_is_written(tmp_path, name):
  (transformers,) = needed("transformers")
  import torch  # pyright: ignore[reportMissingImports]

  expected = stored(name)
  source = str(written(name, tmp_path / "out"))
  model = transformers.AutoModel.from_pretrained(source).eval()
  inputs = {"input_ids": torch.tensor(expected["ids"]).long()}
  if name == "hf_tips":
    inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
  pixels = torch.tensor(expected["images"].transpose(0, 3, 1, 2).copy())
  with torch.no_grad():
    found = model(pixel_values=pixels, **inputs).logits_per_image.numpy()
  scale = np.abs(expected["logits"]).max()
  np.testing.assert_allclose(found, expected["logits"], atol=1e-5 * scale)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(pooling="mean"), "text tower's projection/kernel has no place in T"),
    (dict(causal=False), "as CLIPModel, its text tower's causal=False would"),
  ],
)
def test_a_pair_that_no_class_has_is_refused(changes, message):
  loaded = open_checkpoint(str(FOLDER / "hf_clip"), as_trained=True)
  text = loaded.model.text.clone(**changes)
  changed = dataclasses.replace(loaded, model=loaded.model.clone(text=text))
  with pytest.raises(ValueError, match=message):
    check_expressible(changed, "hf")


@pytest.mark.parametrize("to", ["timm", "big_vision", "tips"])
def test_a_format_without_pairs_refuses_them(tmp_path, to):
  message = f"{to} cannot express this model: it has no place for a text tower"
  with pytest.raises(ValueError, match=message):
    convert(str(FOLDER / "hf_clip"), str(tmp_path / "x"), to, as_trained=True)


def test_a_bias_that_clip_has_not_is_refused():
  loaded = open_checkpoint(str(FOLDER / "hf_clip"), as_trained=True)
  changed = loaded.model.clone(first_bias=-10.0)
  with pytest.raises(ValueError, match="CLIPModel has no bias of the simila"):
    check_expressible(dataclasses.replace(loaded, model=changed), "hf")


@pytest.mark.slow
def test_a_run_on_pairs_is_written_whole(tmp_path):
  """From published weights to a run, and from the run to transformers' form."""
  rng = np.random.default_rng(0)
  lines = ["file,caption"]
  for number in range(30):
    pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    lines.append(f"{number}.png,a photo of cat number {number}")
  (tmp_path / "pairs.csv").write_text("\n".join(lines))
  workdir, out = str(tmp_path / "run"), str(tmp_path / "out")
  steps = {"total_steps": 2, "save_every_steps": 2, "batch_size": 4}
  epochs = ("total", "eval_every", "save_every", "log_every")
  options = {f"{name}_epochs": 0 for name in epochs} | steps
  options |= {"loader.num_workers": 0, "optimizer.warmup_epochs": 0}
  options |= {"pretrained": FOLDER / "hf_siglip"}
  done = run(
    "vit_jax.train",
    *("--config=pairs", f"--config.data.labels_file={tmp_path / 'pairs.csv'}"),
    f"--workdir={workdir}",
    *(f"--config.{name}={value}" for name, value in options.items()),
  )
  assert done.returncode == 0, done.stderr
  convert(workdir, out, "hf", as_trained=True)
  before = open_checkpoint(workdir, as_trained=True)
  after = open_checkpoint(out, as_trained=True)
  ids = after.inputs["text"](["a photo of a cat", "number 3"])
  images = rng.normal(size=(2, 16, 16, 3)).astype(np.float32)
  logits = []
  for loaded in (before, after):
    params = jax.tree.map(jnp.asarray, loaded.read_params())
    inputs = jnp.asarray(images), jnp.asarray(ids)
    logits.append(loaded.model.apply({"params": params}, inputs).logits())
  np.testing.assert_allclose(*logits, rtol=1e-5)
  file = tmp_path / "text.stablehlo"
  export_checkpoint(workdir, str(file), tower="text", platforms=["cpu"])
  exported = jax.export.deserialize(bytearray(file.read_bytes()))
  embeddings = load_text(out).embed(["a photo of a cat", "number 3"])
  found = exported.call(np.asarray(ids, np.int32))
  np.testing.assert_allclose(found, embeddings, rtol=1e-4, atol=1e-5)
  trained, first = (
    dict(open_checkpoint(source, as_trained=True).read())["text/E"]
    for source in (out, str(FOLDER / "hf_siglip"))
  )
  assert np.abs(trained - first).max() > 0


def test_a_projection_after_timms_trunk_is_named(tmp_path):
  """As of EVA-02 and PE: a pair would compare other features."""
  folder = shutil.copytree(FOLDER / "open_siglip", tmp_path / "projected")
  path = folder / "open_clip_model.safetensors"
  arrays = load_file(path)
  arrays["visual.head.proj.weight"] = np.zeros((16, 16), np.float32)
  save_file(arrays, path)
  image = open_checkpoint(str(folder), num_heads=2)
  with pytest.raises(ValueError, match="ends in a projection of open_clip's"):
    with_text(image, folder)
  opened = open_text(str(folder), folder)
  assert "visual.head.proj.weight), which a pair has no" in opened.notes[0]
