"""First and last lines on a folder of odd files, and the table of layers.

The files are HEIC, CMYK, of 16 bits, and pipes.
"""

import dataclasses
import os
import types
from typing import Any

import cv2
import jax
import numpy as np
import pillow_heif
import pytest
from PIL import Image

from configs import finetune
from tests import published, runs
from tests.commands import run
from tests.image_files import encode
from vit_jax.data.example import RGB
from vit_jax.run import few_images, loop
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.summary import closing, header, layer_rows
from vit_jax.runtime import hints
from vit_jax.runtime.settings import replaced
from vit_jax.workdir.description import preprocessing

pillow_heif.register_heif_opener()


def picture(rng, mode="RGB"):
  pixels = rng.integers(0, 256, (6, 8, 3), np.uint8)
  large = cv2.resize(pixels, (40, 32), interpolation=cv2.INTER_CUBIC)
  return Image.fromarray(large).convert(mode)


@pytest.fixture
def odd(config, tmp_path):
  """The configuration of a run of two steps on such a folder."""
  rng = np.random.default_rng(0)
  wide = Image.fromarray(rng.integers(0, 4096, (32, 40), np.uint16))
  frames = dict(save_all=True, append_images=[picture(rng)])
  jpeg = encode(picture(rng), "JPEG")
  files = {
    "a.HEIC": encode(picture(rng), "HEIF"),
    "b.jpg": encode(picture(rng, "CMYK"), "JPEG"),
    "c.png": encode(wide, "PNG"),
    "d.tif": encode(wide, "TIFF"),
    "e.gif": encode(picture(rng), "GIF", **frames),
    "f.webp": encode(picture(rng), "WEBP", **frames),
    "g.avif": encode(picture(rng), "AVIF"),
    "h.jp2": encode(picture(rng), "JPEG2000"),
    "i.png": encode(picture(rng, "RGBA"), "PNG"),
    "cut.jpg": jpeg[: len(jpeg) // 2],
    "empty.heic": b"",
    "notes.txt": b"",
    "raw.NEF": b"",
  }
  for split in ("train", "val"):
    for name in "xy":
      folder = tmp_path / "odd" / split / name
      folder.mkdir(parents=True)
      for file, content in files.items():
        (folder / file).write_bytes(content)
  os.mkfifo(tmp_path / "odd" / "train" / "x" / "pipe.jpg")
  config.data.root = str(tmp_path / "odd")
  # 16 of the 22 training images in each batch: two steps see nearly all.
  config.update(total_steps=3, total_epochs=0.0, batch_size=16)
  config.update(eval_every_epochs=0.0, save_every_epochs=0.0)
  return config


def test_the_header_says_what_is_there(odd):
  splits = make_plan(read(odd)).splits
  assert splits.found == (
    "odd: train 22, val 22 images of 2 classes; ignored: 4 .nef, 4 not images, "
    "1 pipes or devices"
  )
  (line,) = splits.warnings_for(RGB)
  assert "have 16 bits and reach 4,0" in line
  assert "set --config.normalization.window='(0,4095)'" in line
  odd.normalization.window = (0.0, 4095.0)
  plan = make_plan(read(odd))
  assert plan.splits.warnings_for(plan.preprocessing.spec) == []
  assert plan.preprocessing.window == (0, 4095)
  # The checkpoint records it, for `evaluate` and `predict`.
  assert preprocessing(plan.description(1)).window == (0, 4095)
  assert str(plan.preprocessing).startswith("scaled from 0 to 4095 where")
  dark = np.full((16, 16), 2048, np.uint16)
  seen = plan.preprocessing.transform()(encode(Image.fromarray(dark), "PNG"))
  assert (seen == 128).all()


SCRATCH = (
  "from scratch; with 24 images, published weights are the better start:"
)


def test_frozen_layers_of_random_weights_are_told(config):
  config.optimizer.freeze_layers = -1
  rows = dict(header(make_plan(read(config)), "runs/x"))
  assert rows["training"].startswith("the head alone")
  assert "the other layers keep their random weights" in rows["training"]
  config.model.variant = None
  with pytest.raises(ValueError, match="name published weights, as in --pret"):
    make_plan(read(config))


def test_few_photographs_get_the_better_command(config, monkeypatch):
  """They are 24, of three classes."""
  plan = make_plan(read(config))
  rows = header(plan, "runs/x")
  assert dict(rows)["run"].startswith("6 steps of 8 images (2.0 epochs)")
  at = rows.index(("training", SCRATCH))
  better = f"vit_jax train {config.data.root} --pretrained hf_s14_dinov2"
  assert rows[at + 1] == ("", f"{better}  (downloads 88 MB)")
  assert "training" not in dict(header(plan, "runs/x", is_new=False))
  once = replaced(plan.settings, {"total_epochs": 0.0, "total_steps": 1})
  once = header(dataclasses.replace(plan, settings=once), "runs/x")
  assert dict(once)["run"].startswith("1 step of 8 images ")
  monkeypatch.setattr(few_images, "FEW", 24)
  assert "training" not in dict(header(plan, "runs/x"))


def in_grey(config):
  config.channels = 1
  config.normalization.update(mean=(0.5,), std=(0.5,))


def without_labels(config):
  config.loss.label_smoothing = 0.0
  config.masked.rate = 0.5


def digits(config):
  config.data.update(root=None, name="digits")


def test_few_images_without_labels_get_the_command_that_goes_on(
  config, monkeypatch
):
  """As `vit_jax train FOLDER` answers for them; published weights for more."""
  without_labels(config)
  plan = make_plan(read(config))
  rows = header(plan, "runs/x")
  at = [name for name, _ in rows].index("training")
  assert "published weights are the better start:" in rows[at][1]
  going_on = hints.command_to_continue(config.data.root)
  assert rows[at + 1] == ("", f"{going_on}  (downloads 88 MB)")
  monkeypatch.setattr(few_images, "ENOUGH", len(plan.source))
  assert "training" not in dict(header(plan, "runs/x"))


def test_a_run_without_labels_ends_with_what_its_features_are_for(config):
  ends = {}
  for name, change in (("classes", lambda _: None), ("none", without_labels)):
    change(config)
    ends[name] = closing(make_plan(read(config)), {}, 1.0, "runs/x")
  assert "See its curves and mistakes with: vit_jax report" in ends["classes"]
  assert "features" not in ends["classes"]
  assert "See its curves with: vit_jax report runs/x\n" in ends["none"]
  similar = f"vit_jax similar runs/x {config.data.root} --out=found_x ("
  assert similar in ends["none"]


@pytest.mark.parametrize("change", [in_grey, digits])
def test_other_runs_from_scratch_get_none(config, change):
  change(config)
  assert "training" not in dict(header(make_plan(read(config)), "runs/x"))


def test_a_run_without_checkpoints_says_so(config):
  plan = make_plan(read(config))
  assert "checkpoints" not in dict(header(plan, "runs/x"))
  config.update(save_every_epochs=0.0, save_every_steps=0)
  rows = dict(header(make_plan(read(config)), "runs/x"))
  assert rows["checkpoints"].startswith("none, so no weights will be left: ")


PROBED = "; the head starts from a linear probe of the images"


@pytest.mark.slow
def test_the_header_says_what_of_the_weights_is_trained(config):
  tuned = finetune.get_config("small")
  tuned.pretrained = str(published.path("google_vit.npz"))
  tuned.batch_size = 8
  tuned.data.root = config.data.root
  plan = make_plan(read(tuned))
  for changes, words in (
    ({}, f"the head alone{PROBED}"),
    ({"optimizer.freeze_layers": 0}, f"all layers{PROBED}"),
    (
      {"optimizer.freeze_layers": 1, "transfer.probe_head": False},
      "all but the first layer; the head is new",
    ),
  ):
    changed = replaced(plan.settings, changes)
    rows = dict(header(dataclasses.replace(plan, settings=changed), "runs/x"))
    assert rows["training"] == words
    assert "" not in rows
    if "head alone" in words:
      head = sum(
        int(np.prod(x.shape))
        for x in jax.tree.leaves(plan.param_shapes["head"])
      )
      assert f"trains {head:,} of " in rows["model"]
    assert ("trains" in rows["model"]) == ("all layers" not in words)
  tuned.transfer.probe_head = False
  tuned.optimizer.freeze_layers = 0
  plan = make_plan(read(tuned))
  names = plan.source.class_names
  assert plan.start
  same: Any = types.SimpleNamespace(
    class_names=names, preprocessing=plan.start.preprocessing
  )
  rows = dict(header(dataclasses.replace(plan, start=same), "runs/x"))
  assert rows["training"] == (
    "all layers; the head is new (--config.transfer.keep_head keeps that of "
    "these classes)"
  )
  tuned.lora.rank = 2
  rows = dict(header(make_plan(read(tuned)), "runs/x"))
  assert rows["training"] == "LoRA's matrices and the head; the head is new"
  assert "trains " in rows["model"]


@pytest.mark.slow
def test_a_run_on_odd_files_lists_what_it_skipped(odd, tmp_path, capsys):
  odd.loader.on_unreadable = "skip"
  odd.loader.num_workers = 1
  odd.update(eval_every_steps=3, save_every_steps=3)
  _, evaluated = loop.train(read(odd), str(tmp_path / "run"))
  assert evaluated["eval/examples"] == 18
  assert evaluated["eval/skipped_images"] == 4
  assert np.isfinite(runs.rows(tmp_path / "run")[0]["train/loss"])
  listed = (tmp_path / "run" / "unreadable.txt").read_text().splitlines()
  names = {line.split(": ")[0].split("odd/")[1] for line in listed}
  bad = {f"{c}/{name}" for c in "xy" for name in ("cut.jpg", "empty.heic")}
  assert {f"val/{name}" for name in bad} <= names
  assert names <= {f"{split}/{n}" for split in ("train", "val") for n in bad}
  out = capsys.readouterr().out
  assert f"{len(listed)} unreadable images, listed in " in out
  assert listed[0] in out and listed[-1] not in out
  odd.total_steps = 6  # Further ones are added to the list.
  loop.train(read(odd), str(tmp_path / "run"), allow_changes=True)
  again = (tmp_path / "run" / "unreadable.txt").read_text().splitlines()
  assert again[: len(listed)] == listed


def test_layers_have_shapes_and_counts_by_hand(config):
  """D = 24, an MLP of 32, 3 heads, patches of 8 in an image of 16 x 16."""
  config.model.update(pooling="token", position="learned")
  config.optimizer.freeze_layers = 1
  rows = {name: rest for name, *rest in layer_rows(make_plan(read(config)))}
  assert rows["x_class"] == ["", "", "24", "no"]
  E = str(8 * 8 * 3 * 24 + 24)
  assert rows["patches"] == ["(1, 16, 16, 3)", "(1, 2, 2, 24)", "4,632", "no"]
  assert rows["patches"][2].replace(",", "") == E
  mlp = 24 * 32 + 32 + 32 * 24 + 24
  # Of the last layer, the head reads the class token alone.
  one, all_tokens = "(1, 1, 24)", "(1, 5, 24)"
  assert rows["block_0/mlp"] == [one, one, f"{mlp:,}", "no"]
  msa = 4 * (24 * 24 + 24)
  assert rows["block_0/msa"] == [all_tokens, one, f"{msa:,}", "no"]
  assert rows["norm"] == ["(1, 24)", "(1, 24)", "48", "yes"]
  assert rows["head"] == ["(1, 24)", "(1, 3)", "75", "yes"]
  whole = [r for name, r in rows.items() if "/" not in name and name != "all"]
  total = sum(int(row[2].replace(",", "")) for row in whole)
  assert rows["all"][2] == f"{total:,}"
  order = ["patches", "position", "block_0", "block_0/norm_msa", "norm", "head"]
  assert [name for name in rows if name in order] == order


@pytest.mark.slow
def test_the_command_prints_the_table_and_trains_nothing(tmp_path):
  folder = tmp_path / "run"
  done = run(
    "vit_jax.train", "--config=digits", f"--workdir={folder}", "--summary"
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines()[0].split()[0] == "layer"
  assert done.stdout.splitlines()[-1].split() == ["all", "137,802"]
  assert not folder.exists()


@pytest.mark.slow
def test_the_header_says_that_images_are_prepared_in_another_way(config):
  tuned = finetune.get_config("small")
  tuned.pretrained = str(published.path("google_vit.npz"))
  tuned.data.root = config.data.root
  tuned.batch_size, tuned.eval_transform.interpolation = 8, "bicubic"
  plan = make_plan(read(tuned))
  size = "{} x {}".format(*plan.preprocessing.image_size)
  way = "(bilinear, without antialiasing)"
  own = f"the checkpoint's own are resized to {size} {way}"
  expected = f"resized to {size} (bicubic); {own} (--config.eval_transform)"
  assert dict(header(plan, "runs/x"))["images"] == expected
  same = {"antialias": False, "interpolation": "bilinear"}
  tuned.eval_transform.update(same)
  assert "images" not in dict(header(make_plan(read(tuned)), "runs/x"))
