"""Rewrites messages that name flags of a command for callers in Python."""

import ast
import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping

from absl import flags

_VALUE = r"'[^']*'|\([^)]*\)|\"[^\"]*\"|[^\s;,)]*[^\s;,.:)]"
_ONE = rf"--config\.[\w.]*\w(?:=(?:{_VALUE}))?"
_KEYS = re.compile(rf"{_ONE}(?: {_ONE})*")
_KEY = re.compile(rf"--config\.(?P<key>[\w.]*\w)(?:=(?P<value>{_VALUE}))?")
# After a space, only what looks like a name or a path is the flag's value.
_FLAG = re.compile(
  r"--(?P<flag>[a-z]\w*)"
  r"(?:(?P<equals>=)| (?P<value>[\w~-]*[\d_./][\w./~-]*\w))?"
)


def as_settings(values: Mapping[str, str]) -> str:
  """Keys with their values, written as `vit_jax.train` takes them.

  If a key has the value "", which stands for no value, all are named without
  values.

  >>> from vit_jax.runtime.keywords import as_settings
  >>> as_settings({"data.unknown": "?"})
  'settings={"data.unknown": "?"}'
  """
  if not all(values.values()):
    return " and ".join(values)
  return "settings={" + _written(values, '"{}": {}') + "}"


def as_data_settings(values: Mapping[str, str]) -> str:
  """Keys of `data`, with their values, as `vit_jax.DataSettings` takes them.

  If a value is empty, only the names are written.
  """
  fields = {_last(key): value for key, value in values.items()}
  if not all(fields.values()):
    return f"{' and '.join(fields)} of vit_jax.DataSettings"
  return "vit_jax.DataSettings(" + _written(fields, "{}={}") + ")"


def as_keywords(values: Mapping[str, str]) -> str:
  """Keys, with their values, as keywords named by the last part of each key."""
  fields = {_last(key): value for key, value in values.items()}
  if not all(fields.values()):
    return " and ".join(fields)
  return _written(fields, "{}={}")


_FORMS: dict[str, Callable[[Mapping[str, str]], str]] = {
  "settings": as_settings,
  "DataSettings": as_data_settings,
  "keywords": as_keywords,
}


def rewrite_in_keywords(
  error: ValueError, signature: inspect.Signature, keys: str
) -> None:
  """Rewrites an error's message in terms of the keywords of a call.

  A message on the command line, and a command that a message quotes, stay as
  they are. `keys` says how the call takes keys of the configuration, as in
  `hints.accepts`.
  """
  line = error.args[0] if error.args else None
  if flags.FLAGS.is_parsed() or not isinstance(line, str):
    return
  message, quotes, command = line.partition("vit_jax ")
  message = _KEYS.sub(lambda found: _FORMS[keys](_values(found[0])), message)
  message = _FLAG.sub(lambda found: _keyword(found, signature), message)
  error.args = (message + quotes + command, *error.args[1:])


def _values(text: str) -> dict[str, str]:
  """The keys in a text of flags, and their values without quotes.

  The value is "" for a key that is named without one.
  """
  return {
    found["key"]: (found["value"] or "").strip("'\"")
    for found in _KEY.finditer(text)
  }


def _keyword(found: re.Match[str], signature: inspect.Signature) -> str:
  """The keyword of a flag; the flag itself if the call has no such keyword."""
  name = found["flag"]
  value = found["value"]
  parameter = signature.parameters.get(name)
  takes_any = any(
    one.kind is one.VAR_KEYWORD for one in signature.parameters.values()
  )
  # Without a value, it may be the flag of another command.
  if parameter is None and not (takes_any and (found["equals"] or value)):
    return found[0]
  if parameter is not None and parameter.default is False:
    return f"{name}=True" + (f" {value}" if value else "")
  return (
    f"{name}={json.dumps(value)}" if value else f"{name}{found['equals'] or ''}"
  )


def _written(values: Mapping[str, str], each: str) -> str:
  """Names and values as Python writes them, each pair in the format `each`."""
  return ", ".join(
    each.format(name, _literal(name, value)) for name, value in values.items()
  )


def _literal(name: str, value: str) -> str:
  """A value as Python writes it; marks of unknown labels are always texts."""
  with contextlib.suppress(ValueError, SyntaxError):
    if _last(name) != "unknown":
      return repr(ast.literal_eval(value))
  return json.dumps(value, ensure_ascii=False)


def _last(key: str) -> str:
  """The last part of a key, such as "task" of "data.task"."""
  return key.rpartition(".")[2]
