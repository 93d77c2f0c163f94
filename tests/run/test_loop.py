"""Whole runs on the digits: what they write, and that they resume exactly."""

import contextlib
import csv
import json
import re
import shutil
from unittest.mock import ANY

import jax
import numpy as np
import pytest

from tests import runs
from tests.models.test_extended_vit import Halved
from vit_jax import load_pretrained
from vit_jax.models.parts import unstack
from vit_jax.run import loop, plan
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.experiments.replay import verify
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.run.start import first_state
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import replaced
from vit_jax.runtime.stops import Interrupted, StopSignal
from vit_jax.training.step import make_train_step
from vit_jax.workdir import orbax_files
from vit_jax.workdir.checkpoint import Checkpoints


def evaluations(workdir):
  """The rows of a run that have what was measured of held-out examples."""
  return [row for row in runs.rows(workdir) if "eval/loss" in row]


@pytest.mark.slow
def test_a_resumed_run_ends_bit_identical(whole_run, data_dir, tmp_path):
  """Augmentation, dropout, Mixup, accumulation and averaging are all on."""
  config = runs.config(data_dir, eval_per_class=True)
  runs.stop(config, tmp_path, 8)
  resumed, again = loop.train(read(config), str(tmp_path))

  assert int(resumed.step) == 12
  assert runs.identical(whole_run.state, jax.device_get(resumed))
  assert whole_run.evaluated == again
  untimed = [
    [
      {k: v for k, v in row.items() if not re.search("per_second|time", k)}
      for row in runs.rows(folder)
      if row["step"] in (6, 12) and "eval/loss" in row
    ]
    for folder in (whole_run.folder, tmp_path)
  ]
  assert untimed[0] == untimed[1]
  steps = [row["step"] for row in runs.rows(tmp_path)]
  assert steps == sorted(steps)


@pytest.mark.slow
@pytest.mark.parametrize("step, evaluated_before", [(6, []), (12, [6])])
def test_an_evaluation_that_a_stop_prevented_is_made_up_for(
  whole_run, data_dir, tmp_path, monkeypatch, step, evaluated_before
):
  """The run is told to stop after a step, before its evaluation."""
  config = runs.config(data_dir, eval_per_class=True)
  with monkeypatch.context() as patch, pytest.raises(Interrupted):
    patch.setattr(StopSignal, "reached", lambda stop, now: now == step)
    loop.train(read(config), str(tmp_path))
  assert [row["step"] for row in evaluations(tmp_path)] == evaluated_before
  _, evaluated = loop.train(read(config), str(tmp_path))
  assert evaluated == whole_run.evaluated
  found, expected = (
    [(row["step"], row["eval/loss"], row["eval/top1"]) for row in rows]
    for rows in map(evaluations, (tmp_path, whole_run.folder))
  )
  assert found == expected
  assert [row[0] for row in found] == [6, 12]


