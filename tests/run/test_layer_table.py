"""The table of a model's layers."""

import pytest

from tests.commands import run
from vit_jax.run.layer_table import layer_rows
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read


def test_layers_have_shapes_and_counts_by_hand(config):
  """D = 24, an MLP of 32, 3 heads, patches of 8 in an image of 16 x 16."""
  config.model.update(pooling="token", position="learned")
  config.optimizer.freeze_layers = 1
  rows = {name: rest for name, *rest in layer_rows(make_plan(read(config)))}
  assert rows["x_class"] == ["", "", "24", "no"]
  E = str(8 * 8 * 3 * 24 + 24)
  assert rows["patches"] == ["(1, 16, 16, 3)", "(1, 2, 2, 24)", "4,632", "no"]
  assert rows["patches"][2].replace(",", "") == E
  mlp = 24 * 32 + 32 + 32 * 24 + 24
  assert rows["block_0/mlp"] == ["(1, 5, 24)", "(1, 5, 24)", f"{mlp:,}", "no"]
  msa = 4 * (24 * 24 + 24)
  assert rows["block_0/msa"] == ["(1, 5, 24)", "(1, 5, 24)", f"{msa:,}", "no"]
  assert rows["norm"] == ["(1, 24)", "(1, 24)", "48", "yes"]
  assert rows["head"] == ["(1, 24)", "(1, 3)", "75", "yes"]
  whole = [r for name, r in rows.items() if "/" not in name and name != "all"]
  total = sum(int(row[2].replace(",", "")) for row in whole)
  assert rows["all"][2] == f"{total:,}"
  order = ["patches", "position", "block_0", "block_0/norm_msa", "norm", "head"]
  assert [name for name in rows if name in order] == order


@pytest.mark.slow
def test_the_command_prints_it_and_trains_nothing(tmp_path):
  folder = tmp_path / "run"
  done = run(
    "vit_jax.train", "--config=digits", f"--workdir={folder}", "--summary"
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[0].split()[0] == "layer"
  assert done.stdout.splitlines()[-1].split() == ["all", "137,802"]
  assert not folder.exists()
