"""The features of images, as probes and users see them.

They are the input of the head's last layer: the output of a pre-training head's
hidden layer, where there is one and it is wanted, or else y of Eq. 4
(arXiv:2010.11929), the output of the last layer norm and the pooling.
"""

from typing import Any

from jaxtyping import Array, Float

from vit_jax.models.base_vit import Model


def represent(
  model: Model,
  params: Any,
  images: Float[Array, "B H W C"],
  *,
  pre_logits: bool = True,
) -> Float[Array, "B R"]:
  """The representation of normalised images, below the head's last layer.

  Args:
    model: The model, with or without a head.
    params: Its parameters; the head's are not used, and may be absent.
    images: Floats, normalised as the model expects.
    pre_logits: Whether a representation layer, if any, is applied; y of Eq. 4
      is the representation otherwise.
  """
  if model.representation_size is not None and not pre_logits:
    model = model.clone(representation_size=None)

  def run(bound: Any, x: Array) -> Array:
    return bound.representation(bound.encode(x)[1])

  return model.apply({"params": params}, images, method=run)  # pyright: ignore[reportReturnType]
