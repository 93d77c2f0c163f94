"""Runs tests of a changed copy of the tree, each time in a fork.

The libraries are imported once, before, and the package and its tests anew in
each fork, which costs a second instead of five.
"""

import ast
import contextlib
import dataclasses
import gc
import importlib
import inspect
import io
import itertools
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

_LEFT_OUT = (".git", ".venv", "build", "runs", "__pycache__", ".*_cache")
_ALONE = 60  # Seconds that a test may take alone, where it is not yet known.


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run of tests ended.

  Attributes:
    failed: The first test that failed, or the file that could not be read.
    late: The test that ran when the time was over.
    passed: How many seconds each test took that passed.
  """

  failed: str | None
  late: str | None
  passed: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Plan:
  """How tests are run.

  Attributes:
    slow: Whether to run the slow ones, or those that are not.
    limit: Seconds that they may take.
    wanted: The tests to run; none is all. A file is one that can be read.
    likely: The tests that have this word come first.
    stop: Whether to stop when one fails.
  """

  slow: bool
  limit: float
  wanted: Sequence[str] = ()
  likely: str = ""
  stop: bool = False


@contextlib.contextmanager
def copied(tree: pathlib.Path, commit: str | None) -> Iterator[pathlib.Path]:
  """A copy of a tree, or of a commit of it, that may be changed."""
  with tempfile.TemporaryDirectory(
    prefix="mutants-", ignore_cleanup_errors=True
  ) as folder:
    copy = pathlib.Path(folder).resolve() / "tree"
    if commit is None:
      ignored = shutil.ignore_patterns(*_LEFT_OUT)
      shutil.copytree(tree, copy, ignore=ignored, symlinks=True)
    else:
      command = ["git", "-C", str(tree), "archive", commit]
      packed = subprocess.run(command, capture_output=True, check=True).stdout
      with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(copy, filter="data")
    yield copy


class Trials:
  """Tests of one copy, as it is and changed.

  Attributes:
    tree: The copy.
    failing: Tests that fail without a change, which are left out.
  """

  def __init__(self, tree: pathlib.Path):
    self.tree = tree
    self.failing: set[str] = set()
    self._numbers = itertools.count(1)
    conftest = tree / "tests" / "conftest.py"
    if conftest.exists():  # It sets what JAX reads when it is imported.
      runpy.run_path(str(conftest), run_name="tests.conftest")
    _import_libraries(tree / "vit_jax")
    gc.freeze()

  def passing(self, tests: Iterable[str], slow: bool) -> dict[str, float]:
    """Seconds of those tests and files that pass without a change."""
    there = [test for test in tests if (self.tree / file_of(test)).exists()]
    if not there:
      return {}
    limit = _ALONE * len(there)
    return self._run(there, Plan(slow, limit, wanted=there)).passed

  def changed(
    self, module: str, source: str, tests: Sequence[str], plan: Plan
  ) -> Outcome:
    """Runs tests with another source of a module, until one fails."""
    path = self.tree / module
    kept, stat = path.read_bytes(), path.stat()
    try:
      path.write_text(source)
      # Compiled modules are told apart by size and whole seconds.
      date = 10**9 + next(self._numbers)
      os.utime(path, (date, date))
      return self._run(tests, dataclasses.replace(plan, stop=True))
    finally:
      path.write_bytes(kept)
      os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

  def _run(self, tests: Sequence[str], plan: Plan) -> Outcome:
    report = self.tree.parent / "report.jsonl"
    report.unlink(missing_ok=True)
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-m"]
    options += ["slow" if plan.slow else "not slow"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [f"--basetemp={self.tree.parent / 'tmp'}"]
    options += ["-x"] if plan.stop else ["--continue-on-collection-errors"]
    options += [f"--deselect={test}" for test in sorted(self.failing)]
    files = list(dict.fromkeys(map(file_of, tests)))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # No backend of JAX has started here.
      child = os.fork()
    if not child:
      _be_pytest(self.tree, [*options, *files], plan, report)
    status = _waited(child, plan.limit)
    return _read(report, status, files[0])


def file_of(test: str) -> str:
  """The file of a test."""
  return test.split("::")[0]


def _import_libraries(package: pathlib.Path) -> None:
  """Imports what the package imports at its modules' heads, but itself."""
  names = set()
  for path in package.rglob("*.py"):
    for node in ast.parse(path.read_text()).body:
      if isinstance(node, ast.Import):
        names.update(alias.name for alias in node.names)
      elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names.add(node.module)
  for name in sorted(names):
    if name.split(".")[0] != package.name:
      with contextlib.suppress(ImportError):
        importlib.import_module(name)


