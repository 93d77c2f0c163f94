"""Which column of a table names the images, and which have the labels."""

import pytest

from tests.image_files import GOOD
from vit_jax.data.reading import recognise
from vit_jax.data.reading.column_roles import as_text, names_in
from vit_jax.data.reading.sources import open_splits
from vit_jax.data.reading.targets import NUMBERS
from vit_jax.tasks.settings import DataSettings

COUNT = 12


@pytest.fixture
def folder(tmp_path):
  for k in range(COUNT):
    (tmp_path / f"s{k:02}.png").write_bytes(GOOD)
  (tmp_path / "deep").mkdir()
  (tmp_path / "deep" / "x.png").write_bytes(GOOD)
  return tmp_path


def table(folder, head, row, name="t.csv"):
  """A file whose rows are made of the number of each image."""
  lines = [head, *(row(k) for k in range(COUNT))]
  path = folder / name
  path.write_text("\n".join(lines), "utf-8")
  return str(path)


def opened(path, **keys):
  """The splits as `vit_jax train` opens them, and what it recognised."""
  settings = DataSettings(labels_file=path, **keys)
  found = recognise.recognise_file(path, settings)
  task = "regression" if found.labels == NUMBERS else "classification"
  if found.columns:
    keys["label_columns"] = as_text(found.columns)
  settings = DataSettings(labels_file=path, task=task, **keys)
  return open_splits(settings), found


@pytest.mark.parametrize(
  "head, row, targets",
  [
    ("photo,price", "s{k:02}.png,{k}.5", ("price",)),
    ("price,Foto der Ware", "{k}.5,s{k:02}.png", ("price",)),
    ("code,kilo", "s{k:02},{k}.5", ("kilo",)),
    (",photo,price", "{k},s{k:02}.png,{k}.5", ("price",)),
    ("Unnamed: 0,photo,price", "{k},s{k:02}.png,{k}.5", ("price",)),
    ("id,picture,price", "{k},s{k:02}.png,{k}.5", ("price",)),
    ("photo;price", "s{k:02}.png;{k},5", ("price",)),
    ("photo\tprice", "s{k:02}.png\t{k}.5", ("price",)),
    ("photo,price in EUR", ".\\s{k:02}.png,{k}.5", ("price in EUR",)),
    ('photo,"price, net"', "s{k:02}.png,{k}.5", ("price, net",)),
    ("photo,age", "s{k:02}.png,2{k}", ("age",)),
    ("photo,w,h", "s{k:02}.png,{k}.5,{k}", ("w", "h")),
    ('photo,w,"h, m"', "s{k:02}.png,{k}.5,{k}", ("w", "h, m")),
  ],
)
def test_cells_tell_the_images_and_numbers(folder, head, row, targets):
  path = table(folder, head, lambda k: row.format(k=k))
  splits, found = opened(path)
  assert found.labels == NUMBERS and found.columns == targets
  assert splits.train.class_names == targets
  files = [*splits.train.ids(range(len(splits.train)))]
  places = [int(name.rsplit("s", 1)[1][:2]) for name in files]
  fraction = 0.5 if ".5" in row or ",5" in row else 0
  expected = [float(f"2{k}") if "2{k}" in row else k + fraction for k in places]
  labels = splits.train.labels(range(len(splits.train)))
  assert labels[:, 0].tolist() == expected
  named = [line for line in splits.warnings if "names the images" in line]
  assert len(named) == 1


def test_the_only_other_column_has_the_classes(folder):
  path = table(folder, "shot,kind", lambda k: f"s{k:02}.png,{'ab'[k % 2]}")
  splits, found = opened(path)
  assert splits.train.class_names == ("a", "b") and not found.why
  assert splits.warnings[0] == (
    "the column 'shot' names the images, and kind is the label; "
    "--config.data.file_column and --config.data.label_columns choose others."
  )


def test_names_decide_between_columns_that_both_fit(folder):
  """A column that is called file goes before others that name files."""
  row = "s{k:02}.png,masks/{k}.png,{k}.5".format
  path = table(folder, "file,mask,x", lambda k: row(k=k))
  splits, _ = opened(path, label_columns="x")
  assert len(splits.train) + len(splits.eval) == COUNT
  assert not [line for line in splits.warnings if "names the images" in line]
  path = table(
    folder, "before,after,x", lambda k: row(k=k).replace("masks/", "")
  )
  with pytest.raises(ValueError, match="several that may be it: after, x"):
    opened(path)
  row = "s{k:02}.png,s{k:02}.png,{k}.5".format
  path = table(folder, "before,after,x", lambda k: row(k=k))
  splits, _ = opened(path, label_columns="x")
  assert (
    "the columns before, after name images, and 'before' is taken; "
    "--config.data.file_column chooses another."
  ) in splits.warnings


