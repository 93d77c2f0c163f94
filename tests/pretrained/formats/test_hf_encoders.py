"""Encoders of transformers: read as they are, and written back unchanged."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import encoders
from tests.rows import some_slow
from tests.tiny import nested, random_model
from vit_jax import load_pretrained
from vit_jax.models import ExtendedVit, Vit
from vit_jax.pretrained.arrays import open_arrays, save_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.formats import hf_encoders
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import check_expressible, save_as

NAMES = (
  "hf_dinov2",
  "hf_dinov2_giant",
  "hf_dinov2_reg",
  "hf_dinov3",
  "hf_dinov3_plus",
  "hf_dinov3_gates",
  "hf_clip",
  "hf_clip_text",
  "hf_deit",
  *("hf_tips", "hf_tips_giant", "hf_tips_text", "hf_metaclip2", "hf_pixio"),
  *("hf_internvl", "hf_internvl_rms", "hf_internvl_token", "hf_radio"),
)
# Plain `Vit`s, whose positions are resized when they are loaded.
PLAIN = (
  *("hf_siglip", "hf_siglip_head", "hf_siglip_text", "hf_mae_decoder"),
  *("hf_msn", "hf_ijepa", "hf_mim"),
)
FAST_PLAIN = ("hf_siglip_head", "hf_msn", "hf_ijepa", "hf_mim")


# The others differ from these in a detail, and are slow tests.
FAST = ("hf_dinov3", "hf_dinov3_gates")


@pytest.mark.parametrize("size", encoders.SIZES)
@pytest.mark.parametrize("name", some_slow(NAMES, FAST))
def test_all_tokens_and_the_answer_are_the_publishers(name, size):
  """The other sizes are those of `interpolate_pos_encoding` in transformers."""
  encoders.assert_the_publishers(name, size)


@pytest.mark.slow
@pytest.mark.parametrize("size", encoders.SIZES)
@pytest.mark.parametrize("name", some_slow(PLAIN, FAST_PLAIN))
def test_a_plain_encoder_is_the_publishers_at_every_size(name, size):
  sides = tuple(map(int, size.split("x")))
  model, params = load_pretrained(encoders.path(name), image_size=sides)
  assert type(model) is Vit
  images, tokens, answer = encoders.expected(name, size)
  found = encoders.computed(model, params, images)
  if model.pooling == "token":  # The others are not normed.
    tokens = tokens[:, 0]
  encoders.assert_close(found[0], tokens)
  encoders.assert_close(found[1], answer)


@pytest.mark.parametrize(
  "name, names",
  [
    ("hf_dinov2", ["dinov2.embeddings.mask_token"]),
    ("hf_siglip_text", ["logit_bias", "logit_scale"]),
    ("hf_siglip_head", ["vision_model.head.attention.in_proj_bias"]),
    ("hf_mae_decoder", ["decoder.decoder_embed.bias"]),
    ("hf_mim", ["decoder.0.bias", "decoder.0.weight"]),
    ("hf_tips_text", ["temperature", "text_encoder.ln_final.bias"]),
    ("hf_radio", ["radio_model.summary_idxs"]),
  ],
)
def test_arrays_that_the_format_knows_to_be_of_no_use_are_no_warning(
  name, names, capsys
):
  loaded = open_checkpoint(encoders.path(name))
  assert {*names} <= {*loaded.unread}
  assert "not read" not in capsys.readouterr().err


def stored(folder):
  with open_arrays(folder / "model.safetensors") as arrays:
    return {name: np.array(arrays[name]) for name in arrays.shapes}


# Those that are written as CLIP, as DINOv2 or without the text's tower.
OTHERS = ("hf_metaclip2", "hf_internvl_token", "hf_tips_text")
BACK = [*(name for name in NAMES if name not in OTHERS), "hf_siglip"]


@pytest.mark.parametrize("name", some_slow([*BACK, "hf_siglip_head"], FAST))
def test_converted_back_it_is_the_same_file(tmp_path, name):
  convert(encoders.path(name), str(tmp_path / "out"), "hf")
  before, after = stored(encoders.FOLDER / name), stored(tmp_path / "out")
  unused = ("text_", "logit_", *["vision_model.head."][: "head" in name])
  before = {k: v for k, v in before.items() if not k.startswith(unused)}
  if name == "hf_siglip":  # Published files have this prefix.
    before = {f"vision_model.{k}": v for k, v in before.items()}
  assert before.keys() == after.keys()
  for key, array in before.items():
    assert array.shape == after[key].shape
    if key.endswith("mask_token"):  # It is not read.
      array = np.zeros_like(array)
    np.testing.assert_array_equal(after[key], array)
  text = (encoders.FOLDER / name / "config.json").read_text()
  there = json.loads(text)
  here = json.loads((tmp_path / "out" / "config.json").read_text())
  if name in ("hf_clip_text", "hf_siglip_head"):  # Of the image tower alone.
    there |= there.pop("vision_config")
    here |= here.pop("vision_config", {})
    for key in "projection_dim architectures vision_use_head label2id".split():
      there.pop(key, None)
  there["hidden_act"] = here["hidden_act"] = None  # Gated MLPs ignore it.
  assert {k: there[k] for k in here if k in there} == {
    k: v for k, v in here.items() if k in there
  }
  card = (tmp_path / "out" / "README.md").read_text()
  assert f"{here['architectures'][0]}.from_pretrained(" in card


def test_a_table_of_no_square_is_refused(tmp_path):
  table = (
    "beit.encoder.layer.0.attention.attention.relative_position_bias."
    "relative_position_bias_table"
  )

  def narrow(arrays):
    arrays[table] = arrays[table][-(3 * 9 + 3) :].copy()

  with pytest.raises(ValueError, match="mixes up height and width then: it"):
    open_checkpoint(changed(tmp_path, "hf_beit", narrow))


NAFLEX = "embeddings.patch_embedding"
FIRST = "encoder.layer.0.mlp.fc1.weight"


def changed(tmp_path, name, arrays=lambda a: None, **config):
  """A copy of an encoder with other arrays or another configuration."""
  folder = shutil.copytree(encoders.FOLDER / name, tmp_path / name)
  found = stored(folder)
  arrays(found)
  save_arrays(folder / "model.safetensors", found)
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | config))
  return str(folder)


@pytest.mark.parametrize(
  "width, num_heads", [(768, 12), (1152, 16), (1536, 24)]
)
def test_the_heads_of_nvidias_own_files_follow_from_the_width(width, num_heads):
  """Their config.json tells no heads, and transformers' default fits one."""
  generator = "radio_model.model.patch_generator"
  shapes = {
    f"{generator}.pos_embed": (1, 16384, width),
    f"{generator}.embedder.weight": (width, 768),
    f"{generator}.cls_token.token": (8, width),
    "radio_model.model.blocks.0.mlp.fc1.weight": (4 * width, width),
  }
  config = {"model_type": "", "preferred_resolution": [512, 512]}
  found = hf_encoders.infer(shapes, config)
  assert found.fields["num_heads"] == num_heads
  assert "num_heads" in found.guessed and found.tokens == 128**2
  told = hf_encoders.infer(shapes, config | {"num_attention_heads": 8})
  assert told.fields["num_heads"] == 8 and "num_heads" not in told.guessed


