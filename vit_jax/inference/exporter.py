"""A model and its parameters as one function that runs with JAX alone."""

import dataclasses
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jaxtyping import Array, Float, Int32

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference import DTYPES, KNOWN_PLATFORMS, PLATFORMS
from vit_jax.models import Model, Origin
from vit_jax.models.loaded_first import takes_loaded
from vit_jax.models.text import TextTower
from vit_jax.runtime.checks import COUNT, IMAGE_VALUES, checked
from vit_jax.training.inputs import ImageInputs

# jax.export writes flatbuffers, whose size is limited to 31 bits. The program
# itself takes far less than the margin that is left for it.
_MOST_BYTES = 2**31 - 2**24


@takes_loaded
def export_model(
  model: Model,
  params: Any,
  image_size: int | tuple[int, int] | None = None,
  platforms: str | Sequence[str] = PLATFORMS,
  param_dtype: str = "float32",
  tokens: int | None = None,
) -> export.Exported:
  """Exports the function from images to logits, with the parameters inside.

  `jax.export.deserialize(exported.serialize()).call` restores the function on a
  machine that has JAX and flatbuffers but not vit_jax. It takes uint8 images
  (b, H, W, C) for any b and normalises them as `model.origin` says, or to
  [-1, 1] if the model has no origin. A model with `num_classes=0` returns its
  features, and a text tower takes ids of tokens, int32 (b, T). Serialising
  takes memory for about seven copies of the parameters. Instead of a model and
  its parameters, `export_model(loaded)` takes what `load_pretrained` returned,
  for images of one size unless `tokens` is given; `loaded.export` gives it if
  the model was trained on images that keep their proportions.

  >>> import jax
  >>> import numpy as np
  >>> import vit_jax
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=1)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> exported = vit_jax.export_model(vit, params, 32, platforms=["cpu"])
  >>> exported.call(np.zeros((2, 32, 32, 3), np.uint8)).shape
  (2, 3)

  Args:
    model: The model.
    params: Its parameters.
    image_size: Height and width, or one number for both; by default that of
      `model.origin`.
    platforms: Platforms that it can run on: "cpu", "cuda", "rocm", "tpu", in a
      list, or separated by commas.
    param_dtype: Type to store the parameters in, "float32" or "bfloat16", which
      takes half the space and keeps three digits. The computation still uses
      the model's own `dtype`.
    tokens: The most patches of an image, for images that keep their
      proportions. The function then takes their patches, uint8 (b, tokens,
      P * P * C), row by row with zeros after the last, each in the order (row,
      column, channel); and how many there are along height and width, int32
      (b, 2).

  Raises:
    ValueError: if an argument is unknown or missing, the images do not fit the
      model, or the parameters take more than the 2 GB that can be written.
  """
  if isinstance(image_size, str | os.PathLike):
    raise ValueError(
      f"image_size={os.fspath(image_size)!r}: export_model writes no file, "
      "and takes no name of one: "
      "pathlib.Path(name).write_bytes(exported.serialize()) writes what it "
      "returns, and `vit_jax export` does both."
    )
  platforms = platform_names(platforms)
  check_bytes(params, param_dtype)
  # JAX arrays, since NumPy arrays would be cast before they are stored.
  stored_params = jax.tree.map(
    lambda x: jnp.asarray(np.asarray(x), param_dtype), nn.unbox(params)
  )
  (b,) = export.symbolic_shape("b")
  form = form_of(model, image_size, tokens)
  inputs = form.of_batch(b)
  to_outputs = jax.jit(outputs_function(model, stored_params))
  with warnings.catch_warnings():
    # JAX warns of large constants; here they are the parameters.
    warnings.filterwarnings("ignore", ".* constants were captured")
    return export.export(to_outputs, platforms=platforms)(*inputs)


@dataclasses.dataclass(frozen=True)
class Input:
  """One of the inputs of an exported function.

  Attributes:
    name: Its name.
    shape: Shape of one example.
    dtype: Its type.
    below: One more than its largest value.
    least: Its smallest value.
  """

  name: str
  shape: tuple[int, ...]
  dtype: type
  below: int
  least: int = 0


