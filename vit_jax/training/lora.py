"""LoRA: low-rank products that are trained in place of kernels.

A kernel W becomes W + alpha / r A B (arXiv:2106.09685). A has r columns, B has
r rows, and W stays as it was. The sum is taken before the model gets its
parameters, so every form of a layer computes with it, on any platform.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array

from vit_jax.models.partitioning import with_axes
from vit_jax.models.parts import Parts, guess_parts
from vit_jax.models.paths import beside, is_kernel
from vit_jax.training.settings import LoraSettings

_A, _B = "lora_a", "lora_b"

Init = Callable[[Array], Any]


def trained_init(
  params_init: Init, settings: LoraSettings, parts: Parts | None = None
) -> Init:
  """Returns a function from a random key to the parameters that are trained.

  These are the heads and what else `Parts.is_trained_beside_lora` names, and
  beside each chosen kernel `lora_a` (*inputs, r), normal with variance 1 /
  inputs, and `lora_b` (r, *outputs), zero, so that the model starts unchanged.
  Stacked kernels have a product for each layer. The function raises ValueError
  as `chosen_kernels` does.

  `params_init` maps a key to all parameters of the model, boxed with their
  logical axes, as the result is. The model's `parts` are by default those that
  the names of its parameters suggest (`models.parts.guess_parts`).
  """

  def init(key: Array) -> Any:
    params = flatten_dict(params_init(key), sep="/")
    unboxed = {k: nn.unbox(v) for k, v in params.items()}
    model_parts = parts or guess_parts(unboxed)
    trained = {
      k: v for k, v in params.items() if model_parts.is_trained_beside_lora(k)
    }
    kernels = chosen_kernels(settings, unboxed, model_parts)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(kernels))
    for path, own_key in zip(kernels, keys, strict=True):
      a, b = _init_factors(
        model_parts, path, params[path], settings.rank, own_key
      )
      trained |= {beside(path, _A): a, beside(path, _B): b}
    return unflatten_dict(trained, sep="/")

  return init


def base_init(params_init: Init, parts: Parts | None = None) -> Init:
  """Returns a function from a random key to the parameters that stay fixed.

  The arguments are those of `trained_init`.
  """

  def init(key: Array) -> Any:
    params = flatten_dict(params_init(key), sep="/")
    model_parts = parts or guess_parts(params)
    base = {
      k: v
      for k, v in params.items()
      if not model_parts.is_trained_beside_lora(k)
    }
    return unflatten_dict(base, sep="/")

  return init


def chosen_kernels(
  settings: LoraSettings,
  params: Mapping[str, Any],
  parts: Parts | None = None,
) -> list[str]:
  """The paths of the kernels that get a product, in alphabetical order.

  Kernels of heads get no product, and are trained as they are. The pattern is
  searched in paths such as "block_0/msa/query/kernel", also if the layers are
  stacked. `params` holds all parameters by path, or their shapes. Raises
  ValueError if the pattern chooses no kernel, or the kernels of only some of
  the stacked layers.

  >>> import numpy as np
  >>> from vit_jax.training.lora import chosen_kernels
  >>> from vit_jax.training.settings import LoraSettings
  >>> paths = ("block_0/mlp/expand/kernel", "patches/kernel", "head/kernel")
  >>> chosen_kernels(LoraSettings(), {path: np.zeros((4, 4)) for path in paths})
  ['block_0/mlp/expand/kernel']
  """
  pattern = re.compile(settings.kernels)
  model_parts = parts or guess_parts(params)
  paths = sorted(filter(is_kernel, params))
  kernels = [
    path for path in paths if not model_parts.is_trained_beside_lora(path)
  ]
  chosen_paths = []
  for path in kernels:
    names = model_parts.unstacked_paths(path, params[path].shape[0])
    matches = [pattern.search(name) is not None for name in names]
    if any(matches) and not all(matches):
      raise ValueError(
        f"lora.kernels={settings.kernels!r} chooses only some layers, and "
        "stacked layers are adapted alike: set model.scan=False."
      )
    chosen_paths += [path] if all(matches) else []
  if not chosen_paths:
    raise ValueError(
      f"lora.kernels={settings.kernels!r} is found in no kernel's path. "
      f"Paths look like this: {', '.join(kernels[-3:])}."
    )
  return chosen_paths


def _init_factors(
  parts: Parts, path: str, kernel: Any, rank: int, key: Array
) -> tuple[Any, Any]:
  """The initial A and B of a kernel, boxed with their logical axes."""
  array = nn.unbox(kernel)
  shape = array.shape
  axes = getattr(kernel, "names", (None,) * len(shape))
  _, outputs = parts.kernel_axes(path, len(shape), axes)
  # The axes of stacked layers come first, then those of inputs and of outputs.
  lead = parts.stacked_axes(path)
  cut = outputs[0]
  normal = nn.initializers.normal(1 / math.sqrt(math.prod(shape[lead:cut])))
  a = with_axes(normal, (*axes[:cut], None))
  b = with_axes(nn.initializers.zeros_init(), (*axes[:lead], None, *axes[cut:]))
  return (
    a(key, (*shape[:cut], rank), array.dtype),
    b(key, (*shape[:lead], rank, *shape[cut:]), array.dtype),
  )


def merge(settings: LoraSettings, base: Any, trained: Any) -> Any:
  """All parameters of the model, with the products added to their kernels."""
  trained_arrays = flatten_dict(trained, sep="/")
  whole = {k: v for k, v in trained_arrays.items() if not is_factor(k)}
  for path, array in flatten_dict(base, sep="/").items():
    whole[path] = with_product(settings, path, array, trained_arrays)
  return unflatten_dict(whole, sep="/")


def is_factor(path: str) -> bool:
  """Whether a trained parameter is A or B of a product, and not a head's."""
  return path in (beside(path, _A), beside(path, _B))


def with_product(
  settings: LoraSettings, path: str, array: Any, trained: Mapping[str, Any]
) -> Any:
  """A parameter of the base plus its product, if `trained` has its factors.

  The result is an array of NumPy or JAX, as `array` is.

  >>> import numpy as np
  >>> from vit_jax.training.lora import with_product
  >>> from vit_jax.training.settings import LoraSettings
  >>> settings = LoraSettings(rank=1, alpha=2.0)
  >>> a = np.array([[1.0], [2.0]])
  >>> b = np.array([[3.0, 4.0]])
  >>> factors = {"msa/out/lora_a": a, "msa/out/lora_b": b}
  >>> kernel = np.zeros((2, 2))
  >>> with_product(settings, "msa/out/kernel", kernel, factors).tolist()
  [[6.0, 8.0], [12.0, 16.0]]
  """
  if not is_kernel(path) or beside(path, _A) not in trained:
    return array
  a = trained[beside(path, _A)]
  b = trained[beside(path, _B)]
  # Both have the axes of stacked layers, and one axis of length `rank`.
  lead = a.shape[: a.ndim + b.ndim - 2 - array.ndim]
  rank = settings.rank
  product = a.reshape(*lead, -1, rank) @ b.reshape(*lead, rank, -1)
  scaled = product.reshape(array.shape) * (settings.alpha / rank)
  return array + scaled.astype(array.dtype)
