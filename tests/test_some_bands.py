"""Runs on files that have different bands, by a token for each channel."""

import contextlib
import io
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tifffile
from PIL import Image

from configs import image_folder
from tests import runs
from tests.data.transforming.test_some_bands import tiff
from vit_jax import load_pretrained
from vit_jax.inspection.draw import visualize_files
from vit_jax.predict import mark_files
from vit_jax.pretrained.convert import convert
from vit_jax.report.measure import read_run
from vit_jax.run import loop
from vit_jax.run.experiments.probe import probe_segmentation
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.run.summary import header
from vit_jax.runtime import printable
from vit_jax.tasks.settings import DataSettings

BANDS = "blue,green,red,nir"


@pytest.fixture(scope="module")
def tiles(tmp_path_factory):
  """Files of four bands, of red and infrared, and of colours, in turn."""
  root = tmp_path_factory.mktemp("some_bands") / "tiles"
  for split, count in (("train", 12), ("val", 6)):
    for name, low in (("dark", 0), ("light", 128)):
      folder = root / split / name
      folder.mkdir(parents=True)
      for k in range(count):
        draw = np.random.default_rng((k, low, count))
        pixels = draw.integers(low, low + 128, (20, 28, 4)).astype(np.uint8)
        if k % 3 == 0:
          (folder / f"{k}.tif").write_bytes(tiff(pixels))
        elif k % 3 == 1:
          some = tiff(pixels[..., [3, 2]], ("nir", "red"))
          (folder / f"{k}.tif").write_bytes(some)
        else:
          Image.fromarray(pixels[..., [2, 1, 0]]).save(folder / f"{k}.png")
  return str(root)


@pytest.fixture
def config(tiles):
  return make_config(tiles)


def make_config(tiles, bands=BANDS):
  half = (0.5,) * len(bands.split(","))
  c = image_folder.get_config()
  c.update(total_epochs=4.0, batch_size=8, image_size=(16, 24))
  c.normalization.update(mean=half, std=half)
  c.data.update(root=tiles, bands=bands)
  c.model.update(
    variant="Ti/8",
    hidden_size=24,
    num_layers=1,
    mlp_size=32,
    num_heads=3,
    pooling="gap",
    channel_tokens=True,
    channel_sampling=True,
  )
  c.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  c.train_transform.randaugment_layers = 0
  c.loader.num_workers = 0
  return c


def test_the_header_says_which_bands_are_missing(config):
  plan = make_plan(read(config))
  rows = dict(header(plan, "runs/a"))
  assert rows["bands"] == (
    "of 24 images looked at, 8 lack blue, 8 lack green, 8 lack nir; these "
    "tokens are left out"
  )
  spec = plan.batch_spec
  assert (spec["bands"].shape, spec["bands"].dtype) == ((8, 4), bool)


def test_missing_bands_are_nan_for_the_model_and_only_there(config):
  """One batch as the loader makes it, against the files' own pixels."""
  config.train_transform.crop = "resize"
  config.train_transform.flip = False
  plan = make_plan(read(config))
  with contextlib.closing(plan.open_batches(0)) as batches:
    batch = jax.tree.map(jnp.asarray, dict(next(batches)))
  x = np.asarray(
    plan.task.objective(plan.model, plan.preprocessing).inputs(batch)
  )
  missing = np.isnan(x)
  assert (missing == missing[:, :1, :1]).all()
  assert (missing[:, 0, 0] == ~np.asarray(batch["bands"])).all()
  expected = (np.asarray(batch["image"]) / 255 - 0.5) / 0.5
  np.testing.assert_allclose(x[~missing], expected[~missing], atol=1e-6)
  kinds = {tuple(row) for row in batch["bands"].tolist()}
  assert kinds <= {
    (True,) * 4,
    (False, False, True, True),
    (True, True, True, False),
  }
  assert len(kinds) > 1


def test_models_without_tokens_of_channels_refuse_such_files(config):
  config.model.update(channel_tokens=None, channel_sampling=None)
  config.data.bands = BANDS + ",swir"
  config.normalization.update(mean=(0.5,) * 5, std=(0.5,) * 5)
  plan = make_plan(read(config))
  assert "bands" not in plan.batch_spec
  with pytest.raises(ValueError, match="5 bands are needed"):
    with contextlib.closing(plan.open_batches(0)) as batches:
      next(batches)


