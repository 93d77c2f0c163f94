"""Rules of crops of two sizes, for the objectives that train on them.

Their sections have the keys `small_crops`, `small_size`, `area`, `min_area` and
`colours`. Only the standard library is imported until crops are made, since
sections of the configuration ask for their rules.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from vit_jax.data.settings import TrainTransformSettings

# Only a run with crops needs this module when it runs.
if TYPE_CHECKING:
  from vit_jax.data.transforming.multi_crop import MultiCrop


def fit_areas(settings: Any) -> None:
  """Raises ValueError unless small crops cover less than large ones."""
  if settings.min_area >= settings.area:
    raise ValueError(
      f"min_area={settings.min_area} leaves no small crop below "
      f"area={settings.area}: set min_area below area."
    )


def multi_crop(
  section: str, settings: Any, preprocessing: Any, *, flip: bool, **more: Any
) -> "MultiCrop":
  """The transform into the crops that the settings ask for.

  `section` is the name of their section, and `more` are further fields of
  `MultiCrop`.
  """
  from vit_jax.data.transforming.multi_crop import MultiCrop

  s = settings
  return MultiCrop(
    preprocessing.image_size,
    (s.small_size, s.small_size),
    count=s.small_crops,
    areas=(s.min_area, s.area, 1.0),
    flip=flip,
    colours=s.colours,
    image_spec=preprocessing.spec,
    section=section,
    **more,
  )


def unread(section: str) -> dict[str, str]:
  """The keys of `train_transform` that do not change crops, with the reason.

  `section` is the name of the settings' section.
  """
  keys = (field.name for field in dataclasses.fields(TrainTransformSettings))
  return {
    f"train_transform.{key}": f"as {section} has crops and colours of its own"
    for key in keys
    if key not in ("flip", "repeats")
  }


def large_grid(
  model: Any, size: tuple[int, int] | None
) -> tuple[int, int] | None:
  """Patches along height and width of a large crop of `size`.

  None if the size is not known, or the model has no patches.
  """
  from vit_jax.models.grid import grid_of

  return grid_of(model, size) if size and model.num_layers else None


def check_small_size(
  section: str, settings: Any, model: Any, size: tuple[int, int]
) -> None:
  """Raises ValueError if small crops do not fit the patches or the large crops.

  `section` is the name of the settings' section, and `size` the height and
  width of the large crops.
  """
  if not settings.small_crops:
    return
  key = f"{section}.small_size"
  small = settings.small_size
  check_side(f"{key}={small}", small, model)
  if small > min(size):
    raise ValueError(
      f"{key}={small} is more than the large crops' image_size={size}: set a "
      "smaller small_size or a larger image_size."
    )


def check_side(given: str, side: int, model: Any) -> None:
  """Raises ValueError unless patches fill a side, which is in pixels.

  `given` is the start of the message, such as "lejepa.small_size=100".
  """
  P = model.stride
  if side % P:
    fits = side // P * P
    raise ValueError(
      f"{given} does not divide by the model's patches of {P} pixels: set "
      f"{max(fits, P)} or {fits + P}."
    )


def check_positions(several_sizes: Any, model: Any) -> None:
  """Raises ValueError if crops have several sizes, and positions fit one alone.

  Learned positions fit one size of images if the model has no `position_grid`
  from which to resize them.
  """
  learned = model.num_layers and model.position.startswith("learned")
  if several_sizes and learned and not model.position_grid:
    raise ValueError(
      "image_size is not set, and the model's positions are for one size of "
      "images: set it, as in --config.image_size=(224,224)."
    )
