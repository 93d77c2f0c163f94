"""The parts that a model is made of, and what follows for each parameter.

A model lists its parts in `parts()`. Everything that depends on where a
parameter lies is answered here from that list: layer decay, freezing, Muon,
LoRA, transfer and the stacked form of scanned layers. Nothing else looks at the
names in a parameter's path, such as "block_0/msa/out/bias", except `paths`,
which this module uses. The parts of a model that lists none are guessed.

To add a part to a model, give it to the list. This model has an encoder, a
decoder that serves its own task alone, and a head:

    def parts(self):
      return (
        Part("encoder", ENCODER, Stack(12)),
        Part("decoder", DECODER, Stack(4), own_task=True),
        Part("mask_token", DECODER, own_task=True),
        Part("head", HEAD, own_task=True),
      )

Two towers are two parts with the place `ENCODER`, each with its own stack:

    Part("image", ENCODER, Stack(12)), Part("text", ENCODER, Stack(6))

Parameters below "image" that are in no layer come before the layers, as
embeddings do, unless `Stack.after` names them. The longest prefix decides
which part a parameter belongs to. `tests/models/test_parts.py` has the
answers for every family.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.paths import below, ends_with, within

INPUT, ENCODER, DECODER, HEAD = PLACES = ("input", "encoder", "decoder", "head")
# Names that a model which lists no parts may have for its layers, such as
# "encoderblock_0" or "layers_3".
_LAYER = re.compile(r"(?i)(.*(?:block|layer)s?_?)(\d+)")
_UNIT = re.compile(r"stage\d+_unit\d+")  # As `unit_name` writes it.
_GUESSED_MASKS = ("mask", "mask_token")


@dataclasses.dataclass(frozen=True)
class LayerNames:
  """The names of layers, `each` with {} for its number, counted from 0.

  If the layers are scanned, their parameters are stacked, (L, ...), and lie in
  one module that is called `stacked`.
  """

  each: str = "block_{}"
  stacked: str = "blocks"

  def of(self, layer: int) -> str:
    """The name of a layer."""
    return self.each.format(layer)

  def number(self, name: str) -> int | None:
    """The number of the layer with this name; None if it is no layer's."""
    before, _, after = self.each.partition("{}")
    digits = name.removeprefix(before).removesuffix(after)
    is_layer = digits.isdecimal() and name == self.of(int(digits))
    return int(digits) if is_layer else None


OURS = LayerNames()
"""The names that `layer.make_blocks` gives to layers."""


def unit_name(stage: int, unit: int) -> str:
  """The name of a residual unit in a ResNet; both numbers count from 0."""
  return f"stage{stage}_unit{unit}"


@dataclasses.dataclass(frozen=True)
class Stack:
  """The layers of a part, one after the other.

  Attributes:
    num_layers: L, the number of layers.
    names: How they are called.
    after: Modules beside the layers whose parameters come after them.
  """

  num_layers: int
  names: LayerNames = OURS
  after: tuple[str, ...] = ("norm", "map_head")


@dataclasses.dataclass(frozen=True)
class Part:
  """One part of a model.

  Attributes:
    prefix: Path of its module or parameter; "" for all parameters that are in
      no other part.
    place: One of `PLACES`. An `INPUT` comes before the layers of the part that
      its prefix lies in, or before all layers. Without a stack, a part of an
      `ENCODER` or a `DECODER` comes before the layers there.
    stack: Its layers, if it has any.
    own_task: Whether it serves only the task that it was trained for, so that
      no other task takes it over.
    pixels: Path below the prefix of the kernel that is multiplied with the
      images' channels; "" if there is none.
  """

  prefix: str
  place: str
  stack: Stack | None = None
  own_task: bool = False
  pixels: str = ""

  def __post_init__(self):
    if self.place not in PLACES:
      raise ValueError(
        f"place={self.place!r} of the part {self.prefix!r} is unknown; choose "
        f"one of {', '.join(PLACES)}."
      )


