"""Gives a reference in JAX the draws of a step."""

from typing import Any

import jax
import numpy as np


class Draws:
  """Stands for `jax.random.bernoulli`, and `beta` for Mixup's lambda.

  The step's masks are asked for while the program runs, since a reference's
  compiled function may not take them. A part of an accumulated batch draws
  what every other does, as in the reference, whose parts share their key.
  """

  def __init__(self, masks: list[np.ndarray], mixing: np.ndarray):
    self.masks, self.mixing = masks, mixing
    self.step = self.calls = 0
    jax.random.bernoulli = self.bernoulli
    jax.random.beta = self.beta

  def bernoulli(self, key: Any, p: Any = 0.5, shape: Any = None) -> Any:
    del p
    i = self.calls % len(self.masks)
    self.calls += 1
    assert tuple(shape) == self.masks[i].shape[1:], (shape, self.masks[i].shape)
    like = jax.ShapeDtypeStruct(tuple(shape), np.bool_)
    data = jax.random.key_data(key)
    return jax.pure_callback(lambda _: self.masks[i][self.step], like, data)

  def beta(self, key: Any, *_: Any) -> Any:
    like = jax.ShapeDtypeStruct((), np.float32)
    data = jax.random.key_data(key)
    return jax.pure_callback(lambda _: self.mixing[self.step, 0], like, data)
