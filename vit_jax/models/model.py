"""The base of all models: inputs, encoder and head; symbols as in `vit`."""

import dataclasses
import math
import numbers
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Shaped

from vit_jax.models.layer import (
  GELUS,
  REMATS,
  Images,
  LayerConfig,
  Pooled,
  check_choice,
  check_rate,
  dense,
)
from vit_jax.models.partitioning import Dense, with_axes
from vit_jax.models.parts import Part
from vit_jax.models.patches import Patches

Inputs = Images | Patches
"""Images of one size, or the patches of images of any size."""
# Methods of models in other libraries, and what to use instead here.
_OF_LOADED = {
  "predict": "loaded.predict(images)",
  "load_weights": "loaded.params",
  "parameters": "loaded.params",
  "state_dict": "loaded.params",
  "forward_features": "loaded.features(images)",
  "get_intermediate_layers": "loaded.features(images, layers=[6, 12])",
  "from_pretrained": "loaded.model",
  "save_pretrained": 'vit_jax.save(loaded, folder, to="hf")',
  "eval": "loaded.predict(images)",
  "features": "loaded.features(images)",
  "evaluate": "loaded.evaluate(folder)",
  "fit": "loaded.fit(folder)",
  "summary": "loaded.summary()",
  "num_params": "vit_jax.count_params(params), or loaded.num_params",
  "num_parameters": "vit_jax.count_params(params), or loaded.num_params",
  "count_params": "vit_jax.count_params(params), or loaded.num_params",
  "attention_maps": "loaded.attention_maps(images)",
  "save": "vit_jax.save(model, params, folder)",
}
_MOST_CHANNELS = 4  # An axis with more entries looks like a height or a width.
_FULL_SCALE = 2.0  # A larger mean or deviation must count 255 levels.
_LARGEST = 20.0  # Normalised pixels stay far below, unnormalised ones do not.
_STEMS = ("E", "conv_root")  # Modules that read the channels of images.
_SIZES = ("patch_size", "hidden_size", "num_layers", "mlp_size", "num_heads")
ABSENT: Mapping[str, Any] = {
  "antialias": False,
  "block": None,
  "channel_sampling": False,
  "channel_tokens": False,
  "distilled": False,
  # Whether it may have what encoders have added since the paper.
  "extended": False,
  "head_bias": 0.0,
  "norm_final": True,
  "norm_kind": "layer",
  "norm_patches": False,
  "param_dtype": jnp.float32,
  "patch_bias": True,
  "pooled_tokens": (0,),
  "position_at": "input",
  "position_grid": None,
  "projection": False,
  "qkv_bias": "qkv",
  "registers": 0,
  "representation_size": None,
  "resizes_positions": False,  # To the grid of each image.
  "resnet_layers": (),
  "scan": False,
}
"""The values that fields have in a model whose class does not have them."""


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where weights came from and how their images must be prepared.

  A published file says almost nothing of this itself: the format implies it,
  unless the caller says otherwise.
  """

  source: str
  """The path or address, as the caller wrote it."""
  format: str
  """Name of the format, such as "google"; "vit_jax" is a workdir of ours."""
  image_size: tuple[int, int] | None
  """Height and width in pixels that the positions belong to, if known."""
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)
  """Subtracted from each channel, in units of full scale."""
  std: tuple[float, ...] = (0.5, 0.5, 0.5)
  """Divides each channel; 0.5 here and as mean give values in [-1, 1]."""
  class_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)
  """The name of every class, if the source has them."""


class Model(nn.Module):
  """Images (B, H, W, C) -> logits (B, K), K = `num_classes`.

  Images are floats, normalised as in the training run ([-1, 1] by default).
  Encoders of images of any size also take `Patches`; text towers take the ids
  of tokens instead. Logits are float32. With `num_classes=0` the result is the
  representation.

  Attributes:
    num_classes: Classes of the head; 0 builds no head.
  """

  num_classes: int

  @classmethod
  def like(cls, model: "Model", **fields: Any) -> Any:
    """A model of this class with the fields of another, as far as it has them.

    `fields` replace some of them.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    names -= {"parent", "name"}
    of_model = {n: getattr(model, n) for n in names if hasattr(model, n)}
    return cls(**{**of_model, **fields})

  def __call__(self, x: Any, *, train: bool = False) -> Pooled:
    self.check_has_parameters()
    return self.head(self.pooled(x, train=train))

  def __new__(cls, *args: Any, **kwargs: Any) -> Any:
    """Raises TypeError for the name of a variant, or for an unknown field."""
    if args and isinstance(args[0], str):
      raise TypeError(
        f"{cls.__name__} takes the sizes of its layers, and not the name "
        f"{args[0]!r}: give vit_jax.make_vit({args[0]!r}, num_classes=1000)."
      )
    fields = cls.__dataclass_fields__
    if unknown := [name for name in kwargs if name not in fields]:
      raise TypeError(
        f"{cls.__name__} has no field {', '.join(unknown)}: "
        'vit_jax.make_vit("S/16", num_classes=10) knows the names of other '
        f"libraries, and help(vit_jax.{cls.__name__}) lists its own."
      )
    return super().__new__(cls)

  @nn.nowrap
  def __getattr__(self, name: str) -> Any:
    """The value in `ABSENT` of a field that the class does not have.

    Raises AttributeError for all else, which for the names of methods of other
    libraries says what to use here.
    """
    if name in ABSENT:
      return ABSENT[name]
    if name in _OF_LOADED:
      raise AttributeError(
        f"a model has no {name}: use {_OF_LOADED[name]}, where loaded is what "
        "vit_jax.load_pretrained returns",
        name=name,
        obj=self,
      )
    return super().__getattr__(name)

  @nn.nowrap
  def check_has_parameters(self) -> None:
    """Raises ValueError if the model is called without its parameters."""
    if self.scope is None:
      raise ValueError(
        "a model is called with its parameters: give "
        'model.apply({"params": params}, images), or, for files and pixels, '
        "loaded.predict(images)."
      )

  @nn.nowrap
  def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the model as Flax does, with {"params": params} and inputs.

    Raises ValueError if the parameters are given without {"params": ...}, which
    Flax's own error would not say, if they are of another model or for images
    of another number of channels, and for `Patches` if the model takes images
    of one size.
    """
    if not self.any_size and any(isinstance(x, Patches) for x in args):
      raise ValueError(
        f"a {type(self).__name__} takes images of one size, and no Patches: "
        "resize all images to one size."
      )
    names = [*variables] if isinstance(variables, Mapping) else []
    if names and "params" not in names:
      raise ValueError(
        f"apply takes collections, and {names[0]!r} is a parameter: give "
        'model.apply({"params": params}, images).'
      )
    try:
      return super().apply(variables, *args, **kwargs)
    except errors.ScopeParamShapeError as error:
      raise ValueError(_misfit(str(error), args)) from error

  def pooled(self, x: Any, *, train: bool = False) -> Pooled:
    """The outputs that the head reads, (B, D) or a row for each head."""
    return self.encode(x, train=train)[1]

  def encode(self, x: Any, *, train: bool = False) -> tuple[Array, Pooled]:
    """The last layer's output z, before any norm, and what the head reads."""
    raise NotImplementedError

  @nn.compact
  def head(self, y: Pooled) -> Float[Array, "B *M K"]:
    """The logits; without classes the representation."""
    y = self.representation(y)
    if not self.num_classes:
      return y
    return classifier(self.num_classes, self.head_bias, self.param_dtype)(y)

  def representation(self, y: Pooled) -> Float[Array, "B *M R"]:
    """Features of an image, from what the head reads."""
    return y

  def inputs(self, image_shape: tuple[int, int, int]) -> Any:
    """The shape and type of a call's input, for one image of (H, W, C)."""
    return _image(image_shape)

  def parts(self) -> tuple[Part, ...]:
    """The parts that the model is made of, see `models.parts`.

    If a model lists no parts, as here, they are guessed from the names of its
    parameters (`parts.guess_parts`).
    """
    return ()

  @property
  def any_size(self) -> bool:
    """Whether a call also takes `Patches`, which images of any size have."""
    return False

  @property
  def trunk(self) -> "Model":
    """The model without what only its training task needs."""
    return self

  @property
  def prefix(self) -> int:
    """Number of tokens before the patches."""
    raise NotImplementedError

  def attention_form(self, size: tuple[int, int]) -> str | None:
    """How attention is computed on images of (height, width).

    None if that is not known, or if there is no choice.
    """
    return None

  @property
  def stride(self) -> int:
    """Pixels between neighbouring patches, or cells of a feature map."""
    return stem_stride(self.resnet_layers)


