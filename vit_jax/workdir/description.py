"""A checkpoint's description of its run: a JSON object with a digest.

It holds the configuration, the model, the class names, the position of the
data iterator, and the checksums of all arrays, which are computed on the
devices that hold the arrays. The digest of all these detects damage.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, UInt32

from vit_jax.data.preprocessing import HALF, Preprocessing
from vit_jax.data.reading.labels import SINGLE, Labels
from vit_jax.data.reading.split_names import OLDER
from vit_jax.data.settings import (
  DataSettings,
  EvalTransformSettings,
  NormalizationSettings,
)
from vit_jax.models.layer import EXECUTION
from vit_jax.runtime.checks import COUNT, SIDES, Sides, checked
from vit_jax.runtime.printable import printable
from vit_jax.runtime.settings import Section, flat, from_dict, section, setting
from vit_jax.training.settings import LoraSettings, LossSettings

# Only runs whose images keep their proportions need this module when they run.
if TYPE_CHECKING:
  from vit_jax.data.transforming.sizes import AnySize

_ELEMENTS = 1 << 16  # Elements of an array that are summed at a time.
# Keys of facts about data and teacher that are not in the configuration.
_DATA_KEYS = ("class_names", "train_examples", "targets", "task", "teacher")
# Keys that every reader of a description needs, and the types of their values.
_NEEDED = {"config": dict, "model": dict, "class_names": list}
_NEEDED |= {"checksums": dict}
# Keys that only some runs have, and the types of their values.
_OTHERS = {"targets": dict, "base": dict, "teacher": dict, "files": dict}
_OTHERS |= {"data_iterator": dict, "task": str, "score": str}
_JSON = {dict: "JSON object", list: "list", str: "text"}
# Beginnings of keys that may differ when a run is resumed, as they do not
# change what the model learns.
_FREE_KEYS = (
  "log_every",
  "eval_every",
  "save_every",
  "keep_last",
  "profile_steps",
  "early_stop_evaluations",
  "max_skipped_steps",
  "hang_factor",
  "fewshot.",
  "eval_batch_size",
  "eval_per_class",
  "eval_pictures",
  "eval_transform.",
  "loader.",
  "mesh.",
  "wandb_project",
  "digest_every",
  "data.data_dir",
  "data.root",
  "data.dir",
  "data.labels_file",
  "data.eval_labels_file",
  "data.eval_split",
  "teacher.source",
)
# Compared as whole names, since these begin others: attention_dtype changes
# what is learned.
_FREE_OF_MODEL = {f"model.{name}" for name in EXECUTION}


@dataclasses.dataclass(frozen=True)
class RecordedSettings(Section):
  """The part of a run's configuration that is needed to use its model."""

  image_size: Sides = setting((224, 224), "Height and width.", must=SIDES)
  cut_from: Sides | None = setting(None, "Size before the cut.", must=SIDES)
  ema_decay: float = setting(0.0, "Polyak averaging.")
  eval_transform: EvalTransformSettings = section(EvalTransformSettings)
  normalization: NormalizationSettings = section(NormalizationSettings)
  loss: LossSettings = section(LossSettings)
  lora: LoraSettings = section(LoraSettings)


def recorded_settings(description: Mapping[str, Any]) -> RecordedSettings:
  """The part of a run's configuration that is needed to use its model.

  It is read from a checkpoint's description; raises ValueError for bad values.
  """
  config = description["config"]
  names = [field.name for field in dataclasses.fields(RecordedSettings)]
  fields = {name: config[name] for name in names if name in config}
  return from_dict(RecordedSettings, fields, saved=True)


def preprocessing(description: Mapping[str, Any]) -> Preprocessing:
  """The preprocessing of the images that the run was evaluated on.

  Raises ValueError if a value of the description is invalid.
  """
  record = recorded_settings(description)
  mean, std = record.normalization.mean, record.normalization.std
  return Preprocessing(
    size=record.image_size,
    crop=record.eval_transform,
    mean=mean or HALF,
    std=std or HALF,
    window=record.normalization.window,
    cut_from=record.cut_from,
    patches=_patches(description),
    bands=_bands(description),
    some_bands=description["model"].get("channel_tokens") is True,
  )


def _bands(description: Mapping[str, Any]) -> tuple[str, ...]:
  """The names of the bands of a run's images."""
  data = description["config"].get("data", {})
  bands = checked("data.bands", str | None, data.get("bands"))
  return DataSettings(bands=bands).band_names


