"""Lets functions of a model and its parameters take a loaded model instead."""

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

Function = TypeVar("Function", bound=Callable[..., Any])


@runtime_checkable
class KnowsItsInputs(Protocol):
  """The result of `load_pretrained`: it unpacks into a model and parameters."""

  def predict(self, images: Any, *, top: int, batch_size: int) -> Any: ...

  def features(self, images: Any, **options: Any) -> Any: ...

  def preprocess(self, images: Any) -> Any: ...

  def __iter__(self) -> Any: ...


def check_is_open(model: Any, function: str) -> None:
  """Raises ValueError for the path or the name of a model, or for a run.

  `function` is the name of the function that needs the model itself.
  """
  if isinstance(model, str | os.PathLike):
    path = os.fspath(model)
    raise ValueError(
      f"{function} takes a model and its parameters, or a loaded model, and "
      f"this is of type {type(model).__name__}: loaded = "
      f"vit_jax.load_pretrained({path!r}) makes one, for {function}(loaded)."
    )


def check_given_alone(example: str, own: str, **given: Any) -> None:
  """Raises ValueError if a value is given that a loaded model has itself.

  Args:
    example: The right call with a loaded model.
    own: The call with the model alone, which takes such values.
    **given: The values by their names; None was not given.
  """
  names = [name for name, value in given.items() if value is not None]
  if names:
    raise ValueError(
      f"{' and '.join(names)}: what load_pretrained returned has its own, so "
      f"leave out what is given beside it, as in {example}, or call {own}."
    )


def images_alone(
  function: str, params: Any, images: Any, more: str = "", **given: Any
) -> Any:
  """The images given with a loaded model; they may stand in place of `params`.

  Raises ValueError if parameters or other values are given beside them.

  Args:
    function: The name of the function that takes them.
    params: Its second argument.
    images: Its third argument, or None.
    more: The end of the arguments of a call with the model alone.
    **given: The values that a loaded model has itself; None was not given.
  """
  in_place = images is None
  check_given_alone(
    f"{function}(loaded, images)",
    f"{function}(loaded.model, params, images{more})",
    params=None if in_place else params,
    **given,
  )
  return params if in_place else images


def takes_loaded(function: Function) -> Function:
  """Lets `function(model, params, ...)` take `loaded` in place of both."""

  @functools.wraps(function)
  def call(model: Any, *arguments: Any, **keywords: Any) -> Any:
    check_is_open(model, function.__name__)
    both = model if isinstance(model, KnowsItsInputs) else (model,)
    return function(*both, *arguments, **keywords)

  return cast(Function, call)
