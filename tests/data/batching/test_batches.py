"""Batches depend on (seed, number) alone; none misses or repeats an example."""

import collections
import os

import numpy as np
import pytest

from tests.data.numbered import Numbered, assert_same, evaluate, train
from tests.image_files import write_noise
from vit_jax import data


def test_a_batch():
  (batch,) = train(Numbered(20), 1)
  assert set(batch) == {"image", "label", "skipped"}
  assert batch["image"].shape == (6, 4, 4, 3)
  assert batch["image"].dtype == np.uint8
  assert batch["label"].shape == (6,) and batch["label"].dtype == np.int32
  assert batch["skipped"].shape == (6,) and batch["skipped"].dtype == bool
  assert type(batch["image"]) is np.ndarray
  np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])


def test_images_are_augmented_anew_every_epoch():
  batches = train(Numbered(20), 10)
  seen = collections.defaultdict(set)
  for batch in batches:
    for label, image in zip(batch["label"], batch["image"], strict=True):
      seen[int(label)].add(image.tobytes())
  assert all(len(images) == 3 for images in seen.values())


def test_repeats_show_an_image_again_and_augment_it_anew():
  """Batches of 6 have 2 different images, and the 3 of each differ."""
  batches = train(Numbered(20), 30, repeats=3)
  shown = []
  for batch in batches:
    labels = batch["label"]
    np.testing.assert_array_equal(labels, np.tile(labels[:2], 3))
    for label in labels[:2]:
      copies = batch["image"][labels == label]
      assert len({copy.tobytes() for copy in copies}) == 3
    shown += labels[:2].tolist()
  # Twenty images, once an epoch each, in three epochs.
  assert collections.Counter(shown) == dict.fromkeys(range(20), 3)
  assert_same(batches[7:12], train(Numbered(20), 5, first_batch=7, repeats=3))


def test_repeats_need_not_divide_the_batch():
  """Of 4 repeats, 6 rows have ceil(6 / 4) = 2 different images."""
  (batch,) = train(Numbered(20), 1, repeats=4)
  np.testing.assert_array_equal(batch["label"], np.tile(batch["label"][:2], 3))


def test_resuming_changes_nothing():
  assert_same(
    train(Numbered(20), 12)[7:], train(Numbered(20), 5, first_batch=7)
  )


def test_a_late_start_costs_nothing():
  (batch,) = train(Numbered(20), 1, first_batch=10**12)
  assert batch["image"].shape == (6, 4, 4, 3)


def test_hosts_share_the_same_batches():
  source = Numbered(30, damaged=(4,))
  arguments = {"batch_size": 12, "on_unreadable": "skip"}
  whole = train(source, 7, **arguments)
  hosts = [
    train(source, 7, process_index=i, process_count=4, **arguments)
    for i in range(4)
  ]
  for k, batch in enumerate(whole):
    parts = [host[k] for host in hosts]
    for key in batch:
      joined = np.concatenate([part[key] for part in parts])
      np.testing.assert_array_equal(joined, batch[key])


def test_random_numbers_are_those_of_the_key():
  (batch,) = train(Numbered(20), 1, first_batch=5)
  for row in range(6):
    key = np.array([3, 5 * 6 + row], np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    expected = rng.integers(0, 256, (4, 4, 2))
    np.testing.assert_array_equal(batch["image"][row, ..., 1:], expected)


def test_an_unreadable_image_stops_training_and_is_named():
  with pytest.raises(data.UnreadableImageError, match="^file 9: .*"):
    train(Numbered(20, damaged=(9,)), 4)


def test_skipping_takes_the_next_readable_one():
  batches = train(Numbered(20, damaged=(8, 9, 19)), 20, on_unreadable="skip")
  labels = np.concatenate([b["label"] for b in batches]).reshape(6, 20)
  expected = sorted([*set(range(20)) - {8, 9, 19}, 10, 10, 0])
  assert (np.sort(labels, axis=1) == expected).all()
  skipped = np.concatenate([b["skipped"] for b in batches]).reshape(6, 20)
  assert (skipped.sum(1) == 3).all()
  assert set(labels[skipped]) == {10, 0}


def test_skipping_ends_where_nothing_is_readable():
  with pytest.raises(data.UnreadableImageError, match="17 unreadable images"):
    train(
      Numbered(30, damaged=tuple(range(30))),
      1,
      transform=data.make_train_transform(4),
      on_unreadable="skip",
    )


def test_a_missing_file_is_unreadable(tmp_path):
  write_noise(tmp_path, "c", "d", count=4, size=(4, 4))
  source = data.open_source(
    "train", data.DataSettings(root=str(tmp_path), eval_fraction=0.25)
  )
  os.remove(source[0]["id"])
  with pytest.raises(data.UnreadableImageError, match="No such file"):
    train(source, 1, batch_size=4)
  (batch,) = train(source, 1, batch_size=4, on_unreadable="skip")
  assert batch["skipped"].sum() == 1


@pytest.mark.parametrize(
  "count, batch_size, hosts",
  [(1, 4, 4), (7, 4, 2), (8, 4, 2), (9, 8, 4), (23, 6, 3), (5, 100, 1)],
)
def test_evaluation_counts_each_example_once(count, batch_size, hosts):
  found, lengths = collections.Counter(), set()
  for host in range(hosts):
    passes = evaluate(
      Numbered(count), batch_size, process_index=host, process_count=hosts
    )
    batches = list(passes)
    lengths.add((len(passes), len(batches)))
    for batch in batches:
      assert batch["image"].shape == (batch_size // hosts, 4, 4, 3)
      assert batch["mask"].dtype == np.float32
      assert batch["label"].dtype == np.int32
      real = batch["mask"] == 1
      assert (batch["mask"][~real] == 0).all()
      levels = batch["image"][real][:, 0, 0, 0]
      np.testing.assert_array_equal(levels, batch["label"][real])
      found.update(levels.tolist())
    passes.close()
  assert found == dict.fromkeys(range(count), 1)
  whole = -(-count // batch_size)
  assert lengths == {(whole, whole)}


def test_evaluation_masks_what_it_cannot_read():
  source = Numbered(10, damaged=(0, 5, 8, 9))
  with evaluate(source, 4, on_unreadable="skip") as passes:
    batches = list(passes)
  masks = [batch["mask"].tolist() for batch in batches]
  assert masks == [[0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
  skipped = [np.flatnonzero(batch["skipped"]).tolist() for batch in batches]
  assert skipped == [[0], [1], [0, 1]]
  with pytest.raises(data.UnreadableImageError, match="^file 0: "):
    list(evaluate(source, 4))
  nothing = Numbered(3, damaged=(0, 1, 2))
  for num_workers in (0, 1):
    skip = {"on_unreadable": "skip", "num_workers": num_workers}
    with evaluate(nothing, 2, **skip) as passes:
      batches = list(passes)
    assert [batch["mask"].tolist() for batch in batches] == [[0, 0]] * 2
    assert not any(batch["image"].any() for batch in batches)
