"""What a plan for many TPU chips holds a step against: rates, and arithmetic.

The rates are those that Google Cloud publishes for its machines and its store,
and those that we measured for decoding.
"""

import dataclasses
from typing import Any

KEY = ("model", "image_size", "chips", "images")
Row = dict[str, Any]
"""A row of docs/_static/plan.csv, whose names are those of plan.NAMES."""


@dataclasses.dataclass(frozen=True)
class Host:
  """The machine of a kind of chip, as Google Cloud publishes it.

  A host has `chips` chips, `vcpus` virtual CPUs and a network of `gbps` Gb/s.
  """

  chips: int
  vcpus: int
  gbps: float
  source: str


@dataclasses.dataclass(frozen=True)
class Form:
  """How images lie in a store.

  `rate` images of 224 pixels a second are decoded, cropped and resized by one
  core, and `size` bytes are read for each.
  """

  rate: float
  size: float
  grows: bool  # Whether images must be stored larger for larger crops.
  source: str


HOSTS = {
  "v5e": Host(
    chips=4,
    vcpus=112,
    gbps=100,
    source="[v5e](https://cloud.google.com/tpu/docs/v5e): a VM of 4 chips has "
    "112 vCPUs, and a host of 8 chips 2 x 100 Gb/s",
  ),
  "v5p": Host(
    chips=4,
    vcpus=208,
    gbps=200,
    source="[v5p](https://cloud.google.com/tpu/docs/v5p): a VM of 4 chips has "
    "208 vCPUs, and a chip 50 Gb/s to the data centre",
  ),
}
FORMS = {
  "JPEG": Form(
    rate=2_202 / 2,
    size=147_897_477_120 / 1_281_167,
    grows=False,
    source='"vit_jax, folder" of [the results](results.md#images-in), on two '
    "cores; ImageNet's 1,281,167 training images are a file of 147,897,477,120 "
    "bytes",
  ),
  "raw": Form(
    rate=7_154 / 2,
    size=760 * 2**20 / 3_420,
    grows=True,
    source='"packed at 256, raw pixels" of '
    "[the results](results.md#images-in): 760 MiB are 3,420 images",
  ),
}
# Gb/s that a project may read in a region, by Cloud Storage's default quota.
STORE = 200
# Images a chip at 224 pixels; at 448, with four times the tokens, a quarter.
IMAGES = {"B/16": 64, "L/16": 32, "H/14": 32, "g/14": 16}
SIDES = (224, 448)
FSDP = {"g/14": 16}  # 8 otherwise.
CHIPS = {
  8: "v5e:2x4",
  64: "v5e:8x8",
  256: "v5e:16x16",
  512: "v5p:8x8x8",
  4096: "v5p:16x16x16",
}
FIXED = ("B/16", 4_096)  # Also planned for the paper's batch, however many.


def key_of(row: Row) -> tuple[str, int, int, int]:
  side, chips, images = (int(row[name]) for name in KEY[1:])
  return row["model"], side, chips, images


def at_once(model: str, side: int) -> int:
  """Images that a chip takes at a time: as many tokens at each side."""
  return IMAGES[model] * 224**2 // side**2


def limits(row: Row) -> dict[str, float]:
  """Milliseconds that a step takes of each thing, if it alone were slow.

  Hosts and the store are counted for both forms of images. At twice the side,
  a host decodes a quarter of them (too few for JPEG files), and raw ones are
  stored with four times the pixels. The checkpoint's time is shared among the
  steps until the next one.
  """
  chips, images = int(row["chips"]), int(row["images"])
  chip = float(row["chip_ms"])
  found = {"chip": chip, "links": float(row["high_ms"]) - chip}
  for name, form in FORMS.items():
    mine = images * host_of(row).chips
    found[f"decoding {name}"] = mine / decoded(row, form) * 1e3
    read = chips * images * stored(row, form)
    found[f"reading {name}"] = read / per_second(STORE) * 1e3
  saved = written_seconds(row) * 1e3
  return found | {"checkpoints": saved / int(row["save_steps"])}


def host_of(row: Row) -> Host:
  return HOSTS[row["topology"].partition(":")[0]]


def decoded(row: Row, form: Form) -> float:
  """Images that a host decodes a second, on all of its virtual CPUs."""
  return form.rate / pixels(row) * host_of(row).vcpus


def stored(row: Row, form: Form) -> float:
  """Bytes of an image, as it is stored for the row's side."""
  return form.size * (pixels(row) if form.grows else 1)


def pixels(row: Row) -> float:
  """Pixels of an image, in those of 224 x 224."""
  return (int(row["image_size"]) / SIDES[0]) ** 2


def written_seconds(row: Row) -> float:
  """Seconds in which the host that writes the most of a checkpoint does it."""
  return float(row["written_gb"]) * 1e9 / per_second(host_of(row).gbps)


def images_a_second(row: Row) -> float:
  """Images of all chips a second, at the low time of the step."""
  return int(row["chips"]) * int(row["images"]) / float(row["low_ms"]) * 1e3


def decoding_share(row: Row) -> float:
  """What decoding JPEG files takes, as a share of the chip's time."""
  found = limits(row)
  return found["decoding JPEG"] / found["chip"]


def per_second(gbps: float) -> float:
  """Bytes a second of a rate in Gb/s."""
  return gbps * 1e9 / 8


def bound(found: dict[str, float]) -> tuple[str, float]:
  """What takes the longest, with images in the form that takes the least."""

  def slower(name: str) -> tuple[float, str]:
    parts = (f"reading {name}", f"decoding {name}")
    return max((found[part], part) for part in parts)

  others = [(found[name], name) for name in ("chip", "links", "checkpoints")]
  time_, name = max(*others, min(map(slower, FORMS)))
  return name, time_
