"""Every key that a configuration has, with its default.

A file in `configs/` starts from `base_config()` and sets what its experiment
needs; the command line overrides any key as `--config.model.dropout_rate=0.1`.
The base is locked, so a misspelt key is an error in both places.
"""

import difflib
from collections.abc import Iterator
from typing import Any

import ml_collections
from ml_collections.config_dict import FieldReference, placeholder

UNITS = ("steps", "epochs", "examples")


def base_config() -> ml_collections.ConfigDict:
  """All keys and their defaults; None leaves the choice to the program."""
  c = ml_collections.ConfigDict()
  c.seed = 0  # Of all that is drawn: parameters, order, crops, dropout.
  # Durations, of the run and between log lines, evaluations and checkpoints.
  # Each may be given in steps, epochs or examples; 0 is unset.
  for name in ("total", "log_every", "eval_every", "save_every"):
    c.update(_duration(name))
  c.log_every_steps = 50
  c.eval_every_epochs = 1.0
  c.save_every_epochs = 1.0
  c.keep_last = 2  # Newest checkpoints kept; the best one is kept besides.
  c.batch_size = 128  # Examples a step, over all devices and hosts.
  c.eval_batch_size = 0  # 0 is the training batch size.
  c.accumulation_steps = 1  # Parts that a batch is computed in.
  # A checkpoint to start from: a published file, a known name, a workdir. The
  # model, and what is None below, are then the checkpoint's.
  c.pretrained = placeholder(str)
  c.image_size = FieldReference((224, 224), field_type=tuple)  # Height, width.
  c.ema_decay = 0.0  # Polyak averaging of parameters; 0 is off.
  c.eval_per_class = False  # Also each class's top-1.
  c.eval_pictures = 0  # Examples shown in TensorBoard, with the confusion.
  c.wandb_project = placeholder(str)  # Of Weights & Biases; None logs nothing.
  c.max_skipped_steps = 10  # Not finite, in a row; more stop the run. 0: none.
  c.profile_steps = 0  # Traced into workdir/profile, from the tenth on.
  c.data = _data()
  c.loader = ml_collections.ConfigDict(
    dict(
      num_workers=-1,  # Decoding processes; 0 is a thread, -1 chooses.
      on_unreadable="stop",  # Or "skip".
    )
  )
  c.train_transform = ml_collections.ConfigDict(
    dict(
      crop="inception",  # Or "pad", "resize".
      min_area=0.05,  # Of the inception crop, as a fraction.
      pad=4,  # Pixels of the "pad" crop.
      flip=True,  # Left to right, every other time.
      randaugment_layers=0,  # Operations of RandAugment an image; 0 is off.
      randaugment_magnitude=10,  # Their strength, 0 to 30.
    )
  )
  c.eval_transform = ml_collections.ConfigDict(
    dict(
      crop="resize",  # Or "center": short side to the ratio, centre cut out.
      resize_ratio=256 / 224,  # Of the "center" crop.
    )
  )
  c.normalization = ml_collections.ConfigDict(
    dict(mean=placeholder(tuple), std=placeholder(tuple))  # None is all 0.5.
  )
  c.transfer = ml_collections.ConfigDict(  # What is made of `pretrained`.
    dict(
      keep_head=False,  # Or a new one of zeros.
      keep_pre_logits=False,  # The representation layer, where there is one.
      interpolation="linear",  # Of positions; or "bicubic".
    )
  )
  c.model = _model()  # None is what the variant, or `pretrained`, has.
  c.loss = ml_collections.ConfigDict(
    dict(
      kind="softmax",  # Or "sigmoid".
      label_smoothing=0.0,  # Share of the uniform distribution in targets.
      mixup_alpha=0.0,  # Of Mixup's Beta(alpha, alpha); 0 is off.
    )
  )
  c.optimizer = _optimizer()
  c.fewshot = ml_collections.ConfigDict(  # A linear probe at each evaluation.
    dict(
      shots=0,  # Training images a class; 0 is off.
      seeds=3,  # Draws of them.
      data=_data(),  # With neither name nor root, the run's own.
    )
  )
  c.mesh = ml_collections.ConfigDict(
    dict(data=-1, fsdp=1, tensor=1)  # Devices along each axis; -1 is the rest.
  )
  return c.lock()


