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
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

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
      has a sign.
    faults: Changes of ours by 2 %, or by as little as can be, by their names.
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
  ops |= randaugment._moves(move, 1)
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


# Faults, each a change of ours by 2 %.


def _patch(place: Any, name: str, make: Callable[[Any], Any]) -> Any:
  return lambda: mock.patch.object(place, name, make(getattr(place, name)))


def _box(change: Callable[..., Any]) -> Any:
  return _patch(
    augment,
    "published_box",
    lambda draw: lambda H, W, area, rng: change(draw, H, W, area, rng),
  )


def _higher(draw: Any, H: int, W: int, area: float, rng: Any) -> Any:
  top, left, h, w = draw(H, W, area, rng)
  return top, left, min(round(1.02 * h), H), w


def _further(draw: Any, H: int, W: int, area: float, rng: Any) -> Any:
  top, left, h, w = draw(H, W, area, rng)
  return round(0.98 * top), left, h, w


@contextlib.contextmanager
def _rng(name: str, change: Callable[[Any], Any]) -> Iterator[None]:
  """Another method of NumPy's generators."""
  made = np.random.default_rng

  class Changed:
    def __init__(self, seed: int):
      self.rng = made(seed)

    def __getattr__(self, other: str) -> Any:
      method = getattr(self.rng, other)
      return change(method) if other == name else method

  with mock.patch.object(np.random, "default_rng", Changed):
    yield


def _integers(change: Callable[[Any, int], Any]) -> Any:
  return lambda: _rng("integers", lambda draw: lambda n: change(draw, n))


_BOX_FAULTS = {
  "boxes 2 % higher": _box(_higher),
  "boxes 2 % further up": _box(_further),
  "2 % more of the least area": _box(
    lambda draw, H, W, area, rng: draw(H, W, 1.02 * area, rng)
  ),
  "ratios 2 % wider": _patch(
    augment, "_PUBLISHED_RATIOS", lambda _: (0.735, 1.3566)
  ),
  "2 % of boxes are the whole image": _box(
    lambda draw, H, W, area, rng: (
      (0, 0, H, W) if rng.random() < 0.02 else draw(H, W, area, rng)
    )
  ),
  "areas that are uniform": _patch(
    augment, "published_box", lambda _: augment.inception_box
  ),
}
_LAYER_FAULTS = {
  "2 % of layers are the first operation": lambda: mock.patch.object(
    randaugment,
    "rand_augment",
    _often(randaugment.rand_augment),
  ),
  "one sign 2 % oftener": _patch(
    randaugment, "_sign", lambda _: lambda rng: 1 if rng.random() < 0.51 else -1
  ),
  "movements 2 % larger": _patch(
    randaugment, "_sign", lambda sign: lambda rng: 1.02 * sign(rng)
  ),
  "one sign alone": _patch(randaugment, "_sign", lambda _: lambda rng: 1),
  "translations of 102 pixels": _patch(
    randaugment, "_TRANSLATE", lambda x: 1.02 * x
  ),
}


def _often(augmented: Callable[..., Any]) -> Callable[..., Any]:
  def own(image: Any, rng: Any, *args: Any, **options: Any) -> Any:
    if rng.random() < 0.02:
      return randaugment.PUBLISHED["autocontrast"](image, 1.0, rng)
    return augmented(image, rng, *args, **options)

  return own


_CENTRE_FAULTS = {
  "no centre in the last 2 %": _integers(lambda draw, n: int(0.98 * draw(n))),
  "the first place 2 % oftener": _integers(
    lambda draw, n: draw(n) * (draw(50) > 0)
  ),
  "centres off the edge": _integers(lambda draw, n: 1 + draw(n - 2)),
  "places that are even": _integers(lambda draw, n: 2 * draw(n // 2)),
  "a place further": _integers(lambda draw, n: min(draw(n) + 1, n - 1)),
}


def _mix(change: Callable[[Any], Any], name: str = "mixup") -> Any:
  """Another share of Mixup or CutMix."""

  def make(mix: Any) -> Any:
    def own(key: Any, images: Any, targets: Any, alpha: float) -> Any:
      images, targets = mix(key, images, targets, alpha)
      return images, change(targets)

    return own

  return _patch(losses, name, make)


_SHARE_FAULTS = {
  "Mixup's alpha of 0.816": _patch(
    losses, "mixup", lambda mix: lambda *a: mix(*a[:3], 1.02 * a[3])
  ),
  "2 % less of what CutMix leaves": _mix(lambda x: 0.98 * x, "cutmix"),
  "CutMix 2 % oftener": _patch(
    jax.random, "bernoulli", lambda draw: lambda key: draw(key, 0.49)
  ),
  "2 % less of an example": _mix(lambda targets: 0.98 * targets),
  "CutMix's boxes 2 % longer": _patch(
    jnp, "sqrt", lambda root: lambda x: 1.02 * root(x)
  ),
}

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
      faults=_BOX_FAULTS,
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
    faults=_LAYER_FAULTS,
    count=4 * COUNT,
  ),
  "cutout": DrawRow(
    title="Where cutout cuts",
    reference=_BIG_VISION,
    program=_TENSORFLOW,
    case=dict(kind="centres", size=[48, 64]),
    columns=_centres,
    ours=_our_centres,
    faults=_CENTRE_FAULTS,
  ),
  "shares": DrawRow(
    title="Mixup or CutMix, and the share that an example keeps",
    reference="timm",
    program="pixels_torch.py",
    case=dict(kind="shares", size=[1792, 1792]),
    columns=_shares,
    ours=_our_shares,
    faults=_SHARE_FAULTS,
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
