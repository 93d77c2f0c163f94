"""Makes tiny models of images and text, by open_clip's and big_vision's code.

PYTHONPATH=.:BIG_VISION python tests/checkpoints/texts/make_open.py FOLDER

It needs torch, open_clip_torch, timm, and a copy of big_vision's sources. The
tokenizers are those that `make.py` made.
"""

import functools
import json
import pathlib
import shutil
import sys
import types
from typing import Any

import numpy as np

from tests.libraries import define_operators

HERE = pathlib.Path(__file__).parent
CAPTIONS = json.loads((HERE / "captions.json").read_text())
LENGTH = 20
IMAGES = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)
# Sizes of the image tower of timm's, beside which open_clip names none.
SMALL = dict(
  embed_dim=16, depth=1, num_heads=2, patch_size=8, mlp_ratio=1.5, img_size=16
)
TEXT = dict(context_length=LENGTH, width=16, heads=2, layers=2, mlp_ratio=1.5)
VISION = dict(layers=1, width=16, head_width=8, patch_size=8, image_size=16)
CLIP = dict(embed_dim=12, quick_gelu=True, vision_cfg=VISION, text_cfg=TEXT)
SIGLIP = dict(
  embed_dim=16,
  init_logit_bias=-10,
  vision_cfg=dict(
    timm_model_name="vit_base_patch16_siglip_224",
    timm_pool="map",
    timm_proj="none",
    image_size=16,
  ),
  text_cfg=TEXT
  | dict(
    hf_tokenizer_name="beside",
    tokenizer_kwargs=dict(clean="canonicalize"),
    no_causal_mask=True,
    proj_bias=True,
    pool_type="last",
    norm_kwargs=dict(eps=1e-6),
    act_kwargs=dict(approximate="tanh"),
  ),
)


def make_open_clip(kind: str, tokenizer: str, cfg: dict, folder) -> None:
  define_operators()
  import open_clip
  import safetensors.torch
  import timm
  import torch

  plain = timm.create_model
  timm.create_model = functools.partial(plain, **SMALL)

  shutil.copytree(
    HERE / tokenizer, folder, ignore=shutil.ignore_patterns("*.npz", "model*")
  )
  (folder / "config.json").unlink()
  beside = open_clip.tokenizer.HFTokenizer(
    str(folder), LENGTH, **cfg["text_cfg"].get("tokenizer_kwargs", {})
  )
  vocabulary = len(beside.tokenizer)
  cfg["text_cfg"] = cfg["text_cfg"] | dict(vocab_size=vocabulary)
  model = getattr(open_clip, kind)(**cfg).eval()
  timm.create_model = plain
  torch.manual_seed(0)
  with torch.no_grad():
    for key, array in model.named_parameters():
      if not key.startswith("logit_"):
        array.copy_(torch.randn_like(array) * 0.3)
  safetensors.torch.save_file(
    model.state_dict(), folder / "open_clip_model.safetensors"
  )
  content = dict(
    model_cfg=cfg,
    preprocess_cfg=dict(mean=[0.5] * 3, std=[0.5] * 3),
  )
  (folder / "open_clip_config.json").write_text(json.dumps(content, indent=2))
  ids = beside(CAPTIONS)
  pixels = torch.tensor(IMAGES.transpose(0, 3, 1, 2))
  with torch.no_grad():
    logits, _ = model.get_logits(pixels, ids)
    features = model.encode_text(ids)
  np.savez(
    folder / "expected.npz",
    ids=ids.numpy().astype(np.int32),
    features=features.numpy(),
    images=IMAGES,
    logits=logits.numpy(),
  )


def make_two_towers(scan: bool, folder) -> None:
  import flax.training.checkpoints
  import jax
  from flax import traverse_util

  # Their import needs TensorFlow's files, and what is used here does not.
  names = ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")
  stubs = {name: types.ModuleType(name) for name in names}
  stubs[names[1]].gfile = stubs[names[2]]
  sys.modules.update(stubs)
  from big_vision.models import vit
  from big_vision.models.proj.image_text import text_transformer, two_towers

  assert vit and text_transformer and flax.training.checkpoints
  for name in names:
    sys.modules.pop(name, None)
  folder.mkdir()
  shutil.copy(HERE / "hf_siglip" / "spiece.model", folder)
  shutil.copy(HERE / "hf_siglip" / "tokenizer_config.json", folder)
  with np.load(HERE / "hf_siglip" / "expected.npz") as arrays:
    ids = arrays["ids"]
  config = json.loads((HERE / "hf_siglip" / "config.json").read_text())
  tower = dict(width=16, depth=2, mlp_dim=24, num_heads=2, scan=scan)
  model = two_towers.Model(
    image=tower | dict(patch_size=(8, 8), pool_type="map"),
    text=tower | dict(vocab_size=config["text_config"]["vocab_size"]),
    out_dim=(None, 16),
    temperature_init=10.0,
    bias_init=-10.0,
  )
  params = model.init(jax.random.key(0), IMAGES, ids)["params"]
  flat: dict[str, Any] = traverse_util.flatten_dict(params, sep="/")
  rng = np.random.default_rng(0)
  for name, array in flat.items():
    if name not in ("t", "b"):
      flat[name] = (rng.normal(size=array.shape) * 0.3).astype(np.float32)
  variables = {"params": traverse_util.unflatten_dict(flat, sep="/")}
  answers: Any = model.apply(variables, IMAGES, ids)
  zimg, ztxt, out = answers
  np.savez(folder / "model.npz", **{f"params/{k}": v for k, v in flat.items()})
  np.savez(
    folder / "expected.npz",
    ids=ids,
    features=ztxt * out["txt/norm"],
    images=IMAGES,
    logits=zimg @ ztxt.T * out["t"] + out["b"],
  )


def make(folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  make_open_clip("CLIP", "hf_clip", CLIP, folder / "open_clip")
  make_open_clip("CustomTextCLIP", "hf_siglip2", SIGLIP, folder / "open_siglip")
  make_two_towers(False, folder / "two_towers")
  make_two_towers(True, folder / "two_towers_scan")


if __name__ == "__main__":
  make(pathlib.Path(sys.argv[1]))
