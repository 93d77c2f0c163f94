"""Which images are held out: by names alone, and for good.

Hashes are those of `printf '%s' NAME | b2sum --length=64`.
"""

import hashlib
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.image_files import GOOD
from tests.rows import some_slow
from vit_jax.data.reading.holdout import Holdout, held_out
from vit_jax.data.reading.label_file import open_folder
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings

FAR = b"n/165.png", b"n/173.png"  # Of the hashes 0.00006 and 0.9991.


@pytest.mark.parametrize(
  "name, digits",
  [
    (b"a/0.png", "d6d521cad454d62c"),
    (b"n01440764/ILSVRC2012_val_00000293.JPEG", "3e4d98adc5aecb59"),
    (b"deep/er/x.png", "82611dd0ebb8f6ce"),
    (b"deep\\er\\x.png", "82611dd0ebb8f6ce"),
    (b"./deep//er/../er/x.png", "82611dd0ebb8f6ce"),
    ("caf\xe9/1.jpg".encode(), "a58a01652aa96069"),
    ("cafe\u0301/1.jpg".encode(), "a58a01652aa96069"),
  ],
)
def test_a_name_is_held_out_from_its_hash_on(name, digits):
  share = int(digits, 16) / 2**64
  for fraction in (share - 1e-6, share + 1e-6):
    expected = {FAR[0], name} if fraction > share else {FAR[0]}
    assert held_out([name, *FAR], fraction) == expected


@pytest.mark.parametrize("fraction", some_slow([0.05, 0.2, 0.5, 0.9], [0.2]))
def test_no_image_changes_sides_as_a_class_grows(fraction):
  """Once names fill both sides; by rank, as before, images do change sides."""
  random, moved = np.random.default_rng(0), 0
  for _ in range(10):
    numbers = random.permutation(10**6)[:80].tolist()
    names = [b"cat/%s%06d.jpg" % (b"in/" * (n % 3 == 0), n) for n in numbers]
    final = held_out([*names, *FAR], fraction) - {*FAR}
    for count in range(2, len(names)):
      files = names[:count]
      chosen = held_out(files, fraction)
      assert 0 < len(chosen) < count
      if final & {*files} and {*files} - final:
        assert chosen == final & {*files}
      grown = held_out(names[: count + 1], fraction, "rank")
      moved += held_out(files, fraction, "rank") != grown - {names[count]}
  assert moved


def test_the_nearest_file_fills_an_empty_side():
  """The hashes begin with d6, 80, f2, 9a, 4c and 15."""
  names = [b"a/%d.png" % k for k in range(6)]
  assert held_out(names[:4], 0.2) == {b"a/1.png"}
  assert held_out(names[:5], 0.2) == {b"a/4.png"}
  assert held_out(names, 0.2) == {b"a/5.png"}
  assert held_out(names, 0.99) == {*names} - {b"a/2.png"}
  assert held_out(names[5:], 0.2) == held_out([], 0.5) == set()


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_the_share_of_many_is_the_fraction(fraction):
  count = 10_000
  names = [f"cat/IMG_{k:05}.JPG".encode() for k in range(count)]
  deviation = math.sqrt(count * fraction * (1 - fraction))
  number = len(held_out(names, fraction))
  assert abs(number - count * fraction) < 3 * deviation


def _ids(splits):
  return {
    pathlib.Path(name).name for name in splits.eval.ids(range(len(splits.eval)))
  }


def test_folders_and_files_of_labels_agree(tmp_path):
  rows = ["file,label"]
  for name in ("cat", "dog"):
    for k in range(12):
      file = tmp_path / name / f"in{k % 3}" / f"{name}{k}.png"
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(GOOD)
      place = file.relative_to(tmp_path)
      ways = (place, f".//{place}", str(place).replace("/", "\\"), file)
      rows.append(f"{ways[k % 4]},{name}")
  table = tmp_path / "labels.csv"
  table.write_text("\n".join(rows))
  of_folder = _ids(open_splits(DataSettings(root=str(tmp_path))))
  assert len(of_folder) == 4  # A fifth of 12 is 2.4.
  given = DataSettings(labels_file=str(table))
  assert _ids(open_splits(given)) == of_folder
  of_name = dict(held_out_by="name")
  by_name = DataSettings(root=str(tmp_path), **of_name)
  given = DataSettings(labels_file=str(table), **of_name)
  assert _ids(open_splits(by_name)) == _ids(open_splits(given))
  assert open_folder(given)["eval"].held_out.by == "name"


def test_the_key_chooses_the_rule(tmp_path):
  """By name b3 is below 0.2, and a3 is nearest; by rank, gzip has the CRCs."""
  for name in "ab":
    for k in range(10):
      file = tmp_path / name / f"{name}{k}.png"
      file.parent.mkdir(exist_ok=True)
      file.write_bytes(GOOD)
  where: Any = dict(root=str(tmp_path))
  by_name = _ids(open_splits(DataSettings(**where, held_out_by="name")))
  assert by_name == {"a3.png", "b3.png"}
  by_rank = _ids(open_splits(DataSettings(**where, held_out_by="rank")))
  assert by_rank == {"a0.png", "a9.png", "b0.png", "b9.png"}


