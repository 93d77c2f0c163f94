"""Settings: frozen dataclasses that check their own values when they are made.

Each folder has a `settings.py` with the settings of its parts, built from
`Section`, `setting` and the rules of `checks`. It imports nothing else but the
standard library, so `--help` and data workers load neither JAX nor Flax.
`vit_jax.run.settings` combines all sections and reads them from a
configuration.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from vit_jax.runtime.checks import NOT_NEGATIVE, Rule, checked, without_none

UNITS = ("steps", "epochs", "examples")
_MISSING = "the configuration has no {}: start it from base_config()."
_UNKNOWN = "{} is not a key of the configuration"
_NEAR = 0.6  # From this similarity on, a key may be the one that was meant.


@dataclasses.dataclass(frozen=True)
class Duration:
  """A length of time in steps, epochs or examples; all are 0 if it is unset."""

  steps: int = 0
  epochs: float = 0.0
  examples: int = 0

  def in_steps(self, batch_size: int, num_examples: int) -> int:
    """The duration in steps, at least 1; 0 if it is unset.

    `num_examples` is the number of examples in an epoch.
    """
    if not (self.steps or self.epochs or self.examples):
      return 0
    examples = self.epochs * num_examples + self.examples
    return max(1, round(self.steps + examples / batch_size))


_OFF = (None, False, 0, "", Duration())


def setting(
  default: Any,
  says: str,
  *,
  must: Rule | None = None,
  choices: tuple[str, ...] = (),
  needs: str = "",
  tunes: str = "",
  fits: Callable[[Any], None] | None = None,
  legacy_default: Any = dataclasses.MISSING,
  deprecated: str = "",
) -> Any:
  """Defines a field of a `Section`.

  Args:
    default: The default value. None leaves the choice to the program; the
      annotation must then allow None.
    says: One sentence for `--help` and for the documentation.
    must: A condition on the value.
    choices: The values that a text may have.
    needs: Another key without which this one has no effect: a field of the same
      section, or a dotted key. "key=value" needs that value; " or " separates
      alternatives.
    tunes: The same, for a key that is taken without the other one: a
      configuration may have set it before the other was changed. A new run says
      in a line that it has no effect.
    fits: Raises ValueError if the section does not fit the value of this key.
      It is called with the section, and only if the value is not the default.
    legacy_default: The value for descriptions of older checkpoints, which lack
      this field: before the field existed, the program behaved as with this
      value. Only needed if it differs from the default.
    deprecated: The advice on a key that will be removed: another one to use.
      The key works as before, and a new run that sets it prints a line.
  """
  if deprecated:
    says = f"{says} Deprecated: {deprecated}"
  metadata: dict[str, Any] = dict(says=says, must=must, choices=choices)
  metadata |= dict(needs=needs, tunes=tunes, fits=fits, deprecated=deprecated)
  missing = legacy_default is dataclasses.MISSING
  metadata["legacy_default"] = default if missing else legacy_default
  return dataclasses.field(default=default, metadata=metadata)


def section(cls: type["Section"], needs: str = "") -> Any:
  """Defines a field of a `Section` that is a section itself.

  All its keys have `needs`, as in `setting`, except the keys named there.
  """
  return dataclasses.field(default_factory=cls, metadata=dict(needs=needs))


@dataclasses.dataclass(frozen=True)
class Section:
  """One section of the configuration.

  The constructor converts each value to the type of its annotation (a list to a
  tuple, a whole number to a float). It raises ValueError, naming the field, for
  a value of another type, outside its range, or that does not fit other fields.
  Defaults are valid, so they are not checked.
  """

  def __post_init__(self):
    for field in dataclasses.fields(self):
      kind = types_of(type(self))[field.name]
      value = _check_field(field, kind, getattr(self, field.name))
      object.__setattr__(self, field.name, value)
    for field in dataclasses.fields(self):
      fits = field.metadata.get("fits")
      if fits and getattr(self, field.name) != field.default:
        fits(self)


@functools.cache
def types_of(cls: type) -> dict[str, Any]:
  """The annotations of a section, by field."""
  return typing.get_type_hints(cls)


def keys(
  cls: type[Section], prefix: str = ""
) -> Iterator[tuple[str, Any, str]]:
  """Yields (dotted key, default, sentence) for every value in a section.

  A duration counts as one value: its key stands for `key_steps`, `key_epochs`
  and `key_examples`.
  """
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    if is_section(kind):
      yield from keys(kind, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, field.default, field.metadata["says"]


def is_section(kind: Any) -> TypeGuard[type["Section"]]:
  """Whether an annotation is a section."""
  return isinstance(kind, type) and issubclass(kind, Section)


def to_dict(settings: Section) -> dict[str, Any]:
  """The settings as nested dictionaries; a duration has a key for each unit."""
  nested: dict[str, Any] = {}
  for field in dataclasses.fields(settings):
    value = getattr(settings, field.name)
    if isinstance(value, Section):
      nested[field.name] = to_dict(value)
    elif isinstance(value, Duration):
      nested |= {f"{field.name}_{u}": getattr(value, u) for u in UNITS}
    else:
      nested[field.name] = value
  return nested


def from_dict(
  cls: type[Section],
  values: Mapping[str, Any],
  *,
  saved: bool = False,
  prefix: str = "",
  whole: type[Section] | None = None,
) -> Any:
  """Makes settings from nested dictionaries, the inverse of `to_dict`.

  Values that are `saved` may have been written by an older version: a missing
  key gets its `legacy_default`. If `cls` is a part of the section `whole`,
  messages have `prefix` before the keys. Raises ValueError, naming the key, if
  one is unknown, missing or invalid.
  """
  if not isinstance(values, Mapping):
    raise ValueError(f"{prefix or cls.__name__} must be a section of keys.")
  remaining = dict(values)
  fields: dict[str, Any] = {}
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    names = [field.name]
    if kind is Duration:
      names = [f"{field.name}_{unit}" for unit in UNITS]
    missing = [name for name in names if name not in remaining]
    if missing and not saved:
      raise ValueError(_MISSING.format(prefix + missing[0]))
    popped = [remaining.pop(name, {}) for name in names]
    if is_section(kind):
      name = prefix + field.name
      if not isinstance(popped[0], Mapping):
        raise ValueError(f"{name} must be a section of keys.")
      part = {"saved": saved, "prefix": f"{name}.", "whole": whole or cls}
      fields[field.name] = from_dict(kind, popped[0], **part)
    elif missing:
      fields[field.name] = field.metadata["legacy_default"]
    elif kind is Duration:
      fields[field.name] = Duration(**dict(zip(UNITS, popped, strict=True)))
    else:
      fields[field.name] = popped[0]
  if remaining:
    unknown = prefix + next(iter(flat(remaining)))
    close = nearest_key(unknown, whole or cls)
    end = f"; did you mean {close}?" if close else "."
    raise ValueError(_UNKNOWN.format(unknown) + end)
  try:
    return cls(**fields)
  except ValueError as error:
    raise ValueError(f"{prefix}{error}") from None


def replaced(settings: Any, changes: Mapping[str, Any]) -> Any:
  """A copy of the settings with other values at dotted keys.

  Raises KeyError for an unknown key, and ValueError for an invalid value.
  """
  plain = to_dict(settings)
  for key, value in changes.items():
    *sections, name = key.split(".")
    place = functools.reduce(dict.__getitem__, sections, plain)
    if name not in place:
      raise KeyError(key)
    place[name] = value
  return from_dict(type(settings), plain)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Nested dictionaries as one, with dotted keys."""
  dotted = {}
  for key, value in values.items():
    name = prefix + key
    is_inner = isinstance(value, Mapping)
    dotted |= flat(value, f"{name}.") if is_inner else {name: value}
  return dotted


