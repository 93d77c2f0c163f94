"""Families are plain data: a file for each, and one list."""

import ast
import pathlib
import re
import sys

import pytest

from vit_jax import families
from vit_jax.families.family import Timm
from vit_jax.models import make_vit
from vit_jax.pretrained.formats import timm_arguments, timm_evas

FOLDER = pathlib.Path(families.__file__).parent
FILES = {path.stem: path for path in FOLDER.glob("*.py")}


def test_the_list_is_that_of_the_files():
  named = FILES.keys() - {"__init__", "family"}
  assert named == {*families._FILES} and len(named) == len(families._FILES)
  assert families.FAMILIES.keys() <= named


@pytest.mark.parametrize("name", FILES)
def test_a_file_needs_the_standard_library_alone(name):
  for node in ast.walk(ast.parse(FILES[name].read_text())):
    modules = []
    if isinstance(node, ast.Import):
      modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      modules = [node.module or ""]
    for module in modules:
      ours = module.startswith("vit_jax.families.family")
      assert ours or module.split(".")[0] in sys.stdlib_module_names, module


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_fields_of_a_family_are_those_of_a_model(name):
  vit = make_vit("Ti/16", 0, block=name)
  fields = families.FAMILIES[name]
  assert {k: getattr(vit, k) for k in fields} == fields


def test_arguments_are_those_of_timms_class():
  """Each pattern has arguments that its class has, or the norms' epsilon."""
  known = {"epsilon"}.union(*timm_arguments.ARGUMENTS.values())
  for family in families.records("TIMM"):
    assert isinstance(family, Timm)
    for arguments in family.own.values():
      assert arguments.keys() <= known
    assert {*family.classes.values()} <= {*timm_arguments.ARGUMENTS}


def test_a_row_is_named_as_its_class_is():
  for row in timm_evas.ROWS:
    assert timm_arguments.known(row.architecture) == "e", row.architecture


@pytest.mark.parametrize(
  "name, initial, heads",
  [
    ("vit_small_patch16_dinov3", "e", None),
    ("vit_small_patch16_rope_mixed_224", "e", None),
    ("eva_large_patch14_196", "v", None),
    ("deit3_small_patch16_224", "v", None),
    ("beitv2_base_patch16_224", "b", None),
    ("vit_srelpos_small_patch16_224", "r", None),
    ("vit_base_patch16_224", "v", None),
    ("vit_7b_patch16_dinov3", "e", 32),
    ("vit_small_patch16_18x2_224", "v", None),
    ("resnet50", None, None),
  ],
)
def test_a_name_tells_the_class_and_unusual_heads(name, initial, heads):
  assert timm_arguments.known(name) == initial
  assert next(timm_arguments.matching(name, "heads"), None) == heads


def test_a_pattern_is_for_the_beginning_of_a_name():
  """Of a name that it matches, the same holds with anything after it."""
  for family in families.records("TIMM"):
    for pattern in (*family.classes, *family.own, *family.heads):
      assert re.compile(pattern) and not pattern.startswith("^")
