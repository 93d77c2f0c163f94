"""TIPS and TIPSv2 in JAX, as their authors save them (arXiv:2604.12012).

Names are flat paths, and arrays are laid out as ours are. The two class tokens
are one array: the first is our class token, and the second a register. Neither
has a place in the table of positions, a grid that is resized bilinearly with
antialiasing, as in PyTorch. LayerScale's factors are part of the weights. GELU
is its tanh approximation, unlike in PyTorch's form of the same weights.
"""

from collections.abc import Iterator
from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.pretrained.formats import processor
from vit_jax.pretrained.formats.architecture import Architecture, need
from vit_jax.pretrained.formats.equivalent import changes, shapes_of
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Layers, Table, unmapped

_BASE = "encoder/"
_TOKENS = "ToTokenSequence_0/"
_LAYER = "transformer/encoderblock_0/"
_TABLE = Table("tips_jax", (Layers("transformer/encoderblock_{}/"),))


def prefix(shapes: Shapes) -> str | None:
  """The prefix of all names; None for other formats."""
  for before in ("", "params/"):
    if f"{before}{_BASE}{_TOKENS}posembed_input" in shapes:
      return before
  return None


def infer(shapes: Shapes, _: Any = None, __: Any = None) -> Architecture:
  """Infers the model of these arrays; the format has no configuration.

  Raises ValueError if an array that tells a size is missing or has other axes
  than it needs.
  """
  short = {name.removeprefix(_BASE): shape for name, shape in shapes.items()}
  P, _, _, D = need(short, f"{_TOKENS}embedding/kernel", 4)
  _, h, w, _ = need(short, f"{_TOKENS}posembed_input", 4)
  _, tokens, _ = need(short, f"{_TOKENS}cls", 3)
  query = f"{_LAYER}MultiHeadDotProductAttention_0/query/kernel"
  gated = f"{_LAYER}FFNSwiGluFused_0/Dense_0/kernel"
  mlp = gated if gated in short else f"{_LAYER}MlpBlock_0/Dense_0/kernel"
  layers = {k.split("/")[1] for k in short if k.startswith("transformer/")}
  fields: dict[str, Any] = dict(
    kind=ExtendedVit,
    num_classes=0,
    patch_size=P,
    hidden_size=D,
    num_layers=len(layers),
    mlp_size=need(short, mlp, 2)[1],
    num_heads=need(short, query, 3)[1],
    registers=tokens - 1,
    position="learned_grid",
    position_resize="bilinear",
    antialias=True,
    gated_mlp=gated in short,
    gelu="exact" if gated in short else "tanh",  # Gated MLPs have no GELU.
  )
  pictures = Preprocessing(
    None,
    EvalTransformSettings("resize", interpolation="bilinear"),
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
  )
  return Architecture(
    "tips",
    fields,
    h * w,
    image_size=(h * P, w * P),
    preprocessing=pictures,
  )


def rules(vit: Any, _: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint to read, or of one to write."""
  return _TABLE.rules(vit, _BASE)


def is_encoder(_: Any) -> bool:
  """True: `reasons` says for every model whether the format can express it."""
  return True


def equivalent(vit: Any) -> Any:
  """The model to write instead of `vit`; it gives the same answers."""
  position = "learned_grid" if vit.position == "learned" else vit.position
  return vit.clone(layer_scale=None, position=position)


def reasons(vit: Any) -> list[str]:
  """Why the format cannot express a model; [] if it can."""
  if not vit.extended:
    return ["it has no second class token, and tips always has two"]
  one_layer = equivalent(vit).clone(num_layers=1)
  if one_layer.position != "learned_grid":
    return [f"position={vit.position!r}, and tips has a table for the patches"]
  written = rules(one_layer)
  if lost := unmapped(one_layer, written):
    return [f"tips has no place for {', '.join(lost[:3])}"]
  try:
    shapes = shapes_of(one_layer, written)
    return [*changes(one_layer, infer(shapes).fields)]
  except ValueError as error:
    return [str(error).removesuffix(".")]


def not_kept(vit: Any) -> Iterator[str]:
  """Lines on what the format does not keep."""
  if vit.position_resize != "bilinear":
    yield (
      "pictures of another size than the positions' get other positions: TIPS "
      "resizes them bilinearly"
    )


def files(vit: Any, preprocessing: Preprocessing, _: Any) -> dict[str, Any]:
  """The JSON files beside the weights, of which TIPS reads none."""
  return processor.file_of_one_size(preprocessing)
