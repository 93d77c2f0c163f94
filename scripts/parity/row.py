"""A row of the comparison: a recipe, its reference and what is different."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.parity import inputs as given_inputs
from scripts.parity import ours
from scripts.parity.inputs import Arrays, Inputs
from scripts.parity.ours import CLASS_NAMES, CLASSES, Setup, Trajectory
from scripts.parity.recording import MARKS, Tolerances
from vit_jax.pretrained.formats import google
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes, read_all
from vit_jax.run import build
from vit_jax.run.settings import read
from vit_jax.training.state import Extras

FLOAT32 = Tolerances()
STEPS, WARMUP, BATCH = MARKS[-1], 12, 8
PROBES = 16  # Images whose logits are compared.
SIZES = dict(patch=4, hidden=32, layers=2, mlp=64, heads=2, classes=CLASSES)


@dataclasses.dataclass(frozen=True)
class Row:
  """A recipe to compare.

  Attributes:
    title: The recipe, and what of it, for the page.
    reference: The repository or library that is the reference.
    program: The file in `reference/` that runs it.
    recipe: What that program is told: the reference's own numbers.
    config: Makes our configuration.
    faults: Names of the faults that apply; `faults.py` has them.
    rules: The format by whose names the reference calls its arrays.
    rename: From these names to the reference's own.
    adapt: Makes our model from that of the configuration.
    extras: Makes LoRA's base or a teacher, and its arrays by the reference's
      names.
    scale: How many times the reference's loss ours is.
    different: What is different on purpose, in a sentence each.
    variants: What the reference does otherwise, and here does not: changes of
      its recipe by their names, whose effect is recorded.
  """

  title: str
  reference: str
  program: str
  recipe: dict[str, Any]
  config: Callable[[], Any]
  faults: tuple[str, ...]
  rules: Callable[[Any], list[Rule]] = google.rules
  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  adapt: Callable[[Any], Any] | None = None
  extras: Callable[[Any, Any], tuple[Extras, Arrays]] | None = None
  tolerances: Tolerances = FLOAT32
  scale: float = 1.0
  different: tuple[str, ...] = ()
  variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  seed: int = 0

  def setup(self) -> Setup:
    """The settings and the model of our side."""
    config = self.config()
    config.image_size = (given_inputs.SIDE, given_inputs.SIDE)
    config.batch_size = BATCH
    config.pretrained = None
    config.total_steps, config.total_epochs = STEPS, 0.0
    config.optimizer.update(
      warmup_steps=WARMUP, warmup_epochs=0.0, warmup_examples=0
    )
    model = dict(
      variant=f"Ti/{SIZES['patch']}",
      hidden_size=SIZES["hidden"],
      num_layers=SIZES["layers"],
      mlp_size=SIZES["mlp"],
      num_heads=SIZES["heads"],
      scan=False,
      remat="none",
    )
    config.model.update({**model, "dtype": "float32", **self.fields})
    if config.model.representation_size:
      config.model.representation_size = SIZES["hidden"]
    settings = build.resolved(read(config), None)
    model = build.build_model(settings, build.task_of(settings), CLASS_NAMES)
    model = self.adapt(model) if self.adapt else model
    extras, theirs = Extras(), {}
    if self.extras:
      extras, theirs = self.extras(settings, model)
    return Setup(settings, model, extras, theirs)

  def inputs(self, setup: Setup) -> Inputs:
    calls = self.drawn(setup)
    images, labels = given_inputs.make_batches(STEPS, BATCH, CLASSES, self.seed)
    probe, _ = given_inputs.make_batches(1, PROBES, CLASSES, self.seed + 1)
    preprocessing = build.make_preprocessing(setup.settings)
    shapes = ours.trained_shapes(setup, STEPS)
    return Inputs(
      params=given_inputs.make_params(shapes, self.seed),
      images=images,
      labels=labels,
      uniforms=given_inputs.make_uniforms(calls, STEPS, self.seed),
      chances=[p for p, _ in calls],
      mixing=given_inputs.make_mixing(STEPS, self.seed),
      probe=normalized(probe[0], preprocessing),
    )

  def drawn(self, setup: Setup) -> list[Any]:
    """The calls of `bernoulli` in a step whose numbers both sides are given."""
    return ours.drawn(setup, STEPS, BATCH)

  def run(
    self, setup: Setup, inputs: Inputs, marks: tuple[int, ...]
  ) -> Trajectory:
    """The trajectory of our side."""
    return ours.run(setup, inputs, marks)

  def written(self, setup: Setup, params: Arrays) -> Arrays:
    """Our arrays by the reference's names."""
    sizes = axis_sizes(setup.model)
    return {
      rule.theirs: rule.write([params[path] for path in rule.ours], sizes)
      for rule in self.rules(setup.model)
    }

  def read(self, setup: Setup, arrays: Arrays) -> Arrays:
    """The reference's arrays by our paths."""
    return dict(read_all(self.rules(setup.model), arrays, setup.model))

  def owners(self, setup: Setup) -> dict[str, str]:
    """The reference's name of the array that holds each of ours."""
    rules = self.rules(setup.model)
    return {path: rule.theirs for rule in rules for path in rule.ours}


def normalized(images: Any, preprocessing: Any) -> Any:
  """The images that a model gets, by NumPy."""
  mean, std = (np.float32(x) for x in (preprocessing.mean, preprocessing.std))
  return (images.astype("float32") / 255 - mean) / std