def _misfit(text: str, args: tuple[Any, ...]) -> str:
  """The message for a parameter that does not fit, from Flax's `text`.

  `args` are the inputs of `apply`. `text` itself is returned if the first is no
  batch of images, or the text has another form than Flax's usual one.
  """
  found = re.search(
    r'parameter "(.*?)" in "/?(.*?)".*?\((.*?)\).*?\((.*?)\)', text, re.S
  )
  shape = tuple(getattr(args[0], "shape", ())) if args else ()
  if found is None or len(shape) != 4:
    return text
  name, path, *both_shapes = found.groups()
  needed, held = (
    [int(n) for n in sides.split(",") if n.strip()] for sides in both_shapes
  )
  if path.split("/")[-1] in _STEMS and name == "kernel":
    C = shape[-1] * math.prod(held) // math.prod(needed)
    text = f"images of shape {shape} do not fit the parameters, which take {C} "
    text += "channel(s)"
    if (shape[-1], C) == (1, 3):
      text += "; jax.numpy.repeat(images, 3, -1) makes RGB of grey ones"
    return f"{text}."
  return (
    f"the parameters are of another model: {path}/{name} has the shape "
    f"{tuple(held)}, and this model needs {tuple(needed)}."
  )


def stem_stride(resnet_layers: tuple[int, ...]) -> int:
  """Pixels between cells of a ResNet's feature map; 1 without a ResNet."""
  stages = len(resnet_layers)
  return 4 * 2 ** (stages - 1) if stages else 1


