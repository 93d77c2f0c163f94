"""How long a text may be for a tokenizer whose files may come from anywhere.

The files of a tokenizer say how texts are rewritten before they become tokens.
A chain of replacements can turn a letter into gigabytes. So a text may only be
so long that its rewritten form surely stays within `_MOST` bytes, and a
tokenizer is refused if even short texts may grow beyond that.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MOST_IDS = 1 << 24  # The largest vocabulary known has a million tokens.
MOST_LENGTH = 65_536  # Tokens of a text; no text tower reads more.
_MOST = 1 << 24  # Bytes of a rewritten text; the library takes 17 times that.
_SHORT = 1 << 14  # Bytes of a text that every tokenizer has to take.
_MOST_STEPS = 1_000
_LONGEST_PIECE = 2_048  # Characters; a hundred are usual.
_LONGEST_AFFIX = 256  # "##" and "</w>" are usual.
_LONGEST_WORD = 1_000  # Characters; BERT has 100.
_MOST_BRACKETS = 1 << 23  # Each becomes an object of Python's.
_MOST_FIELDS = 1 << 21  # There is one for each piece, and a few more.
_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")


class Growth(NamedTuple):
  """A bound: n bytes of text become at most times * n + more bytes."""

  times: float = 1.0
  more: float = 0.0

  def then(self, step: "Growth") -> "Growth":
    """The growth by this one and then by another step."""
    return Growth(self.times * step.times, self.more * step.times + step.more)

  def of(self, size: int) -> float:
    """The most bytes that a text of `size` bytes becomes."""
    return self.times * size + self.more


def longest_text(growth: Growth) -> int:
  """The most bytes of a text whose rewritten form stays within `_MOST` bytes.

  Raises ValueError if even short texts may grow beyond that.
  """
  if not growth.of(_SHORT) <= _MOST:
    raise ValueError(
      f"it may turn {_SHORT:,} bytes of text into more than {_MOST:,} bytes, "
      "which no tokenizer does"
    )
  return int((_MOST - growth.more) / growth.times)


def longest_text_of_json(content: bytes, length: int) -> int:
  """The most bytes that a text may have for a tokenizer.json.

  `length` is the number of tokens to which texts are cut.

  Raises ValueError if the file is not JSON, or asks for what no tokenizer does.
  """
  if content.count(b"[") + content.count(b"{") > _MOST_BRACKETS:
    raise ValueError("it has more lists than any vocabulary")
  try:
    tree = json.loads(content)
  except RecursionError as error:
    raise ValueError("its lists are nested too deeply") from error
  if not isinstance(tree, dict):
    raise ValueError("it does not hold a JSON object")
  growth = Growth()
  for stage in ("normalizer", "pre_tokenizer"):
    growth = _growth_of_steps(growth, tree.get(stage))
  longest = longest_text(growth)
  longest_text(_growth_of_steps(Growth(), tree.get("decoder")))
  _check_model(tree.get("model"))
  _check_added(tree.get("added_tokens"), growth)
  tokens = Growth()
  for step in _steps(tree.get("post_processor")):
    tokens = tokens.then(_growth_of_template(step))
  if tokens.of(length) > 2 * MOST_LENGTH:
    raise ValueError(
      f"its post_processor may turn {length:,} tokens into "
      f"{tokens.of(length):,.0f}"
    )
  return longest


def longest_text_of_pieces(content: bytes, pieces: Sequence[str]) -> int:
  """The most bytes that a text may have for a model of sentencepiece.

  Raises ValueError if the model asks for what no tokenizer does.
  """
  _check_pieces(pieces)
  growth = Growth(3.0, 6.0)  # A space becomes a sign of three bytes.
  for normalizer in _fields(content, 3):
    for charsmap in _fields(normalizer, 2):
      growth = growth.then(Growth(_longest_of_charsmap(charsmap)))
  return longest_text(growth)


def _growth_of_steps(growth: Growth, tree: Any) -> Growth:
  """The growth by `growth` and then by the steps of a stage.

  Raises ValueError if there are too many steps.
  """
  for number, step in enumerate(_steps(tree)):
    if number >= _MOST_STEPS:
      raise ValueError(f"it has more than {_MOST_STEPS:,} steps")
    growth = growth.then(_growth_of_step(step))
  return growth


def _steps(tree: Any) -> Iterator[Mapping[str, Any]]:
  """Yields the steps of a stage, in their order; sequences may be nested."""
  waiting = [tree]
  while waiting:
    step = waiting.pop()
    if not isinstance(step, dict):
      continue
    yield step
    for key in _STEPS:
      if isinstance(inner := step.get(key), list):
        waiting += reversed(inner)


def _growth_of_step(step: Mapping[str, Any]) -> Growth:
  """The growth by a step, told by its fields, as old files name no types."""
  growth = Growth()
  if "content" in step:
    growth = growth.then(_growth_of_replacement(step))
  if "prepend" in step:
    growth = growth.then(Growth(more=_size(step["prepend"])))
  if "precompiled_charsmap" in step:
    growth = growth.then(
      Growth(_growth_of_base64(step["precompiled_charsmap"]))
    )
  if step.get("type") == "ByteLevel":  # A letter of two bytes for each byte.
    growth = growth.then(Growth(4.0, 4.0))
  if "replacement" in step:  # It replaces spaces, and stands before each part.
    growth = growth.then(Growth(2.0 * max(_size(step["replacement"]), 1)))
  return growth


def _growth_of_replacement(step: Mapping[str, Any]) -> Growth:
  """The growth by a step that replaces a text or a pattern by another text."""
  size = _size(step["content"])
  pattern = step.get("pattern")
  text = pattern.get("String") if isinstance(pattern, dict) else None
  if isinstance(text, str) and text:
    return Growth(max(1.0, size / _size(text)))
  # A regular expression may match between all letters.
  return Growth(1.0 + size, float(size))


def _growth_of_template(step: Mapping[str, Any]) -> Growth:
  """The growth of a text's tokens by a step of the post-processor."""
  template = step.get("single")
  if not isinstance(template, list):
    return Growth(more=2.0)
  special = step.get("special_tokens")
  special = special if isinstance(special, dict) else {}
  counts = {
    name: len(token["ids"])
    for name, token in special.items()
    if isinstance(token, dict) and isinstance(token.get("ids"), list)
  }
  added = sum(counts.get(name, 0) for name in _special_tokens(template))
  texts = sum(isinstance(p, dict) and "Sequence" in p for p in template)
  return Growth(float(texts), float(added))


