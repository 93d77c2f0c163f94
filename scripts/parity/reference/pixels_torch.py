"""Makes pixels by timm, and by facebookresearch/deit and torchvision."""

import argparse
import contextlib
import io
import pathlib
import random
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch_draws  # noqa: F401  # It lets torchvision be imported.
from cases import Script, answer
from PIL import Image

import timm  # isort: skip
import torchvision  # isort: skip
from timm.data import auto_augment, mixup, random_erasing  # isort: skip


@contextlib.contextmanager
def given(draws: dict) -> Iterator[Script]:
  """Gives `random` and torch these numbers."""
  script = Script(draws)
  own = {k: getattr(script, k) for k in ("random", "uniform", "randint")}
  own |= {"gauss": script.gauss, "choice": script.choice}
  own["choices"] = lambda values, **_: [script.choice(values)]
  torchs = {
    "rand": lambda *_: torch.tensor([script.take("flip")]),
    "randperm": lambda n: torch.tensor([*draws["order"], n - 1]),
  }
  with contextlib.ExitStack() as stack:
    for name, function in own.items():
      stack.enter_context(mock.patch.object(random, name, function))
    for name, function in torchs.items():
      stack.enter_context(mock.patch.object(torch, name, function))
    jitter = lambda x, low, high: x.fill_(  # noqa: E731
      low + (high - low) * script.take("jitter")
    )
    stack.enter_context(mock.patch.object(torch.Tensor, "uniform_", jitter))
    yield script


def opened(image: bytes) -> Any:
  return Image.open(io.BytesIO(image)).convert("RGB")


def levels(tensor: Any, mean: Any, std: Any) -> Any:
  """The pixels of a normalised tensor (C, H, W)."""
  x = tensor.numpy().transpose(1, 2, 0) * np.array(std) + np.array(mean)
  return np.rint(x * 255).astype(np.uint8)


def operation(
  image: Any, name: str, magnitude: float, sign: int, resample: int, **_: Any
) -> Any:
  """One operation of RandAugment, as `rand_augment_transform` makes it."""
  hparams = dict(
    translate_pct=100 / 224,
    img_mean=(128, 128, 128),
    interpolation=Image.Resampling(resample),
    magnitude_max=30,
  )
  op = auto_augment.AugmentOp(name, 1.0, magnitude, hparams)
  with given({"random": [0.25 if sign > 0 else 0.75]}):
    return op(Image.fromarray(image))


def _deits(policy: str) -> Any:
  """RandAugment as DeiT has it made: bicubic, with the mean from outside."""
  made: Any = timm.data.create_transform(
    224, is_training=True, auto_augment=policy, interpolation="bicubic"
  )
  kind = auto_augment.RandAugment
  return next(x for x in made.transforms if isinstance(x, kind))


def deit_randaugment(
  image: Any, policy: str, names: list, draws: dict, **_: Any
) -> Any:
  """RandAugment as a whole, with these operations and draws."""
  augmented = _deits(policy)
  ops = {op.name: op for op in augmented.ops}
  assert augmented.num_layers == len(names)
  choice = lambda *_, **__: [ops[name] for name in names]  # noqa: E731
  with given(draws), mock.patch.object(np.random, "choice", choice):
    return augmented(Image.fromarray(image))


def deit_layers(count: int, policy: str, centres: dict, **_: Any) -> Any:
  """Operation, magnitude and sign of each layer of so many images.

  The operation is -1 where none is applied. A centre is what an operation's
  argument is above or below, or nothing.
  """
  random.seed(0)
  np.random.seed(0)  # noqa: NPY002  # timm draws from it.
  augmented, last = _deits(policy), []

  def watch(op: Any) -> None:
    level_of, names = op.level_fn, [*centres]

    def level(magnitude: float, hparams: dict) -> tuple:
      args = level_of(magnitude, hparams) if level_of else ()
      centre = centres[op.name]
      sign = 0 if centre is None else np.sign(args[0] - centre)
      magnitude = magnitude if level_of else -1
      last.append([names.index(op.name), magnitude, sign])
      return args

    op.level_fn = level
    op.aug_fn = lambda image, *_, **__: image

  for op in augmented.ops:
    watch(op)
  found = np.zeros((count, 2, 3))
  found[..., :2] = -1
  for i in range(count):
    last.clear()
    augmented(None)
    for k, layer in enumerate(last):
      found[i, k] = layer
  return found


