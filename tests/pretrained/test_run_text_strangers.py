"""Runs on pairs from anywhere: sizes and numbers that no text tower has."""

import json
import shutil

import numpy as np
import pytest

from tests.old_runs import CHECKPOINTS, description_file
from vit_jax.models.two_towers import scale_of
from vit_jax.pretrained.load import load_text
from vit_jax.workdir.description import with_digest

SAVED = CHECKPOINTS / "saved_runs" / "pairs"


@pytest.mark.parametrize(
  "section, change, says",
  [
    ("text", {"num_layers": 10**6}, "num_layers=1000000 must be 1 or more"),
    ("text", {"num_layers": 400}, "it would have 401 layers"),
    (
      "text",
      {"hidden_size": 24},
      r"text/E has the shape \(300, 8\), and \(300",
    ),
    ("text", {"hidden_size": 10**7}, "hidden_size=10000000 must be 1 or more"),
    ("text", {"mlp_size": 7}, r"the shape \(32, 8\), and \(7, 8\) is needed"),
    ("text", {"num_heads": 3}, "does not split over num_heads=3"),
    ("text", {"vocabulary": 10**12}, "vocabulary=1000000000000 must be"),
    ("text", {"length": 10**9}, "length=1000000000 must be 1 or more"),
    ("text", {"representation_size": 3}, "the text tower 3 for a text"),
    ("model", {"num_layers": 10**6}, "it would have 1000000 layers"),
    ("model", {"hidden_size": 10**6}, "has the shape .* is needed"),
  ],
)
def test_sizes_that_no_tower_has_are_one_line(section, change, says, tmp_path):
  """Before anything is computed, and without the errors of Flax."""
  workdir = shutil.copytree(SAVED, tmp_path / "pairs")
  file = description_file(workdir)
  saved = json.loads(file.read_text())
  saved.pop("digest")
  part = saved["targets"]["text"] if section == "text" else saved["model"]
  part |= change
  file.write_text(json.dumps(with_digest(saved)))
  with pytest.raises(ValueError, match=says) as error:
    load_text(str(workdir))
  assert len(str(error.value).splitlines()) == 1
  assert str(error.value).count("damaged") == 1


@pytest.mark.parametrize("value", [1000.0, -1000.0, 89, np.nan, np.inf])
def test_a_scale_beyond_all_that_is_trained_is_one_line(value):
  with pytest.raises(ValueError, match="the logarithm of the scale of images"):
    scale_of(float(value))
  assert scale_of(0.0) == 1
