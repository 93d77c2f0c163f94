"""Checkpoints that a run is not complete without: LoRA's base, a teacher.

The run's description has a record of each: its source, its step if that is a
workdir, and a digest of its arrays, by which a change is noticed.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.locate import check_named

Open = Callable[..., Loaded]
_OF_THE_USER = ("task", "base")


def digesting(loaded: Loaded, digests: dict[str, str]) -> Loaded:
  """A copy that puts the SHA-256 of each array into `found` as it is read."""

  def digest(path: str, array: np.ndarray) -> np.ndarray:
    kind = f"{array.dtype}{array.shape}".encode()
    digests[path] = hashlib.sha256(kind + array.tobytes()).hexdigest()
    return array

  return loaded.mapped(digest)


def record(
  loaded: Loaded, digests: Mapping[str, str], **others: Any
) -> dict[str, Any]:
  """The record of a checkpoint that was read with `digesting`, as JSON."""
  source = loaded.origin.source
  place = os.path.abspath(os.path.expanduser(source))
  return {
    "source": place if os.path.exists(place) else source,
    "step": loaded.step,
    "digest": _digest(digests),
    **others,
  }


def open_base(
  open_: Open, saved: Mapping[str, Any], user_source: str | None, **fields: Any
) -> Loaded:
  """Opens the base of a LoRA run again, by `load.open_checkpoint`.

  `saved` is its record, `given` its place if the user gives one, and `fields`
  are those of the model that JSON cannot hold. Raises ValueError if it cannot
  be read, or only the record names its address.
  """
  if saved["step"] is not None:
    fields["step"] = saved["step"]
  source = saved["source"] if user_source is None else user_source
  if user_source is None:
    check_named(source, "the base of this LoRA run", "base")
  # A class to import and an address to open are the user's alone to name.
  model = {k: v for k, v in saved["fields"].items() if k not in _OF_THE_USER}
  try:
    loaded = open_(source, **model, **fields)
  except ValueError as error:
    raise ValueError(
      f"the base of this LoRA run cannot be opened: {error} The run holds only "
      "what was added to it, so it has to be put back."
    ) from error
  # Older records have None, and positions were interpolated so then.
  former = "bicubic" if loaded.model.pooling == "map" else "linear"
  method = saved["interpolation"] or former
  return dataclasses.replace(loaded, interpolation=method)


def check_base(saved: Mapping[str, Any], digests: Mapping[str, str]) -> None:
  """Raises ValueError if a base is not the one that the run was trained on."""
  if (now := _digest(digests)) != saved["digest"]:
    raise ValueError(
      f"{saved['source']} is not what this LoRA run was trained on: the digest "
      f"of its arrays was {saved['digest']} and is {now}. Put the old one back."
    )


def _digest(digests: Mapping[str, str]) -> str:
  text = json.dumps(digests, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]
