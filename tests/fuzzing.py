"""Tools for tests that give readers damaged files, made by hypothesis.

Every reader of untrusted files gets files that were cut, that have flipped bits
or hostile headers. An ordinary run tries a few dozen of each, always the same
ones. VIT_JAX_FUZZ=1000 tries so many and prints how many were read.
"""

import atexit
import collections
import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SECONDS = 60  # No file here takes a hundredth of that, on any machine.
FACTOR = os.environ.get("VIT_JAX_FUZZ")
HUGE = (0, -1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 10**30)
TALLY: collections.Counter[tuple[str, str]] = collections.Counter()


def examples(ordinary: int) -> Callable:
  """Sets how many files a test tries, the same ones every time."""
  return settings(
    max_examples=int(FACTOR) if FACTOR else ordinary,
    derandomize=True,
    database=None,
    deadline=None,  # The time limit of `outcome` also ends code that hangs.
    suppress_health_check=list(HealthCheck),
  )


def print_tally() -> None:
  """Prints how many files of a long run were read and how many refused."""
  for target in sorted({target for target, _ in TALLY}):
    read, refused = TALLY[target, "read"], TALLY[target, "refused"]
    print(f"{target}: {read + refused} tried, {read} read, {refused} not")


if FACTOR:
  atexit.register(print_tally)


class HangError(BaseException):
  """A reader ran too long; no Exception, so that no reader can catch it."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
  """Interrupts code that takes too long, if the system has alarms."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def stop(*_: object) -> None:
    raise HangError(f"it took more than {SECONDS} seconds")

  before = signal.signal(signal.SIGALRM, stop)
  signal.setitimer(signal.ITIMER_REAL, SECONDS)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def outcome(target: str, load: Callable[[], object]) -> str:
  """ "read" or "refused"; fails on any other way for a loader to end."""
  try:
    with time_limit():
      load()
  except (ValueError, OSError) as error:
    message = str(error)
    assert message and message.isprintable(), message
    TALLY[target, "refused"] += 1
    return "refused"
  TALLY[target, "read"] += 1
  return "read"


def places(size: int) -> st.SearchStrategy[int]:
  """Offsets in a file; half of them where formats have their headers."""
  last = max(size - 1, 0)
  near = st.integers(0, min(last, 600))
  return st.one_of(near, near.map(lambda at: last - at), st.integers(0, last))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
  """A file with one to four kinds of damage."""
  raw = bytearray(whole)
  for _ in range(draw(st.integers(1, 4))):
    at = draw(places(len(raw)))
    stop = at + draw(st.integers(0, 64))
    kind = draw(
      st.sampled_from(["cut", "flip", "number", "set", "drop", "add"])
    )
    if kind == "cut":
      del raw[at:]
    elif kind == "flip" and raw:
      raw[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "number":
      width = draw(st.sampled_from([1, 2, 4, 8]))
      order = draw(st.sampled_from(["little", "big"]))
      number = draw(st.sampled_from(HUGE)) % (1 << 8 * width)
      raw[at : at + width] = number.to_bytes(width, order)
    elif kind == "set":
      raw[at:stop] = draw(st.binary(max_size=64))
    elif kind == "drop":
      del raw[at:stop]
    else:
      raw[at:at] = raw[draw(places(len(raw))) :][:64]
  return bytes(raw)


names = st.one_of(
  st.sampled_from(
    ["a", "", ".", "..", "../out", "/etc/out", "C:\\out", "a\nb"]
  ),
  st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)
numbers = st.one_of(
  st.sampled_from(HUGE), st.integers(), st.floats(), st.booleans()
)
rubbish = st.recursive(
  st.one_of(st.none(), numbers, names),
  lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3)
  ),
  max_leaves=6,
)


def paths_in(tree: Any, prefix: tuple = ()) -> list[tuple]:
  """The paths of keys to every part of a JSON value."""
  keys = list(tree) if isinstance(tree, dict) else []
  keys = range(len(tree)) if isinstance(tree, list) else keys
  below = (paths_in(tree[key], (*prefix, key)) for key in keys)
  return [*([prefix] if prefix else []), *(p for each in below for p in each)]


@st.composite
def distorted(draw: st.DrawFn, whole: dict) -> dict:
  """A JSON object with one to three of its parts replaced or taken away."""
  tree = json.loads(json.dumps(whole))
  for _ in range(draw(st.integers(1, 3))):
    if not (known := paths_in(tree)):
      break
    *above, key = draw(st.sampled_from(known))
    inner = tree
    for step in above:
      inner = inner[step]
    if draw(st.booleans()) and isinstance(inner, dict):
      del inner[key]
    else:
      inner[key] = draw(rubbish)
  return tree
