"""Two towers: an image tower and a text tower whose outputs are compared.

CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343) are such models. Any image
model of the library can be the image tower, whose parameters keep their paths;
those of the text tower lie below `text`. R is the width of both
representations.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import DTYPE_FIELDS, check_choice
from vit_jax.models.model import Inputs, unit
from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import ENCODER, HEAD, INPUT, Part
from vit_jax.models.paths import within
from vit_jax.models.text import Ids, TextTower

IMAGE, TEXT = TOWERS = ("image", "text")
LOG_SCALE, BIAS = "log_scale", "bias"
"""Paths of the two parameters that belong to none of the towers."""
_MOST_LOG_SCALE = 20
HOW = ("trained", "frozen", "lora")
"""How a tower may be trained."""
SHARED = ("scan", "remat", "attention", *DTYPE_FIELDS)
"""Fields that the text tower takes from the image tower."""
_NEEDS = Needs("data.task='pairs'", patches=False, all_patches=False)


class Compared(NamedTuple):
  """The outputs of two towers for images and texts.

  Attributes:
    image, text: The representations, scaled to length 1, float32; None for a
      tower without inputs.
    log_scale: The logarithm of the factor of their products.
    bias: The term added to the scaled products; None if the model has none.
  """

  image: Float[Array, "B R"] | None
  text: Float[Array, "M R"] | None
  log_scale: Float[Array, ""]
  bias: Float[Array, ""] | None

  def logits(self) -> Float[Array, "B M"]:
    """exp(log_scale) times the cosine of each image and text, plus the bias.

    The losses do not call it: `training.contrastive` computes these numbers
    block by block.
    """
    assert self.image is not None and self.text is not None
    return logits(self.image, self.text, self.log_scale, self.bias)


def logits(u: Any, v: Any, log_scale: Any, bias: Any = None) -> Any:
  """exp(log_scale) u v^T plus the bias; (B, R), (M, R) -> (B, M).

  >>> import jax.numpy as jnp
  >>> from vit_jax.models.two_towers import logits
  >>> u = jnp.array([[1.0, 0.0], [0.0, 1.0]])
  >>> logits(u, u, jnp.log(10.0), -10.0).round(3).tolist()
  [[0.0, -10.0], [-10.0, 0.0]]
  """
  products = jnp.matmul(u, v.T, precision="highest") * jnp.exp(log_scale)
  return products if bias is None else products + bias


class TwoTowers(Composed):
  """Images (B, H, W, C) and token ids (B, T), a pair -> `Compared`.

  Either of the pair may be None, and images may come without a pair. The
  encoder is the image tower: `pooled` and `representation` are the encoder's
  (`Composed`). Raises ValueError if the towers are of different widths.

  Attributes:
    text: The text tower. It takes the fields `SHARED` from the image tower.
    first_log_scale: The initial logarithm of the scale.
    first_bias: The initial bias; None for a model without a bias.
    towers: How the image tower and the text tower are trained: "trained",
      "frozen", or "lora". No gradient goes into a frozen tower, which is run
      without dropout. Beside a tower with LoRA, the parameters of one that is
      "trained" count as those of a head: they are trained as they are, without
      LoRA's matrices.
    new_text: Whether the text tower starts from random values even if the image
      tower starts from published weights, as these hold no text tower.
  """

  text: TextTower | None = None
  first_log_scale: float = math.log(10)
  first_bias: float | None = -10.0
  towers: tuple[str, str] = ("trained", "trained")
  new_text: bool = True

  def __post_init__(self):
    for tower, how in zip(TOWERS, self.towers, strict=True):
      check_choice(tower, how, HOW)
    if self.text is not None:
      image: Any = self.encoder
      shared = {n: getattr(image, n) for n in SHARED if hasattr(image, n)}
      if any(getattr(self.text, n) != value for n, value in shared.items()):
        self.text = self.text.clone(**shared)
    super().__post_init__()

  def inputs(
    self, image_shape: tuple[int, int, int]
  ) -> tuple[Any, jax.ShapeDtypeStruct]:
    """The shapes and types of an image and a text."""
    return super().inputs(image_shape), self._text.inputs(image_shape)

  def parts(self) -> tuple[Part, ...]:
    """The parts of both towers, the scale, and the bias if there is one."""
    parts = [self._part_for_lora(IMAGE, part) for part in super().parts()]
    for part in self._text.parts():
      prefix = f"{TEXT}/{part.prefix}".rstrip("/")
      part = dataclasses.replace(part, prefix=prefix, own_task=self.new_text)
      parts.append(self._part_for_lora(TEXT, part))
    parts.append(Part(LOG_SCALE, HEAD, own_task=True))
    if self.first_bias is not None:
      parts.append(Part(BIAS, HEAD, own_task=True))
    return tuple(parts)

  def _part_for_lora(self, tower: str, part: Part) -> Part:
    """A part of a tower; as a head if it is trained beside a tower with LoRA.

    With LoRA, a head is trained as it is, without LoRA's matrices.
    """
    beside_lora = (
      "lora" in self.towers and self._training_of(tower) == "trained"
    )
    if beside_lora and part.place in (INPUT, ENCODER):
      return dataclasses.replace(part, place=HEAD)
    return part

  def is_frozen(self, path: str) -> bool:
    """Whether the parameter at a path is of a tower that is frozen."""
    tower = tower_of(path)
    return tower is not None and self._training_of(tower) == "frozen"

  @property
  def any_size(self) -> bool:
    """Whether the image tower takes `Patches`."""
    encoder: Any = self.encoder
    return encoder.any_size

  def __call__(self, inputs: Any, *, train: bool = False) -> Any:
    """The outputs of both towers for images and texts, `(images, ids)`.

    The M images in a row of `Patches` give B M rows of outputs. Raises
    ValueError if the towers are of different widths.
    """
    self.check_has_parameters()
    images, ids = inputs if isinstance(inputs, tuple) else (inputs, None)
    u = None if images is None else self.embed_images(images, train=train)
    if u is not None:
      u = u.reshape(-1, u.shape[-1])  # (B M, R)
    v = None if ids is None else self.embed_texts(ids, train=train)
    if u is not None and v is not None and u.shape[-1] != v.shape[-1]:
      raise ValueError(different_widths(u.shape[-1], v.shape[-1]))
    log_scale, bias = self.scale_and_bias()
    return Compared(u, v, log_scale, bias)

  def embed_images(
    self, images: Inputs, *, train: bool = False
  ) -> Float[Array, "B *M R"]:
    """The representations of images, as unit vectors."""
    is_frozen = self._training_of(IMAGE) == "frozen"
    # `pooled` and `representation` are those of the encoder, by `Composed`.
    y = self.pooled(images, train=train and not is_frozen)
    return _unit_length(self.representation(y), is_frozen)

  def embed_texts(
    self, ids: Ids, *, train: bool = False
  ) -> Float[Array, "B R"]:
    """The representations of texts, as unit vectors, (B, R)."""
    is_frozen = self._training_of(TEXT) == "frozen"
    y = self._text(ids, train=train and not is_frozen)
    return _unit_length(y, is_frozen)

  @nn.compact
  def scale_and_bias(self) -> tuple[Array, Array | None]:
    """The logarithm of the scale, and the bias or None."""
    log_scale = self._scalar(LOG_SCALE, self.first_log_scale)
    if self.first_bias is None:
      return log_scale, None
    return log_scale, self._scalar(BIAS, self.first_bias)

  def _scalar(self, name: str, first: float) -> Array:
    """The parameter `name`, one number that starts at `first`."""
    init = with_axes(nn.initializers.constant(first), ())
    return self.param(name, init, (), jnp.float32)

  @property
  def _text(self) -> TextTower:
    assert self.text is not None
    return self.text

  def _training_of(self, tower: str) -> str:
    """How a tower, one of `TOWERS`, is trained, one of `HOW`."""
    return self.towers[TOWERS.index(tower)]


def scale_of(log_scale: float) -> float:
  """The scale from its stored logarithm, e^x.

  Raises ValueError if the logarithm is NaN, or beyond what training reaches.
  """
  if not abs(log_scale) <= _MOST_LOG_SCALE:  # False for NaN.
    raise ValueError(
      f"the logarithm of the scale of images and texts is {log_scale:g}, and "
      f"has to lie between -{_MOST_LOG_SCALE} and {_MOST_LOG_SCALE}; CLIP's is "
      "4.6."
    )
  return math.exp(log_scale)


def tower_of(path: str) -> str | None:
  """The tower that the parameter at a path is of; None if it is of none.

  >>> from vit_jax.models.two_towers import tower_of
  >>> tower_of("text/E"), tower_of("block_0/norm_mlp/scale"), tower_of("bias")
  ('text', 'image', None)
  """
  if path in (LOG_SCALE, BIAS):
    return None
  return TEXT if within(path, TEXT) else IMAGE


def _unit_length(y: Array, is_frozen: bool) -> Array:
  """Vectors y scaled to length 1, with no gradient if the tower is frozen."""
  return unit(jax.lax.stop_gradient(y) if is_frozen else y)


def different_widths(image: int, text: int) -> str:
  """The message for towers whose representations cannot be compared."""
  return (
    f"the image tower gives {image} numbers for an image and the text tower "
    f"{text} for a text, and both have to give the same number: take two "
    "towers that belong together, or a text tower from scratch."
  )


def two_towers(model: Any, text: TextTower, **fields: Any) -> TwoTowers:
  """A model of this image tower, without classes, and a text tower.

  `fields` are those of `TwoTowers`. Raises ValueError if `model` cannot be an
  image tower.
  """
  return TwoTowers(0, encoder_of(model, _NEEDS), text=text, **fields)
