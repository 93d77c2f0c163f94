"""Opens the examples of one split, whichever reader they need."""

from typing import Literal

from vit_jax.data.example import Source


def open_source(
  split: Literal["train", "eval"],
  *,
  name: str | None = None,
  data_dir: str | None = None,
  train_split: str = "train",
  eval_split: str = "test",
  root: str | None = None,
  eval_fraction: float = 0.2,
) -> Source:
  """Opens one split of a TFDS dataset, of the digits, or of an image folder.

  Args:
    split: "train" or "eval".
    name: a TFDS dataset ("cifar10"), or "digits", scikit-learn's 1,797
      handwritten digits, which are prepared on first use with no download.
    data_dir: where TFDS datasets are prepared; by default TFDS's own choice.
    train_split: TFDS split to train on, such as "train[:98%]".
    eval_split: TFDS split to evaluate on.
    root: a folder of photographs instead of `name`; see `ImageFolder`.
    eval_fraction: the part of an unsplit folder that is kept for evaluation.

  Returns:
    The split's examples.

  Raises:
    ValueError: neither or both of `name` and `root`, or the data is not there.
  """
  # Imported here: each reader needs packages that the other does not.
  if split not in ("train", "eval"):
    raise ValueError(f'split={split!r} is unknown; use "train" or "eval".')
  if (name is None) == (root is None):
    raise ValueError(
      f"name={name!r} and root={root!r}; give exactly one of them: a TFDS "
      "name or a folder of images."
    )
  if name is None:
    assert root is not None
    from vit_jax.data.image_folder import ImageFolder

    return ImageFolder(root, split, eval_fraction)
  tfds_split = train_split if split == "train" else eval_split
  if name == "digits":
    from vit_jax.data.digits import open_digits

    return open_digits(tfds_split, data_dir)
  from vit_jax.data.tfds_source import open_tfds

  return open_tfds(name, tfds_split, data_dir)
