"""Images of 1, 4 and 5 channels, from training to every use of the model."""

import itertools
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
import tifffile
from PIL import Image

from configs import finetune, image_folder
from tests import published
from vit_jax.inference.exporter import export_model
from vit_jax.inference.predictor import predict_images
from vit_jax.inspection.draw import visualize_files
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import load_pretrained
from vit_jax.report.write import report_files
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.loop import train
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.run.summary import header
from vit_jax.runtime import printable
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.settings import DataSettings


def make_root(root, channels):
  """Two classes that only the last channel tells apart."""
  rng = np.random.default_rng(0)
  for split, count in (("train", 16), ("val", 8)):
    for name, low in (("dark", 0), ("light", 128)):
      folder = root / split / name
      folder.mkdir(parents=True)
      for number in range(count):
        pixels = rng.integers(0, 256, (20, 29, channels), np.uint8)
        pixels[..., -1] = rng.integers(low, low + 128, (20, 29))
        if channels > 4:
          path = folder / f"{number}.tif"
          tifffile.imwrite(
            path, pixels, photometric="minisblack", planarconfig="contig"
          )
        else:
          image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
          image.save(folder / f"{number}.png")
  return str(root)


def config_of(root, channels, **changes):
  config = image_folder.get_config()
  config.update(
    total_epochs=4.0, batch_size=16, image_size=(16, 24), channels=channels
  )
  config.normalization.update(mean=(0.4,) * channels, std=(0.3,) * channels)
  config.data.root = root
  config.model.update(
    variant="Ti/8",
    hidden_size=24,
    num_layers=1,
    mlp_size=32,
    num_heads=3,
    pooling="token",
    position="learned",
  )
  config.optimizer.warmup_epochs = 0.0
  config.train_transform.update(randaugment_layers=0, erase=0.2)
  config.loader.num_workers = 0
  config.update(changes)
  return config


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 4, 5])
def test_every_use_follows_the_checkpoint(channels, tmp_path, capsys):
  root = make_root(tmp_path / "photos", channels)
  workdir = str(tmp_path / "run")
  train(read(config_of(root, channels, eval_pictures=2)), workdir)
  metrics = evaluate_checkpoint(workdir)
  assert metrics["eval/top1"] == 1
  loaded = load_pretrained(workdir)
  assert loaded.preprocessing.image_shape == (16, 24, channels)
  paths = sorted(map(str, pathlib.Path(root, "val", "light").iterdir()))
  found = predict_images(*loaded, paths, preprocessing=loaded.preprocessing)
  assert [loaded.class_names[p.index[0]] for p in found] == ["light"] * 8
  exported = export_model(*loaded, platforms=["cpu"])
  assert exported.in_avals[0].shape[1:] == (16, 24, channels)
  assert visualize_files(workdir, paths[:2], out=str(tmp_path / "maps")) == 0
  settings = ProbeSettings(data=DataSettings(root=root), batch_size=16)
  probed = probe_checkpoint(workdir, settings, shots=5, seeds=1)
  assert probed.top1 > 0.7
  report_files([workdir], out=str(tmp_path / "report.html"))
  for to in ("hf", "timm", "google"):
    folder = str(tmp_path / to)
    convert(workdir, folder, to)
    given = {"mean": (0.4,) * channels, "std": (0.3,) * channels}
    given |= {"grid": (2, 3)} if to == "google" else {}
    again = load_pretrained(folder, num_heads=3, **given)
    assert again.preprocessing.channels == channels
    x = np.random.default_rng(1).normal(size=(2, 16, 24, channels))
    x = jnp.asarray(x, jnp.float32)
    expected, got = (
      np.asarray(one.model.apply({"params": one.params}, x))
      for one in (loaded, again)
    )
    np.testing.assert_allclose(got, expected, atol=1e-5)
  with pytest.raises(ValueError, match=f"{channels} channel.s., and not 3"):
    convert(workdir, str(tmp_path / "tv"), "torchvision", gelu="exact")


