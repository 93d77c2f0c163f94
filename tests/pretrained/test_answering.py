"""What a loaded model answers: probabilities, texts for classes, similar files.

What `predict` and `features` give is in `test_loaded.py`.
"""

import dataclasses
import pathlib

import numpy as np
import pytest
from jax.nn import sigmoid

import vit_jax
from tests.photos import (
  PARAMS,
  VIT,
  logits_of,
  normalized,
  pixels_of,
  softmax,
  write_photos,
)
from tests.pretrained.test_loaded import loaded_of
from tests.pretrained.test_text import FOLDER as TEXTS
from vit_jax.tasks.choose import answering


@pytest.fixture
def loaded():
  return loaded_of(VIT)[0]


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


def test_probabilities_of_all_classes_are_in_their_order(loaded, photos):
  logits = logits_of(VIT, PARAMS, normalized([*map(pixels_of, photos)]))
  found = loaded.predict_proba(pathlib.Path(photos[0]).parent, batch_size=4)
  np.testing.assert_allclose(found, softmax(logits), atol=1e-6)
  with pytest.raises(ValueError, match=r"nowhere\.png: No such file"):
    loaded.predict_proba([photos[0], "nowhere.png"])
  numbers = dataclasses.replace(loaded, open_task=lambda: answering("mse"))
  with pytest.raises(ValueError, match=r"gives numbers, .*\[0\]\.values"):
    numbers.predict_proba(photos[0])


def test_the_similar_images_are_those_of_the_highest_cosine(loaded, photos):
  y = loaded.features(photos)
  y = y / np.linalg.norm(y, axis=1, keepdims=True)
  cosines = y @ y[2]
  best = [k for k in np.argsort(-cosines) if k != 2][:4]
  folder = pathlib.Path(photos[0]).parent
  for given in (folder, photos):
    found = loaded.find_similar(photos[2], given, k=4)
    assert [one.image for one in found] == [photos[k] for k in best]
    np.testing.assert_allclose(
      [one.cosine for one in found], cosines[best], atol=1e-5
    )
  (same, *_) = loaded.find_similar(pixels_of(photos[2]), folder)
  assert same.image == photos[2]
  assert same.cosine == pytest.approx(1, abs=1e-5)


def test_texts_take_the_place_of_classes(photos):
  """SigLIP: the sigmoid of scaled cosines and a bias, for each text."""
  clip = vit_jax.load_pretrained(str(TEXTS / "hf_siglip"))
  text = clip.text_tower
  for texts, whole in (
    (["a cat", "the dog"], ["a cat", "the dog"]),
    (["cat", "dog"], ["a photo of a cat.", "a photo of a dog."]),
  ):
    y, t = clip.features(photos[:2]), text.embed(whole)
    y, t = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (y, t))
    expected = sigmoid(text.scale * y @ t.T + text.bias)
    answers = clip.predict(photos[:2], texts=texts)
    for answer, row in zip(answers, expected, strict=True):
      found = dict(answer)
      np.testing.assert_allclose(
        [found[name] for name in texts], row, rtol=1e-4
      )
  head = text.head(["cat"], ["{}"])
  assert text.head(("cat",), ("{}",)) is head  # Compiled once for both.


REFUSED = {
  "the same text twice": (["cat", "cat"], "texts names cat 2 times"),
  "no text": ([], r"texts names no class: give a list, as in texts=\["),
  "of a model without": (["cat", "dog"], "has no text tower"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_texts_that_are_refused(loaded, photos, kind):
  texts, message = REFUSED[kind]
  with pytest.raises(ValueError, match=message):
    loaded.predict(photos[0], texts=texts)


def test_what_is_no_search_is_refused(loaded, photos):
  with pytest.raises(ValueError, match="2 images were given: call find_simil"):
    loaded.find_similar(photos[:2], photos)
  with pytest.raises(ValueError, match="no other images to search"):
    loaded.find_similar(photos[0], photos[:1])
