"""transformers' masked autoencoders with their decoder, read and written.

`tests/checkpoints/README.md` says how the one here was made.
"""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from configs import mae
from tests.libraries import needed
from vit_jax.models.autoencoder import Autoencoder
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import load_pretrained, open_checkpoint
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state
from vit_jax.tasks.autoencoder.objective import Reconstruction

MAE = pathlib.Path(__file__).parents[1] / "checkpoints" / "mae"
K = 4  # Of 16 patches.


def drawn(noise):
  order = noise.argsort(axis=1)
  return {"seen": jnp.array(order[:, :K]), "hidden": jnp.array(order[:, K:])}


def check_equals(model, params, expected):
  """The loss and the pixels are transformers' for the same noise."""
  choice = drawn(expected["noise"])
  x = jnp.array(expected["images"])
  found = jax.jit(model.apply)({"params": params, "draw": choice}, x)
  hidden = np.asarray(choice["hidden"])[..., None]
  pixels = np.take_along_axis(expected["logits"], hidden, axis=1)
  np.testing.assert_allclose(found, pixels, rtol=1e-5, atol=1e-5)
  for norm in (True, False):
    objective = Reconstruction(0.75, norm, 8, (0.5,) * 3, (0.5,) * 3)
    loss, _ = jax.jit(
      lambda found, objective=objective: objective.errors(
        found, objective.targets(x, choice)
      )
    )(found)
    theirs = float(expected[f"loss_{norm}"])
    assert np.mean(loss) == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_loss_and_reconstruction_are_transformers():
  loaded = open_checkpoint(str(MAE), as_trained=True)
  model = loaded.model
  assert isinstance(model, Autoencoder) and model.decoder_mlp_size == 64
  params = loaded.read_params()
  with np.load(MAE / "expected.npz") as expected:
    check_equals(model, params, expected)
  encoder, plain = load_pretrained(str(MAE))  # As any other use has it.
  assert encoder == model.trunk
  assert "decoder" not in plain


def test_what_is_written_is_what_was_read(tmp_path):
  """Names and arrays, but for those that release 5.23 writes of the layers."""
  convert(str(MAE), tmp_path / "out", "hf", as_trained=True)
  read, written = (
    load_file(folder / "model.safetensors")
    for folder in (MAE, tmp_path / "out")
  )
  read = {
    k.replace("decoder_encoder.layer", "decoder_layers"): v
    for k, v in read.items()
  }
  assert read.keys() == written.keys()
  for name, array in read.items():
    np.testing.assert_allclose(written[name], array, atol=1e-6)
  told = json.loads((tmp_path / "out" / "config.json").read_text())
  theirs = json.loads((MAE / "config.json").read_text())
  keys = [key for key in theirs if key.startswith("decoder_")]
  keys += ["architectures", "model_type", "hidden_size", "image_size"]
  keys += ["norm_pix_loss", "mask_ratio"]
  assert {k: told[k] for k in keys} == {k: theirs[k] for k in keys}


@pytest.mark.parametrize("norm, rate", [(True, 0.75), (False, 0.5)])
def test_the_loss_is_read_and_written(tmp_path, norm, rate):
  folder = shutil.copytree(MAE, tmp_path / "mae")
  told = json.loads((folder / "config.json").read_text())
  told |= dict(norm_pix_loss=norm, mask_ratio=rate)
  (folder / "config.json").write_text(json.dumps(told))
  loaded = open_checkpoint(str(folder), as_trained=True)
  settings = loaded.task.autoencoder
  assert (settings.norm_pixels, settings.rate) == (norm, rate)
  convert(str(folder), tmp_path / "out", "hf", as_trained=True)
  written = json.loads((tmp_path / "out" / "config.json").read_text())
  assert (written["norm_pix_loss"], written["mask_ratio"]) == (norm, rate)


