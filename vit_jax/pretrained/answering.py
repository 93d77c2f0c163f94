"""The answers of a loaded model about images and texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.inference import text_head
from vit_jax.inference.predictor import (
  Prediction,
  Predictions,
  image_features,
  image_logits,
  predict,
  unreadable,
)
from vit_jax.inference.reading import Picture, Pictures, among, read_batch
from vit_jax.inference.text_head import TextHead
from vit_jax.pretrained import trained_on
from vit_jax.pretrained.opened import Opened
from vit_jax.pretrained.text import TEMPLATES
from vit_jax.runtime import hints
from vit_jax.runtime.printable import say
from vit_jax.training.inputs import ImageInputs


class Similar(NamedTuple):
  """An image that is similar to another: its file, and their cosine."""

  image: str
  cosine: float


class Answering(Opened):
  """A checkpoint that was opened, asked about images and texts."""

  @hints.accepts(
    "loaded.predict(images, top=3)",
    same=dict.fromkeys(("top_k", "topk", "k", "n"), "top"),
    elsewhere=dict.fromkeys(
      ("candidate_labels", "class_names", "classes", "labels", "prompts"),
      'texts=["a cat", "a dog"]',
    ),
  )
  def predict(
    self,
    images: Pictures,
    *,
    top: int = 3,
    batch_size: int = 32,
    texts: Sequence[str] | None = None,
  ) -> list[Prediction]:
    """Predicts the classes of images, which are prepared as the model needs.

    Each prediction has `names` and `probability` of the likeliest classes, or
    the `values` of a regression; `label` and `score` are those of the likeliest
    class.

    Args:
      images: A path, a Pillow image, an array, uint8 (H, W, 3), a list of
        these, an array (B, H, W, 3), or a folder, for all images in it.
      top: Number of the likeliest classes to return for each image.
      batch_size: Images per step.
      texts: Texts that take the place of classes (zero-shot), for a model of
        images and text. Unless each begins with an article, "a photo of a {}."
        is put around them.

    Returns:
      A prediction for each image, in their order; a list of one for a single
      one. If some cannot be read, theirs have an `error`.

    Raises:
      ValueError: if the model has no classes, or no text tower for `texts`, no
        image can be read, the model's outputs are NaN, or an array is not uint8
        or not of such a shape.
    """
    head = None if texts is None else self._text_head(texts)
    if not self.model.num_classes and head is None:
      raise ValueError(
        f"{self.origin.source} has no classes to choose from: "
        "loaded.features(images) gives the features of images."
      )
    batches = predict(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      task=self.task,
      top=top,
      batch_size=batch_size,
      class_names=self.class_names if head is None else head.names,
      text_head=head,
    )
    predictions = Predictions(one for batch in batches for one in batch)
    if head is None and (line := self._trained_on(images)):
      say(line)
    if predictions and all(one.error is not None for one in predictions):
      raise unreadable(predictions[0])
    return predictions

  def __call__(self, images: Pictures, **options: Any) -> list[Prediction]:
    """The same as `predict`."""
    return self.predict(images, **options)

  @hints.accepts("loaded.predict_proba(images)")
  def predict_proba(
    self, images: Pictures, *, batch_size: int = 32
  ) -> np.ndarray:
    """The probabilities of all classes, (B, K), in the order of `class_names`.

    They sum to 1 where a class is chosen; each of several labels has its own.
    Raises ValueError as `predict`, if an image cannot be read, or the model
    gives numbers.
    """
    answers = self.predict(
      images, top=max(1, self.num_classes), batch_size=batch_size
    )
    for one in answers:
      if one.error is not None:
        raise unreadable(one)
      if not one.index:
        raise ValueError(
          f"{self.origin.source} gives numbers, and no probabilities: "
          "loaded.predict(images)[0].values."
        )
    places = np.array([one.index for one in answers])
    found = np.empty(places.shape, np.float32)
    sorted_ones = np.array([one.probability for one in answers], np.float32)
    np.put_along_axis(found, places, sorted_ones, axis=1)
    return found

  def preprocess(self, images: Pictures) -> jax.Array:
    """Reads images, brings them to size and normalises them, for the model.

    As in `loaded.model.apply({"params": loaded.params}, loaded.preprocess(x))`.

    Args:
      images: As in `predict`. They should be few, as all are held in memory.

    Returns:
      Floats (B, H, W, C); a single image is a batch of one.

    Raises:
      ValueError: if an image cannot be read, there is none, or the size of the
        images is not known.
    """
    preprocessing = self.preprocessing
    batch = jax.tree.map(jnp.asarray, read_batch(preprocessing, images))
    return ImageInputs(**preprocessing.normalization).inputs(batch)

  @hints.accepts(
    "loaded.features(images)",
    elsewhere={
      "layer": "layers=[6]",
      **dict.fromkeys(
        ("normalize", "normalized", "normalise"),
        "y / numpy.linalg.norm(y, axis=1, keepdims=True) of the features y",
      ),
    },
  )
  def features(
    self,
    images: Pictures,
    *,
    layers: Sequence[int] | None = None,
    as_maps: bool = False,
    batch_size: int = 32,
  ) -> Any:
    """The features of images, which are prepared as the model needs.

    Args:
      images: As in `predict`.
      layers: Layers to take the tokens of, counted from 1, or from the last,
        which is -1. By default the result is the head's input.
      as_maps: Whether to give the tokens of the patches alone, as a map.
      batch_size: Images per step.

    Returns:
      An array of the head's inputs, (B, D); with `layers` a list with the
      tokens of each, (B, S, D), or their maps, (B, h, w, D).

    Raises:
      ValueError: if an image cannot be read, or the model has no such layer.
    """
    return image_features(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      layers=layers,
      as_maps=as_maps,
      batch_size=batch_size,
    )

  @hints.accepts(
    "loaded.find_similar(image, folder, top=5)",
    same=dict.fromkeys(("top_k", "topk", "k", "n"), "top"),
  )
  def find_similar(
    self,
    image: Picture,
    folder: Pictures,
    *,
    top: int = 5,
    batch_size: int = 32,
  ) -> list[Similar]:
    """The images of a folder whose features are most similar, by cosine.

    The features of the whole folder are computed at each call; `vit_jax
    similar` keeps them, and finds near-duplicates.

    Args:
      image: One image, as in `predict`. It is left out of what is found.
      folder: Paths, a folder or a pattern, for all images that it stands for.
      top: Number of images to return, the most similar first.
      batch_size: Images per step.

    Raises:
      ValueError: if it is not one image, the folder has no other, or an image
        cannot be read.
    """
    # Imported here because it imports SciPy.
    from vit_jax.inference import nearest

    files = among(folder, image)
    query = self.features(image)
    if len(query) != 1:
      raise ValueError(
        f"{len(query)} images were given: call find_similar for each."
      )
    rows = nearest.unit(self.features(files, batch_size=batch_size))
    found = nearest.neighbours(rows, top, nearest.unit(query))
    return [
      Similar(files[place], cosine)
      for place, cosine in zip(
        found.place[0].tolist(), found.cosine[0].tolist(), strict=True
      )
    ]

  @hints.accepts("loaded.patch_features(images)")
  def patch_features(
    self, images: Pictures, *, batch_size: int = 32
  ) -> np.ndarray:
    """The features of patches after the last layer, as maps, (B, h, w, D).

    Raises ValueError as `features`, which gives those of other layers.
    """
    (maps,) = self.features(
      images, layers=[-1], as_maps=True, batch_size=batch_size
    )
    return maps

  @hints.accepts("loaded.logits(images)")
  def logits(self, images: Pictures, *, batch_size: int = 32) -> np.ndarray:
    """The outputs of the head, (B, K), before a softmax or sigmoid.

    Those of a regression are not in the unit of its targets yet, and no
    temperature that `evaluate --calibrate` fitted divides them. Raises
    ValueError if the model has no head or an image cannot be read.
    """
    return image_logits(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      batch_size=batch_size,
    )

  def embed_texts(
    self, texts: str | Sequence[str], *, batch_size: int = 64
  ) -> Any:
    """The vectors of texts, which are compared with `features` of images.

    Both are scaled to length 1 before, as in `docs/howto/image_and_text.md`.

    Args:
      texts: The texts; a single one need not be in a list.
      batch_size: Texts per step.

    Returns:
      An array (N, R), where features of images are (B, R).

    Raises:
      ValueError: if the model has no text tower or tokenizer beside it, a text
        is empty, or there is none.
    """
    texts = [texts] if isinstance(texts, str) else [*texts]
    return self.text_tower.embed(texts, batch_size=batch_size)

  def _text_head(self, texts: Sequence[str]) -> TextHead:
    names, are_whole = text_head.of_list(texts)
    templates = (text_head.AS_IT_IS,) if are_whole else TEMPLATES
    return self.text_tower.head(tuple(names), templates)

  def _trained_on(self, images: Pictures) -> str:
    return trained_on.line_on(self.description, self.task.labels, images)
