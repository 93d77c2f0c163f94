"""Decodes with Pillow the image files that no faster decoder takes.

tifffile reads TIFF files if their bands are taken as they are stored (always
for other than 1 or 3 channels), and those whose colours lie in separate planes
of more than 8 bits. Samples of more than 8 bits keep their high byte, or are
scaled by a window.
"""

import contextlib
import io
import math
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from PIL import Image

from vit_jax.data import example
from vit_jax.data.decoding import jpeg, orientation, png
from vit_jax.data.example import RGB, ImageSpec, UnreadableImageError, Window
from vit_jax.runtime.printable import printable

# Pillow reads many more formats, and runs another program for some (EPS).
_PILLOW_FORMATS = (
  "JPEG",
  "PNG",
  "WEBP",
  "BMP",
  "GIF",
  "TIFF",
  "AVIF",
  "JPEG2000",
)
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
_JPEG_START = b"\xff\xd8"
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BITS_PER_SAMPLE, _ORIENTATION = 258, 274  # Tags of TIFF.
_PHOTOMETRIC, _MIN_IS_WHITE = 262, 0
_PLANES, _APART = 284, 2
_GREY_MODES = ("1", "L", "LA", "La")
_GREY, _CMYK = (0, 1, 3), 5  # Grey with 0 as white or as black, or a palette.
_SAMPLES_PER_PIXEL, _EXTRA_SAMPLES = 277, 338
_MULTIPLIED, _PLAIN_ALPHA = 1, 2  # Alpha, multiplied into the colours or not.
_ALPHA = (_MULTIPLIED, _PLAIN_ALPHA)  # All other samples may be anything.
_PAGE_KIND, _WHOLE_IMAGE = 254, 0  # Other pages are masks or reduced images.
_SAMPLE_FORMAT, _UNSIGNED, _SIGNED = 339, 1, 2
WIDE = "of 16 bits"
"""What `describe` says of samples that are no unsigned bytes."""
_PLANES_UNREAD = (
  "it stores each {} as a plane of its own, which is not read for images of "
  "mode {}: save it with the channels of a pixel side by side."
)


def brightest(encoded: bytes, image_spec: ImageSpec = RGB) -> float | None:
  """The greatest sample of an image of integers that are no unsigned bytes.

  All bands count that a run of `image_spec` takes, but for alpha. Returns None
  for an image of unsigned bytes or of floats, and for a damaged file.
  """
  narrow = encoded.startswith(png.START) and encoded[24:25] != b"\x10"
  if narrow or encoded.startswith(_JPEG_START):
    return None
  samples = None
  colours = 3
  # If the file is damaged, the decoding for the run says so.
  with contextlib.suppress(Exception):
    if stored := _num_stored(encoded, image_spec):
      samples, _ = _bands(encoded)
      colours = stored
    else:
      samples = _picture_samples(encoded)
  if samples is None or samples.dtype == np.uint8 or samples.dtype.kind == "f":
    return None
  shown = samples[..., :colours] if samples.ndim == 3 else samples
  return float(shown.max())


def _picture_samples(encoded: bytes) -> np.ndarray | None:
  """The samples of a picture that are no unsigned bytes; None if they are.

  Raises what Pillow and tifffile raise for a damaged file.
  """
  try:
    with _open(encoded) as image:
      example.check_size(image.height, image.width)
      image.load()
      # With a window, whatever it is, this returns samples of 16 bits.
      return _wide_samples(image, encoded, window=(0, 1))
  except Image.UnidentifiedImageError:
    return _bands(encoded)[0]


def describe(
  encoded: bytes, image_spec: ImageSpec = RGB
) -> tuple[str, list[str]]:
  """The format of a readable image, and what is unusual about it, in words.

  If a run of `image_spec` takes its bands as they are stored, nothing is said
  on grey, alpha or pages.
  """
  if _num_stored(encoded, image_spec):
    with open_tiff(encoded) as file:
      dtype, tags = file.series[0].dtype, file.pages.first.tags
      turned = tags.valueof(_ORIENTATION) in range(2, 9)
    odd = ["turned by EXIF"] * turned
    return "TIFF", odd + [WIDE] * (dtype.kind in "iu" and dtype != "u1")
  try:
    image = _open(encoded)
  except Exception:  # Another decoder may be less strict than Pillow.
    return "unknown", []
  with image:
    unusual = {
      "grey": image.mode in _GREY_MODES or image.mode.startswith("I"),
      "CMYK": image.mode == "CMYK",
      "transparent": image.has_transparency_data,
      "of several frames": getattr(image, "n_frames", 1) > 1,
      "turned by EXIF": _orientation(image, encoded) in range(2, 9),
      WIDE: brightest(encoded, image_spec) is not None,
    }
    oddities = [name for name, is_so in unusual.items() if is_so]
    return image.format or "unknown", oddities


