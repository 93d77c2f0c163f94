"""Statistics of the numbers of some files."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from vit_jax.runtime.printable import counted

Numbers = Float[np.ndarray, "h w"]


@dataclasses.dataclass(frozen=True)
class Statistics:
  """Statistics of the numbers in some files, where NaN means unknown.

  Attributes:
    files: The number of files.
    pixels: The number of their pixels.
    known: The number of pixels that have a number.
    least, most: The least and the greatest number.
    mean, std: Mean and standard deviation of the numbers.
    log_mean, log_std: Mean and standard deviation of the numbers' logarithms;
      NaN unless all numbers are positive.
  """

  files: int
  pixels: int
  known: int
  least: float
  most: float
  mean: float
  std: float
  log_mean: float
  log_std: float

  @classmethod
  def of(cls, pictures: Iterable[Numbers]) -> "Statistics":
    """The statistics of pictures; raises ValueError if no pixel is known."""
    files = pixels = known = 0
    least, most = np.inf, -np.inf
    sums = np.zeros(4)  # Numbers, squares, logarithms, their squares.
    for picture in pictures:
      numbers = picture[~np.isnan(picture)].astype(np.float64)
      files += 1
      pixels += picture.size
      known += numbers.size
      if not numbers.size:
        continue
      least = min(least, numbers.min())
      most = max(most, numbers.max())
      sums[:2] += numbers.sum(), (numbers**2).sum()
      if least > 0:
        logs = np.log(numbers)
        sums[2:] += logs.sum(), (logs**2).sum()
    if not known:
      raise ValueError(
        f"none of {counted(files, 'target')} looked at has a known number: "
        "check the files, and which of their values are unknown."
      )
    mean, square, log_mean, log_square = (sums / known).tolist()
    variance = square - mean**2
    log_variance = log_square - log_mean**2
    if least <= 0:
      log_mean = log_variance = np.nan
    return cls(
      files=files,
      pixels=pixels,
      known=known,
      least=float(least),
      most=float(most),
      mean=mean,
      std=float(np.sqrt(max(variance, 0.0))),
      log_mean=float(log_mean),
      log_std=float(np.sqrt(np.maximum(log_variance, 0.0))),
    )

  @property
  def unknown(self) -> float:
    """The share of the pixels without a number."""
    return 1 - self.known / self.pixels

  @property
  def are_positive(self) -> bool:
    """Whether all numbers are above 0."""
    return self.least > 0
