"""Encoders of timm: read as they are, and written for it and others."""

import json
import re
import shutil
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from tests import encoders, published
from tests.rows import some_slow
from tests.tiny import random_model
from vit_jax import load_pretrained
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inspection.attention_capture import attention_weights
from vit_jax.models import Origin, Vit, make_vit
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.formats import timm
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.opened import with_inputs
from vit_jax.pretrained.save import check_expressible, save_as

NAMES = (
  "timm_clip",
  "timm_deit",
  "timm_deit3",
  "timm_dinov2_giant",
  "timm_dinov2_reg",
  "timm_dinov3",
  "timm_dinov3_bias",
  "timm_dinov3_plus",
  "timm_eva02",
  "timm_pe",
  "timm_qk_norm",
  *("timm_aimv2", "timm_intern", "timm_radio"),
  "timm_rope",
  "timm_rope_mixed",
)
# Their tokens have no norm of their own after the last layer.
UNNORMED = (
  "timm_beit3",
  "timm_eva",
  "timm_eva02_tiny",
  "timm_fc_norm",
  "timm_map_all",
  "timm_pe_lang",
  "timm_post_norm",
  "timm_rpn",
)


RELATIVE = ("timm_beit", "timm_relpos_shared", "timm_relpos_table")

# The others differ from these in a detail, and are slow tests.
FAST = ("timm_dinov3", "timm_deit3", "timm_eva02")


@pytest.mark.parametrize("size", encoders.SIZES)
@pytest.mark.parametrize("name", some_slow(NAMES, FAST))
def test_all_tokens_and_the_answer_are_the_publishers(name, size):
  """The other sizes are those of `dynamic_img_size` in timm."""
  encoders.assert_the_publishers(name, size)


@pytest.mark.parametrize("size", encoders.SIZES)
@pytest.mark.parametrize("name", some_slow(UNNORMED, ("timm_fc_norm",)))
def test_the_answer_without_a_norm_of_all_tokens_is_the_publishers(name, size):
  """A norm follows the average (timm's fc_norm), or none does (PE lang)."""
  images, _, answer = encoders.expected(name, size)
  model, params = load_pretrained(encoders.path(name))
  found = jax.jit(model.apply)({"params": params}, jnp.asarray(images))
  encoders.assert_close(np.asarray(found), answer)


@pytest.mark.parametrize("size", some_slow(["24x40", "48x48"], ["24x40"]))
@pytest.mark.parametrize("name", some_slow(RELATIVE, RELATIVE[:1]))
def test_relative_positions_at_other_sizes_are_the_publishers(name, size):
  """As after `set_input_size` in timm, which resizes tables."""
  images, _, answer = encoders.expected(name, size)
  found = encoders.computed(*encoders.loaded(name), images)[1]
  encoders.assert_close(found, answer, 1e-5)


def test_the_window_of_a_table_that_is_no_square_is_asked_for(tmp_path):
  arrays = safetensors.numpy.load_file(
    encoders.FOLDER / "timm_beit" / "model.safetensors"
  )
  name = "blocks.0.attn.relative_position_bias_table"
  arrays[name] = arrays[name][-(3 * 9 + 3) :].copy()  # Of 2 x 5 patches.
  safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
  assert_refused(tmp_path, "do not form a square grid: give grid=.h, w.")
  model = open_checkpoint(str(tmp_path), grid=(2, 5)).model
  assert model.position_grid == (2, 5)
  assert model.num_heads == 2  # The table tells it.


@pytest.mark.parametrize("size", encoders.SIZES)
def test_siglip_is_a_plain_vit(size):
  """Its positions shrink along one axis of 24 x 40, and timm smooths them."""
  sides = tuple(map(int, size.split("x")))
  path = encoders.path("timm_siglip")
  model, params = load_pretrained(path, image_size=sides)
  assert type(model) is Vit
  images, tokens, answer = encoders.expected("timm_siglip", size)
  found = encoders.computed(model, params, images)
  encoders.assert_close(found[0], tokens)
  encoders.assert_close(found[1], answer)


