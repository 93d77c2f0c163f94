"""Models of objectives: an encoder, and what only its training needs.

Such a model holds its encoder as a field and shares its scope, so that the
encoder's parameters have the paths, the initial values and the dropout that
they have without the objective. To write one, derive from `Composed`: give
`__call__`, and `parts` if there are further parameters. `BaseVit` says what an
encoder offers: `patches`, `place`, `run`, `normed` and `pool`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layer import Pooled, call_parameters
from vit_jax.models.model import Model
from vit_jax.models.parts import Part
from vit_jax.models.position import Grid
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import BaseVit

# Positions of a `Vit` that crops of two sizes can have.
_ANY_GRID = ("learned", "learned_grid", "sincos2d", "none")


class Composed(Model):
  """A model that holds an encoder.

  Attributes that it lacks, such as `patch_size`, are the encoder's, and `clone`
  changes the encoder's fields as well as its own.

  Attributes:
    encoder: A model without classes.
  """

  encoder: Model

  def setup(self) -> None:
    nn.share_scope(self, self.encoder)

  @nn.nowrap
  def __getattr__(self, name: str) -> Any:
    encoder = self.__dict__.get("encoder")
    if encoder is None or name.startswith("_") or name == "scope":
      return super().__getattr__(name)
    return getattr(encoder, name)

  @nn.nowrap
  def clone(self, **changes: Any) -> Any:
    """A copy with changed fields, its own or the encoder's."""
    own = {field.name for field in dataclasses.fields(self)}
    of_encoder = {
      name: value
      for name, value in changes.items()
      if name not in own and not name.startswith("_")
    }
    others = {k: v for k, v in changes.items() if k not in of_encoder}
    if of_encoder:
      others["encoder"] = self.encoder.clone(**of_encoder)
    return super().clone(**others)

  @nn.nowrap
  def apply(self, variables: Any, *args: Any, **options: Any) -> Any:
    """As `Model.apply`; `method` may also name a method of the encoder."""
    name = options.get("method")
    if isinstance(name, str) and not hasattr(type(self), name):
      return super().apply(
        variables, name, *args, **{**options, "method": "by_encoder"}
      )
    return super().apply(variables, *args, **options)

  def by_encoder(self, name: str, *args: Any, **options: Any) -> Any:
    """Calls the method `name` of the encoder."""
    return getattr(self.encoder, name)(*args, **options)

  @property
  def trunk(self) -> Model:
    """The encoder."""
    return self.encoder

  @property
  def prefix(self) -> int:
    """Number of tokens before the patches."""
    return self.encoder.prefix

  @property
  def stride(self) -> int:
    """Pixels between neighbouring patches, or cells of a feature map."""
    return self.encoder.stride

  def attention_form(self, size: tuple[int, int]) -> str | None:
    """How attention is computed on images of (height, width)."""
    return self.encoder.attention_form(size)

  def parts(self) -> tuple[Part, ...]:
    return self.encoder.parts()

  def pooled(self, x: Any, *, train: bool = False) -> Pooled:
    """The outputs that the encoder's head would read."""
    return self.encoder.pooled(x, train=train)

  def encode(self, x: Any, *, train: bool = False) -> tuple[Array, Pooled]:
    """The encoder's last output z, before any norm, and what its head reads."""
    return self.encoder.encode(x, train=train)

  def representation(self, y: Pooled) -> Float[Array, "B *M R"]:
    """Features of an image, from what the encoder's head reads."""
    return self.encoder.representation(y)


@dataclasses.dataclass(frozen=True)
class Needs:
  """The requirements of an objective on its encoder; `encoder_of` checks them.

  All fields but `key` are booleans; each demands what is said here if true.

  Attributes:
    key: The key of the configuration that chooses the objective.
    patches: The encoder is a Transformer, with tokens for patches.
    all_patches: No patch may be left out by PatchDropout.
    one_token: If all patches are needed, none may have a token for each of its
      channels.
    hides: Patches are hidden, and must not influence those that are seen.
    some_patches: The layers can run on some of the patches alone.
    two_sizes: The encoder takes images of two sizes.
    tokens: The outputs of tokens are trained, so no layer may pool them.
    features: No representation layer may follow the pooling.
  """

  key: str
  patches: bool = True
  all_patches: bool = True
  one_token: bool = True
  hides: bool = False
  some_patches: bool = False
  two_sizes: bool = False
  tokens: bool = False
  features: bool = False


