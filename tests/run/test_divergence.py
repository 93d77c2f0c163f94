"""Whether a run has diverged, or has learned nothing, for every task."""

import re
import types

import numpy as np
import pytest

from tests import commands, runs
from vit_jax.run import loop
from vit_jax.run.settings import read
from vit_jax.run.summary import closing
from vit_jax.runtime.meter import DivergedError, why_diverged
from vit_jax.tasks.classification.evaluation import ClassificationOutcome
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.masked.task import MaskedOutcome
from vit_jax.tasks.multilabel.task import MultiLabelOutcome, MultiLabelTask
from vit_jax.tasks.outcome import Outcome
from vit_jax.tasks.regression.task import RegressionOutcome, RegressionTask
from vit_jax.tasks.segmentation.task import SegmentationTask

NAN = float("nan")


@pytest.mark.parametrize(
  "losses, skipped, first, why",
  [
    ([2.3, 3e9, NAN, NAN, NAN, NAN, NAN], 5, 2.3, "5 of its last 7 updates"),
    ([NAN], 1, NAN, "1 of its last 1 updates were not finite"),
    ([2.3, 40, 50, 60, 50], 0, 2.3, "began at 2.3 and ended at 50"),
    ([0.02, 12, 12], 0, 0.02, "began at 0.02 and ended at 12"),
    ([7000.0] * 10, 0, 693.0, "began at 693 and ended at 7000"),
    # Healthy: short, noisy, with a bad image, with a trained head, or back.
    ([2.3], 0, 2.3, None),
    ([2.3, 6.1, 9.0], 0, 2.3, None),
    ([2.3, NAN, 2.2], 1, 2.3, None),
    ([0.3, 0.8, 0.5, 0.6], 0, 0.002, None),
    ([2.1, 2.0, 1e5, 2.2, 2.0], 0, 2.3, None),
    ([5000.0] * 10, 0, 693.0, None),
    ([50.0] * 3, 0, None, None),
    ([], 0, 2.3, None),
  ],
)
def test_the_last_steps_tell_whether_a_run_diverged(
  losses, skipped, first, why
):
  flags = [loss != loss for loss in losses]
  assert sum(flags) == skipped
  found = why_diverged(losses, flags, first)
  assert (found is None) if why is None else (why in found)


def test_the_tasks_know_what_one_answer_for_all_scores():
  counts = {"count": np.array([3, 5, 2]), "correct": np.zeros(3)}
  outcome = ClassificationOutcome({}, counts, ("a", "b", "c"))
  assert outcome.chance == 0.5
  label = np.array([[1.0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 0, 0]])
  same = np.full(label.shape, 0.3)
  found = ("a", "b", "c"), np.arange(4), label, same, np.zeros(4), 0
  outcome = MultiLabelOutcome(MultiLabelTask(), *found)
  assert outcome.chance == pytest.approx((3 / 4 + 1 / 4) / 2)
  assert outcome.scores["map"] == pytest.approx(outcome.chance)
  spread = np.array([[1.0], [2.0], [6.0]])
  mean = np.full(spread.shape, spread.mean())
  found = ("a",), np.arange(3), spread, mean, np.zeros(3), 0
  outcome = RegressionOutcome(RegressionTask(), *found)
  assert outcome.chance == outcome.scores["r2"] == 0
  totals = dict(examples=1, correct=0, loss=1.0, skipped_images=0)
  colours = np.array([1, 3, 0])
  assert MaskedOutcome({**totals, "colours": colours}).chance == 0.75
  assert Outcome().chance is None


CLASSES = ClassificationTask()


def _closing(
  top1,
  chance,
  steps=40,
  count=500,
  probe=False,
  task=CLASSES,
  source=range(100),
  table=None,
  **more,
):
  """The lines after the first of a run on 100 images, 10 of them a step."""
  names = types.SimpleNamespace
  plan = names(
    task=task,
    evaluation=names(chance=chance),
    lengths=names(total=steps),
    settings=names(
      batch_size=10,
      transfer=names(probe_head=probe),
      data=names(labels_file=table),
    ),
    source=source,
  )
  evaluated = {
    "eval/loss": 2.3,
    "eval/top1": top1,
    "eval/examples": count,
    "eval/skipped_images": 0,
    **more,
  }
  ended = closing(plan, evaluated, 1.0, None, diverged=True).splitlines()
  assert ended == ["Ended in 0:01."]
  return closing(plan, evaluated, 1.0, None).splitlines()[1:]


class _Ages(list):
  class_names = tuple(map(str, range(20, 40)))


