"""The mesh of devices, and how arrays are sharded over it.

The model names the logical axes of its arrays; `STORED` and `USED` say which
mesh axis each of them is split over. A single device is a mesh of size one.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.spmd import logical_to_mesh_axes, logical_to_mesh_sharding
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from vit_jax.models.partitioning import use_layout
from vit_jax.runtime import hosts

AXES = ("data", "fsdp", "tensor")
# The compiler's option for the part of a TPU's own memory that an operation may
# take.
SCOPED_VMEM = "xla_tpu_scoped_vmem_limit_kib"
Devices = Sequence[Any]
# Lets a mesh axis cover part of a row of chips: 32 x 8 fits 16 x 16 chips.
_SPLIT: dict[str, Any] = {"allow_split_physical_axes": True}

# Pairs of a logical axis and the mesh axis that it is split over. `STORED` is
# for stored parameters and their optimizer state, `USED` for any array during
# computation. Axes that are not listed are whole on every device.
STORED = (
  ("embed", "fsdp"),
  ("channels_out", "fsdp"),
  ("heads", "tensor"),
  ("mlp", "tensor"),
  ("prototypes", "tensor"),
)
USED = (
  ("batch", ("data", "fsdp")),
  ("heads", "tensor"),
  ("mlp", "tensor"),
  ("prototypes", "tensor"),
)


def make_mesh(
  data: int = -1,
  fsdp: int | None = None,
  tensor: int = 1,
  devices: Devices | None = None,
) -> Mesh:
  """Makes a mesh over all devices; one axis may be -1, "the rest".

  Neighbours along `tensor`, then along `fsdp`, are joined by the fastest links.
  If the devices form several slices, only the `data` axis crosses between them.
  Raises ValueError if the axes do not multiply to the number of devices, if the
  slices do not divide the data axis, or if the tensor axis spans hosts: its
  devices share examples, but each host reads its own.

  >>> import jax
  >>> from vit_jax.training.sharding import make_mesh
  >>> mesh = make_mesh(devices=jax.devices()[:1])
  >>> dict(mesh.shape)
  {'data': 1, 'fsdp': 1, 'tensor': 1}

  Args:
    data, fsdp, tensor: Devices along each axis, as in `MeshSettings`; None is
      1.
    devices: The devices to use, all of them by default.
  """
  devices = jax.devices() if devices is None else devices
  count = len(devices)
  fsdp = 1 if fsdp is None else fsdp
  request = f"mesh.data={data}, fsdp={fsdp}, tensor={tensor}"
  fixed = [size for size in (data, fsdp, tensor) if size != -1]
  product = math.prod(fixed)
  free = len(AXES) - len(fixed)
  wrong = free > 1 or min(fixed) < 1 or count % product
  if wrong or (not free and product != count):
    raise ValueError(
      f"{request} does not lay out {count} devices: the product must be "
      f"{count}, and one axis may be -1 (the rest)."
    )
  shape = [count // product if n == -1 else n for n in (data, fsdp, tensor)]
  local = sum(d.process_index == devices[0].process_index for d in devices)
  if local % shape[-1]:
    raise ValueError(
      f"{request}: the tensor axis must stay within a host, so its size "
      f"must divide the {local} devices of a host."
    )
  slices = len({getattr(d, "slice_index", 0) for d in devices})
  if slices > 1:
    arranged = _across_slices(shape, slices, devices)
  else:
    arranged = mesh_utils.create_device_mesh(shape, devices, **_SPLIT)
  auto = (AxisType.Auto,) * len(AXES)  # XLA decides where we do not.
  return Mesh(arranged, AXES, axis_types=auto)


def _across_slices(shape: list[int], slices: int, devices: Devices) -> Any:
  """The devices as an array of this shape, whose first axis crosses slices.

  Raises ValueError if the number of slices does not divide that axis.
  """
  if shape[0] % slices:
    raise ValueError(
      f"mesh.data={shape[0]} must be a multiple of the {slices} slices: "
      "between them the network is too slow for the other axes."
    )
  within = [shape[0] // slices, *shape[1:]]
  across = [slices, 1, 1]
  return mesh_utils.create_hybrid_device_mesh(within, across, devices, **_SPLIT)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Sharding that splits examples over the data and fsdp axes."""
  return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def batch_shards(mesh: Mesh) -> int:
  """Number of equal parts that `batch_sharding` splits a batch into."""
  return mesh.shape["data"] * mesh.shape["fsdp"]


def replicated_sharding(mesh: Mesh) -> NamedSharding:
  """Sharding that keeps the whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def array_shapes(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
  """Shape, dtype and sharding of every array that `init` would make.

  Raises ValueError if the mesh does not divide one of the arrays.
  """
  key = jax.eval_shape(jax.random.key, 0)  # Without compiling a program.
  boxed = jax.eval_shape(init, key)  # With the names of axes.
  shapes = nn.unbox(boxed)
  axes = nn.get_partition_spec(boxed)
  shardings = logical_to_mesh_sharding(axes, mesh, STORED)
  return jax.tree_util.tree_map_with_path(_sharded_shape, shapes, shardings)


def _sharded_shape(
  path: tuple, array: jax.ShapeDtypeStruct, sharding: NamedSharding
) -> jax.ShapeDtypeStruct:
  """The array's shape with this sharding; ValueError if it does not divide."""
  try:
    sharding.shard_shape(array.shape)
  except ValueError as error:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    raise ValueError(
      f"{name} of shape {array.shape} does not divide over the mesh axes "
      f"{tuple(sharding.spec)}: choose mesh.fsdp and mesh.tensor that divide "
      "the hidden size, the heads and the MLP."
    ) from error
  return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def on_mesh(function: Callable, mesh: Mesh) -> Callable:
  """Wraps a function so that the model's arrays in it are sharded by `USED`."""

  def layout(axes: tuple[str | None, ...]) -> NamedSharding:
    spec: Any = logical_to_mesh_axes(axes, USED)
    return NamedSharding(mesh, spec)

  @functools.wraps(function)
  def wrapped(*args, **kwargs):
    with use_layout(layout, mesh.devices.flat[0]):
      return function(*args, **kwargs)

  return wrapped