def encoder_of(model: Any, needs: Needs) -> Any:
  """The encoder of an objective's model: `model` without its head.

  Raises ValueError with the reason if `model` lacks what the objective needs.
  """
  if reason := next(_reasons(model, needs), None):
    raise ValueError(f"{needs.key}: {reason}.")
  return model.clone(num_classes=0, head_bias=0.0)


def with_resized_positions(
  encoder: Any, grid: Grid | None
) -> tuple[Any, Grid | None]:
  """The encoder for crops of several sizes, and the grid of its positions.

  The positions of other crops are resized from that grid: the encoder's own
  `position_grid`, or else `grid`, the patches of a large crop. An encoder
  without such a field is returned as it is: give the grid to its `place`.
  """
  grid = encoder.position_grid or grid
  if encoder.resizes_positions:
    encoder = encoder.clone(position_grid=grid)
  return encoder, grid


def _reasons(model: Any, needs: Needs) -> Iterator[str]:
  """The reasons why a model cannot be the encoder; none if it can."""
  kind = type(model).__name__
  choose = "choose a model such as model.variant=B/16"
  if not isinstance(model, BaseVit | ResNet):
    yield f"a {kind} is no encoder of images: {choose}"
    return
  if isinstance(model, ResNet):
    if needs.patches:
      yield f"a {kind} has no patches in its layers: {choose}"
    return
  vit: Any = model
  if needs.all_patches and vit.patch_dropout_rate:
    yield (
      f"patch_dropout_rate={vit.patch_dropout_rate} would leave out patches "
      "that this objective reads: set it to 0"
    )
  if needs.all_patches and needs.one_token and vit.channel_tokens:
    yield (
      "channel_tokens=True gives a patch a token for each channel, and this "
      "objective reads one of each patch: leave model.channel_tokens out, and "
      "all files that lack bands"
    )
  if needs.hides and vit.resnet_layers:
    yield (
      "a hybrid's ResNet mixes neighbouring patches, so none can be hidden: "
      "take a model without ResNet, such as model.variant=B/16"
    )
  pools = needs.tokens and vit.pooling in ("map", "query")
  if pools or (needs.features and vit.representation_size is not None):
    yield (
      f"pooling={vit.pooling!r} and representation_size="
      f"{vit.representation_size}: the outputs of tokens are trained, and no "
      "layer after them, so take another pooling, such as 'token' or 'gap', "
      "and no representation_size"
    )
  yield from _unfit_layers(vit, needs)


def _unfit_layers(vit: Any, needs: Needs) -> Iterator[str]:
  """The reasons why layers or positions need whole images, or one size."""
  needs_grid = hasattr(vit.block, "grid")
  if needs.some_patches and needs_grid:
    yield (
      f"block={vit.block.__name__}: its layers need all patches, and they get "
      "a few: take another block"
    )
  if needs.some_patches and vit.position == "relative" and vit.block:
    if "where" not in call_parameters(vit.block):
      yield (
        f"position='relative' and block={vit.block.__name__}: its layers take "
        "no `where`, so they do not know which patches they get: take another "
        "position"
      )
  if not needs.two_sizes:
    return
  if vit.position_at != "input":
    yield (
      f"position_at={vit.position_at!r}: crops of two sizes need "
      "position_at='input'"
    )
  if not vit.extended and vit.position not in _ANY_GRID:
    yield (
      f"position={vit.position!r} does not fit crops of two sizes: take one of "
      f"{', '.join(_ANY_GRID)}"
    )
  if needs_grid:
    yield (
      f"block={vit.block.__name__}: its layers are for one grid of patches, "
      "and small crops have another: take another block"
    )
