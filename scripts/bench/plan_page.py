"""The page of the plan, made from its rows."""

from typing import Any

from scripts.bench.plan_rates import (
  CHIPS,
  FIXED,
  FORMS,
  HOSTS,
  IMAGES,
  SIDES,
  STORE,
  Row,
  at_once,
  bound,
  decoded,
  decoding_share,
  host_of,
  images_a_second,
  key_of,
  limits,
  stored,
  written_seconds,
)

HEAD = """\
# A plan for 8 to 4,096 chips

What bounds a train step on 8 to 4,096 TPU chips: the chip, its links, the
hosts that decode images, the store that they are read from, or checkpoints.
The times of chips are *estimates* by XLA's TPU compiler; those of links and of
everything outside follow from bytes and published rates
([how](scaling.md#with-the-network)). Nothing was run on hardware.

The runs are the paper's on ImageNet (`pretrain:H/14,imagenet2012` with each
variant), at 224 x 224 and 448 x 448: a class token, bfloat16 activations,
float32 parameters, Adam, 1,000 classes and no dropout. All have `model.scan`,
`model.remat=dots` (`full` where that does not fit), `mesh.fsdp=8` (16 for g/14
on more than 8 chips), data parallelism beyond, and XLA's default options. A
scanned model compiles in about a minute also for 4,096 chips, but [an unrolled
step is faster](scaling.md#what-to-set-for-each-size): then the chip takes less
of a step, and what else bounds it does so sooner.

Each chip has the same number of images at all sizes ("weak scaling"), and a
quarter of them at 448, with about as many tokens. Rows with a batch share that
of the paper among the chips instead, in parts of 64 images on 8 chips. Batches
of 4,096 full chips are far larger than any that the paper trained with: those
rows are about the machine, and not about what such a run would learn. Up to
256 chips they are v5e, a pod of that kind, and beyond v5p.

<!-- not run: needs the extra tpu, and takes about a minute a row -->
```sh
python -m scripts.bench.plan --all
python -m scripts.bench.plan --render
```

In a clone, the first command makes [the rows](_static/plan.csv) that are
missing, and the second this page.

## What bounds a step

What would take the longest if all else were free, and its milliseconds a step.
For images it is the slower of decoding and reading them, in the form (JPEG or
raw) for which that takes less.
"""
FOUND = """\
Decoding and checkpoints bound no row. On v5e the chip does. On v5p it is
reading, at the default quota, for B/16 and L/16 at 224 from 512 chips on, and
on 4,096 for all but H/14 and g/14 at 448; with the data on the hosts'
disks the chip bounds those rows too. Links come nearest where a fixed batch
leaves each chip little: one image of B/16 on each of 4,096 chips takes 4.4 ms
of the chip and 3.6 of its links.
"""
STEPS = """\
"Low" is a step in which as much of the network is hidden as the schedule
allows, and "high" one in which none is.
"""
LIMITS = """\
## Milliseconds of a step

"Links" are all transfers between chips, "decoding" is a host's vCPUs at work
on its images, and "reading" the store at work on the batch. Checkpoints are
written in the background, so their time is divided by the steps until the next
one.
"""
INPUT = f"""\
## Images into each host

What a host must deliver for the low time of the step, what it decodes, and
what all hosts read from the store, which gives {STORE} Gb/s.
"""
CHECKPOINTS = """\
## Checkpoints

Parameters and Adam's two moments, in float32. Orbax has each chip write a
piece of what several of them hold, where an axis of the array divides by their
number; otherwise one of them writes it all. The seconds are those of the host
that writes the most, at the rate of its network. The share is that of the time
between two checkpoints, an epoch of ImageNet by default, at the low time of
the step. Saves are asynchronous, so up to 100 % they cost no time; beyond,
each waits for the one before, and `save_every_epochs` has to be larger. The
copy from chips to hosts, for which training does wait, is left out: no rate of
it is published.
"""
RATES = """\
## The rates

{rates}
A vCPU is taken for a core of ours, and for nothing but images. If it were half
a core, double the times of decoding: JPEG files take at most {nearest:.0f} % of
the chip's time in any row. Decoding was measured at 224 pixels. At 448 a
quarter of that rate is counted, which is too little for JPEG files, as
cropping and resizing alone have four times the pixels.

A host's network is that of its machine. No page promises as much between one
host and a store, and Cloud Storage publishes no limit for writing, so a
checkpoint takes these seconds at least. What a project may read is the default
quota of a region, of which more [can be
requested](https://cloud.google.com/storage/docs/bandwidth-usage): with 1 Tb/s,
"reading" takes a fifth. Hosts that keep their part of the data set on their
disks read it once, and then wait for decoding alone.
"""


def page(rows: list[Row]) -> str:
  rows = sorted(rows, key=order)
  libtpu = " and ".join(sorted({row["libtpu"] for row in rows}))
  jax = " and ".join(sorted({row["jax"] for row in rows}))
  return "\n".join(
    [
      HEAD,
      summary(rows),
      FOUND,
      f"## The steps\n\nBy libtpu {libtpu} and jax {jax}.\n{STEPS}",
      table(rows, steps_cells),
      LIMITS,
      table(rows, limits_cells),
      INPUT,
      table(rows, input_cells),
      CHECKPOINTS,
      table(rows, checkpoint_cells),
      RATES.format(rates=rates(), nearest=100 * max(map(decoding_share, rows))),
    ]
  )


