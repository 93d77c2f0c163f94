"""The decoder of transformers' masked autoencoders, `ViTMAEForPreTraining`.

`vit_jax.families.vit` has their encoder. We compute the decoder's positions,
and the library stores them. New models of its release 5 have zeros instead, and
keep them; such a decoder has no positions.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vit_jax.models.autoencoder import Autoencoder, sincos
from vit_jax.pretrained.formats.architecture import channels_of, need
from vit_jax.pretrained.formats.huggingface import saved_name
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Config, Layers, Table
from vit_jax.runtime.checks import BELOW_1, COUNT, checked
from vit_jax.tasks.autoencoder.settings import AutoencoderSettings

POSITIONS = "decoder.decoder_pos_embed"
_LAYERS = "decoder.decoder_layers.{}."
_TABLE = Table(
  "mae", (Layers(_LAYERS, ours="decoder", rows="vit", has_base=False),)
)


def names(stored: Iterable[str]) -> dict[str, str]:
  """The published name of each array of a decoder -> its name in the file.

  The layers' names that transformers 5.23 writes differ from those of
  `state_dict()`.
  """
  decoder = (x for x in stored if x.partition(".")[0] == "decoder")
  return {_published_name(name): name for name in decoder}


def _published_name(name: str) -> str:
  """The name of a decoder's array in published files."""
  name = name.replace("decoder_encoder.layer.", "decoder_layers.")
  before, layers, inside = name.partition("decoder_layers.")
  if not layers:
    return name
  # `saved_name` knows layers of encoders only, so the layer passes as one.
  saved = saved_name(f"layers.{inside}")
  return before + saved.replace("encoder.layer.", layers)


def sizes(shapes: Shapes, config: Config) -> dict[str, Any]:
  """The decoder's sizes, as fields of `Autoencoder`.

  Raises ValueError if an array that shows a size is missing.
  """
  (D,) = need(shapes, "decoder.decoder_norm.bias", 1)
  heads = config.get("decoder_num_attention_heads", 16)
  (mlp,) = need(shapes, f"{_LAYERS.format(0)}intermediate.dense.bias", 1)
  return dict(
    decoder_size=D,
    decoder_layers=_TABLE.stacks[0].count(shapes),
    decoder_heads=checked("decoder_num_attention_heads", int, heads, COUNT),
    decoder_mlp_size=mlp,
  )


def rules(model: Autoencoder) -> list[Rule]:
  """The rules for the arrays of a decoder."""
  return _TABLE.rules(model)


def positions(model: Autoencoder, grid: tuple[int, int]) -> np.ndarray:
  """The decoder's positions as they are stored, (1, 1 + N, D)."""
  patches = np.asarray(sincos(*grid, model.decoder_size))
  patches = patches * model.decoder_positions
  return np.pad(patches, ((1, 0), (0, 0)))[None]


def has_positions(stored: np.ndarray, model: Autoencoder) -> bool:
  """Whether stored positions are those that we compute, and not zeros.

  Raises ValueError if they are neither.
  """
  side = math.isqrt(max(stored.size // model.decoder_size - 1, 0))
  if stored.shape == (1, 1 + side * side, model.decoder_size):
    ours = positions(model, (side, side))
    if np.allclose(stored, ours, atol=1e-5):
      return True
    if not stored.any():
      return False
  raise ValueError(
    f"{POSITIONS} is neither the sine and cosine of a square grid, which the "
    "decoder computes here, nor zero: load the encoder alone."
  )


def objective(config: Config) -> AutoencoderSettings:
  """The settings of a configuration's loss, with transformers' defaults.

  Raises ValueError if a setting is of a wrong type or out of bounds.
  """
  rate = config.get("mask_ratio", 0.75)
  norm_pixels = config.get("norm_pix_loss", False)
  return AutoencoderSettings(
    rate=checked("mask_ratio", float, rate, BELOW_1),
    norm_pixels=checked("norm_pix_loss", bool, norm_pixels),
  )


def objective_config(settings: AutoencoderSettings) -> dict[str, Any]:
  """The part of a configuration on the loss."""
  return dict(mask_ratio=settings.rate, norm_pix_loss=settings.norm_pixels)


def config(model: Autoencoder) -> Mapping[str, Any]:
  """The part of a configuration on the decoder."""
  return dict(
    architectures=["ViTMAEForPreTraining"],
    model_type="vit_mae",
    decoder_hidden_size=model.decoder_size,
    decoder_num_hidden_layers=model.decoder_layers,
    decoder_num_attention_heads=model.decoder_heads,
    decoder_intermediate_size=model.mlp_of_decoder,
    num_channels=channels_of(model),
  )