def masked_beit(arrays):
  """As BeitForMaskedImageModeling is saved, whose norm is of its objective."""
  for name in ("weight", "bias"):
    del arrays[f"classifier.{name}"]
    arrays[f"layernorm.{name}"] = arrays.pop(f"beit.pooler.layernorm.{name}")
  arrays["lm_head.weight"] = np.ones((64, 16), np.float32)
  arrays["lm_head.bias"] = np.ones(64, np.float32)
  arrays["beit.embeddings.mask_token"] = np.ones((1, 1, 16), np.float32)


def bare_beit(arrays):
  """As Data2VecVisionModel and BeitBackbone are, without any last norm."""
  for name in [*arrays]:
    array = arrays.pop(name)
    if name.startswith("beit.") and ".pooler." not in name:
      arrays[name.removeprefix("beit.")] = array


@pytest.mark.slow
@pytest.mark.parametrize("arrays", [masked_beit, bare_beit])
def test_an_encoder_of_pre_training_is_read_without_the_norm(
  tmp_path, capsys, arrays
):
  """Its tokens are the library's, which are not normed; so is their mean."""
  path = changed(tmp_path, "hf_beit", arrays)
  model, params = load_pretrained(path)
  images, tokens, _ = encoders.expected("hf_beit", "24x40")
  found = encoders.computed(model, params, images)
  encoders.assert_close(found[0], tokens)
  encoders.assert_close(found[1], tokens[:, 1:].mean(1))
  said = capsys.readouterr().err
  assert "its features are the mean of the patches" in said
  unread = open_checkpoint(path).unread
  assert len(unread) == 5 * (arrays is masked_beit)
  for to, why in (
    ("hf", "the model has no"),
    ("timm", "none of timm's models has"),
  ):
    with pytest.raises(ValueError, match=why):
      convert(path, str(tmp_path / to), to)


