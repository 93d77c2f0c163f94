"""Runs on labels, numbers and masked patches: evaluated, used and resumed."""

import csv
import json
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from configs import dense_regression, image_folder, pairs, segmentation
from tests import captioned, runs
from tests.old_runs import CHECKPOINTS
from tests.report.example import Page
from tests.saved_data import write_depth
from tests.scenes import write_all
from vit_jax import load_pretrained, predict_images
from vit_jax.config import base_config
from vit_jax.inspection.draw import visualize_files
from vit_jax.models import Vit
from vit_jax.predict import mark_files, predict_files
from vit_jax.pretrained.load import load_text
from vit_jax.report.measure import read_run
from vit_jax.report.page import page
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.experiments.replay import verify
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.runtime.settings import replaced

MESH = dict(data=2, fsdp=2, tensor=2)


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
    pixels += np.array([50 * red, 50 * green, 0])
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.save(root / f"{k:02}.png")
    names = "red" * red + ";" * (red & green) + "green" * green
    split = "train" if k < 64 else "val" if k < 80 else "test"
    rows.append((f"{k:02}.png", names, 1000 + bright, split))
  with (root / "labels.csv").open("w", newline="") as file:
    csv.writer(file).writerows(rows)
  return root


def labelled(folder, task):
  config = image_folder.get_config()
  config.update(batch_size=16, image_size=(16, 16), total_epochs=0.0)
  config.update(total_steps=60, eval_every_epochs=0.0, eval_every_steps=30)
  config.update(save_every_epochs=0.0, save_every_steps=30, eval_pictures=1)
  config.update(log_every_epochs=0.0, log_every_steps=6, accumulation_steps=2)
  config.data.update(labels_file=str(folder / "labels.csv"), task=task)
  config.data.label_columns = {"regression": "bright"}.get(task, "label")
  config.train_transform.update(crop="resize", randaugment_layers=0)
  config.loss.update(label_smoothing=0.0)
  if task == "multilabel":
    config.loss.class_weights = "balanced"
  config.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  sizes = dict(hidden_size=24, num_layers=1, mlp_size=32, num_heads=4)
  config.model.update(variant="Ti/8", **sizes)
  config.loader.num_workers = 0
  config.mesh.update(MESH)
  return config


def assert_resumes(config, tmp_path, step, state, evaluated):
  """Stopped in the middle and resumed, it is the same run."""
  runs.stop(config, tmp_path / "stopped", step)
  resumed, again = train(read(config), str(tmp_path / "stopped"))
  assert runs.identical(jax.device_get(state), jax.device_get(resumed))
  assert again == evaluated
  assert verify(str(tmp_path / "stopped"))


def reported(workdir, name, picture):
  """The report of a run, which has the score's name and one of its pictures."""
  told = Page(page([read_run(workdir)]))
  alts = [image["alt"] for image in told.images]
  assert name in told.texts("dt") and not any("Confusion" in a for a in alts)
  assert any(alt.startswith(picture) for alt in alts)
  return told, alts


