"""Reports the facts about a published model that no file states.

Each format names the facts that it guesses. Here they become one line, which
lists each value with the flag that sets it, such as --gelu=tanh; keywords of
`load_pretrained` have the same names.
"""

from collections.abc import Collection
from typing import Any

from vit_jax.data.preprocessing import Preprocessing

# The facts on how pixels are prepared that may be guesses.
PICTURES = ("mean", "std", "crop")
# All facts that may be guesses.
FACTS = ("num_heads", "gelu", "layer_norm_epsilon", *PICTURES)


def facts(
  guessed: Collection[str], explicit: Collection[str], model: Any
) -> tuple[str, ...]:
  """The `guessed` facts, without the `explicit` ones of a user or a file.

  The GELU is left out, too, if the model's MLPs are gated.
  """
  certain = {*explicit}
  if getattr(model, "gated_mlp", False):
    certain.add("gelu")  # Such an MLP has no GELU to guess.
  return tuple(
    fact for fact in FACTS if fact in guessed and fact not in certain
  )


def line(
  facts: Collection[str], model: Any, preprocessing: Preprocessing
) -> str | None:
  """A line on the guessed facts and their values; None if there are none."""
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
    f"no file says the following, which is guessed: {text}" if text else None
  )


def _as_flag(value: Any) -> str:
  """A value as it is given on the command line."""
  if isinstance(value, tuple):
    return ",".join(map(_as_flag, value))
  return str(value)
