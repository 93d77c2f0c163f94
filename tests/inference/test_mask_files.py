"""Masks of image files: their names, and the memory they take."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.data.transforming.test_some_bands import tiff
from tests.memory import bounded_memory
from vit_jax.data.example import RGB, UnreadableImageError
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.inference.mask_files import mask_names, write_masks
from vit_jax.runtime import printable
from vit_jax.tasks.dense_regression.objective import PixelErrors, Scaling
from vit_jax.tasks.dense_regression.pictures import make_panels as of_numbers
from vit_jax.tasks.dense_regression.settings import DenseRegressionSettings
from vit_jax.tasks.pictures import to_draw
from vit_jax.tasks.segmentation import marking
from vit_jax.tasks.segmentation import pictures as segmentation_pictures
from vit_jax.tasks.segmentation.files import MaskFiles
from vit_jax.tasks.segmentation.pictures import make_panels as of_classes
from vit_jax.tasks.segmentation.pictures import overlay, palette


@pytest.mark.parametrize(
  ("files", "names"),
  [
    # One folder: as they are called, and a number where that is taken.
    (["p/x.jpg", "p/y.png"], ["x.png", "y.png"]),
    (["p/x.jpg", "p/x.png", "p/x.webp"], ["x.png", "x_2.png", "x_3.png"]),
    (["x.jpg", "x.png", "x_2.jpg"], ["x.png", "x_2.png", "x_2_2.png"]),
    (["x_2.jpg", "x.jpg", "x.png"], ["x_2.png", "x.png", "x_3.png"]),
    (["a.b.jpg", "a.jpg"], ["a.b.png", "a.png"]),
    (["p/x.jpg", "p/../p/x.jpg"], ["x.png", "x_2.png"]),
    # Several: their folders stay.
    (
      ["p/a/x.jpg", "p/b/x.jpg", "p/b/x_2.jpg"],
      ["a/x.png", "b/x.png", "b/x_2.png"],
    ),
    (
      ["p/x.jpg", "p/a/x.jpg", "p/a/b/x.jpg"],
      ["x.png", "a/x.png", "a/b/x.png"],
    ),
    (["p/a/x.jpg", "/q/x.jpg"], [".*a/x.png", "q/x.png"]),
    # A folder that is called as a mask.
    (["p/x.jpg", "p/x.png/y.jpg"], ["x_2.png", "x.png/y.png"]),
    ([], []),
  ],
)
def test_names_of_masks(files, names):
  found = mask_names(files)
  assert len({*found}) == len(files)
  for name, wanted in zip(found, names, strict=True):
    assert name.endswith(wanted[2:]) if wanted[:2] == ".*" else name == wanted


def _photographs(tmp_path, *names):
  files = [tmp_path / "photos" / name for name in names]
  for file in files:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (90, 90, 90)).save(file)
  return [str(file) for file in files]


def _written(tmp_path, kind):
  folder = tmp_path / "out" / kind
  return {
    str(path.relative_to(folder)): np.asarray(Image.open(path))
    for path in folder.rglob("*.png")
  }


def test_every_image_has_a_mask_of_its_own(tmp_path, capsys):
  """As many files as are said, each with what was found in its image."""
  files = _photographs(tmp_path, "a/x.jpg", "b/x.jpg", "b/x_2.jpg", "b/x.png")
  number = iter(range(9))

  def mark(image):
    return np.full(image.shape[:2], next(number), np.int32)

  done = write_masks(
    mark, files, str(tmp_path / "out"), RGB, MaskFiles([*"0123"])
  )
  first = "The pixels of 4 images by class, with its colour in these files:"
  assert done[:2] == (4, 0) and done[2][0] == first
  masks = _written(tmp_path, "masks")
  assert {name: int(mask[0, 0]) for name, mask in masks.items()} == {
    "a/x.png": 0,
    "b/x.png": 1,
    "b/x_2.png": 2,
    "b/x_3.png": 3,
  }
  for k, (name, line) in enumerate(
    zip(sorted(masks), done[2][1:], strict=True)
  ):
    with Image.open(tmp_path / "out" / "masks" / name) as mask:
      colour = bytes(mask.convert("RGB").getpixel((0, 0))).hex()
    assert line == f" 25.0%  class {k}  #{colour}"
  with Image.open(tmp_path / "out" / "masks" / "a" / "x.png") as mask:
    assert mask.mode == "P" and mask.getpalette() == palette().ravel().tolist()
  assert _written(tmp_path, "overlays").keys() == masks.keys()
  said = capsys.readouterr().err.splitlines()
  assert said == [f"{files[3]}: its mask is {tmp_path}/out/masks/b/x_3.png."]


def test_masks_that_are_there_are_not_written_over(tmp_path):
  """Those of an earlier command have overlays beside them."""
  files = _photographs(tmp_path, "a/x.jpg")
  out = tmp_path / "out"
  (out / "masks").mkdir(parents=True)
  (out / "masks" / "x.png").write_text("drawn by hand")

  def write():
    return write_masks(
      lambda image: np.zeros(image.shape[:2], np.int32),
      files,
      str(out),
      RGB,
      MaskFiles(["a", "b"]),
    )

  with pytest.raises(ValueError, match="masks holds files that this command"):
    write()
  assert (out / "masks" / "x.png").read_text() == "drawn by hand"
  (out / "masks" / "x.png").unlink()
  assert write()[0] == write()[0] == 1


def test_an_image_that_cannot_be_marked_is_named(tmp_path, capsys):
  files = _photographs(tmp_path, "x.jpg", "y.jpg")

  def mark(image):
    if mark.first:
      mark.first = False
      raise UnreadableImageError("it is too large.")
    return np.zeros(image.shape[:2], np.int32)

  mark.first = True
  count, unreadable, lines = write_masks(
    mark, files, str(tmp_path / "out"), RGB, MaskFiles(["sky"])
  )
  assert (count, unreadable) == (1, 1)
  first = "The pixels of 1 image by class, with its colour in these files:"
  assert lines == [first, "100.0%  sky  #000000"]
  assert capsys.readouterr().err == f"{files[0]}: it is too large.\n"
  assert [*_written(tmp_path, "masks")] == ["y.png"]


@pytest.mark.parametrize("most", [255, 300])
def test_strips_change_no_overlay(monkeypatch, most):
  random = np.random.default_rng(0)
  image = random.integers(0, 256, (9, 7, 3), np.uint8)
  mask = random.integers(0, most + 1, (9, 7)).astype(np.int32)
  mixed = 0.6 * palette()[mask % 256] + 0.4 * image
  wanted = np.where((mask == 255)[..., None], image, np.rint(mixed))
  counts = np.bincount(mask.ravel())
  for strip in (1 << 21, 15, 1):
    monkeypatch.setattr(segmentation_pictures, "STRIP", strip)
    np.testing.assert_array_equal(overlay(image, mask), wanted)
    kind = MaskFiles(())
    kind.add(mask)
    np.testing.assert_array_equal(kind.counts, counts)


@pytest.mark.slow
def test_a_large_image_takes_few_times_its_pixels():
  """It took 28 times as many bytes: 7 GB for 9,000 x 9,000."""
  side = 3000
  image = np.zeros((side, side, 3), np.uint8)
  mask = np.zeros((side, side), np.int32)
  with bounded_memory(3 * image.nbytes + 2**28):
    overlay(image, mask)
    MaskFiles(()).add(mask)


class _Model:
  stride = 16

  def apply(self, variables, x):
    return jnp.zeros((len(x), 14, 14, 5))


@pytest.mark.parametrize(
  ("shape", "most", "message"),
  [
    (
      (60_000, 1),
      None,
      "at short_side=224 it would have 224 x 13,440,000 pixels, more than 89,",
    ),
    (
      (224, 2240),
      1000,
      "224 pixels, and 9,800 logits, more than 1,000: give a",
    ),
  ],
)
def test_an_image_too_long_for_windows_is_refused(
  monkeypatch, shape, most, message
):
  if most:
    monkeypatch.setattr(marking, "MOST_LOGITS", most)
  mark = marking.make_mark(_Model(), Preprocessing((224, 224)), 224)
  image = np.zeros((*shape, 3), np.uint8)
  with pytest.raises(UnreadableImageError, match=message):
    mark(None, image)
  whole = marking.make_mark(_Model(), Preprocessing((224, 224)))
  assert whole(None, image).shape == shape


class _CountsBands:
  """Answers each patch by the number of channels that are there."""

  stride = 4

  def apply(self, variables, x):
    cells = jnp.isfinite(x).reshape(len(x), 2, 4, 2, 4, -1)
    there = cells.all(axis=(2, 4)).sum(axis=-1)
    return 9 * jax.nn.one_hot(there, 5)


@pytest.mark.parametrize("short_side", [None, 12])
def test_bands_that_a_file_lacks_are_nan_for_the_model(
  short_side, tmp_path, capsys
):
  names = ("blue", "green", "red", "nir")
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (11, 17, 4), np.uint8)
  (tmp_path / "two.tif").write_bytes(tiff(pixels[..., :2], ("nir", "red")))
  (tmp_path / "four.tif").write_bytes(tiff(pixels))
  (tmp_path / "vv.tif").write_bytes(tiff(pixels[..., :2], ("vv", "vh")))
  half = (0.5,) * 4
  preprocessing = Preprocessing(
    (8, 8), mean=half, std=half, bands=names, some_bands=True
  )
  mark = marking.make_mark(_CountsBands(), preprocessing, short_side)
  printable.said_once.clear()
  count, unreadable, _ = write_masks(
    functools.partial(mark, {}),
    [str(tmp_path / f"{name}.tif") for name in ("two", "four", "vv")],
    str(tmp_path / "out"),
    preprocessing.spec,
    MaskFiles([*"01234"]),
    bands=names,
  )
  assert (count, unreadable) == (2, 1)
  masks = _written(tmp_path, "masks")
  assert (masks["two.png"] == 2).all() and (masks["four.png"] == 4).all()
  assert masks["two.png"].shape == (11, 17)
  said = capsys.readouterr().err
  assert said.count("Some images lack bands of the model") == 1
  assert "vv.tif: its bands must be some of blue, green" in said


def test_bands_that_masks_leave_out_are_said(tmp_path, capsys):
  pixels = np.zeros((8, 8, 4), np.uint8)
  extra = {"photometric": "rgb", "extrasamples": [0]}
  for name in "xy":
    (tmp_path / f"{name}.tif").write_bytes(tiff(pixels, **extra))
  printable.said_once.clear()
  write_masks(
    lambda image: np.zeros(image.shape[:2], np.int32),
    [str(tmp_path / "x.tif"), str(tmp_path / "y.tif")],
    str(tmp_path / "out"),
    RGB,
    MaskFiles(["sky"]),
  )
  assert capsys.readouterr().err.count("further bands or pages") == 1


@pytest.mark.parametrize("panels", [of_classes, of_numbers])
def test_panels_are_drawn_of_the_bands_that_are_there(panels):
  """The answer is that for an image that never had the other bands."""
  seen = []

  class Model(_CountsBands):
    def apply(self, variables, x):
      jax.debug.callback(lambda there: seen.append(there), jnp.isfinite(x))
      return super().apply(variables, x)[..., :1]

  half = (0.5,) * 4
  objective = PixelErrors(
    mean=half, std=half, scaling=Scaling(), settings=DenseRegressionSettings()
  )
  draw = panels(Model(), objective)
  row = {
    "image": np.zeros((8, 8, 4), np.uint8),
    "bands": np.array([True, False, True, True]),
  }
  mask = np.zeros((8, 8), np.int32)
  draw({}, [to_draw(0, row, mask)])
  draw({}, [to_draw(1, {"image": row["image"]}, mask)])
  jax.effects_barrier()
  there = [np.asarray(x).all(axis=(0, 1, 2)).tolist() for x in seen]
  assert there == [row["bands"].tolist(), [True] * 4]