def _model() -> ml_collections.ConfigDict:
  return ml_collections.ConfigDict(
    dict(
      variant=placeholder(str),  # Such as "B/16"; None with `pretrained`.
      num_classes=placeholder(int),  # None is as many as the data set has.
      patch_size=placeholder(int),
      hidden_size=placeholder(int),
      num_layers=placeholder(int),
      mlp_size=placeholder(int),
      num_heads=placeholder(int),
      pooling=placeholder(str),
      position=placeholder(str),
      position_at=placeholder(str),
      representation_size=placeholder(int),
      head_bias=placeholder(float),
      dropout_rate=placeholder(float),
      attention_dropout_rate=placeholder(float),
      gelu=placeholder(str),
      scan=placeholder(bool),  # One compiled block for all layers.
      remat=placeholder(str),  # "none", "dots", "full": less and less memory.
      layer_norm_epsilon=placeholder(float),
      dtype=placeholder(str),  # Of the computation: "float32", "bfloat16".
      param_dtype=placeholder(str),
    )
  )


def _optimizer() -> ml_collections.ConfigDict:
  return ml_collections.ConfigDict(
    dict(
      kind="adam",  # Or "sgd".
      peak_lr=1e-3,  # Learning rate after the warm-up.
      final_lr=0.0,  # At the end of the run.
      decay="cosine",  # Or "linear", "constant".
      **_duration("warmup"),  # In which it rises from 0; a duration.
      b1=0.9,  # Of Adam: decay of the mean gradient.
      b2=0.999,  # Of Adam: decay of the mean squared gradient.
      momentum=0.9,  # Of SGD.
      weight_decay=0.0,  # Decoupled: taken off times the learning rate.
      weight_decay_on=r"kernel$",  # Parameters whose path this matches.
      clip_norm=1.0,  # Of the whole gradient; 0 is off.
      freeze_layers=0,  # Embeddings and first layers; -1 is all but the head.
      layer_decay=1.0,  # Of the learning rate, from a layer to the one before.
    )
  )


def _data() -> ml_collections.ConfigDict:
  return ml_collections.ConfigDict(
    dict(
      name=placeholder(str),  # A TFDS data set, or "digits".
      root=placeholder(str),  # Or else a folder of class folders.
      data_dir=placeholder(str),  # Where TFDS keeps its data sets.
      train_split="train",  # Of TFDS, such as "train[:90%]"; of a folder
      eval_split="test",  # it is its train folder, and its test or val.
      eval_fraction=0.2,  # Of a folder that has no train and test folders.
    )
  )


def _duration(name: str) -> dict[str, Any]:
  return {f"{name}_steps": 0, f"{name}_epochs": 0.0, f"{name}_examples": 0}


def resolve_steps(
  section: ml_collections.ConfigDict,
  name: str,
  batch_size: int,
  num_examples: int,
) -> int:
  """Steps of a duration given in steps, epochs or examples; 0 if in none.

  Args:
    section: Holds `name_steps`, `name_epochs` and `name_examples`.
    name: Of the duration, such as "total" or "warmup".
    batch_size: Examples a step.
    num_examples: Examples an epoch.

  Raises:
    ValueError: if two of them are given, or one is negative.
  """
  values: dict[str, Any] = {u: section[f"{name}_{u}"] for u in UNITS}
  given = {unit: value for unit, value in values.items() if value}
  if len(given) > 1:
    both = " and ".join(f"{name}_{u}={v}" for u, v in given.items())
    raise ValueError(f"{both} are both given: set all but one to 0.")
  if not given:
    return 0
  ((unit, value),) = given.items()
  if value < 0:
    raise ValueError(f"{name}_{unit}={value} must not be negative.")
  examples = {"steps": batch_size, "epochs": num_examples, "examples": 1}
  return max(1, round(value * examples[unit] / batch_size))


def set_fields(section: ml_collections.ConfigDict) -> dict[str, Any]:
  """The section's keys that are not None, to be passed on as keywords."""
  return {k: v for k, v in section.items() if v is not None}


def leaf_keys(
  config: ml_collections.ConfigDict, prefix: str = ""
) -> Iterator[str]:
  """Every dotted key, such as "model.dropout_rate"."""
  for key, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from leaf_keys(value, f"{prefix}{key}.")
    else:
      yield prefix + key


def nearest_key(key: str) -> str:
  """The key of `base_config` most like `key`, for a message."""
  known = list(leaf_keys(base_config()))
  last = key.rsplit(".", 1)[-1]
  same_last = [k for k in known if k.rsplit(".", 1)[-1] == last]
  close = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
  return (same_last or close)[0]
