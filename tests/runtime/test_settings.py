"""Sections check and convert their own values; dictionaries lead both ways."""

import dataclasses

import pytest

from vit_jax.runtime.checks import BELOW_1
from vit_jax.runtime.settings import (
  Duration,
  Section,
  all_keys,
  deprecations,
  flat,
  from_dict,
  keys,
  nearest_key,
  replaced,
  section,
  setting,
  to_dict,
)


@dataclasses.dataclass(frozen=True)
class Inner(Section):
  rate: float = setting(0.5, "A rate.", must=BELOW_1)
  kind: str = setting("a", "A kind.", choices=("a", "b"))


def _is_alone(pair):
  if pair.other:
    raise ValueError(f"one={pair.one} needs other=0; it is {pair.other}.")


@dataclasses.dataclass(frozen=True)
class Pair(Section):
  one: int = setting(0, "One.", fits=_is_alone)
  other: int = setting(5, "The other.")


@dataclasses.dataclass(frozen=True)
class Outer(Section):
  size: tuple[int, int] | None = setting(None, "A size.")
  count: int = setting(3, "A count.", legacy_default=1)
  on: bool = setting(True, "A switch.")
  every: Duration = setting(Duration(epochs=1.0), "A duration.")
  inner: Inner = section(Inner)


PLAIN = {
  "size": None,
  "count": 3,
  "on": True,
  "every_steps": 0,
  "every_epochs": 1.0,
  "every_examples": 0,
  "inner": {"rate": 0.5, "kind": "a"},
}


def test_settings_become_dictionaries_and_come_back():
  assert to_dict(Outer()) == PLAIN
  assert from_dict(Outer, PLAIN) == Outer()
  assert all_keys(Outer) == list(flat(PLAIN))


def test_values_take_the_type_of_their_field():
  found = Outer(size=[4, 5], inner=Inner(rate=0))
  assert found.size == (4, 5)
  assert isinstance(found.inner.rate, float)
  with pytest.raises(dataclasses.FrozenInstanceError):
    found.count = 4


@pytest.mark.parametrize(
  "values, message",
  [
    (dict(size=(1, 2, 3)), r"size=\(1, 2, 3\) must be 2 numbers"),
    (dict(size="ab"), "size='ab' must be 2 numbers"),
    (dict(count=2.5), "count=2.5 must be a whole number"),
    (dict(count=True), "count=True must be a whole number"),
    (dict(count=None), "count=None: set it, such as count=3"),
    (dict(on=1), "on=1 must be True or False"),
    (dict(every=Duration(steps=2, epochs=1.0)), "every_steps=2 and every_ep"),
    (dict(every=Duration(steps=-2)), "every_steps=-2 must not be negative"),
    (dict(every=Duration(steps=1.5)), "every_steps=1.5 must be a whole num"),
    (dict(inner={"rate": 0.1}), "inner must be Inner"),
  ],
)
def test_what_cannot_be_meant_names_the_field(values, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    Outer(**values)


def test_a_value_has_to_fit_the_others_if_it_is_set():
  assert (Pair().other, Pair(1, 0).one) == (5, 1)
  with pytest.raises(ValueError, match="^one=1 needs other=0; it is 5"):
    Pair(1)


@pytest.mark.parametrize(
  "change, message",
  [
    ({"inner": {"rate": 1.0, "kind": "a"}}, r"inner.rate=1.0 must be in \[0"),
    ({"inner": {"rate": 0.1, "kind": "c"}}, "inner.kind='c' is unknown; choo"),
    ({"inner": {"rate": 0.1}}, "the configuration has no inner.kind"),
    ({"inner": 3}, "inner must be a section of keys"),
    ({"inner": {**PLAIN["inner"], "rat": 1}}, "inner.rat .* mean inner.rate"),
    ({"counts": 1}, "counts is not a key .*; did you mean count"),
  ],
)
def test_the_section_is_named_before_the_field(change, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    from_dict(Outer, PLAIN | change)


def test_a_key_that_an_older_version_did_not_write_has_its_old_value():
  found = from_dict(Outer, {"inner": {"kind": "b"}}, saved=True)
  assert found == Outer(count=1, inner=Inner(kind="b"))
  with pytest.raises(ValueError, match="^rate is not a key"):
    from_dict(Outer, {"rate": 1}, saved=True)


def test_some_values_are_replaced():
  found = replaced(Outer(), {"inner.kind": "b", "every_epochs": 2.0})
  assert found == Outer(inner=Inner(kind="b"), every=Duration(epochs=2.0))
  with pytest.raises(KeyError, match="inner.kinds"):
    replaced(Outer(), {"inner.kinds": "b"})


@pytest.mark.parametrize(
  "duration, steps",
  [
    (Duration(), 0),
    (Duration(steps=7), 7),
    (Duration(epochs=0.25), 2),  # 80 examples in batches of 32: 2.5 steps.
    (Duration(examples=1), 1),
  ],
)
def test_a_duration_in_steps(duration, steps):
  assert duration.in_steps(32, num_examples=320) == steps


def test_the_nearest_key():
  assert nearest_key("iner.rate", Outer) == "inner.rate"
  assert nearest_key("rate", Outer) == "inner.rate"


@dataclasses.dataclass(frozen=True)
class Old(Section):
  pace: float = setting(1.0, "A pace.", deprecated="use rate.")
  rest: Duration = setting(Duration(steps=3), "A rest.", deprecated="leave it.")
  rate: float = setting(0.5, "A rate.")


@dataclasses.dataclass(frozen=True)
class WithOld(Section):
  old: Old = section(Old)


@pytest.mark.parametrize(
  "changes, lines",
  [
    ({}, []),
    ({"old.rate": 2.0}, []),
    (
      {"old.pace": 2.0, "old.rest_steps": 0, "old.rest_epochs": 1.0},
      [
        "old.pace=2.0 is deprecated, and works for now: use rate.",
        "old.rest_steps=0 is deprecated, and works for now: leave it.",
        "old.rest_epochs=1.0 is deprecated, and works for now: leave it.",
      ],
    ),
  ],
)
def test_a_deprecated_key_works_and_says_what_to_use(changes, lines):
  settings = replaced(WithOld(), changes)
  assert deprecations(settings) == lines
  assert {key: flat(to_dict(settings))[key] for key in changes} == changes
  sentences = {key: says for key, _, says in keys(WithOld)}
  assert sentences["old.pace"] == "A pace. Deprecated: use rate."
