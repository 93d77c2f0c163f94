"""Exported models, run without vit_jax and compared with `model.apply`."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.tiny import MEAN, STD, random_params
from vit_jax.export import export_checkpoint
from vit_jax.inference.exporter import export_model
from vit_jax.models import Origin, ResNet
from vit_jax.pretrained.load import load_pretrained

ORIGIN = Origin("test", "google", (16, 24), MEAN, STD)
VIT = tiny.vit(ORIGIN)
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 16, 24, 3), np.uint8)
PARAMS = random_params(VIT, (16, 24), 1)
# The type checks of the tests need the class token's B to be an int.
GAP = VIT.clone(pooling="gap")
GAP_PARAMS = random_params(GAP, (16, 24), 1)


def _logits(model, params, mean=MEAN, std=STD):
  images = ((IMAGES / 255 - mean) / std).astype(np.float32)
  return jax.jit(model.apply)({"params": params}, images)


def _save_run(folder):
  """Makes a run's folder as it is after training."""
  tiny.save_run(folder, VIT, PARAMS, (16, 24), "abcde")


def _python(*arguments, **options):
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  done = subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
    **{"env": {**environment, "JAX_PLATFORMS": "cpu"}, **options},
  )
  assert (done.returncode, done.stderr) == (0, ""), done.stderr
  return done.stdout


@pytest.mark.slow
def test_the_file_runs_where_vit_jax_is_not(tmp_path):
  """Runs the code that the command prints, on one image and on five."""
  _save_run(tmp_path / "run")
  workdir, out = str(tmp_path / "run"), str(tmp_path / 'a "b".jaxexport')
  flags = ("--platforms=tpu,cpu",)
  text = _python(
    "-m", "vit_jax.export", workdir, out, *flags, env={**os.environ}
  )
  said, code = text.split("\n\n")
  assert said.startswith(
    f"Wrote {out}: 0.1 MB, for JAX on tpu, cpu (StableHLO).\n"
  )
  assert "# uint8 (b, 16, 24, 3) -> float32 (b, 5)\n" in code
  made = "images = numpy.asarray(image).reshape(1, 16, 24, 3)"
  assert made in code
  code = code.replace(made, "")  # Others are given in its place.
  Image.fromarray(IMAGES[0]).save(tmp_path / "photo.jpg")

  np.save(tmp_path / "images.npy", IMAGES)
  program = f"""
import sys
import numpy as np
for count in (1, 5):
  images = np.load("images.npy")[:count]
  exec({code!r})
  np.save(f"logits{{count}}.npy", logits)
assert not {{"vit_jax", "flax"}} & set(sys.modules)
"""
  _python("-c", program, cwd=tmp_path)
  expected = _logits(VIT, PARAMS)
  for count in (1, 5):
    logits = np.load(tmp_path / f"logits{count}.npy")
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected[:count], atol=1e-5)


@pytest.mark.slow
def test_a_loaded_model_is_written_as_its_checkpoint_is(
  tmp_path, capsys, monkeypatch
):
  """With what was changed at loading, which no checkpoint has."""
  _save_run(tmp_path / "run")
  loaded = load_pretrained(str(tmp_path / "run"), num_classes=2)
  out = tmp_path / "out.stablehlo"
  loaded.export(out, platforms=["cpu"])
  said = capsys.readouterr().out
  assert said.startswith(f"Wrote {out}: ")
  assert said.endswith("# uint8 (b, 16, 24, 3) -> float32 (b, 2)\n")
  monkeypatch.chdir(tmp_path)
  Image.fromarray(IMAGES[0]).save("photo.jpg")
  pasted = {}  # The code runs as it is printed.
  exec(said.partition("installed:\n")[2], pasted)
  assert pasted["logits"].shape == (1, 2)
  exported = jax.export.deserialize(bytearray(out.read_bytes()))
  expected = _logits(*loaded)
  np.testing.assert_allclose(exported.call(IMAGES), expected, atol=1e-5)
  with pytest.raises(ValueError, match="platforms and param_dtype are for"):
    loaded.export(tmp_path / "out.onnx", platforms=["cpu"])
  loaded.export(tmp_path / "out.onx", platforms=["cpu"])
  said = capsys.readouterr()
  assert ".onx names no format, so it becomes stablehlo" in said.out + said.err
  with pytest.raises(
    ValueError, match="has no text tower, and cannot .* take a run"
  ):
    loaded.export(out, tower="text")


