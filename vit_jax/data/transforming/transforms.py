"""Turns encoded images into the pixels that a model sees.

For training, shrinking averages areas (`cv2.INTER_AREA`) and enlarging is
bilinear (`cv2.INTER_LINEAR`); if one axis shrinks and the other grows, each is
resized in its own way. Random boxes are resized faster and a little less
exactly. For evaluation, the settings choose the filter; by default it is
Pillow's, which gives the pixels that PyTorch's libraries give.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.batch import ImageTransform
from vit_jax.data.decoding.decode import (
  by_fours,
  decode_box,
  decode_image,
  image_size,
)
from vit_jax.data.decoding.picture import Picture, as_file
from vit_jax.data.example import MAX_PIXELS, RGB, ImageSpec
from vit_jax.data.settings import (
  TENSORFLOW,
  EvalTransformSettings,
  TrainTransformSettings,
)
from vit_jax.runtime.checks import IMAGE_VALUES, checked

# Only runs whose images keep their proportions load the module `sizes`.
if TYPE_CHECKING:
  from vit_jax.data.transforming.sizes import AnySize

# How a training image is resized; with "fast", random boxes take a faster way.
_FILTERS = {
  "fast": EvalTransformSettings(interpolation="area"),
  "bicubic": EvalTransformSettings(interpolation="bicubic"),
  **{name: EvalTransformSettings(resizer=name) for name in TENSORFLOW},
}
TrainTransform = Callable[[bytes, np.random.Generator], np.ndarray]
EvalTransform = Callable[[bytes], np.ndarray]


def make_train_transform(
  image_size: Union[int, tuple[int, int], "AnySize"],
  settings: TrainTransformSettings = TrainTransformSettings(),
  spec: ImageSpec = RGB,
) -> ImageTransform:
  """Builds the training transform: decode, crop, resize, flip, augment.

  The crop "inception" is a random box, of `min_area` of the image or more and
  about as wide as high (`augment.random_box`, or `augment.published_box` with
  `as_published`); "pad" resizes, adds black pixels at each edge and crops at
  random (for small images); "resize" takes the whole image.
  Returns a picklable transform, called as (encoded, rng) -> uint8 (H, W,
  channels). Raises ValueError if the size is not positive, or as
  `check_colours` does. `image_size` is the height and width of the result, one
  number for both, or an `AnySize`, which keeps the proportions of each image
  and draws boxes of the same proportions.

  >>> import numpy as np
  >>> from vit_jax import data
  >>> digits = data.open_source("train", data.DataSettings(name="digits"))
  >>> transform = data.make_train_transform((24, 32))
  >>> pixels = transform(digits[0]["image"], np.random.default_rng(0))
  >>> pixels.shape, pixels.dtype
  ((24, 32, 3), dtype('uint8'))
  """
  check_colours(settings, spec.channels)
  spec = dataclasses.replace(spec, fast_dct=settings.resizer in TENSORFLOW)
  return _TrainTransform(_sizes(image_size), spec, settings)


def make_eval_transform(
  image_size: Union[int, tuple[int, int], "AnySize"],
  settings: EvalTransformSettings = EvalTransformSettings(),
  spec: ImageSpec = RGB,
) -> ImageTransform:
  """Builds the evaluation transform, which draws nothing at random.

  The crop "resize" takes the whole image, whatever its shape; "center" resizes
  it to cover `resize_ratio` times the size and cuts out the centre (256 / 224
  keeps 7/8 of the short side); "squash" resizes it to exactly that, and cuts.
  Returns a picklable transform, called as encoded -> uint8 (H, W, channels).
  Raises ValueError if the size is not positive. `image_size` is the height and
  width of the result, one number for both, or an `AnySize`, which keeps the
  proportions of each image.

  >>> from vit_jax import data
  >>> digits = data.open_source("test", data.DataSettings(name="digits"))
  >>> data.make_eval_transform(16)(digits[0]["image"]).shape
  (16, 16, 3)
  """
  spec = dataclasses.replace(spec, fast_dct=settings.resizer in TENSORFLOW)
  return _EvalTransform(_sizes(image_size), spec, settings)


def check_colours(settings: TrainTransformSettings, channels: int) -> None:
  """Raises ValueError for augmentations that need other channels.

  They are defined for RGB, and for grey as for RGB of three equal channels.
  """
  for name, value in settings.colour_changes.items():
    if channels not in (1, 3):
      raise ValueError(
        f"train_transform.{name}={value} is defined for images of 1 or 3 "
        f"channels, and these have {channels}: set it to {type(value)()}."
      )


class Places(NamedTuple):
  """Where a transformed image lies in the file's upright image.

  Another picture of the same scene, such as a mask, is cut in the same way.

  Attributes:
    shape: Height and width of the upright image.
    box: The part of it that was resized, as (top, left, height, width).
    size: Height and width that the box was resized to.
    part: The part of the resized box that was taken, as (top, left, height,
      width); it may begin or end outside of the box.
    mirrored: Whether the part was then mirrored.
  """

  shape: tuple[int, int]
  box: tuple[int, int, int, int]
  size: tuple[int, int]
  part: tuple[int, int, int, int]
  mirrored: bool = False

  @classmethod
  def of_box(
    cls,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    shape: tuple[int, int],
  ) -> "Places":
    """The places of a box that is resized to `size` (H, W)."""
    return cls(shape, box, size, (0, 0, *size))

  def cut(self, top: int, left: int, size: tuple[int, int]) -> "Places":
    """The places of a part of the transformed image, of `size` (H, W).

    Its corner is at (top, left); it may begin or end outside of the image.
    """
    above, before, _, width = self.part
    height, new_width = size
    if self.mirrored:
      left = width - left - new_width
    return self._replace(part=(above + top, before + left, height, new_width))

  def take_from(self, picture: np.ndarray, outside: float) -> np.ndarray:
    """Cuts a picture (h, w) of the same scene as the image, by nearest pixels.

    The picture may have another resolution than the image. What lies outside of
    it becomes `outside`.
    """
    rows, columns = (self._along(axis, picture.shape[axis]) for axis in (0, 1))
    if self.mirrored:
      columns = columns[::-1]
    h, w = picture.shape
    values = picture[rows.clip(0, h - 1)[:, None], columns.clip(0, w - 1)[None]]
    below = (rows < 0) | (rows >= h)
    beside = (columns < 0) | (columns >= w)
    return np.where(below[:, None] | beside[None], outside, values)

  def _along(self, axis: int, length: int) -> np.ndarray:
    """Where the rows (axis 0) or columns (axis 1) of the part are in a picture.

    The result has an index for each of them, among the picture's `length` rows
    or columns, or outside.
    """
    numbers = np.arange(self.part[axis + 2]) + self.part[axis] + 0.5
    within = numbers * self.box[axis + 2] / self.size[axis]
    places = (self.box[axis] + within) * length / self.shape[axis]
    return np.floor(places).astype(int)


class PlacedTransform(ImageTransform):
  """An image transform that knows where its pixels lie in the file's image."""

  def __call__(
    self, image: bytes | Picture, *rng: np.random.Generator
  ) -> np.ndarray:
    arrays, _ = self.row_and_places(as_file(image), *rng)
    return arrays["image"]

  def pixels_and_places(
    self, encoded: bytes, *rng: np.random.Generator
  ) -> tuple[np.ndarray, Places]:
    """The pixels of an encoded image, and where they lie in it.

    Raises UnreadableImageError if the image cannot be decoded.
    """
    raise NotImplementedError

  def row_and_places(
    self, encoded: bytes, *rng: np.random.Generator
  ) -> tuple[Mapping[str, np.ndarray], Places]:
    """The arrays of `spec`, and where the pixels of `image` lie.

    Raises UnreadableImageError if the image cannot be decoded.
    """
    pixels, places = self.pixels_and_places(encoded, *rng)
    return {"image": pixels}, places


