"""The tokenizer of a text tower: from texts to the ids of their tokens.

It is read from the files beside the weights, by the libraries that made them:
`tokenizer.json` by tokenizers, and a `.model` by sentencepiece (extra `text`).
Nothing in the files is run.
"""

import dataclasses
import functools
import html
import pathlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.reading import tokenizer_bounds as bounds
from vit_jax.runtime import extras
from vit_jax.runtime.checks import checked
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.json_files import read_json
from vit_jax.runtime.libraries import hold_back_stderr, refusing
from vit_jax.runtime.printable import quoted

JSON = "tokenizer.json"
PIECES = ("spiece.model", "tokenizer.model")
CONFIG = "tokenizer_config.json"
FILES = (JSON, *PIECES, CONFIG)
_MOST_BYTES = 128 << 20  # Gemma's tokenizer.json has 34 MB.
_SAMPLE = "a photo of a cat"
_UNDERLINE = "\u2581"  # Stands for a space in pieces of sentencepiece.
_BEFORE = "<unk>"  # Put before a text, to keep the text's first space.
_SIGLIP = "SigLIP"
# Classes of transformers that pad at the beginning unless a file says
# otherwise.
_LEFT = ("GemmaTokenizer", "GemmaTokenizerFast", "Siglip2Tokenizer")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """Texts -> ids (N, T), each text filled up to T tokens.

  Attributes:
    encode: The function from texts to the ids of each, special tokens included.
      It cuts a text to `length` ids; calling the tokenizer pads a shorter one.
    length: T.
    pad: The id that pads a text.
    left: Whether a text is padded at its beginning.
    file: The file from which the tokenizer was read.
    size: One more than the tokenizer's largest id.
    notes: Lines on guesses, where no file says what is needed.
    folder: The folder of the tokenizer's files, if it is known.
  """

  encode: Callable[[Sequence[str]], list[list[int]]]
  length: int
  pad: int
  file: str
  size: int
  left: bool = False
  notes: tuple[str, ...] = ()
  folder: pathlib.Path | None = None

  def contents(self) -> dict[str, bytes]:
    """The content of each of the tokenizer's files, by name.

    It is empty without a folder.
    """
    files = [self.folder / name for name in FILES] if self.folder else []
    return {
      path.name: read_regular(path, _MOST_BYTES)
      for path in files
      if path.exists()
    }

  def __call__(self, texts: Sequence[str]) -> Int[np.ndarray, "N T"]:
    """The ids of texts.

    Raises ValueError if one of them is empty, or as `encode` does.
    """
    if isinstance(texts, str):
      texts = [texts]
    for number, text in enumerate(texts, 1):
      if not text.strip():
        raise ValueError(
          f"text {number} of {len(texts)} is empty: leave it out."
        )
    ids = np.full((len(texts), self.length), self.pad, np.int32)
    for row, tokens in zip(ids, self.encode(texts), strict=True):
      place = slice(-len(tokens), None) if self.left else slice(len(tokens))
      if tokens:
        row[place] = tokens
    return ids


def open_tokenizer(
  folder: pathlib.Path, family: str, length: int, clean: str = ""
) -> Tokenizer:
  """Opens the tokenizer in a folder, for texts of up to `length` tokens.

  Raises ValueError if there is none, it is damaged, or its library is not
  installed.

  Args:
    folder: The folder of the weights.
    family: The name of the text tower's family. Those with "SigLIP" get a note
      if capital letters are kept, and "TIPSv2" is read by sentencepiece. All
      others, such as "CLIP", are read alike.
    clean: How open_clip changes texts first: "" for not at all, "whitespace",
      "lower" or "canonicalize". If ftfy is not installed, open_clip's repair of
      wrong encodings is left out, and a note says so.
  """
  config = read_json(folder / CONFIG)
  own = [folder / name for name in PIECES if (folder / name).exists()]
  named = str(config.get("tokenizer_class", ""))
  pieces = family == "TIPSv2" or named.startswith("SiglipTokenizer")
  if own and (pieces or not (folder / JSON).exists()):
    opened = _open_pieces(own[0], config, family, length)
  elif (folder / JSON).exists():
    opened = _open_json(folder / JSON, config, length)
    opened = _as_open_clip(opened, clean) if clean else opened
  else:
    raise ValueError(
      f"{folder} has no tokenizer beside its weights, {JSON} or {PIECES[0]}: "
      "get it from where the weights came from."
    )
  if _SIGLIP in family or named in _LEFT:
    return _with_case_note(opened)
  return opened


