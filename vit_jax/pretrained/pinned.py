"""Checkpoints that a run needs besides its own: LoRA's base, or a teacher.

The run's description has a record of each: its source, its step if the source
is a workdir, and a digest of its arrays, which shows whether they have changed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.pretrained.loaded import Loaded


def with_digests(loaded: Loaded, digests: dict[str, str]) -> Loaded:
  """A copy that puts the SHA-256 of each array into `digests` as it is read."""

  def digest(path: str, array: np.ndarray) -> np.ndarray:
    kind = f"{array.dtype}{array.shape}".encode()
    digests[path] = hashlib.sha256(kind + array.tobytes()).hexdigest()
    return array

  return loaded.map_arrays(digest)


def record(
  loaded: Loaded, digests: Mapping[str, str], **others: Any
) -> dict[str, Any]:
  """The record, for JSON, of a checkpoint that was read with `with_digests`.

  `others` are added to it as they are.
  """
  source = loaded.origin.source
  place = os.path.abspath(os.path.expanduser(source))
  return {
    "source": place if os.path.exists(place) else source,
    "step": loaded.step,
    "digest": _digest(digests),
    **others,
  }


def check_base(saved: Mapping[str, Any], digests: Mapping[str, str]) -> None:
  """Raises ValueError if a base is not the one that the run was trained on."""
  if (now := _digest(digests)) != saved["digest"]:
    raise ValueError(
      f"{saved['source']} is not what this LoRA run was trained on: the digest "
      f"of its arrays was {saved['digest']} and is {now}. Put the old weights "
      "back."
    )


def _digest(digests: Mapping[str, str]) -> str:
  """One digest of the digests of all arrays, by path."""
  text = json.dumps(digests, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]
