"""The files in a checkpoint's folder."""

import pytest

from tests import tiny
from vit_jax import load_pretrained
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import TARGETS, save_as


def test_an_empty_folder_says_what_it_lacks(tmp_path):
  with pytest.raises(ValueError, match="without checkpoints/, which a workdir"):
    load_pretrained(str(tmp_path))


def test_a_folder_of_images_stands_for_its_run(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "my_photos").mkdir()
  (tmp_path / "my_photos" / "cat.jpg").write_bytes(b"")
  with pytest.raises(ValueError, match="images, not of weights: `vit_jax tr"):
    load_pretrained("my_photos")
  (tmp_path / "runs" / "my_photos" / "checkpoints").mkdir(parents=True)
  with pytest.raises(ValueError, match="did you mean runs/my_photos[?]$"):
    load_pretrained("my_photos")


@pytest.mark.parametrize("to", ["google", "big_vision", "torchvision"])
def test_the_folder_and_the_file_give_the_names_of_classes(tmp_path, to):
  out = tmp_path / "out"
  gelu = "exact" if to == "torchvision" else "tanh"
  save_as(tiny.random_model((16, 16), gelu=gelu)[0], to, out)
  for path in (out, out / TARGETS[to].file):
    origin = open_checkpoint(str(path), num_heads=3).origin
    assert origin.class_names == ("a", "b")
  (out / "labels.txt").write_text("a\nb\nc\n")
  with pytest.raises(ValueError, match="labels.txt names 3 classes and the mo"):
    open_checkpoint(str(out), num_heads=3)
