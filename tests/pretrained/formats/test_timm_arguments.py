"""timm's `model_args`: every argument is applied, or refused in one line."""

import functools
import importlib
import inspect
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from tests import encoders, libraries
from vit_jax.pretrained.formats import timm, timm_arguments
from vit_jax.pretrained.load import open_checkpoint

# Class -> its module in timm.
MODULES = {
  "VisionTransformer": "vision_transformer",
  "Eva": "eva",
  "Beit": "beit",
  "VisionTransformerRelPos": "vision_transformer_relpos",
}
INITIALS = dict(zip("vebr", MODULES, strict=True))
# Arguments that are another library's, or change no answer but say where.
NO_ARGUMENTS = {"self", "device", "dtype"}


def refused(tmp_path, name, **arguments):
  """The line by which a file with these arguments is refused."""
  folder = shutil.copytree(encoders.path(name), tmp_path / "changed")
  path = folder / "config.json"
  told = json.loads(path.read_text())
  told["model_args"] |= arguments
  path.write_text(json.dumps(told))
  with pytest.raises(ValueError, match="config.json|is unknown") as info:
    open_checkpoint(str(folder))
  assert "\n" not in str(info.value)
  return str(info.value)


@pytest.mark.parametrize(
  "name, arguments, message",
  [
    (
      "timm_deit3",
      dict(rope_type=False),
      "VisionTransformer has no such argum",
    ),
    ("timm_dinov3", dict(act_layer="gelu"), "Eva has no such argument"),
    ("timm_beit", dict(qk_norm=False), "Beit has no such argument"),
    ("timm_deit3", dict(unheard=False), "'unheard'=False in model_args"),
    ("timm_deit3", dict(attn_layer="diff"), "only 'attn' is"),
    ("timm_deit3", dict(block_fn="Block"), "only its own is"),
    ("timm_deit3", dict(use_naflex=True), "only False is"),
    ("timm_mae", dict(act_layer="silu"), "its MLPs have no gates for it"),
    ("timm_siglip_head", dict(act_layer="swish"), "have no gates"),
    ("timm_deit3", dict(act_layer="mish"), "act_layer='mish' is unknown"),
    ("timm_deit3", dict(norm_layer="rmsnorm"), "those of layer norms, so this"),
    ("timm_rms", dict(norm_layer="simplenorm"), "those of RMSNorm, so this"),
    ("timm_dinov3", dict(rope_rotate_half=False), "of type 'dinov3' are not"),
    ("timm_dinov3", dict(use_rot_pos_emb=False), "have another value"),
    ("timm_eva", dict(use_rot_pos_emb=True), "have another value"),
    ("timm_eva02", dict(rope_rotate_half=True), "of type 'cat' are not"),
    ("timm_eva02", dict(rope_grid_offset=0.5), "'rope_grid_offset'=0.5 in"),
    ("timm_dinov3", dict(rope_grid_offset=1.0), "'rope_grid_offset'=1.0 in"),
    ("timm_rope_mixed", dict(rope_grid_indexing="ij"), "indexing'='ij' in mo"),
    ("timm_rope", dict(rope_type="mrope"), "'rope_type'='mrope' in model_args"),
    ("timm_dinov3", dict(attn_only_layer_scale=True), "only False is"),
  ],
)
def test_what_changes_an_answer_and_is_not_read_is_refused(
  tmp_path, name, arguments, message
):
  assert message in refused(tmp_path, name, **arguments)


