"""Chooses settings by the number of images.

For `vit_jax train DATA --pretrained NAME` it chooses the configuration, for
`vit_jax train DATA --config dino:continue` or `dino:high_res` some keys, and
for a run on pairs whether to train the image tower. For a run from scratch on
few images it names the better command.
"""

import contextlib
import pathlib
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from ml_collections import ConfigDict

from vit_jax.data.settings import DataSettings
from vit_jax.pretrained import known
from vit_jax.runtime import checks, hints
from vit_jax.runtime.printable import counted
from vit_jax.runtime.settings import UNITS, flat, types_of
from vit_jax.tasks.table import SECTIONS, labels_of

if TYPE_CHECKING:
  from vit_jax.data.reading.sources import Splits

FEW = 1_000  # Fewer training images count as few; VTAB-1k's tasks have 1,000.
ENOUGH = 10_000  # From this many images on, a new encoder may be trained.
# Beginnings of keys that do not go with a start from a linear probe.
_NO_PROBE = (
  "lora.",
  "transfer.keep_head",
  "transfer.probe_head",
  *(f"{section}." for section in SECTIONS),
)
_LIT_KEY = "pairs.image"
# Families in `known.csv` whose repositories may hold a text tower.
_TEXT_FAMILIES = (
  "CLIP",
  "MetaCLIP",
  "MetaCLIP 2",
  "Perception Encoder",
  "SigLIP",
  "SigLIP 2",
  "TIPSv2",
)
_BOTH = "token_gap"  # The pooling that reads the class token and the patches.
# A momentum of 1 - _MOMENTA / steps leaves 5 % of the first weights in the
# average of a run: the product over its steps of the decays, which rise to 1
# along a cosine, is about exp(-(1 - momentum) steps / 2).
_MOMENTA = 6.0
_LEAST_MOMENTUM = 0.9
_LORA_RATE = 10  # LoRA's learning rate, as a multiple of that for all layers.
# The fewest steps of an epoch, unless that would need batches of fewer than
# `_LEAST_BATCH` images.
_STEPS_AN_EPOCH = 4
_LEAST_BATCH = 8
# Keys that decide how many steps a run has.
_LENGTHS = ("batch_size", *(f"total_{unit}" for unit in UNITS))
# Keys that `continued` may set, and that a begun run keeps.
_FITTED = (
  "lora.rank",
  "optimizer.peak_lr",
  "ema_decay",
  "data.labels",
  "batch_size",
)


def fine_tuning(
  values: Mapping[str, str], workdir: str = ""
) -> tuple[dict[str, str], str]:
  """The configuration that suits the images and `pretrained`, and why.

  Returns keys with their values, and the reason, a part of a sentence such as
  ", which has 2,000 training images,", or "". The key "config" names the
  configuration.

  Args:
    values: The values on the command line, as text, by dotted key.
    workdir: The run's folder. A run that began without a probe goes on without
      a probe, and a run whose weights are no longer there keeps its pooling.
  """
  count = None
  task = values.get("data.task", "classification")
  if not any(key.startswith(_NO_PROBE) for key in values) and may_probe(task):
    count = _count(values, task)
  if count is None:
    return {"config": "finetune"}, ""
  if count >= FEW or _began_without_probe(workdir):
    return {"config": "finetune"}, f", which has {count:,} training images,"
  chosen = {"config": "finetune:small"}
  pooling = _pooling(values["pretrained"], workdir)
  if pooling and "model.pooling" not in values:
    chosen["model.pooling"] = pooling
  return chosen, f", which has only {count:,} training images,"


def continued(
  values: Mapping[str, str], workdir: str = ""
) -> tuple[dict[str, str], str]:
  """The keys that `dino:continue` and `dino:high_res` set, and why.

  Returns keys with their values, and the reason, a part of a sentence. Both are
  empty if the data cannot be opened. If the run has begun with other values
  than those of the configuration, it keeps them.

  Args:
    values: The values on the command line, as text, by dotted key.
    workdir: The run's folder.
  """
  # Imported here so that --help answers at once.
  from vit_jax.run.config_file import load_config

  config = load_config(values["config"])
  if kept := _values_of_begun_run(config, workdir):
    return _not_given(kept, values), ", whose run goes on as it began,"
  splits = _splits(values, labels=False)
  if splits is None:
    return {}, ""
  count = len(splits.train)
  choices = choices_of_count(config, values, count)
  labelled = None
  if "data.root" in values:  # Only folders may be read without labels.
    labelled = _splits(values, labels=True)
  if labelled and _total(labelled) == _total(splits):
    why = "k-NN measures the features by their classes"
    choices.append(({"data.labels": "True"}, why))
  chosen: dict[str, str] = {}
  reasons = []
  for keys, why in choices:
    if left := _not_given(keys, values):
      chosen |= left
      reasons.append(why)
  text = f" ({'; '.join(reasons)})" if reasons else ""
  return chosen, f", which has {count:,} training images{text},"


