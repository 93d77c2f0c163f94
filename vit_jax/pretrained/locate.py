"""Finds the local file or folder of a checkpoint that a user names.

A checkpoint that is not on this machine is downloaded once. A failure is a
ValueError or an OSError whose message is one line.
"""

import difflib
import os
import pathlib
import re
from urllib.parse import quote

from vit_jax.pretrained import fetch, hub
from vit_jax.pretrained.known import (
  KNOWN,
  PICKLES,
  find,
  only_weights,
  refuse_pickle,
)
from vit_jax.runtime import hints
from vit_jax.runtime.printable import printable, say, say_once


def locate(source: str, more: tuple[str, ...] = ()) -> pathlib.Path:
  """The local file or folder of a checkpoint, downloaded if it has to be.

  For hf:// it is a folder that holds `config.json`, the safetensors and
  `preprocessor_config.json` where there is one, under these names, and the
  files `more` where they are there. Raises
  ValueError or OSError if there is no such checkpoint, it is a pickle, or the
  download fails. Before the download of a known checkpoint its licence is
  printed. `source` is a path that exists, https:// or http://,
  gs://bucket/object, hf://owner/name[@revision], or a name for `known.find`.
  """
  path = os.path.expanduser(source)
  if os.path.exists(path):
    refuse_pickle(path)
    return pathlib.Path(path)
  checkpoint = find(source)
  if whole := only_weights(source):
    say_once(
      f"{source} is taken for {whole}, the only such weights known here."
    )
  if checkpoint and not _is_here(checkpoint.url):
    say(f"{source}: {checkpoint.terms}.")
  if "://" in source:
    return _from_address(source, None, more)
  if checkpoint:
    return _from_address(checkpoint.url, checkpoint.sha256, more)
  names = [*KNOWN, *(row.timm for row in KNOWN.values())]
  on_the_hub = (name for row in KNOWN.values() for name in row.names)
  names += [n for n in on_the_hub if n.count("/") == source.count("/")]
  names = [*dict.fromkeys(names)]  # A model may be published twice.
  near = difflib.get_close_matches(source.lower(), names, n=3, cutoff=0.4)
  near = [*dict.fromkeys((*hints.beside(source), *near))][:3]
  near = _tagged(source) or near
  ideas = f"; the nearest names are {', '.join(near)}" if near else ""
  repository = source if "/" in source else f"timm/{source}"
  if hub.REPOSITORY.fullmatch(repository) and {*"/."} & {*source}:
    ideas += f"; on Hugging Face it would be hf://{repository}"
  raise ValueError(
    f"{source!r} is neither a file or folder here nor a known checkpoint"
    f"{ideas}; `vit_jax convert --list` lists all names."
  )


def _tagged(source: str) -> list[str]:
  """Our names of the weights of timm's architecture, each with timm's own.

  timm's name alone, as vit_base_patch16_224, stands for one that it chooses.
  """
  return [
    f"{name} ({timm})"
    for name, row in KNOWN.items()
    for timm in row.names[1:]
    if timm.startswith(f"{source}.")
  ]


def is_trusted(source: str, workdir: str | None = None) -> bool:
  """Whether to open what only a file names, such as a run's description.

  That is a known checkpoint, whatever is here, and what lies in the same bucket
  as the `workdir` that the user named.
  """
  if "://" in source:
    is_known = source in (checkpoint.url for checkpoint in KNOWN.values())
    return is_known or _bucket(source) in {_bucket(workdir or "")} - {None}
  path = os.path.expanduser(source)  # A pipe or a device might never end.
  plain = os.path.isfile(path) or os.path.isdir(path)
  return plain or not os.path.exists(path)


def check_named(
  source: str, what: str, flag: str, workdir: str | None = None
) -> None:
  """Raises ValueError unless a source that only a file names may be opened.

  Whatever opens an address that a checkpoint has asks here before.

  Args:
    what: The source's role, as the subject of the message.
    flag: The flag, and the keyword in Python, by which the user names it.
    workdir: The run, as in `is_trusted`.
  """
  if not is_trusted(source, workdir):
    shown = printable(fetch.without_secrets(source))
    raise ValueError(
      f"{what} is {shown}, which only its checkpoint names: if you trust it, "
      f"give --{flag}={shown} ({flag}= in Python)."
    )


def _bucket(address: str) -> str | None:
  """The bucket of an address; None if it is of another kind, or has a "..".

  >>> _bucket("gs://photos/packed")
  'photos'
  """
  scheme, _, location = address.partition("://")
  bucket, *inside = location.split("/")
  return bucket if scheme == "gs" and bucket and ".." not in inside else None


def drop_download(path: pathlib.Path) -> bool:
  """Removes a damaged download, to be fetched anew; False if it is not one."""
  return fetch.drop(path) or hub.drop(path)


def _is_here(address: str) -> bool:
  """Whether the address is downloaded already, or a pickle, which never is."""
  scheme, _, location = address.partition("://")
  if scheme == "hf":
    return hub.is_cached(location)
  url = storage_url(location) if scheme == "gs" else address
  return address.endswith(PICKLES) or fetch.cached_path(url).is_file()


def _from_address(
  address: str, sha256: str | None, more: tuple[str, ...]
) -> pathlib.Path:
  scheme, _, location = address.partition("://")
  scheme = scheme.lower()
  if scheme == "hf":
    return hub.fetch_repository(location, more)
  if scheme not in ("http", "https", "gs"):
    raise ValueError(
      f"{fetch.without_secrets(address)!r}: {scheme}:// cannot be read; give "
      "https://, gs://bucket/object, hf://owner/name or a path."
    )
  url = storage_url(location) if scheme == "gs" else address
  refuse_pickle(fetch.without_secrets(url))
  return fetch.fetch(url, sha256)


def storage_url(location: str) -> str:
  """Google Cloud Storage's public address of `bucket/object`.

  Raises ValueError if `location` names no object.
  """
  bucket, _, name = location.partition("/")
  if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", bucket) or (
    {"", ".", ".."} & set(name.split("/"))
  ):
    raise ValueError(
      f"{'gs://' + location!r} names no object; write gs://bucket/folder/file."
    )
  host = os.environ.get("STORAGE_EMULATOR_HOST")
  host = host or "https://storage.googleapis.com"
  host = host if "://" in host else f"http://{host}"
  return f"{host.rstrip('/')}/{bucket}/{quote(name)}"
