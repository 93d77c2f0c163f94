"""Runs that are started from Python take what the command's short form does."""

import dataclasses
import json
import operator
import pathlib
import re
import sys
import types

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny
from vit_jax.config import load_config
from vit_jax.models import Vit
from vit_jax.run import in_python
from vit_jax.run.settings import Settings, read
from vit_jax.runtime.settings import all_keys

CHECKPOINTS = pathlib.Path(__file__).parents[1] / "checkpoints"
TINY_MODEL = {"model": {"num_layers": 1, "hidden_size": 32}}


@pytest.fixture
def photos(tmp_path, monkeypatch):
  """A folder of twelve photographs of two colours, in the current folder."""
  rng = np.random.default_rng(0)
  for channel, name in enumerate(["red", "green"]):
    folder = tmp_path / "my_photos" / name
    folder.mkdir(parents=True)
    for number in range(6):
      pixels = rng.integers(0, 60, (24, 24, 3), dtype=np.uint8)
      pixels[..., channel] += 150
      Image.fromarray(pixels).save(folder / f"{number}.png")
  monkeypatch.chdir(tmp_path)
  return "my_photos"


@pytest.fixture
def started(monkeypatch):
  """Collects (settings, workdir, options) of the runs that would start."""
  calls = []

  def train(settings, workdir, **options):
    calls.append((settings, workdir, options))
    pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
    return types.SimpleNamespace(step=7), {}

  monkeypatch.setattr(in_python, "train", train)
  return calls


def test_a_folder_and_short_keywords_suffice(photos, started, capsys):
  run = vit_jax.train(
    photos,
    epochs=3,
    lr=0.01,
    image_size=32,
    optimizer={"weight_decay": 0.2},
    settings={"loader.num_workers": 0},
  )
  assert (run.workdir, run.step, run.metrics) == ("runs/my_photos", 7, {})
  ((settings, workdir, options),) = started
  assert workdir == "runs/my_photos" and options["may_lower_batch"]
  c = load_config("image_folder")
  c.update(total_epochs=3.0, image_size=(32, 32))
  c.data.root, c.loader.num_workers = "my_photos", 0
  c.optimizer.update(peak_lr=0.01, weight_decay=0.2)
  assert settings == read(c)
  said = capsys.readouterr().err
  assert "the folder my_photos with the configuration image_folder" in said


@pytest.mark.parametrize(
  "section, key, value",
  [
    ("optimizer", "kind", "sgd"),
    ("model", "variant", "Ti/16"),
    ("loss", "kind", "sigmoid"),
  ],
)
def test_a_text_for_a_section_is_its_kind(started, section, key, value):
  own = {section: value}
  vit_jax.train(config="digits", workdir="runs/own", **own)
  vit_jax.train(config="digits", workdir="runs/own", **{section: {key: value}})
  (short, _, _), (written_out, _, _) = started
  assert short == written_out
  assert getattr(getattr(short, section), key) == value


def test_a_run_has_its_rows_and_evaluates_by_itself(tmp_path, monkeypatch):
  rows = [{"step": 1, "train/loss": 2.0}, {"step": 2, "eval/top1": 0.5}]
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "metrics.jsonl").write_text(lines)
  run = in_python.FinishedRun(str(tmp_path), 2, {})
  assert run.history == rows
  monkeypatch.setattr(
    "vit_jax.run.saved.evaluate_checkpoint",
    lambda *given, **options: {"given": given, **options},
  )
  for found in (
    run.evaluate("new", num_workers=2, test=True),
    vit_jax.evaluate(run, "new", num_workers=2, test=True),
  ):
    assert found["given"] == (str(tmp_path),)
    assert (found["folder"], found["num_workers"]) == ("new", 2)
    assert found["test"]


@pytest.mark.parametrize(
  "rows, task",
  [
    ("file,label\n{}/0.png,0.5\n{}/1.png,2.5\n", "regression"),
    ("file,x,y\n{}/0.png,0,1\n{}/1.png,1,1\n", "multilabel"),
  ],
)
def test_the_settings_fit_the_task_that_the_labels_say(
  photos, started, rows, task
):
  """Smoothing, which configurations of classes have, is for classes."""
  pathlib.Path("labels.csv").write_text(rows.replace("{}", f"{photos}/red"))
  vit_jax.train("labels.csv")
  ((settings, _, _),) = started
  assert settings.data.task == task
  assert settings.loss.label_smoothing == 0.0


