"""Starts runs from Python, as the short form of the command does."""

import dataclasses
import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from vit_jax.data.batching.loader import workers_for
from vit_jax.inference.predictor import Prediction
from vit_jax.inference.reading import Pictures
from vit_jax.models import Model
from vit_jax.pretrained.load import load_pretrained, open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run import flags
from vit_jax.run.config_file import (
  ALL_KEYS,
  load_config,
  nearest,
  replaced_keys,
)
from vit_jax.run.experiments import lr_range
from vit_jax.run.experiments.lr_range import Found
from vit_jax.run.loop import train
from vit_jax.run.measured import History, Metrics
from vit_jax.run.settings import Settings, base_config, read
from vit_jax.runtime import callable_module, hints, shown, usage
from vit_jax.runtime.aliases import aliases
from vit_jax.runtime.display import Split, parse
from vit_jax.runtime.printable import quoted
from vit_jax.runtime.settings import all_keys, flat
from vit_jax.tasks import choose
from vit_jax.workdir.records import read_metrics

Config = str | os.PathLike[str] | ConfigDict
"""A configuration: a file, a name, or its keys and values."""

# Attributes of a run for users, which hints may name.
_FOR_USERS = (
  "evaluate",
  "history",
  "load",
  "loaded",
  "metrics",
  "predict",
  "step",
  "verdict",
  "workdir",
)
# Keywords that stand for a key of the configuration: the command's short flags,
# and some more.
_SHORT = {
  **flags.SHORT,
  "task": "data.task",
  "learning_rate": "optimizer.peak_lr",
  "validation_split": "data.eval_fraction",
}
# A keyword of another library -> ours.
_OTHER_NAMES = hints.ours_by_other_names(
  {
    "epochs": "num_epochs n_epochs nb_epochs max_epochs num_train_epochs",
    "lr": "max_lr peak_lr",
    "batch_size": "bs batchsize train_batch_size per_device_train_batch_size",
    "image_size": "img_size imgsz input_size",
    "validation_split": "val_split valid_pct val_fraction validation_fraction",
    "seed": "random_state random_seed",
    "total_steps": "steps num_steps max_steps num_train_steps",
    "weight_decay": "wd",
    "freeze_backbone": "freeze frozen freeze_encoder head_only linear_probe",
    "model": "variant arch architecture",
  }
)
# A keyword of other libraries -> our key, and its value for each of the
# keyword's values.
_SWITCHES = {
  "freeze_backbone": ("optimizer.freeze_layers", {True: -1, False: 0}),
  **dict.fromkeys(
    ("multi_label", "multilabel"), ("data.task", {True: "multilabel"})
  ),
}
# A section -> the key that a text in its place sets.
_NAMED_BY = {
  "loss": "loss.kind",
  "model": "model.variant",
  "optimizer": "optimizer.kind",
}


