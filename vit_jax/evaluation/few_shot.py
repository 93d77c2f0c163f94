"""Few-shot evaluation: accuracy of linear probes on a frozen model.

This follows arXiv:2010.11929, Section 4.1. A few images per class are drawn
from the training split, a linear probe is fitted to their representations in
closed form (`linear_probe`), and the probe classifies the test split. The
result is the mean accuracy over several draws.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.data.batching.loader import Loader
from vit_jax.data.example import Source
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import check_classes, check_same_classes
from vit_jax.evaluation import linear_probe
from vit_jax.evaluation.probe_step import Totals, count_right
from vit_jax.evaluation.representations import Representations
from vit_jax.evaluation.shots import Subset, draw_shots
from vit_jax.models import Model
from vit_jax.runtime.display import Track, untracked
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


class FewShot:
  """Few-shot evaluation of parameters, always on the same shots.

  The shots are drawn with the seeds 0, 1, ... whatever the run's seed is, so
  that runs can be compared.

  Args:
    model: The model, with or without a head.
    train_source: The split that shots are drawn from.
    eval_source: The split to test on.
    batch_size: Examples per step, or fewer if there are not as many.
    shots: Training images per class.
    seeds: The number of draws.
    pre_logits: Whether a representation layer is kept, as big_vision does.

  Raises:
    ValueError: if `shots` or `seeds` is below 1, the splits have different
      classes, or a class has too few images.
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
    _check(shots, seeds, train_source, eval_source)
    self._train_source = train_source
    self._shots, self._seeds = shots, seeds
    self._unreadable: set[int] = set()
    self._draws = self._draw()
    most = max(np.unique(self._draws).size, len(eval_source))
    padded = sharding.padded_batch_size(batch_size, mesh, most)
    self._represent = Representations(
      model, mesh, preprocessing, loader, padded, pre_logits
    )
    self._test = self._represent.open(eval_source)
    whole = sharding.replicated(mesh)
    self._count = jax.jit(
      count_right, in_shardings=(whole, whole, whole, None), out_shardings=whole
    )

  @property
  def num_shots(self) -> int:
    """Number of training images that the draws use in all."""
    return np.unique(self._draws).size

  def __call__(self, params: Any, track: Track = untracked) -> dict[str, Any]:
    """Returns the metrics `fewshot/...`.

    They are `top1`, `top1_std` if there are several draws, and two
    dictionaries by seed: the top-1 and the L2 that was chosen.
    """
    outcome = self.measure(params, track)
    metrics: dict[str, Any] = {
      "fewshot/top1": outcome.top1,
      "fewshot/top1_by_seed": {str(d.seed): d.top1 for d in outcome.draws},
      "fewshot/l2_by_seed": {str(d.seed): d.l2 for d in outcome.draws},
    }
    if outcome.top1_std is not None:
      metrics["fewshot/top1_std"] = outcome.top1_std
    return metrics

  def measure(self, params: Any, track: Track = untracked) -> Outcome:
    """Fits a probe to each draw and tests all probes in one pass."""
    return self.measure_each(params, (self._shots,), track)[0]

  def measure_each(
    self, params: Any, shots: Sequence[int], track: Track = untracked
  ) -> list[Outcome]:
    """Does so for several numbers of shots, which share both passes.

    None may be more than the `shots` of the constructor. Fewer shots are the
    first ones of each class, as a draw of so many would find them.
    """
    fitted = self._fit(params, shots, track)
    probes = [probe for some in fitted for probe in some]
    stacked = _stack(probes)
    totals = Totals.zeros(len(probes))
    try:
      found = self._represent(params, self._test, "testing probes", track)
      for y, batch in found:
        totals = self._count(totals, stacked, y, batch)
      totals = jax.device_get(totals)
    finally:
      self.close()
    examples = int(totals.examples)
    if not examples:
      raise ValueError("the evaluation split has no readable image.")
    top1 = (totals.right / examples).reshape(len(shots), self._seeds)
    return [
      Outcome(
        tuple(
          Draw(seed, probe.l2, float(right))
          for seed, (probe, right) in enumerate(zip(some, row, strict=True))
        ),
        examples,
        int(totals.skipped),
      )
      for some, row in zip(fitted, top1, strict=True)
    ]

  def fit(
    self, params: Any, track: Track = untracked
  ) -> list[linear_probe.Probe]:
    """Fits a probe to each draw.

    If unreadable images are skipped, others are drawn to replace them.
    """
    return self._fit(params, (self._shots,), track)[0]

  def _fit(
    self, params: Any, shots: Sequence[int], track: Track
  ) -> list[list[linear_probe.Probe]]:
    """The probes of all draws, for each number of shots."""
    while True:
      indices, places = np.unique(self._draws, return_inverse=True)
      features, readable = self._features_of(params, indices, track)
      if readable.all():
        break
      self._unreadable.update(indices[~readable].tolist())
      self._draws = self._draw()
    places = places.reshape(self._draws.shape)  # (seeds, K, n)
    return [
      [linear_probe.fit_shots(features[place[:, :n]]) for place in places]
      for n in shots
    ]

  def close(self) -> None:
    """Ends the worker processes; every measurement starts new ones."""
    self._test.close()

  def _draw(self) -> np.ndarray:
    """Draws the indices of all shots, (seeds, K, n)."""
    return np.stack(
      [
        draw_shots(self._train_source, self._shots, seed, self._unreadable)
        for seed in range(self._seeds)
      ]
    )

  def _features_of(
    self, params: Any, indices: np.ndarray, track: Track
  ) -> tuple[np.ndarray, np.ndarray]:
    """Features (U, D) of training images, and whether each was readable."""
    found = []
    with self._represent.open(Subset(self._train_source, indices)) as shots:
      for y, batch in self._represent(params, shots, "reading shots", track):
        found.append(jax.device_get((y, batch["mask"])))
    y, mask = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return y[: len(indices)], mask[: len(indices)] > 0


def _stack(probes: Sequence[linear_probe.Probe]) -> dict[str, np.ndarray]:
  """Stacks the arrays of all probes along a first axis, in float32."""
  return {
    name: np.stack([getattr(p, name) for p in probes]).astype(np.float32)
    for name in ("mean", "scale", "W")
  }


def _check(
  shots: int, seeds: int, train_source: Source, eval_source: Source
) -> None:
  for name, value in (("shots", shots), ("seeds", seeds)):
    if value < 1:
      raise ValueError(f"{name}={value} must be 1 or more.")
  check_classes(train_source, "a probe")
  check_same_classes(
    train_source.class_names,
    "the split of the shots",
    eval_source.class_names,
    "the evaluation split",
  )
