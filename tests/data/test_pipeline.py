"""Batches depend on (seed, number) alone, and miss and repeat nothing."""

import collections
import io
import itertools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from vit_jax import data
from vit_jax.data import batches as batches_module

ROOT = pathlib.Path(__file__).parents[2]


class Numbered:
  """Grey images, example i of level i and label i; some files damaged."""

  class_names = ("any",)

  def __init__(self, count: int, damaged: tuple = ()):
    self.name, self._count, self._damaged = "numbered", count, set(damaged)

  def __len__(self):
    return self._count

  def __getitem__(self, index):
    file = io.BytesIO()
    Image.new("L", (4, 4), index % 256).save(file, "PNG")
    image = file.getvalue()
    if index in self._damaged:
      image = image[:-30]
    return {"image": image, "label": index, "id": f"file {index}"}

  def read(self, indices):
    return [self[i] for i in indices]


def noisy(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
  """A transform that shows its random numbers: red stays, the rest is drawn."""
  image = data.decode_rgb(encoded)
  image[..., 1:] = rng.integers(0, 256, (4, 4, 2))
  return image


def train(source, count, transform=noisy, **arguments):
  arguments = {"batch_size": 6, "seed": 3, **arguments}
  with data.train_batches(source, transform, **arguments) as batches:
    return list(itertools.islice(batches, count))


def assert_same(first, second):
  assert len(first) == len(second)
  for a, b in zip(first, second, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      assert a[key].dtype == b[key].dtype
      np.testing.assert_array_equal(a[key], b[key])


def test_a_batch():
  (batch,) = train(Numbered(20), 1)
  assert set(batch) == {"image", "label", "skipped"}
  assert batch["image"].shape == (6, 4, 4, 3)
  assert batch["image"].dtype == np.uint8
  assert batch["label"].shape == (6,) and batch["label"].dtype == np.int32
  assert batch["skipped"].shape == (6,) and batch["skipped"].dtype == bool
  assert type(batch["image"]) is np.ndarray
  np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], batch["label"])


# 20 examples in batches of 6: epochs end inside batches.
@pytest.mark.parametrize("listed", [True, False])
def test_every_epoch_has_every_example_once_in_a_new_order(listed, monkeypatch):
  if not listed:  # as for data sets too large to list their order
    monkeypatch.setattr(batches_module, "_MOST_LISTED", 0)
  labels = np.concatenate([b["label"] for b in train(Numbered(20), 20)])
  epochs = labels.reshape(6, 20)
  assert (np.sort(epochs, axis=1) == np.arange(20)).all()
  assert len({tuple(epoch) for epoch in epochs}) == 6
  other = train(Numbered(20), 4, seed=4)
  second = np.concatenate([b["label"] for b in other])[:20]
  assert tuple(second) not in {tuple(epoch) for epoch in epochs}


def test_the_order_is_uniform():
  counts = np.zeros((5, 5))
  for epoch in range(2000):
    for place in range(5):
      counts[place, batches_module._shuffled(place, 5, 0, epoch)] += 1
  # Each of 400 expected, standard deviation 18.
  assert np.abs(counts - 400).max() < 90


