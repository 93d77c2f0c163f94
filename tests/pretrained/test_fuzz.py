"""Damaged and hostile weights are read, or refused in one line.

VIT_JAX_FUZZ=1000 pytest tests/pretrained/test_fuzz.py -n 0 -s
"""

import dataclasses
import io
import json
import math
import pathlib
import shutil
import zipfile
from collections.abc import Mapping

import jax
import numpy as np
import pytest
from flax import traverse_util
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from tests.array_files import MIB, npy, read_all, write_safetensors
from tests.fuzzing import (
  HUGE,
  TALLY,
  damaged,
  distorted,
  examples,
  names,
  numbers,
  outcome,
  rubbish,
)
from tests.memory import bounded_memory
from vit_jax import load_pretrained
from vit_jax.models import Origin, make_vit
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import TARGETS, save_as
from vit_jax.workdir.description import with_digest

PLAIN = [name for name in TARGETS if name != "tips"]


@pytest.fixture(scope="module")
def model():
  origin = Origin("ours", "test", (16, 16), class_names=tuple("abcde"))
  return tiny.vit(origin)


@pytest.fixture(scope="module")
def params(model):
  return tiny.random_params(model, (16, 16), 0)


@pytest.fixture(scope="module")
def published(model, params, tmp_path_factory):
  """Maps the name of each published format to a folder in it."""
  flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
  pretrained = tiny.loaded(
    model, param_shapes(model, (2, 2)), lambda: iter(flat.items())
  )
  folder = tmp_path_factory.mktemp("published")
  for name in PLAIN:
    save_as(pretrained, name, folder / name)
  save_as(_two_tokens(model), "tips", folder / "tips")
  return folder


def _two_tokens(model):
  """An encoder of the only format that does not hold the paper's."""
  fields = {n: getattr(model, n) for n in ("hidden_size", "num_layers")}
  fields |= dict(mlp_size=model.mlp_size, num_heads=model.num_heads)
  vit = make_vit("Ti/8", 0, block="tipsv2", gelu="tanh", **fields)
  vit = vit.clone(layer_scale=None, position="learned_grid")
  vit = vit.clone(position_grid=(2, 2), origin=model.origin)
  shapes = param_shapes(vit, (2, 2))
  arrays = {name: np.ones(shape, "f") for name, shape in shapes.items()}
  return tiny.loaded(vit, shapes, lambda: iter(arrays.items()))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
  """A folder inside another, in which nothing else may appear."""
  outer = tmp_path_factory.mktemp("outer")
  (outer / "inner").mkdir()
  yield outer / "inner"
  assert [path.name for path in outer.iterdir()] == ["inner"]


def fresh(room: pathlib.Path, **files: bytes | str) -> pathlib.Path:
  """The room with just these files in it."""
  for path in room.iterdir():
    shutil.rmtree(path) if path.is_dir() else path.unlink()
  for name, content in files.items():
    raw = content.encode() if isinstance(content, str) else content
    (room / name).write_bytes(raw)
  return room


def check_arrays(target: str, path: pathlib.Path) -> None:
  """Reads all arrays of a file within memory bounded by the file's size."""
  with bounded_memory(16 * path.stat().st_size + 8 * MIB):
    outcome(target, lambda: read_all(path))


def weights(folder: pathlib.Path) -> pathlib.Path:
  return next(path for path in folder.iterdir() if "model." in path.name)


# All formats except those that differ from another only in their names.
FORMATS = ("google", "hf", "timm")


@pytest.mark.parametrize("name", ["google", "timm"])
@examples(60)
@given(data=st.data())
def test_damaged_arrays(published, room, name, data):
  whole = weights(published / name)
  path = fresh(room, weights=data.draw(damaged(whole.read_bytes()))) / "weights"
  check_arrays(f"{whole.suffix}, damaged", path)


class Evil:
  """Shows what a pickle can do: unpickling this makes a file."""

  touched: pathlib.Path

  def __reduce__(self):
    return open, (str(Evil.touched), "w")


dtypes = ["'<f4'", "'>f8'", "'|b1'", "'V2'", "'|O'", "'<U999999999'", "'<c16'"]
literals = ["(" * 9000, "__import__('os').abort()", "[1] * 10**10"]