def _patches(description: Mapping[str, Any]) -> Optional["AnySize"]:
  """The patches of a run on images that keep their proportions; else None."""
  data = description["config"].get("data", {})
  tokens = checked("data.tokens", int | None, data.get("tokens"), COUNT)
  if tokens is None:
    return None
  from vit_jax.data.transforming.sizes import AnySize

  size = description["model"].get("patch_size")
  return AnySize(tokens, checked("model.patch_size", int, size, COUNT))


def class_names(description: Mapping[str, Any]) -> tuple[str, ...]:
  """The names of the run's classes, with unprintable characters escaped."""
  return tuple(printable(str(name)) for name in description["class_names"])


def with_digest(description: dict[str, Any]) -> dict[str, Any]:
  """The description as JSON would return it, with its digest added."""
  plain = _as_json(description)
  return plain | {"digest": _digest(plain)}


def verify_digest(description: Any) -> None:
  """Raises ValueError unless a description is complete and has its digest."""
  if not isinstance(description, dict):
    raise ValueError("its description is not a JSON object")
  content = {k: v for k, v in description.items() if k != "digest"}
  if description.get("digest") != _digest(content):
    raise ValueError("its description does not match its digest")
  if missing := [key for key in _NEEDED if key not in description]:
    raise ValueError(f"its description has no {' and no '.join(missing)}")
  for key, kind in (_NEEDED | _OTHERS).items():
    if key in description and not isinstance(description[key], kind):
      raise ValueError(f"{key} of its description is no {_JSON[kind]}")
  if not all(isinstance(x, int) for x in description.get("files", {}).values()):
    raise ValueError(
      "the files of its description have values that are not lengths"
    )