def test_a_length_in_another_unit_replaces_that_of_the_configuration(started):
  vit_jax.train(
    config="digits", workdir="runs/own", total_steps=5, batch_size=4
  )
  ((settings, workdir, options),) = started
  expected = load_config("digits")
  expected.update(total_epochs=0.0, total_steps=5, batch_size=4)
  assert settings.total == read(expected).total
  assert workdir == "runs/own" and not options["may_lower_batch"]
  own = load_config("digits")
  vit_jax.train(config=own, workdir=pathlib.Path("runs/own"), seed=3)
  assert started[1][0].seed == 3 and own.seed == 0


@pytest.mark.parametrize("file, workers", [("own.py", 0), (None, -1)])
def test_a_script_is_not_imported_by_workers(
  photos, started, capsys, monkeypatch, file, workers
):
  main = types.SimpleNamespace(__file__=file, __spec__=None)
  monkeypatch.setitem(sys.modules, "__main__", main)
  vit_jax.train(config="digits", workdir="runs/own")  # Needs no processes.
  assert "in a thread" not in capsys.readouterr().err
  vit_jax.train(photos)
  vit_jax.train(photos, workdir="runs/again")  # It is said once.
  assert [run[0].loader.num_workers for run in started] == [workers] * 3
  said = capsys.readouterr().err.count("in a thread")
  assert said == (1 if workers == 0 else 0)


@pytest.mark.parametrize(
  "arguments, message",
  [
    ({}, r"give a folder of images, as in vit_jax\.train\(\"my_photos\"\)"),
    ({"config": "digits"}, "or both config and workdir"),
    ({"data": "my_photo"}, "'my_photo' is neither .* did you mean my_photos?"),
    ({"optimizer": "sgdd"}, r"^optimizer\.kind='sgdd' is unknown"),
    ({"optimizer": 3}, r"optimizer is not .*settings=\{.optimizer\.kind.:"),
    ({"model": "S/16", "settings": {"model.variant": "B/16"}}, "given twice"),
    ({"callbacks": []}, "callbacks is not .* are not needed, .*: leave it out"),
    ({"zzz": 1}, "zzz is not a setting of a run; `vit_jax train --help=all`"),
    ({"epoch": 1}, "epoch is not a setting of a run; did you mean epochs=1?"),
    ({"base_lr": 1e-3}, "base_lr is not .* did you mean lr?"),
    (
      {"data": 3},
      "data is of type int: .* from files. Give a folder, a f",
    ),
    ({"resume": "runs/cc"}, "resume is not needed: .* workdir='runs/cc'; "),
    ({"resume": True}, "resume is not needed: .* workdir='runs/my_photos'"),
    ({"device": "cpu"}, "device is not a .* start Python with JAX_PLATFORMS"),
    ({"pretrained": True}, "pretrained=True: name the weights .*, as in pretr"),
    ({"optimizer": {"lr": 1}}, r"optimizer\.lr is not .* did you mean lr?"),
    (
      {"lr": "fast"},
      "^lr='fast' must be of the type of its def",
    ),
    ({"batch_size": 0}, "batch_size=0 must"),
    ({"lr": 1, "settings": {"optimizer.peak_lr": 2}}, "given twice: drop one"),
    (
      {"config": {"seed": 1}},
      "config is a dict; give a file, a name or",
    ),
  ],
)
def test_a_wrong_argument_is_one_line(photos, started, arguments, message):
  arguments = {"data": photos, **arguments} if arguments else {}
  if arguments.get("config") == "digits":
    del arguments["data"]
  with pytest.raises(ValueError, match=message) as caught:
    vit_jax.train(**arguments)
  assert "\n" not in str(caught.value) and not started


@pytest.mark.parametrize(
  "name, meant",
  [
    ("evaluation", "run.evaluate"),
    ("network", "run.load()"),
    ("prediction", "run.predict"),
    ("accuracy", "run.evaluate(), or run.metrics"),
    ("best", "run.load(best=True)"),
    ("plot_loss", "vit_jax.report(run)"),
    ("fit", "vit_jax.train(folder, workdir=run.workdir)"),
  ],
)
def test_an_attribute_that_a_run_lacks_names_the_near_one(name, meant):
  run = in_python.FinishedRun("runs/x", 3, {})
  with pytest.raises(AttributeError, match=re.escape(f"did you mean {meant}")):
    getattr(run, name)


