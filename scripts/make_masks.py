"""Makes masks for a folder of class folders, to try a probe of segmentation.

python scripts/make_masks.py pizza_steak_sushi pizza_masks

Nobody drew these masks: OpenCV's GrabCut parts each photograph into what is in
its middle and the rest, from the colours alone. The rest has class 0 and the
middle 1, 2, ... by the folder's name. So a probe's IoU tells how well patches
know where GrabCut finds the object and what it is, not how well they segment.
The output has images/ and masks/, each with train/ and test/, for
`vit_jax fewshot CHECKPOINT --probe=segment`.
"""

import argparse
import pathlib

import cv2
import numpy as np
from PIL import Image

SIDE = 256  # Of the shorter side of the images that are written.
MARGIN = 0.08  # Share of a side that is taken for background at first.
ITERATIONS = 4


def main() -> None:
  parser = argparse.ArgumentParser(
    description=(__doc__ or "").partition("\n")[0]
  )
  parser.add_argument("folder", type=pathlib.Path, help="has train/ and test/")
  parser.add_argument("out", type=pathlib.Path, help="folder to write to")
  options = parser.parse_args()
  for split in ("train", "test"):
    folders = sorted(
      p for p in (options.folder / split).iterdir() if p.is_dir()
    )
    for number, folder in enumerate(folders, start=1):
      for path in sorted(folder.iterdir()):
        image = smaller(Image.open(path).convert("RGB"))
        name = f"{folder.name}_{path.stem}.png"
        found = mask(np.asarray(image)) * number
        for kind, picture in (("images", image), ("masks", found)):
          place = options.out / kind / split / name
          place.parent.mkdir(parents=True, exist_ok=True)
          picture = Image.fromarray(np.asarray(picture))
          picture.save(place)
  print(f"{options.out}: classes 0 to {len(folders)}")


def smaller(image: Image.Image) -> Image.Image:
  """The image with a shorter side of at most `SIDE` pixels."""
  ratio = min(1.0, SIDE / min(image.size))
  width, height = (round(side * ratio) for side in image.size)
  return image.resize((width, height), Image.Resampling.BICUBIC)


def mask(image: np.ndarray) -> np.ndarray:
  """Which pixels of an (H, W, 3) image are in its middle, uint8 (H, W)."""
  H, W = image.shape[:2]
  top, left = round(MARGIN * H), round(MARGIN * W)
  box = (left, top, W - 2 * left, H - 2 * top)
  found = np.zeros((H, W), np.uint8)
  models = np.zeros((1, 65)), np.zeros((1, 65))
  cv2.setRNGSeed(0)  # Its clusters begin at random.
  args = found, box, *models, ITERATIONS, cv2.GC_INIT_WITH_RECT
  cv2.grabCut(np.ascontiguousarray(image[..., ::-1]), *args)
  return np.isin(found, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.uint8)


if __name__ == "__main__":
  main()