@st.composite
def npy_file(draw: st.DrawFn) -> bytes:
  """An .npy file that is intact, or has a pickle or any claim in its header."""
  kind = draw(st.sampled_from(["array", "array", "pickle", "claim"]))
  if kind != "claim":
    file = io.BytesIO()
    array = np.arange(draw(st.integers(0, 40)), dtype=np.float32)
    np.save(file, [Evil()] if kind == "pickle" else array, allow_pickle=True)
    return file.getvalue()
  return npy(
    draw(st.sampled_from(dtypes) | st.text(max_size=8).map(ascii)),
    repr(tuple(draw(st.lists(numbers | st.integers(0, 4), max_size=4)))),
    draw(st.binary(max_size=64)),
    draw(st.none() | st.sampled_from(literals)),
    draw(st.none() | st.sampled_from([0, 1, 60_000, (1 << 32) - 1])),
  )


@examples(60)
@given(st.data())
def test_hostile_npz(room, data):
  file = io.BytesIO()
  methods = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
  with zipfile.ZipFile(file, "w") as archive:
    members = st.dictionaries(names, st.tuples(npy_file(), methods), max_size=4)
    for name, (content, method) in data.draw(members).items():
      archive.writestr(f"{name}.npy" if name else "a", content, method)
  content = data.draw(st.just(file.getvalue()) | damaged(file.getvalue()))
  Evil.touched = room / "touched"
  path = fresh(room, weights=content) / "weights"
  check_arrays(".npz, hostile", path)
  assert not Evil.touched.exists()


def header_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict, int]:
  """The header of a .safetensors file, and the number of data bytes it claims.

  An absurd number is replaced by 0, so that the header's claim is false.
  """
  header, end = {}, 0
  for name, shape in shapes.items():
    size = math.prod(shape) if math.prod(shape) < MIB else 0
    offsets = end, end + size
    header[name] = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
    end += size
  return header, end


@examples(60)
@given(st.data())
def test_hostile_safetensors(room, data):
  shape = st.lists(st.integers(0, 4), max_size=3).map(tuple)
  shapes = data.draw(st.dictionaries(names, shape, min_size=1, max_size=4))
  whole, end = header_of(shapes)
  header = data.draw(st.just(whole) | distorted(whole))
  size = None
  if data.draw(st.integers(0, 4)) == 0:
    size = data.draw(st.sampled_from(HUGE)) % (1 << 64)
  path = fresh(room) / "weights"
  write_safetensors(path, header, bytes(end), size)
  check_arrays(".safetensors, hostile", path)


@examples(60)
@given(st.data())
def test_hostile_index_of_shards(published, room, data):
  """The values of an index name files, which must be beside it."""
  whole = weights(published / "timm").read_bytes()
  files = st.sampled_from(["shard.safetensors", "index.json", "/dev/zero", "~"])
  index = {"weight_map": data.draw(st.dictionaries(names, files | rubbish))}
  text = json.dumps(data.draw(st.just(index) | distorted(index)))
  fresh(room, **{"shard.safetensors": whole, "index.json": text})
  check_arrays("index of shards, hostile", room / "index.json")


@examples(15)
@given(st.data())
def test_damaged_weights_as_a_model(published, room, data):
  """Tests the sizes that are inferred from names and shapes."""
  name = data.draw(st.sampled_from(FORMATS))
  source = weights(published / name)
  content = data.draw(damaged(source.read_bytes()))
  fresh(room, **{source.name: content})
  outcome(
    "weights as a model", lambda: load_pretrained(str(room / source.name))
  )


@examples(25)
@given(st.data())
def test_hostile_shapes_as_a_model(published, room, data):
  """Empty arrays may claim any size, since they take no byte of the file."""
  name = data.draw(st.sampled_from([*TARGETS]))
  with open_arrays(weights(published / name)) as arrays:
    shapes = dict(arrays.shapes)
  for _ in range(data.draw(st.integers(1, 4))):
    key = data.draw(st.sampled_from([*shapes]))
    shape = list(shapes[key])
    sizes = st.sampled_from([0, 1, 2, 3, 24, 1 << 20, 1 << 40, 1 << 62])
    for axis in range(len(shape)):
      if data.draw(st.booleans()):
        shape[axis] = data.draw(sizes)
    if data.draw(st.booleans()):  # Empty, so that all else can be claimed.
      shape.insert(data.draw(st.integers(0, len(shape))), 0)
    shapes[key] = tuple(shape[: data.draw(st.integers(0, 4)) or None])
    if data.draw(st.integers(0, 3)) == 0:
      shapes[data.draw(names) + key] = shapes.pop(key)
  header, end = header_of(shapes)
  write_safetensors(fresh(room) / "weights", header, bytes(end))
  outcome("shapes as a model", lambda: load_pretrained(str(room / "weights")))


