"""Labels of which nobody knows: they have no part in a loss or a score."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from sklearn import metrics as sklearn

from tests.rows import some_slow
from tests.tasks.made_up import Split, rows_of
from vit_jax.data.reading.several import SEVERAL
from vit_jax.tasks.classification.calibration import fit
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.metrics import Gathered
from vit_jax.tasks.multilabel.task import (
  MultiLabel,
  MultiLabelOutcome,
  MultiLabelTask,
)
from vit_jax.training.settings import LossSettings

NAMES = ("a", "b", "c")
RNG = np.random.default_rng(0)
LABELS = (RNG.random((60, 3)) < 0.4).astype(np.float32)
LABELS[RNG.random(LABELS.shape) < 0.3] = np.nan
LABELS[0] = np.nan
KNOWN = ~np.isnan(LABELS)
LOGITS = RNG.normal(size=LABELS.shape).round(1).astype(np.float32)  # With ties.


def objective(weights=None, **loss):
  settings = LossSettings(kind="sigmoid", **loss)
  return MultiLabel(3, settings, (0.5,) * 3, (0.5,) * 3, weights)


@pytest.mark.parametrize("weights", [None, (1.0, 3.0, 0.5)])
def test_the_loss_is_the_sum_over_what_is_known(weights):
  of_weights = np.ones(3) if weights is None else np.array(weights)
  p = scipy.special.expit(LOGITS.astype(np.float64))
  terms = -of_weights * LABELS * np.log(p) - (1 - LABELS) * np.log(1 - p)
  found, share = jax.jit(objective(weights).loss_and_score)(LOGITS, LABELS)
  np.testing.assert_allclose(found, np.nansum(terms, axis=1), rtol=1e-5)
  right = np.where(KNOWN, (LOGITS > 0) == (LABELS > 0), 0).sum(axis=1)
  expected = right / np.maximum(KNOWN.sum(axis=1), 1)
  np.testing.assert_allclose(share, expected, rtol=1e-6)


def test_what_is_unknown_has_no_gradient():
  def total(logits):
    return objective().loss_and_score(logits, jnp.array(LABELS))[0].sum()

  gradient = np.asarray(jax.jit(jax.grad(total))(jnp.array(LOGITS)))
  expected = np.where(KNOWN, scipy.special.expit(LOGITS) - LABELS, 0)
  np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("binary", some_slow([False, True], [False]))
def test_a_mixture_is_known_where_both_are(binary):
  mixing = objective(mixup_alpha=0.5, binary_targets=binary)
  image = jnp.zeros((60, 2, 2, 3), jnp.uint8)
  batch = {"image": image, "label": jnp.array(LABELS)}
  _, targets = jax.jit(mixing.prepare)(batch, jax.random.key(0))
  both = KNOWN & np.roll(KNOWN, 1, axis=0)
  np.testing.assert_array_equal(~np.isnan(targets), both)
  some = both & ((LABELS > 0) | (np.roll(LABELS, 1, axis=0) > 0))
  np.testing.assert_array_equal(np.asarray(targets) > 0, some)


def outcome(labels=LABELS, **task):
  return MultiLabelOutcome(
    MultiLabelTask(**task),
    NAMES,
    index=np.arange(len(labels)),
    label=labels.astype(np.float64),
    output=scipy.special.expit(LOGITS.astype(np.float64)),
    loss=np.zeros(len(labels)),
    skipped=0,
  )


@pytest.mark.parametrize("k", range(3))
def test_scores_of_a_label_are_of_the_images_of_which_it_is_known(k):
  of = KNOWN[:, k]
  label, logit = LABELS[of, k], LOGITS[of, k]
  found = outcome()
  precision = sklearn.average_precision_score(label, logit)
  area = sklearn.roc_auc_score(label, logit)
  assert found.precisions[k] == pytest.approx(precision)
  assert found.areas[k] == pytest.approx(area)
  columns, rows = found.table()
  row = dict(zip(columns, rows[k], strict=True))
  assert (row["examples"], row["known"]) == (
    f"{label.sum():.0f}",
    f"{of.sum()}",
  )
  assert row["AUROC"] == f"{area:.2%}"


def test_scores_of_all_labels_are_of_what_is_known():
  found = outcome(threshold=0.6)
  answers = found.output[KNOWN] >= 0.6
  f1 = sklearn.f1_score(LABELS[KNOWN] > 0, answers)
  assert found.scores["f1"] == pytest.approx(f1)
  assert found.scores["auroc"] == pytest.approx(found.areas.mean())
  assert found.chance == pytest.approx(np.nanmean(LABELS, axis=0).mean())
  all_known = outcome(np.nan_to_num(LABELS))
  assert "known" not in all_known.table()[0]


def test_a_label_without_both_sides_has_no_auroc():
  labels = np.array([[1, 0, 1], [1, 0, np.nan], [1, 0, 0]], np.float32)
  found = outcome(np.tile(labels, (20, 1)))
  np.testing.assert_array_equal(np.isnan(found.areas), [True, True, False])
  assert [*found.by_class()["eval/auroc_by_class"]] == ["c"]


def test_a_label_that_is_unknown_is_no_answer_that_is_none():
  arrays = {"logits": LOGITS, "label": LABELS}
  assert Gathered(np.arange(60), arrays, skipped=0).unanswered == 0
  arrays["logits"] = np.where(np.arange(60)[:, None] < 3, np.nan, LOGITS)
  assert Gathered(np.arange(60), arrays, skipped=0).unanswered == 3


def test_a_calibration_reads_what_is_known():
  """Of a column, the examples of which a label is known decide alone."""
  z = np.random.default_rng(1).normal(size=(4000, 2)) * 3
  y = (
    np.random.default_rng(2).random(z.shape) < scipy.special.expit(z / 2)
  ) + 0.0
  y[::2, 1] = np.nan
  z[::2, 1] = 100.0  # Their logits would say something else.
  fitted = fit("sigmoid", z, y, each=True)
  assert fitted.temperature == pytest.approx((2, 2), rel=0.15)
  assert fitted.loss_after < fitted.loss_before
  assert fitted.error_after < 0.05 < fitted.error_before


def test_balanced_weights_count_what_is_known():
  class Source:
    name = "made up"
    class_names = NAMES

    def __len__(self):
      return len(LABELS)

    def labels(self, indices):
      return LABELS[np.asarray(indices)]

  task = ClassificationTask(
    LossSettings(kind="sigmoid", class_weights="balanced")
  )
  source: Any = Source()
  weights = task.fitted(source).class_weights
  counts = [(LABELS == value).sum(axis=0) for value in (0, 1)]
  assert weights == pytest.approx(counts[0] / counts[1])


@pytest.mark.parametrize("value", [0, 1])
def test_a_label_that_all_images_agree_on_is_left_out_of_the_means(value):
  labels = LABELS.copy()
  labels[KNOWN[:, 1], 1] = value
  found, two = outcome(labels), [0, 2]
  assert np.isnan(found.precisions[1]) and np.isnan(found.areas[1])
  assert found.scores["map"] == pytest.approx(found.precisions[two].mean())
  shares = np.nanmean(LABELS[:, two], axis=0)
  assert found.chance == pytest.approx(shares.mean())
  (line,) = found.notes
  assert line.startswith("mAP and AUROC are means of 2 of 3: the other labels")
  assert line.endswith("known (b).")
  assert outcome().notes == []


def test_an_overview_says_of_how_many_it_is_known():
  cells = SEVERAL.overview(LABELS, NAMES)
  positive, known = (LABELS == 1).sum(axis=0), KNOWN.sum(axis=0)
  assert cells["b"] == f"{positive[1]} of {known[1]} known"


def three(label):
  """Answers a and b to the first image, b to the next, and c to the last."""
  return MultiLabelOutcome(
    MultiLabelTask(threshold=0.5),
    NAMES,
    index=np.arange(3),
    label=np.array(label, np.float64),
    output=np.array([[0.75, 0.5, 0.25], [0.25, 0.75, 0], [0, 0.25, 1]]),
    loss=np.array([3.0, 1.0, 2.0]),
    skipped=0,
  )


RIGHT = [[1, np.nan, 0], [0, 1, 0], [0, 0, 1]]
ONE_WRONG = [[1, np.nan, 0], [np.nan, 0, 0], [0, 0, 1]]


def test_an_unknown_label_is_told_from_an_absent_one_in_the_file(tmp_path):
  rows = rows_of(three(ONE_WRONG), tmp_path, Split([], NAMES))
  assert [row[:4] for row in rows] == [
    ["file", "labels", "answers", "unknown"],
    ["0.png", "a", "a;b", "b"],
    ["2.png", "c", "c", ""],
    ["1.png", "", "b", "a"],
  ]


def test_the_worst_mistakes_are_mistakes_in_known_labels():
  """Image 0 has the highest loss, and what is known of it is right."""
  (group,) = three(ONE_WRONG).telling()
  assert [one.index for one in group.examples] == [1]
  assert group.examples[0].caption == "no label; answer: b; unknown: a"
  assert group.text.startswith("1 of 3 images has a mistake in a known label.")
  two = [[0, np.nan, 0], [np.nan, 0, 0], [0, 0, 1]]
  (group,) = three(two).telling()
  assert [one.index for one in group.examples] == [0, 1]
  assert group.text.startswith("2 of 3 images have a mistake")


def test_without_a_mistake_the_report_says_so():
  (group,) = three(RIGHT).telling()
  assert not group.examples
  assert group.text == (
    "No mistake: each known label of each image is answered right."
  )
