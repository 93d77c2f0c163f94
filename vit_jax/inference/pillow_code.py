"""Python code to paste, which makes the inputs of an exported file."""

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.tokenizer import Tokenizer

FILE = "photo.jpg"
"""The picture that the code reads, for the user to replace."""
_CONVERTED = {1: 'convert("RGB").convert("L")', 3: 'convert("RGB")'}
# As in the decoder of `data`, samples of 16 bits keep their high byte, and
# transparent images are shown on white.
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
  does not read, the lines make zeros, for the user to replace. Images that keep
  their proportions become `images` (1, N, P * P * C) and `size` (1, 2).
  """
  C = images.channels
  any_size = images.patches
  if any_size is None:
    shape = ", ".join(map(str, images.image_shape))
    size = []
  else:
    shape = f"{any_size.tokens}, {any_size.patch_size**2 * C}"
    size = ["size = numpy.ones((1, 2), numpy.int32)"]
  if C not in _CONVERTED or images.window is not None:
    lines = [
      "import numpy",
      f"# In the place of these zeros, give your images, {images}.",
      f"images = numpy.zeros((1, {shape}), numpy.uint8)",
      *size,
    ]
    return "\n".join(lines)
  lines = [
    *(["import math"] if any_size else []),
    "import numpy",
    "from PIL import Image, ImageOps",
    f'image = ImageOps.exif_transpose(Image.open("{FILE}"))',
    _AS_DECODED,
    f"image = image.{_CONVERTED[C]}",
  ]
  if any_size is None:
    lines += _resizing(images)
    lines.append(f"images = numpy.asarray(image).reshape(1, {shape})")
  else:
    lines += _into_patches(images, any_size.tokens, any_size.patch_size)
  return "\n".join(lines)


def _into_patches(images: Preprocessing, N: int, P: int) -> list[str]:
  """Lines that resize `image` in proportion and cut it into patches.

  They follow `AnySize.grid` and `IntoPatches`.
  """
  C = images.channels
  return [
    "def grid(scale):",
    f"  sides = [side * scale / {P} for side in (image.height, image.width)]",
    "  return [max(1, math.ceil(side)) for side in sides]",
    "",
    f"least, most = min(1e-6, {P} / max(image.size)), 100.0",
    "while most - least >= 1e-5:  # The largest scale that fits.",
    "  middle = (least + most) / 2",
    f"  fits = math.prod(grid(middle)) <= {N}",
    "  least, most = (middle, most) if fits else (least, middle)",
    "h, w = grid(least)",
    f"image = image.resize((w * {P}, h * {P}), {_filter(images)})",
    f"pixels = numpy.asarray(image).reshape(h, {P}, w, {P}, {C})",
    f"images = numpy.zeros((1, {N}, {P * P * C}), numpy.uint8)",
    "images[0, :h * w] = pixels.swapaxes(1, 2).reshape(h * w, -1)",
    "size = numpy.array([[h, w]], numpy.int32)",
  ]


def _filter(images: Preprocessing) -> str:
  """Pillow's name of the filter with which images are resized."""
  interpolation = images.crop.interpolation
  name = {"area": "box"}.get(interpolation, interpolation)
  return f"Image.Resampling.{name.upper()}"


def _resizing(images: Preprocessing) -> list[str]:
  """Lines that resize and crop `image` to the size of the model's images."""
  H, W = images.image_size
  height, width = images.whole
  crop = images.crop
  how = _filter(images)
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
    f"# In the place of these, put the ids that {tokenizer.file} gives.\n"
    f"ids = numpy.full((1, {tokenizer.length}), {tokenizer.pad}, numpy.int32)"
  )
