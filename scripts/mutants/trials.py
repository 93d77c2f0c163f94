"""Runs tests of a changed copy of the tree, each time in a fork.

The libraries are imported once, before, and the package and its tests anew in
each fork, which costs a second instead of five.
"""

import ast
import contextlib
import dataclasses
import gc
import importlib
import io
import itertools
import json
import multiprocessing.process
import os
import pathlib
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
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

_LEFT_OUT = (".git", ".venv", "build", "runs", "__pycache__", ".*_cache")
# Where code runs that starts processes, in which calls are not seen.
_STARTERS = (subprocess.__file__, multiprocessing.process.__file__)
STARTS = "starts processes"
_SLACK = 30  # Seconds that any trial may take besides four times its tests'.


@dataclasses.dataclass(frozen=True)
class Ran:
  """What a test did.

  Attributes:
    passed: Whether it passed; a skipped one did not.
    seconds: How long it took with its fixtures.
    reached: Functions of the package that it called, as `module:function`, and
      `STARTS` if it started processes.
  """

  passed: bool
  seconds: float
  reached: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run of tests ended.

  Attributes:
    failed: The first test that failed, or the file that could not be read.
    late: The test that ran when the time was over.
    tests: The tests that ended.
  """

  failed: str | None
  late: str | None
  tests: dict[str, Ran]


@contextlib.contextmanager
def copied(tree: pathlib.Path, commit: str | None) -> Iterator[pathlib.Path]:
  """A copy of a tree, or of a commit of it, that may be changed."""
  with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
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
  """

  def __init__(self, tree: pathlib.Path):
    self.tree = tree
    self._numbers = itertools.count(1)
    self._baselines: dict[tuple[str, bool], dict[str, Ran]] = {}
    conftest = tree / "tests" / "conftest.py"
    if conftest.exists():  # It sets what JAX reads when it is imported.
      runpy.run_path(str(conftest), run_name="tests.conftest")
    _import_libraries(tree / "vit_jax")
    gc.freeze()

  def baseline(self, file: str, slow: bool, limit: float) -> dict[str, Ran]:
    """The tests of a file that pass without a change, within seconds."""
    key = file, slow
    if key not in self._baselines:
      ran = self._run([file], slow, limit, stop=False).tests
      self._baselines[key] = {k: r for k, r in ran.items() if r.passed}
    return self._baselines[key]

  def passing(self, tests: Sequence[str], slow: bool) -> dict[str, Ran]:
    """Those of some tests that pass without a change."""
    there = [test for test in tests if (self.tree / file_of(test)).exists()]
    if not there:
      return {}
    ran = self._run(there, slow, 60.0 * len(there), stop=False).tests
    return {test: one for test, one in ran.items() if one.passed}

  def changed(
    self, module: str, source: str, tests: dict[str, Ran], slow: bool
  ) -> Outcome:
    """Runs tests with another source of a module, until one fails."""
    path = self.tree / module
    kept, stat = path.read_bytes(), path.stat()
    limit = _SLACK + 4 * sum(ran.seconds for ran in tests.values())
    try:
      path.write_text(source)
      # Compiled modules are told apart by size and whole seconds.
      date = 10**9 + next(self._numbers)
      os.utime(path, (date, date))
      return self._run(list(tests), slow, limit, stop=True)
    finally:
      path.write_bytes(kept)
      os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

  def _run(
    self, tests: Sequence[str], slow: bool, limit: float, stop: bool
  ) -> Outcome:
    report = self.tree.parent / "report.jsonl"
    report.unlink(missing_ok=True)
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-m"]
    options += ["slow" if slow else "not slow"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [f"--basetemp={self.tree.parent / 'tmp'}", *["-x"] * stop]
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # No backend of JAX has started here.
      child = os.fork()
    files = list(dict.fromkeys(map(file_of, tests)))
    wanted = [test for test in tests if test not in files]
    if not child:
      _be_pytest(self.tree, [*options, *files], wanted, report)
    status = _waited(child, limit)
    return _read(report, status, " ".join(files))


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
  wanted: list[str],
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
      status = int(pytest.main(arguments, [_Recorder(tree, wanted, stream)]))
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Recorder:
  """Writes what each test did, as a line of JSON."""

  def __init__(self, tree: pathlib.Path, wanted: list[str], stream: Any):
    self._wanted = {test: i for i, test in enumerate(wanted)}
    self._package, self._stream = f"{tree}/vit_jax/", stream
    self._prefix = len(f"{tree}/")
    self._reached: set[str] = set()
    self._passed, self._seconds = False, 0.0
    self._monitoring = watch = getattr(sys, "monitoring")  # noqa: B009
    watch.use_tool_id(watch.PROFILER_ID, "mutants")
    started = watch.events.PY_START
    watch.register_callback(watch.PROFILER_ID, started, self._entered)
    watch.set_events(watch.PROFILER_ID, started)

  def _entered(self, code: Any, offset: int) -> Any:
    if code.co_filename.startswith(self._package):
      function = code.co_qualname.replace("<locals>.", "")
      module = code.co_filename[self._prefix :]
      self._reached.add(f"{module}:{function.split('.<')[0]}")
    elif code.co_filename in _STARTERS:
      self._reached.add(STARTS)
    return self._monitoring.DISABLE  # Until the next test.

  def _write(self, **row: Any) -> None:
    print(json.dumps(row), file=self._stream, flush=True)

  @pytest.hookimpl(trylast=True)
  def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
    """Keeps the tests that are wanted, in their order; none names all."""
    if not self._wanted:
      return
    items[:] = [item for item in items if item.nodeid in self._wanted]
    items.sort(key=lambda item: self._wanted[item.nodeid])
    for test in self._wanted.keys() - {item.nodeid for item in items}:
      self._write(failed=test)  # A change took it away, or its name.

  def pytest_runtest_logstart(self, nodeid: str) -> None:
    self._reached.clear()
    self._passed, self._seconds = True, 0.0
    self._monitoring.restart_events()
    self._write(started=nodeid)

  def pytest_runtest_logreport(self, report: Any) -> None:
    self._seconds += report.duration
    self._passed = self._passed and report.passed
    if report.failed:
      self._write(failed=report.nodeid)
    if report.when == "teardown":
      row = dict(passed=self._passed, seconds=round(self._seconds, 2))
      self._write(test=report.nodeid, **row, reached=sorted(self._reached))

  def pytest_collectreport(self, report: Any) -> None:
    if report.failed:
      self._write(failed=report.nodeid)


def _waited(child: int, limit: float) -> int | None:
  """Its exit status, or None if it had to be ended; its own children end."""
  end, status = time.monotonic() + limit, None
  while time.monotonic() < end:
    done, code = os.waitpid(child, os.WNOHANG)
    if done:
      status = os.waitstatus_to_exitcode(code)
      break
    time.sleep(0.05)
  with contextlib.suppress(ProcessLookupError):
    os.killpg(child, signal.SIGKILL)
  if status is None:
    os.waitpid(child, 0)
  return status


def _read(report: pathlib.Path, status: int | None, files: str) -> Outcome:
  lines = report.read_text().splitlines() if report.exists() else []
  rows = []
  for line in lines:
    with contextlib.suppress(ValueError):  # The last may be cut off.
      rows.append(json.loads(line))
  failed = next((row["failed"] for row in rows if "failed" in row), None)
  started = [row["started"] for row in rows if "started" in row]
  tests = {
    row["test"]: Ran(row["passed"], row["seconds"], frozenset(row["reached"]))
    for row in rows
    if "test" in row
  }
  last = started[-1] if started else files
  if failed is None and status not in (None, 0, 5):
    failed = last if status < 0 else files  # It died, or found no such test.
  late = last if status is None else None
  return Outcome(failed, late, tests)
