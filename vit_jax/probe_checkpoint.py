"""The few-shot evaluation of a checkpoint, published or a run's."""

from collections.abc import Sequence
from typing import Any

import jax
import ml_collections

from vit_jax import data, experiment, sharding
from vit_jax.display import Display
from vit_jax.pretrained.load import load_pretrained
from vit_jax.probing import FewShot, Outcome
from vit_jax.train_step import make_params_init


def probe_checkpoint(
  checkpoint: str,
  config: ml_collections.ConfigDict,
  *,
  shots: int,
  seeds: int,
  step: int | None = None,
  display: Display | None = None,
) -> Outcome:
  """Few-shot evaluation of a published checkpoint, or of a run of ours.

  Args:
    checkpoint: Anything that `load_pretrained` takes.
    config: `fewshot.probe_config` tells its keys. What is None there is the
      checkpoint's.
    shots: Images a class.
    seeds: How many draws.
    step: Of a workdir's checkpoint; by default the newest.
    display: To say there what is about to happen.

  Raises:
    ValueError: if the checkpoint, the data and the rest do not fit together.
  """
  sources = [experiment.open_source(config, s) for s in ("train", "eval")]
  mesh = sharding.make_mesh(**config.mesh)
  model, params = load_pretrained(checkpoint, **_overrides(config, step))
  config = experiment.resolved(config, model.origin)
  few_shot = FewShot(config, model, mesh, *sources, shots=shots, seeds=seeds)
  if display is not None:
    display.header(_header(checkpoint, config, few_shot, sources))
  size = experiment.image_size(config)
  shapes = experiment.array_shapes(make_params_init(model, (*size, 3)), mesh)
  params = jax.tree.map(
    lambda x, shape: jax.device_put(x, shape.sharding), params, shapes
  )
  return few_shot.measure(params)


def _overrides(
  config: ml_collections.ConfigDict, step: int | None
) -> dict[str, Any]:
  """What the configuration has to say to `load_pretrained`."""
  given = {
    **config.model,
    **config.normalization,
    "image_size": config.image_size and experiment.image_size(config),
    "interpolation": config.transfer.interpolation,
    "step": step,
  }
  return {name: value for name, value in given.items() if value is not None}


def _header(
  checkpoint: str,
  config: ml_collections.ConfigDict,
  few_shot: FewShot,
  sources: Sequence[data.Source],
) -> list[tuple[str, str]]:
  height, width = experiment.image_size(config)
  train, test = sources
  classes = f"{len(train.class_names):,} classes"
  return [
    ("model", f"{checkpoint} at {height} x {width}"),
    ("data", f"{train.name}, {classes}, {len(test):,} test images"),
    ("shots", f"{few_shot.num_shots:,} images over all draws"),
  ]
