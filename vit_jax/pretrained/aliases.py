"""Names of other libraries that answer here, as `aliases.csv` lists them.

A row says whose names they are, those of the package ("vit_jax"), of what
`load_pretrained` returns ("loaded") or of what `vit_jax.train` returns ("run"),
and what answers: an attribute, which may be one of an attribute, or a function
by its full name. A name that ends in "()" is called where ours is a number.
`arguments` are the keywords that our function takes for what follows the first
argument, and `itself` is the one that it takes for the object. Names that may
mean several things have a hint instead, in `runtime/hints.csv`.
"""

import csv
import functools
import importlib
import importlib.resources
import operator
from typing import Any, NamedTuple

_CALLED = "()"


class Alias(NamedTuple):
  """An attribute or function of ours that answers to a name; see above."""

  answers: str
  arguments: tuple[str, ...] = ()
  itself: str = ""
  is_called: bool = False

  def of(self, owner: Any) -> Any:
    """The attribute or the function for a module or an object."""
    found = _resolve(owner, self.answers)
    if self.is_called:
      return lambda: found
    if not (self.arguments or self.itself):
      return found

    @functools.wraps(found)
    def call(*args: Any, **keywords: Any) -> Any:
      more = args[1:]
      named = dict(zip(self.arguments, more, strict=False))
      itself = {self.itself: owner} if self.itself else {}
      rest = args[:1] + more[len(named) :]
      return found(*rest, **itself, **named, **keywords)

    return call


def _resolve(owner: Any, answers: str) -> Any:
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
      row["answers"],
      tuple(row["arguments"].split()),
      row["itself"],
      name.endswith(_CALLED),
    )
    for row in rows
    if row["of"] == of
    for name in row["name"].split()
  }
