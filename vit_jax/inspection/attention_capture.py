"""The attention weights of a model on images, as arrays on the host."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.inference.features import are_floats
from vit_jax.inspection.embedding_maps import check_vit
from vit_jax.models import BaseVit, Model
from vit_jax.models.grid import grid_of
from vit_jax.models.loaded_first import (
  KnowsItsInputs,
  check_is_open,
  images_alone,
)
from vit_jax.models.model import Inputs
from vit_jax.models.parts import OURS, unstack
from vit_jax.models.patches import Patches
from vit_jax.training.inputs import by_image


@dataclasses.dataclass(frozen=True)
class Attention:
  """Attention weights, or gradients with respect to them.

  Attributes:
    layers: Weights (or gradients) of the encoder's layers; row q belongs to
      query q. An axial layer has two entries, one along the rows of patches and
      one along the columns.
    pool: Weights of the query that pools the tokens, such as the MAP head's
      probe; None without attention pooling.
    grid: Number of patches along height and width, (h, w).
    prefix: Number of tokens before the patches.
    stride: Distance between neighbouring patches in pixels.
    readout: Share of each token in the output; None if `pool` decides it.
    class_token: Whether the first token is the class token.
    has: Which channels each image has, if each of them has tokens of its own.
    each: Number of entries of a layer: 1, or 2 of an axial one.
  """

  layers: Float[np.ndarray, "n B k S S"]
  pool: Float[np.ndarray, "B k S"] | None
  grid: tuple[int, int]
  prefix: int
  stride: int
  readout: Float[np.ndarray, " S"] | None = None
  class_token: bool = True
  has: Bool[np.ndarray, "B C"] | None = None
  each: int = 1

  @property
  def num_layers(self) -> int:
    """Number of the encoder's layers, L."""
    return len(self.layers) // self.each

  def of_layer(self, layer: int) -> Float[np.ndarray, "B heads S S"]:
    """The weights of all heads of a layer, which counts from 0.

    Those of an axial layer are its heads along rows, then those along columns.
    """
    first = layer * self.each
    return np.concatenate(self.layers[first : first + self.each], axis=1)

  @property
  def tokens_each(self) -> int:
    """Number of tokens of each patch: 1, or one for each channel."""
    patches = self.layers.shape[-1] - self.prefix
    return patches // (self.grid[0] * self.grid[1])

  def maps(
    self, rows: Float[np.ndarray, "*axes S"]
  ) -> Float[np.ndarray, "*axes h w"]:
    """Reshapes rows over tokens into maps over patches.

    The patches are the last of the tokens. If a patch has a token for each
    channel, these are added.
    """
    patches = rows[..., self.prefix :]
    return patches.reshape(*rows.shape[:-1], -1, *self.grid).sum(axis=-3)

  def of_image(self, row: int, grid: tuple[int, int]) -> "Attention":
    """The weights of image number `row` of the batch, which has `grid` patches.

    Its patches are the first of its row, and the others are padding. Tokens of
    channels that the image lacks are left out.
    """
    if self.has is not None:
      return self.of_channels(slice(row, row + 1), self.has[row])
    count = grid[0] * grid[1]
    S = self.prefix + count
    padded = self.grid[0] * self.grid[1]
    one = slice(row, row + 1)
    readout = self.readout
    if readout is not None:
      first, patches = np.split(readout[:S], [self.prefix])
      readout = np.concatenate([first, patches * (padded / count)])
    return dataclasses.replace(
      self,
      layers=self.layers[:, one, :, :S, :S],
      pool=None if self.pool is None else self.pool[one, :, :S],
      grid=grid,
      readout=readout,
    )

  def of_channels(
    self, rows: slice, has: Bool[np.ndarray, " C"]
  ) -> "Attention":
    """The weights of some images, for the tokens of the channels in `has`."""
    each = np.repeat(has, self.grid[0] * self.grid[1])
    kept = np.concatenate([np.ones(self.prefix, bool), each])  # (S,)
    readout = self.readout
    if readout is not None:
      first, patches = np.split(readout, [self.prefix])
      readout = np.concatenate([first, patches[each] * (len(has) / has.sum())])
    assert self.has is not None
    return dataclasses.replace(
      self,
      layers=self.layers[:, rows][..., kept, :][..., kept],
      pool=None if self.pool is None else self.pool[rows][..., kept],
      readout=readout,
      has=self.has[rows][:, has],
    )

  def without(self, left_out: Bool[np.ndarray, "B h w"]) -> "Attention":
    """The weights with 0 for every query's attention to these patches."""
    patches = ~left_out.reshape(len(left_out), 1, -1)
    patches = np.tile(patches, self.tokens_each)
    padding = [(0, 0), (0, 0), (self.prefix, 0)]
    mask = np.pad(patches, padding, constant_values=1)  # (B, 1, S)
    pool = None if self.pool is None else self.pool * mask
    return dataclasses.replace(
      self, layers=self.layers * mask[:, None], pool=pool
    )


