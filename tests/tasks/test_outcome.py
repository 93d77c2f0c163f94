"""How many rows the batches of an evaluation have."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from vit_jax.tasks.outcome import Stream
from vit_jax.training.sharding import make_mesh


@pytest.mark.parametrize(
  "examples, batch_size, devices, rows",
  [
    (12, 32, 1, 12),  # A small split is not padded to the run's batch.
    (48, 32, 1, 24),
    (33, 32, 1, 24),
    (64, 32, 1, 32),
    (10_000, 64, 1, 64),
    (10_000, 512, 1, 504),
    (50_000, 1024, 1, 1024),
    (7, 6, 1, 6),
    (12, 32, 8, 16),
    (0, 32, 1, 1),  # Which the loader refuses.
  ],
)
def test_as_few_batches_have_as_few_rows(examples, batch_size, devices, rows):
  asked: list[int] = []
  fake: Any = SimpleNamespace(evaluate=lambda *args: asked.append(args[2]))
  Stream(
    range(examples),  # pyright: ignore[reportArgumentType]
    make_mesh(devices=jax.devices()[:devices]),
    preprocessing=fake,
    loader=fake,
    batch_size=batch_size,
    transform=fake,
  )
  assert asked == [rows]
