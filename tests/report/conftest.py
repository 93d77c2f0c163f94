"""A folder of photographs, and a run that was trained on them."""

import numpy as np
import pytest
from PIL import Image

from tests.report.example import config_of
from vit_jax.run.loop import train
from vit_jax.run.settings import read


@pytest.fixture(scope="session")
def root(tmp_path_factory):
  """Photographs of two classes that are easy to tell apart: dark and light."""
  root = tmp_path_factory.mktemp("photos")
  rng = np.random.default_rng(0)
  for split, count in (("train", 16), ("test", 6)):
    for name, low in (("dark", 0), ("light", 128)):
      folder = root / split / name
      folder.mkdir(parents=True)
      for number in range(count):
        photo = rng.integers(low, low + 128, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(photo).save(folder / f"{number}.jpg")
  return root


@pytest.fixture(scope="session")
def workdir(root, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("runs") / "a run"
  train(read(config_of(root)), str(workdir))
  return workdir
