"""Imports timm beside torch alone, and gives torch and timm a step's draws."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

# torchvision without its compiled operators, which nothing here calls.
_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
  with contextlib.suppress(RuntimeError):
    _LIBRARY.define(f"{_name}(Tensor a, Tensor b, float c) -> Tensor")

torch.manual_seed(0)
torch.set_num_threads(1)


class Draws:
  """Stands for the draws of drop path; asks for the masks in their order."""

  def __init__(self, masks: list[np.ndarray]):
    self.masks = masks
    self.step = self.calls = 0

    def bernoulli(tensor: Any, p: Any = 0.5, **_: Any) -> Any:
      del p
      mask = self.masks[self.calls % len(self.masks)][self.step]
      self.calls += 1
      assert tuple(tensor.shape) == mask.shape, (tensor.shape, mask.shape)
      return tensor.copy_(torch.tensor(mask))

    torch.Tensor.bernoulli_ = bernoulli


@contextlib.contextmanager
def mixing(draws: np.ndarray, use_mixup: bool) -> Iterator[None]:
  """Gives timm's Mixup its draws, (lambda, CutMix's lambda, row, column).

  An example is mixed with the one before it, since who is mixed with whom is a
  draw too: batches come in any order.
  """
  chances = iter((0.0, 1.0 if use_mixup else 0.0))
  places = iter(int(x) for x in draws[2:])
  numpy = {
    "rand": lambda: next(chances),
    "beta": lambda *_: float(draws[0] if use_mixup else draws[1]),
    "randint": lambda *_, **__: next(places),
  }
  with contextlib.ExitStack() as stack:
    for name, function in numpy.items():
      stack.enter_context(mock.patch.object(np.random, name, function))
    own = mock.patch.object(torch.Tensor, "flip", lambda x, _: x.roll(1, 0))
    stack.enter_context(own)
    yield


def arrays_of(model: Any) -> dict[str, np.ndarray]:
  return {k: v.detach().numpy() for k, v in model.state_dict().items()}


def load(model: Any, arrays: dict[str, np.ndarray]) -> None:
  model.load_state_dict({k: torch.tensor(v) for k, v in arrays.items()})


def rates(optimizer: Any, model: Any) -> tuple[dict, dict]:
  """The rate of each array, and the share that its decay takes."""
  names = {id(p): name for name, p in model.named_parameters()}
  rate, decay = {}, {}
  for group in optimizer.param_groups:
    for p in group["params"]:
      rate[names[id(p)]] = group["lr"]
      decay[names[id(p)]] = group["lr"] * group["weight_decay"]
  return rate, decay
