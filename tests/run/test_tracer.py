"""Some steps are traced, and a trace that fails stops nothing."""

import secrets
import tempfile

import jax
import jax.numpy as jnp
import pytest

from vit_jax.run.tracer import Tracer
from vit_jax.workdir import bucket


def _trace(monkeypatch, tracer, **errors):
  """Runs ten steps; returns the tracer's calls of JAX and its errors."""
  calls = []

  def call(name):
    def called(*_):
      calls.append((name, step))
      if name in errors:
        raise errors[name]

    return called

  for name in ("start_trace", "stop_trace"):
    monkeypatch.setattr(jax.profiler, name, call(name))
  for step in range(1, 11):
    for at in (tracer.before, lambda s: tracer.after(s, jnp.ones(()))):
      try:
        at(step)
      except OSError as error:
        calls.append(str(error))
  return calls


@pytest.mark.parametrize(
  "begin, steps, calls",
  [
    (3, 4, [("start_trace", 3), ("stop_trace", 6)]),
    (8, 40, [("start_trace", 8), ("stop_trace", 10)]),
    (3, 0, []),
    (11, 2, []),
  ],
)
def test_the_steps_that_are_traced(monkeypatch, begin, steps, calls):
  assert _trace(monkeypatch, Tracer("x", begin, steps, 10)) == calls


def test_a_trace_that_cannot_be_written_is_an_oserror(monkeypatch):
  error = RuntimeError("cannot export")
  found = _trace(monkeypatch, Tracer("x", 3, 4, 10), stop_trace=error)
  assert found == [("start_trace", 3), ("stop_trace", 6), "cannot export"]
  found = _trace(monkeypatch, Tracer("x", 3, 4, 10), start_trace=error)
  assert found == [("start_trace", 3), "cannot export"]


@pytest.mark.slow
def test_a_trace_of_a_run_in_a_bucket_is_there_as_well(
  store, tmp_path, monkeypatch
):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  folder = f"gs://bucket/{secrets.token_hex(4)}/profile"
  tracer = Tracer(folder, 1, 1, 10)
  tracer.before(1)
  tracer.after(1, jax.jit(jnp.sin)(jnp.ones(3)))
  target = bucket.blob(folder)
  names = [b.name for b in target.bucket.list_blobs(prefix=target.name)]
  assert any(name.endswith(".xplane.pb") for name in names)
  assert [*tmp_path.iterdir()] == []
