"""Paths of parameters, and that a single module reads the names in them."""

import ast
import pathlib

import pytest

from vit_jax.models import paths

ROOT = pathlib.Path(__file__).parents[2]


def test_a_path_and_its_modules():
  path = "block_0/msa/query/kernel"
  assert paths.merge_qkv(path) == "block_0/msa/kernel"
  assert paths.merge_qkv("block_0/msa/out/kernel") == "block_0/msa/out/kernel"
  assert paths.beside(path, "bias") == "block_0/msa/query/bias"
  assert paths.beside("x_class", "E_pos") == "E_pos"
  assert paths.is_kernel(path) and paths.is_kernel("kernel")
  assert not paths.is_kernel("block_0/old_kernel")
  assert paths.ends_with(path, "query/kernel")
  assert not paths.ends_with(path, "uery/kernel")
  assert paths.within(path, "block_0") and paths.within(path, "")
  assert not paths.within("block_01/bias", "block_0")
  assert paths.below(path, "block_0/msa") == "query/kernel"
  assert paths.below(path, "") == path


_TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition"}
_MODULES = (
  "block",
  "blocks",
  "head",
  "head_dist",
  "pre_logits",
  "norm",
  "mask",
)
_MODULES += ("map_head", "patches", "position", "kernel", "bias", "conv_root")
_ROOMS = ("models", "training", "tasks", "pretrained", "inference")
_ROOMS += ("inspection", "run")


def _reads_paths(source):
  """Lines that test a parameter's path by the names in it."""
  for node in ast.walk(ast.parse(source)):
    names = {getattr(t, "id", "") for t in getattr(node, "targets", ())}
    if names & {"HEADS", "_OWN_TASK"}:
      yield node.lineno
    if not isinstance(node, ast.Call):
      continue
    function = node.func
    if not (isinstance(function, ast.Attribute) and function.attr in _TESTS):
      continue
    if getattr(function.value, "id", "") == "path":
      yield node.lineno
      continue
    texts = [x for arg in node.args for x in ast.walk(arg)]
    texts = [x.value for x in texts if isinstance(x, ast.Constant)]
    texts = [x for x in texts if isinstance(x, str)]
    modules = {text.strip("/").split("/")[0].rstrip("_") for text in texts}
    if modules & set(_MODULES) and not any("." in text for text in texts):
      yield node.lineno


def test_nothing_else_reads_the_names_in_a_path():
  readers = []
  for room in _ROOMS:
    for file in sorted((ROOT / "vit_jax" / room).rglob("*.py")):
      if file == pathlib.Path(paths.__file__):
        continue
      lines = _reads_paths(file.read_text())
      readers += [f"{file.relative_to(ROOT)}:{line}" for line in lines]
  assert readers == []


@pytest.mark.parametrize(
  "line",
  [
    "HEADS = ('head/',)",
    "path.startswith(('norm/', 'head/'))",
    "path.endswith('/kernel')",
    "k.removeprefix('block_')",
    "key.startswith(f'blocks/{rest}')",
    "path.startswith(_TOP)",
  ],
)
def test_a_line_that_reads_a_path_is_seen(line):
  assert list(_reads_paths(line)) == [1]
