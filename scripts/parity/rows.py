"""The rows of the comparison: a recipe, its reference and what is different."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from configs import big_vision_s16, deit3, finetune, pretrain
from scripts.parity import inputs as given_inputs
from scripts.parity import ours
from scripts.parity.inputs import Arrays, Inputs
from scripts.parity.ours import CLASS_NAMES, CLASSES, Setup
from scripts.parity.recording import MARKS, Tolerances
from vit_jax.config import base_config
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.formats import google, hf_encoders, timm_encoders
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes, read_all
from vit_jax.run import build
from vit_jax.run.settings import read
from vit_jax.training.distillation import Teacher
from vit_jax.training.state import Extras

STEPS, WARMUP, BATCH = MARKS[-1], 12, 8
SIZES = dict(patch=4, hidden=32, layers=2, mlp=64, heads=2, classes=CLASSES)

_GOOGLE = "google-research/vision_transformer"
_UNILM = "microsoft/unilm"
_TIMM, _PEFT, _NUMPY = "timm", "peft", "NumPy"
_DEIT_NAME = "facebookresearch/deit"
_BIG_VISION_NAME = "google-research/big_vision"

FLOAT32 = Tolerances()


@dataclasses.dataclass(frozen=True)
class Row:
  """A recipe to compare.

  Attributes:
    title: The recipe, and what of it, for the page.
    reference: The repository or library that is the reference.
    program: The file in `reference/` that runs it.
    recipe: What that program is told: the reference's own numbers.
    config: Makes our configuration.
    faults: Names of the faults that apply; `faults.py` has them.
    rules: The format by whose names the reference calls its arrays.
    rename: From these names to the reference's own.
    adapt: Makes our model from that of the configuration.
    extras: Makes LoRA's base or a teacher, and its arrays by the reference's
      names.
    scale: How many times the reference's loss ours is.
    different: What is different on purpose, in a sentence each.
    variants: What the reference does otherwise, and here does not: changes of
      its recipe by their names, whose effect is recorded.
  """

  title: str
  reference: str
  program: str
  recipe: dict[str, Any]
  config: Callable[[], Any]
  faults: tuple[str, ...]
  rules: Callable[[Any], list[Rule]] = google.rules
  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  adapt: Callable[[Any], Any] | None = None
  extras: Callable[[Any, Any], tuple[Extras, Arrays]] | None = None
  tolerances: Tolerances = FLOAT32
  scale: float = 1.0
  different: tuple[str, ...] = ()
  variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  seed: int = 0

  def setup(self) -> Setup:
    """The settings and the model of our side."""
    config = self.config()
    config.image_size = (given_inputs.SIDE, given_inputs.SIDE)
    config.batch_size = BATCH
    config.pretrained = None
    config.total_steps, config.total_epochs = STEPS, 0.0
    config.optimizer.update(
      warmup_steps=WARMUP, warmup_epochs=0.0, warmup_examples=0
    )
    model = dict(
      variant=f"Ti/{SIZES['patch']}",
      hidden_size=SIZES["hidden"],
      num_layers=SIZES["layers"],
      mlp_size=SIZES["mlp"],
      num_heads=SIZES["heads"],
      scan=False,
      remat="none",
    )
    config.model.update({**model, "dtype": "float32", **self.fields})
    if config.model.representation_size:
      config.model.representation_size = SIZES["hidden"]
    settings = build.resolved(read(config), None)
    model = build.build_model(settings, build.task_of(settings), CLASS_NAMES)
    model = self.adapt(model) if self.adapt else model
    extras, theirs = Extras(), {}
    if self.extras:
      extras, theirs = self.extras(settings, model)
    return Setup(settings, model, extras, theirs)

  def inputs(self, setup: Setup) -> Inputs:
    calls = ours.drawn(setup, STEPS, BATCH)
    images, labels = given_inputs.make_batches(STEPS, BATCH, CLASSES, self.seed)
    probe, _ = given_inputs.make_batches(1, 16, CLASSES, self.seed + 1)
    preprocessing = build.make_preprocessing(setup.settings)
    shapes = ours.trained_shapes(setup, STEPS)
    return Inputs(
      params=given_inputs.make_params(shapes, self.seed),
      images=images,
      labels=labels,
      uniforms=given_inputs.make_uniforms(calls, STEPS, self.seed),
      chances=[p for p, _ in calls],
      mixing=given_inputs.make_mixing(STEPS, self.seed),
      probe=normalized(probe[0], preprocessing),
    )

  def written(self, setup: Setup, params: Arrays) -> Arrays:
    """Our arrays by the reference's names."""
    sizes = axis_sizes(setup.model)
    return {
      rule.theirs: rule.write([params[path] for path in rule.ours], sizes)
      for rule in self.rules(setup.model)
    }

  def read(self, setup: Setup, arrays: Arrays) -> Arrays:
    """The reference's arrays by our paths."""
    return dict(read_all(self.rules(setup.model), arrays, setup.model))

  def owners(self, setup: Setup) -> dict[str, str]:
    """The reference's name of the array that holds each of ours."""
    rules = self.rules(setup.model)
    return {path: rule.theirs for rule in rules for path in rule.ours}


