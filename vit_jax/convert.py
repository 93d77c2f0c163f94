"""Writes a checkpoint in another library's format, with a model card.

python -m vit_jax.convert runs/mine out_dir --to hf
python -m vit_jax.convert --list

The source is anything `vit_jax.load_pretrained` reads. Formats: google,
big_vision, hf, timm, torchvision.
"""

from absl import flags

from vit_jax import command

_TO = flags.DEFINE_string("to", None, "Format to write.")
_LIST = flags.DEFINE_bool("list", False, "List the checkpoints known by name.")
_STEP = flags.DEFINE_integer("step", None, "Of a workdir; the newest if unset.")
_NUM_HEADS = flags.DEFINE_integer(
  "num_heads", None, "Heads, where the source cannot tell."
)
_GELU = flags.DEFINE_string("gelu", None, "exact or tanh, against the source.")
_EPSILON = flags.DEFINE_float(
  "layer_norm_epsilon", None, "Against the source's."
)
_IMAGE_SIZE = flags.DEFINE_integer(
  "image_size", None, "Side in pixels that positions are resized for."
)


def main(arguments: list[str]) -> None:
  from vit_jax.conversion import convert
  from vit_jax.display import Display
  from vit_jax.pretrained import known

  if _LIST.value:
    Display().table(("name", "model", "trained on", "address"), known.rows())
    return
  if len(arguments) != 2 or _TO.value is None:
    raise ValueError(
      "give a source, a folder to write and a format, as in: "
      "python -m vit_jax.convert runs/mine out_dir --to hf"
    )
  overrides = {
    "step": _STEP.value,
    "num_heads": _NUM_HEADS.value,
    "gelu": _GELU.value,
    "layer_norm_epsilon": _EPSILON.value,
    "image_size": _IMAGE_SIZE.value,
  }
  given = {k: v for k, v in overrides.items() if v is not None}
  source, folder = arguments
  convert(source, folder, _TO.value, **given)


if __name__ == "__main__":
  command.run(main, takes="[SOURCE OUT_DIR]")