def changes(saved: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
  """How a run that goes on differs from its checkpoint, by dotted key.

  `saved` is the checkpoint's description, and `now` that of the run. Keys that
  do not change what is learned are left out.
  """
  there = _facts(saved)
  here = _facts(now)
  return {
    key: f"{key} was {there.get(key)!r} and is now {here.get(key)!r}"
    for key in sorted(there.keys() | here.keys())
    if there.get(key) != here.get(key)
    and not key.startswith(_FREE_KEYS)
    and key not in _FREE_OF_MODEL
  }


def check_changes(
  saved: dict[str, Any], now: dict[str, Any], workdir: str
) -> None:
  """Raises ValueError for changes that no run can go on with.

  These are keys of the model that its fields do not follow, such as the name of
  its variant. The arguments are those of `check_same_run`.
  """
  config = _facts(now)
  kept = [
    text
    for key, text in changes(saved, now).items()
    if key.startswith("model.")
    and now["model"].get(key.removeprefix("model.")) != config.get(key)
  ]
  if kept:
    raise ValueError(
      f"{workdir} goes on with the model that it began with: "
      f"{'; '.join(kept)}. Take the old value, or begin a run in another "
      f"workdir, with --pretrained={workdir}."
    )


def check_same_run(
  saved: dict[str, Any],
  now: dict[str, Any],
  workdir: str,
  labels: Labels = SINGLE,
) -> None:
  """Raises ValueError if a run must not resume from a checkpoint.

  `saved` is the checkpoint's description, and `now` that of the run; `labels`
  is the kind of the run's labels.
  """
  there = _facts(saved)
  here = _facts(now)
  changed = changes(saved, now).values()
  if changed:
    of_folder = here.get("data.root") and not here.get("data.labels_file")
    hint = ""
    if of_folder and there.get("class_names") != here.get("class_names"):
      hint = labels.about_other_names(class_names(saved), new=False)
    elif of_folder and there.get("train_examples") != here.get(
      "train_examples"
    ):
      hint = OLDER
    raise ValueError(
      f"{workdir} holds a run with another configuration or other data: "
      f"{'; '.join(changed)}. Resume with the old ones, choose another "
      "workdir, or, unless layers or the optimizer changed, pass "
      f"--allow_changes.{hint}"
    )


def _facts(description: dict[str, Any]) -> dict[str, Any]:
  """The configuration and the facts about data, in one level by dotted keys."""
  facts = {key: description[key] for key in _DATA_KEYS if key in description}
  return flat(_as_json(description["config"] | facts))


def _digest(description: dict[str, Any]) -> str:
  """The SHA-256 of a description."""
  text = json.dumps(description, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _as_json(tree: dict[str, Any]) -> dict[str, Any]:
  """The tree as JSON would return it, with tuples as lists."""
  return json.loads(json.dumps(tree))


def checksums(tree: Any) -> dict[str, int]:
  """The checksum of each array of a tree, by the array's path.

  A checksum is the sum over i of (2 i + 1) x_i, modulo 2^32, where x_i is the
  i-th element in row-major order with its bits taken as an integer. As every
  factor is odd, a change of a single element always changes the sum; a change
  of several goes unnoticed with a probability of 2^-32. The sum does not depend
  on how an array is split over devices.
  """
  # They are computed one after the other: on CPUs, many small programs that
  # each sum over devices can wait for each other for ever.
  sums = {}
  for path, array in named_leaves(tree):
    compute = checksum_on_host if is_on_host(array) else _checksum_on_devices
    sums[path] = int(compute(array))
  return sums


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
  """Yields the leaves of a tree, each after its path, as `params/head/bias`."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def checksum(array: Array) -> UInt32[Array, ""]:
  """The checksum of one array; `checksums` gives the formula."""
  place = jnp.zeros((), jnp.uint32)  # i; a reshape would gather the parts.
  for axis, length in enumerate(array.shape):
    index = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    place = place * jnp.uint32(length) + index
  bits = array
  if not jnp.isdtype(array.dtype, ("bool", "unsigned integer")):
    width = 8 * array.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(array, jnp.dtype(f"uint{width}"))
  return jnp.sum(bits.astype(jnp.uint32) * (2 * place + 1), dtype=jnp.uint32)


def _checksum_on_devices(array: Array) -> UInt32[Array, ""]:
  return _jit_checksum(_replicated(array))(array)


def is_on_host(array: Any) -> bool:
  """Whether NumPy can read an array without a copy from a device."""
  if not isinstance(array, jax.Array):
    return True
  places = [device.platform for device in array.sharding.device_set]
  return places == ["cpu"] and array.is_fully_addressable


def checksum_on_host(array: Any) -> np.uint32:
  """The `checksum` of an array that `is_on_host`; compiles nothing."""
  flat = np.asarray(array).reshape(-1)
  if flat.dtype != bool:
    flat = flat.view(f"uint{8 * flat.dtype.itemsize}")
  factors = 2 * np.arange(min(_ELEMENTS, flat.size), dtype=np.uint32) + 1
  total = 0
  for first in range(0, flat.size, _ELEMENTS):
    bits = flat[first : first + _ELEMENTS].astype(np.uint32)
    total += int(bits @ factors[: bits.size])
    total += 2 * first * int(bits.sum(dtype=np.uint32))
  return np.uint32(total % 2**32)


def digest(
  trees: dict[str, Any],
  batch: Any,
  checksum_of: Callable[[Any], Any] = checksum,
) -> dict[str, Any]:
  """Checksums of a state's trees, and of a batch's arrays as `batch/NAME`.

  The optimizer's state is left out. The checksum of a tree is the sum over j of
  (2 j + 1) c_j, where c_j is the checksum of its array j. `checksum_of` is
  `checksum`, which is to be compiled and returns arrays of JAX, or
  `checksum_on_host`, which returns NumPy's numbers.
  """
  sums = {f"batch/{path}": checksum_of(x) for path, x in named_leaves(batch)}
  xp = jnp if checksum_of is checksum else np
  for name in trees.keys() - {"opt_state"}:
    leaves = [checksum_of(leaf) for leaf in jax.tree.leaves(trees[name])]
    factors = 2 * np.arange(len(leaves), dtype=np.uint32) + 1
    sums[name] = (factors * xp.stack(leaves)).sum(dtype=np.uint32)
  return sums


def digest_of(
  trees: dict[str, Any], batch: Any, step: Array
) -> tuple[Array, dict[str, Array]]:
  """The count of a state's steps, and the `digest` of the state and a batch.

  This function is to be compiled. The count waits for the checksums, and so
  does the train step that takes it: two programs that sum over several CPU
  devices at once can wait for each other for ever.
  """
  return jax.lax.optimization_barrier((step, digest(trees, batch)))


@functools.cache
def _jit_checksum(sharding: NamedSharding | None) -> Any:
  return jax.jit(checksum, out_shardings=sharding)


def _replicated(array: Array) -> NamedSharding | None:
  """The sharding that puts a sum on every device of an array's mesh.

  So every host has the sum. It is None for an array without a mesh.
  """
  sharding = getattr(array, "sharding", None)
  if isinstance(sharding, NamedSharding):
    return NamedSharding(sharding.mesh, PartitionSpec())
  return None
