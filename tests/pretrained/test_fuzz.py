"""Rubbish in place of a file: it is read, or refused in one line, and no more.

Every reader of files from elsewhere gets files that were cut, flipped, or given
hostile headers. A few dozen each in an ordinary run, always the same ones; as
many as wanted, which are then counted, by

VIT_JAX_FUZZ=1000 pytest tests/test_fuzz.py -n 0 -s
"""

import collections
import contextlib
import io
import json
import math
import os
import pathlib
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import tiny
from tests.memory import bounded_memory
from vit_jax import load_pretrained
from vit_jax.config import base_config
from vit_jax.data import decode_rgb, make_train_transform
from vit_jax.models import Origin, to_fields
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.archives import open_arrays
from vit_jax.pretrained.load import Pretrained, open_pretrained
from vit_jax.pretrained.save import TARGETS, save_as
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints
from vit_jax.workdir.description import sealed

MIB = 1 << 20
SECONDS = 60  # No file here takes a hundredth of that, on any machine.
FACTOR = os.environ.get("VIT_JAX_FUZZ")
HUGE = (0, -1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 10**30)


def examples(ordinary: int) -> Callable:
  """So many examples a property, always the same; VIT_JAX_FUZZ says more."""
  return settings(
    max_examples=int(FACTOR) if FACTOR else ordinary,
    derandomize=True,
    database=None,
    deadline=None,  # `outcome` has one that also ends what hangs.
    suppress_health_check=list(HealthCheck),
  )


TALLY: collections.Counter[tuple[str, str]] = collections.Counter()


@pytest.fixture(scope="module", autouse=True)
def tally() -> Iterator[None]:
  """Prints, of a long run, how many files were read and refused."""
  yield
  if FACTOR:
    for target in sorted({target for target, _ in TALLY}):
      read, refused = TALLY[target, "read"], TALLY[target, "refused"]
      print(f"\n{target}: {read + refused} tried, {read} read, {refused} not")


