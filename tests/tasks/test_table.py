"""All that derives from the table of objectives."""

import dataclasses
import pathlib

import pytest

from tests.commands import python
from vit_jax.run.few_images import fine_tuning
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import types_of
from vit_jax.tasks import choose, table
from vit_jax.tasks.settings import DataSettings
from vit_jax.tasks.table import ALL_TASKS, LABELLED_TASKS, SECTIONS
from vit_jax.training.settings import LossSettings

FOLDER = pathlib.Path(table.__file__).parent


def test_neither_the_table_nor_the_settings_load_jax():
  done = python(
    "-c",
    "import sys, vit_jax.tasks.table\n"
    "assert not {'jax', 'flax', 'numpy'} & {*sys.modules}\n"
    "import vit_jax.run.settings\n"
    "assert not {'jax', 'flax'} & {*sys.modules}",
  )
  assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ALL_TASKS)
def test_a_record_names_what_its_folder_has(name):
  record = ALL_TASKS[name]
  kind = record.task_class()
  assert kind.name == record.name == name
  assert kind.__module__ == f"vit_jax.tasks.{name}.task"
  if record.labels:
    assert type(kind().labels) is type(table.labels_of(name))
  assert (FOLDER / name / "settings.py").exists() == bool(record.section)
  words = f"| {record.words} | [{name}/]({name}/task.py) |"
  assert words in (FOLDER / "README.md").read_text()


def test_settings_have_the_sections_of_the_table():
  kinds = {name: types_of(Settings)[name] for name in SECTIONS}
  assert kinds == table.sections()
  names = [field.name for field in dataclasses.fields(Settings)]
  start = names.index("loss") + 1
  assert tuple(names[start : start + len(SECTIONS)]) == SECTIONS
  for name in LABELLED_TASKS:
    assert DataSettings(task=name, labels_file="labels.csv").task == name


def test_every_section_turns_its_task_on_by_its_first_key():
  for key in table.switches():
    name, first = key.split(".")
    others = {"student": "both", "self_distillation": 8}
    value = others.get(name, 0.5)
    section = ALL_TASKS[name].settings()(**{first: value})
    sections = {"loss": LossSettings(), name: section}
    assert choose.configured("classification", sections).name == name


@pytest.mark.parametrize("key", table.switches())
def test_what_trains_without_labels_is_fine_tuned_whole(key):
  given = {key: "0.5", "pretrained": "hf_s14_dinov2", "data.name": "digits"}
  assert fine_tuning(given)[0] == {"config": "finetune"}


def test_titles_of_curves_fit_their_charts():
  """A chart of a report is 600 pixels wide, of which its title has 520."""
  curves = [
    one
    for record in ALL_TASKS.values()
    for one in record.task_class().scores.curves
  ]
  assert curves and not [one for one in curves if len(one.title) > 55]
