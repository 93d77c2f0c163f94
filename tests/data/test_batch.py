"""Batches hold the arrays that transform and source name, of any type."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.data.numbered import Numbered, assert_same, noisy, train
from tests.rows import some_slow
from vit_jax import data
from vit_jax.data.batch import (
  ArraySpec,
  Mixture,
  allocate,
  as_transform,
  batch_spec,
  batches_in_memory,
  by_share,
  size_in_memory,
)
from vit_jax.data.batching.batches import UNREADABLE, EvalBatches, TrainBatches
from vit_jax.data.example import Subset


class Views:
  """Two crops of different sizes, a mask and token ids of each image."""

  spec = {
    "image": ArraySpec((4, 4, 3)),
    "local": ArraySpec((2, 2, 2, 3)),
    "kept": ArraySpec((7,), bool),
    "ids": ArraySpec((5,), np.int32),
    "scale": ArraySpec((), np.float64),
  }

  def row(self, example, *rng):
    pixels = data.decode_rgb(example["image"])
    number = int(np.ravel(example["label"])[0])
    drawn = rng[0].integers(100, size=5) if rng else np.arange(5)
    return {
      "image": pixels,
      "local": np.stack([pixels[:2, :2], pixels[2:, 2:]]),
      "kept": np.arange(7) % 2 == number % 2,
      "ids": drawn,
      "scale": 1 / (1 + number),
    }


class Vectors(Numbered):
  """Labels that are arrays, of a type of their own."""

  label_spec = ArraySpec((2,), np.int16)

  def __getitem__(self, index):
    return {**super().__getitem__(index), "label": [index, -index]}


@pytest.mark.parametrize("num_workers", some_slow([0, 1, 2], [0, 1]))
def test_every_array_arrives_with_its_shape_and_type(num_workers):
  loader = data.Loader(num_workers=num_workers)
  order = {"batch_size": 6, "seed": 1}
  with loader.train(Numbered(9), Views(), **order) as batches:
    batch = next(batches)
  expected = {name: one.dtype for name, one in Views.spec.items()}
  expected |= {"label": np.int32, "skipped": bool}
  assert {name: array.dtype for name, array in batch.items()} == expected
  for name, one in Views.spec.items():
    assert batch[name].shape == (6, *one.shape)
  label = batch["label"]
  np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], label)
  np.testing.assert_array_equal(batch["local"][:, 1, 1, 1, 2], label)
  np.testing.assert_array_equal(batch["scale"], 1 / (1 + label))
  odd = np.arange(7)[None] % 2 == label[:, None] % 2
  np.testing.assert_array_equal(batch["kept"], odd)
  assert len(np.unique(batch["ids"])) > 5  # Each row has its own generator.


@pytest.mark.slow
def test_processes_change_none_of_the_arrays():
  def run(num_workers):
    loader = data.Loader(num_workers=num_workers, on_unreadable="skip")
    source = Vectors(11, damaged=(3,))
    with loader.train(source, Views(), batch_size=4, seed=1) as batches:
      trained = [next(batches) for _ in range(5)]
    with loader.evaluate(source, Views(), 4) as passes:
      return trained, [*passes, *passes]

  (train, evaluation), (other_train, other_evaluation) = run(0), run(2)
  assert_same(train, other_train)
  assert_same(evaluation, other_evaluation)
  assert all(batch["label"].dtype == np.int16 for batch in train)
  (row,) = np.flatnonzero(evaluation[0]["skipped"])
  names = {*Views.spec, "label", "mask"}
  assert not any(evaluation[0][name][row].any() for name in names)


def test_what_another_batch_left_in_memory_is_gone():
  source = Numbered(5, damaged=(1,))
  passes = EvalBatches(source, Views(), 3, range(3), skip=True)
  memory = bytearray(b"\xff" * size_in_memory(passes.spec))
  (out,) = batches_in_memory(memory, passes.spec, 1)
  for number in (0, 1):
    clean, used = passes.compute(number), passes.compute(number, out)
    for name in passes.spec:
      assert used[name] is out[name]
      np.testing.assert_array_equal(used[name], clean[name])
    assert used[UNREADABLE].tolist() == clean[UNREADABLE].tolist()


def test_arrays_that_share_memory_do_not_touch():
  spec = batch_spec(Views.spec, rows=3)
  memory = bytearray(2 * size_in_memory(spec))
  batches = batches_in_memory(memory, spec, 2)
  arrays = [array for batch in batches for array in batch.values()]
  for number, array in enumerate(arrays):
    array[...] = number % 2 if array.dtype == bool else number
  for number, array in enumerate(arrays):
    wanted = number % 2 if array.dtype == bool else number
    assert (array == wanted).all()
    assert array.__array_interface__["data"][0] % array.dtype.itemsize == 0
  assert allocate(spec).keys() == spec.keys()


@dataclasses.dataclass(frozen=True)
class Sized:
  """An array of n values of an image's own random numbers, and n x n zeros."""

  n: int

  @property
  def spec(self):
    arrays = {
      "image": ArraySpec((self.n, 3)),
      "second": ArraySpec((9 - self.n,)),
    }
    # Some batches lack it.
    return arrays | ({"square": ArraySpec((self.n,) * 2)} if self.n > 2 else {})

  def row(self, example, *rng):
    return {
      name: rng[0].integers(0, 256, one.shape)
      for name, one in self.spec.items()
    }


