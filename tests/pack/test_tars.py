"""Images in archives, found where they lie."""

import contextlib
import io
import json
import os
import pathlib
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests import image_files
from tests.fuzzing import damaged, examples, outcome
from tests.memory import bounded_memory
from vit_jax.data.example import UnreadableImageError
from vit_jax.pack.records import split_of
from vit_jax.pack.sources import open_sources


def _jpeg(level):
  return image_files.encode(Image.new("RGB", (12, 8), (level,) * 3), "JPEG")


def _tar(members):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w") as tar:
    for name, content in members:
      info = tarfile.TarInfo(name)
      info.size = len(content)
      tar.addfile(info, io.BytesIO(content))
  return file.getvalue()


def _all(source):
  return [
    (e["image"], e["label"], e["id"])
    for e in source.read([*range(len(source))])
  ]


def test_webdataset(tmp_path):
  images = [_jpeg(40 * i) for i in range(5)]
  first = [
    ("a/0.cls", b"2"),
    ("a/0.jpg", images[0]),
    ("a/1.jpg", images[1]),
    ("a/1.json", json.dumps({"label": 0, "caption": "x"}).encode()),
    ("a/1.txt", b"a caption"),
  ]
  second = [("2.JPEG", images[2]), ("2.cls", b"1\n")]
  third = [
    ("3.depth.png", b"no image of a sample"),
    ("3.jpg", images[3]),
    ("3.seg.png", b"no image of a sample"),
    ("3.cls", b"1"),
  ]
  (tmp_path / "train-0000.tar").write_bytes(_tar(first))
  (tmp_path / "train-0001.tar").write_bytes(_tar(second))
  (tmp_path / "val-0000.tar").write_bytes(_tar(third))
  splits = open_sources(str(tmp_path))
  assert [*splits] == ["train", "validation"]
  assert splits["train"].class_names == ("0", "1", "2")
  assert _all(splits["train"]) == [
    (images[0], 2, "a/0.jpg"),
    (images[1], 0, "a/1.jpg"),
    (images[2], 1, "2.JPEG"),
  ]
  assert _all(splits["validation"]) == [(images[3], 1, "3.jpg")]
  names = tmp_path / "names.txt"
  names.write_text("cat\ndog\nsea lion\n")
  named = open_sources(str(tmp_path), str(names))
  assert named["train"].class_names == ("cat", "dog", "sea lion")


_NEITHER = "0.jpg has no label and no caption: add a .cls or .txt file"


def _captions(source):
  return [e["captions"] for e in source.read([*range(len(source))])]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ({"0.txt": b"a cat\n"}, ["a cat"]),
    ({"0.json": b'{"caption": "a cat", "width": 3}'}, ["a cat"]),
    ({"0.json": b'{"label": 2, "captions": ["a", "b"]}'}, ["a", "b"]),
    ({"0.txt": b"a", "0.json": b'{"text": ["b", "c"]}'}, ["b", "c"]),
    ({"0.txt": "\ufeffna\u00eff".encode(), "0.json": b"{}"}, ["na\u00eff"]),
  ],
)
@pytest.mark.parametrize("labelled", [True, False])
def test_captions(tmp_path, text, expected, labelled):
  labels = [("0.cls", b"2")] if labelled else []
  more = [("1.jpg", b"y"), ("1.cls", b"0"), ("1.txt", b"d")]
  members = [("0.jpg", b"x"), *labels, *text.items(), *more]
  if not labelled:
    members = [m for m in members if m[0] != "1.cls"]
    members = [(n, c.replace(b'"label": 2, ', b"")) for n, c in members]
  (tmp_path / "train.tar").write_bytes(_tar(members))
  source = open_sources(str(tmp_path))["train"]
  assert _captions(source) == [expected, ["d"]]
  assert source.captions == (1, len(expected))
  assert source.class_names == (("0", "1", "2") if labelled else ())
  labels = [2, 0] if labelled else [0, 0]
  assert _all(source) == [
    (b"x", labels[0], "0.jpg"),
    (b"y", labels[1], "1.jpg"),
  ]


