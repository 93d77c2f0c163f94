"""Settings of dense regression; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import Rule
from vit_jax.runtime.settings import setting
from vit_jax.tasks.segmentation.settings import KINDS, PatchHeadSettings

LOSSES = ("l1", "silog")
DINOV2 = "dpt_dinov2"
"""The head of DINOv2's published models for depth."""


@dataclasses.dataclass(frozen=True)
class DenseRegressionSettings(PatchHeadSettings):
  """A number for each pixel, with data.task=dense_regression."""

  head: str | None = setting(
    None,
    "Head that reads the patches: one that segmentation.head may name, or the "
    'DPT head of DINOv2\'s models for depth ("dpt_dinov2"), with its weights; '
    "that head reads layers before the final norm, and gives numbers of 0 or "
    "more.",
    choices=(*KINDS, DINOV2),
  )
  loss: str = setting(
    "l1",
    'The mean absolute error ("l1"), divided by the standard deviation of the '
    'targets; or the scale-invariant error of logarithms ("silog", '
    "arXiv:1406.2283), for numbers above 0.",
    choices=LOSSES,
  )
  silog_lambda: float = setting(
    0.5,
    "How much of an error of an image's overall scale silog ignores: 0 for "
    "none, 1 for all of it.",
    must=Rule("lie in [0, 1]", lambda x: 0 <= x <= 1),
    tunes="loss=silog",
  )
  unit: str = setting(
    "", 'The unit of the numbers in reports, such as "m"; "" names none.'
  )
