"""Published pairs of an image tower and a text tower, as one model."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import numpy as np

from vit_jax.models.grid import param_shapes
from vit_jax.models.two_towers import BIAS, LOG_SCALE, TEXT, two_towers
from vit_jax.pretrained.formats.texts import NoTextTowerError
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.text import Leaves, open_text
from vit_jax.runtime.printable import say


def join_leaves(
  image: Leaves, text: Leaves
) -> Iterator[tuple[str, np.ndarray]]:
  """The leaves of an image tower and, below `text`, of a text tower."""
  yield from image
  yield from ((f"{TEXT}/{path}", array) for path, array in text)


def with_text(loaded: Loaded, path: pathlib.Path) -> Loaded:
  """A pair: the image tower of a file, and the text tower that lies beside it.

  The model is one of `models.two_towers`; its inputs are prepared by
  `inputs["image"]` and `inputs["text"]`, the tokenizer. `loaded` is the image
  tower, opened from `path`. Raises ValueError if there is no text tower, its
  tokenizer is missing or has more tokens than the tower, `loaded` has a model
  that cannot be an image tower, or that ends in a projection that is not read.
  """
  source = loaded.origin.source
  try:
    text = open_text(source, path)
  except NoTextTowerError as error:
    raise ValueError(
      f"{source} holds no text tower and has no decoder. "
      "as_trained=True is for workdirs, for transformers' "
      "ViTMAEForPreTraining, and for models of images and text. To train this "
      "encoder with a new decoder, set --config.transfer.keep_head=False."
    ) from error
  if text.projected:
    raise ValueError(
      f"{source} cannot be a pair here: its image tower ends in a projection "
      "of open_clip's (timm_proj), which is not read. load_pretrained opens "
      "the tower without it, and load_text the text tower."
    )
  for note in text.notes:
    say(f"{source}: {note}.")
  first = {LOG_SCALE: math.log(text.scale)}
  if text.bias is not None:
    first[BIAS] = text.bias
  model = two_towers(
    loaded.model,
    text.tower,
    first_log_scale=first[LOG_SCALE],
    first_bias=text.bias,
  )
  shapes = {
    f"{TEXT}/{path}": shape
    for path, shape in param_shapes(text.tower, (1, 1)).items()
  }

  def read() -> Iterator[tuple[str, np.ndarray]]:
    yield from join_leaves(loaded.read(), text.read())
    yield from ((k, np.asarray(v, np.float32)) for k, v in first.items())

  return dataclasses.replace(
    loaded,
    model=model,
    inputs={**loaded.inputs, "text": text.tokenizer},
    shapes={**loaded.shapes, **shapes, **dict.fromkeys(first, ())},
    read=read,
  )