@dataclasses.dataclass(frozen=True, repr=False)
class FinishedRun:
  """A run that has ended, and its last metrics.

  Attributes:
    workdir: The run's folder, which every command and `load_pretrained` take.
    step: The last step.
    metrics: The metrics of that step by key, such as "eval/top1".
  """

  workdir: str
  step: int
  metrics: dict[str, Any]

  def __fspath__(self) -> str:
    return self.workdir

  def load(self, **overrides: Any) -> Loaded:
    """Loads the model, for `loaded.predict(images)`.

    Args:
      **overrides: Keywords of `load_pretrained`, such as `best=True` for the
        checkpoint with the best score.
    """
    return load_pretrained(self.workdir, **overrides)

  @property
  def verdict(self) -> str:
    """A sentence or two on the score and how far it can be trusted.

    It is "" if the run was not evaluated, or there is nothing to say.
    """
    task = choose.by_metrics(self.metrics)
    return "" if task is None else str(task.scores.verdict(self.metrics))

  @functools.cached_property
  def loaded(self) -> Loaded:
    """The model of the run's last checkpoint, which is read once."""
    return self.load()

  @hints.accepts("run.predict(images)")
  def predict(self, images: Pictures, **options: Any) -> list[Prediction]:
    """The answers of the last checkpoint, as `Loaded.predict` gives them."""
    return self.loaded.predict(images, **options)

  @hints.accepts("run.evaluate(folder)")
  def evaluate(
    self, folder: str | os.PathLike[str] | None = None, **options: Any
  ) -> dict[str, Any]:
    """Evaluates the last checkpoint, as `vit_jax.evaluate(run, folder)` does.

    Keywords, metrics and errors are those of `vit_jax.evaluate`.
    """
    # Commands are on a floor above, so this one is imported only when used.
    command = importlib.import_module("vit_jax.evaluate")
    return command.evaluate(self.workdir, folder, **options)

  def __call__(self, images: Pictures, **options: Any) -> list[Prediction]:
    """The same as `predict`."""
    return self.predict(images, **options)

  def __iter__(self) -> Iterator[Any]:
    """The model and the parameters of the run's last checkpoint."""
    return iter(self.loaded)

  @property
  def history(self) -> History:
    """The rows of `metrics.jsonl` in the run's folder, each with its `step`.

    `pandas.DataFrame(run.history)` makes a table of them, and
    `run.history["loss"]` is the list of one metric. Raises OSError if the file
    cannot be read.
    """
    return History(read_metrics(epath.Path(self.workdir).expanduser()).rows)

  def _repr_html_(self) -> str:
    """A table of the run's folder and metrics, for a notebook."""
    measured = {
      key: f"{value:.4g}" if isinstance(value, float) else str(value)
      for key, value in self.metrics.items()
    }
    facts = {"run": self.workdir, "step": f"{self.step:,}"}
    if verdict := self.verdict:
      facts["verdict"] = verdict
    return shown.table(facts | measured)

  def __getattr__(self, name: str) -> Any:
    """The attribute that answers to a name of another library.

    Raises AttributeError for any other name, with a hint at what may be meant.
    """
    if alias := aliases("run").get(name):
      return alias.resolve(self)
    hint = ""
    if not name.startswith("_"):
      hint = hints.hint_for_attribute(name, "run", _FOR_USERS)
    raise AttributeError(
      f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
      name=name,
      obj=self,
    )

  def __repr__(self) -> str:
    """The run's folder and metrics, and what to do next."""
    measured = [
      f"{key}={value:.4g}"
      for key, value in self.metrics.items()
      if key.startswith((Split.EVAL.key(""), Split.TEST.key("")))
      and isinstance(value, float)
    ]
    verdict = f"  {self.verdict}\n" if self.verdict else ""
    return (
      f"Run in {self.workdir}, step {self.step:,}\n"
      f"  {', '.join(measured) or 'not evaluated'}\n{verdict}"
      f"  run.predict(images) asks the model; "
      "vit_jax.report(run) shows the run"
    )


def start(
  data: str | os.PathLike[str] | None = None,
  *,
  config: Config | None = None,
  workdir: str | os.PathLike[str] | None = None,
  pretrained: str | os.PathLike[str] | Loaded | None = None,
  settings: Mapping[str, Any],
  allow_changes: bool = False,
) -> FinishedRun:
  """Trains a model; the arguments are those of `vit_jax.train`.

  Raises ValueError if one of them is wrong or missing, and as `loop.train`
  does.
  """
  if isinstance(data, ConfigDict) and config is None:
    data, config = None, data
  path = None if data is None else _path(data)
  values = _values(pretrained, settings)
  given_batch = "batch_size" in values
  if path is not None:
    implied = _implied_settings(path, config, workdir, values)
    config = implied.pop("config", config)
    workdir = implied.pop("workdir", workdir)
    values = {**implied, **values}
  if config is None or workdir is None:
    raise ValueError(
      'give a folder of images, as in vit_jax.train("my_photos"), or both '
      'config and workdir, as in config="digits", workdir="runs/digits".'
    )
  workdir = os.fspath(workdir)
  state, _ = train(
    _settings(config, values),
    workdir,
    allow_changes=allow_changes,
    may_lower_batch=not given_batch,
  )
  step = int(state.step)
  metrics = Metrics()
  run = FinishedRun(workdir, step, metrics)
  for row in run.history:
    if row["step"] == step:
      metrics |= {k: v for k, v in row.items() if parse(k).split is not None}
  return run


