"""The commands as a user types them, and their messages about bad input."""

import functools
import re
import types

import pytest
from absl import flags

import vit_jax
from tests.commands import python, refused, run
from vit_jax.runtime import command, files


@pytest.mark.slow
def test_train_then_evaluate(tmp_path, monkeypatch):
  """Compiled programs are cached, unless JAX's own variables say otherwise."""
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
  workdir = str(tmp_path / "run")
  trained = python(  # No fork: the cache is set before JAX is imported.
    "-m",
    "vit_jax.train",
    "--config=configs/digits.py",
    f"--workdir={workdir}",
    f"--config.data.data_dir={tmp_path}",
    "--config.total_epochs=1",
    "--config.optimizer.warmup_epochs=0",
    *("--config.model.num_layers=1", "--config.model.hidden_size=16"),
  )
  assert trained.returncode == 0, trained.stderr
  assert trained.stderr == ""
  assert "eval      22/22" in trained.stdout
  kept = list((tmp_path / "cache" / "compiled").glob("*-cache"))
  assert any("train_step" in path.name for path in kept)
  last = [r for r in trained.stdout.splitlines() if r.startswith("eval")][-1]
  evaluated = python(
    "-m", "vit_jax.evaluate", workdir, JAX_COMPILATION_CACHE_DIR=""
  )
  assert evaluated.returncode == 0, evaluated.stderr
  assert kept == list((tmp_path / "cache" / "compiled").glob("*-cache"))
  found = evaluated.stdout.strip().split("digits/1.0.0: ")[1]
  assert found.partition("  macro-F1")[0] in last


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--calibrate", "takes the run's own images: leave it out"),
    ("--suite", "leave it out, or give the folder of the test sets as --root"),
  ],
)
def test_what_takes_no_other_folder_says_what_it_takes(flag, said):
  """A folder as --root is that of the run's images, if they have moved."""
  line = refused("vit_jax.evaluate", "runs/digits", "new", flag)
  assert line.startswith(f"error: 'new' is not for {flag}") and said in line