def heads() -> tuple[Part, ...]:
  """The heads of our models: the classifier and the representation layer."""
  return Part("head", HEAD, own_task=True), Part("pre_logits", HEAD)


@dataclasses.dataclass(frozen=True)
class _Spot:
  """Where a parameter lies in its part; before the layers if nothing is set."""

  part: Part
  layer: int | None = None
  stacked: bool = False
  after: bool = False


@dataclasses.dataclass(frozen=True)
class Parts:
  """The parts of a model, and what they tell about the path of a parameter."""

  parts: tuple[Part, ...]

  @classmethod
  def of(cls, model: Any, params: Any) -> "Parts":
    """The parts that a model lists, or else those that `guess_parts` finds.

    Args:
      model: A model, whose `parts()` may be missing or empty.
      params: Its parameters or their shapes, as `guess_parts` takes them, or a
        function that gives them, which is called only if it is needed.
    """
    listed = getattr(model, "parts", tuple)()
    if listed:
      return cls(tuple(listed))
    return guess_parts(params() if callable(params) else params)

  @classmethod
  def plain(cls, num_layers: int) -> "Parts":
    """The parts of a model with one encoder of our layers, and our heads."""
    return cls((Part("", ENCODER, Stack(num_layers)), *heads()))

  @property
  def num_layers(self) -> int:
    """Number of layers of the encoder; of several encoders, the largest."""
    return self._most_layers(ENCODER)

  def part(self, path: str) -> Part:
    """The part that a parameter belongs to."""
    return self._spot(path).part

  def depth(self, path: str) -> np.ndarray | int:
    """Number of layers between a parameter and the head, as layer decay counts.

    Heads are at 0, and so is what follows the last of L layers. The first layer
    is at L, and what comes before it at L + 1. If a decoder follows an encoder,
    the encoder's layers count on from the decoder's L + 1; two encoders are
    counted each by itself. Stacked layers have an array of depths, (L,).
    """
    spot = self._spot(path)
    if spot.part.place == HEAD:
      return 0
    place, L = self._tower(spot.part)
    has_decoder = any(part.place == DECODER for part in self.parts)
    above = (
      self._most_layers(DECODER) + 1 if place == ENCODER and has_decoder else 0
    )
    if spot.after:
      return above
    if spot.stacked:
      return above + L - np.arange(L)
    return above + L + 1 if spot.layer is None else above + L - spot.layer

  def is_frozen(self, path: str, num_layers: int) -> bool:
    """Whether freezing the first `num_layers` layers freezes a parameter.

    Layers are those of an encoder; what comes before them is frozen, too.
    """
    spot = self._spot(path)
    place, _ = self._tower(spot.part)
    if place != ENCODER or spot.after:
      return False
    return spot.layer is None or spot.layer < num_layers

  def is_head(self, path: str) -> bool:
    """Whether a parameter belongs to a head."""
    return self.part(path).place == HEAD

  def own_task(self, path: str) -> bool:
    """Whether a parameter is not taken over by another task."""
    return self.part(path).own_task

  def is_trained_beside_lora(self, path: str) -> bool:
    """Whether LoRA trains a parameter itself, without low-rank matrices.

    These are the parameters of heads, and of inputs that serve their task
    alone, such as a mask token.
    """
    part = self.part(path)
    return part.place == HEAD or (part.place == INPUT and part.own_task)

  def gives_outputs(self, path: str) -> bool:
    """Whether a parameter is of a head that gives the outputs of the task."""
    return self.is_head(path) and self.own_task(path)

  def reads_pixels(self, path: str) -> bool:
    """Whether a parameter is the kernel that multiplies an image's channels."""
    part = self.part(path)
    return bool(part.pixels) and below(path, part.prefix) == part.pixels

  def in_layer(self, path: str) -> bool:
    """Whether a parameter lies in a layer of the encoder or the decoder."""
    spot = self._spot(path)
    return spot.stacked or spot.layer is not None

  def in_residual_unit(self, path: str) -> bool:
    """Whether a parameter lies in a residual unit of a ResNet."""
    return any(map(_UNIT.fullmatch, path.split("/")))

  def stacked_axes(self, path: str) -> int:
    """Number of first axes that run over layers: 1 in a stack, else 0."""
    return int(self._spot(path).stacked)

  def unstacked_paths(self, path: str, num_layers: int) -> list[str]:
    """The paths that a parameter has if the layers are not stacked."""
    spot = self._spot(path)
    if not spot.stacked:
      return [path]
    names = _names(spot.part)
    before = f"{spot.part.prefix}/" if spot.part.prefix else ""
    in_layer = below(path, f"{before}{names.stacked}")
    return [f"{before}{names.of(i)}/{in_layer}" for i in range(num_layers)]

  def kernel_axes(
    self, path: str, num_axes: int, logical: Sequence[str | None] | None = None
  ) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of a kernel's input axes, and those of its output axes.

    The axis of stacked layers is in neither tuple. If `logical` is given, the
    logical name of each of the `num_axes` axes, it decides: a kernel of three
    axes of which the first is "embed" maps the embedding into heads, and has
    one input axis; any other kernel has one output axis. Without these names,
    the path decides: the kernel `out` of attention, which maps heads back to
    the embedding, has two input axes, that of a convolution in a ResNet's unit
    three, and any other kernel one.
    """
    first = self.stacked_axes(path)
    axes = tuple(range(first, num_axes))
    if logical is not None:
      into_heads = len(axes) == 3 and logical[first] == "embed"
      inputs = 1 if into_heads else len(axes) - 1
    elif self.in_residual_unit(path):
      inputs = 3
    else:
      inputs = 2 if ends_with(path, "out/kernel") and len(axes) == 3 else 1
    return axes[:inputs], axes[inputs:]

  def stack(self, tree: Any) -> Any:
    """A tree, such as a train state, with its layers in the scanned layout."""
    for names in self._all_names():
      tree = stack(tree, names)
    return tree

  def unstack(self, tree: Any) -> Any:
    """A tree with its layers in the unrolled layout."""
    for names in self._all_names():
      tree = unstack(tree, names)
    return tree

  def _all_names(self) -> list[LayerNames]:
    """The different names that the layers of the parts have."""
    stacks = [part.stack for part in self.parts if part.stack]
    return list(dict.fromkeys(stack.names for stack in stacks))

  def _spot(self, path: str) -> _Spot:
    """Where a parameter lies in the part that it belongs to."""
    around = [part for part in self.parts if within(path, part.prefix)]
    if not around:
      return _Spot(Part("", INPUT))
    spots = [_spot(path, part) for part in around]
    # The longest prefix wins; among equals, a part whose layers have the path.
    return max(spots, key=lambda s: (len(s.part.prefix), s != _Spot(s.part)))

  def _tower(self, part: Part) -> tuple[str, int]:
    """The place of the stack that a part belongs to, and its length."""
    if part.stack:
      return part.place, part.stack.num_layers
    towers = [p for p in self.parts if p.stack]
    around = [p for p in towers if within(part.prefix, p.prefix)]
    if part.place != INPUT:
      around = [p for p in around if p.place == part.place]
    if not around:
      place = ENCODER if part.place == INPUT else part.place
      return place, self._most_layers(place)
    nearest = max(around, key=lambda p: len(p.prefix))
    assert nearest.stack
    return nearest.place, nearest.stack.num_layers

  def _most_layers(self, place: str) -> int:
    """The length of the longest stack at a place; 0 if there is none."""
    stacks = [part.stack for part in self.parts if part.place == place]
    return max((stack.num_layers for stack in stacks if stack), default=0)


def _names(part: Part) -> LayerNames:
  """The names of a part's layers."""
  return part.stack.names if part.stack else OURS


