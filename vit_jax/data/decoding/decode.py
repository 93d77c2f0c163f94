"""Decodes image files to pixels of 8 bits, RGB unless told otherwise.

Transforms call these functions: in training the crop is drawn first, from the
size in the header, and only that box is decoded.

Whatever the file holds, RGB is as a person would see it on a white page. Grey
levels are repeated, palettes looked up, CMYK is converted, 16-bit samples keep
their high byte or are scaled by a window, transparent pixels are blended with
white, the orientation in a file's metadata is applied (see `orientation`), and
an animation gives its first frame. Ordinary JPEG files are decoded by
libjpeg-turbo (see `jpeg`), ordinary PNG files by OpenCV, what `pack` stores as
pixels is copied (see `bitmap`), and all others are decoded by Pillow (see
`pillow`).
"""

import dataclasses
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

from vit_jax.data import example
from vit_jax.data.decoding import bitmap, jpeg, orientation, png
from vit_jax.data.example import RGB, ImageSpec, UnreadableImageError, Window

# Chroma may be stored at half or a quarter of the image's rows, and rows in
# between are interpolated: the last rows need one more row of chroma.
_ROWS_BEYOND = 8
# A JPEG of one scan may have 4 times MAX_PIXELS, as it is decoded reduced.
_REDUCED = 4
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
  2: lambda stored: cv2.flip(stored, 1),
  3: lambda stored: cv2.flip(stored, -1),
  4: lambda stored: cv2.flip(stored, 0),
  5: cv2.transpose,
  6: lambda stored: cv2.rotate(stored, cv2.ROTATE_90_CLOCKWISE),
  7: lambda stored: cv2.transpose(cv2.flip(stored, -1)),
  8: lambda stored: cv2.rotate(stored, cv2.ROTATE_90_COUNTERCLOCKWISE),
}
"""The turn that makes an image of each EXIF orientation but 1 upright."""


def decode_rgb(encoded: bytes, window: Window | None = None) -> np.ndarray:
  """Decodes an image file to RGB, uint8 (H, W, 3), see `decode_image`.

  Raises UnreadableImageError if it cannot be decoded.

  >>> from vit_jax import data
  >>> digits = data.open_source("test", data.DataSettings(name="digits"))
  >>> data.decode_rgb(digits[0]["image"]).shape
  (8, 8, 3)
  >>> data.decode_rgb(b"no image")
  Traceback (most recent call last):
    ...
  vit_jax.data.example.UnreadableImageError: not an image of a known format.
  """
  return decode_image(encoded, ImageSpec(window=window))


def decode_image(encoded: bytes, image_spec: ImageSpec = RGB) -> np.ndarray:
  """Decodes a JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF, JPEG 2000 or HEIC file.

  Returns the image, uint8 of shape (H, W, channels). A JPEG of more than
  `example.MAX_PIXELS` pixels is decoded at half its height and width, or less.
  Raises UnreadableImageError if the file is empty, cut short, damaged or of
  another format, or the image has too many pixels or not the channels of
  `image_spec`.
  """
  if not encoded:
    raise UnreadableImageError("the file is empty.")
  if image_spec.some_bands:
    image_spec = _of_own_bands(encoded, image_spec)
  image = None
  if size := _png_size(encoded):
    example.check_size(*size)
    image = _decode_with_opencv(encoded, image_spec)
  elif header := jpeg.read_header(encoded):
    image = decode_jpeg(
      encoded, header, reduction(header), image_spec=image_spec
    )
  elif (stored := _bitmap_pixels(encoded, image_spec)) is not None:
    image = cv2.cvtColor(stored, cv2.COLOR_BGR2RGB)
  if image is not None:
    return image
  from vit_jax.data.decoding import pillow  # Few runs have files for it.

  return _turn(*pillow.decode(encoded, image_spec))


