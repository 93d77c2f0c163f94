"""Packs images into sharded ArrayRecord files, a TFDS data set of your own.

vit_jax pack my_photos packed --size 256
vit_jax pack --verify=packed

SOURCE is one of

- a folder as `--config.data.root` takes it, or one of class folders in a bucket
  (gs://bucket/photos);
- a CSV or JSONL file of labels or captions, as `--config.data.labels_file`
  takes it;
- a folder of Parquet files with image bytes, as the Hugging Face Hub ships
  ImageNet, or the root of such a repository, with the files in data/;
- a folder of WebDataset's .tar files, with .cls, .txt or .json beside an image;
- a folder with ImageNet's own ILSVRC2012_img_train.tar and, with --labels,
  ILSVRC2012_img_val.tar;
- tfds:NAME, a data set that TFDS prepared (--data_dir).

The images are shuffled once. --size reduces the shorter side of larger images,
which are then stored as JPEG of --quality. JPEG and PNG files that are not
reduced stay as they are, byte for byte. Other lossless files (BMP, GIF, TIFF,
lossless WebP) become PNG if no --quality is given, and all the rest JPEG.
Images that cannot be decoded are listed in OUT/unreadable.txt and left out. A
command that was stopped can be repeated to finish, and --verify compares OUT
with its checksums. `vit_jax train OUT` reads the result, and so does
`tfds.builder_from_directory(OUT)`. No TensorFlow is needed.
"""

import os
import pathlib
import sys

from absl import flags
from etils import epath

from vit_jax.data.reading.class_lists import SUMS, read_sums
from vit_jax.data.settings import HELD_OUT_BY, check_address
from vit_jax.pack import notes
from vit_jax.runtime import command, extras
from vit_jax.runtime.files import output_folder, read_regular, real_path
from vit_jax.runtime.printable import printable, say

# The flags that have an effect on packing alone, not on --verify.
_OF_PACKING = (
  "size",
  "quality",
  "encoding",
  "labels",
  "label_column",
  "outside",
  "held_out_by",
  "name",
  "data_dir",
  "seed",
  "shard_mib",
  "workers",
)


def define_flags() -> None:
  """Defines the flags of the command."""
  flags.DEFINE_integer(
    "size", None, "Shorter side to reduce larger images to, in pixels.", 1
  )
  flags.DEFINE_integer(
    "quality",
    None,
    "Quality of images that are encoded as JPEG, 95 by default; if it is "
    "given, BMP, GIF, TIFF and lossless WebP files become JPEG, not PNG.",
    1,
    100,
  )
  kinds = ["jpeg", "raw"]
  flags.DEFINE_enum(
    "encoding",
    "jpeg",
    kinds,
    'How images are stored: "jpeg" keeps JPEG and PNG files that --size does '
    'not reduce, and encodes the others; "raw" stores the pixels of all images '
    "without compression.",
  )
  flags.DEFINE_string(
    "labels",
    None,
    "For ImageNet, a file with the WordNet id of each validation image, one "
    "per line, in the order of the images' names; for WebDataset, the names of "
    "the classes.",
  )
  flags.DEFINE_string(
    "label_column",
    None,
    "The column of class numbers in Parquet files, if it is not called label, "
    "labels, cls or class.",
  )
  says = "Let a file of labels name images outside of its folder."
  flags.DEFINE_bool("outside", False, says)
  says = (
    "How the images to hold out are chosen, as by data.held_out_by; by default "
    "as in the packing that OUT holds already, if there is one."
  )
  flags.DEFINE_enum("held_out_by", None, HELD_OUT_BY, says)
  says = "The data set's name; by default that of the folder OUT."
  flags.DEFINE_string("name", None, says)
  flags.DEFINE_string("data_dir", None, "Where TFDS keeps its data sets.")
  flags.DEFINE_integer("seed", 0, "Seed of the order of the images.", 0)
  flags.DEFINE_integer("shard_mib", 128, "Size of each file, in MiB.", 1)
  flags.DEFINE_string("verify", None, "Folder to check, instead of packing.")
  flags.DEFINE_integer(
    "workers", None, "Number of processes; one per core by default.", 1
  )