@pytest.mark.slow
@pytest.mark.parametrize(
  "task, names, score, name, drawn",
  [
    ("multilabel", ("red", "green"), "map", "mAP", "Precision by"),
    ("regression", ("bright",), "r2", "MAE", "Predictions of bright"),
  ],
)
def test_a_run_is_evaluated_predicts_and_resumes(
  folder, tmp_path, task, names, score, name, drawn, capsys
):
  config, workdir = labelled(folder, task), str(tmp_path / "whole")
  state, evaluated = train(read(config), workdir)
  assert evaluated[f"eval/{score}"] > 0.5  # At best 1; chance is 0.5 or 0.
  rows = runs.rows(tmp_path / "whole")
  assert any("test/step" in row and f"test/{score}" in row for row in rows)
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert {"eval/example_1", f"eval/{score}"} <= tags
  assert f"{name} " in capsys.readouterr().out

  # The same metrics, and the rows behind them.
  out = tmp_path / "answers.csv"
  found = evaluate_checkpoint(workdir, per_class=True, out=str(out))
  each = [key for key, value in found.items() if isinstance(value, dict)]
  assert each and all(len(found.pop(key)) == len(names) for key in each)
  assert found == pytest.approx({k: evaluated[k] for k in found})
  with out.open() as file:
    answers = list(csv.DictReader(file))
  losses = [float(row["loss"]) for row in answers]
  assert len(answers) == 16 and losses == sorted(losses, reverse=True)
  assert np.mean(losses) == pytest.approx(evaluated["eval/loss"], rel=1e-4)
  capsys.readouterr()

  # `predict` has the unit of the targets, or the probabilities and threshold.
  paths = [row["file"] for row in answers]
  assert predict_files(workdir, paths, as_json=True) == 0
  told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  for row, line in zip(answers, told, strict=True):
    if task == "regression":
      value = float(row["bright_predicted"])
      assert line["values"]["bright"] == pytest.approx(value, rel=1e-4)
      continue
    given = {p["class"] for p in line["predictions"] if p["given"]}
    assert given == {*filter(None, row["answers"].split(";"))}
  if task == "regression":
    error = [float(r["bright_predicted"]) - float(r["bright"]) for r in answers]
    mae = pytest.approx(evaluated["eval/mae"], rel=1e-4)
    assert np.abs(error).mean() == mae
    numbers = [float(row["bright"]) for row in answers]
    r2 = 1 - np.square(error).sum() / (np.var(numbers) * len(numbers))
    assert r2 == pytest.approx(evaluated["eval/r2"], rel=1e-4)
  loaded = load_pretrained(workdir)
  assert loaded.class_names == tuple(sorted(names))
  used = dict(preprocessing=loaded.preprocessing, loss=loaded.loss)
  (one,) = predict_images(*loaded, paths[:1], **used)
  assert len(one.values or one.index) == len(names)
  assert names[-1] in reported(workdir, name, drawn)[0].texts("th")
  pictures = tmp_path / "drawn"
  assert visualize_files(workdir, paths[:1], out=str(pictures)) == 0
  assert any(path.name.endswith("_sheet.png") for path in pictures.iterdir())
  assert_resumes(config, tmp_path, 30, state, evaluated)


@pytest.mark.slow
def test_a_run_on_masks_marks_resumes_and_trains_a_head(tmp_path, capsys):
  """Whole; then from its weights the head alone, and LoRA with it."""
  root = write_all(tmp_path / "scenes", train=24, val=8, test=4)
  (root / "classes.txt").write_text("ground\nred\nblue\n")
  config = segmentation.get_config("whole")
  config.update(batch_size=8, image_size=(24, 32), total_epochs=0.0)
  config.update(total_steps=60, eval_every_epochs=0.0, eval_every_steps=30)
  config.update(save_every_epochs=0.0, save_every_steps=30, eval_pictures=2)
  config.update(log_every_epochs=0.0, log_every_steps=6, accumulation_steps=2)
  config.update(ema_decay=0.9, digest_every=10)
  config.data.root = str(root)
  config.segmentation.layers = (1, 2)
  config.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  sizes = dict(hidden_size=32, num_layers=2, mlp_size=32, num_heads=4)
  config.model.update(variant="Ti/4", dropout_rate=0.1, **sizes)
  config.loader.num_workers = 0
  config.mesh.update(MESH)
  workdir = str(tmp_path / "whole")
  state, evaluated = train(read(config), workdir)
  assert evaluated["eval/mean_iou"] > 0.7  # Chance is about 0.3.
  rows = runs.rows(tmp_path / "whole")
  assert any("test/step" in row and "test/mean_iou" in row for row in rows)
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert {"eval/segmentation_2", "eval/mean_iou"} <= tags
  assert "mean IoU " in capsys.readouterr().out
  out = tmp_path / "answers.csv"
  found = evaluate_checkpoint(workdir, per_class=True, out=str(out))
  each = found.pop("eval/iou_by_class")
  assert [*each] == ["ground", "red", "blue"]
  assert np.mean([*each.values()]) == pytest.approx(found["eval/mean_iou"])
  assert found == pytest.approx({k: evaluated[k] for k in found})
  assert len(out.read_text().splitlines()) == 1 + 8
  told, alts = reported(workdir, "mean IoU", "Mean IoU")
  assert "blue" in told.texts("td") + told.texts("th")
  assert sum(alt.startswith("An image, its mask") for alt in alts) == 8
  assert_resumes(config, tmp_path, 30, state, evaluated)
  capsys.readouterr()

  unnamed = write_all(tmp_path / "unnamed", train=2, val=1)
  with pytest.raises(ValueError, match="alone has blue, ground.*0, 1, 2"):
    evaluate_checkpoint(workdir, folder=str(unnamed))
  shutil.copy(root / "classes.txt", unnamed)
  assert "eval/mean_iou" in evaluate_checkpoint(workdir, folder=str(unnamed))

  # Masks at the images' own size, whole and by windows.
  images = str(root / "images" / "val")
  capsys.readouterr()
  marked = str(tmp_path / "marked")
  assert mark_files(workdir, f"{images}/00.png", marked) == 0
  assert "Wrote 1 mask and overlay to" in capsys.readouterr().out
  for side in (None, 48):
    place = tmp_path / f"marked_{side}"
    assert mark_files(workdir, images, str(place), short_side=side) == 0
    assert "Wrote 8 masks and overlays to" in capsys.readouterr().out
    right = []
    for number in range(8):
      name = f"{number:02}.png"
      with Image.open(place / "masks" / name) as picture:
        assert picture.mode == "P"
        mask = np.asarray(picture)
      with Image.open(root / "masks" / "val" / name) as picture:
        true = np.asarray(picture)
      assert mask.shape == true.shape == (48, 64)
      right.append((mask == true)[true != 255].mean())
      with Image.open(place / "overlays" / name) as picture:
        assert picture.size == (64, 48)
    if side is None:
      share = pytest.approx(evaluated["eval/pixels_right"], abs=0.05)
      assert np.mean(right) == share
  with pytest.raises(
    ValueError, match="give --masks=FOLDER to write the masks of"
  ):
    predict_files(workdir, images)

  model, params = load_pretrained(workdir)
  assert type(model) is Vit and "head" not in params
  for kind in ("head", "lora"):
    tuned = segmentation.get_config(kind)
    for key in ("batch_size", "total_epochs", "data", "loader", "image_size"):
      tuned[key] = config[key]
    tuned.update(total_steps=40, pretrained=workdir, eval_every_steps=40)
    tuned.update(eval_every_epochs=0.0, digest_every=10)
    tuned.segmentation.head_size = 16
    tuned.optimizer.update(warmup_epochs=0.0, peak_lr=1e-2)
    again = tmp_path / kind
    state, evaluated = train(read(tuned), str(again))
    assert evaluated["eval/mean_iou"] > 0.5
    if kind == "head":
      kept = jax.device_get({k: state.params[k] for k in params})
      assert runs.identical(kept, jax.device_get(params))
    assert verify(str(again))
    assert mark_files(str(again), images, str(again / "marked")) == 0


