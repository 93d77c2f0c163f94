"""Records that the files of families fill in; no library is imported here."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

# Mean and deviation of each channel.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
Shapes = Mapping[str, tuple[int, ...]]

# Arrays of timm's class `Eva` that tell its rows apart.
GAMMA, FREQS = "blocks.0.gamma_1", "rope.freqs"
FUSED, APART = "blocks.0.attn.qkv.bias", "blocks.0.attn.q_proj.weight"
Q_BIAS = "blocks.0.attn.q_bias"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eva:
  """Some architectures of timm's class `Eva`.

  Attributes:
    architecture: The name of one of these architectures.
    table: The names of their arrays, a table of `formats/names.csv`.
    has: Arrays that they have.
    lacks: Arrays that they do not have.
    fields: Fields of the model that its arrays do not tell, or that tell these
      architectures from others when a model is written.
    biases: Values that `qkv_bias` may have.
    gated: Whether their MLPs are gated; None if some are and others are not.
    named: Beginning of these architectures' names, if others have the same
      arrays.
    pooling: timm's default pooling for files with a class token and without
      the array `fc_norm.weight`.
  """

  architecture: str
  table: str
  has: tuple[str, ...]
  lacks: tuple[str, ...]
  fields: Mapping[str, Any]
  biases: tuple[str, ...] = ("qv",)
  gated: bool | None = None
  named: str = ""
  pooling: str = "token"


@dataclasses.dataclass(frozen=True)
class Timm:
  """Facts that only the names of timm's architectures tell (timm 1.0.31).

  A pattern matches the beginning of a name.

  Attributes:
    classes: Pattern -> initial of the class of the architecture: v for
      `VisionTransformer`, e for `Eva`, b for `Beit`, r for
      `VisionTransformerRelPos`.
    own: Pattern -> arguments that are in timm's code and that no array tells.
      If several patterns match, later ones override earlier ones.
    heads: Pattern -> number of heads, where the width does not tell it.
    head_sizes: Pattern -> width of a head, where it is not 64.
    activations: Pattern -> timm's name of the activation, if it is not "gelu".
    evas: Rows for the arrays of the class `Eva`.
    sides: Part of a layer of a plain ViT -> its name in layers that have it
      several times, side by side, with {} for its number.
  """

  classes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  own: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
  heads: Mapping[str, int] = dataclasses.field(default_factory=dict)
  head_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  activations: Mapping[str, str] = dataclasses.field(default_factory=dict)
  evas: tuple[Eva, ...] = ()
  sides: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Stored(Protocol):
  """A model's file and the config.json beside it, while they are read.

  Names of arrays are without the base. A method that checks a value raises
  ValueError with the line that a user sees.

  Attributes:
    shapes: The shape of each array, by its name.
    config: The configuration, with the defaults of the library.
  """

  @property
  def shapes(self) -> Shapes: ...

  @property
  def config(self) -> Mapping[str, Any]: ...

  def axis(self, name: str, i: int, default: Any = None) -> Any:
    """The length of an array's axis; the default if there is none."""
    ...

  def length(self, name: str) -> int | None:
    """The length of an array that must have one axis; None without it."""
    ...

  def number(self, key: str, default: float, positive: bool = False) -> float:
    """A value of the configuration, which must be a finite number."""
    ...

  def whole_numbers(
    self, key: str, default: tuple[int, ...]
  ) -> tuple[int, ...]:
    """A value of the configuration, which must be a list of whole numbers."""
    ...

  def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
    """A value of the configuration, which must be one of these."""
    ...

  def section(self, key: str) -> "Stored":
    """The same arrays with a part of the configuration."""
    ...

  def says(self, key: str) -> str:
    """The beginning of a message on a value of the configuration."""
    ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Transformers:
  """A family of encoders as transformers saves them.

  Attributes:
    types: The `model_type`s of its configurations.
    signature: Name of an array that only this family has, without the base.
    fits: Takes the shapes of arrays with the signature, and their base, and
      returns whether they are this family's.
    bases: Prefixes that names of arrays may have.
    one_base: Whether names are always written with the first base. Otherwise a
      model with a head gets its `model_type` as base, and one without a head
      gets none.
    layers: Beginning of the names of a layer, with {} for its number.
    names: A line for each array: the part of the table, its name, the path of
      our parameter and the pattern from its axes to ours, as in
      `formats/names.csv`.
    table: The table of `names.csv` whose rows it has as well; "" for none.
    fields: Returns fields of the model that are particular to the family, and
      with them `notes`, lines on what no file tells. Raises ValueError for a
      file whose model is not supported.
    config: Returns the part of a configuration that is particular to the
      family, from a model and the size in pixels that its positions are for.
      Raises ValueError if the library has no such model.
    classes: The library's classes without and with a head; None for none.
    defaults: The library's values for keys that a configuration lacks.
    epsilon_key: The configuration's key for the epsilon of all norms.
    image_size_key: The configuration's key for the image size of positions.
    position_resize: How the library resizes positions, as in `ExtendedVit`.
    antialiased: Whether the library resizes positions with antialiasing.
    any_size: Whether its images may keep their proportions.
    normalizes: Beginning of the names of the mean and deviation by which the
      library's model normalises its images itself; "" if its preprocessor
      does.
    gated_by_act: Whether the activation in its configuration is that of the
      gates of gated MLPs; else these have SiLU.
    extended: Whether its models may be `ExtendedVit`s.
    relative: Whether it may have relative positions.
    any_shape: Whether its positions may be for images that are not square.
    mask_token: Name of the token of masked pre-training, which is not read, and
      is written as zeros; "" if there is none.
    mask_axes: Number of axes of length 1 that this token has.
    unused: Beginnings of the names of other arrays that are not read.
    objective: Beginnings of the names of a pre-training objective's arrays,
      which are not read either. The first tells whether a file has any.
    mean: The mean of each channel, if no preprocessor tells it.
    std: The standard deviation of each channel, if no preprocessor tells it.
  """

  types: tuple[str, ...]
  signature: str
  fits: Callable[[Shapes, str], bool] = lambda shapes, base: True
  bases: tuple[str, ...] = ("",)
  one_base: bool = True
  layers: str
  names: str = ""
  table: str = ""
  fields: Callable[[Stored], dict[str, Any]]
  config: Callable[[Any, tuple[int, int] | None], dict[str, Any]]
  classes: tuple[str | None, str | None]
  defaults: Mapping[str, Any]
  epsilon_key: str = "layer_norm_eps"
  image_size_key: str = "image_size"
  position_resize: str = "bicubic"
  antialiased: bool = False
  any_size: bool = False
  normalizes: str = ""
  gated_by_act: bool = False
  extended: bool = True
  relative: bool = False
  any_shape: bool = False
  mask_token: str = ""
  mask_axes: int = 1
  unused: tuple[str, ...] = ()
  objective: tuple[str, ...] = ()
  mean: tuple[float, ...] = IMAGENET_MEAN
  std: tuple[float, ...] = IMAGENET_STD

  def base(self, vit: Any) -> str:
    """The prefix that names of arrays get in a file that is written."""
    if self.one_base:
      return self.bases[0]
    name = self.config(vit, None)["model_type"]
    return f"{name}." if vit.num_classes else ""


def dropouts(vit: Any) -> dict[str, Any]:
  """The dropout rates and `qkv_bias`, by keys that most families share."""
  return dict(
    hidden_dropout_prob=vit.dropout_rate,
    attention_probs_dropout_prob=vit.attention_dropout_rate,
    qkv_bias=bool(vit.qkv_bias),
  )


def mlp_ratio(vit: Any, whole: bool = False) -> float | None:
  """The ratio r for which the library computes the width of a model's MLPs.

  The width is r D, rounded down; that of gated MLPs is two thirds of this,
  rounded up to a multiple of 8. The result is None if no ratio gives the width,
  or with `whole` no whole number does.
  """
  D, size = vit.hidden_size, vit.mlp_size
  if vit.gated_mlp:
    if size % 8:
      return None
    size = size * 3 // 2
  if not size % D:
    return size // D
  return None if whole else (size + 0.5) / D
