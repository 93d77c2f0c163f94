"""Runs on masked patches: what they resume and hand on."""

import jax
import numpy as np
import pytest

from tests import runs
from tests.report.example import Page
from vit_jax import load_pretrained
from vit_jax.models import Vit
from vit_jax.report.measure import read_run
from vit_jax.report.page import page
from vit_jax.run import loop
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.runtime.settings import replaced


@pytest.fixture(scope="module")
def config(data_dir):
  config = runs.config(data_dir, image_size=(16, 16), masked={"rate": 0.5})
  config.loss.update(label_smoothing=0.0, mixup_alpha=0.0)
  config.model.pooling = "token"
  config.fewshot.update(shots=2, seeds=1)
  config.mesh.update(data=2, fsdp=2, tensor=2)
  config.eval_pictures = 1
  return config


@pytest.mark.slow
def test_a_run_resumes_is_probed_and_fine_tuned(
  config, data_dir, tmp_path, monkeypatch, capsys
):
  """Accumulation, averaging, dropout and sharded parameters are on."""
  whole, evaluated = loop.train(read(config), str(tmp_path / "whole"))
  shares = "colours_right", "commonest_colour", "colours_right_not_averaged"
  assert all(0 <= evaluated[f"eval/{name}"] <= 1 for name in shares)
  assert "the commonest alone" in capsys.readouterr().out
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert {"eval/masked_1", "eval/colours_right"} <= tags
  save = loop.Checkpoints.save

  def save_then_die(self, state, step, *args):
    save(self, state, step, *args)
    if step == 8:
      raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(loop.Checkpoints, "save", save_then_die)
    loop.train(read(config), str(tmp_path / "stopped"))
  resumed, again = loop.train(read(config), str(tmp_path / "stopped"))
  assert runs.identical(jax.device_get(whole), jax.device_get(resumed))
  assert again == evaluated

  workdir = str(tmp_path / "whole")
  found = evaluate_checkpoint(workdir)
  assert found.items() <= evaluated.items()
  with pytest.raises(ValueError, match="predicts patches, not classes: leave"):
    evaluate_checkpoint(workdir, per_class=True)

  facts = read_run(workdir)
  told = Page(page([facts]))
  assert "colours right" in told.texts("dt")
  alts = [image["alt"] for image in told.images]
  assert sum(alt.startswith("Three panels") for alt in alts) == 6
  assert any(alt.startswith("Colours of masked patches") for alt in alts)
  assert not any("Confusion" in alt for alt in alts)

  where = {"data.name": "digits", "data.data_dir": str(data_dir)}
  probe = replaced(ProbeSettings(), where)
  outcome = probe_checkpoint(workdir, probe, shots=2, seeds=1)
  assert outcome.top1 == pytest.approx(evaluated["fewshot/top1"], abs=1e-6)
  assert evaluated["fewshot/top1_class_token"] != evaluated["fewshot/top1"]

  model, params = load_pretrained(workdir)
  assert type(model) is Vit and not model.num_classes
  assert not {"mask", "head"} & set(params)
  tuned = config.copy_and_resolve_references()
  tuned.update(masked={"rate": 0.0}, total_steps=1, ema_decay=0.0)
  tuned.update(pretrained=workdir, eval_every_steps=0)
  tuned.optimizer.peak_lr = 0.0
  with tuned.unlocked():
    tuned.model = type(tuned.model)(dict.fromkeys(tuned.model))
  state, _ = loop.train(read(tuned), str(tmp_path / "tuned"))
  kept = jax.device_get({k: state.params[k] for k in params})
  assert runs.identical(kept, jax.device_get(params))
  assert set(state.params) - set(params) == {"head"}
  assert np.shape(state.params["head"]["kernel"])[1] == 10
