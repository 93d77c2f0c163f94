"""Which task a run has, and what a checkpoint may not choose."""

import pytest

from vit_jax.tasks import choose
from vit_jax.tasks.settings import MaskedSettings
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