def find_lr(
  data: str | os.PathLike[str] | None,
  *,
  config: Config | None,
  pretrained: str | os.PathLike[str] | Loaded | None,
  settings: Mapping[str, Any],
  out: str,
  **options: Any,
) -> Found:
  """Finds a learning rate; the arguments are those of `vit_jax.find_lr`.

  Raises ValueError if one of them is wrong or missing, and as
  `lr_range.find_lr` does.
  """
  values = _values(pretrained, settings)
  flags.check_range_test(values)
  may_lower_batch = "batch_size" not in values
  if data is not None:
    implied = _implied_settings(
      _path(data), config, None, values, writes_run=False
    )
    config = implied.pop("config", config)
    values = {**implied, **values}
  if config is None:
    raise ValueError(
      'give a folder of images, as in vit_jax.find_lr("my_photos"), or config, '
      'as in config="digits".'
    )
  return lr_range.find_lr(
    _settings(config, values), out, may_lower_batch=may_lower_batch, **options
  )


def _values(pretrained: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Settings by their dotted keys, with the weights to start from.

  Raises ValueError if the weights are given as something else than a name, a
  path or what `load_pretrained` returned.
  """
  values = _flatten_settings(settings)
  if isinstance(pretrained, Loaded):
    pretrained = _source_of(pretrained)
  if pretrained is not None and not isinstance(pretrained, str | os.PathLike):
    raise ValueError(
      f"pretrained={quoted(pretrained)}: name the weights to start from, as in "
      'pretrained="hf_s14_dinov2"; vit_jax.list_models() has the names.'
    )
  if pretrained is not None:
    values["pretrained"] = os.fspath(pretrained)
  return values


def _source_of(loaded: Loaded) -> str:
  """The source of a loaded checkpoint, for a run to start from.

  Raises ValueError if it was loaded with other settings than its own, or is not
  the newest checkpoint of its run. Another number of classes is allowed, as a
  run makes a head for its data.
  """
  source = loaded.origin.source
  step: dict[str, Any] = {} if loaded.step is None else {"step": loaded.step}
  # With `reads_patches`, no line says which vector stands for an image.
  saved = open_checkpoint(source, reads_patches=True, **step)

  def compared(checkpoint: Loaded) -> Any:
    model = checkpoint.model.clone(num_classes=0, origin=None)
    return model, checkpoint.inputs

  if compared(saved) != compared(loaded):
    raise ValueError(
      f"{source} was loaded with settings that differ from its own, and a run "
      f"does not take these over: give pretrained={source!r}, and such "
      "settings to the run itself, as in image_size=448."
    )
  newest = saved.step if saved.step is None else open_checkpoint(source).step
  if newest != loaded.step:
    raise ValueError(
      f"{source} was loaded at step {loaded.step}, and a run starts from its "
      f"newest checkpoint, that of step {newest}: write the one that you mean "
      'by loaded.save("start", to="timm"), and give "start".'
    )
  return source


def _flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Settings by their dotted keys.

  A name may be the command's short form, or another library's. A name of
  several words that is no key, such as `weight_decay`, may be the last part of
  a key, if no other key ends with it. A bool for a name in `_SWITCHES` becomes
  a value of the key there, and a text for a section sets its key in
  `_NAMED_BY`. Raises ValueError for an unknown key, and for a key that is given
  by two names.
  """
  keys = all_keys(Settings)
  values = {}
  for given_name, value in flat(settings).items():
    name = _OTHER_NAMES.get(given_name, given_name)
    key = _SHORT.get(name, name)
    if "_" in name and key not in keys:
      ends = [one for one in keys if one.endswith(f".{name}")]
      if len(ends) == 1:
        (key,) = ends
    by_value: dict[Any, Any]
    switched, by_value = _SWITCHES.get(name, (key, {}))
    if isinstance(value, bool) and value in by_value:
      key = switched
      value = by_value[value]
    if isinstance(value, str):
      key = _NAMED_BY.get(name, key)
    if key not in keys:
      near = nearest(key, Settings)
      short = {key: name for name, key in _SHORT.items()}
      keyword = short.get(near, near)
      if "." in keyword:  # Python allows no dots in keywords.
        keyword = f'settings={{"{keyword}": ...}}'
      hint = f"; did you mean {keyword}?" if near else f"; {ALL_KEYS}"
      hint = hints.hint_instead(given_name, "vit_jax.train()", value) or hint
      if says := usage.how_to_resume(given_name, _run_name(value), "workdir"):
        raise ValueError(says)
      raise ValueError(f"{given_name} is not a setting of a run{hint}")
    if key in values:
      raise ValueError(f"{given_name} is given twice: drop one.")
    values[key] = value
  return values


def _path(data: Any) -> str:
  """The path that `data` is; raises ValueError if it is no path."""
  if hasattr(data, "to_csv"):
    raise ValueError(
      "data is a table: write it with data.to_csv('labels.csv', index=False), "
      "and give that file; its columns are the image and the labels."
    )
  if isinstance(data, Loaded | Model):
    raise ValueError(
      f"data is of type {type(data).__name__}: the images come first, as in "
      "vit_jax.train(folder, loaded), which starts from the weights of a "
      'loaded model, or vit_jax.train(folder, model="S/16"), which makes one.'
    )
  if hasattr(data, "shape") or isinstance(data, list | tuple):
    raise ValueError(
      f"data is of type {type(data).__name__}, and images and labels are read "
      "from files: write each image k, uint8 (H, W, 3), of a label by "
      '`os.makedirs(f"my_images/{label}", exist_ok=True); '
      'Image.fromarray(image).save(f"my_images/{label}/{k}.png")`, and give '
      'their folder, "my_images". docs/howto/own_loop.md trains on arrays '
      "as they are."
    )
  if not isinstance(data, str | os.PathLike):
    raise ValueError(
      f"data is of type {type(data).__name__}: this function reads images and "
      "labels from files. Give a folder, a file of labels or a configuration "
      'by its path, and values of the configuration as settings={"data.task": '
      '"multilabel"}.'
    )
  return os.path.expanduser(os.fspath(data))


def _run_name(value: Any) -> str:
  """A value as the path of a run; "" if it is no path, such as True."""
  return os.fspath(value) if isinstance(value, str | os.PathLike) else ""


def _implied_settings(
  data: str,
  config: Config | None,
  workdir: str | os.PathLike[str] | None,
  values: Mapping[str, Any],
  writes_run: bool = True,
) -> dict[str, Any]:
  """The settings that the command would derive from `data`, by key.

  Among them may be "config", and with `writes_run` "workdir". Raises ValueError
  as `flags.flags_of_data` does.
  """
  values_by_flag = {f"config.{key}": value for key, value in values.items()}
  values_by_flag |= {"config": config} if config is not None else {}
  values_by_flag |= {"workdir": workdir} if workdir is not None else {}
  flag_words = [f"--{name}={value}" for name, value in values_by_flag.items()]
  names = [*values_by_flag, *(["pretrained"] if "pretrained" in values else [])]
  new_words = flags.flags_of_data(data, flag_words, names, workdir=writes_run)
  implied = dict(map(flags.key_and_value, new_words))
  defaults = flat(base_config().to_dict())
  return {
    key: _parse_value(defaults.get(key), text) for key, text in implied.items()
  }


def _parse_value(default: Any, text: str) -> Any:
  """A text as a value of the type of a key's default."""
  if isinstance(default, bool):
    return text == "True"
  return type(default)(text) if isinstance(default, int | float) else text


def _settings(config: Any, values: Mapping[str, Any]) -> Settings:
  """The settings of a configuration with these values.

  If worker processes would rerun the script that calls this, the number of
  workers is 0 unless it is set, and a line says so. Raises ValueError if a
  value is not of the kind of its key, or out of range.
  """
  if isinstance(config, str | os.PathLike):
    config = load_config(os.fspath(config))
  elif not isinstance(config, ConfigDict):
    raise ValueError(
      f"config is a {type(config).__name__}; give a file, a name or a "
      "ConfigDict, and values by their keys as settings={...}."
    )
  config = config.copy_and_resolve_references()
  for key, value in {**replaced_keys(values), **values}.items():
    if key in ("image_size", "cut_from") and isinstance(value, int):
      value = value, value
    try:
      config.update_from_flattened_dict({key: value})
    except (TypeError, ValueError) as error:
      default = flat(config.to_dict())[key]
      short = {key: name for name, key in flags.SHORT.items()}
      raise ValueError(
        f"{short.get(key, key)}={quoted(value)} must be of the type of its "
        f"default, {default}."
      ) from error
  settings = read(config)
  if settings.loader.num_workers >= 0 or not callable_module.is_script():
    return settings
  size = settings.image_size or (0, 0)
  if workers_for(settings.data.photographs, size):
    callable_module.say_no_workers("loader={'num_workers': 4}")
  loader = dataclasses.replace(settings.loader, num_workers=0)
  return dataclasses.replace(settings, loader=loader)
