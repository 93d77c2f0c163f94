"""Closed streams and a deleted folder are a line at most, and lose no work."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import commands

SCRIPT = """
import pathlib, sys
from vit_jax.runtime import command

def main(arguments):
  with open(arguments[0], "w") as file:  # It must not get a stream's number.
    for _ in range(3):
      print("a line", flush=True)
    file.write("the work")
  if arguments[1:]:
    pathlib.Path(arguments[1]).resolve()

command.run(main, takes="FILE [PATH]", resumes=RESUMES)
"""
ROOT = pathlib.Path(__file__).parents[2]
SHELL = 'exec "$0" "$@" '
KEPT = "the run goes on, and its log.txt has what it prints.\n"


def _shell(words, *arguments, cwd=None):
  """Runs Python in a shell, with its streams as the words say."""
  command = ["sh", "-c", words, sys.executable, *map(str, arguments)]
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  return subprocess.run(
    command,
    capture_output=True,
    text=True,
    cwd=cwd,
    env=environment,
    check=False,
  )


@pytest.mark.parametrize("resumes", [True, False])
def test_a_command_whose_output_is_closed_does_its_work(tmp_path, resumes):
  script = SCRIPT.replace("RESUMES", str(resumes))
  done = _shell(SHELL + ">&- <&-", "-c", script, tmp_path / "file")
  then = KEPT if resumes else "what this command prints is lost.\n"
  said = f"standard output is closed: {then}"
  assert (done.returncode, done.stderr) == (0, said)
  assert (tmp_path / "file").read_text() == "the work"


def test_all_streams_may_be_closed(tmp_path):
  script = SCRIPT.replace("RESUMES", "True")
  done = _shell(SHELL + ">&- 2>&- <&-", "-c", script, tmp_path / "file")
  assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
  assert (tmp_path / "file").read_text() == "the work"


def _without_reader(*arguments):
  """Runs Python with an output that nobody reads any more."""
  read, write = os.pipe()
  os.close(read)
  with open(write, "w") as closed:
    return subprocess.run(
      [sys.executable, *arguments],
      stdout=closed,
      stderr=subprocess.PIPE,
      text=True,
      check=False,
    )


def test_a_display_without_a_reader_ends_quietly():
  """As every other output of a command that is no run does."""
  script = (
    "from vit_jax.runtime import command, display\n"
    "command.run(lambda _: display.Display().note('a line'))"
  )
  done = _without_reader("-c", script)
  assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", [(), ("-u",)])
def test_a_run_outlives_the_reader_of_its_output(tmp_path, unbuffered):
  script = SCRIPT.replace("RESUMES", "True")
  done = _without_reader(*unbuffered, "-c", script, tmp_path / "file")
  said = f"standard output cannot be written (Broken pipe): {KEPT}"
  assert (done.returncode, done.stderr) == (0, said)
  assert (tmp_path / "file").read_text() == "the work"


def test_a_run_outlives_a_full_disk_that_its_output_is_on(tmp_path):
  script = SCRIPT.replace("RESUMES", "True")
  done = _shell(SHELL + ">/dev/full", "-c", script, tmp_path / "file")
  said = f"standard output cannot be written (No space left on device): {KEPT}"
  assert (done.returncode, done.stderr) == (0, said)
  both = _shell(SHELL + ">/dev/full 2>&1", "-c", script, tmp_path / "file")
  assert both.returncode == 0


@pytest.mark.parametrize("arguments", ["help", "--version", "pack --help"])
def test_help_with_a_closed_output_is_no_traceback(arguments):
  done = _shell(SHELL + ">&-", "-m", "vit_jax", *arguments.split())
  assert (done.returncode, done.stderr) == (0, "")


def test_a_deleted_folder_is_said(tmp_path):
  """Absolute paths work in it all the same."""
  gone, file = tmp_path / "gone", tmp_path / "file"
  words = f"rmdir {gone}; {SHELL}"
  script = tmp_path / "script.py"
  script.write_text(SCRIPT.replace("RESUMES", "False"))
  gone.mkdir()
  done = _shell(words, script, file, tmp_path, cwd=gone)
  assert (done.returncode, done.stderr) == (0, "")
  gone.mkdir()
  done = _shell(words, script, file, "run", cwd=gone)
  assert done.returncode == 2
  assert done.stderr == (
    "error: [Errno 2] No such file or directory; the current folder was "
    "deleted: change to another one, or give absolute paths.\n"
  )


@pytest.mark.slow
@pytest.mark.parametrize("words", [">&-", "| head -n 1"])
def test_training_ends_without_a_reader(data_dir, tmp_path, words):
  run = (
    *("-m", "vit_jax.train", "--config=configs/digits.py"),
    *("--config.total_epochs=0", "--config.total_steps=6"),
    *("--config.log_every_steps=1", f"--config.data.data_dir={data_dir}"),
    f"--workdir={tmp_path / 'run'}",
  )
  done = _shell(f'"$0" "$@" {words}', *run)
  assert "Traceback" not in done.stderr and KEPT in done.stderr
  assert "step       6/6" in (tmp_path / "run" / "log.txt").read_text()
  again = commands.python(*run)
  assert "The run is complete: 6 steps are done." in again.stdout
