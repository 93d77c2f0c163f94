"""Compiles a configuration's train step for TPUs that are not there.

python scripts/compile_for.py --config configs/pretrain.py:B/16,imagenet21k \
  --topology v5e:2x4 --config.batch_size=512

XLA's own TPU compiler runs on this machine (`pip install -c constraints.txt -e
".[tpu]"`), for chips that it is told of. Printed are the memory that each chip
needs against what it has, XLA's estimate of its work in cycles, and the bytes
that go between chips. Communication has no estimate, so the share of the peak
("MFU") is that of a chip which never waits. Exit code 1: the step does not fit;
the smallest change that makes it fit is looked for and printed.

No data is read: --num_classes and --num_examples say what the data set would.
"""

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

# The compiler asks a TPU's surroundings about itself unless told not to, and
# wants to be alone.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags
from jax.experimental import topologies
from jax.sharding import Mesh
from ml_collections import config_flags

from vit_jax import command, experiment, hlo, sharding
from vit_jax.config import resolve_steps

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.")
_TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x4", "KIND:CHIPSxCHIPS.")
_NUM_CLASSES = flags.DEFINE_integer("num_classes", None, "Of the data set.")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", None, "Training images.")
_BY_OP = flags.DEFINE_integer("by_op", 0, "Print this many operations' cycles.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
_SUGGEST = flags.DEFINE_bool("suggest", True, "Look for what fits instead.")
_SAVE_HLO = flags.DEFINE_string("save_hlo", None, "File for the program.")
flags.mark_flag_as_required("config")

GIB = 2**30
# Classes and training images where the data set is not read.
DATA_SETS = {
  "imagenet2012": (1000, 1_281_167),
  "imagenet21k": (21_843, 14_197_122),
  "jft300m": (18_291, 303_000_000),
  "cifar10": (10, 50_000),
  "cifar100": (100, 50_000),
  "oxford_iiit_pet": (37, 3_680),
  "oxford_flowers102": (102, 2_040),
  "digits": (10, 1_438),
}


@dataclasses.dataclass(frozen=True)
class Chip:
  """A TPU: memory, peak and clock, as Google Cloud publishes them.

  `flop_per_cycle` is the peak in bfloat16 over the clock of the matrix units.
  """

  hbm_gib: float
  flop_per_cycle: int
  devices: int = 1  # That JAX sees of one chip.


CHIPS = {
  "v3": Chip(32, 131_072, devices=2),
  "v4": Chip(32, 262_144, devices=2),
  "v5e": Chip(16, 131_072),
  "v5p": Chip(95, 262_144),
  "v6e": Chip(32, 524_288),
}


def main(_: list[str]) -> int:
  chip, devices = _devices(_TOPOLOGY.value)
  config = _CONFIG.value
  _say(f"Compiling for {_TOPOLOGY.value} ...")
  try:
    row = report(config, chip, devices)
  except DoesNotFit as error:
    print(f"{_TOPOLOGY.value}: does not fit: {error}")
    if _SUGGEST.value:
      print(_suggestion(config, chip, devices))
    return 1
  print(json.dumps(row) if _JSON.value else _table(row))
  return 0


class DoesNotFit(ValueError):
  """The program needs more memory than a chip has."""


def report(
  config: ml_collections.ConfigDict, chip: Chip, devices: list[Any]
) -> dict[str, Any]:
  """Compiles the train step and reads off what it costs.

  Raises:
    DoesNotFit: if a chip's memory does not hold it.
    ValueError: if the configuration cannot be built.
  """
  mesh = sharding.make_mesh(**config.mesh, devices=devices)
  lowered, forward_gflops = lower(config, mesh)
  start = time.perf_counter()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    raise _explained(error) from error
  seconds = time.perf_counter() - start
  text = compiled.as_text()
  if _SAVE_HLO.value:
    with open(_SAVE_HLO.value, "w") as file:
      file.write(text)
  ops = hlo.read(text)
  cycles = hlo.total_cycles(ops)
  images = config.batch_size / len(devices)
  # Forward, and twice as much backward.
  model_flop = 3 * forward_gflops * 1e9 * images
  memory = compiled.memory_analysis()
  per_device = chip.hbm_gib / chip.devices
  held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  extra = memory.output_size_in_bytes - memory.alias_size_in_bytes
  if held + extra > per_device * GIB:  # Which the compiler may let pass.
    raise DoesNotFit(
      f"{(held + extra) / GIB:.2f}G of {per_device:g}G HBM a device."
    )
  return {
    "topology": _TOPOLOGY.value,
    "chips": len(devices) // chip.devices,
    "mesh": dict(mesh.shape),
    "images_per_chip": images * chip.devices,
    "hbm_gib": {
      "arguments": memory.argument_size_in_bytes * chip.devices / GIB,
      "temporaries": memory.temp_size_in_bytes * chip.devices / GIB,
      "peak": (held + extra) * chip.devices / GIB,
      "of": per_device * chip.devices,
    },
    "model_tflop": model_flop * chip.devices / 1e12,
    "compiled_tflop": _compiled_flop(compiled) * chip.devices / 1e12,
    "mcycles": cycles / 1e6,
    "mfu": model_flop / (cycles * chip.flop_per_cycle / chip.devices),
    "collectives": {
      kind: {"count": count, "mib": size / 2**20}
      for kind, (count, size) in hlo.collective_bytes(ops).items()
    },
    "without_estimate": hlo.without_estimate(ops),
    "by_op": hlo.by_source(ops)[: _BY_OP.value],
    "compile_seconds": seconds,
  }


def lower(config: ml_collections.ConfigDict, mesh: Mesh) -> tuple[Any, float]:
  """The configuration's train step, lowered, and GFLOP to classify an image."""
  parts = config.accumulation_steps
  sharding.check_batch("batch_size", config.batch_size, mesh, parts)
  num_classes, num_examples = _data_set(config)
  names = tuple(map(str, range(num_classes)))
  config = experiment.resolved(config, None)
  model = experiment.build_model(config, names)
  total = resolve_steps(config, "total", config.batch_size, num_examples)
  init, step = experiment.train_functions(config, model, total, num_examples)
  shapes = experiment.array_shapes(init, mesh)
  shardings = jax.tree.map(lambda shape: shape.sharding, shapes)
  rows, size = sharding.batch_sharding(mesh), experiment.image_size(config)

  def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    batched = (config.batch_size, *shape)
    return jax.ShapeDtypeStruct(batched, dtype, sharding=rows)

  batch = {
    "image": array((*size, 3), jnp.uint8),
    "label": array((), jnp.int32),
    "skipped": array((), jnp.bool_),
  }
  jitted = jax.jit(
    sharding.on_mesh(step, mesh),
    in_shardings=(shardings, rows),
    out_shardings=(shardings, sharding.replicated(mesh)),
    donate_argnums=0,
  )
  gflops = experiment.forward_gflops(model, shapes.params, size)
  return jitted.lower(shapes, batch), gflops


def _data_set(config: ml_collections.ConfigDict) -> tuple[int, int]:
  """(classes, training images), from the flags or of a known data set."""
  known = DATA_SETS.get(config.data.name, (0, 0))
  found = (_NUM_CLASSES.value or known[0], _NUM_EXAMPLES.value or known[1])
  if not all(found):
    raise ValueError(
      f"data.name={config.data.name!r} is not known here: give --num_classes "
      "and --num_examples."
    )
  return found


def _devices(name: str) -> tuple[Chip, list[Any]]:
  """The chip of a topology, and its devices, none of them real."""
  kind, _, shape = name.partition(":")
  if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
    raise ValueError(
      f"--topology={name} should be one of {', '.join(CHIPS)} and its shape in "
      "chips, as in v5e:2x4 or v5p:2x2x1."
    )
  options: dict[str, Any] = {}
  if kind == "v5e":
    one = shape == "1x1"
    options["chip_config_name"] = "default"
    options["chips_per_host_bounds"] = (1, 1, 1) if one else (2, 2, 1)
  try:
    described = topologies.get_topology_desc(
      platform="tpu", topology_name=name, **options
    )
  except (jax.errors.JaxRuntimeError, RuntimeError) as error:
    reason = str(error).splitlines()[0]
    missing = "not installed" in reason or "libtpu" in reason
    raise ValueError(
      "the TPU compiler is not installed: "
      'pip install -c constraints.txt -e ".[tpu]".'
      if missing
      else f"--topology={name} is not one that the compiler knows ({reason})."
    ) from error
  return CHIPS[kind], list(described.devices)


def _explained(error: Exception) -> Exception:
  """What the compiler says when memory is short, in a line."""
  used = re.search(
    r"Used ([\d.]+\w) of ([\d.]+\w) hbm|"
    r"\(([\d.]+\w)\) exceeds available HBM \(([\d.]+\w)\)",
    str(error),
  )
  if used:
    needed, there = (number for number in used.groups() if number)
    return DoesNotFit(f"{needed} of {there} HBM a device.")
  if "RESOURCE_EXHAUSTED" in str(error):
    return DoesNotFit(str(error).splitlines()[0])
  return error


def _suggestion(
  config: ml_collections.ConfigDict, chip: Chip, devices: list[Any]
) -> str:
  """The first of a few changes, the cheapest first, that makes it fit."""
  for change in _changes(config, len(devices)):
    trial = config.copy_and_resolve_references()
    trial.update_from_flattened_dict(change)
    text = " ".join(f"--config.{k}={v}" for k, v in change.items())
    _say(f"Trying {text} ...")
    try:
      row = report(trial, chip, devices)
    except ValueError:
      continue
    peak, mfu = row["hbm_gib"]["peak"], row["mfu"]
    return f"This fits, with {peak:.1f} GiB a chip and MFU {mfu:.2f}: {text}"
  return "Nothing that was tried fits: take more chips."


def _changes(
  config: ml_collections.ConfigDict, num_devices: int
) -> Iterator[dict[str, Any]]:
  """Changes of a configuration that cost more and more time, or images."""
  if config.mesh.fsdp < num_devices:
    yield {"mesh.fsdp": num_devices}
  yield {"mesh.fsdp": num_devices, "model.remat": "dots"}
  yield {"mesh.fsdp": num_devices, "model.remat": "full", "model.scan": True}
  size = config.batch_size // 2
  while size >= num_devices and size % num_devices == 0:
    change = {"mesh.fsdp": num_devices, "model.remat": "full"}
    yield {**change, "model.scan": True, "batch_size": size}
    size //= 2


def _compiled_flop(compiled: Any) -> float:
  """XLA's count; it counts a loop's body once."""
  cost = compiled.cost_analysis()
  cost = cost[0] if isinstance(cost, list) else cost
  return cost.get("flops", 0.0)


def _table(row: dict[str, Any]) -> str:
  hbm = row["hbm_gib"]
  mesh = " x ".join(f"{size} {axis}" for axis, size in row["mesh"].items())
  lines = [
    ("chips", f"{row['chips']} of {row['topology']}, mesh {mesh}"),
    ("images a chip", f"{row['images_per_chip']:g}"),
    (
      "memory a chip",
      (
        f"{hbm['peak']:.2f} of {hbm['of']:g} GiB: arguments "
        f"{hbm['arguments']:.2f}, temporaries {hbm['temporaries']:.2f}"
      ),
    ),
    (
      "TFLOP a chip",
      (
        f"{row['model_tflop']:.2f} of the model, {row['compiled_tflop']:.2f} "
        "compiled (a loop's body counted once)"
      ),
    ),
    ("estimated", f"{row['mcycles']:.1f} Mcycles, MFU {row['mfu']:.3f}"),
    ("between chips", _collectives(row["collectives"])),
    (
      "no estimate",
      ", ".join(f"{n} {k}" for k, n in row["without_estimate"].items()),
    ),
    ("compiled in", f"{row['compile_seconds']:.0f} s"),
  ]
  text = [f"{name:<15}{value}" for name, value in lines]
  for source, shape, times, cycles in row["by_op"]:
    text.append(
      f"{cycles / 1e6:8.2f}  {times:4} x {cycles / times / 1e6:6.3f}  "
      f"{source[-70:]:70}  {shape[:60]}"
    )
  return "\n".join(text)


def _collectives(found: dict[str, dict[str, Any]]) -> str:
  return (
    ", ".join(
      f"{row['count']} {kind} {row['mib']:.1f} MiB"
      for kind, row in found.items()
    )
    or "nothing"
  )


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  command.run(main)
