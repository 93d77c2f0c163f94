"""Reads Google's flat npz checkpoints into our tree of parameters."""

import pathlib

import numpy as np
import pytest

FIXTURES = pathlib.Path(__file__).parents[2] / "shared" / "fixtures"

# Numbers that the published names count submodules by, to our names.
_RENAMED = {
  "LayerNorm_0": "norm_msa",
  "LayerNorm_2": "norm_mlp",
  "MultiHeadDotProductAttention_1": "msa",
  "MlpBlock_3": "mlp",
  "Dense_0": "expand",
  "Dense_1": "contract",
}


def read(name: str) -> dict[str, np.ndarray]:
  """The arrays of a fixture; skips the test where there is none."""
  path = FIXTURES / f"{name}.npz"
  if not path.exists():
    pytest.skip(f"needs shared/fixtures/{path.name} beside the repository")
  with np.load(path) as arrays:
    return dict(arrays)


def to_params(arrays: dict[str, np.ndarray]) -> dict:
  """The nested parameters of a `Vit` from a checkpoint's flat ones."""
  params = {}
  for key, value in arrays.items():
    *modules, leaf = _path(key.split("/"))
    if leaf == "kernel" and modules == ["patches", "E"]:
      value = value.reshape(-1, value.shape[-1])  # (P^2 C, D)
    elif leaf == "x_class" or (modules[0] == "resnet" and leaf != "kernel"):
      value = value.reshape(-1)  # From (1, 1, D) and (1, 1, 1, C).
    elif leaf == "E_pos":
      value = value[0]  # (N + 1, D)
    node = params
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = value
  return params


def _path(parts: list[str]) -> list[str]:
  """Where a checkpoint's parameter lives in our tree."""
  first, *rest = parts
  if first == "cls":
    return ["x_class"]
  if first == "embedding":
    return ["patches", "E", *rest]
  if first in ("conv_root", "gn_root"):
    return ["resnet", first.replace("gn", "norm"), *rest]
  if first.startswith("block"):
    stage, unit = int(first[len("block") :]), int(rest[0][len("unit") :])
    return [
      "resnet",
      f"stage{stage - 1}_unit{unit - 1}",
      rest[1].replace("gn", "norm"),
      rest[2],
    ]
  if first != "Transformer":
    return parts
  if rest[0] == "posembed_input":
    return ["position", "E_pos"]
  if rest[0] == "encoder_norm":
    return ["norm", *rest[1:]]
  block = rest[0].replace("encoderblock", "block")
  return [block, *(_RENAMED.get(part, part) for part in rest[1:])]