SHARES = (0.3, 0.6, 0.1)
SIZED = Mixture((Sized(2), Sized(3), Sized(5)), SHARES)


def test_each_transform_makes_its_share_of_the_batches():
  """Within 4 standard deviations of a binomial distribution."""
  count = 1_000
  for seed in (0, 1, 2**63 - 1):
    drawn = [SIZED.of_batch(seed, k).n for k in range(count)]
    assert drawn == [SIZED.of_batch(seed, k).n for k in range(count)]
    for one, share in by_share(SIZED):
      bound = 4 * np.sqrt(count * share * (1 - share))
      assert abs(drawn.count(one.n) - count * share) < bound
    # A batch's size tells nothing of the next one's.
    pairs = sum(a == b for a, b in itertools.pairwise(drawn)) / (count - 1)
    same = np.square(SHARES).sum()
    assert abs(pairs - same) < 4 * np.sqrt(same * (1 - same) / count)
  assert drawn != [SIZED.of_batch(0, k).n for k in range(count)]


def test_a_batch_is_that_of_the_transform_that_is_drawn():
  """Wherever the run starts, and whichever host has the rows."""
  source = Numbered(20)
  batches = train(source, 12, SIZED)
  shapes = {one["image"].shape for one in batches}
  assert shapes == {(6, 2, 3), (6, 3, 3), (6, 5, 3)}
  for k, batch in enumerate(batches):
    one = SIZED.of_batch(3, k)
    assert_same([batch], train(source, 1, one, first_batch=k))
    assert batch["image"].shape == (6, one.n, 3)
    assert ("square" in batch) == (one.n > 2)
  assert_same(batches[5:], train(source, 7, SIZED, first_batch=5))
  halves = [
    train(source, 12, SIZED, process_index=i, process_count=2) for i in (0, 1)
  ]
  joined = [
    {k: np.concatenate([a[k], b[k]]) for k in a}
    for a, b in zip(*halves, strict=True)
  ]
  assert_same(batches, joined)
  assert as_transform(SIZED, source, train=True) is SIZED
  with pytest.raises(NotImplementedError):
    SIZED.row(source[0])


def test_a_function_shows_its_shape_on_the_first_image_it_can_read():
  made = as_transform(noisy, Numbered(3, damaged=(0, 1)), train=True)
  assert made.spec["image"].shape == (4, 4, 3)
  nothing = Numbered(2, damaged=(0, 1))
  with pytest.raises(
    data.UnreadableImageError, match="none of the 2 images of"
  ):
    as_transform(noisy, nothing, train=True)