def test_a_deit_of_pre_training_is_the_same_encoder(tmp_path, capsys):
  def masked(arrays):
    arrays["decoder.0.weight"] = np.ones((192, 16, 1, 1), np.float32)
    arrays["decoder.0.bias"] = np.ones(192, np.float32)
    arrays["embeddings.mask_token"] = np.ones((1, 1, 16), np.float32)

  loaded = load_pretrained(changed(tmp_path, "hf_deit", masked))
  model, params = loaded
  before, expected = encoders.loaded("hf_deit")
  assert model.clone(origin=None) == before.clone(origin=None)
  assert jax.tree.all(jax.tree.map(np.array_equal, params, expected))
  assert len(loaded.unread) == 3
  assert "not read" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "name, config, message",
  [
    ("hf_dinov2", dict(model_type="beit"), "='beit', and its arrays are named"),
    ("hf_beit", dict(model_type="dinov2"), "arrays are named as those of beit"),
    ("hf_beit", dict(layer_scale_init_value="x"), "init_value='x' must be a"),
    ("hf_dinov2", dict(model_type="aimv2"), "named as those of dinov2: one of"),
    (
      "hf_aimv2",
      dict(is_native=True),
      "is_native=true: positions that are com",
    ),
    ("hf_aimv2", dict(hidden_act="relu"), "choose one of silu, swish, gelu"),
    (
      "hf_internvl_rms",
      dict(norm_type="layer_norm"),
      "it has layer norms besi",
    ),
    ("hf_radio", dict(summary_idxs="x"), "summary_idxs='x' must"),
    (
      "hf_radio",
      dict(summary_idxs=[9]),
      r"pooled_tokens=\(9,\) must be number",
    ),
    (
      "hf_siglip",
      dict(model_type="siglip2"),
      "are named as those of siglip_vi",
    ),
    ("hf_siglip", dict(model_type="sapiens2"), "2, whose heads share keys"),
    ("hf_dinov2", dict(model_type="clip"), "='clip', and its arrays are named"),
    ("hf_clip", dict(model_type="mlcd2"), "'mlcd2', which is not known here"),
    ("hf_dinov2", dict(model_type=["x"]), "=.'x'., which is not known here"),
    ("hf_dinov3", dict(hidden_act="silu"), "hidden_act='silu' is unknown; cho"),
    ("hf_dinov2", dict(hidden_act="relu"), "hidden_act='relu' is unknown; cho"),
    ("hf_dinov3", dict(rope_theta=0), "rope_theta=0.* must be more than 0"),
    ("hf_dinov3", dict(rope_theta="x"), "rope_theta='x' must be a finite"),
    ("hf_dinov3_plus", dict(hidden_act="relu"), "choose one of silu, swish"),
    ("hf_dinov3", dict(num_attention_heads=3), "num_heads=3; .* would fit"),
  ],
)
def test_a_wrong_configuration_is_one_line(tmp_path, name, config, message):
  with pytest.raises(ValueError, match=message) as info:
    open_checkpoint(changed(tmp_path, name, **config))
  assert "\n" not in str(info.value)


def test_gates_have_silu_whatever_activation_a_dinov2_names():
  """Its SwiGLU has no other, and the gates of a DINOv3 have the one named."""
  families = {family.types[0]: family for family in hf_encoders.FAMILIES}
  dinov2, dinov3 = (
    hf_encoders._activation(families[name], {"hidden_act": "gelu"}, gated=True)
    for name in ("dinov2", "dinov3_vit")
  )
  assert dinov2 == dict(gelu="exact")  # A new model's gate is "silu".
  assert dinov3 == dict(gelu="exact", gate="exact")
  assert ExtendedVit.gate == "silu"


