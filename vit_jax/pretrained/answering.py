"""The answers of a loaded model about images and texts."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.reading.sources import labelled_files
from vit_jax.inference import text_head
from vit_jax.inference.predictor import (
  Prediction,
  Predictions,
  image_features,
  image_logits,
  predict,
  unreadable,
)
from vit_jax.inference.reading import (
  Picture,
  Pictures,
  each_picture,
  is_one,
  is_text,
  read_batch,
  without_query,
)
from vit_jax.inference.text_head import TextHead
from vit_jax.models import Patches
from vit_jax.pretrained import trained_on
from vit_jax.pretrained.formats.texts import NoTextTowerError
from vit_jax.pretrained.opened import Opened
from vit_jax.pretrained.text import TEMPLATES
from vit_jax.runtime import hints, shown
from vit_jax.runtime.checks import COUNT, checked
from vit_jax.runtime.printable import quoted, say, say_once
from vit_jax.tasks.table import labels_of
from vit_jax.training.inputs import ImageInputs


class Similar(NamedTuple):
  """An image that is similar to another, and their cosine.

  The image is its file, or itself if it was given in memory.
  """

  image: Any
  cosine: float

  @property
  def file(self) -> str:
    """The file of the image; "" for an image in memory."""
    return str(self.image) if isinstance(self.image, str | os.PathLike) else ""

  @property
  def text(self) -> str:
    """The cosine, and the file if there is one."""
    return f"{self.cosine:.3f}  {self.file or 'an image in memory'}"


class SimilarImages(list[Similar]):
  """The most similar images, the most similar first."""

  def __repr__(self) -> str:
    """A line for each image: its cosine and its file."""
    return "\n".join(one.text for one in self)

  def _repr_html_(self) -> str:
    """The same beside small pictures of the files, for a notebook."""
    return shown.pictures([(one.file, one.text) for one in self])


class LabelledFeatures(NamedTuple):
  """The features of images with their labels, as for scikit-learn.

  Attributes:
    features: The head's inputs, (N, D).
    labels: Their labels: int (N,), which are places in `class_names`; or 0 and
      1 for each of several labels, (N, K), with NaN for what is unknown; or
      numbers, float32 (N,), or (N, K) if each image has several.
    class_names: The names of the classes, sorted, or of the labels or numbers.
    images: The paths of the image files.
  """

  features: np.ndarray
  labels: np.ndarray
  class_names: tuple[str, ...]
  images: tuple[str, ...]

  def __repr__(self) -> str:
    """The shapes, and the names of the classes."""
    return (
      f"features {self.features.shape} and labels {self.labels.shape} of "
      f"{len(self.images):,} images, class_names {self.class_names}"
    )


class Answering(Opened):
  """A checkpoint that was opened, asked about images and texts."""

  @hints.accepts(
    "loaded.predict(images, top=3)",
    same=dict.fromkeys(("top_k", "topk", "k", "n"), "top"),
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
    class. If an image may have several labels, `labels` are those whose
    probability is `loaded.threshold` or more; there may be none.

    Args:
      images: A path, a Pillow image, an array, uint8 (H, W, 3), an
        array (B, H, W, 3), a folder, for all images in it, or a list of these.
      top: Number of the likeliest classes to return for each image. If an image
        may have several labels, all those of `labels` are returned as well.
      batch_size: Images per step.
      texts: Texts that take the place of classes (zero-shot), for a model of
        images and text. Unless each begins with an article, "a photo of a {}."
        is put around them.

    Returns:
      A list with a prediction for each image, in their order, also for a single
      image. The prediction for an image that cannot be read has an `error`.

    Raises:
      ValueError: if the model has no classes, answers with pictures, or has no
        text tower for `texts`; if no image can be read, the model's outputs are
        NaN, or an array is not uint8 or not of such a shape.
    """
    head = None if texts is None else self._text_head(texts)
    if not self.model.num_classes and head is None:
      if self.task.labels.reader:  # Its answers are pictures.
        raise ValueError(
          f"{self.origin.source} was trained on the task {self.task.name}, "
          "whose answers are only given in a shell: `vit_jax predict "
          f"{self.origin.source} IMAGES` with {self.task.asked_by}; "
          "loaded.features(images) gives the features of images."
        )
      also = ""
      if self.open_text is not None:
        also = "loaded.predict(images, texts=[...]) compares them with texts; "
      raise ValueError(
        f"{self.origin.source} has no classes to choose from: {also}run = "
        'loaded.fit("my_photos") trains a head for the classes of a folder, '
        "for run.predict(images); loaded.features(images) gives the features "
        "of images."
      )
    threshold = self.threshold if head is None else None
    batches = predict(
      self.model,
      self.params,
      images,
      preprocessing=self.preprocessing,
      task=self.task,
      top=top if threshold is None else self.num_classes,
      batch_size=batch_size,
      class_names=self.class_names if head is None else head.names,
      text_head=head,
    )
    predictions = Predictions(one for batch in batches for one in batch)
    if threshold is not None:
      predictions = Predictions(
        one if one.error else one.with_threshold(threshold, top)
        for one in predictions
      )
    self._say_training_lines(images)
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

    They sum to 1 if the model chooses one class; with several labels, each
    label has a probability of its own. Raises ValueError as `predict` does, if
    an image cannot be read, or if the model gives numbers.
    """
    answers = self.predict(
      images, top=max(1, self.num_classes), batch_size=batch_size
    )
    if not answers:
      raise ValueError("there are no images: give at least one.")
    for one in answers:
      if one.error is not None:
        raise unreadable(one)
      if not one.index:
        raise ValueError(
          f"{self.origin.source} gives numbers, and no probabilities: take "
          "loaded.predict(images)[0].values."
        )
    places = np.array([one.index for one in answers])
    by_rank = np.array([one.probability for one in answers], np.float32)
    by_class = np.empty(places.shape, np.float32)
    np.put_along_axis(by_class, places, by_rank, axis=1)
    return by_class

  @hints.accepts("loaded.preprocess(images)")
  def preprocess(self, images: Pictures) -> jax.Array | Patches:
    """Reads images, brings them to size and normalises them, for the model.

    `loaded.model.apply({"params": loaded.params}, loaded.preprocess(x))` takes
    the result.

    Args:
      images: As in `predict`. They should be few, as all are held in memory.

    Returns:
      Floats (B, H, W, C); a single image is a batch of one. If images keep
      their proportions, `Patches` with an image in each row, for which a model
      gives (B, 1, K) in place of (B, K).

    Raises:
      ValueError: if an image cannot be read, there is no image, or the size of
        the images is not known.
    """
    preprocessing = self.preprocessing
    batch = jax.tree.map(jnp.asarray, read_batch(preprocessing, images))
    return ImageInputs(**preprocessing.normalization).inputs(batch)

  @hints.accepts(
    "loaded.features(images)",
    same=dict.fromkeys(("layer", "layer_index", "layer_idx"), "layers"),
  )
  def features(
    self,
    images: Pictures,
    *,
    layers: int | Sequence[int] | None = None,
    as_maps: bool = False,
    batch_size: int = 32,
  ) -> Any:
    """The features of images, which are prepared as the model needs.

    Args:
      images: As in `predict`.
      layers: Layers to take the tokens of, or a single one, counted from 1, or
        from the last, which is -1. By default the result is the head's input.
      as_maps: Whether to give the tokens of the patches alone, as a map.
      batch_size: Images per step.

    Returns:
      An array of the head's inputs, (B, D). With `layers`, a list with an array
      for each layer: its tokens, (B, S, D), or their maps, (B, h, w, D). If
      images keep their proportions, each layer has a list with an array for
      each image instead: its own tokens, (S, D), or their map, (h, w, D).

    Raises:
      ValueError: if an image cannot be read, the model has no such layer, or
        `as_maps` is given without `layers`.
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
    """The images of a folder that are most similar, by cosine of features.

    The features of the whole folder are computed at each call; `vit_jax
    similar` keeps them, and finds near-duplicates.

    Args:
      image: One image, as in `predict`, which is itself left out of the result;
        or a text, for a model of images and text.
      folder: A folder, a pattern or a list of images, as in `predict`; all that
        they stand for are compared.
      top: Number of images to return, the most similar first.
      batch_size: Images per step.

    Raises:
      ValueError: if `image` is not one image, the folder has no other or is a
        list of texts, `top` is below 1, or an image cannot be read; or if
        `image` is a text, and the model has no text tower.
    """
    # Imported here because it imports SciPy.
    from vit_jax.tasks.probes import nearest

    checked("top", int, top, COUNT)
    if (
      isinstance(folder, list | tuple) and folder and all(map(is_text, folder))
    ):
      raise ValueError(
        f"{quoted(str(folder[0]))} is no file: images are searched here. To "
        "compare an image with texts, call loaded.predict(image, texts=[...])."
      )
    if is_text(image):
      query = self.embed_query(str(image))
      files = [*each_picture(folder)]
    else:
      queries = [*each_picture(image)]
      if len(queries) != 1:
        raise ValueError(
          f"{len(queries)} images were given: call find_similar for each."
        )
      files = without_query(folder, queries[0])
      query = self.features(queries)
    rows = nearest.unit(self.features(files, batch_size=batch_size))
    self._check_widths(rows, query)
    neighbours = nearest.neighbours(rows, top, nearest.unit(query))
    places = neighbours.place[0].tolist()
    cosines = neighbours.cosine[0].tolist()
    return SimilarImages(
      Similar(files[place], cosine)
      for place, cosine in zip(places, cosines, strict=True)
    )

  @hints.accepts("loaded.similarity(image, other)")
  def similarity(
    self, images: Pictures, others: Pictures, *, batch_size: int = 32
  ) -> float | np.ndarray:
    """The cosine of the features of two images, as `find_similar` gives it.

    For a model of images and text, a text may stand for an image.

    Args:
      images: One image, or several, as in `predict`: a folder, a list.
      others: The image or images that they are compared with.
      batch_size: Images per step.

    Returns:
      A number from -1 to 1 for two single images. If either stands for several,
      an array (A, B), with a row for each of the first and a column for each of
      the others.

    Raises:
      ValueError: if an image cannot be read; or if a text is given, and the
        model has no text tower, or one whose vectors have another length.
    """
    # Imported here because it imports SciPy.
    from vit_jax.tasks.probes import nearest

    def vectors(given: Pictures) -> np.ndarray:
      if is_text(given):
        return self.embed_query(str(given))
      if isinstance(given, list | tuple) and given and all(map(is_text, given)):
        return self.embed_texts([str(text) for text in given])
      return self.features(given, batch_size=batch_size)

    rows = vectors(images)
    columns = vectors(others)
    self._check_widths(rows, columns)
    cosines = nearest.unit(rows) @ nearest.unit(columns).T
    both = is_text(images) or is_one(images), is_text(others) or is_one(others)
    return float(cosines[0, 0]) if all(both) else cosines

  def _check_widths(self, rows: np.ndarray, others: np.ndarray) -> None:
    """Raises ValueError if vectors of images and of texts differ in length."""
    if rows.shape[1] != others.shape[1]:
      raise ValueError(
        f"{self.origin.source} gives vectors of {rows.shape[1]} and of "
        f"{others.shape[1]} numbers for images and texts, which cannot be "
        "compared: take another model of images and text."
      )

  @hints.accepts("loaded.labelled_features(folder)")
  def labelled_features(
    self,
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    task: str | None = None,
    root: str | os.PathLike[str] | None = None,
    batch_size: int = 32,
  ) -> LabelledFeatures:
    """The features and the labels of the images of a folder.

    Row i is that of `images[i]`, a path; the paths are sorted. A classifier of
    scikit-learn takes them::

      x, y, class_names, images = loaded.labelled_features("my_photos")
      LogisticRegression(max_iter=1000).fit(x, y)

    Args:
      folder: A folder of class folders, split or not, or a file of labels.
      split: "train", "eval" or "test", as a run parts the images; by default
        all of them.
      task: The kind of labels in a file of labels: "classification" for a class
        per image, "multilabel" for several labels, "regression" for numbers. By
        default it is the run's task. Without a run, the columns decide, as for
        `vit_jax.train`, and a line says so.
      root: Folder of the images of a file of labels; by default the file's own,
        or that of the run's images.
      batch_size: Images per step.

    Returns:
      The features, (N, D), the labels, `class_names` and `images`. Labels are
      places in `class_names`, int (N,); or 0, 1 and NaN (unknown) for each of
      several labels, (N, K); or numbers, float32 (N,), or (N, K) if each image
      has several.

    Raises:
      ValueError: if the folder has no classes, the file no labels of the task,
        or an image cannot be read.
    """
    # Imported here, as they read all kinds of labels.
    from vit_jax.data.reading.other_table import without_keys
    from vit_jax.pretrained.labelled import choose_labels

    path = os.path.expanduser(folder)
    settings, kind = choose_labels(path, task, self, root)
    with without_keys(settings):
      files, labels, names = labelled_files(settings, kind, split)
    x = self.features(files, batch_size=batch_size)
    if kind == labels_of("regression") and labels.shape[1] == 1:
      labels = labels[:, 0]
    return LabelledFeatures(x, labels, names, files)

  @hints.accepts("loaded.patch_features(images)")
  def patch_features(self, images: Pictures, *, batch_size: int = 32) -> Any:
    """The features of patches after the last layer, as maps, (B, h, w, D).

    If images keep their proportions, the result is a list with the map of each
    image, (h, w, D). `features` gives the maps of other layers, and raises the
    same errors.
    """
    (maps,) = self.features(
      images, layers=[-1], as_maps=True, batch_size=batch_size
    )
    return maps

  @hints.accepts("loaded.logits(images)")
  def logits(self, images: Pictures, *, batch_size: int = 32) -> np.ndarray:
    """The outputs of the head, (B, K), before a softmax or sigmoid.

    Those of a regression are numbers in the unit of its targets, and those of a
    run that `evaluate --calibrate` fitted are divided by its temperature.
    Raises ValueError if the model has no head or an image cannot be read.
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
  ) -> np.ndarray:
    """The vectors of texts, to be compared with `features` of images.

    Scale both to length 1 first, as in `docs/howto/image_and_text.md`.

    Args:
      texts: The texts; a single one need not be in a list.
      batch_size: Texts per step.

    Returns:
      An array (N, R), where features of images are (B, R).

    Raises:
      ValueError: if the model has no text tower, its tokenizer is missing, a
        text is empty, or no text is given.
    """
    texts = [texts] if isinstance(texts, str) else [*texts]
    return self.text_tower.embed(texts, batch_size=batch_size)

  def embed_query(self, text: str) -> np.ndarray:
    """The vector (1, R) of a text that was given in place of an image.

    Raises ValueError if the model has no text tower, as the text may then be a
    misspelt path.
    """
    try:
      query = self.embed_texts(text)
    except NoTextTowerError as error:
      is_path = os.sep in text or "." in text or " " not in text
      near = hints.hint_for_path(text) if is_path else ""
      raise ValueError(
        f"{text}: there is no such file{f'; {near}' if near else '.'} To "
        f"search by a text, a model of images and text is needed: {error}"
      ) from None
    say(f"{quoted(text)} is no file, and is taken for a text.")
    return query

  def _text_head(self, texts: Sequence[str]) -> TextHead:
    """The classifier of images whose classes are these texts."""
    names, are_whole = text_head.names_of_list(texts)
    templates = (text_head.AS_IT_IS,) if are_whole else TEMPLATES
    return self.text_tower.head(tuple(names), templates)

  def _say_training_lines(self, images: Pictures) -> None:
    """Says how images compare with those that the run was trained on."""
    run = self.description
    if line := trained_on.overlap_of_answers(run, self.task.labels, images):
      say(line)
    if line := trained_on.digits_advice(run, self.preprocessing, images):
      say_once(line)  # A loop over pictures in memory asks often.
