"""Writes captions of a folder of class folders, to try pairs on few images.

python scripts/make_captions.py pizza_steak_sushi captions.csv

Nobody wrote these captions: each says the photograph's class, its two commonest
colours, by their names and by OpenCV's hues alone, and into how many large
pieces its commonest colour falls. An image has two captions, which say it in
different orders, so a run on the file is about classes and colours, not about
language. The file is for `vit_jax train captions.csv --config pairs
--config.data.root=FOLDER`.
"""

import argparse
import csv
import pathlib

import cv2
import numpy as np
from PIL import Image

SIDE = 64  # Of the image whose pixels are named and counted.
GREY, BLACK, WHITE = 40, 60, 200  # Saturation below; value below and above.
DARK = 140  # An orange that is darker is brown.
HUES = (  # The end of each colour's hues, of 180.
  (8, "red"),
  (22, "orange"),
  (34, "yellow"),
  (85, "green"),
  (130, "blue"),
  (165, "purple"),
  (180, "red"),
)
NAMES = ("black", "white", "grey", "brown", *dict.fromkeys(n for _, n in HUES))
LARGE = 0.01  # Share of the image that a piece has to have.
MOST = 5  # Pieces that are counted; more are many.


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("folder", type=pathlib.Path, help="has train/ and test/")
  parser.add_argument("out", type=pathlib.Path, help="CSV file to write")
  options = parser.parse_args()
  every = set()
  with options.out.open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["file", "caption", "split"])
    for split in ("train", "test"):
      for path in sorted((options.folder / split).glob("*/*")):
        with Image.open(path) as image:
          pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
        for caption in captions(path.parent.name, pixels):
          place = path.relative_to(options.folder).as_posix()
          rows.writerow([place, caption, split])
          every.add(caption)
  print(f"{options.out}: {len(every)} different captions")


def captions(name: str, pixels: np.ndarray) -> list[str]:
  """Two captions of an image, uint8 (H, W, 3), of the class `name`."""
  named = colours(pixels)
  counts = np.bincount(named.ravel(), minlength=len(NAMES))
  first, second = np.argsort(-counts, kind="stable")[:2]
  number = pieces(named == first)
  count = "many" if number > MOST else str(number)
  one, other = NAMES[first], NAMES[second]
  ending = "piece" if number == 1 else "pieces"
  return [
    f"a photo of {name}, {one} and {other}, with {count} {one} {ending}",
    f"{count} {one} {ending} and some {other} in a picture of {name}",
  ]


def colours(pixels: np.ndarray) -> np.ndarray:
  """The index in `NAMES` of each pixel's colour, (H, W)."""
  hue, saturation, value = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV))
  ends = [end for end, _ in HUES]
  by_hue = np.array([NAMES.index(name) for _, name in HUES])
  named = by_hue[np.searchsorted(ends, hue, "right")]
  is_brown = (named == NAMES.index("orange")) & (value < DARK)
  named[is_brown] = NAMES.index("brown")
  named[saturation < GREY] = NAMES.index("grey")
  named[(saturation < GREY) & (value > WHITE)] = NAMES.index("white")
  named[value < BLACK] = NAMES.index("black")
  return named


def pieces(mask: np.ndarray) -> int:
  """The number of connected pieces of a mask, (H, W), that are large."""
  smooth = cv2.medianBlur(mask.astype(np.uint8), 5)
  _, _, facts, _ = cv2.connectedComponentsWithStats(smooth)
  return int((facts[1:, cv2.CC_STAT_AREA] >= LARGE * mask.size).sum())


if __name__ == "__main__":
  main()