def image_size(encoded: bytes) -> tuple[int, int]:
  """The height and width of an image once it is upright, by its header alone.

  Raises UnreadableImageError if the file has no header of a known format, or
  the image has too many pixels to be decoded.

  >>> from vit_jax import data
  >>> digits = data.open_source("test", data.DataSettings(name="digits"))
  >>> data.image_size(digits[0]["image"])
  (8, 8)
  """
  if header := jpeg.read_header(encoded):
    _check_size(header)
    return header.upright_size
  from vit_jax.data.decoding import pillow

  return pillow.size(encoded)


def decode_box(
  encoded: bytes,
  size_of: Callable[[tuple[int, int]], tuple[int, int]],
  draw: Callable[[int, int], tuple[int, int, int, int]],
  image_spec: ImageSpec = RGB,
) -> np.ndarray:
  """Decodes a box of an image, where possible without the rest of the image.

  From a BMP file it copies the box alone. A JPEG whose box is to be shrunk is
  decoded at a reduced size, which moves the box by a pixel at most; and rows
  below the box are not decoded. Returns the box, uint8 of shape (h, w,
  channels). From a JPEG its sides may be a half, a quarter or an eighth as
  long. Errors are those of `decode_image`.

  Args:
    size_of: Takes the height and width of the box and returns those that the
      caller will resize it to.
    draw: Takes the height and width of the upright image and returns the box,
      (top, left, h, w). It is called again if the first decoder fails.
  """
  if header := jpeg.read_header(encoded):
    top, left, h, w = draw(*header.upright_size)
    height, width = size_of((h, w))
    reduce = reduction(header, min(h / height, w / width))
    image = decode_jpeg(encoded, header, reduce, top + h, image_spec)
    if image is not None:
      rows, columns = (
        slice(round(start / reduce), round((start + length) / reduce))
        for start, length in ((top, h), (left, w))
      )
      return image[rows, columns]
  elif (stored := _bitmap_pixels(encoded, image_spec)) is not None:
    top, left, h, w = draw(*stored.shape[:2])
    box = stored[top : top + h, left : left + w]
    return cv2.cvtColor(box, cv2.COLOR_BGR2RGB)
  image = decode_image(encoded, image_spec)
  top, left, h, w = draw(*image.shape[:2])
  return image[top : top + h, left : left + w]


def reduction(header: jpeg.Header, most: float = 1) -> int:
  """The greatest of `jpeg.REDUCTIONS` that is at most `most`.

  If that leaves more than `example.MAX_PIXELS` pixels, it is the smallest one
  that does not.
  """
  pixels = header.height * header.width
  numbers = jpeg.REDUCTIONS
  # A JPEG has at most 65,535^2 pixels, for which the last number is enough.
  least = next(r for r in numbers if pixels <= example.MAX_PIXELS * r * r)
  return max(r for r in numbers if r <= max(most, least))


