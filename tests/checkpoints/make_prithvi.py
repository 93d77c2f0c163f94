"""Makes prithvi/: a tiny Prithvi, by the module of terratorch that defines it.

    python make_prithvi.py prithvi_mae.py

The argument is terratorch/models/backbones/prithvi_mae.py, here of commit
85467a9f. It needs torch, timm and einops.
"""

import importlib.util
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent / "prithvi"
FIELDS = dict(
  img_size=32,
  num_frames=4,
  patch_size=[1, 8, 8],
  in_chans=6,
  embed_dim=48,
  depth=2,
  num_heads=3,
  decoder_embed_dim=16,
  decoder_depth=1,
  decoder_num_heads=2,
  mlp_ratio=2,
  coords_encoding=["time", "location"],
  coords_scale_learn=True,
)
MEAN = [1087.0, 1342.0, 1433.0, 2734.0, 1958.0, 1363.0]
STD = [2248.0, 2179.0, 2178.0, 1850.0, 1242.0, 1049.0]


def main() -> None:
  spec = importlib.util.spec_from_file_location("prithvi_mae", sys.argv[1])
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  torch.manual_seed(0)
  model = module.PrithviMAE(**FIELDS).eval()
  for name, parameter in model.named_parameters():
    if "pos_embed" not in name:
      torch.nn.init.normal_(parameter, std=0.3)
  FOLDER.mkdir(exist_ok=True)
  arrays = {k: v.contiguous() for k, v in model.state_dict().items()}
  save_file(arrays, FOLDER / "model.safetensors")
  published = {**FIELDS, "mean": MEAN, "std": STD}
  config = {"architecture": "prithvi_eo_v2_tiny", "pretrained_cfg": published}
  (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
  rng = np.random.default_rng(0)
  expected = {}
  for name, size in (("square", (32, 32)), ("wide", (24, 40))):
    images = rng.normal(size=(2, *size, 6)).astype(np.float32)
    x = torch.from_numpy(images).permute(0, 3, 1, 2)[:, :, None]
    with torch.no_grad():
      tokens = model.encoder.forward_features(x)[-1]
    expected |= {f"{name}_images": images, f"{name}_tokens": tokens.numpy()}
  np.savez_compressed(FOLDER / "expected.npz", **expected)


if __name__ == "__main__":
  main()
