"""Names of arrays, classes and the loss, for any checkpoint of transformers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.models import BaseVit
from vit_jax.pretrained.formats.architecture import section
from vit_jax.runtime.printable import quoted

# Names in `state_dict()` since release 5 -> those that `save_pretrained` has.
_SAVED = {
  "attention.q_proj.": "attention.attention.query.",
  "attention.k_proj.": "attention.attention.key.",
  "attention.v_proj.": "attention.attention.value.",
  "attention.o_proj.": "attention.output.dense.",
}
_INTERNVIT = ".attention.projection_layer."
_EMBEDDED = "embeddings.patch_embeddings."
_SAVED_MLP = {"mlp.fc1.": "intermediate.dense.", "mlp.fc2.": "output.dense."}


def saved_name(name: str) -> str:
  """The name that `save_pretrained` gives to an array of `state_dict()`.

  The two differ since release 5, in ViT, MAE, DeiT, DINOv2 and DINOv3. Names of
  other formats stay as they are.
  """
  saved = re.sub(r"^model\.(layer\.\d+\.)", r"\1", name)
  saved = re.sub(
    r"^((?:vit|deit|ijepa)\.)?layers\.", r"\1encoder.layer.", saved
  )
  if "encoder.layer." in saved:
    parts = _SAVED_MLP if saved != name else {}
    for new, old in (parts | _SAVED).items():
      saved = saved.replace(new, old)
  return saved


def saved_names(names: Iterable[str]) -> dict[str, str]:
  """The name that `save_pretrained` gives -> the name in a file.

  transformers 5.23 leaves out the base before the layers of some models (MSN).
  The two names of an InternViT's array are always the same.
  """
  names = [*names]
  if any(_INTERNVIT in name for name in names):
    return {name: name for name in names}
  in_file = {saved_name(name): name for name in names}
  bases = {
    name.split("embeddings.")[0] for name in in_file if _EMBEDDED in name
  }
  bare = {name for name in in_file if name.startswith("encoder.layer.")}
  if len(bases) != 1 or not bare:
    return in_file
  base = bases.pop()
  return {(base + k if k in bare else k): name for k, name in in_file.items()}


def loss(config: Mapping[str, Any], num_classes: int) -> str:
  """The loss that the library infers from a configuration."""
  kind = config.get("problem_type")
  if kind == "regression":
    return "mse"
  is_multi_label = kind == "multi_label_classification"
  return "sigmoid" if is_multi_label or num_classes == 1 else "softmax"


def class_names(
  config: Mapping[str, Any], num_classes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The names in `id2label`, and a line on each thing that is odd about them.

  A class without a name is called by its number. The names are () if all are
  the library's placeholders. Raises ValueError if a key is not a number or
  occurs twice, or if a name is not a text or a number.
  """
  names: dict[int, str] = {}
  for key, name in section("id2label", config.get("id2label")).items():
    if not re.fullmatch(r"[0-9]{1,9}", key):
      raise ValueError(
        f"id2label has the key {quoted(key)}; all must be numbers of classes: "
        "correct it."
      )
    if int(key) in names:
      raise ValueError(f"id2label names class {int(key)} twice: correct it.")
    if not isinstance(name, str | int | float) or isinstance(name, bool):
      raise ValueError(
        f"id2label names class {int(key)} {quoted(name)}, which is not a name: "
        "correct it."
      )
    names[int(key)] = str(name)
  if all(name == f"LABEL_{i}" for i, name in names.items()) or not num_classes:
    return (), ()
  notes = []
  lacking = [i for i in range(num_classes) if i not in names]
  if lacking:
    notes.append(
      f"id2label names {num_classes - len(lacking)} of {num_classes} classes; "
      f"the others are called by their numbers, as 'class {lacking[0]}'"
    )
  if beyond := sorted(i for i in names if i >= num_classes):
    notes.append(
      f"id2label names a class {beyond[-1]}, and the head has {num_classes} "
      "classes: names from there on are left out"
    )
  all_names = (names.get(i, f"class {i}") for i in range(num_classes))
  return tuple(all_names), tuple(notes)


def problem(loss: str) -> dict[str, str]:
  """The part of a configuration on the loss; {} for "softmax"."""
  kinds = {"sigmoid": "multi_label_classification", "mse": "regression"}
  return {"problem_type": kinds[loss]} if loss in kinds else {}


def labels(vit: BaseVit) -> dict[str, Any]:
  """The part of a configuration on the names of the classes."""
  names = vit.origin.class_names[: vit.num_classes] if vit.origin else ()
  # The head may have more classes than the data.
  unnamed = range(len(names), vit.num_classes)
  labels = [*names, *(f"LABEL_{i}" for i in unnamed)]
  return {
    "id2label": {str(i): label for i, label in enumerate(labels)},
    "label2id": {label: i for i, label in enumerate(labels)},
  }
