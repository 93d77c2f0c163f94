"""Reads and writes Hugging Face's repositories with their library, extra `hf`.

Its cache is shared with other programs (`HF_HOME`), and it knows the login
(`HF_TOKEN`), a mirror (`HF_ENDPOINT`) and offline mode (`HF_HUB_OFFLINE`).
"""

import hashlib
import pathlib
import re
import sys
from typing import Any

from vit_jax.pretrained.fetch import causes, explain
from vit_jax.pretrained.flax_arrays import FILE as FLAX
from vit_jax.pretrained.formats import open_clip
from vit_jax.pretrained.known import conversion
from vit_jax.runtime import extras

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
REPOSITORY = re.compile(  # owner/name[@revision].
  rf"(?!.*(?:\.\.|//|/$))({_WORD}/{_WORD})(?:@([A-Za-z0-9_][A-Za-z0-9_./-]*))?"
)

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json")
_FILES = (*_CONFIGS, *_WEIGHTS, "model-*.safetensors")
# Files to fetch if there are no weights of these names: weights in another
# precision, those of open_clip and Flax, and the configuration of an adapter.
_OTHERS = (
  "model.*.safetensors",
  open_clip.WEIGHTS,
  FLAX,
  "adapter_config.json",
)
_PICKLE = "pytorch_model.bin"
_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def fetch_repository(name: str, more: tuple[str, ...] = ()) -> pathlib.Path:
  """The local folder of `owner/name[@revision]`, downloaded if needed.

  Weights in another precision are fetched only if there are no others. Those
  files of `more` that exist are fetched too. open_clip's file of both towers is
  also fetched if `more` has open_clip's configuration and the other weights are
  timm's image tower alone. Raises ValueError or OSError if there is no such
  repository, it has no weights or only pickles, the download fails, or the
  library is not installed.
  """
  source = f"hf://{name}"
  if not (match := REPOSITORY.fullmatch(name)):
    raise ValueError(
      f"{source!r} names no repository; write hf://owner/name, or "
      "hf://owner/name@revision."
    )
  extras.check("huggingface_hub", "hf", source)
  import huggingface_hub as library

  repository, revision = match.groups()
  try:
    folder = library.snapshot_download(
      repository, revision=revision, allow_patterns=[*_FILES, *more]
    )
    if _holds(folder, (*_WEIGHTS, "model-*.safetensors")):
      wants_texts = open_clip.CONFIG in more
      if wants_texts and open_clip.is_whole_beside(pathlib.Path(folder)):
        folder = library.snapshot_download(
          repository,
          revision=revision,
          allow_patterns=[*_FILES, *more, open_clip.WEIGHTS],
        )
      return pathlib.Path(folder)
    folder = library.snapshot_download(
      repository, revision=revision, allow_patterns=[*_CONFIGS, *_OTHERS, *more]
    )
    if _holds(folder, _OTHERS):
      return pathlib.Path(folder)
    api = library.HfApi()
    only_pickle = api.file_exists(repository, _PICKLE, revision=revision)
  except Exception as error:  # The library's errors share no other base class.
    raise OSError(f"{source}: {_explain(error, repository)}.") from error
  if only_pickle:
    raise ValueError(
      f"{source} has its weights only as {_PICKLE}, {conversion(_PICKLE)}, and "
      "give the folder that holds it beside config.json."
    )
  raise ValueError(
    f"{source} has no {_WEIGHTS[0]}; choose a repository or a revision that "
    "has one."
  )


def is_cached(name: str) -> bool:
  """Whether the cache has the configuration of `owner/name[@revision]`.

  Raises ValueError if the library is not installed.
  """
  extras.check("huggingface_hub", "hf", f"hf://{name}")
  import huggingface_hub as library

  repository, _, revision = name.partition("@")
  path = library.try_to_load_from_cache(
    repository, _CONFIGS[0], revision=revision or None
  )
  return isinstance(path, str)


def _holds(folder: str, patterns: tuple[str, ...]) -> bool:
  """Whether a folder has a file of one of these names."""
  return any(
    True for pattern in patterns for _ in pathlib.Path(folder).glob(pattern)
  )


def check_repository(name: str) -> None:
  """Raises ValueError unless `name` is owner/name, without a revision."""
  if not REPOSITORY.fullmatch(name) or "@" in name:
    raise ValueError(f"--push={name!r} names no repository; write owner/name.")
  extras.check("huggingface_hub", "hf", "--push")


def push(folder: pathlib.Path, name: str) -> str:
  """Uploads a folder to a repository, new or not; returns the commit's address.

  Raises OSError if the upload fails.
  """
  import huggingface_hub as library

  api = library.HfApi()
  try:
    api.create_repo(name, exist_ok=True)
    text = "Upload a Vision Transformer written by vit_jax"
    commit = api.upload_folder(
      repo_id=name, folder_path=folder, commit_message=text
    )
  except Exception as error:  # The library's errors share no other base class.
    raise OSError(
      f"{name} is not uploaded: {_explain(error, name)}. What was written "
      f"stays in {folder}."
    ) from error
  return str(commit.commit_url)


def _explain(error: Exception, repository: str) -> str:
  """The meaning of an error of the library, and the remedy, in a line."""
  from huggingface_hub import constants, errors

  for cause in causes(error):
    match cause:
      case errors.HFValidationError():
        return "this is not the name of a repository; write hf://owner/name"
      case errors.GatedRepoError():
        page = f"{constants.ENDPOINT}/{repository}"
        return f"accept its terms at {page}, then {_LOG_IN}"
      case errors.RevisionNotFoundError():
        return "it has no such revision; check the part after the @"
      case errors.OfflineModeIsEnabled():
        return "it is not in the cache, and HF_HUB_OFFLINE is set"
      case errors.HfHubHTTPError(response=response):
        return (
          f"the server answers {response.status_code}; check the name, if it "
          f"is private {_LOG_IN}, or try again later"
        )
  if isinstance(error, OSError) and error.errno is not None:
    return (
      f"cannot write to the cache: {error.strerror}; make room, or set HF_HOME"
    )
  return f"{explain(error)}; try again later"


def drop(path: pathlib.Path) -> bool:
  """Removes damaged weights from the library's cache; False if there are none.

  Other programs use the cache as well, so intact files stay there.
  """
  library: Any = sys.modules.get("huggingface_hub")
  if library is None:
    return False
  cache = pathlib.Path(library.constants.HF_HUB_CACHE).resolve()
  if cache not in path.parents:
    return False
  damaged = []
  for file in path.parent.glob("model*.safetensors"):
    with open(file, "rb") as stream:
      sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if file.resolve().name != sha256:  # The cache names files by checksum.
      damaged += [file.resolve(), file]
  for file in damaged:
    file.unlink(missing_ok=True)
  return bool(damaged)
