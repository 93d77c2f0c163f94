"""Layers of the Transformer: their parts, and how L of them are run.

Unrolled, each block has parameters of its own, `block_0` to `block_{L-1}`.
Scanned, one block is compiled and run L times; the parameters of all layers
are stacked, (L, ...), as `blocks`. `stack` and `unstack` of `parts` turn
either layout into the other.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.partitioning import (
  Dense,
  for_cpu,
  for_tpu,
  in_bfloat16_on_cpu,
  lay_out,
  with_axes,
)
from vit_jax.models.parts import OURS
from vit_jax.models.tokens import Tokens

Images = Float[Array, "B H W C"]
TokenValues = Float[Array, "B S D"]
Pooled = Float[Array, "B ..."]
"""What a head reads: (B, D), or a row for each of several heads or patches."""
Offsets = Float[Array, "offsets k *D_h"] | None
"""R, the relative positions of attention (App. D.4), if there are any.

For each offset and head, it is a vector, or one number (`models.relative`).
"""

Layers = list[Callable[[Tokens], Tokens]]
# Each block saves values for the backward pass: all activations, the products
# of the dense layers, or the block's input alone. The rest is recomputed.
REMATS = {
  "none": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "full": jax.checkpoint_policies.nothing_saveable,
}

init_kernel = nn.initializers.xavier_uniform()
init_zeros = nn.initializers.zeros_init()
# Initializers of kernel and bias in both published codes: of the embedding of
# patches, which is a convolution there, and of all other dense layers.
_PATCH_INITS = nn.initializers.lecun_normal(), init_zeros
_DENSE_INITS = init_kernel, nn.initializers.normal(1e-6)


def _gelu(x: Float[Array, "*axes"], approximate: bool) -> Float[Array, "*axes"]:
  """GELU, x Phi(x), or its tanh approximation, as in the published models."""
  if not for_tpu():
    return nn.gelu(x, approximate)
  from vit_jax.models import tpu_gelu

  return (tpu_gelu.gelu if approximate else tpu_gelu.gelu_exact)(x)


GELUS = {
  "tanh": functools.partial(_gelu, approximate=True),
  "exact": functools.partial(_gelu, approximate=False),
  "quick": lambda x: x * nn.sigmoid(1.702 * x),  # CLIP's.
}

# The activations of all MLPs. Only TIPS's text towers have "relu".
ACTIVATIONS = GELUS | {"relu": nn.relu}
NORMS = ("layer", "rms")
ATTENTION_DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("auto", "plain", "cudnn")
DTYPE_FIELDS = ("dtype", "param_dtype", "attention_dtype")
"""Fields of a model that hold types; descriptions hold their names."""
EXECUTION = ("scan", "remat", "splash", "attention")
"""Fields that change how a model is executed, but not its result."""


@dataclasses.dataclass(frozen=True)
class LayerConfig:
  """The settings that every layer takes; `VitFields` says what each is.

  Raises ValueError if one of them is invalid.
  """

  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  gelu: str = "tanh"
  layer_norm_epsilon: float = 1e-6
  norm_kind: str = "layer"
  splash: bool = False
  attention: str = "auto"
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32
  attention_dtype: DTypeLike = jnp.float32

  def __post_init__(self):
    check_choice("gelu", self.gelu, ACTIVATIONS)
    check_choice("norm_kind", self.norm_kind, NORMS)
    check_choice("attention", self.attention, ATTENTIONS)
    check_rate("dropout_rate", self.dropout_rate)
    check_rate("attention_dropout_rate", self.attention_dropout_rate)
    if not self.layer_norm_epsilon > 0:
      raise ValueError(
        f"layer_norm_epsilon={self.layer_norm_epsilon} must be more than 0."
      )
    name = jnp.dtype(self.attention_dtype).name
    check_choice("attention_dtype", name, ATTENTION_DTYPES)
    if self.splash and name != ATTENTION_DTYPES[0]:
      raise ValueError(
        f"attention_dtype={name} and splash=True: JAX's kernel has float32 "
        "logits and exponentials alone, so leave one of them out."
      )

  @classmethod
  def of(cls, vit: Any) -> Self:
    """The settings among the fields of a model."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: getattr(vit, name) for name in names})

  @property
  def dtypes(self) -> dict[str, Any]:
    """The types of computation and parameters, as Flax's layers take them."""
    return {"dtype": self.dtype, "param_dtype": self.param_dtype}


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
  """Raises ValueError, which names the field, for a value of no `choices`."""
  choices = tuple(choices)
  if value not in choices:
    raise ValueError(
      f"{name}={value!r} is unknown; choose one of {', '.join(choices)}."
    )


def check_rate(name: str, value: Any) -> None:
  """Raises ValueError, which names the field, for a value outside [0, 1)."""
  if not 0 <= value < 1:
    raise ValueError(f"{name}={value} must be in [0, 1).")


