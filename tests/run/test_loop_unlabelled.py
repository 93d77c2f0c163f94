"""Runs without labels, of every task that has none: their data and doors."""

import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from configs import dino, mae, masked_patches, student
from tests.old_runs import CHECKPOINTS
from tests.saved_data import write_data
from vit_jax import load_pretrained
from vit_jax.data import UnreadableImageError
from vit_jax.pack.sources import open_sources
from vit_jax.pack.writer import Encoding, pack
from vit_jax.pretrained.convert import convert
from vit_jax.run import loop
from vit_jax.run.experiments.replay import verify
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.run.summary import header
from vit_jax.workdir.records import read_metrics

TEACHER = str(CHECKPOINTS / "workdirs" / "plain")
# Each task's configuration, and the sizes of what only training needs.
TASKS = {
  "masked": (masked_patches, "", {}),
  "autoencoder": (mae, "", dict(decoder_size=8, decoder_layers=1)),
  "student": (student, TEACHER, {}),
  "self_distillation": (
    dino,
    "",
    dict(prototypes=32, head_size=16, bottleneck=8, small_size=4),
  ),
}
every_task = pytest.mark.parametrize("name", TASKS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """A folder of 40 and 16 images, one more of each cut off, and it packed."""
  folder = tmp_path_factory.mktemp("data")
  write_data(folder)
  photos = folder / "photos"
  splits = open_sources(str(photos), held_out={"held_out_by": "name"})
  pack(splits, str(folder / "packed"), Encoding(None, 95), workers=1)
  for split in ("train", "val"):
    whole = next((photos / split / "bird").iterdir()).read_bytes()
    (photos / split / "cut.png").write_bytes(whole[: len(whole) // 2])
  return folder


def config_of(name):
  """A run of four steps of a tiny model."""
  module, argument, sizes = TASKS[name]
  config = module.get_config(argument)
  config[name].update(sizes)
  config.update(total_epochs=0.0, total_steps=4, image_size=(8, 8))
  config.update(eval_every_epochs=0.0, save_every_epochs=0.0, digest_every=1)
  config.update(eval_every_steps=4, save_every_steps=2, batch_size=16)
  config.loader.num_workers = 0
  config.optimizer.update(warmup_epochs=0.0)
  fields = dict(num_layers=1, hidden_size=8, mlp_size=16, num_heads=2)
  config.model.update(variant="Ti/4", **fields)
  return config


@pytest.mark.parametrize(
  "name, files, changes, message",
  [
    ("autoencoder", (), {}, r"^folder '\S+' has no images \(\.jpg"),
    ("self_distillation", (), {}, r"^folder '\S+' has no images \(\.jpg"),
    ("student", (0,), {}, "has no images for split='held out'; add some"),
    ("autoencoder", range(9), {}, "batch_size=16 is more than the 7 examples"),
    (
      "student",
      range(40),
      {
        "channels": 1,
        "normalization": {"mean": (0.5,), "std": (0.5,)},
      },
      r"distill.teacher='\S+' takes images of 3 channel\(s\), and the student",
    ),
  ],
)
def test_data_that_do_not_do_are_refused_in_a_line(
  name, files, changes, message, data, tmp_path
):
  photos = sorted((data / "photos").glob("*/*/*.png"))
  for k in files:
    (tmp_path / f"{k}.png").write_bytes(photos[k].read_bytes())
  config = config_of(name)
  config.data.root = str(tmp_path)
  config.update(changes)
  with pytest.raises(ValueError, match=message) as error:
    make_plan(read(config))
  assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_crops_that_are_larger_than_the_images_are_said(data):
  """The images have 12 x 20 pixels."""
  rows = []
  for size in ((12, 20), (12, 24)):
    config = config_of("self_distillation")
    config.update(image_size=size)
    config.data.dir = str(data / "packed")
    rows.append(dict(header(make_plan(read(config)), "runs/x")))
  assert "crops" not in rows[0]
  assert rows[1]["crops"].startswith(
    "12 x 24 is larger than 8 of 8 images looked at: crops of smaller images"
  )


@pytest.mark.slow
def test_an_average_of_first_parameters_is_said(data):
  """The teacher's momentum rises to 1 along a cosine."""
  config = config_of("self_distillation")
  config.data.dir = str(data / "packed")
  config.update(ema_decay=0.9, total_steps=20, total_epochs=0.0)
  steps = 1 - 0.1 * (1 + np.cos(np.pi * np.arange(20) / 20)) / 2
  row = dict(header(make_plan(read(config)), "runs/x"))["average"]
  share = round(100 * np.prod(steps))
  said = f"averaged parameters of this run are still {share}% those"
  assert row.startswith(f"with ema_decay=0.9, the {said}")
  config.ema_decay = 0.7
  assert "average" not in dict(header(make_plan(read(config)), "runs/x"))


@pytest.mark.slow
@every_task
def test_a_damaged_image_is_skipped_and_said(name, data, tmp_path, capsys):
  """The run is replayed to the bit, and converts to its plain encoder."""
  config, workdir = config_of(name), str(tmp_path / "run")
  config.data.root = str(data / "photos")
  with pytest.raises(UnreadableImageError, match=r"cut\.png: .*=skip passes"):
    loop.train(read(config), str(tmp_path / "stopped"))
  config.loader.on_unreadable = "skip"
  _, evaluated = loop.train(read(config), workdir)
  assert "2 unreadable images, listed in" in capsys.readouterr().out
  assert np.isfinite(evaluated["eval/loss"])
  counts = evaluated["eval/examples"], evaluated["eval/skipped_images"]
  assert counts == (16, 1) and "knn/top1" not in evaluated
  # Of another folder all images count: these are the run's own two splits.
  there = tmp_path / "there"
  shutil.copytree(data / "photos" / "train", there / "a")
  shutil.copytree(data / "photos" / "val", there / "b")
  whole = evaluate_checkpoint(workdir, folder=str(there))
  assert (whole["eval/examples"], whole["eval/skipped_images"]) == (56, 2)
  assert verify(workdir, "1:2") and verify(workdir, "3:4")
  capsys.readouterr()
  convert(workdir, str(tmp_path / "hf"), "hf")
  assert "the encoder alone is written" in capsys.readouterr().err
  model, params = load_pretrained(str(tmp_path / "hf"))
  own, own_params = load_pretrained(workdir)
  assert (model.num_layers, model.num_classes) == (own.num_layers, 0)
  x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
  found, expected = (
    m.apply({"params": p}, x) for m, p in ((model, params), (own, own_params))
  )
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@every_task
def test_packed_images_do_as_well_as_a_folder(name, data, tmp_path):
  """They have labels, so that neighbours can be looked for."""
  config, workdir = config_of(name), tmp_path / "run"
  config.data.dir = str(data / "packed")
  config.fewshot.neighbours = 3
  _, evaluated = loop.train(read(config), str(workdir))
  assert np.isfinite(evaluated["eval/loss"])
  assert evaluated["eval/examples"] == 16 and 0 < evaluated["knn/top1"] <= 1
  again = evaluate_checkpoint(str(workdir))
  assert again.items() <= evaluated.items()
  (row, *_) = (workdir / "digests.jsonl").read_text().splitlines()
  arrays = {key for key in json.loads(row) if key.startswith("batch/")}
  assert "batch/image" in arrays
  crops = {"batch/second", "batch/small"}
  assert (crops <= arrays) == (name == "self_distillation")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["autoencoder", "self_distillation"])
def test_published_features_are_measured_before_they_are_trained(
  name, data, tmp_path, capsys
):
  """They are those of the first run's end; what became of them is said.

  The best checkpoint is the one whose neighbours are best, of equal ones the
  last; it may be that of before the first step.
  """
  first, second = (str(tmp_path / k) for k in ("first", "second"))
  config = config_of(name)
  config.data.dir = str(data / "packed")
  config.fewshot.neighbours = 3
  _, ended = loop.train(read(config), first)
  assert "at the start" not in capsys.readouterr().out
  config.model.update(
    {key: None for key, value in config.model.items() if value is not None}
  )
  config.update(pretrained=first, eval_every_steps=2)
  _, evaluated = loop.train(read(config), second)
  rows = read_metrics(epath.Path(second)).rows
  probes = [(r["step"], r["knn/top1"]) for r in rows if "knn/top1" in r]
  assert [step for step, _ in probes] == [0, 2, 4]
  assert probes[0][1] == ended["knn/top1"]
  was, now = (f"{probes[k][1]:.1%}" for k in (0, -1))
  out = " ".join(capsys.readouterr().out.split())
  assert f"Features: k-NN {was} at the start and {now} now." in out
  worse = f"they are worse than those that the run began with: use {first}"
  assert (worse in out) == (evaluated["knn/top1"] < ended["knn/top1"])
  best = max((score, step) for step, score in probes)[1]
  assert load_pretrained(second, best=True).step == best
  assert (f"Best checkpoint: step {best} with k-NN" in out) == (best < 4)


def neighbours_of(workdir, folder, k, **options):
  """The set of the k nearest others of each image, from the run's features."""
  y = load_pretrained(workdir, **options).features(folder)
  z = y / np.linalg.norm(y, axis=1, keepdims=True)
  cosine = z @ z.T - 9 * np.eye(len(z))
  return [{*row} for row in np.argsort(-cosine, axis=1)[:, :k].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("name, rate", [("self_distillation", 0.3)])
def test_without_labels_features_are_compared_with_the_start(
  name, rate, data, tmp_path, capsys
):
  """By the neighbours of the evaluation images, found anew here.

  So high a learning rate changes them, and the best checkpoint is the start.

  A run that goes on after a stop compares with the same start.
  """
  photos = tmp_path / "photos"
  shutil.copytree(data / "photos", photos)
  for file in photos.glob("*/cut.png"):
    file.unlink()
  first, second = (str(tmp_path / k) for k in ("first", "second"))
  config = config_of(name)
  config.data.root = str(photos)
  config.fewshot.neighbours = 3
  _, ended = loop.train(read(config), first)
  assert "start/kept" not in ended
  config.model.update(
    {key: None for key, value in config.model.items() if value is not None}
  )
  config.update(pretrained=first, eval_every_steps=2, total_steps=2)
  config.update(ema_decay=0.01)
  config.optimizer.update(peak_lr=rate, warmup_steps=0, decay="constant")
  loop.train(read(config), second, allow_changes=True)
  config.total_steps = 4
  loop.train(read(config), second, allow_changes=True)
  rows = read_metrics(epath.Path(second)).rows
  scored = {r["step"]: r for r in rows if "start/kept" in r}
  assert [*scored] == [0, 2, 4] and scored[0]["start/kept"] == 1
  assert {row["start/neighbours"] for row in scored.values()} == {3}
  files = sorted(str(file) for file in (photos / "val").rglob("*.png"))
  before = neighbours_of(first, files, 3)
  for step in (2, 4):
    now = neighbours_of(second, files, 3, step=step)
    shares = [len(a & b) / 3 for a, b in zip(before, now, strict=True)]
    assert scored[step]["start/kept"] == pytest.approx(
      np.mean(shares), abs=0.06
    )
    kept, rank = (scored[step][k] for k in ("start/kept", "eval/rank"))
    expected = rank if kept >= 0.5 else kept - 1
    assert scored[step]["start/judged"] == pytest.approx(expected)
  assert scored[4]["start/kept"] < 1
  best = max((row["start/judged"], step) for step, row in scored.items())[1]
  assert load_pretrained(second, best=True).step == best
  out = " ".join(capsys.readouterr().out.split())
  kept = f"{scored[4]['start/kept']:.1%}"
  assert f"Features: {kept} of the 3 nearest neighbours of an" in out
  assert f"neighbours kept {scored[4]['start/kept']:.2%} (of 3 of" in out
  changed = "so the features have changed much, and may be worse" in out
  assert changed and best == 0 and "Best checkpoint: step 0 with rank" in out
