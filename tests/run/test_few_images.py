"""What `train DATA --pretrained NAME` trains, by the number of images."""

import collections
import csv
import json
import re

import numpy as np
import pytest

import vit_jax
from configs import dino
from tests.encoders import FOLDER
from tests.workdir.saved import begun
from vit_jax.pretrained.known import KNOWN
from vit_jax.run import config_file, data_choice, few_images, flags
from vit_jax.runtime import hints


@pytest.fixture
def choose(folder, monkeypatch):
  """Chooses for the folder, whose training split has 3 x 8 images."""

  def chosen(few=25, workdir="", **given):
    monkeypatch.setattr(few_images, "FEW", few)
    values = {"data.root": folder, "pretrained": "b16_augreg"}
    return few_images.fine_tuning(values | given, workdir)

  return chosen


def test_few_images_train_the_head_and_many_the_whole_model(choose):
  small, why = choose(few=25)
  assert small == {"config": "finetune:small"}
  assert why == ", which has only 24 training images,"
  whole, why = choose(few=24)
  assert whole == {"config": "finetune"}
  assert why == ", which has 24 training images,"


@pytest.mark.parametrize(
  "key, value",
  [
    ("lora.rank", "8"),
    ("data.task", "segmentation"),
    ("transfer.keep_head", ""),
    ("masked.rate", "0.5"),
    ("data.root", "nowhere"),
  ],
)
def test_what_no_probe_of_classes_starts_trains_as_a_whole(choose, key, value):
  assert choose(**{key: value}) == ({"config": "finetune"}, "")


def test_a_file_of_labels_is_counted_by_its_rows(folder, choose, tmp_path):
  path = tmp_path / "labels.csv"
  with path.open("w") as file:
    rows = csv.writer(file)
    rows.writerow(["file", "label", "split"])
    rows.writerows([f"a/{k}.png", "xy"[k % 2], "train"] for k in range(5))
    rows.writerow(["a/7.png", "x", "val"])
  given = {"data.root": f"{folder}/train", "data.labels_file": str(path)}
  assert choose(**given)[1] == ", which has only 5 training images,"


def test_few_numbers_train_the_head_as_few_classes_do(folder, tmp_path):
  path = tmp_path / "prices.csv"
  with path.open("w") as file:
    rows = csv.writer(file)
    rows.writerow(["photo", "price"])
    rows.writerows([f"a/{k}.png", f"{k}.5"] for k in range(8))
  given = {
    "data.root": f"{folder}/train",
    "data.labels_file": str(path),
    "pretrained": "b16_augreg",
  }
  chosen, why = data_choice.suited(str(path), given)
  assert chosen == {
    "config": "finetune:small",
    "data.task": "regression",
    "data.label_columns": "price",
    "loss.label_smoothing": "0.0",
  }
  assert why == (
    ", as price has numbers such as 0.5, which has only 6 training images,"
  )
  given["data.task"] = "regression"
  assert data_choice.suited(str(path), given)[0]["config"] == "finetune:small"
  del given["pretrained"]
  assert data_choice.suited(str(path), given)[0]["config"] == "image_folder"


def test_few_tags_train_the_head_as_few_classes_do(folder, tmp_path):
  path = tmp_path / "tags.csv"
  with path.open("w") as file:
    rows = csv.writer(file)
    rows.writerow(["photo", "red", "wide"])
    rows.writerows([f"a/{k}.png", k % 2, int(k < 5)] for k in range(8))
  given = {
    "data.root": f"{folder}/train",
    "data.labels_file": str(path),
    "data.task": "multilabel",
    "pretrained": "b16_augreg",
  }
  chosen, why = data_choice.suited(str(path), given)
  assert chosen["config"] == "finetune:small"
  assert chosen["loss.label_smoothing"] == "0.0"
  assert why.endswith("which has only 6 training images,")


@pytest.mark.parametrize("probed", [True, False])
def test_a_run_that_is_there_trains_what_it_trained(choose, tmp_path, probed):
  run = begun(tmp_path / "run", {"transfer": {"probe_head": probed}})
  small = choose(workdir=run)[0]["config"] == "finetune:small"
  assert small == probed


def test_heads_for_dinov2_read_both_poolings_and_others_what_they_did(
  choose, tmp_path
):
  both = {"config": "finetune:small", "model.pooling": "token_gap"}
  for row, name in {row.family: name for name, row in KNOWN.items()}.items():
    is_dino = row in ("DINOv2", "DINOv3")
    assert choose(pretrained=name)[0].get("model.pooling") == (
      "token_gap" if is_dino else None
    )
  (tmp_path / "model.safetensors").touch()
  for kind, expected in (("dinov2", both), ("vit", {"config": both["config"]})):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert choose(pretrained=str(tmp_path))[0] == expected
  given = {"pretrained": "hf_s14_dinov2", "model.pooling": "token"}
  assert "model.pooling" not in choose(**given)[0]