def test_images_of_any_size_are_refused(config):
  config.data.tokens = 12
  with pytest.raises(ValueError, match="each channel of a patch has a token"):
    make_plan(read(config))


@pytest.mark.slow
def test_a_run_learns_from_them_resumes_and_answers(
  config, tiles, tmp_path, capsys
):
  workdir = str(tmp_path / "whole")
  with contextlib.redirect_stdout(io.StringIO()):
    whole, _ = loop.train(read(config), workdir)
    runs.stop(config, tmp_path / "part", step=7)
    resumed, _ = loop.train(read(config), str(tmp_path / "part"))
  assert runs.identical(jax.device_get(whole), jax.device_get(resumed))
  assert evaluate_checkpoint(workdir)["eval/top1"] == 1
  loaded = load_pretrained(workdir)
  files = [f"{tiles}/val/light/{k}" for k in ("0.tif", "1.tif", "2.png")]
  printable.said_once.clear()
  assert loaded.predict(files[0])[0].label == "light"
  said = (
    "Some images lack bands of the model: the tokens of these bands are left"
  )
  assert said not in capsys.readouterr().err
  assert [one.label for one in loaded.predict(files)] == ["light"] * 3
  assert capsys.readouterr().err.count(said) == 1
  x = loaded.preprocess(files)
  assert np.isnan(x).any(axis=(1, 2)).tolist() == [
    [False] * 4,
    [True, True, False, False],
    [False, False, False, True],
  ]
  # The answer for a file of two bands is that for a file whose others differ.
  named = str(tmp_path / "named.tif")
  pixels = tifffile.imread(files[1])
  noise = np.random.default_rng(0).integers(0, 256, pixels.shape[:2])
  others = np.dstack([pixels, noise.astype(np.uint8)])
  (tmp_path / "named.tif").write_bytes(tiff(others, ("nir", "red", "vv")))
  one, other = (loaded.features(name) for name in (files[1], named))
  np.testing.assert_array_equal(one, other)
  (map_of_layer,) = loaded.features(files, layers=[1], as_maps=True)
  assert map_of_layer.shape == (3, 2, 3, 24)
  assert visualize_files(workdir, files, out=str(tmp_path / "maps")) == 0
  assert read_run(workdir).problem is None
  for to in ("hf", "timm", "google"):
    with pytest.raises(ValueError, match="place for a token for each channel"):
      convert(workdir, str(tmp_path / to), to)


@pytest.mark.slow
def test_a_start_goes_on_with_other_bands(config, tiles, tmp_path, capsys):
  start = str(tmp_path / "start")
  config.total_epochs = 1.0
  loop.train(read(config), start)
  old = load_pretrained(start).params
  more = make_config(tiles, "nir,swir,red,green")
  more.model.update(dict.fromkeys(more.model))
  more.update(pretrained=start, total_epochs=0.0, total_steps=1)
  more.optimizer.peak_lr = 0.0
  more.loader.on_unreadable = "skip"
  loop.train(read(more), str(tmp_path / "next"))
  said = capsys.readouterr().err
  assert "keep the vector of the same name, and those of swir begin at" in said
  new = load_pretrained(str(tmp_path / "next")).params
  vectors = np.asarray(old["E_channel"])
  expected = np.stack(
    [vectors[3], vectors.mean(axis=0), vectors[2], vectors[1]]
  )
  np.testing.assert_allclose(new["E_channel"], expected, atol=1e-6)
  one, other = (p["patches"]["E"]["kernel"] for p in (old, new))
  np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_start_of_rgb_gets_tokens_of_channels(
  config, tiles, tmp_path, capsys
):
  start = str(tmp_path / "rgb")
  colours = make_config(tiles, "red,green,blue")
  colours.model.update(channel_tokens=None, channel_sampling=None)
  colours.data.bands = None
  colours.total_epochs = 1.0
  colours.loader.on_unreadable = "skip"
  loop.train(read(colours), start)
  config.model.update(dict.fromkeys(config.model))
  config.model.update(channel_tokens=True)
  config.update(pretrained=start, total_epochs=0.0, total_steps=1)
  config.optimizer.peak_lr = 0.0
  loop.train(read(config), str(tmp_path / "next"))
  said = capsys.readouterr().err
  assert "its first kernel are added up" in said
  assert "has no vectors of channels (E_channel): they begin at 0" in said
  old, new = (
    load_pretrained(str(tmp_path / name)).params for name in ("rgb", "next")
  )
  kernel = np.asarray(old["patches"]["E"]["kernel"])
  alone = kernel.reshape(-1, 3, 24).sum(axis=1)
  np.testing.assert_allclose(new["patches"]["E"]["kernel"], alone, atol=1e-6)
  assert not np.asarray(new["E_channel"]).any()
  assert load_pretrained(str(tmp_path / "next")).model.channel_tokens