def check_units(name: str, units: tuple[int, ...]) -> None:
  """Raises ValueError, which names the field, for a stage of no units."""
  if any(count < 1 for count in units):
    raise ValueError(
      f"{name}={units} are units of a ResNet's stages: give 1 or more for "
      "each, as in (3, 4, 9)."
    )


def input_shapes(model: nn.Module, image_shape: tuple[int, int, int]) -> Any:
  """`Model.inputs`, or images (1, H, W, C) for a module that is no `Model`."""
  if isinstance(model, Model):
    return model.inputs(image_shape)
  return _image(image_shape)


def _image(shape: tuple[int, int, int]) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((1, *shape), jnp.float32)


def normalize(
  images: Shaped[Array, "B H W C"],
  mean: Sequence[float] | ArrayLike,
  std: Sequence[float] | ArrayLike,
) -> Float[Array, "B H W C"]:
  """(x / 255 - mean) / std per channel; 0.5 and 0.5 give [-1, 1].

  Raises ValueError unless the images are uint8: nobody can tell whether floats
  are of [0, 1], of [0, 255] or normalised already. It is also raised if
  the mean or the deviation is above 2, and so must count 255 levels, or does
  not have a number for each channel.

  >>> import jax.numpy as jnp
  >>> import vit_jax
  >>> black = jnp.zeros((1, 2, 2, 3), jnp.uint8)
  >>> x = vit_jax.normalize(black, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
  >>> x.shape, float(x.min())
  ((1, 2, 2, 3), -1.0)
  """
  if images.dtype != jnp.uint8:
    raise ValueError(
      f"images of type {images.dtype}; vit_jax.normalize and train steps take "
      "uint8, and normalise them. Floats in [0, 1] become these by "
      '(255 * images).round().astype("uint8"); for model.apply alone, compute '
      "(images - mean) / std."
    )
  for name, values in (("mean", mean), ("std", std)):
    if not isinstance(values, Tracer) and np.max(np.abs(values)) > _FULL_SCALE:
      raise ValueError(
        f"{name}={values} counts 255 levels, and full scale is 1 here: divide "
        "it by 255, so that 127.5 is 0.5."
      )
  channels = images.shape[-1]
  for name, count in (("mean", np.size(mean)), ("std", np.size(std))):
    if count not in (1, channels):
      raise ValueError(
        f"{name} has {count} numbers, and the images have {channels} channels: "
        "give one for each, or one for all."
      )
  shift, scale = (jnp.array(x).reshape(1, 1, 1, -1) for x in (mean, std))
  return (images.astype(jnp.float32) / 255 - shift) / scale


