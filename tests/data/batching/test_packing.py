"""Rows of several images: what is packed, and that nothing is lost."""

import collections

import numpy as np
import pytest

from tests.data.numbered import assert_same, train
from tests.data.pictures import png
from vit_jax.data.batching.packing import Packing, first_fit
from vit_jax.data.settings import TrainTransformSettings
from vit_jax.data.transforming.patches import IntoPatches
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.data.transforming.transforms import make_train_transform

P = 4
SIZE = AnySize(tokens=12, patch_size=P)
SHAPES = ((20, 20), (40, 20), (20, 40), (90, 10), (10, 70), (33, 29))
PACKING = Packing(images=2, tokens=18, least=3)


class Shaped:
  """Images of six proportions; example i has level i and label i."""

  name, class_names = "shaped", ("any",)

  def __init__(self, count, damaged=()):
    self._count, self._damaged = count, damaged

  def __len__(self):
    return self._count

  def __getitem__(self, index):
    pixels = np.full((*SHAPES[index % 6], 3), index, np.uint8)
    file = png(pixels)
    if index in self._damaged:
      file = file[: -30 if index % 2 else 10]  # Without pixels, or a header.
    return {"image": file, "label": index, "id": f"file {index}"}

  def read(self, indices):
    return [self[i] for i in indices]


def transform(**changes):
  settings = TrainTransformSettings(flip=True, min_area=0.4, **changes)
  return IntoPatches(make_train_transform(SIZE, settings), SIZE, 3)


def packed(source, count, packing=PACKING, changes=None, **arguments):
  arguments = {"batch_size": 20, **arguments}
  images = transform(**(changes or {}))
  return train(source, count, images, packing=packing, **arguments)


def images(batch):
  """Label, size, patches and flag of each image of a packed batch."""
  found = []
  for row, sizes in enumerate(batch["size"]):
    start = 0
    for slot, (h, w) in enumerate(sizes.tolist()):
      patches = batch["image"][row, start : start + h * w]
      start += h * w
      if h:
        label, skipped = (batch[n][row, slot] for n in ("label", "skipped"))
        found.append((int(label), h, w, patches.tobytes(), bool(skipped)))
    assert not batch["image"][row, start:].any()
  return found


def test_no_row_has_too_many_patches_or_images():
  draw = np.random.default_rng(0)
  fitted = 0
  for _ in range(300):
    rows, most, tokens = draw.integers(1, [9, 6, 40])
    counts = draw.integers(1, tokens, draw.integers(1, 40), endpoint=True)
    row = first_fit(counts, rows, tokens, most)
    if row is None:
      continue
    fitted += 1
    assert ((row >= 0) & (row < rows)).all() and len(row) == len(counts)
    assert (np.bincount(row, weights=counts) <= tokens).all()
    assert (np.bincount(row) <= most).all()
  assert 20 < fitted < 300


@pytest.mark.parametrize("least", [None, 1, 30])
@pytest.mark.parametrize("tokens", [64, 65, 100, 127, 256])
def test_all_images_of_a_window_fit(tokens, least):
  draw = np.random.default_rng(tokens)
  size, packing = AnySize(64, 16), Packing(4, tokens, least)
  for rows in (1, 3, 8):
    shapes = [tuple(s) for s in draw.integers(1, 900, (4 * rows, 2)).tolist()]
    counts, row = packing.fit(shapes, size, rows, np.random.default_rng(0))
    assert (counts >= 1).all() and (counts <= 64).all()
    assert (np.bincount(row, weights=counts, minlength=rows) <= tokens).all()
    assert np.bincount(row, minlength=rows).max() <= 8
    if tokens == 256 and least is None:  # All as large as they may be.
      grids = [size.grid(shape) for shape in shapes]
      np.testing.assert_array_equal(counts, [h * w for h, w in grids])


@pytest.mark.parametrize(
  "changes",
  [{}, {"crop": "pad", "pad": 2, "randaugment_layers": 2, "erase": 1}],
)
def test_a_batch_has_the_images_of_rows_of_one(changes):
  """With the same random changes of each."""
  roomy = Packing(images=2, tokens=24)
  source = Shaped(50)
  padded = train(source, 4, transform(**changes), batch_size=20)
  found = packed(source, 4, roomy, changes)
  assert found[0]["image"].shape == (10, 24, P * P * 3)
  assert found[0]["size"].shape == (10, 4, 2)
  assert found[0]["label"].shape == found[0]["skipped"].shape == (10, 4)
  for one, other in zip(padded, found, strict=True):
    rows = [
      (int(label), h, w, patches[: h * w].tobytes(), False)
      for label, patches, ((h, w),) in zip(
        one["label"], one["image"], one["size"], strict=True
      )
    ]
    assert sorted(rows) == sorted(images(other))


def test_every_image_comes_once_an_epoch():
  labels = [i[0] for batch in packed(Shaped(60), 6) for i in images(batch)]
  for epoch in (labels[:60], labels[60:]):
    assert sorted(epoch) == [*range(60)]


def test_limits_are_drawn_and_images_keep_their_proportions():
  counts = collections.Counter()
  for batch in packed(Shaped(60), 6):
    for label, h, w, _, _ in images(batch):
      height, width = SHAPES[label % 6]
      # Both sides are scaled alike, and rounded up; boxes are of whole pixels.
      least = max((h - 1) / height, (w - 1) / width)
      assert least < 1.1 * min(h / height, w / width)
      counts[h * w] += 1
  assert max(counts) <= 12 and len(counts) > 5


def test_a_batch_depends_on_its_number_alone():
  source = Shaped(60)
  whole = packed(source, 6)
  assert_same(whole[3:], packed(source, 3, first_batch=3))
  assert_same(whole[3:4], packed(source, 1, first_batch=3))


def test_hosts_share_the_same_batches():
  source = Shaped(60, damaged=(7, 8))
  arguments = {"batch_size": 48, "on_unreadable": "skip"}
  whole = packed(source, 2, **arguments)
  for count in (2, 4):  # Of 24 rows, so windows of 8 lie on several.
    hosts = [
      packed(source, 2, process_index=i, process_count=count, **arguments)
      for i in range(count)
    ]
    for k, batch in enumerate(whole):
      for key in batch:
        joined = np.concatenate([host[k][key] for host in hosts])
        np.testing.assert_array_equal(joined, batch[key])


def test_an_unreadable_image_is_replaced_and_marked():
  source = Shaped(60, damaged=(7, 8, 30))
  batches = packed(source, 3, on_unreadable="skip")
  found = sorted((i[0], i[4]) for batch in batches for i in images(batch))
  expected = [(i, False) for i in range(60) if i not in (7, 8, 30)]
  assert found == sorted([*expected, (9, True), (9, True), (31, True)])
  with pytest.raises(ValueError, match="^file .*on_unreadable=skip passes"):
    packed(source, 3)


@pytest.mark.parametrize("tokens, crowded", [(24, False), (13, True)])
def test_the_share_of_padding(tokens, crowded):
  packing = Packing(images=2, tokens=tokens)
  found = packing.padding(SIZE, SHAPES * 4, rows=6, seed=0)
  counts = [h * w for h, w in map(SIZE.grid, SHAPES)]
  assert found.alone == pytest.approx(1 - sum(counts) / (12 * len(counts)))
  if not crowded:
    assert found.share == pytest.approx(1 - sum(counts) / (24 * 3))
  assert found.crowded == crowded
  assert packing.padding(SIZE, [], rows=12, seed=0) == (0, 0, 0)
