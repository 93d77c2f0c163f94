"""The suite's table on small stand-ins of the sets."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.image_files import write_noise
from vit_jax.data.reading.imagenet_sets import (
  ALEXNET_ERRORS,
  CLASSES,
  WORDNET_IDS,
)
from vit_jax.models import Origin
from vit_jax.pretrained.load import load_pretrained
from vit_jax.run.experiments.suite import mean_corruption_error, run_suite

SIZE = (16, 16)
A_CLASSES = (6, 11, 13)  # Among the 200 of ImageNet-A.


def checkpoint_of(folder, num_classes=1000):
  vit = tiny.vit(Origin("test", "google", SIZE)).clone(num_classes=num_classes)
  path = folder / "vit.npz"
  tiny.save_google(path, vit, tiny.random_params(vit, SIZE, 0))
  return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  return checkpoint_of(tmp_path_factory.mktemp("published"))


def logits_of(checkpoint, paths):
  """The logits by the model itself, image by image as Pillow reads them."""
  model, params = load_pretrained(checkpoint, num_heads=3)
  images = np.stack([np.asarray(Image.open(path)) for path in paths])
  x = jnp.asarray(images / 127.5 - 1, jnp.float32)
  return np.asarray(model.apply({"params": params}, x))


@pytest.mark.slow
def test_the_200_classes_of_imagenet_a_compete_alone(checkpoint, tmp_path):
  ids = WORDNET_IDS
  a_folders = [ids[k] for k in A_CLASSES]
  write_noise(tmp_path / "imagenet-a", *a_folders, count=8, size=SIZE)
  out = tmp_path / "suite.json"
  names = ("a", "sketch")
  (row,) = run_suite(
    checkpoint,
    names,
    root=str(tmp_path),
    data_dir=str(tmp_path),
    out=str(out),
    num_heads=3,
  )
  among = [k for k in range(1000) if CLASSES[k]["imagenet_a"] == "1"]
  hits = {1: [], 5: []}
  for k in A_CLASSES:
    paths = sorted((tmp_path / "imagenet-a" / ids[k]).iterdir())
    for own in logits_of(checkpoint, paths):
      order = sorted(among, key=lambda c: -own[c])
      for top in hits:
        hits[top].append(k in order[:top])
  assert row["examples"] == 24
  assert row["top1"] == pytest.approx(np.mean(hits[1]))
  assert row["top5"] == pytest.approx(np.mean(hits[5]))
  assert json.loads(out.read_text()) == [row]


@pytest.mark.slow
def test_an_answer_is_right_if_it_is_one_of_the_real_labels(
  checkpoint, tmp_path, capsys
):
  write_noise(tmp_path, "val", count=6, size=SIZE)
  paths = sorted((tmp_path / "val").iterdir())
  best = logits_of(checkpoint, paths).argmax(axis=1).tolist()
  real = [[best[0]], [best[1], 1], [2, best[2]], [999 - best[3]], [], [998]]
  for number, path in enumerate(paths, 1):
    path.rename(path.with_name(f"ILSVRC2012_val_{number:08}.JPEG"))
  (tmp_path / "real.json").write_text(json.dumps(real))
  given = dict(root=str(tmp_path), data_dir=str(tmp_path), num_heads=3)
  out = str(tmp_path / "suite.csv")
  (row,) = run_suite(checkpoint, ["real", "r"], out=out, **given)
  right = [k in labels for k, labels in zip(best, real, strict=True) if labels]
  assert row["examples"] == 5
  assert row["top1"] == pytest.approx(np.mean(right))
  printed = capsys.readouterr().out
  assert "r is skipped: " in printed
  assert "taken for ImageNet's in their usual order." in printed
  with open(out) as lines:
    assert next(lines) == "set,top1,top5,mce,examples,skipped\n"


@pytest.mark.slow
def test_few_shot_needs_no_classes_of_imagenet(tmp_path, capsys):
  checkpoint = checkpoint_of(tmp_path, num_classes=5)
  rows = run_suite(checkpoint, ["few_shot/digits"], num_heads=3)
  assert [row["set"] for row in rows] == [
    f"few_shot/digits, {shots} shots" for shots in (1, 5, 10, 25)
  ]
  assert {row["examples"] for row in rows} == {359}
  assert rows[3]["top1"] > rows[0]["top1"] > 0.1


def test_the_mean_corruption_error_against_a_loop():
  rng = np.random.default_rng(0)
  errors = {name: rng.uniform(0, 1, 5).tolist() for name in ALEXNET_ERRORS}
  total = 0.0
  for name, five in errors.items():
    total += sum(five) / (5 * ALEXNET_ERRORS[name])
  assert mean_corruption_error(errors) == pytest.approx(100 * total / 15)
  alexnet = {name: [e] * 5 for name, e in ALEXNET_ERRORS.items()}
  assert mean_corruption_error(alexnet) == pytest.approx(100)


@pytest.mark.parametrize(
  "names, out, message",
  [
    (["b"], None, "--suite has no 'b'; it has imagenet, real, v2"),
    (["a"], "x.xlsx", ".xlsx says another .*, CSV .* or JSON "),
    (["a"], None, "has 5 classes, and the suite's sets are for ImageNet's"),
  ],
)
def test_what_does_not_fit_is_one_line(tmp_path, names, out, message):
  checkpoint = checkpoint_of(tmp_path, num_classes=5)
  out = out and str(tmp_path / out)
  with pytest.raises(ValueError, match=message):
    run_suite(checkpoint, names, out=out, num_heads=3)
