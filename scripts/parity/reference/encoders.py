"""Vision Transformers of timm and of transformers, at their real widths.

It makes each with few layers, draws every parameter, saves it as its library
does, and computes what it answers. Nothing is downloaded.
"""

import contextlib
import dataclasses
import importlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

CLASSES = 7
TIMM_MODULES = (
  "vision_transformer",
  "eva",
  "beit",
  "deit",
  "vision_transformer_hybrid",
  "naflexvit",
  "vision_transformer_relpos",
)
# Classes of transformers, and the values by which they differ from the
# defaults of their configuration, which are a published model's sizes.
_HEADED = "ForImageClassification"
_SO400M = dict(
  hidden_size=1152,
  intermediate_size=4304,
  num_attention_heads=16,
  image_size=384,
  patch_size=14,
)
_GIANT = dict(hidden_size=1536, num_attention_heads=24, use_swiglu_ffn=True)
_DINOV3_PLUS = dict(
  hidden_size=1280,
  intermediate_size=5120,
  num_attention_heads=20,
  use_gated_mlp=True,
  hidden_act="silu",
)
HF_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
  "ViTForImageClassification": ("ViTForImageClassification", {}),
  "ViTModel": ("ViTModel", {}),
  "ViTMAEModel": ("ViTMAEModel", dict(mask_ratio=0.0)),
  "ViTMSNForImageClassification": ("ViTMSNForImageClassification", {}),
  "ViTMSNModel": ("ViTMSNModel", {}),
  "IJepaForImageClassification": ("IJepaForImageClassification", {}),
  "IJepaModel": ("IJepaModel", {}),
  "DeiTForImageClassification": ("DeiTForImageClassification", {}),
  "DeiTForImageClassificationWithTeacher": (
    "DeiTForImageClassificationWithTeacher",
    {},
  ),
  "Dinov2ForImageClassification": ("Dinov2ForImageClassification", {}),
  "Dinov2Model giant": ("Dinov2Model", _GIANT),
  "Dinov2WithRegistersForImageClassification": (
    "Dinov2WithRegistersForImageClassification",
    {},
  ),
  "Dinov2WithRegistersModel giant": ("Dinov2WithRegistersModel", _GIANT),
  "DINOv3ViTModel": ("DINOv3ViTModel", dict(num_register_tokens=4)),
  "DINOv3ViTModel huge plus": (
    "DINOv3ViTModel",
    dict(num_register_tokens=4, **_DINOV3_PLUS),
  ),
  "CLIPForImageClassification": ("CLIPForImageClassification", {}),
  "CLIPVisionModelWithProjection": ("CLIPVisionModelWithProjection", {}),
  "CLIPVisionModel": ("CLIPVisionModel", {}),
  "MetaClip2ForImageClassification": ("MetaClip2ForImageClassification", {}),
  "MetaClip2VisionModelWithProjection": (
    "MetaClip2VisionModelWithProjection",
    {},
  ),
  "MetaClip2VisionModel": ("MetaClip2VisionModel", {}),
  "MLCDVisionModel": ("MLCDVisionModel", {}),
  "SiglipForImageClassification": ("SiglipForImageClassification", {}),
  "SiglipVisionModel": ("SiglipVisionModel", {}),
  "SiglipVisionModel so400m": ("SiglipVisionModel", _SO400M),
  "Siglip2ForImageClassification": ("Siglip2ForImageClassification", {}),
  "Siglip2VisionModel": ("Siglip2VisionModel", {}),
  "BeitForImageClassification": (
    "BeitForImageClassification",
    dict(use_relative_position_bias=True, layer_scale_init_value=0.1),
  ),
  "BeitForImageClassification absolute, shared": (
    "BeitForImageClassification",
    dict(
      use_absolute_position_embeddings=True,
      use_shared_relative_position_bias=True,
    ),
  ),
  "BeitModel": (
    "BeitModel",
    dict(use_relative_position_bias=True, layer_scale_init_value=0.1),
  ),
  "Data2VecVisionForImageClassification": (
    "Data2VecVisionForImageClassification",
    dict(use_relative_position_bias=True),
  ),
  "Aimv2VisionModel": ("Aimv2VisionModel", dict(use_head=False)),
  "Aimv2VisionModel with a head": ("Aimv2VisionModel", {}),
  "Aimv2VisionModel native": ("Aimv2VisionModel", dict(is_native=True)),
  "InternVLVisionModel": ("InternVLVisionModel", {}),
  "Tipsv2VisionModel": ("Tipsv2VisionModel", {}),
  "PixioModel": ("PixioModel", {}),
  "RadioModel": ("RadioModel", {}),
  "Sapiens2Model": ("Sapiens2Model", {}),
}


