"""Images as whole recipes train on and evaluate them."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from configs import big_vision_s16, deit3, finetune
from scripts.parity.pictures import Script, encoded, photograph
from scripts.parity.pixels.operations import draws_of
from scripts.parity.pixels.row import Case, PixelRow
from vit_jax.data.transforming import augment, transforms
from vit_jax.run.settings import read

_BOXES = ([3, 5, 90, 110], [40, 0, 31, 40], [0, 20, 118, 97], [11, 7, 60, 64])


def _photographs() -> dict[str, np.ndarray]:
  """Neither is square; one has chroma at a half of the resolution."""
  return {
    "wide": encoded(photograph(118, 157, 1), quality=92, subsampling=0),
    "tall": encoded(photograph(153, 121, 2), quality=88, subsampling=2),
  }


@dataclasses.dataclass(frozen=True)
class _Recipe:
  """A published recipe: our configuration, and the reference's own program."""

  title: str
  reference: str
  program: str
  config: Callable[[], Any]


_RECIPES = {
  "big_vision": _Recipe(
    title="S/16, 90 epochs",
    reference="google-research/big_vision",
    program="pixels_big_vision.py",
    config=big_vision_s16.get_config,
  ),
  "google": _Recipe(
    title="Table 4",
    reference="google-research/vision_transformer",
    program="pixels_google.py",
    config=functools.partial(finetune.get_config, "b16_i21k,cifar10"),
  ),
  "deit": _Recipe(
    title="DeiT III",
    reference="facebookresearch/deit",
    program="pixels_torch.py",
    config=functools.partial(deit3.get_config, "B/16"),
  ),
}


@functools.cache
def recipe(name: str) -> Any:
  """The settings of a configuration file."""
  return read(_RECIPES[name].config())


def _trained(
  settings: Any, case: Case, file: bytes, draws: Any, box: Any = None
) -> Any:
  """A training image by a recipe's settings; with a box if ours is another."""
  transform = transforms.make_train_transform(case["size"], settings)
  given = contextlib.nullcontext()
  if box is not None:
    given = mock.patch.object(augment, "published_box", lambda *_, **__: box)
  with given:
    return transform(file, Script(draws))  # pyright: ignore[reportArgumentType]


def _evaluated(name: str, case: Case, file: bytes) -> Any:
  """An image as a recipe evaluates it."""
  settings = recipe(name)
  size = case["size"]
  return transforms.make_eval_transform(size, settings.eval_transform)(file)


def _big_visions() -> list[Case]:
  program = "decode_jpeg_and_inception_crop({0})|flip_lr|randaug(2,10)"
  layers = itertools.cycle([3, 7, 10, 14, 5, 9, 13, 0])
  found = []
  for i, (source, box) in enumerate(itertools.product(("wide",), _BOXES)):
    some = [
      [next(layers), 1 - 2 * (i % 2), [30 + 40 * i, 200 - 50 * i]]
      for _ in range(2)
    ]
    case = dict(kind="train", size=224, program=program.format(224))
    found.append(dict(case, source=source, box=box, flip=i % 2, layers=some))
  for source, box in itertools.product(("wide", "tall"), _BOXES):
    case = dict(kind="train", size=48, source=source, box=box, flip=0)
    found.append(
      dict(case, layers=[], program=program.format(48).rpartition("|")[0])
    )
  return found


def _as_big_vision(case: Case, file: bytes) -> Any:
  draws = draws_of(case["layers"])
  draws["random"].insert(0, 0.25 if case["flip"] else 0.75)
  settings = recipe("big_vision").train_transform
  if not case["layers"]:
    settings = dataclasses.replace(settings, randaugment_layers=0)
  return _trained(settings, case, file, draws, case["box"])


def _evals_of_big_vision() -> list[Case]:
  found = []
  for source, size in itertools.product(("wide", "tall"), (224, 112, 48)):
    short = round(size * 256 / 224)
    program = f"decode|resize_small({short})|central_crop({size})"
    found.append(dict(kind="train", size=size, program=program, source=source))
  return [*found, dict(kind="resized_shapes", sizes=_shapes(), short=256)]


def _shapes() -> list[list[int]]:
  rng = np.random.default_rng(3)
  return rng.integers(16, 3000, (3000, 2)).tolist()


def _evaluated_by_big_vision(case: Case, file: Any) -> Any:
  if case["kind"] == "train":
    return _evaluated("big_vision", case, file)
  settings = recipe("big_vision").eval_transform
  resized = functools.partial(
    transforms.resized_shape, size=(224, 224), settings=settings
  )
  return [resized((h, w)) for h, w in case["sizes"]]


