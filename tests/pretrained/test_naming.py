"""Words before the names of a checkpoint's arrays."""

import re

import numpy as np
import pytest
import safetensors.numpy

from tests import encoders, published
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint

TIMM = published.path("timm_vit.safetensors")


def renamed(tmp_path, source, change):
  """A file with the arrays of another, named by `change(name)`."""
  arrays = safetensors.numpy.load_file(source)
  path = tmp_path / "renamed.safetensors"
  safetensors.numpy.save_file(change(arrays), path)
  return str(path)


@pytest.mark.parametrize(
  "name, before",
  [
    ("hf_vit/model.safetensors", "module."),
    ("timm_vit.safetensors", "_orig_mod."),
    ("timm_vit.safetensors", "module._orig_mod."),
    ("hf_vit/model.safetensors", "model."),
    ("torchvision_vit.safetensors", "backbone."),
  ],
)
def test_words_before_every_name_are_dropped(tmp_path, capsys, name, before):
  source = published.path(name)
  path = renamed(
    tmp_path, source, lambda x: {f"{before}{k}": v for k, v in x.items()}
  )
  loaded = open_checkpoint(path, num_heads=3)
  said = capsys.readouterr().err
  assert f"'{before}' is dropped from the start of its arrays' names" in said
  assert_same_arrays(loaded, open_checkpoint(source, num_heads=3))


def assert_same_arrays(loaded, other):
  assert loaded.shapes == other.shapes
  for (path, array), (_, same) in zip(loaded.read(), other.read(), strict=True):
    np.testing.assert_array_equal(array, same, err_msg=path)


@pytest.mark.parametrize(
  "before, others, said",
  [
    (
      "visual.trunk.",
      ["text.a.weight", "logit_scale"],
      "2 array.* .logit_scale, text.a.w",
    ),
    (
      "backbone.",
      ["head.weight"],
      "1 array is not read, as this .* use it .head.w",
    ),
    (
      "teacher.backbone.",
      ["student.backbone.{}"],
      r"'teacher.backbone.' is dr",
    ),
  ],
)
def test_a_part_of_a_larger_model_is_read(
  tmp_path, capsys, before, others, said
):
  def change(arrays):
    found = {f"{before}{k}": v for k, v in arrays.items()}
    for other in others:
      names = [*arrays] if "{}" in other else [""]
      found |= {other.format(k): np.zeros(3, np.float32) for k in names}
    return found

  loaded = open_checkpoint(renamed(tmp_path, TIMM, change), num_heads=3)
  err = capsys.readouterr().err
  assert re.search(said, err)
  assert_same_arrays(loaded, open_checkpoint(TIMM, num_heads=3))


def twice(arrays):
  return {f"{k}.{n}": v for n, v in arrays.items() for k in ("left", "right")}


LORA = "base_model.model.vit.encoder.layer.0.query.lora_A.weight"
DINOV2 = encoders.path("hf_dinov2") + "/model.safetensors"


@pytest.mark.parametrize(
  "source, change, message",
  [
    (TIMM, twice, "holds 2 models, .*'left.', 'right.': sa"),
    (
      TIMM,
      lambda _: {LORA: np.zeros((2, 8), "f4")},
      "LoRA added to a model.*merge_and_unl",
    ),
    (
      DINOV2,
      lambda x: as_dinov2(x) | {"rope_embed.periods": np.ones(4, "f4")},
      "a DINOv3 as facebookresearch/dinov3 sav",
    ),
  ],
)
def test_arrays_that_are_no_model_say_what_they_are(
  tmp_path, source, change, message
):
  with pytest.raises(ValueError, match=message):
    open_checkpoint(renamed(tmp_path, source, change))


def test_what_only_pre_training_needs_is_left_out(tmp_path, capsys):
  """As in MAE's own files, whose names are timm's."""
  own = {k: np.zeros(3, "f4") for k in ("mask_token", "decoder_embed.weight")}
  path = renamed(tmp_path, TIMM, lambda arrays: arrays | own)
  loaded = open_checkpoint(path, num_heads=3)
  assert {*loaded.unread} == own.keys()
  assert "not read" not in capsys.readouterr().err
  assert_same_arrays(loaded, open_checkpoint(TIMM, num_heads=3))
  convert(path, str(tmp_path / "out"), "timm", num_heads=3)
  said = capsys.readouterr().err
  assert "2 arrays are not read, as this model does not use them (" in said
  convert(path, str(tmp_path / "again"), "timm", num_heads=3)
  assert "not read" not in capsys.readouterr().err  # It is said once.


def of_dinov2(name):
  """facebookresearch/dinov2's name for one of transformers'."""
  parts = {
    "dinov2_with_registers.": "",
    "dinov2.": "",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.": "",
    "encoder.layer.": "blocks.0.",
    "attention.output.dense": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "weights_in": "w12",
    "weights_out": "w3",
    "layernorm": "norm",
  }
  for old, new in parts.items():
    name = name.replace(old, new)
  return name


def test_tipsv2_is_not_taken_for_dinov2(tmp_path):
  path = renamed(tmp_path, DINOV2, as_dinov2)
  (tmp_path / "config.json").write_text('{"model_type": "tipsv2_vision_model"}')
  with pytest.raises(
    ValueError, match="'tipsv2_vision_model', a type that is not k"
  ):
    open_checkpoint(path)


def as_dinov2(arrays):
  """An encoder of transformers under the names of facebookresearch/dinov2."""
  found = {}
  for name, array in arrays.items():
    if name.startswith("classifier"):
      continue
    if "attention.attention." not in name:
      found[of_dinov2(name)] = array
    elif ".query." in name:
      three = [
        arrays[name.replace("query", x)] for x in ("query", "key", "value")
      ]
      fused = of_dinov2(name.replace("attention.attention.query", "attn.qkv"))
      found[fused] = np.concatenate(three)
  return found


@pytest.mark.parametrize(
  "name, size",
  [
    pytest.param("hf_dinov2", "32x32", marks=pytest.mark.slow),
    ("hf_dinov2_reg", "24x40"),
    pytest.param("hf_dinov2_giant", "32x32", marks=pytest.mark.slow),
  ],
)
def test_dinov2s_own_names_are_read(tmp_path, name, size):
  """Those of layers that were trained in chunks; transformers' answers."""
  source = encoders.path(name) + "/model.safetensors"
  path = renamed(tmp_path, source, as_dinov2)
  loaded = open_checkpoint(path, num_heads=2)
  assert loaded.origin.format == "dinov2"
  assert loaded.origin.mean == (0.485, 0.456, 0.406)
  images, tokens, _ = encoders.expected(name, size)
  found, answer = encoders.computed(*loaded, images)
  encoders.assert_close(found, tokens)
  encoders.assert_close(answer, tokens[:, 0])
