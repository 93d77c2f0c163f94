"""The learning-rate range test (arXiv:1506.01186, Section 3.3).

A model is trained from the start of its run for a few steps while the learning
rate rises exponentially. The rate at which the loss falls fastest is a good
peak for a run.
"""

import codecs
import csv
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.run.plan import Plan, make_plan
from vit_jax.run.settings import Settings
from vit_jax.run.start import fresh_state
from vit_jax.runtime import extras
from vit_jax.runtime.display import Display
from vit_jax.runtime.files import output_folder, replacing
from vit_jax.runtime.settings import replaced
from vit_jax.runtime.shown import Shown
from vit_jax.training import sharding

_DIVERGED = 4  # The test ends when the loss is this many times the lowest one.
_SMOOTHING = 0.9
_LEAST_STEPS = 10


@dataclasses.dataclass(frozen=True)
class Found:
  """The outcome of a range test.

  `rates` and `losses` are those of each step. `smoothed` is the exponential
  average of the losses, which falls fastest at the rate `suggested`; this is
  None if it never falls. `picture` is the path of their chart, which a notebook
  shows, or None without matplotlib.
  """

  rates: list[float]
  losses: list[float]
  smoothed: list[float]
  suggested: float | None
  picture: str | None = None

  def __repr__(self) -> str:
    """The suggested rate, and those that were tried."""
    rate = "none" if self.suggested is None else f"{self.suggested:.2g}"
    tried = f"of {len(self.rates):,} rates"
    if self.rates:
      tried += f" from {self.rates[0]:.2g} to {self.rates[-1]:.2g}"
    return f"suggested learning rate: {rate}, {tried}"

  def _repr_html_(self) -> str | None:
    """The text of `repr`, and the figure if it was drawn, as HTML."""
    if self.picture is None:
      return f"<p>{self!r}</p>"
    return Shown((self.picture,), repr(self))._repr_html_()


def find_lr(
  settings: Settings,
  out: str,
  *,
  steps: int,
  lowest: float,
  highest: float,
  may_lower_batch: bool = False,
) -> Found:
  """Runs the test; writes `lr_range.csv` and, with matplotlib, a picture.

  The arguments are those of the command. The settings' own schedule and length
  do not matter, and the test may end before `steps`. With `may_lower_batch`, a
  batch that is larger than the training split gets smaller. Raises ValueError
  if the settings, the data or the range are invalid, or the loss diverges after
  too few steps.
  """
  if steps < _LEAST_STEPS or not 0 < lowest < highest:
    raise ValueError(
      f"--steps={steps}, --lowest={lowest:g} and --highest={highest:g}: give "
      f"{_LEAST_STEPS} steps or more, and rates above 0, of which --lowest is "
      "the lower."
    )
  folder = output_folder(out)
  display = Display()
  length = dict(total_steps=steps, total_epochs=0.0, total_examples=0)
  plan = make_plan(replaced(settings, length), may_lower_batch=may_lower_batch)
  if not plan.objective.reads_average:
    no_average = {"ema_decay": 0.0, "ema_warmup": True}
    settings = replaced(plan.settings, no_average)
    plan = dataclasses.replace(plan, settings=settings)
  rates, losses = _losses(plan, steps, lowest, highest, display)
  outcome = suggest(rates, losses)
  with replacing(folder / "lr_range.csv") as file:
    writer: Any = csv.writer(codecs.getwriter("utf-8")(file))
    writer.writerow(("learning_rate", "loss", "smoothed_loss"))
    writer.writerows(zip(rates, losses, outcome.smoothed, strict=True))
  display.note(f"Wrote {folder / 'lr_range.csv'}.")
  try:
    charts = extras.load("vit_jax.inspection.charts", "figures")
  except ValueError as error:
    display.note(f"No picture: {error}.")
  else:
    figure = charts.range_figure(
      rates, losses, outcome.smoothed, outcome.suggested
    )
    with replacing(folder / "lr_range.png") as file:
      figure.savefig(file, format="png")
    display.note(f"Wrote {folder / 'lr_range.png'}.")
    picture = str(folder / "lr_range.png")
    outcome = dataclasses.replace(outcome, picture=picture)
  advice = "The loss never fell: try a wider range or more steps."
  if outcome.suggested is not None:
    best = rates[int(np.argmin(outcome.smoothed))]
    rate = f"{outcome.suggested:.2g}"
    advice = (
      f"The loss falls fastest at {rate} and is lowest at {best:.2g}. Try "
      f"--lr {rate}."
    )
  display.note(advice)
  return outcome


def suggest(rates: Sequence[float], losses: Sequence[float]) -> Found:
  """Smooths the losses and finds where they fall fastest, by log rate.

  Rates above that of the lowest loss are left out: there the loss only falls
  back after it has leapt up.
  """
  weights = np.cumsum(_SMOOTHING ** np.arange(len(losses)))
  totals = itertools.accumulate(losses, lambda total, x: _SMOOTHING * total + x)
  smoothed = (np.array([*totals]) / weights).tolist()
  slope = np.gradient(smoothed, np.log(rates))
  lowest = int(np.argmin(smoothed))
  steepest = int(np.argmin(slope[: lowest + 1]))
  suggested = float(rates[steepest]) if slope[steepest] < 0 else None
  return Found([*rates], [*losses], smoothed, suggested)


def _losses(
  plan: Plan,
  steps: int,
  lowest: float,
  highest: float,
  display: Display,
) -> tuple[list[float], list[float]]:
  """The rate and the loss of each step, until the loss diverges.

  Raises ValueError if it diverges after too few steps to tell a rate.
  """

  def schedule(step: Any) -> Any:
    """The learning rate of a step, from `lowest` to `highest`."""
    return lowest * (highest / lowest) ** (jnp.asarray(step) / (steps - 1))

  ranged = dataclasses.replace(plan, rate=schedule)
  state = fresh_state(plan)
  frozen = plan.extras.frozen_params
  step = ranged.jitted_step
  rates, losses = [], []
  try:
    with plan.open_batches(0) as batches:
      rows = sharding.batch_sharding(plan.mesh)
      on_device = itertools.islice(sharding.to_device(batches, rows, 1), steps)
      for batch in display.track(on_device, "steps", steps):
        state, metrics = step(state, batch, *frozen)
        values = jax.device_get(metrics)
        if values["skipped_steps"]:
          break
        rates.append(float(values["learning_rate"]))
        losses.append(float(values["loss"]))
        if losses[-1] > _DIVERGED * min(losses):
          break
  finally:
    plan.evaluation.stream.close()
  if len(losses) < _LEAST_STEPS:
    raise ValueError(
      f"the loss diverged after {len(losses)} steps: begin with a smaller "
      "--lowest."
    )
  return rates, losses
