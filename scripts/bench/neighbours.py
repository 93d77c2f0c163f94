"""Times the exact search of nearest neighbours beside faiss's flat index.

python -m scripts.bench.neighbours [--vectors 100000] [--queries 20000]

With --queries=0 it is the nearest of every vector but itself, as `vit_jax
similar` asks for without a query. Each is run in a process of its own, in
turns. A row has the seconds of the search, with compiling, and the peak of the
process's memory. Needs faiss-cpu.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

WIDTH, NEAREST = 768, 10


def vectors(count: int) -> np.ndarray:
  """Random vectors of length 1."""
  rows = np.random.default_rng(0).normal(size=(count, WIDTH))
  rows = rows.astype(np.float32)
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ours(rows: np.ndarray, queries: np.ndarray | None) -> np.ndarray:
  from vit_jax.tasks.probes import nearest

  return nearest.neighbours(rows, NEAREST, queries).place


def faiss_flat(rows: np.ndarray, queries: np.ndarray | None) -> np.ndarray:
  import faiss  # pyright: ignore[reportMissingImports]

  index = faiss.IndexFlatIP(WIDTH)
  index.add(rows)
  if queries is None:  # It finds each vector itself first.
    return index.search(rows, NEAREST + 1)[1][:, 1:]
  return index.search(queries, NEAREST)[1]


KINDS = {"vit_jax": ours, "faiss": faiss_flat}


def measure(kind: str, count: int, queries: int) -> None:
  """Prints what one search took, as JSON."""
  rows = vectors(count)
  start = time.perf_counter()
  found = KINDS[kind](rows, rows[:queries] if queries else None)
  seconds = time.perf_counter() - start
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  places = int(found.sum())  # The same of both, if they found the same.
  row = {"kind": kind, "seconds": seconds, "gib": peak, "places": places}
  print(json.dumps(row))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--vectors", type=int, default=100_000)
  parser.add_argument("--queries", type=int, default=20_000)
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--kind", choices=KINDS)
  options = parser.parse_args()
  if options.kind:
    measure(options.kind, options.vectors, options.queries)
    return
  sizes = ["--vectors", str(options.vectors), "--queries", str(options.queries)]
  for _ in range(options.rounds):
    for kind in KINDS:
      command = [sys.executable, "-m", "scripts.bench.neighbours"]
      subprocess.run([*command, "--kind", kind, *sizes], check=True)


if __name__ == "__main__":
  main()
