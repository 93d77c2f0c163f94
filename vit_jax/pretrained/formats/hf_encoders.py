"""Encoders as transformers saves them; each family has a table of names."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.families.family import Transformers
from vit_jax.families.vit import VIT
from vit_jax.models import BaseVit, ExtendedVit, Vit
from vit_jax.models.autoencoder import Autoencoder
from vit_jax.models.grid import grid_of
from vit_jax.pretrained.formats import (
  architecture,
  guesses,
  hf_mae,
  huggingface,
  processor,
  relative,
)
from vit_jax.pretrained.formats.architecture import Architecture, need
from vit_jax.pretrained.formats.equivalent import changes, shapes_of
from vit_jax.pretrained.formats.hf_family import (
  FAMILIES,
  File,
  rules_of,
  table_of,
)
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Table, unmapped
from vit_jax.runtime.checks import (
  CHANNELS,
  COUNT,
  POSITIVE,
  POSITIVE_CHANNELS,
  SIDES,
  PerChannel,
  Sides,
  checked,
)
from vit_jax.runtime.printable import quoted

_REGISTERS = "embeddings.register_tokens"
_MOST_CHANNELS = 64
_RADIO_SIDE = 512  # C-RADIO's default image size in timm, in pixels.
# `hidden_act` -> `Vit.gelu`; the first name of each is written.
GELUS = {
  "gelu": "exact",
  "gelu_python": "exact",
  "gelu_pytorch_tanh": "tanh",
  "gelu_new": "tanh",
  "gelu_fast": "tanh",
  "quick_gelu": "quick",
}
# `hidden_act` of gates that is no GELU -> `ExtendedVit.gate`.
_GATES = {"silu": "silu", "swish": "silu"}


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix, as names keep their base; None for other formats."""
  return "" if _candidates(shapes) else None


def unused(shapes: Shapes) -> list[str]:
  """Names of the arrays that an encoder does not need, as of pre-training."""
  family, base = _candidates(shapes)[0]
  unused_prefixes = [*family.unused]
  if any("classifier." in name for name in shapes):
    unused_prefixes += [f"{base}head.", f"{base}pooler.dense."]
  # The first prefix of an objective tells whether the file has any of it.
  if any(name.startswith(family.objective[:1]) for name in shapes):
    unused_prefixes += family.objective
  return [
    name
    for name in shapes
    if name == base + family.mask_token
    or (name == base + _REGISTERS and 0 in shapes[name])
    or name.startswith(tuple(unused_prefixes))
    or name.endswith(("position_ids", "relative_position_index"))
  ]


def infer(shapes: Shapes, config: Any = None, _: Any = None) -> Architecture:
  """Infers the model that these arrays are the parameters of.

  Raises ValueError if `config`, the library's config.json, names another family
  or holds a value that is not supported, or if an array that tells a size is
  missing.
  """
  file_config = config or {}
  family, base = _family_of_type(shapes, file_config.get("model_type") or None)
  vision = architecture.section(
    "vision_config", file_config.get("vision_config")
  )
  defaults = family.defaults if file_config else {}
  # The library's defaults, the file's values, those of its section on images.
  merged = {**defaults, **file_config, **vision}
  local = {name.removeprefix(base): shape for name, shape in shapes.items()}
  table = table_of(family)
  particular = _relative(family, local) | family.fields(File(local, merged))
  family_notes = particular.pop("notes", ())
  gated = particular.get("gated_mlp", False)
  D, P = _width_and_patch(table, local, merged)
  likely_heads = architecture.guess_num_heads(D)
  num_heads = merged.get("num_attention_heads", likely_heads)
  epsilon_key, size_key = family.epsilon_key, family.image_size_key
  epsilon = merged.get(epsilon_key, family.defaults[epsilon_key])
  head = _published_name(table, "root", "head/bias")
  fields: dict[str, Any] = dict(
    num_classes=architecture.length(shapes, head, 0),
    patch_size=P,
    hidden_size=D,
    num_layers=table.stacks[0].count(local),
    mlp_size=_mlp_size(table, local, gated),
    num_heads=checked("num_attention_heads", int | None, num_heads, COUNT),
    **_activation(family, merged, gated),
    layer_norm_epsilon=checked(epsilon_key, float, epsilon, POSITIVE),
  )
  if not particular.keys() <= Vit.__dataclass_fields__.keys():
    fields["kind"] = ExtendedVit
  if family.position_resize != "bicubic":
    fields["position_resize"] = family.position_resize
  guessed = {*guesses.PICTURES}
  if not file_config:
    guessed |= {*guesses.FACTS}
  elif "num_attention_heads" not in merged:
    guessed |= {"num_heads"}
  size = merged.get(size_key)
  names, notes = huggingface.class_names(merged, fields["num_classes"])
  return Architecture(
    "hf",
    fields | particular,
    _tokens(table, local, particular.get("position")),
    image_size=checked(size_key, Sides | None, size, SIDES),
    preprocessing=_pictures(family, merged),
    normalizes=bool(family.normalizes),
    class_names=names,
    loss=huggingface.loss(merged, fields["num_classes"]),
    interpolation="bicubic",
    guessed=frozenset(guessed),
    notes=(*notes, *family_notes),
  )


