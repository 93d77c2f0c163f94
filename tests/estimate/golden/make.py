"""Compiles a small program for absent TPUs, and cuts its text to what is read.

JAX_PLATFORMS=cpu python tests/estimate/golden/make.py v5e:2x2 tpu7x:2x2x1

writes TOPOLOGY_LIBTPU.txt beside this file for each topology, by the libtpu
that is installed. The program is a train step of three layers, which scan runs
as one, with their kernels split over the chips. `test_hlo.py` sums the
estimates of the files by hand.
"""

import importlib.metadata
import pathlib
import re
import sys

from vit_jax.estimate import set_environment

# What the parser finds in a line, beside name, type, opcode and operands.
READ = re.compile(
  r'channel_id=\d+|(?:calls|to_apply|body|condition)=%?[\w.\-]+|op_name="[^"]*"|'
  r'"estimated_cycles":"\d+"|"known_trip_count":\{"n":"\d+"'
)


def compiled(topology: str) -> str:
  """The text of the program, compiled for a topology."""
  set_environment()  # Before JAX is imported.
  import jax
  import jax.numpy as jnp
  from jax.sharding import NamedSharding, PartitionSpec

  from vit_jax.estimate import compiler
  from vit_jax.training import sharding

  _, devices = compiler.devices_of(topology)
  mesh = sharding.make_mesh(fsdp=len(devices), devices=devices)
  split = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
  whole = NamedSharding(mesh, PartitionSpec())
  rows = NamedSharding(mesh, PartitionSpec("fsdp"))

  def loss(kernels, x):
    def layer(x, kernel):
      kernel = jax.lax.with_sharding_constraint(
        kernel.astype("bfloat16"), whole
      )
      return jnp.tanh(x @ kernel), None

    return jnp.square(jax.lax.scan(layer, x, kernels)[0]).mean()

  def step(kernels, x):
    return kernels - 0.1 * jax.grad(loss)(kernels, x)

  kernels = jax.ShapeDtypeStruct((3, 1024, 1024), jnp.float32, sharding=split)
  x = jax.ShapeDtypeStruct((2048, 1024), jnp.bfloat16, sharding=rows)
  return (
    jax.jit(step, out_shardings=split).lower(kernels, x).compile().as_text()
  )


def cut(text: str) -> str:
  """The text without all that `hlo.read` passes over.

  Computations inside fusions keep their lines only if they communicate.
  """
  lines, held, fused = (
    [],
    [],
    re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text),
  )
  for line in text.splitlines():
    if line.startswith("}"):
      name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", held[0])
      if name and name[1] in fused and "channel_id" not in "".join(held):
        held = held[:1]
      lines += [*held, "}", ""]
      held = []
    elif line.endswith("{"):
      held = [line]
    elif held:
      shown = re.split(r", \w+=", line)[0]
      found = READ.findall(line.removeprefix(shown))
      held.append(", ".join([shown, *found]))
  return "\n".join(lines)


if __name__ == "__main__":
  version = importlib.metadata.version("libtpu")
  for topology in sys.argv[1:]:
    name = f"{topology.replace(':', '_')}_{version}.txt"
    path = pathlib.Path(__file__).with_name(name)
    path.write_text(cut(compiled(topology)))