@pytest.mark.parametrize(
  ("content", "why"),
  [
    ({}, "a .txt file beside it, or a .json file with"),
    ({"1.txt": b" \n"}, "1.txt has an empty caption"),
    ({"1.txt": b"\xff"}, "1.txt is damaged"),
    ({"1.json": b'{"width": 3}'}, "1.json has no caption"),
    ({"1.json": b'{"caption": [3]}'}, "1.json has a caption that is not text"),
    (
      {"1.json": b'{"caption": "\\ud83d"}'},
      "1.json has a caption with half of a character",
    ),
    ({"1.json": b'{"caption": ["a", ""]}'}, "1.json has an empty caption"),
  ],
)
def test_images_without_captions(tmp_path, content, why, capsys):
  """Without labels they are refused; beside labels no captions are packed."""
  pair = [("0.jpg", b"x"), ("0.txt", b"a")]
  alone = [*pair, ("1.jpg", b"x"), *content.items()]
  (tmp_path / "train.tar").write_bytes(_tar(alone))
  if content:
    message = f"train.tar: 1.jpg has no caption: {why}.$"
    with pytest.raises(ValueError, match=message):
      open_sources(str(tmp_path))
  labelled = [*pair, ("0.cls", b"1"), ("1.jpg", b"x"), ("1.cls", b"0")]
  (tmp_path / "train.tar").write_bytes(_tar([*labelled, *content.items()]))
  source = open_sources(str(tmp_path))["train"]
  assert source.captions is None and "captions" not in source[0]
  said = capsys.readouterr().err
  assert f"1.jpg has no caption: {why}" in said
  assert said.endswith(" The captions of the others are left out.\n")


@pytest.mark.parametrize(
  ("names", "samples"),
  [
    # As WebDataset reads them, up to the first dot.
    (("0.seg.png", "0.cls=1"), {"0.seg.png": 1}),
    (("0.cls=1", "0.seg.png", "0.depth.png", "0.png"), {"0.png": 1}),
    (("0.png", "0.cls=1", "0.other.cls=0", "0.seg.json"), {"0.png": 1}),
    # With dots in the names.
    (
      ("a.b/0.1.png", "a.b/0.1.cls=1", "a.b/0.2.cls=0", "a.b/0.2.png"),
      {"a.b/0.1.png": 1, "a.b/0.2.png": 0},
    ),
    (
      ("0.1.png", "0.2.png", "0.1.cls=1", "0.2.cls=0"),
      {"0.1.png": 1, "0.2.png": 0},
    ),
    (("0.1.seg.png", "0.1.png", "0.1.cls=1"), {"0.1.png": 1}),
  ],
)  # fmt: skip
def test_dots_in_names(tmp_path, names, samples):
  members = [name.partition("=")[::2] for name in names]
  content = [(name, text.encode() or name.encode()) for name, text in members]
  (tmp_path / "train-0.tar").write_bytes(_tar(content))
  found = _all(open_sources(str(tmp_path))["train"])
  assert found == [(n.encode(), label, n) for n, label in samples.items()]


def test_an_archive_of_dotted_names(tmp_path):
  path = pathlib.Path(__file__).with_name("dotted_stems.tar")
  (tmp_path / "train.tar").write_bytes(path.read_bytes())
  source = open_sources(str(tmp_path))["train"]
  names = [f"a/22.0/{k}.1.png" for k in range(4)]
  assert [name for _, _, name in _all(source)] == names
  with tarfile.open(path) as tar:
    files = [tar.extractfile(f"a/22.0/{k}.1.cls") for k in range(4)]
    wanted = [int(file.read()) for file in files if file]
  assert [label for _, label, _ in _all(source)] == wanted
  assert len(source.class_names) == 2