@pytest.mark.slow
def test_a_fork_is_as_the_command_of_a_shell(tmp_path, monkeypatch):
  """`run` starts forks, as importing JAX takes longer than most refusals."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path))
  arguments = ("vit_jax.evaluate", "--workdir=nowhere")
  fork, process = run(*arguments), python("-m", *arguments)
  for name in ("returncode", "stdout", "stderr"):
    assert getattr(fork, name) == getattr(process, name)
  assert run("this").stdout == python("-m", "this").stdout != ""


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--config.optimizer.peak_learning_rate=1"], "did you mean --config.opti"),
    (["--config=configs/pretrain.py:B/8,imagenet2012"], "Table 3 has no B/8"),
    (["surplus"], "'surplus' is neither a folder here nor a configuration; "),
    (
      ["digits"],
      "given as well: leave one out, or name the data by --config.data.name.",
    ),
    (
      ["--epoch=3"],
      "--epoch is not a flag of this command; did you mean --epo",
    ),
    pytest.param(
      ["--learning_rate=1"],
      "not a flag of this command; did you mean --lr?",
      marks=pytest.mark.slow,
    ),
    (
      ["--pretrained=b16"],
      "or, if the configuration sets model.variant, take --config=finetune (",
    ),
    pytest.param(
      ["--checkpoint=b16"],
      "not a flag of this command; did you mean --pret",
      marks=pytest.mark.slow,
    ),
    (
      ["--weights=b16"],
      "not a flag of this command; did you mean --pretrained?",
    ),
    (["--device=gpu"], "to use the CPU, write JAX_PLATFORMS=cpu in front"),
    (["--config=fine_tune"], "no file 'fine_tune'; did you mean finetune?"),
    (["--lr"], "error: --lr needs a value."),
    pytest.param(
      ["--lr", "--epochs=2"],
      "error: --lr needs a value.",
      marks=pytest.mark.slow,
    ),
    (["--lr=fast"], "error: --lr=fast: it takes a number."),
    pytest.param(
      ["--config.seed=1.5"],
      "error: --config.seed=1.5: it takes a whole numb",
      marks=pytest.mark.slow,
    ),
    (
      ["--batch_size=9999"],
      "--batch_size=9999 is more than the 1438 ex",
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
  "command, key, message",
  [
    ("evaluate", "data.root", "it has the flag --root: Where the images or"),
    ("evaluate", "data.dir", "it has the flag --root: Where the images or"),
    ("predict", "data.root", "it has the flag --root: Folder of a table's"),
    ("predict", "data.split", "--help lists its flags."),
  ],
)
def test_a_key_for_a_command_without_a_configuration(command, key, message):
  line = refused(f"vit_jax.{command}", "runs/x", f"--config.{key}=photos")
  start = f"error: --config.{key}: this command takes no configuration; "
  assert line.startswith(start + message)


@pytest.mark.parametrize(
  "command, flag, meant",
  [
    ("report.similar", "top", "neighbours"),
    ("report.similar", "text", "query"),
    ("predict", "k", "top"),
    ("predict", "csv", "out"),
    ("evaluate", "split", "test"),
  ],
)
def test_another_commands_name_of_a_flag_names_the_right_one(
  command, flag, meant
):
  line = refused(f"vit_jax.{command}", "runs/x", f"--{flag}=3")
  said = f"--{flag} is not a flag of this command; did you mean --{meant}?"
  assert said in line


DIGITS = "--config=digits --workdir=x"


@pytest.mark.parametrize(
  "command, arguments, says",
  [
    ("predict", "run a.png --out=", "--out= is empty: give a value, or leav"),
    ("predict", "run a.png --texts=a --texts=", "--texts= is empty: give"),
    ("predict", "run a.png --tokens", "--tokens needs --layers, which is not"),
    ("convert", "--list --to=hf", "--to has no effect with --list: leave ou"),
    ("report.similar", "run dir --query=a.png --clusters=3", "--clusters has"),
    ("pack", "--verify=dir --seed=3", "--seed has no effect with --verify:"),
    ("pack", "dir out --size=0", "--size=0: "),
    ("pack", "docs out --labels=a.txt", "--labels=a.txt is for a folder of "),
    ("pack", "docs Makefile", "'Makefile' is a file; name the folder to wri"),
    ("pack", "docs docs/a/../b", "OUT, docs/a/../b, lies in SOURCE, docs, whe"),
    ("evaluate", "run --suite --num_processes=2", "--num_processes has no eff"),
    ("train", "digits --pretrained=", "--pretrained names the weights to st"),
    ("train", f"{DIGITS} --summary --restarts=2", "--restarts has no effect"),
    ("find_lr", "digits --lr=1", "lr has no effect on find_lr, which tries th"),
    ("find_lr", "digits --config.total_steps=9", "total_steps has no effect "),
    ("inspect_data", "tests --config.data.root=a", "tests stands for --config"),
    (
      "inspect_data",
      "tests --config.data.sampling=classes",
      "--config.data.sampling=classes is for the batches of a training run, an",
    ),
  ],
)
def test_a_flag_that_would_have_no_effect_is_refused(command, arguments, says):
  line = refused(f"vit_jax.{command}", *arguments.split())
  assert line.startswith(f"error: {says}")


def test_of_a_flag_that_is_given_twice_the_last_counts_and_a_line_says_so():
  """A script's own flags may come before those that its caller adds."""
  for name, flag, arguments in (
    ("evaluate", "step", ["nowhere"]),
    (
      "train",
      "config.seed",
      ["--config=digits", "--workdir=x", "--batch_size=0"],
    ),
  ):
    told, error = run(
      f"vit_jax.{name}", *arguments, f"--{flag}=1", f"--{flag}=2"
    ).stderr.splitlines()
    assert told == f"--{flag} is given 2 times: the last value, 2, counts."
    assert error.startswith("error: ")


def write_report(out):
  from vit_jax.report.write import report_files

  return report_files(["no run"], out=out)


def write_answers(files=__file__, **options):
  from vit_jax.predict import predict_files

  return predict_files("no checkpoint", [files], **options)


def write_scores(out, **options):
  from vit_jax.run.saved import evaluate_checkpoint

  return evaluate_checkpoint("no run", out=out, **options)


def write_export(out, to=None):
  from vit_jax.export import export_checkpoint

  return export_checkpoint("no checkpoint", out, to=to)


