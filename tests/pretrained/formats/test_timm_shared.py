"""timm's checkpoints and their configurations."""

import shutil

import numpy as np
import pytest

from tests import tiny
from vit_jax.pretrained.formats import guesses, timm, timm_shared
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import save_as


def timm_shapes(positions, **more):
  return {
    "patch_embed.proj.weight": (48, 3, 8, 8),
    "cls_token": (1, 1, 48),
    "pos_embed": (1, positions, 48),
    "blocks.0.mlp.fc1.weight": (96, 48),
    "blocks.0.mlp.fc2.weight": (48, 96),
    "norm.weight": (48,),
    **more,
  }


@pytest.mark.parametrize(
  "config, message",
  [
    ({"model_args": 5}, "model_args=5 must be a JSON object"),
    ({"pretrained_cfg": [1]}, r"pretrained_cfg=\[1\] must be a JSON object"),
    ({"model_args": {"num_heads": "3"}}, "num_heads='3' must be a whole numb"),
    ({"model_args": {"img_size": 0}}, "img_size=0 must be a height and a wi"),
    ({"pretrained_cfg": {"input_size": 3.5}}, "img_size=3.5 must be a heigh"),
    ({"mean": 0.5}, "mean=0.5 must be a finite number"),
    ({"std": [1, 1, 0]}, r"std=\[1, 1, 0\] must be a number above 0"),
    ({"label_names": 3}, "label_names=3 must be a list of names"),
    ({"model_args": {"act_layer": ["a"]}}, r"act_layer=.* must be a text"),
    ({"global_pool": "max"}, "='max', and there is a class token: only .*'tok"),
    ({"model_args": {"global_pool": "prr"}}, "global_pool='prr', and there"),
  ],
)
def test_a_bad_timm_configuration_is_one_line(config, message):
  with pytest.raises(ValueError, match=message) as info:
    timm.infer(timm_shapes(17), config)
  assert "\n" not in str(info.value)


def test_timm_averages_only_without_a_class_token():
  shapes = timm_shapes(16)
  del shapes["cls_token"]
  architecture = timm.infer(shapes, {"global_pool": "avg"})
  assert (architecture.fields["pooling"], architecture.tokens) == ("gap", 16)
  with pytest.raises(ValueError, match="no class token: only .*'avg' is sup"):
    timm.infer(shapes, {"global_pool": "token"})


@pytest.mark.parametrize(
  "positions, config, position",
  [
    (17, {}, "learned"),
    (16, {"model_args": {"no_embed_class": False}}, "learned"),
    (16, {"model_args": {"no_embed_class": True}}, "learned_grid"),
    (16, {"architecture": "vit"}, "learned"),
    (16, {"model_args": {"img_size": [24, 40]}}, "learned"),
    (15, {"model_args": {"img_size": [24, 40]}}, "learned_grid"),
    (16, {"pretrained_cfg": {"input_size": [3, 24, 40]}}, "learned"),
    (16, {"pretrained_cfg": {"input_size": [3, 32, 32]}}, "learned_grid"),
  ],
)
def test_timm_may_leave_the_class_token_without_a_position(
  positions, config, position
):
  """With `no_embed_class` there are N positions and a class token."""
  architecture = timm.infer(timm_shapes(positions), config)
  assert architecture.fields["position"] == position
  assert architecture.tokens == positions - (position == "learned")


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("kind", ["plain", "LayerScale"])
def test_a_count_that_fits_two_grids_is_asked_for(kind, registers):
  """12 x 14 patches and the class token have as many positions as 13 x 13."""
  more = {"blocks.0.mlp.fc1.weight": (96, 48)}
  if kind == "LayerScale":
    more["blocks.0.ls1.gamma"] = (48,)
  if registers:  # In timm, they have positions if the class token has one.
    more["reg_token"] = (1, registers, 48)
  shapes = timm_shapes(169, **more)

  def read(config, grid=None):
    found = timm.infer(shapes, config, grid)
    return found.fields["position"], found.tokens

  assert read({}, (13, 13)) == ("learned_grid", 169)
  assert read({"model_args": {"img_size": 104}}) == ("learned_grid", 169)
  if registers:
    assert read({}) == ("learned_grid", 169)
    return
  with pytest.raises(ValueError, match="169 positions are for a square of pat"):
    read({})
  for config, grid in (
    ({}, (12, 14)),
    ({"model_args": {"img_size": [96, 112]}}, None),
    ({"pretrained_cfg": {"input_size": [3, 96, 112]}}, None),
    ({"pretrained_cfg": {"input_size": [3, 224, 224]}}, (12, 14)),
  ):
    assert read(config, grid) == ("learned", 168)


