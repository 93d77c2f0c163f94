"""Few-shot evaluation: accuracy of linear probes on a frozen model.

This follows arXiv:2010.11929, Section 4.1. A few images per class are drawn
from the training split, a linear probe is fitted to their representations in
closed form (`linear_probe`), and the probe classifies the test split. The
result is the mean accuracy over several draws.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source, Subset
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import check_classes, check_same_classes
from vit_jax.models import Model
from vit_jax.models.model import represent
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.display import Split, Track, untracked
from vit_jax.tasks.classification.eval_step import label_rank
from vit_jax.tasks.finite import check_representations
from vit_jax.tasks.metrics import Measure, evaluate
from vit_jax.tasks.outcome import Stream, check_readable
from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.shots import draw_shots
from vit_jax.tasks.probes.whole_set import make_represent
from vit_jax.tasks.scores import Verdict, of_probe
from vit_jax.training import sharding


@dataclasses.dataclass(frozen=True)
class Draw:
  """The result of one draw of shots; `top1` is in [0, 1]."""

  seed: int
  l2: float
  top1: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The results of all draws on the same test images."""

  draws: tuple[Draw, ...]
  examples: int
  skipped_images: int

  @property
  def top1(self) -> float:
    """Mean top-1 over the draws."""
    return float(np.mean([draw.top1 for draw in self.draws]))

  @property
  def top1_std(self) -> float | None:
    """Sample standard deviation over the draws; None for a single draw."""
    if len(self.draws) == 1:
      return None
    return float(np.std([draw.top1 for draw in self.draws], ddof=1))

  @property
  def verdict(self) -> Verdict:
    """How far `top1` can be trusted."""
    return of_probe(self.top1, self.examples)


