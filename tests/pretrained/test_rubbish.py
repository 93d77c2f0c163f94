"""Odd names, depths and shapes in checkpoints are handled or refused.

Damaged files are in `test_arrays_refused` and `test_fuzz`.
"""

import json
import os

import jax
import numpy as np
import pytest
from flax import traverse_util

from tests import tiny
from tests.image_files import GOOD
from vit_jax import load_pretrained
from vit_jax.models import Origin
from vit_jax.models.grid import param_shapes
from vit_jax.predict import predict_files
from vit_jax.pretrained.save import save_as


@pytest.fixture
def checkpoint(tmp_path):
  """A tiny model in Google's format, without class names."""
  model = tiny.vit(Origin("ours", "test", (16, 16)))
  params = tiny.random_params(model, (16, 16), 0)
  flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
  pretrained = tiny.loaded(
    model, param_shapes(model, (2, 2)), lambda: iter(flat.items())
  )
  save_as(pretrained, "google", tmp_path / "model")
  return tmp_path / "model"


@pytest.mark.parametrize("as_json", [False, True])
def test_predictions_of_files_with_odd_names(
  checkpoint, tmp_path, as_json, capsys
):
  folder = os.fsencode(tmp_path) + b"/photos"
  os.mkdir(folder)
  for name in (b"a\nb.png", b"\xff.png", b'it\'s "c".png'):
    with open(folder + b"/" + name, "wb") as file:
      file.write(GOOD)
  with open(folder + b"/not\n\xfe.png", "wb") as file:
    file.write(b"no image")
  code = predict_files(
    str(checkpoint), [os.fsdecode(folder)], top=1, as_json=as_json
  )
  assert code == 1
  out, err = capsys.readouterr()
  out.encode(), err.encode()  # Both can be printed on a terminal.
  lines = out.splitlines()
  names = [r"a\nb.png", r"it's \"c\".png" if as_json else 'it\'s "c".png']
  names.append(r"\xff.png")
  assert len(lines) == 3 + as_json
  if as_json:
    images = [json.loads(line)["image"] for line in lines]
    assert any(image.endswith(r"/a\nb.png") for image in images)
    assert any(
      image.endswith(r"/it's \"c\".png".replace("\\", "")) for image in images
    )
  else:
    for name in names:
      assert sum(name in line for line in lines) == 1
  assert r"/not\n\xfe.png: not an image of a known" in err.splitlines()[0]
  assert err.splitlines()[1:] == ["1 of 4 images could not be read."]


def test_names_of_classes_from_a_file_are_printable(checkpoint):
  (checkpoint / "labels.txt").write_text("a\x1b[31m\nb\tc\n\n\n\n\n")
  model, _ = load_pretrained(str(checkpoint))
  names = model.origin.class_names
  assert names == (r"a\x1b[31m", r"b\tc", "", "", "")


def test_names_of_arrays_do_not_break_the_line(tmp_path):
  np.savez(tmp_path / "x.npz", **{"a\nb": np.zeros(2), "c": np.zeros(2)})
  with pytest.raises(ValueError, match=r"2 arrays \(a\\nb, c, ...\)") as info:
    load_pretrained(str(tmp_path / "x.npz"))
  assert str(info.value).isprintable()


def deep(kind: str) -> dict[str, np.ndarray]:
  """A few bytes, named like the arrays of an absurdly deep model."""
  msa = "MultiHeadDotProductAttention_0/query/kernel"
  block, depth = "Transformer/encoderblock_0", 1
  arrays = {"embedding/kernel": np.zeros((8, 8, 3, 24), np.uint8)}
  if kind == "scanned":
    block, depth = "Transformer/encoderblock", 10**6
  if kind == "timm":
    arrays = {
      "patch_embed.proj.weight": np.zeros((24, 3, 8, 8), np.uint8),
      "pos_embed": np.zeros((1, 4, 24), np.uint8),
      "norm.weight": np.zeros(24, np.uint8),
      "blocks.0.mlp.fc1.weight": np.zeros((48, 24), np.uint8),
      "blocks.0.mlp.fc2.weight": np.zeros((24, 48), np.uint8),
    }
    return arrays | {f"blocks.{i}.x": np.zeros(0) for i in range(2000)}
  stacked = (depth,) if kind == "scanned" else ()
  arrays[f"{block}/{msa}"] = np.zeros((*stacked, 1, 3, 1), np.uint8)
  arrays[f"{block}/MlpBlock_0/Dense_0/kernel"] = np.zeros(
    (*stacked, 1, 9), "u1"
  )
  if kind == "stages":
    arrays["conv_root/kernel"] = np.zeros((1, 1, 1, 64), np.uint8)
    arrays |= {f"block{i}/unit1/x": np.zeros(1) for i in range(1, 60)}
  return arrays


@pytest.mark.parametrize(
  "kind, message",
  [
    ("scanned", "it would have 1000000 layers, in 0 stages of a ResNet and a"),
    (
      "timm",
      "it would have 2000 layers, .* at most 300 layers and 8 stages are built",
    ),
    ("stages", "it would have 60 layers, in 59 stages of a ResNet and"),
  ],
)
def test_absurdly_deep_models_are_refused_at_once(tmp_path, kind, message):
  np.savez_compressed(tmp_path / "deep.npz", **deep(kind))
  with pytest.raises(ValueError, match=message):
    load_pretrained(str(tmp_path / "deep.npz"), num_heads=3)


@pytest.mark.parametrize(
  "name, array, message",
  [
    ("head/bias", np.zeros(()), r"'head/bias' has the shape \(\); 1 axes are"),
    ("head/bias", np.zeros(0), r"'head/bias' has the shape \(0,\), so it is e"),
    ("embedding/kernel", np.zeros((8, 8, 0, 2**40)), r"\(8, 8, 0, 1099511627"),
  ],
)
def test_arrays_that_tell_no_size_are_refused(
  checkpoint, tmp_path, name, array, message
):
  with np.load(checkpoint / "model.npz") as stored:
    arrays = dict(stored)
  np.savez(tmp_path / "changed.npz", **{**arrays, name: array})
  with pytest.raises(ValueError, match=message):
    load_pretrained(str(tmp_path / "changed.npz"))
