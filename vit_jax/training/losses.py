"""The objective of a train step: losses, their targets, Mixup and CutMix."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from vit_jax.models.layer import Images
from vit_jax.training.inputs import TakesImages, by_image, weights_of
from vit_jax.training.schedules import RunLength
from vit_jax.training.settings import LossSettings

Targets = Float[Array, "B K"]
Mixed = tuple[Images, Targets]
Apply = Callable[..., Any]


def cross_entropy(
  kind: str,
  logits: Float[Array, "B K"],
  targets: Targets,
  weights: Sequence[float] | None = None,
) -> Float[Array, " B"]:
  """Softmax cross-entropy, or sigmoid cross-entropy summed over classes.

  `weights` has a factor for each class, which multiplies its term t log p.
  Raises ValueError for another kind of loss, which has no classes.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.losses import cross_entropy
  >>> logits = jnp.zeros((1, 4))
  >>> targets = jnp.array([[0.0, 1.0, 0.0, 0.0]])
  >>> loss = cross_entropy("softmax", logits, targets)
  >>> round(float(loss[0]), 4)  # log(4)
  1.3863
  """
  if kind not in ("softmax", "sigmoid"):
    raise ValueError(
      f"loss.kind={kind!r} is a loss of numbers, not of classes: take softmax "
      "or sigmoid."
    )
  if kind == "sigmoid":
    return sigmoid_terms(logits, targets, weights).sum(-1)
  if weights is None:
    return optax.losses.softmax_cross_entropy(logits, targets)
  factors = jnp.asarray(weights)[None]
  return -(targets * factors * jax.nn.log_softmax(logits)).sum(-1)


def sigmoid_terms(
  logits: Float[Array, "B K"],
  targets: Targets,
  weights: Sequence[float] | None = None,
) -> Float[Array, "B K"]:
  """Each class's part of the sigmoid cross-entropy; see `cross_entropy`."""
  if weights is None:
    return optax.losses.sigmoid_binary_cross_entropy(logits, targets)
  factors = jnp.asarray(weights)[None]
  positive = targets * factors * jax.nn.log_sigmoid(logits)
  negative = (1 - targets) * jax.nn.log_sigmoid(-logits)
  return -(positive + negative)


def probabilities(kind: str, logits: Targets) -> Targets:
  """Class probabilities under this loss; those of sigmoid need not sum to 1.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.losses import probabilities
  >>> logits = jnp.zeros((1, 4))
  >>> probabilities("softmax", logits).tolist()
  [[0.25, 0.25, 0.25, 0.25]]
  >>> probabilities("sigmoid", logits).tolist()
  [[0.5, 0.5, 0.5, 0.5]]
  """
  return (jax.nn.softmax if kind == "softmax" else jax.nn.sigmoid)(logits)


def make_targets(
  label: Int[Array, " B"], num_classes: int, label_smoothing: float = 0.0
) -> Targets:
  """One-hot rows mixed with the uniform distribution: (1 - e) y + e / K.

  The row of a label of `num_classes` or more is NaN, and so is its loss: a row
  of zeros would train on it silently.

  >>> import jax.numpy as jnp
  >>> from vit_jax.training.losses import make_targets
  >>> make_targets(jnp.array([1]), num_classes=4, label_smoothing=0.5).tolist()
  [[0.125, 0.625, 0.125, 0.125]]
  """
  one_hot = jax.nn.one_hot(label, num_classes)
  one_hot = jnp.where(label[:, None] < num_classes, one_hot, jnp.nan)
  return (1 - label_smoothing) * one_hot + label_smoothing / num_classes


def mixup(
  key: Key[Array, ""], images: Images, targets: Targets, alpha: float
) -> Mixed:
  """Mixes each example with its neighbour in the batch (arXiv:1710.09412).

  The batch shares one lambda, drawn from Beta(alpha, alpha). As in "How to
  train your ViT" (arXiv:2106.10270), an example keeps the larger share of
  itself.

  >>> import jax
  >>> import jax.numpy as jnp
  >>> from vit_jax.training.losses import mixup
  >>> images = jnp.zeros((2, 4, 4, 3))
  >>> mixed, targets = mixup(jax.random.key(0), images, jnp.eye(2), alpha=0.2)
  >>> bool(targets[0, 0] >= 0.5), bool(jnp.allclose(targets.sum(axis=1), 1))
  (True, True)
  """
  share = jax.random.beta(key, alpha, alpha)
  share = jnp.maximum(share, 1 - share)

  def mix(values: Array) -> Array:
    return share * values + (1 - share) * jnp.roll(values, 1, axis=0)

  return mix(images), mix(targets)