def decode(encoded: bytes, image_spec: ImageSpec) -> tuple[np.ndarray, int]:
  """Decodes a file of any format that Pillow, pillow-heif or tifffile reads.

  Returns the image, uint8 (H, W, channels), and the EXIF orientation by which
  it still has to be turned. Raises UnreadableImageError if it cannot be
  decoded.
  """
  channels = image_spec.channels
  window = image_spec.window
  with as_unreadable():
    by_band = image_spec.stored or channels not in (1, 3)
    if by_band and encoded.startswith(TIFF_STARTS):
      samples, turn = _bands(encoded)
      count = samples.shape[2]
      if count == channels:
        return _eight_bits(samples, window), turn
      if channels > 4 or not _is_picture(encoded, count):
        example.check_channels(image_spec, count)
    elif channels > 4:
      example.check_channels(image_spec)
    with _open_picture(encoded, image_spec) as image:
      has_alpha = image.has_transparency_data
      example.check_channels(image_spec, has_alpha=has_alpha)
      example.check_size(image.height, image.width)
      if encoded.startswith(_JPEG_START):
        example.check_scans(encoded)
      # Loading turns a TIFF file, but not the samples that tifffile reads.
      before = None
      if _has_wide_planes(image):
        before = _orientation(image, encoded)
      _load(image)
      turn = before or _orientation(image, encoded)
      samples = _wide_samples(image, encoded, window)
      if samples is not None:
        return _narrow(samples, image, image_spec), turn
      pixels = np.array(_convert(image, channels))
      return pixels.reshape(*pixels.shape[:2], channels), turn


def size(encoded: bytes) -> tuple[int, int]:
  """The height and width of the upright image, by its header alone.

  Raises UnreadableImageError if it has no known header, or too many pixels.
  """
  with as_unreadable():
    try:
      with _open(encoded) as image:
        height, width = image.height, image.width
        # Pillow has turned the sides of a TIFF file already.
        is_tiff = image.format == "TIFF"
        turned = (
          not is_tiff
          and _orientation(image, encoded) in orientation.QUARTER_TURNS
        )
    except Image.UnidentifiedImageError:
      if not encoded.startswith(TIFF_STARTS):
        raise
      with open_tiff(encoded) as file:
        sides = _sides(file.series[0])
        height, width = sides["Y"], sides["X"]
        example.check_size(height, width)
        turned = (
          file.pages.first.tags.valueof(_ORIENTATION)
          in orientation.QUARTER_TURNS
        )
    return (width, height) if turned else (height, width)


@contextlib.contextmanager
def as_unreadable() -> Iterator[None]:
  """A context for decoders, whose errors become ones of unreadable images.

  Raises UnreadableImageError, with a message of one line, for any error.
  """
  try:
    yield
  except UnreadableImageError:
    raise
  except Image.UnidentifiedImageError:
    raise UnreadableImageError("not an image of a known format.") from None
  # On damaged files, Pillow's plugins raise almost anything (SyntaxError,
  # struct.error, ...), and above its own size limit Pillow warns or raises.
  except Exception as error:
    text = printable(str(error)).rstrip(".")  # Some messages quote the file.
    name = type(error).__name__
    raise UnreadableImageError(f"{text or name}.") from error


def _bands(encoded: bytes) -> tuple[np.ndarray, int]:
  """The samples of a TIFF file, (H, W, bands), and its orientation.

  The bands may lie in one page, or in one page each, of equal sizes. Raises
  UnreadableImageError if they are of another layout, or too large.
  """
  with open_tiff(encoded) as file:
    series = file.series[0]
    axes, shape = series.axes, series.shape
    sides = _sides(series)
    example.check_size(sides["Y"], sides["X"])
    tags = file.pages.first.tags
    if tags.valueof(_PHOTOMETRIC) == _MIN_IS_WHITE:
      raise UnreadableImageError(
        "in its bands 0 is white (MinIsWhite), which is not read: save it "
        "with black as 0."
      )
    for claimed in (shape, series.keyframe.shape):
      example.check_samples(claimed, series.dtype.itemsize)
    samples = series.asarray()
    tag = tags.get(_ORIENTATION)
  samples = np.moveaxis(samples, [axes.index("Y"), axes.index("X")], [0, 1])
  return samples.reshape(*samples.shape[:2], -1), tag.value if tag else 1


