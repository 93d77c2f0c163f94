"""Sets up every test: eight CPU devices and checked shapes."""

import contextlib
import fcntl
import functools
import gc
import importlib
import importlib.metadata
import os
import pathlib
import shutil
import signal
import tempfile
import threading

# A shell that starts the tests in the background has them ignore Ctrl-C, and so
# would the commands that they start.
if threading.current_thread() is threading.main_thread():
  signal.signal(signal.SIGINT, signal.default_int_handler)
# Without bytecode, each worker and each command would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests shard over eight devices, which an accelerator does not have.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests, their workers and the commands that they start share a cache of
# compiled programs. It stays for the next run, since compiling is a third of
# their time, and starts afresh once programs of old code have filled it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  COMPILED = pathlib.Path(__file__).parents[1] / "build" / "compiled"
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
  if sum(path.stat().st_size for path in COMPILED.glob("*")) > 2**29:
    shutil.rmtree(COMPILED, ignore_errors=True)
# It takes every program, since a test compiles dozens in a hundredth of a
# second each. With a largest size, each would be compared with all before it.
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = "-1"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Most of the time of a small test goes into compiling. On an accelerator, the
# programs to test are the optimized ones.
if os.environ["JAX_PLATFORMS"] == "cpu":
  os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# XLA's older CPU emitter compiles in two thirds of the newer one's time. Later
# releases have no other, and end the process at a flag that they do not know.
if importlib.metadata.version("jaxlib").startswith("0.10."):
  os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_cpu_use_fusion_emitters=false"]
  ).strip()

import jax
import jaxtyping
import pytest

pytest_plugins = ["tests.left_out"]
jax.config.update("jax_num_cpu_devices", 8)
# Collects garbage less often, since it took a tenth of the tests' time.
gc.set_threshold(200_000)
# Forbids implicit broadcasting between arrays of different ranks.
jax.config.update("jax_numpy_rank_promotion", "raise")


def check_shapes(*, typechecker):
  """Has a function's types checked where they name a shape, but no class.

  Types without shapes are known before a test runs. JAX fills the fields of a
  state, which is a class, with shapes and shardings too.
  """

  def decorate(function):
    types = getattr(function, "__annotations__", {}).values()
    shaped = any("jaxtyping." in repr(each) for each in types)
    if isinstance(function, type) or not shaped:
      return function
    return JAXTYPED(function, typechecker=typechecker)

  return decorate


# The hook decorates every function and every class by its public name. To check
# them all took a third of the time of tracing a model. A fork of a process that
# has run this file before runs it again.
JAXTYPED = getattr(jaxtyping.jaxtyped, "wrapped", jaxtyping.jaxtyped)
check_shapes.wrapped = JAXTYPED
jaxtyping.jaxtyped = check_shapes
MODELS = pathlib.Path(__file__).parents[1] / "vit_jax" / "models"
# Modules in which jaxtyping checks every call's shapes: those that name any.
# `vit_jax.data` is left out, because its worker processes lack the hook.
SHAPES_CHECKED = (
  *sorted(
    f"vit_jax.models.{path.stem}"
    for path in MODELS.glob("*.py")
    if "jaxtyping" in path.read_text()
  ),
  "vit_jax.inspection.attention_maps",
  "vit_jax.inspection.embedding_maps",
  "vit_jax.training.contrastive",
  "vit_jax.training.distillation",
  "vit_jax.training.losses",
  "vit_jax.tasks.masked.objective",
  "vit_jax.tasks.autoencoder.objective",
  "vit_jax.tasks.autoencoder.task",
  "vit_jax.tasks.student.objective",
  "vit_jax.tasks.self_distillation.task",
  "vit_jax.tasks.self_distillation.losses",
  "vit_jax.tasks.self_distillation.objective",
  "vit_jax.training.state",
  "vit_jax.training.step",
  "vit_jax.tasks.classification.eval_step",
  "vit_jax.tasks.probes.linear_probe",
  "vit_jax.tasks.masked.task",
  "vit_jax.tasks.probes.few_shot",
)
jaxtyping.install_import_hook(SHAPES_CHECKED, "beartype.beartype")