@dataclasses.dataclass(frozen=True)
class UpperLeft(PlacedTransform):
  """The upper-left part, of `size` (H, W), of another transform's images."""

  transform: ImageTransform
  size: tuple[int, int]

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return (*self.size, self.transform.image_shape[2])

  def pixels_and_places(
    self, encoded: bytes, *rng: np.random.Generator
  ) -> tuple[np.ndarray, Places]:
    transform: Any = self.transform
    image, places = transform.pixels_and_places(encoded, *rng)
    height, width = self.size
    return image[:height, :width], places.cut(0, 0, self.size)


@dataclasses.dataclass(frozen=True)
class OneSize:
  """All images get the same height and width."""

  height_width: tuple[int, int]

  def of(self, shape: tuple[int, int]) -> tuple[int, int]:
    """The size that a box of this shape is resized to."""
    del shape
    return self.height_width

  def box(
    self,
    shape: tuple[int, int],
    settings: TrainTransformSettings,
    rng: np.random.Generator,
  ) -> tuple[int, int, int, int]:
    """Draws the random box of an image (H, W), as (top, left, h, w)."""
    from vit_jax.data.transforming.augment import inception_box, published_box

    draw = published_box if settings.as_published else inception_box
    return draw(*shape, min_area=settings.min_area, rng=rng)


