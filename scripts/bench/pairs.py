"""Estimates big_vision's SigLIP B/16 on TPUs, beside docs/scaling.md's of ours.

python -m scripts.bench.pairs --reference FOLDER [--topology v5e:4x4]

FOLDER is a clone of big_vision, whose two towers this program imports and never
fetches. It compiles their train step for 4,096 pairs: images of 256 x 256 and
texts of 64 tokens, all logits at once as in their trainer, with Adam and the
mesh of ours.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any
from unittest import mock

from vit_jax.estimate import set_environment

PAIRS, SIDE, TOKENS = 4096, 256, 64
IMAGE = dict(variant="B/16", pool_type="map", scan=True)
TEXT = dict(variant="B", vocab_size=32_000, scan=True)


def towers(folder: pathlib.Path) -> Any:
  """The model of its SigLIP B/16; only its checkpoints need the stand-ins."""
  for name in ("big_vision.utils", "big_vision.models.common"):
    sys.modules[name] = mock.MagicMock()
  sys.path.insert(0, str(folder))
  from big_vision.models.proj.image_text import two_towers  # pyright: ignore[reportMissingImports]

  return two_towers.Model(
    image=IMAGE | {"dtype_mm": "bfloat16"},
    text=TEXT,
    out_dim=(None, 768),
    temperature_init=10.0,
    bias_init=-10.0,
  )


@dataclasses.dataclass(frozen=True)
class AllLogits:
  """The sigmoid loss with the array of all logits, B x B."""

  metric = "cosine"

  def inputs(self, batch: Any) -> Any:
    return batch["image"].astype("float32") / 127.5 - 1, batch["text"]

  def prepare(self, batch: Any, key: Any) -> Any:
    del key
    return self.inputs(batch), ()

  def loss(
    self, apply: Any, images: Any, targets: Any, frozen_params: Any = None
  ) -> Any:
    import jax
    import jax.numpy as jnp

    del targets, frozen_params
    u, v, out = apply(images)
    logits = (u @ v.T) * out["t"] + out["b"]
    z = 2 * jnp.eye(len(u)) - 1
    losses = -jax.nn.log_sigmoid(z * logits).sum(axis=1)
    return losses, (u * v).sum(axis=1)


def lowered(folder: pathlib.Path, mesh: Any) -> Any:
  import jax
  import jax.numpy as jnp
  import optax

  from vit_jax.training import sharding
  from vit_jax.training.optimizer import make_optimizer
  from vit_jax.training.settings import OptimizerSettings
  from vit_jax.training.state import TrainState
  from vit_jax.training.step import make_train_step

  model = towers(folder)

  class Model:
    """Takes the pair of inputs as one argument."""

    num_classes = 0

    def apply(self, variables: Any, inputs: Any, **how: Any) -> Any:
      del how["method"]
      return model.apply(variables, *inputs, **how)

  schedule = optax.constant_schedule(1e-3)
  tx = make_optimizer(OptimizerSettings(weight_decay=1e-4), schedule)

  def init(key: Any) -> Any:
    image, text = jnp.zeros((1, SIDE, SIDE, 3)), jnp.zeros((1, TOKENS), "int32")
    params = model.init(key, image, text)["params"]
    return TrainState(jnp.int32(0), params, tx.init(params))

  own: Any = Model()
  objective: Any = AllLogits()
  step = make_train_step(own, tx, schedule, objective=objective)
  rows = sharding.batch_sharding(mesh)
  images = jax.ShapeDtypeStruct((PAIRS, SIDE, SIDE, 3), "uint8", sharding=rows)
  texts = jax.ShapeDtypeStruct((PAIRS, TOKENS), "int32", sharding=rows)
  state = sharding.array_shapes(init, mesh)
  jitted = sharding.jit_train_step(step, state, mesh)
  return jitted.lower(state, {"image": images, "text": texts})


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--reference", type=pathlib.Path, required=True)
  parser.add_argument("--topology", default="v5e:4x4")
  options = parser.parse_args()
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler
  from vit_jax.training import sharding

  chip, devices = compiler.devices_of(options.topology)
  mesh = sharding.make_mesh(devices=devices)
  program = lowered(options.reference, mesh)
  row, _ = compiler.cost(program, chip, mesh, PAIRS / len(devices), 0.0)
  sent = sum(part["mib"] for part in row["collectives"].values())
  print(
    f"{row['mcycles']:.1f} Mcycles, {row['hbm_gib']['peak']:.1f} GiB, "
    f"{sent:.0f} MiB between chips; {row['collectives']}"
  )


if __name__ == "__main__":
  main()
