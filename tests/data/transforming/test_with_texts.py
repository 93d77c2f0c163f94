"""The caption that training draws of those of an image."""

import cv2
import numpy as np

from vit_jax.data.example import Example
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.captions import Captions
from vit_jax.data.reading.tokenizer_files import new_tokenizer
from vit_jax.data.transforming.with_texts import WithTexts

TEXTS = ["a red disc", "a red square", "a blue disc", "Two discs, one blue."]
PNG = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes()


def test_training_draws_one_caption_of_an_image():
  files = new_tokenizer(TEXTS, 400, 8)
  labels = Captions(files=files, most=4)
  transform = WithTexts(Preprocessing((4, 4)).transform(), files.length)
  ids = labels.ids([TEXTS[:3]])[0]
  example = Example(image=PNG, label=ids, id="x")
  drawn = [
    transform.row(example, np.random.default_rng(seed))["text"]
    for seed in range(60)
  ]
  counts = [sum(np.array_equal(d, ids[k]) for d in drawn) for k in range(4)]
  assert min(counts[:3]) > 8 and sum(counts) == 60 and counts[3] == 0
  again = transform.row(example, np.random.default_rng(0))["text"]
  np.testing.assert_array_equal(again, drawn[0])
  np.testing.assert_array_equal(transform.row(example)["text"], ids[0])