def attention_weights(
  model: Model | KnowsItsInputs, params: Any = None, images: Any = None
) -> Any:
  """The attention weights of every layer and head on normalised images.

  `attention_weights(loaded, images)` takes what `load_pretrained` returned, and
  prepares images that are no normalised floats, such as paths, by
  `loaded.preprocess`. The model's layers may be scanned.

  Args:
    images: Floats (B, H, W, C), normalised as the model expects, or `Patches`
      with an image in each row.

  Returns:
    An `Attention`, or for `Patches` a list with one for each image.

  Raises:
    ValueError: if the model has no attention, an image cannot be read, or
      parameters are given with what `load_pretrained` returned.
  """
  check_is_open(model, "attention_weights")
  if isinstance(model, KnowsItsInputs):
    pictures = images_alone("attention_weights", params, images)
    if not are_floats(pictures):
      pictures = model.preprocess(pictures)
    network, weights = model
    return attention_weights(network, weights, pictures)
  found = captured(model, params, images)
  if not isinstance(images, Patches):
    return found
  return [found.of_image(*at) for at in enumerate(grids_of(model, images))]


def captured(model: Model, params: Any, images: Inputs) -> Attention:
  """The attention weights of a batch; those of `Patches` with their padding."""
  vit, params = _unrolled(model, params)
  return _attention(vit, images, _seen(vit, params, images))


def grids_of(model: Model, images: Inputs) -> list[tuple[int, int]]:
  """The patches along height and width of each image of a batch."""
  if isinstance(images, Patches):
    return [(h, w) for h, w in np.asarray(images.size)[:, 0].tolist()]
  _, H, W, _ = images.shape
  return [grid_of(model, (H, W))] * len(images)


def capture_with_gradients(
  model: Model,
  params: Any,
  images: Inputs,
  choose: Callable[[Array, Any], tuple[Array, Any]],
  argument: Any,
) -> tuple[Attention, Attention, Any]:
  """Attention weights, and gradients of chosen logits with respect to them.

  `choose` maps the logits (B, K) and `argument` to the class of each image,
  (B,), and further arrays. Returns the weights, the gradients, and the further
  arrays. The computation is compiled once for each `choose`. The weights of
  `Patches` are those of their rows, with padding; see `Attention.of_image`.
  """
  vit, params = _unrolled(model, params)
  *both, more = _seen_with_gradients(vit, choose, params, images, argument)
  seen, gradients = (_attention(vit, images, tree) for tree in both)
  return seen, gradients, more


def _unrolled(model: Model, params: Any) -> tuple[BaseVit, Any]:
  """An equivalent model without scanned layers, and its parameters."""
  vit = check_vit(model).clone(scan=False, remat="none")
  return vit, unstack(nn.unbox(params))


@partial(jax.jit, static_argnums=0)
def _seen(model: BaseVit, params: Any, images: Inputs) -> Any:
  """Attention weights, in a tree by the names of their modules."""
  _, seen = model.apply({"params": params}, images, mutable="intermediates")
  return _unwrapped(seen)


@partial(jax.jit, static_argnums=(0, 1))
def _seen_with_gradients(
  model: BaseVit, choose: Any, params: Any, images: Inputs, argument: Any
) -> tuple[Any, Any, Any]:
  """`_seen`, the chosen logits' gradients, and `choose`'s further arrays."""

  def logits_and_seen(changes: Any) -> tuple[Array, Any]:
    """The logits of each image with `changes` added to A, and `_seen`."""
    variables = {"params": params, "perturbations": changes}
    logits, seen = model.apply(variables, images, mutable="intermediates")
    return by_image(logits, images), _unwrapped(seen)

  # The blocks have the same shapes: tracing one takes a fraction of the time.
  one = model.clone(num_layers=1)
  shapes = jax.eval_shape(partial(_seen, one), params, images)
  block = shapes.get(OURS.of(0), {})
  blocks = {OURS.of(i): block for i in range(model.num_layers)}
  shapes = {**shapes, **blocks}
  zeros = jax.tree.map(lambda A: jnp.zeros(A.shape, A.dtype), shapes)
  logits, back, seen = jax.vjp(logits_and_seen, zeros, has_aux=True)
  classes, more = choose(logits, argument)
  (gradients,) = back(
    jax.nn.one_hot(classes, logits.shape[1], dtype=logits.dtype)
  )
  return seen, gradients, more