@dataclasses.dataclass(frozen=True)
class Form:
  """The inputs of an exported function, and the name of its output."""

  inputs: tuple[Input, ...]
  outputs: str

  def of_batch(self, b: Any) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of the inputs for b examples."""
    return [
      jax.ShapeDtypeStruct((b, *one.shape), one.dtype) for one in self.inputs
    ]


def form_of(
  model: Model,
  image_size: int | tuple[int, int] | None = None,
  tokens: int | None = None,
) -> Form:
  """The inputs and outputs of an exported model.

  The arguments are those of `export_model`. Raises ValueError if the size of
  its images is not known, or `tokens` is not a number from 1 on.
  """
  if isinstance(model, TextTower):
    shape = (model.length,)
    return Form(
      (Input("ids", shape, np.int32, model.vocabulary),), "embeddings"
    )
  if tokens is None:
    images = Input("images", _shape(model, image_size), np.uint8, 256)
    return Form((images,), "logits")
  checked("tokens", int, tokens, COUNT)
  values = model.stride**2 * len(_origin(model).mean)
  images = Input("images", (tokens, values), np.uint8, 256)
  size = Input("size", (2,), np.int32, math.isqrt(tokens) + 1, least=1)
  return Form((images, size), "logits")


def outputs_function(model: Model, params: Any) -> Callable[..., Any]:
  """Returns the function to export: of images, or of the ids of tokens."""
  if not isinstance(model, TextTower):
    return logits_function(model, params)

  def to_embeddings(ids: Int32[Array, "b T"]) -> Float[Array, "b R"]:
    """The embeddings of texts, given by the ids of their tokens."""
    cast = jax.tree.map(lambda x: x.astype(model.param_dtype), params)
    embeddings: Any = model.apply({"params": cast}, ids)
    return embeddings.astype(jnp.float32)

  return to_embeddings


def logits_function(
  model: Model, params: Any
) -> Callable[..., Float[Array, "b K"]]:
  """Returns a function that normalises images and computes their logits.

  It takes images of one size, (b, H, W, C), or patches and sizes, as
  `export_model` says.
  """
  origin = _origin(model)
  of_batch = ImageInputs(origin.mean, origin.std)

  def to_logits(images: Array, *size: Array) -> Float[Array, "b K"]:
    """The logits, or the features of a model without a head, in float32."""
    cast = jax.tree.map(lambda x: x.astype(model.param_dtype), params)
    batch = {"image": images} | ({"size": size[0]} if size else {})
    logits: Any = of_batch.model_outputs(model, cast, batch)
    return logits.astype(jnp.float32)

  return to_logits


def _shape(
  model: Model, image_size: int | tuple[int, int] | None
) -> tuple[int, int, int]:
  """Height, width and channels; raises ValueError if they are not known."""
  origin = _origin(model)
  if image_size is None:
    image_size = Preprocessing(origin.image_size).image_size
  kind, must = IMAGE_VALUES["image_size"]
  height, width = checked("image_size", kind, image_size, must)
  return height, width, len(origin.mean)


def _origin(model: Model) -> Origin:
  """The model's origin; by default, images are normalised to [-1, 1]."""
  return model.origin or Origin("", "", None)


def platform_names(platforms: str | Sequence[str]) -> tuple[str, ...]:
  """The platforms, which may be a text with commas between them.

  Raises ValueError if a platform is unknown, or no platform is given.
  """
  given = platforms.split(",") if isinstance(platforms, str) else platforms
  names = tuple(given or ())
  unknown = [name for name in names if name not in KNOWN_PLATFORMS]
  if unknown or not names:
    raise ValueError(
      f"platforms={','.join(names)}; give one or more of "
      f"{', '.join(KNOWN_PLATFORMS)}."
    )
  return names


def check_bytes(params: Any, param_dtype: str) -> None:
  """Raises ValueError for an unknown type, or parameters beyond the limit."""
  checked("param_dtype", str, param_dtype, choices=DTYPES)
  count = sum(x.size for x in jax.tree.leaves(params))
  size = count * jnp.dtype(param_dtype).itemsize
  if size > _MOST_BYTES:
    advice = "run it with vit_jax.load_pretrained instead"
    if count * jnp.dtype("bfloat16").itemsize <= _MOST_BYTES:
      advice = "halve their size with param_dtype=bfloat16"
    raise ValueError(
      f"{count:,} parameters take {size / 1e9:.2f} GB, and an exported file "
      f"holds at most {_MOST_BYTES / 1e9:.2f}: {advice}."
    )
