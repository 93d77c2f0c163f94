"""`--config` as a user types it: names, lengths, other trainers' key names."""

import itertools
import sys

import pytest
from absl import flags as absl_flags

from vit_jax.run import config_file, flags
from vit_jax.run.settings import ProbeSettings, Settings
from vit_jax.runtime import usage
from vit_jax.runtime.settings import all_keys, keys


@pytest.fixture
def typed(monkeypatch):
  """Reads the settings of a command line; its flags are removed afterwards."""
  before = {*absl_flags.FLAGS}

  def read(*arguments, define=flags.define_config_file):
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    define()
    absl_flags.FLAGS(sys.argv)
    return flags.config_settings()

  yield read
  for name in {*absl_flags.FLAGS} - before:
    delattr(absl_flags.FLAGS, name)
  absl_flags.FLAGS.unparse_flags()


def test_a_shipped_file_is_found_by_its_name(typed, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert typed("--config=cifar10").data.name == "cifar10"


def test_an_argument_follows_a_name_as_it_follows_a_file(typed):
  found = typed("--config=pretrain:B/32,imagenet2012")
  assert found.model.variant == "B/32"


@pytest.mark.parametrize(
  "given, sizes",
  [
    ([], (4, 64, 128, 2)),  # Those of the file.
    (["--config.model.variant=S/16"], (None,) * 4),  # Those of S/16.
    (
      ["--config.model.variant=S/16", "--config.model.num_layers=2"],
      (2, None, None, None),
    ),
  ],
)
def test_a_variant_takes_the_place_of_the_sizes_of_a_file(typed, given, sizes):
  model = typed("--config=image_folder", *given).model
  found = model.num_layers, model.hidden_size, model.mlp_size, model.num_heads
  assert found == sizes
  assert model.pooling == "gap"


def test_an_existing_file_beats_a_name(typed, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "cifar10").write_text(
    "from vit_jax.config import base_config\n"
    "def get_config():\n  c = base_config()\n  c.seed = 7\n  return c\n"
  )
  assert typed("--config", "cifar10").seed == 7


def test_none_leaves_a_text_unset(typed):
  assert typed("--config=cifar10", "--config.data.name=None").data.name is None


@pytest.mark.parametrize("separator", [" ", ",", ";|", "/"])
def test_a_separator_is_taken_as_it_is_typed(typed, separator):
  given = "--config=image_folder", "--config.data.labels_file=l.csv"
  key = f"--config.data.label_separator={separator}"
  data = typed(*given, key, "--config.data.task=multilabel").data
  assert data.label_separator == separator


@pytest.mark.parametrize(
  "name", ["l.csv", "L.TSV", "l.jsonl", "l.json", "l.txt"]
)
def test_a_file_of_labels_is_known_by_its_ending(tmp_path, name):
  (tmp_path / name).touch()
  words = flags.flags_of_data(str(tmp_path / name), [], [], workdir=False)
  assert f"--config.data.labels_file={tmp_path / name}" in words
  (tmp_path / "l.xml").touch()
  with pytest.raises(
    ValueError, match="ends in .csv, .tsv, .jsonl, .json, .txt"
  ):
    flags.flags_of_data(str(tmp_path / "l.xml"), [], [], workdir=False)


@pytest.mark.parametrize(
  "given, is_given", [([], False), (["--config.batch_size=32"], True)]
)
def test_what_the_command_line_sets_is_known(typed, given, is_given):
  typed("--config=image_folder", "--config.seed=1", *given)
  assert flags.is_given("batch_size") == is_given


def test_a_length_replaces_those_of_the_file(typed):
  found = typed(
    "--config=digits",  # It sets total_epochs and eval_every_epochs.
    "--config.total_steps=10",
    "--config.eval_every_examples=5",
    "--config.optimizer.warmup_steps=0",
  )
  assert (found.total.steps, found.total.epochs) == (10, 0)
  assert (found.eval_every.examples, found.eval_every.epochs) == (5, 0)
  # A length of 0 leaves the file's.
  assert found.optimizer.warmup.epochs == 10


@pytest.mark.parametrize(
  "key", ["accumulation_steps", "max_skipped_steps", "profile_steps"]
)
def test_a_number_of_steps_is_no_length(typed, key):
  found = typed("--config=digits", f"--config.{key}=3")
  assert getattr(found, key) == 3
  assert found.total.epochs == 100


@pytest.mark.parametrize(
  "size", [["64"], ["(64,64)"], ["64,64"], ["64", "--config.image_size=64"]]
)
def test_one_side_is_a_square(typed, size):
  found = typed("--config=digits", f"--config.image_size={size[0]}", *size[1:])
  assert found.image_size == (64, 64)


@pytest.mark.parametrize(
  "other, ours",
  [
    ("lr", "optimizer.peak_lr"),
    ("optimizer.learning_rate", "optimizer.peak_lr"),
    ("epochs", "total_epochs"),
    ("wd", "optimizer.weight_decay"),
    ("img_size", "image_size"),
    ("model.depth", "model.num_layers"),
    ("batchsize", "batch_size"),  # Nobody's name, but near ours.
  ],
)
def test_the_key_that_is_meant_is_suggested(typed, other, ours):
  flags = ["--config=digits", f"--config.{other}=1"]
  for line in (flags, flags[::-1]):
    with pytest.raises(ValueError, match=f"did you mean --config.{ours}\\?$"):
      typed(*line)


@pytest.mark.parametrize(
  "keys, message",
  [
    ({"optimizer.kind": None}, r"optimizer\.kind"),  # It has to be set.
    (
      {"total_steps": 3, "total_epochs": 4},
      "^total_steps=3 and total_epochs=4",
    ),
    # No key is suggested that is far from what was typed.
    ({"callbacks": 1}, "tion. `vit_jax train --help=all` lis"),
  ],
)
def test_keys_that_do_not_go_are_refused(typed, keys, message):
  with pytest.raises(ValueError, match=message):
    typed("--config=digits", *(f"--config.{k}={v}" for k, v in keys.items()))


def test_every_suggested_key_exists():
  ours, others = zip(*config_file.other_names().items(), strict=True)
  assert {*ours} <= {*all_keys(Settings)}
  names = [*itertools.chain(*others)]
  assert len({*names}) == len(names)
  assert not {*names} & {*all_keys(Settings)}


HEAD = "from vit_jax.config import base_config\ndef get_config():\n"
CONFIG = HEAD + "  c = base_config()\n  "


@pytest.mark.parametrize(
  "text, message",
  [
    (CONFIG + "c.lr = 1", "line 4: there is no key lr; did you mean"),
    (CONFIG + "c.optimizer.update(lr=1)", "line 4: .* mean optimizer.peak_lr"),
    (CONFIG + "c.batch_size = 'a'", "line 4: TypeError: .*batch_size"),
    ("import nonesuch", "line 1: ModuleNotFoundError: No module named 'none"),
    ("def get_config(:", "line 1: SyntaxError: "),
    ("x = 1", "AttributeError: .*get_config"),
    (HEAD + "  raise ValueError('odd row')", "odd row"),
    (HEAD + "  pass", "get_config.. returns None; it must return base_config"),
  ],
)
def test_a_mistake_in_a_file_is_one_line(typed, tmp_path, text, message):
  path = tmp_path / "mine.py"
  path.write_text(text)
  with pytest.raises(absl_flags.IllegalFlagValueError, match=message) as info:
    typed(f"--config={path}")
  assert "\n" not in str(info.value)


@pytest.mark.parametrize(
  "argument, message",
  [
    ("nope.py", "no file 'nope.py'; .* digits, dino, finetune, "),
    ("digits:x", "digits.py takes no argument after a colon"),
    ("pretrain:B/8,imagenet2012", "Table 3 has no B/8 on imagenet2012"),
    ("dino:continu", "dino:continu: 'continu': give .* mean continue\\?$"),
  ],
)
def test_a_file_that_cannot_be_meant_is_one_line(typed, argument, message):
  with pytest.raises(absl_flags.IllegalFlagValueError, match=message) as info:
    typed(f"--config={argument}")
  assert "\n" not in str(info.value)


def bad_value(key, default):
  """A value that the key's type cannot have, or None if it takes any text."""
  if key.endswith(("_steps", "_epochs", "_examples")):
    return "often"
  return "7.5x" if isinstance(default, int | float | tuple) else None


@pytest.mark.parametrize(
  "key", [key for key, default, _ in keys(Settings) if bad_value(key, default)]
)
def test_a_value_of_another_type_is_one_line_with_its_key(typed, key):
  with pytest.raises((ValueError, absl_flags.Error)) as info:
    typed("--config=digits", f"--config.{key}=7.5x")
  assert key in str(info.value)
  assert "\n" not in str(info.value)


@pytest.mark.parametrize("cls", [Settings, ProbeSettings])
def test_help_has_every_key_and_its_sentence(typed, monkeypatch, cls):
  monkeypatch.setattr(sys, "argv", ["command"])
  if cls is Settings:
    flags.define_config_file()
  else:
    flags.define_config_keys(cls)
  # `--help` shows the flags of the command, `--helpfull` those of all modules.
  shown = absl_flags.FLAGS["config"].help + usage.FURTHER["config"]()
  for key, _, says in keys(cls):
    assert any(
      line.strip().startswith(key) and line.endswith(says)
      for line in shown.splitlines()
    ), key


@pytest.fixture
def expanded(typed, monkeypatch, tmp_path, capsys):
  """The long form of a line, in a folder with my_photos and labels.csv."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "my_photos").mkdir()
  (tmp_path / "packed").mkdir()
  (tmp_path / "packed" / "dataset_info.json").touch()
  (tmp_path / "labels.csv").touch()
  (tmp_path / "cat.JPG").touch()

  def expand(line, workdir=True):
    monkeypatch.setattr(sys, "argv", ["train"])
    if "config" not in absl_flags.FLAGS:
      flags.define_config_file()
      absl_flags.DEFINE_string("workdir", None, "")
      absl_flags.DEFINE_bool("summary", False, "")
    sys.argv[1:] = line.split()
    words = flags.expanded(sys.argv[1:], workdir=workdir)
    return " ".join(words), capsys.readouterr().err

  return expand


PHOTOS = "--config=image_folder --workdir=runs/my_photos"
ROOT = "--config.data.root=my_photos"
TUNED = "--config=finetune --workdir=runs/my_photos"
FROM = "--config.pretrained="


@pytest.mark.parametrize(
  "line, long",
  [
    ("my_photos", f"{PHOTOS} {ROOT}"),
    ("my_photos/ --summary", f"--summary {PHOTOS} {ROOT}/"),
    (
      "--summary my_photos --epochs 20 -lr=3e-4",
      (
        f"--summary {PHOTOS} --config.total_epochs=20 "
        f"--config.optimizer.peak_lr=3e-4 {ROOT}"
      ),
    ),
    (
      "my_photos --config finetune --workdir x --image_size 224,192",
      f"--config=finetune --workdir=x --config.image_size=224,192 {ROOT}",
    ),
    (
      "--config.model.scan --batch_size 8 digits:x",
      (
        "--config=digits:x --workdir=runs/digits_x --config.model.scan "
        "--config.batch_size=8"
      ),
    ),
    (
      "labels.csv",
      (
        "--config=image_folder --workdir=runs/labels "
        "--config.data.labels_file=labels.csv"
      ),
    ),
    (
      "packed --config pairs",
      "--config=pairs --workdir=runs/packed --config.data.dir=packed",
    ),
    ("--workdir x --config digits", "--workdir=x --config=digits"),
    # The folder has no images to count, so the whole model is trained.
    ("my_photos --pretrained w/a.npz", f"{TUNED}_a {FROM}w/a.npz {ROOT}"),
    ("my_photos --config.pretrained b16", f"{TUNED}_b16 {FROM}b16 {ROOT}"),
    (
      "my_photos --config finetune:small --pretrained=hf://a/b-c@main",
      (
        "--config=finetune:small --workdir=runs/my_photos_b-c@main "
        f"{FROM}hf://a/b-c@main {ROOT}"
      ),
    ),
    (
      "my_photos --pretrained https://x.org/a/b.npz?key=1",
      f"{TUNED}_b {FROM}https://x.org/a/b.npz?key=1 {ROOT}",
    ),
    # As before there was a short form.
    (
      "my_photos --config finetune --config.pretrained=b16",
      f"--config=finetune --workdir=runs/my_photos {FROM}b16 {ROOT}",
    ),
    (
      "digits --pretrained b16",
      f"--config=digits --workdir=runs/digits_b16 {FROM}b16",
    ),
    (
      "--config finetune --pretrained b16 --workdir x",
      f"--config=finetune --workdir=x {FROM}b16",
    ),
  ],
)
def test_short_forms_stand_for_keys(expanded, line, long):
  assert expanded(line)[0] == long


def test_a_folder_comes_before_a_configuration_and_is_told(expanded, tmp_path):
  said = "Taking the configuration digits; the run goes to runs/digits.\n"
  assert expanded("digits")[1] == said
  assert expanded("digits", workdir=False) == (
    "--config=digits",
    said.replace("; the run goes to runs/digits", ""),
  )
  (tmp_path / "digits").mkdir()
  said = "Taking the folder digits with the configuration image_folder; the ru"
  assert expanded("digits")[1].startswith(said)


NEITHER = "is neither a folder here nor a configuration; "


@pytest.mark.parametrize(
  "line, message",
  [
    ("my_photos --epochs 2 --epochs 3", "--epochs or --config.total_epochs is"),
    ("--lr 1 --config.optimizer.peak_lr=2", "--lr or --config.optimizer.peak_"),
    ("--batch_size=1 --config.batch_size 1", "--batch_size or --config.batch"),
    (
      f"my_photos {ROOT}",
      "my_photos stands for --config.data.root, which is g",
    ),
    ("nope", "'nope' is neither a folder here nor a configuration; .vit_jax"),
    ("my_photo", f"'my_photo' {NEITHER}did you mean my_photos.$"),
    ("My-Photos/", f"'My-Photos/' {NEITHER}did you mean my_photos.$"),
    ("digit", f"'digit' {NEITHER}did you mean digits.$"),
    (
      "my_photos/b/c",
      f"'my_photos/b/c' {NEITHER}there is no 'b' in .*photos.$",
    ),
    (f"my_photos --pretrained=a {FROM}b", "--pretrained or --config.pretraine"),
    ("my_photos --pretrained", "--pretrained names the weights to start from"),
    ("my_photos --pretrained --lr 1", "--pretrained names the weights to star"),
    ("my_photos --epochs", "--epochs needs a value"),
    ("my_photos --lr --epochs 3", "--lr needs a value"),
    ("my holiday photos", "'my' is the DATA, and 'holiday' is one too many"),
    ("cat.JPG", "cat.JPG is neither a folder, nor a file of labels .it ends"),
    ("--pretrained my_photos", "no images are given; --pretrained names the"),
    ("ok --resume runs/cc", "resume is not needed: .* --workdir='runs/cc'; "),
    ("my_photos --resume-from=r", "resume_from is not needed: .*--workdir='r'"),
    ("my_photos --resume", "resume is not needed: .*='runs/my_photos'; "),
    ("http://x.org/a", f"'http://x.org/a' {NEITHER}it is an address: download"),
  ],
)
def test_what_is_said_twice_or_is_nothing_is_refused(expanded, line, message):
  with pytest.raises(ValueError, match=f"^{message}"):
    expanded(line)


@pytest.mark.parametrize(
  "there, line, folder",
  [
    ([], "a.csv", "runs/a"),
    ([], "p.CSV --pretrained w/a.safetensors", "runs/p_a"),
    # A run from before, and a folder that has the name.
    (["runs/a.csv"], "a.csv", "runs/a.csv"),
    (
      ["runs/p.CSV_x.npz"],
      "p.CSV --pretrained x.npz",
      "runs/p.CSV_x.npz",
    ),
    (["a"], "a.csv", "runs/a_csv"),
    ([], "v1.2", "runs/v1.2"),
  ],
)
def test_a_run_is_named_after_a_file_without_its_ending(
  expanded, tmp_path, there, line, folder
):
  for name in ("a.csv", "p.CSV"):
    (tmp_path / name).write_text("file,label\n")
  for name in (*there, "v1.2"):
    (tmp_path / name).mkdir(parents=True)
  assert f" --workdir={folder} " in expanded(line)[0]


def test_the_name_of_a_data_set_stands_for_it_where_that_is_read(tmp_path):
  assert flags.data_keys("digits", sets=True) == {"data.name": "digits"}
  file = tmp_path / "mine.py"
  file.write_text(
    "from vit_jax.config import base_config\n"
    "def get_config():\n"
    "  c = base_config()\n"
    "  c.data.update(root='photos', eval_fraction=0.5, sampling='classes')\n"
    "  return c\n"
  )
  assert flags.data_keys(str(file), sets=True) == {
    "data.root": "photos",
    "data.eval_fraction": 0.5,
  }
  for name, sets in (("digits", False), ("image_folder", True)):
    with pytest.raises(ValueError, match=f"{name} has no folder of images: gi"):
      flags.data_keys(name, sets=sets)


def test_short_forms_are_keys():
  assert {*flags.SHORT.values()} <= {*all_keys(Settings)}