def test_the_printed_code_ends_in_the_name_of_the_class(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  names = ("a{b}", "c'd\"", "\U0001f600", "d", "e")
  tiny.save_run(tmp_path / "run", VIT, PARAMS, (16, 24), names)
  Image.fromarray(IMAGES[0]).save("photo.jpg")
  for most in (5, 4):  # With more classes than are written, their numbers.
    monkeypatch.setattr("vit_jax.export.MOST_NAMES", most)
    load_pretrained("run").export("out.stablehlo", platforms=["cpu"])
    pasted = {}
    exec(capsys.readouterr().out.partition("installed:\n")[2], pasted)
    number = int(pasted["logits"][0].argmax())
    printed = names[number] if most == 5 else number
    assert capsys.readouterr().out == f"{printed}\n"


TEXTS = pathlib.Path(__file__).parent / "checkpoints" / "texts"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_siglip", "hf_tips"])
def test_a_text_tower_gives_its_embeddings(tmp_path, capsys, name):
  out = tmp_path / "text.stablehlo"
  export_checkpoint(str(TEXTS / name), str(out), tower="text")
  said = capsys.readouterr().out
  assert "It takes the ids that " in said and ", 20 for a text, filled" in said
  assert said.endswith("embed(ids)  # int32 (b, 20) -> float32 (b, 16)\n")
  pasted = {}
  exec(said.partition("installed:\n")[2], pasted)
  assert pasted["embeddings"].shape == (1, 16)
  with np.load(TEXTS / name / "expected.npz") as stored:
    ids, expected = stored["ids"], stored["features"]
  exported = jax.export.deserialize(bytearray(out.read_bytes()))
  for count in (1, len(ids)):
    found = exported.call(ids[:count].astype(np.int32))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected[:count], atol=1e-5 * scale)


def test_a_text_tower_has_no_size_of_images(tmp_path):
  with pytest.raises(ValueError, match="image_size: these are for image tow"):
    export_checkpoint(
      str(TEXTS / "hf_siglip"),
      str(tmp_path / "a.stablehlo"),
      tower="text",
      image_size=32,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  "model",
  [
    VIT.clone(pooling="map", position="relative", representation_size=7),
    GAP.clone(patch_size=1, resnet_layers=(1, 1), resnet_width=32),
    ResNet(0, layers=(1,), width=32, origin=ORIGIN),
  ],
  ids=["map", "hybrid", "resnet"],
)
def test_every_model_keeps_its_batch_free(model):
  params = random_params(model, (16, 24), 1)
  exported = export_model(model, params)
  assert exported.platforms == ("cpu", "cuda", "tpu")
  (images,) = exported.in_avals
  assert (str(images.shape), images.dtype) == ("(b, 16, 24, 3)", np.uint8)
  logits = exported.call(IMAGES)
  assert logits.dtype == np.float32
  expected = _logits(model, params)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_onnx_has_one_type_and_no_platforms(tmp_path):
  with pytest.raises(ValueError, match="are for StableHLO: an ONNX file holds"):
    export_checkpoint("run", str(tmp_path / "a"), to="onnx", platforms=["cpu"])
  with pytest.raises(ValueError, match="are for StableHLO"):  # By its ending.
    export_checkpoint("run", str(tmp_path / "a.onnx"), platforms=["cpu"])


@pytest.mark.parametrize(
  "name, options, said",
  [
    ("a", {"to": "pytorch"}, "to='pytorch' is no format .* convert SOURCE"),
    (
      "a.onnx",
      {"to": "ONNX"},
      "to='ONNX' is no format of .* stablehlo and onn",
    ),
    ("a", {"platforms": "cpu,gpu"}, "platforms=cpu,gpu; give one or more "),
    ("a.pt", {}, r"^\.pt is no format of an exported .* out_dir --to hf` "),
    (
      "a",
      {"tower": "texts"},
      "tower='texts' is unknown; choose one of image, ",
    ),
  ],
)
def test_what_is_no_program_is_not_exported(tmp_path, name, options, said):
  with pytest.raises(ValueError, match=said):
    export_checkpoint("run", str(tmp_path / name), **options)
  assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_bfloat16_halves_the_file_and_rounds_the_parameters():
  wide, narrow = (
    export_model(GAP, GAP_PARAMS, platforms=("cpu",), param_dtype=dtype)
    for dtype in ("float32", "bfloat16")
  )
  saved = len(wide.serialize()) - len(narrow.serialize())
  size = sum(x.size for x in jax.tree.leaves(GAP_PARAMS))
  assert saved == pytest.approx(2 * size, rel=0.1)
  rounded = jax.tree.map(
    lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), GAP_PARAMS
  )
  expected = _logits(GAP, rounded)
  np.testing.assert_allclose(narrow.call(IMAGES), expected, atol=1e-5)
  assert np.abs(expected - _logits(GAP, GAP_PARAMS)).max() > 1e-4


