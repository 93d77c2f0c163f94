"""Filters and positions: their values, components and similarities."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.inspection.float64_vit import GRID, SIZE, D, P, tiny
from tests.tiny import random_params
from vit_jax.inspection.embedding_maps import (
  embedding_filters,
  filter_components,
  patch_colours,
  position_embeddings,
  position_similarity,
)
from vit_jax.models import ResNet, position

RNG = np.random.default_rng(0)


def test_components_are_those_of_scikit_learn():
  model = tiny(hidden_size=32)
  params = random_params(model, SIZE, 1)
  filters = embedding_filters(model, params)
  assert filters.shape == (32, P, P, 3)
  # The rows of E are in the order (row, column, channel).
  E = np.asarray(params["patches"]["E"]["kernel"])
  assert filters[7, 1, 2, 0] == E[(1 * P + 2) * 3, 7]

  found = filter_components(filters, 6)
  assert found.shape == (6, P, P, 3)
  assert (found.min(axis=(1, 2, 3)) == 0).all()
  assert (found.max(axis=(1, 2, 3)) == 1).all()
  expected = PCA(6, svd_solver="full").fit(E.T).components_
  for component, row in zip(found.reshape(6, -1), expected, strict=True):
    scaled = (row - row.min()) / (row.max() - row.min())
    either = [np.abs(component - x).max() for x in (scaled, 1 - scaled)]
    assert min(either) < 1e-4
  assert len(filter_components(filters, 99)) == 31


@pytest.mark.parametrize(
  "fields, name",
  [
    ({}, "position"),
    ({"position_at": "shared"}, "position"),
    ({"position_at": "every_layer"}, "position_0"),
    ({"pooling": "gap"}, "position"),
  ],
)
def test_learned_positions(fields, name):
  model = tiny(**fields)
  params = random_params(model, SIZE, 1)
  found = position_embeddings(model, params, SIZE)
  E_pos = np.asarray(params[name]["E_pos"])
  first = 0 if "pooling" in fields else 1
  assert found.shape == (*GRID, D)
  np.testing.assert_array_equal(found[1, 2], E_pos[first + 5])


def test_positions_of_other_kinds():
  model = tiny(position="sincos2d")
  expected = position.sincos2d(*GRID, D).reshape(*GRID, D)
  np.testing.assert_array_equal(position_embeddings(model, {}, SIZE), expected)
  # Half of an embedding belongs to the patch's column, half to its row.
  model = tiny(position="learned2d")
  params = random_params(model, SIZE, 1)
  found = position_embeddings(model, params, SIZE)[1, 2]
  X, Y = (params["position"][name] for name in ("X_pos", "Y_pos"))
  np.testing.assert_array_equal(found, np.concatenate([X[2], Y[1]]))


def test_similarity_is_the_cosine():
  rng = np.random.default_rng(0)
  E_pos = rng.normal(size=(2, 3, 5)).astype(np.float32)
  E_pos[1, 2] = 0
  found = position_similarity(E_pos)
  assert found.shape == (2, 3, 2, 3)
  a, b = E_pos[0, 1], E_pos[1, 0]
  cosine = a @ b / np.sqrt((a @ a) * (b @ b))
  assert found[0, 1, 1, 0] == pytest.approx(cosine, abs=1e-6)
  assert found[0, 1, 0, 1] == pytest.approx(1, abs=1e-6)
  assert found[1, 2, 1, 2] == 0


def test_a_resnet_has_no_embeddings():
  resnet = ResNet(3, layers=(1,), width=32)
  with pytest.raises(ValueError, match="ResNet has neither attention nor"):
    position_embeddings(resnet, {}, SIZE)
  with pytest.raises(ValueError, match="ResNet has neither"):
    embedding_filters(resnet, {})


@pytest.mark.parametrize("position", ["relative", "none"])
def test_positions_that_are_not_added_are_refused(position):
  with pytest.raises(ValueError, match=f"'{position}' adds no position emb"):
    position_embeddings(tiny(position=position), {}, SIZE)


def test_colours_are_the_first_three_components():
  maps = RNG.normal(size=(2, 5, 4, 12)) * np.linspace(5, 1, 12)
  found = np.stack(patch_colours([*maps]))
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
  found = np.stack(patch_colours([*maps], foreground=0.5))
  assert ((found > 0).any(axis=-1) <= inside).all()
  assert found[inside].min() == 0 and found[inside].max() == 1
  assert (found[inside] > 0).any(axis=-1).mean() > 0.9


def test_a_threshold_that_keeps_nothing_is_refused():
  with pytest.raises(ValueError, match="--foreground=0.9999 keeps 1 patch"):
    patch_colours([RNG.normal(size=(4, 4, 6))], foreground=0.9999)
