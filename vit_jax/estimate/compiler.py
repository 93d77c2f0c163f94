"""Compiles a step for TPUs that are absent, and reads what it costs.

XLA's TPU compiler needs no TPU, only a description of the chips.
"""

import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from vit_jax.data.batch import batch_spec
from vit_jax.estimate import hlo, network
from vit_jax.inference.predictor import make_predict_step
from vit_jax.run import fastest
from vit_jax.run.plan import Plan, plan_of_shapes
from vit_jax.run.settings import Settings
from vit_jax.training import memory, sharding
from vit_jax.training.operations import count_operations, forward_gflops
from vit_jax.training.state import make_params_init

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """A TPU chip, with the figures that Google Cloud publishes.

  `flop_per_cycle` is the number of operations of the matrix units in a cycle,
  and `mhz` their clock: the peak in bfloat16 is the product of both. Both are
  None where no clock is published. A link carries `link_gb` GB/s each way (v3
  and v4: arXiv:2304.01433, Table 4; the others: the bandwidth of a chip over
  its number of links). A row of `ring` chips, or of a multiple, is closed to a
  ring.
  """

  hbm_gib: float
  flop_per_cycle: int | None
  mhz: int | None
  link_gb: int
  ring: int
  devices: int = 1  # Number of JAX devices on one chip.


CHIPS = {
  "v3": Chip(32, 131_072, 940, 70, 32, devices=2),
  "v4": Chip(32, 262_144, 1_050, 50, 4),
  "v5e": Chip(16, 131_072, 1_500, 50, 16),
  "v5p": Chip(95, 262_144, 1_750, 100, 4),
  "v6e": Chip(32, 524_288, 1_750, 100, 16),
  "tpu7x": Chip(192, None, None, 100, 4, devices=2),  # Ironwood.
}


class Lowered(NamedTuple):
  """A step that is ready to be compiled.

  Attributes:
    step: The lowered program.
    gflops: Its operations for an image, in units of 1e9.
    mesh: The mesh of the devices.
    plan: The plan of the run that it is a step of.
    fastest: A line to print if it takes the fastest known settings, else None.
  """

  step: Any
  gflops: float
  mesh: Mesh
  plan: Plan
  fastest: str | None = None


class DoesNotFit(ValueError):
  """Raised if the program needs more memory than a chip has."""


class NotCompiled(ValueError):
  """Raised if the compiler fails for another reason than memory."""


def estimate(
  settings: Settings,
  chip: Chip,
  devices: list[Any],
  num_classes: int,
  num_examples: int,
  forward: bool = False,
) -> tuple[dict[str, Any], str]:
  """Compiles the train step; returns a row of its costs, and its HLO's text.

  Where batches have several shapes, each has a program; `programs` says how
  many, and the row is that of the one that needs the most memory.

  With `forward`, it compiles the prediction of a batch instead. The row's
  `fastest` says which settings the step took from `run.fastest`, if any. If
  images keep their proportions, `padding` has the result of `padding.shares`;
  otherwise it is None. Raises DoesNotFit if the step needs more memory than a
  chip has, NotCompiled if the compiler fails otherwise, and ValueError if the
  configuration cannot be built.
  """
  if forward:
    mesh = sharding.make_mesh(**vars(settings.mesh), devices=devices)
    every = [lower_forward(settings, mesh, num_classes)]
  else:
    every = lower(settings, devices, num_classes, num_examples)
  lowered = every[0]
  images = settings.batch_size / len(devices)
  costs = [
    cost(one.step, chip, one.mesh, images=images, gflops=one.gflops)
    for one in every
  ]
  row, text = max(costs, key=lambda found: found[0]["hbm_gib"]["peak"])
  row |= {"programs": len(every), "fastest": lowered.fastest, "padding": None}
  patches = lowered.plan.preprocessing.patches
  if patches is not None:
    from vit_jax.estimate import padding

    packing = None if forward else lowered.plan.packing
    tflop = row["model_tflop"]
    row["padding"] = padding.shares(settings, patches, packing, tflop)
  return row, text


