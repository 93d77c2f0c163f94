"""Opens the text tower and the tokenizer of a run on pairs, before its data.

A new tokenizer is trained first, on the captions of the training split.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vit_jax.data.batch import label_spec
from vit_jax.data.batching.batches import read
from vit_jax.data.example import Source, UnreadableImageError, evenly_spread
from vit_jax.data.reading.captions import Captions, no_captions
from vit_jax.data.reading.cells import Row
from vit_jax.data.reading.sources import open_source
from vit_jax.data.reading.tokenizer_files import TokenizerFiles, new_tokenizer
from vit_jax.models.two_towers import IMAGE, TEXT
from vit_jax.pretrained.formats.texts import NoTextTowerError
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.pair import join_leaves
from vit_jax.pretrained.text import Leaves, LoadedText
from vit_jax.run.settings import Settings
from vit_jax.runtime.printable import say
from vit_jax.runtime.settings import replaced
from vit_jax.workdir.checkpoint import is_run

# Fields of the image tower, where a run names no model: two cores can train it.
_SMALL = {
  "variant": "Ti/8",
  "num_layers": 4,
  "hidden_size": 64,
  "mlp_size": 128,
  "num_heads": 2,
  "pooling": "gap",
  "position": "sincos2d",
}
_SMALL_SIDES = (64, 64)
_MOST = 100_000  # The most records whose captions train a tokenizer.


def with_text_setup(
  settings: Settings,
  task: Any,
  saved: Mapping[str, Any] | None = None,
  *,
  start: Loaded | None = None,
  with_data: bool = True,
) -> tuple[Settings, Any]:
  """The settings and the task with the text tower and the tokenizer.

  The settings get a small image tower if they name no model. `saved` is the
  description of a resumed run, and `start` the checkpoint that a new run begins
  with. Without data, no tokenizer is trained, and the size of its vocabulary is
  that of the settings. Raises ValueError if a tokenizer cannot be opened or
  trained, or a text tower would be new and the settings do not allow that.
  """
  settings = _with_image_tower(settings)
  if saved is not None:
    return settings, task.with_facts(saved)
  pairs = settings.objective_section("pairs")
  text = _text_tower_of(start)
  if text is not None:
    # A run that starts from another run's towers begins with a new scale.
    of_run = is_run(text.source)
    setup = task.text_setup.of(
      pairs,
      text.files,
      text.tower,
      weights=(IMAGE, TEXT),
      scale_and_bias=(None, None) if of_run else text.scale_and_bias,
    )
    return settings, dataclasses.replace(task, text_setup=setup)
  _check_new(settings)
  files = None
  if pairs.tokenizer:
    family = "SigLIP" if _is_of_pieces(pairs.tokenizer) else "CLIP"
    files = TokenizerFiles.read(pairs.tokenizer, family, pairs.text_length)
  elif with_data:
    files = _make_tokenizer(settings)
  weights = (IMAGE,) if settings.pretrained else ()
  setup = task.text_setup.of(pairs, files, None, weights)
  return settings, dataclasses.replace(task, text_setup=setup)


def _with_image_tower(settings: Settings) -> Settings:
  """The settings, with a small image tower if they name no model."""
  if settings.pretrained or settings.model.variant:
    return settings
  model = vars(settings.model)
  changes: dict[str, Any] = {
    f"model.{name}": value
    for name, value in _SMALL.items()
    if model[name] is None
  }
  if settings.image_size is None:
    changes["image_size"] = _SMALL_SIDES
  return replaced(settings, changes)


def _check_new(settings: Settings) -> None:
  """Raises ValueError if the settings do not allow a new text tower."""
  pairs = settings.objective_section("pairs")
  if pairs.text != "trained":
    raise ValueError(
      f"pairs.text={pairs.text!r} needs a pretrained text tower: set "
      "pretrained to weights that have one, or pairs.text='trained'."
    )
  if settings.lora.rank and pairs.image != "lora":
    raise ValueError(
      f"lora.rank={settings.lora.rank} adds to pretrained weights, and the "
      "new text tower has none: set pairs.image='lora', which adapts the "
      "image tower."
    )
  if pairs.image != "trained" and not settings.pretrained:
    raise ValueError(
      f"pairs.image={pairs.image!r} needs a pretrained image tower: set "
      "pretrained, or pairs.image='trained'."
    )


def _is_of_pieces(place: str) -> bool:
  """Whether a tokenizer's file or folder is one of SentencePiece."""
  place = os.path.expanduser(place)
  if os.path.isdir(place):
    return not os.path.exists(os.path.join(place, "tokenizer.json"))
  return place.endswith(".model")


def _text_tower_of(start: Loaded | None) -> LoadedText | None:
  """The text tower of a checkpoint; None if it has none.

  Raises ValueError if the tokenizer is not beside it.
  """
  try:
    return start and start.text_tower
  except NoTextTowerError:
    return None


def with_text_weights(loaded: Loaded) -> Loaded:
  """The same checkpoint, which also reads the parameters of its text tower.

  A checkpoint without a text tower is returned as it is.
  """
  text = _text_tower_of(loaded)
  if text is None:
    return loaded

  def read() -> Leaves:
    return join_leaves(loaded.read(), text.read())

  return dataclasses.replace(
    loaded, read=read, restore=None, open_text=lambda: text
  )


def _make_tokenizer(settings: Settings) -> TokenizerFiles:
  """Trains a tokenizer on the training captions."""
  pairs = settings.objective_section("pairs")
  texts = _Counted(captions_of(settings))
  made = new_tokenizer(texts, pairs.vocabulary, pairs.text_length)
  say(
    f"The text tower is new, and so is its tokenizer: {made.tokenizer.size:,} "
    f"tokens, of {texts.count:,} training captions."
  )
  return made


@dataclasses.dataclass
class _Counted:
  """Texts; `count` is the number of those that were read so far."""

  texts: Iterable[str]
  count: int = 0

  def __iter__(self) -> Iterator[str]:
    for text in self.texts:
      self.count += 1
      yield text


def captions_of(settings: Settings) -> Iterable[str]:
  """The captions of the training split.

  From a table, these are all; of packed or prepared data, those of at most
  `_MOST` records. Raises ValueError if the data have none.
  """
  collecting = _Collecting()
  source = open_source("train", settings.data, collecting)
  if label_spec(source) != collecting.spec(1):
    raise ValueError(no_captions(source.name))
  return collecting.texts or _captions_of_records(source)


def _captions_of_records(source: Source) -> Iterator[str]:
  """The captions of records evenly spread over a source, as they are read."""
  for example in read(source, evenly_spread(_MOST, len(source))):
    if not isinstance(example, UnreadableImageError):
      yield from example["label"]


@dataclasses.dataclass(frozen=True)
class _Collecting(Captions):
  """Captions as texts: those of a file are kept in `texts`.

  Those of a record are its label.
  """

  texts: list[str] = dataclasses.field(default_factory=list)

  def note_training(self, rows: Sequence[Row]) -> None:
    self.texts.extend(text for row in rows for text in row.values)

  def of_record(self, captions: Sequence[str]) -> Sequence[str]:
    return captions
