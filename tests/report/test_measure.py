"""Measurements of a run's checkpoint, against those made while it trained."""

import numpy as np
import pytest

from tests.report.example import Page, config_of
from tests.runs import events
from vit_jax.config import base_config
from vit_jax.models import variants
from vit_jax.report.measure import read_run
from vit_jax.report.page import page
from vit_jax.run.loop import train
from vit_jax.run.settings import read


@pytest.mark.slow
def test_a_run_is_measured_as_it_was_evaluated(workdir, root):
  run = read_run(str(workdir))
  assert run.problem is None and run.measured is not None
  assert run.measured.total_steps == run.rows[-1]["step"] == run.measured.step
  last = [row for row in run.rows if "eval/top1" in row][-1]
  for key in ("eval/top1", "eval/loss", "eval/examples"):
    assert run.measured.metrics[key] == pytest.approx(last[key])
  confusion = run.measured.outcome.counts.matrix([0, 1])
  assert confusion.sum() == 12
  assert np.trace(confusion) / 12 == pytest.approx(last["eval/top1"])
  for *_, shown in run.measured.groups:
    for one in shown:
      name = "dark" if one.photograph.mean() < 128 else "light"
      assert one.example.alt == f"Photograph of class {name}"
      assert one.rollout is not None
      assert one.rollout.sum() == pytest.approx(1)  # Mean pooling.
  assert run.starts[0]["step"] == 0 and run.starts[0]["command"] is None
  assert run.config["data.root"] == str(root)
  best = max(row["eval/top1"] for row in run.rows if "eval/top1" in row)
  assert run.best and run.best[1] == f"top-1 {best:.2%}"


@pytest.mark.slow
def test_a_resnet_of_a_wide_head_has_a_report(root, tmp_path, monkeypatch):
  """It has no attention, a sigmoid loss, and classes without names."""
  monkeypatch.setitem(variants.RESNETS, "R50", (1, 1, 1, 1))  # Compiles sooner.
  config = config_of(root)
  config.model = base_config().model
  config.model.variant, config.model.num_classes = "R50x1", 50
  config.image_size, config.loss.kind = (32, 32), "sigmoid"
  config.eval_pictures = 1
  config.total_steps, config.loss.label_smoothing = 1, 0.0
  train(read(config), str(tmp_path))
  run = read_run(str(tmp_path))
  assert run.problem is None and run.measured is not None
  text = page([run])
  seen = Page(text)
  told = [image["alt"] for image in seen.images]
  assert not any("rollout" in t or "filters" in t for t in told)
  assert sum("Confusion matrix" in t for t in told) == 1
  last = [row for row in run.rows if "eval/loss" in row][-1]
  assert run.measured.metrics["eval/loss"] == pytest.approx(last["eval/loss"])
  kinds = run.measured.outcome.counts.kinds
  kept = [one for answered in kinds.values() for one in answered]
  assert len(kept) == sum(len(shown) for *_, shown in run.measured.groups)
  assert kept and all(0 < one.probability < 1 for one in kept)
  assert [tag for _, tag, value in events(tmp_path) if value.HasField("image")]
