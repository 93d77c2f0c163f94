"""The report on a GPU: turns, what is kept, and a rehearsal on the CPU."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts.bench import gpu_parts, gpu_report
from scripts.bench import models as bench_models
from scripts.bench import step as bench_step
from scripts.bench.gpu_parts import Failed, Part, Turn, Unfinished
from vit_jax import make_vit

ROOT = pathlib.Path(__file__).parent.parent
CARD = {"name": "NVIDIA X1", "count": 1, "memory": 0, "versions": {"jax": "9"}}


def test_a_command_that_fails_or_takes_too_long_says_its_last_line(tmp_path):
  turn = Turn(tmp_path / "log", limit=1)
  sleeps = "import time; print('step 3 | 9', flush=True); time.sleep(60)"
  with pytest.raises(Unfinished, match="^step 3 / 9$"):
    turn("-c", sleeps)
  turn = Turn(tmp_path / "log", limit=60)
  with pytest.raises(Failed, match="^exit code 3: no wheel$"):
    turn("-c", "print('no wheel'); raise SystemExit(3)")


def _counting(path, outcomes):
  """A measurement that counts its turns in a file, and its outcomes."""

  def measure(_):
    count = int(path.read_text()) if path.exists() else 0
    path.write_text(str(count + 1))
    outcome = outcomes[min(count, len(outcomes) - 1)]
    if isinstance(outcome, Exception):
      raise outcome
    return gpu_parts.table("of | found", ("it", outcome))

  return measure


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
  """Runs the report with these parts; its exit code, lines and page."""

  def call(parts, *arguments):
    monkeypatch.setattr(gpu_report, "probe", lambda: CARD)
    monkeypatch.setattr(gpu_report, "parts", lambda *_, **__: parts)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    page = tmp_path / "page.md"
    places = [f"--page={page}", f"--work={tmp_path}/work"]
    monkeypatch.setattr(sys, "argv", ["gpu_report", *places, *arguments])
    code = gpu_report.main()
    return code, capsys.readouterr().out.splitlines(), page.read_text()

  return call


def test_what_is_done_is_kept_and_what_failed_is_tried_again(run, tmp_path):
  first, second = tmp_path / "first", tmp_path / "second"
  parts = {
    "one": Part("Training", _counting(first, ["1.5"])),
    "two": Part("Training", _counting(second, [Failed("no memory"), "2.5"])),
  }
  code, lines, page = run(parts)
  assert code == 1
  assert lines[-1] == "not done: two. The same command goes on."
  assert "Not measured, two: no memory" in page
  assert "1 of 2 parts are done." in page
  code, lines, page = run(parts)
  assert code == 0
  assert "one: done before" in lines
  assert lines[-1].startswith("all parts done, in ")
  assert page.count("| of | found |") == 1  # One header for both.
  assert "| it | 1.5 |\n| it | 2.5 |\n" in page
  assert (first.read_text(), second.read_text()) == ("1", "2")


def test_only_a_part_that_resumes_gets_turns_for_as_long_as_it_advances(
  run, tmp_path
):
  turns = [Unfinished("step 5"), Unfinished("step 9"), "93 %"]
  stuck = [Unfinished("step 5")]
  parts = {
    "long": Part("FSDP", _counting(tmp_path / "a", turns), resumes=True),
    "stuck": Part("FSDP", _counting(tmp_path / "b", stuck), resumes=True),
    "slow": Part("FSDP", _counting(tmp_path / "c", stuck)),
  }
  _, lines, page = run(parts, "--seconds=60")
  assert [(tmp_path / name).read_text() for name in "abc"] == ["3", "2", "1"]
  assert "long: goes on (step 9)" in lines
  assert "| it | 93 % |" in page
  assert "Not measured, slow: stopped after 60 s: step 5" in page


def test_parts_by_name_and_mistakes_in_the_call(run, tmp_path, capsys):
  parts = {n: Part("FSDP", _counting(tmp_path / n, ["1"])) for n in "ab"}
  _, _, page = run(parts, "--only", "b")
  assert not (tmp_path / "a").exists()
  assert "To do: a." in page
  for argument, message in (
    ("--only=c", "no part is named 'c': a, b."),
    ("--batch=3", "--batch=3 is neither an option nor a --config.KEY=VALUE."),
  ):
    with pytest.raises(SystemExit):
      run(parts, argument)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  "memory, batch", [(60e9, 128), (30e9, 64), (12e9, 16), (0, 128)]
)
def test_batches_shrink_by_powers_of_two_with_the_memory(
  memory, batch, tmp_path
):
  found = gpu_parts.parts(memory, tmp_path, [], tiny=False)
  (command,) = found["training of B/16 at 224, JAX"].measure.args
  assert f"--batch={batch}" in command
  assert {part.section for part in found.values()} == {*gpu_report.NOTES}
  for paths in gpu_parts.TESTS.values():
    assert [p for p in paths if not (ROOT / "tests" / p).exists()] == []


@pytest.mark.parametrize(
  "kind, peak",
  [
    ("NVIDIA H100 80GB HBM3", 989),
    ("NVIDIA H100 PCIe", 756),
    ("NVIDIA A100-SXM4-40GB", 312),
    ("NVIDIA L4", 121),
    ("NVIDIA L40S", 362),
    ("TPU v5e", None),
  ],
)
def test_peaks_are_found_by_a_devices_name(kind, peak):
  assert bench_step.peak_of(kind) == peak


@pytest.mark.slow
def test_the_block_with_flash_attention_computes_the_papers(monkeypatch):
  monkeypatch.setattr(bench_models.FlashMsa, "implementation", "xla")
  sizes = dict(num_layers=1, hidden_size=16, mlp_size=24, num_heads=2)
  model = make_vit("Ti/4", 5, **sizes)
  flash = make_vit("Ti/4", 5, block=bench_models.FlashBlock, **sizes)
  images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  params = jax.jit(model.init)(jax.random.key(1), images)
  logits = model.apply(params, images)
  np.testing.assert_allclose(flash.apply(params, images), logits, atol=1e-5)


@pytest.mark.slow
def test_the_step_that_is_timed_counts_forward_and_twice_backward():
  models = bench_models.Models("Ti/16", 3, 32, "bfloat16", forward=False)
  _, hidden, mlp, heads = models.sizes
  tokens = (32 // 16) ** 2 + 1
  dense = 4 * hidden**2 + 2 * hidden * mlp
  layer = tokens * (dense + 2 * tokens * hidden)
  # The head reads the class token alone, which has neither keys nor values of
  # the tokens made: each head's query and weights meet the tokens themselves.
  last = dense + 2 * heads * tokens * hidden
  macs = 4 * 768 * hidden + 11 * layer + last + hidden * 1000
  assert bench_step.operations(models) == pytest.approx(3 * 3 * 2 * macs)
  bare, count = bench_step.products(models)
  bare(1)
  assert count == 3 * 2 * 12 * 3 * tokens * dense
  assert models.dtype == jnp.bfloat16


@pytest.mark.slow
def test_without_a_card_one_line_says_what_to_do(monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "cuda")
  with pytest.raises(SystemExit, match="JAX_PLATFORMS=cuda .* Install JAX for"):
    gpu_report.probe()


def _rehearse(folder, **options):
  return subprocess.Popen(
    [
      *("bash", ROOT / "scripts" / "gpu_report.sh", "--tiny"),
      *(f"--page={folder}/gpu.md", f"--work={folder}/work"),
      *("--config.data.name=digits", "--config.image_size=(8,8)"),
      *("--config.batch_size=32", "--config.total_epochs=0"),
      *("--config.total_steps=400", "--config.log_every_steps=10"),
      *("--config.model.num_layers=1", "--config.model.hidden_size=16"),
      *("--config.model.mlp_size=16", "--config.loader.num_workers=0"),
      *("--config.save_every_epochs=0", "--config.save_every_steps=20"),
    ],
    env={**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    text=True,
    **options,
  )


@pytest.mark.slow
def test_a_rehearsal_that_is_killed_goes_on(tmp_path):
  """All parts at tiny sizes; killed while the last one trains."""
  killed = _rehearse(tmp_path)
  log = tmp_path / "work" / "cpu" / "cifar10.log"
  while killed.poll() is None:
    if log.exists() and re.search("\nstep +20/", log.read_text()):
      killed.send_signal(signal.SIGKILL)
    time.sleep(0.1)
  assert killed.returncode == -signal.SIGKILL, killed.stdout.read()
  killed.stdout.close()
  while "told to stop" not in log.read_text():  # Linux tells the run.
    time.sleep(0.1)
  before = (tmp_path / "gpu.md").read_text()
  assert "To do: cifar10." in before and "Not measured" not in before
  with _rehearse(tmp_path) as again:
    lines = again.communicate(timeout=400)[0].splitlines()
  assert again.returncode == 0, lines
  names = [path.stem for path in (tmp_path / "work" / "cpu").glob("*.json")]
  done = [line for line in lines if line.endswith(": done before")]
  assert len(done) == len(names) - 1
  assert any(line.startswith("cifar10: done in ") for line in lines)
  assert lines[-1].startswith("all parts done")
  assert "Resuming from the checkpoint of step" in log.read_text()
  page = (tmp_path / "gpu.md").read_text()
  assert "All parts are done." in page
  for row in (
    "| Ti/16 at 32, training, vit_jax | 2 | ",
    "vit_jax, cuDNN attention | 2 | not measured: RuntimeError: cuDNN is not",
    "| default | none | the same to the last bit | losses apart by up to 0.0",
    "| data | ",
    "| top-1 | time |",
  ):
    assert row in page, row
  assert json.loads((log.parent / "fsdp.json").read_text())["table"][
    -1
  ].endswith("| yes |")
