"""Writes `dpt/`: what transformers' DPT with a DINOv2 answers for pictures.

python tests/checkpoints/make_dpt.py tests/checkpoints/dpt

Its head has 256 channels at least, 40 MB of weights, so no weights are kept:
`arrays` draws each by its name, here and in the test. It needs torch,
torchvision and transformers (5.24.0 was used).
"""

import json
import math
import pathlib
import sys
import tempfile
import zlib

import numpy as np

SIZES = ((61, 95), (84, 56))
"""Height and width of the pictures."""


def arrays(shapes: dict) -> dict:
  """The arrays of a model, by the shape of each."""
  return {name: _array(name, tuple(shape)) for name, shape in shapes.items()}


def _array(name: str, shape: tuple) -> np.ndarray:
  drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
  scale = 0.1
  if len(shape) > 1:
    scale = (
      0.15 if "backbone" in name else 1.4 / math.sqrt(math.prod(shape[1:]))
    )
  array = (scale * drawn).astype(np.float32)
  if name.startswith("head.head.4."):  # So that few numbers are cut at 0.
    array = 1 + array if len(shape) == 1 else array / 40
  return array


def pictures() -> list:
  rng = np.random.default_rng(0)
  small = [rng.integers(0, 256, (h // 8 + 1, w // 8 + 1, 3)) for h, w in SIZES]
  large = [np.kron(x, np.ones((8, 8, 1))).astype(np.uint8) for x in small]
  return [x[:h, :w] for x, (h, w) in zip(large, SIZES, strict=True)]


def main(folder: pathlib.Path) -> None:
  import torch

  library = torch.library.Library("torchvision", "FRAGMENT")
  for name in ("nms", "qnms"):  # For builds of torchvision for a GPU.
    try:
      library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
    except RuntimeError:
      pass
  import transformers
  from safetensors.numpy import load_file, save_file

  encoder = transformers.Dinov2Config(
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=2,
    mlp_ratio=2,
    image_size=56,
    patch_size=14,
    out_indices=[1, 2, 3, 4],
    apply_layernorm=False,
    reshape_hidden_states=False,
  )
  config = transformers.DPTConfig(
    backbone_config=encoder,
    neck_hidden_sizes=[3, 6, 12, 24],
    use_bias_in_fusion_residual=False,
    add_projection=True,
  )
  with tempfile.TemporaryDirectory() as place:
    transformers.DPTForDepthEstimation(config).save_pretrained(place)
    file = f"{place}/model.safetensors"
    shapes = {name: [*array.shape] for name, array in load_file(file).items()}
    save_file(arrays(shapes), file, {"format": "pt"})
    model = transformers.DPTForDepthEstimation.from_pretrained(place).eval()
  folder.mkdir(exist_ok=True)
  (folder / "shapes.json").write_text(json.dumps(shapes) + "\n")
  config.architectures = ["DPTForDepthEstimation"]
  config.save_pretrained(folder)
  as_published = dict(do_resize=False, do_rescale=False, do_pad=True)
  as_published |= dict(size_divisor=14, image_mean=[123.675, 116.28, 103.53])
  as_published |= dict(image_std=[58.395, 57.12, 57.375])
  resized = dict(size=dict(height=56, width=56), keep_aspect_ratio=True)
  resized |= dict(ensure_multiple_of=14)
  expected = {}
  for kind, options in (("padded", as_published), ("resized", resized)):
    processor = transformers.DPTImageProcessor(**options)
    processor.save_pretrained(folder / kind)
    for i, picture in enumerate(pictures()):
      pixels = processor(picture, return_tensors="pt")["pixel_values"]
      with torch.no_grad():
        outputs = model(pixels.float())
      sizes = [picture.shape[:2]]
      (one,) = processor.post_process_depth_estimation(outputs, sizes)
      expected[f"{kind}_{i}"] = one["predicted_depth"].numpy()
  for name, depth in expected.items():
    print(name, depth.shape, depth.min(), depth.max(), (depth > 0).mean())
  np.savez_compressed(folder / "expected.npz", **expected)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