def test_the_order_of_large_sets_is_uniform():
  count = batches_module._MOST_LISTED + 1
  found = np.array(
    [
      [batches_module._shuffled(place, count, 0, epoch) for place in range(4)]
      for epoch in range(2000)
    ]
  )
  assert found.max() < count
  quarters = np.stack(
    [(found * 4 // count == quarter).sum(0) for quarter in range(4)]
  )
  assert np.abs(quarters - 500).max() < 100  # 5 standard deviations
  neighbours = np.corrcoef(found.T)[np.triu_indices(4, 1)]
  assert np.abs(neighbours).max() < 0.12


def test_images_are_augmented_anew_every_epoch():
  batches = train(Numbered(20), 10)
  seen = collections.defaultdict(set)
  for batch in batches:
    for label, image in zip(batch["label"], batch["image"], strict=True):
      seen[int(label)].add(image.tobytes())
  assert all(len(images) == 3 for images in seen.values())


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(num_workers):
  source = Numbered(20, damaged=(2, 3))
  arguments = {"on_unreadable": "skip", "first_batch": 2}
  assert_same(
    train(source, 9, **arguments),
    train(source, 9, num_workers=num_workers, **arguments),
  )


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


def test_an_unreadable_image_in_a_worker_is_named_too():
  with pytest.raises(data.UnreadableImageError) as caught:
    train(Numbered(20, damaged=(9,)), 4, num_workers=1)
  assert str(caught.value).startswith("file 9: ")
  assert "\n" not in str(caught.value)


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
    train(Numbered(30, damaged=tuple(range(30))), 1, on_unreadable="skip")


def test_a_missing_file_is_unreadable(tmp_path):
  for i in range(4):
    (tmp_path / "c").mkdir(exist_ok=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "c" / f"{i}.png")
  source = data.open_source(
    "train", data.DataSettings(root=str(tmp_path), eval_fraction=0.25)
  )
  os.remove(source[0]["id"])
  with pytest.raises(data.UnreadableImageError, match="No such file"):
    train(source, 1, batch_size=3)
  (batch,) = train(source, 1, batch_size=3, on_unreadable="skip")
  assert batch["skipped"].sum() == 1


def evaluate(source, batch_size, **arguments):
  transform = data.make_eval_transform(4)
  return data.eval_batches(
    source, transform, batch_size=batch_size, **arguments
  )


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


def test_evaluation_repeats_with_the_same_workers():
  with evaluate(Numbered(10), 4) as passes:
    expected = list(passes)
  with evaluate(Numbered(10), 4, num_workers=1) as passes:
    assert_same(list(passes), expected)
    children = multiprocessing.active_children()
    assert_same(list(passes), expected)
    assert multiprocessing.active_children() == children
    next(iter(passes))  # left early
    assert_same(list(passes), expected)
  assert not multiprocessing.active_children()


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
  with pytest.raises(data.UnreadableImageError, match="none of the 3 images"):
    list(evaluate(nothing, 4, on_unreadable="skip"))


@pytest.mark.parametrize(
  "arguments, match",
  [
    ({"batch_size": 6, "process_count": 4}, "batch_size=6 .* is 8"),
    ({"batch_size": 0}, "batch_size=0 .* is 1"),
    ({"process_count": 2, "process_index": 2}, "process_index=2 of"),
    ({"num_workers": -1}, "num_workers=-1; it has to be 0 or more"),
    ({"on_unreadable": "ignore"}, "'ignore' is unknown; use one of stop, skip"),
  ],
)
def test_bad_arguments(arguments, match):
  arguments = {"batch_size": 4, **arguments}
  with pytest.raises(ValueError, match=match):
    data.train_batches(Numbered(9), noisy, seed=0, **arguments)
  with pytest.raises(ValueError, match=match):
    data.eval_batches(Numbered(9), noisy, **arguments)


def test_bad_arguments_to_train_alone():
  def fails(match, **arguments):
    with pytest.raises(ValueError, match=match):
      train(Numbered(20), 1, **arguments)

  fails("batch_size=21 is more than the 20 examples", batch_size=21)
  fails("seed=-1", seed=-1)
  fails("first_batch=-1", first_batch=-1)
  with pytest.raises(ValueError, match="no examples to evaluate on"):
    evaluate(Numbered(0), 4)


def test_a_closed_iterator_says_so():
  batches = data.train_batches(Numbered(9), noisy, batch_size=4, seed=0)
  batches.close()
  batches.close()
  with pytest.raises(ValueError, match="these batches are closed"):
    next(batches)


SCRIPT = """
import multiprocessing, os, sys
from vit_jax import data
if __name__ == "__main__":
  settings = data.DataSettings(root=sys.argv[1])
  source = data.open_source("train", settings)
  batches = data.train_batches(
    source, data.make_train_transform(4), batch_size=4, seed=0, num_workers=2
  )
  for _ in range(3):
    next(batches)
  print(*(p.pid for p in multiprocessing.active_children()), flush=True)
  if sys.argv[2] == "wait":
    next(iter(sys.stdin))
"""


@pytest.mark.parametrize("ending", ["exit", "wait"])
def test_no_worker_outlives_its_parent(tmp_path, ending):
  """Whether it ends in good order, and then in silence, or is killed."""
  (tmp_path / "c").mkdir()
  for i in range(9):
    Image.new("RGB", (4, 4)).save(tmp_path / "c" / f"{i}.png")
  (tmp_path / "script.py").write_text(SCRIPT)
  with subprocess.Popen(
    [sys.executable, tmp_path / "script.py", tmp_path, ending],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
  ) as process:
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    if ending == "wait":
      process.send_signal(signal.SIGKILL)
    else:
      assert process.communicate()[1] == b""
  for _ in range(100):
    if not any(alive(pid) for pid in pids):
      break
    time.sleep(0.1)
  assert not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
  """Whether a process runs; one that only waits to be noted does not."""
  status = pathlib.Path(f"/proc/{pid}/stat")
  try:
    return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
  except OSError:
    return False


def test_a_killed_worker_is_reported():
  arguments = {"batch_size": 4, "seed": 0, "num_workers": 1}
  with data.train_batches(Numbered(9), noisy, **arguments) as batches:
    next(batches)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    with pytest.raises(ChildProcessError, match=r"exit code -9 .*num_workers"):
      for _ in range(4):  # What waited already may still come.
        next(batches)


class Unpicklable(Exception):
  def __init__(self, first, second):
    super().__init__(f"{first} {second}")

  def __reduce__(self):
    raise TypeError("not to be pickled")


def failing(encoded, rng):
  if rng.random() < 0.5:
    raise Unpicklable("cannot", "go on")
  return noisy(encoded, rng)


def test_an_error_that_cannot_be_sent_is_told_in_words():
  with pytest.raises(RuntimeError, match="^Unpicklable: cannot go on"):
    train(Numbered(20), 9, transform=failing, num_workers=1)


def test_batches_may_be_kept():
  """What comes later is not written over them."""
  kept = train(Numbered(20), 9, num_workers=1)
  assert_same(kept, train(Numbered(20), 9))
  assert len({batch["image"].ctypes.data for batch in kept}) == 9


def test_batches_may_be_closed_in_the_thread_that_computes_them():
  """As garbage, an iterator may be collected in any thread."""
  closed, started, ended = [], threading.Event(), threading.Event()

  class Batches:
    def __getitem__(self, number):
      try:
        assert started.wait(60)  # What is garbage is not being started.
        iterator.close()
        closed.append(number)
      finally:
        ended.set()

  iterator = data.BatchIterator(Batches(), 0, 0, ())
  iterator.start()
  started.set()
  assert ended.wait(60)
  assert closed == [0]
