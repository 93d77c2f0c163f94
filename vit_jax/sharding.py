"""Where arrays live: the mesh of devices, the rules, and the way there.

The model names the logical axes of its parameters; `RULES` says which mesh
axis each is split over. One device is the mesh of size one.
"""

import collections
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_sharding
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")

# Logical axis of a parameter -> mesh axis it is split over. All others are
# whole on every device.
RULES = (
  ("embed", "fsdp"),
  ("channels_out", "fsdp"),
  ("heads", "tensor"),
  ("mlp", "tensor"),
)


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1) -> Mesh:
  """A mesh over all devices; one axis may be -1, "the rest".

  Raises:
    ValueError: if the axes do not multiply to the number of devices, or the
      tensor axis spans hosts, which would then read different examples for it.
  """
  sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
  count = jax.device_count()
  asked = ", ".join(f"{k}={v}" for k, v in sizes.items())
  free = [axis for axis, size in sizes.items() if size == -1]
  fixed = math.prod(size for size in sizes.values() if size != -1)
  wrong = len(free) > 1 or any(
    size < 1 for size in sizes.values() if size != -1
  )
  if wrong or count % fixed or (not free and fixed != count):
    raise ValueError(
      f"mesh {asked} does not lay out {count} devices: the product must be "
      f"{count}, and one axis may be -1 (the rest)."
    )
  for axis in free:
    sizes[axis] = count // fixed
  if jax.local_device_count() % sizes["tensor"]:
    raise ValueError(
      f"mesh {asked}: the tensor axis must stay within a host, so its size "
      f"must divide the {jax.local_device_count()} devices of one."
    )
  auto = (jax.sharding.AxisType.Auto,) * len(AXES)
  return jax.make_mesh(tuple(sizes[a] for a in AXES), AXES, axis_types=auto)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Examples split over the data and fsdp axes; all else is whole."""
  return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def batch_shards(mesh: Mesh) -> int:
  """Equal parts that `batch_sharding` splits the examples of a batch into."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated(mesh: Mesh) -> NamedSharding:
  """The same whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def tree_shardings(boxed_shapes: Any, mesh: Mesh) -> Any:
  """Shardings of a tree of shapes by `RULES`, from the model's axis names."""
  specs = nn.get_partition_spec(boxed_shapes)
  return logical_to_mesh_sharding(specs, mesh, RULES)


def check_batch(name: str, batch_size: int, mesh: Mesh, parts: int = 1) -> None:
  """Raises ValueError unless the batch splits evenly.

  Args:
    name: Of the configuration key, for the message.
    batch_size: Examples a step, over all devices.
    mesh: Of devices.
    parts: Equal parts that each device computes its examples in.
  """
  if parts < 1:
    raise ValueError(f"accumulation_steps={parts} must be 1 or more.")
  shards = batch_shards(mesh)
  needed = shards * parts
  if batch_size < 1 or batch_size % needed:
    fits = max(1, -(-batch_size // needed)) * needed
    accumulated = f" x {parts} accumulation steps" if parts > 1 else ""
    raise ValueError(
      f"{name}={batch_size} does not split over {shards} devices{accumulated}; "
      f"the next size that does is {fits}."
    )


def to_device(
  batches: Iterable[dict[str, np.ndarray]], sharding: NamedSharding, ahead: int
) -> Iterator[dict[str, jax.Array]]:
  """Puts each host's batches on its devices, `ahead` of their use.

  Args:
    batches: This host's rows of each batch.
    sharding: Of the rows, over all hosts.
    ahead: Batches on their way while one is used.
  """

  def put(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {
      key: jax.make_array_from_process_local_data(sharding, value)
      for key, value in batch.items()
    }

  source = iter(batches)
  queue = collections.deque(put(b) for b in itertools.islice(source, ahead))
  for batch in source:
    queue.append(put(batch))
    yield queue.popleft()
  yield from queue
