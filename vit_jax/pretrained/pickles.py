"""Refuses pickles, which can run code, and says how to convert them."""

import os
import re
import shlex
from urllib.parse import unquote

from vit_jax.pretrained.known import PICKLES


def refuse_pickle(source: str) -> None:
  """Raises ValueError if a path or an address has the ending of a pickle."""
  name, get = source, ""
  if "://" in source:
    name = unquote(source).rpartition("/")[2]
    get = f"curl -LO {shlex.quote(source)} && "
  if name.lower().endswith(PICKLES) and not os.path.isdir(source):
    raise ValueError(
      f"{source} is a pickle, {conversion(name, get)}, and give that file."
    )


def conversion(name: str, first: str = "") -> str:
  """Says why a pickle is refused, and what converts it, after a command."""
  return (
    "which can run code when it is loaded; convert it once on a machine with "
    f"PyTorch, `{first}{_command(name)}`"
  )


def _command(name: str) -> str:
  made = f"{name.rpartition('.')[0]}.safetensors"
  program = (
    "import torch; from safetensors.torch import save_file; "
    f"save_file(torch.load({name!r}, map_location='cpu', weights_only=True), "
    f"{made!r})"
  )
  quoted = re.sub(r'(["\\$`])', r"\\\1", program)
  return f'python -c "{quoted}"'


# Advice for a pickle whose file name does not show that it is one.
TORCH_ADVICE = (
  "unpickling can run code, so it is refused; convert it once on a machine "
  "with PyTorch: " + _command("F.pth")
)
