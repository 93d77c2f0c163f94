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
  only_timm_name,
  refuse_pickle,
)
from vit_jax.runtime import hints
from vit_jax.runtime.printable import printable, say, say_once

# The size in a name, such as vit_base_patch32, ViT-B/32, vits14 or b32.
_SIZE = re.compile(
  r"(?:\b|_)(?:vit)?[-_]?(ti|[sblhg])(?:ny|mall|ase|arge|uge|iant)?"
  r"[-_/]?(?:patch|p)?[-_/]?(8|14|16|32)(?=\b|_)"
)
_WORD = re.compile(r"[a-z]{3}")
_SAY_LITTLE = ("", "vit", "hf", "timm", "torchvision", "google", "facebook")


def locate(source: str, more: tuple[str, ...] = ()) -> pathlib.Path:
  """The local file or folder of a checkpoint, downloaded if needed.

  `source` is a path that exists, https:// or http://, gs://bucket/object,
  hf://owner/name[@revision], or a name for `known.find`. For hf:// the result
  is a folder that holds `config.json`, the safetensors, and, if the repository
  has them, `preprocessor_config.json` and the files `more`. The licence of a
  known checkpoint is printed before it is downloaded. Raises ValueError or
  OSError if there is no such checkpoint, it is a pickle, or the download fails.
  """
  path = os.path.expanduser(source)
  if os.path.exists(path):
    refuse_pickle(path)
    return pathlib.Path(path)
  checkpoint = find(source)
  if whole := only_timm_name(source):
    say_once(
      f"{source} is taken for {whole}, the only such weights known here."
    )
  if checkpoint and not _needs_no_download(checkpoint.url):
    say(f"{source}: {checkpoint.terms}.")
  if "://" in source:
    return _from_address(source, None, more)
  if checkpoint:
    return _from_address(checkpoint.url, checkpoint.sha256, more)
  near = _names_with_timms(source) or _nearest_names(source)
  names = "name is" if len(near) == 1 else "names are"
  ideas = f"; the nearest {names} {', '.join(near)}" if near else ""
  repository = source if "/" in source else f"timm/{source}"
  if hub.REPOSITORY.fullmatch(repository) and {*"/."} & {*source}:
    ideas += f"; on Hugging Face it would be hf://{repository}"
  raise ValueError(
    f"{source!r} is neither a file or folder here nor a known checkpoint"
    f"{ideas}; `vit_jax convert --list` lists all names."
  )


def _nearest_names(source: str) -> list[str]:
  """At most three runs, files here or known checkpoints with similar names."""
  names = [*KNOWN, *(row.timm for row in KNOWN.values())]
  on_the_hub = (name for row in KNOWN.values() for name in row.names)
  names += [n for n in on_the_hub if n.count("/") == source.count("/")]
  names = [*dict.fromkeys(names)]  # A model may be published twice.
  near = _names_of_parts(source) or difflib.get_close_matches(
    source.lower(), names, n=3, cutoff=0.4
  )
  run = filter(None, [hints.find_run(source)])  # A run on data of this name.
  return [*dict.fromkeys((*run, *hints.similar_path(source), *near))][:3]


def _names_of_parts(source: str) -> list[str]:
  """At most three of our names with most parts of a name, in any order.

  "openai/clip-vit-base-patch32" and "hf_b32_clip" have the parts b32 and clip.
  A result shares at least two parts with `source`, or its only one, and one of
  the shared parts is a word, such as clip.
  """
  wanted = _parts(source)
  shared = {name: wanted & _parts(name) for name in KNOWN}
  most = max(map(len, shared.values()))
  best = [
    name
    for name, parts in shared.items()
    if len(parts) == most >= min(2, len(wanted))
    and any(map(_WORD.match, parts))
  ]
  return difflib.get_close_matches(source.lower(), best, n=3, cutoff=0.0)


def _parts(name: str) -> set[str]:
  """The parts of a name: its size as in b32, and its other words and numbers.

  What says only who publishes it, or that it is a ViT, is left out.
  """
  plain = _SIZE.sub(r"_\1\2_", name.lower())
  return {*re.split(r"[^a-z0-9+]+", plain)} - {*_SAY_LITTLE}


def _names_with_timms(source: str) -> list[str]:
  """Our names of all weights of an architecture of timm's, with timm's names.

  In timm, the name of an architecture alone, such as vit_base_patch16_224,
  stands for weights that timm chooses.
  """
  return [
    f"{name} ({timm})"
    for name, row in KNOWN.items()
    for timm in row.names[1:]
    if timm.startswith(f"{source}.")
  ]


def is_trusted(source: str, workdir: str | None = None) -> bool:
  """Whether to open a source that only a file, such as a description, names.

  A known checkpoint is trusted, and so are paths on this machine, except pipes
  and devices, and addresses in the same bucket as the `workdir` that the user
  named.
  """
  if "://" in source:
    is_known = source in (checkpoint.url for checkpoint in KNOWN.values())
    bucket = _bucket(source)
    return is_known or (bucket is not None and bucket == _bucket(workdir or ""))
  path = os.path.expanduser(source)  # A pipe or a device might never end.
  is_plain = os.path.isfile(path) or os.path.isdir(path)
  return is_plain or not os.path.exists(path)


def check_trusted(
  source: str, what: str, flag: str, workdir: str | None = None
) -> None:
  """Raises ValueError unless a source that only a file names may be opened.

  Code that opens an address found in a checkpoint calls this first.

  Args:
    source: The path or address.
    what: The source's role, as the subject of the message.
    flag: The flag, and the keyword in Python, by which the user names it.
    workdir: The run, as in `is_trusted`.
  """
  if not is_trusted(source, workdir):
    shown = printable(fetch.without_secrets(source))
    raise ValueError(
      f"{what} is {shown}, which only the run's checkpoint gives: if you trust "
      f"it, give --{flag}={shown} ({flag}= in Python)."
    )


def _bucket(address: str) -> str | None:
  """The bucket of a gs:// address without ".."; None for any other address.

  >>> _bucket("gs://photos/packed")
  'photos'
  """
  scheme, _, location = address.partition("://")
  bucket, *inside = location.split("/")
  return bucket if scheme == "gs" and bucket and ".." not in inside else None


def drop_download(path: pathlib.Path) -> bool:
  """Removes a damaged download; False if `path` is not a download."""
  return fetch.drop(path) or hub.drop(path)


def _needs_no_download(address: str) -> bool:
  """Whether an address is in the cache, or a pickle, which is not fetched."""
  scheme, _, location = address.partition("://")
  if scheme == "hf":
    return hub.is_cached(location)
  url = storage_url(location) if scheme == "gs" else address
  return address.endswith(PICKLES) or fetch.cached_path(url).is_file()


def _from_address(
  address: str, sha256: str | None, more: tuple[str, ...]
) -> pathlib.Path:
  """The file or folder downloaded from an address; raises as `locate` does."""
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
  """The https:// address of `bucket/object` in Google Cloud Storage.

  With STORAGE_EMULATOR_HOST set, it is the object's address on that host.
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