def _googles() -> list[Case]:
  return [
    dict(kind="pixels", mode="train", size=48, source=source, box=box, flip=i)
    for source in ("wide", "tall")
    for i, box in enumerate(_BOXES[:2])
  ]


def _as_google(case: Case, file: bytes) -> Any:
  draws = {"random": [0.25 if case["flip"] else 0.75]}
  settings = recipe("google").train_transform
  return _trained(settings, case, file, draws, case["box"])


def _evals_of_google() -> list[Case]:
  return [
    dict(kind="pixels", mode="test", size=size, source=source)
    for source in ("wide", "tall")
    for size in (48, 200)
  ]


def _deits() -> list[Case]:
  rng = np.random.default_rng(8)
  found = []
  for i in range(12):
    uniform = (
      (rng.random(3) * (0.5, 1, 1)).round(3).tolist()
    )  # A box that fits.
    integers = [*rng.random(2).round(3).tolist(), (i % 3 + 0.5) / 3]
    draws = dict(uniform=uniform, integers=integers, random=[0.5], flip=[i % 2])
    draws |= dict(jitter=rng.random(3).round(3).tolist())
    draws |= dict(order=rng.permutation(3).tolist())
    source = ("wide", "tall")[i // 2 % 2]
    case = dict(kind="deit_train", size=(40, 48)[i % 2], draws=draws)
    found.append(dict(case, source=source))
  return found


def _as_deit(case: Case, file: bytes) -> Any:
  draws = case["draws"]
  blur = draws["uniform"][2:] if draws["integers"][2] > 2 / 3 else []
  jitter = [draws["jitter"][kind] for kind in draws["order"]]
  own = dict(
    uniform=[*draws["uniform"][:2], *blur, *jitter],
    integers=draws["integers"],
    random=draws["flip"],
    order=draws["order"],
  )
  return _trained(recipe("deit").train_transform, case, file, own)


def _evals_of_deit() -> list[Case]:
  return [
    dict(kind="deit_eval", size=size, ratio=1.0, source=source)
    for source in ("wide", "tall")
    for size in (48, 101, 192)
  ]


_WHOLE = (
  "The reference gives the model real numbers, and ours whole levels of 0 to "
  "255: rounding changes a value by half a level at most."
)
_EDGE = (
  "TensorFlow decodes the box alone, so if chroma has half the resolution, it "
  "has other chroma at the box's edge; other differences come from rounding "
  "down."
)
_NEAR = (
  "If the area filter enlarges an image, results are near whole levels, and "
  "rounding errors decide for up to 4 % of them which of two levels they get; "
  "if it shrinks the image, for 0.6 %."
)
# What is compared of each recipe, by kind of image and name of the recipe.
_COMPARISONS: dict[tuple[str, str], dict[str, Any]] = {
  ("train", "big_vision"): dict(
    title="training images, with RandAugment",
    cases=_big_visions,
    ours=_as_big_vision,
    most=2.0,
    share=0.01,
    different=(_EDGE,),
    every=(3, 3),
  ),
  ("train", "google"): dict(
    title="training images",
    cases=_googles,
    ours=_as_google,
    most=0.51,
    share=1.0,
    different=(_WHOLE,),
  ),
  ("train", "deit"): dict(
    title="training images, with 3-Augment and jitter",
    cases=_deits,
    ours=_as_deit,
  ),
  ("eval", "big_vision"): dict(
    title="evaluation, and the sizes of 3,000 images",
    cases=_evals_of_big_vision,
    ours=_evaluated_by_big_vision,
    most=1.0,
    share=0.05,
    different=(_NEAR,),
    every=(2, 2),
  ),
  ("eval", "google"): dict(
    title="evaluation",
    cases=_evals_of_google,
    ours=functools.partial(_evaluated, "google"),
    most=0.51,
    share=1.0,
    every=(2, 2),
    different=(_WHOLE,),
  ),
  ("eval", "deit"): dict(
    title="evaluation",
    cases=_evals_of_deit,
    ours=functools.partial(_evaluated, "deit"),
    every=(2, 2),
  ),
}


def _row(name: str, title: str, **fields: Any) -> PixelRow:
  """The row of a comparison, with what its recipe has in all rows."""
  published = _RECIPES[name]
  return PixelRow(
    title=f"{published.title}: {title}",
    reference=published.reference,
    program=published.program,
    sources=_photographs,
    **fields,
  )


ROWS = {
  f"{kind}_{name}": _row(name, **fields)
  for (kind, name), fields in _COMPARISONS.items()
}
