"""Records which changes of the package its tests find, and checks it later.

python -m scripts.mutants --record [--sample 200] [--seed 0] [--commit C]
python -m scripts.mutants --check

--record draws changes (a comparison turned, a constant or a default changed, a
sign turned, a statement removed) from each folder in proportion to its lines,
makes them one at a time in a copy of the tree, and runs the tests that are
likely to notice: of the module's own files those that call the function first,
then other files that import the module; the fast ones, and the slow ones if no
fast one fails. Each result goes into tests/mutants.csv at once, so a stopped
run goes on where it was. --check tries again what was found, names what no
longer is, and exits with 1 if there is any. A change is named by its function
and text: lines may move, the function may move to another module, and where
the text is gone there is nothing to check.

Tests that fail without a change do not count. A trial may take four times as
long as its tests took without it and 30 seconds; one that takes longer counts
as found by the time limit. On two cores a change takes 5 to 60 seconds. It
needs Python 3.12, which tells at little cost who calls what.

Tools for this (mutmut, cosmic-ray) number the changes of a file or a function,
so that a list of theirs says nothing after the next edit, and run one command
for all of them. Here the name is the text, and the tests fit the change.
"""

import argparse
import collections
import csv
import dataclasses
import pathlib
import random
import sys
import time
from collections.abc import Iterable

from scripts.mutants import choice
from scripts.mutants.changes import Edit, Mutant, mutants_of, room, sample
from scripts.mutants.trials import Ran, Trials, copied

ROOT = pathlib.Path(__file__).parents[2]
FOUND = ("fast", "slow", "time limit")
NONE, NOT_FAST = "none", "not fast"
_SECONDS = {
  False: 60,
  True: 120,
}  # Of the tests for one change, by slow or not.
_FILE_SECONDS = {False: 300, True: 450}  # Of a file without a change.


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the list: a mutant, how it is found, and by which test."""

  mutant: Mutant
  found: str = ""
  test: str = ""


def read(path: pathlib.Path) -> list[Row]:
  """The rows of a list; none if there is no file."""
  if not path.exists():
    return []
  with path.open(newline="") as stream:
    lines = list(csv.DictReader(stream))
  rows = []
  for line in lines:
    found, test = line.pop("found"), line.pop("test")
    index = int(line.pop("index"))
    rows.append(Row(Mutant(**line, index=index), found, test))
  return rows


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
  """Writes a list, which takes the place of the one before at once."""
  draft = path.with_suffix(".part")
  names = [field.name for field in dataclasses.fields(Mutant)]
  with draft.open("w", newline="") as stream:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*names, "found", "test"])
    for row in rows:
      writer.writerow([*dataclasses.astuple(row.mutant), row.found, row.test])
  draft.replace(path)


def sources_of(tree: pathlib.Path) -> dict[str, str]:
  """The text of each module of the package."""
  paths = sorted(tree.glob("vit_jax/**/*.py"))
  return {str(path.relative_to(tree)): path.read_text() for path in paths}


class Places:
  """Where the mutants of a tree are."""

  def __init__(self, sources: dict[str, str]):
    self._sources = sources
    self._of_module: dict[str, dict[Mutant, Edit]] = {}
    self._by_text: dict[Mutant, list[Mutant]] = {}

  def find(self, mutant: Mutant) -> Mutant | None:
    """The mutant in this tree, which may be in another module; None: gone."""
    if mutant in self._of(mutant.module):
      return mutant
    if not self._by_text:
      for module in self._sources:
        for other in self._of(module):
          self._by_text.setdefault(_text(other), []).append(other)
    found = self._by_text.get(_text(mutant), [])
    return found[0] if len(found) == 1 else None

  def changed(self, mutant: Mutant) -> str:
    """The source of its module with the change."""
    edit = self._of(mutant.module)[mutant]
    return edit.of(self._sources[mutant.module])

  def _of(self, module: str) -> dict[Mutant, Edit]:
    if module not in self._of_module:
      source = self._sources.get(module, "")
      self._of_module[module] = mutants_of(module, source)
    return self._of_module[module]


def _text(mutant: Mutant) -> Mutant:
  """What stays of a name in another module or class."""
  function = mutant.function.split(".")[-1]
  return dataclasses.replace(mutant, module="", function=function)


class Finder:
  """Looks for tests that find a mutant."""

  def __init__(self, places: Places, trials: Trials):
    self._places, self._trials = places, trials

  def before(self, rows: list[Row]) -> dict[str, tuple[Ran, bool]]:
    """The recorded tests that pass without a change, and which are slow."""
    passing = {}
    for slow in (False, True):
      tests = dict.fromkeys(r.test for r in rows if (r.found == "slow") == slow)
      found = self._trials.passing(list(tests), slow)
      passing.update({test: (ran, slow) for test, ran in found.items()})
    return passing

  def again(
    self, row: Row, mutant: Mutant, before: dict[str, tuple[Ran, bool]]
  ) -> Row:
    """Tries what found it, then all that may find it."""
    if row.test in before:
      ran, slow = before[row.test]
      if (found := self.tried(mutant, {row.test: ran}, slow)) is not None:
        return found
    found = self.search(mutant, slow=False)
    return found if found.found in FOUND else self.search(mutant, slow=True)

  def tried(
    self, mutant: Mutant, tests: dict[str, Ran], slow: bool
  ) -> Row | None:
    """The row, if one of some tests finds it."""
    if not tests:
      return None
    changed = self._places.changed(mutant)
    outcome = self._trials.changed(mutant.module, changed, tests, slow)
    if outcome.failed:
      return Row(mutant, "slow" if slow else "fast", outcome.failed)
    return Row(mutant, "time limit", outcome.late) if outcome.late else None

  def search(self, mutant: Mutant, slow: bool) -> Row:
    """Runs the tests that may find it, the module's own before the others."""
    tree = self._trials.tree
    own = choice.mirrored(tree, mutant.module)
    reach = total = 0
    for files in (own, choice.naming(tree, mutant)):
      known: dict[str, Ran] = {}
      for file in files:
        if not slow or "mark.slow" in (tree / file).read_text():
          limit = _FILE_SECONDS[slow]
          known |= self._trials.baseline(file, slow, limit)
      tests = choice.tests_for(mutant, known, _SECONDS[slow])
      if (row := self.tried(mutant, tests, slow)) is not None:
        return row
      reach += sum(choice.reaches(mutant, ran) for ran in tests.values())
      total += len(tests)
    print(f"  {total} tests passed, of which {reach} call it", flush=True)
    return Row(mutant, NONE if slow else NOT_FAST)