def _special_tokens(template: list[Any]) -> Iterator[str]:
  """Yields the names of the special tokens in a template."""
  for part in template:
    token = part.get("SpecialToken") if isinstance(part, dict) else None
    if isinstance(token, dict) and isinstance(token.get("id"), str):
      yield token["id"]


def _check_model(model: Any) -> None:
  """Raises ValueError for a model with overlong affixes, words or pieces."""
  if not isinstance(model, dict):
    return
  for name in ("continuing_subword_prefix", "end_of_word_suffix"):
    if _size(model.get(name)) > _LONGEST_AFFIX:
      raise ValueError(f"its {name} has more than {_LONGEST_AFFIX} bytes")
  word = model.get("max_input_chars_per_word", 0)
  if not isinstance(word, int) or word > _LONGEST_WORD:
    raise ValueError(
      f"its max_input_chars_per_word is more than {_LONGEST_WORD:,}"
    )
  vocabulary = model.get("vocab")
  if isinstance(vocabulary, list):
    pairs = (pair for pair in vocabulary if isinstance(pair, list) and pair)
    vocabulary = [pair[0] for pair in pairs]
  if isinstance(vocabulary, list | dict):
    _check_pieces([piece for piece in vocabulary if isinstance(piece, str)])


def _check_pieces(pieces: Sequence[str]) -> None:
  """Raises ValueError for an overlong piece."""
  if max(map(len, pieces), default=0) > _LONGEST_PIECE:
    raise ValueError(
      f"one of its pieces has more than {_LONGEST_PIECE:,} characters"
    )


def _check_added(added: Any, growth: Growth) -> None:
  """Raises ValueError if the added tokens are too many or too long.

  They are rewritten as texts are, when the file is opened.
  """
  added = added if isinstance(added, list) else []
  contents = [t.get("content") for t in added if isinstance(t, dict)]
  _check_pieces([text for text in contents if isinstance(text, str)])
  if sum(growth.of(_size(text)) for text in contents) > 4 * _MOST:
    raise ValueError("its added_tokens are too many and too long")


def _growth_of_base64(charsmap: Any) -> float:
  """The factor by which a charsmap in base64 may lengthen a text."""
  try:
    return _longest_of_charsmap(base64.b64decode(charsmap))
  except (binascii.Error, TypeError, ValueError):
    return 1.0  # The library says what is wrong with it.


def _longest_of_charsmap(charsmap: bytes) -> float:
  """The most bytes that a letter becomes.

  In the bytes of a charsmap, the texts that letters become come after a search
  tree, and each ends with a zero byte.
  """
  start = 4 + int.from_bytes(charsmap[:4], "little")
  ends = np.flatnonzero(np.frombuffer(charsmap[start:] + b"\0", np.uint8) == 0)
  return float(max(np.diff(ends, prepend=-1).max() - 1, 1))


def _fields(message: bytes, number: int) -> Iterator[bytes]:
  """Yields the texts or messages in the field `number` of a protocol buffer.

  Raises ValueError if there are too many fields.
  """
  at = 0
  for _ in range(_MOST_FIELDS):
    if at >= len(message):
      return
    key, at = _varint(message, at)
    kind = key & 7
    size = {1: 8, 5: 4}.get(kind, 0)
    if kind in (0, 2):
      value, at = _varint(message, at)
      size = value if kind == 2 else 0
    if kind == 2 and key >> 3 == number:
      yield message[at : at + size]
    at += size
  raise ValueError("it has more parts than any vocabulary")


def _varint(message: bytes, at: int) -> tuple[int, int]:
  """The number that is stored at offset `at`, and the offset after it."""
  value = 0
  for shift in range(0, 70, 7):
    if at >= len(message):
      return value, at
    value |= (message[at] & 0x7F) << shift
    at += 1
    if message[at - 1] < 0x80:
      break
  return value, at


def _size(text: Any) -> int:
  """The bytes of a text; 0 for anything else."""
  if not isinstance(text, str):
    return 0
  return len(text.encode("utf-8", "surrogatepass"))
