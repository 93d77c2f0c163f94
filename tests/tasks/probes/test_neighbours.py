"""k-NN at an evaluation: the images it reads, and its score by NumPy."""

import jax
import numpy as np
import pytest

from tests.tasks import made_up
from tests.tiny import SIZES, random_params
from vit_jax import make_vit
from vit_jax.data.batching.loader import Loader
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import Digits
from vit_jax.run.evaluation import has_labels
from vit_jax.tasks.probes.neighbours import Neighbours, draw_examples
from vit_jax.training import sharding


def test_so_many_images_are_read_and_always_the_same():
  digits = Digits("test")
  few = draw_examples(digits, 20)
  assert draw_examples(digits, 359) is digits and len(few) == 20
  labels = [example["label"] for example in few.read(range(20))]
  again = draw_examples(digits, 20)
  assert labels == [example["label"] for example in again.read(range(20))]
  assert len({*labels}) > 5


@pytest.mark.slow
def test_the_score_is_that_of_the_nearest_images():
  train, test = Digits("train[:60]"), Digits("test[:30]")
  model = make_vit("Ti/8", 0, **SIZES)
  params = random_params(model, (8, 8), 0)
  preprocessing = Preprocessing((8, 8))
  probe = Neighbours(
    model,
    sharding.make_mesh(),
    train,
    test,
    preprocessing,
    loader=Loader(num_workers=0),
    batch_size=16,
    k=1,
    most=50,
  )
  found = probe(params)
  assert found == probe(params)

  sources = draw_examples(train, 50), test
  examples = [e for one in sources for e in one.read(range(len(one)))]
  transform = preprocessing.transform()
  images = np.stack([transform(e["image"]) for e in examples])
  z = jax.jit(model.apply)({"params": params}, images / np.float32(127.5) - 1)
  z = np.asarray(z) / np.linalg.norm(z, axis=1, keepdims=True)
  x, y = np.split(z, [50])
  labels, true = np.split([e["label"] for e in examples], [50])
  nearest = labels[(y @ x.T).argmax(1)]
  assert found == {"knn/top1": pytest.approx((nearest == true).mean())}
  assert 0.2 < found["knn/top1"] < 1


@pytest.mark.parametrize(
  "changes, expected",
  [
    ({"data.name": "digits", "data.labels_file": None}, True),
    ({"data.root": "photos", "data.labels_file": None}, True),
    (
      {"data.root": "a", "data.labels": False, "data.labels_file": None},
      False,
    ),
    (
      {
        "data.root": "a",
        "data.labels": False,
        "data.labels_file": None,
        "fewshot.data.name": "digits",
      },
      True,
    ),
  ],
)
def test_it_is_measured_where_there_are_labels(changes, expected):
  assert has_labels(made_up.settings(**changes)) == expected
