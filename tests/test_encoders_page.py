"""What docs/encoders.md says of each family is what the code does.

Rows of its table name the tests' checkpoints of a family, its examples, and
coverage.csv has what was found of every encoder of timm and transformers.
"""

import collections
import contextlib
import fnmatch
import json
import pathlib
import re
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from scripts import encoders_page, tables
from tests import encoders, published
from tests.tiny import nested
from vit_jax.families import FAMILIES
from vit_jax.models import partitioning, tpu
from vit_jax.pretrained.known import KNOWN
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import TARGETS, check_expressible

ROWS = {r["family"]: r for r in tables.read(encoders_page.FAMILIES)}
COVERAGE = tables.read(encoders_page.COVERAGE)
MEMBERS = encoders_page.assigned([*ROWS.values()], COVERAGE)
LIBRARIES = {
  "hf": "transformers",
  "google": "vision_transformer",
  "tips": "the authors' .npz",
}
# What the page says of a pooling, without a norm that may follow -> its name.
POOLED = {
  "class token": "token",
  "class token and distillation token": "token",
  "class tokens of all teachers": "token",
  "mean of the patches": "gap",
  "class token and mean of the patches": "token_gap",
  "MAP head": "map",
  "query of its own": "query",
  "mean of the class tokens": "prefix",
}
# Checkpoints for one part, which no published model of a family has so.
PARTS = {"timm_dinov3_plus", "timm_fc_norm", "timm_qk_norm", "hf_vit_unbiased"}
# Families whose checkpoints have tests of their own -> the formats they write.
APART = {"NaFlex ViT": "timm", "Prithvi-EO": "transformers"}
# Fields of a preset that differ with the size of a model or of its images.
SIZES = ("layer_scale", "registers", "rope_side")


def test_the_page_is_that_of_its_tables():
  """One hybrid rounds by more than 1e-5; known checkpoints have families."""
  text = encoders_page.page([*ROWS.values()], COVERAGE)
  assert text == encoders_page.PAGE.read_text("utf-8")
  assert encoders_page.merged(COVERAGE) == COVERAGE
  counts = collections.Counter((r["library"], r["answer"]) for r in COVERAGE)
  assert counts["timm", "same"] >= 235
  others = {r["name"]: r["error"] for r in COVERAGE if r["answer"] == "other"}
  assert [*others] == ["vit_large_r50_s32_224"]
  assert float(others["vit_large_r50_s32_224"]) < 3e-5
  assert {k.family for k in KNOWN.values()} <= ROWS.keys()
  refused = [row for row in COVERAGE if row["answer"] == "refused"]
  causes = [encoders_page.cause(row["reason"]) for row in refused]
  assert all(causes)
  assert not [cause for cause in causes if cause.startswith("which ")]


def test_every_encoder_that_is_read_belongs_to_a_family():
  assigned = {row["name"] for rows in MEMBERS.values() for row in rows}
  read = {row["name"] for row in COVERAGE if row["answer"] != "refused"}
  assert read <= assigned
  names = [row["name"] for row in COVERAGE]
  for row in ROWS.values():
    for library in encoders_page.VERSIONS:
      for pattern in row[library].split():
        assert fnmatch.filter(names, pattern), pattern


def clauses(text):
  """Which models -> what a column says of them; "" for all others."""
  first, *others = text.split("; of ")
  return {"": first} | dict(other.split(": ") for other in others)


def said(text, name, library, config):
  """What a column says of a model, and for which models it says so.

  A clause names a library, parts of names, or keys of config.json with their
  values.
  """
  found = clauses(text)
  for which in [*found][1:]:
    if which == library:
      return found[which], which
    for part in re.findall("`(.*?)`", which):
      key, _, value = part.partition("=")
      is_value = value and json.dumps(config.get(key)) == value
      if is_value or part in f"{name}_":
        return found[which], which
  return found[""], ""


@pytest.mark.parametrize("library", encoders_page.VERSIONS)
def test_what_is_said_of_pooling_is_what_was_found_of_every_encoder(library):
  for family, row in ROWS.items():
    for member in MEMBERS.get((family, library), []):
      if member["answer"] == "refused":
        continue
      text = said(row["pooling"], member["name"], library, {})[0]
      texts = {text} if library == "timm" else clauses(row["pooling"]).values()
      names = {POOLED[text.removesuffix(", then a norm")] for text in texts}
      assert member["pooling"] in names, member["name"]


