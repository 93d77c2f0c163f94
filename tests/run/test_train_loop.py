"""What is due at a step, and when a run stops early."""

import json
import os
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import runs
from vit_jax.run import loop, train_loop
from vit_jax.run.evaluation import RunEvaluation
from vit_jax.run.settings import read
from vit_jax.runtime.stops import Interrupted
from vit_jax.tasks.scores import FoldScore
from vit_jax.workdir.checkpoint import Checkpoints


@pytest.mark.parametrize(
  "step, every, last, expected",
  [(4, 2, 9, True), (5, 2, 9, False), (9, 2, 9, True), (9, 0, 9, False)],
)
def test_due(step, every, last, expected):
  assert train_loop.due(step, every, last) is expected


def _evaluate_as(monkeypatch, scores):
  """Lets the evaluations of a run have these scores, one after the other."""
  remaining = iter(scores)

  def evaluate(*_):
    metrics = {
      "eval/loss": 1.0,
      "eval/top1": next(remaining),
      "eval/top5": 1.0,
      "eval/examples": 359,
      "eval/skipped_images": 0,
    }
    return metrics, {}

  monkeypatch.setattr(RunEvaluation, "__call__", evaluate)


@pytest.mark.parametrize(
  "scores, patience, expected",
  [
    ([0.1, 0.9, 0.2], 2, False),
    ([0.1, 0.9, 0.2, 0.9], 2, True),
    ([0.1, 0.9, 0.2, 0.91], 2, False),
    ([0.5, 0.5], 1, True),
    ([0.5], 1, False),
    ([0.5, 0.1, 0.1], 0, False),
  ],
)
def test_scores_stall_without_a_better_one(scores, patience, expected):
  assert train_loop.stalled(scores, patience) is expected


def test_a_digest_is_that_of_the_step_that_was_taken(monkeypatch):
  """Going on after step 3, with one every 2 steps and after the last, 7."""
  monkeypatch.setattr(
    train_loop, "jit_digest", lambda plan: lambda *given: (given[0], given[0])
  )
  written, digests = [], []
  plan = SimpleNamespace(
    settings=SimpleNamespace(digest_every=2), lengths=SimpleNamespace(total=7)
  )
  fake: Any = SimpleNamespace(
    plan=plan,
    _train_step=lambda state, batch: (state + 1, {}),
    _write_digests=written.append,
    _digests=digests,
  )
  step = train_loop.TrainLoop._with_digests(fake, 3)
  for state in range(3, 7):
    step(state, None)
  assert digests == [(4, 4), (6, 6), (7, 7)]  # The step, and the state's count.
  assert written == [2, 4, 5]


@pytest.mark.slow
def test_a_run_stops_early_and_stays_stopped(
  data_dir, tmp_path, monkeypatch, capsys
):
  _evaluate_as(monkeypatch, [0.1, 0.9, 0.2, 0.3])
  config = runs.config(data_dir, eval_every_steps=1, save_every_steps=0)
  config.early_stop_evaluations = 2
  for _ in range(2):  # The second one takes no step, and evaluates nothing.
    state, _ = loop.train(read(config), str(tmp_path))
    assert int(state.step) == 4
    assert "Stopped early at step 4: 2 eval" in capsys.readouterr().out
  checkpoints = Checkpoints(str(tmp_path), read_only=True)
  assert checkpoints.all_steps == [4]
  checkpoints.close()


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_the_folds_of_its_first_head(
  data_dir, tmp_path, capsys
):
  config = runs.config(data_dir)
  runs.stop(config, tmp_path, step=4)
  folds = FoldScore.of_shares([0.5, 0.6, 0.5, 0.6, 0.5], 1_438).metrics()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write(json.dumps({"step": 4, **folds}) + "\n")
  capsys.readouterr()
  loop.train(read(config), str(tmp_path))
  assert folds.items() <= runs.rows(tmp_path)[-1].items()
  assert "by five folds of the 1,438 training" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
def test_a_stop_writes_the_steps_since_the_last_row(data_dir, tmp_path):
  config = runs.config(data_dir, digest_every=1)

  def stop(step, *_):
    if step == 5:
      os.kill(os.getpid(), signal.SIGTERM)

  with pytest.raises(Interrupted, match="step 5 is saved"):
    loop.train(read(config), str(tmp_path), on_step=[stop])
  digests = (tmp_path / "digests.jsonl").read_text().splitlines()
  losses = {row["step"]: row["loss"] for row in map(json.loads, digests)}
  rows = runs.rows(tmp_path)
  assert [row["step"] for row in rows] == [3, 5]
  last = np.mean([losses[4], losses[5]])
  assert rows[1]["train/loss"] == pytest.approx(last, rel=1e-6)
  assert rows[1]["time"]["steps"] > rows[0]["time"]["steps"]
  assert rows[1]["time"]["saving"] > rows[0]["time"]["saving"]
