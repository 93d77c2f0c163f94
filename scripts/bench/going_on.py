"""Compares ways to go on training DINOv2 S/14 on a few images of one's own.

python -m scripts.bench.going_on WEIGHTS photographs 0 1 2 \
  --root pizza_steak_sushi --masks pizza_masks --out runs/going_on
python -m scripts.bench.going_on WEIGHTS cifar10 0 1 2 \
  --data_dir tfds --masks pizza_masks --out runs/going_on

The numbers are seeds. Each way is a run of the package in bfloat16 at 56 x 56
pixels. Its class tokens (of a masked autoencoder, the means of its patches) are
classified by 20 nearest neighbours and by a linear probe: those of the test
images, or, as there are few photographs, of all images in five folds that are
drawn four times. The first direction is that of the largest variance of these
features. A linear probe of the patches at 112 x 112 names the class of each
pixel of `make_masks.py`'s folder. What is in the folder `out` is not computed
again. The table's differences are from the published weights with the same
pooling, in points, with a 95 % bootstrap interval over images, each of which
counts with the mean of its seeds.
"""

import argparse
import csv
import io
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from PIL import Image

import vit_jax
from vit_jax.data.reading.sources import open_source
from vit_jax.data.settings import DataSettings
from vit_jax.tasks.probes import linear_probe, whole_set

SIZE, SMALL = 56, 28  # Pixels along a side of large and of small crops.
PIXELS = 2 * SIZE  # Pixels along a side for the probe of pixels.
NEIGHBOURS, TEMPERATURE = 20, 0.07
FOLDS, TIMES = 5, 4  # How images are held out if there are few.
DRAWS = 10_000  # Of the bootstrap.
LORA = ("lora.rank=8", "optimizer.peak_lr=2e-4")


class Data(NamedTuple):
  """A data set, how long the runs on it are, and whether it has few images."""

  few: bool
  epochs: float
  ema_decay: float
  warmup_epochs: float
  student_epochs: float
  settings: tuple[str, ...]


DATA = {
  "photographs": Data(
    few=True,
    epochs=5.0,
    ema_decay=0.9,
    warmup_epochs=1.0,
    student_epochs=100.0,
    settings=(),
  ),
  "cifar10": Data(
    few=False,
    epochs=1.0,
    ema_decay=0.98,
    warmup_epochs=0.1,
    student_epochs=10.0,
    settings=(
      "data.name=cifar10",
      "data.train_split=train[:5000]",
      "data.eval_split=test[:2000]",
    ),
  ),
}


class Way(NamedTuple):
  """A way to go on: its configuration, further settings, and the pooling."""

  config: str
  settings: tuple[str, ...] = ()
  pooling: str = "token"


DINO = (f"self_distillation.small_size={SMALL}",)
GRAM = "self_distillation.gram_weight=1.0"
WAYS = {
  "published": Way(""),
  "published, mean": Way("", pooling="gap"),
  "dino": Way("dino:continue", DINO),
  "dino, LoRA": Way("dino:continue", (*DINO, *LORA)),
  "dino, Gram": Way("dino:continue", (*DINO, GRAM)),
  "lejepa": Way("lejepa:continue", (f"lejepa.small_size={SMALL}",)),
  "lejepa, LoRA": Way("lejepa:continue", (f"lejepa.small_size={SMALL}", *LORA)),
  "mae": Way(
    "mae:continue",
    (
      "transfer.keep_head=False",
      "autoencoder.decoder_size=192",
      "autoencoder.decoder_layers=2",
      "autoencoder.decoder_heads=3",
      "optimizer.peak_lr=2e-5",
      "optimizer.layer_decay=0.8",
    ),
    "gap",
  ),
  "student": Way("student:{weights}"),
}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("weights")
  parser.add_argument("data", choices=DATA)
  parser.add_argument("seeds", type=int, nargs="+")
  parser.add_argument("--root", help="folder of the photographs")
  parser.add_argument("--data_dir", help="where the data sets of TFDS are")
  parser.add_argument("--masks", required=True, help="images with masks")
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
  options = parser.parse_args()
  options.out.mkdir(parents=True, exist_ok=True)
  images: dict[str, Any] = {}
  for seed in options.seeds:
    for way in options.ways:
      started = WAYS[way].config
      if started or seed == options.seeds[0]:
        measured(options, way, seed if started else None, images)
  csv.writer(sys.stdout, lineterminator="\n").writerows(table(options))


