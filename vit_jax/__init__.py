"""vit_jax: the Vision Transformer (arXiv:2010.11929) in JAX and Flax linen.

Names are imported when they are first used, so that data workers, which need
only `vit_jax.data`, do not load the models and Flax.
"""

from typing import TYPE_CHECKING, Any

from etils import epy

if TYPE_CHECKING:
  from vit_jax.convert import convert
  from vit_jax.evaluate import evaluate
  from vit_jax.export import export
  from vit_jax.fewshot import fewshot
  from vit_jax.find_lr import find_lr
  from vit_jax.predict import predict
  from vit_jax.report import report
  from vit_jax.train import train
  from vit_jax.visualize import visualize

with epy.lazy_api_imports(globals()):
  if not TYPE_CHECKING:
    # Commands, which can be called.
    from vit_jax import (
      convert,
      evaluate,
      export,
      fewshot,
      find_lr,
      predict,
      report,
      train,
      visualize,
    )
  from vit_jax.data.batching.own_loop import open_data
  from vit_jax.inference.exporter import export_model
  from vit_jax.inference.features import features
  from vit_jax.inference.predictor import predict_images
  from vit_jax.inspection.show_batch import show_batch
  from vit_jax.models import ResNet, Vit, make_model, make_resnet, make_vit
  from vit_jax.models.model import normalize
  from vit_jax.pretrained.in_memory import save
  from vit_jax.pretrained.known import list_models
  from vit_jax.pretrained.load import load_pretrained, load_text
  from vit_jax.pretrained.transfer import new_head
  from vit_jax.tasks.settings import DataSettings
  from vit_jax.training.nnx_model import as_nnx
  from vit_jax.training.state import TrainState, init_params
  from vit_jax.training.step import make_train_step

__version__ = "0.1.0"

_lazy_name = globals()["__getattr__"]  # It imports the names above.


def __getattr__(name: str) -> Any:
  """Returns what a public name, or a name of another library, stands for.

  The AttributeError for any other name suggests a public one.
  """
  try:
    return _lazy_name(name)
  except AttributeError as error:
    if not name.startswith("_") and (alias := _aliases().get(name)):
      return alias.resolve(None)
    if name.startswith("_"):
      raise
    raise AttributeError(f"{error}{_suggest(name)}", name=name) from None


def _aliases() -> dict[str, Any]:
  from vit_jax.runtime.aliases import aliases

  return aliases("vit_jax")


def _suggest(name: str) -> str:
  """The end of the message on an unknown name: what to use instead."""
  from vit_jax.__main__ import COMMANDS
  from vit_jax.runtime import hints

  if hint := hints.hint_instead(name, "vit_jax"):
    return hint
  verb = name.partition("_")[0]  # `load_model` may mean `load_pretrained`.
  same_verb = [other for other in __all__ if other.startswith(f"{verb}_")]
  if name in COMMANDS and not same_verb:
    return f"; `vit_jax {name}` is for a shell; in a notebook, !vit_jax {name}."
  near: list[str] = []
  if name != verb:
    near = hints.near_names(name, same_verb or __all__)
  if candidates := near or same_verb:
    return f"; did you mean vit_jax.{candidates[0]}?"
  return "; dir(vit_jax) lists what there is."


def __dir__() -> list[str]:
  """The public names, without the submodules."""
  return [*__all__, "__version__"]


__all__ = [
  "DataSettings",
  "ResNet",
  "TrainState",
  "Vit",
  "as_nnx",
  "convert",
  "evaluate",
  "export",
  "export_model",
  "features",
  "fewshot",
  "find_lr",
  "init_params",
  "list_models",
  "load_pretrained",
  "load_text",
  "make_model",
  "make_resnet",
  "make_train_step",
  "make_vit",
  "new_head",
  "normalize",
  "open_data",
  "predict",
  "predict_images",
  "report",
  "save",
  "show_batch",
  "train",
  "visualize",
]
