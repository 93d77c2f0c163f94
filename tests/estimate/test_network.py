"""The time of collectives, by the links of the chips and the schedule."""

import numpy as np
import pytest

from tests.estimate.test_hlo import GOLDEN, golden
from vit_jax.estimate import hlo, network

# Chips of the devices of golden/*.txt; a chip of Ironwood has two.
SQUARE = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
COORDS = {"v5e": SQUARE, "tpu7x": np.repeat(SQUARE, 2, axis=0)}
# The cycles between the start and the end of each transfer, in each layer: on
# Ironwood 2964 + 3092 forwards and 4868 backwards; v5e waits for each at once.
BETWEEN = {"v5e": (0, 0), "tpu7x": (2964 + 3092, 4868)}


@pytest.mark.parametrize("rate", [100, 1000])
@pytest.mark.parametrize("name", GOLDEN)
def test_transfers_by_hand(name, rate):
  kind = name.partition("_")[0]
  computed = sum(GOLDEN[name][0]) + 3 * sum(GOLDEN[name][1])
  # A kernel has 2 MiB, of which a device lacks all but its own part. A chip
  # receives it over two links, on Ironwood for each of its two devices.
  received = {"v5e": 2**21 * 3 / 4, "tpu7x": 2 * 2**21 * 7 / 8}[kind]
  taken = received / 2 / rate
  low, high = network.step_cycles(
    hlo.read(golden(name)), COORDS[kind], rate, ring=4
  )
  assert high == pytest.approx(computed + 3 * 2 * taken)
  shown = sum(max(0, taken - hidden) for hidden in BETWEEN[kind])
  assert low == pytest.approx(computed + 3 * shown)


# Each moves 2400 bytes. Of a row of four chips, the ends have one link.
ROW = np.array([[0], [1], [2], [3]])


@pytest.mark.parametrize(
  ("kind", "groups", "ring", "passed"),
  [
    ("all-gather", "", 16, 2400 * 3 / 4),
    ("all-gather", "", 4, 2400 * 3 / 4 / 2),
    ("all-reduce", "{{0,1,2,3}}", 16, 2 * 2400 * 3 / 4),
    ("all-gather", "{{0,1},{2,3}}", 16, 2400 / 2),
    ("all-gather", "[2,2]<=[4]", 16, 2400 / 2),
    # Chip 1 lies between 0 and 2: three chips send over the links of two.
    ("all-gather", "[2,2]<=[2,2]T(1,0)", 16, 2400 / 2 * 3 / 2),
    ("all-gather", "mesh['data'=2,'fsdp'=2] {'fsdp'}", 16, 2400 / 2),
    ("all-gather", "mesh['data'=2,'fsdp'=2] {'data'}", 16, 2400 / 2 * 3 / 2),
    ("all-gather", "{{0},{1},{2},{3}}", 16, 0),
  ],
)
def test_bytes_on_the_busiest_link(kind, groups, ring, passed):
  op = hlo.Op(kind, "f32[600]", "", None, 1, "1", groups)
  assert network.link_bytes(op, ROW, ring) == pytest.approx(passed)


def test_links_carry_one_transfer_after_another():
  def op(cycles, channel=""):
    return hlo.Op("all-gather", "f32[600]", "", cycles, 1, channel)

  # Both take 1800 cycles: the second begins when the first has ended.
  ops = [op(None, "1"), op(100), op(None, "2"), op(2000), op(None, "1")]
  ops += [op(50), op(None, "2")]
  assert network.step_cycles(ops, ROW, 1.0, 16) == (3600, 2150 + 3600)