@pytest.mark.slow
def test_a_run_goes_on_with_scanned_blocks(data_dir, tmp_path):
  """The new checkpoints are scanned, but every reader sees them unrolled."""
  config = runs.config(data_dir)
  # With scanned blocks, dropout draws other random numbers.
  config.model.update(num_layers=2, dropout_rate=0.0)
  whole, _ = loop.train(read(config), str(tmp_path / "whole"))
  runs.stop(config, tmp_path / "stopped", 8)
  config.model.update(scan=True, remat="dots")
  resumed, _ = loop.train(read(config), str(tmp_path / "stopped"))
  assert "blocks" in resumed.params
  found = unstack(jax.device_get(resumed.averaged_params))
  for a, b in zip(
    jax.tree.leaves(jax.device_get(whole.averaged_params)),
    jax.tree.leaves({key: found[key] for key in whole.params}),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
  model, params = load_pretrained(str(tmp_path / "stopped"))
  assert not model.scan
  assert runs.identical(params, {key: found[key] for key in params})
  # Each of the two starts is replayed, from its own layout.
  assert verify(str(tmp_path / "stopped"), "5:8")
  assert verify(str(tmp_path / "stopped"), "9:12")


def test_the_step_is_compiled_beside_the_batches_and_its_memory_compared(
  whole_run, data_dir, tmp_path, monkeypatch, capsys
):
  seen, step_compiled = [], loop.step_compiled
  open_batches = plan.Plan.open_batches

  @contextlib.contextmanager
  def compiling(*given):
    with step_compiled(*given) as step:
      yield step
    seen.append("compiled")

  def opening(*given):
    seen.append("batches")
    return open_batches(*given)

  def end(*_):
    raise Interrupted("enough")

  monkeypatch.setattr(loop, "step_compiled", compiling)
  monkeypatch.setattr(plan.Plan, "open_batches", opening)
  monkeypatch.setattr(loop.memory, "host_free", lambda: 10_000)
  with pytest.raises(Interrupted, match="enough"):
    loop.train(read(runs.config(data_dir)), str(tmp_path), on_step=[end])
  assert seen == ["batches", "compiled"]
  assert "\nMemory: a step needs" in capsys.readouterr().out
  assert "\nMemory: a step needs" not in whole_run.out


def test_a_run_writes_what_it_promises(whole_run, tmp_path, capsys):
  folder, _, evaluated, out = whole_run
  rows = runs.rows(folder)
  assert [row["step"] for row in rows] == [3, 6, 6, 9, 12, 12]
  training_rows = [row for row in rows if "train/loss" in row]
  for row in training_rows:
    assert np.isfinite(row["train/loss"])
    assert row["train/skipped_images"] == 0
    assert row["train/images_per_second"] > 0
  # The last row is for step 11, counted from 0; one step was warm-up.
  rate = 3e-3 * (1 + np.cos(np.pi * 10 / 11)) / 2
  config_rate = training_rows[-1]["train/learning_rate"]
  assert config_rate == pytest.approx(rate, rel=1e-5)
  assert rows[-1]["eval/examples"] == 359
  assert len(rows[-1]["eval/top1_by_class"]) == 10
  mean = np.mean(list(rows[-1]["eval/top1_by_class"].values()))
  assert mean == pytest.approx(rows[-1]["eval/top1"], abs=0.02)
  assert list((folder / "tensorboard").glob("events*"))

  for text in ("8 x cpu", "1,438 training examples", "parameters", "GFLOP"):
    assert text in out
  assert f"vit_jax evaluate {folder}\n" in out
  assert f"vit_jax report {folder}\n" in out

  logged = (folder / "log.txt").read_text().splitlines()
  assert [line[21:] for line in logged] == out.splitlines()
  assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", logged[0])
  assert "compiling ..." in out and "step       1/12  loss " in out
  # Both means are over the same steps, the first one among them.
  (means,) = re.findall(r"eval +6/12 .*in training: loss ([\d.]+)", out)
  rows_before = [row["train/loss"] for row in training_rows[:2]]
  assert float(means) == pytest.approx(np.mean(rows_before), abs=6e-5)

  answers = str(tmp_path / "out.csv")
  again = evaluate_checkpoint(str(folder), per_class=True, out=answers)
  counts = again.pop("eval/confusion")
  share = np.trace(counts) / counts.sum()
  assert share == pytest.approx(evaluated["eval/top1"])
  assert evaluated == again | {"eval/top1_not_averaged": ANY}
  out = capsys.readouterr().out
  assert "step 12 on digits" in out
  assert "\nclass  examples  precision  recall" in out
  assert re.search(r"\nlabel . answer( +\d){10}\n", out)
  with open(tmp_path / "out.csv", newline="") as file:
    written = [*csv.DictReader(file)]
  assert len(written) == 359
  right = np.mean([row["label"] == row["answer"] for row in written])
  assert right == pytest.approx(evaluated["eval/top1"])
  loss = [float(row["loss"]) for row in written]
  assert loss == sorted(loss, reverse=True)
  assert np.mean(loss) == pytest.approx(evaluated["eval/loss"], rel=1e-4)


@pytest.mark.slow
def test_a_users_function_is_called_after_each_step(
  whole_run, run_copy, data_dir
):
  """It sees the state after the step, and changes nothing."""
  config = runs.config(data_dir, eval_per_class=True)
  shutil.rmtree(run_copy / "checkpoints" / "12")
  seen = []

  def watch(step, state, metrics):
    seen.append((step, int(state.step), float(metrics["loss"]) > 0))

  state, _ = loop.train(read(config), str(run_copy), on_step=[watch])
  assert seen == [(step, step, True) for step in range(9, 13)]
  assert runs.identical(whole_run.state, jax.device_get(state))


def test_the_checkpoint_describes_itself(whole_run, data_dir):
  config = runs.config(data_dir, eval_per_class=True)
  checkpoints = Checkpoints(str(whole_run.folder), read_only=True)
  description = checkpoints.describe(4)
  checkpoints.close()
  config.normalization.update(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
  assert description["config"] == json.loads(json.dumps(config.to_dict()))
  assert description["model"]["hidden_size"] == config.model.hidden_size
  assert description["class_names"] == [str(d) for d in range(10)]
  assert description["data_iterator"] == {"seed": 0, "next_batch": 4}
  assert description["train_examples"] == 1438


@pytest.mark.slow
def test_few_shots_are_part_of_the_evaluation(data_dir, tmp_path):
  """The run logs the same accuracy as the command measures."""
  config = runs.config(data_dir, eval_every_steps=12)
  config.fewshot.update(shots=2, seeds=2)
  loop.train(read(config), str(tmp_path))
  row = [row for row in runs.rows(tmp_path) if "fewshot/top1" in row][-1]
  where = {"data.name": "digits", "data.data_dir": str(data_dir)}
  probed = replaced(ProbeSettings(), where)
  outcome = probe_checkpoint(str(tmp_path), probed, shots=2, seeds=2)
  assert row["step"] == 12
  assert row["fewshot/top1"] == pytest.approx(outcome.top1, abs=1e-6)
  assert row["fewshot/top1_by_seed"] == {
    str(draw.seed): pytest.approx(draw.top1) for draw in outcome.draws
  }


@pytest.mark.parametrize(
  "key, old, new",
  [("dropout_rate", 0.1, 0.2), ("attention_dtype", None, "bfloat16")],
)
def test_another_configuration_is_refused(run_copy, data_dir, key, old, new):
  config = runs.config(data_dir)
  config.model[key] = new
  config.log_every_steps = 1  # This does not change what is learned.
  message = (
    f"^{run_copy} holds a run with another configuration or other data: "
    f"model.{key} was {old!r} and is now {new!r}[.] Resume"
  )
  with pytest.raises(ValueError, match=message):
    loop.train(read(config), str(run_copy))


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(total_steps=0), "total_steps, total_epochs or total_examples is m"),
    (dict(batch_size=60), "batch_size=60 does not split over 8 devices x 2"),
    (
      dict(image_size=(9, 8)),
      r"^image_size=\(9, 8\) does not divide by the mo",
    ),
    (dict(model=dict(variant="B/0")), "^model.variant='B/0' is unknown; write"),
    (dict(model=dict(dtype="half")), "model.dtype='half' is unknown"),
    (dict(seed=-1), "seed=-1; it has to lie between 0"),
    (
      dict(data=dict(name="")),
      "^data.root .a folder of class folders",
    ),
    (dict(mesh=dict(fsdp=8), model=dict(hidden_size=20)), "of shape .* does"),
    (dict(data=dict(eval_split="validation")), "validation"),
  ],
)
def test_what_does_not_fit_is_refused_first(
  data_dir, tmp_path, changes, message
):
  with pytest.raises(ValueError, match=message):
    loop.train(read(runs.config(data_dir, **changes)), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workdir", ["", " "])
def test_a_run_needs_a_folder(data_dir, tmp_path, monkeypatch, workdir):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match="^--workdir is empty: name a folder"):
    loop.train(read(runs.config(data_dir)), workdir)
  assert [*tmp_path.iterdir()] == []


