"""The settings of a run: every key of a configuration, read and checked once.

The frozen dataclasses here and in the `settings.py` of the other folders hold
the default, the range and the description of each key. `base_config` makes a
configuration from them, and `read` makes the settings from a configuration.
Everything else takes these typed values and knows nothing of configurations.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections.config_dict import FieldReference

from vit_jax.data.settings import (
  EVAL_CROPS,
  EvalTransformSettings,
  LoaderSettings,
  NormalizationSettings,
  TrainTransformSettings,
)
from vit_jax.inference import DTYPES
from vit_jax.pretrained.settings import InterpolationSettings, TransferSettings
from vit_jax.runtime import checks
from vit_jax.runtime.checks import BELOW_1, NOT_NEGATIVE, POSITIVE, WIDTH
from vit_jax.runtime.settings import (
  UNITS,
  Duration,
  Section,
  from_dict,
  is_section,
  section,
  setting,
  types_of,
)
from vit_jax.tasks.probes.settings import FewShotSettings
from vit_jax.tasks.settings import DataSettings
from vit_jax.tasks.table import ALL_TASKS, sections
from vit_jax.training.settings import (
  DistillSettings,
  LoraSettings,
  LossSettings,
  MeshSettings,
  OptimizerSettings,
)

POOLINGS = ("token", "gap", "map", "token_gap", "query", "prefix")
POSITIONS = (
  "learned",
  "learned_grid",
  "learned2d",
  "sincos1d",
  "sincos2d",
  "relative",
  "none",
)
PLACES = ("input", "every_layer", "shared")
GELUS = ("tanh", "exact", "quick")
REMATS = ("none", "dots", "full")
ATTENTIONS = ("auto", "plain", "cudnn")
_unset = functools.partial(setting, None)


@dataclasses.dataclass(frozen=True)
class ModelSettings(Section):
  """The model; a field that is None is set by `variant` or `pretrained`."""

  variant: str | None = _unset(
    'Name in the paper, such as "B/16"; None with `pretrained`.'
  )
  num_classes: int | None = _unset(
    "Classes of the head; None takes those of the data.", must=checks.CLASSES
  )
  patch_size: int | None = _unset("Side of a patch in pixels, P.", must=WIDTH)
  resnet_layers: tuple[int, ...] | None = _unset(
    "Units in each stage of a ResNet, from whose feature map the patches are "
    "cut (a hybrid, Section 3.1): a cell of the map is 4 pixels wide after one "
    "stage, and twice as wide after each further one."
  )
  hidden_size: int | None = _unset("Width of a token, D.", must=WIDTH)
  num_layers: int | None = _unset("Encoder layers, L.", must=checks.DEPTH)
  mlp_size: int | None = _unset("Width of the MLP's hidden layer.", must=WIDTH)
  num_heads: int | None = _unset("Attention heads of a layer, k.", must=WIDTH)
  pooling: str | None = _unset(
    'What the head reads: the class token ("token"), the mean over patches '
    '("gap") or attention pooling ("map"). With one of our `block`s, also the '
    'class token and that mean together ("token_gap"), attention pooling by a '
    'query alone ("query"), or the mean of the tokens before the patches '
    '("prefix").',
    choices=POOLINGS,
  )
  position: str | None = _unset(
    "Kind of position embeddings.", choices=POSITIONS
  )
  position_at: str | None = _unset(
    "Where position embeddings are added (App. D.4).", choices=PLACES
  )
  representation_size: int | None = _unset(
    "Width of the pre-training head's hidden tanh layer (Section 3.1).",
    must=WIDTH,
  )
  head_bias: float | None = _unset("Initial value of the head's bias.")
  dropout_rate: float | None = _unset(
    "Dropout after dense layers and after adding positions (App. B.1).",
    must=BELOW_1,
  )
  attention_dropout_rate: float | None = _unset(
    "Dropout of the attention weights A of Eq. 6.", must=BELOW_1
  )
  embedding_dropout_rate: float | None = _unset(
    "Dropout after adding positions; None takes `dropout_rate`.", must=BELOW_1
  )
  patch_dropout_rate: float | None = _unset(
    "Share of the patches that training leaves out of an image, at random; a "
    "step gets faster by about that share (arXiv:2208.07220).",
    must=BELOW_1,
  )
  channel_tokens: bool | None = _unset(
    "Make a token of each channel of a patch, so that images may lack bands "
    "(ChannelViT, arXiv:2309.16108); with C channels, there are C times as "
    "many tokens, and a step costs accordingly more."
  )
  channel_sampling: bool | None = _unset(
    "Leave out channels of training images at random: of C channels, a random "
    "number from 1 to C is kept.",
    needs="channel_tokens or pretrained",
  )
  gelu: str | None = _unset(
    'Form of GELU: the approximation by "tanh", as in the published models, '
    '"exact", or "quick", as in CLIP.',
    choices=GELUS,
  )
  scan: bool | None = _unset(
    "Compile one block, which is scanned over the layers; the same seed then "
    "gives other initial parameters."
  )
  remat: str | None = _unset(
    "Recompute activations in the backward pass to save memory: none, all but "
    "dense products (dots), or all (full).",
    choices=REMATS,
  )
  splash: bool | None = _unset(
    "Use JAX's splash attention on TPUs, above 512 tokens; nobody has run it "
    "on a chip yet."
  )
  attention: str | None = _unset(
    'How attention is computed: "plain" follows the equations as they are '
    'written; "auto" takes a form that is faster on TPUs, and "plain" '
    'elsewhere; "cudnn" takes the kernels of cuDNN on GPUs, in bfloat16 or '
    "float16, whose speed has not been measured.",
    choices=ATTENTIONS,
  )
  block: str | None = _unset(
    'Layers other than those of the paper: "axial" (App. D.6), those of a '
    'later model ("dinov2", "dinov3", "clip", "deit" with its distillation '
    'token, "deit3", "beit" and others, which docs/encoders.md lists), or a '
    'class of your own as "package.module:Class".'
  )
  drop_path_rate: float | None = _unset(
    "Chance that an example skips a residual branch, for a model with one of "
    "our `block`s.",
    must=BELOW_1,
  )
  drop_path_grows: bool | None = _unset(
    "Let the chance rise linearly over the layers, from 0 in the first to "
    "`drop_path_rate` in the last.",
    needs="drop_path_rate or pretrained",
  )
  layer_norm_epsilon: float | None = _unset(
    "Epsilon added to the variance in layer norms.", must=POSITIVE
  )
  dtype: str | None = _unset(
    "Floating-point type of the computation.", choices=DTYPES
  )
  param_dtype: str | None = _unset(
    "Floating-point type of the parameters.", choices=DTYPES
  )
  attention_dtype: str | None = _unset(
    "Type of attention's logits and exponentials; bfloat16 is faster on some "
    "TPUs, and less exact.",
    choices=DTYPES,
  )

  def given(self) -> dict[str, Any]:
    """The fields that are set, as keywords for the model."""
    return {k: v for k, v in vars(self).items() if v is not None}


@dataclasses.dataclass(frozen=True)
class _Leading(Section):
  """The keys of `Settings` that stand before the sections of objectives."""

  seed: int = setting(0, "Seed of parameters, order, crops and dropout.")
  total: Duration = setting(Duration(), "Length of the run.")
  log_every: Duration = setting(
    Duration(steps=50), "Interval between two lines of the log."
  )
  eval_every: Duration = setting(
    Duration(epochs=1.0), "Interval between two evaluations."
  )
  save_every: Duration = setting(
    Duration(epochs=1.0),
    "Interval between two checkpoints; the last step is saved as well. 0 "
    "writes none.",
  )
  keep_last: int = setting(
    2,
    "Number of newest checkpoints to keep, besides the best one.",
    must=checks.COUNT,
  )
  batch_size: int = setting(
    128, "Examples per step, over all devices and hosts.", must=checks.BATCH
  )
  eval_batch_size: int = setting(
    0,
    "Examples per evaluation step; 0 takes `batch_size`.",
    must=checks.BATCH_OR_0,
  )
  accumulation_steps: int | None = setting(
    None,
    "Number of parts to split each batch into, to save memory; None takes the "
    "fastest known on this TPU, or 1.",
    must=checks.COUNT,
  )
  scoped_vmem_mib: int | None = setting(
    None,
    "MiB of a TPU's own memory for one operation; None takes the fastest "
    "known, or the compiler's default.",
    must=checks.COUNT,
  )
  pretrained: str | None = setting(
    None,
    "Checkpoint to start from: a published file, a known name or a workdir. It "
    "sets the model, and other keys that are None.",
  )
  image_size: tuple[int, int] | None = setting(
    (224, 224),
    "Height and width in pixels; None takes the checkpoint's.",
    must=checks.SIDES,
  )
  channels: int | None = setting(
    None,
    "Channels of an image: 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA, or the "
    "number of bands of TIFF files; None takes the checkpoint's, or 3.",
    must=checks.BANDS,
  )
  cut_from: tuple[int, int] | None = setting(
    None,
    "Size to which an image is resized before its upper-left part of "
    "`image_size` is cut out; None resizes it to `image_size` directly.",
    must=checks.SIDES,
  )
  ema_decay: float = setting(
    0.0,
    "Decay of the parameters' Polyak average; 0 turns it off.",
    must=BELOW_1,
  )
  ema_warmup: bool = setting(
    True,
    "Average over the last tenth of the steps so far, for as long as that is "
    "shorter than the window of `ema_decay`.",
    legacy_default=False,
    tunes="ema_decay",
  )
  eval_per_class: bool = setting(
    False,
    "Measure the scores of each class, label or number as well.",
    needs="eval_every",
  )
  eval_pictures: int = setting(
    0,
    "Number of examples to draw for TensorBoard at each evaluation, with the "
    "confusion matrix of classes.",
    must=NOT_NEGATIVE,
    needs="eval_every",
  )
  wandb_project: str | None = setting(
    None, "Weights & Biases project; None logs nothing there."
  )
  early_stop_evaluations: int = setting(
    0,
    "Stop after this many evaluations without a better score, such as top-1; 0 "
    "never stops.",
    must=NOT_NEGATIVE,
    needs="eval_every",
  )
  max_skipped_steps: int = setting(
    10,
    "Stop after this many consecutive non-finite steps; 0 never stops.",
    must=NOT_NEGATIVE,
  )
  hang_factor: float = setting(
    100.0,
    "End with exit code 75 if a step takes this many times as long as usual, "
    "and at least 10 minutes; 0 never does.",
    must=NOT_NEGATIVE,
    legacy_default=0.0,
  )
  digest_every: int = setting(
    20,
    "Number of steps between two digests of the training state, which `vit_jax "
    "verify` compares with those of repeated steps; 0 writes none.",
    must=NOT_NEGATIVE,
  )
  profile_steps: int = setting(
    0,
    "Number of steps to trace into workdir/profile, from the tenth step of a "
    "start on.",
    must=NOT_NEGATIVE,
  )
  data: DataSettings = section(DataSettings)
  loader: LoaderSettings = section(LoaderSettings)
  train_transform: TrainTransformSettings = section(TrainTransformSettings)
  eval_transform: EvalTransformSettings = section(EvalTransformSettings)
  normalization: NormalizationSettings = section(NormalizationSettings)
  transfer: TransferSettings = section(TransferSettings, needs="pretrained")
  model: ModelSettings = section(ModelSettings)
  loss: LossSettings = section(LossSettings)


# This class adds the sections of the objectives, in the order of `tasks.table`.
_with_objectives = dataclasses.make_dataclass(
  "_WithObjectives",
  [
    (name, kind, section(kind, needs=ALL_TASKS[name].needs))
    for name, kind in sections().items()
  ],
  bases=(_Leading,),
  frozen=True,
)

if typing.TYPE_CHECKING:
  _WithObjectives = _Leading
else:
  _WithObjectives = _with_objectives


@dataclasses.dataclass(frozen=True)
class Settings(_WithObjectives):
  """The settings of a training run.

  Each of the four durations can be given in steps, epochs or examples; 0 leaves
  it unset.
  """

  lora: LoraSettings = section(LoraSettings)
  distill: DistillSettings = section(DistillSettings, needs="distill.teacher")
  optimizer: OptimizerSettings = section(OptimizerSettings)
  fewshot: FewShotSettings = section(
    FewShotSettings, needs="fewshot.shots or fewshot.neighbours"
  )
  mesh: MeshSettings = section(MeshSettings)

  def objective_section(self, name: str) -> Any:
    """The section of an objective, such as "pairs".

    Type checkers do not know these fields, since `tasks.table` lists them.
    """
    return vars(self)[name]

  @property
  def rows(self) -> int:
    """Rows of a training batch, which may hold several images each."""
    return self.batch_size // self.data.images_per_row

  @property
  def parts(self) -> int:
    """Number of parts that each batch is split into."""
    return self.accumulation_steps or 1


@dataclasses.dataclass(frozen=True)
class ProbeTransformSettings(Section):
  """The crop, if it should differ from the checkpoint's."""

  crop: str | None = setting(
    None,
    "Crop, as in eval_transform.crop; None takes the checkpoint's.",
    choices=EVAL_CROPS,
  )
  resize_ratio: float | None = setting(
    None,
    'Ratio of the resized image\'s side to that of the "center" crop; None '
    "takes the checkpoint's.",
    must=checks.RATIO,
  )


