"""Finds an equivalent model that a format can express, and its parameters."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax.models import Vit, from_fields, to_fields
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.models.layer import DTYPE_FIELDS, EXECUTION
from vit_jax.models.parts import OURS
from vit_jax.models.paths import below, within
from vit_jax.models.position import PositionEmbedding
from vit_jax.pretrained.formats.architecture import table_size
from vit_jax.pretrained.formats.mapping import Rule, Shapes, axis_sizes

Params = dict[str, np.ndarray]

# Fields that do not change a trained model's answers, that change them only for
# images of another size (antialias), or that `save` reports (resnet_epsilon).
_FREE = {
  "resnet_epsilon",
  "layer_scale",
  "position_grid",
  "antialias",
  "head_bias",
  "relative_bilinear",
  "position_resize",
  "dropout_rate",
  "attention_dropout_rate",
  "embedding_dropout_rate",
  "patch_dropout_rate",
  "drop_path_rate",
  "drop_path_grows",
  *EXECUTION,
  *DTYPE_FIELDS,
}
_FLAGS = ("gelu", "layer_norm_epsilon")  # `convert` has a flag for each.
# The factors of LayerScale -> the layer whose output they multiply.
_SCALED_LAYERS = {"scale_msa": "msa/out", "scale_mlp": "mlp/contract"}
_POSITION, _HEAD = "position", "head/kernel"
_TABLE = f"{_POSITION}/E_pos"


def changes(vit: Any, fields: Mapping[str, Any]) -> Iterator[str]:
  """Lines on how a model would change if it were read back with these fields.

  A field that only the model's class has counts as unchanged if it has that
  class's default. A change of the class is listed if it is the only change.
  """
  theirs = to_fields(from_fields({"kind": "Vit", **fields}))
  vit = vit.trunk
  changed = False
  for name, value in to_fields(vit).items():
    new = theirs.get(name, getattr(type(vit), name, None))
    if name in {"kind", *_FREE} or new == value:
      continue
    changed = True
    advice = ""
    if name in _FLAGS:
      advice = f" (--{name}={new} accepts that)"
    yield f"{name}={value!r} would become {new!r}{advice}"
  old_kind = to_fields(vit)["kind"]
  new_kind = theirs["kind"]
  if not changed and old_kind != new_kind:
    yield f"kind={old_kind!r} would become {new_kind!r}"


def extended_part(vit: Any) -> str:
  """A feature that the paper's model lacks, such as "registers=4".

  It is a field or a pooling. Only the first such field is named.
  """
  vit = vit.trunk
  plain = Vit.__dataclass_fields__.keys() | _FREE - {"layer_scale"}
  for name, value in to_fields(vit).items():
    if name not in {"kind", *plain} and value != getattr(type(vit), name):
      return f"{name}={value!r}"
  return f"pooling={vit.pooling!r} beside a class token"


def shapes_of(vit: Any, rules: list[Rule]) -> Shapes:
  """The shapes of the arrays that these rules would write for a model."""
  size = table_size(vit)
  sizes = axis_sizes(vit)
  height, width = size or (vit.stride, vit.stride)
  # The last pixels may belong to no patch.
  ours = param_shapes(vit, (height // vit.stride, width // vit.stride))
  return {rule.theirs: rule.needs(ours, sizes) for rule in rules}


def refit(vit: Any, new: Any, params: Params) -> Params:
  """The parameters of an equivalent model `new`, which gives the same answers.

  They are those of `vit` with these changes, where the models differ: computed
  positions become a table; the class token's vector in the table of positions
  is added to the token, or becomes zero; for another pooling, the head gets
  rows of zeros; a projection becomes a head with a bias of zeros; and
  LayerScale's factors are multiplied into the weights, or become ones.
  """
  new_params = dict(params)
  kinds = vit.position, new.position
  if not vit.extended and kinds[0] != kinds[1]:
    new_params = {k: v for k, v in params.items() if not within(k, _POSITION)}
    new_params[_TABLE] = _position_table(vit, params)
    kinds = "learned", new.position
  if kinds == ("learned", "learned_grid") and vit.class_token:
    first, new_params[_TABLE] = np.split(new_params[_TABLE], [1])
    new_params["x_class"] = new_params["x_class"] + first[0]
  elif kinds == ("learned_grid", "learned"):
    tokens = vit.class_token + vit.distilled
    zeros = np.zeros((tokens, vit.hidden_size), np.float32)
    new_params[_TABLE] = np.concatenate([zeros, new_params[_TABLE]])
  if vit.pooling != new.pooling:
    halves = [new_params[_HEAD], np.zeros_like(new_params[_HEAD])]
    order = 1 if vit.pooling == "token" else -1
    new_params[_HEAD] = np.concatenate(halves[::order])
  if vit.num_classes != new.num_classes:
    new_params[_HEAD] = new_params.pop("pre_logits/kernel")
    new_params["head/bias"] = np.zeros(new.num_classes, np.float32)
  _refit_layer_scale(vit, new, new_params)
  return new_params


def _refit_layer_scale(vit: Any, new: Any, params: Params) -> None:
  """Adds LayerScale's factors as ones, or multiplies them into the weights.

  `params` are changed in place, if only one of the two models has the factors.
  """
  before = getattr(vit, "layer_scale", None)
  after = getattr(new, "layer_scale", None)
  if (before is None) == (after is None):
    return
  for i in range(vit.num_layers):
    block = OURS.of(i)
    for name, layer in _SCALED_LAYERS.items():
      if before is None:
        ones = np.ones(vit.hidden_size, np.float32)
        params[f"{block}/{name}"] = ones
        continue
      scale = params.pop(f"{block}/{name}")
      for leaf in ("kernel", "bias"):
        path = f"{block}/{layer}/{leaf}"
        if path in params:
          params[path] = params[path] * scale


def _position_table(model: Any, params: Params) -> np.ndarray:
  """The table E_pos, (S, D), of positions of any kind.

  Raises ValueError if it depends on the image size, which is unknown.
  """
  size = model.origin.image_size if model.origin else None
  if size is None:
    raise ValueError(
      f"position={model.position!r} is computed for any image size, but the "
      "format stores a table for one size: give --image_size=224, for example."
    )
  h, w = grid_of(model, size)
  class_token = model.pooling == "token"
  if model.position == "none":
    return np.zeros((h * w + class_token, model.hidden_size), np.float32)
  kind, D = model.position, model.hidden_size
  module = PositionEmbedding(kind, (h, w), D, class_token)
  positions: dict[str, Any] = {
    below(key, _POSITION): jnp.asarray(value)
    for key, value in params.items()
    if within(key, _POSITION)
  }
  return np.asarray(module.apply({"params": positions}))
