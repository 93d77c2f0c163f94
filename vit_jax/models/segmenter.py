"""A Vision Transformer with a head that names the class of each patch.

Images (B, H, W, C) -> logits (B, h, w, K), float32, one vector for each patch.
The head is a dense layer, or two, over the patches' outputs of one or several
layers after the final norm, side by side; `DptSegmenter` has another head.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.composed import Composed, Needs, encoder_of
from vit_jax.models.dpt import WIDTH, DptHead, layers_of
from vit_jax.models.layer import GELUS, Images, LayerConfig, dense
from vit_jax.models.model import classifier
from vit_jax.models.parts import HEAD, Part
from vit_jax.models.tokens import Tokens

_HIDDEN, _DPT = "head_hidden", "dpt"


class Segmenter(Composed):
  """An encoder with a head for its patches.

  Attributes:
    read_layers: The layers whose patches the head reads, counted from 1.
    head_size: Width of the head's hidden layer; 0 for no hidden layer.
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
    self.check_whole(mask)
    return self.patch_logits(self.patch_features(x, train=train))

  def check_whole(self, mask: Any) -> None:
    """Raises ValueError if there is a mask, or no parameters."""
    if mask is not None:
      raise ValueError(
        "a segmenter names the class of each patch, so it takes no mask."
      )
    self.check_has_parameters()

  def patch_features(
    self, x: Images, *, train: bool = False
  ) -> Float[Array, "B h w F"]:
    """The outputs of the patches as `read` gives them, the layers side by side.

    F is D times the number of layers. With scanned layers, only the last can be
    read.
    """
    outputs = self.read(x, train=train)
    y = jnp.concatenate([tokens.z for tokens in outputs], axis=-1)
    return y.reshape(len(y), *outputs[0].grid, -1)

  def read(
    self, x: Images, *, train: bool = False, prefix: bool = False
  ) -> list[Tokens]:
    """The tokens of each layer to read, after the norm if `norms_outputs`.

    With `prefix`, they have the tokens before the patches as well. If the
    encoder has `channel_tokens`, each patch has the mean of its tokens.
    """
    vit: Any = self.encoder
    layers = self.read_layers or (vit.num_layers,)
    tokens = vit.embed(x, train=train)
    tokens, outputs = vit.run_to(tokens, layers, train=train, prefix=prefix)
    vit.pool(tokens)  # Creates the parameters of `pool`, which the trunk has.
    if self.norms_outputs:
      outputs = [vit.normed(one) for one in outputs]
    if vit.channel_tokens:
      from vit_jax.models.channels import one_for_each_patch

      outputs = [one_for_each_patch(one) for one in outputs]
    return outputs

  @property
  def norms_outputs(self) -> bool:
    """Whether the head reads the layers after the final norm."""
    return True

  @nn.compact
  def patch_logits(self, y: Float[Array, "B h w F"]) -> Float[Array, "B h w K"]:
    """The head: a dense layer, or two with GELU between them."""
    if self.head_size:
      axes = ("embed", "mlp")
      config = LayerConfig.of(self.encoder)
      hidden = dense(self.head_size, axes, config, name=_HIDDEN)
      y = GELUS["exact"](hidden(y))
    return classifier(self.num_classes, 0.0, self.param_dtype)(y)


class DptSegmenter(Segmenter):
  """An encoder with a DPT head; (B, H, W, C) -> (B, 16h, 16w, K), h and w even.

  `models.dpt` describes the head, and its outputs for an odd h or w.
  `head_size` is the width of the fused maps; 0 takes `dpt.WIDTH`.

  The head reads the layers' outputs, and beside each patch the class token if
  the encoder has one.

  Attributes:
    as_dinov2: Whether the head is as in DINOv2's models for depth: it reads the
      layers' outputs before the final norm, and raises its own outputs to at
      least 0.
  """

  as_dinov2: bool = False

  def parts(self) -> tuple[Part, ...]:
    return *super().parts(), Part(_DPT, HEAD, own_task=True)

  @property
  def norms_outputs(self) -> bool:
    """Whether the head reads the layers after the final norm."""
    return not self.as_dinov2

  def __call__(
    self, x: Images, *, mask: Any = None, train: bool = False
  ) -> Float[Array, "B h w K"]:
    """The outputs of the DPT head.

    Raises ValueError if there is a `mask`, as `Segmenter` does.
    """
    self.check_whole(mask)
    vit: Any = self.encoder
    outputs = self.read(x, train=train, prefix=True)
    B = len(x)
    h, w = outputs[0].grid
    D = vit.hidden_size
    maps = [tokens.patches.reshape(B, h, w, D) for tokens in outputs]
    class_tokens: list[Any] = [None for _ in outputs]
    if vit.class_token:
      class_tokens = [tokens.first(0) for tokens in outputs]
    return self.dpt_outputs(maps, class_tokens)

  @nn.compact
  def dpt_outputs(self, maps: list[Any], class_tokens: list[Any]) -> Array:
    """Applies the DPT head to the maps of several layers."""
    vit: Any = self.encoder
    head = DptHead(
      num_outputs=self.num_classes,
      width=self.head_size or WIDTH,
      hidden_size=vit.hidden_size,
      config=LayerConfig.of(vit),
      param_dtype=self.param_dtype,
      name=_DPT,
    )
    y = head(maps, class_tokens)
    # Where a new head gives 0, this has a gradient, which a ReLU has not.
    return jnp.maximum(y, 0) if self.as_dinov2 else y


def segmenter(
  model: Any,
  num_classes: int,
  layers: tuple[int, ...] = (),
  head_size: int = 0,
  task: str = "segmentation",
  head: str | None = None,
) -> Segmenter:
  """A model of this encoder that has K outputs for each patch.

  With a DPT head, it has them for each cell of a finer grid (`dpt`). Raises
  ValueError if the encoder has no patches, leaves some out, lacks one of the
  `layers`, or scans its layers while `layers` has others than the last, or if a
  DPT head is given another number of layers than four.

  Args:
    layers, head_size: The fields of `Segmenter`.
    task: The name of the task, and of its section of the configuration.
    head: "linear", "small" with a hidden layer, "dpt", or "dpt_dinov2" for the
      DPT head of DINOv2's models for depth; None for one of the first two, by
      `head_size`.
  """
  kind: Any = Segmenter
  if head in ("dpt", "dpt_dinov2"):
    kind = DptSegmenter
    layers = layers_of(model, layers, task)
    kind = partial(kind, as_dinov2=head == "dpt_dinov2")
  elif head == "small":
    head_size = head_size or WIDTH
  needs = Needs(f"data.task={task!r}", one_token=False)
  encoder = encoder_of(model, needs).clone(representation_size=None)
  if max(layers, default=1) > model.num_layers:
    raise ValueError(
      f"{task}.layers={layers}: the model has layers 1 to {model.num_layers}."
    )
  if model.scan and layers not in ((), (model.num_layers,)):
    raise ValueError(
      f"{task}.layers={layers} reads layers before the last, and scan="
      "True compiles all as one: set model.scan=False."
    )
  return kind(num_classes, encoder, layers, head_size)
