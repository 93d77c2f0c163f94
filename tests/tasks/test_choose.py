"""Which task a run has, and what a checkpoint may not choose."""

import dataclasses
import sys
import types

import pytest

from vit_jax.run.few_images import fine_tuning
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import Section, setting, to_dict, types_of
from vit_jax.tasks import choose
from vit_jax.tasks.settings import SECTIONS, MaskedSettings, switches
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
  assert not (tmp_path / "ran").exists()


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


def test_every_section_turns_its_task_on_by_its_first_key():
  for key in switches():
    name, first = key.split(".")
    assert types_of(Settings)[name] is SECTIONS[name]
    others = {"student": "both", "self_distillation": 8}
    value = others.get(name, 0.5)
    section = SECTIONS[name](**{first: value})
    sections = {"loss": LossSettings(), name: section}
    assert choose.configured("classification", sections).name == name


@dataclasses.dataclass(frozen=True)
class ShiftedSettings(Section):
  by: float = setting(0.0, "Pixels.")


class ShiftedTask(Task):
  name = "shifted"

  @classmethod
  def enabled(cls, sections):
    return bool(sections["shifted"].by)


def test_a_task_with_a_section_is_rows_of_tables(monkeypatch):
  package = types.ModuleType("vit_jax.tasks.shifted")
  module = types.ModuleType("vit_jax.tasks.shifted.task")
  module.ShiftedTask = ShiftedTask
  for one in (package, module):
    monkeypatch.setitem(sys.modules, one.__name__, one)
  monkeypatch.setitem(choose._TASKS, "shifted", "ShiftedTask")
  monkeypatch.setitem(SECTIONS, "shifted", ShiftedSettings)
  config = {**to_dict(Settings()), "shifted": {"by": 2.0}}
  saved = choose.saved({"config": config}, LossSettings())
  assert saved.name == "shifted"
  config["masked"]["rate"] = 0.5
  with pytest.raises(ValueError, match="masked and shifted each choose a task"):
    choose.saved({"config": config}, LossSettings())


@pytest.mark.parametrize("key", switches())
def test_what_trains_without_labels_is_fine_tuned_whole(key):
  given = {key: "0.5", "pretrained": "hf_s14_dinov2", "data.name": "digits"}
  assert fine_tuning(given)[0] == {"config": "finetune"}
