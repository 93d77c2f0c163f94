"""Names of other libraries that answer here, as `aliases.csv` lists them.

A row of the table says to which object the names belong: the package
("vit_jax"), what `load_pretrained` returns ("loaded"), or what `vit_jax.train`
returns ("run"). It also says what answers: an attribute of this object, which
may be nested ("loaded.features"), or a function by its full name. A name that
ends in "()" is a method in the other library, and a plain value here.
`arguments` are the keywords of our function for the positional arguments after
the first, and `itself` is the keyword for the object. Names that may mean
several things have a hint instead, in `runtime/hints.csv`.
"""

import csv
import functools
import importlib
import importlib.resources
import operator
from typing import Any, NamedTuple

_CALLED = "()"


class Alias(NamedTuple):
  """An attribute or function of ours that answers to a name.

  Attributes:
    answers, arguments, itself: The columns of `aliases.csv`, see above.
    is_called: Whether the name is a method there, and a plain value here.
  """

  answers: str
  arguments: tuple[str, ...] = ()
  itself: str = ""
  is_called: bool = False

  def resolve(self, owner: Any) -> Any:
    """Returns our answer to the name on `owner`, a module or an object.

    It is an attribute or a function of ours, or a function that passes the
    other library's arguments on to ours.
    """
    target = _resolve(owner, self.answers)
    if self.is_called:
      return lambda: target
    if not (self.arguments or self.itself):
      return target

    @functools.wraps(target)
    def call(*args: Any, **keywords: Any) -> Any:
      """Calls our function with the positional arguments of the other's."""
      first, others = args[:1], args[1:]
      renamed = dict(zip(self.arguments, others, strict=False))
      itself = {self.itself: owner} if self.itself else {}
      positional = first + others[len(renamed) :]
      return target(*positional, **itself, **renamed, **keywords)

    return call


def _resolve(owner: Any, answers: str) -> Any:
  """The attribute of `owner`, or the function of ours, of this name."""
  if not answers.startswith("vit_jax."):
    return operator.attrgetter(answers)(owner)
  module, _, name = answers.rpartition(".")
  return getattr(importlib.import_module(module), name)


@functools.cache
def aliases(of: str) -> dict[str, Alias]:
  """The aliases of "vit_jax", "loaded" or "run", by name."""
  table = importlib.resources.files("vit_jax.pretrained") / "aliases.csv"
  rows = csv.DictReader(table.read_text("utf-8").splitlines())
  return {
    name.removesuffix(_CALLED): Alias(
      answers=row["answers"],
      arguments=tuple(row["arguments"].split()),
      itself=row["itself"],
      is_called=name.endswith(_CALLED),
    )
    for row in rows
    if row["of"] == of
    for name in row["name"].split()
  }
