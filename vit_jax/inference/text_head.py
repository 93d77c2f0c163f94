"""Zero-shot classes: embeddings of texts, compared with those of images.

The image towers of CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343) are
trained so that the representation of an image lies near that of a text which
describes it.
"""

import collections
import dataclasses
import os
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.model import unit
from vit_jax.runtime.files import (
  open_regular,
  output_file,
  read_regular,
  replacing,
)
from vit_jax.runtime.printable import counted, first_of, printable, quoted

AS_IT_IS = "{}"
"""The template of a text with nothing around it."""
_ARTICLES = ("a ", "an ", "the ")
# Errors that a damaged .npz file may raise.
_READ_ERRORS = (
  OSError,
  KeyError,
  MemoryError,
  TypeError,
  ValueError,
  zipfile.BadZipFile,
)
_MOST_TEXT_BYTES = 16 * 2**20
_MOST_BYTES = 2**30  # 100,000 texts of 2,048 numbers.
_HOLDS = (
  "the arrays names (K,), embeddings (K, D), and where they are known scale () "
  "and bias ()"
)


@dataclasses.dataclass(frozen=True, eq=False)
class TextHead:
  """A classifier whose weights are embeddings of texts."""

  names: tuple[str, ...]  # The K classes' names.
  # The texts' embeddings, a vector of any length for each class.
  embeddings: Float[np.ndarray, "K D"]
  # Factor of the cosine similarities; CLIP's is about 100.
  scale: float = 100.0
  # Added to the scaled similarities, as SigLIP does; None for CLIP.
  bias: float | None = None

  @property
  def loss(self) -> str:
    """The loss of the towers: SigLIP's sigmoid if there is a bias."""
    return "softmax" if self.bias is None else "sigmoid"

  def logits(self, y: Float[Array, "B D"]) -> Float[Array, "B K"]:
    """Scaled cosine similarities of images' representations and the texts.

    Raises ValueError if their sizes differ.
    """
    if y.shape[1] != self.embeddings.shape[1]:
      raise ValueError(
        f"the embeddings of --head have {self.embeddings.shape[1]} values, and "
        f"the model's representations {y.shape[1]}: take the text tower of the "
        "same model."
      )
    cosine = unit(y) @ unit(jnp.asarray(self.embeddings)).T
    return self.scale * cosine + (self.bias or 0.0)


def _arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
  """The arrays of an .npz file.

  Raises ValueError if they take more than `_MOST_BYTES`.
  """
  with zipfile.ZipFile(file) as archive:
    size = sum(member.file_size for member in archive.infolist())
  if size > _MOST_BYTES:
    raise ValueError(f"it unpacks to {size:,} bytes, more than {_MOST_BYTES:,}")
  file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    return {name: arrays[name] for name in arrays.files}


def read_text_head(path: str) -> TextHead:
  """Reads an .npz file with `names` and `embeddings`.

  It may also have `scale`, which is 100 otherwise, and `bias`. Raises
  ValueError if the file cannot be read or holds something else.
  """
  try:
    with open_regular(path, _MOST_BYTES) as file:
      arrays = _arrays(file)
    names = arrays["names"]
    embeddings = np.float32(arrays["embeddings"])
    scale = float(arrays.get("scale", 100.0))
    bias = float(arrays["bias"]) if "bias" in arrays else None
  except _READ_ERRORS as error:
    text = " ".join(str(error).split())
    raise ValueError(f"{path} does not hold {_HOLDS}: {text}") from error
  if (
    names.dtype.kind != "U"
    or embeddings.ndim != 2
    or names.shape != embeddings.shape[:1]
    or not names.size
    or not np.isfinite(embeddings).all()
    or not embeddings.any(axis=1).all()
  ):
    raise ValueError(
      f"{path} does not hold {_HOLDS}: names is {names.dtype} {names.shape}, "
      f"embeddings {embeddings.shape}; each row must be finite, and not zero."
    )
  labels = tuple(printable(str(name)) for name in names)
  return TextHead(labels, embeddings, scale, bias)


def save_text_head(path: str, head: TextHead) -> None:
  """Writes the .npz file that `read_text_head` reads.

  Raises ValueError for the ending of another format, and OSError if the file
  cannot be written.
  """
  arrays: dict[str, Any] = {
    "names": np.array(head.names),
    "embeddings": head.embeddings,
    "scale": np.float32(head.scale),
  }
  if head.bias is not None:
    arrays["bias"] = np.float32(head.bias)
  target, _ = output_file(path, {"NumPy arrays": (".npz",)})
  with replacing(target) as file:
    np.savez(file, **arrays)


def names_of(texts: Sequence[str]) -> tuple[list[str], bool]:
  """The texts of zero-shot classes, and whether they are whole phrases.

  A single text is a file of names, or several texts with commas between them.
  Texts are whole phrases, not names of things, if each begins with an article;
  those of a file are always names. Raises ValueError as `read_names` does.
  """
  if len(texts) == 1:
    (text,) = texts
    if os.path.exists(text) or text.lower().endswith(".txt"):
      return read_names(text), False
    texts = text.split(",")
  names = _stripped(texts)
  _check_names(names, "--texts", "give them with commas between.")
  return names, _are_whole(names)


def names_of_list(texts: str | Sequence[str]) -> tuple[list[str], bool]:
  """As `names_of`, for texts in Python, which are never files.

  Raises ValueError if there is no text, or one occurs twice.
  """
  names = _stripped([texts] if isinstance(texts, str) else texts)
  how = 'give a list, as in texts=["a cat", "a dog"].'
  _check_names(names, "texts", how)
  return names, _are_whole(names)


def _stripped(texts: Sequence[str]) -> list[str]:
  return [text.strip() for text in texts if text.strip()]


def _are_whole(names: Sequence[str]) -> bool:
  """Whether the texts are whole phrases: each begins with an article."""
  return all(name.lower().startswith(_ARTICLES) for name in names)


def lines_on_texts(
  texts: Sequence[str], names: Sequence[str], templates: Sequence[str]
) -> list[str]:
  """A line on the number of texts and their template; [] for texts in a file.

  `names` are what `names_of` returned for these texts.
  """
  if len(texts) == 1 and os.path.exists(texts[0]):
    return []
  shown = first_of([*map(quoted, names)], 3)
  if tuple(templates) == (AS_IT_IS,):
    how = "as they are"
  else:
    how = f"in {first_of([*map(quoted, templates)], 1)}"
  advice = "; repeat --texts for a text with a comma" if len(texts) == 1 else ""
  return [
    f"Comparing with {counted(len(names), 'text')}, {how}: {shown}{advice}."
  ]


def _check_names(names: Sequence[str], where: str, how: str) -> None:
  """Raises ValueError if there is no name, or one occurs twice."""
  if not names:
    raise ValueError(f"{where} names no class: {how}")
  (name, count), *_ = collections.Counter(names).most_common(1)
  if count > 1:
    raise ValueError(
      f"{where} names {printable(name)} {count} times: name it once."
    )


def read_names(path: str) -> list[str]:
  """The names in a text file, one in each line; empty lines are left out.

  Raises ValueError if there is no name, one occurs twice, or the file is not
  UTF-8, and OSError if it cannot be read.
  """
  try:
    text = read_regular(path, _MOST_TEXT_BYTES).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{path} is not UTF-8 text ({error}): save it as UTF-8."
    ) from error
  names = [line.strip() for line in text.splitlines() if line.strip()]
  _check_names(names, path, "write one in each line.")
  return names
