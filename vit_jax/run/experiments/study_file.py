"""Opens a study: a configuration file with several rows.

A study is a configuration file with a table `ROWS`, from a row's name to the
values that set it apart, and `get_config(row)`. It may also have

- `FIGURES`: for each picture NAME.png the keywords of `study_figure`;
- `MEANS`: the columns `of`, `over` and `groups`. Rows that differ in `over` and
  `groups` alone are averaged: the mean of the metric `of` becomes a row for
  each value of `groups`, and another for all of them;
- `PAPER`: the paper's points, drawn below ours;
- `get_choices(row)`: the learning rates and the share of the training images on
  which `--select` tries them.
"""

import ast
import csv
import dataclasses
import io
import pathlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax.run.config_file import load_file, make_config, replaced_keys
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.files import read_regular
from vit_jax.runtime.settings import replaced
from vit_jax.workdir import bucket


@dataclasses.dataclass(frozen=True)
class Study:
  """A study's file and folder."""

  file: str
  module: types.ModuleType
  rows: Mapping[str, Mapping[str, Any]]  # For each row its values in the table.
  # For each row `FILE:ROW`, as `train --config` takes it.
  configs: Mapping[str, str]
  # For each row its settings, with the changes.
  settings: Mapping[str, Settings]
  changes: Mapping[str, Any]  # Keys and values that replace those of every row.
  workdir: epath.Path


def open_study(file: str, workdir: str, changes: Sequence[str]) -> Study:
  """Reads and checks all rows of a study.

  `changes` are texts such as "total_steps=100". Raises ValueError if a row has
  no settings or a name that cannot be a folder's, a change does not fit, or
  `file` names a row of the study as well.
  """
  bucket.check(workdir, writes=True)
  name, _, argument = file.partition(":")
  path, module = load_file(name)
  table = getattr(module, "ROWS", None)
  if table is None:  # The configuration of a single run.
    row = re.sub(r"[^\w.,+=-]", "_", argument) or path.stem
    rows, arguments = {row: {}}, {row: [argument] if argument else []}
  else:
    if argument:
      raise ValueError(f"{file}: give {name} and --index for a single row.")
    rows, arguments = table, {row: [row] for row in table}
    if odd := [row for row in rows if not re.fullmatch(r"[\w.,+=-]+", row)]:
      raise ValueError(
        f"{path}: the row {odd[0]!r} cannot name a folder: use letters, "
        "digits and any of . , + = - _."
      )
  pairs = [_change(text) for text in changes]
  new = dict(pairs)
  if twice := [key for key in new if [k for k, _ in pairs].count(key) > 1]:
    raise ValueError(f"--set={twice[0]} is given twice: drop one.")
  settings = {}
  for row, row_arguments in arguments.items():
    try:
      settings[row] = changed(
        read(make_config(path, module, *row_arguments)), new
      )
    except ValueError as error:
      raise ValueError(f"row {row}: {error}") from error
  configs = {row: ":".join([str(path), *g]) for row, g in arguments.items()}
  folder = epath.Path(workdir).expanduser()
  return Study(name, module, rows, configs, settings, new, folder)


def paper_table(file: str, name: str) -> list[dict[str, str]]:
  """The rows of `paper/NAME.csv` beside a study, a table of the paper."""
  path = pathlib.Path(file).with_name("paper") / f"{name}.csv"
  lines = io.StringIO(read_regular(path).decode(), newline="")
  return [*csv.DictReader(lines)]


def csv_text(
  rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None
) -> str:
  """Rows as CSV; by default with every column that any of the rows has."""
  every = dict.fromkeys(column for row in rows for column in row)
  text = io.StringIO()
  writer = csv.DictWriter(text, [*(columns or every)], lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def _change(text: str) -> tuple[str, Any]:
  """The key and the value of a `--set`; raises ValueError without a "="."""
  key, equals, value = text.partition("=")
  if not equals:
    raise ValueError(f"--set={text}: give KEY=VALUE, such as total_steps=100.")
  try:
    return key, ast.literal_eval(value)
  except (ValueError, SyntaxError):  # Text without quotes.
    return key, value


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
  """The settings with other values at some keys.

  Raises ValueError if there is no such key, or it cannot have such a value.
  """
  try:
    return replaced(settings, {**replaced_keys(changes), **changes})
  except KeyError as error:
    raise ValueError(f"--set: there is no key {error.args[0]}.") from error
