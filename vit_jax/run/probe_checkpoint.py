"""The few-shot evaluation of a checkpoint, published or a run's."""

from collections.abc import Sequence
from typing import Any

import jax
import ml_collections

from vit_jax import data
from vit_jax.data import splits
from vit_jax.evaluation.few_shot import FewShot, Outcome
from vit_jax.inference.predictor import image_size
from vit_jax.models import ResNet, Vit
from vit_jax.pretrained.load import load_pretrained
from vit_jax.run import experiment
from vit_jax.runtime.display import Display
from vit_jax.training import sharding
from vit_jax.training.train_step import make_params_init


def probe_checkpoint(
  checkpoint: str,
  config: ml_collections.ConfigDict,
  *,
  shots: int,
  seeds: int,
  display: Display | None = None,
  **overrides: Any,
) -> Outcome:
  """Few-shot evaluation of a published checkpoint, or of a run of ours.

  Args:
    checkpoint: Anything that `load_pretrained` takes.
    config: `fewshot.probe_config` tells its keys.
    shots: Images a class.
    seeds: How many draws.
    display: To say there what is about to happen.
    **overrides: As of `load_pretrained`.

  Raises:
    ValueError: if the checkpoint, the data and the rest do not fit together.
  """
  sources = [splits.open_source(config, s) for s in ("train", "eval")]
  mesh = sharding.make_mesh(**config.mesh)
  overrides["interpolation"] = config.transfer.interpolation
  model, params = load_pretrained(checkpoint, **overrides)
  config = _with_preprocessing(config, model)
  few_shot = FewShot(config, model, mesh, *sources, shots=shots, seeds=seeds)
  if display is not None:
    display.header(_header(checkpoint, config, few_shot, sources))
  init = make_params_init(model, (*config.image_size, 3))
  shapes = experiment.array_shapes(init, mesh)
  params = jax.tree.map(
    lambda x, shape: jax.device_put(x, shape.sharding), params, shapes
  )
  return few_shot.measure(params)


def _with_preprocessing(
  config: ml_collections.ConfigDict, model: Vit | ResNet
) -> ml_collections.ConfigDict:
  """A copy that says how images have to be given to the model."""
  origin = model.origin
  assert origin is not None
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.image_size = image_size(model)
    config.normalization = dict(mean=origin.mean, std=origin.std)
  return config


def _header(
  checkpoint: str,
  config: ml_collections.ConfigDict,
  few_shot: FewShot,
  sources: Sequence[data.Source],
) -> list[tuple[str, str]]:
  height, width = config.image_size
  train, test = sources
  classes = f"{len(train.class_names):,} classes"
  return [
    ("model", f"{checkpoint} at {height} x {width}"),
    ("data", f"{train.name}, {classes}, {len(test):,} test images"),
    ("shots", f"{few_shot.num_shots:,} images over all draws"),
  ]
