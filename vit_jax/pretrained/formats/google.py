"""Google's npz checkpoints: vision_transformer's and big_vision's.

Names are flat paths, and arrays are laid out as ours are. The submodules of a
block are named in one of two ways: as in the published files, or as today's
Flax numbers them. big_vision's scanned layers are stacked along a first axis.
The positions tell the two libraries apart: vision_transformer keeps them in
`Transformer/posembed_input`, with a vector for the class token; big_vision
keeps them at the top, without that vector, or computes `sincos2d`. SigLIP 2 for
images of any size (NaFlex) has patches as rows, and positions as a grid.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.models import BaseVit
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats.architecture import Architecture, length, need
from vit_jax.pretrained.formats.mapping import SAME, Rule, Shapes
from vit_jax.pretrained.formats.table import Layers, Table, Units

# The names of a block's submodules, in the published files and in today's Flax.
PUBLISHED = {
  "norm_msa": "LayerNorm_0",
  "msa": "MultiHeadDotProductAttention_1",
  "norm_mlp": "LayerNorm_2",
  "mlp": "MlpBlock_3",
}
LINEN = {
  "norm_msa": "LayerNorm_0",
  "msa": "MultiHeadDotProductAttention_0",
  "norm_mlp": "LayerNorm_1",
  "mlp": "MlpBlock_0",
}
# Prefixes of the image tower's parameters: in a file of their own, in a
# training checkpoint, and in an image-text model.
PREFIXES = ("", "params/", "opt/target/", "img/", "params/img/")

_IMAGENET_21K = (21_841, 21_843)  # Classes, without and with two extra.
# Patterns of `names.csv` that are replaced for some files.
_GROUP_NORM = "1 1 1 C -> C"
_CONVOLUTION = "P Q C D -> (P Q C) D"
_ROWS = "1 S D -> S D"
_NAFLEX_FIELDS = dict(
  kind=ExtendedVit,
  class_token=False,
  position_resize="bilinear",
  antialias=True,
)
_NAFLEX_TOKENS = 256  # The patches of an image in the published evaluation.
_GOOGLE_POSITION = "Transformer/posembed_input/pos_embedding"
_BIG_VISION_POSITION = "pos_embedding"
_UNITS = Units("block{stage}/unit{unit}/", first=1)
_TABLE = Table("google", (Layers("Transformer/encoderblock_{}/"),), _UNITS)


def prefix(shapes: Shapes) -> str | None:
  """The prefix of all names of the image tower; None for other formats."""
  for candidate in PREFIXES:
    encoder = f"{candidate}Transformer/encoder"
    layers = any(name.startswith(encoder) for name in shapes)
    if layers and f"{candidate}embedding/kernel" in shapes:
      return candidate
  return None


def infer(shapes: Shapes, config: Any = None, _: Any = None) -> Architecture:
  """Infers the model of these arrays; the format has no configuration.

  Raises ValueError if an array that tells a size is missing or has another
  shape than it needs, and for stems without blocks.
  """
  P, D = _patch_and_width(shapes)
  stacked = int("encoderblock" in _blocks(shapes))
  first = "Transformer/encoderblock" + ("" if stacked else "_0")
  msa, mlp = (numbering(shapes)[part] for part in ("msa", "mlp"))
  query = need(shapes, f"{first}/{msa}/query/kernel", 3 + stacked)
  expand = need(shapes, f"{first}/{mlp}/Dense_0/kernel", 2 + stacked)
  position, tokens = _positions(shapes)
  resnet_layers = _UNITS.layers(shapes)
  fields: dict[str, Any] = dict(
    num_classes=length(shapes, "head/bias", 0),
    patch_size=P,
    hidden_size=D,
    num_layers=query[0] if stacked else len(_blocks(shapes)),
    mlp_size=expand[-1],
    num_heads=query[-2],
    pooling="token" if "cls" in shapes else "gap",
    position=position,
    representation_size=length(shapes, "pre_logits/bias", None),
    resnet_layers=resnet_layers,
  )
  if any(name.startswith("MAPHead_0/") for name in shapes):
    fields["pooling"] = "map"
  if "conv_root/kernel" in shapes:
    fields["resnet_width"] = need(shapes, "conv_root/kernel", 4)[3]
    if not resnet_layers:
      raise ValueError(
        "its ResNet stem is a single convolution without any blocks; such a "
        "hybrid (AugReg's R+Ti/16) is not supported."
      )
  is_google = _GOOGLE_POSITION in shapes
  name = "google" if is_google else "big_vision"
  if not _is_naflex(shapes):
    preprocessing = Preprocessing(None, _crop(fields, is_google))
    return Architecture(name, fields, tokens, preprocessing=preprocessing)
  h, w, _ = need(shapes, _BIG_VISION_POSITION, 3)
  return Architecture(
    name,
    fields | _NAFLEX_FIELDS,
    tokens,
    image_size=(h * P, w * P),
    preprocessing=Preprocessing(
      (h * P, w * P),
      EvalTransformSettings(interpolation="bilinear"),
      patches=AnySize(_NAFLEX_TOKENS, P),
    ),
  )


def _is_naflex(shapes: Shapes) -> bool:
  """Whether these are arrays of SigLIP 2 for images of any size."""
  return len(shapes["embedding/kernel"]) == 2


def _patch_and_width(shapes: Shapes) -> tuple[int, int]:
  """The sides of a patch and the width of a token, by the first kernel.

  Raises ValueError if the kernel is missing, or is for no square patches.
  """
  if not _is_naflex(shapes):
    P, _, _, D = need(shapes, "embedding/kernel", 4)
    return P, D
  values, D = need(shapes, "embedding/kernel", 2)
  P = math.isqrt(values // 3)
  if values != 3 * P * P:
    raise ValueError(
      f"its array 'embedding/kernel' has the shape {(values, D)}: {values} "
      "values are no square patch of three colours."
    )
  return P, D


def _positions(shapes: Shapes) -> tuple[str, int | None]:
  """The kind of the positions and their number, without the class token's.

  The number is None if nothing is stored. Raises ValueError if the stored array
  has another shape than it needs.
  """
  class_token = "cls" in shapes
  if _GOOGLE_POSITION in shapes:
    return "learned", need(shapes, _GOOGLE_POSITION, 3)[1] - class_token
  if _is_naflex(shapes):
    return "learned", math.prod(need(shapes, _BIG_VISION_POSITION, 3)[:2])
  if _BIG_VISION_POSITION in shapes:
    position = "learned_grid" if class_token else "learned"
    return position, need(shapes, _BIG_VISION_POSITION, 3)[1]
  return "sincos2d", None


def _crop(fields: Mapping[str, Any], is_google: bool) -> EvalTransformSettings:
  """How the publishers' own evaluation resizes pictures, by kind of model.

  For pre-trained models, and big_vision's without a MAP head, it crops 7/8 of
  the short side. For vision_transformer's fine-tuned models and the image
  towers of SigLIP, it resizes the whole picture, without antialiasing.
  """
  pre_logits = fields["representation_size"] is not None
  pre_trained = pre_logits or fields["num_classes"] in _IMAGENET_21K
  if pre_trained or not (is_google or fields["pooling"] == "map"):
    return EvalTransformSettings("center", 256 / 224, "area")
  return EvalTransformSettings(interpolation="bilinear", antialias=False)


def rules(vit: BaseVit, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of vision_transformer's or big_vision's format.

  The naming is that of the checkpoint to read, whose arrays have these shapes;
  by default it is the one that vision_transformer publishes.
  """
  names = PUBLISHED if shapes is None else numbering(shapes)
  is_scanned = shapes is not None and "encoderblock" in _blocks(shapes)
  big_vision = shapes is not None and _GOOGLE_POSITION not in shapes
  # Today's Flax keeps one axis of a group norm, the published files four.
  gn_root = (shapes or {}).get("gn_root/scale", (1, 1, 1, 1))
  group_norm = SAME if len(gn_root) == 1 else _GROUP_NORM
  naflex = shapes is not None and _is_naflex(shapes)
  layer_rules = _rules(vit, names, big_vision, group_norm, naflex)
  return stack_rules(layer_rules) if is_scanned else layer_rules