def normalized(images: Any, preprocessing: Any) -> Any:
  """The images that a model gets, by NumPy."""
  mean, std = (np.float32(x) for x in (preprocessing.mean, preprocessing.std))
  return (images.astype("float32") / 255 - mean) / std


def _table_4() -> Any:
  config = finetune.get_config("l16_i21k,imagenet2012")
  config.accumulation_steps = 1
  return config


def _deit3() -> Any:
  config = deit3.get_config("B/16")
  # The recipe's are for the 1,000 classes that its loss is summed over.
  for key in ("clip_norm", "epsilon"):
    config.optimizer[key] *= CLASSES / deit3.CLASSES
  return config


def _deit_b() -> Any:
  """DeiT B, for which this package has no configuration file."""
  config = base_config()
  config.normalization.update(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
  )
  config.model.update(block="deit", drop_path_rate=0.1, drop_path_grows=True)
  config.loss.update(label_smoothing=0.1, mixup_alpha=0.8, cutmix_alpha=1.0)
  config.optimizer.update(
    decay="deit",
    peak_lr=1e-3,
    final_lr=1e-5,
    weight_decay=0.05,
    clip_norm=0.0,
  )
  config.update(ema_decay=0.99, ema_warmup=False)
  return config


def _on_device(params: Arrays) -> Any:
  return jax.tree.map(jnp.asarray, unflatten_dict(params, sep="/"))


def _distilled(**settings: Any) -> Callable[[], Any]:
  def make() -> Any:
    config = _deit_b()
    config.distill.update(form="deit", **settings)
    return config

  return make