@dataclasses.dataclass(frozen=True)
class ProbeSettings(Section):
  """The settings of `vit_jax fewshot`."""

  data: DataSettings = section(DataSettings)
  loader: LoaderSettings = section(LoaderSettings)
  eval_transform: ProbeTransformSettings = section(ProbeTransformSettings)
  mesh: MeshSettings = section(MeshSettings)
  transfer: InterpolationSettings = section(InterpolationSettings)
  batch_size: int = setting(128, "Examples per step.", must=checks.BATCH)
  eval_batch_size: int = setting(
    0, "Examples per step; 0 takes `batch_size`.", must=checks.BATCH_OR_0
  )

  def __post_init__(self):
    super().__post_init__()
    self.data.refuse_keys_of_batches("fewshot")


def base_config(cls: type[Section] = Settings) -> Any:
  """Makes a configuration with all keys and their defaults.

  None leaves the choice to the program. Returns a `ConfigDict`, which is
  locked, so that a misspelt key is an error.
  """
  config = ml_collections.ConfigDict()
  for field in dataclasses.fields(cls):
    kind = types_of(cls)[field.name]
    if is_section(kind):
      config[field.name] = base_config(kind)
    elif kind is Duration:
      for unit in UNITS:
        config[f"{field.name}_{unit}"] = getattr(field.default, unit)
    else:
      config[field.name] = _value(kind, field.default)
  return config.lock()


def read(
  config: ml_collections.ConfigDict | Mapping[str, Any],
  cls: type[Section] = Settings,
) -> Any:
  """Reads the settings from a configuration.

  Raises ValueError if a value is invalid; the message is one line and names the
  key.
  """
  if isinstance(config, ml_collections.ConfigDict):
    config = config.to_dict()
  return from_dict(cls, config)


def read_saved(config: Mapping[str, Any]) -> Settings:
  """Reads the settings from a checkpoint's description.

  An older version may have written it. A key that it lacks gets the value that
  makes this version behave as that one did. Raises ValueError as `read` does,
  also for keys of a newer version.
  """
  return from_dict(Settings, config, saved=True)


def _value(kind: Any, default: Any) -> Any:
  """A default for a `ConfigDict`, which then refuses values of another type."""
  inner, optional = checks.without_none(kind)
  if optional:
    return FieldReference(default, field_type=typing.get_origin(inner) or inner)
  return kind(default) if kind in (int, float) else default
