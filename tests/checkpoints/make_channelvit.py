"""Writes channelvit.npz: ChannelViT's own answers, with random weights.

It needs PyTorch and a clone of github.com/insitro/ChannelViT at 1077a103, whose
code is run and of which nothing is copied:

PYTHONPATH=ChannelViT python tests/checkpoints/make_channelvit.py

The file has the arrays of the model by their names there, `x` (2, 4, 8, 8), the
features of these images `y`, and those of the channels 3 and 1 alone, `y_31`.
`positions` are the vectors of positions that the model adds: with more than one
channel, its code resizes them to a grid that is 0.1 patches larger.
"""

import pathlib

import numpy as np
import torch
from channelvit.backbone import channel_vit, hcs_channel_vit

SIDE, P, C, D = 8, 4, 4, 16


def main():
  torch.manual_seed(0)
  sizes = {"img_size": [SIDE], "patch_size": P, "in_chans": C, "embed_dim": D}
  sizes |= {"depth": 2, "num_heads": 2, "qkv_bias": True}
  norm = {"norm_layer": lambda size: torch.nn.LayerNorm(size, eps=1e-6)}
  model = channel_vit.ChannelVisionTransformer(**sizes, **norm).eval()
  sampled = hcs_channel_vit.ChannelVisionTransformer(**sizes, **norm).eval()
  with torch.no_grad():
    for array in model.parameters():
      array.normal_(0, 0.3)
    arrays = {k: v.numpy() for k, v in model.state_dict().items()}
    x = torch.randn(2, C, SIDE, SIDE)
    tokens = torch.zeros(1, 1 + C * (SIDE // P) ** 2, D)
    positions = model.interpolate_pos_encoding(tokens, SIDE, SIDE, C)
    y = model(x, {"channels": torch.arange(C)[None]})
    some = torch.tensor([3, 1])
    y_31 = model(x[:, some], {"channels": some[None]})
    # Outside of training, the model that samples channels gives the same.
    state = dict(model.state_dict())
    vectors = state["patch_embed.channel_embed"].reshape(D, C).T
    state["patch_embed.channel_embed.weight"] = vectors
    del state["patch_embed.channel_embed"]
    sampled.load_state_dict(state)
    again = sampled(x[:, some], {"channels": some[None].repeat(2, 1)})
    torch.testing.assert_close(again, y_31)
  np.savez_compressed(
    pathlib.Path(__file__).with_name("channelvit.npz"),
    **arrays,
    x=x.numpy(),
    positions=positions[0, : 1 + (SIDE // P) ** 2].numpy(),
    y=y.numpy(),
    y_31=y_31.numpy(),
  )


if __name__ == "__main__":
  main()