def decode_jpeg(
  encoded: bytes,
  header: jpeg.Header,
  reduce: int = 1,
  rows: int | None = None,
  image_spec: ImageSpec = RGB,
) -> np.ndarray | None:
  """Decodes a JPEG file, at a reduced size or down to a given row.

  Returns the upright image or its upper part, uint8 of shape (H, W, channels);
  None if the file is damaged. Raises UnreadableImageError if the image has too
  many pixels or scans, or as `example.check_channels` does.

  Args:
    reduce: one of `jpeg.REDUCTIONS`, which divides both sides, rounding up. The
      decoder skips the detail that a smaller image cannot show.
    rows: how many rows of the upright image are needed, counted from its top;
      None for all. If the header is `top_down` and the image upright as stored,
      decoding stops soon after them.
  """
  example.check_channels(image_spec)
  _check_size(header)
  if not header.top_down:
    example.check_scans(encoded)
  height = header.height
  upright = header.orientation not in _TURNS
  if upright and rows is not None and header.top_down:
    height = min(height, rows + _ROWS_BEYOND)
    # A decoder stops at the height that the header states, so state less.
    at = header.height_at
    encoded = encoded[:at] + height.to_bytes(2, "big") + encoded[at + 2 :]
  try:
    image = simplejpeg.decode_jpeg(
      encoded,
      colorspace="GRAY" if image_spec.grey else "RGB",
      fastdct=image_spec.fast_dct,
      min_height=-(-height // reduce),
      min_width=-(-header.width // reduce),
      min_factor=reduce,
      strict=False,
    )
  except ValueError:
    return None
  return _turn(_with_alpha(image, image_spec.channels), header.orientation)


def _check_size(header: jpeg.Header) -> None:
  """Raises UnreadableImageError if a JPEG has too many pixels to be decoded."""
  # A JPEG of several scans is held in memory whole, even if it is reduced.
  times = _REDUCED if header.top_down else 1
  example.check_size(header.height, header.width, times)


def by_fours(
  change: Callable[[np.ndarray], np.ndarray], image: np.ndarray
) -> np.ndarray:
  """Applies an OpenCV function to four channels of an image at a time.

  OpenCV takes no more, and drops the last axis of an image of one channel,
  which is put back. Returns the result for all channels, (h, w, C).
  """
  if image.shape[2] > 4:
    parts = [image[..., c : c + 4] for c in range(0, image.shape[2], 4)]
    return np.concatenate([by_fours(change, p) for p in parts], axis=2)
  changed = change(image)
  return changed.reshape(*changed.shape[:2], image.shape[2])


def _of_own_bands(encoded: bytes, image_spec: ImageSpec) -> ImageSpec:
  """The spec that takes the bands of a file as they are stored.

  Raises UnreadableImageError as `file_bands` does.
  """
  from vit_jax.data.decoding.bands import file_bands

  count = len(file_bands(encoded, image_spec.channels).names)
  return dataclasses.replace(
    image_spec, channels=count, stored=True, some_bands=False
  )


def _turn(stored: np.ndarray, orientation: int) -> np.ndarray:
  """Makes an image of some EXIF orientation upright."""
  turn = _TURNS.get(orientation)
  return by_fours(turn, stored) if turn else stored


def _with_alpha(opaque: np.ndarray, channels: int) -> np.ndarray:
  """Adds a channel of 255 to an image if it has one less than `channels`."""
  if opaque.shape[2] == channels:
    return opaque
  return np.dstack([opaque, np.full(opaque.shape[:2], 255, np.uint8)])


def _bitmap_pixels(encoded: bytes, image_spec: ImageSpec) -> np.ndarray | None:
  """The pixels of a file that `bitmap.encode` wrote, blue first.

  Returns None for other files, and for other than 3 channels.
  """
  return bitmap.read(encoded) if image_spec.channels == 3 else None


def _png_size(encoded: bytes) -> tuple[int, int] | None:
  """Returns (H, W) of a complete, opaque 8-bit grey or RGB PNG, else None.

  OpenCV would fill the missing part of a cut file with grey, and drop alpha.
  The result is None also for a file whose metadata may turn the image.
  """
  if not (encoded.startswith(png.START) and encoded.endswith(_PNG_END)):
    return None
  if encoded[24:26] not in (b"\x08\x00", b"\x08\x02"):  # Bits, colour type.
    return None
  for chunk in png.chunks(encoded):
    if chunk.kind in (b"tRNS", b"") or orientation.may_be_in(chunk, encoded):
      return None
  width = int.from_bytes(encoded[16:20], "big")
  return int.from_bytes(encoded[20:24], "big"), width


def _decode_with_opencv(
  encoded: bytes, image_spec: ImageSpec
) -> np.ndarray | None:
  """Decodes a PNG for which `_png_size` gives a size; None if Pillow has to.

  Raises UnreadableImageError as `example.check_channels` does.
  """
  example.check_channels(image_spec)
  is_coloured = encoded[25] != 0  # The colour type: 0 is grey, 2 is RGB.
  # OpenCV and Pillow round differently when they turn colours into grey.
  if image_spec.grey and is_coloured:
    return None
  mode = cv2.IMREAD_GRAYSCALE if image_spec.grey else cv2.IMREAD_COLOR_RGB
  mode |= cv2.IMREAD_IGNORE_ORIENTATION
  try:
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), mode)
  except cv2.error:
    image = None
  if image is None:
    return None
  return _with_alpha(image.reshape(*image.shape[:2], -1), image_spec.channels)
