"""Converts a checkpoint to another library's format, with a model card."""

from typing import Any

from vit_jax.pretrained import hub, known
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.model_card import model_card, usage
from vit_jax.pretrained.save import check_expressible, check_known, save_as
from vit_jax.runtime.atomic_file import local_path
from vit_jax.runtime.display import Display


def convert(
  source: str,
  folder: str,
  to: str,
  *,
  push: str | None = None,
  license: str | None = None,
  **overrides: Any,
) -> None:
  """Converts a checkpoint, and prints how to load the result.

  The arguments are those of the command.

  Raises:
    ValueError: if the source cannot be read, the format cannot express it, or
      it is to be published without a licence; nothing is written then.
    OSError: if the upload fails.
  """
  check_known(to)
  license = license or known.license_of(source)
  if push is not None:
    hub.check_repository(push)
    if license is None:
      raise ValueError(
        "what is published needs a licence, and that of the source is not "
        "known: give --license, such as --license=apache-2.0."
      )
  target = local_path(folder).resolve()
  loaded = open_checkpoint(source, **overrides).in_unit()
  lost = check_expressible(loaded, to)
  display = Display()
  card = model_card(loaded, to, target.name, license)
  save_as(loaded, to, target, card, display.track)
  display.note(f"Wrote {source} as {to} to {folder}. Load it with:")
  display.note(usage(loaded, to, folder))
  for line in lost:
    display.note(f"Note: {line}.")
  if push is not None:
    display.note(f"Uploaded it as {hub.push(target, push)}")
