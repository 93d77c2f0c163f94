"""Several processes that join on loopback and form one run."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from PIL import Image

from tests import commands, runs
from tests.bucket_server import free_port
from vit_jax.runtime import hosts
from vit_jax.runtime.restarts import MENDABLE
from vit_jax.workdir.checkpoint import Checkpoints

DEVICES = 4


def _command(workdir, data_dir, *overrides):
  return [
    *(sys.executable, "-m", "vit_jax.train", "--config=configs/digits.py"),
    f"--workdir={workdir}",
    f"--config.data.data_dir={data_dir}",
    *("--config.total_epochs=0", "--config.total_steps=6"),
    *("--config.eval_every_epochs=0", "--config.eval_every_steps=3"),
    *("--config.save_every_epochs=0", "--config.save_every_steps=3"),
    *("--config.optimizer.warmup_epochs=0", "--config.log_every_steps=1"),
    *("--config.mesh.fsdp=2", "--config.model.dropout_rate=0.1"),
    *("--config.model.num_layers=1", "--config.eval_pictures=1", *overrides),
  ]


def _start(workdir, data_dir, num_processes, *overrides):
  """Starts the command in this many processes."""
  _, *command = _command(workdir, data_dir, *overrides)
  command += [f"--num_processes={num_processes}"]
  command += [f"--coordinator=127.0.0.1:{free_port()}"]
  env = {"JAX_NUM_CPU_DEVICES": str(DEVICES // num_processes)}
  return [
    commands.start(*command, f"--process_id={i}", **env)
    for i in range(num_processes)
  ]


def _train(*arguments):
  """Runs the command in several processes; returns what each printed."""
  processes = _start(*arguments)
  outputs = [process.communicate(timeout=240) for process in processes]
  for process, (_, errors) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, errors
  return [printed for printed, _ in outputs]


def _rows(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  keep = ("step", "train/loss", "eval/loss", "eval/top1", "eval/examples")
  return [[json.loads(line).get(key, 0) for key in keep] for line in lines]


def _pictures(workdir):
  """The pictures of every evaluation, by step and name."""
  return {
    (step, tag): np.asarray(
      Image.open(io.BytesIO(value.image.encoded_image_string)), np.int16
    )
    for step, tag, value in runs.events(workdir)
    if value.HasField("image")
  }


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  """A run of one process with all devices, and the data it prepared."""
  folder = tmp_path_factory.mktemp("hosts")
  _train(folder / "alone", folder / "data", 1)
  return folder


@pytest.mark.parametrize(
  ("names", "platforms", "expected"),
  [
    ("t-0,t-1,t-2,t-3", None, "cpu"),
    ("t-0,t-1", "tpu", "tpu"),  # The user's choice.
    ("localhost", None, None),
    (None, None, None),
  ],
)
def test_one_host_of_a_slice_uses_its_cpu(
  monkeypatch, capsys, names, platforms, expected
):
  values = {"TPU_WORKER_HOSTNAMES": names, "JAX_PLATFORMS": platforms}
  for name, value in values.items():
    monkeypatch.setenv(name, value or "")
    if value is None:
      monkeypatch.delenv(name)
  hosts.stay_alone()
  assert os.environ.get("JAX_PLATFORMS") == expected
  said = capsys.readouterr().err
  assert ("one of 4 of a TPU slice" in said) == (expected == "cpu")


# Self-distillation with crops of two sizes, both of which come in six batches.
CROPS = (
  *("--config.image_size=8,8", "--config.eval_pictures=0"),
  *("--config.model.pooling=token", "--config.loss.label_smoothing=0"),
  *("--config.self_distillation.prototypes=12", "--config.ema_decay=0.9"),
  "--config.self_distillation.head_size=16",
  "--config.self_distillation.bottleneck=8",
  "--config.self_distillation.small_crops=2",
  "--config.self_distillation.gram_weight=1.5",
  "--config.self_distillation.crop_sizes=((8,4,12,0.5),(16,8,24,0.5))",
)


@pytest.mark.slow
def test_processes_distil_crops_of_mixed_sizes_as_one(alone, tmp_path):
  data_dir = alone / "data"
  _train(tmp_path / "alone", data_dir, 1, *CROPS)
  printed = _train(tmp_path / "run", data_dir, 2, *CROPS)
  assert "the step is compiled for 2 sizes of crops" in printed[0]
  found, expected = _rows(tmp_path / "run"), _rows(tmp_path / "alone")
  assert any(row[1] for row in expected)  # Losses, and not 0 for no row.
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [2, 4])
def test_processes_do_as_one(alone, tmp_path, num_processes):
  printed = _train(tmp_path / "run", alone / "data", num_processes)
  found, expected = _rows(tmp_path / "run"), _rows(alone / "alone")
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  pictures, same = (_pictures(w) for w in (tmp_path / "run", alone / "alone"))
  assert pictures.keys() == same.keys() and len(same) == 4
  for key, picture in pictures.items():
    assert np.abs(picture - same[key]).mean() < 1
  assert "Done in" in printed[0]
  assert not any("step" in text for text in printed[1:])


def _disturb(workdir, data_dir, number):
  """Starts two processes, and sends a signal to one between the steps.

  Returns each process after its end, with its stdout and stderr.
  """
  processes = _start(
    workdir,
    data_dir,
    2,
    *("--config.total_steps=50000", "--config.save_every_steps=20"),
    *("--config.eval_every_steps=0", "--config.loader.num_workers=1"),
    "--config.eval_pictures=0",
  )
  for line in processes[0].stdout:
    if line.startswith("step      3"):
      break
  processes[1].send_signal(number)
  start = time.perf_counter()
  ended = [(p, *p.communicate(timeout=150)) for p in processes]
  assert time.perf_counter() - start < 120
  return ended


@pytest.mark.slow
def test_a_notice_to_one_process_stops_all_at_the_same_step(alone, tmp_path):
  ended = _disturb(tmp_path, alone / "data", signal.SIGTERM)
  assert [process.returncode for process, _, _ in ended] == [143, 143]
  last = ended[0][1].splitlines()[-1]
  step = int(last.removeprefix("told to stop; step ").split()[0])
  checkpoints = Checkpoints(str(tmp_path), read_only=True)
  assert checkpoints.latest_step == step
  checkpoints.close()


@pytest.mark.slow
def test_where_one_process_dies_the_others_end_and_say_why(alone, tmp_path):
  ended = _disturb(tmp_path, alone / "data", signal.SIGKILL)
  codes = [process.returncode for process, _, _ in ended]
  assert codes[0] not in (0, None)
  assert codes[1] == -signal.SIGKILL
  assert "another task died" in ended[0][2]
  assert "Fatal Python error" not in ended[0][2]


@pytest.mark.parametrize(
  "arguments, message",
  [
    (("10.0.0.1:1", None, 0), "go together: give all three"),
    ((None, 2, None), "go together: give all three"),
    (("10.0.0.1", 2, 0), "must be the first process's HOST:PORT"),
    (("10.0.0.1:1", 2, 2), "--process_id=2 must be from 0 to 1"),
    (("10.0.0.1:1", 1, 7), "--process_id=7 must be from 0 to 0"),
  ],
)
def test_flags_that_do_not_fit_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    hosts.join(*arguments)


def test_alone_nothing_is_joined(monkeypatch):
  monkeypatch.setattr(jax.distributed, "initialize", pytest.fail)
  hosts.join(num_processes=1)


def _join(*arguments, seconds=3, **environment):
  """Joins in a process of its own, which waits for the others so long."""
  script = (
    "from vit_jax.runtime import hosts\n"
    f"hosts.TIMEOUT_SECONDS = {seconds}\n"
    f"hosts.join(*{arguments!r})\n"
  )
  return commands.python("-W", "ignore", "-c", script, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("process_id", [0, 1])
def test_where_others_are_missing_a_process_ends_with_a_line(process_id):
  address = f"127.0.0.1:{free_port()}"
  done = _join(address, 2, process_id)
  assert done.returncode == 2
  last = done.stderr.splitlines()[-1]
  assert last.startswith(
    f"error: not all processes of the run met at {address}"
  )
  assert "within 3 s: start the same command on every host" in last


def _pair(script):
  """Runs a script in two processes that have joined; yields each one's end."""
  address = f"127.0.0.1:{free_port()}"
  begin = (
    "import sys, time\n"
    "from vit_jax.runtime import hosts\n"
    f"hosts.join({address!r}, 2, int(sys.argv.pop()))\n"
    "import jax\n"
  )
  flags = ("-W", "ignore", "-c", begin + script)
  processes = [
    commands.start(*flags, str(i), JAX_NUM_CPU_DEVICES="1") for i in range(2)
  ]
  for process in processes:
    _, errors = process.communicate(timeout=120)
    yield process.returncode, errors


