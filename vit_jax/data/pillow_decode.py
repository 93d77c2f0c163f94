"""Decodes with Pillow the image files that no faster decoder takes.

Samples of more than 8 bits keep their high byte, or are scaled by a window.
"""

import functools
import io

import cv2
import numpy as np
from PIL import ExifTags, Image

from vit_jax.data.example import UnreadableImageError
from vit_jax.data.limits import check_scans, check_size
from vit_jax.runtime.printable import printable

Window = tuple[float, float]
"""The values of samples of more than 8 bits that become black and white."""

# Pillow reads many more formats, and runs another program for some (EPS).
_PILLOW_FORMATS = (
  *("JPEG", "PNG", "WEBP", "BMP", "GIF"),
  *("TIFF", "AVIF", "JPEG2000"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
_JPEG_START, _PNG_START = b"\xff\xd8", b"\x89PNG\r\n\x1a\n"
_BITS_PER_SAMPLE = 258  # A tag of TIFF.


def brightest(encoded: bytes) -> float | None:
  """The greatest sample of an image of 16 bits; None for any other file."""
  narrow = encoded.startswith(_PNG_START) and encoded[24:25] != b"\x10"
  if narrow or encoded.startswith(_JPEG_START):
    return None
  try:
    with _opened(encoded) as image:
      check_size(image.height, image.width)
      image.load()
      samples = _wide_samples(image, encoded, window=(0, 1))
  except Exception:  # Decoding it for the run will say what is wrong.
    return None
  if samples is None or samples.dtype.kind == "f":
    return None
  return float(samples[..., :3].max() if samples.ndim == 3 else samples.max())


def describe(encoded: bytes) -> tuple[str, list[str]]:
  """The format of a readable image, and what is unusual about it, in words."""
  try:
    image = _opened(encoded)
  except Exception:  # Another decoder may be less strict than Pillow.
    return "unknown", []
  with image:
    unusual = {
      "grey": image.mode in ("1", "L", "LA") or image.mode.startswith("I"),
      "CMYK": image.mode == "CMYK",
      "transparent": image.has_transparency_data,
      "of several frames": getattr(image, "n_frames", 1) > 1,
      "turned by EXIF": _orientation(image) in range(2, 9),
      "of 16 bits": brightest(encoded) is not None,
    }
    return image.format or "unknown", [
      w for w, is_so in unusual.items() if is_so
    ]


def decode(encoded: bytes, window: Window | None) -> tuple[np.ndarray, int]:
  """Decodes a file of any format that Pillow or pillow-heif reads.

  Args:
    window: See `decode_rgb`.

  Returns:
    The image as it is stored, uint8 (H, W, 3), and its EXIF orientation.

  Raises:
    UnreadableImageError: if it cannot be decoded.
  """
  try:
    with _opened(encoded) as image:
      check_size(image.height, image.width)
      if encoded.startswith(_JPEG_START):
        check_scans(encoded)
      image.load()
      orientation = _orientation(image)
      samples = _wide_samples(image, encoded, window)
      if samples is not None:
        return _narrowed(samples, window, image), orientation
      return np.array(_to_rgb(image)), orientation
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


def _opened(encoded: bytes) -> Image.Image:
  """Reads the header alone."""
  formats = _PILLOW_FORMATS
  if encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIF_BRANDS:
    _register_heif()
    formats = ("HEIF",)
  return Image.open(io.BytesIO(encoded), formats=formats)


@functools.cache
def _register_heif() -> None:
  try:
    import pillow_heif
  except ImportError:
    raise UnreadableImageError(
      'a HEIC image, which pip install "vit_jax[heif]" reads.'
    ) from None
  pillow_heif.register_heif_opener()


def _orientation(image: Image.Image) -> int:
  """Returns the EXIF orientation; 1, upright, if it is missing or damaged."""
  try:
    return image.getexif().get(ExifTags.Base.Orientation, 1)
  except Exception:  # Damaged metadata is no reason to lose the image.
    return 1


def _wide_samples(
  image: Image.Image, encoded: bytes, window: Window | None
) -> np.ndarray | None:
  """Samples of more than 8 bits, (H, W), (H, W, 3) or (H, W, 4).

  Returns:
    None if Pillow's own pixels will do. In colours these are the high bytes,
    without any sample being transparent.
  """
  if image.mode.startswith("I") or image.mode == "F":
    return np.asarray(image)
  if window is None and "transparency" not in image.info:
    return None
  if image.format == "PNG":
    bits = encoded[24]
  else:  # Pillow knows the tags of a TIFF file only.
    bits = min(getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,)))
  if bits != 16:
    return None
  samples = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
  if samples is None:
    raise UnreadableImageError("its 16-bit samples cannot be decoded.")
  return samples[..., [2, 1, 0, 3][: samples.shape[2]]]  # From BGR.


def _narrowed(
  samples: np.ndarray, window: Window | None, image: Image.Image
) -> np.ndarray:
  """Scales samples to 8-bit RGB, and blends transparent ones with white."""
  colours = samples[..., :3] if samples.ndim == 3 else samples
  if window is None:
    whole = samples.dtype.kind in "iu"
    if not whole or colours.min() < 0 or colours.max() > 0xFFFF:
      kind = (
        "samples of more than 16 bits" if whole else "floating-point samples"
      )
      raise UnreadableImageError(
        f"{kind}; set normalization.window to their least and greatest value."
      )
    pixels = (colours >> 8).astype(np.uint8)
  else:
    low, high = window
    scaled = (colours.astype(np.float32) - low) / (high - low)
    pixels = np.rint(255 * np.clip(np.nan_to_num(scaled), 0, 1))
    pixels = pixels.astype(np.uint8)
  if pixels.ndim == 2:
    pixels = np.repeat(pixels[..., None], 3, axis=2)
  if samples.ndim == 3 and samples.shape[2] == 4:
    alpha = (samples[..., 3:] / 0xFFFF).astype(np.float32)
  elif samples.ndim == 2 and "transparency" in image.info:
    opaque = samples != image.info["transparency"]
    alpha = opaque[..., None].astype(np.float32)
  else:
    return pixels
  return np.rint(alpha * pixels + (1 - alpha) * 255).astype(np.uint8)


def _to_rgb(image: Image.Image) -> Image.Image:
  """Converts any mode of 8 bits to RGB, blending alpha with white."""
  if not image.has_transparency_data:
    return image.convert("RGB")
  image = image.convert("RGBA")
  page = Image.new("RGBA", image.size, "white")
  return Image.alpha_composite(page, image).convert("RGB")
