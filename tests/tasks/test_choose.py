"""Which task a run has, and what a checkpoint may not choose."""

import dataclasses
import sys
import types

import pytest

from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import Section, setting, to_dict
from vit_jax.tasks import choose
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.masked.settings import MaskedSettings
from vit_jax.tasks.table import ALL_TASKS, Record, switches
from vit_jax.tasks.task import Task
from vit_jax.training.settings import LossSettings


@pytest.mark.parametrize("key", ["targets", "task"])
def test_no_file_is_run_because_a_checkpoint_names_it(tmp_path, key):
  file = tmp_path / "evil.py"
  file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
  name = f"{file}:Class"
  named = name if key == "task" else {"task": name}
  description = {"config": {}, key: named}
  with pytest.raises(ValueError, match="evil.py:Class"):
    choose.saved(description, LossSettings())
  if key == "task":
    choose.check_same(ClassificationTask(), description)
  assert not (tmp_path / "ran").exists()


def test_a_task_that_is_given_is_that_of_the_run():
  description = {"config": to_dict(Settings())}
  task = choose.saved(description, LossSettings(), "classification")
  assert isinstance(task, ClassificationTask)
  says = "task='regression' is given, and the run's task is classification"
  with pytest.raises(choose.OwnTaskError, match=says):
    choose.saved(description, LossSettings(), "regression")


@pytest.mark.parametrize(
  ("rate", "looked_at"), [(0.0, ["classification"]), (0.5, ["masked"])]
)
def test_a_run_imports_no_other_task_than_its_own(monkeypatch, rate, looked_at):
  names = []
  task_class = choose.task_class

  def watched(name):
    names.append(name)
    return task_class(name)

  monkeypatch.setattr(choose, "task_class", watched)
  sections = {"loss": LossSettings(), "masked": MaskedSettings(rate=rate)}
  assert choose.configured("classification", sections).name == looked_at[0]
  assert names == looked_at


FILES = ("task", "settings")


@dataclasses.dataclass(frozen=True)
class ShiftedSettings(Section):
  by: float = setting(0.0, "Pixels.")


class ShiftedTask(Task):
  name = "shifted"


def test_an_objective_is_a_row_of_the_table(monkeypatch):
  package = types.ModuleType("vit_jax.tasks.shifted")
  files = [types.ModuleType(f"{package.__name__}.{n}") for n in FILES]
  files[0].ShiftedTask, files[1].ShiftedSettings = ShiftedTask, ShiftedSettings
  for module in (package, *files):
    monkeypatch.setitem(sys.modules, module.__name__, module)
  record = Record(
    "shifted", "shifts", task="ShiftedTask", section="ShiftedSettings"
  )
  monkeypatch.setitem(ALL_TASKS, "shifted", record)
  assert switches()[-1] == "shifted.by"
  config = {**to_dict(Settings()), "shifted": {"by": 2.0}}
  saved = choose.saved({"config": config}, LossSettings())
  assert saved.name == "shifted"
  config["masked"]["rate"] = 0.5
  with pytest.raises(ValueError, match="masked and shifted each choose a task"):
    choose.saved({"config": config}, LossSettings())
