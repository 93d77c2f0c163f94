"""Records that the files of families fill in; no library is imported here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Arrays of timm's class `Eva` by which its rows are told apart.
GAMMA, FREQS = "blocks.0.gamma_1", "rope.freqs"
FUSED, APART = "blocks.0.attn.qkv.bias", "blocks.0.attn.q_proj.weight"
Q_BIAS = "blocks.0.attn.q_bias"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eva:
  """Some architectures of timm's class `Eva`.

  Attributes:
    architecture: One of them.
    table: The names of their arrays, a table of `formats/names.csv`.
    has: Arrays that they have.
    lacks: Arrays that they do not have.
    fields: Fields of the model that its arrays do not tell, or that tell these
      architectures from others when a model is written.
    biases: Values that `qkv_bias` may have.
    gated: Whether their MLPs are gated; None: either.
    named: Beginning of their names, if the arrays could be of others.
    pooling: timm's default, beside a class token that no norm follows.
  """

  architecture: str
  table: str
  has: tuple[str, ...]
  lacks: tuple[str, ...]
  fields: Mapping[str, Any]
  biases: tuple[str, ...] = ("qv",)
  gated: bool | None = None
  named: str = ""
  pooling: str = "token"


@dataclasses.dataclass(frozen=True)
class Timm:
  """Facts that names of timm's architectures tell, as of timm 1.0.31.

  A pattern matches the beginning of a name.

  Attributes:
    classes: Pattern -> initial of the class of the architecture: v for
      `VisionTransformer`, e for `Eva`, b for `Beit`, r for
      `VisionTransformerRelPos`.
    own: Pattern -> arguments that the code has and no array tells. If several
      match, later ones replace earlier ones.
    heads: Pattern -> number of heads, where width does not tell it.
    head_sizes: Pattern -> width of a head, where it is not 64.
    activations: Pattern -> timm's name of the activation, if it is no GELU.
    evas: Rows for the arrays of the class `Eva`.
    sides: Part of a layer of a plain ViT -> its name in layers that have it
      several times, side by side, with {} for its number.
  """

  classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  own: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
  heads: Mapping[str, int] = dataclasses.field(default_factory=dict)
  head_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
  evas: tuple[Eva, ...] = ()
  sides: Mapping[str, str] = dataclasses.field(default_factory=dict)
