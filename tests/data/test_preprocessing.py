"""The size, the crop and the cut of a `Preprocessing`."""

import dataclasses
import pickle

import numpy as np
import pytest

from tests.data.pictures import noise, png
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings, TrainTransformSettings

RESIZE = EvalTransformSettings(crop="resize")
CENTER = EvalTransformSettings(crop="center")


@pytest.fixture(scope="module")
def encoded():
  return png(noise(90, 120))


@pytest.mark.parametrize("crop", [RESIZE, CENTER])
def test_the_upper_left_of_a_larger_size_is_kept(encoded, crop):
  """As a VALID convolution with patches of 14 sees 378 of 384 pixels."""
  cut = Preprocessing((27, 28), crop, cut_from=(32, 32))
  whole = dataclasses.replace(cut, size=(32, 32), cut_from=None)
  transform = pickle.loads(pickle.dumps(cut.transform()))
  expected = whole.transform()(encoded)[:27, :28]
  np.testing.assert_array_equal(transform(encoded), expected)
  settings = TrainTransformSettings()
  found, expected = (
    p.train_transform(settings)(encoded, np.random.default_rng(3))
    for p in (cut, whole)
  )
  np.testing.assert_array_equal(found, expected[:27, :28])


def test_it_is_said_in_words():
  cut = Preprocessing((378, 378), RESIZE, cut_from=(384, 384))
  assert str(cut).startswith(
    "resized to 384 x 384, of which the upper left 378 x 378 is kept"
  )
