"""Boxes, mixed batches and the order of labels."""

import contextlib
import itertools
import pathlib
import tempfile
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from scripts.parity.pictures import Script, photograph
from scripts.parity.pixels.row import Case, PixelRow
from vit_jax.data.reading.image_folder import ImageFolder
from vit_jax.data.transforming import augment
from vit_jax.training import losses


def _crops() -> list[Case]:
  rng = np.random.default_rng(9)
  found = []
  for size in ([375, 500], [500, 333], [200, 201], [40, 900], [900, 30]):
    for _ in range(40):
      uniform, integers = rng.random(20).tolist(), rng.random(2).tolist()
      draws = dict(uniform=uniform, integers=integers)
      found.append(dict(kind="crop", size=size, draws=draws))
  return found


def _cropped(case: Case, _: Any) -> Any:
  script: Any = Script(case["draws"])
  H, W = case["size"]
  return augment.inception_box(H, W, 0.08, script)


def _erasings() -> list[Case]:
  rng = np.random.default_rng(10)
  found = []
  for source, i in itertools.product(("48x64", "16"), range(60)):
    draws = dict(
      random=[0.9] if i % 15 == 0 else [round(rng.random() / 4.1, 3)],
      uniform=rng.random(20).tolist(),
      integers=rng.random(2).tolist(),
    )
    found.append(dict(kind="erased", source=source, draws=draws))
  return found


def _erased(case: Case, image: np.ndarray) -> Any:
  black = np.zeros_like(image)
  script: Any = Script(case["draws"])
  return augment.erase(black, script, 0.25)[..., 0] > 0


# Mixup and CutMix.


def _mixtures() -> list[Case]:
  found = []
  for i, lam in enumerate((0.5, 0.625, 0.9, 0.99)):
    draws = dict(lam=lam, place=[])
    found.append(dict(kind="mixed", batch=[i], draws=draws, cut=False))
  # Boxes of an even number of whole pixels, about a whole pixel.
  for i, (half, place) in enumerate(
    ((6, [3, 30]), (3, [12, 16]), (9, [23, 1]))
  ):
    draws = dict(lam=1 - (half / 12) ** 2, place=place)
    found.append(dict(kind="mixed", batch=[i], draws=draws, cut=True))
  return found


def _mixed(case: Case, _: Any) -> Any:
  """In a batch of two, the neighbour is the other one in both libraries."""
  draws = case["draws"]
  rng = np.random.default_rng(case["batch"])
  images = jnp.asarray(rng.random((2, 24, 32, 3), np.float32))
  places = iter(draws["place"])
  own = {
    "beta": lambda *_, **__: jnp.float32(draws["lam"]),
    "uniform": lambda *_, **__: jnp.float32(next(places)),
    "bernoulli": lambda *_, **__: jnp.bool_(not case["cut"]),
  }
  with contextlib.ExitStack() as stack:
    for name, function in own.items():
      stack.enter_context(mock.patch.object(jax.random, name, function))
    mix = losses.cutmix if case["cut"] else losses.mixup
    x, targets = mix(jax.random.key(0), images, jnp.eye(2), 1.0)
  return np.concatenate([np.ravel(x), np.ravel(targets)])


_NAMES = ("n02119789", "n01440764", "10", "9", "b", "B", "a b", "é", "_", "Z")


def _labelled(case: Case, _: Any) -> Any:
  with tempfile.TemporaryDirectory() as folder:
    for name in case["names"]:
      place = pathlib.Path(folder, "train", name)
      place.mkdir(parents=True)
      Image.new("RGB", (2, 2)).save(place / "1.jpg")
    names = ImageFolder(folder, "train").class_names
    return [case["names"].index(name) for name in names]


def _labels() -> list[Case]:
  return [dict(kind="labels", names=[*_NAMES])]


ROWS = {
  "inception_crop_timm": PixelRow(
    title="Inception crop, 200 boxes of 5 sizes of images",
    reference="timm",
    program="pixels_torch.py",
    cases=_crops,
    ours=_cropped,
  ),
  "random_erasing": PixelRow(
    title="Random erasing, 120 boxes",
    reference="timm",
    program="pixels_torch.py",
    cases=_erasings,
    ours=_erased,
    sources=lambda: {"48x64": photograph(48, 64), "16": photograph(16, 16)},
    different=(
      (
        "Our box is filled with uniform levels from 0 to 255 before "
        "normalisation, and timm's with a standard normal distribution after "
        "it. Normalised by ImageNet's mean and deviation, our values have a "
        "mean of 0.2 and a standard deviation of 1.28, and timm's 0 and 1."
      ),
    ),
  ),
  "mixup_cutmix": PixelRow(
    title="Mixup and CutMix, images and targets",
    reference="timm",
    program="pixels_torch.py",
    cases=_mixtures,
    ours=_mixed,
    most=1e-6,
    share=1.0,
    different=(
      (
        "In timm, CutMix's box has whole rows and columns, rounded down: each "
        "side loses half a pixel on average. Here its sides and its centre "
        "are real numbers, and the targets are mixed by the share of the image "
        "that is left."
      ),
      (
        "Here an example is mixed with the one before it, and in timm with the "
        "one at the mirrored place of the batch. As batches are shuffled, this "
        "makes no difference."
      ),
    ),
  ),
  "labels": PixelRow(
    title="The order of a folder's classes (torchvision, for DeiT)",
    reference="torchvision",
    program="pixels_torch.py",
    cases=_labels,
    ours=_labelled,
  ),
  "labels_google": PixelRow(
    title="The order of a folder's classes",
    reference="google-research/vision_transformer",
    program="pixels_google.py",
    cases=_labels,
    ours=_labelled,
  ),
}