@pytest.mark.slow
def test_a_run_on_numbers_of_pixels_answers_and_resumes(tmp_path, capsys):
  write_depth(tmp_path)
  config = dense_regression.get_config("whole")
  config.update(batch_size=8, image_size=(12, 20), total_epochs=0.0)
  config.update(total_steps=60, eval_every_epochs=0.0, eval_every_steps=30)
  config.update(save_every_epochs=0.0, save_every_steps=30, eval_pictures=2)
  config.update(log_every_epochs=0.0, log_every_steps=6, accumulation_steps=2)
  config.update(ema_decay=0.9, digest_every=10)
  config.data.update(root=str(tmp_path / "depths"), target_scale=0.001)
  config.dense_regression.update(unit="m", layers=(1, 2), head_size=16)
  config.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  sizes = dict(hidden_size=32, num_layers=2, mlp_size=32, num_heads=4)
  config.model.update(variant="Ti/4", dropout_rate=0.1, **sizes)
  config.loader.num_workers = 0
  config.mesh.update(MESH)
  workdir = str(tmp_path / "whole")
  state, evaluated = train(read(config), workdir)
  assert evaluated["eval/r2"] > 0.6
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert {"eval/dense_regression_2", "eval/delta1"} <= tags
  assert "0 is taken for unknown depth" in capsys.readouterr().out
  out = tmp_path / "answers.csv"
  found = evaluate_checkpoint(workdir, per_class=True, out=str(out))
  assert found == pytest.approx({k: evaluated[k] for k in found})
  assert len(out.read_text().splitlines()) == 1 + 16
  told, alts = reported(workdir, "R2", "Mean absolute error")
  assert any(cell.endswith(" m") for cell in told.texts("td"))
  assert sum(alt.startswith("An image, its target") for alt in alts) == 12
  assert_resumes(config, tmp_path, 30, state, evaluated)
  images = sorted((tmp_path / "depths" / "images" / "val").iterdir())
  marked = tmp_path / "marked"
  assert mark_files(workdir, [*map(str, images)], str(marked)) == 0
  errors = []
  for image in images:
    with Image.open(marked / "numbers" / image.name) as answer:
      assert answer.mode == "I;16" and answer.size == (20, 12)
      numbers = np.asarray(answer).astype(float)
    target = np.asarray(Image.open(tmp_path / "depths/depth/val" / image.name))
    errors.append(np.abs(numbers - target)[target > 0].sum() / 1000)
  pixels = 16 * (12 * 20 - 3)
  assert sum(errors) / pixels == pytest.approx(evaluated["eval/mae"], abs=2e-3)
  pictures = tmp_path / "drawn"
  assert visualize_files(workdir, str(images[0]), out=str(pictures)) == 0


