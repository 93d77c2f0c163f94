"""Names of other libraries that answer here, as `aliases.csv` lists them.

A row of the table says to which object the names belong: the package
("vit_jax"), what `load_pretrained` returns ("loaded"), what `vit_jax.train`
returns ("run"), an answer of `loaded.predict` ("answer"), or what `open_data`
returns ("opened"). It also says what answers: an attribute of this object,
which may be nested ("loaded.features"), or a function by its full name. For the
package, "loaded.features" is a function that takes a loaded model, a run, or a
name or a path of one in front of the arguments. A name that ends in "()" is a
method in the other library, and a plain value here. `arguments` are the
keywords of our function for the positional arguments after the first; one such
as "probe=knn" is always given this value. `itself` is the keyword for the
object, or "first" if the object goes in front of the arguments. Names that may
mean several things have a hint instead, in `hints.csv`.
"""

import csv
import functools
import importlib
import importlib.resources
import mimetypes
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vit_jax.runtime.shown import is_loaded

_CALLED = "()"
_FIRST = "first"


class Alias(NamedTuple):
  """An attribute or function of ours that answers to a name.

  Attributes:
    answers, itself: The columns of `aliases.csv`; the module's docstring
      explains them.
    arguments: The keywords of the positional arguments after the first.
    fixed: The keywords that are always given, and their values.
    is_called: Whether the name is a method in the other library, and a plain
      value here.
  """

  answers: str
  arguments: tuple[str, ...] = ()
  fixed: Mapping[str, str] = {}
  itself: str = ""
  is_called: bool = False

  def resolve(self, owner: Any) -> Any:
    """Returns our answer to the name on `owner`, None for the package.

    The answer is an attribute or a function of ours, or a function that passes
    the other library's arguments on to ours.
    """
    if owner is None and not self.answers.startswith("vit_jax."):
      return of_loaded(self.answers.removeprefix("loaded."))
    target = _resolve(owner, self.answers)
    if self.itself == _FIRST:
      return functools.partial(target, owner)
    if self.is_called:
      return lambda: target
    if not (self.arguments or self.fixed or self.itself):
      return target

    @functools.wraps(target)
    def call(*args: Any, **keywords: Any) -> Any:
      """Calls our function with the other library's arguments."""
      first, others = args[:1], args[1:]
      renamed = dict(zip(self.arguments, others, strict=False))
      itself = {self.itself: owner} if self.itself else {}
      ours = {**itself, **renamed, **self.fixed}
      if twice := next((name for name in ours if name in keywords), None):
        raise TypeError(f"{twice} is set by this call itself: leave it out.")
      positional = first + others[len(renamed) :]
      return target(*positional, **ours, **keywords)

    return call


def of_loaded(name: str) -> Callable[..., Any]:
  """Returns the function of the package that stands for `loaded.NAME`.

  The function raises ValueError if its model cannot be loaded.
  """

  def call(model: Any, *args: Any, **keywords: Any) -> Any:
    """Calls what `loaded` has of this name, or returns its value."""
    try:
      loaded = loaded_from(model, name)
    except ValueError as error:
      # An image may be in the model's place, or the model may be forgotten.
      kind, _ = mimetypes.guess_type(os.fspath(model))
      if args and not str(kind).startswith("image/"):
        raise
      raise ValueError(
        f"{error} The model stands in front, as in "
        f"vit_jax.{name}(loaded, images)."
      ) from error
    answer = operator.attrgetter(name)(loaded)
    return answer(*args, **keywords) if callable(answer) else answer

  call.__name__ = name
  call.__doc__ = (
    f"`loaded.{name}`, with the loaded model, or a name or a path of one, in "
    "front of the arguments."
  )
  return call


def loaded_from(model: Any, name: str) -> Any:
  """The loaded model that is given, or that of a run, a name or a path.

  `name` is what the caller asks of it, for the message. Raises TypeError for
  anything else, as `loaded.NAME` needs more than a module and its parameters,
  such as the preprocessing.
  """
  if is_loaded(model):
    return model
  if isinstance(model, str | os.PathLike):
    loaded = getattr(model, "loaded", None)  # That of a run.
    load: Any = _resolve(None, "vit_jax.load_pretrained")
    return load(model) if loaded is None else loaded
  raise TypeError(
    "the first argument has to be a loaded model, and is of type "
    f"{type(model).__name__}: loaded = vit_jax.load_pretrained(name) makes "
    f"one, for loaded.{name}(...). For a model and parameters of your own, "
    "there are vit_jax.predict_images(model, params, images) and "
    "vit_jax.features(model, params, images), or vit_jax.save and then "
    "vit_jax.load_pretrained."
  )


def _resolve(owner: Any, answers: str) -> Any:
  """The attribute of `owner`, or the function of ours, that `answers` names."""
  if not answers.startswith("vit_jax."):
    return operator.attrgetter(answers)(owner)
  module, _, name = answers.rpartition(".")
  return getattr(importlib.import_module(module), name)


@functools.cache
def aliases(of: str) -> dict[str, Alias]:
  """The aliases of an object, by name; `of` is its name, such as "loaded"."""
  table = importlib.resources.files("vit_jax.runtime") / "aliases.csv"
  rows = csv.DictReader(table.read_text("utf-8").splitlines())
  return {
    name.removesuffix(_CALLED): Alias(
      answers=row["answers"],
      arguments=tuple(x for x in row["arguments"].split() if "=" not in x),
      fixed=dict(x.split("=") for x in row["arguments"].split() if "=" in x),
      itself=row["itself"],
      is_called=name.endswith(_CALLED),
    )
    for row in rows
    if row["of"] == of
    for name in row["name"].split()
  }
