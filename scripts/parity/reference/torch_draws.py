"""Imports timm beside torch alone, and gives torch and timm a step's draws."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch

try:
  import torchvision  # noqa: F401
except (ImportError, RuntimeError):
  # Without its compiled operators, which nothing here calls.
  _LIBRARY = torch.library.Library("torchvision", "DEF")
  for _name in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
      _LIBRARY.define(f"{_name}(Tensor a, Tensor b, float c) -> Tensor")

from timm.data import Mixup

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


def tensors(job: Any) -> tuple[Any, Any, Any]:
  """Images (T, B, C, H, W), labels (T, B) and the probe's (E, C, H, W)."""
  images = torch.tensor(job.images).permute(0, 1, 4, 2, 3)
  probe = torch.tensor(job.probe).permute(0, 3, 1, 2)
  return images, torch.tensor(job.labels).long(), probe


def keep(job: Any, model: Any, arrays: Any, probe: Callable[[], Any]) -> None:
  """Keeps the arrays and the probe's logits after a step where they are due."""
  if not job.due():
    return
  job.keep("params", arrays)
  model.eval()
  with torch.no_grad():
    job.keep("logits", {"": probe().numpy()})
  model.train()


def rising_then_cosine(c: dict, steps: int) -> Callable[[int], float]:
  """The factor of the learning rate at a step."""
  w = c["warmup"]

  def factor(t: int) -> float:
    falling = (1 + math.cos(math.pi * (t - w) / (steps - w))) / 2
    return t / w if t < w else falling

  return factor


def sizes(c: dict) -> dict[str, Any]:
  """The fields of a ViT of timm or DeiT."""
  return dict(
    img_size=c["side"],
    patch_size=c["patch"],
    num_classes=c["classes"],
    embed_dim=c["hidden"],
    depth=c["layers"],
    num_heads=c["heads"],
    mlp_ratio=c["mlp"] / c["hidden"],
    qkv_bias=True,
    norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-6),
  )


def mixer(job: Any, smoothing: float) -> Callable[..., Any]:
  """timm's Mixup and CutMix of a step, with its draws."""
  mix = Mixup(
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    label_smoothing=smoothing,
    num_classes=job.config["classes"],
  )

  def at(t: int, images: Any, labels: Any) -> Any:
    with mixing(job.mixing[t], bool(job.masks[0][t])):
      return mix(images, labels)

  return at
