"""The cost read from a compiled program's text."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.estimate import hlo
from vit_jax.training import sharding

# A shortened program as XLA for TPU writes it: a loop of 24 rounds, whose body
# runs an all-gather in two parts beside a product, and then an all-reduce.
TEXT = """
HloModule jit_step, is_scheduled=true

%gather_part (p: bf16[1,8,64]) -> bf16[1,64,64] {
  %p = bf16[1,8,64]{2,1,0} parameter(0)
  ROOT %all-gather.1 = bf16[1,64,64]{2,1,0:T(8,128)(2,1)} all-gather(%p), \
channel_id=7, dimensions={1}
}

%cut_sum (q: f32[64,4]) -> f32[8,4] {
  %q = f32[64,4]{1,0} parameter(0)
  %all-reduce.3 = f32[64,4]{1,0} all-reduce(%q), channel_id=9, to_apply=%add
  ROOT %part = f32[8,4]{1,0} dynamic-slice(%all-reduce.3), \
dynamic_slice_sizes={8,4}
}

%body (arg: (s32[], bf16[2,3])) -> (s32[], bf16[2,3]) {
  %arg = (s32[], bf16[2,3]{1,0}) parameter(0)
  %fusion.1 = (bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, bf16[1,64,64]{2,1,0}) \
fusion(%arg), kind=kCustom, calls=%gather_part, \
metadata={op_name="jit(step)/block_3/mlp/dot_general"}, \
backend_config={"estimated_cycles":"1000"}
  %fusion.2 = bf16[1,64,64]{2,1,0} fusion(%arg), kind=kCustom, \
calls=%gather_part, backend_config={"estimated_cycles":"10"}
  %fusion.3 = f32[8,4]{1,0} fusion(%arg), kind=kCustom, calls=%cut_sum
  ROOT %tuple.1 = (s32[], bf16[2,3]{1,0}) tuple(%arg, %fusion.1)
}