def _unwrapped(seen: Any) -> Any:
  """The intermediates without the tuples that Flax's `sow` wraps them in."""
  return jax.tree.map(
    lambda sown: sown[0],
    seen["intermediates"],
    is_leaf=lambda x: isinstance(x, tuple),
  )


def _attention(model: BaseVit, images: Inputs, tree: Any) -> Attention:
  """Makes an `Attention` on the host, in float32, from a tree of `_seen`."""
  has = None
  if isinstance(images, Patches):
    grid = 1, images.values.shape[1]
  else:
    _, H, W, _ = images.shape
    grid = grid_of(model, (H, W))
  N = grid[0] * grid[1]
  if model.channel_tokens and not isinstance(images, Patches):
    from vit_jax.models.channels import present

    has = np.asarray(present(images, *grid)).any(axis=(2, 3))  # (B, C)
    N *= has.shape[1]
  blocks = [tree.get(OURS.of(i), {}) for i in range(model.num_layers)]
  readout = _shares(model, N)
  weights = [A for block in blocks for A in _layers(block, grid)]
  found = Attention(
    layers=np.stack(weights),
    pool=_pool(model, tree, N) if readout is None else None,
    grid=grid,
    prefix=model.prefix,
    stride=model.stride,
    readout=readout,
    class_token=model.class_token,
    has=has,
    each=len(weights) // model.num_layers,
  )
  if has is None or has.any(axis=0).all():
    return found
  # No image has the other channels, so their tokens are no queries either.
  return found.of_channels(slice(None), has.any(axis=0))


def _pool(model: BaseVit, tree: Any, N: int) -> np.ndarray:
  """The weights of all tokens in the pooling, (B, k, S); 0 for skipped ones.

  N is the number of the patches' tokens.
  """
  A = _fetch(tree["map_head"])[:, :, 0]
  left_out = model.prefix + N - A.shape[2]
  return np.pad(A, ((0, 0), (0, 0), (left_out, 0)))


def _fetch(module: Any) -> np.ndarray:
  """The attention weights of a module or of its `msa`, on the host."""
  return np.asarray(module.get("msa", module)["attention"], np.float32)


def _layers(block: Any, grid: tuple[int, int]) -> list[np.ndarray]:
  """A list of a block's attention weights, arrays (B, k, S, S).

  An axial block has two, each zero off its axis, and any other block has one.
  Raises ValueError if the block shows no attention.
  """
  if "msa" in block:
    return [_fetch(block)]
  if not {"row", "column"} <= set(block):
    raise ValueError(
      "the model's layers are of a class that shows no attention as `msa`; "
      "EncoderBlock and AxialBlock do."
    )
  (h, w), (_, k, _, _) = grid, _fetch(block["row"]).shape
  whole = -1, k, h * w, h * w
  along_rows = _fetch(block["row"]).reshape(-1, h, k, w, w)
  along_columns = _fetch(block["column"]).reshape(-1, w, k, h, h)
  along_rows = np.einsum("bykqs,yz->bkyqzs", along_rows, np.eye(h, dtype="f"))
  along_columns = np.einsum(
    "bxkqs,xz->bkqxsz", along_columns, np.eye(w, dtype="f")
  )
  return [along_rows.reshape(whole), along_columns.reshape(whole)]


def _shares(model: BaseVit, N: int) -> np.ndarray | None:
  """The share of each token in the output; None if attention decides it.

  N is the number of the patches' tokens.
  """
  if model.pooling in ("map", "query"):
    return None
  prefix = model.prefix
  x_class, mean = np.zeros((2, prefix + N), np.float32)
  read = range(1 + model.distilled)
  if model.pooling == "prefix":
    read = range(prefix)
  elif model.pooled_tokens != (0,):
    read = model.pooled_tokens
  x_class[[*read]] = 1 / len(read)
  mean[prefix:] = 1 / N
  share = {"token_gap": 0.5, "gap": 1.0}.get(model.pooling, 0.0)
  return (1 - share) * x_class + share * mean
