"""Compares our logits for published checkpoints with their publishers'.

python scripts/parity/logits.py FOLDER

FOLDER holds checkpoints, such as those of tests/checkpoints, each with a
NAME_io.npz beside it: `images` (B, H, W, 3), float32 and normalised, and the
logits (B, K) that the publisher's own code computes for them. --num_heads gives
the number of heads for formats that do not record it.
"""

import argparse
import pathlib

import numpy as np

import vit_jax


def main() -> None:
  parser = argparse.ArgumentParser(
    description="Compare our logits with the publishers'."
  )
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--num_heads", type=int, default=3)
  arguments = parser.parse_args()
  print("| checkpoint | read as | largest logit | max difference | relative |")
  print("| --- | --- | --- | --- | --- |")
  for io in sorted(arguments.folder.glob("*_io.npz")):
    stem = io.name.removesuffix("_io.npz")
    others = (p for p in arguments.folder.glob(f"{stem}*") if p != io)
    (path,) = (p for p in others if p.name.split(".")[0] == stem)
    print(row(path, io, arguments.num_heads))


def row(path: pathlib.Path, io: pathlib.Path, num_heads: int) -> str:
  """One checkpoint's row of the table."""
  try:
    model, params = vit_jax.load_pretrained(str(path))
  except ValueError as error:
    if "num_heads" not in str(error):
      raise
    model, params = vit_jax.load_pretrained(str(path), num_heads=num_heads)
  with np.load(io) as example:
    images, expected = example["images"], example["logits"]
  logits = model.apply({"params": params}, images)
  difference = np.abs(np.asarray(logits) - expected).max()
  largest = np.abs(expected).max()
  assert model.origin is not None
  return (
    f"| {path.name} | {model.origin.format} | {largest:.2f} | "
    f"{difference:.1e} | {difference / largest:.1e} |"
  )


if __name__ == "__main__":
  main()
