"""The parts of a run that trains on masked patches in place of labels."""

from vit_jax.data.preprocessing import HALF
from vit_jax.models import ResNet, Vit
from vit_jax.models.grid import grid_of, patch_stride
from vit_jax.models.masked_vit import masked
from vit_jax.run.settings import Settings
from vit_jax.training.masking import Masking, num_corrupted


def make_masking(settings: Settings, model: Vit | ResNet) -> Masking | None:
  """The objective of masked patches, if the settings choose it.

  Raises:
    ValueError: if it does not fit the model or the size of its images.
  """
  if not settings.masked.rate:
    return None
  mean, std = settings.normalization.mean, settings.normalization.std
  rate, target = settings.masked.rate, settings.masked.target
  if (channels := len(mean or HALF)) != 3:
    raise ValueError(
      f"masked.rate={rate} predicts colours, and the images have {channels} "
      "channel(s): leave channels and normalization out."
    )
  if settings.image_size:
    h, w = grid_of(model, settings.image_size)
    if h * w < 2 or not num_corrupted(h * w, rate):
      raise ValueError(
        f"masked.rate={rate} corrupts none of the {h} x {w} patches: set a "
        "higher rate, or a larger image_size for more patches."
      )
  return Masking(rate, target, patch_stride(model), mean or HALF, std or HALF)


def with_masks(settings: Settings, model: Vit | ResNet) -> Vit | ResNet:
  """The model, made to predict masked patches if the settings choose it."""
  masking = make_masking(settings, model)
  return masked(model, masking.outputs) if masking else model
