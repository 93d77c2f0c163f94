"""Settings of autoencoders; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import BELOW_1, DEPTH, WIDTH
from vit_jax.runtime.settings import Section, setting


@dataclasses.dataclass(frozen=True)
class AutoencoderSettings(Section):
  """A masked autoencoder, in place of labels (arXiv:2111.06377)."""

  rate: float = setting(
    0.0,
    "Share of the patches to hide from the encoder and to predict, 0.75 in the "
    "paper; 0 trains on labels.",
    must=BELOW_1,
  )
  norm_pixels: bool = setting(
    True,
    "Normalise the pixels of each patch to predict by its own mean and "
    "standard deviation.",
    needs="rate",
  )
  decoder_size: int = setting(
    512, "Width of the decoder's tokens.", must=WIDTH, needs="rate"
  )
  decoder_layers: int = setting(
    8, "Layers of the decoder.", must=DEPTH, needs="rate"
  )
  decoder_heads: int = setting(
    16, "Heads of each layer of the decoder.", must=WIDTH, needs="rate"
  )
