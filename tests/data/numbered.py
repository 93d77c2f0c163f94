"""A source whose images show their own index, and batches of its images."""

import dataclasses
import itertools

import numpy as np
from PIL import Image

from tests.image_files import encode
from vit_jax import data


class Numbered:
  """Grey images where example i has level i and label i; some are damaged."""

  class_names = ("any",)

  def __init__(self, count: int, damaged: tuple = ()):
    self.name, self._count, self._damaged = "numbered", count, set(damaged)

  def __len__(self):
    return self._count

  def __getitem__(self, index):
    image = encode(Image.new("L", (4, 4), index % 256), "PNG")
    if index in self._damaged:
      image = image[:-30]
    return {"image": image, "label": index, "id": f"file {index}"}

  def read(self, indices):
    return [self[i] for i in indices]


def noisy(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
  """A transform that leaves red alone and fills the rest with its noise."""
  image = data.decode_rgb(encoded)
  image[..., 1:] = rng.integers(0, 256, (4, 4, 2))
  return image


def train(source, count, transform=noisy, **arguments):
  """The first `count` training batches; `arguments` are also the loader's."""
  arguments = {"batch_size": 6, "seed": 3, **arguments}
  loader = loader_of(arguments)
  with loader.train(source, transform, **arguments) as batches:
    return list(itertools.islice(batches, count))


def evaluate(source, batch_size, **arguments):
  """Passes over the source; `arguments` are the loader's."""
  transform = data.make_eval_transform(4)
  return data.Loader(**arguments).evaluate(source, transform, batch_size)


def loader_of(arguments):
  """The loader that some of the arguments describe; these are removed."""
  names = [field.name for field in dataclasses.fields(data.Loader)]
  given = {n: arguments.pop(n) for n in names if n in arguments}
  return data.Loader(**given)


def assert_same(first, second):
  assert len(first) == len(second)
  for a, b in zip(first, second, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      assert a[key].dtype == b[key].dtype
      np.testing.assert_array_equal(a[key], b[key])