def order(row: Row) -> tuple[int, ...]:
  model, side, chips, images = key_of(row)
  fixed = images != at_once(model, side)
  return fixed, [*IMAGES].index(model), side, chips


def name_of(row: Row) -> str:
  """The model and side of a row, and its batch where that is fixed."""
  model, side, _, images = key_of(row)
  same = images == at_once(model, side)
  return f"{model} at {side}" + ("" if same else f", batch {FIXED[1]:,}")


def summary(rows: list[Row]) -> str:
  """What bounds each model's step at each number of chips."""
  found: dict[str, dict[int, str]] = {}
  for row in rows:
    name, ms = bound(limits(row))
    text = f"{name}, {ms:,.0f}"
    text = text if name == "chip" else f"**{text}**"
    for place in (name_of(row), *also_fixed(row)):
      found.setdefault(place, {})[int(row["chips"])] = text
  cells = [
    (name, *(found[name].get(chips, "not compiled yet") for chips in CHIPS))
    for name in sorted(found, key=lambda name: "batch" in name)
  ]
  chips = (f"{n:,} {CHIPS[n].partition(':')[0]}" for n in CHIPS)
  return markdown(("*estimate*, ms", *chips), cells)


def also_fixed(row: Row) -> list[str]:
  """The name of the fixed batch, where a row of weak scaling has that batch."""
  model, side, chips, images = key_of(row)
  same = (model, side, chips * images) == (FIXED[0], SIDES[0], FIXED[1])
  return [f"{model} at {side}, batch {FIXED[1]:,}"] if same else []


def table(rows: list[Row], cells_of: Any) -> str:
  cells = [
    {
      "*estimate*": name_of(row),
      "chips": f"{int(row['chips']):,}",
      "images a chip": row["images"],
      **cells_of(row),
    }
    for row in rows
  ]
  return markdown(tuple(cells[0]), [tuple(row.values()) for row in cells])


def steps_cells(row: Row) -> dict[str, str]:
  number = {
    name: float(row[name])
    for name in ("memory_gib", "mcycles", "mfu", "chip_ms", "low_ms", "high_ms")
  }
  return {
    "topology": row["topology"],
    "parts": row["parts"],
    "`remat`": row["remat"],
    "memory, GiB": f"{number['memory_gib']:.1f}",
    "Mcycles": f"{number['mcycles']:.1f}",
    "MFU": f"{number['mfu']:.2f}",
    "sent, MiB": f"{float(row['sent_mib']):,.0f}",
    "chip, ms": f"{number['chip_ms']:.1f}",
    "low, ms": f"{number['low_ms']:.1f}",
    "high, ms": f"{number['high_ms']:.1f}",
  }


def limits_cells(row: Row) -> dict[str, str]:
  found = limits(row)
  texts = {name: brief(ms) for name, ms in found.items()}
  return {**texts, "bound by": bound(found)[0]}


def input_cells(row: Row) -> dict[str, str]:
  needed = images_a_second(row) * host_of(row).chips / int(row["chips"])
  cells = {"images/s a host": f"{needed:,.0f}"}
  for name, form in FORMS.items():
    cells[f"decodes {name}"] = f"{decoded(row, form):,.0f}"
  for name, form in FORMS.items():
    gbps = images_a_second(row) * stored(row, form) * 8 / 1e9
    cells[f"reads {name}, Gb/s"] = brief(gbps)
  return cells


def checkpoint_cells(row: Row) -> dict[str, str]:
  steps = int(row["save_steps"])
  seconds = written_seconds(row)
  share = seconds / (steps * float(row["low_ms"]) / 1e3)
  return {
    "GB": f"{float(row['state_gb']):.2f}",
    "of one host, GB": f"{float(row['written_gb']):.3f}",
    "seconds": f"{seconds:.3f}",
    "steps between": f"{steps:,}",
    "share": f"{share * 100:.2f} %",
  }


def rates() -> str:
  cells = []
  for name, host in HOSTS.items():
    text = f"{host.vcpus} vCPUs and {host.gbps:g} Gb/s for {host.chips} chips"
    cells.append((f"{name}, host", text, host.source))
  for name, form in FORMS.items():
    text = f"{form.rate:,.0f} images/s a core, {form.size / 1e3:,.0f} kB each"
    cells.append((f"{name} images", text, form.source))
  address = "https://cloud.google.com/storage/quotas#bandwidth"
  quotas = f"[Cloud Storage's quotas]({address})"
  text = f"{STORE} Gb/s of reading in a region, by default"
  cells.append(("the store", text, quotas))
  return markdown(("what", "rate", "from"), cells)


def markdown(names: tuple[str, ...], cells: list[tuple[str, ...]]) -> str:
  rows = [names, ("---",) * len(names), *cells]
  return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def brief(number: float) -> str:
  """A number with two digits at least, and no more than it needs."""
  return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