@pytest.mark.parametrize("pooling", ["token", "token_gap"])
def test_weights_that_are_gone_are_used_as_the_run_did(
  choose, tmp_path, pooling
):
  run = begun(tmp_path / "run", {"model": {"pooling": pooling}})
  gone = {"pretrained": "no/such/folder"}
  chosen, _ = choose(workdir=run, **gone)
  expected = pooling if pooling == "token_gap" else None
  assert chosen.get("model.pooling") == expected
  assert "model.pooling" not in choose(workdir="runs/new", **gone)[0]


def test_going_on_fits_the_number_of_images(folder, monkeypatch):
  values = {"config": "dino:continue", "data.root": folder}
  chosen, why = few_images.continued(values)
  assert chosen.keys() == {
    *("lora.rank", "optimizer.peak_lr", "ema_decay", "data.labels"),
    "batch_size",
  }
  assert why.startswith(
    ", which has 24 training images (with so few images, LoRA"
  )
  assert why.endswith("; k-NN measures the features by their classes),")
  chosen, why = few_images.continued(values | {"lora.rank": "0"})
  assert "LoRA" not in why and "optimizer.peak_lr" not in chosen
  chosen, why = few_images.continued(values | {"lora.rank": "2"})
  assert "(LoRA takes a higher rate; " in why
  assert chosen["optimizer.peak_lr"] == "0.0002"
  monkeypatch.setattr(few_images, "FEW", 24)
  assert "lora.rank" not in few_images.continued(values)[0]
  given = values | {"ema_decay": "0.996", "data.labels": "False"}
  given["batch_size"] = "8"
  chosen, why = few_images.continued(given)
  assert chosen == {} and why == ", which has 24 training images,"


def test_high_resolution_fits_the_number_of_images_too(folder):
  """LoRA has 10 times the rate of all layers, and the run 3 epochs for 2."""
  values = {"config": "dino:continue", "data.root": folder}
  chosen, _ = few_images.continued(values)
  high_res, why = few_images.continued(values | {"config": "dino:high_res"})
  assert float(chosen.pop("optimizer.peak_lr")) == 10 * 2e-5
  rate = float(high_res.pop("optimizer.peak_lr"))
  # DINOv3's 5e-5 for a batch of 1,024, by the square root, for 32 images.
  assert rate == pytest.approx(10 * 5e-5 / np.sqrt(32), rel=1e-2)
  momentum = float(high_res.pop("ema_decay"))  # 30 epochs of 3 batches of 8.
  assert 0.04 < share_of_first(momentum, 90) < 0.06
  chosen.pop("ema_decay")
  assert high_res == chosen
  assert "in 90 steps the teacher" in why and "all weights; with smaller" in why


def fitted(count, **given):
  """The keys that are set for so many images, and the reasons."""
  config = dino.get_config("continue")
  choices = few_images.choices_of_count(config, given, count)
  keys, reasons = zip(*choices, strict=True) if choices else ((), ())
  return dict(collections.ChainMap(*keys)), "; ".join(reasons)


@pytest.mark.parametrize("count", [500, 2_000, 100_000])
def test_the_first_weights_are_a_small_share_of_the_result(count):
  """It is the product of the decays, which rise to 1 along a cosine."""
  config = dino.get_config("continue")
  chosen, _ = fitted(count)
  momentum = float(chosen.get("ema_decay", config.ema_decay))
  steps = round(config.total_epochs * count / config.batch_size)
  assert share_of_first(momentum, steps) < 0.06
  assert ("ema_decay" in chosen) == (count < 100_000)


