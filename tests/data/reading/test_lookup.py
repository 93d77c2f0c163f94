"""Names that differ in spelling from those of the files in a folder."""

import os

import pytest

from vit_jax.data.reading.lookup import Lookup

ACCENTS = "the encoding of accents"
CASE = "upper and lower case"
ZEROS = "the zeros before a number"


def folder_of(tmp_path, *names):
  for name in names:
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb"):
      pass
  return Lookup(os.fsencode(tmp_path))


@pytest.mark.parametrize(
  "there, name, kind",
  [
    ("im0.jpg", "im0.JPG", CASE),
    ("Im0.jpg", "im0.jpg", CASE),
    ("IM0.JPG", "im0", CASE),
    ("caf\u00e9.jpg", "cafe\u0301.jpg", ACCENTS),
    ("cafe\u0301.jpg", "caf\u00e9.jpg", ACCENTS),
    ("000001.jpg", "1.jpg", ZEROS),
    ("1.jpg", "000001.jpg", ZEROS),
    ("000000391895.jpg", "391895", ZEROS),
    ("a_01_002.png", "a_1_2.png", ZEROS),
    ("a.png", "a.jpg", "the ending"),
    ("a.jpg.png", "a.jpg", "the ending"),
    ("Cafe\u0301.JPG", "caf\u00e9.jpg", f"{CASE} and {ACCENTS}"),
    ("0001.png", "1.jpg", f"{ZEROS} and the ending"),
    ("Deep/er/1.jpg", "deep\\er\\01.jpg", f"{CASE} and {ZEROS}"),
    ("deep/1.jpg", "Deep/1", CASE),
  ],
)
def test_the_only_similar_file_is_found(tmp_path, there, name, kind):
  lookup = folder_of(tmp_path, there, "other2.jpg")
  assert lookup.find(os.fsencode(name)) == os.fsencode(there)
  (line,) = lookup.lines()
  asked = f"differ in {kind} from those that are asked for (1, such as "
  assert line.startswith(f"names of files {asked}{there!r} for ")


@pytest.mark.parametrize(
  "there, name",
  [
    ("im0.jpg", "im0.jpg"),
    ("a, b.jpg", "a, b.jpg"),
    ("notes", "notes"),
    ("im0.jpg", "im0"),
    ("im0.JPG", "im0"),
    ("0.5.png", "0.5"),
    ("deep/a.jpg", "deep\\a.jpg"),
    ("deep\\a.jpg", "deep\\a.jpg"),
    ("deep/a.jpg", "./deep/../deep/a.jpg"),
  ],
)
def test_what_is_usual_is_not_said(tmp_path, there, name):
  lookup = folder_of(tmp_path, there)
  found = lookup.find(os.fsencode(name))
  assert found is not None and not lookup.lines()
  assert os.path.samefile(tmp_path / os.fsdecode(found), tmp_path / there)


@pytest.mark.parametrize(
  "there, name, found",
  [
    (["im0.jpg", "IM0.JPG"], "im0.jpg", "im0.jpg"),
    (["im0.JPG", "IM0.jpg"], "im0.jpg", None),
    (["im0.JPG", "im00.jpg"], "im0.jpg", "im0.JPG"),  # Case before zeros.
    (["01.jpg", "001.jpg"], "1.jpg", None),
    (["1.png", "01.jpg"], "1.jpg", None),
    (["a.png", "a.gif"], "a.jpg", None),
    (["A/1.jpg", "a/2.jpg"], "a/1.jpg", None),
    (["10.jpg"], "1.jpg", None),
    (["0.jpg"], "", None),
    (["im.txt", "._im.jpg"], "im.jpg", None),
    ([], "a\0b", None),
  ],
)
def test_of_several_none_is_taken(tmp_path, there, name, found):
  lookup = folder_of(tmp_path, *there)
  assert lookup.find(os.fsencode(name)) == (found and os.fsencode(found))


def test_names_without_an_ending_take_the_last_one(tmp_path):
  names = [f"{k}.{ending}" for k in "01" for ending in ("jpg", "png")]
  lookup = folder_of(tmp_path, "9.png", *names)
  assert lookup.find(b"9") == b"9.png"
  assert lookup.find(b"0") == b"0.png"
  (tmp_path / "1.png").unlink()
  assert lookup.find(b"1") == b"1.jpg"


def test_other_endings_are_those_of_other_files(tmp_path):
  folder_of(tmp_path, "a.jpg", "a.png", "B.TXT")
  lookup = Lookup(os.fsencode(tmp_path), (b".png", b".txt"))
  assert lookup.find(b"a") == b"a.png" and not lookup.lines()
  assert lookup.find(b"A.jpg") == b"a.png"
  assert lookup.find(b"b") == b"B.TXT"


def test_a_folder_is_listed_once_and_only_for_what_is_missing(
  tmp_path, monkeypatch
):
  lookup = folder_of(tmp_path, "a.jpg", "deep/b.jpg", "deep/c.jpg")
  listed = []
  scandir = os.scandir

  def counted(path):
    listed.append(path)
    return scandir(path)

  monkeypatch.setattr(os, "scandir", counted)
  assert lookup.find(b"a.jpg") and lookup.find(b"deep/b.jpg")
  assert not listed
  assert lookup.find(b"deep/B.jpg") and lookup.find(b"deep/C.jpg")
  assert lookup.find(b"deep/d.jpg") is None
  assert listed == [os.fsencode(tmp_path / "deep")]
  (line,) = lookup.lines()
  assert line == (
    "names of files differ in upper and lower case from those that are asked "
    "for (2, such as 'deep/b.jpg' for 'deep/B.jpg')."
  )


@pytest.mark.parametrize(
  "there, name, nearest",
  [
    (["flower_12.jpg", "tree.jpg"], "flower12.jpg", "flower_12.jpg"),
    (["01.jpg", "001.jpg"], "1.jpg", "001.jpg"),
    (["images/7.jpg"], "7.jpg", "images/7.jpg"),
    (["images/7.jpg"], "7", "images/7.jpg"),
    (["7.jpg", "8.jpg"], "images/7.jpg", "7.jpg"),
    (["a.jpg"], "zebra.jpg", None),
    (["a.jpg"], "no/such/zebra.jpg", None),
  ],
)
def test_the_nearest_file_is_named(tmp_path, there, name, nearest):
  lookup = folder_of(tmp_path, *there)
  assert lookup.find(os.fsencode(name)) is None
  assert lookup.nearest(os.fsencode(name)) == (nearest and os.fsencode(nearest))