@pytest.mark.parametrize(
  "head, row, message",
  [
    ("a,b", "x{k},y{k}", "no column that names images; its columns are a, b"),
    ("url,b", "http://a.b/{k}.png,1", "those in 'url' are addresses: download"),
    (
      "photo,kind,place",
      "s{k:02}.png,v{k},same",
      "label_columns='place'; a line then says .* --config.data.task choo",
    ),
    ("s00.png,cat", "s{k:02}.png,dog", "a first line such as file,label has"),
    ("s00,cat", "s{k:02},dog", "a first line such as file,label has"),
    ("photo,x", "s{k:02}.png,", "has x='', which is not a cla"),
    (
      "photo",
      "s{k:02}.png",
      "'label': its columns are photo, and none is left",
    ),
    ("photo,x", "C:\\me\\s{k:02}.png,{k}.5", "on another machine: write the n"),
    (
      "photo,x",
      "/no/s{k:02}.png,{k}.5",
      "no such file; if it is the path on an",
    ),
    (
      "photo,x",
      "s{k:02}.png,${k}.5",
      "12 classes, .* hold out: .* alone, as in 3.5.",
    ),
    (
      "photo,x",
      "s{k:02}.png,kind {k}",
      "12 classes, .*more images of each cla",
    ),
  ],
)
def test_what_cannot_be_told_is_said_in_one_line(folder, head, row, message):
  path = table(folder, head, lambda k: row.format(k=k))
  with pytest.raises(ValueError, match=message) as error:
    opened(path)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "cell, message",
  [
    ('"3,5"', "x='3,5', which is not a number.*: write a point for the frac"),
    ('"1,250.5"', "has x='1,250.5', .*, and no mark for thousands"),
    ("", "has x='', which is not a number such as 3.5: fill it in"),
  ],
)
def test_a_number_that_cannot_be_read_says_what_to_do(folder, cell, message):
  values = ["0.5"] * (COUNT - 1) + [cell]
  path = table(folder, "photo,x", lambda k: f"s{k:02}.png,{values[k]}")
  with pytest.raises(ValueError, match=message):
    opened(path)


def test_chosen_columns_are_numbers_or_classes_by_their_cells(folder):
  row = "s{k:02}.png,{k}.5,{kind},{k}".format
  path = table(
    folder, "photo,price,kind,n", lambda k: row(k=k, kind="ab"[k % 2])
  )
  for columns, classes in (("price", ("price",)), ("kind", ("a", "b"))):
    splits, _ = opened(path, label_columns=columns)
    assert splits.train.class_names == classes
  splits, found = opened(path, label_columns="n,price")
  assert splits.train.class_names == ("n", "price")
  assert found.labels == NUMBERS


def test_whole_numbers_that_are_classes_may_be_learned_as_numbers(folder):
  path = table(folder, "photo,stars", lambda k: f"s{k:02}.png,{k % 3}")
  splits, _ = opened(path)
  assert splits.train.class_names == ("0", "1", "2")
  line = "--config.data.task=regression learns them as numbers."
  assert [text for text in splits.warnings if text.endswith(line)]
  path = table(folder, "photo,stars", lambda k: f"s{k:02}.png,{k % 2}")
  assert not [t for t in opened(path)[0].warnings if t.endswith(line)]


def test_the_folder_of_absolute_paths_is_told(folder, tmp_path_factory):
  elsewhere = tmp_path_factory.mktemp("elsewhere")
  path = table(elsewhere, "photo,x", lambda k: f"{folder}/s{k:02}.png,{k}.5")
  with pytest.raises(ValueError, match=f"in --config.data.root={folder}, or"):
    opened(path)
  assert len(opened(path, root=str(folder))[0].train) == 10


def test_names_of_columns_survive_their_list():
  names = ["a", "b, c", 'd "e"', "f g"]
  assert names_in(as_text(names), names) == names
  assert names_in("b, c", ["b, c", "a"]) == ["b, c"]
  assert names_in("a, b", ["a", "b"]) == ["a", "b"]
