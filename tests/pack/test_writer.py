"""Packed data sets: complete, in TFDS's form, and gone on with."""

import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests import captioned, commands
from tests.data.batching.test_workers import alive
from tests.image_files import GOOD, write_noise
from vit_jax.data.example import UnreadableImageError
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.labels import NONE
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.settings import DataSettings
from vit_jax.pack import notes, writer
from vit_jax.pack.__main__ import verify
from vit_jax.pack.shards import Encoding
from vit_jax.pack.sources import open_sources

ROOT = str(pathlib.Path(__file__).parents[2])


@pytest.fixture
def photographs(tmp_path):
  """Two classes of six images each for training, two for evaluation."""
  root = tmp_path / "photos"
  write_noise(root, "train/cat", "train/dog", count=6, size=(20, 30))
  return write_noise(root, "val/cat", "val/dog", count=2, size=(20, 30), seed=1)


def _pack(source, out, encoding=None, **options):
  options = {"workers": 1, "shard_bytes": 6_000, **options}
  writer.pack(
    open_sources(str(source)), str(out), encoding or Encoding(), **options
  )


def stopping_with(shards, out):
  """An encoding that stops the command once the folder has so many shards."""

  class Stopping(Encoding):
    def encode(self, encoded):
      if len([*out.glob("*array_record*")]) == shards:
        raise KeyboardInterrupt
      return super().encode(encoded)

  return Stopping()


def _content(folder):
  return {p.name: p.read_bytes() for p in folder.glob("*array_record*")}


