"""Settings: frozen dataclasses that check their own values when they are made.

Each folder has a `settings.py` with the settings of its parts, built from
`Section` and `setting`. These modules import only this one and the standard
library, so `--help` and data workers load neither JAX nor Flax.
`vit_jax.run.settings` combines all sections and reads them from a
configuration.
"""

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

UNITS = ("steps", "epochs", "examples")


@dataclasses.dataclass(frozen=True)
class Rule:
  """A condition on a value, which `text` completes to "must <text>"."""

  text: str
  holds: Callable[[Any], bool]


COUNT = Rule("be 1 or more", lambda x: x >= 1)
POSITIVE = Rule("be more than 0", lambda x: x > 0)
NOT_NEGATIVE = Rule("not be negative", lambda x: x >= 0)
BELOW_1 = Rule("be in [0, 1)", lambda x: 0 <= x < 1)
BETWEEN_0_AND_1 = Rule("lie between 0 and 1", lambda x: 0 < x < 1)
IMAGE_SIZE = Rule(
  "be a height and a width, as in (224, 224)", lambda size: min(size) >= 1
)
CHANNELS = Rule(
  "be three finite numbers, for red, green and blue", lambda _: True
)
POSITIVE_CHANNELS = Rule(
  "be three numbers above 0, for red, green and blue",
  lambda values: min(values) > 0,
)


@dataclasses.dataclass(frozen=True)
class Duration:
  """A length of time in steps, epochs or examples; all are 0 if it is unset."""

  steps: int = 0
  epochs: float = 0.0
  examples: int = 0

  def in_steps(self, batch_size: int, num_examples: int) -> int:
    """The duration in steps, at least 1; 0 if it is unset.

    Args:
      batch_size: Examples per step.
      num_examples: Examples per epoch.
    """
    if not (self.steps or self.epochs or self.examples):
      return 0
    examples = (
      self.steps * batch_size + self.epochs * num_examples + self.examples
    )
    return max(1, round(examples / batch_size))


def setting(
  default: Any,
  says: str,
  *,
  must: Rule | None = None,
  choices: tuple[str, ...] = (),
  before: Any = dataclasses.MISSING,
) -> Any:
  """Defines a field of a `Section`.

  Args:
    default: The default value. None leaves the choice to the program; the
      annotation must then allow None.
    says: One sentence for `--help` and for the documentation.
    must: A condition on the value.
    choices: The values that a text may have.
    before: The value for descriptions of older checkpoints, which lack this
      field: the program behaved as with this value before the field existed.
      Only needed if it differs from the default.
  """
  metadata = dict(says=says, must=must, choices=choices)
  metadata["before"] = default if before is dataclasses.MISSING else before
  return dataclasses.field(default=default, metadata=metadata)


def section(cls: type["Section"]) -> Any:
  """Defines a field of a `Section` that is itself a section."""
  return dataclasses.field(default_factory=cls)


@dataclasses.dataclass(frozen=True)
class Section:
  """One section of the configuration.

  The constructor converts each value to the type of its annotation (a list to a
  tuple, a whole number to a float). It raises ValueError, naming the field, for
  a value of another type or outside its range.
  """

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      object.__setattr__(
        self,
        field.name,
        _checked(field, types_of(type(self))[field.name], value),
      )


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