def share_of_first(momentum, steps):
  part = (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
  return np.prod(1 - (1 - momentum) * part)


@pytest.mark.parametrize(
  "given, steps",
  [
    ({"total_steps": "400"}, 400),
    ({"total_epochs": "40"}, 1_250),
    ({"total_examples": "8000"}, 250),
    ({"batch_size": "16"}, 20 * 1_000 // 16),
    ({"batch_size": "4", "total_epochs": "2"}, 500),
    ({"batch_size": "4_000"}, 20),  # As large as the folder.
  ],
)
def test_the_momentum_is_for_the_length_of_this_run(given, steps):
  chosen, why = fitted(1_000, **given)
  momentum = float(chosen["ema_decay"])
  assert f"in {steps:,} steps the teacher" in why
  if momentum > 0.9:  # It is not lower in runs of less than 60 steps.
    assert 0.04 < share_of_first(momentum, steps) < 0.06


@pytest.mark.parametrize(
  "count, size",
  [(3, 2), (7, 4), (29, 8), (36, 8), (64, 16), (100, 16), (128, 32), (900, 32)],
)
def test_a_small_folder_gets_small_batches(count, size):
  """Powers of two, at most a quarter of the images or 8, and 32 at most."""
  chosen, why = fitted(count)
  assert int(chosen.get("batch_size", 32)) == size
  assert ("smaller batches" in why) == (size < 32)


@pytest.mark.parametrize("bad", ["x", "None", "0", "-3", "inf", "nan"])
def test_a_length_that_is_none_is_left_to_the_run(bad):
  assert "ema_decay" in fitted(29, total_steps=bad, batch_size=bad)[0]


def test_a_run_goes_on_as_it_began(folder, tmp_path):
  config = dino.get_config("continue").to_dict()
  config["lora"]["rank"], config["ema_decay"] = 8, 0.9
  run = begun(tmp_path / "run", config)
  values = {"config": "dino:continue", "data.root": folder}
  assert few_images.continued(values, run) == (
    {"lora.rank": "8", "ema_decay": "0.9"},
    ", whose run goes on as it began,",
  )


@pytest.mark.parametrize(
  "config",
  ["dino:continue", "lejepa:continue", "mae:continue", "dino:high_res"],
)
def test_what_goes_on_with_weights_asks_for_them(folder, tmp_path, config):
  goes_on = f"{config} goes on with published weights, and needs "
  in_python = re.escape(f'{goes_on}pretrained, such as pretrained="hf_')
  with pytest.raises(ValueError, match=f"^{in_python}"):
    vit_jax.train(folder, config=config)
  says = re.escape(f"{goes_on}--pre")
  words = [f"--config={config}", f"--config.data.root={folder}"]
  for typed in (words, [config, words[1]]):
    with pytest.raises(ValueError, match=f"^{says}"):
      flags.expanded([*typed, "--workdir=runs/new"], workdir=True)
  # A run that has begun has them.
  config_file.check_weights({"config": config}, begun(tmp_path / "run", {}))


def test_only_its_own_configuration_is_fitted(folder):
  going_on = dict.fromkeys(("dino:continue", "dino:high_res"), True)
  for config, fitted in {**going_on, "image_folder": False}.items():
    words = [f"--config={config}", "--config.pretrained=hf_s14_dinov2"]
    words = flags.flags_of_data(folder, words, ["config"], workdir=False)
    assert ("--config.lora.rank=8" in words) == fitted


def test_the_suggested_weights_are_known_and_their_size_is_told():
  assert hints.WEIGHTS in KNOWN
  assert few_images.download_size() == "88 MB"  # 22.06 M floats of four bytes.
  assert few_images.better_command("my photos") == (
    "vit_jax train 'my photos' --pretrained hf_s14_dinov2"
  )


@pytest.fixture
def pairs_file(folder, tmp_path):
  """The text of a file of five training pairs, and its values."""
  path = tmp_path / "pairs.csv"
  rows = ["file,caption,split"]
  splits = ["train"] * 5 + ["val"] * 3
  rows += [f"a/{k}.png,thing {k},{split}" for k, split in enumerate(splits)]
  path.write_text("\n".join(rows))
  values = {"data.root": f"{folder}/train", "data.labels_file": str(path)}
  return str(path), values | {"pretrained": "hf_s14_dinov2"}


@pytest.mark.parametrize("config", [{}, {"config": "pairs"}])
def test_few_pairs_leave_a_published_image_tower_as_it_is(
  pairs_file, monkeypatch, config
):
  path, values = pairs_file
  chosen, why = data_choice.suited(path, values | config)
  assert chosen.pop("config", "pairs") == "pairs"
  assert chosen == {"pairs.image": "frozen"}
  assert "only 5 training images" in why
  assert "--config.pairs.image=trained trains it as well" in why
  monkeypatch.setattr(few_images, "FEW", 5)
  assert "pairs.image" not in data_choice.suited(path, values | config)[0]


@pytest.mark.parametrize(
  "given",
  [
    {"pairs.image": "trained"},
    {"lora.rank": "4"},
    {"pretrained": ""},
    {"pretrained": "hf_b16_siglip2_256"},
    {"pretrained": str(FOLDER.parent / "texts" / "hf_clip")},
  ],
)
def test_what_is_said_of_the_towers_of_pairs_is_kept(pairs_file, given):
  assert few_images.paired(pairs_file[1] | given) == ({}, "")


def test_few_pairs_beside_a_folder_of_images_alone_are_few(pairs_file):
  given = pairs_file[1] | {"pretrained": str(FOLDER / "hf_dinov2")}
  assert few_images.paired(given)[0] == {"pairs.image": "frozen"}


@pytest.mark.parametrize("how", ["trained", "frozen", "lora"])
def test_a_run_of_pairs_goes_on_with_the_towers_it_began(
  pairs_file, tmp_path, how
):
  """One that began before there was a choice trains both, as it did."""
  run = begun(tmp_path / "run", {"pairs": {"image": how}})
  chosen, _ = few_images.paired(pairs_file[1], run)
  assert chosen == ({"pairs.image": how} if how == "frozen" else {})
