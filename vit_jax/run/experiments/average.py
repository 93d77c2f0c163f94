"""Averages of the weights of runs: model soups, and walks between two."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import linen as nn
from flax import traverse_util

from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run.saved import SavedRun, open_saved_run
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import (
  check_new_folder,
  filling,
  local_path,
  real_path,
)
from vit_jax.tasks import choose
from vit_jax.tasks.finite import NotFiniteError, check_finite
from vit_jax.tasks.scores import Scores
from vit_jax.training.state import TrainState
from vit_jax.workdir import bucket, orbax_files
from vit_jax.workdir.checkpoint import Checkpoints, latest_description
from vit_jax.workdir.records import MetricWriter, record_start

_CHECKPOINTS = "checkpoints"  # The folder of a run that is written first.
_STEPS = 10  # Steps of a walk from the start to the run.

Arrays = Mapping[str, Any]
"""The arrays of a model's parameters, by path."""
# `mean`, `greedy_soup` and `best_mixture` take the arrays of the runs, the
# metrics of each, the function that scores arrays, and the key of the metric to
# maximise. They return the averaged arrays, their metrics, and words on how
# they were averaged.
_Outcome = tuple[Arrays, dict[str, Any], str]
_Score = Callable[[Arrays], dict[str, Any]]  # From arrays to their metrics.


@dataclasses.dataclass(frozen=True)
class _Tree:
  """A run's parameters: arrays by path on the host, and a tree on devices."""

  arrays: Arrays
  params: Any

  @classmethod
  def of(cls, params: Any) -> "_Tree":
    """Copies parameters that are on devices to the host."""
    plain = nn.unbox(params)
    flat: Any = traverse_util.flatten_dict(plain, sep="/")
    return cls(
      {k: np.asarray(jax.device_get(v)) for k, v in flat.items()}, plain
    )

  def on_devices(self, arrays: Arrays) -> Any:
    """A tree of arrays with the types and placement of the run's parameters."""
    nested = traverse_util.unflatten_dict(dict(arrays), sep="/")
    return jax.tree.map(
      lambda x, like: jax.device_put(x.astype(like.dtype), like.sharding),
      nested,
      self.params,
    )


def merge(
  runs: Sequence[str],
  out: str,
  *,
  greedy: bool = False,
  walk: bool = False,
  best: bool = False,
  **options: Any,
) -> dict[str, Any]:
  """Writes an average of runs, and prints what each scores.

  Returns the metrics of what was written, on the first run's evaluation split.

  Args:
    runs: Folders of runs of one model and one data set; for `walk` two, of
      which the first is where the second began.
    out: The folder to write, which is new or empty, or gs://bucket/folder. A
      local one appears complete or not at all.
    greedy: Adds the runs from the best on, each only if the score of the
      average does not fall. Otherwise all are averaged.
    walk: Takes the best of the mixtures (1 - a) x first + a x second, for a
      from 0 to 1 in steps of 0.1.
    best: Takes the best checkpoint of each run, not the newest.
    **options: Keywords of `run.saved.open_saved_run`: `task`, `base`, `root`
      and `data_dir`.

  Raises:
    ValueError: if there are too few runs or too many, they do not fit together,
      a run or the average is not finite, or `out` is not empty.
    OSError: if the checkpoint cannot be written.
  """
  _check_runs(runs, greedy=greedy, walk=walk)
  _check_out(out)
  of_runs = _options_of(runs, options)
  display = Display()
  with open_saved_run(runs[0], best=best, **of_runs[runs[0]]) as first:
    trees = [_Tree.of(first.params)]
    check_finite(trees[0].arrays, f"{runs[0]} cannot be averaged")
    for name in runs[1:]:
      loaded = _open(name, best, of_runs[name])
      tree = _Tree.of(loaded.held)
      check_finite(tree.arrays, f"{name} cannot be averaged")
      _check_fits(name, loaded, tree, first, trees[0])
      trees.append(tree)
      if not walk and _start(loaded) != _start(first.loaded):
        display.note(
          f"{name} did not begin from the same weights as {runs[0]}: averages "
          "of such runs are rarely any good."
        )
    score = _Scorer(first, trees[0], display)
    members = [
      score(tree.arrays, name) for tree, name in zip(trees, runs, strict=True)
    ]
    scores = first.task.scores
    for name, metrics in zip(runs, members, strict=True):
      display.note(f"{name}: {scores.text(metrics)}")
    arrays = [tree.arrays for tree in trees]
    average = best_mixture if walk else greedy_soup if greedy else mean
    merged, metrics, says = average(arrays, members, score, scores.key)
    display.note(f"{out}, {says}: {scores.text(metrics)}")
    _write(out, first, trees[0].on_devices(merged), metrics, runs)
  best_run = max(
    zip(runs, members, strict=True), key=lambda pair: pair[1][scores.key]
  )
  comparison = _comparison(
    scores, (out, metrics), best_run, is_chosen=greedy or walk
  )
  display.note(f"{comparison} Wrote {out}.")
  return metrics