def cost(
  lowered: Any,
  chip: Chip,
  mesh: Mesh,
  images: float,
  gflops: float,
) -> tuple[dict[str, Any], str]:
  """Compiles a lowered step; returns a row of its costs, and its HLO's text.

  `images` is the number per device, and `gflops` is per image. Raises
  DoesNotFit if the step needs more memory than a device has, NotCompiled if the
  compiler fails otherwise, and ValueError if it has estimated no cycles.
  """
  start = time.perf_counter()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    raise to_own_error(error) from error
  seconds = time.perf_counter() - start
  text = compiled.as_text()
  ops = hlo.read(text)
  cycles = hlo.total_cycles(ops)
  model_flop = gflops * 1e9 * images
  coords = np.array([device.coords for device in mesh.devices.flat])
  rate = chip.link_gb * 1e3 / (chip.mhz or 1)
  low_and_high = network.step_cycles(ops, coords, rate, chip.ring)
  # XLA counts the body of a loop once.
  compiled_flop = compiled.cost_analysis().get("flops", 0.0)
  needs = memory.Needs.of(compiled)
  assert needs is not None  # The TPU compiler tells them.
  per_device = chip.hbm_gib / chip.devices
  peak = needs.total
  if peak > per_device * GIB:  # The compiler may let this pass.
    raise DoesNotFit(_memory(f"{peak / GIB:.2f}G", f"{per_device:g}G"))
  mfu = images_per_second = step_ms = None
  if chip.flop_per_cycle:
    mfu = model_flop * chip.devices / (cycles * chip.flop_per_cycle)
  if chip.mhz:
    images_per_second = images * chip.devices / cycles * chip.mhz * 1e6
    step_ms = [count / chip.mhz / 1e3 for count in low_and_high]
  row = {
    "chips": mesh.size // chip.devices,
    "mesh": dict(mesh.shape),
    "images_per_chip": images * chip.devices,
    "hbm_gib": {
      "arguments": needs.arguments * chip.devices / GIB,
      "temporaries": needs.temporaries * chip.devices / GIB,
      "peak": peak * chip.devices / GIB,
      "of": per_device * chip.devices,
    },
    "model_tflop": model_flop * chip.devices / 1e12,
    "compiled_tflop": compiled_flop * chip.devices / 1e12,
    "mcycles": cycles / 1e6,
    "mfu": mfu,
    "images_per_second": images_per_second,
    "step_ms": step_ms,
    "collectives": {
      kind: {"count": count, "mib": size / 2**20}
      for kind, (count, size) in hlo.collective_bytes(ops).items()
    },
    "without_estimate": hlo.count_without_estimate(ops),
    "by_op": hlo.rows_by_source(ops),
    "compile_seconds": seconds,
  }
  return row, text


def lower(
  settings: Settings, devices: list[Any], num_classes: int, num_examples: int
) -> list[Lowered]:
  """Lowers the settings' train step, for each shape that a batch may have.

  Raises ValueError if the configuration cannot be built.
  """
  plan = plan_of_shapes(
    settings,
    num_classes=num_classes,
    num_examples=num_examples,
    devices=devices,
  ).checked()
  line = fastest.fastest_line(plan.settings, plan.task, plan.model, devices)
  return [
    Lowered(plan.jitted_step.lower(*shapes), work.step, plan.mesh, plan, line)
    for shapes, work in zip(
      plan.step_shapes, plan.operations_by_shape, strict=True
    )
  ]


