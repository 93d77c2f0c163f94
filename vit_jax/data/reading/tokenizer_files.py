"""The files of the tokenizer of a text tower or a run, or of one made anew."""

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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.reading.tokenizer import (
  CONFIG,
  FILES,
  JSON,
  PIECES,
  Tokenizer,
  open_tokenizer,
)
from vit_jax.data.reading.tokenizer_bounds import MOST_LENGTH
from vit_jax.runtime import extras
from vit_jax.runtime.checks import checked, up_to
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.libraries import refusing

PAD, END = "<pad>", "<end>"
_MOST_BYTES = 256 << 20
_LENGTH = up_to(MOST_LENGTH, "no text tower reads more")
_DAMAGED = (binascii.Error, zlib.error, ValueError, KeyError)


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
  """The files of a tokenizer, from which it is opened when it is needed.

  Attributes:
    files: The name and the content of each file.
    family, clean: As `open_tokenizer` takes them.
    length: T, the number of tokens to which a text is cut or filled up.
    vocabulary: The number of ids that the text tower knows; None if there is no
      tower yet.
    source: The words before the name of a file in messages.
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
    """Reads the files of a tokenizer in a folder, or one of them by its path.

    Raises ValueError if there is no tokenizer, and OSError for a file that is
    too large.
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
        f"pairs.tokenizer={str(place)!r} is not a tokenizer: give a {JSON}, a "
        "sentencepiece .model, or the folder that has one."
      )
    return cls(tuple(files), family, length, clean, source=source)

  def open(self, length: int | None = None) -> Tokenizer:
    """The tokenizer, for texts of `length` tokens; by default its own length.

    Raises ValueError as `open_tokenizer` does, and if the text tower does not
    know all of its ids.
    """
    options: Any = {"clean": self.clean} if self.clean else {}
    with tempfile.TemporaryDirectory() as folder:
      place = pathlib.Path(folder)
      for name, content in self.files:
        (place / name).write_bytes(content)
      with self._naming_source(folder):
        opened = open_tokenizer(
          place, self.family, length or self.length, **options
        )

    def encode(texts: Sequence[str]) -> list[list[int]]:
      with self._naming_source(folder):
        return opened.encode(texts)

    if self.vocabulary is not None and opened.size > self.vocabulary:
      raise ValueError(
        f"{self.source}{opened.file} has {opened.size:,} tokens and the text "
        f"tower {self.vocabulary:,}: it is not the tokenizer of these weights."
      )
    return dataclasses.replace(opened, encode=encode)

  @contextlib.contextmanager
  def _naming_source(self, folder: str) -> Iterator[None]:
    """Has errors name the files by their source, not by a temporary folder."""
    try:
      yield
    except ValueError as error:
      shown = str(error).replace(f"{folder}{os.sep}", self.source)
      raise ValueError(shown) from error

  @functools.cached_property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer."""
    return self.open()

  @functools.cached_property
  def longer(self) -> Tokenizer:
    """The tokenizer for one token more, which shows what texts are too long."""
    return self.open(self.length + 1)

  def text(self, ids: Int[np.ndarray, " T"]) -> str:
    """The text that token ids stand for, about as it was written.

    Ids below 0 are left out. Raises ValueError if the tokenizer cannot decode.
    """
    known = [int(k) for k in ids if k >= 0]
    names = dict(self.files)
    file = self.tokenizer.file  # Opening the tokenizer has checked it.
    with refusing(f"{file} cannot turn tokens into text"):
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
  def from_json(cls, stored: Any) -> "TokenizerFiles":
    """The files that `as_json` stored; raises ValueError for other values."""
    try:
      if not (isinstance(stored, dict) and isinstance(stored["files"], dict)):
        raise ValueError("it has no files")
      files = tuple(
        (name, _unpack(checked(name, str, content)))
        for name, content in stored["files"].items()
        if name in FILES
      )
      return cls(
        files=files,
        family=checked("family", str, stored["family"]),
        length=checked("length", int, stored["length"], _LENGTH),
        clean=checked("clean", str, stored["clean"]),
      )
    except _DAMAGED as error:
      raise ValueError(f"its tokenizer is damaged ({error})") from error

  def __getstate__(self) -> dict[str, Any]:
    """The fields, without the opened tokenizers, which cannot be pickled."""
    fields = [field.name for field in dataclasses.fields(self)]
    return {name: getattr(self, name) for name in fields}

  def __setstate__(self, state: dict[str, Any]) -> None:
    for name, value in state.items():
      object.__setattr__(self, name, value)

  def __repr__(self) -> str:
    names = ", ".join(name for name, _ in self.files)
    return f"TokenizerFiles({names}, {self.family}, length={self.length})"


def _unpack(content: str) -> bytes:
  """The content of a stored file; raises ValueError if it is too large."""
  unpacking = zlib.decompressobj()
  plain = unpacking.decompress(base64.b64decode(content), _MOST_BYTES)
  if unpacking.unconsumed_tail:
    raise ValueError(f"it unpacks to more than {_MOST_BYTES:,} bytes")
  return plain


def new_tokenizer(
  texts: Iterable[str], most_tokens: int, length: int
) -> TokenizerFiles:
  """Makes a tokenizer of parts of words that are frequent in these texts.

  It is a byte pair encoding of the bytes of lower-case texts, so it knows every
  text. Token 0 pads a text, and token 1 ends it. Raises ValueError if the
  library is not installed.

  Args:
    texts: The texts to count parts of words in.
    most_tokens: The largest size of the vocabulary.
    length: The number of tokens to which a text is cut or filled up.
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
