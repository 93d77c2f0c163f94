"""Makes sizes.npz: logits of other libraries at another size of images.

python -m tests.checkpoints.make_sizes

It needs torch 2.13.0, transformers 5.23.0, timm 1.0.31 and torchvision 0.28.0.
The tiny models are those of this folder, whose positions are for 32 x 32.
"""

import pathlib
from typing import Any

import numpy as np

from tests.libraries import define_operators
from tests.published import path

Size = tuple[int, int]
# torchvision resizes positions to squares only.
CASES: list[tuple[str, Size]] = [
  *(("hf_vit", (24, 40)), ("timm_vit.safetensors", (24, 40))),
  *(("torchvision_vit.safetensors", (side, side)) for side in (24, 48)),
]


def images(size: Size) -> np.ndarray:
  """Two normalised images, NHWC."""
  drawn = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3))
  return drawn.astype(np.float32)


def logits(name: str, size: Size) -> np.ndarray:
  """What the checkpoint's library computes for `images`."""
  import torch

  x = torch.from_numpy(images(size).transpose(0, 3, 1, 2))
  with torch.no_grad():
    return MODELS[name](size)(x).numpy()


def _hf(_: Size) -> Any:
  import transformers

  cls = transformers.ViTForImageClassification
  model = cls.from_pretrained(path("hf_vit")).eval()
  return lambda x: model(x, interpolate_pos_encoding=True).logits


def _timm(size: Size) -> Any:
  import timm
  from timm.models.vision_transformer import checkpoint_filter_fn

  own = dict(patch_size=8, embed_dim=48, depth=2, num_heads=3, mlp_ratio=2)
  model = timm.models.VisionTransformer(img_size=size, num_classes=10, **own)
  model.load_state_dict(checkpoint_filter_fn(_state("timm_vit"), model))
  return model.eval()


def _torchvision(size: Size) -> Any:
  from torchvision.models import vision_transformer as library

  state = _state("torchvision_vit")
  state = library.interpolate_embeddings(size[0], 8, state)
  sizes = dict(num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=96)
  model = library.VisionTransformer(size[0], 8, num_classes=10, **sizes)
  model.load_state_dict(state)
  return model.eval()


def _state(name: str) -> Any:
  import safetensors.torch

  return safetensors.torch.load_file(path(f"{name}.safetensors"))


MODELS = {
  "hf_vit": _hf,
  "timm_vit.safetensors": _timm,
  "torchvision_vit.safetensors": _torchvision,
}


def main() -> None:
  found = {f"{n} {h}x{w}": logits(n, (h, w)) for n, (h, w) in CASES}
  target = pathlib.Path(__file__).parent / "sizes.npz"
  np.savez_compressed(target, **found)
  print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
  define_operators()
  main()
