"""Runs of every kind that were saved before still do what they did.

`tests/checkpoints/saved_runs/` has one run of each kind, with a JSON file of
what the program then computed; the README.md there says how they were made.
They are never made again: a failure here is a run that its owner can no longer
use. `test_compat.py` does the same for older and plainer runs.
"""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests.old_runs import CHECKPOINTS, TRAINED, assert_same, described, trained
from tests.saved_data import (
  ParallelBlock,
  write_captions,
  write_data,
  write_depth,
  write_pictures,
  write_scenes,
)
from vit_jax.config import base_config
from vit_jax.export import export_checkpoint
from vit_jax.predict import predict_files
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.tasks.table import LABELLED_TASKS, SECTIONS

FOLDER = CHECKPOINTS / "saved_runs"
SAVED, TOTAL = 6, 8  # Steps: of the checkpoint, and of the whole run.
# What the description of each kind says in the words of its time: values by
# dotted keys. A reader has to know these for good.
WORDS = {
  "multilabel": {
    "config.data.task": "multilabel",
    "config.loss.kind": "sigmoid",
    "targets": {"task": "multilabel"},
    "threshold": 0.4282962855487451,
  },
  "regression": {
    "config.data.task": "regression",
    "config.loss.kind": "mse",
    "targets.task": "regression",
    "targets.mean": [5.251674982905388, 3.4462500691413878],
    "targets.std": [2.2874535261817788, 52.226782956562815],
    "class_names": ["height", "angle"],
  },
  "class_weights": {
    "config.loss.class_weights": "balanced",
    "targets.task": "classification",
    "targets.weights": [0.5555555555555556, *[1.6666666666666667] * 2],
  },
  "sigmoid": {"config.loss.kind": "sigmoid", "model.kind": "Vit"},
  "masked": {
    "config.masked.rate": 0.5,
    "config.data.task": "classification",
    "config.loss.kind": "softmax",
    "model.kind": "MaskedVit",
    "model.num_classes": 512,
  },
  "autoencoder": {
    "config.autoencoder.rate": 0.75,
    "config.autoencoder.decoder_size": 8,
    "model.kind": "Vit",
    "model.adapted": True,
  },
  "student": {
    "config.student.learns": "both",
    "model.kind": "Vit",
    "model.adapted": True,
    "targets": {"task": "student", "widths": {"class": 8, "patches": 8}},
    "teacher.source": "workdirs/plain",
  },
  "self_distillation": {
    "config.self_distillation.prototypes": 32,
    "config.ema_decay": 0.99,
    "model.kind": "ModernVit",
    "model.adapted": True,
  },
  "lejepa": {
    "config.lejepa.weight": 0.05,
    "config.lejepa.projections": 4,
    "model.kind": "Vit",
    "model.adapted": True,
  },
  "pairs": {
    "config.data.task": "pairs",
    "config.data.labels_file": "captions.csv",
    "config.pairs.loss": "sigmoid",
    "model.kind": "Vit",
    "model.adapted": True,
    "targets.task": "pairs",
    "targets.weights": [],
    "class_names": ["caption"],
  },
  "segmentation": {
    "config.data.task": "segmentation",
    "config.segmentation.head_size": 8,
    "model.kind": "Vit",
    "model.adapted": True,
    "targets": {"task": "segmentation", "classes": 3},
  },
  "dense_regression": {
    "config.data.task": "dense_regression",
    "config.data.target_scale": 0.001,
    "config.dense_regression.loss": "silog",
    "model.adapted": True,
    "targets": {
      "task": "dense_regression",
      "mean": 4.804944644409393,
      "std": 2.3748055733406472,
      "log_mean": 1.420946942912733,
      "log_std": 0.5809641352595488,
      "levels": 0.001,
    },
    "class_names": ["depth"],
  },
  "lora": {
    "config.lora.rank": 2,
    "config.pretrained": "workdirs/scanned",
    "model.scan": True,
    "base.source": "workdirs/scanned",
    "base.step": 24,
    "base.fields": {},
    "base.interpolation": None,
  },
  "distilled": {
    "config.distill.teacher": "workdirs/plain",
    "teacher.source": "workdirs/plain",
    "teacher.step": 24,
  },
  "averaged": {"config.ema_decay": 0.9, "config.accumulation_steps": 2},
  "modern": {
    "config.model.block": "dinov3",
    "model.kind": "ModernVit",
    "model.registers": 4,
    "model.rope_theta": 100.0,
  },
  "own_block": {
    "config.model.block": "tests.saved_data:ParallelBlock",
    "model.kind": "Vit",
    "model.block": "tests.saved_data:ParallelBlock",
  },
  "autoencoder_scanned": {
    "config.autoencoder.decoder_layers": 2,
    "model.scan": True,
    "model.adapted": True,
  },
  "self_distillation_lora": {
    "config.lora.rank": 2,
    "config.self_distillation.prototypes": 32,
    "model.kind": "Vit",
    "base.source": "workdirs/plain",
    "base.interpolation": "linear",
  },
  "towers_frozen": {
    "config.pairs.image": "frozen",
    "targets.task": "pairs",
    "targets.weights": ["image"],
  },
  "towers_lora": {
    "config.pairs.image": "lora",
    "config.lora.rank": 2,
    "targets.weights": ["image"],
    "base.source": "workdirs/plain",
  },
  "muon": {
    "config.optimizer.kind": "muon",
    "config.optimizer.layer_decay": 0.75,
  },
  "drop_path": {
    "config.model.block": "deit3",
    "model.kind": "ModernVit",
    "model.drop_path_rate": 0.2,
    "model.drop_path_grows": True,
    "model.scan": False,
  },
  "five_channels": {
    "config.channels": 5,
    "config.normalization.window": [0.0, 4095.0],
    "config.normalization.mean": [0.4] * 5,
  },
}
FAST = ("multilabel",)
NO_ANSWERS = (
  *("masked", "autoencoder", "student", "self_distillation"),
  *("pairs", "segmentation", "autoencoder_scanned", "self_distillation_lora"),
  *("towers_frozen", "towers_lora", "lejepa", "dense_regression"),
)
# What a description cannot hold, and the reader of a run has to give.
GIVEN = {"own_block": {"block": ParallelBlock}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with what the runs name: the images, a base and a teacher."""
  folder = tmp_path_factory.mktemp("place")
  write_data(folder)
  write_captions(folder)
  write_scenes(folder)
  write_depth(folder)
  write_pictures(folder / "pictures")
  for name in ("plain", "scanned"):
    shutil.copytree(CHECKPOINTS / "workdirs" / name, folder / "workdirs" / name)
  return folder


@pytest.fixture
def workdir(request, place, tmp_path, monkeypatch):
  """A copy of a run, where the paths of its description lead somewhere."""
  monkeypatch.chdir(place)
  return shutil.copytree(FOLDER / request.param, tmp_path / request.param)


def each_run(but=()):
  """Runs a test with every kind of run but those named."""
  kinds = [
    pytest.param(kind, marks=[] if kind in FAST else pytest.mark.slow)
    for kind in WORDS
    if kind not in but
  ]
  return pytest.mark.parametrize("workdir", kinds, indirect=True)


def known(workdir):
  """What the program computed of a run when it was saved."""
  return json.loads((FOLDER / f"{workdir.name}.json").read_text())


def evaluated(workdir):
  return evaluate_checkpoint(str(workdir))


def predicted(workdir, capsys, **given):
  """The output of `predict --json` for pictures that are not square."""
  kind = "tif" if workdir.name == "five_channels" else "png"
  files = sorted(map(str, pathlib.Path("pictures", kind).iterdir()))
  capsys.readouterr()
  assert predict_files(str(workdir), files, as_json=True, **given) == 0
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def exported(workdir, **given):
  """What the exported program makes of three images of noise."""
  file = workdir / "exported"
  export_checkpoint(str(workdir), str(file), platforms=["cpu"], **given)
  program = jax.export.deserialize(bytearray(file.read_bytes()))
  shape = 3, *program.in_avals[0].shape[1:]
  images = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
  return np.asarray(program.call(images)).tolist()


def resumed(workdir):
  """The last evaluation of a run that goes on, and outlines of its arrays."""
  config = base_config()
  config.update(described(workdir)["config"])
  state, metrics = train(read(config), str(workdir))
  assert int(state.step) == TOTAL
  return {"evaluated": metrics, "outlines": trained(state)}


@each_run(but=["own_block"])
def test_a_saved_run_is_evaluated_as_it_was(workdir):
  assert_same(evaluated(workdir), known(workdir)["evaluated"])


@each_run(but=NO_ANSWERS)
def test_a_saved_run_predicts_as_it_did(workdir, capsys):
  given = GIVEN.get(workdir.name, {})
  assert_same(predicted(workdir, capsys, **given), known(workdir)["predicted"])


@each_run()
def test_a_saved_run_is_exported_as_it_was(workdir):
  given = GIVEN.get(workdir.name, {})
  assert_same(exported(workdir, **given), known(workdir)["exported"])


@pytest.mark.slow
@each_run()
def test_a_saved_run_goes_on_to_the_same_end(workdir):
  assert_same(resumed(workdir), known(workdir)["resumed"], rounding=TRAINED)


@pytest.mark.parametrize(
  "workdir, command, names",
  [
    *(
      pytest.param(
        *(name, "predict", "has no classes to choose from: give "),
        marks=() if name in ("masked", "pairs") else pytest.mark.slow,
      )
      for name in NO_ANSWERS
    ),
    ("own_block", "evaluate", "tests.saved_data:ParallelBlock"),
    ("own_block", "predict", "tests.saved_data:ParallelBlock"),
    ("own_block", "export", "tests.saved_data:ParallelBlock"),
  ],
  indirect=["workdir"],
)
def test_what_a_saved_run_cannot_do_is_still_said(
  workdir, command, names, capsys
):
  """One line names it, as it did then."""
  commands = {
    "evaluate": evaluated,
    "predict": lambda workdir: predicted(workdir, capsys),
    "export": exported,
  }
  with pytest.raises(ValueError, match=names) as error:
    commands[command](workdir)
  assert names in known(workdir)["refused"][command]["says"]
  assert len(str(error.value).splitlines()) == 1


def test_every_task_has_a_saved_run():
  """As docs/compatibility.md promises; classification has the others."""
  assert {*LABELLED_TASKS, *SECTIONS} - {*WORDS} == {"classification"}


@pytest.mark.parametrize("kind", WORDS)
def test_the_descriptions_keep_the_words_of_their_time(kind):
  """Later code would write others, so nobody has made the runs again."""
  description = described(FOLDER / kind)
  for key, value in WORDS[kind].items():
    found = description
    for name in key.split("."):
      found = found[name]
    assert found == value, key
  assert ("targets" in description) == any("targets" in k for k in WORDS[kind])
  assert ("threshold" in description) == (kind == "multilabel")
