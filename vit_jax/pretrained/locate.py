"""From what a user calls a checkpoint to a file or folder on this machine.

Nothing is downloaded twice: see `cache`. A failure is a ValueError or an
OSError whose message is one line.
"""

import difflib
import os
import pathlib
import re
from urllib.parse import quote

from vit_jax.pretrained.download import fetch
from vit_jax.pretrained.hub import REPOSITORY, fetch_repository
from vit_jax.pretrained.known import KNOWN, PICKLES
from vit_jax.pretrained.pickles import conversion


def locate(source: str) -> pathlib.Path:
  """The local file or folder of a checkpoint, downloaded if it has to be.

  Args:
    source: A path that exists, https:// or http://, gs://bucket/object,
      hf://owner/name[@revision], or a name in `known.KNOWN`.

  Returns:
    A file, or for hf:// a folder that holds `config.json`, the safetensors and
    `preprocessor_config.json` where there is one, under these names.

  Raises:
    ValueError, OSError: no such checkpoint, a pickle, or a failed download.
  """
  path = os.path.expanduser(source)
  if os.path.exists(path):
    return _checked_path(path)
  if "://" in source:
    return _from_address(source, None)
  if known := KNOWN.get(source.lower()):
    return _from_address(known.url, known.sha256)
  near = difflib.get_close_matches(source.lower(), KNOWN, n=3, cutoff=0.4)
  ideas = f"; the nearest names are {', '.join(near)}" if near else ""
  if REPOSITORY.fullmatch(source):
    ideas += f"; on Hugging Face it would be hf://{source}"
  raise ValueError(
    f"{source!r} is neither a file or folder here nor a known checkpoint"
    f"{ideas}; `python -m vit_jax.convert --list` lists all names."
  )


def _checked_path(path: str) -> pathlib.Path:
  """The path, unless it is a file that ends as pickles do."""
  if path.lower().endswith(PICKLES) and not os.path.isdir(path):
    raise ValueError(
      f"{path!r} is a pickle, {conversion(path)}, and give that file."
    )
  return pathlib.Path(path)


def _from_address(address: str, sha256: str | None) -> pathlib.Path:
  scheme, _, rest = address.partition("://")
  match scheme.lower():
    case "http" | "https":
      return fetch(address, sha256=sha256)
    case "gs":
      return fetch(_storage_url(rest), sha256=sha256)
    case "hf":
      return fetch_repository(rest)
  raise ValueError(
    f"{address!r}: {scheme}:// cannot be read; give https://, "
    "gs://bucket/object, hf://owner/name or a path."
  )


def _storage_url(rest: str) -> str:
  """Google Cloud Storage's public address of `bucket/object`."""
  bucket, _, name = rest.partition("/")
  steps = name.split("/")
  if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", bucket) or (
    {"", ".", ".."} & set(steps)
  ):
    raise ValueError(
      f"{'gs://' + rest!r} names no object; write gs://bucket/folder/file."
    )
  host = os.environ.get("STORAGE_EMULATOR_HOST")
  if not host:
    host = "https://storage.googleapis.com"
  elif "://" not in host:
    host = f"http://{host}"
  return f"{host.rstrip('/')}/{bucket}/{quote(name)}"