class HangError(BaseException):
  """Not an Exception, so that no reader takes it for a damaged file."""


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
  """Raises in the midst of what takes too long, where the system can."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def stop(*_: object) -> None:
    raise HangError(f"it took more than {SECONDS} seconds")

  before = signal.signal(signal.SIGALRM, stop)
  signal.setitimer(signal.ITIMER_REAL, SECONDS)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def outcome(target: str, load: Callable[[], object]) -> str:
  """ "read" or "refused"; fails on any other way for a loader to end."""
  try:
    with time_limit():
      load()
  except (ValueError, OSError) as error:
    message = str(error)
    assert message and message.isprintable(), message
    TALLY[target, "refused"] += 1
    return "refused"
  TALLY[target, "read"] += 1
  return "read"


def places(size: int) -> st.SearchStrategy[int]:
  """Offsets in a file; half of them where formats have their headers."""
  last = max(size - 1, 0)
  near = st.integers(0, min(last, 600))
  return st.one_of(near, near.map(lambda at: last - at), st.integers(0, last))


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
  """A file after one to four accidents, or attacks."""
  raw = bytearray(whole)
  for _ in range(draw(st.integers(1, 4))):
    at = draw(places(len(raw)))
    stop = at + draw(st.integers(0, 64))
    kind = draw(
      st.sampled_from(["cut", "flip", "number", "set", "drop", "add"])
    )
    if kind == "cut":
      del raw[at:]
    elif kind == "flip" and raw:
      raw[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "number":
      width = draw(st.sampled_from([1, 2, 4, 8]))
      order = draw(st.sampled_from(["little", "big"]))
      number = draw(st.sampled_from(HUGE)) % (1 << 8 * width)
      raw[at : at + width] = number.to_bytes(width, order)
    elif kind == "set":
      raw[at:stop] = draw(st.binary(max_size=64))
    elif kind == "drop":
      del raw[at:stop]
    else:
      raw[at:at] = raw[draw(places(len(raw))) :][:64]
  return bytes(raw)


names = st.one_of(
  st.sampled_from(
    ["a", "", ".", "..", "../out", "/etc/out", "C:\\out", "a\nb"]
  ),
  st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)
numbers = st.one_of(
  st.sampled_from(HUGE),
  st.integers(),
  st.floats(),
  st.booleans(),
)
rubbish = st.recursive(
  st.one_of(st.none(), numbers, names),
  lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3)
  ),
  max_leaves=6,
)


def paths_in(tree: Any, prefix: tuple = ()) -> list[tuple]:
  """Keys that lead to every part of a JSON value."""
  keys = list(tree) if isinstance(tree, dict) else []
  keys = range(len(tree)) if isinstance(tree, list) else keys
  below = (paths_in(tree[key], (*prefix, key)) for key in keys)
  return [*([prefix] if prefix else []), *(p for each in below for p in each)]


@st.composite
def distorted(draw: st.DrawFn, whole: dict) -> dict:
  """A JSON object with one to three of its parts replaced or taken away."""
  tree = json.loads(json.dumps(whole))
  for _ in range(draw(st.integers(1, 3))):
    if not (known := paths_in(tree)):
      break
    *above, key = draw(st.sampled_from(known))
    inner = tree
    for step in above:
      inner = inner[step]
    if draw(st.booleans()) and isinstance(inner, dict):
      del inner[key]
    else:
      inner[key] = draw(rubbish)
  return tree


@pytest.fixture(scope="module")
def model():
  origin = Origin("ours", "test", (16, 16), class_names=tuple("abcde"))
  return tiny.vit(origin)


@pytest.fixture(scope="module")
def params(model):
  return tiny.random_params(model, (16, 16), 0)


@pytest.fixture(scope="module")
def published(model, params, tmp_path_factory):
  """A folder of each published format, by its name."""
  flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
  pretrained = Pretrained(
    model, param_shapes(model, (2, 2)), lambda: iter(flat.items())
  )
  folder = tmp_path_factory.mktemp("published")
  for name in TARGETS:
    save_as(pretrained, name, folder / name)
  return folder


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


def read_arrays(path: pathlib.Path) -> None:
  with open_arrays(path) as arrays:
    for name in arrays:
      assert arrays[name].shape == arrays.shapes[name]


def check_arrays(target: str, path: pathlib.Path) -> str:
  """Reads all arrays of a file, in memory bounded by its size."""
  # Of an index of 4 MiB, say, there are many small objects in Python.
  with bounded_memory(16 * path.stat().st_size + 8 * MIB):
    return outcome(target, lambda: read_arrays(path))


def weights(folder: pathlib.Path) -> pathlib.Path:
  return next(path for path in folder.iterdir() if "model." in path.name)


# Every format but the ones that differ from another in names alone.
FORMATS = ("google", "hf", "timm")


@examples(60)
@given(st.data())
def test_damaged_npz(published, room, data):
  whole = weights(published / "google").read_bytes()
  path = fresh(room, weights=data.draw(damaged(whole))) / "weights"
  check_arrays("npz, damaged", path)


@examples(60)
@given(st.data())
def test_damaged_safetensors(published, room, data):
  whole = weights(published / "timm").read_bytes()
  path = fresh(room, weights=data.draw(damaged(whole))) / "weights"
  check_arrays("safetensors, damaged", path)


class Evil:
  """What a pickle can do: here it makes a file."""

  touched: pathlib.Path

  def __reduce__(self):
    return open, (str(Evil.touched), "w")


@st.composite
def npy_member(draw: st.DrawFn) -> bytes:
  """An .npy file: in order, with a pickle, or with any claim in its header."""
  kind = draw(st.sampled_from(["array", "array", "pickle", "claim"]))
  if kind != "claim":
    file = io.BytesIO()
    array = np.arange(draw(st.integers(0, 40)), dtype=np.float32)
    np.save(file, [Evil()] if kind == "pickle" else array, allow_pickle=True)
    return file.getvalue()
  dtype = draw(
    st.sampled_from(["<f4", ">f8", "|b1", "V2", "|O", "<U999999999", "<c16"])
    | st.text(max_size=8)
  )
  shape = draw(st.lists(numbers | st.integers(0, 4), max_size=4))
  header = {
    "descr": dtype,
    "fortran_order": draw(st.booleans() | rubbish),
    "shape": tuple(shape),
  }
  text = draw(
    st.just(repr(header))
    | st.sampled_from(["(" * 9000, "__import__('os').abort()", "[1] * 10**10"])
  ).encode("utf-8", "surrogatepass")
  claimed = draw(st.just(len(text)) | st.sampled_from([0, 1, 60_000]))
  version = draw(
    st.sampled_from([b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\xff\xff"])
  )
  size = struct.pack("<H" if version == b"\1\0" else "<I", claimed)
  return b"\x93NUMPY" + version + size + text + draw(st.binary(max_size=64))


@examples(60)
@given(st.data())
def test_hostile_npz(room, data):
  file = io.BytesIO()
  methods = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
  with zipfile.ZipFile(file, "w") as archive:
    members = st.lists(
      st.tuples(names, npy_member(), methods),
      max_size=4,
      unique_by=lambda m: m[0],
    )
    for name, content, method in data.draw(members):
      archive.writestr(f"{name}.npy" if name else "a", content, method)
  content = data.draw(st.just(file.getvalue()) | damaged(file.getvalue()))
  Evil.touched = room / "touched"
  path = fresh(room, weights=content) / "weights"
  check_arrays("npz, hostile", path)
  assert not Evil.touched.exists()


def header_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict, int]:
  """The header of a .safetensors file of bytes, and how many there are.

  Absurdly many are given as none, which is a lie to be found out.
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
  text = json.dumps(data.draw(st.just(whole) | distorted(whole))).encode()
  size = len(text)
  if data.draw(st.integers(0, 4)) == 0:
    size = data.draw(st.sampled_from(HUGE)) % (1 << 64)
  path = fresh(room, weights=struct.pack("<Q", size) + text + bytes(end))
  check_arrays("safetensors, hostile", path / "weights")


