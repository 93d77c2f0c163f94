"""Checkpoints of our own runs, opened as `Loaded` models."""

import json
import os
import shutil

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import digits
from tests import tiny
from vit_jax import load_pretrained
from vit_jax.config import base_config
from vit_jax.models import Vit
from vit_jax.pretrained import pinned
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import loop
from vit_jax.run.settings import read
from vit_jax.training import lora
from vit_jax.training.settings import LoraSettings
from vit_jax.training.state import make_params_init
from vit_jax.workdir.description import with_digest


@pytest.mark.slow
def test_a_workdir_gives_the_averaged_parameters(data_dir, tmp_path):
  config = digits.get_config()
  config.update(total_epochs=0.0, total_steps=3, ema_decay=0.5)
  config.data.data_dir = str(data_dir)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  workdir = str(tmp_path / "run")
  state, _ = loop.train(read(config), workdir)
  model, params = load_pretrained(workdir)
  expected = jax.device_get(state.averaged_params)
  same = jax.tree.map(np.array_equal, params, expected)
  assert jax.tree.all(same)
  assert model.origin.format == "vit_jax"
  assert model.origin.image_size == (8, 8)
  assert model.origin.class_names == tuple(map(str, range(10)))
  with pytest.raises(ValueError, match="no checkpoint of step 7; there is one"):
    load_pretrained(workdir, step=7)
  bare = {"a": np.zeros(2, np.float32)}
  save_arrays(tmp_path / "run.safetensors", bare)
  with pytest.raises(ValueError, match="not named as in any supported format"):
    load_pretrained(str(tmp_path / "run.safetensors"))


RUN = Vit(3, 8, 24, 1, 48, 3, pooling="gap")


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
  """The folder of a run after training."""
  params = tiny.random_params(RUN, (16, 16), 0)
  folder, half = tmp_path_factory.mktemp("saved") / "run", (0.5, 0.5, 0.5)
  options = dict(steps=[2], mean=half, std=half)
  return tiny.save_run(folder, RUN, params, (16, 16), "abc", **options)


@pytest.mark.parametrize(
  "fields, message",
  [
    (
      {"num_heads": 2, "gelu": "exact"},
      r"not trained with num_heads=2, gelu='exact': 7 wrong shape: .*3 more. L",
    ),
    ({"pooling": "token"}, r"1 missing: x_class \(24,\); 1 wrong shape: pos"),
    ({"num_layers": 2}, "was not trained with num_layers=2: 16 missing: bl"),
    ({"heads": 2}, "Vit has no field heads"),
    ({"base": "a"}, "base=a is where .* reads neither: leave out base"),
    (
      {"base": "a", "as_trained": True},
      "base=a is where .* reads neither: leave out base",
    ),
    (
      {"as_trained": True, "mean": 0.5, "gelu": "tanh"},
      "leave out gelu, mean",
    ),
  ],
)
def test_a_workdirs_arrays_are_those_of_the_model_asked_for(
  saved_run, fields, message
):
  with pytest.raises(ValueError, match=message) as info:
    open_checkpoint(str(saved_run), **fields)
  assert "\n" not in str(info.value)
  model = open_checkpoint(str(saved_run), gelu="exact").model
  assert model.gelu == "exact"


def test_what_a_run_has_not_is_not_converted(saved_run, tmp_path):
  out = tmp_path / "out"
  with pytest.raises(ValueError, match="no decoder or text tower, .* leave ou"):
    convert(str(saved_run), out, "timm", as_trained=True)
  assert not out.exists()


def test_a_workdir_is_read_without_a_word(saved_run, capfd):
  load_pretrained(str(saved_run))
  assert capfd.readouterr() == ("", "")


def _truncate(folder):
  for path in (folder / "params").rglob("d/*"):
    path.write_bytes(path.read_bytes()[:100])


def _write(text):
  return lambda folder: (folder / "description/metadata").write_text(text)


@pytest.mark.parametrize(
  "damage, message",
  [
    (
      lambda f: shutil.rmtree(f / "params"),
      "params/.* now there is nothing",
    ),
    (lambda f: shutil.rmtree(f / "description"), "No such file .*description"),
    (_write('{"config'), "Unterminated string"),
    (_write("[1]"), "not a JSON object"),
    (_truncate, "and now there is 100 bytes"),
    (
      lambda f: (f / "params/_METADATA").write_text("{"),
      "there is 1 bytes",
    ),
  ],
)
def test_a_damaged_checkpoint_is_named(
  saved_run, tmp_path, capfd, damage, message
):
  shutil.copytree(saved_run, tmp_path / "run")
  damage(tmp_path / "run/checkpoints/2")
  whole = rf"checkpoint 2 of .*/run is damaged.* \(.*{message}.*\): choose anot"
  with pytest.raises(ValueError, match=whole) as info:
    load_pretrained(str(tmp_path / "run"))
  assert "\n" not in str(info.value)
  assert capfd.readouterr().err == ""