@dataclasses.dataclass(frozen=True)
class Encoder:
  """A model of a library.

  Attributes:
    library: "timm" or "transformers".
    family: The library's module that has it.
    name: timm's architecture, or a class of transformers and its size.
    make: Makes it with a number of layers.
  """

  library: str
  family: str
  name: str
  make: Callable[[int], Any]


def encoders(*libraries: str) -> Iterator[Encoder]:
  """All encoders of these libraries, in order."""
  if "timm" in libraries:
    timm = library("timm")
    for module in TIMM_MODULES:
      for name in timm.list_models(module=module):
        yield Encoder("timm", module, name, _Timm(name))
  if "transformers" in libraries:
    transformers = library("transformers")
    transformers.utils.logging.disable_progress_bar()
    for name, (kind, changes) in HF_CLASSES.items():
      cls = getattr(transformers, kind, None)
      if cls is not None:
        family = cls.__module__.split(".")[-2]
        make = _Transformers(cls, changes)
        yield Encoder("transformers", family, name, make)


def library(name: str) -> Any:
  """Imports a library; torchvision needs operators that some builds lack."""
  try:
    importlib.import_module("torchvision")
  except RuntimeError:
    _operators()
  except ImportError:
    pass
  return importlib.import_module(name)


def _operators() -> None:
  defined = torch.library.Library("torchvision", "FRAGMENT")
  _KEPT.append(defined)
  for name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):  # It exists.
      defined.define(
        f"{name}(Tensor dets, Tensor scores, float limit) -> Tensor"
      )


_KEPT: list[Any] = []  # Operators vanish with what defined them.


