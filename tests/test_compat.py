"""Workdirs that version 0.1.0 saved still resume, evaluate and predict.

`tests/checkpoints/workdirs/` has three of them, each with a JSON file of the
results that this version computed; the README.md there says how they were made.
They are never made again: a failure here is a run that its owner can no longer
load.
"""

import hashlib
import json
import pathlib
import re
import shlex
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from tests.old_runs import (
  CHECKPOINTS,
  TRAINED,
  assert_same,
  described,
  description_file,
  flat,
  outlines,
  trained,
)
from vit_jax import load_pretrained
from vit_jax.config import base_config
from vit_jax.predict import predict_files
from vit_jax.run.loop import train
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import Settings, read, read_saved
from vit_jax.run.start import fresh_state
from vit_jax.runtime.settings import flat as flat_keys
from vit_jax.runtime.settings import to_dict

FOLDER = CHECKPOINTS / "workdirs"
RUNS = ("plain", "scanned", "resnet")
SAVED, TOTAL = 24, 30  # Steps: of the checkpoint, and of the whole run.
# Height and width of the images to predict, and whether they have colours.
IMAGES = ((8, 8, True), (12, 20, True), (30, 9, True), (8, 8, False))
# Since then drawn as the published models' code does (CHANGELOG.md).
REDRAWN = re.compile(r"patches/E/|msa/\w+/bias")


@pytest.fixture
def workdir(request, tmp_path):
  """A copy of the run that the test asks for, `plain` by default."""
  name = getattr(request, "param", "plain")
  return shutil.copytree(FOLDER / name, tmp_path / name)


each_run = pytest.mark.parametrize(
  "workdir",
  ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS[1:])],
  indirect=True,
)


def expected(workdir):
  """The results that version 0.1.0 computed for a run."""
  return json.loads((FOLDER / f"{workdir.name}.json").read_text())


def describe_as(workdir, description):
  """Writes another description, with its digest."""
  rest = {k: v for k, v in description.items() if k != "digest"}
  text = json.dumps(rest, sort_keys=True)
  digest = hashlib.sha256(text.encode()).hexdigest()
  file = description_file(workdir)
  file.write_text(json.dumps({**rest, "digest": digest}))


def without(tree, key):
  """Nested dictionaries without a dotted key, which must be there."""
  first, _, rest = key.partition(".")
  changed = dict(tree)
  inner = changed.pop(first)
  return {**changed, first: without(inner, rest)} if rest else changed


def config_of(workdir, data_dir):
  """The configuration with which the run was started."""
  config = base_config()
  config.update(described(FOLDER / workdir.name)["config"])
  config.data.data_dir = str(data_dir)
  return config


def digest(array):
  return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def rounding():
  """Identifies how this machine rounds, by a digest of JAX's initialisers.

  The last bit of some random numbers depends on fused multiplication and
  addition, and on how XLA emits kernels.
  """
  draws = (
    jax.nn.initializers.lecun_normal(),
    jax.nn.initializers.normal(0.02),
    jax.nn.initializers.xavier_uniform(),
  )

  @jax.jit
  def drawn():
    key = jax.random.key(0)
    return jnp.stack([draw(key, (64, 64)) for draw in draws])

  return digest(np.asarray(drawn()))


def first_parameters(workdir, data_dir):
  """The first parameters of a fresh run with the same configuration."""
  plan = make_plan(read(config_of(workdir, data_dir)), described(workdir))
  return flat(fresh_state(plan).params)


def images(folder):
  """Saves pictures of noise, the same every time; returns their paths."""
  rng = np.random.default_rng(0)
  names = []
  for k, (height, width, coloured) in enumerate(IMAGES):
    shape = (height, width, 3) if coloured else (height, width)
    image = Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
    names.append(str(folder / f"{k}.png"))
    image.save(names[-1])
  return names


def predictions(workdir, folder, capsys):
  """The output of `predict --json` for these pictures."""
  names = images(folder)
  capsys.readouterr()
  assert predict_files(str(workdir), names, as_json=True) == 0
  return read_predictions(capsys.readouterr().out)


def read_predictions(out):
  """The lines of JSON, with file names in place of paths."""
  rows = [json.loads(line) for line in out.splitlines()]
  return [{**row, "image": pathlib.Path(row["image"]).name} for row in rows]