def measured(
  options: argparse.Namespace, way: str, seed: int | None, images: dict
) -> None:
  """Trains one way with one seed, and writes what the probes answer."""
  name = f"{options.data}_{way.replace(', ', '_')}" + (
    f"_{seed}" if seed is not None else ""
  )
  found = options.out / f"{name}.json"
  if found.exists():
    return
  run = options.weights
  seconds = {}
  if seed is not None:
    run = str(options.out / name)
    seconds = trained(options, way, seed, run)
  if not images:
    images.update(pictures(options))
  student = way == "student"
  loaded = vit_jax.load_pretrained(
    run, image_size=SIZE, **({} if student else {"pooling": WAYS[way].pooling})
  )
  y = {
    split: np.asarray(loaded.features(shown, batch_size=50), np.float32)
    for split, (shown, _) in images.items()
  }
  labels = {split: label for split, (_, label) in images.items()}
  pixels: Any = vit_jax.fewshot(
    vit_jax.load_pretrained(run, image_size=PIXELS),
    options.masks,
    probe="segment",
  )
  few = DATA[options.data].few
  result = {
    "knn": right(y, labels, neighbours, few).tolist(),
    "linear": right(y, labels, linear, few).tolist(),
    "first": first_direction(y["test"]),
    "mean_iou": pixels.mean_iou,
    **seconds,
  }
  found.write_text(json.dumps(result))
  shown = {k: round(float(np.mean(v)), 4) for k, v in result.items()}
  print(name, shown, flush=True)


def trained(
  options: argparse.Namespace, way: str, seed: int, run: str
) -> dict[str, float]:
  """Runs the command, unless it has been run, and returns its seconds."""
  times = pathlib.Path(f"{run}.times")
  if times.exists():
    return json.loads(times.read_text())
  data, chosen = DATA[options.data], WAYS[way]
  epochs = data.student_epochs if way == "student" else data.epochs
  settings = [
    *data.settings,
    "data.labels=False",
    "fewshot.neighbours=0",
    f"image_size={SIZE}",
    "model.dtype=bfloat16",
    f"total_epochs={epochs}",
    f"save_every_epochs={epochs}",
    f"eval_every_epochs={epochs}",
    f"optimizer.warmup_epochs={data.warmup_epochs}",
    f"seed={seed}",
    f"workdir={run}",
  ]
  if way != "student":
    settings += [f"pretrained={options.weights}", "batch_size=16"]
  if way.startswith("dino"):
    settings += [
      f"ema_decay={data.ema_decay}",
      f"self_distillation.temperature_warmup_epochs={2 * data.warmup_epochs}",
      f"self_distillation.freeze_last_epochs={data.warmup_epochs}",
    ]
  for key in ("root", "data_dir"):
    if value := getattr(options, key):
      settings.append(f"data.{key}={value}")
  config = chosen.config.format(weights=options.weights)
  command = [sys.executable, "-m", "vit_jax", "train", f"--config={config}"]
  for setting in (*settings, *chosen.settings):
    prefix = "" if setting.startswith("workdir") else "config."
    command.append(f"--{prefix}{setting}")
  began, used = time.monotonic(), children()
  with open(f"{run}.log", "w") as log:
    subprocess.run(command, check=True, stdout=log, stderr=log)
  seconds = {
    "seconds": time.monotonic() - began,
    "processor_seconds": children() - used,
  }
  times.write_text(json.dumps(seconds))
  return seconds