# A function of ours that opening or reading a run calls, and its module.
OURS = (
  "vit_jax.workdir.orbax_files.steps",
  "vit_jax.workdir.orbax_files.read_description",
  "vit_jax.workdir.checkpoint_reader.verify_digest",
  "vit_jax.workdir.checkpoint_reader.checksums",
  "vit_jax.workdir.description.preprocessing",
  "vit_jax.models.variants.check_depth",
  "vit_jax.pretrained.run_checkpoint.param_shapes",
  "vit_jax.pretrained.run_checkpoint.open_run",
  "vit_jax.tasks.choose.configured",
)
FAULTS = (AssertionError, AttributeError, TypeError)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", OURS)
def test_a_fault_of_ours_is_not_called_damage(
  saved_run, monkeypatch, place, fault
):
  """It comes out as itself, with its trace."""

  def broken(*_, **__):
    raise fault("a slip")

  monkeypatch.setattr(place, broken)
  with pytest.raises(fault, match="^a slip$"):
    load_pretrained(str(saved_run))


HOSTILE = {
  "model": {"hidden_size": "wide"},
  "model.block": 5,
  "model.kind": ["Vit"],
  "model.dtype": "int32",
  "model.layer_norm_epsilon": "small",
  "model.resnet_layers": 3,
  "model.num_heads": 1.5,
  "config": [],
  "config.masked": None,
  "config.loss": 7,
  "class_names": 3,
  "checksums": [1],
  "files": {"a": []},
  "targets": "none",
  "targets.task": [],
  "targets.weights": {"a": 1},
}


@pytest.mark.parametrize("key", HOSTILE)
def test_a_description_of_other_values_is_refused_in_a_line(
  saved_run, tmp_path, key
):
  """Whatever a stranger writes, with a digest that fits."""
  shutil.copytree(saved_run, tmp_path / "run")
  path = tmp_path / "run/checkpoints/2/description/metadata"
  description = json.loads(path.read_text())
  description.pop("digest")
  description["targets"] = {"task": "classification", "weights": [1.0] * 3}
  *sections, name = key.split(".")
  place = description
  for section in sections:
    place = place[section]
  place[name] = HOSTILE[key]
  path.write_text(json.dumps(with_digest(description)))
  with pytest.raises(ValueError, match="is damaged") as info:
    _ = open_checkpoint(str(tmp_path / "run")).task
  assert "\n" not in str(info.value)


def test_a_description_without_a_model_is_refused(saved_run, tmp_path):
  shutil.copytree(saved_run, tmp_path / "run")
  path = tmp_path / "run/checkpoints/2/description/metadata"
  description = json.loads(path.read_text())
  del description["model"], description["digest"]
  path.write_text(json.dumps(with_digest(description)))
  with pytest.raises(ValueError, match="its description has no model"):
    load_pretrained(str(tmp_path / "run"))


@pytest.fixture
def lora_of(tmp_path):
  """Makes a run with LoRA, whose checkpoint names this base and fields."""
  image, settings = (16, 16, 3), LoraSettings(rank=2)
  base = tiny.random_params(RUN, image[:2], 0)
  tiny.save_google(tmp_path / "base.npz", RUN, base)
  init = jax.jit(lora.trained_init(make_params_init(RUN, image), settings))
  config = base_config()
  config.lora.rank = 2
  opened, found = open_checkpoint(str(tmp_path / "base.npz")), {}
  list(pinned.with_digests(opened, found).read())
  kept = {**pinned.record(opened, found), "interpolation": "linear"}
  half = (0.5, 0.5, 0.5)

  def make(source, **fields):
    kept.update(source=source, fields=fields)
    options = dict(config=config, base=kept, mean=half, std=half)
    trained = nn.unbox(init(jax.random.key(1)))
    folder, size = tmp_path / f"run_{len(source)}", (16, 16)
    return str(tiny.save_run(folder, RUN, trained, size, "abc", **options))

  return make


@pytest.mark.slow
def test_an_address_that_only_a_checkpoint_names_is_not_asked(
  lora_of, tmp_path, site, cache
):
  """Neither as the base, nor as the base of the base."""
  body = (tmp_path / "base.npz").read_bytes()
  address = site.add("/base.npz", body)
  run = lora_of(f"{address}?token=mine")
  with pytest.raises(ValueError, match=f"is {address}, which only") as caught:
    load_pretrained(run)
  message = str(caught.value)
  assert f"give base={address} (base" in message and "mine" not in message
  assert message.isprintable() and "token" not in message
  with pytest.raises(
    ValueError, match="run is hf://o/n, which only the run.s c"
  ):
    load_pretrained(lora_of("hf://o/n"))
  with pytest.raises(
    ValueError, match="run is gs://b/run, which only the run.s"
  ):
    load_pretrained(lora_of("gs://b/run"))
  nested = lora_of(run, base=f"{address}?token=mine", task="/tmp/evil.py:Evil")
  with pytest.raises(ValueError, match=f"is {address}, which only the run.s c"):
    load_pretrained(nested)
  assert site.requests == [] and not cache.exists()

  given = load_pretrained(run, base=address).params
  assert site.gets("/base.npz") == 1
  local = load_pretrained(lora_of(str(tmp_path / "base.npz"))).params
  jax.tree.map(np.testing.assert_array_equal, given, local)


@pytest.mark.slow
def test_a_pipe_that_a_checkpoint_names_is_not_opened(lora_of, tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(ValueError, match="/pipe, which only the run"):
    load_pretrained(lora_of(str(tmp_path / "pipe")))
