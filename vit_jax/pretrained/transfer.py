"""A checkpoint's weights in a model for another task (Section 3.2).

The head is new and zero, the representation layer goes, and the positions are
interpolated to the grid of the new image size, unless told otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.models import ResNet, Vit, from_fields, to_fields
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.pretrained.interpolation import resized
from vit_jax.pretrained.loaded import Loaded


def fit(
  pretrained: Loaded,
  class_names: tuple[str, ...],
  fields: Mapping[str, Any],
  *,
  keep_head: bool = False,
  keep_pre_logits: bool = False,
) -> Vit | ResNet:
  """The model to fine-tune.

  Args:
    pretrained: The checkpoint.
    class_names: Of the new data.
    fields: Of the model, in place of the checkpoint's.
    keep_head: Keep its head, and the representation layer with it; the classes
      have to be the same.
    keep_pre_logits: Keep the representation layer under a new head.

  Raises:
    ValueError: if the head cannot be kept.
  """
  old = to_fields(pretrained.model)
  known = pretrained.class_names
  num_classes = fields["num_classes"]
  if keep_head and (
    old["num_classes"] != num_classes or (known and known != class_names)
  ):
    raise ValueError(
      f"transfer.keep_head: the checkpoint has {old['num_classes']} classes "
      f"({_few(known)}) and the data has {num_classes} ({_few(class_names)}), "
      "and they must be the same: leave it out for a new head."
    )
  if "representation_size" in old and not (keep_head or keep_pre_logits):
    old["representation_size"] = None
  return from_fields({**old, **fields})


def _few(names: tuple[str, ...]) -> str:
  shown = ", ".join(names[:3]) or "not named"
  return f"{shown}, ..." if len(names) > 3 else shown


def leaves(
  pretrained: Loaded,
  model: Vit | ResNet,
  image_size: tuple[int, int],
  interpolation: str = "linear",
  *,
  keep_head: bool = False,
) -> Iterator[tuple[str, np.ndarray]]:
  """(path, array) of all parameters that the model takes over.

  Raises:
    ValueError: if one of them does not fit.
  """
  new = grid_of(model, image_size)
  old_size = pretrained.preprocessing.size
  old = grid_of(pretrained.model, old_size) if old_size else new
  wanted = param_shapes(model, new)
  if not keep_head:
    wanted = {k: v for k, v in wanted.items() if not k.startswith("head/")}
  for path, array in pretrained.read():
    if path not in wanted:
      continue
    array = resized(path, array, old, new, interpolation)
    shape = wanted.pop(path)
    if array.shape != shape:
      raise ValueError(
        f"{path} of the checkpoint is {array.shape} and the model needs "
        f"{shape}: leave config.model as the checkpoint is."
      )
    yield path, array
  if wanted:
    raise ValueError(
      f"{pretrained.origin.source} has no {', '.join([*wanted][:3])}, which "
      "the model needs: leave config.model as the checkpoint is."
    )