def without_none(kind: Any) -> tuple[Any, bool]:
  """An annotation without its `| None`, and whether it had one."""
  if not isinstance(kind, types.UnionType):
    return kind, False
  (inner,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
  return inner, True


def to_dict(settings: Section) -> dict[str, Any]:
  """The settings as nested dictionaries, with a key for each unit of time."""
  found: dict[str, Any] = {}
  for field in dataclasses.fields(settings):
    value = getattr(settings, field.name)
    if isinstance(value, Section):
      found[field.name] = to_dict(value)
    elif isinstance(value, Duration):
      found |= {f"{field.name}_{u}": getattr(value, u) for u in UNITS}
    else:
      found[field.name] = value
  return found


def from_dict(
  cls: type[Section], values: Mapping[str, Any], *, saved: bool = False
) -> Any:
  """Makes settings from nested dictionaries, the inverse of `to_dict`.

  Args:
    cls: The section to make.
    values: A value for each key, nested like the sections.
    saved: Whether an older version may have written the values. A missing key
      then gets the value under which that version behaved as it did.

  Raises:
    ValueError: if a key is unknown or missing, or its value is invalid. The
      message names the key.
  """
  return _from_dict(cls, values, saved, "", cls)


def replaced(settings: Any, changes: Mapping[str, Any]) -> Any:
  """A copy of the settings with other values at dotted keys."""
  plain = to_dict(settings)
  for key, value in changes.items():
    *sections, name = key.split(".")
    place = plain
    for part in sections:
      place = place[part]
    if name not in place:
      raise KeyError(key)
    place[name] = value
  return from_dict(type(settings), plain)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Nested dictionaries as one, with dotted keys."""
  found = {}
  for key, value in values.items():
    if isinstance(value, Mapping):
      found |= flat(value, f"{prefix}{key}.")
    else:
      found[prefix + key] = value
  return found


def _from_dict(
  cls: type[Section],
  values: Mapping[str, Any],
  saved: bool,
  prefix: str,
  whole: type[Section],
) -> Any:
  rest = dict(values)
  found = {}
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    names = [field.name]
    if kind is Duration:
      names = [f"{field.name}_{unit}" for unit in UNITS]
    missing = [name for name in names if name not in rest]
    if missing and not saved:
      raise ValueError(
        f"the configuration has no {prefix}{missing[0]}: start it from "
        "base_config()."
      )
    given = [rest.pop(name, {}) for name in names]
    if is_section(kind):
      inner = f"{prefix}{field.name}."
      if not isinstance(given[0], Mapping):
        raise ValueError(f"{prefix}{field.name} must be a section of keys.")
      found[field.name] = _from_dict(kind, given[0], saved, inner, whole)
    elif missing:
      found[field.name] = field.metadata["before"]
    else:
      found[field.name] = Duration(*given) if kind is Duration else given[0]
  if rest:
    unknown = prefix + next(iter(flat(rest)))
    raise ValueError(
      f"{unknown} is not a key of the configuration; did you mean "
      f"{nearest_key(unknown, whole)}?"
    )
  try:
    return cls(**found)
  except ValueError as error:
    raise ValueError(f"{prefix}{error}") from None


def all_keys(cls: type[Section]) -> list[str]:
  """Every dotted key of a section, such as "optimizer.warmup_steps"."""
  return list(flat(to_dict(cls())))


def nearest_key(key: str, cls: type[Section]) -> str:
  """The key of a section that is most similar to `key`, for a message."""
  import difflib

  known = all_keys(cls)
  last = key.rsplit(".", 1)[-1]
  same_last = [k for k in known if k.rsplit(".", 1)[-1] == last]
  close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
  return (same_last or close)[0]


def _checked(field: dataclasses.Field, kind: Any, value: Any) -> Any:
  """The value converted to the field's type; ValueError if it is invalid."""
  name = field.name
  if is_section(kind):
    if not isinstance(value, kind):
      raise ValueError(f"{name} must be {kind.__name__}, not {value!r}.")
    return value
  if kind is Duration:
    usual: Any = field.default
    return _checked_duration(name, value, usual)
  kind, optional = without_none(kind)
  if value is None:
    if not optional:
      raise ValueError(
        f"{name}=None: set it, such as {name}={field.default!r}."
      )
    return None
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{name}={value} must be a finite number.")
  must: Rule | None = field.metadata["must"]
  choices = field.metadata["choices"]
  try:
    value = _converted(kind, value)
    fits = must is None or must.holds(value)
  except TypeError as error:
    shown = tuple(value) if isinstance(value, list) else value
    is_tuple = typing.get_origin(kind) is tuple
    needed = must.text if must and is_tuple else f"be {error}"
    raise ValueError(f"{name}={shown!r} must {needed}.") from None
  if not fits:
    assert must is not None
    raise ValueError(f"{name}={value} must {must.text}.")
  if choices and value not in choices:
    raise ValueError(
      f"{name}={value!r} is unknown; choose one of {', '.join(choices)}."
    )
  return value


def _checked_duration(
  name: str, value: Duration, default: Duration
) -> Duration:
  for unit in UNITS:
    if getattr(value, unit) is None:
      key = f"{name}_{unit}"
      usual = getattr(default, unit)
      raise ValueError(f"{key}=None: set it, such as {key}={usual!r}.")
  given = {u: v for u in UNITS if (v := getattr(value, u))}
  for unit, number in given.items():
    whole = unit == "epochs" or isinstance(number, numbers.Integral)
    if not isinstance(number, numbers.Real) or not whole:
      raise ValueError(f"{name}_{unit}={number!r} must be a whole number.")
    if not math.isfinite(number):
      raise ValueError(f"{name}_{unit}={number} must be a finite number.")
    if number < 0:
      raise ValueError(f"{name}_{unit}={number} must not be negative.")
  if len(given) > 1:
    both = " and ".join(f"{name}_{u}={v}" for u, v in given.items())
    raise ValueError(f"{both} are both given: set all but one to 0.")
  return value


def _converted(kind: Any, value: Any) -> Any:
  """The value as another type; a TypeError says what is needed instead."""
  if typing.get_origin(kind) is tuple:
    kinds = typing.get_args(kind)
    if not isinstance(value, list | tuple) or len(value) != len(kinds):
      raise TypeError(f"{len(kinds)} numbers")
    return tuple(map(_converted, kinds, value))
  if kind is bool or isinstance(value, bool):
    if kind is not bool or not isinstance(value, bool):
      raise TypeError(
        "True or False" if kind is bool else "neither True nor False"
      )
    return value
  if kind is int:
    if not isinstance(value, numbers.Integral):
      raise TypeError("a whole number")
    return int(value)
  if kind is float:
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
      raise TypeError("a finite number")
    return float(value)
  if not isinstance(value, kind):
    raise TypeError("a text")
  return value
