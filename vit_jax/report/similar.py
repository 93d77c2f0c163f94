"""Finds images that are alike, near-duplicates and clusters.

vit_jax similar CHECKPOINT my_photos --out found
vit_jax similar CHECKPOINT my_photos --query x.jpg --out found

CHECKPOINT is what `vit_jax predict` takes; an encoder such as hf_s14_dinov2 is
best, as images are compared by the cosine of its features. The page
index.html in OUT shows the images, and similar.csv lists the nearest ones of
every image, or with --query those of the queries. The vectors are kept there
too, so that a second search computes those of new images only. Near-duplicates
across training and test folders come first: they make results look better than
they are.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("out", "found", "Folder to write.")
  flags.DEFINE_multi_string(
    "query",
    [],
    "Image, folder or text whose nearest images are searched for; repeatable.",
  )
  flags.DEFINE_integer(
    "neighbours", 5, "Number of nearest images to show.", 1, 1000
  )
  flags.DEFINE_float(
    "duplicates",
    0.93,
    "Least cosine similarity of two images whose pixels are compared, to find "
    "near-duplicates.",
    0.0,
    1.0,
  )
  flags.DEFINE_integer(
    "clusters",
    None,
    "Number of clusters; the default depends on the number of images.",
    1,
  )
  flags.DEFINE_integer("batch_size", 32, "Images to read at once.", 1)
  command.define_overrides()


def main(arguments: list[str]) -> int:
  """Searches the folders after CHECKPOINT; returns the exit code."""
  # Imported here so that --help answers at once.
  from vit_jax.report.similar_images import find_similar

  names = ("out", "query", "neighbours", "duplicates", "clusters", "batch_size")
  return find_similar(
    arguments[0], arguments[1:], **command.values(*names), **command.overrides()
  )


if __name__ == "__main__":
  command.run(
    main,
    takes="CHECKPOINT FOLDER...",
    define=define_flags,
    beside={"query": ("duplicates", "clusters")},
  )