def with_depth_head(
  values: Mapping[str, str], workdir: str = ""
) -> tuple[dict[str, str], str]:
  """The keys with which a run trains the depth head of its weights, and why.

  There are none if `pretrained` is no folder of a model for depth, or the user
  sets the head, its layers or its size. Returns keys with their values, and the
  reason, a part of a sentence, or "" if there are no keys or the run has begun.
  A run that has begun keeps its values. Raises ValueError or OSError if the
  folder's configuration, or the run's description, cannot be read.
  """
  from vit_jax.pretrained.folder import depth_head
  from vit_jax.tasks.dense_regression.settings import DINOV2
  from vit_jax.workdir.checkpoint import begun_config

  keys = [f"dense_regression.{key}" for key in ("head", "layers", "head_size")]
  if any(key in values for key in keys):
    return {}, ""
  unit, why = "dense_regression.unit", ""
  begun = begun_config(workdir)
  if begun is not None:
    run = flat(begun)
    if run.get(keys[0]) != DINOV2:
      return {}, ""
    chosen = {key: str(run[key]) for key in (*keys, unit)}
  elif settings := depth_head(values.get("pretrained", "")):
    chosen = {key: str(value) for key, value in settings.items()}
    why = ", with the depth head of these weights,"
  else:
    return {}, ""
  return _not_given(chosen, values), why


def paired(
  values: Mapping[str, str], workdir: str = ""
) -> tuple[dict[str, str], str]:
  """The keys that a run on pairs takes for few images, and why.

  With a published encoder of images alone, few pairs train only the new text
  tower (LiT, arXiv:2111.07991). Returns keys with their values, and the reason,
  a part of a sentence, or "" without keys. A run that has begun keeps its
  values.

  Args:
    values: The values on the command line, as text, by dotted key.
    workdir: The run's folder.
  """
  from vit_jax.workdir.checkpoint import begun_config

  if _LIT_KEY in values or not values.get("pretrained"):
    return {}, ""
  begun = begun_config(workdir)
  if begun is not None:
    if begun.get("pairs", {}).get("image") == "frozen":
      return {_LIT_KEY: "frozen"}, ", whose run goes on as it began,"
    return {}, ""
  if values.get("lora.rank", "0") != "0" or _has_texts(values["pretrained"]):
    return {}, ""
  count = _count(values, "pairs")
  if count is None or count >= FEW:
    return {}, ""
  return {_LIT_KEY: "frozen"}, (
    f", which has only {counted(count, 'training image')} (so the image tower "
    f"stays as it is; --config.{_LIT_KEY}=trained trains it as well),"
  )


def _has_texts(source: str) -> bool:
  """Whether a text tower may be beside these weights."""
  from vit_jax.pretrained.formats.texts import NoTextTowerError
  from vit_jax.pretrained.load import open_text

  if checkpoint := known.find(source):
    return checkpoint.family in _TEXT_FAMILIES
  try:
    open_text(source)
  except NoTextTowerError:
    return False
  except (ValueError, OSError):  # The run itself says why.
    return True
  return True


def choices_of_count(
  config: ConfigDict, values: Mapping[str, str], count: int
) -> list[tuple[dict[str, str], str]]:
  """The choices of `continued` that the number of images decides.

  Each is a dictionary of keys with their values, and the reason. `config` is
  updated: it gets the run's length and the batch size that `values` or a choice
  set.
  """
  from vit_jax.run.settings import read

  choices = []
  settings = read(config)
  rate = {"optimizer.peak_lr": f"{_LORA_RATE * settings.optimizer.peak_lr:.3g}"}
  if count < FEW and "lora.rank" not in values:
    keys = {"lora.rank": "8", **rate}
    why = "with so few images, LoRA is trained, not all weights"
    choices.append((keys, why))
  elif count < FEW and values["lora.rank"] != "0":
    choices.append((rate, "LoRA takes a higher rate"))
  size = _batch(settings.batch_size, count)
  fitting = {}
  if size < settings.batch_size:
    fitting = {"batch_size": str(size)}
    choices.append((fitting, "with smaller batches an epoch has more steps"))
  config.update_from_flattened_dict(_lengths(config, {**fitting, **values}))
  settings = read(config)
  steps = settings.total.in_steps(min(settings.batch_size, count), count)
  momentum = max(1 - _MOMENTA / max(steps, 1), _LEAST_MOMENTUM)
  if momentum < settings.ema_decay:
    why = f"in {counted(steps, 'step')} the teacher must follow faster"
    if momentum == _LEAST_MOMENTUM:
      why += f"; {momentum:g} is the least that is chosen"
    choices.append(({"ema_decay": f"{momentum:.3f}"}, why))
  return choices


