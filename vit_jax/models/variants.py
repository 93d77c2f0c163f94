"""Models by the names the paper gives them (arXiv:2010.11929, Table 1)."""

import dataclasses
import difflib
import functools
import importlib
import numbers
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from vit_jax.models.grid import check_depth
from vit_jax.models.layer import DTYPE_FIELDS
from vit_jax.models.model import Model
from vit_jax.models.vit import BaseVit, Vit

if TYPE_CHECKING:
  from vit_jax.models.resnet import ResNet

# Table 1; Ti and S from DeiT (arXiv:2012.12877), g and G from "Scaling Vision
# Transformers" (arXiv:2106.04560).
_COLUMNS = ("num_layers", "hidden_size", "mlp_size", "num_heads")
VITS = {
  "Ti": (12, 192, 768, 3),
  "S": (12, 384, 1536, 6),
  "B": (12, 768, 3072, 12),
  "L": (24, 1024, 4096, 16),
  "H": (32, 1280, 5120, 16),
  "g": (40, 1408, 6144, 16),
  "G": (48, 1664, 8192, 16),
}
# Sizes by their names in timm, and a pattern of variants in other libraries.
_SIZES = {
  "tiny": "Ti",
  "small": "S",
  "base": "B",
  "large": "L",
  "huge": "H",
  "giant": "g",
}
_OTHER_FORMS = re.compile(
  rf"(?:(?:vit|deit)[-_]?)?({'|'.join([*VITS, *_SIZES])})[-_/]?"
  r"(?:patch|p)?[-_/]?(\d+)(?:[-_]\d+)?",
  re.IGNORECASE,
)
_OTHER_RESNETS = re.compile(r"resnet[-_]?(\d+)", re.IGNORECASE)
RESNETS = {"R50": (3, 4, 6, 3), "R101": (3, 4, 23, 3), "R152": (3, 8, 36, 3)}
# Blocks per stage that make R50's feature map 1/16 or 1/32 of the image's size.
# The first moves stage 4's blocks to stage 3 (Section 3.1, "Hybrid
# Architecture").
HYBRID_LAYERS = {16: (3, 4, 9), 32: (3, 4, 6, 3)}
# Our blocks for a plain `Vit`, by the names that descriptions hold.
BLOCKS = {"axial": "vit_jax.models.axial:AxialBlock"}
# The kinds of models by the names that descriptions hold; "ModernVit" is the
# old name of `ExtendedVit`. They are paths, as few runs load more than one.
_KINDS = {
  "Vit": "vit_jax.models.vit:Vit",
  "ResNet": "vit_jax.models.resnet:ResNet",
  "ModernVit": "vit_jax.models.extended_vit:ExtendedVit",
}
_MASKED = "MaskedVit"
"""The kind that older descriptions give to models for masked patches."""
ADAPTED = "adapted"
"""Marks fields of a model from which `Task.adapted` makes the trained one."""
# Fields that only a `Vit` has, with their values where it computes what an
# `ExtendedVit` does.
_ONLY_VIT = {
  "position_at": "input",
  "resnet_layers": (),
  "resnet_width": 64,
  "resnet_epsilon": None,
}


# By the type of a field: the types of values it takes, in code and in words.
_TYPES: dict[type, tuple[Any, str]] = {
  int: (numbers.Integral, "a whole number"),
  float: (numbers.Real, "a number"),
  bool: (bool | np.bool_, "True or False"),
  str: (str, "a text"),
}


