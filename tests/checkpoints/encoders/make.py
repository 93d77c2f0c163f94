"""Makes tiny encoders with random weights by their publishers' own code.

python -m tests.checkpoints.encoders.make FOLDER [NAME ...]

It needs torch, transformers and timm, in an environment of its own; README.md
beside it gives the versions. Each folder gets the weights and configuration as
the library saves them, and `expected.npz`: `images_HxW` (NHWC, normalised), and
for each size `tokens_HxW`, the output of the last layer norm, and `answer_HxW`,
the logits or else the pooled features. Two runs give the same files. Encoders
with `drawn.json` in the place of weights are those that `drawn` is for.
"""

import contextlib
import copy
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

try:
  import torchvision  # noqa: F401
except RuntimeError:  # Some releases need operators that do not exist yet.
  _library = torch.library.Library("torchvision", "FRAGMENT")
  for _name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # It exists.
      _library.define(
        f"{_name}(Tensor dets, Tensor scores, float limit) -> Tensor"
      )

import timm

from tests.checkpoints.encoders import drawn

SIZES = ((32, 32), (24, 40), (48, 48))
_SMALL = dict(
  hidden_size=32,
  num_hidden_layers=2,
  num_attention_heads=2,
  image_size=32,
  patch_size=8,
)
# For encoders whose files hold no images: they are the same in every file.
_TINY = dict(
  hidden_size=16, num_hidden_layers=1, intermediate_size=32, num_labels=5
)
_BARE = {k: v for k, v in _TINY.items() if k != "num_labels"}
_TINY_TIMM = dict(embed_dim=16, depth=1, dynamic_img_size=True, num_classes=5)
_FIXED = dict(embed_dim=16, depth=1, num_classes=5)  # Images of one size.
_TIMM = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
# A JSON form of what `timm.create_model` gets besides the architecture.
_DINOV3 = dict(
  dynamic_img_size=True,
  init_values=1e-5,
  rope_type="dinov3",
  rope_temperature=100,
  rope_rotate_half=True,
  use_rot_pos_emb=True,
  use_abs_pos_emb=False,
  num_reg_tokens=4,
  use_fc_norm=False,
)


def huggingface(kind, *, extra=None, **fields):
  """A function that makes a transformers model of this class."""
  cls = getattr(transformers, kind)
  sizes = {**_SMALL, **fields}
  if kind in ("CLIPModel", "SiglipModel", "Tipsv2Model"):
    text = dict(
      hidden_size=32,
      num_hidden_layers=1,
      num_attention_heads=2,
      intermediate_size=16,
      vocab_size=20,
      max_position_embeddings=8,
    )
    sizes = dict(vision_config=sizes, text_config=text, **(extra or {}))
  elif kind.lower().endswith("lipforimageclassification"):
    sizes = dict(vision_config=sizes, **(extra or {}))
  return lambda: cls(cls.config_class(**sizes)), "hf"


def from_timm(architecture, **fields):
  """A function that makes a timm model."""

  def make():
    model = timm.create_model(architecture, **{**_TIMM, **fields})
    model.arguments = {**_TIMM, **fields}
    return model

  return make, "timm"