def _check_runs(runs: Sequence[str], *, greedy: bool, walk: bool) -> None:
  """Raises ValueError unless there are as many runs as an average needs."""
  if walk and (len(runs) != 2 or greedy):
    raise ValueError(
      "--walk takes two runs, a start and a run that was trained from it, and "
      f"no --greedy; {len(runs)} runs were "
      f"given{' with --greedy' if greedy else ''}."
    )
  places = {*map(_place, runs)}
  if len(runs) < 2 or len(places) < len(runs):
    raise ValueError(
      f"give two runs or more, each once; {' '.join(runs) or 'none'} was given."
    )


def _place(run: str) -> str:
  """The folder or the address of a run, the same by all its names."""
  return run.rstrip("/") if bucket.is_address(run) else real_path(run)


@dataclasses.dataclass(frozen=True)
class _Scorer:
  """Scores arrays of parameters on the evaluation split of the first run.

  Attributes:
    first: The first run.
    tree: Its parameters.
    display: The display for the progress.
  """

  first: SavedRun
  tree: _Tree
  display: Display

  def __call__(
    self, arrays: Arrays, name: str = "the average"
  ) -> dict[str, Any]:
    """The metrics of parameters; raises NotFiniteError if they give NaN."""
    outcome = self.first.evaluator(
      self.tree.on_devices(arrays), self.display.track
    )
    metrics = outcome.metrics
    key = self.first.task.scores.key
    if outcome.unanswered or not math.isfinite(metrics[key]):
      raise NotFiniteError(
        f"{name} answers with NaN, and nothing is written: leave out the "
        "runs that have diverged."
      )
    return metrics


def _comparison(
  scores: Scores,
  average: tuple[str, dict[str, Any]],
  best_run: tuple[str, dict[str, Any]],
  *,
  is_chosen: bool,
) -> str:
  """A sentence that compares an average with the best of its runs.

  Both have a name and metrics. `is_chosen` tells whether the average was chosen
  by these metrics.
  """
  better = average[1][scores.key] - best_run[1][scores.key]
  ranked = [average, best_run]
  if alike := scores.alike(ranked if better >= 0 else ranked[::-1]):
    return alike
  text = "as much as"
  if ahead := scores.ahead(abs(better), 0):
    text = ahead if better > 0 else ahead.replace("more", "less")
  chosen = " that chose it" if is_chosen else ""
  return (
    f"On the evaluation split{chosen}, the average scores {text} the best of "
    "the runs."
  )


def _mix(parts: Sequence[tuple[float, Arrays]]) -> Arrays:
  """The sum of arrays, each times its share, in float64."""
  return {
    path: np.sum(
      [share * arrays[path].astype(np.float64) for share, arrays in parts],
      axis=0,
    )
    for path in parts[0][1]
  }


def mean(
  trees: Sequence[Arrays], members: Sequence[Any], score: _Score, key: str
) -> _Outcome:
  """The mean of all runs, whatever their scores are."""
  del members, key
  merged = _mix([(1 / len(trees), tree) for tree in trees])
  return merged, score(merged), f"the mean of {len(trees)}"


def greedy_soup(
  trees: Sequence[Arrays], members: Sequence[Any], score: _Score, key: str
) -> _Outcome:
  """The greedy soup, Recipe 1 of arXiv:2203.05482.

  It begins with the best of the runs, whose metrics are `members`. Each other
  run, from the best on, joins unless the score of the average falls.
  """
  order = sorted(range(len(trees)), key=lambda n: -members[n][key])
  taken = order[:1]
  merged = trees[taken[0]]
  metrics = members[taken[0]]
  for number in order[1:]:
    several = [*taken, number]
    candidate = _mix([(1 / len(several), trees[n]) for n in several])
    scores = _score_if_finite(score, candidate)
    if scores and scores[key] >= metrics[key]:
      taken, merged, metrics = several, candidate, scores
  numbers = ", ".join(str(n + 1) for n in taken)
  return merged, metrics, f"the mean of {len(taken)} (number {numbers})"


