"""Compares the train step with a plain linen ViT's and with PyTorch's.

python scripts/bench/step.py --variant S/16 --batch 16

Times whole steps (forward, backward, Adam) on random images, on JAX's default
device; with --forward, predictions alone. All models take turns in one process,
round after round. The script prints a table: the median images per second; the
rate relative to vit_jax's; the rate of floating-point operations (of matrix
products, the backward pass counting twice) over that of bare products of the
dense layers' sizes, which take their turns as well; and over the peak of the
device's data sheet in bfloat16 (MFU).

--against names the others:

- `plain`: a ViT written as most are, with nn.MultiHeadDotProductAttention and
  one dense layer after the other;
- `flash`: vit_jax with cuDNN's flash attention, which needs a GPU;
- `hf` and `timm`: those libraries' ViTs in PyTorch, on a GPU if JAX is on one,
  else with as many threads as there are cores; --compile_torch adds
  torch.compile.

With --processor, the seconds are those of all threads together: on a CPU that
others use too, they say more than the clock's.

What cannot be measured gets a row that says why.
"""

import argparse
import functools
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from scripts.bench.models import CLASSES, FlashBlock, Models, Step, repeat
from vit_jax import make_vit
from vit_jax.runtime.command import keep_freed_memory
from vit_jax.training.operations import forward_gflops

OTHERS = ("plain", "flash", "hf", "timm")
# Dense bfloat16 TFLOP/s of NVIDIA's data sheets, by words of a device's name.
PEAKS = {
  "H100 PCIe": 756.0,
  "H100": 989.0,
  "H200": 989.0,
  "B200": 2250.0,
  "A100": 312.0,
  "L40S": 362.0,
  "L4": 121.0,
}
HEADER = (
  "| model | batch | images/s | x vit_jax | of matrix products | MFU |\n"
  "| --- | --- | --- | --- | --- | --- |"
)


def makers(
  models: Models, against: list[str], compile_torch: bool
) -> Iterator[tuple[str, Callable[[], Step]]]:
  """Names and makers of the models that take part, ours first."""
  yield "vit_jax", models.ours
  if not models.forward:
    yield "vit_jax, forward and backward alone", models.passes
  if "plain" in against:
    yield "plain linen ViT", models.plain
  if "flash" in against:
    flash = functools.partial(models.ours, FlashBlock)
    yield "vit_jax, cuDNN attention", flash
  for key, name, make in (
    ("hf", "Hugging Face", models.hugging_face),
    ("timm", "timm", models.timm),
  ):
    if key in against:
      yield f"{name}, eager", functools.partial(make, compiled=False)
      if compile_torch:
        yield f"{name}, torch.compile", functools.partial(make, compiled=True)


def operations(models: Models) -> float:
  """Operations of a step's matrix products; the backward pass counts twice."""
  model = make_vit(models.variant, CLASSES)
  shapes = jax.eval_shape(
    lambda: model.init(jax.random.key(0), jnp.zeros((1, *models.image_shape)))
  )
  params = nn.unbox(shapes["params"])
  images = len(models.batch["label"]) * (1 if models.forward else 3)
  return 1e9 * forward_gflops(model, params, models.image_shape) * images


