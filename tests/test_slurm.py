"""The SLURM script on a real SLURM, with two nodes on this machine."""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time

import pytest

SCRIPT = (
  pathlib.Path(__file__).parent.parent / "scripts" / "launch" / "slurm.sbatch"
)
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol")
# Nodes have the address as their name by which JAX finds the first process.
CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
AuthInfo=socket={folder}/munge,cred_expire=5
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
MailProg=/bin/true
KillWait=10
SchedulerParameters=batch_sched_delay=1,sched_interval=2
NodeName=127.0.0.[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 \
Port=[{ports[1]},{ports[2]}] CPUs=1 RealMemory=100
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def _free_ports(count):
  with contextlib.ExitStack() as stack:
    taken = [stack.enter_context(socket.socket()) for _ in range(count)]
    for one in taken:
      one.bind(("127.0.0.1", 0))
    return [one.getsockname()[1] for one in taken]


def _wait_for(found, seconds, what):
  end = time.monotonic() + seconds
  while not (result := found()):
    assert time.monotonic() < end, f"{what} after {seconds} s"
    time.sleep(0.3)
  return result


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
  """A cluster of two nodes; commands find it by SLURM_CONF."""
  monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
  if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
    pytest.skip(f"slurm-wlm is not installed: there is no {missing[0]}")
  if os.geteuid() != 0:
    pytest.skip("SLURM's daemons need root")
  folder = tmp_path_factory.mktemp("slurm")
  (folder / "state").mkdir()
  (folder / "key").write_bytes(secrets.token_bytes(32))
  (folder / "key").chmod(0o600)
  conf = folder / "slurm.conf"
  conf.write_text(CONF.format(folder=folder, ports=_free_ports(3)))
  monkeypatch.setenv("SLURM_CONF", str(conf))
  munge = ["munged", "--force", "--foreground", f"--key-file={folder}/key"]
  munge += [f"--socket={folder}/munge", f"--pid-file={folder}/munge.pid"]
  munge += [f"--log-file={folder}/log", f"--seed-file={folder}/seed"]
  daemons = [munge, ["slurmctld", "-D"]]
  daemons += [
    ["slurmd", "-D", "-N", node] for node in ("127.0.0.1", "127.0.0.2")
  ]
  running = []
  with open(folder / "output", "w") as output:
    for daemon in daemons:
      running.append(
        subprocess.Popen(daemon, stdout=output, stderr=output, cwd=folder)
      )
      time.sleep(0.5)
  try:
    _wait_for(lambda: " idle " in _call("sinfo"), 30, "no idle nodes")
    yield
  finally:
    _call("scancel", "--signal=KILL", "--full", "--user=root")
    _call("scancel", "--user=root")
    with contextlib.suppress(AssertionError):
      _wait_for(lambda: not _call("squeue", "-h"), 20, "jobs are left")
    for process in reversed(running):
      process.terminate()
      process.wait(20)


def _call(*command):
  return subprocess.run(
    command, capture_output=True, text=True, check=False, timeout=30
  ).stdout


def _state(job):
  found = re.search(r"JobState=(\w+)", _call("scontrol", "show", "job", job))
  return found and found[1]


@pytest.mark.slow
def test_a_job_is_queued_again_until_it_is_cancelled(
  slurm, data_dir, tmp_path, monkeypatch
):
  monkeypatch.setenv("VENV", sys.prefix)
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
  submitted = subprocess.run(
    [
      *("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1"),
      *(f"--output={tmp_path}/log", str(SCRIPT)),
      *("--config=configs/digits.py", "--config.total_epochs=0"),
      *("--config.total_steps=1000000", "--config.log_every_steps=1"),
      *("--config.eval_every_epochs=0", "--config.save_every_epochs=0"),
      *("--config.optimizer.warmup_epochs=0", "--config.model.num_layers=1"),
      f"--config.data.data_dir={data_dir}",
      f"--workdir={tmp_path}/run",
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  job = submitted.stdout.strip()
  log = tmp_path / "log"

  def printed(pattern):
    return log.exists() and re.findall(pattern, log.read_text(), re.MULTILINE)

  _wait_for(lambda: printed(r"^step +20/"), 120, "no step 20")
  assert len(printed(r"^devices +2 x cpu")) == 1  # Two tasks form one run.
  _call("scancel", "--signal=TERM", job)
  (saved,) = _wait_for(lambda: printed(r"; step (\S+) is saved"), 60, "no save")
  _wait_for(lambda: printed("^== start 1 of"), 60, "no second start")
  _wait_for(
    lambda: printed(f"^Resuming from the checkpoint of step {saved}"),
    90,
    "not resumed",
  )
  count = len(printed("^step "))
  _wait_for(lambda: len(printed("^step ")) > count, 90, "no further step")
  _call("scancel", job)
  _wait_for(lambda: _state(job) == "CANCELLED", 60, "not cancelled")
  time.sleep(8)  # It would have started again by now.
  assert _state(job) == "CANCELLED"
  assert not printed("^== start 2 of")