def _is_picture(encoded: bytes, count: int) -> bool:
  """Whether the `count` bands of a TIFF file are grey or colours, and alpha.

  The file says so itself: they lie in one page, and each sample beyond those of
  the colours is marked as alpha.
  """
  with open_tiff(encoded) as file:
    page = file.pages.first
    colours = _colours(page.tags.valueof(_PHOTOMETRIC))
    extra = tuple(page.extrasamples)
    one_page = page.samplesperpixel == count
  return one_page and count == colours + len(extra) and {*extra} <= {*_ALPHA}


def _num_stored(encoded: bytes, image_spec: ImageSpec) -> int:
  """How many bands `image_spec` takes as a file stores them, without alpha.

  The result is 0 for a file that is taken as a picture, or is damaged.
  """
  all_bands = image_spec.stored or image_spec.some_bands
  by_band = all_bands or image_spec.channels not in (1, 3)
  if not (by_band and encoded.startswith(TIFF_STARTS)):
    return 0
  with contextlib.suppress(Exception), open_tiff(encoded) as file:
    sides = _sides(file.series[0])
    count = math.prod(n for axis, n in sides.items() if axis not in "YX")
    if image_spec.some_bands or count == image_spec.channels:
      extra = [*file.pages.first.extrasamples]
      return count - (extra[-1:] in ([_MULTIPLIED], [_PLAIN_ALPHA]))
  return 0


def _colours(photometric: int | None) -> int:
  """How many samples of a TIFF file's pixels are grey or colours."""
  if photometric in _GREY:
    return 1
  return 4 if photometric == _CMYK else 3


def leaves_out_bands(encoded: bytes, image_spec: ImageSpec) -> bool:
  """Whether a readable TIFF file has bands that 1 or 3 channels do not show.

  Those are pages after the first, and samples beyond grey or colours that no
  tag marks as alpha. Pillow leaves them out, or takes one for alpha if there is
  no tag at all.
  """
  as_picture = not (image_spec.stored or image_spec.some_bands)
  if image_spec.channels not in (1, 3) or not as_picture:
    return False
  if not encoded.startswith(TIFF_STARTS):
    return False
  # If the file is damaged, the decoding says so.
  with contextlib.suppress(Exception), _open(encoded) as image:
    tags: Any = getattr(image, "tag_v2", {})
    marked = [kind in _ALPHA for kind in tags.get(_EXTRA_SAMPLES, ())]
    shown = _colours(tags.get(_PHOTOMETRIC)) + sum(marked[:1])
    if tags.get(_SAMPLES_PER_PIXEL, 1) > shown:
      return True
    size = image.size
    image.seek(1)  # Raises EOFError if there is one page.
    is_whole = tags.get(_PAGE_KIND, _WHOLE_IMAGE) == _WHOLE_IMAGE
    return is_whole and image.size == size
  return False


def gets_alpha(encoded: bytes, image_spec: ImageSpec) -> bool:
  """Whether decoding adds an alpha of 255 to a readable file.

  It does so to an opaque picture, if `image_spec` has 2 or 4 channels and adds
  alpha.
  """
  channels = image_spec.channels
  takes_alpha = image_spec.adds_alpha and not image_spec.some_bands
  if channels not in (2, 4) or not takes_alpha:
    return False
  if encoded.startswith(_JPEG_START):
    return True
  # If the file is damaged, the decoding says so.
  with contextlib.suppress(Exception), _open(encoded) as image:
    return len(image.getbands()) != channels and not image.has_transparency_data
  return False  # Bands that Pillow cannot open are taken as they are stored.


def open_tiff(encoded: bytes) -> Any:
  """Opens a TIFF file with tifffile.

  Raises UnreadableImageError if that is not installed.
  """
  try:
    import tifffile
  except ImportError:
    raise UnreadableImageError(
      "tifffile, which reads the bands of a TIFF file, is not installed: pip "
      'install "vit_jax[tiff]".'
    ) from None
  return tifffile.TiffFile(io.BytesIO(encoded))


