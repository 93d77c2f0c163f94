"""Makes what encoders of images of any size compute, by their publishers' code.

python -m tests.checkpoints.any_size.make FOLDER

It needs torch, transformers and timm, as `encoders/make.py` does.
`encoders.json` gets the configuration of each and the shapes of its parameters,
whose values `encoders.drawn` draws, and `expected.npz` the patches of six
images, what the encoders answer, and for some the output of their last layer.
"""

import json
import pathlib
import sys

import numpy as np
import torch

from tests.checkpoints.encoders import drawn, make  # noqa: F401

import timm  # isort: skip
import transformers  # isort: skip

SIZES = ((4, 4), (2, 8), (1, 7), (6, 2), (3, 3), (5, 3))
N, P = 16, 4
SHOWN = ("hf_siglip2", "gap", "par_gap", "parfac_gap", "base_patch16_siglip")
_VISION = dict(
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=1,
  num_attention_heads=2,
  patch_size=P,
  num_patches=16,
)
_TIMM = dict(patch_size=P, embed_dim=16, depth=1, num_heads=2, mlp_ratio=1.5)
_PICTURES = ("input_size", "mean", "std", "crop_pct", "interpolation")


def patches() -> dict[str, np.ndarray]:
  """The pixels of patches, their places, and which there are."""
  rng = np.random.RandomState(0)
  values = np.zeros((len(SIZES), N, P * P * 3), np.float32)
  place = np.zeros((len(SIZES), N, 2), np.int64)
  counts = np.zeros((len(SIZES), N), bool)
  for i, (h, w) in enumerate(SIZES):
    values[i, : h * w] = rng.standard_normal((h * w, P * P * 3))
    place[i, : h * w] = np.indices((h, w)).reshape(2, -1).T
    counts[i, : h * w] = True
  return dict(values=values, place=place, counts=counts)


def filled(model: torch.nn.Module) -> torch.nn.Module:
  """The model with the parameters that are drawn."""
  shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
  arrays = drawn.parameters(shapes)
  model.load_state_dict({k: torch.tensor(v) for k, v in arrays.items()})
  return model.eval()


def of_timm(name: str, given: dict[str, np.ndarray]):
  """The model, its configuration, its answers and its tokens."""
  classes = 0 if "siglip" in name or "radio" in name else 3
  grid = dict(pos_embed_grid_size=(5, 5))
  model = timm.create_model(name, num_classes=classes, **_TIMM, **grid)
  inputs = dict(
    patches=torch.tensor(given["values"]),
    patch_coord=torch.tensor(given["place"]),
    patch_valid=torch.tensor(given["counts"]),
  )
  tokens = filled(model).forward_features(**inputs)
  config = dict(
    architecture=name,
    num_classes=classes,
    model_args=_TIMM | dict(pos_embed_grid_size=[5, 5]),
    pretrained_cfg={k: model.pretrained_cfg[k] for k in _PICTURES},
  )
  return model, config, model(inputs), tokens["patches"]


def of_transformers(kind: str, given: dict[str, np.ndarray]):
  """The same of SigLIP 2, without a head or with one."""
  headed = kind == "Siglip2ForImageClassification"
  config = transformers.Siglip2VisionConfig(**_VISION)
  if headed:
    config = transformers.Siglip2Config(
      vision_config=_VISION, text_config=_VISION, num_labels=3
    )
  model = filled(getattr(transformers, kind)(config))
  found = model(
    pixel_values=torch.tensor(given["values"]),
    pixel_attention_mask=torch.tensor(given["counts"]).long(),
    spatial_shapes=torch.tensor(SIZES),
  )
  told = model.config.to_diff_dict() | dict(model_type=config.model_type)
  told.pop("text_config", None)
  told["vision_config" if headed else "num_patches"] = _VISION if headed else 16
  if headed:
    return model, told, found.logits, None
  return model, told, found.pooler_output, found.last_hidden_state


def main() -> None:
  folder = pathlib.Path(sys.argv[1])
  given = patches()
  encoders, arrays = {}, dict(given)
  made = {name: of_timm(name, given) for name in timm.list_models("naflexvit*")}
  kinds = "Siglip2VisionModel", "Siglip2ForImageClassification"
  for name, kind in zip(("hf_siglip2", "hf_siglip2_head"), kinds, strict=True):
    made[name] = of_transformers(kind, given)
  for name, (model, config, answer, tokens) in made.items():
    shapes = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    encoders[name] = dict(config=config, shapes=shapes)
    arrays[f"answer_{name}"] = answer.detach().numpy()
    if tokens is not None and name.endswith(SHOWN):
      arrays[f"tokens_{name}"] = tokens.detach().numpy()
  (folder / "encoders.json").write_text(json.dumps(encoders, default=list))
  np.savez_compressed(folder / "expected.npz", **arrays)


if __name__ == "__main__":
  main()
