"""One part of a model, as the model lists it in `parts()`, and its layers."""

import dataclasses

INPUT, ENCODER, DECODER, HEAD = PLACES = ("input", "encoder", "decoder", "head")


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
"""The names that `scan.make_blocks` gives to layers."""


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
    prefix: Path of its module or parameter; "" takes what no other part does.
    place: One of `PLACES`. An `INPUT` comes before the layers of the part that
      its prefix lies in, or before all layers. Without a stack, a part of an
      `ENCODER` or a `DECODER` comes before the layers there.
    stack: Its layers, if it has any.
    own_task: Whether it serves the task that it was trained for alone, so that
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