MODELS = {
  "hf_dinov2": huggingface(
    "Dinov2ForImageClassification", num_labels=5, mlp_ratio=2
  ),
  "hf_dinov2_giant": huggingface(
    "Dinov2Model", use_swiglu_ffn=True, mlp_ratio=3
  ),
  "hf_dinov2_reg": huggingface(
    "Dinov2WithRegistersForImageClassification",
    num_labels=5,
    num_register_tokens=4,
    mlp_ratio=2,
  ),
  "hf_dinov3": huggingface(
    "DINOv3ViTModel", num_register_tokens=4, intermediate_size=64
  ),
  "hf_dinov3_plus": huggingface(
    "DINOv3ViTModel",
    num_register_tokens=4,
    intermediate_size=48,
    use_gated_mlp=True,
    hidden_act="silu",
  ),
  "hf_dinov3_gates": huggingface(
    "DINOv3ViTModel",
    use_gated_mlp=True,
    query_bias=False,
    proj_bias=False,
    mlp_bias=False,
    **_BARE,
  ),
  "hf_siglip": huggingface("SiglipVisionModel", intermediate_size=64),
  "hf_siglip_text": huggingface("SiglipModel", intermediate_size=64),
  "hf_siglip_head": huggingface(
    "SiglipForImageClassification",
    intermediate_size=64,
    extra=dict(id2label={i: f"class {i}" for i in range(5)}),
  ),
  "hf_clip": huggingface(
    "CLIPVisionModelWithProjection", intermediate_size=64, projection_dim=24
  ),
  "hf_clip_text": huggingface(
    "CLIPModel", intermediate_size=64, extra=dict(projection_dim=24)
  ),
  "hf_clip_head": huggingface(
    "CLIPForImageClassification",
    extra=dict(id2label={i: f"class {i}" for i in range(5)}),
    **_TINY,
  ),
  "hf_siglip_bare": huggingface(
    "SiglipVisionModel", vision_use_head=False, **_TINY
  ),
  "hf_vit_unbiased": huggingface(
    "ViTForImageClassification", qkv_bias=False, **_TINY
  ),
  "hf_vit_pooler": huggingface("ViTModel", **_TINY),
  "hf_msn": huggingface("ViTMSNForImageClassification", **_TINY),
  "hf_ijepa": huggingface("IJepaForImageClassification", **_TINY),
  "hf_mim": huggingface("ViTForMaskedImageModeling", encoder_stride=8, **_TINY),
  "hf_beit": huggingface(
    "BeitForImageClassification", use_relative_position_bias=True, **_TINY
  ),
  "hf_deit_pooler": huggingface("DeiTModel", **_TINY),
  "hf_deit_head": huggingface("DeiTForImageClassification", **_TINY),
  "hf_deit": huggingface(
    "DeiTForImageClassificationWithTeacher", num_labels=5, intermediate_size=64
  ),
  "hf_mae": huggingface("ViTMAEModel", intermediate_size=64, mask_ratio=0.0),
  "hf_mae_decoder": huggingface(
    "ViTMAEForPreTraining",
    intermediate_size=64,
    mask_ratio=0.0,
    decoder_num_attention_heads=2,
    decoder_hidden_size=16,
    decoder_num_hidden_layers=1,
    decoder_intermediate_size=16,
  ),
  "hf_tips": huggingface("Tipsv2VisionModel", mlp_ratio=2, **_BARE),
  "hf_tips_giant": huggingface(
    "Tipsv2VisionModel", mlp_ratio=3, use_swiglu_ffn=True, **_BARE
  ),
  "hf_tips_text": huggingface("Tipsv2Model", mlp_ratio=2),
  "hf_aimv2": huggingface("Aimv2VisionModel", use_head=False, **_BARE),
  "hf_aimv2_head": huggingface("Aimv2VisionModel", **_BARE),
  "hf_internvl": huggingface(
    "InternVLVisionModel", attention_bias=True, **_BARE
  ),
  "hf_internvl_rms": huggingface(
    "InternVLVisionModel", norm_type="rms_norm", use_qk_norm=True, **_BARE
  ),
  "hf_internvl_token": huggingface(
    "InternVLVisionModel", use_mean_pooling=False, **_BARE
  ),
  "hf_metaclip2": huggingface(
    "MetaClip2VisionModelWithProjection", projection_dim=6, **_BARE
  ),
  "hf_pixio": huggingface("PixioModel", n_cls_tokens=3, mlp_ratio=2, **_BARE),
  "hf_radio": huggingface(
    "RadioModel",
    max_img_size=64,
    num_cls_tokens=3,
    num_registers=2,
    summary_idxs=[0, 2],
    mlp_ratio=2.0,
    **_BARE,
  ),
  "timm_aimv2": from_timm("aimv2_large_patch14_224", **_TINY_TIMM),
  "timm_intern": from_timm("vit_intern300m_patch14_448", **_TINY_TIMM),
  "timm_radio": from_timm("vit_base_patch16_radio_v3", **_TINY_TIMM),
  "timm_rms": from_timm("test_vit4", **_TINY_TIMM),
  "timm_dinov2": from_timm(
    "vit_small_patch14_dinov2", num_classes=0, dynamic_img_size=True
  ),
  "timm_dinov2_giant": from_timm(
    "vit_giant_patch14_dinov2",
    num_classes=0,
    dynamic_img_size=True,
    mlp_ratio=2.66667 * 2,
  ),
  "timm_dinov2_reg": from_timm(
    "vit_small_patch14_reg4_dinov2", num_classes=0, dynamic_img_size=True
  ),
  "timm_dinov3": from_timm("vit_small_patch16_dinov3", num_classes=0),
  "timm_dinov3_plus": from_timm(
    "vit_small_plus_patch16_dinov3", num_classes=5, global_pool="token"
  ),
  "timm_dinov3_bias": from_timm("vit_small_patch16_dinov3_qkvb", num_classes=0),
  "timm_siglip": from_timm(
    "vit_base_patch16_siglip_224", num_classes=0, dynamic_img_size=True
  ),
  "timm_siglip_head": from_timm("vit_base_patch16_siglip_224", **_TINY_TIMM),
  "timm_map_reg": from_timm("vit_so150m_patch16_reg4_map_256", **_TINY_TIMM),
  "timm_clip": from_timm(
    "vit_base_patch16_clip_quickgelu_224", num_classes=24, dynamic_img_size=True
  ),
  "timm_deit3": from_timm(
    "deit3_small_patch16_224", num_classes=5, dynamic_img_size=True
  ),
  "timm_deit": from_timm(
    "deit_small_distilled_patch16_224", num_classes=5, dynamic_img_size=True
  ),
  "timm_qk_norm": from_timm(
    "vit_base_patch16_224", qk_norm=True, num_classes=5, dynamic_img_size=True
  ),
  "timm_fc_norm": from_timm(
    "vit_base_patch16_224",
    global_pool="avg",
    qkv_bias=False,
    num_classes=5,
    dynamic_img_size=True,
  ),
  "timm_gap": from_timm("vit_betwixt_patch16_reg4_gap_256", **_TINY_TIMM),
  "timm_gap_placed": from_timm("vit_so150m_patch16_reg4_gap_256", **_TINY_TIMM),
  "timm_gap_rope": from_timm(
    "vit_betwixt_patch16_rope_reg4_gap_256", **_TINY_TIMM
  ),
  "timm_beit": from_timm("beit_base_patch16_224", **_FIXED),
  "timm_relpos_shared": from_timm("vit_srelpos_small_patch16_224", **_FIXED),
  "timm_relpos_table": from_timm(
    "vit_relpos_base_patch16_cls_224", rel_pos_type="bias", **_FIXED
  ),
  "timm_rpn": from_timm("vit_base_patch16_rpn_224", **_TINY_TIMM),
  "timm_parallel": from_timm("vit_small_patch16_18x2_224", **_TINY_TIMM),
  "timm_post_norm": from_timm("eva02_enormous_patch14_clip_224", **_TINY_TIMM),
  "timm_map_all": from_timm("test_vit3", **_TINY_TIMM),
  "timm_beit3": from_timm("beit3_base_patch16_224", **_TINY_TIMM),
  "timm_eva": from_timm("eva_giant_patch14_224", **_TINY_TIMM),
  "timm_eva02": from_timm("eva02_base_patch16_clip_224", **_TINY_TIMM),
  "timm_eva02_tiny": from_timm("eva02_tiny_patch14_224", **_TINY_TIMM),
  "timm_rope": from_timm("vit_small_patch16_rope_224", **_TINY_TIMM),
  "timm_rope_mixed": from_timm(
    "vit_small_patch16_rope_mixed_ape_224", **(_TINY_TIMM | dict(depth=2))
  ),
  "timm_pe": from_timm(
    "vit_pe_core_base_patch16_224", attn_pool_mlp_ratio=2.0, **_TINY_TIMM
  ),
  "timm_pe_lang": from_timm("vit_pe_lang_large_patch14_448", **_TINY_TIMM),
  "hf_mlcd": huggingface("MLCDVisionModel", **_BARE),
  "timm_lingbot": from_timm("vit_base_patch16_lingbot", **_TINY_TIMM),
  "timm_test_vit": from_timm("test_vit", **_TINY_TIMM),
  "timm_flexi": from_timm("flexivit_small", **_TINY_TIMM),
  "timm_siglip_gap": from_timm("vit_base_patch16_siglip_gap_224", **_TINY_TIMM),
  "timm_hybrid_r26": from_timm(
    "vit_base_r26_s32_224", **(_TINY_TIMM | dict(img_size=128, patch_size=1))
  ),
  "timm_hybrid_r50": from_timm(
    "vit_base_r50_s16_224", **(_TINY_TIMM | dict(img_size=64, patch_size=1))
  ),
  "timm_mae": from_timm(
    "vit_base_patch16_224.mae", **(_TINY_TIMM | dict(num_classes=0))
  ),
}