def cut_lines(
  texts: Sequence[str],
  tokenizer: Tokenizer,
  longer: Callable[[], Tokenizer],
  name: str = "texts",
) -> list[str]:
  """A line on texts with more tokens than the text tower reads, if any.

  `longer` opens the tokenizer for one token more, and is called only if a text
  has as many tokens as the tower reads. `name` is the word for the texts.
  """
  T = tokenizer.length
  encoded = tokenizer.encode(texts) if texts else []
  full = [t for t, ids in zip(texts, encoded, strict=True) if len(ids) >= T]
  again = longer().encode(full) if full else []
  too_long = [t for t, ids in zip(full, again, strict=True) if len(ids) > T]
  if not too_long:
    return []
  line = (
    f"{len(too_long):,} of {len(texts):,} {name} have more than the {T} tokens "
    f"that the text tower reads, and are cut, such as {quoted(too_long[0])}."
  )
  return [line]


def _open_json(
  path: pathlib.Path, config: Mapping[str, Any], length: int
) -> Tokenizer:
  """Opens a tokenizer.json; raises ValueError if that fails."""
  library = extras.load("tokenizers", "text")
  content = read_regular(path, _MOST_BYTES)
  version = library.__version__
  what = (
    f"{path} is not a tokenizer that the library tokenizers {version} can read"
  )
  with hold_back_stderr(), refusing(what):
    longest = bounds.longest_text_of_json(content, length)
    opened = library.Tokenizer.from_buffer(content)
    opened.no_padding()
    opened.enable_truncation(length)
    size = 1 + max(opened.get_vocab().values(), default=0)
  notes = []
  name = _special_token(config.get("pad_token"))
  pad = opened.token_to_id(name) if name else None
  if pad is None:
    pad = 0
    notes.append(f"{CONFIG} names no pad_token: texts are padded with id 0")
  lower = checked("do_lower_case", bool, config.get("do_lower_case", False))
  kind = config.get("tokenizer_class")
  lower |= kind == "Siglip2Tokenizer"
  side = config.get("padding_side", "left" if kind in _LEFT else "right")
  side = checked("padding_side", str, side, choices=("left", "right"))

  def encode(texts: Sequence[str]) -> list[list[int]]:
    if lower:
      texts = [text.lower() for text in texts]
    return [one.ids for one in opened.encode_batch([*texts])]

  tokenizer = Tokenizer(
    encode=encode,
    length=length,
    pad=pad,
    file=path.name,
    size=size,
    left=side == "left",
    notes=tuple(notes),
  )
  return _with_bounds(tokenizer, path, longest)


def _with_case_note(tokenizer: Tokenizer) -> Tokenizer:
  """The tokenizer of a SigLIP, with a note if it keeps capital letters.

  SigLIP 2's files name a GemmaTokenizer, with which transformers does not put
  texts into lower case, though its authors' own code and open_clip do.
  """
  small, capital = tokenizer.encode([_SAMPLE, _SAMPLE.upper()])
  if small == capital:
    return tokenizer
  note = (
    f"{tokenizer.file} keeps capital letters, and SigLIP was trained on texts "
    "in lower case: write texts in lower case, or scores are lower"
  )
  return dataclasses.replace(tokenizer, notes=(*tokenizer.notes, note))


def _as_open_clip(tokenizer: Tokenizer, clean: str) -> Tokenizer:
  """The tokenizer as open_clip uses it, with a note if ftfy is missing.

  `clean` is that of `open_tokenizer`.
  """
  notes = tokenizer.notes
  repair = _unchanged
  try:
    repair = extras.load("ftfy", "text").fix_text
  except ValueError as error:
    note = (
      "open_clip repairs curly quotes, full-width letters and the like with "
      f"ftfy; here they stay as they are: {error}"
    )
    notes = (*notes, note)

  def clean_text(text: str) -> str:
    """A text as open_clip changes it first, by `clean`."""
    text = html.unescape(html.unescape(repair(text)))
    if clean == "canonicalize":
      return canonical(text.replace("_", " "))
    text = " ".join(text.split())
    return text.lower() if clean == "lower" else text

  def encode(texts: Sequence[str]) -> list[list[int]]:
    return tokenizer.encode([clean_text(text) for text in texts])

  return dataclasses.replace(tokenizer, encode=encode, notes=notes)


def _unchanged(text: str) -> str:
  """The text itself."""
  return text


def _open_pieces(
  path: pathlib.Path, config: Mapping[str, Any], family: str, length: int
) -> Tokenizer:
  """Opens a model of sentencepiece; raises ValueError if that fails."""
  library = extras.load("sentencepiece", "text")
  content = read_regular(path, _MOST_BYTES)
  if not content:
    raise ValueError(
      f"{path} is empty: get it from where the weights are from."
    )
  with hold_back_stderr(), refusing(f"{path} is not a sentencepiece model"):
    model = library.SentencePieceProcessor(model_proto=content)
    size = model.get_piece_size()
    longest = bounds.longest_text_of_pieces(
      content, model.id_to_piece([*range(size)])
    )
  lower = checked("do_lower_case", bool, config.get("do_lower_case", True))
  if family == "TIPSv2":
    encode = functools.partial(_tips_ids, model, lower=lower, length=length)
    pad = max(model.pad_id(), 0)
  else:
    end = model.piece_to_id(_special_token(config.get("eos_token")) or "</s>")
    encode = functools.partial(
      _siglip_ids, model, end, lower=lower, length=length
    )
    pad = model.piece_to_id(_special_token(config.get("pad_token")) or "</s>")
  tokenizer = Tokenizer(
    encode=encode, length=length, pad=pad, file=path.name, size=size
  )
  return _with_bounds(tokenizer, path, longest)