def erased(image: Any, draws: dict, **_: Any) -> Any:
  """Where random erasing erases."""
  tensor = torch.zeros(3, *image.shape[:2])
  erase = random_erasing.RandomErasing(0.25, mode="pixel", device="cpu")
  noise = lambda x, *_: x.fill_(1)  # noqa: E731
  with given(draws), mock.patch.object(torch.Tensor, "normal_", noise):
    erase(tensor)
  return tensor.numpy()[0] > 0


def crop(size: list, draws: dict, **_: Any) -> Any:
  """The box (top, left, h, w) of an image of (H, W)."""
  kind = timm.data.transforms.RandomResizedCropAndInterpolation
  image = Image.new("RGB", (size[1], size[0]))
  with given(draws):
    return kind.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3))


def mixed(batch: list, draws: dict, cut: bool, **_: Any) -> Any:
  """A batch (B, H, W, C), and the share of each of two classes."""
  images = np.random.default_rng(batch).random((2, 24, 32, 3), np.float32)
  places = iter(draws["place"])
  numpy = {
    "rand": lambda: 0.0 if cut else 1.0,
    "beta": lambda *_: draws["lam"],
    "randint": lambda *_, **__: next(places),
  }
  mix = mixup.Mixup(0.8, 1.0, prob=2.0, label_smoothing=0.0, num_classes=2)
  with contextlib.ExitStack() as stack:
    for name, function in numpy.items():
      stack.enter_context(mock.patch.object(np.random, name, function))
    x, targets = mix(
      torch.tensor(images).permute(0, 3, 1, 2), torch.tensor([0, 1])
    )
  x = x.permute(0, 2, 3, 1).numpy()
  return np.concatenate([x.ravel(), targets.numpy().ravel()])


def shares(count: int, size: list, **_: Any) -> Any:
  """Mixup's larger shares, whether a batch is cut, and what is then left."""
  np.random.seed(0)  # noqa: NPY002  # timm draws from it.
  mix = mixup.Mixup(0.8, 1.0, num_classes=2)
  found = []
  for _ in range(count):
    lam, cut = mix._params_per_batch()
    if cut:
      _, lam = mixup.cutmix_bbox_and_lam((3, *size), lam)
    found.append((cut, lam))
  return np.float32(found)


def deit_train(image: bytes, size: int, draws: dict, **_: Any) -> Any:
  # A name that timm no longer has, and that is not used.
  timm.data.transforms._pil_interp = None
  import augment

  args = argparse.Namespace(input_size=size, src=False, color_jitter=0.3)
  function = augment.new_data_aug_generator(args)
  with given(draws):
    found = function(opened(image))
  return levels(found, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def deit_eval(image: bytes, size: int, ratio: float, **_: Any) -> Any:
  import datasets

  args = argparse.Namespace(input_size=size, eval_crop_ratio=ratio)
  found = datasets.build_transform(False, args)(opened(image))
  return levels(found, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def labels(names: list, **_: Any) -> Any:
  """The names of folders by their labels."""
  with tempfile.TemporaryDirectory() as folder:
    for name in names:
      place = pathlib.Path(folder, name)
      place.mkdir()
      Image.new("RGB", (2, 2)).save(place / "1.jpg")
    found = torchvision.datasets.ImageFolder(folder)
    return [names.index(name) for name in found.classes]


if __name__ == "__main__":
  kinds = (operation, erased, crop, mixed, shares, labels)
  kinds += (deit_train, deit_eval, deit_randaugment, deit_layers)
  answer(
    {kind.__name__: kind for kind in kinds},
    {
      "timm": timm.__version__,
      "torch": torch.__version__,
      "torchvision": torchvision.__version__,
    },
  )
