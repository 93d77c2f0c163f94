"""Records which changes of the package its tests find, and checks it later.

python -m scripts.mutants --record [--sample 200] [--seed 0] [--commit C]
python -m scripts.mutants --check

--record draws changes (a comparison turned, a constant or a default changed, a
sign turned, a statement removed) from each folder in proportion to its lines,
makes them one at a time in a copy of the tree, and runs the tests that are
likely to notice: of the module's own files those that name the function first,
then two other files that import the module; the fast ones, and the slow ones if
no fast one fails. Each result goes into tests/mutants.csv at once, so a stopped
run goes on where it was. --check tries again what was found, names what no
longer is, and exits with 1 if there is any. A change is named by its function
and text: lines may move, the function may move to another module, and where
the text is gone there is nothing to check.

Tests that fail without a change do not count: those that found one are run
once more without it. A test that takes longer than four times its time and 30
seconds counts as finding the change, by its time limit.

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
from collections.abc import Iterable, Sequence

from scripts.mutants import choice
from scripts.mutants.changes import Edit, Mutant, mutants_of, room, sample
from scripts.mutants.trials import Plan, Trials, copied

ROOT = pathlib.Path(__file__).parents[2]
FOUND = ("fast", "slow", "fast time limit", "slow time limit")
# What is left for the module's own fast tests, for other files' and slow ones.
STAGES = ("", "not its own", "not fast")
NONE = "none"
_AT_ONCE = 25  # Mutants after which the tests are run without a change.
_SECONDS = {False: 240, True: 480}  # Of a run for one change, by slow or not.
_SLACK = 30


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the list: a mutant, how it is found, and by which test."""

  mutant: Mutant
  found: str = ""
  test: str = ""

  @property
  def slow(self) -> bool:
    """Whether a slow test finds it."""
    return self.found.startswith("slow")


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
    # Of several, one of the same class, or of the same module.
    for same in ("", "function", "module"):
      near = [m for m in found if not same or _alike(m, mutant, same)]
      if len(near) == 1:
        return near[0]
    return None

  def changed(self, mutant: Mutant) -> str:
    """The source of its module with the change."""
    edit = self._of(mutant.module)[mutant]
    return edit.of(self._sources[mutant.module])

  def _of(self, module: str) -> dict[Mutant, Edit]:
    if module not in self._of_module:
      source = self._sources.get(module, "")
      self._of_module[module] = mutants_of(module, source)
    return self._of_module[module]


def _alike(one: Mutant, other: Mutant, field: str) -> bool:
  return getattr(one, field) == getattr(other, field)


def _text(mutant: Mutant) -> Mutant:
  """What stays of a name in another module or class."""
  function = mutant.function.split(".")[-1]
  return dataclasses.replace(mutant, module="", function=function)


