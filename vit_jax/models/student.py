"""A student of another encoder: a model with projections of its outputs.

The outputs of an encoder are the input of its head, `class`, and the outputs of
the patches, `patches`. A student has a dense layer for each output that it
learns, from its own width to its teacher's.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.layer import LayerConfig, dense
from vit_jax.models.model import Inputs, Model
from vit_jax.models.parts import HEAD, Part

CLASS, PATCHES = OUTPUTS = ("class", "patches")
_NEEDS = Needs("student.learns", patches=False)


def outputs_of(
  model: Model, images: Inputs, *, train: bool = False
) -> dict[str, Float[Array, "..."]]:
  """The outputs of an encoder that is bound to its parameters, by their names.

  `class` is the head's input, (B, D), or the mean of both heads' inputs if
  there are two. `patches` are the last layer's normalised outputs,
  (B, h, w, D), or a ResNet's last feature map. Given `Patches`, they are
  (B, M, D) and (B, N, D).
  """
  if not model.num_layers:
    z, y = model.encode(images, train=train)
    return {CLASS: y, PATCHES: z}
  vit: Any = model
  tokens = vit.run(vit.embed(images, train=train), train=train)
  y = vit.pool(tokens)
  z = vit.normed(tokens.without_prefix()).z
  if vit.distilled:
    y = y.mean(axis=-2)
  if tokens.layout is None:
    z = z.reshape(len(z), *tokens.grid, -1)
  return {CLASS: y, PATCHES: z}


def widths_of(
  model: Model, image_shape: tuple[int, int, int]
) -> dict[str, int]:
  """The width of each output of an encoder, for images of (H, W, C)."""
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
  init = model.init_with_output

  def run(key: Array, x: Array) -> dict[str, Array]:
    return init(key, x, method=outputs_of)[0]

  outputs = jax.eval_shape(run, jax.random.key(0), images)
  return {name: output.shape[-1] for name, output in outputs.items()}


class Student(Composed):
  """A model that predicts outputs of a teacher.

  Images (B, H, W, C), or `Patches`, -> the projected outputs that it learns, by
  name.

  Attributes:
    widths: The name and the teacher's width of each output to learn.
  """

  widths: tuple[tuple[str, int], ...] = ()

  @property
  def any_size(self) -> bool:
    """Whether the encoder takes `Patches`."""
    encoder: Any = self.encoder
    return encoder.any_size

  def parts(self) -> tuple[Part, ...]:
    heads = [
      Part(_layer_name(name), HEAD, own_task=True) for name, _ in self.widths
    ]
    return *super().parts(), *heads

  def __call__(self, x: Inputs, *, train: bool = False) -> Any:
    return self.project(outputs_of(self.encoder, x, train=train))

  @nn.compact
  def project(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs to learn, in the teacher's widths, as float32."""
    config = LayerConfig(dtype=self.dtype, param_dtype=self.param_dtype)
    projected = {}
    for name, width in self.widths:
      axes = ("embed", "features")
      layer = dense(width, axes, config, name=_layer_name(name))
      projected[name] = layer(outputs[name]).astype(jnp.float32)
    return projected


def _layer_name(name: str) -> str:
  """The name of the layer that projects the output `name`."""
  return f"project_{name}"


def student(model: Any, widths: Mapping[str, int]) -> Student:
  """A model of this encoder that learns a teacher's outputs of these widths.

  It has no representation layer, which would follow the outputs to learn.
  Raises ValueError if the model has no outputs of images, or leaves out
  patches.
  """
  encoder = encoder_of(model, _NEEDS)
  if getattr(encoder, "representation_size", None) is not None:
    encoder = encoder.clone(representation_size=None)
  return Student(0, encoder, tuple(widths.items()))
