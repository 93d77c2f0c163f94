"""The tokenizer and the text tower of a run on pairs, which are its facts."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.reading.tokenizer_files import TokenizerFiles
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import TOWERS
from vit_jax.runtime.checks import CLASSES, DEPTH, WIDTH, checked, up_to
from vit_jax.tasks.pairs.settings import PairsSettings

# The first logarithm of the scale and the first bias, by the loss.
_FIRST = {"sigmoid": (math.log(10), -10.0), "softmax": (math.log(1 / 0.07), 0)}
# The fields of a text tower that its facts have.
_FIELDS = (
  "vocabulary",
  "length",
  "hidden_size",
  "num_layers",
  "mlp_size",
  "num_heads",
  "pooling",
  "causal",
  "position",
  "embedding_scale",
  "end_token",
  "pad_token",
  "representation_size",
  "projection_bias",
  "gelu",
  "layer_norm_epsilon",
)
_LENGTHS = up_to(65_536, "no text tower is known to read as many tokens")
# The sizes of a stored text tower.
_SIZES = {"vocabulary": CLASSES, "length": _LENGTHS, "num_layers": DEPTH}
_SIZES |= dict.fromkeys(("hidden_size", "mlp_size", "num_heads"), WIDTH)
_MLP_RATIO = 4


@dataclasses.dataclass(frozen=True)
class Texts:
  """The tokenizer and the text tower, which read the texts of a run.

  It holds no texts, and is known before batches are read.

  Attributes:
    tokenizer: The files of the tokenizer.
    tower: The text tower's fields; without, it is a new one.
    weights: The pretrained towers.
    first: The first logarithm of the scale, and the first bias.
  """

  tokenizer: TokenizerFiles | None = None
  tower: tuple[tuple[str, Any], ...] = ()
  weights: tuple[str, ...] = ()
  first: tuple[float, float] | None = None

  def open(
    self,
    pairs: PairsSettings,
    tokenizer: TokenizerFiles | None,
    tower: TextTower | None,
    weights: Sequence[str] = (),
    pair: tuple[float | None, float | None] = (None, None),
  ) -> "Texts":
    """The texts of a run with these settings.

    Args:
      pairs: The settings.
      tokenizer: The files; None if there is none yet.
      tower: The tower; None for a new one.
      weights: The pretrained towers.
      pair: The scale and the bias of the weights, as far as they are known.
    """
    if tower is not None:
      fields = {name: getattr(tower, name) for name in _FIELDS}
    elif tokenizer is not None:
      opened = tokenizer.tokenizer
      fields = _new(pairs, opened.size, opened.pad)
    else:
      fields = _new(pairs, pairs.vocabulary)
    scale, bias = pair
    log_scale, first_bias = _FIRST[pairs.loss]
    if scale is not None:
      log_scale = math.log(scale)
    if bias is not None:
      first_bias = bias
    return Texts(
      tokenizer=tokenizer,
      tower=tuple(fields.items()),
      weights=tuple(weights),
      first=(log_scale, float(first_bias)),
    )

  def fields(self, pairs: PairsSettings) -> dict[str, Any]:
    """The fields of the text tower."""
    return dict(self.tower) or _new(pairs, pairs.vocabulary)

  def length(self, pairs: PairsSettings) -> int:
    """The most tokens of a text."""
    return dict(self.tower).get("length", pairs.text_length)

  def first_pair(self, pairs: PairsSettings) -> tuple[float, float]:
    """The first logarithm of the scale and the first bias."""
    log_scale, bias = self.first or _FIRST[pairs.loss]
    if pairs.scale is not None:
      log_scale = math.log(pairs.scale)
    if pairs.bias is not None:
      bias = pairs.bias
    return log_scale, bias

  def facts(self, pairs: PairsSettings) -> dict[str, Any]:
    """The texts as JSON."""
    return {
      "text": dict(self.tower),
      "weights": list(self.weights),
      "first": list(self.first_pair(pairs)),
      "tokenizer": self._stored,
    }

  @functools.cached_property
  def _stored(self) -> dict[str, Any] | None:
    return None if self.tokenizer is None else self.tokenizer.as_json()


def from_facts(facts: Mapping[str, Any]) -> Texts:
  """The texts of the facts in a checkpoint's description."""
  text = {**facts["text"]}
  for name, must in _SIZES.items():
    text[name] = checked(name, int, text[name], must)
  weights = checked("weights", tuple[str, ...], facts["weights"])
  first = checked("first", tuple[float, float], facts["first"])
  tokenizer = TokenizerFiles.from_json(facts["tokenizer"])
  return Texts(
    tokenizer=dataclasses.replace(
      tokenizer, vocabulary=checked("vocabulary", int, text["vocabulary"])
    ),
    tower=tuple((name, text[name]) for name in _FIELDS if name in text),
    weights=tuple(tower for tower in TOWERS if tower in weights),
    first=first,
  )


def _new(pairs: PairsSettings, vocabulary: int, pad: int = 0) -> dict[str, Any]:
  """The fields of a new text tower."""
  return {
    "vocabulary": vocabulary,
    "length": pairs.text_length,
    "hidden_size": pairs.text_size,
    "num_layers": pairs.text_layers,
    "mlp_size": _MLP_RATIO * pairs.text_size,
    "num_heads": pairs.text_heads,
    "pooling": "mean",
    "pad_token": pad,
  }
