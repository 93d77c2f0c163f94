"""The tokenizer and the text tower of a run on pairs, which are its facts.

`run.texts` opens both before the data, and a description keeps them.
"""

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

# The initial logarithm of the scale and the initial bias, by the loss.
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
_LENGTHS = up_to(65_536, "no known text tower reads more tokens")
# The sizes of a stored text tower.
_SIZES = {"vocabulary": CLASSES, "length": _LENGTHS, "num_layers": DEPTH}
_SIZES |= dict.fromkeys(("hidden_size", "mlp_size", "num_heads"), WIDTH)
_MLP_RATIO = 4


@dataclasses.dataclass(frozen=True)
class TextSetup:
  """The tokenizer and the text tower of a run, known before its batches.

  Attributes:
    files: The files of the tokenizer.
    tower: The names and the values of the text tower's fields; if empty, the
      settings give those of a new tower.
    weights: The names of the pretrained towers.
    first: The initial logarithm of the scale, and the initial bias; None takes
      those of the loss.
  """

  files: TokenizerFiles | None = None
  tower: tuple[tuple[str, Any], ...] = ()
  weights: tuple[str, ...] = ()
  first: tuple[float, float] | None = None

  @classmethod
  def of(
    cls,
    pairs: PairsSettings,
    files: TokenizerFiles | None,
    tower: TextTower | None,
    weights: Sequence[str] = (),
    scale_and_bias: tuple[float | None, float | None] = (None, None),
  ) -> "TextSetup":
    """The tokenizer and the tower of a run with these settings.

    Args:
      pairs: The settings.
      files: The tokenizer's files; None if there is no tokenizer yet.
      tower: The text tower; None for a new one.
      weights: The names of the pretrained towers.
      scale_and_bias: The scale and the bias of the pretrained weights; None
        for one that they do not have.
    """
    if tower is not None:
      fields = {name: getattr(tower, name) for name in _FIELDS}
    elif files is not None:
      tokenizer = files.tokenizer
      fields = _new_tower(pairs, tokenizer.size, tokenizer.pad)
    else:
      fields = _new_tower(pairs, pairs.vocabulary)
    scale, bias = scale_and_bias
    log_scale, first_bias = _FIRST[pairs.loss]
    if scale is not None:
      log_scale = math.log(scale)
    if bias is not None:
      first_bias = bias
    return cls(
      files=files,
      tower=tuple(fields.items()),
      weights=tuple(weights),
      first=(log_scale, float(first_bias)),
    )

  def fields(self, pairs: PairsSettings) -> dict[str, Any]:
    """The fields of the text tower."""
    return dict(self.tower) or _new_tower(pairs, pairs.vocabulary)

  def length(self, pairs: PairsSettings) -> int:
    """The number of tokens that the text tower reads at most."""
    return dict(self.tower).get("length", pairs.text_length)

  def first_scale_and_bias(self, pairs: PairsSettings) -> tuple[float, float]:
    """The logarithm of the scale, and the bias, before the first step."""
    log_scale, bias = self.first or _FIRST[pairs.loss]
    if pairs.scale is not None:
      log_scale = math.log(pairs.scale)
    if pairs.bias is not None:
      bias = pairs.bias
    return log_scale, bias

  def facts(self, pairs: PairsSettings) -> dict[str, Any]:
    """The setup as JSON."""
    return {
      "text": dict(self.tower),
      "weights": list(self.weights),
      "first": list(self.first_scale_and_bias(pairs)),
      "tokenizer": self._stored,
    }

  @functools.cached_property
  def _stored(self) -> dict[str, Any] | None:
    """The tokenizer's files as JSON; None if there are none."""
    return None if self.files is None else self.files.as_json()


def from_facts(facts: Mapping[str, Any]) -> TextSetup:
  """The setup that a checkpoint's description records as `facts`.

  Raises ValueError if a value is invalid, and KeyError if one is missing.
  """
  text = {**facts["text"]}
  for name, must in _SIZES.items():
    text[name] = checked(name, int, text[name], must)
  weights = checked("weights", tuple[str, ...], facts["weights"])
  first = checked("first", tuple[float, float], facts["first"])
  files = TokenizerFiles.from_json(facts["tokenizer"])
  return TextSetup(
    files=dataclasses.replace(
      files, vocabulary=checked("vocabulary", int, text["vocabulary"])
    ),
    tower=tuple((name, text[name]) for name in _FIELDS if name in text),
    weights=tuple(tower for tower in TOWERS if tower in weights),
    first=first,
  )


def _new_tower(
  pairs: PairsSettings, vocabulary: int, pad: int = 0
) -> dict[str, Any]:
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
