"""Draws that cannot be made equal, compared as distributions.

The reference draws 200,000 times, and so do we. Of each quantity, the counts in
64 bins and two moments are recorded and compared; a difference
is in units of its own standard deviation.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from scripts.parity import draw_faults, policy
from scripts.parity.pixels.operations import MOVES, OPERATIONS
from vit_jax.data.transforming import augment, randaugment
from vit_jax.training import losses

FOLDER = pathlib.Path(__file__).parents[2] / "tests" / "parity" / "draws"
COUNT, BINS = 200_000, 64
ALLOWED = 5.0  # One in a million comparisons has more.
Columns = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class DrawRow:
  """Draws to compare.

  Attributes:
    case: What the reference's program is told.
    columns: The quantities, of what the reference's program returns.
    ours: The same quantities, of this many draws of ours.
    count: How many: half of the batches get Mixup, and a quarter of the layers
      has a sign, of timm's three in ten.
    faults: Those of `draw_faults`, by their names.
  """

  title: str
  reference: str
  program: str
  case: dict[str, Any]
  columns: Callable[[np.ndarray], Columns]
  ours: Callable[[int], Columns]
  faults: dict[str, Callable[[], contextlib.AbstractContextManager]]
  count: int = COUNT

  def cases(self) -> list[dict[str, Any]]:
    return [dict(self.case, count=self.count)]

  def sources(self) -> dict[str, np.ndarray]:
    return {}


def write(name: str, meta: dict[str, Any], found: np.ndarray) -> None:
  """Writes what the comparison needs of the reference's draws."""
  summary = {}
  for key, values in ROWS[name].columns(found).items():
    edges = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]).tolist()
    edges = sorted({float(f"{edge:.7g}") for edge in edges})
    summary[key] = {"edges": edges, **_summary(values, edges)}
  FOLDER.mkdir(exist_ok=True)
  text = json.dumps({"meta": meta, "summary": summary}, indent=None)
  path_of(name).write_text(text + "\n")


def path_of(name: str) -> pathlib.Path:
  return FOLDER / f"{name}.json"


def differences(name: str) -> dict[str, float]:
  """How far ours are from the reference's, by quantity."""
  theirs = json.loads(path_of(name).read_text())["summary"]
  ours = ROWS[name].ours(ROWS[name].count)
  assert sorted(ours) == sorted(theirs), (sorted(ours), sorted(theirs))
  return {
    key: _distance(_summary(values, theirs[key]["edges"]), theirs[key])
    for key, values in ours.items()
  }


def _summary(values: np.ndarray, edges: list[float]) -> dict[str, Any]:
  """Counts between the edges, and means and variances of some functions."""
  x = np.asarray(values, np.float64)
  counts = np.bincount(np.searchsorted(edges, x, "right"), minlength=BINS)
  moments = [[len(x), float(f.mean()), float(f.var())] for f in (x, x * x)]
  return {"counts": counts.tolist(), "moments": moments}


