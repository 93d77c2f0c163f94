"""Compares poolings and precisions of an encoder by nearest neighbours.

python scripts/bench/features.py WEIGHTS --root photographs
python scripts/bench/features.py WEIGHTS --tfds cifar10 --train 2000 \
  --test 1000 --image_size 112

WEIGHTS is any checkpoint with a class token. Each image goes through the
encoder once in float32 and once in bfloat16, with float32 parameters, as
training computes. The table has the accuracy of k nearest neighbours for the
class token, the mean of the patches and both, and how far bfloat16 is from
float32: the cosine, and the norm of the difference over the norm.
"""

import argparse
import io
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vit_jax.data.example import Source
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.tasks.probes.whole_set import nearest_neighbours

POOLINGS = ("token", "gap", "token_gap")
PRECISIONS = ("float32", "bfloat16")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("weights")
  parser.add_argument("--root", help="folder with train/ and test/")
  parser.add_argument("--tfds", help="name of a prepared data set of TFDS")
  parser.add_argument("--data_dir", help="where the data sets of TFDS are")
  parser.add_argument("--train", type=int, help="most training images")
  parser.add_argument("--test", type=int, help="most test images")
  parser.add_argument("--image_size", type=int, default=224)
  parser.add_argument("--neighbours", type=int, default=20)
  options = parser.parse_args()
  data = dict(root=options.root, name=options.tfds, data_dir=options.data_dir)
  settings = DataSettings(**{k: v for k, v in data.items() if v})
  splits = {
    "train": chosen(open_source("train", settings), options.train),
    "test": chosen(open_source("eval", settings), options.test),
  }
  features = {
    precision: represented(options, precision, splits)
    for precision in PRECISIONS
  }
  print("| features | float32 | bfloat16 | least cosine | largest difference |")
  print("| --- | --- | --- | --- | --- |")
  for pooling in POOLINGS:
    parts = [pooled(features[p]["test"][0], pooling) for p in PRECISIONS]
    right = [
      accuracy(features[precision], pooling, options.neighbours)
      for precision in PRECISIONS
    ]
    cosine, difference = distances(*parts)
    shown = " | ".join(f"{share:.2%}" for share in right)
    print(f"| {pooling} | {shown} | {cosine:.5f} | {difference:.2%} |")


def chosen(source: Source, most: int | None) -> tuple[list[Any], np.ndarray]:
  """Pictures and labels of at most so many examples, evenly spaced."""
  count = min(most or len(source), len(source))
  indices = np.linspace(0, len(source) - 1, count).astype(int)
  examples = [source[int(index)] for index in indices]
  labels = np.array([example["label"] for example in examples])
  return [opened(example["image"]) for example in examples], labels


def opened(image: Any) -> Image.Image:
  """A picture from its encoded bytes."""
  return Image.open(io.BytesIO(image))


def represented(
  options: argparse.Namespace,
  precision: str,
  splits: dict[str, tuple[list[Any], np.ndarray]],
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Class token and mean of each image, (B, 2 D), and the labels."""
  loaded: Loaded = open_checkpoint(
    options.weights,
    pooling="token_gap",
    num_classes=0,
    dtype=precision,
    image_size=(options.image_size, options.image_size),
  )
  results = {}
  for name, (pictures, labels) in splits.items():
    began = time.monotonic()
    y = loaded.features(pictures, batch_size=25)
    results[name] = np.asarray(y, np.float32), labels
    seconds = time.monotonic() - began
    print(f"{precision}, {name}: {len(labels)} images in {seconds:.0f} s")
  return results


def pooled(y: np.ndarray, pooling: str) -> np.ndarray:
  """The part of (B, 2 D) that a pooling reads."""
  half = y.shape[1] // 2
  return {"token": y[:, :half], "gap": y[:, half:], "token_gap": y}[pooling]


def accuracy(
  features: dict[str, tuple[np.ndarray, np.ndarray]], pooling: str, k: int
) -> float:
  """Share of test images that their nearest training images name rightly."""
  train, test = (
    [(jnp.asarray(pooled(y, pooling)), row_info(label))]
    for y, label in (features["train"], features["test"])
  )
  num_classes = int(features["train"][1].max()) + 1
  return nearest_neighbours(train, test, num_classes, k).top1


def row_info(label: np.ndarray) -> dict[str, jax.Array]:
  """What a batch tells of its images, all of which could be read."""
  count = len(label)
  return dict(
    label=jnp.asarray(label), mask=jnp.ones(count), skipped=jnp.zeros(count)
  )


def distances(exact: np.ndarray, rounded: np.ndarray) -> tuple[float, float]:
  """Least cosine, and largest relative difference, of the rows of two."""
  norms = np.linalg.norm(exact, axis=1), np.linalg.norm(rounded, axis=1)
  cosine = (exact * rounded).sum(axis=1) / (norms[0] * norms[1])
  difference = np.linalg.norm(rounded - exact, axis=1) / norms[0]
  return float(cosine.min()), float(difference.max())


if __name__ == "__main__":
  main()
