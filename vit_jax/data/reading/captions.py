"""Captions as labels: texts on an image, as the ids of their tokens.

An image may have several. A tokenizer of `tokenizer` makes the ids; the files
that it was read from are kept, so that a run can store them.
"""

import base64
import binascii
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from vit_jax.data.batch import ArraySpec, ImageTransform, Spec, Transform
from vit_jax.data.example import Example
from vit_jax.data.reading.label_rows import Encode, Row
from vit_jax.data.reading.labels import SINGLE, Labels, Names, joined
from vit_jax.data.reading.tables import column, fail
from vit_jax.data.reading.tokenizer import (
  CONFIG,
  FILES,
  JSON,
  PIECES,
  Tokenizer,
  cut,
  open_tokenizer,
)
from vit_jax.data.reading.tokenizer_bounds import MOST_LENGTH
from vit_jax.runtime import extras
from vit_jax.runtime.checks import checked, up_to
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.libraries import refusing
from vit_jax.runtime.printable import quoted

TEXT = "text"
"""The array of a batch that has the ids of one caption of each image."""
COLUMNS = ("caption", "captions", "text", "texts", "title", "txt")
_FURTHER = ("comment", "sentence", "sentences")  # In files of labels alone.
NONE = -1  # In place of the ids of a caption that an image does not have.
PAD, END = "<pad>", "<end>"
_MOST_BYTES = 256 << 20
_LENGTH = up_to(MOST_LENGTH, "no text tower reads more")
_DAMAGED = (binascii.Error, zlib.error, ValueError, TypeError, KeyError)


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
  """The files of a tokenizer, from which it is opened when it is needed.

  Attributes:
    files: The name and the content of each.
    family, clean: As `open_tokenizer` takes them.
    length: Tokens of a text.
    vocabulary: Ids that the text tower knows, if there is one already.
    source: Words that messages put before the name of a file.
  """

  files: tuple[tuple[str, bytes], ...]
  family: str
  length: int
  clean: str = ""
  vocabulary: int | None = None
  source: str = dataclasses.field(default="the run's ", compare=False)

  @classmethod
  def read(
    cls,
    place: str | os.PathLike[str],
    family: str,
    length: int,
    clean: str = "",
  ) -> "TokenizerFiles":
    """Reads the files in a folder, or one file of it.

    Raises ValueError if there is none.
    """
    path = pathlib.Path(place).expanduser()
    if path.is_dir():
      names = [name for name in FILES if (path / name).is_file()]
      files = [(name, read_regular(path / name, _MOST_BYTES)) for name in names]
      source = f"{path}{os.sep}"
    elif path.is_file():
      name = PIECES[0] if path.suffix == ".model" else JSON
      source = f"{path}: "
      files = [(name, read_regular(path, _MOST_BYTES))]
      if (beside := path.parent / CONFIG).is_file():
        files.append((CONFIG, read_regular(beside, _MOST_BYTES)))
    else:
      files, source = [], ""
    if not {JSON, *PIECES} & {name for name, _ in files}:
      raise ValueError(
        f"pairs.tokenizer={str(place)!r} is no tokenizer: give a {JSON}, a "
        ".model of sentencepiece, or the folder that has one."
      )
    return cls(tuple(files), family, length, clean, source=source)

  def opened(self, length: int | None = None) -> Tokenizer:
    """The tokenizer, for texts of `length` tokens; by default its own length.

    Raises ValueError as `open_tokenizer`, and if the text tower does not know
    all of its ids.
    """
    options: Any = {"clean": self.clean} if self.clean else {}
    with tempfile.TemporaryDirectory() as folder:
      place = pathlib.Path(folder)
      for name, content in self.files:
        (place / name).write_bytes(content)
      with self._naming(folder):
        opened = open_tokenizer(
          place, self.family, length or self.length, **options
        )

    def encode(texts: Sequence[str]) -> list[list[int]]:
      with self._naming(folder):
        return opened.encode(texts)

    if self.vocabulary is not None and opened.size > self.vocabulary:
      raise ValueError(
        f"{self.source}{opened.file} has {opened.size:,} tokens and the text "
        f"tower {self.vocabulary:,}: it is not the tokenizer of these weights."
      )
    return dataclasses.replace(opened, encode=encode)

  @contextlib.contextmanager
  def _naming(self, folder: str) -> Iterator[None]:
    """Names the files by where they came from, not by a folder of a moment."""
    try:
      yield
    except ValueError as error:
      shown = str(error).replace(f"{folder}{os.sep}", self.source)
      raise ValueError(shown) from error

  @functools.cached_property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer."""
    return self.opened()

  @functools.cached_property
  def longer(self) -> Tokenizer:
    """The tokenizer for one token more, which tells what is too long."""
    return self.opened(self.length + 1)

  def text(self, ids: Int[np.ndarray, " T"]) -> str:
    """A text of tokens, about as it was before it became them."""
    known = [int(k) for k in ids if k >= 0]
    names = dict(self.files)
    file = self.tokenizer.file  # Which has been tried.
    with refusing(f"{file} makes no text of tokens"):
      if file == JSON:
        library: Any = extras.load("tokenizers", "text")
        model = library.Tokenizer.from_buffer(names[JSON])
      else:
        library = extras.load("sentencepiece", "text")
        model = library.SentencePieceProcessor(model_proto=names[file])
      return model.decode(known).strip()

  def as_json(self) -> dict[str, Any]:
    """The files as JSON can hold them."""
    return {
      "family": self.family,
      "length": self.length,
      "clean": self.clean,
      "files": {
        name: base64.b64encode(zlib.compress(content, 9)).decode()
        for name, content in self.files
      },
    }

  @classmethod
  def from_json(cls, stored: Mapping[str, Any]) -> "TokenizerFiles":
    """The files that `as_json` stored; raises ValueError if it did not."""
    try:
      files = tuple(
        (name, _unpacked(content))
        for name, content in stored["files"].items()
        if name in FILES
      )
      return cls(
        files,
        checked("family", str, stored["family"]),
        checked("length", int, stored["length"], _LENGTH),
        checked("clean", str, stored["clean"]),
      )
    except (*_DAMAGED, AttributeError) as error:
      raise ValueError(f"its tokenizer is damaged ({error})") from error

  def __getstate__(self) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(self)]
    return {name: getattr(self, name) for name in fields}

  def __setstate__(self, state: dict[str, Any]) -> None:
    for name, value in state.items():
      object.__setattr__(self, name, value)

  def __repr__(self) -> str:
    names = ", ".join(name for name, _ in self.files)
    return f"TokenizerFiles({names}, {self.family}, length={self.length})"


def _unpacked(content: str) -> bytes:
  """A stored file, of which a stranger cannot make gigabytes."""
  unpacking = zlib.decompressobj()
  plain = unpacking.decompress(base64.b64decode(content), _MOST_BYTES)
  if unpacking.unconsumed_tail:
    raise ValueError(f"it unpacks to more than {_MOST_BYTES:,} bytes")
  return plain


def new_tokenizer(
  texts: Iterable[str], most_tokens: int, length: int
) -> TokenizerFiles:
  """A tokenizer of parts of words, by what is frequent in these texts.

  It is a byte pair encoding of the bytes of lower-case texts, so it knows every
  text. Token 0 fills up a text, and token 1 ends it. Raises ValueError if the
  library is not installed.
  """
  library: Any = extras.load("tokenizers", "text")
  made = library.Tokenizer(library.models.BPE())
  made.normalizer = library.normalizers.Sequence(
    [library.normalizers.NFC(), library.normalizers.Lowercase()]
  )
  made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
  made.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
    vocab_size=most_tokens,
    min_frequency=2,
    special_tokens=[PAD, END],
    initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  made.train_from_iterator(texts, trainer)
  made.post_processor = library.processors.TemplateProcessing(
    single=f"$A {END}", special_tokens=[(END, made.token_to_id(END))]
  )
  config = json.dumps({"pad_token": PAD, "eos_token": END})
  files = (JSON, made.to_str().encode()), (CONFIG, config.encode())
  return TokenizerFiles(files, "CLIP", length)


@dataclasses.dataclass(frozen=True)
class Captions(Labels):
  """The captions of an image: the ids of their tokens, (M, T).

  A caption that an image does not have is all `NONE`.

  Attributes:
    tokenizer: The tokenizer's files; without, captions are only read.
    most: M, the captions of an image that are kept.
    length: T, where there is no tokenizer.
  """

  plural: str = "column of captions"
  records = "tfds.captions"
  may_be_several = True
  again = ""
  heading = "images"
  twice = "twice"
  apart = "there with different captions"
  tokenizer: TokenizerFiles | None = None
  most: int = 5
  length: int = 1
  names: ClassVar[Names] = COLUMNS[:1]
  """The names of a source, whatever its column or feature is called."""

  def spec(self, count: int) -> ArraySpec:
    del count
    tokens = self.tokenizer.length if self.tokenizer else self.length
    return ArraySpec((self.most, tokens), np.int32)

  def columns(self, names: Sequence[str]) -> Sequence[str]:
    return (column((*COLUMNS, *_FURTHER), names) or COLUMNS[0],)

  def guessed(self, first: Mapping[str, Any]) -> Sequence[str]:
    del first
    return ()

  def joined(self, rows: Sequence[Row]) -> list[Row]:
    """One row for each image, which has the captions of all of its rows.

    Raises ValueError if two rows of an image are of different splits.
    """
    return joined(map(_with_texts, rows), self.together)

  def together(self, before: Row, row: Row) -> Row:
    """The row before, with the captions of both."""
    return dataclasses.replace(before, values=[*before.values, *row.values])

  def remarks(self, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    return []

  def fit(
    self, columns: Sequence[str], rows: Sequence[Row]
  ) -> tuple[Names, Encode]:
    if len(rows) < 2:
      fail(
        rows[0].place,
        "is the only pair to train on: a pair is compared with others, so give "
        "two or more",
      )
    return self.names, self.encoded

  def encoded(self, rows: Sequence[Row]) -> Int[np.ndarray, "N M T"]:
    """The captions of rows, from `joined`."""
    return self.ids([row.values for row in rows])

  def of_record(self, captions: Sequence[str]) -> Any:
    """The label of a record that has these captions."""
    return self.ids([captions])[0]

  def ids(self, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """The ids of the captions of images, (N, M, T)."""
    spec = self.spec(1)
    labels = np.full((len(captions), *spec.shape), NONE, np.int32)
    kept = [texts[: self.most] for texts in captions]
    if self.tokenizer is None:
      labels[:, 0] = 0
      return labels
    flat = [text for texts in kept for text in texts]
    rows = iter(self.tokenizer.tokenizer(flat) if flat else ())
    for label, texts in zip(labels, kept, strict=True):
      for place in range(len(texts)):
        label[place] = next(rows)
    return labels

  def warnings(self, names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Lines on captions that are left out, and on those that are cut."""
    del names
    lines = []
    more = [row for row in rows if len(row.values) > self.most]
    if more:
      lines.append(
        f"{len(more):,} of {len(rows):,} images have more than {self.most} "
        "captions, of which the first are taken: --config.pairs.captions "
        "takes more."
      )
    lines += self.cut([t for row in rows for t in row.values[: self.most]])
    return lines

  def kept(self, label: np.ndarray, count: int) -> np.ndarray:
    """Nothing: its lines say how many captions there are."""
    del label, count
    return np.array(0)

  def cut(self, texts: Sequence[str]) -> list[str]:
    """A line if texts have more tokens than the tower reads."""
    if self.tokenizer is None:
      return []
    files = self.tokenizer
    return cut(texts, files.tokenizer, lambda: files.longer, "captions")