@pytest.mark.parametrize("num_workers", some_slow([1, 2], [1]))
def test_batches_of_several_shapes_come_from_processes_too(num_workers):
  """They share memory for the largest of each array, and it is used again."""
  assert {k: one.shape for k, one in SIZED.spec.items()} == {
    "image": (5, 3),
    "second": (7,),
    "square": (5, 5),
  }
  assert_same(
    train(Numbered(20), 12, SIZED),
    train(Numbered(20), 12, SIZED, num_workers=num_workers),
  )


def test_a_subset_has_the_labels_of_its_source():
  assert Subset(Vectors(4), [0, 2]).label_spec == Vectors.label_spec
  assert not hasattr(Subset(Numbered(4), [0]), "label_spec")
  batches = TrainBatches(
    Subset(Vectors(9), [8]), Views(), 1, range(1), False, 0
  )
  assert batches.compute(0)["label"].tolist() == [[8, -8]]


class Other(Views):
  """A transform that does not do what its spec says."""

  def __init__(self, **changes):
    self.changes = changes

  def row(self, example, *rng):
    row = {**super().row(example, *rng), **self.changes}
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize(
  "changes, says",
  [
    ({"ids": np.zeros(4)}, r"ids has the shape \(4,\), and its spec says \(5,"),
    ({"scale": np.zeros(1)}, r"scale has the shape \(1,\)"),
    ({"kept": None}, "returned ids, image, local, scale, and its spec has"),
    ({"extra": 1}, "returned extra, ids"),
  ],
)
def test_a_transform_that_breaks_its_word_is_refused(changes, says):
  batches = TrainBatches(Numbered(4), Other(**changes), 2, range(2), False, 0)
  with pytest.raises(ValueError, match=says):
    batches.compute(0)


def test_labels_of_another_shape_are_refused():
  source = Vectors(4)
  source.label_spec = ArraySpec((3,), np.int16)
  batches = TrainBatches(source, Views(), 2, range(2), False, 0)
  with pytest.raises(ValueError, match=r"label has the shape \(2,\)"):
    batches.compute(0)


def test_names_of_the_loader_are_taken():
  class Labelled(Views):
    spec = {"skipped": ArraySpec(())}

  with pytest.raises(ValueError, match="an array called 'skipped'"):
    data.Loader().train(Numbered(4), Labelled(), batch_size=2, seed=0)


@pytest.mark.slow
def test_a_transform_may_make_the_label():
  """Of the example's own, in each way through the loader."""

  class Pictures(Views):
    spec = {"label": ArraySpec((3, 2), np.int32)}

    def row(self, example, *rng):
      return {"label": np.full((3, 2), example["label"][0])}

  loader = data.Loader(num_workers=2)
  source = Vectors(5)
  with loader.evaluate(source, Pictures(), 4) as passes:
    labels = np.concatenate([batch["label"] for batch in passes])
  assert labels.dtype == np.int32
  np.testing.assert_array_equal(labels[:5, 2, 1], np.arange(5))
  with loader.train(source, Pictures(), batch_size=2, seed=0) as batches:
    assert next(batches)["label"].shape == (2, 3, 2)


@pytest.mark.parametrize("cut_from", [None, (9, 8)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_our_transforms_know_their_shape(cut_from, channels):
  half = (0.5,) * channels
  images = data.Preprocessing((6, 5), mean=half, std=half, cut_from=cut_from)
  example, rng = Numbered(1)[0], np.random.default_rng(0)
  train = images.train_transform(data.settings.TrainTransformSettings())
  for found in (train.row(example, rng), images.transform().row(example)):
    assert found["image"].shape == images.image_shape
  assert train.spec == images.transform().spec
  assert train.spec == {"image": ArraySpec(images.image_shape, np.uint8)}