@pytest.mark.slow
def test_positions_that_are_zero_stay_zero(tmp_path):
  """The decoder then tells hidden patches apart by nothing, as there."""
  folder = shutil.copytree(MAE, tmp_path / "mae")
  arrays = load_file(folder / "model.safetensors")
  arrays["decoder.decoder_pos_embed"][:] = 0
  save_file(arrays, folder / "model.safetensors")
  loaded = open_checkpoint(str(folder), as_trained=True)
  assert not loaded.model.decoder_positions
  assert "decoder does not know where patches are" in loaded.notes[-1]
  with np.load(MAE / "expected.npz") as expected:
    x = jnp.array(expected["images"])
    draw = drawn(expected["noise"])
    found = jax.jit(loaded.model.apply)(
      {"params": loaded.read_params(), "draw": draw}, x
    )
    hidden = np.asarray(draw["hidden"])[..., None]
    pixels = np.take_along_axis(expected["unplaced"], hidden, axis=1)
  np.testing.assert_allclose(found, pixels, rtol=1e-5, atol=1e-5)
  convert(str(folder), tmp_path / "out", "hf", as_trained=True)
  written = load_file(tmp_path / "out" / "model.safetensors")
  assert not written["decoder.decoder_pos_embed"].any()


@pytest.mark.slow
def test_transformers_computes_the_same_of_what_is_written(tmp_path):
  (transformers,) = needed("transformers")
  torch = pytest.importorskip("torch")
  convert(str(MAE), tmp_path / "out", "hf", as_trained=True)
  model = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "out")
  with np.load(MAE / "expected.npz") as expected, torch.no_grad():
    x = torch.tensor(expected["images"].transpose(0, 3, 1, 2))
    assert model.config.norm_pix_loss
    output = model.eval()(x, noise=torch.tensor(expected["noise"]))
    np.testing.assert_allclose(
      output.logits.numpy(), expected["logits"], rtol=1e-4, atol=1e-5
    )
    assert output.loss.item() == pytest.approx(
      float(expected["loss_True"]), rel=1e-5
    )


@pytest.mark.slow
def test_pre_training_goes_on_with_the_decoder(data_dir):
  config = mae.get_config("continue")
  assert config.transfer.keep_head and config.autoencoder.decoder_size == 512
  config.update(pretrained=str(MAE), batch_size=16, log_every_epochs=0.0)
  config.data.update(name="digits", data_dir=str(data_dir), labels=True)
  config.loader.num_workers = 0
  config.autoencoder.update(decoder_size=16, decoder_layers=2, decoder_heads=2)
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  params = jax.device_get(fresh_state(plan).params)
  expected = open_checkpoint(str(MAE), as_trained=True).read_params()
  jax.tree.map(np.testing.assert_array_equal, params, jax.device_get(expected))
  assert plan.preprocessing.image_size == (32, 32)


def test_what_is_no_such_autoencoder_is_refused(tmp_path):
  bare = MAE.parent / "encoders" / "hf_mae"
  with pytest.raises(
    ValueError, match="has no decoder[.] as_trained=True is for"
  ):
    open_checkpoint(str(bare), as_trained=True)
  with pytest.raises(ValueError, match="leave out gelu"):
    open_checkpoint(str(MAE), as_trained=True, gelu="tanh")
  folder = shutil.copytree(MAE, tmp_path / "mae")
  arrays = load_file(folder / "model.safetensors")
  arrays["decoder.decoder_pos_embed"] += 1
  save_file(arrays, folder / "model.safetensors")
  with pytest.raises(ValueError, match="sine and cosine .* here, nor zero: lo"):
    open_checkpoint(str(folder), as_trained=True)
  arrays["decoder.decoder_pos_embed"] -= 1
  del arrays["decoder.decoder_pred.bias"]
  save_file(arrays, folder / "model.safetensors")
  with pytest.raises(ValueError, match="1 missing: decoder.decoder_pred.bias"):
    open_checkpoint(str(folder), as_trained=True)