@pytest.mark.slow
def test_a_process_that_compiles_for_longer_is_waited_for():
  """Gloo gives up after 30 s."""
  script = (
    "import numpy as np\n"
    "from jax.sharding import NamedSharding, PartitionSpec as P\n"
    "mesh = jax.make_mesh((2,), ('x',))\n"
    "x = jax.make_array_from_process_local_data(\n"
    "    NamedSharding(mesh, P('x')), np.ones(1))\n"
    "def total(x):\n"
    "  time.sleep(33 * jax.process_index())\n"
    "  return x.sum()\n"
    "total = hosts.compile_together(jax.jit(total))\n"
    "assert int(total(x)) == int(total(x)) == 2\n"
  )
  assert [code for code, _ in _pair(script)] == [0, 0]


def test_processes_wait_for_each_other_once_for_each_shape(monkeypatch):
  met = []
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(hosts, "_barrier_function", lambda: None)
  monkeypatch.setattr(hosts, "meet", met.append)
  total = hosts.compile_together(jax.jit(lambda x, y: x.sum() + y["z"].sum()))
  for n in (2, 3, 2, 3, 4):
    found = total(np.ones(5, np.float32), {"z": np.ones(n, np.float32)})
    assert float(found) == 5 + n
  assert met == ["compiled"] * 3


