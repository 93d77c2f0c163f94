"""What is said of the weights that a run starts from."""

import types
from typing import Any

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.tiny import SIZES
from vit_jax.models.autoencoder import autoencoder
from vit_jax.models.grid import param_shapes
from vit_jax.models.masked_vit import masked_vit
from vit_jax.models.parts import Parts
from vit_jax.models.segmenter import segmenter
from vit_jax.models.variants import make_vit
from vit_jax.run import start

VIT = make_vit("Ti/8", 3, **SIZES)
TRUNK = VIT.clone(num_classes=0)
DECODER = dict(decoder_size=16, decoder_layers=1, decoder_heads=2)


@pytest.mark.parametrize(
  "model, said",
  [
    (VIT, False),
    (segmenter(TRUNK, 3), False),
    (masked_vit(TRUNK, 48), True),
    (autoencoder(TRUNK, **DECODER), True),
  ],
)
def test_a_mask_token_that_is_not_read_matters_to_who_hides_patches(
  capsys, model, said
):
  shapes = param_shapes(model, (2, 2))
  plan: Any = types.SimpleNamespace(
    param_shapes=unflatten_dict(shapes, sep="/"),
    parts=Parts.of(model, shapes),
    model=model,
    task=types.SimpleNamespace(keeps_parts=False),
    settings=types.SimpleNamespace(
      transfer=types.SimpleNamespace(interpolation="", keep_head=False),
      lora=types.SimpleNamespace(rank=0),
    ),
    preprocessing=types.SimpleNamespace(image_size=0, channels=3, bands=()),
  )
  origin = types.SimpleNamespace(source=f"weights for {model}")
  loaded: Any = types.SimpleNamespace(origin=origin, unread=("mask_token",))
  start.transferred_leaves(plan, loaded)  # It reads none yet.
  err = capsys.readouterr().err
  assert ("1 array is not read, as this model does not use it" in err) == said


@pytest.mark.parametrize(
  "rate, steps, moves",
  [
    (1e-5, 2, False),
    (1e-5, 140, False),  # 0.0014 of 0.03 is 4.7 %.
    (1e-5, 160, True),
    (0.01, 6, True),
  ],
)
def test_folds_judge_a_head_that_training_leaves_almost_as_it_is(
  rate, steps, moves
):
  plan: Any = types.SimpleNamespace(
    settings=types.SimpleNamespace(
      optimizer=types.SimpleNamespace(peak_lr=rate)
    ),
    lengths=types.SimpleNamespace(total=steps),
  )
  kernel = np.full((8, 3), 0.03) * [1, -1, 1]
  assert start.moves_head(plan, kernel) == moves
