"""Checks scripts for remote machines, as far as possible without them."""

import math
import os
import pathlib
import subprocess

import pytest
import yaml

SCRIPTS = pathlib.Path(__file__).parent.parent / "scripts"
SHELL = ("launch_tpu_vm.sh", "launch_slurm.sbatch")


@pytest.mark.parametrize("name", SHELL)
def test_a_shell_script_parses(name):
  subprocess.run(["bash", "-n", SCRIPTS / name], check=True)


@pytest.mark.parametrize("name", SHELL)
def test_without_arguments_it_says_what_it_needs(name):
  done = subprocess.run(
    ["bash", SCRIPTS / name], capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert "--config" in done.stderr


def _stand_in(folder, name, body):
  """Makes a program of this name that records how it was called."""
  path = folder / name
  path.write_text(f"#!/usr/bin/env bash\n{body}\n")
  path.chmod(0o755)


def test_every_host_gets_the_arguments_as_they_were(tmp_path):
  """Replaces ssh by a local shell, and programs by stand-ins."""
  _stand_in(
    tmp_path,
    "gcloud",
    f'case "$*" in\n*ssh*) printf %s "${{!#}}" > {tmp_path}/remote;;\n'
    f"*cp*) cat > {tmp_path}/archive;;\nesac",
  )
  arguments = ["--config", "a b.py:B/16,x", "--config.image_size=(8,8)"]
  subprocess.run(
    [
      SCRIPTS / "launch_tpu_vm.sh",
      "tpu",
      "zone",
      "gs://b/v.tar.gz",
      *arguments,
    ],
    check=True,
    cwd=SCRIPTS.parent,
    env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
  )
  assert (tmp_path / "archive").stat().st_size > 0
  remote = (tmp_path / "remote").read_text()
  subprocess.run(["bash", "-n"], input=remote, text=True, check=True)
  last = remote.splitlines()[-1].replace(
    "exec .venv/bin/python", "printf '%s\\n'"
  )
  seen = subprocess.run(
    ["bash", "-c", last], capture_output=True, text=True, check=True
  )
  assert seen.stdout.splitlines() == ["-m", "vit_jax.train", *arguments]


def test_slurm_starts_one_process_a_task(tmp_path):
  _stand_in(tmp_path, "srun", "printf '%s\\n' \"$@\"")
  done = subprocess.run(
    ["bash", SCRIPTS / "launch_slurm.sbatch", "--workdir", "a b"],
    capture_output=True,
    text=True,
    check=True,
    env={
      **os.environ,
      "PATH": f"{tmp_path}:{os.environ['PATH']}",
      "SLURM_SUBMIT_DIR": str(tmp_path),
    },
  )
  expected = ["-m", "vit_jax.train", "--workdir", "a b"]
  assert done.stdout.splitlines()[-4:] == expected


def test_the_jobset_asks_for_as_many_chips_as_its_slice_has():
  jobset = yaml.safe_load((SCRIPTS / "launch_jobset.yaml").read_text())
  assert jobset["kind"] == "JobSet"
  (replicated,) = jobset["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  assert job["parallelism"] == job["completions"]
  pod = job["template"]["spec"]
  shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
  (container,) = pod["containers"]
  chips = container["resources"]["limits"]["google.com/tpu"]
  assert container["resources"]["requests"]["google.com/tpu"] == chips
  assert math.prod(map(int, shape.split("x"))) == job["completions"] * chips
  assert container["command"][:3] == ["python", "-m", "vit_jax.train"]