@pytest.mark.slow
def test_each_command_says_once_that_bands_are_left_out(tmp_path, capsys):
  root = tmp_path / "tiles"
  rng = np.random.default_rng(0)
  for split, name in itertools.product(("train", "val"), ("a", "b")):
    folder = root / split / name
    folder.mkdir(parents=True)
    for number in range(8):
      tifffile.imwrite(
        folder / f"{number}.tif",
        rng.integers(0, 256, (20, 29, 4), np.uint8),
        photometric="rgb",
        extrasamples=[0],
      )
  workdir = str(tmp_path / "run")
  paths = sorted(map(str, (root / "val" / "a").iterdir()))
  config = config_of(str(root), 3, total_epochs=1.0)
  settings = ProbeSettings(data=DataSettings(root=str(root)), batch_size=16)

  def said(work):
    printable.said_once.clear()
    capsys.readouterr()
    work()
    return "".join(capsys.readouterr()).count("further bands or pages that")

  assert said(lambda: train(read(config), workdir)) == 1
  loaded = load_pretrained(workdir)
  options = {"shots": 2, "display": Display()}
  assert said(lambda: evaluate_checkpoint(workdir)) == 1
  assert said(lambda: loaded.predict(paths)) == 1
  assert said(lambda: loaded.features(paths)) == 1
  maps = str(tmp_path / "maps")
  assert said(lambda: visualize_files(workdir, paths[:2], out=maps)) == 1
  assert said(lambda: probe_checkpoint(workdir, settings, **options)) == 1


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(mean=None, std=None), "^channels=4 needs as many .* are 3 and 3: "),
    (dict(mean=(0.5,) * 4, std=None), "there are 4 and 3: .*such as .0.5,0.5,"),
    (dict(mean=(0.5,) * 3, std=(0.5,) * 4), "there are 3 and 4: set channels"),
  ],
)
def test_a_mean_for_each_channel_is_asked_for(tmp_path, changes, message):
  config = config_of(make_root(tmp_path, 4), 4)
  config.normalization.update(changes)
  with pytest.raises(ValueError, match=message):
    make_plan(read(config))


@pytest.mark.parametrize(
  "key, value, message",
  [
    (
      "train_transform.colour_jitter",
      0.3,
      "for images of 1 or 3 channels, and",
    ),
    ("masked.rate", 0.5, "predicts colours, and the images have 4 channel"),
  ],
)
def test_what_four_channels_do_not_have(tmp_path, key, value, message):
  config = config_of(make_root(tmp_path, 4), 4)
  config.update_from_flattened_dict({key: value, "loss.label_smoothing": 0.0})
  with pytest.raises(ValueError, match=message):
    make_plan(read(config))


@pytest.mark.parametrize(
  "changes, unseen",
  [
    ({"optimizer.freeze_layers": 0}, ""),
    ({"optimizer.freeze_layers": -1}, "freeze_layers=0 trains all layers"),
    ({"lora.rank": 2}, "kernels='(msa|mlp|patches)/' adapts it as well"),
    ({"lora.rank": 2, "lora.kernels": "(msa|mlp|patches)/"}, ""),
  ],
)
def test_bands_that_no_weight_shows_are_said(tmp_path, changes, unseen):
  """LoRA's products of a kernel whose rows are 0 can only be its own."""
  config = finetune.get_config("small")
  config.pretrained = str(published.path("google_vit.npz"))
  config.data.update(root=make_root(tmp_path, 4), bands="red,green,blue,nir")
  config.normalization.update(mean=(0.5,) * 4, std=(0.5,) * 4)
  config.batch_size = 8
  if "lora.rank" in changes:
    config.optimizer.freeze_layers = 0
  plan = make_plan(replaced(read(config), changes))
  rows = dict(header(plan, "runs/x"))
  assert rows.get("bands", "").endswith(unseen)
  assert ("bands" in rows) == bool(unseen)
  assert not unseen or "does not see nir: their" in rows["bands"]