@pytest.mark.slow
def test_a_process_that_fails_does_not_wait_for_the_others():
  script = (
    "if jax.process_index():\n"
    "  time.sleep(100)\n"
    "from vit_jax.runtime import command\n"
    "def main(_):\n"
    "  with hosts.detect_lost_peers():\n"
    "    raise jax.errors.JaxRuntimeError('UNKNOWN: Gloo timed out\\nmore')\n"
    "command.run(main)\n"
  )
  start = time.perf_counter()
  (code, errors), (other, _) = _pair(script)
  assert time.perf_counter() - start < 60
  assert code == MENDABLE
  line = "error: an exchange with the other processes failed (UNKNOWN: Gloo "
  assert line in errors
  assert other == -signal.SIGABRT  # By JAX, as the first process is gone.


@pytest.mark.slow
def test_a_pod_that_sees_no_other_is_refused():
  pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}
  done = _join(**pod)
  assert done.returncode == 1
  assert "ValueError: this is pod 0 of a Kubernetes job, and no" in done.stderr
  assert _join(None, 1, None, **pod).returncode == 0
  assert _join(KUBERNETES_SERVICE_HOST="10.0.0.1").returncode == 0


@pytest.mark.slow
def test_a_process_of_open_mpi_5_that_sees_no_other_is_refused():
  """It does not set OMPI_MCA_orte_hnp_uri, by which JAX knows Open MPI."""
  done = _join(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
  assert done.returncode == 1
  assert "mpirun started 2 processes, and JAX does not see" in done.stderr
  assert _join(OMPI_COMM_WORLD_SIZE="1", OMPI_COMM_WORLD_RANK="0").stderr == ""


@pytest.mark.slow
def test_open_mpi_starts_processes_that_do_as_one(alone, tmp_path):
  if shutil.which("mpirun") is None:
    pytest.skip("Open MPI (openmpi-bin) is not installed: there is no mpirun")
  launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
  done = subprocess.run(
    [*launch, *_command(tmp_path / "run", alone / "data")],
    capture_output=True,
    text=True,
    timeout=240,
    env={**os.environ, "JAX_NUM_CPU_DEVICES": str(DEVICES // 2)},
    check=False,
  )
  assert done.returncode == 0, done.stderr
  found, expected = _rows(tmp_path / "run"), _rows(alone / "alone")
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  start = json.loads((tmp_path / "run" / "starts.jsonl").read_text())
  assert start["hosts"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("then", [2, 4])
def test_processes_killed_while_saving_start_again(saved_often, tmp_path, then):
  """Both are killed in the middle of the save of a step after the second."""
  data_dir, whole = saved_often
  workdir = tmp_path / "run"
  processes = _start(workdir, data_dir, 2, *OFTEN)
  while not _partial(workdir) and processes[0].poll() is None:
    time.sleep(0.002)
  for process in processes:
    process.kill()
  for process in processes:
    process.communicate()
  assert [p.returncode for p in processes] == [-signal.SIGKILL] * 2
  printed = _train(workdir, data_dir, then, *OFTEN)
  assert _partial(workdir) == []
  step = int(re.search(r"the checkpoint of step (\d+)", printed[0])[1])
  found, expected = _rows(workdir), _rows(whole)
  assert [row[0] for row in found] == [row[0] for row in expected]
  if then == 2:
    assert found == expected
    return
  (first,) = [i for i, row in enumerate(found) if row[0] == step + 1]
  np.testing.assert_allclose(found[first], expected[first], rtol=1e-5)


# Saves after each step; the evaluation is elsewhere.
OFTEN = (
  *("--config.save_every_steps=1", "--config.eval_every_steps=0"),
  *("--config.total_steps=12", "--config.eval_pictures=0"),
)


@pytest.fixture(scope="module")
def saved_often(alone, tmp_path_factory):
  """An undisturbed run of two processes, and the folder of its data."""
  workdir = tmp_path_factory.mktemp("often") / "run"
  _train(workdir, alone / "data", 2, *OFTEN)
  return alone / "data", workdir


def _partial(workdir):
  """Checkpoints after the second that are being saved."""
  found = (workdir / "checkpoints").glob("*-tmp")
  return [path for path in found if int(path.name.split(".")[0]) > 2]