def main(arguments: list[str]) -> None:
  """Packs or verifies; raises ValueError if the arguments are invalid."""
  from vit_jax.pack.sources import open_sources

  options = flags.FLAGS
  if len(arguments) != (2 if options.verify is None else 0):
    raise ValueError("give SOURCE and OUT, or nothing but --verify=OUT.")
  for name, value in zip(("SOURCE", "OUT"), arguments, strict=False):
    check_address(name, value)
  for name in ("labels", "data_dir", "verify"):
    check_address(f"--{name}", options[name].value)
  if options.verify is not None:
    return verify(options.verify)
  if "://" not in arguments[1]:
    output_folder(arguments[1])
  quality = options.quality or 95
  lossless = options.quality is None and notes.is_lossless(arguments[1])
  if options.encoding == "raw":
    if options.quality is not None:
      raise ValueError(
        "--quality is for JPEG: leave it out for --encoding=raw."
      )
    quality, lossless = None, False
  writer = extras.load("vit_jax.pack.writer", "tfds")
  source, out = arguments
  _check_beside(source, out)
  splits = open_sources(
    source,
    labels=options.labels,
    data_dir=options.data_dir,
    outside=options.outside,
    held_out=notes.keys_of_held_out(out, options.held_out_by),
    label_column=options.label_column,
    older=notes.is_begun(out),
  )
  rules = [getattr(split, "held_out", None) for split in splits.values()]
  if options.held_out_by and not any(rules):
    raise ValueError(
      f"--held_out_by={options.held_out_by} has no effect on {source}, as no "
      "images are held out there: leave it out."
    )
  writer.pack(
    splits,
    out,
    writer.Encoding(options.size, quality, lossless),
    name=options.name,
    seed=options.seed,
    shard_bytes=options.shard_mib * 2**20,
    workers=options.workers,
  )


def _check_beside(source: str, out: str) -> None:
  """Raises ValueError if a new OUT would lie in the folder SOURCE.

  It would be taken for one of the classes there.
  """
  if "://" in source + out or notes.is_begun(out):
    return
  if real_path(out).startswith(f"{real_path(source)}{os.sep}"):
    raise ValueError(
      f"OUT, {out}, lies in SOURCE, {source}, where it would be taken for one "
      "more class: choose a folder beside SOURCE."
    )


def verify(out: str) -> None:
  """Compares files with their checksums, and prints those that differ.

  Raises ValueError if there are such files, or no files at all, and
  FileNotFoundError without a file of checksums.
  """
  folder = epath.Path(out).expanduser()
  sums = read_sums(read_regular(folder / SUMS))
  there = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
  shards = {name for name in there if "array_record" in name}
  names = sorted(shards | {*sums})
  bad = 0
  for name in names:
    path = pathlib.PurePosixPath(name)
    if "://" in name or path.is_absolute() or ".." in path.parts:
      _say(f"{SUMS} names {printable(name)}, which is not in {folder}")
      bad += 1
    elif (digest := notes.file_digest(folder / name)) != sums.get(name):
      wrong = "is missing" if digest is None else f"differs from {SUMS}"
      _say(f"{printable(str(folder / name))} {wrong}")
      bad += 1
  if bad or not names:
    raise ValueError(
      f"{bad} of {len(names)} files of {folder} are not as they were packed: "
      "copy them again, or repeat the command that packed them."
    )
  _say(f"{folder}: all {len(names)} files are as they were packed.")


def _say(line: str) -> None:
  """Prints a line to standard output."""
  say(line, sys.stdout)


if __name__ == "__main__":
  command.run(
    main,
    takes="[SOURCE OUT]",
    define=define_flags,
    beside={"verify": _OF_PACKING},
  )
