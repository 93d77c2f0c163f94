"""Lets functions of a model and its parameters take a loaded model instead."""

import functools
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


def takes_loaded(function: Function) -> Function:
  """Lets `function(model, params, ...)` take `loaded` in place of both."""

  @functools.wraps(function)
  def call(model: Any, *arguments: Any, **keywords: Any) -> Any:
    both = model if isinstance(model, KnowsItsInputs) else (model,)
    return function(*both, *arguments, **keywords)

  return cast(Function, call)
