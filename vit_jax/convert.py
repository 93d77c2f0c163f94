"""Converts a checkpoint to another library's format, with a model card.

vit_jax convert runs/my_photos for_transformers --to hf
vit_jax convert --list 'b16*'

SOURCE is any checkpoint that `vit_jax.load_pretrained` reads: a workdir, a file
or a folder of published weights, an address, or a name that --list shows; the
names that timm and Hugging Face give these are accepted too. The formats are
google, big_vision, hf, timm and torchvision.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string(
    "to", None, "Format to write: google, big_vision, hf, timm or torchvision."
  )
  flags.DEFINE_bool(
    "list", False, "List the published checkpoints of a name, such as 'b16*'."
  )
  flags.DEFINE_string(
    "push", None, "Repository of Hugging Face, owner/name, to upload it to."
  )
  flags.DEFINE_string(
    "license",
    None,
    "Licence that the card names, such as apache-2.0; by default the source's.",
  )
  command.define_overrides()


def main(arguments: list[str]) -> None:
  """Converts or lists; raises ValueError if arguments are missing."""
  from vit_jax.pretrained import known
  from vit_jax.pretrained.convert import convert
  from vit_jax.runtime.display import Display

  if flags.FLAGS.list:
    if not (rows := known.rows(*arguments[:1])) or arguments[1:]:
      raise ValueError(
        "--list lists the checkpoints whose names match one pattern, such as "
        f"'*dinov2*', and not {' '.join(arguments)!r}."
      )
    return Display().table(known.COLUMNS, rows)
  if len(arguments) != 2 or flags.FLAGS.to is None:
    raise ValueError(
      "give a source, a folder to write and a format, as in: "
      "vit_jax convert runs/mine out_dir --to hf"
    )
  options = command.values("to", "push", "license")
  convert(*arguments, **options, **command.overrides())


if __name__ == "__main__":
  command.run(main, takes="[SOURCE OUT_DIR]", define=define_flags)
