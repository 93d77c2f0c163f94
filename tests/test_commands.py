"""The commands as a user types them, and their messages about bad input."""

import functools
import re
import types

import pytest
from absl import flags

from tests.commands import python, refused, run
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
    (["--config.optimizer.peak_learning_rate=1"], "did you mean --config.opti"),
    (["--config=configs/pretrain.py:B/8,imagenet2012"], "Table 3 has no B/8"),
    (["surplus"], "'surplus' is neither a folder here nor a configuration; "),
    (["digits"], "digits stands for --config, which is given as well."),
    (
      ["--epoch=3"],
      "--epoch is not a flag of this command; did you mean --epo",
    ),
    (["--lr"], "Missing value for flag --config.optimizer.peak_lr"),
    (
      ["--batch_size=9999"],
      "--config.batch_size=9999 is more than the 1438 ex",
    ),
    pytest.param(
      ["--config.data.name=nonesuch"], "nonesuch", marks=pytest.mark.slow
    ),
  ],
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
  flags = ("--config=configs/digits.py", f"--workdir={tmp_path / 'run'}")
  data = f"--config.data.data_dir={tmp_path}"
  assert message in refused("vit_jax.train", *flags, data, *arguments)


@pytest.mark.parametrize(
  "command, arguments, example",
  [
    ("train", [], "--workdir runs/digits"),
    ("train", ["--workdir=x", "--lr=1e-3"], "--config digits"),
    ("find_lr", [], "--config digits"),
    ("visualize", ["x"], "--out figures"),
  ],
)
def test_missing_flags_are_named(command, arguments, example):
  name = example.partition(" ")[0]
  line = f"error: {name} is missing, as in {example}."
  assert refused(f"vit_jax.{command}", *arguments) == line


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
  monkeypatch.setattr(command.hosts, "leave_soon", lambda code: None)
  with pytest.raises(SystemExit) as info:
    command.run(stopped, **options)
  assert info.value.code == 130
  assert capsys.readouterr().err == said


@pytest.fixture
def parse(monkeypatch):
  """Parses a command line whose flags a function has defined."""
  values = flags.FlagValues()
  kinds = ("integer", "enum", "float", "string", "bool")
  own = {
    f"DEFINE_{kind}": functools.partial(
      getattr(flags, f"DEFINE_{kind}"), flag_values=values
    )
    for kind in kinds
  }
  stand_in = types.SimpleNamespace(FLAGS=values, **own)
  monkeypatch.setattr(command, "flags", stand_in)
  return lambda *arguments: values(["command", *arguments])


@pytest.fixture
def override(parse):
  """Calls `command.overrides` for a command line, without the global flags."""
  command.define_overrides()

  def overrides(*arguments):
    parse(*arguments)
    return command.overrides()

  return overrides


def test_a_choice_is_what_was_given(parse):
  command.define_choice()
  parse("--step=0", "--root=")
  assert command.choice() == {"step": 0, "root": ""}
  parse("--best")
  assert command.choice() == {"step": 0, "root": "", "best": True}


def test_help_shows_them():
  for flag, end in (("-h", "[= ]"), ("--help=all", ": ")):
    done = run("vit_jax.predict", flag)
    assert done.returncode == 0
    for name in "top grid mean std num_heads image_size step".split():
      assert re.search(f"\n--{name}{end}", done.stdout)


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
  done = python("-c", code)
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