@pytest.mark.parametrize(
  "name, arguments, fields",
  [
    ("vit_base_patch16_clip_224", {}, dict(layer_norm_epsilon=1e-5)),
    (
      "vit_base_patch16_clip_224",
      dict(norm_layer="LayerNorm"),
      dict(layer_norm_epsilon=1e-6),
    ),
    (
      "vit_base_patch16_224",
      dict(pre_norm=True, act_layer="GELU_tanh"),
      dict(layer_norm_epsilon=1e-6, gelu="tanh", norm_pre=True),
    ),
    ("vit_base_patch16_224", dict(act_layer=""), dict(gelu="exact")),
    ("vit_base_patch16_clip_quickgelu_224", {}, dict(gelu="quick")),
    (
      "vit_base_patch16_clip_quickgelu_224",
      dict(act_layer=None),
      {"gelu": "quick"},
    ),
  ],
)
def test_the_name_and_the_arguments_tell_epsilon_and_activation(
  name, arguments, fields
):
  shapes = {
    "patch_embed.proj.weight": (48, 3, 8, 8),
    "cls_token": (1, 1, 48),
    "pos_embed": (1, 17, 48),
    "norm_pre.weight": (48,),
    "norm.weight": (48,),
    "blocks.0.mlp.fc1.weight": (96, 48),
    "blocks.0.mlp.fc2.weight": (48, 96),
  }
  config = {"architecture": name, "model_args": arguments}
  found = timm.infer(shapes, config).fields
  assert {key: found[key] for key in fields} == fields


def test_a_named_norm_of_the_patches_has_timms_epsilon():
  """That is 1e-6 in timm, and a CLIP's other norms have 1e-5."""
  shapes = {f"patch_embed.norm.{name}": (48,) for name in ("weight", "bias")}

  def found(name, **arguments):
    return timm_arguments.norm(shapes, arguments, name, 1e-6)

  fields = dict(norm_kind="layer", layer_norm_epsilon=1e-6)
  named = dict(embed_norm_layer="layernorm")
  assert found("vit_base_patch16_224", **named) == fields
  assert found("vit_base_patch16_clip_224")["layer_norm_epsilon"] == 1e-5
  with pytest.raises(ValueError, match="its patches have another norm than"):
    found("vit_base_patch16_clip_224", **named)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("initial", INITIALS)
def test_the_table_has_every_argument_of_timms_class(initial):
  libraries.needed("timm")
  module = importlib.import_module(f"timm.models.{MODULES[INITIALS[initial]]}")
  signature = inspect.signature(getattr(module, INITIALS[initial]).__init__)
  theirs = {*signature.parameters} - NO_ARGUMENTS
  assert {*timm_arguments.ARGUMENTS[initial]} == theirs | {"use_naflex"}