def record(path: pathlib.Path, finder: Finder, end: float) -> None:
  """Tries what is not yet tried: first by the fast tests, then by the slow."""
  rows = read(path)
  for slow, open_ in ((False, ""), (True, NOT_FAST)):
    order = [i for i, row in enumerate(rows) if row.found == open_]
    random.Random(0).shuffle(order)  # All folders early, if it is stopped.
    for i in order:
      if time.monotonic() > end:
        print("the time is over; the same command goes on from here")
        return
      start = time.monotonic()
      rows[i] = finder.search(rows[i].mutant, slow)
      print(f"{time.monotonic() - start:.0f} s ", end="")
      _show(rows[i])
      write(path, rows)


def check(path: pathlib.Path, finder: Finder, places: Places) -> int:
  """Tries again what was found; returns the number that no longer is."""
  rows = read(path)
  now = {
    i: places.find(row.mutant)
    for i, row in enumerate(rows)
    if row.found in FOUND
  }
  lost, before = [], finder.before([rows[i] for i in now])
  for i, mutant in now.items():
    if mutant is None:
      print(f"gone: {rows[i].mutant}", flush=True)
      continue
    row = finder.again(rows[i], mutant, before)
    _show(row)
    if row.found in FOUND:
      rows[i] = row
      write(path, rows)
    else:
      lost.append(row.mutant)
  for mutant in lost:
    print(f"no longer found: {mutant}")
  return len(lost)


def _show(row: Row) -> None:
  one = row.mutant
  text = f"{one.module}:{one.function} {one.change or one.statement}"
  print(f"{row.found}: {text} {row.test}", flush=True)


def summary(rows: list[Row]) -> str:
  """How many are found, by what, of each room."""
  counts = collections.Counter((room(r.mutant.module), r.found) for r in rows)
  kinds = [*FOUND, NONE, NOT_FAST, ""]
  lines = [["room", *kinds[:-1], "not tried"]]
  for name in sorted({name for name, _ in counts}):
    lines.append([name, *(str(counts[name, kind]) for kind in kinds)])
  sums = [str(sum(counts[x] for x in counts if x[1] == k)) for k in kinds]
  lines.append(["all", *sums])
  return "\n".join(
    f"{name:14}" + "".join(f"{count:>12}" for count in row)
    for name, *row in lines
  )


def main() -> int:
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument("--record", action="store_true", help="Try what is new.")
  what.add_argument("--check", action="store_true", help="Try what was found.")
  parser.add_argument("--sample", type=int, default=200, metavar="N")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--tree", type=pathlib.Path, default=ROOT)
  parser.add_argument("--commit", help="Of the tree; else what its files hold.")
  parser.add_argument("--minutes", type=float, default=float("inf"))
  parser.add_argument(
    "--list", type=pathlib.Path, default=ROOT / "tests" / "mutants.csv"
  )
  flags = parser.parse_args()
  if sys.version_info < (3, 12):
    parser.error("it needs Python 3.12 or later")
  end = time.monotonic() + 60 * flags.minutes
  path = flags.list.resolve()
  with copied(flags.tree.resolve(), flags.commit) as tree:
    sources = sources_of(tree)
    if flags.record and not path.exists():
      drawn = sample(sources, flags.sample, flags.seed)
      write(path, [Row(mutant) for mutant in drawn])
    places = Places(sources)
    finder = Finder(places, Trials(tree))
    if flags.record:
      record(path, finder, end)
    lost = check(path, finder, places) if flags.check else 0
  print(summary(read(path)))
  return 1 if lost else 0


if __name__ == "__main__":
  sys.exit(main())