# Arguments of other libraries' models -> ours.
_OTHER_NAMES = {
  other: ours
  for ours, others in {
    "variant": "name model_name arch size",
    "num_classes": "classes n_classes nb_classes num_labels num_class",
    "num_layers": "depth n_layers num_hidden_layers",
    "hidden_size": "dim embed_dim hidden_dim",
    "mlp_size": "mlp_dim intermediate_size",
    "num_heads": "heads n_heads num_attention_heads",
    "dropout_rate": "dropout drop_rate",
    "embedding_dropout_rate": "emb_dropout",
    "image_size": "img_size",
  }.items()
  for other in others.split()
}
# Other such names, which are fields of a `ResNet` with another meaning.
_NAMES_IN_A_VIT = {"width": "hidden_size", "layers": "num_layers"}
P = ParamSpec("P")
R = TypeVar("R")


def _by_other_names(
  more: Mapping[str, str] = {},
) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """A decorator that lets a function take arguments by other names too.

  They are those in `_OTHER_NAMES` and in `more`. `pretrained=False` and
  `weights=None` ask for what the function makes, and are left out. It raises
  TypeError if an argument is given by two names.
  """
  names = _OTHER_NAMES | dict(more)

  def decorate(make: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(make)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
      given: dict[str, Any] = {}
      for name, value in keywords.items():
        if name in ("pretrained", "weights") and not value:
          continue
        ours = names.get(name, name)
        if ours in given or (ours != name and ours in keywords):
          raise TypeError(f"{ours} is given twice: leave {name} out.")
        given[ours] = value
      return cast(Any, make)(*args, **given)

    return call

  return decorate


class OwnBlockError(ValueError):
  """A description names a class of layers that only the caller can give."""


@_by_other_names(_NAMES_IN_A_VIT)
def make_vit(
  variant: str | None = None, num_classes: int = 1000, **fields
) -> BaseVit:
  """A Vision Transformer of Table 1, or its hybrid with R50.

  Args:
    variant: Size and patch size, such as "B/16", or a hybrid, "R50+B/16",
      where 16 (or 32) is the image size over the feature map's. "Axial-B/16"
      has axial attention (App. D.6), and average pooling. "B16", "ViT-B/16"
      and other libraries' "vit_b_16" and "vit_base_patch16_224" are B/16 too.
      With the field `patch_size`, a size alone, "B" or "base", is enough.
      Without a variant, `fields` give `patch_size`, `hidden_size`, `num_layers`
      and `num_heads`; the MLP is four times as wide as a token unless they give
      `mlp_size`.
    num_classes: Classes of the head, by default those of ImageNet; 0 builds no
      head.
    **fields: Fields of `Vit` that replace the variant's, also by other
      libraries' names for them, such as `depth` or `width`. `block` may be
      a name: a file of `vit_jax.families`, which makes an `ExtendedVit`,
      "axial", or "package.module:Class", which is imported. An `image_size` is
      not kept, which a warning says, as a model takes images of any size.

  Raises:
    TypeError: if there is no variant and a size is missing, or a field is given
      by two names.
    ValueError: if the variant or a field is unknown, or fields do not fit
      together.

  >>> from vit_jax.models import make_vit
  >>> vit = make_vit("B/16", num_classes=10, dropout_rate=0.1)
  >>> vit.num_layers, vit.hidden_size, vit.patch_size
  (12, 768, 16)
  >>> sizes = {"patch_size": 4, "width": 64, "depth": 4, "num_heads": 4}
  >>> make_vit(**sizes, num_classes=10).mlp_size
  256
  """
  fields = _without_image_size(fields)
  if variant is None:
    defaults = _mlp_of_sizes(fields)
  else:
    defaults = _fields_of(variant, fields.get("patch_size"))
  fields = with_block(fields)
  family = fields.get("block")
  if not isinstance(family, str):
    return _build(Vit, num_classes, defaults | fields)
  del fields["block"]
  fields = {**defaults, **_families()[family], **fields}
  return _build(_import_class(_KINDS["ModernVit"]), num_classes, fields)


def _mlp_of_sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The MLP's size that is assumed for the sizes in `fields`.

  Raises TypeError if another size is missing, as there is no variant.
  """
  needed = ("patch_size", "hidden_size", "num_layers", "num_heads")
  if missing := [name for name in needed if fields.get(name) is None]:
    raise TypeError(
      "a variant is missing: give its size and its patches, as in "
      'vit_jax.make_vit("B/16", num_classes=10), or give '
      f"{', '.join(missing)} {'instead' if len(missing) == 4 else 'too'}."
    )
  return {"mlp_size": 4 * fields["hidden_size"]}


def _fields_of(variant: str, patch_size: int | None) -> dict[str, Any]:
  """The fields of a Vision Transformer of Table 1, or of its hybrid.

  `patch_size` completes a variant that is a size alone. Raises ValueError if
  the variant is unknown.
  """
  variant = _plain_name(variant, patch_size)
  match = re.fullmatch(r"(R50\+|Axial-)?(\w+)/(\d+)", variant)
  if not match or match[2] not in VITS or int(match[3]) < 1:
    raise ValueError(
      f"variant={variant!r} is unknown; write one of {', '.join(VITS)} with "
      "its patch size, as in B/16 or Axial-B/16, or a hybrid, as in R50+B/16."
    )
  defaults: dict[str, Any] = dict(zip(_COLUMNS, VITS[match[2]], strict=True))
  defaults["patch_size"] = int(match[3])
  if match[1] == "Axial-":
    defaults |= {"block": _import_class(BLOCKS["axial"]), "pooling": "gap"}
  elif match[1]:
    if (stride := int(match[3])) not in HYBRID_LAYERS:
      raise ValueError(
        f"variant={variant!r}: R50's feature map is 1/16 or 1/32 of the image; "
        f"choose R50+{match[2]}/16 or R50+{match[2]}/32."
      )
    defaults |= {"resnet_layers": HYBRID_LAYERS[stride], "patch_size": 1}
  return defaults


def _plain_name(variant: str, patch_size: int | None) -> str:
  """A variant as the paper writes it; one in another form stays as it is.

  `patch_size` completes a variant that is a size alone.
  """
  text = str(variant)
  match = _OTHER_FORMS.fullmatch(text)
  if not match and patch_size is not None:
    match = _OTHER_FORMS.fullmatch(f"{text}/{patch_size}")
  if not match:
    return text
  size = match[1] if match[1] in VITS else match[1].lower()
  size = _SIZES.get(size, size)
  return f"{size if size in VITS else size.capitalize()}/{match[2]}"


def _without_image_size(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields without `image_size`; a warning says that it is not kept."""
  if "image_size" in fields:
    size = fields["image_size"]
    warnings.warn(
      "A model takes the size of its images from them, so it does not keep "
      f"image_size={size}: vit_jax.init_params(model, key, {size}) draws "
      "parameters for it.",
      stacklevel=4,
    )
  return {name: value for name, value in fields.items() if name != "image_size"}


def with_block(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a model; if `block` names a class of layers, it is imported.

  Raises ValueError if `block` names neither a family nor such a class.
  """
  block = fields.get("block")
  if not isinstance(block, str):
    return dict(fields)
  if block in _families():
    return dict(fields)
  try:
    return {**fields, "block": _import_class(BLOCKS.get(block, block))}
  except (ImportError, AttributeError, ValueError) as error:
    known = ", ".join(block_names())
    raise ValueError(
      f"block={block!r} is unknown ({error}); choose one of {known}, or your "
      "own as package.module:Class."
    ) from error


def block_names() -> list[str]:
  """The names that `block` may have: those of the families, and of `BLOCKS`."""
  return [*_families(), *BLOCKS]


def _families() -> Mapping[str, Mapping[str, Any]]:
  """The fields of each family, imported here as few runs name a family."""
  from vit_jax.families import FAMILIES

  return FAMILIES


def _import_class(place: str) -> Any:
  """Imports the class at a path such as "package.module:Class"."""
  module, _, name = place.partition(":")
  return getattr(importlib.import_module(module), name)


def _path(kind: Any) -> str:
  """The path to import a class by."""
  return f"{kind.__module__}:{kind.__qualname__}"


def is_ours(block: Any) -> bool:
  """Whether a class of layers is one of `BLOCKS`."""
  return isinstance(block, type) and _path(block) in BLOCKS.values()


def _name_of(kind: Any) -> str | None:
  """The name in `_KINDS` of a class of models; None if it has none there."""
  names = {path: name for name, path in _KINDS.items()}
  return names.get(_path(kind)) if isinstance(kind, type) else None


@_by_other_names()
def make_resnet(
  variant: str | None = None, num_classes: int = 1000, **fields
) -> "ResNet":
  """A BiT ResNet of Table 3, such as "R50x1" or "R152x2".

  "resnet50" is "R50x1". An `image_size` is not kept, as in `make_vit`. Raises
  TypeError without a variant, and ValueError if it or a field is unknown.

  >>> from vit_jax.models import make_resnet
  >>> make_resnet("R50x3", num_classes=10).layers
  (3, 4, 6, 3)
  """
  if variant is None:
    raise TypeError(
      "a variant is missing: give its depth and its width multiple, as in "
      'vit_jax.make_resnet("R50x1", num_classes=10).'
    )
  fields = _without_image_size(fields)
  variant = _OTHER_RESNETS.sub(r"R\1x1", str(variant))
  match = re.fullmatch(r"(R\d+)x(\d+)", variant)
  if not match or match[1] not in RESNETS or int(match[2]) < 1:
    raise ValueError(
      f"variant={variant!r} is unknown; write one of {', '.join(RESNETS)} with "
      "its width multiple, as in R50x1."
    )
  defaults = {"layers": RESNETS[match[1]], "width": 64 * int(match[2])}
  return _build(_import_class(_KINDS["ResNet"]), num_classes, defaults | fields)


@_by_other_names()
def make_model(
  variant: str | None = None, num_classes: int = 1000, **fields
) -> Model:
  """Calls `make_resnet` for names such as "R50x1", else `make_vit`.

  >>> from vit_jax.models import make_model
  >>> [type(make_model(name, 10)).__name__ for name in ("R50x1", "B/16")]
  ['ResNet', 'Vit']
  """
  name = _OTHER_RESNETS.sub(r"R\1x1", str(variant))
  make = make_resnet if re.fullmatch(r"R\d+x\d+", name) else make_vit
  return make(variant, num_classes, **fields)


def _dtype(name: str, value: Any) -> jnp.dtype:
  """The type in the field `name`; ValueError if it is no type of floats."""
  try:
    dtype = jnp.dtype(value)
  except (TypeError, ValueError):
    dtype = None
  if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
    of_floats = "" if dtype is None else " of floats"
    raise ValueError(
      f"{name}={value!r} is not a type{of_floats}; choose one such as float32 "
      "or bfloat16."
    )
  return dtype


def _check_type(module: type[nn.Module], name: str, value: Any) -> Any:
  """The value of a field; a whole number becomes a float if the field is one.

  Raises ValueError if the value is of another type. Tuples have to hold whole
  numbers. Fields of types that are not in `_TYPES`, and unknown fields, are not
  checked here.
  """
  kind = _hints(module).get(name)
  inner = {*typing.get_args(kind)} - {types.NoneType}
  if isinstance(kind, types.UnionType) and len(inner) == 1:
    if value is None:
      return value
    (kind,) = inner
  if typing.get_origin(kind) is tuple:
    is_tuple = isinstance(value, tuple)
    if not is_tuple or not all(isinstance(x, numbers.Integral) for x in value):
      raise ValueError(f"{name}={value!r} must be whole numbers.")
    return value
  if kind not in _TYPES:
    return value
  allowed, needed = _TYPES[kind]
  if not isinstance(value, allowed):
    raise ValueError(f"{name}={value!r} must be {needed}.")
  return float(value) if kind is float else value


_hints = functools.cache(typing.get_type_hints)


# Fields of models in other libraries, and the way to do the same here.
_ELSEWHERE = {
  **dict.fromkeys(
    ("pretrained", "weights"),
    "vit_jax.load_pretrained(NAME) reads published weights.",
  ),
  **dict.fromkeys(
    ("device", "device_map"),
    "JAX chooses the device; to use the CPU, start Python with "
    "JAX_PLATFORMS=cpu.",
  ),
  **dict.fromkeys(
    ("channels", "in_chans", "in_channels", "num_channels"),
    "a model takes the channels of its images from them: "
    "vit_jax.init_params(model, key, image_size, channels=1) draws parameters.",
  ),
  "mlp_ratio": "give mlp_size, which is the width times the ratio.",
}


def _build(module: type[nn.Module], num_classes: int, fields: dict) -> Any:
  """A model of the class `module`.

  Raises ValueError if a field is unknown or missing, or fields do not fit
  together.
  """
  names = _field_names(module) - {"num_classes"}
  if unknown := sorted(set(fields) - names):
    near = difflib.get_close_matches(unknown[0], names, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? It" if near else "it"
    hint += f" has {', '.join(sorted(names))}."
    if unknown[0] in _field_names(_import_class(_KINDS["ModernVit"])):
      hint = 'models of a family have it, as block="deit3".'
    hint = _ELSEWHERE.get(unknown[0], hint)
    raise ValueError(
      f"{module.__name__} has no field {', '.join(unknown)}; {hint}"
    )
  needed = {
    field.name
    for field in module.__dataclass_fields__.values()
    if field.default is field.default_factory is dataclasses.MISSING
  }
  if missing := sorted(needed - {"num_classes", *fields}):
    raise ValueError(f"{module.__name__} needs {', '.join(missing)}.")
  return module(num_classes=num_classes, **fields)


def _field_names(module: type[nn.Module]) -> set[str]:
  """The names of the fields that determine what the model computes."""
  return set(module.__dataclass_fields__) - {"parent", "name", "origin"}


def variant_of(model: Model) -> str | None:
  """The paper's name for a model, such as "B/16"; None if it has none.

  >>> from vit_jax.models import make_model, variant_of
  >>> variant_of(make_model("R50+B/16", num_classes=10))
  'R50+B/16'
  """
  if not model.num_layers:
    layers = tuple(model.layers)
    name = next((name for name, s in RESNETS.items() if s == layers), None)
    return f"{name}x{model.width // 64}" if name else None
  row = tuple(getattr(model, column) for column in _COLUMNS)
  name = next((name for name, sizes in VITS.items() if sizes == row), None)
  if name is None or not model.resnet_layers:
    axial = "Axial-" if is_ours(model.block) else ""
    return f"{axial}{name}/{model.patch_size}" if name else None
  stem = tuple(model.resnet_layers)
  stride = next((n for n, s in HYBRID_LAYERS.items() if s == stem), None)
  is_r50 = stride and (model.patch_size, model.resnet_width) == (1, 64)
  return f"R50+{name}/{stride}" if is_r50 else None


def describe(model: Model) -> str:
  """The paper's name for a model, or its sizes, where it has none.

  >>> from vit_jax.models.variants import describe, make_model
  >>> describe(make_model("B/16", 10))
  'B/16'
  >>> describe(make_model("B/16", 10, num_layers=6))
  'ViT with 6 layers of width 768, 12 heads, patches of 16 x 16'
  """
  if name := variant_of(model):
    return name
  if not model.num_layers:
    blocks = "-".join(map(str, model.layers))
    return f"ResNet with blocks {blocks}, width {model.width}"
  stem = "on a ResNet, " if model.resnet_layers else ""
  return (
    f"ViT with {model.num_layers} layers of width {model.hidden_size}, "
    f"{model.num_heads} heads, {stem}patches of {model.stride} x {model.stride}"
  )


def to_fields(model: Model) -> dict[str, Any]:
  """The fields of a model, as values that JSON can hold.

  A class of layers is given by its name in `BLOCKS`, or else by the path to
  import it by. A model of another class than `Vit`, `ExtendedVit` and `ResNet`
  gives the fields of its trunk, marked as `ADAPTED`. Raises ValueError if it
  has no trunk of these classes.

  >>> from vit_jax.models import make_model, to_fields
  >>> fields = to_fields(make_model("B/16", num_classes=10))
  >>> fields["kind"], fields["num_layers"], fields["dtype"]
  ('Vit', 12, 'float32')
  """
  kind = type(model)
  name = _name_of(kind)
  if name is None:
    if type(model.trunk) is kind:
      raise ValueError(
        f"{kind.__name__} is a model of your own: give it a property `trunk`, "
        "the model of this package that its task builds it from."
      )
    return {**to_fields(model.trunk), ADAPTED: True}
  fields = {name: getattr(model, name) for name in sorted(_field_names(kind))}
  if (block := fields.pop("block", None)) is not None:
    names = {path: name for name, path in BLOCKS.items()}
    path = _path(block)
    fields["block"] = names.get(path, path)
  for dtype in fields.keys() & {*DTYPE_FIELDS}:
    fields[dtype] = jnp.dtype(fields[dtype]).name
  return {"kind": name, **fields}


def from_fields(fields: Mapping[str, Any]) -> Model:
  """The model that `to_fields` described, even if JSON made tuples lists.

  `kind` may also be the class of the model itself.

  Raises OwnBlockError if `block` is the path of a class. No class is imported
  because a file names it, so the caller has to give it. Raises ValueError if a
  field, the kind or a type is unknown, or if the fields make no valid model.

  >>> from vit_jax.models import from_fields, make_model, to_fields
  >>> model = make_model("B/16", num_classes=10)
  >>> from_fields(to_fields(model)) == model
  True
  """
  fields = dict(fields)
  block = fields.get("block")
  if isinstance(block, str) and block in BLOCKS:
    block = fields["block"] = _import_class(BLOCKS[block])
  if isinstance(block, str) and block in _families():
    raise ValueError(
      f"block={block!r} chooses the layers of a new model, and this one has "
      "its own: leave out block."
    )
  if isinstance(block, str):
    raise OwnBlockError(
      f"its layers are {block}, a class of your own: open it in Python with "
      f"block=, as in load_pretrained(..., block={block.split(':')[-1]})."
    )
  if not (block is None or callable(block)):
    raise ValueError(f"block={block!r} is no class of layers.")
  if fields.get("kind") == _MASKED:
    from vit_jax.models.masked_vit import masked_vit  # Few runs are that old.

    vit = from_fields({**fields, "kind": "Vit"})
    return masked_vit(vit, vit.num_classes)
  name_or_class: Any = fields.pop("kind", None)
  kind: Any = name_or_class
  if isinstance(name_or_class, str) and name_or_class in _KINDS:
    kind = _import_class(_KINDS[name_or_class])
  if (kind_name := _name_of(kind)) is None:
    raise ValueError(
      f"kind={name_or_class!r} is no kind of model; choose one of "
      f"{', '.join(_KINDS)}."
    )
  for name, value in fields.items():
    if isinstance(value, list):
      fields[name] = tuple(value)
    if name in DTYPE_FIELDS:
      fields[name] = _dtype(name, value)
    fields[name] = _check_type(kind, name, fields[name])
  if kind_name == "ModernVit":  # Older descriptions have a `Vit`'s fields.
    only_vit = _ONLY_VIT.items()
    fields = {k: v for k, v in fields.items() if (k, v) not in only_vit}
  model = _build(kind, fields.pop("num_classes"), fields)
  check_depth(model)
  return model