def dense(
  features: int,
  axes: tuple[str, str],
  config: LayerConfig,
  *,
  bias_axis: str | None = None,
  use_bias: bool = True,
  scale: Any = None,
  name: str,
) -> Dense:
  """A dense layer, initialised as in the published models.

  Args:
    axes: Logical names of the kernel's axes.
    bias_axis: Logical name of the bias's axis; None keeps the bias whole on
      every device.
    scale: A factor for each feature, which multiplies kernel and bias.
  """
  kernel_init, bias_init = _PATCH_INITS if axes[0] == "patch" else _DENSE_INITS
  return Dense(
    features,
    use_bias=use_bias,
    kernel_init=with_axes(kernel_init, axes),
    bias_init=with_axes(bias_init, (bias_axis,)),
    scale=scale,
    **config.dtypes,
    name=name,
  )


def fast_variance(dtype: DTypeLike) -> bool:
  """Whether a norm computes its variance as the mean of x^2 less mean^2.

  The mean of (x - mean)^2 is accurate even where the mean is far larger than
  the deviation. TPUs take the first form for bfloat16, as it needs one pass for
  both means: its error, about (mean / deviation)^2 / 10^7 of the result, is
  less than that of rounding a row to bfloat16, (mean / deviation) / 2^9.
  """
  return for_tpu() and jnp.dtype(dtype) == jnp.bfloat16


def layer_norm(
  config: LayerConfig,
  name: str,
  axis: int | tuple[int, ...] = -1,
  **fields: Any,
) -> nn.LayerNorm | nn.RMSNorm:
  """LN of Eq. 2-4, with its mean and variance in float32, or RMSNorm.

  RMSNorm is x / sqrt(mean(x^2) + epsilon), times a factor for each channel
  (arXiv:1910.07467). `fields` are further fields of Flax's module.
  """
  axes = (None,) * (len(axis) if isinstance(axis, tuple) else 1)
  options: dict[str, Any] = dict(
    reduction_axes=axis,
    feature_axes=axis,
    epsilon=config.layer_norm_epsilon,
    use_fast_variance=fast_variance(config.dtype),
    scale_init=with_axes(nn.initializers.ones_init(), axes),
    **config.dtypes,
    name=name,
    **fields,
  )
  if config.norm_kind == "rms":
    return nn.RMSNorm(**options)
  zeros = with_axes(nn.initializers.zeros_init(), axes)
  return nn.LayerNorm(bias_init=zeros, **options)


def each_token(layer: Callable[[Array], Array], z: Array) -> Array:
  """Applies a layer to every token; (B, S, *axes) -> (B, S, *features).

  The tokens of all images become the rows of one matrix: for the gradient of a
  kernel, XLA's CPU compiler would transpose a batch of matrices, which takes as
  long as the products. In bfloat16 its products are fast only after that. TPUs
  tile rows by 8, so there flattening would copy.
  """
  if for_tpu() or in_bfloat16_on_cpu(z.dtype):
    return layer(z)
  B, S = z.shape[:2]
  rows = layer(z.reshape(B * S, *z.shape[2:]))
  return rows.reshape(B, S, *rows.shape[1:])


class PatchDropout(nn.Module):
  """Leaves out a share of the patches in training; N patches -> n.

  Without half of its patches, an image costs a layer half the products, and the
  model learns not to depend on single patches (PatchDropout, arXiv:2208.07220).
  Outside training nothing is left out. Of the N patches of each image, n =
  round((1 - rate) N) stay, at least one: every choice of n is equally likely,
  and drawn anew by the key `dropout`. They keep their order. Nothing is scaled,
  since no layer sums over patches. Patches that do not count are left out
  first.

  Attributes:
    rate: Share of the patches to leave out, in [0, 1).
  """

  rate: float

  @nn.compact
  def __call__(self, tokens: Tokens, *, train: bool) -> Tokens:
    if not train or not self.rate:
      return tokens
    B, S, _ = tokens.z.shape
    N = S - tokens.prefix
    n = max(round((1 - self.rate) * N), 1)
    draw = jax.random.uniform(self.make_rng("dropout"), (B, N))
    if tokens.mask is not None:
      draw = jnp.where(tokens.mask, draw, -1)
    # A sort stays on the device that has the image; `top_k` would gather the
    # numbers of all images.
    highest = jnp.argsort(draw, axis=1, descending=True)[:, :n]
    return tokens.take(jnp.sort(highest, axis=1))