def test_a_task_and_frozen_layers_are_keywords(photos, started):
  vit_jax.train(photos, task="classification", freeze_backbone=True)
  vit_jax.train(photos, freeze_backbone=False, workdir="runs/all")
  pathlib.Path("ages.csv").write_text(
    "image,age\nmy_photos/red/0.png,2\nmy_photos/red/1.png,3.5\n"
  )
  vit_jax.train("ages.csv", task="regression")
  vit_jax.train(photos, learning_rate=0.5, validation_split=0.3)
  given = started.pop()[0]
  assert (given.optimizer.peak_lr, given.data.eval_fraction) == (0.5, 0.3)
  frozen, whole, ages = (settings for settings, _, _ in started)
  assert frozen.optimizer.freeze_layers == -1
  assert whole.optimizer.freeze_layers == 0
  assert [s.data.task for s in (frozen, ages)] == [
    "classification",
    "regression",
  ]


@pytest.mark.parametrize(
  "names, ours",
  [
    ("num_epochs n_epochs max_epochs", "epochs"),
    ("max_lr learning_rate", "lr"),
    ("bs batchsize", "batch_size"),
    ("img_size input_size", "image_size"),
    ("val_split valid_pct", "validation_split"),
    ("random_state", "seed"),
    ("steps num_steps max_steps", "total_steps"),
  ],
)
def test_a_keyword_is_known_by_its_names_elsewhere(
  photos, started, names, ours
):
  values = {"lr": 0.5, "validation_split": 0.3, "image_size": 64}
  for name in [ours, *names.split()]:
    vit_jax.train(photos, **{name: values.get(ours, 4)})
  assert len({repr(settings) for settings, _, _ in started}) == 1


def test_a_model_by_its_variant_has_its_sizes(photos, started):
  vit_jax.train(photos, model="S/16")
  ((settings, _, _),) = started
  assert settings.model.given()["variant"] == "S/16"
  assert not {"hidden_size", "num_layers"} & {*settings.model.given()}


def test_a_key_is_no_last_part_of_another(photos, started):
  key, other = "data.data_dir", "fewshot.data.data_dir"
  assert {key, other} <= {*all_keys(Settings)}  # One ends with the other.
  vit_jax.train(photos, settings={key: "here"})
  ((settings, _, _),) = started
  assert settings.data.data_dir == "here"
  assert settings.fewshot.data.data_dir != "here"


def test_the_last_part_of_one_key_is_a_keyword(photos, started):
  vit_jax.train(photos, weight_decay=0.3, label_smoothing=0.2, freeze=True)
  ((settings, _, _),) = started
  assert settings.optimizer.weight_decay == 0.3
  assert settings.loss.label_smoothing == 0.2
  assert settings.optimizer.freeze_layers == -1
  for name in ("kind", "name"):  # The ends of several keys, or one word.
    with pytest.raises(ValueError, match=f"{name} is not a setting of a run"):
      vit_jax.train(photos, **{name: "x"})
  with pytest.raises(ValueError, match="weight_decay is given twice"):
    settings = {"optimizer.weight_decay": 0.1}
    vit_jax.train(photos, weight_decay=0.3, settings=settings)


def test_weights_may_stand_after_the_data(photos, started):
  vit_jax.train(photos, "b16_augreg", epochs=2, output_dir="runs/a")
  vit_jax.train(dataset=photos, weights="b16_augreg", epochs=2, out="runs/a")
  vit_jax.train(photos, pretrained="b16_augreg", epochs=2, workdir="runs/a")
  first, *others = map(repr, started)
  assert others == [first] * 2 and "b16_augreg" in first


@pytest.mark.parametrize(
  "given, said",
  [
    (
      [vit_jax.make_vit("Ti/16"), "my_photos"],
      "type Vit: the images come",
    ),
    ([[1, 2], [0, 1]], "data is of type list, .* trains on arrays as they"),
    (
      [np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2)],
      r"ndarray, .*`os\.makedirs\(.*/\{k\}\.png\"\)`, .* folder, \"my_images\"",
    ),
  ],
)
def test_data_stand_in_front(given, said):
  with pytest.raises(ValueError, match=said):
    operator.call(vit_jax.train, *given)


def test_a_run_is_called_and_taken_apart_as_its_model():
  run = in_python.FinishedRun("runs/x", 3, {})
  asked = types.SimpleNamespace(predict=lambda images, top: (images, top))
  run.__dict__["loaded"] = asked
  assert run("a.jpg", top=1) == ("a.jpg", 1)
  run.__dict__["loaded"] = ("model", "params")
  assert [*run] == ["model", "params"]


def test_what_the_images_decide_has_the_type_of_its_key(photos, started):
  """Whole numbers, fractions and switches, as dino:continue sets them."""
  options = {"pretrained": "b16_augreg", "total_steps": 100}
  vit_jax.train(photos, config="dino:continue", **options)
  ((settings, _, _),) = started
  assert (settings.lora.rank, settings.batch_size) == (8, 8)
  assert (settings.ema_decay, settings.data.labels) == (0.94, True)


