"""A Vision Transformer with a head that names the class of each patch.

Images (B, H, W, C) -> logits (B, h, w, K), float32, one vector for each patch.
The head is a dense layer, or two, over the patches' outputs of one or several
layers after the final norm, side by side.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.extended_vit import ExtendedVit
from vit_jax.models.layer import GELUS, Images, LayerConfig, dense, layer_norm
from vit_jax.models.model import Model, classifier
from vit_jax.models.parts import HEAD, Part
from vit_jax.models.vit import BaseVit, Vit

_HIDDEN = "head_hidden"


class Segmenter(BaseVit):
  """The base of `SegmenterVit` and `SegmenterExtendedVit`.

  Attributes:
    read_layers: The layers whose patches the head reads, counted from 1.
    head_size: Width of the head's hidden layer; 0 for none.
  """

  read_layers: tuple[int, ...] = ()
  head_size: int = 0
  plain = BaseVit

  @property
  def trunk(self) -> Model:
    """The encoder alone."""
    return self.plain.like(self, num_classes=0)

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

  @nn.compact
  def patch_features(
    self, x: Images, *, train: bool = False
  ) -> Float[Array, "B h w F"]:
    """The normalised outputs of the patches, those of the layers side by side.

    With scanned layers, only the last can be read.
    """
    tokens = self.embed(x, train=train).cleared()
    outputs = {}
    layers = self._layers(tokens.grid, train)
    for number, layer in enumerate(
      layers, start=self.num_layers - len(layers) + 1
    ):
      tokens = layer(tokens)
      outputs[number] = tokens.patches
    self.pool(tokens)  # The trunk has its parameters, also the norm's.
    chosen = [outputs[n] for n in self.read_layers or (self.num_layers,)]
    if self.norm_final:
      norm: Any = layer_norm(LayerConfig.of(self), "norm", parent=None)
      params = nn.unbox(self.get_variable("params", "norm"))
      chosen = [norm.apply({"params": params}, z) for z in chosen]
    y = jnp.concatenate(chosen, axis=-1)
    return y.reshape(len(y), *tokens.grid, -1)

  @nn.compact
  def patch_logits(self, y: Float[Array, "B h w F"]) -> Float[Array, "B h w K"]:
    """The head: a dense layer, or two with GELU between them."""
    if self.head_size:
      axes = ("embed", "mlp")
      hidden = dense(self.head_size, axes, self._config, name=_HIDDEN)
      y = GELUS["exact"](hidden(y))
    return classifier(self.num_classes, 0.0, self.param_dtype)(y)


class SegmenterVit(Segmenter, Vit):
  """A `Vit` that names the class of each patch."""

  plain = Vit


class SegmenterExtendedVit(Segmenter, ExtendedVit):
  """An `ExtendedVit` that names the class of each patch."""

  plain = ExtendedVit


_CLASSES = {kind.plain: kind for kind in (SegmenterVit, SegmenterExtendedVit)}


def segmenter(
  model: Any,
  num_classes: int,
  layers: tuple[int, ...] = (),
  head_size: int = 0,
) -> Any:
  """A model like `model` that names one of K classes for each patch.

  `layers` and `head_size` are the fields of `Segmenter`. Raises ValueError if
  it has no patches, leaves some out, or lacks one of the layers.
  """
  kind = _CLASSES.get(type(model))
  if kind is None:
    raise ValueError(
      f"data.task='segmentation': a {type(model).__name__} has no outputs of "
      "patches: choose a ViT, such as model.variant=B/16."
    )
  if model.patch_dropout_rate:
    raise ValueError(
      f"patch_dropout_rate={model.patch_dropout_rate} leaves out patches whose "
      "class is to be learned: set it to 0."
    )
  if max(layers, default=1) > model.num_layers:
    raise ValueError(
      f"segmentation.layers={layers}: the model has layers 1 to "
      f"{model.num_layers}."
    )
  if model.scan and layers not in ((), (model.num_layers,)):
    raise ValueError(
      f"segmentation.layers={layers} reads layers before the last, and scan="
      "True compiles all as one: set model.scan=False."
    )
  return kind.like(
    model,
    num_classes=num_classes,
    head_bias=0.0,
    representation_size=None,
    read_layers=layers,
    head_size=head_size,
  )
