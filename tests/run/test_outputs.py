"""Runs on a folder with files that cannot be read."""

import numpy as np
import pytest
from PIL import Image

from configs import image_folder
from tests import runs
from vit_jax.run import loop
from vit_jax.run.settings import read


@pytest.fixture
def damaged_folder(tmp_path):
  """Makes two classes of plain colour, with a truncated file in each split."""
  rng = np.random.default_rng(0)
  for split, count in (("train", 12), ("test", 5)):
    for label, name in enumerate(("dark", "light")):
      folder = tmp_path / "photos" / split / name
      folder.mkdir(parents=True)
      for k in range(count):
        level = 160 * label + rng.integers(0, 60)
        image = Image.new("RGB", (20, 16), (int(level),) * 3)
        image.save(folder / f"{k}.jpg")
    cut = tmp_path / "photos" / split / "dark" / "0.jpg"
    cut.write_bytes(cut.read_bytes()[:300])
  return tmp_path / "photos"


def _folder_config(root, **changes):
  config = image_folder.get_config()
  config.update(
    total_epochs=0.0, total_steps=9, batch_size=8, image_size=(16, 16)
  )
  config.update(log_every_epochs=0.0, log_every_steps=3)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  config.data.root = str(root)
  config.loader.update(num_workers=1, **changes)
  return config


@pytest.mark.slow
def test_an_unreadable_image_stops_the_run_by_name(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder)
  with pytest.raises(ValueError, match="(?i)dark/0.jpg: truncated"):
    loop.train(read(config), str(tmp_path / "run"))


@pytest.mark.slow
def test_unreadable_images_are_skipped_and_counted(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder, on_unreadable="skip")
  _, evaluated = loop.train(read(config), str(tmp_path / "run"))
  assert evaluated["eval/examples"] == 9
  assert evaluated["eval/skipped_images"] == 1
  rows = [row for row in runs.rows(tmp_path / "run") if "train/loss" in row]
  # Nine batches of 8 are three epochs of 24: it came up three times.
  assert sum(row["train/skipped_images"] for row in rows) == 3


@pytest.mark.slow
def test_data_that_changed_is_refused(damaged_folder, tmp_path):
  config = _folder_config(damaged_folder, on_unreadable="skip")
  loop.train(read(config), str(tmp_path / "run"))
  (damaged_folder / "train" / "dark" / "0.jpg").unlink()
  message = "train_examples was 24 and is now 23"
  with pytest.raises(ValueError, match=message):
    loop.train(read(config), str(tmp_path / "run"))