def test_the_grid_that_is_asked_for_is_taken(tmp_path):
  model, params = tiny.random_model((24, 40), patch_size=8)
  save_as(model, "timm", tmp_path / "out")
  bare = str(tmp_path / "bare.safetensors")
  shutil.copy(tmp_path / "out" / "model.safetensors", bare)
  options = {"num_heads": model.model.num_heads}
  with pytest.raises(ValueError, match=r"or for 15 patches and .* give grid="):
    open_checkpoint(bare, **options)
  found = open_checkpoint(bare, grid=(3, 5), **options)
  assert found.model.origin.image_size == (24, 40)
  for path, array in found.read():
    np.testing.assert_array_equal(array, params[path])


def test_timms_image_size_is_the_models_or_else_its_preprocessings():
  size = {"pretrained_cfg": {"input_size": [3, 24, 40]}}
  architecture = timm.infer(timm_shapes(16), size)
  assert architecture.image_size == (24, 40)
  own = {**size, "model_args": {"img_size": 32}}
  assert timm.infer(timm_shapes(16), own).image_size == (32, 32)


@pytest.mark.parametrize(
  "architecture, width, heads, gelu, guessed",
  [
    ("vit_base_patch16_gap_224", 768, 16, "gelu", False),
    ("vit_giantopt_patch16_siglip_gap_384", 1536, 16, "gelu_tanh", False),
    ("vit_so400m_patch16_siglip_gap_256", 1152, 16, "gelu_tanh", False),
    ("vit_so400m_patch14_siglip_gap_224", 1152, 16, "gelu", False),
    ("vit_base_patch32_siglip_gap_256", 768, 12, "gelu_tanh", False),
    ("vit_large_patch16_siglip_gap_512", 1024, 16, "gelu_tanh", False),
    ("vit_large_patch16_siglip_gap_384", 1024, 16, "gelu", False),
    ("vit_huge_patch14_224", 1280, 16, "gelu", False),
    ("vit_huge_plus_patch16_dinov3_qkvb", 1280, 20, "gelu", False),
    ("vit_7b_patch16_dinov3", 4096, 32, "gelu", False),
    ("vit_unheard_of", 768, 12, "gelu", True),
    (None, 768, 12, "gelu", True),
  ],
)
def test_the_architectures_name_tells_heads_and_gelu(
  architecture, width, heads, gelu, guessed
):
  """As timm 1.0.31 makes them; only an unknown name leaves a guess."""
  found = timm_shared.facts_of_name(architecture, width)
  assert found[:2] == (heads, gelu)
  assert ("num_heads" in found[2]) == guessed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_of_timm_is_as_its_name_tells():
  """Builds each of its ViTs that `Vit` can express, without its weights."""
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  timm_library = pytest.importorskip("timm", reason="needs timm")
  checked = 0
  for name in timm_library.list_models("vit_*", module="vision_transformer"):
    with torch.device("meta"):
      model = timm_library.create_model(name)
    block = model.blocks[0]
    act = getattr(getattr(block, "mlp", None), "act", None)
    tanh = getattr(act, "approximate", "none") == "tanh"
    if type(act).__name__ not in ("GELU", "GELUTanh", "GELU_"):
      continue  # Of another family.
    heads, gelu, guesses = timm_shared.facts_of_name(name, model.embed_dim)
    tanh = tanh or type(act).__name__ == "GELUTanh"
    assert (heads, gelu == "gelu_tanh") == (block.attn.num_heads, tanh), name
    assert not guesses, name
    checked += 1
  assert checked > 60


def test_a_guess_is_said_once_and_not_where_it_is_given(tmp_path, capsys):
  model, _ = tiny.random_model((16, 16), hidden_size=192, num_heads=3)
  save_as(model, "timm", tmp_path / "out")
  capsys.readouterr()
  path = str(tmp_path / "x.safetensors")
  shutil.copy(tmp_path / "out" / "model.safetensors", path)
  open_checkpoint(str(tmp_path / "out"))
  assert capsys.readouterr().err == ""
  assert open_checkpoint(path).guessed == guesses.FACTS
  said = capsys.readouterr().err
  assert said.count("\n") == 1
  assert (
    "x.safetensors: no file says the following, which is guessed: "
    "--num_heads=3 --gelu=exact --layer_norm_epsilon=1e-06 --mean=0.5,0.5,0.5 "
    "--std=0.5,0.5,0.5, and pictures are resized to cover 18 x 18 and cut to "
    "16 x 16"
  ) in said
  given = dict(gelu="tanh", layer_norm_epsilon=1e-5, std=(0.5, 0.5, 0.5))
  given["mean"] = (0.4, 0.5, 0.6)
  assert open_checkpoint(path, num_heads=3, **given).guessed == ("crop",)
  said = capsys.readouterr().err
  assert "is guessed: pictures are resized" in said and "--" not in said
