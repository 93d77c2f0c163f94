"""A valid configuration, for tests that make it invalid."""

import pytest
from PIL import Image

from configs import image_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp("data") / "photos"
  for split in ("train", "test"):
    for name in "abc":
      for k in range(8):
        path = root / split / name / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (9, 90, 200)).save(path)
  return str(root)


@pytest.fixture
def config(folder):
  config = image_folder.get_config()
  config.update(total_epochs=2.0, batch_size=8, image_size=(16, 16))
  config.data.root = folder
  config.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=3
  )
  config.optimizer.warmup_epochs = 0.0
  config.loader.num_workers = 0
  return config