@pytest.mark.parametrize(
  "name, change, message",
  [
    ("hf_dinov2", "+dinov2.extra", "1 unknown: dinov2.extra"),
    (
      "hf_dinov2_reg",
      "dinov2_with_registers.layernorm.bias",
      "missing: .*.bias",
    ),
    ("hf_dinov3", "layer.1.layer_scale2.lambda1", "1 missing: layer.1.layer_s"),
    ("hf_dinov3", "layer.1.attention.q_proj.bias", "1 missing: .*q_proj.bias"),
    ("hf_siglip", f"+{NAFLEX}.weight", "are named as those of siglip2"),
    ("hf_clip_head", "classifier.weight", "1 missing: classifier.weight"),
    ("hf_deit", "+classifier.bias", "1 unknown: classifier.bias .9, 9."),
    (
      "hf_deit_head",
      "deit.embeddings.cls_token",
      "1 missing: .*.cls_token .1,",
    ),
    ("hf_dinov2_giant", "+encoder.layer.0.mlp.gate_proj.bias", "splits gated"),
    ("hf_dinov2", f"dinov2.{FIRST}", f"no array '{FIRST}', from which"),
  ],
)
def test_other_arrays_are_listed(tmp_path, name, change, message):
  """Of an array that is taken away, or is another after a plus sign."""

  def apply(arrays):
    arrays.pop(change, None)
    if change.startswith("+"):
      arrays[change[1:]] = np.zeros((9, 9), "f4")

  with pytest.raises(ValueError, match=message) as info:
    open_checkpoint(changed(tmp_path, name, apply))
  assert "\n" not in str(info.value)


def of_state_dict(name):
  """The name in `state_dict()` of transformers 5 for one that is saved."""
  parts = [("attention.attention.query", "attention.q_proj")]
  parts += [("attention.attention.key", "attention.k_proj")]
  parts += [("attention.attention.value", "attention.v_proj")]
  parts += [("attention.output.dense", "attention.o_proj")]
  if name.startswith(("deit.", "vit.")):
    parts += [("encoder.layer.", "layers."), ("intermediate.dense", "mlp.fc1")]
    parts += [("output.dense", "mlp.fc2")]
  for saved, new in parts:
    name = name.replace(saved, new)
  return f"model.{name}" if name.startswith("layer.") else name


@pytest.mark.parametrize("name", ["hf_dinov2_reg", "hf_dinov3", "hf_deit"])
def test_the_names_of_state_dict_are_read(tmp_path, name):
  def rename(arrays):
    new = {of_state_dict(key): array for key, array in arrays.items()}
    assert new.keys() != arrays.keys()
    arrays.clear()
    arrays.update(new)

  before = open_checkpoint(encoders.path(name))
  after = open_checkpoint(changed(tmp_path, name, rename))
  assert after.model.clone(origin=None) == before.model.clone(origin=None)
  for (path, array), (other, same) in zip(
    before.read(), after.read(), strict=True
  ):
    assert path == other
    np.testing.assert_array_equal(array, same)


@pytest.mark.slow
def test_it_can_be_used_at_another_size_and_says_it_interpolates_itself():
  model, params = load_pretrained(encoders.path("hf_dinov2"), image_size=48)
  assert model.origin.image_size == (48, 48)
  assert params["position"]["E_pos"].shape == (17, 32)
  images, tokens, _ = encoders.expected("hf_dinov2", "48x48")
  encoders.assert_close(encoders.computed(model, params, images)[0], tokens)
  with pytest.raises(ValueError, match="interpolates its positions for every"):
    open_checkpoint(
      encoders.path("hf_dinov2"), image_size=48, interpolation="linear"
    )


