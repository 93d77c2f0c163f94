"""The record of where a model's weights came from."""

import dataclasses


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
