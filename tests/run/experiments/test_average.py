"""Averages of runs are the means of their arrays, and runs themselves."""

import shutil

import numpy as np
import pytest
from flax import traverse_util

from tests import commands, runs
from vit_jax import load_pretrained
from vit_jax.run.experiments import average
from vit_jax.run.experiments.average import merge
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.runtime.display import Split

TOP1 = Split.EVAL.key("top1")


def _tree(value):
  return {"a": np.full((2,), value, np.float32)}


def _score(tree):
  """Best at 2; it falls with the distance."""
  return {"top1": -abs(float(tree["a"][0]) - 2)}


@pytest.mark.parametrize(
  "values, mean, number",
  [
    ((3, 0, 1), 2, (1, 3)),  # 0 would lower the score of 2.
    ((4, 0), 2, (1, 2)),
    ((2, 9, 9), 2, (1,)),
  ],
)
def test_a_run_that_lowers_the_score_is_left_out(values, mean, number):
  trees = [*map(_tree, values)]
  members = [*map(_score, trees)]
  merged, metrics, says = average._greedy(trees, members, _score, "top1")
  np.testing.assert_allclose(merged["a"], mean)
  assert metrics == _score(_tree(mean))
  assert says.endswith(f"(number {', '.join(map(str, number))})")


@pytest.mark.parametrize(
  "values, best", [((0, 4), 2), ((0, 10), 2), ((3, 5), 3), ((0, 1), 1)]
)
def test_a_walk_stops_where_the_score_is_best(values, best):
  trees = [*map(_tree, values)]
  members = [*map(_score, trees)]
  merged, metrics, says = average._walk(trees, members, _score, "top1")
  np.testing.assert_allclose(merged["a"], best)
  assert metrics["top1"] == pytest.approx(_score(_tree(best))["top1"])
  share = (best - values[0]) / (values[1] - values[0])
  assert says.endswith(f"and {share:.1f} of the second")


def test_the_mean_is_that_of_float64():
  rng = np.random.default_rng(0)
  trees = [{"a": rng.normal(size=7).astype(np.float32)} for _ in range(3)]
  merged, _, _ = average._mean(trees, [], lambda tree: {}, "top1")
  expected = np.mean([np.float64(tree["a"]) for tree in trees], axis=0)
  np.testing.assert_allclose(merged["a"], expected, rtol=1e-15)


@pytest.fixture(scope="module")
def members(whole_run, tmp_path_factory):
  """Three runs of one start, which stopped after 12, 8 and 4 steps."""
  folder = tmp_path_factory.mktemp("members")
  names = []
  for last in (12, 8, 4):
    copy = shutil.copytree(whole_run.folder, folder / f"run_{last}")
    for step in (8, 12):
      if step > last:
        shutil.rmtree(copy / "checkpoints" / str(step))
    names.append(str(copy))
  return names


@pytest.mark.slow
def test_an_average_is_a_run_that_every_command_takes(
  members, tmp_path, capsys
):
  out = str(tmp_path / "soup")
  metrics = merge(members, out)
  assert "did not begin from" not in capsys.readouterr().out
  trees = [
    traverse_util.flatten_dict(load_pretrained(name).params, sep="/")
    for name in members
  ]
  merged = load_pretrained(out)
  flat = traverse_util.flatten_dict(merged.params, sep="/")
  for path, array in flat.items():
    expected = np.mean([np.float64(tree[path]) for tree in trees], axis=0)
    np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-9)
  assert evaluate_checkpoint(out) == pytest.approx(metrics)
  greedy = merge(members, str(tmp_path / "greedy"), greedy=True)
  best = max(evaluate_checkpoint(name)[TOP1] for name in members)
  assert greedy[TOP1] >= best
  walked = merge(members[:2], str(tmp_path / "walk"), walk=True)
  assert walked[TOP1] >= max(
    evaluate_checkpoint(name)[TOP1] for name in members[:2]
  )
  capsys.readouterr()
  done = commands.run("vit_jax.report", out, f"--out={tmp_path / 'soup.html'}")
  assert done.returncode == 0, done.stderr
  done = commands.run(
    "vit_jax.train",
    "--config=digits",
    f"--workdir={out}",
    f"--config.data.data_dir={merged.description['config']['data']['data_dir']}",
  )
  assert done.returncode == 2 and "is an average of runs" in done.stderr


@pytest.mark.slow
def test_runs_that_do_not_fit_are_one_line(members, tmp_path, data_dir):
  config = runs.config(data_dir, total_steps=2, ema_decay=0.0, seed=7)
  config.update(accumulation_steps=1, digest_every=0)
  config.model.update(hidden_size=8, mlp_size=8, num_heads=1)
  other = str(tmp_path / "other")
  train(read(config), other)
  with pytest.raises(ValueError, match="other does not fit .*arrays differ"):
    merge([members[0], other], str(tmp_path / "out"))
  with pytest.raises(ValueError, match="give two runs or more, each once"):
    merge(members[:1], str(tmp_path / "out"))
  with pytest.raises(ValueError, match="--walk takes two runs"):
    merge(members, str(tmp_path / "out"), walk=True)
  with pytest.raises(ValueError, match="is not empty"):
    merge(members, members[0])