@pytest.mark.parametrize(
  "name", some_slow([*NAMES, *UNNORMED, "timm_siglip"], FAST)
)
def test_written_again_it_is_the_same_file(tmp_path, name):
  before = open_checkpoint(encoders.path(name))
  lines = check_expressible(before, "timm")
  if before.preprocessing.cut_from is None:
    assert lines == []
  else:  # timm keeps no picture's size that patches do not fill.
    (line,) = lines
    assert line.startswith("the format does not record how images are cut")
  save_as(before, "timm", tmp_path / "out")
  assert_same_arrays(encoders.FOLDER / name, tmp_path / "out")
  again = open_checkpoint(str(tmp_path / "out"))
  origin = before.model.origin
  assert again.model.clone(origin=origin) == before.model
  # The 224 pixels of timm_siglip are not those of its positions.
  if name != "timm_siglip" and before.preprocessing.cut_from is None:
    assert again.preprocessing == before.preprocessing


def assert_same_arrays(before, after):
  before, after = (
    safetensors.numpy.load_file(folder / "model.safetensors")
    for folder in (before, after)
  )
  assert before.keys() == after.keys()
  for key, array in before.items():
    np.testing.assert_array_equal(after[key], array)


def written(tmp_path, to, **fields):
  """The arrays of a model of our own, before and after, and what is said."""
  sizes = dict(hidden_size=24, num_layers=1, mlp_size=48)
  ours, params = random_model((16, 16), **{**sizes, **fields})
  lines = check_expressible(ours, to)
  save_as(ours, to, tmp_path / "out")
  path = tmp_path / "out" / "model.safetensors"
  return params, safetensors.numpy.load_file(path), lines


def test_with_registers_the_class_token_takes_its_position_along(tmp_path):
  ours, theirs, _ = written(tmp_path, "timm", block="dinov2", registers=2)
  table = ours["position/E_pos"]
  np.testing.assert_array_equal(theirs["pos_embed"][0], table[1:])
  cls = ours["x_class"] + table[0]
  np.testing.assert_array_equal(theirs["cls_token"][0, 0], cls)


def test_a_projection_becomes_a_head(tmp_path):
  sizes = dict(projection=True, representation_size=7, num_classes=0)
  ours, theirs, lines = written(tmp_path, "timm", block="clip", **sizes)
  kernel = ours["pre_logits/kernel"]
  np.testing.assert_array_equal(theirs["head.weight"], kernel.T)
  np.testing.assert_array_equal(theirs["head.bias"], np.zeros(7))
  assert lines == ["timm keeps the projection as a head, with a bias of zeros"]


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_dinov2s_head_has_zeros_for_what_is_not_pooled(tmp_path, pooling):
  ours, theirs, lines = written(tmp_path, "hf", block="deit3", pooling=pooling)
  read, other = np.split(theirs["classifier.weight"], 2, axis=1)
  if pooling == "gap":
    read, other = other, read
  np.testing.assert_array_equal(read, ours["head/kernel"].T)
  assert not other.any() and "gets weights of zero" in lines[0]
  table = theirs["dinov2.embeddings.position_embeddings"][0]
  np.testing.assert_array_equal(table[1:], ours["position/E_pos"])
  assert not table[0].any()


def answers(folder, size, library):
  """What timm or transformers computes with a folder, on the test's images."""
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  module = pytest.importorskip(library, reason=f"needs {library}")
  images, _, expected = encoders.expected(folder[0], size)
  x = torch.from_numpy(images.transpose(0, 3, 1, 2))
  with torch.no_grad():
    if library == "timm":
      path = f"local-dir:{folder[1]}"
      return module.create_model(path, pretrained=True).eval()(x), expected
    config = json.loads((folder[1] / "config.json").read_text())
    kind = getattr(module, config["architectures"][0])
    return kind.from_pretrained(folder[1])(x).logits, expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", ["32x32", "48x48"])
@pytest.mark.parametrize(
  "name, to",
  [
    *((name, "timm") for name in (*NAMES, *UNNORMED)),
    *((f"hf_{name}", "timm") for name in ("dinov2_giant", "clip", "deit")),
    *((f"hf_{name}", "timm") for name in ("dinov3", "dinov3_plus")),
    ("timm_deit3", "hf"),
  ],
)
def test_the_other_library_answers_as_the_publisher_did(
  tmp_path, name, to, size
):
  epsilon = {"layer_norm_epsilon": 1e-6} if name == "hf_deit" else {}
  pooling = {"pooling": "token"} if "hf_dinov" in name else {}
  convert(encoders.path(name), str(tmp_path / "out"), to, **epsilon, **pooling)
  found, expected = answers((name, tmp_path / "out"), size, library_of(to))
  close = 1e-4 if size == "32x32" or name.startswith("timm") else 0.1
  np.testing.assert_allclose(
    found.numpy(), expected, atol=close * np.abs(expected).max()
  )


