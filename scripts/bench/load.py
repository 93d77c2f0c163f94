"""Compares loading published weights with reading their bytes.

python scripts/bench/load.py

Writes a ViT-B/16 of random numbers under Google's names as an .npz file in a
temporary folder. One process, with the file in the system's cache, then takes
turns at reading the file's bytes, reading its arrays with open_arrays and with
numpy.load, and loading the model. The script prints the medians and their ratio
to reading the bytes. A row's memory is the peak of a process that does nothing
else, minus the peak of one that only imports what the row needs.
"""

import argparse
import importlib
import math
import multiprocessing
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax.pretrained.arrays import open_arrays, save_arrays

Loader = Callable[[pathlib.Path], Any]
MIB = 1 << 20
NUM_PARAMS = 86_567_656


def google_shapes() -> dict[str, tuple[int, ...]]:
  """The parameters of ViT-B/16 with 1,000 classes, as Google names them."""
  shapes = {
    "cls": (1, 1, 768),
    "embedding/kernel": (16, 16, 3, 768),
    "embedding/bias": (768,),
    "Transformer/posembed_input/pos_embedding": (1, 197, 768),
    "Transformer/encoder_norm/scale": (768,),
    "Transformer/encoder_norm/bias": (768,),
    "head/kernel": (768, 1000),
    "head/bias": (1000,),
  }
  for block in range(12):
    prefix = f"Transformer/encoderblock_{block}"
    for norm in ("LayerNorm_0", "LayerNorm_2"):
      shapes[f"{prefix}/{norm}/scale"] = (768,)
      shapes[f"{prefix}/{norm}/bias"] = (768,)
    msa = f"{prefix}/MultiHeadDotProductAttention_1"
    for name in ("query", "key", "value"):
      shapes[f"{msa}/{name}/kernel"] = (768, 12, 64)
      shapes[f"{msa}/{name}/bias"] = (12, 64)
    shapes[f"{msa}/out/kernel"] = (12, 64, 768)
    shapes[f"{msa}/out/bias"] = (768,)
    mlp = f"{prefix}/MlpBlock_3"
    shapes[f"{mlp}/Dense_0/kernel"] = (768, 3072)
    shapes[f"{mlp}/Dense_0/bias"] = (3072,)
    shapes[f"{mlp}/Dense_1/kernel"] = (3072, 768)
    shapes[f"{mlp}/Dense_1/bias"] = (768,)
  assert sum(map(math.prod, shapes.values())) == NUM_PARAMS
  return shapes


def write_model(path: pathlib.Path) -> None:
  rng = np.random.default_rng(0)
  save_arrays(
    path,
    {
      name: rng.standard_normal(shape, dtype=np.float32)
      for name, shape in google_shapes().items()
    },
  )


# Each of these imports what it needs and returns the work to measure.


def bytes_loader() -> Loader:
  return pathlib.Path.read_bytes


def arrays_loader() -> Loader:
  def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    with open_arrays(path) as arrays:
      return dict(arrays)

  return load


def numpy_loader() -> Loader:
  def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
      return dict(arrays)

  return load


def model_loader() -> Loader:
  jax = importlib.import_module("jax")
  load_pretrained = importlib.import_module("vit_jax").load_pretrained

  def load(path: pathlib.Path) -> Any:
    _, params = load_pretrained(str(path))
    return jax.block_until_ready(params)

  return load


ROWS = {
  "bytes": bytes_loader,
  "open_arrays": arrays_loader,
  "numpy.load": numpy_loader,
  "load_pretrained": model_loader,
}


def peak_bytes(row: str, path: pathlib.Path | None) -> int:
  """Peak memory of this process after loading `path`, if given."""
  load = ROWS[row]()
  kept = load(path) if path else None
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  del kept
  return peak if sys.platform == "darwin" else peak * 1024


def median_seconds(
  rows: list[str], path: pathlib.Path, rounds: int
) -> dict[str, float]:
  loaders = {row: ROWS[row]() for row in rows}
  seconds: dict[str, list[float]] = {row: [] for row in rows}
  for turn in range(rounds + 1):
    for row, load in loaders.items():
      start = time.perf_counter()
      kept = load(path)
      if turn:  # In the first turn caches fill and JAX compiles.
        seconds[row].append(time.perf_counter() - start)
      del kept
  return {row: statistics.median(seconds[row]) for row in rows}


def in_new_process(function: Callable, *args: Any) -> Any:
  with multiprocessing.get_context("spawn").Pool(1) as pool:
    return pool.apply(function, args)


def is_there(row: str) -> bool:
  try:
    ROWS[row]()
  except AttributeError as error:
    print(f"left out: {row} ({error})")
    return False
  return True


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--rounds", type=int, default=9)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "b16.npz"
    # This process stays small: a child's peak counts from its parent's size.
    in_new_process(write_model, path)
    rows = [row for row in ROWS if in_new_process(is_there, row)]
    peaks = {
      row: in_new_process(peak_bytes, row, path)
      - in_new_process(peak_bytes, row, None)
      for row in rows
    }
    seconds = in_new_process(median_seconds, rows, path, args.rounds)
    size = path.stat().st_size
  print(f"ViT-B/16, {size / MIB:.0f} MiB; medians of {args.rounds} turns")
  print(f"{'':16}{'ms':>6}{'/ bytes':>9}{'peak MiB':>10}{'/ file':>8}")
  for row in rows:
    print(
      f"{row:16}{seconds[row] * 1e3:6.0f}{seconds[row] / seconds['bytes']:9.2f}"
      f"{peaks[row] / MIB:10.0f}{peaks[row] / size:8.2f}"
    )


if __name__ == "__main__":
  main()