@pytest.mark.parametrize(
  ("members", "message"),
  [
    ([("0.jpg", b"x")], _NEITHER),
    ([("0.jpg", b"x"), ("0.cls", b"-1")], "0.cls must hold the number of a"),
    ([("0.jpg", b"x"), ("0.cls", b"cat")], "0.cls must hold the number of a"),
    ([("0.jpg", b"x"), ("0.json", b'{"label": 1.5}')], "0.json must hold"),
    ([("0.jpg", b"x"), ("0.json", b'{"cls": Infinity}')], "0.json must hold"),
    ([("0.jpg", b"x"), ("0.cls", b"[" * 10**6)], "0.cls must hold the number"),
    ([("0.jpg", b"x"), ("0.cls", b"999999999999")], "from 0 to 2\\*\\*31 - 1"),
    (
      [("0.jpg", b"x"), ("0.cls", b"2000000000")],
      "counts 2,000,000,001 classes, and there are 1 images",
    ),
    ([("0.jpg", b"x"), ("0.json", b"[1]")], "0.json must hold the number"),
    ([("0.jpg", b"x"), ("0.png", b"y"), ("0.cls", b"1")], "0.png are images"),
    (
      [("0.png", b"x"), ("0.cls", b"1"), ("0.1.png", b"y"), ("0.1.cls", b"0")],
      "0.1.png may belong to 0.1.cls or to the label of 0, ",
    ),
    ([("0.1.png", b"x"), ("0.2.cls", b"1")], "0.1.png has no label and no"),
    ([("readme.txt", b"x")], "holds no images"),
    (
      [
        ("0.jpg", b"x"),
        ("0.txt", b"a"),
        ("0.cls", b"1"),
        ("1.jpg", b"x"),
        ("1.txt", b"a"),
      ],
      "1.jpg has no label: a .cls file besi",
    ),
  ],
)
def test_samples_that_are_refused(tmp_path, members, message):
  (tmp_path / "train-0.tar").write_bytes(_tar(members))
  with pytest.raises(ValueError, match=message):
    open_sources(str(tmp_path))


def test_by_products_of_macos_are_left_out(tmp_path, capsys):
  """A Mac's tar writes attributes as ._x, and its .zip files __MACOSX."""
  members = [("./.DS_Store", b"Bud1"), (".Trash/9.jpg", b"x")]
  for k in range(4):
    of_image = [(f"./{k}.jpg", bytes([k])), (f"./{k}.cls", b"%d" % (k % 2))]
    hidden = [(n.replace("./", "./._"), b"Mac OS X") for n, _ in of_image]
    zipped = [(f"__MACOSX/{k}.jpg", b"Mac OS X")]
    members += [*hidden, *of_image, *zipped]
  (tmp_path / "x.tar").write_bytes(_tar(members))
  (tmp_path / "._x.tar").write_bytes(b"Mac OS X")
  source = open_sources(str(tmp_path))["train"]
  wanted = [(bytes([k]), k % 2, f"./{k}.jpg") for k in range(4)]
  assert _all(source) == wanted and source.class_names == ("0", "1")
  said = capsys.readouterr().err
  assert "as in folders: 9 images, such as " in said
  assert "x.tar: .Trash/9.jpg." in said


