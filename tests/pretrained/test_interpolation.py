"""Interpolated positions agree with SciPy, the cubic's formula and PyTorch."""

import numpy as np
import pytest
import scipy.ndimage

from tests import libraries, published
from tests.checkpoints import make_sizes
from tests.rows import some_slow
from vit_jax import load_pretrained
from vit_jax.pretrained import interpolation
from vit_jax.pretrained.settings import INTERPOLATIONS

D = 5
SIZES = [
  ((4, 4), (6, 6)),
  ((4, 4), (3, 7)),
  ((2, 5), (4, 10)),
  ((3, 6), (2, 2)),
]


def table(rows):
  return np.random.default_rng(0).normal(size=(rows, D)).astype(np.float32)


@pytest.mark.parametrize("old, new", SIZES)
@pytest.mark.parametrize("class_token", [0, 1])
def test_linear_is_the_published_codes_zoom(old, new, class_token):
  E_pos = table(old[0] * old[1] + class_token)
  found = interpolation.resized("E_pos", E_pos, old, new)
  zoom = (new[0] / old[0], new[1] / old[1], 1)
  grid = E_pos[class_token:].reshape(*old, D)
  expected = scipy.ndimage.zoom(grid, zoom, order=1)
  assert expected.shape == (*new, D)
  np.testing.assert_allclose(
    found[class_token:], expected.reshape(-1, D), atol=1e-6
  )
  np.testing.assert_array_equal(found[:class_token], E_pos[:class_token])
  assert found.dtype == np.float32


def test_linear_keeps_the_corners():
  E_pos = table(16)
  found = interpolation.resized("E_pos", E_pos, (4, 4), (7, 9)).reshape(7, 9, D)
  grid = E_pos.reshape(4, 4, D)
  for y in (0, -1):
    for x in (0, -1):
      np.testing.assert_allclose(found[y, x], grid[y, x], atol=1e-6)


def cubic_row(values, places):
  """Cubic convolution with a = -0.75, edges repeated, at pixel centres."""
  a, result = -0.75, []
  for place in places:
    left = int(np.floor(place))
    total = 0.0
    for i in range(left - 1, left + 3):
      t = abs(place - i)
      if t <= 1:
        weight = (a + 2) * t**3 - (a + 3) * t**2 + 1
      else:
        weight = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
      total = total + weight * values[min(max(i, 0), len(values) - 1)]
    result.append(total)
  return np.stack(result)


def test_bicubic_is_cubic_convolution_along_each_axis():
  E_pos, old, new = table(4 * 5), (4, 5), (6, 8)
  grid = E_pos.reshape(*old, D)
  for axis in (0, 1):
    centres = (np.arange(new[axis]) + 0.5) * old[axis] / new[axis] - 0.5
    grid = np.moveaxis(cubic_row(np.moveaxis(grid, axis, 0), centres), 0, axis)
  found = interpolation.resized("E_pos", E_pos, old, new, "bicubic")
  np.testing.assert_allclose(found, grid.reshape(-1, D), atol=1e-5)


@pytest.mark.parametrize(
  "method, options",
  [
    ("bicubic", {"align_corners": False}),
    ("bicubic_antialias", {"align_corners": False, "antialias": True}),
    ("bicubic_corners", {"align_corners": True}),
  ],
)
@pytest.mark.parametrize("old, new", SIZES)
def test_bicubic_is_pytorchs(old, new, method, options):
  torch = pytest.importorskip("torch", reason="compares with PyTorch")
  E_pos = table(old[0] * old[1])
  images = torch.tensor(E_pos.reshape(1, *old, D).transpose(0, 3, 1, 2))
  expected = torch.nn.functional.interpolate(
    images, new, mode="bicubic", **options
  )
  expected = expected.numpy().transpose(0, 2, 3, 1).reshape(-1, D)
  found = interpolation.resized("E_pos", E_pos, old, new, method)
  np.testing.assert_allclose(found, expected, atol=2e-6)


QUICK = [
  next(case for case in make_sizes.CASES if case[0] == name)
  for name in ("hf_vit", "timm_vit.safetensors")
]


def recorded(name, size):
  with np.load(published.path("sizes.npz")) as stored:
    return stored["{} {}x{}".format(name, *size)]


# One size of each of two libraries is fast.
@pytest.mark.parametrize(
  "name, size",
  some_slow(make_sizes.CASES, QUICK),
)
def test_each_library_has_its_way(name, size):
  """What it computes at another size, without a word on how."""
  options = published.CHECKPOINTS[name]
  path, expected = published.path(name), recorded(name, size)
  images = make_sizes.images(size)
  loaded = load_pretrained(path, image_size=size, **options)
  published.assert_same_logits(*loaded, images, expected)
  options = {**options, "interpolation": "linear"}  # The paper's.
  loaded = load_pretrained(path, image_size=size, **options)
  with pytest.raises(AssertionError):
    published.assert_same_logits(*loaded, images, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, size", make_sizes.CASES)
def test_the_libraries_still_compute_so(name, size):
  """As transformers 5.23.0, timm 1.0.31 and torchvision 0.28.0 did."""
  library = {"hf_vit": "transformers"}.get(name, name.split("_")[0])
  libraries.needed(library)
  found = make_sizes.logits(name, size)
  np.testing.assert_allclose(found, recorded(name, size), atol=1e-4)


@pytest.mark.parametrize("method", INTERPOLATIONS)
def test_2d_tables_are_resized_along_their_own_axis(method):
  X, Y = table(4), table(3)
  old, new = (3, 4), (5, 9)
  wide = interpolation.resized("X_pos", X, old, new, method)
  high = interpolation.resized("Y_pos", Y, old, new, method)
  assert (wide.shape, high.shape) == ((9, D), (5, D))
  # Evaluated on the grid, they equal the grid's own interpolation.
  grid = X[None, :, :] + Y[:, None, :]
  expected = interpolation.resized(
    "E_pos", grid.reshape(-1, D), old, new, method
  )
  found = wide[None, :, :] + high[:, None, :]
  np.testing.assert_allclose(found.reshape(-1, D), expected, atol=1e-5)


@pytest.mark.parametrize("method", INTERPOLATIONS)
def test_the_same_grid_changes_nothing(method):
  E_pos = table(12)
  found = interpolation.resized("E_pos", E_pos, (3, 4), (3, 4), method)
  np.testing.assert_array_equal(found, E_pos)


def test_a_table_of_another_grid_is_refused():
  with pytest.raises(ValueError, match="19 positions do not fit 4 x 4"):
    interpolation.resized("E_pos", table(19), (4, 4), (5, 5))
