"""What no file tells of published weights."""

import pathlib
import shutil

import pytest

from tests import encoders, published
from vit_jax.data.preprocessing import HALF
from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  IMAGENET_MEAN,
  IMAGENET_STD,
)
from vit_jax.pretrained.formats import guesses
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.runtime import usage


@pytest.mark.parametrize(
  "name, mean, std, ratio",
  [
    ("timm_clip", CLIP_MEAN, CLIP_STD, 1.0),
    ("timm_deit", IMAGENET_MEAN, IMAGENET_STD, 35 / 32),
    ("timm_siglip", HALF, HALF, 35 / 32),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in [
        ("timm_dinov2_reg", IMAGENET_MEAN, IMAGENET_STD, 1.0),
        ("timm_dinov3", IMAGENET_MEAN, IMAGENET_STD, 1.0),
        ("timm_gap", HALF, HALF, 35 / 32),
      ]
    ),
  ],
)
def test_a_file_of_timm_alone_tells_its_familys_pictures(
  tmp_path, capsys, name, mean, std, ratio
):
  """The mean and crop of most of timm's models with the same arrays."""
  source = pathlib.Path(encoders.path(name), "model.safetensors")
  path = shutil.copy(source, tmp_path / "x.safetensors")
  size = dict(image_size=32) if name in ("timm_dinov3", "timm_gap") else {}
  loaded = open_checkpoint(str(path), num_heads=2, grid=(4, 4), **size)
  assert (loaded.origin.mean, loaded.origin.std) == (mean, std)
  crop = loaded.preprocessing.crop
  assert (crop.crop, crop.interpolation) == ("center", "bicubic")
  assert crop.resize_ratio == pytest.approx(ratio, abs=0.02)
  said = capsys.readouterr().err
  text = ",".join(map(str, mean))
  guesses, *others = said.splitlines()
  assert all("its features are" in line for line in others)
  assert f" --mean={text} --std=" in guesses
  assert "num_heads" not in guesses and loaded.guessed[-1] == "crop"


@pytest.mark.parametrize(
  "name, features, others",
  [
    ("hf_dinov3", "the class token", ("gap", "token_gap")),
    ("timm_dinov3", "the mean of the patches", ("token", "token_gap")),
    ("timm_siglip", "an attention pooling of the patches (a MAP head)", ()),
    ("hf_clip", "the class token, projected", ("gap",)),
  ],
)
def test_the_features_of_an_encoder_are_said(
  capsys, monkeypatch, name, features, others
):
  """Two libraries give other features of the same weights."""
  monkeypatch.setattr(usage.flags, "FLAGS", {"pooling": None})
  source = encoders.path(name)
  open_checkpoint(source)
  said = f"{source}: its features are {features}, as its library gives them"
  if others:
    said += "; " + " or ".join(f"--pooling={x}" for x in others)
    said += " takes others"
  assert f"{said}.\n" in capsys.readouterr().err
  open_checkpoint(source, reads_patches=True)
  assert "features" not in capsys.readouterr().err
  for pooling in others:
    loaded = open_checkpoint(source, pooling=pooling)
    assert loaded.model.pooling == pooling
    assert "its features are" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "name, pooling",
  [
    ("google_vit.npz", "gap"),
    ("timm_siglip", "gap"),
    ("timm_beit", "token"),
    ("hf_clip", "map"),
    ("hf_siglip_head", "token_gap"),
  ],
)
def test_a_pooling_that_a_checkpoint_has_not_is_the_cause(
  monkeypatch, name, pooling
):
  """Not a table of another size or a head too many, which the arrays tell."""
  path = published if name in published.CHECKPOINTS else encoders
  source = path.path(name)
  monkeypatch.setattr(usage.flags, "FLAGS", {})
  with pytest.raises(ValueError, match=f' has no pooling="{pooling}": its fea'):
    open_checkpoint(source, pooling=pooling)
  with pytest.raises(ValueError, match="hidden_size=7 does not split"):
    open_checkpoint(source, pooling=pooling, hidden_size=7)


def test_a_pooling_is_a_keyword_where_no_command_runs(capsys, monkeypatch):
  monkeypatch.setattr(usage.flags, "FLAGS", {})
  open_checkpoint(encoders.path("hf_dinov3"))
  said = 'pooling="gap" or pooling="token_gap" takes others.'
  assert said in capsys.readouterr().err
  monkeypatch.setattr(usage.flags, "FLAGS", {"config": None})  # Of `train`.
  open_checkpoint(encoders.path("hf_dinov3"))
  said = (
    "; --config.model.pooling=gap or --config.model.pooling=token_gap takes"
  )
  assert said in capsys.readouterr().err


def test_a_classifier_has_no_features_to_tell(capsys):
  open_checkpoint(published.path("hf_vit"))
  assert "its features are" not in capsys.readouterr().err


def test_what_the_format_tells_is_no_guess(tmp_path, capsys):
  for name in ("google_vit.npz", "big_vision_tok.npz"):
    assert open_checkpoint(published.path(name)).guessed == ()
  assert capsys.readouterr().err == ""
  source = published.path("torchvision_vit.safetensors")
  assert open_checkpoint(source, num_heads=3).guessed == ("crop",)
  assert "is guessed: pictures are resized to cov" in capsys.readouterr().err


def test_a_gated_mlp_has_no_gelu_to_guess():
  found = open_checkpoint(encoders.path("timm_dinov2_giant")).model
  assert "gelu" not in guesses.facts({*guesses.FACTS}, (), found)
  assert guesses.line((), found, None) is None
