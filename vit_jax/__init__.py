"""vit_jax: the Vision Transformer (arXiv:2010.11929) in JAX and Flax linen.

Names are imported when they are first used, so that data workers, which need
only `vit_jax.data`, do not load the models and Flax.
"""

from typing import TYPE_CHECKING, Any

from etils import epy

if TYPE_CHECKING:
  from vit_jax.convert import convert
  from vit_jax.evaluate import evaluate
  from vit_jax.find_lr import find_lr
  from vit_jax.report import report
  from vit_jax.train import train
  from vit_jax.visualize import visualize

with epy.lazy_api_imports(globals()):
  if not TYPE_CHECKING:
    # Commands, which can be called.
    from vit_jax import convert, evaluate, find_lr, report, train, visualize
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

_lazy_name = globals()["__getattr__"]  # It has the names from above.


def __getattr__(name: str) -> Any:
  """A public name, or what answers to one of another library.

  AttributeError says which one may have been meant.
  """
  try:
    return _lazy_name(name)
  except AttributeError as error:
    if not name.startswith("_") and (alias := _aliases().get(name)):
      return alias.of(None)
    if name.startswith("_") or not (hint := _meant(name)):
      raise
    raise AttributeError(f"{error}; {hint}", name=name) from None


def _aliases() -> dict[str, Any]:
  from vit_jax.pretrained.aliases import aliases

  return aliases("vit_jax")


_WEIGHTS = (
  "vit_jax.load_pretrained, or vit_jax.make_vit for one without weights"
)
_PREPARED = "loaded.preprocess(images) of loaded = vit_jax.load_pretrained(...)"

# Names in other libraries, and those of the same here.
_ELSEWHERE = {
  "Trainer": "vit_jax.train",
  **dict.fromkeys(("ViT", "vit", "VisionTransformer"), "vit_jax.make_vit"),
  **dict.fromkeys(
    ("Dataset", "DataLoader", "dataset", "ImageFolder", "load_data"),
    "vit_jax.open_data",
  ),
  **dict.fromkeys(
    ("create_model", "get_model"),
    _WEIGHTS,
  ),
  "pipeline": "vit_jax.load_pretrained(name).predict(images)",
  **dict.fromkeys(
    ("create_transform", "transforms", "preprocess"),
    _PREPARED,
  ),
  **dict.fromkeys(
    ("confusion_matrix", "accuracy", "plot_history"),
    "vit_jax.report(run), vit_jax.evaluate(run) or loaded.confusion_matrix()",
  ),
  **dict.fromkeys(
    ("optimizer", "make_optimizer", "AdamW", "SGD", "adamw", "sgd"),
    'vit_jax.train(folder, lr=1e-3, settings={"optimizer.kind": "sgd"})',
  ),
  **dict.fromkeys(
    ("schedule", "cosine_schedule", "make_schedule", "lr_schedule"),
    "vit_jax.training.optimizer.make_schedule",
  ),
  "resize_positions": (
    "vit_jax.load_pretrained(name, image_size=384), which resizes them"
  ),
  **dict.fromkeys(
    ("attention", "attention_map", "plot_attention", "attention_rollout"),
    "loaded.attention(image) of loaded = vit_jax.load_pretrained(...)",
  ),
  **dict.fromkeys(
    ("count_params", "num_params", "summary"),
    "loaded.num_params, or print(loaded.summary())",
  ),
  **dict.fromkeys(
    ("list_configs", "configs"),
    'config=NAME of vit_jax.train; "vit_jax configs" in a shell lists them',
  ),
  **dict.fromkeys(
    ("knn", "kNN", "linear_probe", "few_shot"),
    "`vit_jax fewshot NAME FOLDER --probe=knn` in a shell, or scikit-learn on "
    "loaded.features(folder)",
  ),
  **dict.fromkeys(
    ("find_similar", "similar", "nearest", "find_duplicates", "similarity"),
    "loaded.find_similar(image, folder)",
  ),
  **dict.fromkeys(
    ("zero_shot", "zeroshot"), "loaded.predict(images, texts=[...])"
  ),
  "Loaded": "vit_jax.load_pretrained(name)",
}


# Beginnings and ends of names in other libraries.
_LIKE = {
  r".*(ImageProcessor|Processor|FeatureExtractor|Transforms?)$": _PREPARED,
  r"Auto[A-Z].*|.*(Model|ForImageClassification)$": _WEIGHTS,
  r"(vit|deit3?|beit|dino|dinov2|dinov3|clip|siglip)_.*": (
    "vit_jax.load_pretrained(name), with a name of vit_jax.list_models()"
  ),
}


def _meant(name: str) -> str:
  import re

  from vit_jax.__main__ import COMMANDS
  from vit_jax.runtime import hints

  verb = name.partition("_")[0]  # `load_model` is rather `load_pretrained`.
  same = [other for other in __all__ if other.startswith(f"{verb}_")]
  near = same if name == verb else hints.near_names(name, same or __all__)
  if name in _ELSEWHERE:
    return f"did you mean {_ELSEWHERE[name]}?"
  for pattern, text in _LIKE.items():
    if re.fullmatch(pattern, name):
      return f"did you mean {text}?"
  if name in COMMANDS and not same:
    return f"`vit_jax {name}` is for a shell; in a notebook, !vit_jax {name}."
  if near := near or same:
    return f"did you mean vit_jax.{near[0]}?"
  return ""


def __dir__() -> list[str]:
  """The names that are meant to be used, without the modules behind them."""
  return [*__all__, "__version__"]


__all__ = [
  "DataSettings",
  "ResNet",
  "TrainState",
  "Vit",
  "as_nnx",
  "convert",
  "evaluate",
  "export_model",
  "features",
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
  "predict_images",
  "report",
  "save",
  "show_batch",
  "train",
  "visualize",
]