def test_by_products_in_imagenets_archives(tmp_path):
  inner = [_tar([("._1.JPEG", b"Mac"), (f"{k}.JPEG", b"x")]) for k in "01"]
  classes = [("n01.tar", inner[0]), ("n02.tar", inner[1]), ("._n1.tar", b"Mac")]
  (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(_tar(classes))
  source = open_sources(str(tmp_path))["train"]
  assert [name for _, _, name in _all(source)] == ["0.JPEG", "1.JPEG"]
  assert source.class_names == ("n01", "n02")


def _imagenet(folder):
  """ImageNet's form: a tar of tars, and a flat one."""
  images = {
    f"n0{k}_{i}.JPEG": _jpeg(60 * k + 9 * i) for k in (1, 2, 3) for i in (0, 1)
  }
  inner = {
    f"n0{k}.tar": _tar([m for m in images.items() if m[0].startswith(f"n0{k}")])
    for k in (2, 3, 1)  # In no order.
  }
  (folder / "ILSVRC2012_img_train.tar").write_bytes(_tar(inner.items()))
  val = {f"ILSVRC2012_val_0000000{i}.JPEG": _jpeg(7 * i) for i in (2, 1, 3)}
  (folder / "ILSVRC2012_img_val.tar").write_bytes(_tar(val.items()))
  return images, val


def test_imagenets_own_archives(tmp_path):
  images, val = _imagenet(tmp_path)
  labels = tmp_path / "labels.txt"
  labels.write_text("n03\nn01\nn02\n")
  splits = open_sources(str(tmp_path), str(labels))
  assert splits["train"].class_names == ("n01", "n02", "n03")
  expected = {(images[n], int(n[2]) - 1, n) for n in images}
  assert {*_all(splits["train"])} == expected
  names = sorted(val)
  assert _all(splits["validation"]) == [
    (val[names[0]], 2, names[0]),
    (val[names[1]], 0, names[1]),
    (val[names[2]], 1, names[2]),
  ]


@pytest.mark.parametrize(
  ("labels", "message"),
  [
    (None, "has no labels in it: give --labels=FILE"),
    ("n01\nn02\n", "has 2 lines, and ILSVRC2012_img_val.tar 3 images"),
    # Numbers of the development kit stand for other classes than ours.
    ("1\n2\n3\n", "names the class '1'; a line must be a WordNet id"),
  ],
)
def test_validation_labels_that_are_refused(tmp_path, labels, message):
  _imagenet(tmp_path)
  file = None
  if labels:
    (tmp_path / "labels.txt").write_text(labels)
    file = str(tmp_path / "labels.txt")
  with pytest.raises(ValueError, match=message):
    open_sources(str(tmp_path), file)


@pytest.mark.parametrize(
  ("name", "split"),
  [
    ("train-00000-of-00010.parquet", "train"),
    ("imagenet-000.tar", "train"),
    ("val_3.tar", "validation"),
    ("validation-00000.parquet", "validation"),
    ("valley-1.tar", "train"),
    ("test.parquet", "test"),
    ("testing-1.tar", "test"),
  ],
)
def test_the_split_that_a_file_belongs_to(name, split):
  assert split_of(name) == split


def _sparse_member():
  """GNU's header of a file with a hole, which claims 8 GB."""
  info = tarfile.TarInfo("a/0.jpg")
  info.type = tarfile.GNUTYPE_SPARSE
  header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
  header[386:398] = header[398:410] = b"00000000000\0"
  header[483:495] = b"77777777777\0"  # The size with its holes.
  header[148:156] = b" " * 8
  header[148:156] = b"%06o\0 " % sum(header[:512])
  return bytes(header)


def _long_name():
  """The header of a name that takes 8 GB."""
  info = tarfile.TarInfo("././@LongLink")
  info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 * 2**30 - 1
  return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
  "header, message",
  [
    (_sparse_member(), "a/0.jpg is stored without its zeros"),
    (_long_name(), "a header takes 8,589,934,592 bytes"),
  ],
)
def test_an_archive_that_claims_gigabytes_is_refused(tmp_path, header, message):
  with (tmp_path / "train.tar").open("wb") as file:
    file.write(header)
    file.truncate(9 * 2**30)
  with bounded_memory(2**26), pytest.raises(ValueError, match=message):
    open_sources(str(tmp_path))


def test_an_image_of_gigabytes_is_unreadable(tmp_path):
  label = _tar([("0.cls", b"1")])[:1024]
  info = tarfile.TarInfo("0.jpg")
  info.size = 6 * 2**30
  with (tmp_path / "train.tar").open("wb") as file:
    file.write(label + info.tobuf(tarfile.GNU_FORMAT))
    file.truncate(7 * 2**30)
  source = open_sources(str(tmp_path))["train"]
  with (
    bounded_memory(2**24),
    pytest.raises(UnreadableImageError, match=r"0\.jpg: it has 6,442,450,944"),
  ):
    source[0]


def _samples(count):
  members = [(f"{k}.jpg", _jpeg(40 * k)) for k in range(count)]
  members += [(f"{k}.cls", b"%d" % (k % 2)) for k in range(count)]
  return _tar(sorted(members))


def _names_of_names():
  """Long names of long names, each of which a reader looks for the next by."""
  info = tarfile.TarInfo("././@LongLink")
  info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
  block = info.tobuf(tarfile.GNU_FORMAT) + b"a" + bytes(511)
  return block * 3000


def _of(content):
  return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
  "write, message",
  [
    (_of(b"no archive at all"), "train.tar is not an uncompressed .tar file"),
    (
      _of(_samples(4)[: 4 * 512 + 100]),
      "train.tar is damaged .*get it again",
    ),
    (
      _of(_names_of_names()),
      "train.tar is not an uncompressed .tar file .maximum recursion",
    ),
    (os.mkfifo, "a FIFO, not a regular file"),
  ],
)
def test_what_is_no_archive_is_named_in_one_line(tmp_path, write, message):
  write(tmp_path / "train.tar")
  with pytest.raises((ValueError, OSError), match=message):
    open_sources(str(tmp_path))


@examples(40)
@given(st.data())
def test_damaged_archives_end_in_one_line(folder, data):
  path = folder / "train.tar"
  path.write_bytes(data.draw(damaged(_samples(3))))

  def read():
    for source in open_sources(str(folder)).values():
      with contextlib.suppress(UnreadableImageError):
        source.read([*range(len(source))])

  outcome(".tar, damaged", read)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("damaged")