def library_of(to):
  return {"hf": "transformers"}.get(to, to)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_is_read_as_it_is_or_refused(tmp_path):
  """Small ones of all ViTs, DeiTs and EVAs; those read are written again."""
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  from tests.checkpoints.encoders import make

  library = pytest.importorskip("timm", reason="needs timm")
  modules = ("vision_transformer", "deit", "eva")
  names = [name for m in modules for name in library.list_models(module=m)]
  images = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3))
  x = torch.from_numpy(images.transpose(0, 3, 1, 2)).float()
  compiled, counts = {}, {True: 0, False: 0}
  for name in names:
    if "sapiens2" in name:  # Its heads differ from layer to layer.
      continue
    create, _ = make.from_timm(name, depth=1, num_classes=3)
    model = create()
    make.randomize(model)
    make.save(model, "timm", tmp_path / name)
    try:
      loaded = load_pretrained(str(tmp_path / name))
    except ValueError as error:
      assert "\n" not in str(error), name
      counts[False] += 1
      continue
    counts[True] += 1
    plain = loaded.model.clone(origin=None)
    run = compiled.setdefault(repr(plain), jax.jit(plain.apply))
    found = run({"params": loaded.params}, jnp.asarray(images, jnp.float32))
    with torch.no_grad():
      encoders.assert_close(np.asarray(found), model(x).numpy(), 1e-5)
    save_as(loaded, "timm", tmp_path / "out" / name)
    folder = f"local-dir:{tmp_path / 'out' / name}"
    again = library.create_model(folder, pretrained=True).state_dict()
    before = model.state_dict()
    assert again.keys() == before.keys(), name
    assert all(torch.equal(again[key], before[key]) for key in before), name
  assert counts == {True: 232, False: 7}


@pytest.mark.parametrize(
  "name, config, arguments, message",
  [
    (
      "timm_relpos_shared",
      {},
      dict(rel_pos_type="mlp-swin"),
      "rel_pos_type='mlp-swin' is unknown; choose one of mlp, bias",
    ),
    ("timm_dinov3", dict(architecture="vit_5b_sapiens2"), {}, ": Sapiens2, w"),
    ("timm_eva", dict(architecture=None), {}, "may be pre-norm or post-norm"),
    ("timm_pe", dict(architecture=None), {}, "it may be a Perception Encoder,"),
    ("timm_pe", {}, dict(ref_feat_shape=[14, 16]), "both sides have to be the"),
    ("timm_pe", {}, dict(ref_feat_shape=0), "ref_feat_shape=0 must be"),
    (
      "timm_deit3",
      dict(architecture="vit_pe_core_base"),
      {},
      "no supported EVA",
    ),
    (
      "timm_deit3",
      {},
      dict(dynamic_img_pad=True, img_size=33),
      "do not fill 3",
    ),
    ("timm_rpn", {}, dict(pool_include_prefix=True), "average is over all tok"),
    ("timm_deit3", {}, dict(global_pool="max"), "global_pool='max' is unknown"),
    ("timm_deit3", {}, dict(act_layer="relu"), "act_layer='relu' is unknown"),
  ],
)
def test_what_the_arrays_do_not_tell_is_not_guessed(
  tmp_path, name, config, arguments, message
):
  folder = shutil.copytree(encoders.FOLDER / name, tmp_path / name)
  path = folder / "config.json"
  there = json.loads(path.read_text()) | config
  there["model_args"] |= arguments
  path.write_text(json.dumps(there))
  assert_refused(folder, message)


def assert_refused(folder, message):
  with pytest.raises(ValueError, match=message) as info:
    open_checkpoint(str(folder))
  assert "\n" not in str(info.value)