def _relative(family: Transformers, shapes: Shapes) -> dict[str, Any]:
  """The fields of relative positions; {} for a family that has none.

  Raises ValueError if they are not for a square of patches.
  """
  if not family.relative:
    return {}
  table = table_of(family)
  patches = relative.tokens(table, shapes, True)
  if patches and architecture.square(patches) is None:
    raise ValueError(
      "its relative positions are not for a square of patches, and "
      "transformers mixes up height and width then: it is not read."
    )
  return relative.fields(table, shapes)


def _width_and_patch(
  table: Table, shapes: Shapes, config: Config
) -> tuple[int, int]:
  """The width of tokens and the side of a patch, from the patches' kernel."""
  name = _published_name(table, "base", "patches/E/kernel")
  if len(shapes.get(name, ())) != 2:
    D, _, P, _ = need(shapes, name, 4)
    return D, P
  D, pixels = need(shapes, name, 2)
  channels = checked("num_channels", int, config.get("num_channels", 3), COUNT)
  return D, math.isqrt(pixels // channels)


def _pictures(family: Transformers, config: Config) -> Preprocessing:
  """The family's preprocessing, and for C-RADIO that of its configuration.

  Raises ValueError for a value that is not supported.
  """
  mean, std = family.mean, family.std
  if not family.normalizes:
    return Preprocessing(None, mean=mean, std=std)
  mean = config.get("norm_mean", mean)
  std = config.get("norm_std", std)
  sizes = (config.get(name) for name in ("image_size", "preferred_resolution"))
  size = next(filter(None, sizes), _RADIO_SIDE)
  return Preprocessing(
    checked("image_size", Sides, size, SIDES),
    mean=checked("norm_mean", PerChannel, mean, CHANNELS),
    std=checked("norm_std", PerChannel, std, POSITIVE_CHANNELS),
  )


def with_colours(
  architecture: Architecture, arrays: Mapping[str, np.ndarray]
) -> Architecture:
  """The architecture with the mean and deviation that its arrays hold.

  A model that normalises its images has them among its arrays. Raises
  ValueError if they are not finite, or the deviation is not positive.
  """
  pictures = architecture.preprocessing
  rules = dict(mean=CHANNELS, std=POSITIVE_CHANNELS)
  for family in FAMILIES:
    for name, rule in rules.items():
      stored = f"{family.normalizes}norm_{name}"
      if not family.normalizes or stored not in arrays:
        continue
      values = [float(x) for x in np.ravel(arrays[stored])[:_MOST_CHANNELS]]
      colours = checked(stored, PerChannel, values, rule)
      if not np.allclose(colours, getattr(pictures, name), rtol=1e-6, atol=0):
        pictures = dataclasses.replace(pictures, **{name: colours})
  return dataclasses.replace(architecture, preprocessing=pictures)


def _family_of_type(
  shapes: Shapes, model_type: Any
) -> tuple[Transformers, str]:
  """The family of these arrays and this type, and the base of the names.

  Raises ValueError if the type is that of another family, or is not known.
  """
  candidates = _candidates(shapes)
  first, _ = candidates[0]
  for family, base in candidates:
    has_signature = family.signature == first.signature
    if has_signature and model_type in (None, *family.types):
      return family, base
  says = f"its config.json says model_type={quoted(model_type)}"
  named = f"its arrays are named as those of {first.types[0]}"
  if any(model_type in family.types for family in FAMILIES):
    raise ValueError(f"{says}, and {named}: one of the two is wrong.")
  raise ValueError(
    f"{says}, which is not known here, though {named}: what its models compute "
    "may differ, so it is not read."
  )


def _activation(
  family: Transformers, config: Config, gated: bool
) -> dict[str, str]:
  """The fields that tell the activation of the MLPs, or of their gates.

  Raises ValueError for an activation that is not supported.
  """
  default = family.defaults.get("hidden_act", "gelu")
  name = config.get("hidden_act", default)
  if gated and not family.gated_by_act:
    return dict(gelu="exact")
  names = {**_GATES, **GELUS} if gated else GELUS
  checked("hidden_act", str, name, choices=(*names,))
  if gated:
    return dict(gelu="exact", gate=names[name])
  return dict(gelu=names[name])


def _mlp_size(table: Table, shapes: Shapes, gated: bool) -> int:
  """The width of an MLP's hidden layer, from the expanding kernel."""
  rows = table.rows("gated_mlp" if gated else "mlp")
  row = next(row for row in rows if "mlp/expand/kernel" in row.ours)
  sizes = need(shapes, table.stacks[0].theirs.format(0) + row.theirs, 2)
  return sizes[0] // len(row.ours)


def _tokens(table: Table, shapes: Shapes, position: Any) -> int | None:
  """Number of patches that the positions are for; None without a table.

  They are in the table of the family, or in one of relative positions.
  """
  name = _published_name(table, "base", "position/E_pos")
  if not name or position == "none":
    class_token = _published_name(table, "base", "x_class") in shapes
    return relative.tokens(table, shapes, class_token)
  # Our names of the tokens that have a position beside the patches.
  with_position = [] if position == "learned_grid" else ["x_class", "x_dist"]
  if position == "learned_all":
    with_position.append("registers")
  published = {
    _published_name(table, "base", token): token
    for token in reversed(with_position)
  }
  # One published array may hold several of these tokens: then its length counts
  # them, as it does for registers. Any other array is one token.
  shared = len(published) < len(with_position)
  num_tokens = sum(
    shapes[array][-2] if token == "registers" or shared else 1
    for array, token in published.items()
    if array in shapes
  )
  return need(shapes, name, len(shapes.get(name, ())))[-2] - num_tokens


def _published_name(table: Table, part: str, ours: str) -> str:
  """The published name of one of our parameters; "" if it has none."""
  return next((row.theirs for row in table.rows(part) if ours in row.ours), "")


def rules(vit: BaseVit, shapes: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read, or of one to write."""
  if shapes is None:
    decoder = hf_mae.rules(vit) if isinstance(vit, Autoencoder) else []
    return rules_of(family_of(vit), vit) + decoder
  family, base = _candidates(shapes)[0]
  return table_of(family).rules(vit, base)


def equivalent(vit: Any) -> Any:
  """The model to write instead of `vit`, as its family in transformers is.

  With the parameters that `equivalent.refit` makes for it, it gives the same
  answers: they gain a LayerScale of ones, or a head's zeros for the mean token.
  """
  if not vit.extended:
    # A SigLIP learns its positions, so fixed ones are written as learned ones.
    return vit.clone(position="learned") if is_encoder(vit) else vit
  resize = vit.position_resize
  if vit.position == "learned_grid" and resize != "square":
    vit = vit.clone(position="learned")
  if resize == "bilinear" and vit.registers and not vit.num_classes:
    # TIPSv2 always has LayerScale.
    vit = vit.clone(layer_scale=vit.layer_scale or 1.0)
  is_dinov2 = vit.layer_scale is not None and not (
    vit.rope_theta or vit.relative
  )
  pools_otherwise = vit.distilled or vit.norm_pooled or vit.pool_unnormed
  has_plain_head = vit.num_classes and vit.class_token and vit.norm_final
  if is_dinov2 and has_plain_head and not pools_otherwise:
    vit = vit.clone(pooling="token_gap")
  return vit


def family_of(vit: Any) -> Transformers:
  """The family that expresses a model; call `reasons` before."""
  return _closest(vit).family if is_encoder(vit) else VIT


def is_encoder(vit: Any) -> bool:
  """Whether a model has to be written as another family than the paper's ViT.

  That is so for extended models, and for models without a class token that add
  positions to their input: these are written as SigLIPs.
  """
  has_table = vit.position != "relative" and vit.position_at == "input"
  return vit.extended or (has_table and vit.pooling != "token")


def reasons(vit: Any) -> list[str]:
  """Why no family can express a model: the reasons of the closest family.

  The result is [] if that family can.
  """
  closest = _closest(equivalent(vit))
  return [
    f"as {closest.family.types[0]}, {reason}" for reason in closest.reasons
  ]


class _Verdict(NamedTuple):
  """How a model fits a family.

  Attributes:
    misfit: 0 if its arrays fit, and the larger, the worse they fit.
    reasons: Why the family cannot express it; none if it can.
  """

  family: Transformers
  misfit: int
  reasons: list[str]


@functools.lru_cache(maxsize=8)
def _closest(vit: Any) -> _Verdict:
  """The verdict on the family that a model fits best."""
  one_layer = vit.clone(num_layers=1)
  families = [family for family in FAMILIES if family.extended == vit.extended]

  def distance(verdict: _Verdict) -> tuple[int, ...]:
    """A key that is the smaller, the better the model fits the family."""
    family, misfit, reasons = verdict
    is_unlike = bool(reasons) and family.relative != bool(vit.relative)
    # If two fit, prefer a family whose positions are resized as the model's.
    resizes = _resizes_otherwise(family, vit)
    return misfit > 0, is_unlike, misfit, len(reasons), resizes

  return min((_judge(family, one_layer) for family in families), key=distance)


def _judge(family: Transformers, vit: Any) -> _Verdict:
  """Judges whether the family can express a model, which has one layer."""
  rows = table_of(family).rules(vit)
  verdict = functools.partial(_Verdict, family)
  if lost := unmapped(vit, rows):
    return verdict(len(lost), [f"it has no place for {', '.join(lost[:3])}"])
  if all(row.theirs != family.signature for row in rows):
    return verdict(99, [f"the model has no {family.signature}"])
  if family.classes[bool(vit.num_classes)] is None:
    head = "with" if vit.num_classes else "without"
    return verdict(1, [f"it has no class {head} a head"])
  try:
    shapes = shapes_of(vit, rules_of(family, vit))
    if not family.fits(shapes, family.base(vit)):
      return verdict(
        99, [f"the format has another number of registers than {vit.registers}"]
      )
    config = _config(family, vit)
    reasons = [*changes(vit, infer(shapes, config).fields)]
  except ValueError as error:
    return verdict(99, [str(error).removesuffix(".")])
  if config.get("mlp_ratio", 1) is None:
    reasons.append(f"mlp_size={vit.mlp_size} does not give a whole mlp_ratio")
  has_table = vit.position != "none" or vit.relative == "table"
  if has_table and not family.any_shape:
    h, w = architecture.table_size(vit) or (1, 1)
    if h != w:
      reasons.append(
        f"the model's positions are for images of {h} x {w}, not for a square"
      )
  return verdict(0, reasons)


def not_kept(vit: Any) -> Iterator[str]:
  """Lines on what the format does not keep."""
  if equivalent(vit).pooling != vit.pooling:
    yield (
      "DINOv2's head reads the class token and the patches' average: the half "
      "that this model does not read gets weights of zero"
    )
  ends_at_tokens = not (vit.num_classes or getattr(vit, "norm_pooled", False))
  if vit.pooling == "gap" and ends_at_tokens:
    yield (
      "transformers does not average without a head: average its tokens "
      "yourself"
    )
  family = family_of(equivalent(vit))
  if _resizes_otherwise(family, vit):
    yield (
      "pictures of another size than the positions' get other positions: "
      f"transformers resizes {family.types[0]}'s by another rule"
    )
  elif vit.antialias and not family.antialiased:
    yield (
      "pictures of another size than the positions' get slightly other "
      "positions: transformers interpolates them without antialiasing"
    )


def keeps_proportions(vit: Any) -> bool:
  """Whether a model's files can record that images keep their proportions."""
  return family_of(vit).any_size


def _resizes_otherwise(family: Transformers, vit: Any) -> bool:
  """Whether the library would resize a model's positions by another rule."""
  if vit.position == "none" or not vit.extended:
    return False
  return family.position_resize != vit.position_resize


def constants(vit: Any) -> dict[str, np.ndarray]:
  """Arrays of the format that are no parameters of ours.

  They are the mask token, as zeros; an empty array of registers, if the family
  has one in any case; for C-RADIO, the mean and deviation of its images and the
  places of the tokens in its summary; and the positions of MAE's decoder.
  """
  family = family_of(vit)
  arrays: dict[str, np.ndarray] = {}
  if family.mask_token:
    shape = (*(1,) * family.mask_axes, vit.hidden_size)
    zeros = np.zeros(shape, np.float32)
    arrays[family.base(vit) + family.mask_token] = zeros
  if _config(family, vit).get("num_register_tokens") == 0:
    no_registers = np.zeros((1, 0, vit.hidden_size), np.float32)
    arrays[family.base(vit) + _REGISTERS] = no_registers
  if family.normalizes:
    for name, values in _colours(vit).items():
      column = np.asarray(values, np.float32)[:, None, None]
      arrays[family.normalizes + name] = column
    tokens = np.asarray(vit.pooled_tokens, np.int64)
    arrays[f"{family.base(vit)}summary_idxs"] = tokens
  if isinstance(vit, Autoencoder):
    size = architecture.table_size(vit)
    assert size is not None
    arrays[hf_mae.POSITIONS] = hf_mae.positions(vit, grid_of(vit, size))
  return arrays


def _colours(vit: Any) -> dict[str, tuple[float, ...]]:
  """Mean and deviation of a model's images, by RADIO's names."""
  return dict(norm_mean=vit.origin.mean, norm_std=vit.origin.std)


def files(vit: Any, preprocessing: Preprocessing, task: Any) -> dict[str, Any]:
  """The JSON files that the library reads beside the weights, by name."""
  family = family_of(vit)
  if not family.any_size:
    preprocessing = dataclasses.replace(preprocessing, patches=None)
  config = _config(family, vit) | huggingface.problem(task.loss.kind)
  if isinstance(vit, Autoencoder):
    config |= hf_mae.objective_config(task.autoencoder)
  if family.normalizes:  # The model normalises, not its preprocessor.
    config |= {name: [*values] for name, values in _colours(vit).items()}
    channels = preprocessing.channels
    plain = dict(mean=(0.0,) * channels, std=(1.0,) * channels)
    preprocessing = dataclasses.replace(preprocessing, **plain)
  return {"config.json": config, processor.FILE: processor.write(preprocessing)}


def class_name(vit: Any) -> str:
  """The library's class that loads a model, once it is written."""
  vit = equivalent(vit)
  return _config(family_of(vit), vit)["architectures"][0]


def _config(family: Transformers, vit: Any) -> dict[str, Any]:
  """The config.json of a model, as the family has it."""
  size = architecture.table_size(vit)
  acts = GELUS | _GATES
  names = {ours: theirs for theirs, ours in reversed(acts.items())}
  act = vit.gate if getattr(vit, "gated_mlp", False) else vit.gelu
  tower = {
    "hidden_size": vit.hidden_size,
    "num_hidden_layers": vit.num_layers,
    "num_attention_heads": vit.num_heads,
    "hidden_act": names[act],
    family.epsilon_key: vit.layer_norm_epsilon,
    "image_size": size and architecture.size_for_config(vit),
    "patch_size": vit.patch_size,
    "num_channels": architecture.channels_of(vit),
  }
  head = {
    "architectures": [family.classes[bool(vit.num_classes)]],
    **huggingface.labels(vit),
  }
  particular = family.config(vit, size)
  if "vision_config" in particular:
    particular["vision_config"] |= tower
    tower = {}
  if isinstance(vit, Autoencoder):
    particular |= hf_mae.config(vit)
  return {**tower, **head, **particular}


def _candidates(shapes: Shapes) -> list[tuple[Transformers, str]]:
  """The families that these names fit, each with its base; best first."""
  pairs = ((family, base) for family in FAMILIES for base in family.bases)
  return [
    (family, base)
    for family, base in pairs
    if base + family.signature in shapes and family.fits(shapes, base)
  ]