def write_sheet(out, root="no folder"):
  from vit_jax.inspection.data_sheet import inspect_folder
  from vit_jax.inspection.settings import InspectSettings

  return inspect_folder(root, InspectSettings(), out)


def write_figures(out):
  from vit_jax.inspection.draw import visualize_files

  return visualize_files("no checkpoint", [], out=out)


def write_weights(out):
  from vit_jax.pretrained.convert import convert

  return convert("no checkpoint", out, to="hf")


def write_rates(out):
  from vit_jax.run.experiments.lr_range import find_lr
  from vit_jax.run.settings import Settings

  return find_lr(Settings(), out=out, steps=50, lowest=1e-6, highest=1)


@pytest.mark.parametrize(
  "write, out, formats",
  [
    (write_report, "a.pdf", r"HTML \(.html, .htm\)"),
    (lambda out: write_answers(out=out), "a.xlsx", "CSV .* or JSON Lines"),
    (lambda out: write_answers(features=out), "a.csv", r"NumPy .* \(.npz\)"),
    (write_scores, "a.json", "CSV"),
    (write_export, "a.mlir", "stablehlo .*, .jaxexport. or onnx"),
    (
      lambda out: write_export(out, "stablehlo"),
      "a.onnx",
      "stablehlo .*lo, .jaxexport.: ",
    ),
    (lambda out: write_export(out, "onnx"), "a.stablehlo", "onnx"),
    (write_sheet, "a.pdf", "png .* or jpeg .* or webp"),
    (write_figures, "a.png", "a folder is written"),
    (write_weights, "a.safetensors", "a folder is written"),
    (write_rates, "a.csv", "a folder is written"),
  ],
)
def test_a_file_of_another_format_is_refused_first(
  tmp_path, monkeypatch, write, out, formats
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=f"'{out}'.* {formats}"):
    write(out)
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
  "write",
  [
    lambda: write_answers("photos.csv", out="photos.csv"),
    lambda: write_answers("photos", texts=["names.txt"], out="names.txt"),
    lambda: write_answers("photos", head="a.npz", features="a.npz"),
    lambda: write_answers("photos", texts="a", features="b", save_head="b"),
    lambda: write_scores("photos.csv", folder="photos.csv"),
    lambda: write_sheet("photos/a/0.png", "photos"),
    lambda: vit_jax.label_errors("x", "photos.csv", out="./photos.csv"),
  ],
)
def test_what_a_command_reads_or_writes_is_not_written_over(
  tmp_path, monkeypatch, write
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "photos" / "a").mkdir(parents=True)
  for name in ("photos.csv", "names.txt", "a.npz", "photos/a/0.png"):
    (tmp_path / name).write_text("mine")
  with pytest.raises(ValueError, match="by this command as well|are read: wri"):
    write()
  assert (tmp_path / "photos.csv").read_text() == "mine"
  # By default, inspect_data writes its picture to the current folder.
  files.check_apart(["augmented.png"], ["."])


def test_a_program_of_another_format_is_refused_first():
  told = refused("vit_jax.estimate", "--config=digits", "--save_hlo=a.pb")
  assert "'a.pb': .pb says another format than what is written, HLO" in told


TRAIN_DIGITS = (
  "--config digits; or give your images, as in vit_jax train my_photos"
)


@pytest.mark.parametrize(
  "command, arguments, example",
  [
    ("train", ["--config=digits"], "--workdir runs/digits"),
    ("train", ["--workdir=x", "--lr=1e-3"], TRAIN_DIGITS),
    ("train", [], TRAIN_DIGITS),
    ("find_lr", [], TRAIN_DIGITS.replace("train", "find_lr")),
    ("visualize", ["x"], "--out figures"),
  ],
)
def test_missing_flags_are_named(command, arguments, example):
  name = example.partition(" ")[0]
  line = f"error: {name} is missing, as in {example}."
  assert refused(f"vit_jax.{command}", *arguments) == line


@pytest.mark.parametrize(
  "command, arguments, line",
  [
    (
      "predict",
      ["runs/x"],
      "IMAGE is missing after 'runs/x'; as in: vit_jax",
    ),
    ("report", [], "WORKDIR is missing; as in: vit_jax report runs/my_photos"),
    ("export", list("abc"), "unexpected argument 'c'; as in: vit_jax export "),
  ],
)
def test_wrong_arguments_are_answered_by_an_example(command, arguments, line):
  assert refused(f"vit_jax.{command}", *arguments).startswith(f"error: {line}")


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