def _sides(series: Any) -> dict[str, int]:
  """The size of each axis of a TIFF file's pages, by the axis's letter.

  Raises UnreadableImageError unless the axes are height, width and bands.
  """
  axes, shape = series.axes, series.shape
  if not {"Y", "X"} <= set(axes) or len(axes) > 3:
    raise UnreadableImageError(
      f"its axes are {axes}, of sizes {shape}, and only height (Y), width (X) "
      "and at most one axis of bands are read."
    )
  return dict(zip(axes, shape, strict=True))


def _open(encoded: bytes) -> Image.Image:
  """Opens an image, and reads no more than its header.

  Raises UnreadableImageError if it is HEIC and its library is not installed,
  and Pillow's UnidentifiedImageError for an unknown format.
  """
  formats = _PILLOW_FORMATS
  if encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIF_BRANDS:
    _register_heif()
    formats = ("HEIF",)
  return Image.open(io.BytesIO(encoded), formats=formats)


def _open_picture(encoded: bytes, image_spec: ImageSpec) -> Image.Image:
  """Opens an image as `_open` does.

  For a TIFF file that Pillow cannot open, raises UnreadableImageError, which
  tells the number of bands, unless there are 1 or 3.
  """
  try:
    return _open(encoded)
  except Image.UnidentifiedImageError:
    if not encoded.startswith(TIFF_STARTS):
      raise
    count = 0
    with contextlib.suppress(Exception), open_tiff(encoded) as file:
      sides = _sides(file.series[0])
      count = math.prod(n for axis, n in sides.items() if axis not in "YX")
    if count not in (0, 1, 3):
      example.check_channels(image_spec, count)
    raise


def _register_heif() -> None:
  """Lets Pillow open HEIC files; raises UnreadableImageError if it cannot."""
  try:
    import pillow_heif
  except ImportError:
    raise UnreadableImageError(
      "pillow-heif, which reads HEIC images, is not installed: pip install "
      '"vit_jax[heif]".'
    ) from None
  pillow_heif.register_heif_opener()


def _orientation(image: Image.Image, encoded: bytes) -> int:
  """The EXIF orientation of an image that Pillow opened; 1 is upright."""
  if encoded.startswith(_JPEG_START):
    return jpeg.orientation_of(encoded)
  if encoded.startswith(png.START) and not any(
    orientation.may_be_in(chunk, encoded) for chunk in png.chunks(encoded)
  ):
    return 1  # Pillow would decode the pixels to find chunks behind them.
  return orientation.of_picture(image)


def _wide_samples(
  image: Image.Image, encoded: bytes, window: Window | None
) -> np.ndarray | None:
  """Samples that are no unsigned bytes, (H, W), (H, W, 3) or (H, W, 4).

  The result is None if Pillow's own pixels are enough: those of an image of
  unsigned bytes, or the high bytes of a colour image, without a window or a
  transparent colour. Raises UnreadableImageError if samples of 16 bits cannot
  be read.
  """
  tags = getattr(image, "tag_v2", {})  # Only TIFF files have them.
  formats = {*tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))}
  if image.mode == "L" and _SIGNED in formats:
    return np.asarray(image).view(np.int8)
  if image.mode.startswith("I") or image.mode == "F":
    samples = np.asarray(image)
    unsigned = tags and image.mode == "I" and formats == {_UNSIGNED}
    return samples.view(np.uint32) if unsigned else samples
  if _has_wide_planes(image):
    alpha = tags.get(_EXTRA_SAMPLES, (_PLAIN_ALPHA,))
    if image.mode not in ("RGB", "RGBA") or {*alpha} != {_PLAIN_ALPHA}:
      raise UnreadableImageError(
        _PLANES_UNREAD.format("channel of 16 bits", image.mode)
      )
    return _bands(encoded)[0]
  if window is None and "transparency" not in image.info:
    return None
  if image.format == "PNG":
    bits = encoded[24]
  else:
    bits = min(tags.get(_BITS_PER_SAMPLE, (8,)))
  if bits != 16:
    return None
  samples = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
  if samples is None:
    raise UnreadableImageError("its 16-bit samples cannot be decoded.")
  samples = samples[..., [2, 1, 0, 3][: samples.shape[2]]]  # From BGR.
  if tags and image.mode == "RGB":
    return samples[..., :3]  # A fourth sample is not alpha.
  is_multiplied = _MULTIPLIED in tags.get(_EXTRA_SAMPLES, ())
  return _unmultiplied(samples) if is_multiplied else samples


