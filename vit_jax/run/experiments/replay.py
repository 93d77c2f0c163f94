"""Replays steps of a run, and compares them with the digests that it wrote."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.models.variants import block_names
from vit_jax.pretrained.fetch import without_secrets
from vit_jax.pretrained.locate import is_trusted
from vit_jax.run.outputs import DIGESTED, jit_digest
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import check_is_here, prepared_place, settings_here
from vit_jax.run.settings import Settings
from vit_jax.run.start import fresh_state, restore_state
from vit_jax.runtime.display import Display
from vit_jax.runtime.printable import printable, quoted
from vit_jax.runtime.settings import flat
from vit_jax.tasks.table import LABELLED_TASKS
from vit_jax.training import sharding
from vit_jax.workdir.checkpoint import Checkpoints, open_run
from vit_jax.workdir.checkpoint_reader import again_if_deleted
from vit_jax.workdir.records import (
  DIGESTS,
  describe_start,
  read_digests,
  read_starts,
)
from vit_jax.workdir.rows import parse_rows, to_line

MOST_STEPS = 100  # Steps for which the tolerance holds on other devices.
# Relative tolerance of loss and gradient norm on other devices than the run's
# (docs/evidence/faults.md).
_TOLERANCE = 1e-5
_DEVICES = ("devices", "hosts", "cores", "system")
# The possible cause of a difference, by the beginning of the digest's key. If
# several keys differ, the last of them in this table counts.
_CAUSES = {
  "objective_state": "another objective, in code or settings",
  "averaged_params": "another average, in code or settings",
  "params": "another optimizer, in code or settings",
  "gradient_norm": "other code of the backward pass",
  "loss": "another setting, code, checkpoint or start",
  "batch/": "other data or another order, or a library of another version",
  "seed": "another seed",
}


def verify(
  workdir: str, steps: str | None = None, *, trust: bool = False, **moved: Any
) -> bool:
  """Replays steps of a run, and prints whether they are what the run did.

  The arguments are those of the command, `moved` being `root` and `data_dir`;
  by default, at most 100 steps are replayed, after the newest checkpoint that
  digests follow. Returns whether all digests are equal. Raises ValueError if
  there is no digest of these steps, the checkpoint before them is damaged, the
  data are not there, other devices would need too many steps, or only the
  checkpoint names code or addresses and `trust` is False.
  """
  display = Display(active=jax.process_index() == 0)
  return again_if_deleted(
    lambda: _verify(workdir, steps, trust, display, moved), display.note
  )


def _verify(
  workdir: str,
  steps: str | None,
  trust: bool,
  display: Display,
  moved: Mapping[str, Any],
) -> bool:
  """One attempt of `verify`, on the checkpoints that there are now.

  Returns whether all digests are equal, and raises ValueError as `verify` does.
  """
  with contextlib.closing(open_run(workdir)) as checkpoints:
    digests, broken = read_digests(checkpoints.folder)
    saved = checkpoints.all_steps
    _check_replayable(checkpoints, bool(digests))
    rows, start = _choose_rows(
      {row["step"]: row for row in digests}, saved, steps
    )
    last = max(rows)
    changed, exact = _changes_since(checkpoints, start, last)
    if not exact and last - start > MOST_STEPS:
      raise ValueError(
        f"{'; '.join(changed)}: on other devices at most {MOST_STEPS} steps "
        f"after a checkpoint can be compared, and step {last} is "
        f"{last - start} steps after that of step {start}; replays can begin "
        f"at {[0, *saved]}."
      )
    ended = min((s for s in saved if s >= last), default=checkpoints.choose())
    config = checkpoints.describe(ended)["config"]
    settings = settings_here(config, **moved)
    if moved.get("root") is None:
      check_is_here(settings.data)
    if not trust:
      check_trusted(settings, start, workdir, moved)
    replay = _replay_steps(settings, checkpoints, start, rows, display)
  wrong = _differences(rows, replay, start, exact)
  if broken:
    wrong.append(f"{broken} lines of {DIGESTS} are broken")
  how = "to the last bit" if exact else f"within {_TOLERANCE:g}, except params"
  display.note(
    f"Replayed steps {start + 1:,} to {last:,} of {workdir}, and compared the "
    f"digests of {len(rows)} steps {how}: "
    f"{'they DIFFER' if wrong else 'equal'}."
  )
  for line in [*wrong, *(changed or ["devices and versions are the run's"])]:
    display.note(f"- {line}")
  return not wrong


def _check_replayable(checkpoints: Checkpoints, has_digests: bool) -> None:
  """Raises ValueError for a run that has no steps, or no digests of them."""
  newest = checkpoints.newest_description()
  runs = newest[1].get("merged") if newest else None
  if runs is not None:
    names = quoted(", ".join(map(str, runs))) if isinstance(runs, list) else ""
    raise ValueError(
      f"{checkpoints.folder} is an average of runs, which has no steps to "
      f"replay: verify the runs themselves{names and f', {names}'}."
    )
  if not has_digests:
    raise ValueError(
      f"{checkpoints.folder} has no digests to compare with: a run writes them "
      "if digest_every is not 0."
    )


def _choose_rows(
  rows: dict[int, Any], saved: list[int], steps: str | None
) -> tuple[dict[int, Any], int]:
  """The rows of digests to compare, by step, and the step to begin after.

  `rows` has all of them, and `saved` the steps of checkpoints. The row of the
  step to begin after is chosen as well, if there is one. Raises ValueError if
  `steps` is not as in 400:420, or has no digest.
  """
  if steps is None:
    begin = max((s for s in saved if s < max(rows, default=0)), default=0)
    steps = f"{begin + 1}:{begin + MOST_STEPS}"
  try:
    first, last = map(int, steps.split(":"))
  except ValueError as error:
    raise ValueError(
      f"--steps={steps}: give the first and the last step, as in 400:420."
    ) from error
  chosen = {s: row for s, row in rows.items() if first <= s <= last}
  if not chosen:
    near = sorted(rows, key=lambda step: abs(step - first))[:2]
    raise ValueError(
      f"there is no digest of steps {first} to {last}; the nearest digests "
      f"are of steps {sorted(near)}. The setting digest_every is the number "
      "of steps between two digests."
    )
  start = max((s for s in saved if s < min(chosen)), default=0)
  return {s: rows[s] for s in (start, *chosen) if s in rows}, start


def _changes_since(
  checkpoints: Checkpoints, start: int, last: int
) -> tuple[list[str], bool]:
  """Lines on what has changed since the steps after `start` were taken.

  The second result is whether the devices are the same.
  """
  starts = read_starts(checkpoints.folder).rows
  before = (i for i, s in enumerate(starts) if s["step"] <= start)
  first = max(before, default=0)
  now = flat(describe_start())
  keys: dict[str, str] = {}  # By the text on its change.
  for was in (flat(s) for s in starts[first:] if s["step"] < last):
    for key in was.keys() - {"step", "time", "command"}:
      if was[key] != now.get(key):
        keys[f"{key} was {was[key]} and is {now.get(key)} now"] = key
  return sorted(keys), not any(key in _DEVICES for key in keys.values())


def check_trusted(
  settings: Settings, start: int, workdir: str, moved: Mapping[str, Any]
) -> None:
  """Raises ValueError if only the run's checkpoint names code or addresses.

  `moved` has the places of the data that the user names.
  """
  named = {settings.model.block} - {None, *block_names()}
  named |= {settings.data.task} - {*LABELLED_TASKS}
  sources = {settings.distill.teacher}
  if not start or settings.lora.rank:
    sources.add(settings.pretrained)
  if settings.fewshot.shots:
    sources |= {*prepared_place(settings.fewshot.data).values()}
  for flag, place in prepared_place(settings.data).items():
    if moved.get(flag) is None:
      sources.add(place)
  named |= {s for s in sources if s and not is_trusted(s, workdir)}
  if named:
    shown = (printable(without_secrets(str(name))) for name in named)
    raise ValueError(
      f"this command would import or open {', '.join(sorted(shown))}, which "
      "you did not give and only the run's checkpoint names: if you trust the "
      "checkpoint, give --trust."
    )


def _replay_steps(
  settings: Settings,
  checkpoints: Checkpoints,
  start: int,
  rows: Mapping[int, Any],
  display: Display,
) -> dict[int, dict[str, Any]]:
  """The digests of the steps in `rows`, computed again, by step.

  The run goes on from its checkpoint of step `start`, or begins if that is 0.
  The digest of that checkpoint's state is there as well, unless the model's
  `scan` has changed since.
  """
  saved = checkpoints.describe(start) if start else None
  plan = make_plan(settings, saved)
  plan.evaluation.stream.close()
  frozen = plan.extras.frozen_params
  digest = jit_digest(plan)
  train_step = plan.jitted_step
  digests: dict[int, Any] = {}
  if saved is not None:
    state, _ = restore_state(plan, checkpoints, start, allow_changes=True)
    if saved["model"].get("scan", False) == plan.model.scan:
      state, digests[start] = digest(state, {}, {})
  else:
    state = fresh_state(plan)
  last = max(rows)
  shardings = sharding.batch_sharding(plan.mesh)
  with plan.open_batches(start) as batches:
    on_device = sharding.to_device(batches, shardings, 1)
    steps = display.track(range(start + 1, last + 1), "steps", last - start)
    for step, batch in zip(steps, on_device, strict=False):
      state, metrics = train_step(state, batch, *frozen)
      jax.block_until_ready(metrics)  # Or the host would run far ahead.
      if step in rows:
        state, digests[step] = digest(state, batch, metrics)
  return {
    s: {k: v.item() for k, v in row.items()} for s, row in digests.items()
  }


def _differences(
  rows: Mapping[int, Any], replay: Mapping[int, Any], start: int, exact: bool
) -> list[str]:
  """Describes which digests differ, and what may have caused it."""
  differ = {
    s: _differing_keys(rows[s], row, exact)
    for s, row in replay.items()
    if s in rows
  }
  differ = {s: keys for s, keys in differ.items() if keys}
  texts = []
  if differ.pop(start, None):
    texts.append(f"checkpoint {start} does not have the digest of its step")
  if differ:
    step, keys = next(iter(differ.items()))
    fits = (k for k in _CAUSES if any(key.startswith(k) for key in keys))
    cause = _CAUSES[[*fits][-1]]
    if len(differ) == 1 and step != max(rows):
      cause = "an edited row of digests, as the later rows agree"
    texts.append(
      f"{len(differ)} of {len(rows)} digests differ, from step {step:,} on, "
      f"where {', '.join(keys)} differ; the cause may be {cause}"
    )
  return texts


def _differing_keys(
  row: Mapping[str, Any], replay: Mapping[str, Any], exact: bool
) -> list[str]:
  """The keys whose values differ between a row and its replay."""
  # As the run's row was read from its file: NaN and infinity became None.
  finite = parse_rows(to_line({**replay, "step": row["step"]}))[0][0]

  def same(key: str) -> bool:
    """Whether a value is equal, or on other devices within the tolerance.

    On other devices, checksums of parameters are not compared.
    """
    one = row.get(key)
    two = finite[key]
    if exact or key not in DIGESTED or one is None or two is None:
      return one == two or (not exact and "params" in key)
    return math.isclose(one, two, rel_tol=_TOLERANCE)

  return sorted(key for key in replay if not same(key))