def _spot(path: str, part: Part) -> _Spot:
  """Where a parameter lies in this part."""
  stack = part.stack
  if stack is None:
    return _Spot(part)
  first = below(path, part.prefix).split("/")[0]
  return _Spot(
    part,
    layer=stack.names.number(first),
    stacked=first == stack.names.stacked,
    after=first in stack.after,
  )


def guess_parts(params: Any) -> Parts:
  """The parts of a model that lists none, by the names of its parameters.

  Modules `block_0`, `block_1` and so on, or `blocks`, are layers, and so are
  others whose names end in "block" or "layer" and a number. Layers are those of
  a decoder, for its own task alone, if "decoder" is in the path of the module
  around them, and else those of an encoder. `head`, `head_dist` and
  `pre_logits` are heads, and `mask` and `mask_token` are for the model's own
  task. Of all other parameters, `norm` and `map_head` beside layers come after
  them, and the rest comes before.

  Args:
    params: Parameters or their shapes, as a tree or by their paths.
  """
  layers: dict[tuple[str, LayerNames], int] = {}
  masks = {name: Part(name, INPUT, own_task=True) for name in _GUESSED_MASKS}
  parts = [*heads(), Part("head_dist", HEAD, own_task=True)]
  paths = dict(_leaves(params))
  for path, shape in paths.items():
    if path in masks:
      parts.append(masks[path])
    for prefix, names, count in _layers_of(path, shape):
      key = prefix, names
      layers[key] = max(layers.get(key, 0), count)
  for (prefix, names), count in layers.items():
    in_decoder = "decoder" in prefix.lower()
    place = DECODER if in_decoder else ENCODER
    stack = Stack(count, names)
    parts.append(Part(prefix, place, stack, own_task=in_decoder))
  return Parts(tuple(parts))


