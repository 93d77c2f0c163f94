"""The commands as a user types them, and their messages about bad input."""

import functools
import subprocess
import sys
import types

import pytest
from absl import flags

from tests.commands import run
from vit_jax.runtime import command


@pytest.mark.slow
def test_train_then_evaluate(tmp_path, monkeypatch):
  """Compiled programs are cached, unless JAX's own variables say otherwise."""
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
  workdir = str(tmp_path / "run")
  trained = run(
    "vit_jax.train",
    "--config=configs/digits.py",
    f"--workdir={workdir}",
    f"--config.data.data_dir={tmp_path}",
    "--config.total_epochs=1",
    "--config.optimizer.warmup_epochs=0",
  )
  assert trained.returncode == 0, trained.stderr
  assert trained.stderr == ""
  assert "eval      22/22" in trained.stdout
  kept = list((tmp_path / "cache" / "compiled").glob("*-cache"))
  assert any("train_step" in path.name for path in kept)
  last = [row for row in trained.stdout.splitlines() if "top-1" in row][-1]
  evaluated = run("vit_jax.evaluate", workdir, JAX_COMPILATION_CACHE_DIR="")
  assert evaluated.returncode == 0, evaluated.stderr
  assert kept == list((tmp_path / "cache" / "compiled").glob("*-cache"))
  found = evaluated.stdout.strip().split("digits/1.0.0: ")[1]
  assert found.partition("  macro-F1")[0] in last


@pytest.mark.parametrize(
  "arguments, message",
  [
    (
      ["--config.optimizer.peak_learning_rate=1"],
      "is not a key of the configuration; did you mean --config.optimizer.pe",
    ),
    pytest.param(
      ["--config.batch_size=many"],
      "flag --config.batch_size=many: invalid",
      marks=pytest.mark.slow,
    ),
    (
      ["--config.total_steps=3", "--config.total_epochs=2"],
      "total_epochs=2.0 are both given",
    ),
    pytest.param(
      ["surplus"], "unexpected argument 'surplus'", marks=pytest.mark.slow
    ),
    pytest.param(
      ["--config=configs/none.py"],
      "there is no file 'configs/none.py', and",
      marks=pytest.mark.slow,
    ),
    (
      ["--config=configs/pretrain.py:B/8,imagenet2012"],
      "Table 3 has no B/8",
    ),
    pytest.param(
      ["--config.data.name=nonesuch"], "nonesuch", marks=pytest.mark.slow
    ),
  ],
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
  done = run(
    "vit_jax.train",
    "--config=configs/digits.py",
    f"--workdir={tmp_path / 'run'}",
    f"--config.data.data_dir={tmp_path}",
    *arguments,
  )
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.startswith("error: ")
  assert done.stderr.count("\n") == 1


def test_missing_flags_are_named():
  done = run("vit_jax.train", "--config=configs/digits.py")
  assert done.returncode == 2
  assert "workdir" in done.stderr
  assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
  "options, said",
  [
    ({}, "error: stopped by Ctrl-C.\n"),
    (
      {"resumes": True},
      "error: stopped by Ctrl-C; the same command resumes the run.\n",
    ),
  ],
)
def test_ctrl_c_promises_what_the_command_keeps(
  monkeypatch, capsys, options, said
):
  def stopped(_):
    raise KeyboardInterrupt

  monkeypatch.setattr(command.app, "run", lambda main, **_: main(["command"]))
  with pytest.raises(SystemExit) as info:
    command.run(stopped, **options)
  assert info.value.code == 130
  assert capsys.readouterr().err == said


@pytest.fixture
def override(monkeypatch):
  """Calls `command.overrides` for a command line, without the global flags."""
  values = flags.FlagValues()
  kinds = ("integer", "enum", "float", "string")
  define = {
    f"DEFINE_{kind}": functools.partial(
      getattr(flags, f"DEFINE_{kind}"), flag_values=values
    )
    for kind in kinds
  }
  own = types.SimpleNamespace(FLAGS=values, **define)
  monkeypatch.setattr(command, "flags", own)
  command.define_overrides()

  def parse(*arguments):
    values(["command", *arguments])
    return command.overrides()

  return parse


def test_a_choice_is_what_was_given(monkeypatch):
  values = flags.FlagValues()
  names = ("DEFINE_integer", "DEFINE_bool", "DEFINE_string")
  define = {
    name: functools.partial(getattr(flags, name), flag_values=values)
    for name in names
  }
  own = types.SimpleNamespace(FLAGS=values, **define)
  monkeypatch.setattr(command, "flags", own)
  command.define_choice()
  values(["command", "--step=0", "--root="])
  assert command.choice() == {"step": 0, "root": ""}
  values(["command", "--best"])
  assert command.choice() == {"step": 0, "root": "", "best": True}


def test_help_shows_them():
  done = run("vit_jax.predict", "--help")
  for name in ("top", "grid", "mean", "std", "num_heads", "image_size", "step"):
    assert f"\n  --{name}: " in done.stdout


def test_overrides_are_the_keywords_of_load_pretrained(override):
  assert override() == {}
  given = override(
    "--image_size=384",
    "--grid=2,8",
    "--mean=0,0.5,1",
    "--std=.25,.5,1",
    "--num_heads=3",
  )
  assert given == {
    "image_size": (384, 384),
    "grid": (2, 8),
    "mean": (0.0, 0.5, 1.0),
    "std": (0.25, 0.5, 1.0),
    "num_heads": 3,
  }


@pytest.mark.parametrize(
  "argument, needed",
  [
    ("--image_size=1,2,3", r"=\(1, 2, 3\) must be a height and a width"),
    ("--image_size=large", "='large' must be a height and a width"),
    ("--grid=0,4", r"=\(0, 4\) must be a height and a width"),
    ("--mean=0.5", "=0.5 must be a finite number"),
    ("--mean=0,0,nan", "='0,0,nan' must be a finite number"),
    ("--mean=0,0,1e999", r"=\(0, 0, inf\) must be a finite number"),
    ("--std=0.5,0.5,0", r"=\(0.5, 0.5, 0\) must be a number above 0"),
  ],
)
def test_overrides_of_no_numbers_are_refused(override, argument, needed):
  name = argument.partition("=")[0]
  with pytest.raises(ValueError, match=f"^{name}{needed}"):
    override(argument)


def _python(code):
  done = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_heavy():
  _python(
    "import sys, vit_jax\n"
    "assert not {'jax', 'flax', 'numpy', 'grain'} & set(sys.modules)"
  )


def test_data_workers_load_no_flax_and_start_no_backend():
  """A worker imports the main module and `vit_jax.data`."""
  _python(
    "import sys, vit_jax.train, vit_jax.data\n"
    "assert not {'flax', 'optax', 'tensorflow'} & set(sys.modules)\n"
    "from jax._src import xla_bridge\n"
    "assert not xla_bridge.backends_are_initialized()"
  )


def test_training_loads_no_tensorflow_and_no_torch():
  _python(
    "import sys, vit_jax.run.loop, vit_jax.run.saved\n"
    "assert not {'tensorflow', 'torch'} & set(sys.modules)"
  )
