"""Settings of the training step: the optimizer, the loss, the mesh."""

import dataclasses

from vit_jax.runtime import checks
from vit_jax.runtime.checks import BELOW_1, NOT_NEGATIVE, POSITIVE, Rule
from vit_jax.runtime.settings import Duration, Section, setting

OPTIMIZERS = ("adam", "lamb", "muon", "sgd")
DECAYS = ("cosine", "linear", "constant", "deit")
LOSSES = ("softmax", "sigmoid", "mse")
TEACHINGS = ("soft", "hard")
FORMS = ("hinton", "deit")
_ADAM = "kind=adam or kind=lamb or kind=muon"  # The kinds that have moments.
_ALPHA = Rule(
  "be 0, which turns it off, or lie between 1e-6 and 1e6",
  lambda x: x == 0 or 1e-6 <= x <= 1e6,
)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(Section):
  """The optimizer and its learning-rate schedule.

  Frozen parameters need neither gradients nor memory in the optimizer.
  """

  kind: str = setting(
    "adam",
    'Optimizer: "adam", "lamb", "muon" (for the kernels of the blocks and of a '
    'ResNet\'s units, and Adam for all else), or "sgd" with momentum.',
    choices=OPTIMIZERS,
  )
  peak_lr: float = setting(
    1e-3, "Learning rate after the warm-up.", must=NOT_NEGATIVE
  )
  final_lr: float = setting(
    0.0,
    "Learning rate at the end of the run.",
    must=NOT_NEGATIVE,
    tunes="decay=cosine or decay=linear or decay=deit",
  )
  decay: str = setting(
    "cosine",
    'How the learning rate falls after the warm-up; "deit" is the schedule of '
    "DeiT's code, with one rate per epoch and a warm-up from 1e-6.",
    choices=DECAYS,
  )
  warmup: Duration = setting(
    Duration(), "Time over which the learning rate rises from 0."
  )
  b1: float = setting(
    0.9, "Decay rate of Adam's mean gradient.", must=BELOW_1, tunes=_ADAM
  )
  b2: float = setting(
    0.999,
    "Decay rate of Adam's mean squared gradient.",
    must=BELOW_1,
    tunes=_ADAM,
  )
  epsilon: float = setting(
    1e-8,
    "Epsilon added to the root of Adam's mean squared gradient.",
    must=POSITIVE,
    tunes=_ADAM,
  )
  momentum: float = setting(
    0.9,
    "Momentum of SGD and Muon.",
    must=BELOW_1,
    tunes="kind=sgd or kind=muon",
  )
  momentum_correction: bool = setting(
    True,
    "Correct Muon's Nesterov momentum for its start, as Optax does; its "
    "authors' code and torch.optim.Muon do not (False).",
    needs="kind=muon",
  )
  weight_decay: float = setting(
    0.0,
    "Decoupled weight decay, multiplied by the learning rate.",
    must=NOT_NEGATIVE,
  )
  final_weight_decay: float | None = setting(
    None,
    "Weight decay at the end of the run, which it reaches along half a "
    "cosine; None keeps `weight_decay`.",
    must=NOT_NEGATIVE,
    needs="weight_decay",
  )
  weight_decay_on: str = setting(
    r"kernel$",
    "Regular expression for the parameters that decay, by paths such as "
    '"block_0/mlp/expand/kernel".',
    must=checks.PATTERN,
    needs="weight_decay or kind=lamb",
  )
  clip_norm: float = setting(
    1.0, "Largest global norm of the gradient; 0 is off.", must=NOT_NEGATIVE
  )
  freeze_layers: int = setting(
    0,
    "Freeze the embeddings and this many first layers; 0 freezes nothing, and "
    "-1 all but the head.",
  )
  layer_decay: float = setting(
    1.0,
    "Learning-rate factor per layer, from the head down to the input.",
    must=Rule("be in (0, 1]; 1 is off", lambda x: 0 < x <= 1),
  )
  patches_lr: float = setting(
    1.0,
    "Learning-rate factor of the patch embedding, on top of its layer's.",
    must=NOT_NEGATIVE,
  )


@dataclasses.dataclass(frozen=True)
class LoraSettings(Section):
  """LoRA: trains low-rank changes of a checkpoint's kernels, and the head.

  Nothing else is trained. It needs `pretrained`.
  """

  rank: int = setting(
    0,
    "Rank r of the product that is added to a kernel; 0 trains all parameters.",
    must=checks.WIDTH_OR_0,
    needs="pretrained",
  )
  alpha: float = setting(
    16.0,
    "The product is multiplied by alpha / rank.",
    must=POSITIVE,
    needs="rank",
  )
  kernels: str = setting(
    r"(msa|mlp)/",
    "Regular expression for the kernels to adapt, by paths such as "
    '"block_0/msa/query/kernel".',
    must=checks.PATTERN,
    needs="rank",
  )


