"""Runs on several labels and on numbers: trained, evaluated and used."""

import csv
import json

import jax
import numpy as np
import pytest
from PIL import Image

from configs import image_folder
from tests import runs
from tests.report.example import Page
from vit_jax import load_pretrained, predict_images
from vit_jax.inspection.draw import visualize_files
from vit_jax.predict import predict_files
from vit_jax.report.measure import read_run
from vit_jax.report.page import page
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.workdir.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Images that are red, green, both or neither, more or less bright."""
  root = tmp_path_factory.mktemp("several")
  rng = np.random.default_rng(0)
  rows = [("file", "label", "bright", "split")]
  for k in range(96):
    red, green = k % 2, k // 2 % 2
    bright = rng.uniform(40, 200)
    pixels = rng.normal(bright, 10, (24, 20, 3))
    pixels[..., 0] += 50 * red
    pixels[..., 1] += 50 * green
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.save(root / f"{k:02}.png")
    names = [n for n, given in (("red", red), ("green", green)) if given]
    split = "train" if k < 64 else "val" if k < 80 else "test"
    rows.append((f"{k:02}.png", ";".join(names), 1000 + bright, split))
  with (root / "labels.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)
  return root


def config(folder, task, **changes):
  config = image_folder.get_config()
  config.update(batch_size=16, image_size=(16, 16), total_epochs=0.0)
  config.update(total_steps=60, eval_every_epochs=0.0, eval_every_steps=30)
  config.update(save_every_epochs=0.0, save_every_steps=30, eval_pictures=1)
  config.update(eval_per_class=True, log_every_epochs=0.0, log_every_steps=6)
  config.data.update(labels_file=str(folder / "labels.csv"), task=task)
  config.data.label_columns = {"regression": "bright"}.get(task, "label")
  config.train_transform.update(crop="resize", randaugment_layers=0)
  config.loss.update(label_smoothing=0.0)
  config.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  config.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=4
  )
  config.loader.num_workers = 0
  config.update(changes)
  return config


@pytest.mark.slow
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_run_is_evaluated_predicts_and_resumes(
  folder, tmp_path, task, capsys, monkeypatch
):
  c = config(folder, task, mesh={"data": 2, "fsdp": 2, "tensor": 2})
  c.accumulation_steps = 2
  if task == "multilabel":
    c.loss.class_weights = "balanced"
  workdir = tmp_path / "whole"
  state, evaluated = train(read(c), str(workdir))
  names = ("red", "green") if task == "multilabel" else ("bright",)
  score = "eval/map" if task == "multilabel" else "eval/r2"
  assert evaluated[score] > 0.5  # Each is 1 at best; chance is 0.5 or 0.
  rows = runs.rows(workdir)
  assert any("test/step" in row and score[5:] in str(row) for row in rows)
  assert {tag for _, tag, _ in runs.events(workdir)} >= {
    "eval/example_1",
    score,
  }
  shown = capsys.readouterr().out
  assert ("mAP " if task == "multilabel" else "MAE ") in shown

  # The same metrics, and the rows behind them.
  out = tmp_path / "answers.csv"
  found = evaluate_checkpoint(str(workdir), per_class=True, out=str(out))
  each = [key for key, value in found.items() if isinstance(value, dict)]
  assert each and all(len(found[key]) == len(names) for key in each)
  numbers = found.keys() - {*each}
  assert {k: found[k] for k in numbers} == pytest.approx(
    {k: evaluated[k] for k in numbers}
  )
  with out.open() as file:
    answers = list(csv.DictReader(file))
  losses = [float(row["loss"]) for row in answers]
  assert len(answers) == 16 and losses == sorted(losses, reverse=True)
  assert np.mean(losses) == pytest.approx(evaluated["eval/loss"], rel=1e-4)
  capsys.readouterr()

  # `predict` has the unit of the targets, or the probabilities and threshold.
  paths = [row["file"] for row in answers]
  assert predict_files(str(workdir), paths, as_json=True) == 0
  told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  for row, line in zip(answers, told, strict=True):
    if task == "regression":
      value = float(row["bright_predicted"])
      assert line["values"]["bright"] == pytest.approx(value, rel=1e-4)
      continue
    given = {p["class"] for p in line["predictions"] if p["given"]}
    assert given == {*filter(None, row["answers"].split(";"))}
    for p in line["predictions"]:
      assert p["probability"] == pytest.approx(float(row[p["class"]]), abs=1e-4)
  if task == "regression":
    error = [float(r["bright_predicted"]) - float(r["bright"]) for r in answers]
    assert np.abs(error).mean() == pytest.approx(
      evaluated["eval/mae"], rel=1e-4
    )
    numbers = [float(row["bright"]) for row in answers]
    r2 = 1 - np.square(error).sum() / (np.var(numbers) * len(numbers))
    assert r2 == pytest.approx(evaluated["eval/r2"], rel=1e-4)
  loaded = load_pretrained(str(workdir))
  assert loaded.class_names == tuple(sorted(names))
  (one,) = predict_images(
    *loaded, paths[:1], preprocessing=loaded.preprocessing, loss=loaded.loss
  )
  assert len(one.values or one.index) == len(names)

  facts = read_run(str(workdir))
  told = Page(page([facts]))
  name = "mAP" if task == "multilabel" else "MAE"
  assert name in told.texts("dt") and names[-1] in told.texts("th")
  alts = [image["alt"] for image in told.images]
  drawn = "Precision by" if task == "multilabel" else "Predictions of bright"
  assert any(alt.startswith(drawn) for alt in alts)
  assert not any("Confusion" in alt for alt in alts)
  drawn = tmp_path / "drawn"
  assert visualize_files(str(workdir), paths[:1], out=str(drawn)) == 0
  assert any(path.name.endswith("_sheet.png") for path in drawn.iterdir())

  # Stopped in the middle and resumed, it is the same run.
  save = Checkpoints.save

  def save_then_die(self, state, step, *arguments):
    save(self, state, step, *arguments)
    if step == 30:
      raise KeyboardInterrupt

  stopped = str(tmp_path / "stopped")
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(Checkpoints, "save", save_then_die)
    train(read(c), stopped)
  resumed, again = train(read(c), stopped)
  assert runs.identical(jax.device_get(state), jax.device_get(resumed))
  assert again == evaluated