@examples(60)
@given(st.data())
def test_hostile_index_of_shards(published, room, data):
  """Its values name files, which have to be beside it."""
  whole = weights(published / "timm").read_bytes()
  (room.parent / "inner").mkdir(exist_ok=True)
  values = names | st.sampled_from(["shard", "index.json", "/dev/zero", "~"])
  index = {"weight_map": data.draw(st.dictionaries(names, values | rubbish))}
  text = json.dumps(data.draw(st.just(index) | distorted(index)))
  fresh(room, shard=whole, **{"index.json": text})
  check_arrays("safetensors index, hostile", room / "index.json")


@examples(15)
@given(st.data())
def test_damaged_weights_as_a_model(published, room, data):
  """Beyond the arrays: sizes that follow from names and shapes."""
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
  """Empty arrays may claim any size and take no byte of the file."""
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
  text = json.dumps(header).encode()
  fresh(room, weights=struct.pack("<Q", len(text)) + text + bytes(end))
  outcome("shapes as a model", lambda: load_pretrained(str(room / "weights")))


@examples(25)
@given(st.data())
def test_hostile_configurations(published, room, data):
  """Of Hugging Face and of timm, beside weights that are in order."""
  name = data.draw(st.sampled_from(["hf", "timm"]))
  fresh(room)
  shutil.copytree(published / name, room, dirs_exist_ok=True)
  which = "config.json"
  if name == "hf" and data.draw(st.integers(0, 4)) == 0:
    which = "preprocessor_config.json"
  whole = (room / which).read_bytes()
  raw = distorted(json.loads(whole)).map(lambda tree: json.dumps(tree).encode())
  (room / which).write_bytes(data.draw(raw | raw | damaged(whole)))
  outcome("config.json", lambda: load_pretrained(str(room)))


@pytest.fixture(scope="module")
def workdir(model, params, tmp_path_factory):
  """A run of ours, as training leaves it."""
  config = base_config()
  config.image_size = (16, 16)
  config.normalization.update(mean=tiny.MEAN, std=tiny.STD)
  description = {
    "config": config.to_dict(),
    "model": to_fields(model),
    "class_names": list("abcde"),
  }
  folder = tmp_path_factory.mktemp("saved") / "run"
  checkpoints = Checkpoints(str(folder))
  state = TrainState(jnp.int32(2), params, {"count": jnp.int32(2)})
  checkpoints.save(state, 2, description, {"eval/top1": 0.5})
  checkpoints.close()
  return folder


OTHER_CONTENT = [
  b"",
  b"null",
  b"[]",
  b"{}",
  b"1e999",
  b'"a\nb"',
  b"[" * 100_000,  # Too deep for a parser that calls itself.
  bytes(1000),
  b"\xff" * 1000,
]


@examples(20)
@given(st.data())
def test_damaged_workdir(workdir, params, room, data):
  """A file or two damaged or gone: the parameters are those saved, or none."""
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


@examples(20)
@given(st.data())
def test_hostile_description_of_a_workdir(workdir, room, data):
  """One that was sealed again, so that only its content can give it away."""
  fresh(room)
  shutil.copytree(workdir, room / "run")
  path = room / "run/checkpoints/2/description/metadata"
  changed = data.draw(distorted(json.loads(path.read_text())))
  changed.pop("digest", None)
  path.write_text(json.dumps(sealed(changed)))
  outcome("workdir, hostile", lambda: load_pretrained(str(room / "run")))


@examples(15)
@given(st.lists(st.text(max_size=9) | names, min_size=5, max_size=5), st.data())
def test_hostile_names_of_classes(published, room, classes, data):
  """They go into a converter's files, and name none of them."""
  fresh(room)
  config = json.loads((published / "hf/config.json").read_text())
  config["id2label"] = {str(i): name for i, name in enumerate(classes)}
  shutil.copytree(published / "hf", room / "hf")
  (room / "hf/config.json").write_text(json.dumps(config))
  pretrained = open_pretrained(str(room / "hf"))
  known = pretrained.origin.class_names
  assert all(name.isprintable() for name in known)
  to = data.draw(st.sampled_from([*TARGETS]))
  changed = pretrained.model.clone(gelu=TARGETS[to].gelus[0])
  changed = changed.clone(layer_norm_epsilon=1e-6)
  pretrained = Pretrained(changed, pretrained.shapes, pretrained.read)
  save_as(pretrained, to, room / "out")
  assert {path.name for path in room.iterdir()} == {"hf", "out"}
  expected = {path.name for path in (published / to).iterdir()}
  found = {path.name for path in (room / "out").rglob("*")}
  assert found - {"labels.txt"} == expected - {"labels.txt"}
  fields = {"num_heads": 3} if to == "torchvision" else {}
  again = open_pretrained(str(room / "out"), **fields)
  assert again.origin.class_names == known
  TALLY["names of classes", "read"] += 1


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
  file = io.BytesIO()
  image.save(file, file_format, **options)
  return file.getvalue()