@pytest.mark.parametrize("quality", [95, None], ids=["as_it_is", "raw"])
def test_tfds_reads_every_image_once(photographs, tmp_path, capsys, quality):
  out = tmp_path / "Packed photos"
  _pack(photographs, out, Encoding(quality=quality))
  builder = tfds.builder_from_directory(str(out))
  assert builder.name == "packed_photos"
  assert builder.info.features["label"].names == ["cat", "dog"]
  for split, folder in (("train", "train"), ("validation", "val")):
    source = builder.as_data_source(split)
    found = {e["id"].decode(): e for e in source}
    expected = {
      str(p.relative_to(photographs)): p
      for p in (photographs / folder).rglob("*.png")
    }
    assert found.keys() == expected.keys() and len(source) == len(found)
    for name, path in expected.items():
      pixels = np.asarray(Image.open(path))
      np.testing.assert_array_equal(found[name]["image"], pixels)
      assert found[name]["label"] == ["cat", "dog"].index(path.parent.name)
  assert builder.info.splits["train"].num_shards > 1
  # Not in the folder's order.
  ids = [e["id"] for e in builder.as_data_source("train")]
  assert ids != sorted(ids)
  said = capsys.readouterr().out
  assert "train      12 images of 2 classes, 6 to 6 of a class" in said
  for line in (out / "sha256sums.txt").read_text().splitlines():
    digest, name = line.split("  ")
    assert digest == hashlib.sha256((out / name).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
  """What `data` is set to for each form of the same pairs."""
  root = tmp_path_factory.mktemp("forms")
  captioned.write_all(root)
  return {form: captioned.settings(root, form) for form in captioned.FORMS}


@pytest.mark.parametrize("form", ["packed", "webdataset"])
def test_tfds_reads_the_captions(forms, form):
  builder = tfds.builder_from_directory(forms[form]["dir"])
  assert {*builder.info.features} == {"image", "caption", "id"}
  assert builder.info.supervised_keys == ("image", "caption")
  found = {
    record["id"].decode(): [text.decode() for text in record["caption"]]
    for split in ("train", "validation")
    for record in builder.as_data_source(split)
  }
  assert found == {pair.name: pair.captions for pair in captioned.pairs()}


@pytest.mark.slow
def test_captions_are_packed_beside_classes(tmp_path, capsys):
  """Both tasks read them, and as many captions of each image say so."""
  table = captioned.write_csv(tmp_path / "photos", captioned.pairs()).parent
  rows = ["file,label,caption,split"]
  for pair in captioned.pairs():
    rows.append(f"{pair.name},{pair.colour},{pair.captions[0]},{pair.split}")
  (table / "both.csv").write_text("\n".join(rows))
  out = tmp_path / "packed"
  _pack(table / "both.csv", out, workers=2)
  said = capsys.readouterr().out
  assert "27 images of 3 classes, 9 to 9 of a class, 1 to 1 captions e" in said
  builder = tfds.builder_from_directory(str(out))
  assert builder.info.features["caption"].shape == (1,)
  assert builder.info.supervised_keys == ("image", "label")
  classes = open_splits(DataSettings(dir=str(out)))
  captions = open_splits(DataSettings(dir=str(out)), labels=Captions())
  assert classes.train.class_names == ("blue", "green", "red")
  assert captions.train.most_captions == 1
  by_image = {pair.image: pair for pair in captioned.pairs()}
  for example in classes.train.read([*range(27)]):
    name = classes.train.class_names[example["label"]]
    assert name == by_image[example["image"]].colour
  wrong = [*rows, rows[1].replace(",red,", ",blue,")]
  (table / "wrong.csv").write_text("\n".join(wrong))
  with pytest.raises(ValueError, match="line 47 puts 'train_0.png' into anoth"):
    open_sources(str(table / "wrong.csv"))


def test_pack_says_how_a_table_was_read(tmp_path, capsys):
  """As train does; what is packed no longer tells it."""
  for k in range(6):
    (tmp_path / f"{k}.png").write_bytes(GOOD)
  rows = [f"{k}.png,seen by {k % 2} of us" for k in range(6)]
  (tmp_path / "l.csv").write_text("\n".join(["pic,what", *rows]))
  _pack(tmp_path / "l.csv", tmp_path / "out", workers=1)
  said = capsys.readouterr().out.splitlines()
  assert said[0] == "the column 'pic' names the images, and what is the label."


@pytest.mark.parametrize(
  "table, says",
  [
    ("file,x,y\na/0.png,1.5,u", "be it: x, y. Rename the column of the cl"),
    ("file,x,y\na/0.png,1,1\na/1.png,0,1", "each row: a packed image has one"),
    ("file,x,y\na,?,1\nb,0,1\nc,1,1", "besides. A packed image has one c"),
    ("file,label\nq.png,u", "names are read from the folder of the table on"),
    ("file,label\n0.png,u\n1.png,u\nq.png,v", "most are in .*: write the nam"),
    ("file,label\n../0.png,u", ": if you trust the file, add --outside[.]$"),
    ("name,label\nq,u\nr,u", "on: rename the column of the images to file[.]$"),
  ],
)
def test_errors_on_a_table_advise_no_keys_of_a_run(tmp_path, table, says):
  (tmp_path / "a").mkdir()
  for name in ("0.png", "1.png"):
    (tmp_path / "a" / name).write_bytes(GOOD)
  (tmp_path / "l.csv").write_text(table)
  with pytest.raises(ValueError, match=says) as caught:
    open_sources(str(tmp_path / "l.csv"))
  assert "--config" not in str(caught.value)


@pytest.mark.parametrize(
  "cell, line", [("", "an empty caption"), (" ", "an e")]
)
def test_an_empty_caption_is_not_packed(tmp_path, cell, line):
  table = captioned.write_csv(tmp_path / "photos", captioned.pairs())
  table.write_text(table.read_text().replace("tall: red", cell, 1))
  with pytest.raises(ValueError, match=f"line .* has {line}"):
    open_sources(str(table))


def test_unlabelled_tasks_read_packed_captions(forms):
  splits = open_splits(DataSettings(**forms["packed"]), labels=NONE)
  assert splits.train.class_names == ("unlabelled",)
  assert splits.train[3]["label"] == 0
  with pytest.raises(ValueError, match="is not an image classification datas"):
    open_splits(DataSettings(**forms["packed"]))


def test_training_reads_it(photographs, tmp_path):
  out = tmp_path / "packed"
  _pack(photographs, out)
  splits = open_splits(DataSettings(dir=str(out)))
  assert (len(splits.train), len(splits.eval)) == (12, 4)
  example = splits.eval[0]
  name = example["id"].partition("(")[2].rstrip(")")
  assert example["image"] == (photographs / name).read_bytes()


def test_a_stopped_command_goes_on(photographs, tmp_path):
  _pack(photographs, tmp_path / "whole")
  out = tmp_path / "stopped" / "whole"  # The same name.
  with pytest.raises(KeyboardInterrupt):
    _pack(photographs, out, stopping_with(2, out))
  assert len(_content(out)) == 2
  first = {path: path.stat().st_mtime_ns for path in out.glob("*array_record*")}
  _pack(photographs, out)
  assert _content(out) == _content(tmp_path / "whole")
  for path, written_at in first.items():  # They were not written again.
    assert path.stat().st_mtime_ns == written_at


def test_unreadable_images_are_listed(photographs, tmp_path, capsys):
  broken = photographs / "train" / "dog" / "3.png"
  broken.write_bytes(broken.read_bytes()[:100])
  out = tmp_path / "packed"
  _pack(photographs, out)
  assert "train/dog/3.png" in (out / "unreadable.txt").read_text()
  builder = tfds.builder_from_directory(str(out))
  assert len(builder.as_data_source("train")) == 11
  assert "; 1 unreadable" in capsys.readouterr().out


def test_images_of_which_none_can_be_read(tmp_path):
  """As of Parquet files of paths alone: there would be nothing to train on."""
  cells = [{"bytes": None, "path": f"{k}.jpg"} for k in range(6)]
  table = pa.Table.from_pydict({"image": cells, "label": [0, 1] * 3})
  (tmp_path / "hub").mkdir()
  pq.write_table(table, tmp_path / "hub" / "train.parquet")
  message = "no image of the split train could .* no bytes, only the path '"
  with pytest.raises(ValueError, match=message):
    _pack(tmp_path / "hub", tmp_path / "out")
  assert not (tmp_path / "out" / "dataset_info.json").exists()
  lines = (tmp_path / "out" / "unreadable.txt").read_text().splitlines()
  assert len(lines) == 6


@pytest.mark.parametrize("first", [0, 1])
def test_labels_from_1_are_said(tmp_path, capsys, first):
  cells = [{"bytes": GOOD, "path": f"{k}.png"} for k in range(6)]
  labels = [first, first + 1] * 3
  table = pa.Table.from_pydict({"image": cells, "label": labels})
  (tmp_path / "hub").mkdir()
  pq.write_table(table, tmp_path / "hub" / "train.parquet")
  _pack(tmp_path / "hub", tmp_path / "out")
  line = "class 0 (0) has no image and all others have some: if labels are cou"
  assert (line in capsys.readouterr().out) == (first == 1)


def test_classes_are_counted_as_they_are_listed(photographs, tmp_path, capsys):
  for path in (photographs / "val" / "dog").iterdir():
    path.unlink()
  _pack(photographs, tmp_path / "out")
  names = json.loads((tmp_path / "out" / "features.json").read_text())
  classes = names["featuresDict"]["features"]["label"]["classLabel"]
  assert classes["numClasses"] == "2"
  said = capsys.readouterr().out
  assert "train      12 images of 2 classes, 6 to 6 of a class" in said
  assert "validation 2 images of 2 classes, 0 to 2 of a class" in said


def test_an_older_packing_goes_on_with_jpeg(photographs, tmp_path):
  out = tmp_path / "out"
  assert notes.is_lossless(str(out))
  _pack(photographs, out)  # As earlier versions did.
  assert not notes.is_lossless(str(out))
  plan = json.loads((out / "notes" / "plan.json").read_text())
  assert "lossless" not in plan
  _pack(photographs, tmp_path / "new", Encoding(lossless=True))
  assert notes.is_lossless(str(tmp_path / "new"))


def _labels(photographs):
  lines = [
    f"{split}/{label}/0.png,{label},{split}\n"
    for split in ("train", "val")
    for label in ("cat", "dog")
  ]
  table = photographs / "labels.csv"
  table.write_text("image,label,split\n" + "".join(lines))
  return table


def _captions(photographs):
  folder = photographs.parent / "captioned"
  return captioned.write_csv(folder, captioned.pairs())


def _replace(table, old, new):
  table.write_text(table.read_text().replace(old, new))


# A source made of the photographs; what changes in it, or other options.
OTHERS = {
  "a seed": (pathlib.Path, lambda _: {"seed": 1}),
  "a quality": (pathlib.Path, lambda _: {"encoding": Encoding(10)}),
  "no quality": (pathlib.Path, lambda _: {"encoding": Encoding(quality=None)}),
  "lossless": (pathlib.Path, lambda _: {"encoding": Encoding(lossless=True)}),
  "an image": (
    pathlib.Path,
    lambda source: shutil.copy(
      source / "train" / "dog" / "0.png", source / "train" / "dog" / "9.png"
    ),
  ),
  "a label": (
    _labels,
    lambda table: _replace(table, "val/cat/0.png,cat", "val/cat/0.png,dog"),
  ),
  "a caption": (
    _captions,
    lambda table: _replace(table, "tall: red", "high: red"),
  ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_packing_is_refused(photographs, tmp_path, kind):
  make, change = OTHERS[kind]
  source, out = make(photographs), tmp_path / "packed"
  _pack(source, out)
  changed = change(source)
  options = changed if isinstance(changed, dict) else {}
  message = "from other images or labels, or with other flags; choose another"
  with pytest.raises(ValueError, match=message):
    _pack(source, out, **options)


def test_a_folder_of_something_else_is_not_packed_into(photographs):
  with pytest.raises(ValueError, match="is not empty"):
    _pack(photographs, photographs)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", " a", "", "\ud800"])
def test_names_that_no_class_list_holds_are_refused(
  photographs, tmp_path, name
):
  splits = open_sources(str(photographs))
  for source in splits.values():
    source.class_names = (name, *source.class_names[1:])
  with pytest.raises(ValueError, match="TFDS cannot list a class cal") as info:
    writer.pack(splits, str(tmp_path / "packed"), Encoding())
  assert repr(name) in str(info.value) and str(info.value).isprintable()
  assert not (tmp_path / "packed").exists()


def test_a_packing_keeps_what_it_held_out(photographs, tmp_path):
  """Plans of earlier versions, which went by rank, name no rule."""
  source, held = str(photographs / "train"), {}

  def pack(out, by):
    splits = open_sources(source, held_out={"held_out_by": by})
    writer.pack(splits, str(out), Encoding(), workers=1)
    return splits["validation"].ids([0, 1])

  for by, other in (("name", "rank"), ("rank", "name"), ("count", "name")):
    out = tmp_path / by
    held[by] = pack(out, by)
    plan = json.loads((out / "notes" / "plan.json").read_text())
    assert plan.get("held_out_by") == (by if by != "rank" else None)
    kept = notes.keys_of_held_out(str(out))
    assert kept["held_out_by"] == by
    assert len(kept["held_out_below"] or ()) == (2 if by == "count" else 0)
    assert notes.keys_of_held_out(str(out), other) == {"held_out_by": other}
    before = _content(out)
    pack(out, by)
    assert _content(out) == before
    with pytest.raises(ValueError, match="from other images or labels, or"):
      pack(out, other)
  assert held["name"] != held["rank"]
  assert notes.keys_of_held_out(str(tmp_path / "new")) == {"held_out_by": None}
  # Where nothing is held out, a plan is as it was.
  _pack(photographs, tmp_path / "split")
  plan = (tmp_path / "split" / "notes" / "plan.json").read_text()
  assert "held_out_by" not in plan


@pytest.mark.slow
def test_the_command_goes_on_by_the_rule_of_the_packing(photographs, tmp_path):
  source, out = photographs / "train", tmp_path / "packed"
  asked = ("vit_jax.pack", str(source), str(out))
  assert commands.run(*asked, "--held_out_by=rank").returncode == 0
  before = _content(out)
  assert commands.run(*asked).returncode == 0
  assert _content(out) == before
  assert "other flags" in commands.refused(*asked, "--held_out_by=name")


def test_row_groups_stay_together():
  class Blocks:
    blocks = np.array([3, 1, 4])

    def __len__(self):
      return 8

  order = writer.packing_order(Blocks(), 0)
  assert sorted(order.tolist()) == [*range(8)]
  group = np.repeat([0, 1, 2], [3, 1, 4])[order]
  assert np.count_nonzero(np.diff(group)) == 2


@pytest.mark.slow
def test_packing_twice_gives_the_same_bytes(photographs, tmp_path):
  """In other processes as well, whose hashes of texts differ."""
  _pack(photographs, tmp_path / "1" / "same", Encoding(15), workers=2)
  _pack(photographs, tmp_path / "2" / "same", Encoding(15), workers=2)
  first, second = (
    {
      str(path.relative_to(folder)): path.read_bytes()
      for path in folder.rglob("*")
      if path.is_file()
    }
    for folder in (tmp_path / "1", tmp_path / "2")
  )
  assert first == second and len(first) > 8


@pytest.fixture
def packed(photographs, tmp_path):
  _pack(photographs, tmp_path / "packed")
  return tmp_path / "packed"


def _change(path):
  """Changes four bytes of the second of three images of nearly equal size."""
  content = bytearray(path.read_bytes())
  middle = content.index(bytes(1000)) // 2
  content[middle : middle + 4] = bytes(4)
  path.write_bytes(content)


def test_verify_names_each_file_that_is_not_as_it_was(packed, capsys):
  verify(str(packed))
  said = capsys.readouterr().out
  files = len((packed / "sha256sums.txt").read_text().splitlines())
  assert said == f"{packed}: all {files} files are as they were packed.\n"
  assert (packed / "features.json").exists()
  first, second, *_ = sorted(packed.glob("*-train.array_record-*"))
  _change(first)
  second.rename(packed / "other.array_record")
  info = packed / "dataset_info.json"
  info.write_text(info.read_text().replace('"1.0.0"', '"1.0.1"'))
  with pytest.raises(ValueError, match=f"4 of {files + 1} files of .*packed: "):
    verify(str(packed))
  assert capsys.readouterr().out.splitlines() == [
    f"{info} differs from sha256sums.txt",
    f"{packed / 'other.array_record'} differs from sha256sums.txt",
    f"{first} differs from sha256sums.txt",
    f"{second} is missing",
  ]


def test_what_was_removed_is_packed_again(photographs, packed):
  before = _content(packed)
  (packed / "dataset_info.json").unlink()
  (packed / min(before)).unlink()
  _pack(photographs, packed)
  assert _content(packed) == before
  verify(str(packed))


def test_a_folder_without_sums_cannot_be_verified(photographs, packed):
  with pytest.raises(FileNotFoundError, match="sha256sums.txt"):
    verify(str(photographs))
  (packed / "sha256sums.txt").write_bytes(b"\xff\n")
  with pytest.raises(ValueError, match="files of .* are not as they were"):
    verify(str(packed))


@pytest.mark.slow
def test_the_command_verifies(packed):
  done = commands.run("vit_jax.pack", "--verify", str(packed))
  assert (done.returncode, done.stderr) == (0, "")
  (packed / "features.json").unlink()
  line = commands.refused("vit_jax.pack", "--verify", str(packed))
  assert "1 of " in line
  assert "nothing but --verify=OUT" in commands.refused(
    "vit_jax.pack", str(packed)
  )
  both = ("--encoding=raw", "--quality=90", str(packed), "out")
  assert "--quality is for JPEG" in commands.refused("vit_jax.pack", *both)


@pytest.mark.parametrize("damage", [_change, pathlib.Path.unlink])
def test_a_damaged_record_is_named_by_file_and_number(packed, damage):
  """The split begins at record 1 of the first file; each has three."""
  settings = DataSettings(dir=str(packed), train_split="train[1:]")
  whole = open_splits(settings).train.read([*range(11)])
  file = sorted(packed.glob("*-train.array_record-*"))[1]
  damage(file)
  source, messages = open_splits(settings).train, {}
  for index in range(11):
    try:
      assert source[index] == whole[index]
    except UnreadableImageError as error:
      messages[index] = str(error)
  records = [1] if damage is _change else [0, 1, 2]
  assert [*messages] == [2 + record for record in records]
  for record, message in zip(records, messages.values(), strict=True):
    assert message.startswith(f"{file}, record {record}, is damaged or mis")
    assert "\n" not in message
  with pytest.raises(UnreadableImageError, match="is damaged"):
    source.read([*range(11)])


@pytest.mark.parametrize(
  "content", ["{", "null", "{}", '{"name": 3}', "\udcff"]
)
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_a_damaged_description_is_named(packed, name, content):
  (packed / name).write_text(content, errors="surrogateescape")
  with pytest.raises(ValueError, match=f"^{packed / name} is damaged") as error:
    open_splits(DataSettings(dir=str(packed)))
  assert "\n" not in str(error.value)


def test_a_number_of_classes_beyond_belief(packed):
  path = packed / "features.json"
  path.write_text(path.read_text().replace('"2"', '"2000000000"'))
  with pytest.raises(ValueError, match="label counts 2,000,000,000 classes"):
    open_splits(DataSettings(dir=str(packed)))


SCRIPT = """
import multiprocessing, os, pathlib, sys, time
from vit_jax.pack import shards, writer
from vit_jax.pack.sources import open_sources
from vit_jax.runtime import command

def main(arguments):
  source, out = arguments
  encoding = shards.Encoding()
  writer.pack(open_sources(source), out, encoding, shard_bytes=6000, workers=2)

if __name__ == "__main__":
  command.run(main, takes="SOURCE OUT")
else:  # In a worker.
  def hang(*_):
    pathlib.Path(sys.argv[2] + "." + str(os.getpid())).touch()
    time.sleep(60)
  shards.Encoding.encode = hang
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_command(photographs, tmp_path, number):
  """Neither processes nor temporary files; Ctrl-C reaches the workers too."""
  (tmp_path / "script.py").write_text(SCRIPT)
  (tmp_path / "tmp").mkdir()
  command = (tmp_path / "script.py", photographs, tmp_path / "out")
  with subprocess.Popen(
    [sys.executable, *command],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path / "tmp")},
    start_new_session=True,
  ) as process:
    pids = _awaited(lambda: [*tmp_path.glob("out.*")], 2)
    if number == signal.SIGINT:
      os.killpg(process.pid, number)
    else:
      process.send_signal(number)
    _, errors = process.communicate(timeout=60)
  _awaited(lambda: [p for p in pids if not alive(int(p.suffix[1:]))], 2)
  told = process.returncode, errors
  stopped = 130, "error: stopped by Ctrl-C.\n"
  assert told == (stopped if number == signal.SIGINT else (-number, ""))
  assert not [*(tmp_path / "tmp").iterdir()]


def _awaited(found, count):
  """What is found, once there are so many."""
  end = time.monotonic() + 60
  while len(found()) < count and time.monotonic() < end:
    time.sleep(0.1)
  assert len(found()) == count
  return found()


def test_a_killed_worker_is_reported(photographs, tmp_path):
  packing = threading.Thread(target=_kill_workers, daemon=True)
  packing.start()
  with pytest.raises(
    ChildProcessError, match="exit code -9 .* fewer .*--workers"
  ):
    for n in range(1000):
      _pack(photographs, tmp_path / f"p{n}", workers=2)


def _kill_workers():
  while not (workers := multiprocessing.active_children()):
    time.sleep(0.01)
  for worker in workers:
    worker.kill()


def test_a_data_set_that_is_not_there(tmp_path):
  with pytest.raises(ValueError, match="holds no data set that TFDS prepared"):
    open_splits(DataSettings(dir=str(tmp_path)))


@pytest.mark.parametrize("name", ["/dev/zero", "../other", "gs://bucket/file"])
def test_verify_reads_nothing_outside_of_the_folder(tmp_path, capsys, name):
  (tmp_path / "sha256sums.txt").write_text(f"{'0' * 64}  {name}\n")
  with pytest.raises(ValueError, match="1 of 1 files"):
    verify(str(tmp_path))
  assert f"names {name}, which is not in" in capsys.readouterr().out
