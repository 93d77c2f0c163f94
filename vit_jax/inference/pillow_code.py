"""Python code to paste, which makes the inputs of an exported file."""

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.tokenizer import Tokenizer

FILE = "photo.jpg"
"""The picture that the code reads, for the user to replace."""
_CONVERTED = {1: 'convert("RGB").convert("L")', 3: 'convert("RGB")'}
# As the decoder of `data` does: 16 bits keep their high byte, and what is
# transparent shows white.
_AS_DECODED = f"""\
if image.mode[0] in "IF":  # Samples of 16 bits keep their high byte.
  if not image.mode.startswith("I;16") or "transparency" in image.info:
    raise ValueError("{FILE}: this code does not read such samples.")
  image = Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
if image.has_transparency_data:  # It is shown on white.
  page = Image.new("RGBA", image.size, "white")
  image = Image.alpha_composite(page, image.convert("RGBA"))"""


def images_code(images: Preprocessing) -> str:
  """Lines of code that read a picture with Pillow, into `images` (1, H, W, C).

  Its sizes are those of the preprocessing. The filters are Pillow's, which
  differ by rounding from those of other libraries. For channels that Pillow
  does not read, the lines make zeros, for the user to replace.
  """
  H, W, C = images.image_shape
  if C not in _CONVERTED or images.window is not None:
    return (
      "import numpy\n"
      f"# In the place of these zeros, give your images, {images}.\n"
      f"images = numpy.zeros((1, {H}, {W}, {C}), numpy.uint8)"
    )
  lines = [
    "import numpy",
    "from PIL import Image, ImageOps",
    f'image = ImageOps.exif_transpose(Image.open("{FILE}"))',
    _AS_DECODED,
    f"image = image.{_CONVERTED[C]}",
    *_resizing(images),
    f"images = numpy.asarray(image).reshape(1, {H}, {W}, {C})",
  ]
  return "\n".join(lines)


def _resizing(images: Preprocessing) -> list[str]:
  """Lines that resize and crop `image` to the size of the model's images."""
  H, W = images.image_size
  height, width = images.whole
  crop = images.crop
  name = {"area": "box"}.get(crop.interpolation, crop.interpolation)
  how = f"Image.Resampling.{name.upper()}"
  if crop.crop == "resize":
    lines = [f"image = image.resize(({width}, {height}), {how})"]
    if images.cut_from:
      lines.append(f"image = image.crop((0, 0, {W}, {H}))")
    return lines
  h, w = (round(crop.resize_ratio * side) for side in (height, width))
  lines = [f"image = image.resize(({w}, {h}), {how})"]
  if crop.crop == "center":
    lines = [*_covering(images, h, w), f"image = image.resize(sides, {how})"]
  # Pillow's crop is black beyond the image.
  return [
    *lines,
    f"left, top = int((image.width - {W}) / 2), int((image.height - {H}) / 2)",
    f"image = image.crop((left, top, left + {W}, top + {H}))",
  ]


def _covering(images: Preprocessing, h: int, w: int) -> list[str]:
  """Lines for the `sides` of an image that covers a height and a width."""
  crop = images.crop
  if crop.longest_ratio is not None:
    longest = round(crop.longest_ratio * max(images.whole))
    return [
      "least, most = min(image.size), max(image.size)",
      f"short = min({min(h, w)}, {longest} * least / most)",
      "sides = [round(short) if side == least else int(short * side / least)",
      "         for side in image.size]",
    ]
  rounded = "int(1e-6 + scale * side)"
  if h != w or crop.interpolation == "area":
    rounded = "round(scale * side)"
  return [
    f"scale = max({w} / image.width, {h} / image.height)",
    f"sides = [{rounded} for side in image.size]",
  ]


def ids_code(tokenizer: Tokenizer) -> str:
  """Lines that make `ids` (1, T) of padding alone, for the user to replace."""
  return (
    "import numpy\n"
    f"# In the place of these, give the ids that {tokenizer.file} gives.\n"
    f"ids = numpy.full((1, {tokenizer.length}), {tokenizer.pad}, numpy.int32)"
  )
