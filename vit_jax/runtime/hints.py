"""Finds the name that a user likely meant by a name that does not exist.

`hints.csv` lists names in other libraries and what to write here instead, by
their owner: an object, as pages call its variable ("loaded"), or a call whose
keywords they are ("loaded.predict()"). What to write is code, or a sentence if
it ends in a full stop. A name may be a pattern, such as "*Processor", in which
capitals count.
"""

import csv
import difflib
import fnmatch
import functools
import importlib.resources
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

WEIGHTS = "hf_s14_dinov2"
"""The best weights to start from, by docs/evidence/results.md, for examples."""


_NEAR = 0.75
"""From this similarity on, a name is taken for a misspelling of another."""


def near_names(
  name: str, candidates: Iterable[str], cutoff: float = 0.6
) -> list[str]:
  """The candidate that is most similar to `name`, in a list of one.

  The list is empty if no candidate's similarity, from 0 to 1, reaches `cutoff`.
  Capitals, "-", "_" and spaces make no difference.
  """
  by_plain = {_plain(other): other for other in candidates}
  near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=cutoff)
  return [by_plain[plain] for plain in near]


def hint_for_attribute(name: str, owner: str, names: Iterable[str]) -> str:
  """Returns the end of a message on an attribute that does not exist.

  Args:
    name: The attribute's name, as typed.
    owner: The variable that pages use for the object, such as "loaded".
    names: The object's own attributes.
  """
  own = {other: f"{owner}.{other}" for other in names}
  return (
    hint_instead(name, owner)
    or _nearest(name, own, _NEAR)
    or _nearest(name, names_elsewhere(owner), _NEAR)
    or f"; dir({owner}) lists what there is."
  )


def attribute_error(
  obj: object, name: str, of: str, who: str
) -> AttributeError:
  """The AttributeError for an attribute that an object does not have.

  Args:
    obj: The object.
    name: The attribute's name, as typed.
    of: The object's name in `hints.csv`.
    who: The subject and the verb of the message, such as "batches have".
  """
  text = f"{who} no attribute {name!r}{hint_instead(name, of)}"
  return AttributeError(text, name=name, obj=obj)


def hint_instead(name: str, of: str, value: object = None) -> str:
  """The end of a message on a name; "" if `hints.csv` does not have it.

  `of` is the owner of the name in that table. If the name is an argument,
  `value` is what was given for it: a number takes the place of the number in
  the table.
  """
  texts = names_elsewhere(of)
  by_plain = {_plain(other): text for other, text in texts.items()}
  found = texts.get(name) or by_plain.get(_plain(name), "")
  for pattern, text in texts.items():
    if not found and fnmatch.fnmatchcase(name, pattern):
      found = text
  if type(value) in (int, float):
    found = re.sub(r"^(\w+)=[\d.e-]+$", rf"\1={value}", found)
  return _ending(found)


def ours_by_other_names(others: Mapping[str, str]) -> dict[str, str]:
  """Our name for each name of other libraries.

  `others` has the names of other libraries, with spaces between them, by ours.

  >>> from vit_jax.runtime.hints import ours_by_other_names
  >>> ours_by_other_names({"lr": "max_lr peak_lr"})
  {'max_lr': 'lr', 'peak_lr': 'lr'}
  """
  return {
    name: ours for ours, names in others.items() for name in names.split()
  }


@functools.cache
def names_elsewhere(of: str) -> dict[str, str]:
  """Names in other libraries -> what to write here, for the owner `of`."""
  table = importlib.resources.files("vit_jax.runtime") / "hints.csv"
  rows = csv.DictReader(table.read_text("utf-8").splitlines())
  return {
    name: row["instead"]
    for row in rows
    if row["of"] == of
    for name in row["others"].split()
  }


def _nearest(name: str, texts: Mapping[str, str], cutoff: float = 0.6) -> str:
  """The end of a message with the text of the name most like `name`, or ""."""
  near = near_names(name, texts, cutoff)
  return _ending(texts[near[0]]) if near else ""


def _ending(text: str) -> str:
  """The end of a message, which says what to write instead; "" for no text."""
  if not text:
    return ""
  return f"; {text}" if text.endswith(".") else f"; did you mean {text}?"


