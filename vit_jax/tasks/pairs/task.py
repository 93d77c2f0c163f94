"""Pairs of images and texts as a task: CLIP, SigLIP, and LiT.

`models.two_towers` has the model, and `retrieval` what an evaluation measures.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from vit_jax.data.batch import Transform, label_spec
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.captions import Captions, no_captions
from vit_jax.data.reading.labels import Labels
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.with_texts import WithTexts
from vit_jax.models.parts import Parts
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import (
  LOG_SCALE,
  TEXT,
  TOWERS,
  tower_of,
  two_towers,
)
from vit_jax.runtime.display import Metric, Split
from vit_jax.tasks.metrics import Measure
from vit_jax.tasks.outcome import Curves, Stream
from vit_jax.tasks.pairs.objective import Contrast
from vit_jax.tasks.pairs.settings import PairsSettings
from vit_jax.tasks.pairs.text_setup import TextSetup, from_facts
from vit_jax.tasks.scores import Scores
from vit_jax.tasks.task import OF_CLASSES, Task
from vit_jax.training.optimizer import map_paths
from vit_jax.training.schedules import RunLength

_PLAIN = PairsSettings()
_NO_SETUP = TextSetup()
# Keys that say how a new text tower and its tokenizer are made.
_OF_NEW_TEXT = (
  "tokenizer",
  "vocabulary",
  "text_length",
  "text_size",
  "text_layers",
  "text_heads",
)
MOST_SCALE = 100.0
"""The largest scale of the softmax loss, as in CLIP."""


@dataclasses.dataclass(frozen=True)
class PairsTask(Task):
  """Finding the text of an image and the image of a text.

  `text_setup` has the task's facts. The model is made by `two_towers`, the
  batches by `WithTexts`, and the objective is `Contrast`.
  """

  pairs: PairsSettings = _PLAIN
  text_setup: TextSetup = dataclasses.field(default=_NO_SETUP, kw_only=True)
  name = "pairs"
  any_size = True
  scores = Scores(
    (
      Metric("recall1", "recall@1", by_example=True),
      Metric(
        "cosine", "cosine of pairs", format="{:.3f}", higher_is_better=None
      ),
      Metric("text_recall5", "@5 of texts"),
      Metric("image_recall5", "@5 of images"),
      Metric("zero_shot", "zero-shot top-1"),
    ),
    curves=(
      Curves(
        "Recall at 1, 5 and 10",
        {
          Split.EVAL.key("recall1"): "both at 1",
          **{
            Split.EVAL.key(f"{way}_recall{k}"): f"{way}s at {k}"
            for way in ("text", "image")
            for k in (1, 5, 10)
          },
        },
        percent=True,
      ),
      Curves(
        "Zero-shot accuracy",
        {Split.EVAL.key("zero_shot"): "zero-shot"},
        percent=True,
      ),
      Curves(
        "Cosine of an image and its text",
        {
          Split.TRAIN.key("cosine"): "training",
          Split.EVAL.key("cosine"): "evaluation",
        },
      ),
    ),
  )
  asked_by = '--texts="a cat,two dogs" to choose the text that fits an image'
  reported = "curves, and best and worst pairs"
  refuses = (
    *OF_CLASSES,
    "eval_per_class",
    "eval_pictures",
    "transfer.keep_head",
    "distill.teacher",
    "fewshot.shots",
    "fewshot.neighbours",
  )

  @classmethod
  def configured(cls, sections: Mapping[str, Any]) -> Task:
    """The task of a configuration.

    Raises ValueError if LoRA is asked for without a rank, or nothing is
    trained.
    """
    pairs = sections["pairs"]
    lora = sections.get("lora")  # A checkpoint's description lacks it.
    for tower in TOWERS:
      if getattr(pairs, tower) == "lora" and lora is not None and not lora.rank:
        raise ValueError(
          f"lora.rank=0 leaves pairs.{tower}='lora' without a rank: set it, "
          "such as 16."
        )
    if pairs.image == pairs.text == "frozen":
      raise ValueError(
        "pairs.image='frozen' and pairs.text='frozen' leave nothing to train: "
        "freeze only one of them."
      )
    return super().configured(sections)

  def _labels(self) -> Labels:
    """The captions, with the run's tokenizer once it is known."""
    pairs = self.pairs
    return Captions(
      files=self.text_setup.files,
      most=pairs.captions,
      length=self.text_setup.length(pairs),
    )

  labels: ClassVar[Any] = property(_labels)

  @property
  def reads_patches(self) -> bool:
    return False  # Pairs are of the vectors of images and of texts.

  @property
  def trained(self) -> str:
    """The towers that are not frozen, in words; LoRA is described elsewhere."""
    frozen = [t for t in TOWERS if getattr(self.pairs, t) == "frozen"]
    if not frozen:
      return f"the {' and the '.join(TOWERS)} towers"
    (other,) = (t for t in TOWERS if t not in frozen)
    return f"the {other} tower; the {frozen[0]} tower stays as it is"

  def is_frozen(self, path: str) -> bool:
    return getattr(self.pairs, tower_of(path) or "", "") == "frozen"

  @property
  def unread(self) -> dict[str, str]:
    pairs, weights = self.pairs, self.text_setup.weights
    why = "as the image tower always keeps its projection"
    keys = {"transfer.keep_pre_logits": why}
    if TEXT in weights:
      why = "as the text tower and its tokenizer are pretrained"
      keys |= {f"pairs.{name}": why for name in _OF_NEW_TEXT}
    elif pairs.tokenizer:
      keys["pairs.vocabulary"] = "as pairs.tokenizer has a vocabulary"
    if not any(getattr(pairs, tower) == "trained" for tower in weights):
      keys["pairs.start_lr"] = "as no pretrained tower is trained whole"
    return keys

  def facts(self) -> dict[str, Any]:
    return {"task": self.name, **self.text_setup.facts(self.pairs)}

  def with_facts(self, description: Mapping[str, Any]) -> "PairsTask":
    setup = from_facts(description["targets"])
    return dataclasses.replace(self, text_setup=setup)

  def fitted(self, train: Source) -> "PairsTask":
    """The task as it is; raises ValueError if examples have no captions."""
    self._check(train)
    return self

  def check_evaluation(self, source: Source) -> None:
    """Raises ValueError if there are no captions, or only one pair."""
    self._check(source)
    if len(source) < 2:
      raise ValueError(
        f"{source.name} has one pair to evaluate, and an image is to find its "
        "text among others: give two or more."
      )

  def _check(self, source: Source) -> None:
    """Raises ValueError if the examples of a source have no captions."""
    if label_spec(source) != self.labels.spec(1):
      raise ValueError(no_captions(source.name))

  def adapted(self, model: Any) -> Any:
    """A model of two towers: this encoder of images, and the text tower."""
    pairs, setup = self.pairs, self.text_setup
    fields = setup.fields(pairs)
    is_new = TEXT not in setup.weights
    if is_new and fields.get("representation_size") is None:
      fields["representation_size"] = _width(model)
    tower = TextTower(num_classes=0, **fields)
    log_scale, bias = setup.first_scale_and_bias(pairs)
    return two_towers(
      model,
      tower,
      first_log_scale=log_scale,
      first_bias=bias if pairs.loss == "sigmoid" else None,
      towers=(pairs.image, pairs.text),
      new_text=is_new,
    )

  def train_transform(
    self, preprocessing: Preprocessing, settings: TrainTransformSettings
  ) -> Transform:
    images = preprocessing.train_transform(settings)
    return WithTexts(images, self.text_setup.length(self.pairs))

  def objective(self, model: Any, preprocessing: Preprocessing) -> Contrast:
    return Contrast(
      self.pairs.loss, self.pairs.distinct, **preprocessing.normalization
    )

  def optimizer(
    self, tx: optax.GradientTransformation, parts: Parts, length: RunLength
  ) -> optax.GradientTransformation:
    """The optimizer `tx`, slower for pretrained towers and off for frozen ones.

    With the softmax loss, the scale stays at or below `MOST_SCALE`.
    """
    del parts, length
    chain = [tx]
    modes = {tower: getattr(self.pairs, tower) for tower in TOWERS}
    slow = [t for t in self.text_setup.weights if modes[t] == "trained"]
    if slow and self.pairs.start_lr != 1:
      chain.append(_scale_updates(slow, self.pairs.start_lr))
    if self.pairs.loss == "softmax":
      chain.append(_limit_scale(math.log(MOST_SCALE)))
    tx = optax.chain(*chain) if len(chain) > 1 else tx
    if "frozen" not in modes.values():
      return tx

    def label(path: str, _: Any) -> str:
      return "frozen" if self.is_frozen(path) else "trained"

    kinds: dict[Any, Any] = {"trained": tx, "frozen": optax.set_to_zero()}
    return optax.partition(kinds, functools.partial(map_paths, label))

  def measure(self, model: Any, stream: Stream) -> Measure:
    from vit_jax.tasks.pairs.evaluation import pairs_measure

    return pairs_measure(self, model, stream)


def _scale_updates(
  towers: Sequence[str], factor: float
) -> optax.GradientTransformation:
  """Multiplies the updates of some towers by a factor."""

  def scale(path: str, update: Array) -> Array:
    return update * factor if tower_of(path) in towers else update

  return optax.stateless(lambda updates, _: map_paths(scale, updates))


def _limit_scale(most: float) -> optax.GradientTransformation:
  """Keeps the logarithm of the scale at or below `most`."""

  def limit(path: str, update: Array, param: Array) -> Array:
    if path != LOG_SCALE:
      return update
    return jnp.minimum(param + update, most) - param

  return optax.stateless(
    lambda updates, params: map_paths(limit, updates, params)
  )


def _width(model: Any) -> int:
  """The width R of a model's representation of an image."""
  if model.representation_size is not None:
    return model.representation_size
  height = width = 64  # A ResNet has the same width at any size.
  if model.num_layers:
    h, w = model.position_grid or (2, 2)
    height = h * model.stride
    width = w * model.stride
  image = jax.ShapeDtypeStruct((1, height, width, 3), jnp.float32)
  init = functools.partial(model.init_with_output, method="pooled")
  y, _ = jax.eval_shape(init, jax.random.key(0), image)
  return y.shape[-1]