@pytest.mark.parametrize(
  "name, change, message",
  [
    ("timm_dinov2_reg", dict(pos_embed=(1, 20, 32)), "pos_embed is .1, 20, 3"),
    ("timm_deit3", dict(cls_token=None), "class_token=False needs pooling='g"),
    ("timm_deit3", dict(extra=(3,)), "1 unknown: extra"),
    ("timm_dinov3", {"norm.bias": None}, "1 missing: norm.bias"),
    ("timm_dinov2_reg", dict(reg_token=(4, 32)), ".4, 32. and should be .1, "),
    ("timm_deit3", {"blocks.1.ls1.gamma": (9,)}, "is .9,. and should be .32,."),
    ("timm_deit", {"head_dist.weight": None}, "1 missing: head_dist.weight"),
    ("timm_beit", dict(reg_token=(1, 4, 16)), "positions beside reg_token, wh"),
    (
      "timm_beit",
      {"rel_pos_bias.relative_position_bias_table": (52, 2)},
      "that all layers share beside those of each layer, which is not suppo",
    ),
    ("timm_dinov3", dict(pos_embed=(1, 16, 32)), "no supported EVA, DINOv3"),
    ("timm_rope_mixed", {"rope.freqs": (2, 1, 2, 4)}, ".2, 2, 2, 4"),
    ("timm_eva02", {"blocks.0.mlp.norm.weight": None}, "no supported EVA"),
  ],
)
def test_other_arrays_are_listed(tmp_path, name, change, message):
  folder = shutil.copytree(encoders.FOLDER / name, tmp_path / name)
  path = folder / "model.safetensors"
  arrays = safetensors.numpy.load_file(path)
  arrays |= {k: np.zeros(s or 0, "f4") for k, s in change.items()}
  arrays = {k: v for k, v in arrays.items() if change.get(k, ()) is not None}
  safetensors.numpy.save_file(arrays, path)
  assert_refused(folder, message)


def test_norms_that_may_follow_the_branches_are_refused(tmp_path):
  """The arrays of `vit_base_patch16_rpn_224` do not tell their places."""
  arrays = safetensors.numpy.load_file(
    encoders.FOLDER / "timm_rpn" / "model.safetensors"
  )
  safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text("{}")
  assert_refused(tmp_path, "may be pre-norm or post-norm, and no config.json")


@pytest.mark.parametrize(
  "arrays, message",
  [
    (["blocks.0.in_proj.weight"], "attention and MLP side by side in one prod"),
    (["blocks.0.attn.lambda_q1"], "it has differential attention: this is not"),
    (
      ["blocks.0.in_proj.weight", "blocks.0.lambda_q1"],
      "in one product and differential attention: this is not supported",
    ),
    (["patch_embed.backbone.conv1.0.weight"], "other than the paper's ResNets"),
    (["patch_embed.backbone.conv.weight"], "other than the paper's ResNets"),
  ],
)
def test_parts_that_are_not_supported_are_named(tmp_path, arrays, message):
  """Names as in xp, d and other hybrids of timm."""
  names = ["patch_embed.proj.weight", "blocks.0.norm1.weight", *arrays]
  path = tmp_path / "model.safetensors"
  safetensors.numpy.save_file({k: np.zeros(1, "f4") for k in names}, path)
  assert_refused(tmp_path, message)


def test_a_map_head_beside_registers_attends_to_the_patches_alone():
  """Its weights in the map are 0 for registers, and 1 in sum."""
  model, params = encoders.loaded("timm_map_reg")
  assert model.pooling == "map" and model.registers == 4
  images = encoders.expected("timm_map_reg", "24x40")[0]
  pool = attention_weights(model, params, images).pool
  assert pool is not None
  assert pool.shape == (2, 2, 4 + 3 * 5) and not pool[..., :4].any()
  np.testing.assert_allclose(pool.sum(-1), 1, atol=1e-5)


