"""Every task takes the same steps in every layout of its devices."""

import shutil

import jax
import numpy as np
import pytest

from tests import old_runs
from tests.saved_data import write_captions, write_data, write_scenes
from vit_jax.config import base_config
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state
from vit_jax.training import sharding

SAVED = old_runs.CHECKPOINTS / "saved_runs"
TASKS = (
  *("class_weights", "sigmoid", "multilabel", "regression", "masked"),
  *("autoencoder", "self_distillation", "student", "pairs", "segmentation"),
)
PACKED = {"data.tokens": 4, "data.images_per_row": 2, "data.min_tokens": 1}
# Images of any size that share rows; others are in `test_any_size_packed`.
ANY_SIZE = {
  "multilabel": PACKED,
  "student": {
    **PACKED,
    "model.position": "sincos2d",
    "distill.teacher": str(SAVED / "multilabel"),
  },
}
COUPLED = ("self_distillation",)  # Their batches are not computed in parts.
LAYOUTS = {"data": {"data": 2}, "fsdp": {"data": 1, "fsdp": 2}, "parts": {}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with what the runs name."""
  folder = tmp_path_factory.mktemp("place")
  write_data(folder)
  write_captions(folder)
  write_scenes(folder)
  plain = old_runs.CHECKPOINTS / "workdirs" / "plain"
  shutil.copytree(plain, folder / "workdirs" / "plain")
  return folder


def steps(name, monkeypatch, layout, changed):
  """The losses of the first two steps of a saved run's configuration."""
  axes = {"data": 1, "fsdp": 1, "tensor": 1} | LAYOUTS.get(layout, {})
  make_mesh = sharding.make_mesh
  devices = jax.devices()[: axes["data"] * axes["fsdp"]]
  changes = {
    **{f"mesh.{axis}": size for axis, size in axes.items()},
    "accumulation_steps": 2 if layout == "parts" else 1,
    "model.dropout_rate": 0.0,  # Its draws depend on the parts.
    **changed,
  }
  if name == "self_distillation":  # What it does is in docs/promises.md.
    changes["self_distillation.koleo_weight"] = 0.0
  config = base_config()
  config.update(old_runs.described(SAVED / name)["config"])
  config.update_from_flattened_dict(changes)
  config.fewshot.data.held_out_by = None
  settings = read(config)
  with monkeypatch.context() as patch:
    patch.setattr(
      sharding,
      "make_mesh",
      lambda **given: make_mesh(**{**given, "devices": devices}),
    )
    plan = make_plan(settings)
    plan.evaluation.stream.close()
    state, losses = fresh_state(plan), []
    with plan.open_batches(0) as batches:
      split = sharding.batch_sharding(plan.mesh)
      on_device = sharding.to_device(batches, split, 1)
      for _, batch in zip(range(2), on_device, strict=False):
        frozen = plan.extras.frozen_params
        state, metrics = plan.jitted_step(state, batch, *frozen)
        losses.append(float(metrics["loss"]))
  return losses


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, changed",
  [*[(name, {}) for name in TASKS], *ANY_SIZE.items()],
)
def test_every_task_has_the_losses_of_one_device(
  name, changed, place, monkeypatch
):
  """On two devices, with FSDP, and by accumulation; resumes of each task are in
  `test_saved_runs`, to the bit.
  """
  monkeypatch.chdir(place)
  one = steps(name, monkeypatch, "one", changed)
  assert np.isfinite(one).all()
  for layout in LAYOUTS:
    if layout == "parts" and name in COUPLED:
      continue
    found = steps(name, monkeypatch, layout, changed)
    np.testing.assert_allclose(found, one, rtol=3e-6, err_msg=layout)
