"""Features of images: the head's input, or the tokens after chosen layers."""

from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from vit_jax.models import BaseVit, Model
from vit_jax.models.grid import grid_of
from vit_jax.models.loaded_first import (
  KnowsItsInputs,
  check_is_open,
  images_alone,
)
from vit_jax.models.model import Inputs, represent
from vit_jax.models.parts import OURS
from vit_jax.models.patches import Patches
from vit_jax.models.tokens import Tokens


def features(
  model: Model | KnowsItsInputs,
  params: Any = None,
  images: Inputs | None = None,
  *,
  layers: int | Sequence[int] | None = None,
  as_maps: bool = False,
  norm: bool = True,
) -> Any:
  """The features of normalised images.

  >>> import jax
  >>> import vit_jax
  >>> vit = vit_jax.make_vit("Ti/16", num_classes=3, num_layers=2)
  >>> params = vit_jax.init_params(vit, jax.random.key(0), image_size=32)
  >>> images = jax.numpy.zeros((1, 32, 32, 3))
  >>> vit_jax.features(vit, params, images).shape
  (1, 192)
  >>> (last,) = vit_jax.features(vit, params, images, layers=[2], as_maps=True)
  >>> last.shape
  (1, 2, 2, 192)

  `features(loaded, images)` takes what `load_pretrained` returned. Images that
  are floats have to be normalised here too; all others, such as names of files,
  are prepared by `loaded.features(images)`, which always applies the norm.

  Args:
    model: The model, or what `load_pretrained` returned.
    params: The model's parameters. What `load_pretrained` returned has them;
      the images then come second.
    images: Floats, normalised as the model expects (`vit_jax.normalize`).
    layers: Layers to take the tokens of, or a single one, counted from 1, or
      from the last, which is -1. By default the result is the head's input.
    as_maps: Whether to give the tokens of the patches alone, as a map (B, h, w,
      D); class, distillation and register tokens are left out. Of a model with
      `channel_tokens`, a patch has the mean over its channels.
    norm: Whether the final layer norm is applied to the tokens.

  Returns:
    The head's input, (B, D), or (B, M, D) for `Patches` with M images in a row,
    such as one where `loaded.preprocess` gives them. With `layers`, a list with
    an array for each layer: its tokens, (B, S, D), or their maps, (B, h, w, D).
    The maps of `Patches` stay rows: (B, N, D), the tokens of the N patches
    alone.

  Raises:
    ValueError: if the model has no such layer, or is a ResNet without layers of
      tokens, if `as_maps` or `norm=False` is given without layers, if images
      that are not floats are given with a model alone or with `norm=False`, or
      parameters with what `load_pretrained` returned.
  """
  check_is_open(model, "features")
  if isinstance(model, KnowsItsInputs):
    pictures = images_alone("features", params, images)
    if not are_floats(pictures):
      if not norm:
        raise ValueError(
          "norm=False is for images that are prepared already, such as "
          "loaded.preprocess(images): give these, or leave it out."
        )
      return model.features(pictures, layers=layers, as_maps=as_maps)
    network, weights = model
    options: Any = {"layers": layers, "as_maps": as_maps, "norm": norm}
    return features(network, weights, pictures, **options)
  if images is None or not are_floats(images):
    raise ValueError(
      f"images of type {type(images).__name__}: give floats (B, H, W, C), "
      "normalised by vit_jax.normalize, or what load_pretrained returned, as "
      "in features(loaded, images)."
    )
  numbers = layer_numbers(model, layers, as_maps)
  if numbers is None:
    if not norm:
      raise ValueError("norm=False needs layers, such as layers=(12,).")
    return _represent(model, nn.unbox(params), images)
  tokens = _tokens(model, numbers, norm, nn.unbox(params), images)
  if not as_maps:
    return tokens
  if isinstance(images, Patches):
    return [z[:, model.prefix * images.layout.images :] for z in tokens]
  _, H, W, _ = images.shape
  grid = grid_of(model, (H, W))
  patches = [z[:, model.prefix :] for z in tokens]
  if model.channel_tokens:
    from vit_jax.models.channels import mean_over_channels

    patches = [mean_over_channels(z, images, grid) for z in patches]
  return [z.reshape(len(z), *grid, -1) for z in patches]


def are_floats(images: Any) -> bool:
  """Whether images are an array, traced or not, or `Patches`, of floats."""
  images = images.values if isinstance(images, Patches) else images
  return jnp.issubdtype(getattr(images, "dtype", np.uint8), jnp.floating)


def layer_number(layer: int, layers: int) -> int:
  """The number of a layer, from 1 to `layers`; 0 if there is no such layer.

  Negative numbers count from the end, as indices of a sequence do. What is no
  whole number is no layer.

  >>> layer_number(-1, layers=12)
  12
  """
  if not isinstance(layer, Integral) or isinstance(layer, bool):
    return 0
  number = layer + layers + 1 if layer < 0 else layer
  return int(number) if 1 <= number <= layers else 0


def layer_numbers(
  model: Model, layers: int | Sequence[int] | None, as_maps: bool
) -> tuple[int, ...] | None:
  """The numbers of `layers`, or of one, from 1; None if `layers` is None.

  `as_maps` says whether the caller wants maps of patches, which need layers.
  Raises ValueError if `as_maps` is given without layers, if `layers` is empty,
  or if the model lacks one of them; a ResNet has no layers.
  """
  if layers is None:
    if as_maps:
      raise ValueError("as_maps=True needs layers, such as layers=(12,).")
    return None
  if not model.num_layers:
    raise ValueError("a ResNet has no layers of tokens: leave out layers.")
  if not isinstance(layers, Iterable):
    layers = [layers]
  numbers = tuple(layer_number(layer, model.num_layers) for layer in layers)
  if not numbers or not all(numbers):
    raise ValueError(
      f"layers={tuple(layers)}: the model has layers 1 to {model.num_layers}; "
      "-1 is the last."
    )
  return numbers


_represent = jax.jit(represent, static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _tokens(
  model: BaseVit,
  layers: tuple[int, ...],
  norm: bool,
  params: Any,
  images: Inputs,
) -> list[Array]:
  """The tokens after each of `layers`, counted from 1: arrays (B, S, D).

  With `norm`, the model's final norm is applied to them.
  """
  names = [OURS.of(layer - 1) for layer in layers]
  captured = {OURS.stacked} if model.scan else {*names}
  _, variables = model.apply(
    {"params": params},
    images,
    method="encode",
    capture_intermediates=lambda module, _: module.name in captured,
    mutable="intermediates",
  )
  outputs: Any = variables["intermediates"]
  if model.scan:
    stacked = outputs[OURS.stacked]["__call__"][0]  # (L, B, S, D)
    tokens = [stacked[layer - 1] for layer in layers]
  else:
    tokens = [outputs[name]["__call__"][0] for name in names]
  if not norm:
    return tokens
  apply_norm: Any = partial(model.apply, {"params": params}, method="normed")
  return [apply_norm(Tokens(z, prefix=model.prefix)).z for z in tokens]