class Finder:
  """Looks for tests that find a mutant."""

  def __init__(self, places: Places, trials: Trials):
    self._places, self._trials = places, trials

  def passing(self, rows: Iterable[Row]) -> set[str]:
    """The recorded tests that pass without a change."""
    tests = {False: set[str](), True: set[str]()}
    for row in rows:
      tests[row.slow].add(row.test)
    runs = (self._trials.passing(sorted(t), slow) for slow, t in tests.items())
    return set[str]().union(*runs)

  def leave_out(self, test: str) -> None:
    """Has a test that fails without a change left out from now on."""
    self._trials.failing.add(test)

  def again(self, row: Row, mutant: Mutant, passing: set[str]) -> Row:
    """Tries what found it, then all that may find it."""
    if row.test in passing and "::" in row.test:
      plan = Plan(row.slow, _SECONDS[row.slow], wanted=[row.test])
      if (found := self._tried(mutant, [row.test], plan)) is not None:
        return found
    for stage in STAGES:
      found = self.search(mutant, stage)
      while found.found in FOUND and found.test not in self.passing([found]):
        self.leave_out(found.test)
        found = self.search(mutant, stage)
      if found.found in FOUND:
        return found
    return Row(mutant, NONE)

  def search(self, mutant: Mutant, stage: str) -> Row:
    """Runs the tests of a stage that may find it."""
    tree, slow = self._trials.tree, stage == STAGES[2]
    own, others = stage != STAGES[1], stage != STAGES[0]
    files = choice.mirrored(tree, mutant.module) if own else []
    files += choice.naming(tree, mutant) if others else []
    for file in files:
      if file in self._trials.failing:
        continue
      if slow and "mark.slow" not in (tree / file).read_text():
        continue
      likely = mutant.function.split(".")[-1]
      plan = Plan(slow, _SECONDS[slow], likely=likely)
      if (row := self._tried(mutant, [file], plan)) is not None:
        return row
    return Row(mutant, [*STAGES, NONE][STAGES.index(stage) + 1])

  def _tried(
    self, mutant: Mutant, tests: Sequence[str], plan: Plan
  ) -> Row | None:
    """The row, if one of some tests finds it."""
    changed = self._places.changed(mutant)
    outcome = self._trials.changed(mutant.module, changed, tests, plan)
    if outcome.late:
      return self._late(mutant, outcome.late, plan.slow)
    if outcome.failed:
      return Row(mutant, "slow" if plan.slow else "fast", outcome.failed)
    return None

  def _late(self, mutant: Mutant, test: str, slow: bool) -> Row | None:
    """The row, if the change makes a test take four times as long or fail."""
    seconds = self._trials.passing([test], slow).get(test)
    if seconds is None:
      return None
    plan = Plan(slow, _SLACK + 4 * seconds, wanted=[test])
    changed = self._places.changed(mutant)
    outcome = self._trials.changed(mutant.module, changed, [test], plan)
    if outcome.failed:
      return Row(mutant, "slow" if slow else "fast", outcome.failed)
    late = f"{'slow' if slow else 'fast'} time limit"
    return Row(mutant, late, test) if outcome.late else None


def record(path: pathlib.Path, finder: Finder, end: float) -> None:
  """Tries what is not yet tried, all by one stage before the next."""
  for stage in STAGES:
    while left := [i for i, r in enumerate(read(path)) if r.found == stage]:
      random.Random(0).shuffle(left)  # All folders early, if it is stopped.
      done = _try(path, left[:_AT_ONCE], finder, stage, end)
      _take_back(path, done, finder, stage)
      if time.monotonic() > end:
        print("the time is over; the same command goes on from here")
        return


def _try(
  path: pathlib.Path, left: list[int], finder: Finder, stage: str, end: float
) -> list[int]:
  """Searches for some rows and writes them; returns those it had time for."""
  done, rows = list[int](), read(path)
  for i in left:
    if time.monotonic() > end:
      break
    start = time.monotonic()
    rows[i] = finder.search(rows[i].mutant, stage)
    print(f"{time.monotonic() - start:.0f} s ", end="")
    _show(rows[i])
    write(path, rows)
    done.append(i)
  return done


def _take_back(
  path: pathlib.Path, new: list[int], finder: Finder, stage: str
) -> None:
  """Reopens rows of which the test fails without the change, too."""
  rows = read(path)
  found = [i for i in new if rows[i].found in FOUND]
  passing = finder.passing(rows[i] for i in found)
  for i in found:
    if rows[i].test not in passing:
      print(f"fails without a change: {rows[i].test}", flush=True)
      finder.leave_out(rows[i].test)
      rows[i] = Row(rows[i].mutant, stage)
  write(path, rows)


def check(path: pathlib.Path, finder: Finder, places: Places) -> int:
  """Tries again what was found; returns the number that no longer is."""
  rows, lost = read(path), []
  passing = finder.passing(row for row in rows if row.found in FOUND)
  for i, row in enumerate(rows):
    if row.found not in FOUND:
      continue
    mutant = places.find(row.mutant)
    if mutant is None:
      print(f"gone: {row.mutant}", flush=True)
      continue
    now = finder.again(row, mutant, passing)
    _show(now)
    if now.found in FOUND:
      rows[i] = now
      write(path, rows)
    else:
      lost.append(mutant)
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
  kinds = [*FOUND, NONE, *STAGES]
  lines = [["room", *(kind or "not tried" for kind in kinds)]]
  for name in sorted({name for name, _ in counts}):
    lines.append([name, *(str(counts[name, kind]) for kind in kinds)])
  sums = [str(sum(counts[x] for x in counts if x[1] == k)) for k in kinds]
  lines.append(["all", *sums])
  return "\n".join(
    f"{name:14}" + "".join(f"{count:>17}" for count in row)
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