def _teacher(settings: Any, model: Any) -> tuple[Extras, Arrays]:
  """A teacher of the student's sizes, with one head and its own arrays."""
  own = model.clone(distilled=False, drop_path_rate=0.0)
  size = (given_inputs.SIDE, given_inputs.SIDE)
  shapes = param_shapes(own, tuple(side // own.patch_size for side in size))
  params = given_inputs.make_params(shapes, seed=99)
  pixels = build.make_preprocessing(settings)
  teacher = Teacher(own, size, pixels.mean, pixels.std, settings.distill)
  frozen = {"teacher": _on_device(params)}
  sizes = axis_sizes(own)
  theirs = {
    rule.theirs: rule.write([params[path] for path in rule.ours], sizes)
    for rule in timm_encoders.rules(own)
  }
  return Extras(teacher=teacher, frozen_params=(frozen,)), theirs


def _layer_decay() -> Any:
  config = _deit_b()
  config.optimizer.update(
    decay="cosine", final_lr=1e-6, peak_lr=4e-3, layer_decay=0.65
  )
  config.update(ema_decay=0.0)
  return config


def _lora() -> Any:
  config = base_config()
  config.lora.update(rank=4, alpha=8.0)
  config.optimizer.update(peak_lr=5e-4, weight_decay=0.1)
  return config


def _muon() -> Any:
  config = base_config()
  config.optimizer.update(
    kind="muon", peak_lr=5e-4, momentum=0.95, weight_decay=0.1
  )
  return config


def _base(settings: Any, model: Any) -> tuple[Extras, Arrays]:
  """LoRA's base."""
  size = given_inputs.SIDE // model.patch_size
  params = given_inputs.make_params(param_shapes(model, (size, size)), seed=98)
  sizes = axis_sizes(model)
  theirs = {
    rule.theirs: rule.write([params[path] for path in rule.ours], sizes)
    for rule in hf_encoders.rules(model)
  }
  base = {k: v for k, v in params.items() if not k.startswith("head/")}
  frozen = {"base": _on_device(base)}
  return Extras(settings.lora, frozen_params=(frozen,)), theirs


def _products(model: Any) -> list[Rule]:
  """LoRA's products by peft's names, shortened."""
  found = [
    Rule("classifier.weight", ("head/kernel",), "K D -> D K"),
    Rule("classifier.bias", ("head/bias",)),
  ]
  wide = {"query": "msa", "key": "msa", "value": "msa"}
  kinds = {**wide, "out": "msa", "expand": "mlp", "contract": "mlp"}
  for layer in range(model.num_layers):
    for kind, part in kinds.items():
      ours_a, ours_b = (
        (f"block_{layer}/{part}/{kind}/lora_{x}",) for x in "ab"
      )
      a = "r (k d) -> k d r" if kind == "out" else "r D -> D r"
      b = "(k d) r -> r k d" if kind in wide else "D r -> r D"
      found.append(Rule(f"{layer}.{kind}.a", ours_a, a))
      found.append(Rule(f"{layer}.{kind}.b", ours_b, b))
  return found


def _plain(model: Any) -> Any:
  return model.clone(distilled=False)


def _imagenet() -> Any:
  config = pretrain.get_config("B/16,imagenet2012")
  config.optimizer.peak_lr = 5e-4  # 3e-3 learns these few images by heart.
  return config


def _accumulated() -> Any:
  config = _table_4()
  config.accumulation_steps = 4
  return config


_TABLE_4 = dict(
  SIZES,
  optimizer="sgd",
  rate=0.03,
  schedule="cosine",
  warmup=WARMUP,
  dropout=0.1,
  accumulation=1,
  momentum_dtype="float32",
)
_SGD_FAULTS = (
  "warm-up off by one",
  "momentum as an average",
  "Nesterov's momentum",
  "a clip of each array",
  "a clip after the momentum",
  "1 % of smoothing",
  "the head's rate",
  "a decay of 1e-3",
  "1 % more dropout",
  "another GELU",
)
_ADAM_FAULTS = (
  "warm-up off by one",
  "biases decayed",
  "no decay of the head",
  "decay in the gradient",
  "a clip after decay",
  "the head's rate",
  "Adam's epsilon",
  "b2 of 0.99",
)
_TABLE_3 = dict(
  SIZES, warmup=WARMUP, dropout=0.1, representation=SIZES["hidden"]
)
_BIG_VISION = dict(
  SIZES,
  rate=1e-3,
  weight_decay=1e-4,
  warmup=WARMUP,
  mu_dtype="float32",
  dtype="float32",
)
_DEIT = dict(
  SIZES,
  side=given_inputs.SIDE,
  warmup=WARMUP,
  epoch_steps=ours.EXAMPLES // BATCH,
  model="deit",
  optimizer="adamw",
  rate=1e-3,
  clip=None,
  bce=False,
  smoothing=0.1,
  drop_path=0.1,
  ema=0.99,
  distillation="none",
  alpha=0.5,
  tau=1.0,
)
_DEIT3 = dict(
  _DEIT,
  model="deit3",
  optimizer="lamb",
  rate=3e-3,
  bce=True,
  smoothing=0.0,
  drop_path=0.2,
  ema=0.0,
)
_DISTILLED = dict(_DEIT, model="deit_distilled")
_TAUGHT = (
  "the other share for the teacher",
  "the teacher's head for the labels",
  "drop path that does not grow",
  "smoothing of the wrong mass",
  "an average one step late",
)
_LAYERS = dict(
  SIZES,
  side=given_inputs.SIDE,
  warmup=WARMUP,
  rate=4e-3,
  weight_decay=0.05,
  layer_decay=0.65,
  drop_path=0.1,
  groups="beit",
  norm="head",
  schedule="timm",
)
_LAYER_FAULTS = (
  "layers counted from another end",
  "embeddings with the first block",
  "the last norm with the last block",
  "another layer decay",
  "warm-up off by one",
  "biases decayed",
  "decay in the gradient",
  "drop path that does not grow",
  "the head's rate",
)
_UNSEEN = "Adam's epsilon"
_SHARED = (
  "Each part draws its own dropout in a run of ours; the reference's parts "
  "share theirs, and here ours do too."
)
_NORM = (
  "timm puts the last norm into the last block's group; here it has the head's "
  "rate, as in BeiT, and for the comparison there too."
)
_AVERAGE = (
  "The average's decay is 0.99 instead of 0.99996, whose faults would not be "
  "seen in so few steps."
)
_PAPER = (
  "The reference has no pre-training: its model and its schedule are used, and "
  "the loss, the decay and the clipping are written from the paper."
)

ROWS: dict[str, Row] = {
  "table4": Row(
    title="Table 4 fine-tuning of L/16 on ImageNet",
    reference=_GOOGLE,
    program="run_google.py",
    recipe=_TABLE_4,
    config=_table_4,
    faults=_SGD_FAULTS,
    variants={"momentum in bfloat16": {"momentum_dtype": "bfloat16"}},
  ),
  "table4_accumulated": Row(
    title="Table 4 fine-tuning, each batch in 4 parts",
    reference=_GOOGLE,
    program="run_google.py",
    recipe=dict(_TABLE_4, accumulation=4),
    config=_accumulated,
    faults=("gradient summed over the parts", *_SGD_FAULTS[:6]),
    different=(_SHARED,),
  ),
  "big_vision_s16": Row(
    title="S/16, 90 epochs on ImageNet",
    reference=_BIG_VISION_NAME,
    program="run_big_vision.py",
    recipe=_BIG_VISION,
    config=big_vision_s16.get_config,
    rules=google.big_vision_rules,
    faults=(*_ADAM_FAULTS, "labels that are not mixed", "another GELU"),
    variants={"first moment in bfloat16": {"mu_dtype": "bfloat16"}},
  ),
  "big_vision_s16_bfloat16": Row(
    title="S/16, 90 epochs on ImageNet, bfloat16 activations",
    reference=_BIG_VISION_NAME,
    program="run_big_vision.py",
    recipe=dict(_BIG_VISION, dtype="bfloat16"),
    config=big_vision_s16.get_config,
    rules=google.big_vision_rules,
    fields={"dtype": "bfloat16"},
    faults=tuple(f for f in _ADAM_FAULTS if f != _UNSEEN),
    different=(
      f"A fault of float32's rows is not seen in bfloat16: {_UNSEEN}.",
    ),
    tolerances=Tolerances(loss=1e-2, arrays=1e-2, logits=3e-2),
  ),
  "deit3": Row(
    title="DeiT III B/16: LAMB, sigmoid loss, drop path, LayerScale",
    reference=_DEIT_NAME,
    program="run_deit.py",
    recipe=_DEIT3,
    config=_deit3,
    rules=timm_encoders.rules,
    scale=CLASSES,
    faults=(
      "LAMB for all arrays",
      "query, key and value by themselves",
      "trust ratio before decay",
      "a clip of the mean's size",
      "drop path that grows",
      "targets that are shares",
      "labels that are not mixed",
      "the schedule a step late",
      "the head's rate",
      "biases decayed",
      "another GELU",
    ),
  ),
  "deit_b": Row(
    title="DeiT B/16: AdamW, Mixup, CutMix, smoothing, drop path, average",
    reference=_DEIT_NAME,
    program="run_deit.py",
    recipe=_DEIT,
    config=_deit_b,
    rules=timm_encoders.rules,
    adapt=_plain,
    different=(_AVERAGE,),
    faults=(
      "smoothing of the wrong mass",
      "drop path that does not grow",
      "an average one step late",
      "an average that warms up",
      "labels that are not mixed",
      "the schedule a step late",
      "biases decayed",
      "decay in the gradient",
      "b2 of 0.99",
      "another GELU",
    ),
  ),
  "distillation_hard": Row(
    title="DeiT's hard distillation",
    reference=_DEIT_NAME,
    program="run_deit.py",
    recipe=dict(_DISTILLED, distillation="hard"),
    config=_distilled(kind="hard", weight=0.5),
    rules=timm_encoders.rules,
    extras=_teacher,
    faults=("Hinton's form", "soft for hard", *_TAUGHT),
  ),
  "distillation_soft": Row(
    title="DeiT's soft distillation",
    reference=_DEIT_NAME,
    program="run_deit.py",
    recipe=dict(_DISTILLED, distillation="soft", alpha=0.1, tau=3.0),
    config=_distilled(kind="soft", weight=0.1, temperature=3.0),
    rules=timm_encoders.rules,
    extras=_teacher,
    faults=(
      "Hinton's form",
      "the loss without T squared",
      "hard for soft",
      *_TAUGHT,
    ),
  ),
  "layer_decay_beit": Row(
    title="Fine-tuning with layer decay, BeiT's groups",
    reference=_UNILM,
    program="run_layer_decay.py",
    recipe=_LAYERS,
    config=_layer_decay,
    rules=timm_encoders.rules,
    adapt=_plain,
    faults=_LAYER_FAULTS,
    variants={"BeiT's own warm-up, t / (w - 1)": {"schedule": "beit"}},
  ),
  "layer_decay_timm": Row(
    title="Fine-tuning with layer decay, timm's groups",
    reference=_TIMM,
    program="run_layer_decay.py",
    recipe=dict(_LAYERS, groups="timm"),
    config=_layer_decay,
    rules=timm_encoders.rules,
    adapt=_plain,
    faults=_LAYER_FAULTS,
    different=(_NORM,),
    variants={"timm's group of the last norm": {"norm": "last block"}},
  ),
  "lora": Row(
    title="LoRA of all kernels of the blocks, rank 4",
    reference=_PEFT,
    program="run_lora.py",
    recipe=dict(
      SIZES,
      side=given_inputs.SIDE,
      warmup=WARMUP,
      rate=5e-4,
      decay=0.1,
      rank=4,
      alpha=8.0,
    ),
    config=_lora,
    rules=_products,
    extras=_base,
    faults=(
      "LoRA's alpha by the root of the rank",
      "LoRA's alpha not divided by the rank",
      "LoRA's products decayed",
      "warm-up off by one",
      "a clip after decay",
      "the head's rate",
      "Adam's epsilon",
    ),
  ),
  "table3_imagenet": Row(
    title="Table 3 pre-training of B/16 on ImageNet, Adam by torch",
    reference=_GOOGLE,
    program="run_google.py",
    recipe=dict(
      _TABLE_3,
      optimizer="torch",
      loss="softmax",
      rate=5e-4,
      schedule="cosine",
      weight_decay=0.3,
      clip=1.0,
    ),
    config=_imagenet,
    faults=(*_ADAM_FAULTS, "1 % more dropout", "another GELU"),
    different=(_PAPER,),
  ),
  "table3_imagenet21k": Row(
    title="Table 3 pre-training of L/16 on ImageNet-21k, Adam by optax",
    reference=_GOOGLE,
    program="run_google.py",
    recipe=dict(
      _TABLE_3,
      optimizer="optax",
      loss="sigmoid",
      rate=1e-3,
      schedule="linear",
      weight_decay=0.03,
      clip=0.0,
    ),
    config=functools.partial(pretrain.get_config, "L/16,imagenet21k"),
    faults=(
      *_ADAM_FAULTS,
      "1 % more dropout",
      "a final rate of a tenth",
      "another GELU",
    ),
    different=(_PAPER,),
  ),
  "muon": Row(
    title="Muon for the blocks' kernels, Adam for the rest",
    reference=_NUMPY,
    program="run_muon.py",
    recipe=dict(
      SIZES,
      side=given_inputs.SIDE,
      warmup=WARMUP,
      rate=5e-4,
      decay=0.1,
      momentum=0.95,
      muon="numpy",
    ),
    config=_muon,
    rules=hf_encoders.rules,
    faults=(
      "Muon without Nesterov's momentum",
      "Muon's momentum of 0.9",
      "Muon's factor by the other side",
      "four iterations of Muon",
      "biases decayed",
      "warm-up off by one",
      "a clip after decay",
      "the head's rate",
    ),
    variants={
      "momentum not corrected for its start": {"muon": "numpy, uncorrected"},
      "torch.optim.Muon, whose iteration is in bfloat16": {"muon": "torch"},
    },
  ),
}
