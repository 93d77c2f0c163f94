"""The mesh, its sharding rules, and the transfer of batches to it."""

import threading
import types

import jax
import numpy as np
import pytest

from vit_jax import make_vit
from vit_jax.training import sharding
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import OptimizerSettings
from vit_jax.training.state import make_init


@pytest.mark.parametrize(
  "asked, shape",
  [
    (dict(), (8, 1, 1)),
    (dict(fsdp=4), (2, 4, 1)),
    (dict(data=2, fsdp=-1, tensor=2), (2, 2, 2)),
    (dict(data=8), (8, 1, 1)),
  ],
)
def test_mesh_covers_all_devices(asked, shape):
  mesh = sharding.make_mesh(**asked)
  assert tuple(mesh.shape[axis] for axis in sharding.AXES) == shape
  assert set(mesh.devices.flat) == set(jax.devices())


class Device(types.SimpleNamespace):
  """A stand-in for a device, which is equal to itself alone."""

  __eq__, __hash__ = object.__eq__, object.__hash__


def _in_slices(count, slices):
  """`count` devices in `slices` slices, four on each host."""
  return [
    Device(
      id=i,
      process_index=i // 4,
      slice_index=i * slices // count,
      platform="cpu",
      device_kind="cpu",
    )
    for i in range(count)
  ]


def test_only_the_data_axis_crosses_slices():
  devices = _in_slices(16, 2)
  found = sharding.make_mesh(4, 2, 2, devices=devices).devices
  assert found.shape == (4, 2, 2)
  for part in found:
    assert len({device.slice_index for device in part.flat}) == 1
  assert {device.id for device in found.flat} == set(range(16))


@pytest.mark.parametrize(
  "asked, message",
  [
    (dict(data=3), "does not lay out 8 devices"),
    (dict(data=4), "does not lay out 8 devices"),
    (dict(data=-1, fsdp=-1), "does not lay out 8 devices"),
    (dict(data=0), "does not lay out 8 devices"),
    (dict(fsdp=3), "does not lay out 8 devices"),
    (
      dict(data=1, fsdp=8, devices=_in_slices(8, 2)),
      "data=1 must be a multiple of the 2",
    ),
    (
      dict(tensor=8, devices=_in_slices(16, 1)),
      "tensor axis must stay within a host, .* divide the 4 devices of a host",
    ),
  ],
)
def test_a_mesh_that_does_not_fit_is_refused(asked, message):
  with pytest.raises(ValueError, match=message):
    sharding.make_mesh(**asked)


@pytest.mark.parametrize(
  "batch_size, parts, message",
  [
    (12, 1, "batch_size=12 does not split over 8 devices; the next .* is 16"),
    (24, 2, "over 8 devices x 2 accumulation steps; the next .* is 32"),
    (0, 1, "batch_size=0 does not split .* the next size that does is 8"),
  ],
)
def test_a_batch_that_does_not_split_is_refused(batch_size, parts, message):
  with pytest.raises(ValueError, match=message):
    sharding.check_batch("batch_size", batch_size, sharding.make_mesh(), parts)


def _shapes(num_heads=3, **axes):
  model = make_vit("Ti/4", num_classes=5, num_layers=1, num_heads=num_heads)
  init = make_init(
    model, make_optimizer(OptimizerSettings(), lambda _: 1.0), (8, 8, 3), 0.9
  )
  return sharding.array_shapes(init, sharding.make_mesh(**axes))


def test_data_parallel_keeps_the_state_whole():
  for leaf in jax.tree.leaves(_shapes()):
    assert leaf.sharding.is_fully_replicated


def test_fsdp_splits_parameters_optimizer_state_and_average():
  shapes = _shapes(fsdp=4)
  query = shapes.params["block_0"]["msa"]["query"]["kernel"]
  assert query.sharding.shard_shape(query.shape) == (192 // 4, 3, 64)
  for tree in (shapes.opt_state[1].mu, shapes.averaged_params):
    kernel = tree["block_0"]["mlp"]["expand"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (192 // 4, 768)


def test_tensor_parallel_splits_the_mlp():
  shapes = _shapes(num_heads=2, tensor=2)
  kernel = shapes.params["block_0"]["mlp"]["expand"]["kernel"]
  assert kernel.sharding.shard_shape(kernel.shape) == (192, 768 // 2)
  query = shapes.params["block_0"]["msa"]["query"]["kernel"]
  assert query.sharding.shard_shape(query.shape) == (192, 1, 96)


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_batches_reach_the_devices_whole_and_in_order(ahead):
  rows = sharding.batch_sharding(sharding.make_mesh())
  batches = [{"image": np.full((16, 2), k, np.uint8)} for k in range(5)]
  found = list(sharding.to_device(iter(batches), rows, ahead))
  assert [int(batch["image"][0, 0]) for batch in found] == [0, 1, 2, 3, 4]
  shards = found[0]["image"].addressable_shards
  assert {shard.data.shape for shard in shards} == {(2, 2)}


def test_batches_are_fetched_ahead_of_their_use():
  fetched = []

  def source():
    for k in range(9):
      fetched.append(k)
      yield {"image": np.zeros((8, 1), np.uint8)}

  rows = sharding.batch_sharding(sharding.make_mesh())
  stream = sharding.to_device(source(), rows, ahead=2)
  next(stream)
  assert fetched == [0, 1, 2]


@pytest.mark.parametrize("platform, most", [("cpu", 1), ("tpu", 3)])
def test_results_are_fetched_before_too_many_steps_are_under_way(
  monkeypatch, platform, most
):
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  begun = []

  def steps():
    for i in range(5):
      begun.append(i)
      yield jax.device_put(np.full(2, i))

  for i, result in enumerate(sharding.fetch_results(steps())):
    assert isinstance(result, np.ndarray)
    assert (result == i).all()
    assert len(begun) == min(i + most, 5)


def test_a_step_is_traced_before_the_work_and_compiled_beside_it():
  seen, traced = [], threading.current_thread()
  compiling = threading.Event()

  class Step:
    def lower(self, *arguments):
      seen.append((arguments, threading.current_thread() is traced))
      return self

    def compile(self):
      seen.append(threading.current_thread() is not traced)
      assert compiling.wait(10)
      raise ValueError("the call raises it again")

  with sharding.compile_meanwhile(Step(), ("state", "batch")) as step:
    assert seen[0] == (("state", "batch"), True)
    compiling.set()
  assert seen[1:] == [True] and step.programs == []


def test_the_program_is_there_after_the_work():
  jitted = jax.jit(lambda x: x + 1)
  calls = [(np.zeros(n, np.float32),) for n in (2, 3)]
  with sharding.compile_meanwhile(jitted, *calls) as step:
    pass
  for (zeros,), program in zip(calls, step.programs, strict=True):
    np.testing.assert_array_equal(program(zeros), zeros + 1)


def test_a_step_that_cannot_be_traced_delays_no_work():
  def fail(*_):
    raise ValueError("the call raises it again")

  with sharding.compile_meanwhile(types.SimpleNamespace(lower=fail), ()):
    pass