@pytest.mark.slow
@each_run
def test_the_first_parameters_are_those_of_old(workdir, data_dir):
  """They are the same to the bit on machines that round as a recorded one."""
  known = expected(workdir)["first"]
  found = first_parameters(workdir, data_dir)
  kinds = {path: [[*x.shape], x.dtype.name] for path, x in found.items()}
  assert kinds == known["kinds"]
  found = {path: x for path, x in found.items() if not REDRAWN.search(path)}
  old = {path: known["outlines"][path] for path in found}
  assert_same(outlines(found), old)
  bits = known["digests"].get(rounding())
  if bits is not None:
    assert {path: bits[path] for path in found} == {
      path: digest(x) for path, x in found.items()
    }


@pytest.mark.slow  # A saved run of another kind is evaluated in a fast test.
@each_run
def test_a_run_of_old_is_evaluated_as_it_was(workdir, data_dir):
  found = evaluate_checkpoint(str(workdir), data_dir=str(data_dir))
  assert found == pytest.approx(expected(workdir)["evaluated"], rel=1e-5)


@each_run
def test_a_run_of_old_predicts_as_it_did(workdir, tmp_path, capsys):
  found = predictions(workdir, tmp_path, capsys)
  assert_same(found, expected(workdir)["predicted"])


@pytest.mark.slow
@each_run
def test_a_run_of_old_goes_on_to_the_same_end(workdir, data_dir):
  state, evaluated = train(read(config_of(workdir, data_dir)), str(workdir))
  assert int(state.step) == TOTAL
  known = expected(workdir)["resumed"]
  evaluated.pop("eval/top1_not_averaged", None)  # It is newer.
  assert evaluated == pytest.approx(known["evaluated"], rel=TRAINED)
  assert_same(trained(state), known["outlines"], rounding=TRAINED)


@pytest.mark.slow
@each_run
def test_the_same_commands_go_on_and_read_it(workdir, data_dir, tmp_path):
  """Runs the commands of `starts.jsonl` in processes of their own."""
  (tmp_path / "small_resnet.py").write_text(
    "from configs import digits\n"
    "def get_config():\n"
    "  c = digits.get_config()\n"
    "  c.model.update(dict.fromkeys(c.model))\n"
    "  c.model.variant = 'R50x1'\n"
    "  return c\n"
  )
  start = json.loads((workdir / "starts.jsonl").read_text())
  places = {
    "small_resnet.py": str(tmp_path / "small_resnet.py"),
    workdir.name: str(workdir),
  }
  _, _, module, *arguments = shlex.split(start["command"])
  done = run(
    module,
    *(places.get(argument, argument) for argument in arguments),
    f"--config.data.data_dir={data_dir}",
  )
  assert done.returncode == 0, done.stderr
  assert f"Resuming from the checkpoint of step {SAVED}." in done.stdout
  rows = (workdir / "metrics.jsonl").read_text().splitlines()
  known = expected(workdir)
  # The rest is newer.
  known_keys = ("step", *known["resumed"]["evaluated"])
  last = {key: json.loads(rows[-1])[key] for key in known_keys}
  assert last.pop("step") == TOTAL
  assert last == pytest.approx(known["resumed"]["evaluated"], rel=1e-5)

  old = [f"--step={SAVED}"]
  where = [f"--workdir={workdir}", f"--data_dir={data_dir}"]
  done = run("vit_jax.evaluate", *where, *old)
  assert done.returncode == 0, done.stderr
  loss = done.stdout.split("loss ")[1].split()[0]
  assert float(loss) == pytest.approx(known["evaluated"]["eval/loss"], abs=1e-4)

  names = images(tmp_path)
  done = run("vit_jax.predict", str(workdir), *names, "--json", *old)
  assert done.returncode == 0, done.stderr
  assert_same(read_predictions(done.stdout), known["predicted"])


# Keys that are younger than the format. Each of these runs has the value under
# which the program behaves as it did before the key existed.
LATER_KEYS = (
  *("config.fewshot", "config.eval_pictures", "config.wandb_project"),
  *("config.max_skipped_steps", "config.profile_steps", "config.pretrained"),
  *("config.eval_transform.resize_ratio", "config.mesh.fsdp"),
  *("config.model.scan", "config.model.remat", "config.model.gelu"),
  *("model.scan", "model.remat", "model.gelu", "model.dtype"),
  *("model.param_dtype", "model.layer_norm_epsilon", "model.position_at"),
  *("model.representation_size", "model.head_bias", "model.resnet_layers"),
  *("model.resnet_width", "model.attention_dropout_rate"),
)


@pytest.fixture
def older(workdir):
  """A run whose description lacks every key of `LATER_KEYS`."""
  description = described(workdir)
  for key in LATER_KEYS:
    description = without(description, key)
  describe_as(workdir, description)
  return workdir