@examples(25)
@given(st.data())
def test_hostile_configurations(published, room, data):
  """Damages the JSON of Hugging Face and timm beside intact weights."""
  name = data.draw(st.sampled_from(["hf", "timm"]))
  fresh(room)
  shutil.copytree(published / name, room, dirs_exist_ok=True)
  which = "config.json"
  if name == "hf" and data.draw(st.booleans()):
    which = "preprocessor_config.json"
  whole = (room / which).read_bytes()
  raw = distorted(json.loads(whole)).map(lambda tree: json.dumps(tree).encode())
  (room / which).write_bytes(data.draw(raw | raw | damaged(whole)))
  outcome("config.json", lambda: load_pretrained(str(room)))


@pytest.fixture(scope="module")
def workdir(model, params, tmp_path_factory):
  """The folder of a run of ours after training."""
  folder = tmp_path_factory.mktemp("saved") / "run"
  return tiny.save_run(
    folder,
    model,
    params,
    (16, 16),
    "abcde",
    steps=[2],
    metrics={"eval/top1": 0.5},
    targets={"task": "classification", "weights": [1.0] * 5},
  )


OTHER_CONTENT = [b"", b"null", b"[]", b"{}", b"1e999", b'"a\nb"']
OTHER_CONTENT += [bytes(1000), b"\xff" * 1000]
OTHER_CONTENT += [b"[" * 100_000]  # Too deep for a parser that calls itself.


@pytest.mark.slow
@examples(20)
@given(st.data())
def test_damaged_workdir(workdir, params, room, data):
  """With damaged or missing files, the saved parameters are read, or none."""
  fresh(room)
  shutil.copytree(workdir, room / "run")
  files = sorted(p for p in (room / "run").rglob("*") if p.is_file())
  chosen = st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)
  for path in data.draw(chosen):
    kind = data.draw(st.sampled_from(["gone", "other", *["damaged"] * 4]))
    if kind == "gone":
      path.unlink()
    elif kind == "other":
      path.write_bytes(data.draw(st.sampled_from(OTHER_CONTENT)))
    else:
      path.write_bytes(data.draw(damaged(path.read_bytes())))
  kept = []
  outcome(
    "workdir, damaged", lambda: kept.append(load_pretrained(str(room / "run")))
  )
  for _, found in kept:
    same = jax.tree.map(np.array_equal, found, jax.device_get(params))
    assert jax.tree.all(same)


@pytest.mark.slow
@examples(12)
@given(st.data())
def test_hostile_description_of_a_workdir(workdir, room, data):
  """The description gets a new digest, so only its content is suspicious."""
  fresh(room)
  shutil.copytree(workdir, room / "run")
  path = room / "run/checkpoints/2/description/metadata"
  changed = data.draw(distorted(json.loads(path.read_text())))
  changed.pop("digest", None)
  path.write_text(json.dumps(with_digest(changed)))
  run = str(room / "run")
  outcome("workdir, hostile", lambda: load_pretrained(run))
  outcome("task, hostile", lambda: open_checkpoint(run).task)


@pytest.mark.slow
@examples(6)
@given(st.lists(st.text(max_size=9) | names, min_size=5, max_size=5), st.data())
def test_hostile_names_of_classes(published, room, classes, data):
  """Class names are written into converted files, but never name a file."""
  fresh(room)
  config = json.loads((published / "hf/config.json").read_text())
  config["id2label"] = {str(i): name for i, name in enumerate(classes)}
  shutil.copytree(published / "hf", room / "hf")
  (room / "hf/config.json").write_text(json.dumps(config))
  pretrained = open_checkpoint(str(room / "hf"))
  known = pretrained.origin.class_names
  assert all(name.isprintable() for name in known)
  to = data.draw(st.sampled_from(PLAIN))
  changed = pretrained.model.clone(gelu=TARGETS[to].gelus[0])
  changed = changed.clone(layer_norm_epsilon=1e-6)
  pretrained = dataclasses.replace(pretrained, model=changed)
  save_as(pretrained, to, room / "out")
  assert {path.name for path in room.iterdir()} == {"hf", "out"}
  expected = {path.name for path in (published / to).iterdir()}
  found = {path.name for path in (room / "out").rglob("*")}
  assert found - {"labels.txt"} == expected - {"labels.txt"}
  fields = {"num_heads": 3} if to == "torchvision" else {}
  again = open_checkpoint(str(room / "out"), **fields)
  assert again.origin.class_names == known
  TALLY["names of classes", "read"] += 1