def captions_and_classes(columns: Sequence[str]) -> tuple[Names, Names]:
  """The column of captions and that of classes, each if there is one.

  Beside classes, captions are sure only if their column says so.
  """
  classes = tuple(name for name in SINGLE.columns(columns) if name in columns)
  candidates = COLUMNS[:2] if classes else (*COLUMNS, *_FURTHER)
  captions = column(candidates, columns)
  return () if captions is None else (captions,), classes


def no_captions(name: str) -> str:
  """The message for a source that has no captions."""
  return (
    f"{name} has no captions, which the pairs are to be made of: give a CSV or "
    "JSONL file with the columns file and caption, or data.dir, which vit_jax "
    "pack made of such a file or of WebDataset's .tar files."
  )


CAPTIONS = Captions()
"""Captions whose tokenizer is not known yet."""


def _with_texts(row: Row) -> Row:
  """The row with all of its captions, of whatever cell."""
  texts = [text for value in row.values for text in _texts(row, value)]
  return dataclasses.replace(row, values=texts)


def is_whole(text: str) -> bool:
  """Whether a text has no half of a character, which JSON can hold."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def _texts(row: Row, value: Any) -> list[str]:
  """The captions in a cell; raises ValueError if one is empty or no text."""
  values = value if isinstance(value, list) else [value]
  for text in values:
    if not isinstance(text, str):
      fail(row.place, f"has the caption {quoted(text)}, which is no text")
    if not (text.isascii() or is_whole(text)):
      fail(
        row.place,
        f"has the caption {quoted(text)}, of which a character is half (a lone "
        "surrogate): write it whole",
      )
    if not text.strip():
      fail(row.place, "has an empty caption: write one, or leave out the line")
  if not values:
    fail(row.place, "has no caption: write one, or leave out the line")
  return values


@dataclasses.dataclass(frozen=True)
class PairTransform(Transform):
  """The arrays of another transform, and `text`, the ids of a caption, (T,).

  Of several captions, training draws one, after the image's random changes.
  """

  images: ImageTransform
  length: int

  @property
  def spec(self) -> Spec:
    text = ArraySpec((self.length,), np.int32)
    return {**self.images.spec, TEXT: text}

  def row(
    self, example: Example, *rng: np.random.Generator
  ) -> Mapping[str, Any]:
    arrays = self.images.row(example, *rng)
    captions = np.asarray(example["label"])
    count = int((captions[:, 0] != NONE).sum())
    place = int(rng[0].integers(count)) if rng and count > 1 else 0
    return {**arrays, TEXT: captions[place]}