def _layers_of(
  path: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, LayerNames, int]]:
  """Yields (prefix, names, count) of the outermost stack in a path, if any.

  `names` are those of its layers, and `count` is the least number of layers
  that it has.
  """
  modules = path.split("/")[:-1]
  for i, name in enumerate(modules):
    prefix = "/".join(modules[:i])
    if name == OURS.stacked:
      yield prefix, OURS, shape[0] if shape else 0
      return
    if match := _LAYER.fullmatch(name):
      yield prefix, LayerNames(f"{match[1]}{{}}"), int(match[2]) + 1
      return


def _leaves(params: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
  """The path and shape of every parameter of a tree."""
  flat = jax.tree_util.tree_leaves_with_path(
    nn.unbox(params), is_leaf=lambda x: isinstance(x, tuple)
  )
  for path, leaf in flat:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    yield name, tuple(getattr(leaf, "shape", leaf))


def stack(tree: Any, names: LayerNames = OURS) -> Any:
  """A tree, such as a train state, with its layers in the scanned layout."""

  def has_layers(node: Any) -> bool:
    return isinstance(node, dict) and names.of(0) in node

  def stack_layers(node: Any) -> Any:
    if not has_layers(node):
      return node
    layers = [name for name in node if names.number(name) is not None]
    layers.sort(key=lambda name: names.number(name) or 0)
    one = jax.tree.map(_stack_arrays, *(node[name] for name in layers))
    others = {k: stack(v, names) for k, v in node.items() if k not in layers}
    return {**others, names.stacked: one}

  return jax.tree.map(stack_layers, tree, is_leaf=has_layers)


def unstack(tree: Any, names: LayerNames = OURS) -> Any:
  """A tree with its layers in the unrolled layout."""

  def has_layers(node: Any) -> bool:
    return isinstance(node, dict) and names.stacked in node

  def unroll_layers(node: Any) -> Any:
    if not has_layers(node):
      return node
    one = node[names.stacked]
    others = {k: v for k, v in node.items() if k != names.stacked}
    others = {k: unstack(v, names) for k, v in others.items()}
    layers = {
      names.of(i): jax.tree.map(lambda x, i=i: x[i], one)
      for i in range(len(jax.tree.leaves(one)[0]))
    }
    return {**others, **layers}

  return jax.tree.map(unroll_layers, tree, is_leaf=has_layers)


def _stack_arrays(*arrays: Any) -> Any:
  """The arrays of all layers as one, (L, ...)."""
  on_host = isinstance(arrays[0], np.ndarray)  # NumPy arrays stay on the host.
  return (np if on_host else jnp).stack(arrays)