def changed(settings: Section) -> dict[str, tuple[Any, Any]]:
  """Value and default of each dotted key whose value is not the default."""
  current = flat(to_dict(settings))
  default = flat(to_dict(type(settings)()))
  return {k: (v, default[k]) for k, v in current.items() if v != default[k]}


def needs(
  cls: type[Section], prefix: str = "", how: str = "needs"
) -> Iterator[tuple[str, list[str]]]:
  """Yields each dotted key that needs another key, with those that would do.

  With `how="tunes"`, these are the keys that tune another, as in `setting`.
  """
  types = types_of(cls)
  for field in dataclasses.fields(cls):
    name = prefix + field.name
    kind = types[field.name]
    if is_section(kind):
      yield from needs(kind, f"{name}.", how)
    if needed := field.metadata.get(how):
      others = []
      for other in needed.split(" or "):
        is_field = other.partition("=")[0] in types  # A field of this section.
        others.append(f"{prefix}{other}" if is_field else other)
      yield from ((k, others) for k in _keys_of(name, kind) if k not in others)


def _keys_of(name: str, kind: Any) -> list[str]:
  """The dotted keys of a field: a duration's units, or those of a section."""
  if is_section(kind):
    return [f"{name}.{key}" for key in all_keys(kind)]
  return [f"{name}_{unit}" for unit in UNITS] if kind is Duration else [name]