def unit(
  x: Float[Array, "*axes"], axis: int = -1, least: float = 1e-12
) -> Float[Array, "*axes"]:
  """Vectors scaled to length 1, in float32.

  A vector shorter than `least` is divided by it instead: a vector of zeros
  stays zero, and its gradient is finite.
  """
  x = x.astype(jnp.float32)
  squared = jnp.sum(x**2, axis=axis, keepdims=True)
  is_short = squared <= least**2
  length = jnp.sqrt(jnp.where(is_short, 1.0, squared))
  return x / jnp.where(is_short, least, length)


def check_images(x: Any) -> None:
  """Raises ValueError unless images are floats, (B, H, W, C).

  It is also raised if their shape looks like (B, C, H, W). Warns of values so
  large that the images can hardly have been normalised, where the values are
  known; under `jax.jit` they are not.
  """
  shape = tuple(x.shape)
  dtype = x.dtype
  if len(shape) != 4:
    fix = "; for a single image write images[None]" if len(shape) == 3 else ""
    raise ValueError(
      f"images of shape {shape}; the model takes (B, H, W, C){fix}."
    )
  if not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(
      f"images of type {dtype}; the model takes floats, which "
      "vit_jax.normalize(images, mean, std) makes of uint8."
    )
  if shape[1] <= _MOST_CHANNELS < min(shape[2:]):
    raise ValueError(
      f"images of shape {shape} look like (B, C, H, W); the model takes "
      "(B, H, W, C), which images.transpose(0, 2, 3, 1) makes of them."
    )
  here = not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)
  if here and x.size:
    _warn_of_large(x)


def _warn_of_large(x: Any) -> None:
  """Warns if images have values that normalised ones do not have."""
  # By NumPy: inside a traced function, jax.numpy would trace known values, too.
  largest = float(np.abs(np.asarray(x)).max())
  if largest > _LARGEST:
    warnings.warn(
      f"images have values of up to {largest:.0f}, and the model expects "
      "normalised ones, mostly in [-3, 3]: apply vit_jax.normalize to uint8.",
      stacklevel=4,
    )


def classifier(
  num_classes: int, bias: float, param_dtype: DTypeLike, name: str = "head"
) -> Dense:
  """The last dense layer, which starts at zero and computes in float32."""
  return Dense(
    num_classes,
    kernel_init=with_axes(nn.initializers.zeros_init(), ("embed", "classes")),
    bias_init=with_axes(nn.initializers.constant(bias), ("classes",)),
    dtype=jnp.float32,
    param_dtype=param_dtype,
    name=name,
  )