@dataclasses.dataclass(frozen=True)
class _Timm:
  name: str

  def __call__(self, depth: int) -> Any:
    options: dict[str, Any] = dict(depth=depth, num_classes=CLASSES)
    timm = library("timm")
    if "sapiens2" in self.name:  # Its middle layers share keys and values.
      with torch.device("meta"):
        blocks = timm.create_model(self.name).blocks
      heads = [blocks[i].attn.num_kv_heads for i in (0, len(blocks) // 2)]
      options["num_kv_heads"] = (heads * depth)[:depth]
    return timm.create_model(self.name, **options)


@dataclasses.dataclass(frozen=True)
class _Transformers:
  cls: Any
  changes: dict[str, Any]

  def __call__(self, depth: int) -> Any:
    config_class = self.cls.config_class
    sizes = dict(num_hidden_layers=depth, **self.changes)
    labels = {"id2label": {i: f"class {i}" for i in range(CLASSES)}}
    if "vision_config" in getattr(config_class, "sub_configs", {}):
      config = config_class(vision_config=sizes, **labels)
    else:
      config = config_class(**sizes, **labels)
    return self.cls(config)


def randomise(model: Any, seed: int = 0) -> None:
  """Draws every parameter, and every buffer that is saved and learned.

  Matrices get a variance that keeps that of their input, factors are around
  one, and vectors around zero. Embeddings are small, so that the epsilon of the
  first norm shows.
  """
  generator = torch.Generator().manual_seed(seed)
  for path, module in model.named_modules():
    norm = "norm" in type(module).__name__.lower()
    for name, parameter in module.named_parameters(recurse=False):
      noise = torch.randn(parameter.shape, generator=generator)
      parameter.data = _drawn(path, name, parameter, noise, norm)
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
      for name in ("running_mean", "running_var"):
        buffer = getattr(module, name)
        noise = torch.randn(buffer.shape, generator=generator)
        buffer.copy_(0.1 * noise if "mean" in name else 1 + 0.1 * noise.abs())
  model.eval()


def _drawn(path: str, name: str, parameter: Any, noise: Any, norm: bool) -> Any:
  if norm and "weight" in name:
    return 1 + 0.2 * noise
  embedded = "embed" in path or name.endswith(("token", "pos_embed"))
  if name == "weight" and parameter.dim() > 1 and "position" not in path:
    fan_in = parameter[0].numel()
    if "relative" in path:
      return 0.5 * noise
    pixels = parameter.dim() == 4 and "backbone" not in path
    pixels |= embedded and parameter.dim() == 2
    return noise * (0.05 if pixels else 1) / fan_in**0.5
  if "gamma" in name or "lambda" in name or name == "scale":
    return 0.5 + 0.2 * noise
  if "relative" in name:
    return 0.5 * noise
  if "probe" in name or "latent" in name:
    return noise
  if "freqs" in name:
    return parameter.data * (1 + 0.1 * noise)
  return (0.03 if embedded else 0.1) * noise


def save(model: Any, encoder: Encoder, folder: pathlib.Path) -> None:
  """Saves a model as its library does."""
  folder.mkdir(parents=True, exist_ok=True)
  if encoder.library == "transformers":
    model.save_pretrained(folder)
    return
  hub = library("timm.models")
  hub.save_for_hf(model, folder, safe_serialization=True)


def opened(encoder: Encoder, folder: pathlib.Path) -> Any:
  """The model of a folder that is written for its library."""
  if encoder.library == "timm":
    timm = library("timm")
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
  transformers = library("transformers")
  config = json.loads((folder / "config.json").read_text())
  kind = getattr(transformers, config["architectures"][0])
  return kind.from_pretrained(folder).eval()


def image_size(model: Any, encoder: Encoder) -> tuple[int, int]:
  """Height and width of the images that a model takes."""
  if encoder.library == "timm":
    size = (
      getattr(model.patch_embed, "img_size", None)
      if hasattr(model, "patch_embed")
      else None
    )
    return tuple(size or model.pretrained_cfg["input_size"][1:])
  config = getattr(model.config, "vision_config", model.config)
  size = getattr(config, "image_size", None) or 224
  return (size, size) if isinstance(size, int) else tuple(size)


def answer(model: Any, images: np.ndarray) -> np.ndarray:
  """The logits of images (B, H, W, C), or else the features of an image."""
  x = torch.from_numpy(images.transpose(0, 3, 1, 2)).contiguous()
  kind = type(model).__name__
  with torch.no_grad():
    if type(model).__module__.startswith("timm."):
      return model(x).numpy()
    if kind.startswith("Siglip2"):
      return _of_patches(model, x)
    if kind == "ViTMAEModel":
      count = (x.shape[2] // 16) * (x.shape[3] // 16)
      done = model(x, noise=torch.arange(count)[None].float())
      return done.last_hidden_state[:, 0].numpy()
    if kind == "RadioModel":  # It normalises images itself.
      conditioner = model.input_conditioner
      x = x * conditioner.norm_std + conditioner.norm_mean
    done = model(x)
    if getattr(done, "logits", None) is not None and not done.logits.numel():
      tokens = model.base_model(x).last_hidden_state
      return tokens[:, 0].numpy()
  for name in ("logits", "image_embeds", "pooler_output", "summary"):
    if getattr(done, name, None) is not None:
      return getattr(done, name).numpy()
  tokens = done.last_hidden_state
  by_token = kind == "ViTMSNModel"
  if kind == "InternVLVisionModel":  # It has no pooler; its mean is of patches.
    by_token = not model.config.use_mean_pooling
    tokens = tokens if by_token else tokens[:, 1:]
  return (tokens[:, 0] if by_token else tokens.mean(1)).numpy()


def _of_patches(model: Any, x: Any) -> np.ndarray:
  """The answer of a model that takes patches, and their number."""
  config = getattr(model.config, "vision_config", model.config)
  P = config.patch_size
  B, C, H, W = x.shape
  h, w = H // P, W // P
  patches = x.reshape(B, C, h, P, w, P).permute(0, 2, 4, 3, 5, 1)
  done = model(
    patches.reshape(B, h * w, P * P * C),
    torch.ones(B, h * w, dtype=torch.int64),
    torch.tensor([[h, w]] * B),
  )
  found = done.logits if hasattr(done, "logits") else done.pooler_output
  return found.numpy()
