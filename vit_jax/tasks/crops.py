"""Rules of crops of two sizes, for the objectives that train on them.

Their sections have the keys `small_crops`, `small_size`, `area` and `min_area`.
Only the standard library is imported.
"""

from typing import Any


def fit_areas(settings: Any) -> None:
  """Raises ValueError unless small crops cover less than large ones."""
  if settings.min_area >= settings.area:
    raise ValueError(
      f"min_area={settings.min_area} leaves no small crop below "
      f"area={settings.area}: set it lower."
    )


def check_small_size(
  section: str, settings: Any, model: Any, size: tuple[int, int]
) -> None:
  """Raises ValueError unless patches fill small crops, below the large `size`.

  `section` is the name of the settings' section.
  """
  if not settings.small_crops:
    return
  key = f"{section}.small_size"
  small, P = settings.small_size, model.stride
  if small % P:
    fits = small // P * P
    raise ValueError(
      f"{key}={small} does not divide by the model's patches of {P} pixels: "
      f"set {max(fits, P)} or {fits + P}."
    )
  if small > min(size):
    raise ValueError(
      f"{key}={small} is more than the large crops' image_size={size}: set a "
      "smaller small_size or a larger image_size."
    )


def check_positions(settings: Any, model: Any) -> None:
  """Raises ValueError if the model's positions fit one size of images alone."""
  learned = model.num_layers and model.position.startswith("learned")
  if settings.small_crops and learned and not model.position_grid:
    raise ValueError(
      "image_size is not set, and the model's positions are for one size of "
      "images: set it, as in --config.image_size=(224,224)."
    )
