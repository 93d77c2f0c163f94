"""What LeJEPA refuses."""

import pytest

from vit_jax import make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.tasks.lejepa.settings import LeJepaSettings
from vit_jax.tasks.lejepa.task import LeJepaTask
from vit_jax.training.losses import LossSettings
from vit_jax.training.schedules import RunLength

LENGTH = RunLength(total_steps=4, batch_size=1, num_examples=9)


def task(**settings):
  return LeJepaTask(LossSettings(), LeJepaSettings(weight=0.05, **settings))


REFUSED = {
  "a batch of one image": (
    lambda model: (
      task(small_size=8)
      .objective(model, Preprocessing((16, 16)))
      .for_run(model, LENGTH)
    ),
    "^batch_size=1: LeJEPA compares the distribution",
  ),
  "small crops of parts of patches": (
    lambda model: task(small_size=9).objective(model, Preprocessing((16, 16))),
    "^lejepa.small_size=9 does not divide by .* 4 pixels: set 8 or 12",
  ),
  "small crops above the large": (
    lambda model: task(small_size=32).objective(model, Preprocessing((16, 16))),
    "^lejepa.small_size=32 is more than the large crops' image_size",
  ),
  "areas that overlap": (
    lambda model: task(area=0.1, min_area=0.2),
    "min_area=0.2 leaves no small crop below area=0.1",
  ),
  "positions of one size": (
    lambda model: task().adapted(model.clone(position="sincos1d")),
    "^lejepa.weight: position='sincos1d' does not fit crops of two sizes",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_line(name):
  call, message = REFUSED[name]
  sizes = dict(num_layers=1, hidden_size=8, mlp_size=8, num_heads=2)
  with pytest.raises(ValueError, match=message):
    call(make_vit("Ti/4", 0, **sizes))