@pytest.mark.parametrize(
  "name, meant",
  [
    ("unfreeze", "freeze_backbone=False"),
    ("label", 'settings={"data.label_columns": "price"}'),
    ("target", 'settings={"data.label_columns": "price"}'),
    ("label_column", 'settings={"data.label_columns": "price"}'),
    ("validation_data", 'folders "train" and "val" in the data, or'),
    ("augment", 'settings={"train_transform.randaugment_layers": 2}'),
  ],
)
def test_a_keyword_of_other_libraries_names_ours(photos, name, meant):
  message = re.escape(f"{name} is not a setting of a run; did you mean {meant}")
  with pytest.raises(ValueError, match=f"^{message}"):
    vit_jax.train(photos, **{name: True})


def test_a_table_is_written_first():
  table = types.SimpleNamespace(to_csv=None)
  with pytest.raises(
    ValueError, match="data is a table: write it with data.to"
  ):
    vit_jax.train(table)


def test_several_labels_are_a_switch(photos, started):
  pathlib.Path("tags.csv").write_text(
    "image,labels\nmy_photos/red/0.png,a;b\nmy_photos/red/1.png,b\n"
  )
  vit_jax.train("tags.csv", multi_label=True)
  vit_jax.train("tags.csv", task="multilabel")
  assert started[0] == started[1]
  with pytest.raises(ValueError, match="multi_label is not .* multi_label=T"):
    vit_jax.train(photos, multi_label=False)


def test_a_run_from_loaded_weights_says_nothing_of_other_features(
  photos, started, capsys
):
  """What the run reads of the tokens is its own choice, which a line names."""
  loaded = vit_jax.load_pretrained(str(CHECKPOINTS / "encoders" / "hf_dinov3"))
  assert "its features are" in capsys.readouterr().err
  loaded.fit(photos)
  assert started and "its features are" not in capsys.readouterr().err


def test_weights_may_be_loaded_already(photos, started):
  source = str(CHECKPOINTS / "hf_vit")
  loaded = vit_jax.load_pretrained(source)
  vit_jax.train(photos, pretrained=source)
  vit_jax.train(photos, pretrained=loaded)
  loaded.fit(photos)
  vit_jax.load_pretrained(source, num_classes=2).fit(photos)
  first, *others = started
  assert others == [first] * 3 and first[0].pretrained == source
  other_size = vit_jax.load_pretrained(source, image_size=64)
  with pytest.raises(ValueError, match="was loaded with settings that differ"):
    other_size.fit(photos)


def test_a_run_does_not_start_from_another_step_than_was_loaded(
  photos, started, tmp_path
):
  """`pretrained` names a run, whose newest checkpoint is taken."""
  model = Vit(2, 8, 24, 1, 48, 3)
  params = tiny.random_params(model, (16, 16), 0)
  run = tiny.save_run(
    tmp_path / "run", model, params, (16, 16), "ab", steps=(1, 2)
  )
  with pytest.raises(ValueError, match="at step 1, .* that of step 2: write"):
    vit_jax.load_pretrained(str(run), step=1).fit(photos)
  assert not started
  vit_jax.load_pretrained(str(run), step=2).fit(photos)
  assert started


def test_a_configuration_can_come_first(started, tmp_path):
  config = load_config("digits")
  config.optimizer.peak_lr = 0.5
  run = vit_jax.train(config, workdir=tmp_path / "run")
  ((settings, workdir, _),) = started
  assert settings.optimizer.peak_lr == 0.5 and settings.data.name == "digits"
  assert workdir == run.workdir == str(tmp_path / "run")


def test_a_notebook_shows_where_a_run_is_and_what_it_measured():
  run = in_python.FinishedRun("runs/<x>", 3, {"eval/top1": 0.51234, "n": 7})
  text = run._repr_html_()
  assert "runs/&lt;x&gt;" in text and "<x>" not in text
  assert ">0.5123<" in text and ">7<" in text and ">3<" in text


@pytest.mark.slow
def test_a_run_is_trained_loaded_and_asked(photos, capsys):
  keywords = dict(epochs=2, settings={"eval_every_epochs": 1}, **TINY_MODEL)
  run = vit_jax.train(photos, **keywords)
  assert run.metrics["eval/examples"] > 0 and "train/loss" in run.metrics
  assert f"eval/top1={run.metrics['eval/top1']:.4g}" in repr(run)
  loaded = run.load()
  assert loaded.class_names == ("green", "red")
  answers = loaded.predict(photos, top=1)
  assert run.predict(photos, top=1) == answers
  assert len(answers) == 12 and {*answers[0].names} <= {"green", "red"}
  again = vit_jax.train(photos, **keywords)  # The run is complete.
  assert dataclasses.astuple(again) == dataclasses.astuple(run)


