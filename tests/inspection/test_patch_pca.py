"""Colours of patches, against scikit-like PCA by SVD and made-up objects."""

import numpy as np
import pytest

from vit_jax.inspection.patch_pca import patch_colours

RNG = np.random.default_rng(0)


def test_colours_are_the_first_three_components():
  maps = RNG.normal(size=(2, 5, 4, 12)) * np.linspace(5, 1, 12)
  found = patch_colours(maps)
  X = maps.reshape(-1, 12) - maps.reshape(-1, 12).mean(axis=0)
  U, s, _ = np.linalg.svd(X, full_matrices=False)
  expected = U[:, :3] * s[:3]
  for k in range(3):
    own, other = found[..., k].ravel(), expected[:, k]
    assert abs(np.corrcoef(own, other)[0, 1]) == pytest.approx(1)
    assert (own.min(), own.max()) == (0, 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_object_in_the_middle_is_the_foreground(sign):
  """Its features lie off those of the background, in either direction."""
  maps = RNG.normal(0, 0.3, (3, 8, 8, 10))
  inside = np.zeros((3, 8, 8), bool)
  for k in range(3):
    inside[k, 2 + k % 2 : 6, 3 : 6 + k % 2] = True
  maps[inside, 0] += 8 * sign
  found = patch_colours(maps, foreground=0.5)
  assert ((found > 0).any(axis=-1) <= inside).all()
  assert found[inside].min() == 0 and found[inside].max() == 1
  assert (found[inside] > 0).any(axis=-1).mean() > 0.9


def test_a_threshold_that_keeps_nothing_is_refused():
  with pytest.raises(ValueError, match="--foreground=0.9999 keeps 1 patch"):
    patch_colours(RNG.normal(size=(1, 4, 4, 6)), foreground=0.9999)