@jax.custom_jvp
def gradient_barrier(z: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
  """Returns z; the barrier makes a CPU compute the gradient of z only once.

  That gradient is the sum of the layer's own and that of the layer above. XLA
  would fuse the sum into every product that reads it, and so compute it again
  in each of them, through all layers above: the work would grow with the square
  of their number.
  """
  return z


@gradient_barrier.defjvp
def _gradient_barrier_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
  # The transpose of a barrier is a barrier for the gradient.
  return primals[0], jax.lax.optimization_barrier(tangents[0])


@dataclasses.dataclass(frozen=True)
class Positions:
  """The position embeddings of a model, by the layer that uses them (App. D.4).

  Attributes:
    added: For each layer the embeddings added to its input, (1, S, D), or None
      if that layer has none of its own. Eq. 1 has added the first layer's.
    relative: For each layer the offsets R that its attention uses, or None.
  """

  added: list[Array | None]
  relative: list[Array | None]


def make_blocks(
  vit: Any,
  make_block: Callable[..., nn.Module],
  positions: Positions,
  train: bool,
  read: int | None = None,
) -> Layers:
  """The layers of a model, Eq. 2 and 3, as functions of tokens to call in turn.

  Scanned layers are one function, which runs all of them. A function raises
  ValueError as `_token_arguments` does.

  Args:
    make_block: Builds a block from the name of its parameters.
    positions: Position embeddings of the layers; Eq. 1 has added those of the
      first layer.
    train: Whether dropout is on.
    read: How many of the first tokens of the last layer's output are read; None
      for all. The last layer then computes only these, unless layers are
      scanned or their class takes no `read`.
  """

  def runner(read: int | None = None) -> Callable[..., Tokens]:
    """A function of (block, tokens, R) that runs one layer, with its remat."""

    def run(block: Any, tokens: Tokens, R: Array | None) -> Tokens:
      z = lay_out(tokens.z, ("batch", None, None))
      if for_cpu():
        z = gradient_barrier(z)
      z = block(z, R, train=train, **_token_arguments(block, tokens, R, read))
      return tokens.replace(z=z)

    policy = REMATS[vit.remat]
    if policy is None:
      return run
    return nn.remat(run, policy=policy, prevent_cse=not vit.scan)

  if vit.scan:
    block = make_block(name=OURS.stacked)
    R = positions.relative[0]  # The same for all layers, or none.
    return [functools.partial(_scan_layers(runner(), vit.num_layers), block, R)]

  def run_layer(layer: int, tokens: Tokens) -> Tokens:
    """The output of layer number `layer`, after adding any positions it has."""
    E_pos = tokens.E_pos if layer else None
    table = positions.added[layer]
    if table is not None:
      E_pos = tokens.table_rows(table)
    if E_pos is not None:  # Positions at every layer, App. D.4.
      tokens = tokens.replace(z=tokens.z + E_pos)
    block = make_block(name=OURS.of(layer))
    is_last = layer == vit.num_layers - 1
    run = runner(read if is_last else None)
    return run(block, tokens, positions.relative[layer])

  return [
    functools.partial(run_layer, layer) for layer in range(vit.num_layers)
  ]


def call_parameters(layer: Any) -> Collection[str]:
  """The names of the arguments that a layer, or a class of layers, takes.

  A user's own class may take fewer than ours, whatever it derives from, so only
  its signature tells. No other place inspects signatures.
  """
  return inspect.signature(layer.__call__).parameters.keys()


def _token_arguments(
  block: nn.Module, tokens: Tokens, R: Array | None, read: int | None
) -> dict[str, Any]:
  """The keyword arguments of a layer that describe its tokens.

  They are those that the tokens need and that the layer takes. Raises
  ValueError if there is a mask and the layer's class takes none, or if patches
  were left out and there is an R, whose offsets need the places in `where`, and
  the class takes no `where`.
  """
  takes = call_parameters(block)
  if tokens.mask is not None and "mask" not in takes:
    raise ValueError(
      f"layers of class {type(block).__name__} take no mask, so they cannot "
      "leave tokens out: give tokens without a mask, or use layers that take "
      "one as EncoderBlock does."
    )
  if tokens.where is not None and R is not None and "where" not in takes:
    raise ValueError(
      f"layers of class {type(block).__name__} take no `where`, so they cannot "
      "tell relative positions once patches were left out: keep all patches, "
      "or use layers that take it as EncoderBlock does."
    )
  seen = {"mask": tokens.seen, "where": tokens.where, "read": read}
  return {k: v for k, v in seen.items() if v is not None and k in takes}


def _scan_layers(run: Callable, num_layers: int) -> Callable:
  """A function of (block, R, tokens) that applies `run` L times to tokens."""

  def body(
    block: nn.Module, tokens: Tokens, R: Array | None
  ) -> tuple[Tokens, None]:
    return run(block, tokens, R), None

  scanned = nn.scan(
    body,
    variable_axes={"params": 0, "intermediates": 0},
    split_rngs={"params": True, "dropout": True},
    length=num_layers,
    in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
    metadata_params={nn.PARTITION_NAME: "layers"},
  )
  return lambda block, R, tokens: scanned(block, tokens, R)[0]
