"""Slow tests that `.ci/run` leaves out, but for a tenth of them each day.

The one list of them is left_out.txt. `pytest -m slow --left-out=only` runs them
alone, as a job of the workflow does. `--left-out=3` runs the slow tests without
them, but with one tenth of them; ten numbers, 0 to 9, run all.
"""

import itertools
import pathlib
from collections.abc import Collection, Sequence

import pytest

LIST = pathlib.Path(__file__).with_suffix(".txt")
CHOICES = ("only", *map(str, range(10)))


def names() -> set[str]:
  """Functions of tests, as `tests/test_x.py::test_y`, without parameters.

  Or whole files: their tests share what takes long, and are run on one day.
  """
  lines = LIST.read_text().splitlines()
  return {line for line in lines if line and not line.startswith("#")}


def are_run(
  tests: Sequence[str], choice: str, listed: Collection[str]
) -> list[bool]:
  """Which tests are run, by their ids, perhaps with [parameters].

  The listed ones are dealt to ten days in turn, so each day has as many rows of
  a function as any other. A listed file counts as one.
  """

  def dealt_as(test: str) -> str | None:
    file, function = test.partition("::")[0], test.partition("[")[0]
    return file if file in listed else test if function in listed else None

  dealt = [dealt_as(test) for test in tests]
  if choice == "only":
    return [each is not None for each in dealt]
  in_turn = dict.fromkeys(each for each in dealt if each)
  days = {each: number % 10 for number, each in enumerate(in_turn, 1)}
  return [each is None or days[each] == int(choice) for each in dealt]


def pytest_addoption(parser):
  text = (
    "only: what tests/left_out.txt lists; 0 to 9: all but nine tenths of it"
  )
  parser.addoption("--left-out", choices=CHOICES, help=text)


@pytest.hookimpl(trylast=True)  # After `-m slow` has left out the fast ones.
def pytest_collection_modifyitems(config, items):
  if (choice := config.getoption("--left-out")) is None:
    return
  run = are_run([item.nodeid for item in items], choice, names())
  dropped = [not each for each in run]
  config.hook.pytest_deselected(items=[*itertools.compress(items, dropped)])
  items[:] = itertools.compress(items, run)
