"""RandAugment's operations, one at a time, and the decoding of JPEG files."""

import itertools
from typing import Any

import numpy as np
from PIL import Image

from scripts.parity import policy
from scripts.parity.pictures import Script, encoded, patchwork, photograph
from scripts.parity.pixels.row import Case, PixelRow
from vit_jax.data.decoding import decode
from vit_jax.data.example import ImageSpec
from vit_jax.data.transforming import randaugment

# Their names of the operations, in the order in which big_vision draws them.
OPERATIONS = dict(
  AutoContrast="autocontrast",
  Equalize="equalize",
  Invert="invert",
  Rotate="rotate",
  Posterize="posterize",
  Solarize="solarize",
  Color="color",
  Contrast="contrast",
  Brightness="brightness",
  Sharpness="sharpness",
  ShearX="shear_x",
  ShearY="shear_y",
  TranslateX="translate_x",
  TranslateY="translate_y",
  Cutout="cutout",
  SolarizeAdd="solarize_add",
)
_PLAIN = ("AutoContrast", "Equalize", "Invert")
_TIMMS = tuple(
  f"{k}Rel" if k.startswith("Translate") else k
  for k in OPERATIONS
  if k != "Cutout"
)
MOVES = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout")


def _pictures() -> dict[str, np.ndarray]:
  return {"photograph": photograph(224, 224), "patchwork": patchwork(224, 224)}


def _operations(
  names: Any, magnitudes: tuple[float, ...], **fields: Any
) -> list[Case]:
  found = []
  for name, source in itertools.product(names, ("photograph", "patchwork")):
    some = magnitudes if source == "photograph" else magnitudes[-2:]
    for m in some[:1] if name in _PLAIN else some:
      for sign in (1, -1) if name in MOVES else (1,):
        centre = [60, 9] if sign > 0 else [5, 200]
        layer = [0, sign, centre]
        case = dict(kind="operation", name=name, magnitude=m, source=source)
        found.append(dict(case, layer=layer, sign=sign, **fields))
  return found


def draws_of(layers: list) -> dict[str, list[float]]:
  """Our random numbers for layers (operation, sign, centre) of 224 pixels."""
  found: dict[str, list[float]] = {"integers": [], "random": []}
  found["integers"] = [(index + 0.5) / 16 for index, _, _ in layers]
  for index, sign, centre in layers:
    name = [*OPERATIONS][index]
    if name == "Cutout":  # Its column comes first, and its row second.
      found["integers"] += [(place + 0.5) / 224 for place in centre[::-1]]
    elif name in MOVES:
      found["random"].append(0.25 if sign > 0 else 0.75)
  return found


def _published(case: Case, image: np.ndarray) -> Any:
  """One operation, with its draws."""
  index = [*OPERATIONS].index(case["name"])
  script: Any = Script(draws_of([[index, *case["layer"][1:]]]))
  script.left["integers"] = script.left["integers"][1:]
  op = randaugment.PUBLISHED[OPERATIONS[case["name"]]]
  return op(Image.fromarray(image), case["magnitude"] / 10, script)


def _timms(case: Case, image: np.ndarray) -> Any:
  script: Any = Script({"random": [0.75 if case["sign"] < 0 else 0.25]})
  op = randaugment.OPS[OPERATIONS[case["name"].removesuffix("Rel")]]
  return op(Image.fromarray(image), case["magnitude"] / 10, script)


def _contrasts() -> list[Case]:
  base = dict(kind="operation", name="Contrast", layer=[0, 1, [0, 0]])
  return [
    dict(base, magnitude=m, source=source)
    for m in (0, 3, 10, 20)
    for source in ("16", "48x64", "224", "256x300")
  ]


def _sizes() -> dict[str, np.ndarray]:
  return {
    "16": photograph(16, 16),
    "48x64": photograph(48, 64),
    "224": photograph(224, 224),
    "256x300": photograph(256, 300),
  }


