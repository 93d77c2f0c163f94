"""Averages of runs are the means of their arrays, and runs themselves."""

import shutil

import jax
import numpy as np
import pytest
from flax import traverse_util

from tests import commands, runs, tiny
from tests.tiny import SIZES
from vit_jax import load_pretrained, make_vit
from vit_jax.run.experiments import average
from vit_jax.run.experiments.average import merge
from vit_jax.run.experiments.replay import verify
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.runtime.display import Split
from vit_jax.tasks import finite

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
  merged, metrics, says = average.greedy_soup(trees, members, _score, "top1")
  np.testing.assert_allclose(merged["a"], mean)
  assert metrics == _score(_tree(mean))
  assert says.endswith(f"(number {', '.join(map(str, number))})")


@pytest.mark.parametrize(
  "values, best",
  [((0, 4), 2), ((0, 10), 2), ((1, 6), 2), ((3, 5), 3), ((0, 1), 1)],
)
def test_a_walk_stops_where_the_score_is_best(values, best):
  trees = [*map(_tree, values)]
  members = [*map(_score, trees)]
  merged, metrics, says = average.best_mixture(trees, members, _score, "top1")
  np.testing.assert_allclose(merged["a"], best)
  assert metrics["top1"] == pytest.approx(_score(_tree(best))["top1"])
  share = (best - values[0]) / (values[1] - values[0])
  assert says.endswith(f"and {share:.1f} of the second")


@pytest.mark.parametrize("mix, runs", [("greedy_soup", 1), ("best_mixture", 2)])
def test_an_average_that_answers_nan_is_never_taken(mix, runs):
  """Though each of two runs gives answers, which are equally good."""
  trees = [_tree(0), _tree(4)]

  def score(tree):
    raise finite.NotFiniteError("the average answers with NaN")

  members = [*map(_score, trees)]
  merged, metrics, _ = getattr(average, mix)(trees, members, score, "top1")
  np.testing.assert_array_equal(merged["a"], trees[runs - 1]["a"])
  assert metrics == members[runs - 1]
  with pytest.raises(finite.NotFiniteError):
    average.mean(trees, members, score, "top1")


@pytest.mark.parametrize(
  "factor, says",
  [
    (np.nan, "b cannot be averaged: its parameters are damaged, or its"),
    pytest.param(
      np.inf,
      "b cannot be averaged: its parameters are damaged, or its",
      marks=pytest.mark.slow,
    ),
    pytest.param(
      1e38,
      "b answers with NaN, and nothing is written",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_run_that_is_not_finite_is_never_taken(
  data_dir, tmp_path, monkeypatch, factor, says
):
  """By its weights, or since finite weights give answers that are not."""
  monkeypatch.chdir(tmp_path)
  model = make_vit("Ti/4", 10, **SIZES)
  params = tiny.random_params(model, (8, 8), 0)
  for name, times in (("a", 1), ("b", factor)):
    tree = jax.tree.map(lambda x, by=times: np.asarray(x) * by, params)
    config = runs.config(data_dir, ema_decay=0.0)
    tiny.save_run(name, model, tree, (8, 8), "0123456789", config=config)
  with pytest.raises(finite.NotFiniteError, match=says):
    merge(["a", "b"], "out")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  "out", ["http://x", "https://x/y", "ftp://x/y", "gs://"]
)
def test_no_other_address_is_written_to(out):
  says = f"--out {out} must be a local folder or gs://bucket/folder"
  with pytest.raises(ValueError, match=says):
    merge(["a", "b"], out)
  with pytest.raises(ValueError, match="--out is empty: name a folder"):
    merge(["a", "b"], "")


@pytest.mark.slow
def test_a_merge_that_was_cut_leaves_no_folder(members, tmp_path, monkeypatch):
  out = tmp_path / "soup"

  def full(folder):
    raise OSError("the disk is full")

  with monkeypatch.context() as patch:
    patch.setattr(average, "MetricWriter", full)
    with pytest.raises(OSError, match="the disk is full"):
      merge(members, str(out))
  assert not [*tmp_path.iterdir()]
  (tmp_path / ".soup.0123abcd.part").mkdir()  # As a kill leaves it.
  merge(members, str(out))
  assert {p.name for p in out.iterdir()} >= {"checkpoints", "metrics.jsonl"}
  says = "is an average of runs, which has no steps to replay: verify the runs"
  with pytest.raises(ValueError, match=says):
    verify(str(out))


def test_the_mean_is_that_of_float64():
  rng = np.random.default_rng(0)
  trees = [{"a": rng.normal(size=7).astype(np.float32)} for _ in range(3)]
  merged, _, _ = average.mean(trees, [], lambda tree: {}, "top1")
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
  shown = capsys.readouterr().out
  assert "did not begin from" not in shown
  assert 'soup" cannot be told apart on 359 images: ' in shown
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
  scores = [evaluate_checkpoint(name)[TOP1] for name in members]
  assert greedy[TOP1] >= max(scores)
  walked = merge(members[:2], str(tmp_path / "walk"), walk=True)
  assert walked[TOP1] >= max(scores[:2])
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
  again = [*members, f"{members[0]}/"]
  with pytest.raises(ValueError, match="give two runs or more, each once"):
    merge(again, str(tmp_path / "out"))
  with pytest.raises(ValueError, match="--base=a is where .* none of these"):
    merge(members, str(tmp_path / "out"), base="a")
  with pytest.raises(ValueError, match="--walk takes two runs"):
    merge(members, str(tmp_path / "out"), walk=True)
  with pytest.raises(ValueError, match="is not empty"):
    merge(members, members[0])