def as_array(path):
  if path.suffix == ".npy":
    return np.load(path)
  with Image.open(path) as image:
    return np.asarray(image)


def write_scenes(root, kind):
  """Blocks that the infrared shows, in files of some bands, and their labels.

  The labels are masks of two classes, or numbers that are 3 higher in a block.
  """
  for split, count in (("train", 18), ("val", 6)):
    for k in range(count):
      draw = np.random.default_rng((k, count))
      row, column = 8 * draw.integers(0, 2), 8 * draw.integers(0, 3)
      block = np.zeros((24, 32), bool)
      block[row : row + 16, column : column + 16] = True
      pixels = draw.integers(0, 40, (24, 32, 4)).astype(np.uint8)
      pixels[..., 2:] += np.uint8(180) * block[..., None]
      encoded = tiff(pixels)
      if k % 3 == 1:
        encoded = tiff(pixels[..., [3, 2]], ("nir", "red"))
      elif k % 3 == 2:
        encoded = tiff(pixels[..., [3]], ("nir",))
      labels = (1 + 3 * block).astype(np.float32)
      if kind == "segmentation":
        labels = block.astype(np.uint8)
      folder = "masks" if kind == "segmentation" else "depth"
      for name in ("images", folder):
        (root / name / split).mkdir(parents=True, exist_ok=True)
      (root / "images" / split / f"{k:02}.tif").write_bytes(encoded)
      label_file = root / folder / split / f"{k:02}"
      if kind == "segmentation":
        Image.fromarray(labels).save(label_file.with_suffix(".png"))
      else:
        np.save(label_file.with_suffix(".npy"), labels)
  return str(root)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["segmentation", "dense_regression"])
def test_pixels_get_answers_from_the_bands_that_are_there(
  kind, config, tmp_path, capsys
):
  root = write_scenes(tmp_path / "scenes", kind)
  config.data.update(root=root, task=kind)
  config.update(total_epochs=0.0, total_steps=60, image_size=(24, 32))
  config.update(eval_every_epochs=0.0, save_every_epochs=0.0)
  config.update(eval_every_steps=30, save_every_steps=30, eval_pictures=2)
  config.model.update(variant="Ti/4", num_layers=2)
  config.loss.label_smoothing = 0.0
  config.eval_transform.crop = "resize"
  workdir = str(tmp_path / "whole")
  whole, evaluated = loop.train(read(config), workdir)
  score = "mean_iou" if kind == "segmentation" else "r2"
  assert evaluated[f"eval/{score}"] > 0.7
  shown = capsys.readouterr().out
  assert "of 18 images looked at, 12 lack blue" in shown
  runs.stop(config, tmp_path / "part", step=30)
  resumed, _ = loop.train(read(config), str(tmp_path / "part"))
  assert runs.identical(jax.device_get(whole), jax.device_get(resumed))
  again = evaluate_checkpoint(workdir)
  assert again[f"eval/{score}"] == pytest.approx(evaluated[f"eval/{score}"])
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert f"eval/{kind}_2" in tags
  printable.said_once.clear()
  out = tmp_path / "out"
  files = f"{root}/images/val/*.tif"
  assert mark_files(workdir, files, str(out)) == 0
  said = "Some images lack bands of the model: the tokens of these bands are"
  assert capsys.readouterr().err.count(said) == 1
  off = []
  for label in sorted(pathlib.Path(root).glob("[md]*/val/*")):
    (answer,) = out.glob(f"[mn]*/{label.stem}.*")
    found, true = map(as_array, (answer, label))
    off.append(np.abs(found.astype(float) - true).mean())
  assert len(off) == 6
  expected = evaluated.get(
    "eval/mae", 1 - evaluated.get("eval/pixels_right", 0)
  )
  assert np.mean(off) == pytest.approx(expected, rel=1e-4)
  if kind == "segmentation":
    probe = ProbeSettings(data=DataSettings(root=root), batch_size=8)
    assert probe_segmentation(workdir, probe).mean_iou > 0.7
  assert read_run(workdir).problem is None