def _be_pytest(
  tree: pathlib.Path,
  arguments: list[str],
  plan: Plan,
  report: pathlib.Path,
) -> None:
  """Runs pytest in this process, which is a fork, and ends it."""
  status = 3
  try:
    os.setsid()
    os.chdir(tree)
    log = os.open(tree.parent / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    here = [p for p in sys.path if not (pathlib.Path(p) / "vit_jax").is_dir()]
    sys.path[:] = [str(tree), *here]
    os.environ["PYTHONPATH"] = str(tree)
    # Worker processes import the main module, which shall not be ours.
    sys.modules["__main__"] = types.ModuleType("__main__")
    for name in [name for name in sys.modules if name.startswith("scripts")]:
      del sys.modules[name]
    with report.open("w") as stream:
      status = int(pytest.main(arguments, [_Recorder(plan, stream)]))
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Recorder:
  """Writes what each test did, as a line of JSON."""

  def __init__(self, plan: Plan, stream: Any):
    self._plan, self._stream = plan, stream
    self._passed, self._seconds = True, 0.0

  def _write(self, **row: Any) -> None:
    print(json.dumps(row), file=self._stream, flush=True)

  @pytest.hookimpl(trylast=True)
  def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
    if wanted := set(self._plan.wanted):
      for file in wanted & {file_of(item.nodeid) for item in items}:
        self._write(passed=file, seconds=0)
      for test in wanted - {item.nodeid for item in items}:
        self._write(failed=test)  # A change took it away, or its name.
      items[:] = [item for item in items if item.nodeid in wanted]
    word = re.compile(rf"\b{re.escape(self._plan.likely)}\b")
    items.sort(key=lambda item: not word.search(_source(item)))

  def pytest_runtest_logstart(self, nodeid: str) -> None:
    self._passed, self._seconds = True, 0.0
    self._write(started=nodeid)

  def pytest_runtest_logreport(self, report: Any) -> None:
    self._seconds += report.duration
    self._passed = self._passed and report.passed
    if report.failed:
      self._write(failed=report.nodeid)
    if report.when == "teardown" and self._passed:
      self._write(passed=report.nodeid, seconds=round(self._seconds, 2))

  def pytest_collectreport(self, report: Any) -> None:
    if report.failed:
      self._write(failed=report.nodeid)


def _source(item: pytest.Item) -> str:
  """The text of a test, or "" if it has none."""
  try:
    return inspect.getsource(item.function)  # pyright: ignore[reportAttributeAccessIssue]
  except (AttributeError, OSError, TypeError):
    return ""


def _waited(child: int, limit: float) -> int | None:
  """Its exit status, or None if it had to be ended; its own children end."""
  end, status = time.monotonic() + limit, None
  try:
    while status is None and time.monotonic() < end:
      done, code = os.waitpid(child, os.WNOHANG)
      status = os.waitstatus_to_exitcode(code) if done else None
      time.sleep(0 if done else 0.05)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(child, signal.SIGKILL)
    if status is None:
      os.waitpid(child, 0)
  return status


def _read(report: pathlib.Path, status: int | None, file: str) -> Outcome:
  lines = report.read_text().splitlines() if report.exists() else []
  rows = []
  for line in lines:
    with contextlib.suppress(ValueError):  # The last may be cut off.
      rows.append(json.loads(line))
  failed = next((row["failed"] for row in rows if "failed" in row), None)
  started = [row["started"] for row in rows if "started" in row]
  passed = {row["passed"]: row["seconds"] for row in rows if "passed" in row}
  last = started[-1] if started else file
  if failed is None and status not in (None, 0, 5):
    failed = last if status < 0 else file  # It died, or read no test.
  late = last if status is None and failed is None else None
  return Outcome(failed, late, passed)