def pytest_collection(session):
  """Has one of two workers import all files, from the last to the first.

  Pytest rewrites the asserts of each file, a third of the time of collecting,
  and keeps what it made: so each worker does half of them.
  """
  root = pathlib.Path(__file__).parent
  if os.environ.get("PYTEST_XDIST_WORKER") != "gw1":
    return
  if [pathlib.Path(each).resolve() for each in session.config.args] != [root]:
    return
  for path in sorted(root.rglob("test_*.py"), reverse=True):
    name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
    # What cannot be imported is told when it is collected.
    with contextlib.suppress(Exception, pytest.skip.Exception):
      importlib.import_module(name)


def pytest_collection_finish(session):
  """Has no later collection of garbage look at what importing has made.

  Each would take half a second, three of them as the process ends.
  """
  gc.collect()
  gc.freeze()


@pytest.fixture
def shapes_checked():
  """Names of the modules whose calls have their shapes checked."""
  return SHAPES_CHECKED


@pytest.fixture
def interpreted(monkeypatch):
  """Has JAX interpret its splash attention kernel, which is for TPUs alone."""
  from jax.experimental.pallas.ops.tpu import splash_attention

  name = "make_splash_mha_single_device"
  make = functools.partial(getattr(splash_attention, name), interpret=True)
  monkeypatch.setattr(splash_attention, name, make)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory):
  """Temporary files of libraries and examples go when pytest's own do."""
  tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))
  yield
  tempfile.tempdir = None


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
  """Returns a function that makes a folder once for all workers.

  `made_once(name, make)` returns the folder; the first worker that needs it
  calls `make(folder)`, and the others wait.
  """
  root = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    root = root.parent

  def made(name, make):
    folder, finished = root / name, root / f"{name}.finished"
    with (root / f"{name}.lock").open("w") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not finished.exists():
        shutil.rmtree(folder, ignore_errors=True)  # Of a worker that failed.
        folder.mkdir()
        make(folder)
        finished.touch()
    return folder

  return made


@pytest.fixture(scope="session")
def distributions(made_once):
  """A folder with the source distribution, and the wheel built from it."""
  from tests import wheels

  return made_once("distributions", wheels.build)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
  """An empty folder for `data.data_dir`; the digits need none."""
  return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="session")
def whole_run(data_dir, tmp_path_factory):
  """A run of 12 steps on the digits that nothing disturbed, as `runs.Whole`."""
  from tests import runs

  return runs.whole(data_dir, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run_copy(whole_run, tmp_path):
  """A copy of its folder, which may be changed."""
  return shutil.copytree(whole_run.folder, tmp_path / "run")


@pytest.fixture(scope="module")
def tinted_root(tmp_path_factory) -> str:
  """A folder of the images of `tinted`, which a module may change."""
  from tests import tinted

  folder = tmp_path_factory.mktemp("images")
  tinted.write_images(folder)
  return str(folder)


@pytest.fixture(scope="module")
def tinted_model():
  """The model of `tinted`, and its parameters."""
  from tests import tinted

  return tinted.model_and_params()


@pytest.fixture(scope="session")
def bucket_server():
  """A store on loopback with a bucket; skips where none is installed."""
  from tests.bucket_server import serving

  with serving() as server:
    yield server


@pytest.fixture
def store(bucket_server, monkeypatch):
  """The same for one test, which may set its `fault`; nobody is patient."""
  from vit_jax.workdir import bucket

  for name, value in bucket_server.environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(bucket, "PATIENCE", 0)
  for cached in (bucket.client, bucket.retry):
    cached.cache_clear()
  bucket_server.requests.clear()
  yield bucket_server
  bucket_server.no_fault()
  for cached in (bucket.client, bucket.retry):
    cached.cache_clear()


@pytest.fixture
def handlers():
  """The handlers of the signals that stop a run, which are put back."""
  numbers = (signal.SIGINT, signal.SIGTERM)
  before = {number: signal.getsignal(number) for number in numbers}
  yield before
  for number, handler in before.items():
    signal.signal(number, handler)


@pytest.fixture(scope="session")
def browser():
  """The system's Chromium."""
  playwright = pytest.importorskip("playwright.sync_api")
  names = ("chromium", "chromium-browser", "google-chrome")
  path = next(filter(None, map(shutil.which, names)), None)
  if path is None:
    assert not os.environ.get("VIT_JAX_BROWSER"), "no Chromium was found"
    pytest.skip("Chromium is not installed")
  with playwright.sync_playwright() as started:
    # Chromium refuses to run as root with its sandbox.
    found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _nothing_is_said_yet():
  """Each test is as a process of its own, which says some lines once."""
  from vit_jax.runtime import printable

  printable.said_once.clear()