def test_the_best_checkpoint_is_named_beside_the_last(
  run_copy, data_dir, capsys
):
  better = {"eval/top1": 0.987}
  metrics = run_copy / "checkpoints" / "8" / "metrics"
  metrics.mkdir()
  (metrics / "metrics").write_text(json.dumps(better))
  with (run_copy / "metrics.jsonl").open("a") as rows:
    rows.write(json.dumps({"step": 8, **better}) + "\n")
  loop.train(read(runs.config(data_dir)), str(run_copy))
  out = capsys.readouterr().out
  assert "\nBest checkpoint: step 8 with top-1 98.70%.\n" in out
  for command in "evaluate", "report":
    assert f": vit_jax {command} {run_copy} --best\n" in out


@pytest.mark.slow
def test_a_run_traces_its_step_once(data_dir, tmp_path, monkeypatch):
  """What is compiled beside the first state is what the steps then run."""
  traced = []

  def counted(*args, **options):
    step = make_train_step(*args, **options)
    return lambda *arguments: traced.append(arguments) or step(*arguments)

  monkeypatch.setattr(plan, "make_train_step", counted)
  changes = dict(total_steps=2, eval_every_steps=0, save_every_steps=0)
  config = runs.config(data_dir, digest_every=0, **changes)
  state, _ = loop.train(read(config), str(tmp_path))
  assert int(state.step) == 2
  assert len(traced) == 1