def _unmultiplied(samples: np.ndarray) -> np.ndarray:
  """Divides colours of 16 bits by the alpha that was multiplied into them.

  `samples` and the result, uint16 (H, W, 4), have the alpha last.
  """
  alpha = samples[..., 3:]
  colours = samples[..., :3] * (0xFFFF / np.maximum(alpha, 1))
  colours = np.rint(np.minimum(colours, 0xFFFF)).astype(np.uint16)
  return np.dstack([colours, alpha])


def _load(image: Image.Image) -> None:
  """Decodes the samples.

  Raises UnreadableImageError for planes of channels that Pillow cannot read.
  """
  try:
    image.load()
  except ValueError:  # "unknown raw mode for given image mode"
    if getattr(image, "tag_v2", {}).get(_PLANES) != _APART:
      raise
    raise UnreadableImageError(
      _PLANES_UNREAD.format("channel", image.mode)
    ) from None


def _has_wide_planes(image: Image.Image) -> bool:
  """Whether a TIFF file stores each colour of 16 bits in a plane of its own.

  Pillow and OpenCV mix up the bytes of such files.
  """
  tags = getattr(image, "tag_v2", {})
  wide = max(tags.get(_BITS_PER_SAMPLE, (8,))) > 8
  return wide and tags.get(_PLANES) == _APART and len(image.getbands()) > 1


def _eight_bits(samples: np.ndarray, window: Window | None) -> np.ndarray:
  """Scales samples of any type to 8 bits, by a window if there is one.

  Raises UnreadableImageError if there is none, unless the samples are unsigned
  ones of 8 or 16 bits, whose range is known.
  """
  if samples.dtype == np.uint8:
    return samples
  if window is not None:
    low, high = window
    scaled = (samples.astype(np.float32) - low) / (high - low)
    pixels = np.rint(255 * np.clip(np.nan_to_num(scaled), 0, 1))
    return pixels.astype(np.uint8)
  kind = samples.dtype.kind
  size = samples.itemsize
  if (kind, size) != ("u", 2):
    # Pillow gives signed samples of 16 bits in 32.
    kinds = {"i": "signed", "f": "floating-point"}
    words = f"{kinds[kind]} samples" if kind in kinds else "samples of 32 bits"
    raise UnreadableImageError(
      f"{words}: convert the file to 8 bits, or train with "
      "--config.normalization.window='(LOW,HIGH)', their smallest and largest "
      "value."
    )
  return (samples >> 8).astype(np.uint8)


def _narrow(
  samples: np.ndarray, image: Image.Image, image_spec: ImageSpec
) -> np.ndarray:
  """Scales samples to 8 bits, (H, W, channels), with alpha if it is kept.

  Otherwise transparent pixels are blended with white. Raises
  UnreadableImageError as `_eight_bits` does.
  """
  colours = samples[..., :3] if samples.ndim == 3 else samples
  mode = "L" if image_spec.grey else "RGB"
  pixels = Image.fromarray(_eight_bits(colours, image_spec.window)).convert(
    mode
  )
  pixels = np.array(pixels).reshape(*samples.shape[:2], -1)
  # The window's values are those of the file, whichever end is white.
  if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == _MIN_IS_WHITE:
    pixels = 255 - pixels
  alpha: np.ndarray = np.ones((*samples.shape[:2], 1))
  if samples.ndim == 3 and samples.shape[2] == 4:
    alpha = samples[..., 3:] / 0xFFFF
  elif samples.ndim == 2 and "transparency" in image.info:
    alpha = (samples != image.info["transparency"])[..., None]
  alpha = alpha.astype(np.float32)
  if image_spec.channels == pixels.shape[2]:
    blended = alpha * pixels + (1 - alpha) * 255
    return np.rint(blended).astype(np.uint8)
  return np.dstack([pixels, np.rint(255 * alpha).astype(np.uint8)])


def _convert(image: Image.Image, channels: int) -> Image.Image:
  """Converts an image of any mode of 8 bits to 1 to 4 `channels`.

  With 1 or 3 channels, alpha is not kept, and the image is blended with white.
  Only modes of colours are converted to grey by way of RGB.
  """
  if image.has_transparency_data:
    if image.mode == "La":  # Pillow divides by alpha only on the way to LA.
      image = image.convert("LA")
    image = image.convert("RGBA")
    if channels in (1, 3):
      page = Image.new("RGBA", image.size, "white")
      image = Image.alpha_composite(page, image).convert("RGB")
  elif image.mode not in ("1", "L"):
    image = image.convert("RGB")
  return image.convert(("L", "LA", "RGB", "RGBA")[channels - 1])
