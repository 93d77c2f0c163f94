"""Embeds texts by the text tower of a model of images and text.

vit_jax embed CHECKPOINT "a cat" "a red car" --out texts.npz
vit_jax embed CHECKPOINT --texts classes.txt --out classes.npz

CHECKPOINT is a CLIP, SigLIP, SigLIP 2 or TIPSv2 with its tokenizer, as a
folder, an address or a name that `vit_jax convert --list` shows. The file holds
`names`, `embeddings` of length 1, and the `scale` and `bias` of the model's
similarities: `vit_jax predict IMAGE_TOWER photos --head=FILE` chooses among
these texts.
"""

from absl import flags

from vit_jax.runtime import command


def define_flags() -> None:
  flags.DEFINE_string("out", None, "An .npz file to write.")
  command.define_texts()
  flags.register_validator(
    "out", lambda out: out, message="name the file to write, --out=texts.npz"
  )


def main(arguments: list[str]) -> None:
  options = flags.FLAGS
  embed_texts(
    arguments[0],
    arguments[1:],
    out=options.out,
    texts=options.texts,
    templates=tuple(options.template),
  )


def embed_texts(
  checkpoint: str,
  names: list[str],
  *,
  out: str,
  texts: str | None = None,
  templates: tuple[str, ...] = (),
) -> None:
  """Writes the embeddings of texts; the arguments are those of the command.

  Raises ValueError if there are no texts, or both kinds, or the checkpoint has
  no text tower, and OSError if a file cannot be read or written.
  """
  # Imported here so that --help answers at once.
  import sys

  from vit_jax.inference.text_head import read_names, write_text_head
  from vit_jax.pretrained.text import TEMPLATES, load_text
  from vit_jax.runtime.files import output_file, replacing
  from vit_jax.runtime.printable import say

  if bool(names) == (texts is not None):
    raise ValueError(
      'give texts, as in "a cat" "a red car", or --texts=FILE with the name of '
      f"a class in each line{' instead' if names else ''}."
    )
  if names and templates:
    raise ValueError(
      "--template goes around the names of --texts; write the texts as a whole."
    )
  path, _ = output_file(out, {"NumPy arrays": (".npz",)})
  whole = ("{}",)
  if texts is not None:
    names = read_names(texts)
    whole = templates or TEMPLATES
  head = load_text(checkpoint).head(names, whole)
  with replacing(path) as file:
    write_text_head(file, head)
  number, size = head.embeddings.shape
  plural = "s" * (number != 1)
  say(f"Wrote {number:,} text{plural} of {size} values to {out}.", sys.stdout)


if __name__ == "__main__":
  command.run(main, takes="CHECKPOINT [TEXT...]", define=define_flags)