class VitFields(Model):
  """The fields that all Vision Transformers share, and their checks.

  H and W need only be multiples of `stride`. The representation is y of Eq. 4,
  (B, D), or the representation layer's output if there is one. Raises
  ValueError if fields, or a call's images, do not fit together.

  Attributes:
    patch_size: P, the side of a patch in pixels.
    hidden_size: D, the width of a token.
    num_layers: L, the layers of the encoder.
    mlp_size: Width of the MLP's hidden layer.
    num_heads: k, the heads of each layer's self-attention.
    pooling: How the head's input is read from the tokens' outputs.
    position: Kind of position embedding; the subclasses say which they have.
    representation_size: Width of the pre-training head's hidden tanh layer
      (Section 3.1); None for the single dense layer of fine-tuning.
    head_bias: Initial value of the head's biases.
    dropout_rate: Dropout after every dense layer except query, key, value and
      the heads, and after adding position embeddings (App. B.1).
    embedding_dropout_rate: The rate after adding position embeddings, if it
      differs.
    attention_dropout_rate: Dropout on the attention weights A of Eq. 6.
    patch_dropout_rate: Share of the patches that training leaves out of an
      image (`layer.PatchDropout`).
    gelu: "tanh" (the published models' approximation), "exact" or "quick".
    layer_norm_epsilon: Added to the variance in every layer norm.
    scan: Whether one block is compiled for all layers, with their parameters
      stacked, (L, ...), as `blocks` instead of `block_0` and so on; see
      `models.layer`.
    remat: How much the backward pass computes again to save memory, one of
      `layer.REMATS`.
    splash: Whether TPUs compute attention between more than 512 tokens by JAX's
      kernel instead of our form, unless something needs A.
    attention: How attention is computed: "auto" is our form on TPUs, and as
      written elsewhere; "plain" is as written; "cudnn" is by cuDNN's kernels
      where they can (`models.gpu`), else as "auto".
    dtype, param_dtype: Types of the computation and of the parameters.
    attention_dtype: Type of the logits and the exponentials of attention,
      float32 or bfloat16 (`attention.softmax`).
    origin: Where published weights came from; the model ignores it.
  """

  patch_size: int
  hidden_size: int
  num_layers: int
  mlp_size: int
  num_heads: int
  pooling: str = "token"
  position: str = "learned"
  representation_size: int | None = None
  head_bias: float = 0.0
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  scan: bool = False
  remat: str = "none"
  splash: bool = False
  attention: str = "auto"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  attention_dtype: DTypeLike = jnp.float32
  embedding_dropout_rate: float | None = None
  patch_dropout_rate: float = 0.0
  origin: Origin | None = None
  poolings = ()

  def __post_init__(self):
    for name in _SIZES:
      check_size(name, getattr(self, name))
    check_size("num_classes", self.num_classes, least=0)
    if self.hidden_size % self.num_heads:
      raise _uneven_heads(self.hidden_size, self.num_heads)
    check_choice("pooling", self.pooling, self.poolings)
    check_choice("gelu", self.gelu, GELUS)
    check_choice("remat", self.remat, REMATS)
    check_rate("embedding_dropout_rate", self._embedding_dropout_rate)
    check_rate("patch_dropout_rate", self.patch_dropout_rate)
    _ = self._config  # `LayerConfig` checks its fields.
    if self.patch_dropout_rate:
      _check_patch_dropout(self)
    super().__post_init__()

  @property
  def stride(self) -> int:
    """Pixels between neighbouring patches."""
    return self.patch_size * super().stride

  @nn.compact
  def representation(self, y: Pooled) -> Float[Array, "B *M R"]:
    """Features of an image: y, or the hidden layer of the pre-training head."""
    if self.representation_size is None:
      return y
    linear, axes = self.projection, ("embed", "representation")
    make = partial(dense, self.representation_size, axes, self._config)
    pre_logits = make(use_bias=not linear, name="pre_logits")(y)
    return pre_logits if linear else nn.tanh(pre_logits)

  @property
  def _embedding_dropout_rate(self) -> float:
    if self.embedding_dropout_rate is None:
      return self.dropout_rate
    return self.embedding_dropout_rate

  @property
  def _config(self) -> LayerConfig:
    return LayerConfig.of(self)


def check_size(name: str, value: Any, least: int = 1) -> None:
  """Raises ValueError unless a field is a whole number of `least` or more."""
  if not isinstance(value, numbers.Integral):
    raise ValueError(f"{name}={value!r} must be a whole number.")
  if int(value) < least:
    raise ValueError(f"{name}={value} must be {least} or more.")


def _uneven_heads(D: int, num_heads: int) -> ValueError:
  """The error for heads that do not divide D; it names a number that does."""
  small = [k for k in range(1, math.isqrt(D) + 1) if not D % k]
  fits = small + [D // k for k in small]
  nearest = min(fits, key=lambda k: abs(k - num_heads))
  return ValueError(
    f"hidden_size={D} does not split over num_heads={num_heads}; "
    f"{nearest} heads would fit."
  )


def _check_patch_dropout(vit: Any) -> None:
  """Raises ValueError if the layers use the whole grid of patches."""
  if hasattr(vit.block, "grid"):
    raise ValueError(
      f"patch_dropout_rate={vit.patch_dropout_rate} leaves out patches before "
      f"the first layer, and with block={vit.block.__name__} each layer needs "
      "all of them: set patch_dropout_rate=0, or take another block."
    )


def represent(
  model: Model,
  params: Any,
  images: Images | Patches,
  *,
  pre_logits: bool = True,
) -> Float[Array, "B *M R"]:
  """The representation of normalised images, below the head's last layer.

  The head's parameters are not used, and may be absent. The result is y of
  Eq. 4 if the model has no representation layer, or with `pre_logits=False`.
  """
  if model.representation_size is not None and not pre_logits:
    model = model.clone(representation_size=None)

  def run(bound: Any, x: Any) -> Array:
    return bound.representation(bound.pooled(x))

  y: Any = model.apply({"params": params}, images, method=run)
  return y
