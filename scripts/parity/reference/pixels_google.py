"""Makes pixels by google-research/vision_transformer's `input_pipeline`."""

import pathlib
import tempfile
from typing import Any
from unittest import mock

import ml_collections
import numpy as np
import tensorflow as tf
from cases import answer
from common import Stubs

Stubs("jax", "flax", "tensorflow_datasets")

from vit_jax import input_pipeline  # noqa: E402

input_pipeline.jax.local_device_count = lambda: 1


def pixels(
  image: bytes, size: int, mode: str, box: Any = None, flip: Any = 0, **_: Any
) -> Any:
  """The batch of one file of a folder, back in levels of 0 to 255."""
  top, left, h, w = box or (0, 0, 0, 0)

  def sampled(*_: Any, **__: Any) -> Any:
    return tf.constant([top, left, 0]), tf.constant([h, w, -1]), None

  config = ml_collections.ConfigDict(
    dict(batch=1, batch_eval=1, pp=dict(crop=size), shuffle_buffer=1)
  )
  uniform = lambda shape: tf.constant(0.75 if flip else 0.25)  # noqa: E731
  with (
    tempfile.TemporaryDirectory() as folder,
    mock.patch.object(tf.image, "sample_distorted_bounding_box", sampled),
    mock.patch.object(tf.random, "uniform", uniform),
  ):
    file = pathlib.Path(folder, "a", "1.jpg")
    file.parent.mkdir()
    file.write_bytes(image)
    data = input_pipeline.get_data_from_directory(
      config=config, directory=folder, mode=mode
    )
    found = next(iter(data))["image"].numpy()[0, 0]
  return np.float16(found * 127.5 + 127.5)


def labels(names: list, **_: Any) -> Any:
  """The names of folders by their labels."""
  with tempfile.TemporaryDirectory() as folder:
    for name in names:
      place = pathlib.Path(folder, name)
      place.mkdir()
      (place / "1.jpg").write_bytes(b"")
    info = input_pipeline.get_directory_info(folder)
    return [names.index(info["int2str"](i)) for i in range(len(names))]


if __name__ == "__main__":
  answer(dict(pixels=pixels, labels=labels), {"tensorflow": tf.__version__})