def lower_forward(settings: Settings, mesh: Mesh, num_classes: int) -> Lowered:
  """Lowers the prediction of a batch.

  Every device holds all parameters, in the dtype in which the model computes.
  Raises ValueError if the batch does not split over the devices, or the
  configuration cannot be built.
  """
  size = settings.batch_size
  sharding.check_batch("batch_size", size, mesh)
  plan = plan_of_shapes(
    settings,
    num_classes=num_classes,
    num_examples=size,
    devices=list(mesh.devices.flat),
  )
  model, preprocessing = plan.model.trunk, plan.preprocessing
  shape = preprocessing.image_shape
  step = make_predict_step(
    model, **preprocessing.normalization, task=plan.task, top=1
  )
  whole = sharding.replicated_sharding(mesh)
  shapes = jax.eval_shape(make_params_init(model, shape), jax.random.key(0))
  params = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, model.dtype, sharding=whole),
    nn.unbox(shapes),
  )
  rows = sharding.batch_sharding(mesh)
  batch = {
    name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)
    for name, array in batch_spec(preprocessing.transform().spec, size).items()
  }
  if preprocessing.patches is None:
    gflops = forward_gflops(model, params, shape)
  else:  # Images of any size do not have this shape.
    gflops = count_operations(step, params, batch) / size / 1e9
  lowered = sharding.jit_replicated(step, mesh).lower(params, batch)
  return Lowered(lowered, gflops, mesh, plan)


def devices_of(name: str) -> tuple[Chip, list[Any]]:
  """The chip of a topology, and descriptions of its devices.

  Raises ValueError if the topology is unknown, or there is no TPU compiler.
  """
  kind, _, shape = name.partition(":")
  if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
    raise ValueError(
      f"--topology={name} must be one of {', '.join(CHIPS)} followed by the "
      "number of chips along each axis, as in v5e:2x4 or v5p:2x2x1."
    )
  options: dict[str, Any] = {}
  if kind == "v5e":
    bounds = (1, 1, 1) if shape == "1x1" else (2, 2, 1)
    options = dict(chip_config_name="default", chips_per_host_bounds=bounds)
  if kind == "v4":  # JAX sees both cores of a v4 chip as one device.
    bounds = (2, 2, 1)
    options = dict(chip_config_name="megacore", chips_per_host_bounds=bounds)
  try:
    described = topologies.get_topology_desc(
      platform="tpu", topology_name=name, **options
    )
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    reason = str(error).splitlines()[0]
    message = (
      f"the compiler does not know --topology={name} ({reason}): give another "
      "one, such as v5e:2x4."
    )
    if "not installed" in reason or "libtpu" in reason:
      message = 'the TPU compiler is not installed: pip install "vit_jax[tpu]".'
    raise ValueError(message) from error
  return CHIPS[kind], list(described.devices)


def to_own_error(error: Exception) -> Exception:
  """`DoesNotFit` for the compiler's error on memory, else `NotCompiled`."""
  sizes = re.search(
    r"Used ([\d.]+\w) of ([\d.]+\w) hbm|"
    r"\(([\d.]+\w)\) exceeds available HBM \(([\d.]+\w)\)",
    str(error),
  )
  if sizes:
    return DoesNotFit(_memory(*filter(None, sizes.groups())))
  if "RESOURCE_EXHAUSTED" in str(error):
    return DoesNotFit(str(error).splitlines()[0])
  line, *_ = str(error).strip().splitlines() or [type(error).__name__]
  return NotCompiled(f"the compiler failed: {line}")


def changes(settings: Settings, num_devices: int) -> Iterator[dict[str, Any]]:
  """Yields changes of settings that save memory, the least slow ones first.

  Each is a dictionary with the values of dotted keys.
  """
  # Groups of devices, each with images of its own.
  groups = num_devices // max(1, settings.mesh.tensor)
  if (settings.mesh.fsdp or 1) < groups:
    yield {"mesh.fsdp": groups}
  yield {"mesh.fsdp": groups, "model.remat": "dots"}
  most = {"mesh.fsdp": groups, "model.remat": "full", "model.scan": True}
  yield most
  size = settings.batch_size // 2
  while size >= groups and size % groups == 0:
    yield {**most, "batch_size": size}
    size //= 2


def _memory(needed: str, available: str) -> str:
  """The message of `DoesNotFit`."""
  return f"it needs {needed} of HBM, and a device has {available}."
