"""The configuration file that `vit_jax estimate --tune --write` writes."""

import pathlib
from typing import Any

from vit_jax.run.settings import Settings
from vit_jax.runtime.files import read_regular, replacing
from vit_jax.runtime.settings import flat, to_dict


def differing_keys(one: Settings, other: Settings) -> dict[str, Any]:
  """The dotted keys whose values differ, with their values in `other`."""
  before, after = (flat(to_dict(settings)) for settings in (one, other))
  return {k: v for k, v in after.items() if v != before[k]}


def check_target(path: pathlib.Path, name: str) -> None:
  """Raises ValueError if `path` is a file that `write` must not replace.

  `write` replaces only files that it wrote for the configuration `name`. A file
  that it wrote for another configuration may be one that `name` loads.
  """
  config = pathlib.Path(name.split(":", 1)[0])
  if path.resolve() == config.resolve():
    raise ValueError(
      f"{path} is the configuration that is tuned: give --write another file."
    )
  if path.exists() and not read_regular(path).startswith(_head(name).encode()):
    raise ValueError(
      f"{path} exists and was not written by --tune for {name}: remove it, or "
      "give --write another file."
    )


def write(
  path: pathlib.Path,
  name: str,
  changes: dict[str, Any],
  topology: str,
) -> None:
  """Writes a configuration file that loads another one and changes it.

  Args:
    name: The other configuration, as `--config` takes it.
    changes: Values of dotted keys, from the command line and the search.
    topology: The devices that it was tuned for, such as "v5e:2x4".
  """
  source = [_head(name), f"It is for {topology}."]
  source += ['"""', "", "from vit_jax.run.config_file import load_config", ""]
  source += ["", "def get_config():", f"  c = load_config({_whole(name)!r})"]
  source += [f"  c.{key} = {value!r}" for key, value in changes.items()]
  source += ["  return c", ""]
  with replacing(path) as file:
    file.write("\n".join(source).encode())


def _head(name: str) -> str:
  """The first line of what is written for a configuration of this name."""
  title = f"{_plain(_whole(name))}, as `vit_jax estimate --tune` has set it."
  return f'"""{title}\n'


def _whole(name: str) -> str:
  """The name of a configuration with the whole path of its file."""
  file_name, *argument = name.split(":", 1)
  if pathlib.Path(file_name).is_file():
    file_name = str(pathlib.Path(file_name).resolve())
  return ":".join((file_name, *argument))


def _plain(text: str) -> str:
  """A text as it may stand in a docstring."""
  return text.replace("\\", "/").replace('"', "'")
