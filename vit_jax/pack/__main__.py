"""Packs images into sharded ArrayRecord files, a TFDS data set of your own.

python -m vit_jax.pack SOURCE OUT [--size=256] [--quality=95] [--labels=FILE]

SOURCE is one of

- a folder as `--config.data.root` takes it, or one of class folders in a bucket
  (gs://bucket/photos);
- a CSV or JSONL file of labels, as `--config.data.labels_file` takes it;
- a folder of Parquet files with image bytes, as the Hugging Face Hub ships
  ImageNet;
- a folder of WebDataset's .tar files;
- a folder with ImageNet's own ILSVRC2012_img_train.tar and, with --labels,
  ILSVRC2012_img_val.tar;
- tfds:NAME, a data set that TFDS prepared (--data_dir).

The images are shuffled once. --size reduces the shorter side; then, and if they
are neither JPEG nor PNG, images are stored as JPEG of --quality. All others
stay as they are, byte for byte. Every image is decoded: those that cannot be
are listed in OUT/unreadable.txt and left out. A command that was stopped goes
on where it stopped. `python -m vit_jax.train --config.data.dir=OUT` reads the
result, and so does `tfds.builder_from_directory(OUT)`. No TensorFlow is needed.
"""

from absl import flags

from vit_jax.runtime import command, extras


def define_flags() -> None:
  flags.DEFINE_integer(
    "size", None, "Shorter side to reduce larger images to, in pixels."
  )
  flags.DEFINE_integer("quality", 95, "JPEG quality.", 1, 100)
  flags.DEFINE_string(
    "labels",
    None,
    "For ImageNet, a file with the WordNet id of each validation image in a "
    "line, in the order of their names; for WebDataset, the classes' names.",
  )
  says = "Let a file of labels name images outside of its folder."
  flags.DEFINE_bool("outside", False, says)
  flags.DEFINE_string("name", None, "The data set's name; OUT's by default.")
  flags.DEFINE_string("data_dir", None, "Where TFDS keeps its data sets.")
  flags.DEFINE_integer("seed", 0, "Seed of the order of the images.")
  flags.DEFINE_integer("shard_mib", 128, "Size of a file, in MiB.", 1)
  flags.DEFINE_integer("workers", None, "Processes; one a core by default.", 1)


def main(arguments: list[str]) -> int:
  from vit_jax.pack.sources import open_sources

  writer = extras.load("vit_jax.pack.writer", "tfds")
  options = flags.FLAGS
  places = arguments[0], options.labels, options.data_dir
  splits = open_sources(*places, options.outside)
  writer.pack(
    splits,
    arguments[1],
    writer.Encoding(options.size, options.quality),
    name=options.name,
    seed=options.seed,
    shard_bytes=options.shard_mib * 2**20,
    workers=options.workers,
  )
  return 0


if __name__ == "__main__":
  command.run(main, takes="SOURCE OUT", define=define_flags)