@pytest.mark.slow
def test_a_run_is_used_with_the_type_of_its_attention(tmp_path):
  """The parameters are float32, so that bfloat16 is that of attention alone."""
  trained = GAP.clone(attention_dtype=jnp.bfloat16)
  size, names = (16, 24), "abcde"
  run = tiny.save_run(tmp_path / "run", trained, GAP_PARAMS, size, names)
  loaded = load_pretrained(str(run))
  export_checkpoint(str(run), str(tmp_path / "file"), platforms=["cpu"])
  file = jax.export.deserialize(bytearray((tmp_path / "file").read_bytes()))
  other = export_model(GAP, GAP_PARAMS, platforms=("cpu",))
  modules = [each.mlir_module() for each in (other, file)]
  assert ["bf16" in module for module in modules] == [False, True]
  expected = _logits(trained, GAP_PARAMS)
  np.testing.assert_allclose(file.call(IMAGES), expected, atol=1e-5)
  found = _logits(loaded.model, loaded.params)  # As `predict` computes them.
  np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_model_of_ones_own_takes_values_around_zero():
  """The model has no origin, and its parameters are boxed, as by `init`."""
  model = GAP.clone(origin=None, num_classes=0)
  params = random_params(model, (16, 24), 1, unbox=lambda boxed: boxed)
  exported = export_model(model, params, (16, 24), platforms=("cpu",))
  expected = _logits(model, params, 0.5, 0.5)
  np.testing.assert_allclose(exported.call(IMAGES), expected, atol=1e-5)


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(platforms=("gpu",)), "platforms=gpu; give one or more of cpu, cuda"),
    (dict(platforms=()), "platforms=; give one or more"),
    (dict(param_dtype="half"), "param_dtype='half' is unknown; choose one of"),
    (dict(image_size=20), "images of 20 x 20 do not split into patches of 8"),
    (dict(image_size=(8, 8)), "E_pos was learned with shape"),
  ],
)
def test_what_does_not_fit_is_refused(options, message):
  with pytest.raises(ValueError, match=message):
    export_model(GAP, GAP_PARAMS, **options)


def test_the_image_size_has_to_be_known():
  with pytest.raises(ValueError, match="give --image_size, such as --image"):
    export_model(GAP.clone(origin=None), GAP_PARAMS)


@pytest.mark.parametrize(
  "count, dtype, message",
  [
    (632_045_800, "float32", "take 2.53 GB, and .* at most 2.13: halve their"),
    (1_844_440_680, "float32", "take 7.38 GB, .* 2.13: run it with vit_jax.lo"),
    (
      1_844_440_680,
      "bfloat16",
      "take 3.69 GB, .* 2.13: run it with vit_jax.lo",
    ),
  ],
)
def test_too_many_parameters_are_refused_first(count, dtype, message):
  """Uses the shapes of H/14 and G/14, without any arrays."""
  params = {"head": jax.ShapeDtypeStruct((count,), jnp.float32)}
  with pytest.raises(ValueError, match=message):
    export_model(VIT, params, param_dtype=dtype)


def test_a_file_is_whole_or_not_there(tmp_path):
  out = tmp_path / "model.bin"
  out.write_bytes(b"of an earlier model")
  _save_run(tmp_path / "run")
  with pytest.raises(ValueError, match="does not divide by the model's stride"):
    export_checkpoint(str(tmp_path / "run"), str(out), image_size=20)
  with pytest.raises(ValueError, match="is a folder; name the file to write"):
    export_checkpoint(str(tmp_path / "run"), str(tmp_path))
  assert out.read_bytes() == b"of an earlier model"
  assert sorted(os.listdir(tmp_path)) == ["model.bin", "run"]
