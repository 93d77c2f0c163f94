"""Settings of pairs of images and texts; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import (
  COUNT,
  DEPTH,
  NOT_NEGATIVE,
  POSITIVE,
  WIDTH,
  Rule,
  up_to,
)
from vit_jax.runtime.settings import Section, setting

LOSSES = ("sigmoid", "softmax")
HOW = ("trained", "frozen", "lora")
_TEMPLATE = Rule(
  "have {} where the class's name goes", lambda text: "{}" in text
)


@dataclasses.dataclass(frozen=True)
class PairsSettings(Section):
  """Pairs of images and texts, with data.task=pairs (CLIP, LiT, SigLIP).

  A text tower comes with `pretrained`, or is new. A new one is as large as
  these keys say.
  """

  loss: str = setting(
    "sigmoid",
    "SigLIP's loss, which scores each pair of an image and a text by itself "
    '("sigmoid"), or CLIP\'s, which compares a pair with the rest of the batch '
    '("softmax").',
    choices=LOSSES,
  )
  image: str = setting(
    "trained",
    'How the image tower is trained: whole ("trained"), not at all ("frozen", '
    'as in LiT), or by LoRA ("lora", with lora.rank).',
    choices=HOW,
  )
  text: str = setting(
    "trained",
    "How the text tower is trained, with the choices of the image tower.",
    choices=HOW,
  )
  start_lr: float = setting(
    0.02,
    "Learning-rate factor of pretrained towers.",
    must=POSITIVE,
  )
  distinct: bool = setting(
    True, "Do not count images with equal captions as negatives of each other."
  )
  captions: int = setting(
    5,
    "Largest number of captions to keep for each image; training draws one of "
    "them.",
    must=up_to(1_000, "a batch has all of them"),
  )
  scale: float | None = setting(
    None,
    "Initial factor of the cosine similarities; None takes that of the "
    "pretrained weights, or else the paper's: 10 for sigmoid, 1 / 0.07 for "
    "softmax.",
    must=POSITIVE,
  )
  bias: float | None = setting(
    None,
    "Initial bias of the sigmoid loss; None takes that of the pretrained "
    "weights, or else -10.",
    tunes="loss=sigmoid",
  )
  tokenizer: str | None = setting(
    None,
    "A tokenizer.json, a .model of sentencepiece, or a folder with one, for a "
    "new text tower; None trains one on the training captions.",
  )
  vocabulary: int = setting(
    4096,
    "Largest vocabulary of a tokenizer that is trained on the captions.",
    must=up_to(1_000_000, "each has a row of the embedding"),
  )
  text_length: int = setting(
    32, "Number of tokens that a new text tower reads.", must=WIDTH
  )
  text_size: int = setting(
    128, "Width of a new text tower's tokens.", must=WIDTH
  )
  text_layers: int = setting(2, "Layers of a new text tower.", must=DEPTH)
  text_heads: int = setting(
    2, "Heads of each layer of a new text tower.", must=COUNT
  )
  template: str = setting(
    "a photo of a {}.",
    "Text around the names of classes, for zero-shot accuracy.",
    must=_TEMPLATE,
    tunes="zero_shot",
  )
  best_pairs: int = setting(
    6,
    "Number of best and of worst pairs to show in a report.",
    must=NOT_NEGATIVE,
    deprecated="leave it out; a report shows 6 of each.",
  )
  zero_shot: str | None = setting(
    None,
    "A folder of class folders, to measure zero-shot accuracy on.",
  )