# Architecture -> values of arguments that are tried, where timm takes them.
BOTH = (False, True)
NORMS, ACTS = ("layernorm", "rmsnorm"), ("gelu_tanh", "quick_gelu", "silu")
VIT = dict(
  act_layer=ACTS,
  norm_layer=NORMS,
  embed_norm_layer=NORMS,
  scale_attn_norm=BOTH,
  scale_mlp_norm=BOTH,
  proj_bias=BOTH,
  pre_norm=BOTH,
  final_norm=BOTH,
  fc_norm=BOTH,
  qk_norm=BOTH,
  no_embed_class=BOTH,
  pool_include_prefix=BOTH,
  num_heads=(4,),
  global_pool=("token", "avg", "map", "max"),
  pos_embed=("none",),
  reg_tokens=(2,),
  init_values=(0.5,),
)
EVA = dict(
  use_rot_pos_emb=BOTH,
  rope_type=("cat", "mixed", "dinov3"),
  rope_grid_offset=(0.0, 1.0, 0.5),
  rope_grid_indexing=("ij", "xy"),
  rope_temperature=(50.0,),
  rope_rotate_half=BOTH,
  rope_shift_coords=(0.1,),
  ref_feat_shape=(8,),
  class_token=BOTH,
  qkv_bias=BOTH,
  qk_norm=BOTH,
  use_post_norm=BOTH,
  use_fc_norm=BOTH,
  scale_mlp=BOTH,
  swiglu_mlp=BOTH,
  num_heads=(4,),
  global_pool=("token", "avg", "map"),
  attn_pool_num_heads=(4,),
)
TRIED = {
  "vit_base_patch16_224": VIT,
  "vit_base_patch16_siglip_224": VIT,
  "vit_base_patch16_clip_224": VIT,
  "vit_giant_patch14_dinov2": VIT,
  "beit3_base_patch16_224": VIT,
  "vit_relpos_base_patch16_cls_224": VIT,
  "vit_base_r26_s32_224": dict(act_layer=ACTS, norm_layer=NORMS),
  "eva02_base_patch14_224": EVA,
  "eva_giant_patch14_224": EVA,
  "vit_small_patch16_dinov3": EVA,
  "vit_small_patch16_lingbot": EVA,
  "vit_small_patch16_rope_224": EVA,
  "vit_small_patch16_rope_mixed_224": EVA,
  "vit_pe_core_base_patch16_224": EVA,
  "beit_base_patch16_224": EVA,
}
SIZES = dict(patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
SIZES |= dict(img_size=32)


TOGETHER = 6  # Arguments that one model is made with.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRIED)
def test_each_argument_is_applied_or_refused(tmp_path, name):
  """Those that are refused together are tried in smaller parts."""
  cases, read = [{}, *together(TRIED[name])], 0
  for number, case in enumerate(cases):
    answers = reread(name, case, tmp_path / str(number))
    if answers is None and len(case) > 1:
      half = len(case) // 2
      cases += [
        dict(part) for part in ([*case.items()][:half], [*case.items()][half:])
      ]
    read += answers is not None
    for ours, theirs in answers or ():
      assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max(), case
  assert read > 1


def together(tried):
  """All values of all arguments, a few arguments at a time."""
  for row in range(max(map(len, tried.values()))):
    items = [(key, xs[row]) for key, xs in tried.items() if row < len(xs)]
    for start in range(0, len(items), TOGETHER):
      yield dict(items[start : start + TOGETHER])


def reread(name, case, folder):
  """Our answers beside timm's; None if we or timm refuse the arguments.

  At small activations the epsilon of norms shows.
  """
  timm, torch = libraries.needed("timm", "torch")
  reference = importlib.import_module("scripts.parity.reference.encoders")
  sizes = SIZES | (dict(img_size=64, patch_size=1) if "_r26_" in name else {})
  save = functools.partial(timm.models.save_for_hf, safe_serialization=True)
  try:
    model = timm.create_model(name, **(sizes | case))
    reference.randomise(model)
    images, usual = answered(torch, model, sizes["img_size"])
    save(model, folder)
  except Exception:  # timm raises errors of many kinds.
    return None
  try:
    loaded = open_checkpoint(str(folder))
  except ValueError as error:
    assert case and "\n" not in str(error)
    return None
  ours = answer_of(loaded, images)
  shrink(torch, model)
  save(model, folder)
  _, small = answered(torch, model, sizes["img_size"])
  return [(ours, usual), (answer_of(loaded, images), small)]


def answer_of(loaded, images):
  params = loaded.read_params()
  return loaded.model.apply({"params": params}, jnp.asarray(images))


def answered(torch, model, side):
  images = np.random.default_rng(0).uniform(-1, 1, (2, side, side, 3))
  images = images.astype(np.float32)
  with torch.no_grad():
    answer = model(torch.from_numpy(images.transpose(0, 3, 1, 2)))
  return images, answer.numpy()


def shrink(torch, model):
  """Scales the tokens, and what layers add to them, by a thousandth."""
  first = (
    "patch_embed.proj",
    "pos_embed",
    "cls_token",
    "reg_token",
    "norm_pre",
  )
  last = ("proj.weight", "proj.bias", "fc2.weight", "fc2.bias")
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if name.startswith(first) or name.endswith(last):
        parameter.mul_(1e-3)


@pytest.mark.parametrize(
  "name, pooling", [("timm_lingbot", "token"), ("timm_dinov3", "gap")]
)
def test_the_architecture_tells_the_pooling_that_no_file_does(
  tmp_path, name, pooling
):
  """Their arrays have the same names and shapes."""
  folder = shutil.copytree(encoders.path(name), tmp_path / "unpooled")
  path = folder / "config.json"
  told = json.loads(path.read_text())
  for place in (told, told["model_args"], told["pretrained_cfg"]):
    place.pop("global_pool", None)
  path.write_text(json.dumps(told))
  assert open_checkpoint(str(folder)).model.pooling == pooling