def tiny_pairs(root):
  """A run on the pairs, which measures zero-shot accuracy on `labelled`."""
  config = pairs.get_config()
  config.update(batch_size=16, image_size=(16, 16), total_epochs=0.0)
  config.update(total_steps=8, eval_every_epochs=0.0, eval_every_steps=4)
  config.update(save_every_epochs=0.0, save_every_steps=4, ema_decay=0.9)
  config.update(log_every_epochs=0.0, log_every_steps=2, digest_every=2)
  config.data.update(captioned.settings(root, "csv"))
  config.optimizer.update(warmup_epochs=0.0, peak_lr=3e-3)
  sizes = dict(hidden_size=32, num_layers=1, mlp_size=32, num_heads=4)
  config.model.update(variant="Ti/8", dropout_rate=0.1, **sizes)
  config.pairs.update(text_size=32, text_layers=1, text_length=12)
  config.pairs.update(vocabulary=300, zero_shot=str(root / "labelled"))
  config.pairs.template = "a {} picture"
  config.loader.num_workers = 0
  config.mesh.update(MESH)
  return config


@pytest.mark.slow
def test_a_run_on_pairs_measures_what_numpy_does_and_resumes(tmp_path):
  made = captioned.pairs()
  captioned.write_csv(tmp_path / "csv", made)
  for pair in made:
    path = tmp_path / "labelled" / pair.split / pair.colour / pair.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pair.image)
  config, workdir = tiny_pairs(tmp_path), str(tmp_path / "whole")
  state, evaluated = train(read(config), workdir)
  found = evaluate_checkpoint(workdir)
  assert found == pytest.approx({k: evaluated[k] for k in found}, rel=1e-5)

  # Both towers by themselves, and the ranks by a loop over all.
  held_out = [pair for pair in made if pair.split == "val"]
  files = [str(tmp_path / "csv" / pair.name) for pair in held_out]
  text = load_text(workdir)
  texts = sorted({caption for pair in held_out for caption in pair.captions})
  u, v = load_pretrained(workdir).features(files), text.embed(texts)
  u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
  own = np.array([[t in pair.captions for t in texts] for pair in held_out])
  cosines = u @ v.T

  def ranks(cosines, own):
    for row, right in zip(cosines, own, strict=True):
      yield 1 + ((row >= row[right].max()) & ~right).sum()

  by_image = np.array([*ranks(cosines, own)])
  by_text = np.array([*ranks(cosines.T, own.T)])
  for way, of in (("text", by_image), ("image", by_text)):
    for k in (1, 5, 10):
      assert found[f"eval/{way}_recall{k}"] == (of <= k).mean()
    assert found[f"eval/{way}_rank"] == np.median(of)
  names = sorted(captioned.COLOURS)
  classes = text.embed([f"a {name} picture" for name in names])
  classes /= np.linalg.norm(classes, axis=1, keepdims=True)
  answers = [names[k] for k in (u @ classes.T).argmax(axis=1)]
  right = np.mean(
    [a == p.colour for a, p in zip(answers, held_out, strict=True)]
  )
  assert found["eval/zero_shot"] == right

  told, _ = reported(workdir, "recall@1", "Photograph: ")
  cells = told.texts("td")
  for of in (by_image, by_text):
    recalls = [f"{(of <= k).mean():.1%}" for k in (1, 5, 10)]
    row = [*recalls, f"{np.median(of):g}"]
    assert row in [cells[k : k + 4] for k in range(len(cells))]
  assert_resumes(config, tmp_path, 4, state, evaluated)

  # The image tower alone is probed, and a classifier begins with it.
  where = {"data.name": None, "data.root": str(tmp_path / "labelled")}
  probe = replaced(ProbeSettings(), where)
  near = probe_checkpoint(workdir, probe, probe="knn", neighbours=3)
  assert near.top1 > 0.5  # Chance is a third, and colours are easy.
  model, params = load_pretrained(workdir)
  assert type(model) is Vit and not {"text", "log_scale"} & {*params}