def big_vision_rules(vit: BaseVit) -> list[Rule]:
  """The rules for writing a big_vision checkpoint."""
  return _rules(vit, LINEN, big_vision=True)


def _rules(
  vit: BaseVit,
  names: dict[str, str],
  big_vision: bool,
  group_norm: str = _GROUP_NORM,
  is_naflex: bool = False,
) -> list[Rule]:
  """The rules for a file whose layers are not stacked.

  Args:
    vit: The model.
    names: The names of a block's submodules, `PUBLISHED` or `LINEN`.
    big_vision: Whether positions have big_vision's name.
    group_norm: The pattern of a group norm's parameters.
    is_naflex: Whether patches are rows and positions a grid.
  """
  position = _BIG_VISION_POSITION if big_vision else _GOOGLE_POSITION
  patterns = {_GROUP_NORM: group_norm}
  if is_naflex:
    patterns |= {_CONVOLUTION: SAME, _ROWS: "y x D -> (y x) D"}
  return [
    dataclasses.replace(
      rule,
      theirs=rule.theirs.format(**names, position=position),
      pattern=patterns.get(rule.pattern, rule.pattern),
    )
    for rule in _TABLE.rules(vit)
  ]


def stack_rules(rules: list[Rule]) -> list[Rule]:
  """The rules for a file that stacks the same array of all blocks into one."""
  paths: dict[tuple[str, str], list[str]] = {}
  for rule in rules:
    name = re.sub(r"encoderblock_\d+/", "encoderblock/", rule.theirs)
    paths.setdefault((name, rule.pattern), []).extend(rule.ours)
  return [Rule(name, tuple(x), pattern) for (name, pattern), x in paths.items()]


def _blocks(shapes: Shapes) -> set[str]:
  """Names of the blocks; scanned layers have only "encoderblock"."""
  pattern = re.compile(r"Transformer/(encoderblock(?:_\d+)?)/")
  matches = (pattern.match(name) for name in shapes)
  return {match[1] for match in matches if match}


def numbering(shapes: Shapes) -> dict[str, str]:
  """The names of a block's submodules in a file, `PUBLISHED` or `LINEN`."""
  published = any(f"/{PUBLISHED['msa']}/" in name for name in shapes)
  return PUBLISHED if published else LINEN