def test_a_perception_encoders_pooling_attends_to_all_tokens():
  """With heads of its own number, and to the class token as well."""
  model, params = encoders.loaded("timm_pe")
  assert (model.pool_heads, model.pool_mlp_size, model.mlp_size) == (8, 32, 64)
  images = encoders.expected("timm_pe", "24x40")[0]
  pool = attention_weights(model, params, images).pool
  assert pool is not None
  assert pool.shape == (2, 8, 1 + 3 * 5) and pool.all()
  np.testing.assert_allclose(pool.sum(-1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "block, fields, reason",
  [
    ("beit3", {}, None),
    (
      "beit3",
      dict(norm_inner_mlp=False, pooling="token", norm_pooled=False),
      None,
    ),
    ("beit3", dict(gated_mlp=True), "parts together"),
    ("eva", {}, None),
    ("eva", dict(norm_after=True), None),
    ("dinov2", dict(norm_after=True, layer_scale=None), None),
    ("dinov2", dict(norm_after=True, layer_scale=None, norm_pre=True), "parts"),
    ("beit", dict(norm_after=True, layer_scale=None), "would become"),
    ("eva02", {}, None),
    ("eva02", dict(norm_inner_msa=True, qkv_bias=""), None),
    ("eva02", dict(norm_inner_mlp=False, rope_side=24), None),
    ("rope_axial", dict(registers=2), None),
    ("rope_mixed", dict(position="learned_grid"), None),
    ("pe", dict(pool_heads=4), None),
    ("pe", dict(pool_heads=None, pool_mlp_size=9, rope_side=9), None),
    ("rope_mixed", dict(rope_theta=9.0), "rope_theta=9.0 would become 10.0"),
    ("pe", dict(layer_norm_epsilon=1e-6), None),
    ("pe", dict(pool_prefix=False), "pool_prefix=False would become True"),
    ("eva02", dict(gated_mlp=False, norm_inner_mlp=False), "use_rot_pos_emb"),
  ],
)
def test_timm_takes_the_evas_that_it_has(tmp_path, block, fields, reason):
  sizes = dict(hidden_size=24, num_heads=2, num_layers=1, mlp_size=48)
  loaded, _ = random_model((16, 16), block=block, **{**sizes, **fields})
  if reason:
    with pytest.raises(ValueError, match=reason):
      check_expressible(loaded, "timm")
    return
  assert not any(
    "position" in line for line in check_expressible(loaded, "timm")
  )
  save_as(loaded, "timm", tmp_path / "out")
  again = open_checkpoint(str(tmp_path / "out"))
  fields: dict[str, Any] = dict(
    origin=None, position_grid=None, antialias=False
  )
  if loaded.model.layer_scale:
    fields["layer_scale"] = 1e-5
  expected = timm.equivalent(loaded.model).clone(**fields)
  assert again.model.clone(**fields) == expected
  jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)


def test_a_siglip_gets_a_head_of_its_own(tmp_path):
  """Seven classes, which timm's form keeps."""
  loaded = open_checkpoint(encoders.path("timm_siglip_head"), num_classes=7)
  assert type(loaded.model) is Vit and loaded.model.pooling == "map"
  save_as(loaded, "timm", tmp_path / "out")
  again = open_checkpoint(str(tmp_path / "out"))
  assert again.model.num_classes == 7
  assert dict(again.shapes)["head/kernel"] == (16, 7)


# Google's names of arrays -> timm's.
HYBRID = {
  r"^conv_root/": "patch_embed.backbone.stem.conv.",
  r"^gn_root/": "patch_embed.backbone.stem.norm.",
  r"^embedding/": "patch_embed.proj.",
  r"^block1/unit1/": "patch_embed.backbone.stages.0.blocks.0.",
  r"^block2/unit1/": "patch_embed.backbone.stages.1.blocks.0.",
  r"conv_proj/": "downsample.conv.",
  r"gn_proj/": "downsample.norm.",
  r"conv(\d)/": r"conv\1.",
  r"gn(\d)/": r"norm\1.",
  r"^cls$": "cls_token",
  r"^Transformer/posembed_input/pos_embedding": "pos_embed",
  r"^Transformer/encoder_norm/": "norm.",
  r"^Transformer/encoderblock_(\d)/": r"blocks.\1.",
  r"LayerNorm_0/": "norm1.",
  r"LayerNorm_2/": "norm2.",
  r"MultiHeadDotProductAttention_1/": "attn.",
  r"MlpBlock_3/Dense_0/": "mlp.fc1.",
  r"MlpBlock_3/Dense_1/": "mlp.fc2.",
  r"out/": "proj.",
  r"head/": "head.",
  r"(kernel|scale)$": "weight",
}