def products(models: Models) -> tuple[Step, int]:
  """The dense layers' products, forward and backward, and their operations."""
  layers, D, mlp, _ = models.sizes
  patches = (models.image_shape[0] // models.patch) ** 2
  rows = len(models.batch["label"]) * (patches + 1)
  sizes = [(rows, D, D)] * 4 + [(rows, D, mlp), (rows, mlp, D)]
  sizes = [s for m, k, n in sizes for s in ((m, k, n), (m, n, k), (k, m, n))]
  shapes = {shape for m, k, n in sizes for shape in ((m, k), (k, n), (m, n))}
  key, dtype = jax.random.key(0), models.dtype
  given = {shape: jax.random.normal(key, shape, dtype) for shape in shapes}
  outs: Any = {shape: jnp.zeros(shape, dtype) for shape in shapes}

  # Writing to the last result's memory spares the mapping of new memory.
  @functools.partial(jax.jit, donate_argnums=2, keep_unused=True)
  def product(a, b, out):
    return a @ b

  def once() -> Any:
    for m, k, n in sizes * layers:
      outs[m, n] = product(given[m, k], given[k, n], outs[m, n])
    return outs

  return repeat(once), sum(2 * m * k * n for m, k, n in sizes) * layers


def compiled(
  found: Iterator[tuple[str, Callable[[], Step]]],
) -> tuple[dict[str, Step], dict[str, str]]:
  """The models that took a step, and why the others did not.

  A library that is missing, or a model that does not fit into memory, must not
  end the measurement of the others.
  """
  steps: dict[str, Step] = {}
  failures: dict[str, str] = {}
  for name, make in found:
    try:
      step = make()
      step(1)
      steps[name] = step
    except Exception as error:
      said = f"{type(error).__name__}: {error}".splitlines()[0]
      failures[name] = said.replace("|", "/")[:160]
  return steps, failures


def timed(
  steps: dict[str, Step],
  rounds: int,
  times: int,
  clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
  """Seconds of a step of each, in turns."""
  seconds: dict[str, list[float]] = {name: [] for name in steps}
  for _ in range(rounds):
    for name, step in steps.items():
      start = clock()
      step(times)
      seconds[name].append((clock() - start) / times)
  return seconds


def peak_of(device_kind: str) -> float | None:
  """TFLOP/s in bfloat16 of a device's data sheet; None if it is not listed."""
  for words, peak in PEAKS.items():
    if re.search(rf"\b{words.replace(' ', '.*')}\b", device_kind):
      return peak
  return None


def rows(options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
  """The cells of each row of the table."""
  task = "prediction" if options.forward else "training"
  about = f"{options.variant} at {options.side}, {task}"
  models = Models(
    *(options.variant, options.batch, options.side),
    *(options.dtype, options.forward),
  )
  bare, multiplied = products(models)
  found = makers(models, options.against, options.compile_torch)
  steps, failures = compiled(found)
  bare(1)  # Compiles.
  clock = time.process_time if options.processor else time.perf_counter
  seconds = timed({**steps, "": bare}, options.rounds, options.steps, clock)
  products_seconds = seconds.pop("")
  peak = peak_of(jax.devices()[0].device_kind)
  count = operations(models)
  for name, taken in seconds.items():
    middle = statistics.median(taken)
    ratio = middle_and_range(seconds.get("vit_jax", taken), taken)[0]
    share, low, high = (
      share * count / multiplied
      for share in middle_and_range(products_seconds, taken)
    )
    mfu = ""
    if peak and models.dtype == jnp.bfloat16:
      mfu = f"{count / middle / peak / 1e12:.3f}"
    yield (
      *(f"{about}, {name}", str(options.batch)),
      *(f"{options.batch / middle:,.2f}", f"{ratio:.2f}"),
      *(f"{share:.2f} ({low:.2f} to {high:.2f})", mfu),
    )
  for name, said in failures.items():
    words = f"not measured: {said}"
    yield f"{about}, {name}", str(options.batch), words, "", "", ""


def middle_and_range(
  ours: list[float], others: list[float]
) -> tuple[float, float, float]:
  """Median, least and largest of the quotients of each round's seconds."""
  found = sorted(a / b for a, b in zip(ours, others, strict=True))
  return statistics.median(found), found[0], found[-1]


def main() -> None:
  parser = argparse.ArgumentParser(description="Time a step.")
  parser.add_argument("--variant", default="S/16")
  parser.add_argument("--batch", type=int, default=16)
  parser.add_argument("--side", type=int, default=224)
  parser.add_argument("--dtype", default="float32")
  parser.add_argument("--forward", action="store_true", help="predict only")
  parser.add_argument(
    "--processor", action="store_true", help="processor time, not the clock's"
  )
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--steps", type=int, default=1, help="steps of a turn")
  parser.add_argument(
    "--against", nargs="*", choices=OTHERS, default=("plain", "hf")
  )
  parser.add_argument("--compile_torch", action="store_true")
  options = parser.parse_args()
  keep_freed_memory()  # As the commands do; the other models gain from it too.
  print(HEADER)
  for cells in rows(options):
    print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
  main()