def randomize(model, name="") -> None:
  """Draws every parameter anew, so that each of them matters."""
  if name in drawn.TIMES:
    shapes = {key: x.shape for key, x in model.state_dict().items()}
    arrays = drawn.parameters(shapes)
    model.load_state_dict({k: torch.from_numpy(x) for k, x in arrays.items()})
    model.eval()
    return
  generator = torch.Generator().manual_seed(0)
  for name, parameter in model.named_parameters():
    noise = torch.randn(parameter.shape, generator=generator)
    parameter.data = drawn.value(name, noise)
  model.eval()


def answers_of_huggingface(model, images):
  """All tokens after the last norm, and the logits or pooled features."""
  name = type(model).__name__
  if name in ("SiglipModel", "CLIPModel"):
    vision = model.vision_model(images, interpolate_pos_encoding=True)
    if name == "SiglipModel":
      return vision.last_hidden_state, vision.pooler_output
    answer = model.visual_projection(vision.pooler_output)
    return model.vision_model.post_layernorm(vision.last_hidden_state), answer
  if name == "Tipsv2Model":
    done = model.vision_model(images)
    return done.last_hidden_state, done.pooler_output
  if name == "RadioModel":  # It normalises images itself.
    conditioner = model.input_conditioner
    done = model(images * conditioner.norm_std + conditioner.norm_mean)
    return done.last_hidden_state, done.summary
  if name == "InternVLVisionModel":  # Its configuration's mean is of patches.
    tokens = model(images).last_hidden_state
    mean = model.config.use_mean_pooling
    return tokens, tokens[:, 1:].mean(1) if mean else tokens[:, 0]
  if name.startswith("ViTMAE"):
    base = model.vit if hasattr(model, "vit") else model
    count = (images.shape[2] // 8) * (images.shape[3] // 8)
    noise = torch.arange(count)[None].repeat(len(images), 1).float()
    done = base(images, noise=noise, interpolate_pos_encoding=True)
    return done.last_hidden_state, done.last_hidden_state[:, 0]
  if name == "ViTForMaskedImageModeling":
    tokens = model.vit(images, interpolate_pos_encoding=True).last_hidden_state
    return tokens, tokens[:, 0]
  options = {}
  if name.startswith(("Siglip", "CLIP", "MetaClip", "DeiT", "ViT", "IJepa")):
    options["interpolate_pos_encoding"] = True
  done = model(images, output_hidden_states=True, **options)
  for base in (
    *("dinov2", "dinov2_with_registers", "deit", "vit", "ijepa", "beit"),
  ):
    if hasattr(model, base):
      norm = getattr(model, base).layernorm
      return norm(done.hidden_states[-1]), done.logits
  if name.endswith("VisionModelWithProjection"):
    norm = model.vision_model.post_layernorm
    return norm(done.last_hidden_state), done.image_embeds
  if name.endswith("ForImageClassification"):
    tower = model.vision_model
    tower = getattr(tower, "vision_model", tower)
    return tower.post_layernorm(done.hidden_states[-1]), done.logits
  tokens, pooled = done.last_hidden_state, done.pooler_output
  return tokens, tokens.mean(1) if pooled is None else pooled


def answers_of_timm(model, images):
  """The same of a timm model."""
  if model.patch_embed.strict_img_size:
    model = copy.deepcopy(model)
    model.set_input_size(tuple(images.shape[2:]))
  return model.forward_features(images), model(images)


def save(model, kind, folder):
  """Saves as the library itself does."""
  if kind == "hf":
    model.save_pretrained(folder)
    return
  configuration = dict(model.pretrained_cfg)
  arguments = model.arguments
  model_args = {k: v for k, v in arguments.items() if k != "num_classes"}
  timm.models.save_for_hf(
    model,
    folder,
    model_config={"pretrained_cfg": configuration},
    model_args=model_args,
    safe_serialization=True,
  )


def make(name: str, folder: pathlib.Path) -> None:
  make_model, kind = MODELS[name]
  torch.manual_seed(0)
  model = make_model()
  randomize(model, name)
  target = folder / name
  save(model, kind, target)
  times = drawn.TIMES.get(name, 1)
  if name in drawn.TIMES:
    shapes = {key: [*x.shape] for key, x in model.state_dict().items()}
    (target / drawn.FILE).write_text(json.dumps(shapes, indent=0) + "\n")
    (target / "model.safetensors").unlink()
  rng = np.random.default_rng(0)
  expected = {}
  compute = answers_of_timm if kind == "timm" else answers_of_huggingface
  fixed = name.startswith("hf_aimv2")  # transformers keeps its positions.
  for height, width in SIZES[: 1 if fixed else None]:
    images = rng.uniform(-1, 1, (2, height, width, 3))
    images = images.astype(np.float16).astype(np.float32)
    seen = images.repeat(times, axis=1).repeat(times, axis=2)
    with torch.no_grad():
      tokens, answer = compute(
        model, torch.from_numpy(seen.transpose(0, 3, 1, 2))
      )
    size = f"{height}x{width}"
    if tokens.shape[-1] == _SMALL["hidden_size"]:
      expected[f"images_{size}"] = images.astype(np.float16)
    expected[f"tokens_{size}"] = tokens.numpy()
    expected[f"answer_{size}"] = answer.numpy()
  np.savez_compressed(target / "expected.npz", **expected)


if __name__ == "__main__":
  torch.set_num_threads(1)
  for chosen in sys.argv[2:] or MODELS:
    make(chosen, pathlib.Path(sys.argv[1]))
    print(chosen)