@pytest.mark.slow
def as_timms(arrays):
  """Google's hybrid by timm's names, with axes in PyTorch's order."""
  found = {}
  for name, array in arrays.items():
    for pattern, new in HYBRID.items():
      name = re.sub(pattern, new, name)
    if name.endswith("attn.proj.weight"):
      array = array.reshape(-1, array.shape[-1])
    elif re.search("(query|key|value)/", name):
      array = array.reshape(*array.shape[:-2], -1)
    if "norm" in name:
      array = array.reshape(-1)
    elif name.endswith("weight"):  # (..., in, out) becomes (out, in, ...).
      array = np.moveaxis(array, (-1, -2), (0, 1))
    found[name] = array
  for start in ("blocks.0.attn.", "blocks.1.attn."):
    for leaf in ("weight", "bias"):
      parts = [
        found.pop(f"{start}{x}/{leaf}") for x in ("query", "key", "value")
      ]
      found[f"{start}qkv.{leaf}"] = np.concatenate(parts)
  return {name: np.ascontiguousarray(array) for name, array in found.items()}


@pytest.mark.slow
def test_a_hybrid_of_timms_answers_as_googles(tmp_path):
  """The paper's own hybrid; timm only adds another epsilon to its kernels."""
  arrays = as_timms(published.arrays("google_hybrid.npz"))
  path = str(tmp_path / "model.safetensors")
  safetensors.numpy.save_file(arrays, path)
  own = load_pretrained(path, num_heads=3, gelu="tanh")
  assert own.model.resnet_epsilon == 1e-8
  assert (own.model.resnet_layers, own.model.resnet_width) == ((1, 1), 32)
  options = dict(num_heads=3, gelu="tanh", resnet_epsilon=None)
  model, params = load_pretrained(path, **options)
  examples = published.examples("google_hybrid.npz")
  published.assert_same_logits(model, params, *examples)
  images, logits = examples
  found = own.model.apply({"params": params}, jnp.asarray(images))
  assert 0 < np.abs(found - logits).max() <= 1e-3 * np.abs(logits).max()


@pytest.mark.parametrize(
  "units, name",
  [
    ((3, 4, 6, 3), "vit_large_r50_s32_224"),  # ResNet-50: arXiv:1512.03385.
    ((3, 4, 9), "vit_base_r50_s16_224"),  # The paper's, with stage 4 in 3.
    ((2, 2, 2, 2), "vit_base_r26_s32_224"),  # 3 layers a unit, and 2 others.
  ],
)
def test_a_hybrid_of_timm_has_the_name_of_its_resnet(units, name):
  hybrid = types.SimpleNamespace(resnet_layers=units, resnet_width=64)
  assert timm._paper_name(hybrid) == name


@pytest.mark.slow
@pytest.mark.parametrize(
  "variant, fields, reason",
  [
    ("R50+S/16", {}, None),
    pytest.param(
      *("R50+S/32", dict(position="sincos2d"), None), marks=pytest.mark.slow
    ),
    ("R50+S/16", dict(resnet_layers=(2, 2, 2, 2)), None),
    ("R50+S/16", dict(resnet_layers=(1, 1)), "has 1-1 units of width 64, and"),
    ("R50+S/16", dict(resnet_width=32), "3-4-9 units of width 32, and timm's"),
    ("R50+S/16", dict(position="relative"), "position='relative' at 'input'"),
  ],
)
def test_timm_takes_the_hybrids_that_it_has(variant, fields, reason):
  hybrid = make_vit(variant, num_classes=7, gelu="exact", **fields)
  pictures = Preprocessing((224, 224))
  origin = with_inputs(Origin("a run", "ours", None), {"image": pictures})
  hybrid = hybrid.clone(origin=origin)
  loaded: Any = types.SimpleNamespace(
    model=hybrid, preprocessing=pictures, loss="softmax"
  )
  if reason:
    with pytest.raises(ValueError, match=reason):
      check_expressible(loaded, "timm")
    return
  lines = check_expressible(loaded, "timm")
  assert "timm standardises a ResNet's kernels with another eps" in lines[-1]
  written = {rule.theirs for rule in timm.rules(hybrid)}
  last = len(hybrid.resnet_layers) - 1
  unit = f"patch_embed.backbone.stages.{last}.blocks.0"
  assert {f"{unit}.downsample.conv.weight", f"{unit}.norm3.bias"} < written


def test_dynamic_sizes_take_pictures_of_the_preprocessors_size():
  """Its positions are for 32 x 32, and its pictures 518 x 518."""
  loaded = open_checkpoint(encoders.path("timm_dinov2_reg"))
  assert loaded.preprocessing.whole == (518, 518)
  assert loaded.preprocessing.size == (512, 512)  # Patches of 8 pixels.
  assert loaded.model.position_grid == (4, 4)
