"""Random draws of shots, and the part of the data that they read."""

from typing import Any

import numpy as np
import pytest

from tests import tinted
from vit_jax.data.example import Subset
from vit_jax.tasks.probes.shots import draw_shots


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> str:
  folder = tmp_path_factory.mktemp("images")
  tinted.write_images(folder)
  return str(folder)


class Labelled:
  """A source that has labels but no images, and counts its reads."""

  name = "labelled"

  def __init__(self, labels):
    self._labels = np.array(labels)
    self.class_names = tuple(f"class {k}" for k in range(max(labels) + 1))
    self.reads = 0

  def __len__(self):
    return len(self._labels)

  def __getitem__(self, index):
    self.reads += 1
    label = int(self._labels[index])
    return {"image": b"", "label": label, "id": str(index)}

  def read(self, indices):
    return [self[i] for i in indices]


def test_a_draw_has_n_images_of_each_class(root):
  train, _ = tinted.sources(root)
  drawn = draw_shots(train, 4, seed=0)
  assert drawn.shape == (3, 4)
  for label, indices in enumerate(drawn):
    assert len(set(indices)) == 4
    assert (train.labels(indices) == label).all()


def test_a_draw_depends_on_its_seed_alone(root):
  train, _ = tinted.sources(root)
  draws = [draw_shots(train, 4, seed) for seed in range(20)]
  for seed, drawn in enumerate(draws):
    np.testing.assert_array_equal(drawn, draw_shots(train, 4, seed))
  assert len({tuple(np.sort(drawn).flat) for drawn in draws}) == 20
  # A source that must read its examples for their labels draws the same.
  again = Labelled(train.labels(range(len(train))))
  again.class_names = train.class_names
  np.testing.assert_array_equal(draws[0], draw_shots(again, 4, 0))


def test_every_image_is_drawn_as_often_as_others():
  source = Labelled([0] * 10 + [1] * 5)
  counts = np.zeros(15)
  for seed in range(400):
    np.add.at(counts, draw_shots(source, 2, seed).ravel(), 1)
  assert np.abs(counts[:10] - 80).max() < 40  # 5 standard deviations
  assert np.abs(counts[10:] - 160).max() < 50


def test_a_draw_reads_no_further_than_needed():
  source = Labelled(np.arange(100_000) % 4)
  draw_shots(source, 5, seed=0)
  assert source.reads == 256


def test_a_class_with_too_few_images_is_named():
  source = Labelled([0] * 4 + [1] * 2 + [2] * 9)
  with pytest.raises(
    ValueError,
    match="need 3 training images of .* 'class 1' has only 2: choose fewer",
  ):
    draw_shots(source, 3, seed=0)
  with pytest.raises(ValueError, match="readable .*'class 0' has only 2"):
    draw_shots(source, 3, seed=0, without={0, 1})
  many = Labelled(range(9))
  with pytest.raises(ValueError, match="'class 4' has only 1, and 4 more clas"):
    draw_shots(many, 2, seed=0)


def test_a_subset_is_a_source(root):
  train, _ = tinted.sources(root)
  subset = Subset(train, [7, 2, 20])
  assert len(subset) == 3 and subset.class_names == tinted.CLASSES
  assert subset[2] == train[20]
  assert subset.read([0, 2]) == [train[7], train[20]]
  assert subset.read(range(1, 3)) == [train[2], train[20]]


def test_shots_of_a_class_are_of_different_groups(capsys):
  """Class 0 has 6 groups of 5 images, of which one has images of class 1."""
  source: Any = Labelled([0] * 30 + [1] * 9)
  source.groups = np.array([*np.repeat(np.arange(6), 5), *[5, 6, 7] * 3])
  for seed in range(50):
    drawn = draw_shots(source, 3, seed)
    for indices in drawn:
      assert len({*source.groups[indices]}) == 3
    fewer = draw_shots(source, 2, seed)
    np.testing.assert_array_equal(drawn[:, :2], fewer)
  assert not capsys.readouterr().err


def test_groups_are_repeated_once_all_are_used(capsys):
  source: Any = Labelled([0] * 12 + [1] * 6)
  source.groups = np.array([*np.arange(12), *[0, 1] * 3])
  drawn = draw_shots(source, 5, seed=1)
  assert len({*source.groups[drawn[0]]}) == 5
  assert {*source.groups[drawn[1][:2]]} == {0, 1}
  assert len({*drawn[1]}) == 5
  assert "'class 1' has 2 groups, so some" in capsys.readouterr().err
  with pytest.raises(ValueError, match="'class 1' has only 6"):
    draw_shots(source, 7, seed=1)