PROTOTYPES = {
  "prototypes": 64,
  "head_size": 32,
  "bottleneck": 16,
  "small_crops": 2,
  "small_size": 8,
}
DECODER = {"decoder_size": 32, "decoder_layers": 2, "decoder_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
  "section, settings, score, said, name, chart",
  [
    (
      "masked",
      {"rate": 0.5},
      "colours_right",
      "the commonest alone",
      "colours right",
      "Colours of masked patches",
    ),
    (
      "autoencoder",
      {"rate": 0.75, **DECODER},
      "explained",
      "variance explained",
      "variance explained",
      "Variance of hidden patches explained",
    ),
    (
      "student",
      {"learns": "both"},
      "cosine",
      "its 2 x 2 patches are resized to the student's 4 x 4",
      "cosine to the teacher",
      "Cosine between the student's and the teacher's outputs",
    ),
    (
      "self_distillation",
      PROTOTYPES,
      "rank",
      "rank of the features",
      "rank of the features",
      "Rank of the features",
    ),
    (
      "lejepa",
      {"weight": 0.05, "projector_size": 16, "small_size": 8},
      "rank",
      "rank of the features",
      "rank of the features",
      "Rank of the features",
    ),
  ],
)
def test_a_run_without_labels_resumes_is_probed_and_fine_tuned(
  data_dir,
  tmp_path,
  capsys,
  section,
  settings,
  score,
  said,
  name,
  chart,
):
  """Accumulation, averaging, dropout and sharded parameters are on."""
  config = runs.config(data_dir, image_size=(16, 16), **{section: settings})
  config.loss.update(label_smoothing=0.0, mixup_alpha=0.0)
  config.model.pooling = "token"
  config.fewshot.update(shots=2, seeds=1)
  config.fewshot.neighbours = 3
  config.mesh.update(MESH)
  drawn = section not in ("student", "lejepa")
  config.eval_pictures = int(drawn)
  if section == "student":
    config.distill.teacher = str(CHECKPOINTS / "workdirs" / "plain")
  panels = "Three panels"
  if section in ("self_distillation", "lejepa"):  # It takes the whole batch.
    config.accumulation_steps = 1
  if section == "self_distillation":
    panels = "Two panels"
  workdir = str(tmp_path / "whole")
  whole, evaluated = train(read(config), workdir)
  assert said in capsys.readouterr().out
  tags = {tag for _, tag, _ in runs.events(tmp_path / "whole")}
  assert f"eval/{score}" in tags
  assert (f"eval/{section}_1" in tags) == drawn
  assert f"eval/{score}_not_averaged" in evaluated
  assert_resumes(config, tmp_path, 8, whole, evaluated)
  assert evaluate_checkpoint(workdir).items() <= evaluated.items()
  with pytest.raises(ValueError, match="no answer for an image by itself"):
    evaluate_checkpoint(workdir, per_class=True)
  _, alts = reported(workdir, name, chart)
  assert sum(alt.startswith(panels) for alt in alts) == 6 * drawn

  where = {"data.name": "digits", "data.data_dir": str(data_dir)}
  probe = replaced(ProbeSettings(), where)
  outcome = probe_checkpoint(workdir, probe, shots=2, seeds=1)
  assert outcome.top1 == pytest.approx(evaluated["fewshot/top1"], abs=1e-6)
  assert evaluated["fewshot/top1_by_seed"] == {"0": pytest.approx(outcome.top1)}
  near = probe_checkpoint(workdir, probe, probe="knn", neighbours=3)
  assert near.top1 == pytest.approx(evaluated["knn/top1"], abs=1e-6)
  if section == "masked":
    assert evaluated["fewshot/top1_class_token"] != evaluated["fewshot/top1"]

  model, params = load_pretrained(workdir)
  assert type(model) is Vit and not model.num_classes
  own = {"mask", "decoder", "head", "project_class", "mask_token"}
  assert not (own | {"class_head"}) & set(params)
  tuned = config.copy_and_resolve_references()
  tuned[section].update(base_config()[section])
  tuned.distill.teacher = None
  tuned.update(total_steps=1, ema_decay=0.0)
  tuned.update(pretrained=workdir, eval_every_steps=1, eval_pictures=0)
  tuned.optimizer.peak_lr = 0.0
  with tuned.unlocked():
    tuned.model = type(tuned.model)(dict.fromkeys(tuned.model))
  state, _ = train(read(tuned), str(tmp_path / "tuned"))
  kept = jax.device_get({k: state.params[k] for k in params})
  assert runs.identical(kept, jax.device_get(params))
  assert set(state.params) - set(params) == {"head"}
  assert np.shape(state.params["head"]["kernel"])[1] == 10