@pytest.mark.slow
def test_commands_are_functions_of_a_run(photos, capsys):
  """They measure and write what the commands do, and a notebook shows them."""
  settings = {"eval_every_epochs": 1, "loader.num_workers": 0}
  run = vit_jax.train(photos, epochs=2, settings=settings, **TINY_MODEL)
  found = vit_jax.evaluate(run)
  assert found["eval/top1"] == run.metrics["eval/top1"]
  page = vit_jax.report(run)
  assert pathlib.Path(page) == pathlib.Path(run.workdir) / "report.html"
  assert "<iframe" in page._repr_html_()
  drawn = vit_jax.visualize(run, f"{photos}/red/0.png", out="drawn", layer=1)
  assert repr(drawn) == "drawn/01_0_rollout.png"
  assert drawn._repr_html_().count("<img") == 1
  with pytest.raises(ValueError, match="the model's layers are 1 to 1"):
    vit_jax.visualize(run, photos, layer=2)
  capsys.readouterr()
  rates = vit_jax.find_lr(photos, steps=10, settings=settings, **TINY_MODEL)
  assert "runs/" not in capsys.readouterr().err  # It writes no run.
  assert len(rates.rates) == 10 and pathlib.Path("lr_range.csv").exists()
  assert "suggested learning rate" in rates._repr_html_()
  assert repr(rates).startswith("suggested learning rate: ")
  assert repr(rates).endswith(f", of {len(rates.rates)} rates from 1e-06 to 1")


@pytest.mark.parametrize("main, workers", [("own.py", 0), (None, None)])
def test_a_script_evaluates_without_workers(monkeypatch, capsys, main, workers):
  asked = []
  monkeypatch.setattr(
    "vit_jax.run.saved.evaluate_checkpoint",
    lambda *_, **options: asked.append(options.get("num_workers")) or {},
  )
  monkeypatch.setattr(
    "vit_jax.report.write.write_report",
    lambda *_, **options: asked.append(options.get("num_workers")) or "page",
  )
  there = types.SimpleNamespace(__file__=main, __spec__=None)
  monkeypatch.setitem(sys.modules, "__main__", there)
  vit_jax.evaluate("runs/a")
  vit_jax.report("runs/a", "runs/b")
  vit_jax.evaluate("runs/a", "new", num_workers=2)
  assert asked == [workers, workers, 2]
  assert capsys.readouterr().err.count("in a thread") == (workers == 0)


@pytest.mark.parametrize(
  "call, message",
  [
    (lambda: vit_jax.find_lr(), r"give a folder of .* vit_jax\.find_lr"),
    (lambda: vit_jax.find_lr("my_photo"), "did you mean my_photos"),
    (
      lambda: vit_jax.find_lr("my_photos", learning_rate=1.0),
      "^optimizer.peak_lr has no effect on find_lr, which tries the rates fr",
    ),
    (
      lambda: vit_jax.find_lr("my_photos", epochs=3),
      "^total_epochs has no effect on find_lr, which takes as many steps as",
    ),
    (lambda: vit_jax.report(), r"give a run, as in vit_jax\.report"),
    (lambda: vit_jax.evaluate("my_photos"), "my_photos"),
    (lambda: vit_jax.evaluate({}), "^a run was needed, .* dict: give its fol"),
    (
      lambda: vit_jax.report(
        types.SimpleNamespace(origin=types.SimpleNamespace(source="runs/x"))
      ),
      '^a run was needed, .* SimpleNamespace: .*, as in "runs/x", or',
    ),
    (lambda: vit_jax.report(3), "^a run was needed, .* type int: give its fo"),
  ],
)
def test_functions_of_commands_refuse_in_one_line(photos, call, message):
  with pytest.raises(ValueError, match=message) as caught:
    call()
  assert "\n" not in str(caught.value)


def test_a_run_stands_for_its_folder_where_a_checkpoint_is_read(tmp_path):
  run = in_python.FinishedRun(str(tmp_path / "gone"), 3, {})
  for read_it in (vit_jax.load_pretrained, vit_jax.load_text):
    with pytest.raises(ValueError, match="gone") as caught:
      read_it(run)
    assert "run.predict" not in str(caught.value)