def shardings_of(shapes: Any) -> Any:
  """The sharding of each array of a tree."""
  return jax.tree.map(lambda shape: shape.sharding, shapes)


def jit_train_step(
  train_step: Callable,
  shapes: Any,
  mesh: Mesh,
  *fixed: Any,
  scoped_vmem_mib: int | None = None,
) -> Any:
  """Compiles the step for the mesh; the new state replaces the donated one.

  Args:
    shapes: The shapes of the state.
    fixed: The shapes of the step's arguments after state and batch.
    scoped_vmem_mib: MiB of a TPU's own memory that one operation may take; None
      is the compiler's default. Other devices have no such memory.
  """
  shardings = shardings_of(shapes)
  options = {}
  if scoped_vmem_mib and mesh.devices.flat[0].platform == "tpu":
    options = {SCOPED_VMEM: str(1024 * scoped_vmem_mib)}
  return hosts.compile_together(
    jax.jit(
      on_mesh(train_step, mesh),
      in_shardings=(shardings, batch_sharding(mesh), *map(shardings_of, fixed)),
      out_shardings=(shardings, replicated_sharding(mesh)),
      donate_argnums=0,
      compiler_options=options,
    )
  )


@dataclasses.dataclass
class Compiling:
  """Programs that are compiled in a thread, one after another.

  Attributes:
    programs: Those that are complete, as `jax.stages.Lowered.compile` returns
      them. One that fails is left out.
  """

  programs: list[Any] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def compile_meanwhile(
  function: Any, *calls: tuple[Any, ...]
) -> Iterator[Compiling]:
  """Compiles a jitted function in a thread while the block of `with` runs.

  There is a program for the arguments of each call, and all are complete at the
  end of the block.

  The arguments may be shapes with shardings. A later call with such arrays
  finds the program; if compiling failed, that call raises the error. The
  function is traced before the block begins: in the thread, tracing would
  compete with the block for Python's lock, and compiling would start late.
  """
  every = []
  compiling = Compiling()
  for arguments in calls:
    with contextlib.suppress(Exception):
      every.append(function.lower(*arguments))

  def compile_them() -> None:
    for lowered in every:
      with contextlib.suppress(Exception):
        compiling.programs.append(lowered.compile())

  thread = threading.Thread(target=compile_them)
  thread.start()
  try:
    yield compiling
  finally:
    thread.join()


def jit_replicated(function: Callable, mesh: Mesh, **options: Any) -> Any:
  """Compiles a function of the model; every device gets its whole result."""
  options["out_shardings"] = replicated_sharding(mesh)
  return hosts.compile_together(jax.jit(on_mesh(function, mesh), **options))


def check_batch(name: str, batch_size: int, mesh: Mesh, parts: int = 1) -> None:
  """Raises ValueError unless the batch splits evenly.

  `name` is the configuration key, for the message. Each device computes its
  share in `parts` equal parts, one after another.
  """
  shards = batch_shards(mesh)
  needed = shards * parts
  if batch_size < 1 or batch_size % needed:
    fits = max(1, -(-batch_size // needed)) * needed
    accumulated = f" x {parts} accumulation steps" if parts > 1 else ""
    raise ValueError(
      f"{name}={batch_size} does not split over {shards} devices{accumulated}; "
      f"the next size that does is {fits}."
    )


def padded_batch_size(batch_size: int, mesh: Mesh) -> int:
  """The size of an evaluation batch, rounded up to split over the mesh.

  The last batch is padded and masked anyway, so any size can be made to fit.

  >>> import jax
  >>> from vit_jax.training.sharding import make_mesh, padded_batch_size
  >>> padded_batch_size(10, make_mesh(devices=jax.devices()[:1]))
  10
  """
  shards = batch_shards(mesh)
  return -(-batch_size // shards) * shards


def to_device(
  batches: Iterable[dict[str, np.ndarray]], sharding: NamedSharding, ahead: int
) -> Iterator[dict[str, jax.Array]]:
  """Yields batches on the devices, and sends them there ahead of their use.

  A batch holds the rows of this host, and the sharding is over all hosts. While
  one batch is in use, the next `ahead` are sent.
  """
  send = functools.partial(jax.make_array_from_process_local_data, sharding)
  put = functools.partial(jax.tree.map, send)
  return start_ahead(map(put, batches), ahead)


def start_ahead(items: Iterable[Any], count: int) -> Iterator[Any]:
  """Yields items, each once the next `count` have been taken from the source.

  >>> from vit_jax.training.sharding import start_ahead
  >>> source = iter("abcde")
  >>> next(start_ahead(source, count=2)), next(source)
  ('a', 'd')
  """
  source = iter(items)
  waiting = collections.deque(itertools.islice(source, count))
  for item in source:
    waiting.append(item)
    yield waiting.popleft()
  yield from waiting


def steps_ahead() -> int:
  """How many steps may be under way while the host reads an older one.

  Two keep an accelerator from waiting for the host. On a CPU, nothing is
  computed sooner, but each step takes memory: three train steps of S/16 on 32
  images take 10 GB instead of 4.
  """
  return 0 if jax.default_backend() == "cpu" else 2


def fetch_results(results: Iterable[Any]) -> Iterator[Any]:
  """Yields the results of steps on the host, with `steps_ahead` under way."""
  for result in start_ahead(results, steps_ahead()):
    yield jax.device_get(result)
