"""Names of arrays, classes and the loss, in any checkpoint of transformers."""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.models import BaseVit
from vit_jax.pretrained.formats.architecture import section
from vit_jax.runtime.printable import quoted

# `state_dict()` since release 5 -> what `save_pretrained` writes.
_SAVED = {
  "attention.q_proj.": "attention.attention.query.",
  "attention.k_proj.": "attention.attention.key.",
  "attention.v_proj.": "attention.attention.value.",
  "attention.o_proj.": "attention.output.dense.",
}
_SAVED_MLP = {"mlp.fc1.": "intermediate.dense.", "mlp.fc2.": "output.dense."}


def saved_name(name: str) -> str:
  """The name that `save_pretrained` gives to an array of `state_dict()`.

  The two differ since release 5, in ViT, MAE, DeiT, DINOv2 and DINOv3. Names of
  other formats stay as they are.
  """
  found = re.sub(r"^model\.(layer\.\d+\.)", r"\1", name)
  found = re.sub(r"^((?:vit|deit)\.)?layers\.", r"\1encoder.layer.", found)
  if "encoder.layer." in found:
    parts = _SAVED_MLP if found != name else {}
    for new, saved in (parts | _SAVED).items():
      found = found.replace(new, saved)
  return found


def loss(config: Mapping[str, Any], num_classes: int) -> str:
  """The loss that the library infers, and that its pipeline assumes."""
  kind = config.get("problem_type")
  if kind == "regression":
    return "mse"
  several = kind == "multi_label_classification"
  return "sigmoid" if several or num_classes == 1 else "softmax"


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
  """The names in `id2label`, unless they are the library's placeholders."""
  labels = section("id2label", config.get("id2label"))
  strange = [key for key in labels if not re.fullmatch(r"\d{1,9}", key)]
  if strange:
    raise ValueError(
      f"id2label has the key {quoted(strange[0])}; all must be the numbers of "
      "classes: correct it."
    )
  names = tuple(str(labels[key]) for key in sorted(labels, key=int))
  placeholders = (f"LABEL_{i}" for i in range(len(names)))
  return () if names == tuple(placeholders) else names


def problem(loss: str) -> dict[str, str]:
  """The part of a configuration that tells the loss."""
  kinds = {"sigmoid": "multi_label_classification", "mse": "regression"}
  return {"problem_type": kinds[loss]} if loss in kinds else {}


def labels(vit: BaseVit) -> dict[str, Any]:
  """The names of the classes, as configurations have them."""
  names = vit.origin.class_names[: vit.num_classes] if vit.origin else ()
  # The head may have more classes than the data.
  found = [*names, *(f"LABEL_{i}" for i in range(len(names), vit.num_classes))]
  return {
    "id2label": {str(i): label for i, label in enumerate(found)},
    "label2id": {label: i for i, label in enumerate(found)},
  }