def accepts(
  example: str,
  same: Mapping[str, str] = {},
  keys: Literal["settings", "DataSettings", "keywords"] = "keywords",
  first_by_name: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """A decorator for a function that callers may give wrong arguments.

  The function then raises a TypeError that names the right ones.

  Args:
    example: A call of the function, as pages write it. `hints.csv` has rows
      with its keywords in other libraries.
    same: Keywords of other libraries that the function takes as well -> its
      own keywords.
    keys: How the function takes keys of the configuration, by which a
      ValueError that names flags of a command is rewritten.
    first_by_name: Whether the first argument may be given by its name, together
      with others that are given by their places.
  """

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    signature = inspect.signature(function)
    owners = ("self", "cls")
    names = [name for name in signature.parameters if name not in owners]
    kinds = [signature.parameters[name].kind for name in names]
    takes_one = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == 1

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
      """Calls the function by its own keywords, and explains a wrong call."""
      given: dict[str, object] = dict(kwargs)
      for name in [name for name in given if name in same]:
        if same[name] in given:
          raise TypeError(f"{same[name]} is given twice: leave {name} out.")
        given[same[name]] = given.pop(name)
      in_places: tuple[Any, ...] = args
      if first_by_name and args and names[0] in given:
        in_places = (given.pop(names[0]), *args)
      try:
        signature.bind(*in_places, **given)
      except TypeError as error:
        of = f"{example.partition('(')[0]}()"
        end = _hint_for_unknown(given, names, of) or f"; as in {example}"
        if takes_one and len(args) > 1 and "positional" in str(error):
          end = f"; one value goes in front, and others have names: {example}"
        if "multiple values" in str(error):
          end = _hint_for_section(given) or end
        raise TypeError(f"{error}{end}") from None
      try:
        return cast(Any, function)(*in_places, **given)
      except ValueError as error:
        # Imported here, as few calls fail.
        from vit_jax.runtime import keywords

        keywords.rewrite_in_keywords(error, signature, keys)
        raise

    return call

  return decorate


def _hint_for_unknown(
  given: Mapping[str, object], names: Sequence[str], of: str
) -> str:
  """The end of a message on the first unknown keyword; "" if there is none."""
  unknown = [name for name in given if name not in names]
  if not unknown:
    return ""
  own = {name: name for name in names}
  instead = hint_instead(unknown[0], of, given[unknown[0]])
  return instead or _nearest(unknown[0], own, _NEAR)


def _hint_for_section(given: Mapping[str, object]) -> str:
  """The end of a message on an argument that is a section with its keys.

  It says how to give these keys; "" if no argument is such a section.
  """
  for name, value in given.items():
    if isinstance(value, Mapping) and value:
      from vit_jax.runtime import keywords

      values = {f"{name}.{key}": str(text) for key, text in value.items()}
      return f"; its keys are given as {keywords.as_settings(values)}"
  return ""


def hint_for_path(path: str, names: Iterable[str] = ()) -> str:
  """The end of a sentence on a path that does not exist; "" without a hint.

  It names a similar path in the same folder, or one of `names`. Otherwise, it
  says what to do about an address, or which folder of the path is missing. If
  the path exists, it says what the path is, such as a folder where a file is
  needed.
  """
  if "://" in path:
    return "it is an address: download it, and give its folder or file."
  if os.path.lexists(os.path.expanduser(path)):
    return _why_another_kind(path)
  near = [*similar_path(path), *near_names(path, names)]
  if near:
    return f"did you mean {max(near, key=lambda x: _likeness(x, path))}?"
  folder, name = os.path.split(os.path.expanduser(path).rstrip(os.sep))
  if not folder:
    return ""
  while folder and not os.path.exists(folder):
    folder, name = os.path.split(folder)
  return f"there is no {name!r} in {os.path.abspath(folder or os.curdir)}."


def command_to_continue(data: str, weights: str = WEIGHTS) -> str:
  """The command that continues to train published weights without labels."""
  words = ["--config", "dino:continue", "--pretrained", weights]
  return shlex.join(["vit_jax", "train", data, *words])


def without_labels(data: str, weights: str = WEIGHTS) -> str:
  """A sentence with the commands for images without labels.

  >>> from vit_jax.runtime.hints import without_labels
  >>> without_labels("photos").split(": ")[1].split(" (")[0]
  'vit_jax similar hf_s14_dinov2 photos --out=found_hf_s14_dinov2'
  """
  return (
    f"Without labels there are: {uses_of_features(data, weights)}, and "
    f"{command_to_continue(data, weights)} (goes on training these weights)"
  )


def uses_of_features(data: str, encoder: str, *options: str) -> str:
  """The commands on the features of images, which need no labels.

  What they write is named after the encoder, since two are often compared.

  >>> from vit_jax.runtime.hints import uses_of_features
  >>> uses_of_features("photos", "runs/mine").split(" (")[0]
  'vit_jax similar runs/mine photos --out=found_mine'
  """
  words = [encoder, data, *options]
  name = os.path.basename(encoder.rstrip("/"))
  similar = ["vit_jax", "similar", *words, f"--out=found_{name}"]
  features = ["vit_jax", "predict", *words, f"--features=features_{name}.npz"]
  return (
    f"{shlex.join(similar)} (near-duplicates and groups of like images), "
    f"{shlex.join(features)} (a vector of each image)"
  )


def find_run(path: str) -> str:
  """The run that is likely meant by a folder that is no run; "" without one.

  It is the run that `train` writes for images in `path`, the run that contains
  `path`, or the run in `path` that was changed last.
  """
  above = os.path.dirname(path.rstrip(os.sep))
  inside = [os.path.join(path, other) for other in _inside(path)]
  name = os.path.basename(os.path.abspath(path))
  candidates = [
    os.path.join("runs", name),
    os.path.join("runs", os.path.splitext(name)[0]),  # A file of labels.
    *filter(None, [above, os.path.dirname(above)]),
    *sorted(filter(os.path.isdir, inside), key=os.path.getmtime, reverse=True),
  ]
  for folder in candidates:
    if os.path.isdir(os.path.join(folder, "checkpoints")):
      return folder
  return ""


def similar_path(path: str) -> list[str]:
  """The path in the same folder whose name is most similar, in a list of one.

  The list is empty if no name is similar enough. Endings choose only among
  names that differ in nothing else, as most images have the same one. The path
  itself is left out, since it may exist and not be what was needed.
  """
  folder, name = os.path.split(os.path.expanduser(path).rstrip(os.sep))
  stem = os.path.splitext(name)[0]
  others = sorted(
    _inside(folder or os.curdir), key=lambda x: (_likeness(x, name), x)
  )
  by_stem = {
    os.path.splitext(other)[0]: other for other in others if other != name
  }
  return [os.path.join(folder, by_stem[x]) for x in near_names(stem, by_stem)]


def _why_another_kind(path: str) -> str:
  """A phrase that says what a path is, as it is not what was needed."""
  path = os.path.expanduser(path)
  if not os.path.exists(path):
    return f"it is a link to {os.readlink(path)!r}, which is not there."
  if os.path.isdir(path):
    return "it is a folder."
  return "it is a file." if os.path.isfile(path) else "it is no regular file."


def _inside(folder: str) -> list[str]:
  """The names in a folder without hidden ones; [] if it cannot be read."""
  try:
    return [name for name in os.listdir(folder) if not name.startswith(".")]
  except OSError:
    return []


def _likeness(path: str, other: str) -> tuple[float, float]:
  """How similar two paths' names are, without and with endings, from 0 to 1."""
  name, other = (
    _plain(os.path.basename(x.rstrip(os.sep))) for x in (path, other)
  )
  stem, other_stem = (os.path.splitext(x)[0] for x in (name, other))
  return (
    difflib.SequenceMatcher(None, stem, other_stem).ratio(),
    difflib.SequenceMatcher(None, name, other).ratio(),
  )


def _plain(name: str) -> str:
  """A name in lower case, without "-", "_" and spaces."""
  return name.lower().translate(str.maketrans("", "", "-_ "))