%condition (arg.1: (s32[], bf16[2,3])) -> pred[] {
  %arg.1 = (s32[], bf16[2,3]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(24)
  %i = s32[] get-tuple-element(%arg.1), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main.5 (x: bf16[2,3]) -> f32[] {
  %x = bf16[2,3]{1,0} parameter(0)
  %start = (s32[], bf16[2,3]{1,0}) tuple(%x)
  %while.1 = (s32[], bf16[2,3]{1,0}) while(%start), condition=%condition, \
body=%body
  %fusion.4 = bf16[2,3]{1,0} fusion(%x), kind=kLoop, calls=%less, \
metadata={op_name="jit(step)/block_11/mlp/dot_general"}, \
backend_config={"estimated_cycles":"5"}
  ROOT %all-reduce.9 = f32[]{:T(128)} all-reduce(%fusion.4), channel_id=1
}
""".replace("calls=%less", "calls=%condition")


def test_a_loop_counts_as_often_as_it_runs():
  assert hlo.total_cycles(hlo.read(TEXT)) == 24 * (1000 + 10) + 5


def test_a_known_number_of_rounds_goes_before_the_condition():
  known = TEXT.replace(
    "body=%body\n",
    'body=%body, backend_config={"known_trip_count":{"n":"3"}}\n',
  )
  assert hlo.total_cycles(hlo.read(known)) == 3 * (1000 + 10) + 5


def test_a_transfer_in_parts_is_one():
  assert hlo.collective_bytes(hlo.read(TEXT)) == {
    "all-gather": (24, 24 * 64 * 64 * 2),
    "reduce-scatter": (24, 24 * 64 * 4 * 4),
    "all-reduce": (1, 4),
  }


def test_operations_without_an_estimate_are_listed():
  assert hlo.count_without_estimate(hlo.read(TEXT)) == {
    "fusion": 24,
    "all-gather": 24,
    "reduce-scatter": 24,
    "all-reduce": 1,
  }


def test_the_largest_number_of_cycles_is_no_estimate():
  text = TEXT.replace('cycles":"10"', f'cycles":"{2**63 - 1}"')
  assert hlo.total_cycles(hlo.read(text)) == 24 * 1000 + 5
  assert hlo.count_without_estimate(hlo.read(text))["fusion"] == 48


def test_pallas_kernels_are_told_from_other_custom_calls():
  text = TEXT.replace(
    "fusion(%arg), kind=kCustom, calls=%cut_sum",
    'custom-call(%arg), custom_call_target="tpu_custom_call"',
  )
  assert hlo.count_without_estimate(hlo.read(text))["Pallas kernel"] == 24
  text = text.replace("tpu_custom_call", "ConcatBitcast")
  assert hlo.count_without_estimate(hlo.read(text))["custom-call"] == 24


def test_blocks_are_taken_together():
  text = TEXT.replace("bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, ", "")
  rows = hlo.rows_by_source(hlo.read(text))
  sources = {source: (times, cycles) for source, _, times, cycles in rows}
  assert sources["jit(step)/block/mlp/dot_general"] in [(24, 24_000), (1, 5)]
  assert sum(cycles for *_, cycles in rows) == 24 * 1010 + 5


# The estimates in golden/*.txt, copied by hand: those of the entry, and those
# of the loops over three layers, forwards and backwards.
V5E = (
  [15185, 8724, 208, 23302],
  [5206, 6336, 8596, 15377, 12636, 6336, 16480, 3010, 12636],
)
ENTRY_7X = [4205, 3316, 3316, 3220, 112, 3970]
GOLDEN = {
  "v5e_2x2_0.0.42": V5E,
  "v5e_2x2_0.0.50.1": V5E,
  "tpu7x_2x2x1_0.0.42": (
    ENTRY_7X,
    [
      *(2861, 2964, 3092, 8229, 3156, 5482),
      *(3476, 3316, 3316, 2964, 7571, 4868, 2495),
    ],
  ),
  "tpu7x_2x2x1_0.0.50.1": (
    ENTRY_7X,
    [2861, 2964, 3092, 6563, 4868, 3156, 3316, 2964, 7571, 4868, 2495],
  ),
}


def golden(name):
  path = pathlib.Path(__file__).with_name("golden") / f"{name}.txt"
  return path.read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_texts_of_two_compilers_give_the_sums_taken_by_hand(name):
  entry, loops = GOLDEN[name]
  ops = hlo.read(golden(name))
  assert hlo.total_cycles(ops) == sum(entry) + 3 * sum(loops)
  # Of each layer, the kernel is gathered, and its gradient summed up; both are
  # 1024 x 1024 in bfloat16. On Ironwood the SparseCores do it.
  both = 3, 3 * 2 * 1024 * 1024
  summed = "reduce-scatter"
  assert hlo.collective_bytes(ops) == {"all-gather": both, summed: both}


def test_a_text_without_estimates_is_refused():
  text = golden("v5e_2x2_0.0.50.1").replace("estimated_cycles", "cycles")
  with pytest.raises(ValueError, match="no estimated cycles .* a libtpu that"):
    hlo.total_cycles(hlo.read(text))


@pytest.mark.parametrize("loops", [1, 5])
def test_a_program_compiled_here_gives_its_collectives(loops):
  """A sharded product takes one all-reduce of its size per round."""
  mesh = sharding.make_mesh()
  across = NamedSharding(mesh, PartitionSpec(None, "data"))
  whole = NamedSharding(mesh, PartitionSpec())

  def step(x, w):
    def body(y, _):
      y = jax.lax.with_sharding_constraint(y, across)
      return jax.lax.with_sharding_constraint(y @ w, whole), None

    return jax.lax.scan(body, x, length=loops)[0]

  w = jax.device_put(
    np.ones((16, 16), np.float32), NamedSharding(mesh, PartitionSpec("data"))
  )
  text = jax.jit(step).lower(jnp.ones((4, 16)), w).compile().as_text()
  found = hlo.collective_bytes(hlo.read(text))
  assert found == {"all-reduce": (loops, loops * 4 * 16 * 4)}
