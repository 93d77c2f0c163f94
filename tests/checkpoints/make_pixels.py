"""Makes pixels.npz: what other libraries make of the photographs of the tests.

python -m tests.checkpoints.make_pixels

It needs torch 2.13.0, transformers 5.23.0, timm 1.0.31 and torchvision 0.28.0,
none of which the tests need. The photographs are computed, see
`tests.data.pictures.photographs`; transparency is blended with white before
another library sees it, since these libraries drop it.
"""

import io
import json
import pathlib
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from tests.data.pictures import photographs
from tests.libraries import define_operators

SIDE, SHORT = 24, 28
HUGGING_FACE = {
  "vit": {"image_processor_type": "ViTImageProcessor", "size": SIDE},
  "vit_lanczos": {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIDE, "width": 34},
    "resample": 1,
  },
  "deit": {
    "image_processor_type": "DeiTImageProcessor",
    "size": {"height": SHORT, "width": SHORT},
    "crop_size": {"height": SIDE, "width": SIDE},
  },
  "clip": {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
  },
  "dinov2": {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": SHORT},
    "crop_size": {"height": SIDE, "width": SIDE},
  },
  "longest": {  # A crop that lacks pixels, which are black.
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SHORT, "longest_edge": 31},
    "crop_size": {"height": SIDE, "width": SIDE},
  },
  "convnext": {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": SIDE},
  },
  "siglip": {
    "image_processor_type": "SiglipImageProcessor",
    "size": [SIDE] * 2,
  },
  "dinov3": {"image_processor_type": "DINOv3ViTImageProcessor", "size": SIDE},
  "beit": {
    "image_processor_type": "BeitImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
  },
  "range": {
    "image_processor_type": "ViTImageProcessor",
    "size": SIDE,
    "rescale_factor": 1 / 127.5,
    "image_mean": [1.0, 0.9, 0.8],
    "image_std": [1.0, 0.5, 0.25],
  },
}
HALF = [0.5, 0.5, 0.5]
TIMM = {
  "timm_center": {"crop_pct": 0.9, "interpolation": "bicubic"},
  "timm_squash": {"crop_pct": 1.0, "crop_mode": "squash"},
  "timm_cut": {"crop_pct": 0.875, "crop_mode": "squash"},
  "timm_wide": {"crop_pct": 0.875, "input_size": [3, SIDE, 34]},
  "timm_defaults": {},
}


def opened(encoded: bytes) -> Image.Image:
  """The photograph as another library opens it, on a white page."""
  image = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
  if image.mode == "RGBA":
    page = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(page, image)
  return image.convert("RGB")


def hugging_face(config: dict[str, Any], suffix: str) -> Any:
  import transformers

  made = getattr(transformers, config["image_processor_type"] + suffix)(
    **{k: v for k, v in config.items() if k != "image_processor_type"}
  )
  return pixels_of(made)


def pixels_of(made: Any) -> Any:
  """What a processor makes of a picture, (C, H, W)."""
  return lambda image: made(image, return_tensors="np")["pixel_values"][0]


def timm(config: dict[str, Any]) -> Any:
  import timm.data

  found = timm.data.resolve_data_config(pretrained_cfg=config)
  made = timm.data.create_transform(**found)
  return lambda image: made(image).numpy()


def torchvision() -> Any:
  from torchvision.transforms import _presets

  made = _presets.ImageClassification(crop_size=SIDE, resize_size=27)
  return lambda image: made(image).numpy()


def transforms() -> dict[str, tuple[dict[str, Any], Any]]:
  """For each name the configuration to read, and the library's function."""
  found: dict[str, tuple[dict[str, Any], Any]] = {}
  for name, config in HUGGING_FACE.items():
    found[name] = config, hugging_face(config, "")
    # DINOv3 has no variant on Pillow; that of CLIP adds black elsewhere.
    if name not in ("dinov3", "longest"):
      found[f"{name}_pil"] = config, hugging_face(config, "Pil")
  for name, config in TIMM.items():
    config = {"input_size": [3, SIDE, SIDE], "mean": HALF, "std": HALF} | config
    if name == "timm_defaults":
      config = {"input_size": [3, SIDE, SIDE]}
    found[name] = config, timm(config)
  found["torchvision"] = {}, torchvision()
  return found


def main() -> None:
  arrays = {}
  for name, (config, transform) in transforms().items():
    arrays[f"{name}.json"] = np.array(json.dumps(config))
    seen = np.stack([transform(opened(x)) for x in photographs().values()])
    arrays[name] = seen.transpose(0, 2, 3, 1).astype(np.float16)
  path = pathlib.Path(__file__).parent / "pixels.npz"
  np.savez_compressed(path, **arrays)
  print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
  define_operators()
  main()
