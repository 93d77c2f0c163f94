"""What to do about a pickle, which is never loaded here."""

import re

TORCH_ADVICE = (
  "unpickling runs code, so it is refused; convert it once where PyTorch is: "
  'python -c "import torch, safetensors.torch as s; '
  "s.save_file(torch.load('F.pth', map_location='cpu', weights_only=True), "
  "'F.safetensors')\""
)
"""For a file whose name says nothing, or something else."""


def conversion(name: str, first: str = "") -> str:
  """Why it is not read, and a command that converts it, after `first`."""
  made = f"{name.rpartition('.')[0]}.safetensors"
  program = (
    "import torch; from safetensors.torch import save_file; "
    f"save_file(torch.load({name!r}, weights_only=True), {made!r})"
  )
  return (
    "which can run code when it is loaded; convert it once where PyTorch is at "
    f"hand, `{first}python -c {_double_quoted(program)}`"
  )


def _double_quoted(program: str) -> str:
  return '"' + re.sub(r'(["\\$`])', r"\\\1", program) + '"'