@dataclasses.dataclass(frozen=True)
class DistillSettings(Section):
  """Distillation: a teacher's answers are learned beside the labels."""

  teacher: str | None = setting(
    None,
    "Checkpoint of the teacher: a workdir, a published file or a known name.",
  )
  form: str = setting(
    "hinton",
    'Form of the loss: "hinton" (arXiv:1503.02531), or "deit" '
    "(arXiv:2012.12877), in which the distillation token learns the teacher's "
    "answers, and the loss of soft answers is divided by the number of "
    'classes. Take "deit" if your weight is the alpha of DeiT, and "hinton" if '
    "it is that of another paper.",
    choices=FORMS,
  )
  kind: str = setting(
    "soft",
    'What the student learns: the teacher\'s probabilities ("soft"), or its '
    'likeliest class as a label ("hard").',
    choices=TEACHINGS,
  )
  temperature: float = setting(
    2.0,
    "Temperature that divides both models' logits for soft answers.",
    must=POSITIVE,
    tunes="kind=soft",
  )
  weight: float = setting(
    0.5,
    "Share of the teacher in the loss; the labels have the rest.",
    must=Rule("be in (0, 1]", lambda x: 0 < x <= 1),
  )


def _is_class_weights(text: str) -> bool:
  """Whether a text is "balanced" or lists numbers above 0."""
  try:
    return text == "balanced" or all(0 < w < 1e6 for w in _parse_numbers(text))
  except ValueError:
    return False


def _parse_numbers(text: str) -> tuple[float, ...]:
  """The numbers of a list such as "1,2.5"; ValueError if one is no number."""
  return tuple(map(float, text.split(",")))


def _check_binary_targets(loss: "LossSettings") -> None:
  """Raises ValueError unless the loss is sigmoid without label smoothing."""
  if loss.kind != "sigmoid" or loss.label_smoothing:
    raise ValueError(
      f"binary_targets=True needs kind='sigmoid' and label_smoothing=0.0; "
      f"they are {loss.kind!r} and {loss.label_smoothing}."
    )


@dataclasses.dataclass(frozen=True)
class LossSettings(Section):
  """The loss and its targets."""

  kind: str = setting(
    "softmax",
    'Cross-entropy of a "softmax" or of a "sigmoid" for each class, or the '
    'squared error ("mse"). `data.task` sets sigmoid for several labels, and '
    "mse for numbers.",
    choices=LOSSES,
  )
  class_weights: str | None = setting(
    None,
    'Weights of the classes, such as "1,2.5", or "balanced" by their number of '
    "training images; for several labels, weights of the positive terms.",
    must=Rule(
      "be balanced or numbers above 0, such as 1,2.5", _is_class_weights
    ),
  )
  label_smoothing: float = setting(
    0.0, "Share of the uniform distribution in the targets.", must=BELOW_1
  )
  mixup_alpha: float = setting(
    0.0,
    "Mixup draws its weights from Beta(alpha, alpha); 0 is off.",
    must=_ALPHA,
  )
  cutmix_alpha: float = setting(
    0.0,
    "CutMix draws its boxes' areas from Beta(alpha, alpha); 0 is off. With "
    "Mixup as well, each is used on half the steps.",
    must=_ALPHA,
  )
  binary_targets: bool = setting(
    False,
    "Set every target above 0 to 1, as DeiT III does for mixed images.",
    needs="mixup_alpha or cutmix_alpha",
    fits=_check_binary_targets,
  )

  def listed_weights(self) -> tuple[float, ...] | None:
    """The weights that `class_weights` lists; None if it does not list any."""
    if self.class_weights in (None, "balanced"):
      return None
    return _parse_numbers(self.class_weights)


@dataclasses.dataclass(frozen=True)
class MeshSettings(Section):
  """Devices along each axis of the mesh; -1 takes the rest."""

  data: int = setting(
    -1,
    "Number of devices that split the batch; -1 takes those that the other "
    "axes leave.",
  )
  fsdp: int | None = setting(
    None,
    "Number of devices that split the batch and store a part of the parameters "
    "each; None takes the fastest known on this TPU, or 1.",
  )
  tensor: int = setting(
    1, "Number of devices that split the attention heads and the MLP."
  )