def _hash(name: bytes) -> int:
  return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


@pytest.mark.parametrize(
  "size, number",
  [(1, 0), (2, 1), (3, 2), (4, 2), (10, 2), (12, 2), (13, 3), (20, 4)],
)
def test_by_count_a_class_has_the_lowest_hashes(size, number):
  names = [b"a/%d.png" % k for k in range(size)]
  rule = Holdout.of(images=size, fraction=0.2)
  assert rule.by == "count"
  assert rule.of_class(0, names) == {*sorted(names, key=_hash)[:number]}


def test_a_run_keeps_the_sides_that_were_chosen_by_count(tmp_path):
  def add(numbers):
    for name in "ab":
      for k in numbers:
        file = tmp_path / name / f"{name}{k}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(GOOD)

  add(range(10))
  where: Any = dict(root=str(tmp_path))
  first = open_splits(DataSettings(**where))
  chosen = _ids(first)
  assert len(chosen) == 4
  kept = first.train.held_out.as_settings()
  assert kept["held_out_by"] == "count" and len(kept["held_out_below"]) == 2
  add(range(10, 40))
  grown = _ids(open_splits(DataSettings(**where, **kept)))
  assert {name for name in grown if int(name[1:-4]) < 10} == chosen
  assert len(_ids(open_splits(DataSettings(**where)))) == 16


def test_many_images_are_held_out_by_their_names():
  assert Holdout.of(images=999, fraction=0.2).by == "count"
  assert Holdout.of(images=1_000, fraction=0.2).by == "name"
  assert Holdout.of(images=9, fraction=0.2, by="rank").by == "rank"


def test_a_class_without_images_leaves_the_others_their_places(tmp_path):
  for k in range(12):
    (tmp_path / f"{k}.png").write_bytes(GOOD)
  rows = [f"{k}.png,{k % 2},0,{1 - k % 2}" for k in range(12)]
  table = tmp_path / "l.csv"
  table.write_text("\n".join(["file,a,b,c", *rows]))
  splits = open_splits(DataSettings(labels_file=str(table)))
  kept = splits.train.held_out.as_settings()
  assert len(_ids(splits)) == 4 and len(kept["held_out_below"]) == 3
  again = open_splits(DataSettings(labels_file=str(table), **kept))
  assert _ids(again) == _ids(splits)


def test_a_choice_that_may_change_is_said():
  (line,) = Holdout.of(images=9, fraction=0.2).lines()
  assert "a run keeps its choice" in line
  assert Holdout.of(images=9, fraction=0.2, by="name").lines() == []


@pytest.mark.parametrize(
  "classes, said", [(1, "held out by count:"), (3, "the count of their class:")]
)
def test_images_without_classes_are_not_held_out_by_class(classes, said):
  rule = Holdout.of(8 * classes, 0.2)
  for place in range(classes):
    rule.of_class(place, [b"%d.png" % n for n in range(8)])
  (line,) = rule.lines()
  assert said in line


def patients(rng, count):
  """The patient of each image, of one to nine images each."""
  sizes = rng.integers(1, 10, count)
  return [f"p{k}" for k, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("by", ["count", "name"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_are_held_out_whole_and_stay_on_their_side(by, seed):
  groups = patients(np.random.default_rng(seed), 80)
  rule = Holdout.of(len(groups), 0.2, by)
  chosen = rule.of_groups(groups)
  share = sum(group in chosen for group in groups) / len(groups)
  if by == "count":
    assert 0.2 <= share < 0.2 + 9 / len(groups)
  assert 0 < share < 0.5
  kept = Holdout.of(len(groups), 0.2, rule.by, rule.below)
  more = [*groups, *(f"q{k}" for k in range(200))]
  assert kept.of_groups(more) & {*groups} == chosen


@pytest.mark.parametrize("sizes", [(1, 1), (50, 1), (1, 50), (3, 3, 3)])
@pytest.mark.parametrize("by", ["count", "name"])
def test_of_few_groups_both_sides_have_one(by, sizes):
  groups = [f"p{k}" for k, size in enumerate(sizes) for _ in range(size)]
  chosen = Holdout.of(len(groups), 0.2, by).of_groups(groups)
  assert 0 < len(chosen) < len(sizes)


@pytest.mark.parametrize(
  "by, message",
  [
    ("count", "data.group_column: all 3 images are of one group, and"),
    ("name", "data.group_column: all 3 images are of one group, and"),
    ("rank", "data.held_out_by='rank' knows no groups: set it to"),
  ],
)
def test_groups_that_cannot_be_held_out_are_refused(by, message):
  with pytest.raises(ValueError, match=message):
    Holdout.of(3, 0.2, by).of_groups(["p", "p", "p"])
