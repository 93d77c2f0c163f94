"""Slow tests that `.ci/run` leaves out, but for a tenth of them each day.

The one list of them is left_out.txt. `pytest -m slow --left-out=only` runs them
alone, as a job of the workflow does. `--left-out=3` runs the slow tests without
them, but with one tenth of them; ten numbers, 0 to 9, run all.
"""

import pathlib
import zlib

LIST = pathlib.Path(__file__).with_suffix(".txt")
CHOICES = ("only", *map(str, range(10)))


def names() -> set[str]:
  """Functions of tests, as `tests/test_x.py::test_y`, without parameters."""
  lines = LIST.read_text().splitlines()
  return {line for line in lines if line and not line.startswith("#")}


def is_run(test: str, choice: str, listed: set[str]) -> bool:
  """Whether the test with this id, perhaps with [parameters], is run."""
  if test.partition("[")[0] not in listed:
    return choice != "only"
  return choice == "only" or zlib.crc32(test.encode()) % 10 == int(choice)


def pytest_addoption(parser):
  text = (
    "only: what tests/left_out.txt lists; 0 to 9: all but nine tenths of it"
  )
  parser.addoption("--left-out", choices=CHOICES, help=text)


def pytest_collection_modifyitems(config, items):
  if (choice := config.getoption("--left-out")) is None:
    return
  listed, kept, dropped = names(), [], []
  for item in items:
    run = is_run(item.nodeid, choice, listed)
    (kept if run else dropped).append(item)
  config.hook.pytest_deselected(items=dropped)
  items[:] = kept