HEADLESS = dict(block="dinov3", num_classes=0)
MODERN = dict(block="dinov2", hidden_size=24, mlp_size=48, num_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
  "to, fields, message",
  [
    ("google", {}, "google .*: it has no place for layer_scale=1e-05 .--to"),
    ("timm", dict(pooling="token_gap"), "cannot pool both the class token and"),
    ("timm", dict(qkv_bias="qv"), "no place for block_0/msa/query/bias, "),
    ("timm", dict(layer_norm_epsilon=1e-5), "would become 1e-06 .--layer"),
    ("timm", dict(layer_scale=None, gelu="exact"), "has these parts together"),
    ("timm", dict(distilled=True, registers=2), "none of timm's models has th"),
    ("timm", dict(block="dinov3", rope_theta=9.0), "rope_theta=9.0 would beco"),
    ("hf", dict(qk_norm=True), "has no place for block_0/msa/norm_key/bias"),
    ("hf", dict(mlp_size=50), "mlp_size=50 does not give a whole"),
    ("hf", dict(pooling="gap", num_classes=0), "='gap' would become 'token'"),
    ("hf", dict(block="dinov3"), "no place for head/bias.*--to timm can"),
    ("hf", {**HEADLESS, "pooling": "gap"}, "dinov3_vit, pooling='gap' would"),
    ("hf", dict(pooling="token_gap", norm_pre=True), "no place for norm_pre"),
    ("hf", dict(norm_final=False), "hf cannot .*norm_final=False.*timm can"),
  ],
)
def test_what_no_family_can_express_is_refused(to, fields, message):
  model, _ = random_model((16, 16), **{**MODERN, **fields})
  with pytest.raises(ValueError, match=message) as info:
    check_expressible(model, to)
  assert "\n" not in str(info.value)


def test_a_table_that_is_not_square_is_refused():
  model, _ = random_model((16, 24), pooling="token_gap", **MODERN)
  with pytest.raises(ValueError, match="positions are for images of 16 x 24"):
    check_expressible(model, "hf")


def test_a_model_of_our_own_is_written_and_read(tmp_path):
  fields = dict(pooling="token_gap", registers=3, gated_mlp=True, mlp_size=64)
  ours, params = random_model((16, 16), **{**MODERN, **fields})
  save_as(dataclasses.replace(ours), "hf", tmp_path / "out")
  again = open_checkpoint(str(tmp_path / "out"))
  assert isinstance(again.model, ExtendedVit)
  assert again.model.position_grid == (2, 2) and again.model.antialias
  for path, array in again.read():
    np.testing.assert_array_equal(array, params[path])


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    dict(pooling="gap", position="sincos2d"),  # As in image_folder.py.
    dict(pooling="gap", position="none", gelu="exact"),
    dict(pooling="gap", position="learned2d", layer_norm_epsilon=1e-5),
    dict(pooling="map", position="sincos2d", num_classes=0),
  ],
)
def test_a_model_without_a_class_token_is_written_as_a_siglip(tmp_path, fields):
  """Its classifier takes the mean over the patches after the last norm."""
  ours, params = random_model((32, 32), **fields)
  assert check_expressible(ours, "hf") == []
  save_as(ours, "hf", tmp_path / "out")
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  name = "ForImageClassification" if fields["pooling"] == "gap" else "Vision"
  assert name in config["architectures"][0]
  model, theirs = load_pretrained(str(tmp_path / "out"))
  assert (model.position, model.pooling) == ("learned", fields["pooling"])
  images = np.random.default_rng(1).normal(size=(2, 32, 32, 3))
  images = jnp.asarray(images, jnp.float32)
  np.testing.assert_allclose(
    ours.model.apply({"params": nested(params)}, images),
    model.apply({"params": theirs}, images),
    rtol=0,
    atol=1e-5,
  )


def test_the_colours_of_a_radio_are_those_of_its_weights(tmp_path):
  """transformers loads them as buffers, whatever its configuration says."""
  folder = shutil.copytree(encoders.FOLDER / "hf_radio", tmp_path / "radio")
  arrays = stored(folder)
  conditioner = "radio_model.input_conditioner."
  assert arrays[f"{conditioner}norm_mean"].shape == (3, 1, 1)
  arrays[f"{conditioner}norm_mean"][:, 0, 0] = 0.25, 0.5, 0.75
  arrays[f"{conditioner}norm_std"][:, 0, 0] = 0.5, 0.25, 0.125
  save_arrays(folder / "model.safetensors", arrays)
  origin = open_checkpoint(str(folder)).model.origin
  assert origin is not None
  assert (origin.mean, origin.std) == ((0.25, 0.5, 0.75), (0.5, 0.25, 0.125))
  arrays[f"{conditioner}norm_std"][0] = 0
  save_arrays(folder / "model.safetensors", arrays)
  with pytest.raises(ValueError, match="norm_std=.* must be a number above 0"):
    open_checkpoint(str(folder))
