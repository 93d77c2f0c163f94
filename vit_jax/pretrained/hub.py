"""Hugging Face's repositories: the folder of one, in the cache.

Its files are all of one commit, and the folder appears once it is complete.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
from typing import NoReturn
from urllib.parse import quote

from vit_jax.pretrained.answers import (
  CutError,
  MissingError,
  answer,
  checked,
  hub_url,
)
from vit_jax.pretrained.cache import only_one, place, writing
from vit_jax.pretrained.download import download
from vit_jax.pretrained.pickles import conversion

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
REPOSITORY = re.compile(
  rf"({_WORD})/({_WORD})(?:@([A-Za-z0-9_][A-Za-z0-9_./-]{{0,199}}))?"
)
"""owner/name[@revision]."""

_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


def fetch_repository(name: str) -> pathlib.Path:
  """The folder of `owner/name[@revision]`, downloaded unless it is there.

  Raises:
    ValueError, OSError: no such name or repository, or a failed download.
  """
  source = f"hf://{name}"
  match = REPOSITORY.fullmatch(name)
  if not match or ".." in name or "//" in name or name.endswith("/"):
    raise ValueError(
      f"{source!r} names no repository; write hf://owner/name, or "
      "hf://owner/name@revision."
    )
  owner, model, revision = match.groups(default="main")
  root = checked(f"{hub_url()}/{owner}/{model}/resolve")
  folder = place(f"{root}@{revision}", f"{owner}--{model}")
  if folder.is_dir():
    return folder
  with only_one(folder):
    if not folder.is_dir():
      _fill(folder, root, quote(revision, safe=""), source)
  return folder


def _fill(folder: pathlib.Path, root: str, revision: str, source: str) -> None:
  """Brings a repository's files to a `.part` folder and gives it its name."""
  work = folder.with_name(f"{folder.name}.part")
  try:
    with writing(work):
      work.mkdir(exist_ok=True)
    config = work / "config.json"
    commit = download(f"{root}/{revision}/{config.name}", config).commit
    # All files of one commit: a branch may move while it is downloaded.
    inner = work / (commit or "unnamed")
    with writing(work):
      if commit is None:
        shutil.rmtree(inner, ignore_errors=True)
      inner.mkdir(exist_ok=True)
      os.replace(config, inner / config.name)
    _fetch_weights(inner, f"{root}/{commit or revision}", source)
    with writing(folder):
      os.rename(inner, folder)
    shutil.rmtree(work, ignore_errors=True)
  except CutError:
    with contextlib.suppress(OSError):
      work.rmdir()  # Only if nothing came.
    raise
  except (OSError, ValueError):
    shutil.rmtree(work, ignore_errors=True)
    raise


def _fetch_weights(folder: pathlib.Path, base: str, source: str) -> None:
  """Everything beside `config.json`."""

  def get(name: str) -> bool:
    if (folder / name).is_file():  # From a call that was cut later.
      return True
    try:
      download(f"{base}/{name}", folder / name)
    except MissingError:
      return False
    return True

  get("preprocessor_config.json")
  if get("model.safetensors"):
    return
  index = "model.safetensors.index.json"
  if not get(index):
    _refuse_without_weights(base, source)
  for shard in _shards(folder / index, source):
    if not get(shard):
      raise ValueError(
        f"{source} has no {shard}, which its {index} names; choose another "
        "revision."
      )


def _refuse_without_weights(base: str, source: str) -> NoReturn:
  """Raises; the message tells whether there is a pickle of them."""
  pickle = "pytorch_model.bin"
  with answer(f"{base}/{pickle}", method="HEAD") as (response, hub):
    only_pickle = response.ok or "X-Linked-Etag" in hub
  if only_pickle:
    raise ValueError(
      f"{source} has its weights only as {pickle}, {conversion(pickle)}, and "
      "give the folder that holds it beside config.json."
    )
  raise ValueError(
    f"{source} has no model.safetensors; choose a repository or a revision "
    "that has one."
  )


def _shards(index: pathlib.Path, source: str) -> list[str]:
  """The files that an index names, each of which must be a plain name."""
  try:
    names = set(json.loads(index.read_bytes())["weight_map"].values())
    strange = [n for n in names if not _SHARD.fullmatch(n) or ".." in n]
  except (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
  ) as error:
    raise ValueError(
      f"{source}: {index.name} is not an index of safetensors; choose another "
      "revision."
    ) from error
  if strange or not names:
    raise ValueError(
      f"{source}: {index.name} names {sorted(strange)[:1] or 'no file'}; only "
      "plain names of safetensors are read."
    )
  return sorted(names)
