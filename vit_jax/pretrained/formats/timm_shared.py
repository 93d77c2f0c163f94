"""Code that the readers of timm's files share; `timm` is the format itself.

In timm's `VisionTransformer`, kernels are transposed, and query, key and value
are fused into one layer. The class token is optional, and so is its position.
timm's average pooling equals ours only if its `fc_norm` is off. The arrays do
not reveal the activation, the number of heads and the preprocessing; timm
records them in the `config.json` beside the weights.
"""

import dataclasses
import functools
import math
import re
from typing import Any, NamedTuple

from vit_jax import families
from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.settings import PILLOW_FILTERS, EvalTransformSettings
from vit_jax.families.family import (
  CLIP_MEAN,
  CLIP_STD,
  IMAGENET_MEAN,
  IMAGENET_STD,
)
from vit_jax.models import BaseVit
from vit_jax.pretrained.formats import architecture
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table, Units
from vit_jax.pretrained.formats.timm_arguments import GATES, GELUS, matching
from vit_jax.runtime import checks
from vit_jax.runtime.checks import checked
from vit_jax.runtime.printable import quoted

# Names whose heads follow from the width, as of timm 1.0.31.
_USUAL_HEADS = re.compile(
  r"(eva(02)?|(flexi)?vit(_pe_(core|lang|spatial))?)_(tiny|xsmall|small|mediumd?|base|large|huge|giant|gigantic"
  r"|so\d+m2?|intern300m|betwixt|d?little|d?p?wee)(_|$)"
)
# Pattern of an array's name -> the unsupported part of a model that has it.
_UNSUPPORTED = {
  r"^blocks\.0\.in_proj\.": "attention and MLP side by side in one product",
  r"^blocks\.0\.attn\.lambda_q1$|^blocks\.0\.lambda_q1$": (
    "differential attention"
  ),
  r"^patch_embed\.backbone\.(?!stem\.conv\.)(?!stem\.norm\.)(?!stages\.)": (
    "patches of a convolutional network other than the paper's ResNets"
  ),
}
# A hybrid's residual units in each stage -> the architecture that has them.
HYBRIDS = {
  (2, 2, 2, 2): "vit_base_r26_s32_224",
  (3, 4, 9): "vit_base_r50_s16_224",
  (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_MODES = ("center", "squash")
_STACKS = (Layers("blocks.{}."),)
_UNITS = Units("patch_embed.backbone.stages.{stage}.blocks.{unit}.")
STEM = "patch_embed.backbone.stem.conv"
VIT = Table("timm", _STACKS, _UNITS, shared="timm_any")
EVA = Table("timm_eva", _STACKS, shared="timm_any")


@functools.cache
def table(name: str) -> Table:
  """The table `name` of `names.csv`, which is for one of timm's classes."""
  return Table(name, _STACKS, shared="timm_any")


SIDES = {k: v for row in families.records("TIMM") for k, v in row.sides.items()}
"""A part of a plain layer -> its name in layers with several side by side."""


def first_side(shapes: Shapes) -> tuple[Shapes, int]:
  """The shapes of the first of several parallel parts, by plain names.

  The second result is the number of parallel parts, 1 in plain layers.
  """
  begins = f"blocks.0.{SIDES['attn'].split('{')[0]}"
  count = architecture.count_layers(shapes, begins)
  if not count:
    return shapes, 1
  # The parts of the first side -> their names in plain layers.
  plain = {f"{v.format(0)}.": f"{k}." for k, v in SIDES.items()}
  # Beginnings of the names of all sides' parts, such as "attns.".
  others = tuple(v.split("{")[0] for v in SIDES.values())
  first_shapes = {}
  for name, shape in shapes.items():
    layer = "".join(re.findall(r"^blocks\.\d+\.", name))
    part = name.removeprefix(layer)
    for theirs, ours in plain.items():
      part = part.replace(theirs, ours) if part.startswith(theirs) else part
    if not (layer and part.startswith(others)):
      first_shapes[layer + part] = shape
  return first_shapes, count


def repeat_on_sides(rules: list[Rule], count: int) -> list[Rule]:
  """The rules for layers that have each part `count` times in parallel."""
  result = []
  for rule in rules:
    if not re.match(rf"blocks\.\d+\.({'|'.join(SIDES)})\.", rule.theirs):
      result.append(rule)
      continue
    block, number, part, inside_part = rule.theirs.split(".", 3)
    for i in range(count):
      theirs = ".".join([block, number, SIDES[part].format(i), inside_part])
      layers = (path.split("/", 1) for path in rule.ours)
      inside = f"side_{i}/" if i else ""
      ours = tuple(f"{layer}/{inside}{path}" for layer, path in layers)
      result.append(dataclasses.replace(rule, theirs=theirs, ours=ours))
  return result


def check_parts(shapes: Shapes) -> None:
  """Raises ValueError if the arrays are of parts that are not supported."""
  parts = [
    part
    for pattern, part in _UNSUPPORTED.items()
    if any(re.search(pattern, name) for name in shapes)
  ]
  if parts:
    raise ValueError(f"it has {' and '.join(parts)}: this is not supported.")


def pooling(shapes: Shapes, arguments: Config, config: Config) -> str:
  """The paper's pooling; raises ValueError if timm would pool otherwise."""
  class_token = "cls_token" in shapes
  ours = "token" if class_token else "avg"
  theirs = arguments.get("global_pool", config.get("global_pool", ours))
  if theirs != ours:
    token = "a class token" if class_token else "no class token"
    raise ValueError(
      f"its config.json says global_pool={quoted(theirs)}, and there is "
      f"{token}: only global_pool={ours!r} is supported then."
    )
  return "token" if class_token else "gap"


def positions(
  shapes: Shapes, arguments: Config, config: Config, num_patches: int | None
) -> tuple[int | None, str]:
  """The number of patches that the positions are for, and their kind.

  The kind is a value of `ExtendedVit.position`; (None, "none") is for no stored
  positions. Either all tokens have positions, or only the patches. The argument
  `no_embed_class` tells; without it, the number of positions does, if
  `num_patches`, the number of patches of an image, is known. By timm's default
  all tokens have positions, except in most models with registers. Raises
  ValueError if nothing tells which of the two it is.
  """
  if "pos_embed" not in shapes:
    return None, "none"
  count = architecture.need(shapes, "pos_embed", 3)[1]
  tokens = ("cls_token" in shapes) + ("dist_token" in shapes)
  registers = shapes.get("reg_token", (1, 0, 0))[1]
  is_square = architecture.square(count) is not None
  # The number of positions if only patches have them, and if all tokens do.
  expected_counts = num_patches, (num_patches or 0) + tokens
  is_told = bool(config) or count in expected_counts
  if tokens and is_square and not (is_told or registers):
    raise ValueError(
      f"its {count} positions are for a square of patches, or for "
      f"{count - tokens} patches and {tokens} token(s): give grid=(h, w), the "
      "number of patches along height and width."
    )
  if registers and num_patches is None:
    fits_patches = is_square
  else:
    fits_patches = count == num_patches
  only_patches = arguments.get("no_embed_class", fits_patches)
  if only_patches and tokens + registers:
    return count, "learned_grid"
  kind = "learned_all" if registers else "learned"
  return count - tokens - registers, kind


class NameFacts(NamedTuple):
  """Facts that follow from a model's name.

  Attributes:
    num_heads: The number of heads; None if it cannot be guessed.
    gelu: timm's name of the activation.
    guessed: Names of the `guesses.FACTS` that the name does not give.
  """

  num_heads: int | None
  gelu: str
  guessed: set[str]


def facts_of_name(model: Any, width: int) -> NameFacts:
  """The heads and the GELU of a model of this name and width.

  timm's models of the names in `_USUAL_HEADS` have the number that
  `guess_num_heads` gives for their width. Without a known name it is a guess,
  and so is the GELU.
  """
  name = str(model or "")
  gelu = next(matching(name, "activations"), "gelu")
  for head_size in matching(name, "head_sizes"):
    return NameFacts(width // head_size, gelu, set())
  for num_heads in matching(name, "heads"):
    return NameFacts(num_heads, gelu, set())
  num_heads = architecture.guess_num_heads(width)
  if _USUAL_HEADS.match(name):
    return NameFacts(num_heads, gelu, set())
  return NameFacts(num_heads, gelu, {"num_heads", "gelu", "layer_norm_epsilon"})


def usual_pictures(shapes: Shapes) -> dict[str, Any]:
  """How timm prepares pictures for most models with these arrays.

  The keys are timm's.
  """
  half = {"crop_pct": 0.9, "mean": HALF, "std": HALF}
  clip = {"mean": CLIP_MEAN, "std": CLIP_STD}
  imagenet = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}

  def has_any(*names: str) -> bool:
    return not shapes.keys().isdisjoint(names)

  # CLIPs have a norm before the first layer, AIMv2 one on its patches.
  if has_any("norm_pre.weight", "patch_embed.norm.weight"):
    return {"crop_pct": 1.0, **clip}
  # C-RADIO has registers, and no norm after the last layer.
  if has_any("reg_token") and not has_any("norm.weight", "fc_norm.weight"):
    return {"crop_pct": 1.0, **clip}
  # EVAs have arrays of the query alone, and no LayerScale.
  has_layer_scale = has_any("blocks.0.ls1.gamma", "blocks.0.gamma_1")
  has_query = has_any("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight")
  if has_query and not has_layer_scale:
    return {"crop_pct": 0.9, **clip}
  # BEiT-3 has norms inside its layers.
  if has_any("blocks.0.attn.norm.weight"):
    return {"crop_pct": 1.0, **imagenet}
  # DINOv2, DINOv3 and DeiT have a class token, and LayerScale or `dist_token`.
  has_relative = any("relative_position" in name for name in shapes)
  if not has_relative and has_any("cls_token"):
    if has_layer_scale:
      return {"crop_pct": 1.0, **imagenet}
    if has_any("dist_token"):
      return {"crop_pct": 0.9, **imagenet}
  # The others are AugReg's, SigLIPs, or timm's own with registers alone.
  return half


def preprocessing(
  published: Config, shapes: Shapes | None = None
) -> Preprocessing:
  """Reads timm's evaluation transform.

  The defaults of a file without any configuration are those of timm's models
  with arrays of these names. Raises ValueError for a value that is not
  supported.
  """
  values: dict[str, Any] = {
    "crop_pct": 0.875,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
  }
  if not published:
    values |= usual_pictures(shapes or {})
  values |= {k: published[k] for k in values if published.get(k)}
  share = checked("crop_pct", float, values["crop_pct"], checks.SHARE)
  shape = published.get("input_size")
  side = shape[-1] if isinstance(shape, list) and shape else 224
  side = checked("input_size", int, side, checks.COUNT)
  ratio = math.floor(side / share) / side
  mode = checked("crop_mode", str, values["crop_mode"], None, _MODES)
  if mode == "squash" and ratio == 1:
    mode = "resize"
  name = values["interpolation"]
  name = checked("interpolation", str, name, None, PILLOW_FILTERS)
  return Preprocessing(
    None,
    EvalTransformSettings(mode, ratio, name, corner="even"),
    checked("mean", checks.PerChannel, values["mean"], checks.CHANNELS),
    checked("std", checks.PerChannel, values["std"], checks.POSITIVE_CHANNELS),
  )


def guessed_pictures(published: Config) -> set[str]:
  """Names of `guesses.PICTURES` that the evaluation transform does not give."""
  missing = {name for name in ("mean", "std") if not published.get(name)}
  if not published.get("crop_pct") or not published.get("interpolation"):
    missing.add("crop")
  return missing


def image_size(arguments: Config, published: Config) -> tuple[int, int] | None:
  """The model's image size, or else the one that its preprocessing gives.

  The result is None if neither gives one. Raises ValueError for a size that is
  not of one or two whole numbers that `checks.SIDES` allows.
  """
  size = arguments.get("img_size")
  if size is None:
    shape = published.get("input_size")
    # (channels, height, width).
    size = shape[1:] if isinstance(shape, list) and len(shape) == 3 else shape
  return checked("img_size", checks.Sides | None, size, checks.SIDES)


def class_names(config: Config, published: Config) -> tuple[str, ...]:
  """The names of the classes; () if the configuration has none.

  Raises ValueError if `label_names` is not a list.
  """
  names = config.get("label_names") or published.get("label_names") or ()
  if not isinstance(names, list | tuple):
    raise ValueError(
      f"label_names={quoted(names)} must be a list of names: correct it."
    )
  return tuple(map(str, names))


def configuration(vit: Any, name: str, arguments: Config) -> dict[str, Any]:
  """The part of the JSON file that makes the model.

  `arguments`, and the sizes that every model has, replace the values of timm's
  architecture of this name.
  """
  pooling = {"gap": "avg"}.get(vit.pooling, vit.pooling)
  acts = GELUS | GATES
  act = vit.gate if getattr(vit, "gated_mlp", False) else vit.gelu
  sizes = {
    "img_size": architecture.size_for_config(vit),
    "patch_size": vit.patch_size,
    "in_chans": architecture.channels_of(vit),
    "embed_dim": vit.hidden_size,
    "depth": vit.num_layers,
    "num_heads": vit.num_heads,
    # timm rounds the product down.
    "mlp_ratio": (vit.mlp_size + 0.5) / vit.hidden_size,
    "act_layer": {v: k for k, v in reversed(acts.items())}[act],
    "global_pool": pooling,
  }
  return {
    "architecture": name,
    "num_classes": vit.num_classes,
    "num_features": vit.hidden_size,
    "global_pool": pooling,
    "model_args": sizes | dict(arguments),
  }


def pictures_json(vit: BaseVit, preprocessing: Preprocessing) -> dict[str, Any]:
  """The part of the JSON file on pictures and classes."""
  origin, crop = vit.origin, preprocessing.crop
  assert origin is not None
  return {
    "label_names": list(origin.class_names),
    "pretrained_cfg": {
      "num_classes": vit.num_classes,
      "input_size": [preprocessing.channels, *preprocessing.image_size],
      "interpolation": crop.interpolation,
      "crop_pct": _share(preprocessing),
      "crop_mode": "center" if crop.crop == "center" else "squash",
      "mean": list(preprocessing.mean),
      "std": list(preprocessing.std),
      "first_conv": STEM if vit.resnet_layers else "patch_embed.proj",
      "classifier": "head",
    },
  }


def _share(preprocessing: Preprocessing) -> float:
  """The share of the resized side that is cut out, `crop_pct`.

  timm resizes to side / crop_pct, rounded down.
  """
  if preprocessing.crop.crop == "resize":
    return 1.0
  side = preprocessing.image_size[0]
  before = round(side * preprocessing.crop.resize_ratio)
  exact = side / before
  return exact if math.floor(side / exact) == before else side / (before + 0.5)