def test_a_longer_run_says_that_its_learning_rate_rises_again(
  run_copy, data_dir, capsys
):
  """The rates of steps 12 of 12 and 13 of 24; the first is warm-up to 3e-3."""

  def said(total):
    config = runs.config(data_dir, total_steps=total)
    made = plan.make_plan(read(config))
    made.evaluation.stream.close()
    with contextlib.closing(Checkpoints(str(run_copy))) as checkpoints:
      first_state(made, checkpoints, Display(), allow_changes=True)
    return capsys.readouterr().out

  before, now = (
    3e-3 * (1 + np.cos(np.pi * share)) / 2 for share in (10 / 11, 11 / 23)
  )
  rises = f"The learning rate goes on at {now:.2e}, and was {before:.2e}: "
  assert rises in said(24)
  shutil.rmtree(run_copy / "checkpoints/12")
  same = said(12)
  assert "checkpoint of step 8" in same and "The learning rate" not in same


def test_changes_that_are_allowed_are_obeyed_or_told(
  run_copy, data_dir, capsys
):
  """Rates of the model change, but neither its variant nor how it began."""
  shutil.rmtree(run_copy / "checkpoints/12")
  config = runs.config(data_dir)
  config.model.update(dropout_rate=0.3, head_bias=1.0)
  with contextlib.closing(Checkpoints(str(run_copy))) as checkpoints:

    def resumed():
      made = plan.make_plan(read(config), checkpoints.describe(8))
      made.evaluation.stream.close()
      first_state(made, checkpoints, Display(), allow_changes=True)
      return made.model

    assert resumed().dropout_rate == 0.3
    out = " ".join(capsys.readouterr().out.split())
    assert (
      "Going on with changes: model.dropout_rate was 0.1 and is now 0.3. "
      "No effect on a run that has begun: model.head_bias."
    ) in out
    config.model.variant = "S/16"
    with pytest.raises(ValueError, match="it began with: model.variant was"):
      resumed()


def test_a_complete_run_says_so(run_copy, data_dir, monkeypatch, capsys):
  """It is resumed by the description that its plan was made of."""
  steps = []
  describe = orbax_files.read_description

  def counted(folder):
    steps.append(int(folder.name))
    return describe(folder)

  monkeypatch.setattr(orbax_files, "read_description", counted)
  loop.train(read(runs.config(data_dir)), str(run_copy))
  said = " ".join(capsys.readouterr().out.split())
  assert "The run is complete: 12 steps are done. top-1 " in said
  assert re.search(
    r"evaluated images.*\. To train anew, give another work", said
  )
  assert "in steps" not in said  # The run itself said where its time went.
  assert steps == [12]
  kept = [row for row in runs.rows(run_copy) if row["step"] < 12]
  lines = "".join(f"{json.dumps(row)}\n" for row in kept)
  (run_copy / "metrics.jsonl").write_text(lines)
  loop.train(read(runs.config(data_dir)), str(run_copy))
  said = " ".join(capsys.readouterr().out.split())
  assert "It stopped before it was evaluated, which follows. To train" in said
  assert "not measured" not in said and "eval 12/12" in said


@pytest.mark.slow
def test_a_block_of_ones_own_trains_resumes_and_has_to_be_given(
  data_dir, tmp_path
):
  config = runs.config(data_dir, total_steps=1, eval_every_steps=1)
  config.model.block = f"{Halved.__module__}:Halved"
  loop.train(read(config), str(tmp_path))
  state, _ = loop.train(read(config), str(tmp_path))
  assert int(state.step) == 1
  for open_it in (load_pretrained, evaluate_checkpoint):
    with pytest.raises(ValueError, match="Halved, a class of your own"):
      open_it(str(tmp_path))
  model, _ = load_pretrained(str(tmp_path), block=Halved)
  assert model.block is Halved