def _files() -> dict[str, np.ndarray]:
  found = {}
  for quality, chroma in itertools.product((50, 90, 97), (0, 1, 2)):
    picture = photograph(59, 83, quality + chroma)
    options: Any = dict(quality=quality, subsampling=chroma)
    found[f"{quality}, {chroma}"] = encoded(picture, **options)
  picture = photograph(59, 83)
  found["progressive"] = encoded(picture, quality=90, progressive=True)
  found["grey"] = encoded(picture[..., 0], quality=90)
  return found


def _decoded(case: Case, file: bytes) -> Any:
  return decode.decode_image(file, ImageSpec(fast_dct=not case["precise"]))


ROWS = {
  "randaugment_big_vision": PixelRow(
    title="RandAugment, each operation at magnitudes of 2 to 20",
    reference="google-research/big_vision",
    program="pixels_big_vision.py",
    cases=lambda: _operations(OPERATIONS, (2, 9, 10, 15, 20)),
    ours=_published,
    sources=_pictures,
    every=(13, 9),
  ),
  "contrast": PixelRow(
    title="`contrast()` by itself, at 4 sizes",
    reference="google-research/big_vision",
    program="pixels_big_vision.py",
    cases=_contrasts,
    ours=_published,
    sources=_sizes,
    every=(5, 5),
    different=(
      (
        "Without `as_published`, contrast blends with the mean grey, as Pillow"
        " does. At magnitude 10, a 224 x 224 image whose mean grey is "
        "ImageNet's, 117, gets 71 levels darker with `as_published`."
      ),
    ),
  ),
  "randaugment_timm": PixelRow(
    title="RandAugment's operations, bilinear",
    reference="timm",
    program="pixels_torch.py",
    cases=lambda: [
      dict(case, resample=int(Image.Resampling.BILINEAR))
      for case in _operations(_TIMMS, (3, 9, 10))
    ],
    ours=_timms,
    sources=_pictures,
    every=(13, 9),
    different=(
      (
        "These are the operations without `randaugment_timm`. Beyond magnitude "
        "10, timm stays at 10 unless told otherwise. Images move by 100/224 of "
        "the side here, and by 0.45 of it in timm."
      ),
      (
        "Below magnitude 2.5, timm's posterize asks Pillow for 0 bits, which "
        "Pillow refuses, and ours keeps one bit; timm has no cutout."
      ),
    ),
  ),
  "randaugment_deit": PixelRow(
    title=f"DeiT's RandAugment as a whole, `{policy.POLICY}`",
    reference="timm",
    program="pixels_torch.py",
    cases=policy.cases,
    ours=policy.ours,
    sources=policy.pictures,
    every=(7, 5),
    different=(
      (
        "With `randaugment_layers=2`, `randaugment_magnitude=9` and "
        "`randaugment_timm`. Pixels that come from outside an image get "
        "ImageNet's mean, 124, 116, 104, as in DeiT, whatever "
        "`normalization.mean` is."
      ),
      (
        "At magnitude 10, which one image in 650 gets, timm's posterize asks "
        "Pillow for 0 bits, which Pillow 13 refuses. Here the image turns "
        "black, as it did with Pillow 12 and before; this is not compared."
      ),
    ),
  ),
  "jpeg": PixelRow(
    title="JPEG files, 11, decoded by TensorFlow in both of its ways",
    reference="google-research/big_vision",
    program="pixels_big_vision.py",
    cases=lambda: [
      dict(kind="decode", precise=precise, source=source)
      for precise in (False, True)
      for source in _files()
    ],
    ours=_decoded,
    sources=_files,
    every=(3, 3),
    different=(
      (
        "TensorFlow's default is the fast integer transform, which our "
        "resizers named after TensorFlow use. All other resizers here and "
        "PyTorch's libraries use the exact transform, whose pixels differ by "
        "one level on average, and by up to 4 at quality 90 and 10 at 97."
      ),
    ),
  ),
}
