"""How an image is prepared before a model sees it."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, TypedDict

from vit_jax.data.batch import ImageTransform
from vit_jax.data.example import ImageSpec, adds_alpha
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings
from vit_jax.data.transforming.transforms import (
  UpperLeft,
  make_eval_transform,
  make_train_transform,
)

# Only runs whose images keep their proportions load the module `sizes`.
if TYPE_CHECKING:
  from vit_jax.data.transforming.sizes import AnySize, OwnSize

HALF = (0.5, 0.5, 0.5)


class Normalization(TypedDict):
  """Keywords for `models.model.normalize` and all that calls it."""

  mean: tuple[float, ...]
  std: tuple[float, ...]


COLOURS = ("red", "green", "blue")
"""The channels of a picture that names none."""


def band_places(
  bands: Sequence[str], channels: int, old_bands: Sequence[str] = ()
) -> list[int | None] | None:
  """The place of each band among the `channels` of a checkpoint, by its name.

  The place of a band that the checkpoint lacks is None. The result is None if
  the names tell nothing: if none is known to the checkpoint, or if it is one of
  pictures without names, and the bands lack red, green or blue.
  """
  old = old_bands or (COLOURS if channels == 3 else ())
  at = {name.lower(): place for place, name in enumerate(old)}
  places = [at.get(name.lower()) for name in bands]
  found = {*places} - {None}
  return places if len(found) >= (1 if old_bands else channels) else None


@dataclasses.dataclass(frozen=True)
class Preprocessing:
  """The preprocessing that a model was trained or published with.

  It travels with the model: `predict`, `evaluate`, `fewshot`, `visualize`,
  `export` and `convert` take it from what they loaded and from nowhere else.

  >>> from vit_jax import data
  >>> preprocessing = data.Preprocessing(size=(16, 16))
  >>> print(preprocessing)
  resized to 16 x 16 (bilinear)
  >>> digits = data.open_source("test", data.DataSettings(name="digits"))
  >>> preprocessing.transform()(digits[0]["image"]).shape
  (16, 16, 3)

  Attributes:
    size: Height and width in pixels; None if the checkpoint records none.
    crop: How an image is brought to that size: crop, filter, rounding.
    mean: The number subtracted from each channel on the device, a fraction of
      full scale; a number for each channel.
    std: The number that divides each channel then. Both give the range of
      values: [-1, 1] if both are 0.5, and [0, 1] for a mean of 0 and a std of
      1.
    window: See `ImageSpec`.
    cut_from: The size to which an image is resized before its upper-left part
      of `size` is kept; None resizes it to `size` itself.
    patches: How many patches an image is cut into if it keeps its proportions;
      `size` is then the size of the images for which the position embeddings
      were made. None resizes every image to `size`.
    bands: The names of the channels, if the data name them.
    some_bands: Whether an image may lack some of the `bands`; a batch then says
      which of them each image has.
    own_size: How an image is resized for an answer about each of its pixels,
      such as a segmentation; None resizes it to `size`.
  """

  size: tuple[int, int] | None
  crop: EvalTransformSettings = EvalTransformSettings()
  mean: tuple[float, ...] = HALF
  std: tuple[float, ...] = HALF
  window: tuple[float, float] | None = None
  cut_from: tuple[int, int] | None = None
  patches: Optional["AnySize"] = None
  bands: tuple[str, ...] = ()
  some_bands: bool = False
  own_size: Optional["OwnSize"] = None

  def __post_init__(self):
    if len(self.mean) != len(self.std):
      raise ValueError(
        f"mean={self.mean} and std={self.std} must have a number for each "
        "channel: give both."
      )

  @property
  def image_size(self) -> tuple[int, int]:
    """Height and width; raises ValueError if the checkpoint records none."""
    if self.size is None:
      raise ValueError(
        "the checkpoint does not record the size of its images: give "
        "--image_size, such as --image_size=224."
      )
    return self.size

  @property
  def whole(self) -> tuple[int, int]:
    """Height and width before the cut to `image_size`, if there is one."""
    return self.cut_from or self.image_size

  @property
  def channels(self) -> int:
    """Channels of an image: 1 grey, 3 RGB, 4 RGBA, or bands of a TIFF file."""
    return len(self.mean)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels; raises ValueError as `image_size` does."""
    return (*self.image_size, self.channels)

  @property
  def normalization(self) -> Normalization:
    """`mean` and `std`, as keywords for what normalises on the device."""
    return {"mean": self.mean, "std": self.std}

  @property
  def spec(self) -> ImageSpec:
    """How a file becomes pixels, before they are cut to size."""
    return ImageSpec(
      self.channels,
      self.window,
      adds_alpha=adds_alpha(self.bands),
      some_bands=self.some_bands and bool(self.bands),
    )

  def check_one_size(self, what: str) -> None:
    """Raises ValueError if images keep their proportions, so sizes differ.

    `what` is a subject and its verb for the message, such as "an exported
    program takes", to which the message adds "images of one size".
    """
    if self.patches is not None:
      raise ValueError(
        f"this model's images keep their proportions ({self.patches}), and "
        f"{what} images of one size: load it with an image_size."
      )

  def transform(self) -> ImageTransform:
    """The part done on the host: an image to uint8 pixels (H, W, C).

    It takes the bytes of a file, a path, a Pillow image or an array, uint8 (H,
    W, 3). It raises ValueError as `image_size` does. With `patches`, it is an
    `IntoPatches`.
    """
    size = self.patches or self.whole
    return self._cut(make_eval_transform(size, self.crop, self.spec))

  def train_transform(self, settings: TrainTransformSettings) -> ImageTransform:
    """As `transform`, for training: (image, rng) to uint8 pixels (H, W, C)."""
    size = self.patches or self.whole
    return self._cut(make_train_transform(size, settings, self.spec))

  def _cut(self, transform: ImageTransform) -> ImageTransform:
    """The transform, followed by the cut into patches or to `image_size`.

    With `some_bands`, unless it cuts into patches, it also takes files that
    lack bands.
    """
    if self.patches is not None:
      from vit_jax.data.transforming.patches import IntoPatches

      return IntoPatches(transform, self.patches, self.channels)
    if self.cut_from is not None:
      transform = UpperLeft(transform, self.image_size)
    if self.some_bands and self.bands:
      from vit_jax.data.transforming.some_bands import SomeBands

      return SomeBands(transform, self.bands)
    return transform

  def __str__(self) -> str:
    """How an image is prepared, in words."""
    crop = self.crop
    text = ""
    if self.window is not None:
      text = "scaled from {:g} to {:g} where it has 16 bits, ".format(
        *self.window
      )
    if self.patches is not None:
      text += f"resized in proportion to {self.patches}"
    elif not self.size:
      text += "taken at any size"
    elif crop.crop == "resize":
      text += "resized to {} x {}".format(*self.whole)
    else:
      height, width = (round(crop.resize_ratio * side) for side in self.whole)
      cover = "cover " if crop.crop == "center" else ""
      text += f"resized to {cover}{height} x {width}"
      if crop.longest_ratio is not None and cover:
        longest = round(crop.longest_ratio * max(self.whole))
        text += f", with a long side of at most {longest},"
      text += " and cut to {} x {} from the centre".format(*self.whole)
    if self.cut_from:
      corner = "{} x {}".format(*self.image_size)
      text += f", of which the upper left {corner} is kept"
    plain = "" if crop.antialias else ", without antialiasing"
    bands = "" if self.channels == 3 else f", {self.channels} channel(s)"
    return f"{text} ({crop.interpolation}{plain}){bands}"
