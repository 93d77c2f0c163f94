"""Says what of a published model no file tells and was guessed.

Each format names the facts that it guesses; here they become one line, which
gives the values as the flags that set them, or keywords of `load_pretrained`.
"""

from collections.abc import Collection
from typing import Any

from vit_jax.data.preprocessing import Preprocessing

# How the pixels are prepared, and everything that may be a guess.
PICTURES = ("mean", "std", "crop")
FACTS = ("num_heads", "gelu", "layer_norm_epsilon", *PICTURES)


def facts(
  guessed: Collection[str], explicit: Collection[str], model: Any
) -> tuple[str, ...]:
  """The facts that are guesses, unless a user or another file says them.

  A gated MLP has no GELU to guess.
  """
  certain = {*explicit, *["gelu"] * bool(getattr(model, "gated_mlp", False))}
  return tuple(
    fact for fact in FACTS if fact in guessed and fact not in certain
  )


def line(
  facts: Collection[str], model: Any, preprocessing: Preprocessing
) -> str | None:
  """Names the facts that were guessed, with their values; None if all is told.

  The number of heads is a guess from the width.
  """
  flags = []
  for fact in facts:
    if fact != "crop":
      owner = preprocessing if fact in PICTURES else model
      flags.append(f"--{fact}={_as_flag(getattr(owner, fact))}")
  text = " ".join(flags)
  if "crop" in facts:
    ways = f"pictures are {preprocessing}, unless a preprocessor_config.json "
    if flags:
      text += ", and "
    text += f"{ways}beside model.safetensors differs"
  return (
    (f"no file says the following, which is guessed: {text}") if text else None
  )


def _as_flag(value: Any) -> str:
  """A value as it is given on the command line."""
  if isinstance(value, tuple):
    return ",".join(map(_as_flag, value))
  return str(value)