def cutmix(
  key: Key[Array, ""], images: Images, targets: Targets, alpha: float
) -> Mixed:
  """Puts a box of each example's neighbour into it (arXiv:1905.04899).

  The batch shares one box, whose sides are sqrt(1 - lambda) of the image's for
  a lambda from Beta(alpha, alpha). Its centre lies anywhere in the image, so
  that edges may cut the box; the targets are mixed by the share of the image
  that the box then covers.

  >>> import jax
  >>> import jax.numpy as jnp
  >>> from vit_jax.training.losses import cutmix
  >>> images = jnp.stack([jnp.zeros((8, 8, 3)), jnp.ones((8, 8, 3))])
  >>> cut, targets = cutmix(jax.random.key(0), images, jnp.eye(2), alpha=1.0)
  >>> bool(jnp.allclose(cut[0].mean(), targets[0, 1]))
  True
  """
  area_key, *keys = jax.random.split(key, 3)
  side = jnp.sqrt(1 - jax.random.beta(area_key, alpha, alpha))

  def inside(key: Key[Array, ""], length: int) -> Array:
    """Which of `length` rows or columns the box covers."""
    centre = jax.random.uniform(key, (), maxval=length)
    distance = jnp.abs(jnp.arange(length) + 0.5 - centre)
    return distance < side * length / 2

  _, H, W, _ = images.shape
  rows = inside(keys[0], H)
  columns = inside(keys[1], W)
  box = rows[:, None] & columns[None]  # (H, W)
  share = box.mean()
  mixed = jnp.where(box[None, ..., None], jnp.roll(images, 1, axis=0), images)
  return mixed, (1 - share) * targets + share * jnp.roll(targets, 1, axis=0)


def mixup_or_cutmix(
  key: Key[Array, ""],
  images: Images,
  targets: Targets,
  mixup_alpha: float,
  cutmix_alpha: float,
) -> Mixed:
  """Applies Mixup or CutMix; if neither alpha is 0, each on half the steps."""
  if not cutmix_alpha:
    return mixup(key, images, targets, mixup_alpha)
  if not mixup_alpha:
    return cutmix(key, images, targets, cutmix_alpha)
  choice, key = jax.random.split(key)
  return jax.lax.cond(
    jax.random.bernoulli(choice),
    lambda: mixup(key, images, targets, mixup_alpha),
    lambda: cutmix(key, images, targets, cutmix_alpha),
  )


def _raise_no_average() -> Any:
  """Raises ValueError, as the run keeps no average of the parameters."""
  raise ValueError(
    "ema_decay=0: the objective reads the average of the parameters, and there "
    "is none: set a decay."
  )


@dataclasses.dataclass(frozen=True)
class StepContext:
  """The state of a run at a step that a loss may read, beside its batch.

  No gradient goes through it.

  Attributes:
    step: Number of the step, counted from 0.
    state: The objective's own state before the step; None without a state.
    frozen: Parameters that the run uses but does not train, by name, such as
      `teacher`.
    average_of: Computes `averaged`, which most objectives do not read.
  """

  step: Any = 0
  state: Any = None
  frozen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  average_of: Callable[[], Any] = _raise_no_average

  @property
  def averaged(self) -> Any:
    """The average of all parameters of the model before the step.

    Raises ValueError if the run keeps no average.
    """
    return self.average_of()


class Loss(NamedTuple):
  """The outcome of an objective for a batch.

  Attributes:
    value: The loss of each example, (B,).
    score: The score of each example, (B,), which `Objective.metric` names.
    metrics: Further numbers by name.
    state: The objective's state after the step; None without a state.
    weight: The weight of each example in the mean loss and the mean score,
      (B,), such as 0 in place of an image that a row of several images lacks;
      None weighs all alike. Where the weight is 0, loss and score may be any
      finite numbers.
  """

  value: Array
  score: Array
  metrics: dict[str, Array] = {}
  state: Any = None
  weight: Array | None = None


class Objective:
  """The objective of a train step; one of your own derives from it.

  Attributes:
    metric: The name of the score of a `Loss`, such as "top1".
    couples: Whether the loss of an example depends on the others of its batch.
    reads_average: Whether it reads the average of the parameters, which the run
      then keeps.
  """

  metric: str
  couples: ClassVar[bool] = False
  reads_average: ClassVar[bool] = False

  def init(self) -> Any:
    """The first state, arrays that name their logical axes, or None."""
    return None

  def for_run(self, model: Any, length: RunLength) -> "Objective":
    """The objective for a run of this length, on which its schedules depend.

    Raises ValueError if it does not fit the run's model or its batches.
    """
    del model, length
    return self

  def with_answers(self, teacher: Any) -> "Objective":
    """The objective that also learns the answers of a teacher.

    The teacher is a `distillation.Teacher`. Raises ValueError if the objective
    has no answers to compare with the teacher's.
    """
    raise ValueError(
      "distill.teacher has answers for whole images, and the objective "
      f"{type(self).__name__} has none: leave it out."
    )

  def inputs(self, batch: Mapping[str, Array]) -> Any:
    """Returns the model's inputs for a batch, without random changes."""
    raise NotImplementedError

  def prepare(self, batch: Mapping[str, Array], key: Array) -> tuple[Any, Any]:
    """Returns the model's inputs for a batch in training, and the targets.

    The batch holds the arrays of `run.plan.Plan.batch_spec`, such as `image`,
    uint8 (B, H, W, C). The random key is that of the step.
    """
    raise NotImplementedError

  def loss(
    self, apply: Apply, inputs: Any, targets: Any, context: StepContext
  ) -> Loss:
    """The loss and the score of each example, as a `Loss`.

    Args:
      apply: A function from the model's inputs, such as images, to its outputs,
        or to those of the method `method=`. Other keywords are collections of
        variables. The model has its parameters, and its dropout is on.
      inputs, targets: Those of `prepare`.
      context: The step, the objective's state, and parameters that are not
        trained.
    """
    raise NotImplementedError

  def decay(self, step: Array) -> Array | None:
    """The decay of the parameters' average after a step.

    None leaves it to the run's settings.
    """
    del step
    return None