def children() -> float:
  """Processor seconds of the commands that have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def pictures(
  options: argparse.Namespace,
) -> Iterator[tuple[str, tuple[list[Image.Image], np.ndarray]]]:
  """Yields each split with its pictures and labels."""
  values: dict[str, Any] = {
    setting.partition("=")[0].removeprefix("data."): setting.partition("=")[2]
    for setting in DATA[options.data].settings
  }
  for key in ("root", "data_dir"):
    if value := getattr(options, key):
      values[key] = value
  settings = DataSettings(**values)
  sources = {
    "train": open_source("train", settings),
    "test": open_source("eval", settings),
  }
  for split, source in sources.items():
    examples = [source[i] for i in range(len(source))]
    shown = [
      Image.open(io.BytesIO(example["image"])).convert("RGB")
      for example in examples
    ]
    yield split, (shown, np.array([example["label"] for example in examples]))


def right(
  y: dict[str, np.ndarray],
  labels: dict[str, np.ndarray],
  classify: Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray],
  few: bool,
) -> np.ndarray:
  """The share of right answers to each test image, or to each of few images."""
  if not few:
    return (classify(y, labels["train"]) == labels["test"]).astype(float)
  features = np.concatenate([y["train"], y["test"]])
  classes = np.concatenate([labels["train"], labels["test"]])
  shares = np.zeros(len(classes))
  for time_ in range(TIMES):
    order = np.random.default_rng(time_).permutation(len(classes))
    for fold in range(FOLDS):
      held_out = order[fold::FOLDS]
      others = np.setdiff1d(order, held_out)
      parts = {"train": features[others], "test": features[held_out]}
      answers = classify(parts, classes[others])
      shares[held_out] += (answers == classes[held_out]) / TIMES
  return shares


def first_direction(y: np.ndarray) -> float:
  """The share of the variance of features that lies along one direction."""
  variances = np.linalg.svd(y - y.mean(axis=0), compute_uv=False) ** 2
  return float(variances[0] / variances.sum())


def neighbours(y: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
  """The classes of the test images by their nearest training images."""
  unit = {k: v / np.linalg.norm(v, axis=1, keepdims=True) for k, v in y.items()}
  similarity = unit["test"] @ unit["train"].T
  nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :NEIGHBOURS]
  weights = np.exp(np.take_along_axis(similarity, nearest, 1) / TEMPERATURE)
  classes = np.eye(labels.max() + 1)[labels[nearest]]
  return (weights[..., None] * classes).sum(axis=1).argmax(axis=1)


def linear(y: dict[str, np.ndarray], labels: np.ndarray) -> np.ndarray:
  """The classes of the test images by a linear probe."""
  ones = jnp.ones(len(labels))
  rows = dict(label=jnp.asarray(labels), mask=ones, skipped=0 * ones)
  probe = whole_set.fit(
    whole_set.Readable([(jnp.asarray(y["train"]), rows)]),
    linear_probe.Classes(int(labels.max()) + 1),
    len(labels),
  )
  return probe.predict(y["test"])


def table(options: argparse.Namespace) -> Iterator[list[str]]:
  """The rows of the ways whose results are in the folder."""
  yield [
    "data",
    "way",
    "k-NN",
    "k-NN gained",
    "linear probe",
    "probe gained",
    "mean IoU",
    "first direction",
    "processor s",
  ]
  start = {}
  for way, chosen in WAYS.items():
    stem = f"{options.data}_{way.replace(', ', '_')}"
    paths = [options.out / f"{stem}.json"] if not chosen.config else []
    paths += sorted(options.out.glob(f"{stem}_[0-9].json"))
    results = [json.loads(p.read_text()) for p in paths if p.exists()]
    if not results:
      continue
    if not chosen.config:
      start[chosen.pooling] = results[0]
    row = [options.data, way]
    for probe in ("knn", "linear"):
      shares = np.mean([result[probe] for result in results], axis=0)
      row.append(percent(results, probe))
      row.append(
        interval(shares - np.array(start[chosen.pooling][probe]))
        if chosen.config
        else ""
      )
    row.append(percent(results, "mean_iou"))
    row.append(f"{100 * np.mean([result['first'] for result in results]):.0f}")
    times = [result.get("processor_seconds", 0.0) for result in results]
    row.append(f"{np.median(times):.0f}")
    yield row


def percent(results: list[dict[str, Any]], key: str) -> str:
  """The mean over seeds in percent, and behind it the mean of each seed."""
  each = [100 * float(np.mean(result[key])) for result in results]
  if len(each) == 1:
    return f"{each[0]:.1f}"
  return f"{np.mean(each):.1f} ({', '.join(f'{x:.1f}' for x in each)})"


def interval(gains: np.ndarray) -> str:
  """The mean of the gains of all images in points, and its 95 % interval."""
  draws = np.random.default_rng(0).integers(
    len(gains), size=(DRAWS, len(gains))
  )
  ends = np.quantile(gains[draws].mean(axis=1), (0.025, 0.975))
  gain, low, high = (f"{100 * x:+.1f}" for x in (gains.mean(), *ends))
  return f"{gain} ({low} to {high})"


if __name__ == "__main__":
  main()