def _sizes(image_size: Any) -> Union[OneSize, "AnySize"]:
  """The sizes of a transform's images; raises ValueError for a bad size."""
  if hasattr(image_size, "of"):
    return image_size
  kind, must = IMAGE_VALUES["image_size"]
  return OneSize(checked("image_size", kind, image_size, must))


@dataclasses.dataclass(frozen=True)
class _ResizingTransform(PlacedTransform):
  """A transform that decodes a file and resizes a part of it.

  Attributes:
    sizes: The height and width of its images.
    image_spec: How a file becomes pixels.
  """

  sizes: Union[OneSize, "AnySize"]
  image_spec: ImageSpec

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return (*self.sizes.height_width, self.image_spec.channels)


@dataclasses.dataclass(frozen=True)
class _TrainTransform(_ResizingTransform):
  """See `make_train_transform`."""

  settings: TrainTransformSettings

  def pixels_and_places(
    self, encoded: bytes, *rng: np.random.Generator
  ) -> tuple[np.ndarray, Places]:
    """As in the base class; `rng` is the generator of all random changes."""
    (generator,) = rng
    settings = self.settings
    if settings.crop == "inception":
      image, places = self._random_box(encoded, generator)
    else:
      image = decode_image(encoded, self.image_spec)
      shape = image.shape[:2]
      size = self.sizes.of(shape)
      places = Places.of_box((0, 0, *shape), size, shape)
      image = resize_by_settings(image, size, _FILTERS[settings.resizer])
    if settings.crop == "pad" and settings.pad:
      image, places = _pad_crop(image, places, settings.pad, generator)
    if settings.flip and generator.random() < 0.5:
      image = by_fours(lambda part: cv2.flip(part, 1), image)
      places = places._replace(mirrored=True)
    if settings.colour_changes or settings.erase:
      from vit_jax.data.transforming.augment import augment

      image = augment(image, generator, settings)
    return image, places

  def shape(self, encoded: bytes, rng: np.random.Generator) -> tuple[int, int]:
    """The height and width of the part that is resized, by the file's header.

    A generator in the same state then draws the same box. Raises
    UnreadableImageError as `image_size` does.
    """
    shape = image_size(encoded)
    if self.settings.crop != "inception":
      return shape
    return self.sizes.box(shape, self.settings, rng)[2:]

  def _random_box(
    self, encoded: bytes, rng: np.random.Generator
  ) -> tuple[np.ndarray, Places]:
    """Draws a box by the image's header, decodes it alone, and resizes it.

    Returns the pixels, and where they lie in the image.
    """
    drawn: list[Places] = []

    # `decode_box` reads the image's size, and then calls `draw` for the box. If
    # the first decoder fails, it calls `draw` again, so the last box counts.
    def draw(height: int, width: int) -> tuple[int, int, int, int]:
      box = self.sizes.box((height, width), self.settings, rng)
      size = self.sizes.of(box[2:])
      drawn.append(Places.of_box(box, size, (height, width)))
      return box

    fast = self.settings.resizer == "fast"
    size_of = self.sizes.of
    if not fast:
      # `decode_box` may reduce a JPEG whose box is larger than `size_of` says.
      # The exact filters need all pixels, so it is told a size beyond any box.
      size_of = OneSize((MAX_PIXELS, MAX_PIXELS)).of
    box = decode_box(encoded, size_of, draw, self.image_spec)
    places = drawn[-1]
    if fast:
      return resize_fast(box, places.size), places
    image = resize_by_settings(
      box, places.size, _FILTERS[self.settings.resizer]
    )
    return image, places