def opened(name):
  """An example, without its parameters, and the name of its kind there."""
  if name in published.CHECKPOINTS:
    path = published.path(name)
    return open_checkpoint(path, **published.CHECKPOINTS[name]), name, {}
  path = encoders.path(name)
  config = json.loads((pathlib.Path(path) / "config.json").read_text())
  kind = config.get("architecture") or config["architectures"][0]
  return open_checkpoint(path), kind, config


def library_of(loaded):
  name = loaded.model.origin.format
  return LIBRARIES.get(name, name)


def fast_layers(loaded):
  """How many layers compute all tokens' attention in the fast form of a TPU."""
  model = loaded.model
  params = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
    nested(dict(loaded.shapes)),
    is_leaf=lambda x: isinstance(x, tuple),
  )
  few = 2 * model.stride, 2 * model.stride
  size = model.origin.image_size or few
  size = few if model.resizes_positions else size
  images = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
  with contextlib.ExitStack() as stack:
    patch = lambda *a, **k: stack.enter_context(mock.patch.object(*a, **k))  # noqa: E731
    patch(partitioning, "platform", lambda: "tpu")
    calls = [
      patch(tpu, name, wraps=getattr(tpu, name))
      for name in ("attend", "attend_in_order", "attend_in_blocks")
    ]
    encode = lambda p, x: model.apply({"params": p}, x, method="encode")  # noqa: E731
    jax.eval_shape(encode, params, images)
  return sum(call.call_count for call in calls)


def check_pooling(row, name, loaded, kind, config):
  """Returns for which models the page says how this one pools."""
  text, which = said(row["pooling"], kind, library_of(loaded), config)
  model, what = loaded.model, text.removesuffix(", then a norm")
  assert POOLED[what] == model.pooling, name
  if text.endswith("norm"):
    assert model.norm_pooled, name
  distilled = getattr(model, "distilled", False)
  assert distilled == ("distillation" in text), name
  several = len(getattr(model, "pooled_tokens", (0,))) > 1
  assert several == ("teachers" in text), name
  return which


@pytest.mark.slow
@pytest.mark.parametrize("family", [r for r in ROWS if ROWS[r]["examples"]])
def test_each_column_is_what_the_examples_do(family):
  row = ROWS[family]
  written, formats, models, pooled = set(), set(), [], set()
  for name in row["examples"].split():
    loaded, kind, config = opened(name)
    models.append(loaded.model)
    formats.add(library_of(loaded))
    for to in TARGETS:
      with contextlib.suppress(ValueError):
        check_expressible(loaded, to)
        written.add(LIBRARIES.get(to, to))
    pooled.add(check_pooling(row, name, loaded, kind, config))
    layers = loaded.model.num_layers if row["fast"] == "yes" else 0
    layers *= getattr(loaded.model, "parallel", 1)
    assert fast_layers(loaded) == layers, name
  for (name, library), found in MEMBERS.items():
    if name == family:
      kinds = (member["name"] for member in found)
      pooled |= {said(row["pooling"], kind, library, {})[1] for kind in kinds}
  assert pooled == clauses(row["pooling"]).keys()
  assert {*row["writes"].split(", ")} == written
  others = {*filter(None, row["other"].split(", "))}
  assert formats - {*encoders_page.VERSIONS} <= others <= formats | written
  check_blocks(row, models)


def check_blocks(row, models):
  """Each field of a preset is that of a published model."""
  for block in filter(None, row["block"].split(", ")):
    for field, value in FAMILIES[block].items():
      values = [getattr(model, field, None) for model in models]
      same = any(values) if field in SIZES else value in values
      assert same, (block, field, values)


def test_a_family_without_examples_is_another():
  """It writes and trains as that one does; others have examples."""
  for name, row in ROWS.items():
    if row["examples"]:
      assert not row["writes"].startswith("as "), name
      continue
    if name in APART:
      assert row["writes"] == APART[name]
      continue
    like = ROWS[row["writes"].removeprefix("as ")]
    for column in ("block", "fast", "pooling"):
      assert row[column] == clauses(like[column])[""], (name, column)
    assert {*row["other"].split(", ")} <= {*like["other"].split(", "), ""}
    assert like["examples"] and any(k.family == name for k in KNOWN.values())


def test_every_checkpoint_of_the_tests_is_an_example():
  named = {x for row in ROWS.values() for x in row["examples"].split()}
  assert named | PARTS == {*encoders.NAMES, *published.CHECKPOINTS}
  assert not named & PARTS
