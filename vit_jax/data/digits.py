"""Handwritten digits as a TFDS dataset that needs no download.

1,797 images of 8 x 8 pixels in 10 classes, the same as scikit-learn's
`load_digits`; `digits.md` beside this file names their source. Each class is
split 4 : 1. The dataset is prepared once, in TFDS's folder, and then read like
any other.
"""

import contextlib
import errno
import io
import os
import pathlib
import tempfile

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image

from vit_jax.data.tfds_source import TfdsSource

_EVAL_FRACTION = 0.2
_SPLIT_SEED = 0


class Digits(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """TFDS builder with the features `image` (8, 8, 3) and `label`."""

  VERSION = tfds.core.Version("1.0.0")
  url_infos = {}  # Without downloads, TFDS need not look for checksums.

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="8 x 8 handwritten digits, from scikit-learn.",
      features=tfds.features.FeaturesDict(
        {
          "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
          "label": tfds.features.ClassLabel(names=[str(d) for d in range(10)]),
        }
      ),
      supervised_keys=("image", "label"),
    )

  def _split_generators(self, dl_manager):
    labels = _load()[1]
    rng = np.random.default_rng(_SPLIT_SEED)
    held_out = np.zeros(len(labels), bool)
    for digit in range(10):
      members = rng.permutation(np.flatnonzero(labels == digit))
      held_out[members[: round(_EVAL_FRACTION * len(members))]] = True
    return {
      "train": self._generate_examples(np.flatnonzero(~held_out)),
      "test": self._generate_examples(np.flatnonzero(held_out)),
    }

  def _generate_examples(self, indices):
    images, labels = _load()
    for index in indices:
      image = Image.fromarray(images[index]).convert("RGB")
      png = io.BytesIO()
      image.save(png, "PNG")
      png.seek(0)
      yield int(index), {"image": png, "label": int(labels[index])}


def open_digits(split: str, data_dir: str | None = None) -> TfdsSource:
  """Opens "train" (1,438 examples), "test" (359 examples) or a part of either.

  The dataset is prepared on first use. Several processes may do so at once:
  each writes a folder of its own, and the first to finish moves it into place.

  Raises:
    ValueError: for the reasons of `TfdsSource`, or because `data_dir` cannot be
      written.
  """
  with _quiet():
    builder = Digits(data_dir=data_dir)
    if not builder.is_prepared():
      try:
        _prepare(pathlib.Path(builder.data_dir))
      except OSError as error:
        raise ValueError(
          f"cannot write the digits to {builder.data_dir} ({error.strerror}); "
          "give a data_dir that can be written."
        ) from error
      builder = Digits(data_dir=data_dir)
  return TfdsSource(builder, split)


def _load() -> tuple[np.ndarray, np.ndarray]:
  """Returns images (1797, 8, 8), levels 0 to 16 scaled to 255, and labels."""
  with np.load(pathlib.Path(__file__).with_name("digits.npz")) as table:
    images, labels = table["images"], table["labels"]
  return np.round(images * (255 / 16)).astype(np.uint8), labels


def _prepare(target: pathlib.Path) -> None:
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    prefix=".preparing-", dir=target.parent
  ) as scratch:
    builder = Digits(data_dir=scratch)
    builder.download_and_prepare(file_format="array_record")
    try:
      os.rename(builder.data_dir, target)
    except OSError as error:
      if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
        raise  # These two mean that another process was first.


@contextlib.contextmanager
def _quiet():
  """Silences what TFDS prints and logs while it prepares the digits."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with contextlib.redirect_stderr(io.StringIO()):
      with contextlib.redirect_stdout(io.StringIO()):
        yield
  finally:
    logging.set_verbosity(verbosity)