def _values_of_begun_run(config: ConfigDict, workdir: str) -> dict[str, str]:
  """The keys in `_FITTED` whose values in a begun run differ from `config`'s.

  They have the values of the run. The result is {} if no run has begun.
  """
  from vit_jax.workdir.checkpoint import begun_config

  begun = begun_config(workdir)
  if begun is None:
    return {}
  run_values = flat(begun)
  configured = flat(config.to_dict())
  values = {key: run_values.get(key, configured[key]) for key in _FITTED}
  return {key: str(x) for key, x in values.items() if x != configured[key]}


def _batch(usual: int, count: int) -> int:
  """The batch size for `count` training images, at most the `usual` one."""
  most = min(max(count // _STEPS_AN_EPOCH, _LEAST_BATCH), count)
  return min(usual, 1 << max(most.bit_length() - 1, 1))


def _lengths(config: ConfigDict, values: Mapping[str, str]) -> dict[str, Any]:
  """The length of the run and its batch size, as far as they are given.

  If the length is given, its other units are 0. Values that are not positive
  numbers are left out; the run refuses them.
  """
  from vit_jax.run.config_file import replaced_keys

  given: dict[str, Any] = {}
  defaults: dict[str, Any] = config.to_dict()
  for key in _LENGTHS:
    with contextlib.suppress(KeyError, ValueError, OverflowError):
      number = type(defaults[key])(float(values[key]))
      if number > 0:
        given[key] = number
  return replaced_keys(given) | given


def _not_given(
  chosen: Mapping[str, str], values: Mapping[str, str]
) -> dict[str, str]:
  """The chosen keys that the command line does not set itself."""
  return {key: value for key, value in chosen.items() if key not in values}


def _total(splits: "Splits") -> int:
  """The number of images of all splits."""
  opened = (splits.train, splits.eval, splits.test)
  return sum(len(split) for split in opened if split is not None)


def better_command(data: str) -> str:
  """The command that trains on few images with published weights."""
  return shlex.join(["vit_jax", "train", data, "--pretrained", hints.WEIGHTS])


def download_size() -> str:
  """The size in MB of the weights that `better_command` downloads."""
  return f"{known.KNOWN[hints.WEIGHTS].parameters * 4 / 1e6:.0f} MB"


def _began_without_probe(workdir: str) -> bool:
  """Whether the folder has a run whose head did not start from a probe."""
  from vit_jax.workdir.checkpoint import begun_config

  begun = begun_config(workdir) or {}
  return begun.get("transfer", {}).get("probe_head") is False


def may_probe(task: str) -> bool:
  """Whether the head of a task may start from a linear probe."""
  from vit_jax.tasks.choose import task_class

  with contextlib.suppress(ValueError):  # The run itself says why.
    return "transfer.probe_head" not in task_class(task).refuses
  return False


def _count(values: Mapping[str, str], task: str) -> int | None:
  """The number of training images; None if the data cannot be opened."""
  # Imported here so that --help answers at once.
  from vit_jax.data.reading.sources import open_source

  with contextlib.suppress(ValueError, OSError):  # The run itself says why.
    return len(open_source("train", _data(values), labels_of(task)))
  return None


def _splits(values: Mapping[str, str], *, labels: bool) -> Optional["Splits"]:
  """The splits, with labels or without; None if they cannot be opened."""
  from vit_jax.data.reading.sources import open_splits

  with contextlib.suppress(ValueError, OSError):  # The run itself says why.
    return open_splits(_data(values, labels=labels))
  return None


def _data(values: Mapping[str, str], *, labels: bool = True) -> DataSettings:
  """The settings of the data, from the command line's keys of type `str`."""
  texts: dict[str, Any] = {
    name: values[f"data.{name}"]
    for name, kind in types_of(DataSettings).items()
    if f"data.{name}" in values and checks.without_none(kind)[0] is str
  }
  return DataSettings(**texts, labels=labels)


def _pooling(source: str, workdir: str) -> str | None:
  """The pooling for a head on these weights; None means the weights' own.

  If the weights are no longer there, it is `_BOTH` if the run in `workdir` has
  that pooling.
  """
  from vit_jax.pretrained.folder import probe_pooling

  with contextlib.suppress(ValueError, OSError):  # The run itself says why.
    is_path = pathlib.Path(source).expanduser().exists()
    if is_path or known.find(source):
      return probe_pooling(source)
    # A run can be resumed without the weights that it started from.
    from vit_jax.workdir.checkpoint import begun_config

    begun = begun_config(workdir) or {}
    kept = begun.get("model", {}).get("pooling")
    return kept if kept == _BOTH else None
  return None
