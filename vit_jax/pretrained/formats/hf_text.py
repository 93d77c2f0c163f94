"""Text towers as transformers saves them, alone or beside an image tower.

Those of CLIP and MetaCLIP 2, of SigLIP and SigLIP 2 in their fixed sizes, and
of TIPSv2.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.models.text import TextTower
from vit_jax.pretrained.formats.architecture import need, section
from vit_jax.pretrained.formats.hf_encoders import GELUS
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.runtime.checks import COUNT, POSITIVE, checked

_ACTIVATIONS = {**GELUS, "relu": "relu"}
PAIR = ("logit_scale", "logit_bias", "temperature")
"""The arrays of a pair of towers that belong to none of them."""
# Id of the end in configurations of CLIP before transformers 4.31, which was
# never true: the library then takes the largest id.
_WRONG_END = 2


@dataclasses.dataclass(frozen=True)
class TextFamily:
  """A family of text towers."""

  name: str
  signature: str  # Name of an array that only this family has, after its base.
  table: Table
  bases: tuple[str, ...]  # Prefixes that the names of its arrays may have.
  # Values that the library has where a configuration has none.
  defaults: Config
  # Returns the fields of the tower that are particular to the family.
  fields: Callable[[Shapes, Shapes, Config], dict[str, Any]]

  def base(self, shapes: Shapes) -> str | None:
    """The prefix of its arrays in a file; None if they are not there."""
    return next((x for x in self.bases if x + self.signature in shapes), None)


def _clip(_: Shapes, whole: Shapes, config: Config) -> dict[str, Any]:
  end = config["eos_token_id"]
  end = checked("eos_token_id", int | None, end)
  return dict(
    pooling="end",
    causal=True,
    end_token=None if end == _WRONG_END else end,
    representation_size=_width(whole, "text_projection.weight"),
  )


def _siglip(local: Shapes, _: Shapes, __: Config) -> dict[str, Any]:
  return dict(
    pooling="last",
    representation_size=_width(local, "head.weight"),
    projection_bias="head.bias" in local,
  )


def _tips(local: Shapes, _: Shapes, config: Config) -> dict[str, Any]:
  D = need(local, "token_embedding.weight", 2)[1]
  scaled = checked("scale_sqrt_depth", bool, config["scale_sqrt_depth"])
  return dict(
    pooling="mean",
    position="sincos1d",
    pad_token=checked("pad_token_id", int, config["pad_token_id"]),
    embedding_scale=D**0.5 if scaled else 1.0,
  )


def _width(shapes: Shapes, name: str) -> int | None:
  return need(shapes, name, 2)[0] if name in shapes else None


_HF = ("text_model.", "", "text_model.text_model.", "model.text_model.")
SIGLIP = TextFamily(
  name="SigLIP",
  signature="head.weight",
  table=Table("siglip_text", (Layers("encoder.layers.{}."),), shared="hf_text"),
  bases=_HF,
  defaults={
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 12,
  },
  fields=_siglip,
)
CLIP = TextFamily(
  name="CLIP",
  signature="embeddings.position_embedding.weight",
  table=Table("clip_text", (Layers("encoder.layers.{}."),), shared="hf_text"),
  bases=_HF,
  defaults={
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 8,
    "eos_token_id": 49407,
  },
  fields=_clip,
)
TIPS = TextFamily(
  name="TIPSv2",
  signature="transformer.resblocks.0.attn.in_proj_weight",
  table=Table("open_text", (Layers("transformer.resblocks.{}."),)),
  bases=("text_encoder.", ""),
  defaults={
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "scale_sqrt_depth": True,
    "pad_token_id": 0,
  },
  fields=_tips,
)
# In the order in which their signatures are looked for.
FAMILIES = (SIGLIP, CLIP, TIPS)


@dataclasses.dataclass(frozen=True)
class TextLayout:
  """Where a file has a text tower, and what tower that is.

  Attributes:
    family: Its family.
    tower: The tower, without parameters.
    rules: Which array holds which of its parameters.
    shapes: The shapes of the arrays that are the tower's, by their names.
  """

  family: TextFamily
  tower: TextTower
  rules: list[Rule]
  shapes: Shapes


def infer(shapes: Shapes, config: Mapping[str, Any]) -> TextLayout:
  """Finds the text tower among the arrays of a file.

  Raises ValueError if there is none, `config`, the library's config.json, holds
  a value that is not supported, or an array that tells a size is missing.
  """
  for family in FAMILIES:
    base = family.base(shapes)
    if base is not None:
      break
  else:
    raise ValueError(
      f"its {len(shapes)} arrays ({', '.join([*shapes][:3])}, ...) hold no "
      "text tower of CLIP, SigLIP or TIPSv2, as transformers saves them: take "
      "a model of images and text."
    )
  text = section("text_config", config.get("text_config")) or config
  config = {**family.defaults, **text}
  local = {
    name.removeprefix(base): shape
    for name, shape in shapes.items()
    if name.startswith(base)
  }
  tower = TextTower(
    num_classes=0,
    **_sizes(family, local, config),
    **family.fields(local, shapes, config),
  )
  rules = family.table.rules(tower, base)
  own = {
    name: shape
    for name, shape in shapes.items()
    if _is_own(name, base, {rule.theirs for rule in rules})
  }
  return TextLayout(family, tower, rules, own)


def _is_own(name: str, base: str, known: set[str]) -> bool:
  """Whether an array is the tower's, not the image tower's or both's."""
  if name in known:
    return True
  if name.endswith("position_ids") or name in PAIR:
    return False
  return name.startswith(base)


def _sizes(family: TextFamily, local: Shapes, config: Config) -> dict[str, Any]:
  names = {row.ours[0]: row.theirs for row in family.table.rows("base")}
  V, D = need(local, names["E"], 2)
  layers = family.table.stacks[0]
  expand = next(
    row.theirs
    for row in family.table.rows("mlp")
    if row.ours == ("mlp/expand/kernel",)
  )
  act = checked(
    "hidden_act", str, config["hidden_act"], choices=(*_ACTIVATIONS,)
  )
  epsilon = config["layer_norm_eps"]
  heads = config["num_attention_heads"]
  T = config.get("max_position_embeddings")
  name = names.get("E_pos", "")
  if name in local:
    T = need(local, name, 2)[0]
  return dict(
    vocabulary=V,
    length=checked("max_position_embeddings", int, T, COUNT),
    hidden_size=D,
    num_layers=layers.count(local),
    mlp_size=need(local, layers.theirs.format(0) + expand, 2)[0],
    num_heads=checked("num_attention_heads", int, heads, COUNT),
    gelu=_ACTIVATIONS[act],
    layer_norm_epsilon=checked("layer_norm_eps", float, epsilon, POSITIVE),
  )