def _with_bounds(
  tokenizer: Tokenizer, path: pathlib.Path, longest: int
) -> Tokenizer:
  """The tokenizer with bounds on texts and ids, and errors of one line.

  Its file may come from anywhere. `longest` is the most bytes of a text. As a
  test, a usual text is encoded here: raises ValueError if that fails, or an id
  is larger than any vocabulary.
  """
  length = tokenizer.length
  if length > bounds.MOST_LENGTH + 1:
    raise ValueError(
      f"texts of {length:,} tokens are asked of {path}, and no text tower "
      f"reads more than {bounds.MOST_LENGTH:,}."
    )

  def tokens(texts: Sequence[str]) -> list[list[int]]:
    with refusing(f"{path} makes no tokens of {quoted(texts[0])}"):
      return tokenizer.encode(texts)

  def encode(texts: Sequence[str]) -> list[list[int]]:
    """As `tokenizer.encode`; raises ValueError beyond the bounds."""
    for number, text in enumerate(texts, 1):
      if 4 * len(text) > longest:  # A character has at most 4 bytes.
        raise ValueError(
          f"text {number} of {len(texts):,} has {len(text):,} characters, more "
          f"than the {longest // 4:,} that {path} takes: shorten it."
        )
    try:
      rows = tokens(texts) if texts else []
    except ValueError:
      for text in texts:  # The error then names the text that fails.
        _check_characters(text)
        tokens([text])
      raise
    most = max(map(len, rows), default=0)
    if most > length:
      raise ValueError(
        f"{path} makes {most:,} tokens of a text, where {length:,} fit: get it "
        "again from where the weights came from."
      )
    _check_ids(max(map(max, filter(None, rows)), default=0), path)
    return rows

  with hold_back_stderr():
    (ids,) = encode([_SAMPLE])
  size = max([tokenizer.size, *(1 + token for token in ids)])
  _check_ids(size - 1, path)
  return dataclasses.replace(tokenizer, encode=encode, size=size)


def _check_characters(text: str) -> None:
  """Raises ValueError for a text with half a character."""
  try:
    text.encode()
  except UnicodeEncodeError:
    raise ValueError(
      f"the text {quoted(text)} has half a character (a lone surrogate): write "
      "it whole."
    ) from None


def _check_ids(largest: int, path: pathlib.Path) -> None:
  """Raises ValueError if the largest id is larger than any vocabulary."""
  if largest >= bounds.MOST_IDS:
    raise ValueError(
      f"{path} has the id {largest:,}, more than any vocabulary: get it again "
      "from where the weights came from."
    )


def _siglip_ids(
  model: Any, end: int, texts: Sequence[str], *, lower: bool, length: int
) -> list[list[int]]:
  """The ids of texts without ASCII punctuation, each with the id `end` last.

  As in transformers, a space is put before each text first, even if it begins
  with one.
  """
  # Sentencepiece drops a space at the beginning, so a token is put before the
  # text, and its ids are cut off again.
  before = len(model.encode(_BEFORE))
  cleaned = [
    _BEFORE + canonical(_UNDERLINE + text.replace(_UNDERLINE, " "), lower)
    for text in texts
  ]
  return [[*ids[before:][: length - 1], end] for ids in model.encode(cleaned)]


def _tips_ids(
  model: Any, texts: Sequence[str], *, lower: bool, length: int
) -> list[list[int]]:
  """The ids of texts for TIPSv2, with single spaces between words."""
  texts = [" ".join(text.replace(_UNDERLINE, " ").split()) for text in texts]
  texts = [text.lower() if lower else text for text in texts]
  return [ids[:length] for ids in model.encode(texts)]


def canonical(text: str, lower: bool = True) -> str:
  """A text as SigLIP reads it, in lower case and without ASCII punctuation.

  Without `lower`, letters stay as they are.

  >>> canonical("A photo, of  a Cat!")
  'a photo of a cat'
  """
  text = text.lower() if lower else text
  text = text.translate(_NO_PUNCTUATION)
  return re.sub(r"\s+", " ", text).strip()


def _special_token(token: Any) -> str | None:
  """The text of a special token, which may be in an object; None if it is null.

  Raises ValueError if it is no text.
  """
  if isinstance(token, dict):
    token = token.get("content")
  if token is not None and not isinstance(token, str):
    raise ValueError(
      f"its {CONFIG} has the special token {quoted(token)}, which is not text."
    )
  return token
