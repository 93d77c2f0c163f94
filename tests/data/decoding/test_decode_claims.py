"""What headers claim is refused in one line, before memory is taken for it."""

import functools
import io
import subprocess
import sys

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.data.decoding.claims import claiming
from vit_jax.data import decode_rgb, image_size, make_train_transform
from vit_jax.data.decoding.decode import decode_image
from vit_jax.data.decoding.pillow import brightest, describe
from vit_jax.data.example import ImageSpec, UnreadableImageError
from vit_jax.data.reading.imagenet_sets import without_border
from vit_jax.data.reading.tfds.labels import black_and_white

SIDES = (40_000, 2**31, 2**32 - 1)
SMALL = ("GIF frame", "JPEG 2000 header", "AVIF", "HEIF", "TIFF jpeg")
"""Some of these keep another size beside the claim, and may be read by it."""
files = functools.cache(claiming)


def trained(encoded):
  return make_train_transform((8, 8))(encoded, np.random.default_rng(0))


READERS = {
  "rgb": decode_rgb,
  "grey": lambda raw: decode_image(raw, ImageSpec(channels=1)),
  "window": lambda raw: decode_rgb(raw, (0, 4095)),
  "bands": lambda raw: decode_image(raw, ImageSpec(channels=6)),
  "box": trained,
  "size": image_size,
  "without border": without_border,
  "dSprites": black_and_white,
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("side", SIDES)
def test_a_huge_claim_is_one_line(side, reader):
  for name, raw in files(side).items():
    try:
      READERS[reader](raw)
    except UnreadableImageError as error:
      assert str(error) and str(error).isprintable()
    else:
      assert name in SMALL


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", SIDES)
def test_who_only_looks_is_not_stopped(side):
  for raw in files(side).values():
    assert brightest(raw) is None
    kind, unusual = describe(raw)
    assert kind and isinstance(unusual, list)


LIMITED = """
import resource
from tests.data.decoding.test_decode_claims import READERS, SIDES, files
from vit_jax.data.decoding.pillow import brightest, describe

def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

made = [raw for side in SIDES for raw in files(side).values()]
before = peak()
for reader in (*READERS.values(), brightest, describe):
  for raw in made:
    try:
      reader(raw)
    except ValueError:
      pass
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count otherwise")
def test_what_headers_claim_is_not_allocated():
  """By the system's count, which sees what libraries in C take."""
  command = [sys.executable, "-W", "ignore", "-c", LIMITED]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert int(done.stdout.split()[-1]) < 64  # MiB, for claims of GiB.


@pytest.mark.parametrize(
  "kind", ["JPEG", "PNG", "TIFF", "WEBP", "HEIF", "AVIF"]
)
def test_the_size_is_that_of_the_upright_image(kind):
  for orientation in (1, 3, 6, 8):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.new("RGB", (48, 32)).save(file, kind, exif=exif.tobytes())
    raw = file.getvalue()
    assert image_size(raw) == decode_rgb(raw).shape[:2]


def test_the_size_of_bands_is_read():
  file = io.BytesIO()
  together = {"photometric": "minisblack", "planarconfig": "contig"}
  tifffile.imwrite(file, np.zeros((20, 30, 6), np.uint16), **together)
  assert image_size(file.getvalue()) == (20, 30)
  with pytest.raises(UnreadableImageError, match="not an image of a known"):
    image_size(b"no image")