class CoupledObjective(Objective):
  """An objective that couples examples by their embeddings alone.

  A batch can therefore be computed in parts, `embed` for each part.
  """

  couples = True

  def embed(
    self, apply: Apply, inputs: Any, context: StepContext
  ) -> tuple[Any, Any]:
    """The embeddings of examples, arrays (B, ...), and what examples share.

    Examples share numbers such as a temperature, which do not depend on inputs.
    """
    raise NotImplementedError

  def couple(self, embeddings: Any, shared: Any, targets: Any) -> Loss:
    """The loss of a batch, from the two results of `embed` for it."""
    raise NotImplementedError

  def loss(
    self, apply: Apply, inputs: Any, targets: Any, context: StepContext
  ) -> Loss:
    """The loss and the score of each example: `couple` after `embed`."""
    return self.couple(*self.embed(apply, inputs, context), targets)


@dataclasses.dataclass(frozen=True)
class Classification(TakesImages, Objective):
  """The objective of a classifier: an image has one class.

  In a run, `ClassificationTask.objective` makes this object.

  Attributes:
    num_classes: K, the number of classes.
    settings: The loss and its targets.
    mean, std: The mean that is subtracted from each channel, in units of full
      scale, and the standard deviation that then divides the channel.
    class_weights: A factor for each class's part of the loss.
  """

  num_classes: int
  settings: LossSettings
  mean: Sequence[float]
  std: Sequence[float]
  class_weights: Sequence[float] | None = None
  metric = "top1"

  def with_answers(self, teacher: Any) -> Objective:
    """The objective of the labels and of the teacher's answers."""
    return teacher.make_objective(self)

  def prepare(
    self, batch: Mapping[str, Array], key: Array
  ) -> tuple[Any, Array]:
    """Returns a batch's images, normalised, and targets (B, K), mixed.

    The batch has `image`, uint8 (B, H, W, C), and `label`, the index of a class
    (B,). The key draws what Mixup and CutMix mix.
    """
    settings = self.settings
    images = self.inputs(batch)  # (x / 255 - mean) / std
    targets = self._targets_of(batch["label"], images)
    alphas = settings.mixup_alpha, settings.cutmix_alpha
    if any(alphas):
      images, targets = mixup_or_cutmix(key, images, targets, *alphas)
    if settings.binary_targets:
      targets = jnp.sign(targets)  # 1 above 0; an unknown label stays NaN.
    return images, targets

  def _targets_of(self, label: Array, images: Any) -> Array:
    """The targets (B, K), or (B, M, K) of rows of several images."""
    if weights_of(images) is None:
      return self.targets(label)
    each = self.targets(label.reshape(-1, *label.shape[2:]))
    return each.reshape(*label.shape[:2], -1)

  def targets(self, label: Array) -> Array:
    """The targets (B, K) of the labels of a batch."""
    smoothing = self.settings.label_smoothing
    return make_targets(label, self.num_classes, smoothing)

  def loss(
    self, apply: Apply, inputs: Any, targets: Any, context: StepContext
  ) -> Loss:
    """The loss and the score of each example; `apply` gives the logits (B, K).

    In rows of several images, each image is an example.
    """
    del context
    logits = by_image(apply(inputs), inputs)
    weight = weights_of(inputs)
    if weight is not None:
      targets = targets.reshape(-1, targets.shape[-1])
    return Loss(*self.loss_and_score(logits, targets), weight=weight)

  def loss_and_score(self, logits: Any, targets: Array) -> tuple[Array, Array]:
    """The loss of each example, and whether the answer is correct.

    Of a mixture of two images, the larger part counts as correct.
    """
    correct = logits.argmax(axis=-1) == targets.argmax(axis=-1)
    kind, weights = self.settings.kind, self.class_weights
    loss = cross_entropy(kind, logits, targets, weights)
    return loss, correct & jnp.isfinite(loss)  # NaN is never correct.

  def for_evaluation(self) -> "Classification":
    """The same loss, without the class weights and without smoothing."""
    settings = LossSettings(kind=self.settings.kind)
    return dataclasses.replace(self, settings=settings, class_weights=None)
