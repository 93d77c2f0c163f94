"""The numbers that a reference's trajectory leaves, and how ours differ."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from scripts.parity.inputs import Arrays
from scripts.parity.ours import Trajectory

FOLDER = pathlib.Path(__file__).parents[2] / "tests" / "parity"
MARKS = (1, 2, 10, 30, 60, 120)
_WIDTH = (
  32  # Numbers that stand for an array between the marks' first and last.
)
# The gradient by a key's bias is 0, and what is left of it is rounding: a
# softmax does not see what all keys share. Logits are compared instead.
_NO_GRADIENT = "msa/key/bias"


@dataclasses.dataclass(frozen=True)
class Recording:
  """A reference's trajectory, with arrays by our paths.

  Attributes:
    meta: Reference, commit, versions, digest of the inputs, further facts.
    sketches: Random projections of all arrays at each mark, (arrays, 32).
    last: All arrays after the last step, one after the other.
  """

  meta: dict[str, Any]
  loss: np.ndarray
  rate: np.ndarray
  decay: np.ndarray
  logits: dict[int, np.ndarray]
  sketches: dict[str, dict[int, np.ndarray]]
  last: dict[str, np.ndarray]


def path_of(row: str) -> pathlib.Path:
  return FOLDER / f"{row}.npz"


def sketch(arrays: Arrays) -> np.ndarray:
  """A projection of each array to a few numbers, which keeps distances.

  The relative norm of a difference is then known to about a tenth of itself.
  """
  rows = []
  for path in sorted(arrays):
    values = arrays[path].astype(np.float64).ravel()
    rng = np.random.default_rng([7, values.size])
    rows.append(rng.standard_normal((_WIDTH, values.size)) @ values)
  return np.stack(rows) / np.sqrt(_WIDTH)


def join(arrays: Arrays) -> np.ndarray:
  return np.concatenate([arrays[path].ravel() for path in sorted(arrays)])


def write(row: str, meta: dict[str, Any], found: Trajectory) -> pathlib.Path:
  """Writes the recording of a row, which names its arrays in `meta`."""
  last = max(found.params)
  arrays: Arrays = {"loss": found.loss}
  meta = {**meta, "arrays": sorted(found.params[last])}
  for name in ("rate", "decay"):
    table = np.stack([getattr(found, name)[k] for k in meta["arrays"]])
    unique, place = np.unique(table, axis=0, return_inverse=True)
    arrays |= {name: unique, f"{name}_of": place.astype(np.uint8)}
  for kind in ("params", "averaged"):
    for step, tree in getattr(found, kind).items():
      arrays[f"{kind}_{step}"] = sketch(tree).astype(np.float32)
      if step == last:
        arrays[f"{kind}_last"] = join(tree).astype(np.float32)
  for step, logits in found.logits.items():
    arrays[f"logits_{step}"] = logits.astype(np.float32)
  arrays["meta"] = np.array(json.dumps(meta))
  place = path_of(row)
  np.savez_compressed(place, **arrays)  # pyright: ignore[reportArgumentType]
  return place


def read(row: str) -> Recording:
  with np.load(path_of(row)) as file:
    arrays = {name: file[name] for name in file.files}
  meta = json.loads(str(arrays.pop("meta")))

  def by_step(kind: str) -> dict[int, np.ndarray]:
    found = {k.removeprefix(f"{kind}_"): v for k, v in arrays.items()}
    return {int(k): v for k, v in found.items() if k.isdigit()}

  kinds = ("params", "averaged")
  rate, decay = (arrays[k][arrays[f"{k}_of"]] for k in ("rate", "decay"))
  last = {k: arrays[f"{k}_last"] for k in kinds if f"{k}_last" in arrays}
  sketches = {kind: by_step(kind) for kind in kinds}
  logits = by_step("logits")
  return Recording(meta, arrays["loss"], rate, decay, logits, sketches, last)


@dataclasses.dataclass(frozen=True)
class Tolerances:
  """The largest differences that a row may have.

  Losses and arrays are relative, logits too, by the largest logit. The rate
  and the decay are by the largest of the run.
  """

  loss: float = 1e-5
  arrays: float = 1e-4
  averaged: float = 1e-4
  logits: float = 1e-4
  rate: float = 1e-6
  decay: float = 1e-6


def differences(
  ours: Trajectory, theirs: Recording, scale: float = 1.0
) -> dict[str, float]:
  """The largest difference of each kind; names are those of `Tolerances`.

  Where ours has fewer steps, the later ones of theirs are not compared, nor are
  the rates and the decay.
  `scale` is how many times theirs our loss is, where that is on purpose.
  """
  paths = theirs.meta["arrays"]
  steps = len(ours.loss)
  theirs_loss = theirs.loss[:steps]
  found = {"loss": _worst(ours.loss / scale - theirs_loss, theirs_loss)}
  for name in ("rate", "decay"):
    table, own = getattr(theirs, name), getattr(ours, name)
    if not own and steps < len(theirs.loss):
      continue
    if sorted(own) != paths:
      return {"arrays": float("inf")}
    mine = np.stack([own[path] for path in paths])
    found[name] = float(np.abs(mine - table).max() / (table.max() or 1))
  judged = np.array([not path.endswith(_NO_GRADIENT) for path in paths])
  for kind, name in (("params", "arrays"), ("averaged", "averaged")):
    for step, theirs_at in theirs.sketches[kind].items():
      if step > steps:
        continue
      tree = getattr(ours, kind).get(step)
      if tree is None:
        return {name: float("inf")}
      by_array = _relative(sketch(tree), theirs_at)
      if step == max(theirs.sketches[kind]):
        sizes = np.cumsum([tree[path].size for path in paths])[:-1]
        parts = np.split(theirs.last[kind], sizes)
        pairs = zip(paths, parts, strict=True)
        by_array = np.array(
          [_relative(tree[k].ravel()[None], p[None])[0] for k, p in pairs]
        )
      worst = float(np.nan_to_num(by_array[judged], nan=np.inf).max())
      found[name] = max(found.get(name, 0.0), worst)
  for step, logits in theirs.logits.items():
    if step > steps:
      continue
    gap = np.abs(ours.logits[step] - logits).max() / np.abs(logits).max()
    found["logits"] = max(found.get("logits", 0.0), float(gap))
  return {k: float(np.nan_to_num(v, nan=np.inf)) for k, v in found.items()}


def beyond(found: dict[str, float], allowed: Tolerances) -> list[str]:
  """The kinds of difference that are larger than they may be."""
  return [k for k, v in found.items() if not v <= getattr(allowed, k)]


def _worst(gap: np.ndarray, by: np.ndarray) -> float:
  return float(np.abs(gap / by).max(initial=0.0))


def _relative(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  a, b = a.astype(np.float64), b.astype(np.float64)
  return np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