def test_a_key_that_a_description_lacks_is_as_before(
  older, data_dir, tmp_path, capsys
):
  known = expected(older)
  found = evaluate_checkpoint(str(older), data_dir=str(data_dir))
  assert found == pytest.approx(known["evaluated"], rel=1e-5)
  found = predictions(older, tmp_path, capsys)
  assert_same(found, known["predicted"])


@pytest.mark.slow
def test_a_run_whose_description_lacks_keys_goes_on(older, data_dir):
  state, _ = train(read(config_of(older, data_dir)), str(older))
  known = expected(older)["resumed"]["outlines"]
  assert_same(trained(state), known, rounding=TRAINED)


# Keys whose default has changed, with the one that they had before.
EARLIER_DEFAULTS = {
  "data.eval_split": "test",
  "data.held_out_by": "rank",
  "data.mask_values": "index",
  "fewshot.data.held_out_by": "rank",
  "fewshot.data.mask_values": "index",
  "fewshot.data.eval_split": "test",
  "fewshot.pre_logits": False,
  "transfer.interpolation": "linear",
}


def test_any_key_that_a_configuration_lacks_has_its_default(workdir):
  """Today's keys had their defaults since the first version, but for these."""
  config = described(workdir)["config"]
  usual = flat_keys(to_dict(Settings()))
  for key in flat_keys(config):
    if key.endswith(("_steps", "_epochs", "_examples")):
      continue  # One value for three keys.
    found = flat_keys(to_dict(read_saved(without(config, key))))
    assert found[key] == EARLIER_DEFAULTS.get(key, usual[key])
    rest = {k: v for k, v in found.items() if k != key}
    whole = flat_keys(to_dict(read_saved(config)))
    assert rest == {k: v for k, v in whole.items() if k != key}
    for value in found.values():
      assert not isinstance(value, list)  # JSON's lists are tuples again.


def with_unknown(workdir, section):
  """Adds a key that never existed to a section of the description."""
  description = described(workdir)
  inner = description
  for name in section.split("."):
    inner = inner[name]
  inner["nonesuch"] = 3
  describe_as(workdir, description)


def assert_one_line_names_it(error, name):
  text = str(error.value)
  assert name in text
  assert len(text.splitlines()) == 1


def test_an_unknown_field_of_the_model_is_named(workdir, data_dir):
  with_unknown(workdir, "model")
  with pytest.raises(ValueError, match="nonesuch") as error:
    load_pretrained(str(workdir))
  assert_one_line_names_it(error, "Vit has no field nonesuch")
  with pytest.raises(ValueError, match="nonesuch") as error:
    evaluate_checkpoint(str(workdir), data_dir=str(data_dir))
  assert_one_line_names_it(error, "Vit has no field nonesuch")
  with pytest.raises(ValueError, match="nonesuch") as error:
    train(read(config_of(workdir, data_dir)), str(workdir))
  assert_one_line_names_it(error, "Vit has no field nonesuch")


def test_an_unknown_key_of_the_saved_configuration_is_named(workdir, data_dir):
  with_unknown(workdir, "config.optimizer")
  with pytest.raises(ValueError, match="nonesuch") as error:
    train(read(config_of(workdir, data_dir)), str(workdir))
  assert_one_line_names_it(error, "optimizer.nonesuch")


def test_an_unknown_key_of_a_configuration_is_named(workdir, data_dir):
  config = config_of(workdir, data_dir)
  with config.unlocked():
    config.optimizer.nonesuch = 3
  with pytest.raises(ValueError, match="nonesuch") as error:
    read(config)
  assert_one_line_names_it(error, "optimizer.nonesuch is not a key")


@pytest.mark.parametrize("workdir", ["resnet"], indirect=True)
def test_lists_of_json_become_tuples(workdir, data_dir):
  saved = described(workdir)
  assert saved["model"]["layers"] == [1]
  assert saved["config"]["image_size"] == [8, 8]
  model, _ = load_pretrained(str(workdir))
  assert model.layers == (1,)
  assert model.origin.image_size == (8, 8)
  assert model.origin.mean == model.origin.std == (0.5, 0.5, 0.5)
  assert model.origin.class_names == tuple("0123456789")
  hash(model)  # This fails if the model holds a list.
  config = config_of(workdir, data_dir)
  assert config.image_size == (8, 8)
  assert config.normalization.mean == (0.5, 0.5, 0.5)
