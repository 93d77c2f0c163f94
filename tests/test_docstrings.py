"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import vit_jax
from vit_jax import data, models, tasks, training

FINDER = doctest.DocTestFinder(recurse=False)
CALLED = ("convert", "train")  # Modules that are called as functions.
EXAMPLES = {
  test.name: test
  for package in (vit_jax, data, models)
  for name in package.__all__
  for test in FINDER.find(
    getattr(package, name), f"{package.__name__}.{name}", globs={}
  )
  if test.examples
}
EXAMPLES |= {
  test.name: test
  for package in (tasks, training)
  for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
  for name, value in vars(importlib.import_module(info.name)).items()
  if getattr(value, "__module__", None) == info.name
  and name not in vit_jax.__all__
  for test in FINDER.find(value, f"{info.name}.{name}", globs={})
  if test.examples
}
EXAMPLES |= {
  test.name: test
  for name in CALLED
  for test in FINDER.find(
    getattr(vit_jax, name).__call__, f"vit_jax.{name}", globs={}
  )
}
# They compile steps, layers, or dozens of small programs.
SLOW = {
  "vit_jax.as_nnx",
  "vit_jax.convert",
  "vit_jax.export_model",
  "vit_jax.features",
  "vit_jax.init_params",
  "vit_jax.load_pretrained",
  "vit_jax.make_train_step",
  "vit_jax.models.Patches",
  "vit_jax.new_head",
  "vit_jax.predict_images",
  "vit_jax.save",
  "vit_jax.tasks.classification.eval_step.label_rank",
  "vit_jax.tasks.lejepa.objective.normality",
  "vit_jax.tasks.masked.objective.mean_colours",
  "vit_jax.tasks.probes.label_errors.out_of_fold",
  "vit_jax.training.contrastive.sigmoid_loss",
  "vit_jax.training.contrastive.softmax_loss",
  "vit_jax.training.contrastive.text_groups",
  "vit_jax.training.inputs.places",
  "vit_jax.training.losses.cutmix",
  "vit_jax.training.losses.mixup",
  "vit_jax.train",
}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in EXAMPLES
  ],
)
def test_an_example_prints_what_it_says(name):
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  printed: list[str] = []
  assert not runner.run(EXAMPLES[name], out=printed.append).failed, printed


def test_functions_on_a_model_and_images_have_an_example():
  functions = {
    name
    for name in vit_jax.__all__
    if getattr(vit_jax, name).__module__.startswith("vit_jax.inference.")
  }
  assert functions == {"export_model", "features", "predict_images"}
  assert {f"vit_jax.{name}" for name in functions} <= {*EXAMPLES}


def test_functions_on_data_have_an_example():
  functions = {
    name for name in data.__all__ if inspect.isfunction(getattr(data, name))
  }
  assert {"as_grain", "open_source"} <= functions
  expected = {*functions, "Loader", "Preprocessing"}
  assert {f"vit_jax.data.{name}" for name in expected} <= {*EXAMPLES}


def test_main_functions_of_training_and_tasks_have_an_example():
  functions = {"as_nnx", "init_params", "make_train_step"}
  functions |= {"list_models", "new_head", "normalize"}
  functions |= {"load_pretrained", "save", *CALLED}
  assert {f"vit_jax.{name}" for name in functions} <= {*EXAMPLES}
  names = {
    "training.optimizer.make_optimizer",
    "training.optimizer.make_schedule",
    "training.losses.cross_entropy",
    "training.losses.cutmix",
    "training.losses.mixup",
    "training.sharding.make_mesh",
    "training.lora.chosen_kernels",
    "tasks.choose.task_class",
    "tasks.multilabel.task.average_precision",
    "tasks.probes.linear_probe.fit",
  }
  assert {f"vit_jax.{name}" for name in names} <= {*EXAMPLES}


def test_functions_on_models_have_an_example():
  functions = {
    name for name in models.__all__ if inspect.isfunction(getattr(models, name))
  }
  assert {"make_vit", "to_fields"} <= functions
  expected = {*functions, "Tokens"}
  assert {f"vit_jax.models.{name}" for name in expected} <= {*EXAMPLES}