def _pad_crop(
  image: np.ndarray, places: Places, pad: int, rng: np.random.Generator
) -> tuple[np.ndarray, Places]:
  """Shifts an image by up to `pad` pixels each way, and fills up with black.

  Returns the image, and where its pixels lie in the file's image.
  """
  H, W, _ = image.shape
  top, left = rng.integers(2 * pad, endpoint=True, size=2)
  sides = (pad, pad, pad, pad, cv2.BORDER_CONSTANT)
  padded = by_fours(lambda part: cv2.copyMakeBorder(part, *sides), image)
  places = places.cut(int(top) - pad, int(left) - pad, (H, W))
  return padded[top : top + H, left : left + W], places


@dataclasses.dataclass(frozen=True)
class _EvalTransform(_ResizingTransform):
  """See `make_eval_transform`."""

  settings: EvalTransformSettings

  def pixels_and_places(
    self, encoded: bytes, *_: np.random.Generator
  ) -> tuple[np.ndarray, Places]:
    """As in the base class, without a generator."""
    image = decode_image(encoded, self.image_spec)
    shape = image.shape[:2]
    size = self.sizes.of(shape)
    h, w = resized_shape(shape, size, self.settings)
    places = Places.of_box((0, 0, *shape), (h, w), shape)
    if shape != (h, w):
      image = resize_by_settings(image, (h, w), self.settings)
    H, W = size
    if h < H or w < W:  # By `longest_ratio`.
      image = _pad(image, size)
      above, before = (max(0, S - s) // 2 for S, s in ((H, h), (W, w)))
      h, w = image.shape[:2]
      places = places.cut(-above, -before, (h, w))
    half = round if self.settings.corner == "even" else math.floor
    top = half((h - H) / 2)
    left = half((w - W) / 2)
    part = image[top : top + H, left : left + W]
    return part, places.cut(top, left, size)


def _pad(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Adds black on both sides of each axis that is shorter than in `size`."""
  height, width = (max(0, size[axis] - image.shape[axis]) for axis in (0, 1))
  rows, columns = (
    (lacks // 2, lacks - lacks // 2) for lacks in (height, width)
  )
  return np.pad(image, (rows, columns, (0, 0)))


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C): shrinks by areas, enlarges bilinearly."""
  least = min(image.shape[0], size[0]), min(image.shape[1], size[1])
  if least != image.shape[:2]:
    image = _resize_with_opencv(image, least, cv2.INTER_AREA)
  if least != size:
    image = _resize_with_opencv(image, size, cv2.INTER_LINEAR)
  return image


def _resize_with_opencv(
  image: np.ndarray, size: tuple[int, int], how: int
) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C) by one of OpenCV's interpolations."""
  return by_fours(
    lambda part: cv2.resize(part, size[::-1], interpolation=how), image
  )


def resize_fast(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C) in a quarter of the time of `resize`.

  Shrinking bilinearly to less than half would ignore pixels. So the image is
  shrunk bilinearly to a multiple of `size` that is at least half of the image's
  own size, and then whole lines are averaged.
  """
  (h, w, _), (H, W) = image.shape, size
  multiple = -(-h // (2 * H)) * H, -(-w // (2 * W)) * W
  if multiple != (h, w):
    image = _resize_with_opencv(image, multiple, cv2.INTER_LINEAR)
  if multiple != size:
    image = _resize_with_opencv(image, size, cv2.INTER_AREA)
  return image


def resized_shape(
  shape: tuple[int, int], size: tuple[int, int], settings: EvalTransformSettings
) -> tuple[int, int]:
  """Height and width that an image is resized to, before the crop.

  If the crop is a square, the long side is rounded down, as torchvision and
  Hugging Face do; with interpolation "area" it is rounded to the nearest, as
  big_vision does. With `longest_ratio`, the resized image may be smaller than
  the crop.
  """
  if settings.crop == "resize":
    return size
  H, W = (round(settings.resize_ratio * side) for side in size)
  if settings.crop == "squash":
    return H, W
  h, w = shape
  if settings.longest_ratio is not None:
    longest = round(settings.longest_ratio * max(size))
    return _size_with_limit(shape, short=min(H, W), longest=longest)
  if settings.interpolation == "area":
    scale = max(H / h, W / w)
    return max(round(h * scale), size[0]), max(round(w * scale), size[1])
  if H == W:
    return int(H * h / min(h, w)), int(W * w / min(h, w))
  ratio = min(h / H, w / W)
  return round(h / ratio), round(w / ratio)


def _size_with_limit(
  shape: tuple[int, int], short: int, longest: int
) -> tuple[int, int]:
  """The size with a short side of `short` and the proportions of `shape`.

  If its long side would exceed `longest`, the long side is `longest` instead.
  """
  least = min(shape)
  most = max(shape)
  exact: float = short
  if most / least * short > longest:
    exact = longest * least / most
  sides = round(exact), int(exact * most / least)
  short_side, long_side = sides
  return sides if shape[0] <= shape[1] else (long_side, short_side)


def resize_by_settings(
  image: np.ndarray, size: tuple[int, int], settings: EvalTransformSettings
) -> np.ndarray:
  """Resizes (h, w, C) to (H, W, C) by the filter of the settings.

  Pillow rounds to 8 bits after its pass along one axis, and again after that
  along the other; the size decides which comes first. torchvision resizes along
  the width first, by coarser weights, or for floats rounds only at the end.
  """
  name = settings.interpolation
  if settings.resizer in TENSORFLOW:
    how = {"area": cv2.INTER_AREA, "bilinear": cv2.INTER_LINEAR}[name]
    exact = _resize_with_opencv(image.astype(np.float32), size, how)
    to_whole = np.floor if settings.resizer == "big_vision" else np.rint
    return to_whole(exact).astype(np.uint8)
  if name == "area":
    return resize(image, size)
  if not settings.antialias and name in ("bilinear", "bicubic"):
    how = cv2.INTER_LINEAR if name == "bilinear" else cv2.INTER_CUBIC
    return _resize_with_opencv(image, size, how)

  if settings.resizer.startswith("torchvision"):
    from vit_jax.data.transforming import whole_weights

    if name == "nearest":
      return whole_weights.resize_nearest(image, size)
    if settings.resizer == "torchvision" and name in whole_weights.KERNELS:
      return whole_weights.resize(image, size, name)

  def resize_with_pillow(pixels: np.ndarray) -> np.ndarray:
    by = Image.Resampling[name.upper()]
    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), by))

  in_floats = settings.resizer == "torchvision_float"
  if image.shape[2] == 3 and not in_floats:
    return resize_with_pillow(image)
  if in_floats:
    image = image.astype(np.float32)
  # Bands are resized one by one, since Pillow would take one for alpha, and
  # weight the others by it.
  bands = [resize_with_pillow(band) for band in np.moveaxis(image, 2, 0)]
  return np.rint(np.stack(bands, axis=2)).clip(0, 255).astype(np.uint8)
