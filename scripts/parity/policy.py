"""DeiT's RandAugment as a whole: timm's policy, its cases and its draws."""

from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from scripts.parity.pictures import Script, patchwork, photograph
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming import augment, randaugment

Case = dict[str, Any]
POLICY = "rand-m9-mstd0.5-inc1"
SETTINGS = TrainTransformSettings(
  randaugment_layers=2, randaugment_magnitude=9, randaugment_timm=True
)
_MOVES = ("Rotate", "Shear", "Translate")
_PLAIN = ("autocontrast", "equalize", "invert")
_INCREASING = ("posterize", "solarize", "color", "contrast", "brightness")
_INCREASING += ("sharpness",)


def _theirs(name: str) -> str:
  """timm's name of one of our operations."""
  words = "".join(word.title() for word in name.split("_"))
  words = {"Autocontrast": "AutoContrast"}.get(words, words)
  relative = "Rel" * name.startswith("translate")
  return words + relative + "Increasing" * (name in _INCREASING)


NAMES = [_theirs(name) for name in randaugment.TIMM]
_BLENDS = [f"{k.title()}Increasing" for k in _INCREASING[2:]]
CENTRES = {
  name: 1 if name in _BLENDS else 0 if name.startswith(_MOVES) else None
  for name in NAMES
}
"""What an operation's argument is above or below, where it has a sign."""


def pictures() -> dict[str, np.ndarray]:
  """None is square."""
  return {
    "wide": photograph(118, 157, 1),
    "tall": photograph(153, 121, 2),
    "patchwork": patchwork(118, 157),
  }


def cases() -> list[Case]:
  """Draws of 90 images; each operation is the first one of six."""
  rng = np.random.default_rng(21)
  found = []
  for i in range(90):
    names = [NAMES[i % 15], NAMES[rng.integers(15)]]
    # None is 1/2, which is below 1/2 for timm alone.
    given = ((rng.integers(1000, size=6) + 0.5) / 1000).tolist()
    if i % 3:
      given[0] /= 2  # The first operation is not left out.
    if "PosterizeIncreasing" in names:  # Beyond 0.977 it would keep no bits.
      given[4:] = [0.97 * x for x in given[4:]]
    draws = dict(random=given[:4], normal=given[4:])
    source = [*pictures()][i // 3 % 3]
    case = dict(
      kind="deit_randaugment", policy=POLICY, names=names, source=source
    )
    found.append(dict(case, draws=draws))
  return found


def ours(case: Case, image: np.ndarray) -> Any:
  """An image as our settings change it."""
  integers = [(NAMES.index(name) + 0.5) / 15 for name in case["names"]]
  rng: Any = Script(dict(case["draws"], integers=integers))
  return augment.augment(image, rng, SETTINGS)


def columns(found: np.ndarray) -> dict[str, np.ndarray]:
  """The quantities, of (images, 2, 3): operation, magnitude and sign.

  The operation is -1 of a layer that was left out, and the magnitude of one
  that has none.
  """
  index, magnitude, sign = np.moveaxis(found.astype(np.float64), 2, 0)
  return {
    "operations": (index >= 0).mean(1),
    "operation": index[index >= 0] / 14,
    "magnitude": magnitude[magnitude >= 0].round(6),
    "sign": sign[sign != 0],
  }


def drawn(count: int) -> dict[str, np.ndarray]:
  """Those of `rand_augment`."""
  rng, image = np.random.default_rng(0), np.zeros((2, 2, 3), np.uint8)
  last: list[list[float]] = []
  sign_of = randaugment._sign

  def told(rng: Any) -> int:
    last[-1][2] = np.sign(sign := sign_of(rng))
    return sign

  def kept(i: int, name: str, op: Any) -> Any:
    def own(image: Image.Image, strength: float, rng: Any) -> Image.Image:
      last.append([i, -1 if name in _PLAIN else 10 * strength, 0])
      op(image, strength, rng)  # It draws its sign, if it has one.
      return image

    return own

  ops = {
    k: kept(i, k, op) for i, (k, op) in enumerate(randaugment.TIMM.items())
  }
  found = np.zeros((count, 2, 3))
  found[..., :2] = -1
  with (
    mock.patch.dict(randaugment.TIMM, ops),
    mock.patch.object(randaugment, "_sign", told),
  ):
    for i in range(count):
      last.clear()
      randaugment.rand_augment(image, rng, 2, 9, timm=True)
      for k, layer in enumerate(last):
        found[i, k] = layer
  return columns(found)
