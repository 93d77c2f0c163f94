"""The row of pairs: captions, a SigLIP of small towers, and its faults."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from configs import pairs
from scripts.parity import inputs as given_inputs
from scripts.parity import ours
from scripts.parity.inputs import Inputs
from scripts.parity.ours import CLASSES, Setup, Trajectory
from scripts.parity.row import BATCH, PROBES, SIZES, STEPS, Row
from vit_jax.data.reading.captions import TEXT
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import BIAS, LOG_SCALE

VOCABULARY, LENGTH, PAD = 24, 7, 1
RATE, DECAY = 1e-3, 1e-2


def config() -> Any:
  c = pairs.get_config()
  c.data.labels_file = "captions.csv"  # It is not read: captions are given.
  c.model.update(pooling="map", position="learned", gelu="tanh")
  c.pairs.update(
    vocabulary=VOCABULARY, text_length=LENGTH, text_size=SIZES["hidden"]
  )
  c.optimizer.update(peak_lr=RATE, weight_decay=DECAY)
  return c


def siglip(model: Any) -> Any:
  """The pair with a text tower like SigLIP's."""
  text = TextTower(
    num_classes=0,
    vocabulary=VOCABULARY,
    length=LENGTH,
    hidden_size=SIZES["hidden"],
    num_layers=SIZES["layers"],
    mlp_size=SIZES["mlp"],
    num_heads=SIZES["heads"],
    pooling="last",
    representation_size=SIZES["hidden"],
    projection_bias=True,
  )
  return model.clone(text=text)


class Paired(Row):
  """A caption of each image for both sides, some of them equal."""

  def setup(self) -> Setup:
    setup = super().setup()
    texts, probe = captions(self)
    return dataclasses.replace(setup, theirs={"texts": texts, "probe": probe})

  def drawn(self, setup: Setup) -> list[Any]:
    return []

  def inputs(self, setup: Setup) -> Inputs:
    inputs = super().inputs(setup)
    first = {
      LOG_SCALE: np.asarray(setup.model.first_log_scale, np.float32),
      BIAS: np.asarray(setup.model.first_bias, np.float32),
    }
    return dataclasses.replace(inputs, params=inputs.params | first)

  def run(
    self, setup: Setup, inputs: Inputs, marks: tuple[int, ...]
  ) -> Trajectory:
    """Trains on all batches; the logits are those of images and texts."""
    texts, probe = captions(self)

    def answer(params: Any) -> Any:
      given = jnp.asarray(inputs.probe), jnp.asarray(probe)
      return setup.model.apply({"params": params}, given).logits()

    return ours.run(setup, inputs, marks, {TEXT: texts}, answer)


def captions(row: Row) -> tuple[np.ndarray, np.ndarray]:
  """Ids of the batches' texts, (T, B, 7), and of those to compare, (16, 7).

  Each class has two captions, of several lengths, so that a batch has equal
  ones.
  """
  _, labels = given_inputs.make_batches(STEPS, BATCH, CLASSES, row.seed)
  rng = np.random.default_rng([row.seed, 5])
  table = rng.integers(PAD + 1, VOCABULARY, (CLASSES, 2, LENGTH))
  lengths = rng.integers(2, LENGTH + 1, (CLASSES, 2, 1))
  table = np.where(np.arange(LENGTH) < lengths, table, PAD).astype(np.int32)
  texts = table[labels, rng.integers(2, size=labels.shape)]
  return texts, np.resize(table.reshape(-1, LENGTH), (PROBES, LENGTH))


def averaged(loss: Any) -> Any:
  """The loss as a mean over all pairs of the batch."""
  return lambda u, *rest: loss(u, *rest) / len(u)


def plain_scale(loss: Any) -> Any:
  """The scale itself in the place of its logarithm."""

  def changed(u: Any, v: Any, log_scale: Any, *rest: Any) -> Any:
    return loss(u, v, jnp.log(log_scale), *rest)

  return changed


def scaled_bias(loss: Any) -> Any:
  """The bias within the scale."""

  def changed(u: Any, v: Any, log_scale: Any, bias: Any, *others: Any) -> Any:
    return loss(u, v, log_scale, bias * jnp.exp(log_scale), *others)

  return changed


def all_distinct(_: Any) -> Any:
  return lambda texts: jnp.arange(len(texts))


def as_they_are(_: Any) -> Any:
  return lambda x: x.astype(jnp.float32)
