"""Draws what a checkpoint's model has learned, and what it attends to.

vit_jax visualize runs/my_photos cat.jpg --out figures
vit_jax visualize b16_augreg photos --out figures --pca

CHECKPOINT and IMAGE are the same as for `predict`. These figures are written to
the folder --out:

- for the model: its embedding filters and position similarities (Fig. 7);
- for each image: its numbered patches; the raw attention of a layer, the
  attention rollout (Fig. 6 and 14) and the patches that support a class; the
  raw attention by head and by layer; and a sheet of predictions;
- with --pca, for each image: the first three principal components of the
  features of all images' patches, after --layer, as red, green and blue; with
  --foreground, the second to the fourth, of patches where the first is high;
- for all images together: the mean attention distance of each head (Fig. 7).

The arrays behind the figures are written to arrays.npz. The exit code is 1 if
an image could not be read; all others are drawn.
"""

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints
from vit_jax.runtime.shown import Shown, is_loaded, path_of_run

if TYPE_CHECKING:
  from vit_jax.inference.reading import Pictures
  from vit_jax.pretrained.loaded import Loaded

# Written out, so that --help does not load JAX; a test compares the names.
FUSIONS = ("mean", "max", "min")
_OF_A_PICTURE = {"layer", "class_name"}  # Options of one picture of attention.


def define_flags() -> None:
  flags.DEFINE_string("out", None, "Folder to write to.", required=True)
  flags.DEFINE_integer(
    "top", 5, "Number of classes on the sheet of predictions.", lower_bound=1
  )
  flags.DEFINE_enum(
    "head_fusion",
    "mean",
    FUSIONS,
    "How the attention rollout fuses the heads of a layer.",
  )
  flags.DEFINE_float(
    "discard",
    0.0,
    "Fraction of each layer's attention weights, the lowest ones, that the "
    "rollout discards.",
  )
  flags.DEFINE_integer(
    "layer",
    None,
    "Layer whose attention is drawn, counted from 1, or from the end as -1, "
    "-2, ...; the last by default.",
  )
  flags.DEFINE_string(
    "class_name",
    None,
    "Name or number of the class whose supporting patches are drawn; the "
    "likeliest by default.",
  )
  flags.DEFINE_bool(
    "pca", False, "Draw principal components of the patches as colours."
  )
  flags.DEFINE_float(
    "foreground",
    None,
    "With --pca, keep patches above this share of the first component's range.",
  )
  flags.DEFINE_bool(
    "leave_out",
    False,
    "Leave out outlier patches, which attract attention regardless of their "
    "content.",
  )
  command.define_overrides()


def main(arguments: list[str]) -> int:
  """Draws the model and the images; returns the exit code."""
  from vit_jax.inspection.attention_views import Options
  from vit_jax.inspection.draw import visualize_files

  names = [field.name for field in dataclasses.fields(Options)]
  return visualize_files(
    arguments[0],
    arguments[1:],
    out=flags.FLAGS.out,
    options=Options(**command.values(*names)),
    **command.overrides(),
  )


@hints.accepts("vit_jax.visualize(run, images)")
def visualize(
  checkpoint: "str | os.PathLike[str] | Loaded",
  images: "Pictures" = (),
  out: str | os.PathLike[str] = "figures",
  **options: Any,
) -> Shown:
  """Draws what a checkpoint's model attends to, as `vit_jax visualize` does::

    vit_jax.visualize("runs/my_photos", "more_photos", layer=3)

  `loaded.attention(image)` draws one image, and writes no files.

  Args:
    checkpoint: As `load_pretrained` takes it, or what it or `vit_jax.train`
      returned.
    images: A path, a folder, a pattern, a Pillow image, an array, uint8
      (H, W, 3), or a list of these; without images the model's parameters alone
      are drawn.
    out: Folder to write to. For one image, it may be a new .png or .jpg file,
      to which the picture of `loaded.attention` is written, with `layer` and
      `class_name` as options.
    **options: The command's flags, such as `layer`, `class_name`, `pca`,
      `head_fusion`, `discard` and `leave_out`, and those of `load_pretrained`,
      which a loaded model does not take.

  Returns:
    The picture, or those of the folder, which a notebook shows: the rollout of
    each image, or without images those of the model.

  Raises:
    ValueError: if no image is found, the model is not a Vision Transformer, or
      matplotlib is missing.
  """
  from vit_jax.inspection.attention_views import Options
  from vit_jax.inspection.draw import PICTURE_FILES, draw_files, write_attention

  figure_keys = {field.name for field in dataclasses.fields(Options)}
  figure_options = {k: v for k, v in options.items() if k in figure_keys}
  load_options = {k: v for k, v in options.items() if k not in figure_keys}
  loaded: Any = checkpoint
  source = loaded if is_loaded(loaded) else path_of_run(checkpoint)
  is_file = any(
    os.fspath(out).lower().endswith(endings)
    for endings in PICTURE_FILES.values()
  )
  if is_file and not os.path.isdir(out) and {*figure_options} <= _OF_A_PICTURE:
    file = write_attention(source, images, os.fspath(out), **options)
    return Shown((str(file),))
  drawn = draw_files(
    source,
    images,
    out=os.fspath(out),
    options=Options(**figure_options),
    **load_options,
  )
  return Shown(drawn.pictures)


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT [IMAGE...]", define=define_flags)
else:
  callable_module.make_callable(__name__, visualize)
