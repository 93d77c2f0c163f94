"""The table of docs/howto/data.md: what is made of archives as people have."""

import re
import shlex
from typing import Any

import pytest

from tests.data.reading.archives import ARCHIVES
from tests.data.reading.layouts import write
from tests.pages import ROOT
from vit_jax.data.reading.sources import open_splits
from vit_jax.tasks.settings import DataSettings
from vit_jax.tasks.table import LABELLED_TASKS

PAGE = (ROOT / "docs" / "howto" / "data.md").read_text("utf-8")
ROW = re.compile(r"^\| ([^|`]+?) \| `([^`]+)` \| (.+) \|$", re.MULTILINE)
SECTION = PAGE.split("### As archives have them\n")[1].split("\n## ")[0]
ROWS = [match.groups() for match in ROW.finditer(SECTION.replace(r"\|", "¦"))]


def settings_of(command, folder):
  """The settings of the data that `vit_jax train COMMAND` reads."""
  data, *words = shlex.split(command)
  place = folder / data
  fields: Any = {"root" if place.is_dir() else "labels_file": str(place)}
  for word in words:
    name, value = word.split("=", 1)
    if name == "--config" and value in LABELLED_TASKS:
      fields["task"] = value
    key = name.removeprefix("--config.data.")
    if key != name:
      fields[key] = str(folder / value) if key == "root" else value
  return DataSettings(**fields)


def test_every_archive_is_in_the_table():
  names = [name for name, _, _ in ROWS]
  assert sorted({*names}) == sorted(ARCHIVES)
  assert len(ROWS) == SECTION.count("\n| ") - 2  # Two lines are its head.


@pytest.mark.parametrize("name, command, outcome", ROWS, ids=str)
def test_what_comes_of_an_archive(tmp_path, name, command, outcome):
  write(tmp_path, ARCHIVES[name])
  settings = settings_of(command, tmp_path)
  (words,) = re.findall(r"`([^`]+)`", outcome)
  if outcome.startswith("refused"):
    with pytest.raises(ValueError, match=re.escape(words)) as error:
      open_splits(settings)
    assert "\n" not in str(error.value)
    return
  splits = open_splits(settings)
  assert words in f"{splits.found} ({', '.join(splits.train.class_names)})"
