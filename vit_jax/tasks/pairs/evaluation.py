"""Evaluation of pairs: retrieval both ways, and zero-shot classes."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vit_jax.data.example import Source
from vit_jax.data.reading.captions import NONE
from vit_jax.data.reading.sources import check_classes, open_source
from vit_jax.data.settings import DataSettings
from vit_jax.models.two_towers import Compared
from vit_jax.runtime.display import Track
from vit_jax.runtime.printable import counted, say
from vit_jax.tasks.finite import NO_ANSWER, best_class
from vit_jax.tasks.metrics import Evaluator, Gathered, Measure, gathering
from vit_jax.tasks.outcome import Example, Examples, Outcome, Stream, Table
from vit_jax.tasks.outputs import alike
from vit_jax.tasks.pairs.objective import Contrast
from vit_jax.tasks.pairs.retrieval import RECALLS, WAYS, Ranks, ranks
from vit_jax.training import sharding
from vit_jax.training.contrastive import text_groups

_PLACES = ", ".join(map(str, RECALLS))


def pairs_measure(task: Any, model: Any, stream: Stream) -> Measure:
  """Returns the measure of retrieval on a split, and of zero-shot accuracy.

  `task` is a `PairsTask`. Raises ValueError if the images for zero-shot
  accuracy are missing, or have no classes.
  """
  objective = task.objective(model, stream.preprocessing)
  most = _most_captions(stream.source)

  def rows(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    """The embeddings and captions of each image; `has` is False for padding."""
    captions = batch["label"][:, :most]
    B, M, T = captions.shape
    ids = jnp.maximum(captions, 0).reshape(B * M, T)
    inputs = objective.inputs(batch), ids
    compared = model.apply({"params": params}, inputs)
    arrays = {
      "u": compared.image,
      "v": compared.text.reshape(B, M, -1),
      "has": captions[..., 0] != NONE,
      "group": text_groups(ids).reshape(B, M),
      "ids": captions,
      "log_scale": jnp.broadcast_to(compared.log_scale, B),
    }
    if compared.bias is not None:
      arrays["bias"] = jnp.broadcast_to(compared.bias, B)
    return arrays

  loss = _make_batch_loss(objective, stream.batch_size)

  def outcome(gathered: Gathered, **more: float) -> PairsOutcome:
    return PairsOutcome(task, gathered, loss(gathered), more)

  if task.pairs.zero_shot is None:
    return gathering(rows, outcome)
  return gathering(rows, outcome, _zero_shot(task, model, stream))


def _most_captions(source: Source) -> int | None:
  """The most captions that an image of a source has; None if it is unknown."""
  labels = getattr(source, "labels", None)
  if labels is None:
    return getattr(source, "most_captions", None)
  every = np.asarray(labels(range(len(source))))
  return max(1, int((every[..., 0] != NONE).sum(axis=1).max()))


def _make_batch_loss(
  objective: Contrast, batch_size: int
) -> Callable[[Gathered], float]:
  """Returns a function from the embeddings of a split to the mean loss.

  It is computed in batches, of the first caption of each image: a pair's loss
  depends on its batch, so a loss over the whole split at once could not be
  compared with the training loss.
  """

  def compare(
    u: Array, v: Array, log_scale: Array, bias: Array | None, groups: Array
  ) -> Array:
    """The loss of each pair of a batch, (B,)."""
    losses, _ = objective.compare(Compared(u, v, log_scale, bias), groups)
    return losses

  compiled = jax.jit(compare)

  def loss(gathered: Gathered) -> float:
    """The mean loss of all pairs."""
    arrays = gathered.arrays
    bias = arrays.get("bias")
    total = 0.0
    for start in range(0, len(gathered.index), batch_size):
      rows = slice(start, start + batch_size)
      each = compiled(
        arrays["u"][rows],
        arrays["v"][rows, 0],
        arrays["log_scale"][0],
        None if bias is None else bias[0],
        arrays["group"][rows, 0],
      )
      total += float(np.asarray(each, np.float64).sum())
    return total / len(gathered.index)

  return loss


def _zero_shot(
  task: Any, model: Any, stream: Stream
) -> Callable[[Any, Track], dict[str, float]]:
  """Returns a function from (params, track) to the accuracy, by its key.

  The accuracy is that on the labelled images of `pairs.zero_shot`. The texts of
  the classes are their names in the template. Raises ValueError if the images
  are missing, or have no classes.
  """
  source = open_source("eval", DataSettings(root=task.pairs.zero_shot))
  check_classes(source, "pairs.zero_shot")
  images = counted(len(source), "image")
  say(f"zero-shot accuracy is measured on {images} of {source.name}.")
  objective = task.objective(model, stream.preprocessing)
  texts = [
    task.pairs.template.replace("{}", name) for name in source.class_names
  ]
  ids = jnp.asarray(task.text_setup.files.tokenizer(texts))

  def embed_texts(params: Any) -> Array:
    return model.apply({"params": params}, (None, ids)).text

  def rows(params: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
    inputs = objective.inputs(batch), None
    u = model.apply({"params": params}, inputs).image
    return {"u": u, "label": batch["label"]}

  compiled = sharding.jit_replicated(embed_texts, stream.mesh)
  labelled = dataclasses.replace(stream, source=source, transform=None)
  evaluator = Evaluator(gathering(rows), labelled)

  def measure(params: Any, track: Track) -> dict[str, float]:
    """The zero-shot accuracy, by its key."""
    with contextlib.closing(labelled):
      arrays = evaluator.metric(params, track).result().arrays
    v = np.asarray(jax.device_get(compiled(params)))
    answers = best_class(arrays["u"] @ v.T)
    return {"zero_shot": float((answers == arrays["label"]).mean())}

  return measure


def _in_words(scores: Mapping[str, float]) -> str:
  """Recall at 1, 5 and 10 and the median rank, both ways, in words."""
  parts = []
  for way in WAYS:
    recalls = ", ".join(f"{scores[f'{way}_recall{k}']:.1%}" for k in RECALLS)
    rank = scores[f"{way}_rank"]
    parts.append(f"{way}s {recalls} at {_PLACES}, median rank {rank:g}")
  return "; ".join(parts)


class _Captions(NamedTuple):
  """The captions of a split: each one's vector, image, place and group.

  Caption k is the one at place[k] of the image owner[k].
  """

  vectors: np.ndarray
  owner: np.ndarray
  place: np.ndarray
  group: np.ndarray


@dataclasses.dataclass(frozen=True)
class PairsOutcome(Outcome):
  """The retrieval of a split: each image's texts, and each text's images.

  Equal captions are one text. `more` are further scores.
  """

  task: Any
  gathered: Gathered
  loss: float
  more: Mapping[str, float]

  @property
  def unanswered(self) -> int:
    return self.gathered.unanswered

  @property
  def constant(self) -> bool:
    """Whether all images, or all differing texts, have one embedding."""
    if self.unanswered:
      return False
    captions_differ = len(np.unique(self._captions.group)) > 1
    same_text = captions_differ and alike(self._captions.vectors)
    return same_text or alike(self.gathered.arrays["u"])

  @functools.cached_property
  def _captions(self) -> _Captions:
    """The captions of all images, without padding."""
    arrays = self.gathered.arrays
    owner, place = np.nonzero(arrays["has"])
    return _Captions(
      vectors=arrays["v"][owner, place],
      owner=owner,
      place=place,
      group=arrays["group"][owner, place],
    )

  @functools.cached_property
  def ranks(self) -> Ranks:
    """The ranks of the right answers, both ways."""
    return ranks(
      self.gathered.arrays["u"],
      self._captions.vectors,
      owner=self._captions.owner,
      groups=self._captions.group,
    )

  @functools.cached_property
  def cosines(self) -> np.ndarray:
    """The cosine of each image and its first caption, (N,)."""
    arrays = self.gathered.arrays
    return (arrays["u"] * arrays["v"][:, 0]).sum(axis=1)

  @functools.cached_property
  def _nearest_own(self) -> tuple[np.ndarray, np.ndarray]:
    """The number of each image's nearest own caption, (N,), and its cosine.

    The numbers are those of `_captions`.
    """
    captions = self._captions
    u = self.gathered.arrays["u"]
    cosines = (u[captions.owner] * captions.vectors).sum(axis=1)
    # By image, and by cosine within an image, whose nearest caption is last.
    order = np.lexsort((cosines, captions.owner))
    is_last = np.diff(captions.owner[order], append=len(u)) > 0
    nearest = order[is_last]
    return nearest, cosines[nearest]

  @functools.cached_property
  def scores(self) -> dict[str, Any]:
    return {
      "loss": self.loss,
      **self.ranks.scores,
      "cosine": float(self.cosines.mean()),
      **self.more,
      "examples": len(self.gathered.index),
      "skipped_images": self.gathered.skipped,
    }

  @property
  def chance(self) -> float:
    """The recall at 1 of random answers, the same for both ways.

    It is the share of pairs that are right: 1 / N for N images with different
    captions, and more where images have the same caption.
    """
    captions = self._captions
    right = len({*zip(captions.owner, captions.group, strict=True)})
    N = len(self.gathered.index)
    G = len(np.unique(captions.group))
    return right / (N * G)

  @property
  def notes(self) -> list[str]:
    found = f"Found by an image, and by a text: {_in_words(self.scores)}"
    return [f"{found}; recall@1 is the mean of both at 1."]

  def tables(self, counts: Any = None) -> list[tuple[str, Table]]:
    """The table of recalls and median ranks, both ways."""
    del counts
    scores = self.scores
    rows = [
      [
        f"{way}s",
        *(f"{scores[f'{way}_recall{k}']:.1%}" for k in RECALLS),
        f"{scores[f'{way}_rank']:g}",
      ]
      for way in WAYS
    ]
    columns = ["found", *(f"recall@{k}" for k in RECALLS), "median rank"]
    return [
      (
        "Retrieval of texts by an image, and of images by a text",
        (columns, rows),
      )
    ]

  def telling(self) -> list[Examples]:
    """The pairs that are found best, and those that are found worst."""
    count = self.task.pairs.best_pairs
    # By rank, and among equal ranks by the cosine.
    _, cosines = self._nearest_own
    order = np.lexsort((-cosines, self.ranks.texts))
    best = order[:count]
    worst = order[::-1][:count]
    kinds = (
      ("Best pairs", best, "found first, with the highest cosine"),
      ("Worst pairs", worst, "found last: look for wrong captions here"),
    )
    return [
      Examples(
        title,
        f"Images and the captions that are {text}.",
        [self._example(int(row)) for row in rows],
      )
      for title, rows, text in kinds
      if len(rows)
    ]

  def _example(self, row: int) -> Example:
    """An image with the nearest of its captions.

    If the caption of another image is nearer, the nearest of all follows.
    """
    own, cosines = self._nearest_own
    text = self._text(int(own[row]))
    rank = int(self.ranks.texts[row])
    caption = f"{text} (rank {rank:,}, cosine {cosines[row]:.3f}"
    vectors = self._captions.vectors
    nearest = int(best_class(vectors @ self.gathered.arrays["u"][row]))
    if rank > 1 and nearest != NO_ANSWER:
      caption += f"; nearest: {self._text(nearest)}"
    caption += ")"
    index = int(self.gathered.index[row])
    return Example(index, caption, alt=f"Photograph: {text}")

  def _text(self, k: int) -> str:
    """Caption k of the split."""
    captions = self._captions
    ids = self.gathered.arrays["ids"][captions.owner[k], captions.place[k]]
    return self.task.text_setup.files.text(ids)
