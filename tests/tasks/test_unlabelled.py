"""What is said of runs that learn without labels, once they have ended."""

import shlex

import pytest

from vit_jax.data.reading.labels import NONE
from vit_jax.runtime.display import Split
from vit_jax.tasks import choose
from vit_jax.tasks.table import ALL_TASKS
from vit_jax.tasks.unlabelled import UnlabelledTask

KNN = {Split.EVAL.key("loss"): 1.0, "knn/top1": 0.5}


@pytest.mark.parametrize("name", ALL_TASKS)
def test_tasks_without_labels_say_what_their_features_are_for(name):
  cls = choose.task_class(name)
  advice = "\n".join(cls().advice("runs/x", "my cats", {}, best=False))
  if cls.labels is not NONE:
    assert not advice and "curves" in cls.reported
    return
  assert issubclass(cls, UnlabelledTask) and cls.reported == "curves"
  assert "vit_jax similar runs/x 'my cats' --out=found_x (" in advice
  assert "predict runs/x 'my cats' --features=features_x.npz (" in advice
  assert "vit_jax fewshot runs/x CLASSES measures" in advice
  assert "vit_jax train CLASSES --pretrained runs/x fine-tunes" in advice


def test_the_best_checkpoint_is_meant_and_a_probe_has_measured():
  task = choose.task_class("masked")()
  lines = task.advice("runs/a b", None, KNN, best=True)
  run = shlex.quote("runs/a b")
  assert (
    f"vit_jax similar {run} my_photos --best '--out=found_a b' (" in lines[0]
  )
  assert "fewshot" not in lines[1]
  assert f"vit_jax train CLASSES --pretrained {run} fine-tunes it." in lines[1]
