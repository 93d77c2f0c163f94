"""Studies: which rows are run, what is collected, how a rate is selected."""

import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.commands import run
from vit_jax.run.experiments import study
from vit_jax.run.experiments.study import held_out, open_study, run_study
from vit_jax.runtime.meter import DIVERGED

STUDY = """
from vit_jax.config import load_config

ROWS = {f"{name}_{seed}": dict(name=name, seed=seed)
        for name in ("a", "b") for seed in (0, 1)}

def get_config(row):
  c = load_config("digits")
  c.seed = ROWS[row]["seed"]
  c.model.hidden_size = {"a": 16, "b": 32}[ROWS[row]["name"]]
  c.optimizer.peak_lr = 0.5
  return c

def get_choices(row):
  return [0.1, 0.2, 0.4], 0.1
"""


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "my_study.py"
  path.write_text(STUDY)
  return path


@pytest.fixture
def trained(monkeypatch):
  """Notes the commands that would train; `codes` says how each ends."""
  commands, codes = [], {}

  def supervise(restarts, newest_step, command):
    assert newest_step() is None
    flags = dict(part.lstrip("-").split("=", 1) for part in command[3:])
    commands.append(flags)
    name = flags["workdir"].rpartition("/")[2]
    if (code := codes.get(name, 0)) not in (0, DIVERGED):
      return code
    # The best rate is 0.2.
    rate = float(flags.get("config.optimizer.peak_lr", 0.5))
    rows = [
      {"step": 5, "train/loss": 2.0, "train/images_per_second": 9.0},
      {"step": 9, "eval/top1": 0.75 - abs(rate - 0.2), "test/by": {"x": 1}},
    ]
    path = pathlib.Path(flags["workdir"], "metrics.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return code

  monkeypatch.setattr(study.restarts, "supervise", supervise)
  return commands, codes


def table(folder):
  with open(folder / "study.csv", newline="") as lines:
    return [*csv.DictReader(lines)]


def test_rows_are_run_once_and_collected(file, trained, tmp_path, capsys):
  commands, codes = trained
  codes |= {"a_1": 1, "b_0": DIVERGED}  # The latter has a result as well.
  folder = tmp_path / "runs"
  options = dict(changes=["data.data_dir=/there", "total_steps=9"])
  assert run_study(str(file), str(folder), **options) == 1
  assert [flags["config"] for flags in commands] == [
    f"{file}:{row}" for row in ("a_0", "a_1", "b_0", "b_1")
  ]
  assert commands[0]["config.total_steps"] == "9"
  assert commands[0]["config.data.data_dir"] == "/there"
  shown = capsys.readouterr().out
  assert "Failed: a_1." in shown and "b_0 has diverged." in shown
  assert [row["row"] for row in table(folder)] == ["a_0", "b_0", "b_1"]
  codes.clear()
  options["changes"][0] = "data.data_dir=/elsewhere"  # It has moved.
  assert run_study(str(file), str(folder), **options) == 0
  shown = capsys.readouterr().out
  assert "Row 1 of 4: a_0" in shown and "Row 4 of 4: b_1" in shown
  scores = {row["row"]: float(row["eval/top1"]) for row in table(folder)}
  *lines, last = shown.splitlines()[-6:]
  assert lines[0].split() == ["row", "top-1"]
  expected = [[name, f"{score:.2%}"] for name, score in scores.items()]
  assert [line.split() for line in lines[1:]] == expected
  best = max(scores, key=lambda name: scores[name])
  assert last == f"Best: {best} with top-1 {scores[best]:.2%}."
  assert [flags["config"] for flags in commands[4:]] == [f"{file}:a_1"]
  assert table(folder)[1] == {
    "row": "a_1",
    "name": "a",
    "seed": "1",
    "step": "9",
    "train/loss": "2.0",
    "eval/top1": "0.45",
  }


@pytest.mark.parametrize(
  "count, shares, says",
  [
    (40, (0.9, 0.5, 0.7, 0.6), "on 40 images, which are too few to judge by: "),
    (100, (0.8, 0.5, 0.75, 0.6), "on 100 images: 80.0% are right "),
    (1000, (0.8, 0.5, 0.7, 0.6), ""),
  ],
)
def test_no_row_is_the_best_if_the_images_cannot_tell(
  file, trained, tmp_path, capsys, count, shares, says
):
  folder = tmp_path / "runs"
  run_study(str(file), str(folder))
  for row, share in zip(("a_0", "a_1", "b_0", "b_1"), shares, strict=True):
    path = folder / row / "row.json"
    found = json.loads(path.read_text())
    found["metrics"] |= {"eval/top1": share, "eval/examples": count}
    path.write_text(json.dumps(found))
  capsys.readouterr()
  run_study(str(file), str(folder))
  last = capsys.readouterr().out.splitlines()[-1]
  if not says:
    assert last == "Best: a_0 with top-1 80.00%."
    return
  first = '"a_0" and "b_0", the first two of 4 runs, cannot be told apart '
  assert last.startswith(first + says)


def test_a_finished_row_says_that_another_folder_was_not_read(
  trained, tmp_path, capsys
):
  file = tmp_path / "study.py"
  file.write_text(
    "from vit_jax.config import base_config\n"
    'ROWS = {"a": {}}\n'
    "def get_config(row):\n"
    "  c = base_config()\n"
    '  c.data.root = "photos"\n'
    "  return c\n"
  )
  options = {"file": str(file), "workdir": str(tmp_path / "runs")}
  for changes, says in (
    ((), "Row 1 of 1: a"),
    ((), "a is finished.\n"),
    (["data.root=others"], "data.root=photos, and others was not read: if it"),
  ):
    run_study(**options, changes=changes)
    assert says in capsys.readouterr().out


def test_rows_on_other_images_are_not_compared(trained, tmp_path, capsys):
  file = tmp_path / "study.py"
  file.write_text(
    'ROWS = {"a": {}, "b": {}}\n'
    "from vit_jax.config import base_config\n"
    "def get_config(row):\n"
    "  c = base_config()\n"
    '  c.data.name = {"a": "digits", "b": "cifar10"}[row]\n'
    "  return c\n"
  )
  run_study(str(file), str(tmp_path / "runs"))
  *_, last = capsys.readouterr().out.splitlines()
  assert last.startswith("The rows were evaluated on different images")


def test_a_last_score_that_is_nan_is_none(file, trained, tmp_path, capsys):
  """An earlier one does not stand for it, so such a row is not the best."""
  folder = tmp_path / "runs" / "a_0"
  folder.mkdir(parents=True)
  (folder / "metrics.jsonl").write_text(
    '{"step": 5, "eval/top1": 0.99}\n{"step": 9, "eval/top1": null}\n'
  )
  assert run_study(str(file), str(folder.parent)) == 0
  result = json.loads((folder / "row.json").read_text())
  assert result["metrics"] == {"step": 9}


def test_a_stop_ends_the_study(file, trained, tmp_path, capsys):
  commands, codes = trained
  codes["a_1"] = 143
  assert run_study(str(file), str(tmp_path / "runs")) == 143
  assert len(commands) == 2
  assert "the same command goes on" in capsys.readouterr().out


def test_a_finished_row_with_other_settings_is_refused(file, trained, tmp_path):
  folder = str(tmp_path / "runs")
  run_study(str(file), folder, index=1)
  file.write_text(STUDY.replace("peak_lr = 0.5", "peak_lr = 0.25"))
  message = "a_0 is finished, with optimizer.peak_lr=0.5, and .* has 0.25: rem"
  with pytest.raises(ValueError, match=message):
    run_study(str(file), folder, index=1)


def test_the_best_rate_is_selected_on_images_held_out(
  file, trained, tmp_path, capsys
):
  commands, _ = trained
  folder = tmp_path / "runs"
  assert run_study(str(file), str(folder), index=4, select=True) == 0
  *tried, last = commands
  assert [c["config.optimizer.peak_lr"] for c in tried] == ["0.1", "0.2", "0.4"]
  for flags in tried:
    assert flags["config.data.train_split"] == "train[:90%]"
    assert flags["config.data.eval_split"] == "train[90%:]"
  assert last["config.optimizer.peak_lr"] == "0.2"
  assert "config.data.train_split" not in last
  assert last["workdir"] == str(folder / "b_1")
  shown = "0.2 is best on train[90%:] (0.1: 65.00%, 0.2: 75.00%, 0.4: 55.00%)"
  assert shown in capsys.readouterr().out
  assert [row["eval/top1"] for row in table(folder)] == ["0.75"]
  for rate in ("0.1", "0.2", "0.4"):
    path = folder / f"b_1.select_{rate}" / "row.json"
    result = json.loads(path.read_text())
    result["metrics"]["eval/examples"] = 100
    path.write_text(json.dumps(result))
  shutil.rmtree(folder / "b_1")
  assert run_study(str(file), str(folder), index=4, select=True) == 0
  shown = "0.2 is taken, though 0.1 cannot be told apart from it on train[90%:]"
  assert shown in capsys.readouterr().out
  assert len(commands) == 5  # The last alone.
  commands.pop()
  assert run_study(str(file), str(folder), index=4, select=True) == 0
  assert len(commands) == 4  # Nothing is run again.


def test_any_configuration_is_a_study_of_one_run(trained, tmp_path):
  commands, _ = trained
  assert run_study("pretrain:B/32,imagenet2012", str(tmp_path)) == 0
  (flags,) = commands
  assert flags["config"].endswith("configs/pretrain.py:B/32,imagenet2012")
  assert flags["workdir"] == str(tmp_path / "B_32,imagenet2012")


@pytest.mark.parametrize(
  "split, share, parts",
  [
    ("train", 0.02, ("train[:98%]", "train[98%:]")),
    ("train+val", 0.1, ("train[:90%]+val[:90%]", "train[90%:]+val[90%:]")),
  ],
)
def test_a_share_of_each_split_is_held_out(split, share, parts):
  assert held_out(split, share) == parts


@pytest.mark.parametrize("split, share", [("train[:9]", 0.1), ("train", 0.001)])
def test_what_cannot_be_held_out_is_refused(split, share):
  with pytest.raises(
    ValueError, match="split must be whole, .* number of percent"
  ):
    held_out(split, share)


@pytest.mark.parametrize(
  "text, changes, message",
  [
    (STUDY, ["lr=1"], "--set: there is no key lr"),
    (STUDY, ["seed"], "--set=seed: give KEY=VALUE"),
    (STUDY, ["seed=1", "seed=2"], "--set=seed is given twice: drop one"),
    (STUDY, ["batch_size=0.5"], "row a_0: batch_size"),
    (STUDY.replace('("a", "b")', '("a/", "b")'), [], "'a/_0' cannot name a"),
    (STUDY.replace("c.seed", "c.sed"), [], "row a_0: .*, line 9: there is no"),
  ],
)
def test_mistakes_are_found_before_anything_runs(
  file, tmp_path, text, changes, message
):
  file.write_text(text)
  with pytest.raises(ValueError, match=message):
    open_study(str(file), str(tmp_path), changes)


def test_what_does_not_fit_the_study_is_refused(file, trained, tmp_path):
  with pytest.raises(ValueError, match="--workdir is empty: name a folder"):
    run_study(str(file), "")
  with pytest.raises(ValueError, match="study.py is a file: name a folder"):
    run_study(str(file), str(file))
  with pytest.raises(ValueError, match="--index=5: the rows are 1 to 4"):
    run_study(str(file), str(tmp_path), index=5)
  with pytest.raises(ValueError, match="give .*my_study.py and --index"):
    run_study(f"{file}:a_0", str(tmp_path))
  with pytest.raises(ValueError, match="digits has no get_choices"):
    run_study("digits", str(tmp_path), select=True)
  with pytest.raises(ValueError, match="not from the folder photos"):
    changes = ["data.root=photos"]
    run_study(str(file), str(tmp_path), changes=changes, select=True)
  with pytest.raises(ValueError, match="no effect with --select, which choos"):
    changes = ["optimizer.peak_lr=1"]
    run_study(str(file), str(tmp_path), changes=changes, select=True)


@pytest.mark.slow
def test_a_study_that_is_told_to_stop_goes_on(file, tmp_path):
  """Real runs: one is stopped and resumed, one fails, the rest is collected."""
  text = STUDY.replace("  return c\n", "  c.total_steps = 60\n  return c\n", 1)
  text = text.replace(
    "c.seed =", "c.update(total_epochs=0.0, log_every_steps=5)\n  c.seed ="
  )
  text = text.replace('("a", "b")', '("a",)').replace("(0, 1)", "(0, 1, -1)")
  file.write_text(text)
  folder = tmp_path / "runs"
  command = [sys.executable, "-m", "vit_jax.study", str(file)]
  command += [f"--workdir={folder}", "--set=loader.num_workers=0"]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
  with subprocess.Popen(command, env=environment) as process:
    while not (folder / "a_0" / "metrics.jsonl").exists():
      time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
  assert not (folder / "study.csv").exists()
  done = run("vit_jax.study", *command[3:])
  assert done.returncode == 1  # A seed is never negative.
  assert "error: --config.seed=-1; it has to lie between" in done.stderr
  assert "Failed: a_-1." in done.stdout
  assert "Resuming from the checkpoint" in done.stdout
  assert [row["step"] for row in table(folder)] == ["60", "60"]
  assert all(float(row["eval/top1"]) > 0 for row in table(folder))
  again = run("vit_jax.study", *command[3:], "--index=2")
  assert "a_1 is finished." in again.stdout


def test_means_are_of_complete_groups_alone(file, trained, tmp_path):
  _, codes = trained
  text = STUDY + 'MEANS = dict(of="eval/top1", over="seed", groups="name")\n'
  file.write_text(text.replace("seed=seed)", "seed=seed, kind=1)"))
  codes["b_1"] = 1
  folder = tmp_path / "runs"
  run_study(str(file), str(folder))
  rows = {row["row"]: row for row in table(folder)}
  assert [*rows] == ["a_0", "a_1", "b_0", "mean of 2"]
  mean = sum(float(rows[name]["eval/top1"]) for name in ("a_0", "a_1")) / 2
  found = rows["mean of 2"]
  assert (found["name"], found["kind"], found["seed"]) == ("a", "1", "")
  assert float(found["eval/top1"]) == pytest.approx(mean)
  codes.clear()
  run_study(str(file), str(folder))
  assert [row["name"] for row in table(folder)[4:]] == ["a", "all", "b"]