def make_images() -> dict[str, bytes]:
  rng = np.random.default_rng(0)
  pixels = Image.fromarray(rng.integers(0, 256, (40, 30, 3), np.uint8))
  exif = Image.Exif()
  exif[0x0112] = 6
  frames = dict(save_all=True, append_images=[pixels.rotate(90, expand=False)])
  return {
    "JPEG": encode(pixels, "JPEG", exif=exif),
    "JPEG, progressive": encode(pixels, "JPEG", progressive=True),
    "JPEG, CMYK": encode(pixels.convert("CMYK"), "JPEG"),
    "PNG": encode(pixels, "PNG"),
    "PNG, palette": encode(pixels.quantize(16), "PNG", transparency=0),
    "PNG, alpha": encode(pixels.convert("RGBA"), "PNG", exif=exif),
    "GIF": encode(pixels, "GIF", **frames),
    "WebP": encode(pixels, "WEBP"),
    "WebP, moving": encode(pixels, "WEBP", **frames),
    "BMP": encode(pixels, "BMP"),
  }


IMAGES = make_images()


@examples(100)
@given(st.data(), st.integers(0, 9))
def test_damaged_images_to_train_on(data, seed):
  """Of a JPEG no more is decoded than a random box can show."""
  name = data.draw(st.sampled_from([*IMAGES, *["JPEG"] * 5]))
  content = data.draw(damaged(IMAGES[name]))
  transform = make_train_transform((8, 12))
  rng = np.random.default_rng(seed)
  kept = []
  outcome("images, cropped", lambda: kept.append(transform(content, rng)))
  assert all(image.shape == (8, 12, 3) for image in kept)


@examples(300)
@given(st.data())
def test_damaged_images(data):
  name = data.draw(st.sampled_from([*IMAGES]))
  content = data.draw(damaged(IMAGES[name]))
  kept = []
  ended = outcome("images", lambda: kept.append(decode_rgb(content)))
  if ended == "read":
    (image,) = kept
    assert image.dtype == np.uint8
    assert image.ndim == 3 and image.shape[2] == 3


CLAIMS = """
import io, pathlib, resource, struct, sys
from PIL import Image
from vit_jax.data import decode_rgb
from vit_jax.pretrained.archives import open_arrays

def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def encode(file_format, **options):
  file = io.BytesIO()
  Image.new("RGB", (16, 16)).save(file, file_format, **options)
  return bytearray(file.getvalue())

jpeg, png, gif, bmp = map(encode, ("JPEG", "PNG", "GIF", "BMP"))
more = [Image.new("L", (16, 16), 9)]
webp = encode("WEBP", save_all=True, append_images=more)
frame, canvas = jpeg.index(b"\\xff\\xc0"), webp.index(b"VP8X")
jpeg[frame + 5 : frame + 9] = b"\\xff\\xdc" * 2
png[16:24] = b"\\x7f\\xff\\xff\\xff" * 2
gif[6:10] = b"\\xff" * 4
bmp[18:26] = struct.pack("<ii", 1 << 30, 1 << 30)
webp[canvas + 12 : canvas + 18] = struct.pack("<I", 16382)[:3] * 2
header = b'{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}'
weights = header % (1 << 40, 4 << 40)
weights = struct.pack("<Q", len(weights)) + weights
path = pathlib.Path(sys.argv[1])
path.write_bytes(weights)
before = peak()
for content in (jpeg, png, gif, bmp, webp, None):
  try:
    open_arrays(path) if content is None else decode_rgb(bytes(content))
  except ValueError as error:
    print(error)
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others count otherwise")
def test_what_headers_claim_is_not_allocated(tmp_path):
  """By the system's count, which sees what libraries in C take."""
  command = [sys.executable, "-W", "ignore", "-c", CLAIMS, tmp_path / "weights"]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  *refusals, grown = done.stdout.splitlines()
  assert len(refusals) == 6
  assert int(grown) < 64  # MiB, for what claims a GiB at the least.


def test_pickles_do_what_they_are_refused_for(tmp_path):
  """The one in `test_hostile_npz` would leave its trace."""
  Evil.touched = tmp_path / "touched"
  pickle.loads(pickle.dumps(Evil())).close()
  assert Evil.touched.exists()
