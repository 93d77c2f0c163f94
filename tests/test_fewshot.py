"""Few-shot evaluation of a checkpoint, and its command."""

import json
import operator
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests import encoders, published, tinted, tiny
from tests.commands import refused, run
from tests.image_files import GOOD
from vit_jax import fewshot
from vit_jax.pretrained.convert import convert
from vit_jax.run.experiments import probe as run_probe
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.settings import ProbeSettings
from vit_jax.runtime.display import untracked
from vit_jax.runtime.settings import replaced
from vit_jax.tasks.probes import few_shot, linear_probe, whole_set


def _probe_settings(tinted_root):
  return replaced(
    ProbeSettings(), {"data.root": tinted_root, "loader.num_workers": 0}
  )


@pytest.fixture(scope="module")
def workdir(tinted_model, tmp_path_factory) -> str:
  """A run with a checkpoint of step 3, and one of step 4 with zero weights."""
  model, params = tinted_model
  folder = tmp_path_factory.mktemp("run")
  zeros = jax.tree.map(jnp.zeros_like, params)
  places = dict(mean=tinted.MEAN, std=tinted.STD)
  for step, saved in ((3, params), (4, zeros)):
    tiny.save_run(folder, model, saved, (8, 8), "abcde", steps=[step], **places)
  return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_a_probe_may_take_the_whole_training_split(
  tinted_root, tinted_model, workdir, probe
):
  model, params = tinted_model
  train, test = (
    tinted.features_by_hand(model, params, source)
    for source in tinted.sources(tinted_root)
  )
  settings = _probe_settings(tinted_root)
  score = probe_checkpoint(workdir, settings, probe=probe, neighbours=3, step=3)
  if probe == "linear":
    fitted = linear_probe.fit(*train, 3, score.l2).predict(test[0])
  else:
    unit = [
      y / np.linalg.norm(y, axis=1, keepdims=True) for y, _ in (test, train)
    ]
    similarity = unit[0] @ unit[1].T
    nearest = np.argsort(-similarity, axis=1)[:, :3]
    weights = np.exp(np.take_along_axis(similarity, nearest, 1) / 0.07)
    votes = weights[..., None] * np.eye(3)[train[1][nearest]]
    fitted = votes.sum(axis=1).argmax(axis=1)
  assert score.top1 == (fitted == test[1]).mean()
  assert (score.examples, score.train_examples) == (11, 30)
  assert score.verdict.aside.endswith(" %, too few to judge by)")
  with pytest.raises(
    ValueError, match="probe='svm' is unknown; choose one of few_"
  ):
    probe_checkpoint(workdir, settings, probe="svm")


@pytest.mark.slow
def test_a_checkpoint_gets_the_preprocessing_of_its_run(
  tinted_root, tinted_model, workdir
):
  model, params = tinted_model
  settings = _probe_settings(tinted_root)
  expected = tinted.few_shot(tinted_root, model).measure(params)
  found = probe_checkpoint(workdir, settings, shots=3, seeds=2, step=3)
  assert found == expected
  newest = probe_checkpoint(workdir, settings, shots=3, seeds=2)
  assert {draw.top1 for draw in newest.draws} == {4 / 11}  # All are class 0.
  shown: list[tuple[str, str]] = []
  display = types.SimpleNamespace(header=shown.extend, track=untracked)
  options: Any = dict(step=3, image_size=(16, 16), display=display)
  larger = probe_checkpoint(workdir, settings, shots=3, seeds=1, **options)
  assert larger.examples == 11 and larger.top1_std is None
  assert ("model", f"{workdir} at 16 x 16") in shown
  fitted = "a linear classifier, fitted to 3 training images of each class: "
  assert ("probe", f"{fitted}9 of the 30 are used in all") in shown


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", ["hf_dinov2_giant", "hf_dinov3", "hf_siglip", "hf_deit"]
)
def test_an_encoder_is_as_good_in_another_librarys_form(
  tinted_root, tmp_path, name
):
  options = dict(layer_norm_epsilon=1e-6) if name == "hf_deit" else {}
  convert(encoders.path(name), str(tmp_path / "out"), "timm", **options)
  here, there = (
    probe_checkpoint(
      source,
      _probe_settings(tinted_root),
      shots=6,
      seeds=2,
      image_size=(32, 32),
    )
    for source in (encoders.path(name), str(tmp_path / "out"))
  )
  assert here == there and here.examples == 11


