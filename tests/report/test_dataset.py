"""Facts about the data of a run, against its files and its first batch."""

import numpy as np
import pytest

from vit_jax.report.dataset import look_at
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import open_saved_run


@pytest.mark.slow
def test_the_data_are_those_that_the_run_was_trained_on(workdir, root):
  with open_saved_run(str(workdir)) as run:
    found = look_at(run)
    plan = make_plan(run.settings)
  assert found.counts is not None and found.counts.tolist() == [16, 16]
  files = sorted((root / "train").glob("*/*.jpg"))
  assert found.train.examples == len(files) == 32
  assert {*found.train.sides} == {(48, 40)}
  assert sum(found.train.weights) == sum(f.stat().st_size for f in files)
  assert found.evaluation.examples == 12
  with plan.open_batches(0) as batches:
    batch = next(iter(batches))
  images, labels = zip(*found.augmented, strict=True)
  np.testing.assert_array_equal(np.stack(images), batch["image"])
  np.testing.assert_array_equal(labels, batch["label"])


@pytest.mark.slow
def test_a_training_split_that_is_gone_is_refused(workdir, root):
  away = root / "away"
  with open_saved_run(str(workdir)) as run:
    (root / "train").rename(away)
    try:
      with pytest.raises(ValueError, match="no train folder"):
        look_at(run)
    finally:
      away.rename(root / "train")