def check_needs(settings: Section) -> None:
  """Raises ValueError if a key is set without the one that it needs."""
  for key, others in _lacking(settings, "needs"):
    value, default = changed(settings)[key]
    raise ValueError(
      f"{key}={value!r} has no effect without {others}: set that, or leave "
      f"{key} out ({key}={default!r} where a configuration sets it)."
    )


def untuned(settings: Section) -> dict[str, str]:
  """Keys that are set and tune what is off, each with why, as "without ..."."""
  lacking = _lacking(settings, "tunes")
  return {key: f"without {others}" for key, others in lacking}


def _lacking(settings: Section, how: str) -> Iterator[tuple[str, str]]:
  """Yields each key that is set without those that it `needs` or `tunes`.

  The other keys are in words.
  """
  changes = changed(settings)
  for key, others in needs(type(settings), how=how):
    if key in changes and not any(_is_on(settings, other) for other in others):
      yield key, " or ".join(others)


def deprecations(settings: Section) -> list[str]:
  """A line for each deprecated key that is set, with what to use instead."""
  changes = changed(settings)
  return [
    f"{key}={changes[key][0]!r} is deprecated, and works for now: {advice}"
    for key, advice in _deprecated(type(settings))
    if key in changes
  ]


def _deprecated(
  cls: type[Section], prefix: str = ""
) -> Iterator[tuple[str, str]]:
  """Yields each deprecated key, dotted, and what to use in its place."""
  for field in dataclasses.fields(cls):
    name = prefix + field.name
    kind = types_of(cls)[field.name]
    if is_section(kind):
      yield from _deprecated(kind, f"{name}.")
    elif advice := field.metadata["deprecated"]:
      yield from ((key, advice) for key in _keys_of(name, kind))


def _is_on(settings: Section, other: str) -> bool:
  """Whether the settings have "key" on, or the value of "key=value"."""
  key, _, needed = other.partition("=")
  value = functools.reduce(getattr, key.split("."), settings)
  return value == needed if needed else value not in _OFF


def all_keys(cls: type[Section]) -> list[str]:
  """Every dotted key of a section, such as "optimizer.warmup_steps"."""
  return list(flat(to_dict(cls())))


def nearest_key(key: str, cls: type[Section]) -> str:
  """The key of a section that is most similar to `key`; "" if none is near."""
  import difflib

  every = all_keys(cls)
  last = key.rsplit(".", 1)[-1]
  same_last = [k for k in every if k.rsplit(".", 1)[-1] == last]
  close = difflib.get_close_matches(key, every, n=1, cutoff=_NEAR)
  return next(iter((*same_last, *close)), "")


def _check_field(field: dataclasses.Field, kind: Any, value: Any) -> Any:
  """The value converted to the field's type; ValueError if it is invalid."""
  if is_section(kind):
    if not isinstance(value, kind):
      raise ValueError(f"{field.name} must be {kind.__name__}, not {value!r}.")
    return value
  must = field.metadata["must"]
  choices = field.metadata["choices"]
  if kind is not Duration:
    return _check_one(field.name, kind, value, field.default, must, choices)
  units = {}
  for unit, number in vars(value).items():
    default = getattr(field.default, unit)
    name = f"{field.name}_{unit}"
    unit_type = types_of(Duration)[unit]
    units[unit] = _check_one(name, unit_type, number, default, NOT_NEGATIVE)
  nonzero = [
    f"{field.name}_{u}={number}" for u, number in units.items() if number
  ]
  if len(nonzero) > 1:
    given = " and ".join(nonzero)
    raise ValueError(f"{given} are given together: set all but one to 0.")
  return Duration(**units)


def _check_one(
  name: str, kind: Any, value: Any, default: Any, *rules: Any
) -> Any:
  """The value by `checked`, with a message of its own if None is not allowed.

  Raises ValueError if the value is invalid. A value that equals the default,
  and is of the field's type, is not checked.
  """
  plain, optional = without_none(kind)
  if value == default and type(value) is plain:
    return value
  if value is None and not optional:
    raise ValueError(f"{name}=None: set it, such as {name}={default!r}.")
  return checked(name, kind, value, *rules)