@pytest.mark.slow
def test_the_command_prints_json(tinted_root, workdir):
  done = run(
    "vit_jax.fewshot",
    workdir,
    tinted_root,
    "--shots=3",
    "--step=3",
    "--json",
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  found = json.loads(done.stdout)
  assert found["shots"] == 3 and found["examples"] == 11
  assert [draw["seed"] for draw in found["draws"]] == [0, 1, 2]
  top1 = [draw["top1"] for draw in found["draws"]]
  assert found["top1"] == pytest.approx(np.mean(top1))
  assert found["top1_std"] == pytest.approx(np.std(top1, ddof=1))


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["there", "--config.batch_size=0"], "batch_size=0 must be 1 or more"),
    pytest.param([], "CHECKPOINT is missing", marks=pytest.mark.slow),
    pytest.param(
      ["there", "--config.dat.root=x"],
      "did you mean --config.data.root?",
      marks=pytest.mark.slow,
    ),
    (
      ["there", ".", "--config.data.root=."],
      ". stands for --config.data.root, which is given as well",
    ),
    pytest.param(
      ["there", "no_folder"],
      "'no_folder' is neither a folder here nor",
      marks=pytest.mark.slow,
    ),
    (["there", "--config.total_steps=9"], "config.total_steps is a key of a"),
    (["there", "--config.data.tokens=9"], "config.data.tokens=9 is for the ba"),
    (
      [
        *("there", ".", "--probe=segment"),
        "--config.eval_transform.resize_ratio=2",
      ],
      "eval_transform has no effect on --probe=segment",
    ),
    pytest.param(
      ["there", "--image_size=1,2,3"],
      "be a height and a width",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_bad_input_is_one_line(arguments, message):
  assert message in refused("vit_jax.fewshot", *arguments)


def test_images_without_classes_go_with_the_checkpoint_that_was_given(tmp_path):
  (tmp_path / "0.png").touch()
  settings = replaced(ProbeSettings(), {"data.root": str(tmp_path)})
  with pytest.raises(
    ValueError, match="vit_jax similar runs/mine .*--pretrained runs/mine"
  ):
    probe_checkpoint("runs/mine", settings)


@pytest.mark.parametrize(
  "count, trust",
  [
    # Wilson's intervals of 6 of 12 and of 50 of 100.
    (12, "(95 % interval 25 to 75 %, too few to judge by)"),
    (100, "(95 % interval 40 to 60 %)"),
  ],
)
@pytest.mark.parametrize("probe", ["few_shot", "knn", "linear"])
def test_a_result_says_how_far_it_can_be_trusted(probe, count, trust):
  if probe == "few_shot":
    draws = few_shot.Draw(0, 0.1, 0.4), few_shot.Draw(1, 0.1, 0.6)
    outcome = few_shot.Outcome(draws, count, 0)
    *_, line = fewshot.few_shot_lines(outcome, shots=5)
    assert "top-1 50.00% +- 14.14%  (" in line
  else:
    l2 = 0.1 if probe == "linear" else None
    score = whole_set.Score(0.5, count, 30, 0, l2)
    line = fewshot.score_line(probe, score, neighbours=20)
  assert line.endswith(f") {trust}")
  assert f"({count} examples" in line


def test_the_command_names_the_probes_that_there_are():
  assert fewshot.PROBES == (*run_probe.PROBES, "segment")


def test_a_table_of_several_labels_is_not_to_be_read_as_such(tmp_path):
  """A probe refuses several labels, so a message must not advise them."""
  rows = ["file,a,b", *(f"{k}.png,1,{k % 2}" for k in range(6))]
  for k in range(6):
    (tmp_path / f"{k}.png").write_bytes(GOOD)
  (tmp_path / "l.csv").write_text("\n".join(rows))
  settings = replaced(ProbeSettings(), {"data.root": str(tmp_path)})
  settings = replaced(settings, {"data.labels_file": str(tmp_path / "l.csv")})
  with pytest.raises(
    ValueError, match="each row: a probe takes one cl"
  ) as error:
    probe_checkpoint("runs/mine", settings)
  assert "multilabel" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["few_shot", "knn"])
