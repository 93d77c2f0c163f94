"""A model for code that is written in Flax NNX.

The mathematics stays that of the linen module, which is applied to parameters
that NNX's transforms and optimizers see.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors, nnx
from jax.typing import ArrayLike

from vit_jax.models import Model
from vit_jax.models.loaded_first import takes_loaded
from vit_jax.training.state import init_params


class NnxModel(nnx.Module):
  """A model of ours and its parameters, as one NNX module.

  It is called as the linen module is applied: `train=True` turns dropout on,
  and `method=` and `mutable=` are those of `apply`.

  Attributes:
    params: Its parameters, a tree of `nnx.Param`. Those that qwix adds for LoRA
      are `nnx.LoRAParam`, which `wrt=nnx.LoRAParam` trains alone.
    rngs: Has the key `dropout` for calls that train; None if each call brings
      its own.
  """

  def __init__(self, model: Model, params: Any, rngs: nnx.Rngs | None = None):
    """See `as_nnx`."""
    tree = jax.tree_util.tree_map_with_path(_variable, nn.unbox(params))
    self.linen = model
    self.rngs = rngs
    self.params = nnx.data(tree)

  def __call__(
    self,
    *args: Any,
    train: bool = False,
    rngs: nnx.Rngs | None = None,
    **options: Any,
  ) -> Any:
    """The model's outputs; raises ValueError if dropout has no key."""
    rngs = rngs or self.rngs
    if train:  # A method that `method=` names may not have this argument.
      options["train"] = True
    keys = {"dropout": rngs.dropout()} if train and rngs else {}
    variables = {"params": self.linen_params()}
    try:
      return self.linen.apply(variables, *args, rngs=keys, **options)
    except errors.InvalidRngError as error:
      raise ValueError(
        "train=True draws dropout and there is no key: give as_nnx, or the "
        "call, rngs=nnx.Rngs(0)."
      ) from error

  def linen_params(self) -> dict[str, Any]:
    """The parameters as a tree of arrays, as all other functions take them."""
    return nnx.to_pure_dict(nnx.state(self.params))


@takes_loaded
def as_nnx(
  model: Model,
  params: Any = None,
  *,
  rngs: nnx.Rngs | None = None,
  image_size: int | tuple[int, int] | None = None,
  channels: int | None = None,
) -> NnxModel:
  """Makes an NNX module of a model, for `nnx.jit`, `nnx.Optimizer` and others.

  Logits and gradients are those of the linen module.

  >>> import vit_jax
  >>> from flax import nnx
  >>> vit = vit_jax.Vit(
  ...   num_classes=2,
  ...   patch_size=8,
  ...   hidden_size=16,
  ...   num_layers=1,
  ...   mlp_size=32,
  ...   num_heads=2,
  ... )
  >>> model = vit_jax.as_nnx(vit, rngs=nnx.Rngs(0), image_size=16)
  >>> model.linen_params()["head"]["kernel"].shape
  (16, 2)

  Args:
    model: Any model of ours, or what qwix made of one. What `load_pretrained`
      returned stands for a model and its parameters, as in `as_nnx(loaded)`.
    params: Its parameters, as `load_pretrained` and `init_params` return them.
      By default they are drawn with the key `params` of `rngs`.
    rngs: Keys for dropout, unless each call brings its own.
    image_size: Height and width of the images, to draw parameters.
    channels: Channels of the images, to draw parameters; by default 3.

  Raises:
    ValueError: if there are no parameters, and nothing to draw them with, or if
      there are parameters, and something to draw them with.
  """
  if params is None:
    if rngs is None or image_size is None:
      raise ValueError(
        "as_nnx(model) has no parameters: give params, or rngs and image_size "
        "to draw them."
      )
    params = init_params(
      model, rngs.params(), image_size, 3 if channels is None else channels
    )
  elif image_size is not None or channels is not None:
    raise ValueError(
      "image_size and channels are for parameters to be drawn, and parameters "
      "are given: leave these two out."
    )
  return NnxModel(model, params, rngs)


def _variable(path: tuple[Any, ...], array: ArrayLike) -> nnx.Variable:
  """An array as a variable of NNX.

  It is an `nnx.LoRAParam` if its name is one that qwix gives to LoRA's arrays,
  such as "kernel_lora_a".
  """
  lora = "_lora_" in jax.tree_util.keystr(path[-1:])
  return (nnx.LoRAParam if lora else nnx.Param)(jnp.asarray(array))
