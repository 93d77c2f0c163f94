"""Nothing is printed of a checkpoint that cannot be read."""

import gc
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.read_errors import DamagedError

_ARRAYS = 40  # So that many reads are under way when the first fails.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A run with many arrays, all of whose data files are cut."""
  folder = tmp_path_factory.mktemp("many")
  checkpoints = Checkpoints(str(folder))
  arrays = np.random.default_rng(0).normal(size=(_ARRAYS, 16, 64))
  params = {str(i): jnp.float32(array) for i, array in enumerate(arrays)}
  description = {"config": {}, "model": {}, "class_names": []}
  state = TrainState(jnp.int32(1), params, {"mu": jnp.zeros(3)})
  checkpoints.save(state, 1, description, None)
  checkpoints.close()
  files = [
    path
    for path in (folder / "checkpoints/1/params").rglob("d/*")
    if path.stat().st_size > 10_000  # Those that hold arrays, one or several.
  ]
  assert files
  for path in files:
    path.write_bytes(path.read_bytes()[:1000])
  return folder, params


def _on_the_host(params):
  return {
    key: np.broadcast_to(np.float32(0), x.shape) for key, x in params.items()
  }


def _on_devices(params):
  return {
    key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    for key, x in params.items()
  }


@pytest.mark.parametrize(
  "place", [pytest.param(_on_the_host, marks=pytest.mark.slow), _on_devices]
)
def test_reads_under_way_say_nothing_when_another_fails(
  folder, place, capfd, caplog
):
  path, params = folder
  checkpoints = Checkpoints(str(path), read_only=True)
  for _ in range(10):
    with pytest.raises(DamagedError, match="OUT_OF_RANGE") as info:
      checkpoints.restore_params(1, place(params), averaged=False)
    assert "\n" not in str(info.value)
  checkpoints.close()
  del info
  time.sleep(0.2)
  gc.collect()  # asyncio complains of an error that nobody took when it goes.
  assert capfd.readouterr() == ("", "")
  assert caplog.records == []
