"""Measures how many wrong labels `vit_jax inspect_data --model` finds.

python scripts/bench/label_errors.py WEIGHTS --root photographs
python scripts/bench/label_errors.py WEIGHTS --tfds cifar10 --images 5000 \
  --image_size 56

Of the training images, a share gets another label, drawn at random. The table
has, for each seed, the share of the listed images whose label was changed
(precision), and the share of the changed labels that are listed (recall). The
data set's own errors, if it has any, count against the precision.
"""

import argparse
from typing import Any

import numpy as np

from vit_jax.data.example import Source, Subset
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings
from vit_jax.inspection.label_issues import open_for_features, read_features
from vit_jax.tasks.probes.label_errors import label_errors, out_of_fold


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("weights")
  parser.add_argument("--root", help="folder of images")
  parser.add_argument("--tfds", help="name of a prepared data set of TFDS")
  parser.add_argument("--data_dir", help="where the data sets of TFDS are")
  parser.add_argument("--images", type=int, help="take the first ones only")
  parser.add_argument("--image_size", type=int, default=224)
  parser.add_argument("--share", type=float, default=0.05)
  parser.add_argument("--seeds", type=int, default=3)
  options = parser.parse_args()
  data = dict(root=options.root, name=options.tfds, data_dir=options.data_dir)
  settings = DataSettings(**{k: v for k, v in data.items() if v})
  source: Source = open_source("train", settings)
  if options.images:
    source = Subset(source, range(options.images))
  size = options.image_size, options.image_size
  loaded = open_for_features(options.weights, image_size=size)
  features, labels, _ = read_features(loaded, source)
  K = len(source.class_names)
  print("| seed | changed | listed | precision | recall | probe |")
  print("| --- | --- | --- | --- | --- | --- |")
  for seed in range(options.seeds):
    row = measure(features, labels, K, options.share, seed)
    print(f"| {seed} | " + " | ".join(row) + " |", flush=True)


def measure(
  features: np.ndarray, labels: np.ndarray, K: int, share: float, seed: int
) -> list[str]:
  """The cells of a row, after the seed."""
  rng = np.random.default_rng(seed)
  count = round(share * len(labels))
  changed = rng.choice(len(labels), count, replace=False)
  given = labels.copy()
  given[changed] = (given[changed] + rng.integers(1, K, count)) % K
  probabilities: Any = out_of_fold(features, given, K)
  listed = label_errors(given, probabilities).only_listed().index
  hits = len(np.intersect1d(listed, changed))
  right = (probabilities.argmax(axis=1) == labels).mean()
  return [
    f"{count:,}",
    f"{len(listed):,}",
    f"{hits / max(1, len(listed)):.1%}",
    f"{hits / count:.1%}",
    f"{right:.1%}",
  ]


if __name__ == "__main__":
  main()
