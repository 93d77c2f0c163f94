"""Tables of rows: CSV files that grow, and Markdown."""

import csv
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any


def read(path: pathlib.Path | str) -> list[dict[str, str]]:
  """The rows of a CSV file; none if there is no such file."""
  path = pathlib.Path(path)
  if not path.exists():
    return []
  return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def write(
  path: pathlib.Path, names: Sequence[str], rows: Iterable[dict[str, Any]]
) -> None:
  """Writes a CSV file of these columns."""
  with path.open("w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def add(path: pathlib.Path, names: Sequence[str], row: dict[str, Any]) -> None:
  """Adds a row to a CSV file, to which other processes may add as well."""
  if not path.exists():
    write(path, names, [])
  with path.open("a", newline="", encoding="utf-8") as file:
    csv.DictWriter(file, names, lineterminator="\n").writerow(row)


def markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
  """The lines of a table in Markdown."""
  lines = [names, ["---"] * len(names), *rows]
  return [f"| {' | '.join(line)} |" for line in lines]
