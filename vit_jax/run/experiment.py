"""What a configuration stands for: its model, and its train step.

These functions check their part of a configuration, and raise ValueError before
anything is compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh, NamedSharding

from vit_jax.config import UNITS, resolve_steps, set_fields
from vit_jax.models import Origin, ResNet, Vit, flops, make_model
from vit_jax.pretrained import interpolation, load, transfer
from vit_jax.pretrained.load import Pretrained
from vit_jax.training import sharding
from vit_jax.training.optimizer import (
  layers_below_head,
  make_optimizer,
  make_schedule,
  make_trained,
)
from vit_jax.training.train_step import TrainState, make_init, make_train_step

# Of the model, these may differ from what a checkpoint was saved with.
_EXECUTION = ("scan", "remat")
_FREE_FIELDS = (
  "num_classes",
  "representation_size",
  "dtype",
  "param_dtype",
  *_EXECUTION,
)


def open_pretrained(config: ml_collections.ConfigDict) -> Pretrained | None:
  """The checkpoint to start from, None without one; no array is read yet.

  Fields set in `config.model` go before what its format says of it.

  Raises:
    ValueError: if there is none, or it is not of the model set, or
      `config.transfer` asks for what there is not.
  """
  interpolation.check("transfer.interpolation", config.transfer.interpolation)
  if not config.pretrained:
    return None
  fields = set_fields(config.model)
  if "variant" in fields:
    raise ValueError(
      f"model.variant={fields['variant']!r} and pretrained="
      f"{config.pretrained!r} both say what the model is: leave one out, or "
      "start from configs/finetune.py, which has no variant."
    )
  kept = {k: v for k, v in fields.items() if k not in _FREE_FIELDS}
  return load.open_pretrained(config.pretrained, **kept)


def resolved(
  config: ml_collections.ConfigDict, origin: Origin | None
) -> ml_collections.ConfigDict:
  """A copy in which nothing is left to a checkpoint any more.

  Raises:
    ValueError: if the image size is set nowhere.
  """
  config = config.copy_and_resolve_references()
  if config.image_size is None:
    if origin is None or origin.image_size is None:
      raise ValueError(
        "image_size is not set, and no checkpoint says it: set it, as in "
        "--config.image_size=(224,224)."
      )
    config.image_size = origin.image_size
  for name in ("mean", "std"):
    if config.normalization[name] is None:
      value = getattr(origin, name) if origin else (0.5, 0.5, 0.5)
      config.normalization[name] = value
  return config


def image_size(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """Height and width of the model's images."""
  size = tuple(config.image_size)
  if len(size) != 2 or min(size) < 1:
    raise ValueError(
      f"image_size={size} must be a height and a width, as in (224, 224)."
    )
  return size


def build_model(
  config: ml_collections.ConfigDict,
  class_names: tuple[str, ...],
  pretrained: Pretrained | None = None,
) -> Vit | ResNet:
  """The model, with a head for the data set's classes unless set otherwise.

  Raises:
    ValueError: if the fields or the checkpoint do not fit the data.
  """
  fields = set_fields(config.model)
  for name in ("dtype", "param_dtype"):
    if name in fields:
      fields[name] = jnp.dtype(fields[name])
  fields.setdefault("num_classes", len(class_names))
  if pretrained is not None:
    return transfer.fit(
      pretrained, class_names, fields, **_kept(config.transfer)
    )
  if "variant" not in fields:
    raise ValueError(
      "model.variant is not set: set it, as in --config.model.variant=B/16, or "
      "--config.pretrained=CHECKPOINT."
    )
  return make_model(**fields)


def with_execution(
  model: Vit | ResNet, config: ml_collections.ConfigDict
) -> Vit | ResNet:
  """The model, run as configured; it computes the same either way."""
  fields = set_fields(config.model)
  changed = {name: fields[name] for name in _EXECUTION if name in fields}
  return model.clone(**changed) if changed else model


def _kept(section: ml_collections.ConfigDict) -> dict[str, Any]:
  return {name: section[name] for name in ("keep_head", "keep_pre_logits")}


def train_functions(
  config: ml_collections.ConfigDict,
  model: nn.Module,
  total_steps: int,
  num_examples: int,
) -> tuple[Callable[[jax.Array], TrainState], Callable]:
  """The functions `init` and `train_step` of a configuration."""
  options = config.optimizer.to_dict()
  warmup_steps = resolve_steps(
    config.optimizer, "warmup", config.batch_size, num_examples
  )
  for unit in UNITS:
    del options[f"warmup_{unit}"]
  schedule = make_schedule(
    peak_lr=options.pop("peak_lr"),
    final_lr=options.pop("final_lr"),
    decay=options.pop("decay"),
    total_steps=total_steps,
    warmup_steps=warmup_steps,
  )
  num_layers = model.num_layers if isinstance(model, Vit) else 0
  trained = make_trained(
    options.pop("freeze_layers"), num_layers, getattr(model, "scan", False)
  )
  tx = make_optimizer(
    schedule,
    layer_of=functools.partial(layers_below_head, num_layers=num_layers),
    trained=trained,
    **options,
  )
  loss = config.loss
  init = make_init(model, tx, (*image_size(config), 3), config.ema_decay)
  train_step = make_train_step(
    model,
    tx,
    schedule,
    seed=config.seed,
    **config.normalization,
    loss=loss.kind,
    label_smoothing=loss.label_smoothing,
    mixup_alpha=loss.mixup_alpha,
    accumulation_steps=config.accumulation_steps,
    ema_decay=config.ema_decay,
    trained=trained,
  )
  return init, train_step


def array_shapes(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
  """Shape, type and sharding of every array `init` makes, none computed.

  Raises:
    ValueError: if the mesh does not divide one of them.
  """
  boxed = jax.eval_shape(init, jax.random.key(0))
  shapes, shardings = nn.unbox(boxed), sharding.tree_shardings(boxed, mesh)
  return jax.tree_util.tree_map_with_path(_sharded_shape, shapes, shardings)


def _sharded_shape(
  path: tuple, array: jax.ShapeDtypeStruct, sharded: NamedSharding
) -> jax.ShapeDtypeStruct:
  try:
    sharded.shard_shape(array.shape)
  except ValueError as error:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    raise ValueError(
      f"{name} of shape {array.shape} does not divide over the mesh axes "
      f"{tuple(sharded.spec)}: choose mesh.fsdp and mesh.tensor that divide "
      "the hidden size, the heads and the MLP."
    ) from error
  return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharded)


def forward_gflops(
  model: nn.Module, params: Any, size: tuple[int, int]
) -> float:
  """Billions of floating-point operations to classify one image."""
  image = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
  return flops.count(model.apply, {"params": params}, image) / 1e9