@pytest.mark.parametrize("table", [None, "ages.csv"])
def test_numbers_taken_for_classes_are_the_cause_that_is_named(table):
  """Class folders with such names are no numbers of a table."""
  source = _Ages(range(100))
  line = _closing(0.1, 0.103, source=source, table=table)[-1]
  advice = "The labels are whole numbers and taken for classes; "
  advice += "--config.data.task=regression learns them as numbers."
  assert line.endswith(advice) == (table is not None)
  assert ("Train longer" in line) == (table is None)


@pytest.mark.parametrize(
  "top1, chance, steps, said",
  [
    (0.1, 0.103, 40, "top-1 10.00% is no better than one answer .* .10.30%.: "),
    (0.12, 0.103, 40, "top-1 12.00% is hardly .* .10.30%.: that may be chance"),
    # scipy.stats.binomtest(k, 500, 0.103, "greater"): 0.060 and 0.047.
    (0.126, 0.103, 40, "top-1 12.60% is hardly "),
    (0.128, 0.103, 40, None),
    (0.5, 0.103, 40, None),
    (0.1, None, 40, None),
    (0.1, 0.103, 9, None),  # Less than an epoch.
    (NAN, 0.103, 40, None),
  ],
)
def test_a_run_that_learned_nothing_gets_a_hint(top1, chance, steps, said):
  lines = _closing(top1, chance, steps)
  hints = [line for line in lines if "find_lr suggests." in line]
  assert len(hints) == (said is not None)
  if said:
    assert re.match(said, hints[0])


def test_few_examples_get_no_verdict_but_an_interval():
  """Wilson's interval of 5 of 8 is 30.6 to 86.3 %."""
  (line,) = _closing(0.625, 0.625, count=8)
  assert line == (
    "top-1 62% (95 % interval 31 to 86 %) on 8 evaluated images: as these are "
    "fewer than 50, go by the interval rather than by the share."
  )


@pytest.mark.parametrize(
  "task, key, shown",
  [
    (RegressionTask(), "r2", "R2 -0.0300"),
    (MultiLabelTask(), "map", "mAP -3.0"),
  ],
)
def test_numbers_and_labels_of_few_examples_get_no_verdict(task, key, shown):
  found = {f"eval/{key}": -0.03}
  (line,) = _closing(0, 0, count=4, task=task, **found)
  assert line.startswith(shown)
  assert " on 4 evaluated images, which are too few to judge by: " in line
  assert line.endswith("mean of their numbers.") == (key == "r2")
  (line,) = _closing(0, 0, count=50, task=task, **found)
  assert "nothing was learned. Train longer" in line


def test_pixels_of_few_examples_get_a_verdict():
  found = {"eval/mean_iou": 0.3}
  few, line = _closing(0, 0.3, count=4, task=SegmentationTask(), **found)
  assert few.endswith(
    " on 4 evaluated images, which are too few to judge by: fewer than 50."
  )
  assert "mean IoU 30.00% is no better than one answer for all" in line


def test_a_head_from_a_probe_is_not_told_to_train_longer():
  _, line = _closing(0.1, 0.103, probe=True)
  assert "Train longer" not in line and "more images of each class" in line


def test_a_run_that_diverged_has_an_exit_code_of_its_own():
  code = (
    "from vit_jax.runtime.meter import DivergedError\n"
    "from vit_jax.runtime import command\n"
    "def main(_):\n"
    "  raise DivergedError('the run has diverged.')\n"
    "command.run(main)"
  )
  done = commands.python("-c", code)
  assert (done.returncode, done.stderr) == (3, "error: the run has diverged.\n")


@pytest.mark.slow
def test_a_diverged_run_is_saved_and_says_so_every_time(
  data_dir, tmp_path, capsys
):
  config = runs.config(data_dir, total_steps=7)
  config.optimizer.update(peak_lr=1e3, warmup_steps=0)
  for _ in range(2):  # The second one takes no step.
    with pytest.raises(
      DivergedError, match="the run has diverged: .* Try a sm"
    ):
      loop.train(read(config), str(tmp_path))
    shown = capsys.readouterr().out
    assert "Ended in 0:" in shown and "Done in" not in shown
    assert (tmp_path / "checkpoints" / "7").is_dir()
  assert [row["step"] for row in runs.rows(tmp_path) if "train/diverged" in row]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_short_healthy_run_has_not_diverged(data_dir, tmp_path, steps):
  config = runs.config(data_dir, total_steps=steps)
  state, _ = loop.train(read(config), str(tmp_path))
  assert int(state.step) == steps
  assert not any("train/diverged" in row for row in runs.rows(tmp_path))