def test_the_best_checkpoint_may_be_asked_for(override):
  assert override("--best") == {"best": True}
  assert override("--step=3", "--nobest") == {"step": 3}


def test_help_shows_arguments_and_defaults():
  shown = run("vit_jax.train", "--help").stdout
  assert re.search(r"\nDATA +A folder of images, a file of labels, or a", shown)
  assert re.search(r"\n--restarts=0 +Restart after", shown)
  assert re.search(r"\n--summary +Print", shown)  # False.
  # What a folder of images is trained with.
  assert re.search(r"\n--batch_size +Short .*batch_size; 32 if DATA is", shown)
  assert re.search(r"\n--config +Configuration: ", shown)  # None.
  start = (
    r"--pretrained +Checkpoint to start from: .*\n.*; short for --config.p"
  )
  assert re.search(start, shown)
  shown = run("vit_jax.fewshot", "--help").stdout
  assert re.search(r"\nCHECKPOINT +A run's folder, a file, or a name", shown)
  assert re.search(
    r"\n--config +Settings, given as --config.KEY=VALUE\n", shown
  )


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


@pytest.mark.parametrize(
  "name, hint",
  [
    ("vit_b_16", "did you mean vit_jax.load_pretrained(name) with a nam"),
    ("ViTModel", "did you mean vit_jax.load_pretrained(name), or vit_jax.mak"),
    ("AutoImageProcessor", "did you mean loaded.preprocess(images) of"),
    ("DataBlock", "did you mean vit_jax.load_dataset("),
    ("fit_probe", "did you mean vit_jax.fewshot(loaded, folder, probe="),
    ("create_train_state", "did you mean vit_jax.TrainState.create(params"),
    ("list_datasets", "a data set of yours is a folder, a table, "),
    ("LRFinder", "did you mean vit_jax.find_lr(folder), which makes the mod"),
    ("find_duplicates", "did you mean loaded.find_similar(image, folder)"),
    ("load_pretrain", "did you mean vit_jax.load_pretrained?"),
    ("inspect_data", "`vit_jax inspect_data` is for a shell; in a notebook, "),
    (
      "estimate",
      "`vit_jax estimate` is for a shell; in a notebook, !vit_jax estimate.",
    ),
  ],
)
def test_a_name_that_the_package_lacks_gets_the_near_one(name, hint):
  with pytest.raises(AttributeError) as info:
    vit_jax.__getattr__(name)
  assert f"has no attribute {name!r}; {hint}" in str(info.value)
  with pytest.raises(AttributeError) as info:
    vit_jax.__getattr__("zzz")
  assert str(info.value).endswith(
    "has no attribute 'zzz'; dir(vit_jax) lists what there is."
  )


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


def test_a_run_on_the_digits_loads_no_more_than_it_needs():
  """Nothing of files of labels, masks, LoRA, a teacher, or other encoders."""
  _python(
    "import sys, vit_jax.train, vit_jax.run.flags, vit_jax.run.loop\n"
    "import vit_jax.tasks.classification.task\n"
    "ours = {n for n in sys.modules if n.partition('.')[0] == 'vit_jax'}\n"
    "assert len(ours) <= 130, sorted(ours)\n"
    "words = 'families', 'extended', 'resnet', 'class_rows', 'tables'\n"
    "assert not [n for n in ours if any(word in n for word in words)]\n"
    "assert 'vit_jax.pretrained.known' not in sys.modules\n"
    "late = {'orbax', 'scipy', 'tensorboardX'}  # While the step compiles.\n"
    "assert not late & set(sys.modules)\n"
    "import vit_jax.run.saved\n"
    "assert not {'tensorflow', 'torch'} & set(sys.modules)"
  )


@pytest.mark.parametrize(
  "command, says",
  [
    ("report.similar", "FOLDER...  Images to search: a folder, flat or with"),
    ("evaluate", "[FOLDER]  Other images to evaluate on: a folder, or a file"),
  ],
)
def test_the_help_says_what_the_folder_of_this_command_is(command, says):
  shown = run(f"vit_jax.{command}", "--help").stdout
  assert " ".join(says.split()) in " ".join(shown.split())
