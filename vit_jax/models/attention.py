"""Self-attention, Eq. 5-8 (arXiv:2010.11929, App. A)."""

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models import tpu
from vit_jax.models.partitioning import Projection, platform
from vit_jax.models.position import relative_logits

init_kernel = nn.initializers.xavier_uniform()
init_bias = nn.initializers.normal(1e-6)


class Msa(nn.Module):
  """Multi-head self-attention, Eq. 5-8; (B, S, D) -> (B, S, D).

  `queries`, if given, ask in the place of the tokens: (B, T, D) is the result.
  `R` are the learned embeddings of relative offsets, if any: queries meet them
  as they meet the keys (App. D.4). Who wants gradients by the weights A gives
  zeros to add to them, as `attention` of the collection "perturbations".
  """

  num_heads: int
  attention_dropout_rate: float = 0.0
  dtype: DTypeLike = jnp.float32
  param_dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    z: Float[Array, "B S D"],
    R: Float[Array, "offsets k D_h"] | None = None,
    *,
    queries: Float[Array, "B T D"] | None = None,
    train: bool = False,
  ) -> Float[Array, "B T D"]:
    D = z.shape[-1]
    D_h = D // self.num_heads
    affine = partial(
      Projection,
      kernel_init=init_kernel,
      bias_init=init_bias,
      dtype=self.dtype,
      param_dtype=self.param_dtype,
    )
    project = partial(
      affine,
      (D, self.num_heads, D_h),
      num_inputs=1,
      axes=("embed", "heads", "head_size"),
      bias_axes=("heads", "head_size"),
    )
    U_q, U_k, U_v = (project(name=n) for n in ("query", "key", "value"))
    U_msa = affine(
      (self.num_heads, D_h, D),
      num_inputs=2,
      axes=("heads", "head_size", "embed"),
      bias_axes=(None,),
      name="out",
    )
    dropout = nn.Dropout(self.attention_dropout_rate, deterministic=not train)

    z = z.astype(self.dtype)
    drops = train and self.attention_dropout_rate > 0
    seen = self.is_mutable_collection("intermediates")
    plain = queries is None and R is None and not (drops or seen)
    # The same, but that it has no attention matrices to show.
    if plain and platform() == "tpu" and not self.is_initializing():
      return tpu.msa(
        z,
        *U_q.weights(scale=1 / math.sqrt(D_h)),
        *(*U_k.weights(), *U_v.weights(), *U_msa.weights()),
      )

    z_q = z if queries is None else queries
    q, k, v = (  # Eq. 5, each (B, k, S, D_h)
      each_token(U, x).swapaxes(1, 2)
      for U, x in ((U_q, z_q), (U_k, z), (U_v, z))
    )
    logits = q @ k.mT  # (B, k, S, S)
    if R is not None:
      logits += relative_logits(q, R.astype(q.dtype))
    A = softmax(logits / math.sqrt(D_h))  # Eq. 6
    self.sow("intermediates", "attention", A)
    if self.has_variable("perturbations", "attention"):
      A += self.get_variable("perturbations", "attention")
    SA = dropout(A) @ v  # Eq. 7
    return each_token(U_msa, SA.swapaxes(1, 2))  # Eq. 8


@jax.custom_jvp
def softmax(logits: Float[Array, "*axes S"]) -> Float[Array, "*axes S"]:
  """Softmax over keys, taken in float32: bfloat16 loses a hundredfold.

  Its derivative, dA = A (dlogits - sum(A dlogits)), is written out because it
  then needs nothing but A itself: left to JAX, a train step keeps more of the
  S x S matrices and takes three times as long over them on CPU.
  """
  return nn.softmax(logits.astype(jnp.float32)).astype(logits.dtype)


@softmax.defjvp
def _softmax_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
  result = softmax(*primals)
  A, dlogits = (x.astype(jnp.float32) for x in (result, *tangents))
  dA = A * (dlogits - (A * dlogits).sum(axis=-1, keepdims=True))
  return result, dA.astype(result.dtype)


def each_token(
  layer: Callable[[Array], Array], z: Float[Array, "B S *axes"]
) -> Float[Array, "B S *features"]:
  """Applies a layer to the tokens of all images as rows of one matrix.

  The same map. XLA's CPU compiler transposes a batch of matrices to get the
  gradient of the kernel, which takes as long as the products. A TPU keeps rows
  in eights, and would have to move them.
  """
  if platform() == "tpu":
    return layer(z)
  B, S = z.shape[:2]
  rows = layer(z.reshape(B * S, *z.shape[2:]))
  return rows.reshape(B, S, *rows.shape[1:])