def _distance(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
  """The largest difference, in standard deviations."""
  found = []
  for (n, a, s), (m, b, t) in zip(
    ours["moments"], theirs["moments"], strict=True
  ):
    spread = math.sqrt(s / n + t / m)
    gap = abs(a - b)
    if gap > 1e-9:  # Constants differ by rounding alone.
      found.append(gap / spread if spread else math.inf)
  a, b = (np.array(x["counts"], np.float64) for x in (ours, theirs))
  b *= a.sum() / b.sum()
  some = a + b > 0
  chi = ((a - b)[some] ** 2 / (a + b)[some]).sum()
  freedom = max(some.sum() - 1, 1)
  # Wilson and Hilferty's: about normal, far out as well.
  spread = 2 / (9 * freedom)
  found.append(((chi / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)
  return float(min(max(found), 1e6))


def _boxes(size: tuple[int, int], found: np.ndarray) -> Columns:
  (H, W), (top, left, h, w) = size, found.T.astype(np.float64)
  rng = np.random.default_rng(1)
  # Whole numbers are spread, so that no bin's edge lies on one.
  noise = rng.random((2, len(h)))
  return {
    "height": (h + noise[0]) / (H + 1),
    "ratio": w / h,
    "area": h * w / (H * W),
    "top": (top + noise[0]) / np.maximum(H - h, 1),
    "left": (left + noise[1]) / np.maximum(W - w, 1),
  }


def _our_boxes(size: tuple[int, int], count: int) -> Columns:
  rng = np.random.default_rng(0)
  boxes = [augment.published_box(*size, 0.05, rng) for _ in range(count)]
  return _boxes(size, np.array(boxes))


def _layers(found: np.ndarray) -> Columns:
  """The operation, and how far each of those that move images moves them."""
  index, by = found.astype(np.float64).T.round(3)
  names = [*OPERATIONS]
  moves = [k for k in MOVES if k != "Cutout"]
  index = index.astype(int)
  columns = {k: by[index == names.index(k)] for k in moves}
  signs = np.sign(np.concatenate([*columns.values()]))
  return {"operation": index / 15, "sign": signs, **columns}


def _our_layers(count: int) -> Columns:
  """Those of `rand_augment`, which get no further than the matrix."""
  image: Any = types.SimpleNamespace(size=(224, 224))
  rng = np.random.default_rng(0)
  names, last = [*OPERATIONS], []
  found = np.zeros((count, 2))

  def move(image: Any, matrix: Any) -> Any:
    a, b, c, d, _, f = matrix
    angle = math.degrees(math.atan2(d, a))
    last.append({"R": angle, "S": b or d, "T": c or f})
    return image

  ops = {k: lambda image, *_: image for k in randaugment.PUBLISHED}
  ops |= randaugment._moves(move, 1, randaugment._TRANSLATE)
  kept = {
    k: lambda *a, i=i, op=ops[k]: (last.append(i), op(*a))[1]
    for i, k in enumerate(OPERATIONS.values())
  }
  with (
    mock.patch.dict(randaugment.PUBLISHED, kept),
    mock.patch.object(randaugment.Image, "fromarray", lambda image: image),
  ):
    for i in range(count):
      last.clear()
      randaugment.rand_augment(image, rng, 1, 10, as_published=True)
      by = last[1][names[last[0]][0]] if len(last) > 1 else 0.0
      found[i] = last[0], by
  return _layers(found)


def _centres(found: np.ndarray) -> Columns:
  rng = np.random.default_rng(1)
  row, column = (found + rng.random(found.shape)).T
  return {"row": row / 48, "column": column / 64}


def _our_centres(count: int) -> Columns:
  image, rng = augment.Image.new("RGB", (64, 48)), np.random.default_rng(0)
  found, op = np.zeros((count, 2)), randaugment.PUBLISHED["cutout"]
  strength = 1.2 / (40 / 224 * 48)  # A square of two pixels.
  for i in range(count):
    cut = np.asarray(op(image, strength, rng))[..., 0] == randaugment.GREY
    found[i] = np.flatnonzero(cut.any(1))[-1], np.flatnonzero(cut.any(0))[-1]
  return _centres(found)


def _shares(found: np.ndarray) -> Columns:
  cut, share = found.T
  mixed = share[cut < 0.5]
  mixed = np.maximum(mixed, 1 - mixed)
  small = np.log(np.maximum(1 - mixed, 1e-7))
  return {
    "which": cut,
    "Mixup": mixed,
    "Mixup's logarithm": small,
    "CutMix": share[cut > 0.5],
  }


def _our_shares(count: int) -> Columns:
  """Those of `mixup_or_cutmix`, seen in the targets."""
  mix, images = losses.mixup, jnp.zeros((2, 256, 256, 1))

  def told(*args: Any) -> Any:
    images, targets = mix(*args)
    return images, targets + 2  # Which tells it from CutMix.

  def draw(key: Any) -> Any:
    _, targets = losses.mixup_or_cutmix(key, images, jnp.eye(2), 0.8, 1.0)
    return targets[0, 0]

  keys = jax.random.split(jax.random.key(0), count)
  with mock.patch.object(losses, "mixup", told):
    share = np.asarray(jax.jit(lambda keys: jax.lax.map(draw, keys))(keys))
  cut = share < 1.5
  return _shares(np.stack([cut, share - 2 * ~cut], axis=1))


_BIG_VISION, _TENSORFLOW = "google-research/big_vision", "pixels_big_vision.py"
ROWS = {
  **{
    f"boxes_{H}x{W}": DrawRow(
      title=f"Inception crop of {H} x {W} (vision_transformer's is the same)",
      reference=_BIG_VISION,
      program=_TENSORFLOW,
      case=dict(kind="boxes", size=[H, W]),
      columns=lambda x, H=H, W=W: _boxes((H, W), x),
      ours=lambda n, H=H, W=W: _our_boxes((H, W), n),
      faults=draw_faults.BOXES,
    )
    for H, W in ((375, 500), (640, 427))
  },
  "layers": DrawRow(
    title="RandAugment's operation, sign and strength",
    reference=_BIG_VISION,
    program=_TENSORFLOW,
    case=dict(kind="layers", magnitude=10),
    columns=_layers,
    ours=_our_layers,
    faults=draw_faults.LAYERS,
    count=4 * COUNT,
  ),
  "cutout": DrawRow(
    title="Where cutout cuts",
    reference=_BIG_VISION,
    program=_TENSORFLOW,
    case=dict(kind="centres", size=[48, 64]),
    columns=_centres,
    ours=_our_centres,
    faults=draw_faults.CENTRES,
  ),
  "layers_deit": DrawRow(
    title="DeiT's RandAugment: how many operations, which, and how strong",
    reference="timm",
    program="pixels_torch.py",
    case=dict(kind="deit_layers", policy=policy.POLICY, centres=policy.CENTRES),
    columns=policy.columns,
    ours=policy.drawn,
    faults=draw_faults.POLICY,
    count=2 * COUNT,
  ),
  "shares": DrawRow(
    title="Mixup or CutMix, and the share that an example keeps",
    reference="timm",
    program="pixels_torch.py",
    case=dict(kind="shares", size=[1792, 1792]),
    columns=_shares,
    ours=_our_shares,
    faults=draw_faults.SHARES,
    count=2 * COUNT,
  ),
}


def shown_by(name: str, fault: str) -> dict[str, Any]:
  """The quantity that shows a fault best."""
  with ROWS[name].faults[fault]():
    found = differences(name)
  best = max(found, key=lambda key: found[key])
  times = found[best] / ALLOWED
  return {"by": best, "times": times, "found": times > 1}
