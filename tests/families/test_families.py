"""Families are plain data: a file for each, and one list."""

import ast
import pathlib
import re
import sys

import pytest

from vit_jax import families
from vit_jax.families.family import Stored, Timm, Transformers
from vit_jax.models import make_vit
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.formats import (
  hf_encoders,
  hf_family,
  timm_arguments,
  timm_evas,
  timm_naflex,
)
from vit_jax.pretrained.formats.mapping import axis_sizes

FOLDER = pathlib.Path(families.__file__).parent
FILES = {path.stem: path for path in FOLDER.glob("*.py")}


def test_the_list_is_that_of_the_files():
  named = FILES.keys() - {"__init__", "family"}
  assert named == {*families.FILES} and len(named) == len(families.FILES)
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
      ours = module.startswith("vit_jax.families")
      assert ours or module.split(".")[0] in sys.stdlib_module_names, module


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_fields_of_a_family_are_those_of_a_model(name):
  vit = make_vit("Ti/16", 0, block=name)
  fields = families.FAMILIES[name]
  assert {k: getattr(vit, k) for k in fields} == fields


def test_arguments_are_those_of_timms_class():
  """Each pattern has arguments that its class has, or the norms' epsilon."""
  known = {"epsilon"}.union(*timm_arguments.ARGUMENTS.values())
  known |= timm_naflex.ARGUMENTS
  for family in families.records("TIMM"):
    assert isinstance(family, Timm)
    for arguments in family.own.values():
      assert arguments.keys() <= known
    assert {*family.classes.values()} <= {*timm_arguments.ARGUMENTS}


def test_a_row_is_named_as_its_class_is():
  for row in timm_evas.ROWS:
    assert timm_arguments.class_of_name(row.architecture) == "e", (
      row.architecture
    )


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
  assert timm_arguments.class_of_name(name) == initial
  assert next(timm_arguments.matching(name, "heads"), None) == heads


def test_a_pattern_is_for_the_beginning_of_a_name():
  """Of a name that it matches, the same holds with anything after it."""
  for family in families.records("TIMM"):
    for pattern in (*family.classes, *family.own, *family.heads):
      assert re.compile(pattern) and not pattern.startswith("^")


NAMES = """
root,answers.weight,head/kernel,O I -> I O
root,answers.bias,head/bias,
base,pixels.weight,patches/E/kernel,D C P Q -> (P Q C) D
base,pixels.bias,patches/E/bias,
base,first,x_class,
base,places,position/E_pos,
base,last.weight,norm/scale,
base,last.bias,norm/bias,
layer,a.weight,norm_msa/scale,
layer,a.bias,norm_msa/bias,
layer,b.weight,norm_mlp/scale,
layer,b.bias,norm_mlp/bias,
layer,s,scale_msa,
layer,t,scale_mlp,
layer,q.weight,msa/query/kernel,(k d) D -> D k d
layer,q.bias,msa/query/bias,(k d) -> k d
layer,k.weight,msa/key/kernel,(k d) D -> D k d
layer,k.bias,msa/key/bias,(k d) -> k d
layer,v.weight,msa/value/kernel,(k d) D -> D k d
layer,v.bias,msa/value/bias,(k d) -> k d
layer,o.weight,msa/out/kernel,D (k d) -> k d D
layer,o.bias,msa/out/bias,
mlp,up.weight,mlp/expand/kernel,O I -> I O
mlp,up.bias,mlp/expand/bias,
mlp,down.weight,mlp/contract/kernel,O I -> I O
mlp,down.bias,mlp/contract/bias,
"""


def _made_up(file: Stored):
  scale = file.number("scale", 0.5, positive=True)
  return dict(layer_scale=scale, gelu="exact")


def test_a_family_of_transformers_is_one_record(monkeypatch):
  """With names of its own, it is recognised, read and written."""
  family = Transformers(
    types=("made_up",),
    signature="pixels.weight",
    bases=("m.", ""),
    layers="step.{}.",
    names=NAMES,
    fields=_made_up,
    config=lambda vit, _: dict(model_type="made_up", scale=vit.layer_scale),
    classes=("MadeUpModel", "MadeUpForImages"),
    defaults={"layer_norm_eps": 1e-6, "num_attention_heads": 4},
  )
  known = (family, *hf_family.FAMILIES)
  monkeypatch.setattr(hf_encoders, "FAMILIES", known)
  sizes = dict(hidden_size=16, num_layers=2, mlp_size=24, num_heads=4)
  vit = make_vit("Ti/4", 3, block="dinov2", **sizes, layer_scale=0.25)
  rules = hf_family.rules_of(family, vit)
  needed = param_shapes(vit, (2, 2))
  assert {path for rule in rules for path in rule.ours} == {*needed}
  shapes = {r.theirs: r.needs(needed, axis_sizes(vit)) for r in rules}
  assert shapes["m.step.1.q.weight"] == (16, 16)
  assert hf_encoders.rules(vit, shapes) == rules
  config = dict(model_type="made_up", scale=0.25)
  found = hf_encoders.infer(shapes, config).fields
  read = {**sizes, "num_classes": 3, "patch_size": 4, "layer_scale": 0.25}
  assert {name: found[name] for name in read} == read
  with pytest.raises(ValueError, match="scale=-1 must be more than 0"):
    hf_encoders.infer(shapes, config | {"scale": -1})
