"""Self-attention by cuDNN's fused kernels, for NVIDIA's GPUs.

The mathematics is that of `attention.Msa`, Eq. 6 and 7. A is never an array, so
the plain form is used where A is shown, dropped or perturbed. Logits and
exponentials are float32. Only reverse-mode differentiation is defined, and
cuDNN may add the gradients of queries in another order each time: for the same
bits in each run, set XLA_FLAGS=--xla_gpu_exclude_nondeterministic_ops=true.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models import partitioning
from vit_jax.models.mask import AttentionMask

IMPLEMENTATION: Any = "cudnn"  # As `jax.nn.dot_product_attention` names it.
TYPES = ("bfloat16", "float16")


def refusal(dtype: DTypeLike, head_size: int) -> str:
  """Why cuDNN cannot compute attention of this type and D_h; "" if it can."""
  if (here := partitioning.platform()) != "gpu":
    return f"it needs a GPU, and this is a {here.upper()}"
  name = jnp.dtype(dtype).name
  if name not in TYPES:
    return f"it needs {' or '.join(TYPES)}, and dtype is {name}"
  return _why_refused(IMPLEMENTATION, name, head_size)


def remark(attention: str, dtype: DTypeLike, head_size: int) -> str | None:
  """The remark on cuDNN's kernels that follows the name of the form.

  It is "" if `attention` is "cudnn" and the kernels are used. It is None if
  `attention` is "plain", or "auto" where the kernels cannot be used.
  """
  refused = refusal(dtype, head_size)
  if attention == "cudnn":
    return f"; cuDNN's kernels are not used: {refused}" if refused else ""
  if attention == "plain" or refused:
    return None
  return "; model.attention=cudnn takes cuDNN's kernels"


@functools.cache
def _why_refused(implementation: Any, dtype: str, head_size: int) -> str:
  """Why JAX refuses to differentiate attention of this type and D_h, or ""."""
  one = jax.ShapeDtypeStruct((1, 2, 1, head_size), dtype)

  def total(q: Array, k: Array, v: Array) -> Array:
    attend = jax.nn.dot_product_attention
    return attend(q, k, v, implementation=implementation).sum()

  try:
    jax.eval_shape(jax.grad(total), one, one, one)
  except (NotImplementedError, RuntimeError, ValueError) as error:
    return f"{error}".rstrip(".")
  return ""


def attend(
  q: Float[Array, "B k T D_h"],
  k: Float[Array, "B k S D_h"],
  v: Float[Array, "B k S D_h"],
  mask: AttentionMask,
) -> Float[Array, "B k T D_h"]:
  """The results of all heads, A v of Eq. 6 and 7.

  If `mask` is causal, T is S. It may hide only what `AttentionMask.is_at_end`
  allows; the results of a row in which no key counts are 0. An odd number
  of tokens, which JAX refuses to differentiate, is padded by one that does not
  count.
  """
  T = q.shape[2]
  S = k.shape[2]
  counted = mask.lengths
  options: dict[str, Any] = {"is_causal": mask.causal}
  if T % 2 or S % 2 or counted is not None:
    lengths = jnp.full(len(q), S) if counted is None else counted
    options["query_seq_lengths"] = jnp.full(len(q), T, jnp.int32)
    # A row of no keys would divide 0 by 0.
    options["key_value_seq_lengths"] = jnp.maximum(lengths, 1).astype(jnp.int32)
  q, k, v = (_even(x.astype(v.dtype).swapaxes(1, 2)) for x in (q, k, v))
  SA = jax.nn.dot_product_attention(
    q, k, v, implementation=IMPLEMENTATION, **options
  )
  SA = SA[:, :T].swapaxes(1, 2)
  if counted is None:
    return SA
  return jnp.where((counted > 0)[:, None, None, None], SA, 0)


def _even(x: Float[Array, "B S k D_h"]) -> Float[Array, "B t k D_h"]:
  """The tokens, padded by one of zeros if their number is odd."""
  return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
