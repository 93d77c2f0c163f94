"""Converts a checkpoint to another library's format, with a model card.

vit_jax convert runs/my_photos for_transformers --to hf
vit_jax convert --list 'b16*'

SOURCE is any checkpoint that `vit_jax.load_pretrained` reads: a workdir, a file
or a folder of published weights, an address, or a name that --list shows; the
names that timm and Hugging Face give these are accepted too. The formats are
google, big_vision, hf, timm, tips and torchvision.
"""

import os
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.runtime import callable_module, command, hints

if TYPE_CHECKING:
  from vit_jax.pretrained.loaded import Loaded


def define_flags() -> None:
  flags.DEFINE_string(
    "to",
    None,
    "Format to write: google, big_vision, hf, timm, tips or torchvision.",
  )
  flags.DEFINE_bool(
    "list",
    False,
    "List the published checkpoints, or those whose names match a pattern that "
    "is given, such as 'b16*'.",
  )
  flags.DEFINE_string(
    "push",
    None,
    "Hugging Face repository, owner/name, to upload the result to.",
  )
  flags.DEFINE_string(
    "license",
    None,
    "Licence that the model card of --push names, such as apache-2.0; by "
    "default the source's.",
  )
  flags.DEFINE_bool(
    "as_trained",
    False,
    "Write a masked autoencoder with its decoder, or an image tower with its "
    "text tower, for transformers' ViTMAEForPreTraining, or for CLIPModel, "
    "SiglipModel, MetaClip2Model or Tipsv2Model.",
  )
  command.define_overrides()


def main(arguments: list[str]) -> None:
  """Converts a checkpoint, or lists the published ones.

  Raises ValueError if arguments are missing or invalid.
  """
  from vit_jax.pretrained import convert as conversion
  from vit_jax.pretrained import known
  from vit_jax.runtime.display import Display

  if flags.FLAGS.list:
    rows = known.rows(*arguments[:1])
    if not rows or len(arguments) > 1:
      raise ValueError(
        "--list lists the checkpoints whose names match one pattern, such as "
        f"'*dinov2*', and not {' '.join(arguments)!r}."
      )
    return Display().table(known.COLUMNS, rows)
  if flags.FLAGS.to is not None:
    conversion.check_format(flags.FLAGS.to)
  if len(arguments) != 2 or flags.FLAGS.to is None:
    missing = "the folder to write is missing: " if len(arguments) == 1 else ""
    raise ValueError(
      f"{missing}give a source, a folder to write and a format, as in: "
      f"vit_jax convert {(arguments or ['runs/mine'])[0]} out_dir --to hf"
    )
  options = command.values("to", "push", "license")
  if flags.FLAGS.as_trained:
    options["as_trained"] = True
  conversion.convert(*arguments, **options, **command.overrides())


@hints.accepts(
  'vit_jax.convert(source, "out_dir", to="timm")',
  same=dict.fromkeys(("format", "fmt"), "to"),
)
def convert(
  source: "str | os.PathLike[str] | Loaded",
  folder: str | os.PathLike[str] | None = None,
  to: str = "hf",
  **options: Any,
) -> None:
  """Converts a checkpoint, or a loaded model, and prints how to load it.

  `vit_jax.convert(source, folder, to="timm")` is
  `vit_jax.pretrained.convert.convert`, which describes the other options.

  Args:
    source: A checkpoint as `load_pretrained` takes it, or a `Loaded`.
    folder: The folder to write, which has to be new or empty.
    to: The format: hf, timm, google, big_vision, tips or torchvision.
    **options: `push`, `license`, and keywords of `load_pretrained`.

  Raises:
    ValueError: if no folder is given, the source cannot be read, or the
      format is unknown or cannot express the model.

  Example:

  >>> import tempfile
  >>> import jax
  >>> import vit_jax
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=1)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> mine, theirs = tempfile.mkdtemp(), tempfile.mkdtemp()
  >>> vit_jax.save(vit, params, mine, to="big_vision", image_size=32)
  Wrote ...
  >>> vit_jax.convert(mine, theirs, to="timm")
  Wrote ...
  """
  from vit_jax.pretrained import convert as conversion

  conversion.check_format(to)
  if folder is None:
    raise ValueError(
      "the folder to write is missing: give it, as in "
      'vit_jax.convert("runs/mine", "out_dir", to="hf").'
    )
  conversion.convert(source, folder, to, **options)


if __name__ == "__main__":
  command.run(
    main,
    takes="[SOURCE OUT_DIR]",
    define=define_flags,
    beside={
      "list": ("to", "push", "license", "as_trained", *command.OVERRIDES)
    },
  )
else:
  callable_module.make_callable(__name__, convert)
