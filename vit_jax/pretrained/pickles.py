"""What to do about a pickle, which is never loaded here."""

import re


def conversion(name: str, first: str = "") -> str:
  """Why it is not read, and a command that converts it, after `first`."""
  return (
    "which can run code when it is loaded; convert it once where PyTorch is at "
    f"hand, `{first}{_command(name)}`"
  )


def _command(name: str) -> str:
  made = f"{name.rpartition('.')[0]}.safetensors"
  program = (
    "import torch; from safetensors.torch import save_file; "
    f"save_file(torch.load({name!r}, map_location='cpu', weights_only=True), "
    f"{made!r})"
  )
  return f"python -c {_double_quoted(program)}"


def _double_quoted(program: str) -> str:
  return '"' + re.sub(r'(["\\$`])', r"\\\1", program) + '"'


TORCH_ADVICE = (
  "unpickling runs code, so it is refused; convert it once where PyTorch is: "
  + _command("F.pth")
)
"""For a file whose name says nothing, or something else."""