def best_mixture(
  trees: Sequence[Arrays], members: Sequence[Any], score: _Score, key: str
) -> _Outcome:
  """The best mixture of two runs, by the metric `key`.

  `members` has the metrics of the two. Of mixtures with equal scores, the one
  with most of the second run is returned.
  """
  start, end = trees
  share = 0.0
  merged = start
  metrics = members[0]
  for step in range(1, _STEPS + 1):
    a = step / _STEPS
    mixture = end
    scores = members[1]
    if step < _STEPS:
      mixture = _mix([(1 - a, start), (a, end)])
      scores = _score_if_finite(score, mixture)
    if scores and scores[key] >= metrics[key]:
      share, merged, metrics = a, mixture, scores
  says = f"{1 - share:.1f} of the first and {share:.1f} of the second"
  return merged, metrics, says


def _score_if_finite(score: _Score, arrays: Arrays) -> dict[str, Any] | None:
  """The metrics of an average; None if it answers with NaN."""
  try:
    return score(arrays)
  except NotFiniteError:
    return None


def _check_out(out: str) -> None:
  """Raises ValueError unless a new run can be written to `out`.

  In a bucket, the remains of an interrupted merge are overwritten.
  """
  bucket.check(out, writes=True, name="--out")
  folder = epath.Path(out).expanduser()
  if bucket.is_address(out) and folder.exists():
    is_cut = not orbax_files.steps(folder / _CHECKPOINTS)
    if is_cut and {path.name for path in folder.iterdir()} <= {_CHECKPOINTS}:
      return
  check_new_folder(folder)


@contextlib.contextmanager
def _filling(out: str) -> Iterator[str]:
  """The folder to write to; for a local one a draft, which is renamed."""
  if bucket.is_address(out):
    yield out
    return
  with filling(local_path(out)) as draft:
    yield str(draft)


def _options_of(
  runs: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
  """The options for each run, of which those without a base get no `base`.

  Raises ValueError for a `base` if none of the runs has one.
  """
  base = options.get("base")
  if base is None:
    return dict.fromkeys(runs, options)
  have_base = {run for run in runs if _has_base(run)}
  if not have_base:
    raise ValueError(
      f"--base={base} is where the base of a run with LoRA or its teacher is, "
      "and none of these has one: leave it out."
    )
  others = {name: value for name, value in options.items() if name != "base"}
  return {run: options if run in have_base else others for run in runs}


def _has_base(run: str) -> bool:
  """Whether a run has a base or a teacher of its own."""
  return bool({"base", "teacher"} & {*(latest_description(run) or {})})


def _open(name: str, best: bool, options: Mapping[str, Any]) -> Loaded:
  """Opens another run, and reads its parameters into `Loaded.held`."""
  own = {key: options[key] for key in ("task", "base") if key in options}
  return open_checkpoint(
    name, hold=Loaded.read_params, as_trained=True, best=best, **own
  )


def _check_fits(
  name: str, loaded: Loaded, tree: _Tree, first: SavedRun, mine: _Tree
) -> None:
  """Raises ValueError unless a run fits the first, whose tree is `mine`."""
  pairs = {
    "arrays": [{k: v.shape for k, v in t.arrays.items()} for t in (mine, tree)],
    "classes": [first.loaded.class_names, loaded.class_names],
    "preprocessing": [first.loaded.preprocessing, loaded.preprocessing],
    "task": [type(first.task), type(loaded.task)],
  }
  differ = [what for what, (one, other) in pairs.items() if one != other]
  if differ:
    raise ValueError(
      f"{name} does not fit {first.loaded.origin.source}: their "
      f"{' and '.join(differ)} differ. Runs to average are of one model, one "
      "data set and one start."
    )


def _start(loaded: Loaded) -> Any:
  """The start of a run: its weights, or the seed that drew them."""
  description: Any = loaded.description
  config = description["config"]
  return config.get("pretrained") or config.get("seed")


def _write(
  out: str,
  first: SavedRun,
  params: Any,
  metrics: dict[str, Any],
  runs: Sequence[str],
) -> None:
  """Writes the folder of a run with this one checkpoint.

  Raises OSError if the checkpoint cannot be saved.
  """
  source: Any = first.loaded
  description = {
    key: value
    for key, value in source.description.items()
    if key not in ("base", "checksums", "digest")
  }
  # Its parameters are the average, into which LoRA's products are merged.
  config = {**description["config"], "ema_decay": 0.0, "lora": {}}
  description |= {"config": config, "merged": [*runs]}
  description |= first.task.chosen_facts(metrics)
  state = TrainState(step=jnp.int32(source.step), params=params, opt_state=None)
  with _filling(out) as place:
    with contextlib.closing(
      Checkpoints(place, keys=[choose.score_key(description)])
    ) as checkpoints:
      problem = checkpoints.save(state, source.step, description, metrics)
      if problem:
        raise OSError(f"{out}: {problem}.")
    folder = epath.Path(place)
    record_start(folder, source.step)
    with contextlib.closing(MetricWriter(folder)) as writer:
      writer.write(source.step, metrics)
