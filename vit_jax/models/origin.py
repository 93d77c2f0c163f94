"""What a model's weights were read as."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where weights came from and how images have to be given to them.

  A published file says almost nothing of this itself: it follows from the
  format, unless the caller knows better.
  """

  source: str
  """As the caller named it."""
  format: str
  """Such as "google" or "timm"; "vit_jax" is one of our own workdirs."""
  image_size: tuple[int, int] | None
  """Height and width in pixels that the stored positions are for, if known."""
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)
  """Taken off each channel, in units of full scale."""
  std: tuple[float, ...] = (0.5, 0.5, 0.5)
  """Then divided by; (0.5, 0.5, 0.5) and the same mean give [-1, 1]."""
  class_names: tuple[str, ...] = dataclasses.field(default=(), repr=False)
  """One for each class where the source names them."""