def test_a_function_scores_a_loaded_model(tinted_root, workdir, probe):
  options: Any = {"probe": probe}
  options |= (
    {"shots": 2, "seeds": 1} if probe == "few_shot" else {"neighbours": 3}
  )
  settings = _probe_settings(tinted_root)
  expected = probe_checkpoint(workdir, settings, step=3, **options)
  loaded = vit_jax.load_pretrained(workdir, step=3)
  assert vit_jax.fewshot(loaded, tinted_root, **options).top1 == expected.top1
  assert loaded.fewshot(tinted_root, **options) == expected
  found = vit_jax.fewshot(workdir, tinted_root, step=3, **options)
  assert found == expected


def test_a_function_scores_a_model_on_data():
  with pytest.raises(
    TypeError, match=r"as in vit_jax\.fewshot\(loaded, folder"
  ):
    operator.call(vit_jax.fewshot, "runs/x")
  with pytest.raises(
    ValueError, match="a run was needed, and this is of type int"
  ):
    operator.call(vit_jax.fewshot, 3, "digits")


@pytest.mark.parametrize("name", ["k", "n_neighbors", "neighbours"])
def test_nearest_neighbours_have_the_names_of_elsewhere(name, monkeypatch):
  monkeypatch.setattr(
    run_probe, "probe_checkpoint", lambda *_, **options: options
  )
  options: Any = {name: 3}
  found = vit_jax.fewshot("runs/x", "digits", probe="knn", **options)
  assert found == {"probe": "knn", "neighbours": 3}


@pytest.mark.parametrize(
  "probe, option",
  [
    ("few_shot", "neighbours"),
    ("knn", "shots"),
    ("linear", "seeds"),
    ("segment", "pre_logits"),
  ],
)
def test_an_option_of_another_probe_is_refused(probe, option):
  """In a shell as in Python, before anything is opened."""
  said = f"{option} would have no effect on the probe {probe}, whose options"
  options: Any = {option: 3}
  with pytest.raises(ValueError, match=f"^{said} are "):
    vit_jax.fewshot("runs/x", "digits", probe=probe, **options)
  given = f"--{option}=3" if option != "pre_logits" else "--nopre_logits"
  done = run("vit_jax.fewshot", "runs/x", "digits", f"--probe={probe}", given)
  assert done.returncode == 2 and said in done.stderr


def test_an_unknown_probe_gets_the_names_of_all():
  with pytest.raises(ValueError, match="few_shot, knn, linear, segment"):
    vit_jax.fewshot("runs/x", "digits", probe="svm")


def test_the_interpolation_of_a_call_is_taken(monkeypatch):
  def opened(*_, **options):
    raise AssertionError(options["interpolation"])

  monkeypatch.setattr(run_probe, "open_checkpoint", opened)
  for options, taken in (({"interpolation": "bicubic"}, "bicubic"), ({}, None)):
    with pytest.raises(AssertionError, match=f"^{taken}$"):
      vit_jax.fewshot("runs/x", "digits", shots=1, **options)


@pytest.mark.parametrize("crop", ["resize", "center"])
def test_a_ratio_without_a_crop_is_said_to_have_no_effect(crop):
  loaded = vit_jax.load_pretrained(published.path("hf_vit"))
  changes = {"eval_transform.resize_ratio": 1.5, "eval_transform.crop": crop}
  settings = replaced(ProbeSettings(), changes)
  opened = run_probe._Opened(loaded, settings, {})
  line = "eval_transform.resize_ratio=1.5 has no effect without crop=center or"
  assert [note.startswith(line) for note in opened.notes] == (
    [True] if crop == "resize" else []
  )


def test_a_loaded_model_takes_no_option_that_is_not_of_the_probe():
  """Those of a name or a path are keywords of `load_pretrained`."""
  loaded = vit_jax.load_pretrained(published.path("hf_vit"))
  for name in ("image_size", "nonsense"):
    options: Any = {name: 3}
    with pytest.raises(
      ValueError, match=f"^{name} is no option of a probe, .* loaded already"
    ):
      vit_jax.fewshot(loaded, "digits", probe="knn", **options)
  with pytest.raises(TypeError, match=r"in front: vit_jax\.fewshot\(loaded, "):
    operator.call(vit_jax.fewshot, "digits", loaded)