class FewShot:
  """Few-shot evaluation of parameters, always on the same shots.

  The shots are drawn with the seeds 0, 1, ... whatever the run's seed is, so
  that runs can be compared. Raises ValueError if `shots` or `seeds` is below 1,
  the splits have different classes, or a class has too few images.

  Args:
    model: The model, with or without a head.
    train_source: The split that shots are drawn from.
    batch_size: The most examples per step.
    shots: Training images per class.
    seeds: Number of draws of the shots.
    pre_logits: Whether a representation layer is kept, as big_vision does.
  """

  def __init__(
    self,
    model: Model,
    mesh: Mesh,
    train_source: Source,
    eval_source: Source,
    preprocessing: Preprocessing,
    *,
    loader: Loader,
    batch_size: int,
    shots: int,
    seeds: int,
    pre_logits: bool = True,
  ):
    checked("shots", int, shots, COUNT)
    checked("seeds", int, seeds, COUNT)
    check_classes(train_source, "a probe")
    check_same_classes(
      train_source.class_names,
      "the split of the shots",
      eval_source.class_names,
      "the evaluation split",
    )
    self._train_source = train_source
    self._shots, self._seeds = shots, seeds
    self._unreadable: set[int] = set()
    self.drawn = self._draw()
    most = max(self.num_shots, len(eval_source))
    self._open = partial(
      Stream,
      mesh=mesh,
      preprocessing=preprocessing,
      loader=loader,
      batch_size=min(batch_size, most),
    )
    self._test = self._open(eval_source)
    self._represent = make_represent(
      partial(represent, model, pre_logits=pre_logits), mesh, preprocessing
    )
    self._measure = Measure(_counts, outcome=dict)
    self._count = sharding.jit_replicated(_counts, mesh)

  @property
  def num_shots(self) -> int:
    """Number of training images that the draws use in all."""
    return np.unique(self.drawn).size

  def __call__(self, params: Any, track: Track = untracked) -> dict[str, Any]:
    """Returns the metrics by their keys.

    They are `top1`, `top1_std` if there are several draws, and two
    dictionaries by seed: the top-1 and the L2 that was chosen.
    """
    outcome = self.measure(params, track)
    metrics: dict[str, Any] = {
      "top1": outcome.top1,
      "top1_by_seed": {str(d.seed): d.top1 for d in outcome.draws},
      "l2_by_seed": {str(d.seed): d.l2 for d in outcome.draws},
    }
    if outcome.top1_std is not None:
      metrics["top1_std"] = outcome.top1_std
    return Split.FEW_SHOT.keyed(metrics)

  def measure(self, params: Any, track: Track = untracked) -> Outcome:
    """Fits a probe to each draw and tests all probes in one pass."""
    return self.measure_each(params, (self._shots,), track)[0]

  def measure_each(
    self, params: Any, shots: Sequence[int], track: Track = untracked
  ) -> list[Outcome]:
    """Tests probes of several numbers of shots in the same two passes.

    No number may exceed the `shots` of the constructor. Fewer shots are the
    first ones of each class, as a draw of fewer shots would give them.
    Returns an outcome for each of `shots`. Raises ValueError if no test image
    can be read, or a representation is not finite.
    """
    features_of_draws = self.read_shots(params, track)
    probes = [
      linear_probe.fit_shots(features[:, :n])
      for n in shots
      for features in features_of_draws
    ]
    stacked = {
      name: np.stack([getattr(p, name) for p in probes]).astype(np.float32)
      for name in ("mean", "scale", "W")
    }
    with contextlib.closing(self._test):
      tested = self._represent(params, self._test, "testing probes", track)
      metric = evaluate(self._measure, stacked, tested, compute=self._count)
    totals = metric.result()
    if totals["unanswered"]:
      check_representations(np.nan)  # Raises its error.
    examples = int(totals["examples"])
    skipped = int(totals["skipped"])
    check_readable(examples)
    top1 = (totals["correct"] / examples).tolist()
    draws = [
      Draw(seed=number % self._seeds, l2=probe.l2, top1=share)
      for number, (probe, share) in enumerate(zip(probes, top1, strict=True))
    ]
    return [
      Outcome(tuple(draws[first : first + self._seeds]), examples, skipped)
      for first in range(0, len(draws), self._seeds)
    ]

  def _draw(self) -> np.ndarray:
    """Draws the indices of all shots, (seeds, K, n)."""
    seeds = range(self._seeds)
    draws = [
      draw_shots(self._train_source, self._shots, seed, self._unreadable)
      for seed in seeds
    ]
    return np.stack(draws)

  def read_shots(
    self, params: Any, track: Track = untracked
  ) -> list[np.ndarray]:
    """The features of each draw, (K, n, D).

    Unreadable images are skipped, and others are drawn in their place. Raises
    ValueError once a class has too few readable images, and NotFiniteError if a
    feature is NaN or infinite.
    """
    while True:
      indices, places = np.unique(self.drawn, return_inverse=True)
      stream = self._open(Subset(self._train_source, indices))
      with contextlib.closing(stream):
        shots = self._represent(params, stream, "reading shots", track)
        batches = [
          jax.device_get((y, row_info["mask"])) for y, row_info in shots
        ]
      features, mask = map(np.concatenate, zip(*batches, strict=True))
      check_representations(features[mask > 0])
      readable = mask[: len(indices)] > 0
      if readable.all():
        return [*features[places.reshape(self.drawn.shape)]]
      self._unreadable.update(indices[~readable].tolist())
      self.drawn = self._draw()


def _counts(
  probes: dict[str, Array],
  features: tuple[Float[Array, "B D"], dict[str, Array]],
  first: Int[Array, ""],
) -> dict[str, Array]:
  """The counts of a batch of features, as a `Measure` computes them."""
  del first
  return count_right(probes, *features)


def count_right(
  probes: dict[str, Array],
  y: Float[Array, "B D"],
  batch: dict[str, Array],
) -> dict[str, Array]:
  """Counts of a batch of features y, without masked rows; `correct` by probe.

  `probes` holds the stacked `mean`, `scale` and `W` of several
  `linear_probe.Probe`s.
  """
  counts = batch["mask"] > 0

  def correct(probe: dict[str, Array]) -> Int[Array, ""]:
    """The number of right answers of one probe."""
    z = (y - probe["mean"][None]) / probe["scale"][None]
    scores = jnp.dot(z, probe["W"][:-1], precision=jax.lax.Precision.HIGHEST)
    rank = label_rank(scores + probe["W"][-1:], batch["label"])
    return (counts & (rank < 1)).sum()

  return {
    "correct": jax.vmap(correct)(probes),
    "unanswered": (counts & ~jnp.isfinite(y).all(axis=1)).sum(),
    "examples": counts.sum(),
    "skipped": batch["skipped"].sum(),
  }
