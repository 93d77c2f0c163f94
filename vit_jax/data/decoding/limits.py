"""Limits on images, above which decoding would take too much memory or time."""

from vit_jax.data.example import UnreadableImageError

MAX_PIXELS = 89_478_485
"""Larger images are refused before decoding; the limit is Pillow's own.

JPEG files may have four times as many, as they can be reduced while decoding.
"""

_MAX_SCANS = 100
"""A scan costs hardly a byte, but as much time as decoding the whole image."""
_SCAN = b"\xff\xda"


def check_size(height: int, width: int, times: int = 1) -> None:
  """Raises UnreadableImageError for more than `times` `MAX_PIXELS` pixels."""
  most = times * MAX_PIXELS
  if height * width > most:
    raise UnreadableImageError(
      f"the image has {width} x {height} pixels, more than {most}; shrink it "
      "first."
    )


def check_scans(encoded: bytes) -> None:
  """Refuses a JPEG that takes minutes to decode; cameras write ten scans."""
  scans = encoded.count(_SCAN)
  if scans > _MAX_SCANS:
    raise UnreadableImageError(
      f"the image is stored in {scans} scans, more than {_MAX_SCANS}; save it "
      "anew."
    )


def check_channels(channels: int, bands: int = 4) -> None:
  """Raises UnreadableImageError for channels that a file does not have.

  Args:
    channels: Channels wanted; 1 to 4 can be made of any grey or colour image.
    bands: Bands of the file.
  """
  if channels > 4 or bands > 4:
    found = f"it has {bands}" if bands > 4 else "it is no TIFF file of bands"
    raise UnreadableImageError(
      f"{channels} bands are needed, and {found}: set channels to the bands of "
      "the files."
    )
