"""Estimates what a configuration's step costs on TPUs, without a TPU.

vit_jax estimate --config pretrain:B/16,imagenet21k
vit_jax estimate --config deit3:L/16 --topology v5e:4x4 --forward

XLA's own TPU compiler runs on this machine (`pip install "vit_jax[tpu]"`) and
compiles for the chips that --topology names. The command prints the memory that
each chip needs and has, XLA's estimate of its work in cycles, and the bytes
sent between chips. The share of the peak ("MFU") is that of a chip which never
waits. The times "with the network" add the time that these bytes take at the
published rate of the links: first the part that no computation can hide, then
all of it. Ironwood's clock is not published, so tpu7x has cycles alone. Pallas
kernels, those of model.splash, are counted under "no estimate": their time is
missing from all of these figures. If the train step does not fit into memory,
the command tries changes that save memory, the cheapest first, prints the first
that makes it fit, and exits with 1.

With --tune, it searches for the settings with which the step takes the least
time, and prints them as flags; --write puts them into a configuration.
`vit_jax estimate --tune deit3:L/16 --topology v5e:2x4` compiles up to --trials
steps, minutes each, and continues where it was stopped.

With --forward, the step is the prediction of a batch: the command prints how
many images a chip classifies in a second, and the memory that it needs.

No images are decoded. For data sets other than the paper's, --num_classes and
--num_examples give the sizes. For images that keep their proportions
(data.tokens), the headers of up to 256 images of --config.data.root tell how
many of the patches are padding.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from vit_jax.estimate import set_environment
from vit_jax.runtime import command
from vit_jax.runtime.files import output_file, replacing
from vit_jax.runtime.printable import say

if TYPE_CHECKING:
  from vit_jax.estimate.compiler import Chip
  from vit_jax.run.settings import Settings

# (classes, training images) of known data sets, none of which is read.
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


def define_flags() -> None:
  """Defines the flags of this command and those of a configuration.

  It also replaces DATA and short flags in `sys.argv` by the --config flags that
  they stand for (`run.flags.expanded`).
  """
  from vit_jax.run.flags import define_config_file, expanded

  define_config_file()
  flags.DEFINE_string("topology", "v5e:2x4", "Kind and arrangement of chips.")
  flags.DEFINE_integer(
    "num_classes", None, "Number of classes of the data set.", 1
  )
  flags.DEFINE_integer("num_examples", None, "Number of training images.", 1)
  flags.DEFINE_integer(
    "by_op", 0, "Print the cycles of this many of the costliest operations.", 0
  )
  flags.DEFINE_bool(
    "forward",
    False,
    "Estimate one prediction of a batch, in place of a train step.",
  )
  flags.DEFINE_bool("json", False, "Print one JSON object instead of a table.")
  flags.DEFINE_bool(
    "suggest", True, "If the step does not fit, look for a change that helps."
  )
  flags.DEFINE_bool("tune", False, "Search for the fastest settings.")
  flags.DEFINE_integer(
    "trials", 16, "Largest number of train steps that --tune compiles.", 1
  )
  flags.DEFINE_string("write", None, "Configuration (.py) for --tune to write.")
  flags.DEFINE_string(
    "save_hlo", None, "File to write the compiled program (HLO) to."
  )
  sys.argv[1:] = expanded(sys.argv[1:])


def main(_: list[str]) -> int:
  """Prints the estimate, or tunes with --tune; returns the exit code.

  Raises ValueError if the topology is unknown, a file cannot be written under
  its name, the configuration cannot be built, or the compiler fails otherwise
  than for lack of memory.
  """
  options = flags.FLAGS
  topology = options.topology
  if options.tune:
    return _tune(options)
  program = None
  if options.save_hlo:
    kinds = {"HLO": (".hlo", ".txt")}
    program = output_file(options.save_hlo, kinds)[0]
  set_environment()
  from vit_jax.estimate import compiler
  from vit_jax.run.flags import config_settings

  settings = config_settings()
  sizes = _data_set(settings)
  chip, devices = compiler.devices_of(topology)
  say(f"Compiling for {topology} ...")
  try:
    row, text = compiler.estimate(
      settings, chip, devices, *sizes, forward=options.forward
    )
  except compiler.DoesNotFit as error:
    lines = sys.stdout
    if options.json:
      lines = sys.stderr
      row = {"topology": topology, "why": f"does not fit: {error}"}
      say(json.dumps(row), sys.stdout, whole=True)
    say(f"{topology}: does not fit: {error}", lines)
    if options.suggest and not options.forward:
      say(suggestion(settings, chip, devices, sizes), lines)
    return 1
  if program:
    with replacing(program) as file:
      file.write(text.encode())
  row = {"topology": topology, **row}
  row["by_op"] = row["by_op"][: options.by_op]
  text = json.dumps(row) if options.json else _table(row)
  say(text, sys.stdout, whole=options.json)
  return 0


def _tune(options: Any) -> int:
  """Searches for settings, prints them, and writes them if --write is given.

  Returns the exit code. Raises ValueError if the file of --write must not be
  replaced, or as `tune.tune` does.
  """
  path = None
  if options.write:
    path = output_file(options.write, {"Python": (".py",)})[0]
  set_environment()
  from vit_jax.estimate import tune, tuned_config
  from vit_jax.run.config_file import load_config
  from vit_jax.run.flags import config_name, config_settings
  from vit_jax.run.settings import read

  settings = config_settings()
  if path:
    tuned_config.check_target(path, config_name())
  sizes = _data_set(settings)
  topology, most = options.topology, options.trials
  best, rows = tune.tune(settings, topology, sizes, most=most)
  changes = best.changes(settings)
  text = [*tune.report(best, rows, settings), _table(rows[best])]
  if options.json:
    record = {**rows[best], "changes": changes, "trials": len(rows)}
    text = [json.dumps(record)]
  say("\n".join(text), sys.stdout, whole=options.json)
  if path:
    name = config_name()
    overrides = tuned_config.differing_keys(read(load_config(name)), settings)
    tuned_config.write(path, name, {**overrides, **changes}, topology)
  return 0


def _data_set(settings: "Settings") -> tuple[int, int]:
  """(classes, training images), from the flags or else of a known data set.

  Raises ValueError if neither gives them, or for a folder without the flags.
  """
  data = settings.data
  folder = data.root or data.dir
  name = None if folder else data.name
  num_classes, num_examples = DATA_SETS.get(name or "", (0, 0))
  num_classes = flags.FLAGS.num_classes or num_classes
  num_examples = flags.FLAGS.num_examples or num_examples
  if not (num_classes and num_examples):
    shown = folder or f"data.name={name!r}"
    raise ValueError(
      f"the size of {shown} is unknown: give --num_classes and --num_examples."
    )
  return num_classes, num_examples


def suggestion(
  settings: "Settings", chip: "Chip", devices: list[Any], sizes: tuple[int, int]
) -> str:
  """Tries a few changes, the cheapest first, until the step fits.

  Returns the line to print: the change that makes it fit, or that none does.
  """
  from vit_jax.estimate import compiler
  from vit_jax.runtime.settings import replaced

  failures, refusals, too_large = [], [], 0
  for change in compiler.changes(settings, len(devices)):
    text = " ".join(f"--config.{k}={v}" for k, v in change.items())
    say(f"Trying {text} ...")
    try:
      trial = replaced(settings, change)
      row, _ = compiler.estimate(trial, chip, devices, *sizes)
    except compiler.DoesNotFit:
      too_large += 1
      continue
    except compiler.NotCompiled as error:
      failures.append(str(error))
      say(failures[-1])
      continue
    except ValueError as error:
      refusals.append(str(error))
      continue
    peak = row["hbm_gib"]["peak"]
    mfu = row["mfu"]
    speed = f"{row['mcycles']:.1f} Mcycles" if mfu is None else f"MFU {mfu:.2f}"
    return f"This fits, with {peak:.1f} GiB per chip and {speed}: {text}"
  if failures:
    return (
      "None of the changes that compile makes it fit, and at least one does "
      f"not compile: {failures[0]}"
    )
  if refusals and not too_large:
    return f"None of these changes is possible: {refusals[0]}"
  return "None of these changes makes it fit: use more chips."


_TABLE = """\
chips          {chips} of {topology}, mesh {mesh}
images/chip    {images_per_chip:g}
memory/chip    {hbm_gib[peak]:.2f} of {hbm_gib[of]:g} GiB: \
arguments {hbm_gib[arguments]:.2f}, temporaries {hbm_gib[temporaries]:.2f}
TFLOP/chip     {model_tflop:.2f} in the model, {compiled_tflop:.2f} compiled \
(counting a loop's body once)
estimated      {mcycles:.1f} Mcycles, {speed}
between chips  {collectives}
no estimate    {without_estimate}
compiled in    {compile_seconds:.0f} s"""


def _table(row: dict[str, Any]) -> str:
  """The table that is printed for a row of `compiler.estimate`."""
  sent = row["collectives"].items()
  unknown = row["without_estimate"].items()
  speed = "and no time: the clock of this chip is not published"
  if row["mfu"] is not None:
    rate = f"{row['images_per_second']:,.0f} images/s per chip"
    waits = "{:.1f} to {:.1f} ms with the network".format(*row["step_ms"])
    speed = f"MFU {row['mfu']:.3f}, {rate}, {waits}"
  texts = {
    "speed": speed,
    "mesh": " x ".join(f"{size} {axis}" for axis, size in row["mesh"].items()),
    "collectives": ", ".join(
      f"{one['count']} {kind} {one['mib']:.1f} MiB" for kind, one in sent
    ),
    "without_estimate": ", ".join(f"{n} {k}" for k, n in unknown),
  }
  texts["collectives"] = texts["collectives"] or "nothing"
  text = [_TABLE.format(**row | texts)]
  if row.get("programs", 1) > 1:
    text.append(
      f"programs       {row['programs']}, for batches of several sizes; these "
      "figures are those of the one that needs the most memory"
    )
  if row.get("padding"):
    from vit_jax.estimate import padding

    text.append(f"padding        {padding.describe(row['padding'])}")
  if row["fastest"]:
    text.append(f"settings       {row['fastest']}")
  for source, shape, times, cycles in row["by_op"]:
    text.append(
      f"{cycles / 1e6:8.2f}  {times:4} x {cycles / times / 1e6:6.3f}  "
      f"{source[-70:]:70}  {shape[:60]}"
    )
  return "\n".join(text)


if __name__ == "__main__":
  command.run(
    main,
    define=define_flags,
    beside={"tune": ("forward", "save_hlo", "by_op")},
    needs={"write": "tune", "trials": "tune"},
  )
