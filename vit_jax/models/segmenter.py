"""A Vision Transformer with a head that names the class of each patch.

Images (B, H, W, C) -> logits (B, h, w, K), float32, one vector for each patch.
The head is a dense layer, or two, over the patches' outputs of one or several
layers after the final norm, side by side.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import Composed, Needs, held
from vit_jax.models.layer import GELUS, Images, LayerConfig, dense
from vit_jax.models.model import classifier
from vit_jax.models.parts import HEAD, Part

_HIDDEN = "head_hidden"


class Segmenter(Composed):
  """An encoder with a head for its patches.

  Attributes:
    read_layers: The layers whose patches the head reads, counted from 1.
    head_size: Width of the head's hidden layer; 0 for none.
  """

  read_layers: tuple[int, ...] = ()
  head_size: int = 0

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part(_HIDDEN, HEAD, own_task=True)

  def __call__(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Float[Array, "B h w K"]:
    """The logits of each patch.

    Raises ValueError if there is a `mask`: each patch has a class.
    """
    if mask is not None:
      raise ValueError("a segmenter names the class of each patch: no mask.")
    self.check_has_parameters()
    return self.patch_logits(self.patch_features(x, train=train))

  def patch_features(
    self, x: Images, *, train: bool = False
  ) -> Float[Array, "B h w F"]:
    """The normalised outputs of the patches, those of the layers side by side.

    With scanned layers, only the last can be read.
    """
    vit: Any = self.encoder
    layers = self.read_layers or (vit.num_layers,)
    tokens = vit.embed(x, train=train)
    tokens, outputs = vit.run_to(tokens, layers, train=train)
    vit.pool(tokens)  # The trunk has its parameters, also the norm's.
    chosen = [vit.normed(patches).z for patches in outputs]
    y = jnp.concatenate(chosen, axis=-1)
    return y.reshape(len(y), *tokens.grid, -1)

  @nn.compact
  def patch_logits(self, y: Float[Array, "B h w F"]) -> Float[Array, "B h w K"]:
    """The head: a dense layer, or two with GELU between them."""
    if self.head_size:
      axes, config = ("embed", "mlp"), LayerConfig.of(self.encoder)
      hidden = dense(self.head_size, axes, config, name=_HIDDEN)
      y = GELUS["exact"](hidden(y))
    return classifier(self.num_classes, 0.0, self.param_dtype)(y)


def segmenter(
  model: Any,
  num_classes: int,
  layers: tuple[int, ...] = (),
  head_size: int = 0,
  task: str = "segmentation",
) -> Segmenter:
  """A model of this encoder that has K outputs for each patch.

  `layers` and `head_size` are the fields of `Segmenter`, and `task` is the name
  of the task and of its section of the configuration. Raises ValueError if
  it has no patches, leaves some out, or lacks one of the layers.
  """
  encoder = held(model, Needs(f"data.task={task!r}")).clone(
    representation_size=None
  )
  if max(layers, default=1) > model.num_layers:
    raise ValueError(
      f"{task}.layers={layers}: the model has layers 1 to {model.num_layers}."
    )
  if model.scan and layers not in ((), (model.num_layers,)):
    raise ValueError(
      f"{task}.layers={layers} reads layers before the last, and scan="
      "True compiles all as one: set model.scan=False."
    )
  return Segmenter(num_classes, encoder, layers, head_size)
