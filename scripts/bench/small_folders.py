"""How often what a run says of sixty photographs holds on others.

python -m scripts.bench.small_folders --root pizza_steak_sushi \
  --model build/real_weights/dinov2

Sixty photographs are drawn from the folder, as many of each class, and 45
others to be asked about them. Of the sixty, `data.held_out_by=count` holds
some out, and the head is the linear probe of `finetune:small` on the rest: its
features are those that `vit_jax train` reads, its L2 is chosen by five folds. A
row says in how many draws the accuracy on the 45 others lies within what the
run's last lines give: the interval of the folds, and Wilson's of the held-out
images.
"""

import argparse
from typing import NamedTuple

import numpy as np

from vit_jax.data.reading.holdout import Holdout
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.inspection.label_issues import (
  JoinedSplits,
  open_for_features,
  read_features,
)
from vit_jax.tasks import intervals
from vit_jax.tasks.probes import linear_probe

HEADER = (
  "| interval | draws that hold | of | mean width, points |\n"
  "| --- | ---: | ---: | ---: |"
)


class Draw(NamedTuple):
  """The accuracy on the others, and what a run says of it."""

  others: float
  folds: intervals.Interval
  held_out: intervals.Interval


def draw(
  features: np.ndarray, labels: np.ndarray, names: list[str], seed: int
) -> Draw:
  """Draws twenty photographs of each class, and 45 others, and fits a head."""
  rng = np.random.default_rng(seed)
  num_classes = int(labels.max()) + 1
  of_class = [
    rng.permutation(np.flatnonzero(labels == k)) for k in range(num_classes)
  ]
  chosen = [each[:20] for each in of_class]
  rule = Holdout.of(images=20 * num_classes, fraction=0.2)
  out = [
    [i for i in each if names[i].encode() in held]
    for label, each in enumerate(chosen)
    for held in [rule.of_class(label, [names[i].encode() for i in each])]
  ]
  held_out = np.concatenate(out)
  trained = np.setdiff1d(np.concatenate(chosen), held_out)
  others = rng.permutation(np.concatenate([each[20:] for each in of_class]))[
    :45
  ]
  fold = np.arange(len(trained)) % 5
  probe = linear_probe.fit_in_folds(
    features[trained], labels[trained], fold, num_classes
  )

  def right(some: np.ndarray) -> float:
    return float((probe.predict(features[some]) == labels[some]).mean())

  return Draw(
    right(others),
    intervals.of_folds([fold.share for fold in probe.folds], len(trained)),
    intervals.wilson(right(held_out), len(held_out)),
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--root", required=True)
  parser.add_argument("--model", required=True)
  parser.add_argument("--draws", type=int, default=20)
  options = parser.parse_args()
  splits = open_splits(DataSettings(root=options.root))
  source = JoinedSplits([splits.train, splits.eval])
  loaded = open_for_features(options.model)
  features, labels, places = read_features(loaded, source)
  names = source.ids(places.tolist())
  draws = [draw(features, labels, names, k) for k in range(options.draws)]
  print(HEADER)
  for what in ("folds", "held_out"):
    found = [getattr(one, what) for one in draws]
    holds = sum(
      low <= one.others <= high
      for one, (low, high) in zip(draws, found, strict=True)
    )
    width = 100 * np.mean([high - low for low, high in found])
    print(f"| {what} | {holds} | {len(draws)} | {width:.0f} |")
  accuracies = [100 * one.others for one in draws]
  print(f"accuracy on the others: {np.mean(accuracies):.1f} %")


if __name__ == "__main__":
  main()
