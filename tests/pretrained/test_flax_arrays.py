"""`flax_model.msgpack`, as transformers 4 saved its Flax models."""

import shutil

import jax
import numpy as np
import pytest
from flax import serialization, traverse_util
from safetensors.numpy import load_file

from tests import published
from vit_jax import load_pretrained
from vit_jax.pretrained.arrays import UnreadableFileError, open_arrays
from vit_jax.pretrained.flax_arrays import FILE

FOLDER = published.path("hf_vit")


def as_flax(arrays):
  """PyTorch's arrays by the names and with the axes of FlaxViTModel."""
  tree = {}
  for name, array in arrays.items():
    *stem, last = name.split(".")
    if last == "weight" and array.ndim == 1:
      last = "scale"
    elif last == "weight" and array.ndim == 2:
      last, array = "kernel", np.swapaxes(array, 0, 1)
    elif last == "weight":
      last, array = "kernel", np.einsum("oihw->hwio", array)
    tree[(*stem, last)] = np.ascontiguousarray(array)
  return traverse_util.unflatten_dict(tree)


@pytest.fixture
def folder(tmp_path):
  arrays = load_file(f"{FOLDER}/model.safetensors")
  content = serialization.msgpack_serialize(as_flax(arrays))
  (tmp_path / FILE).write_bytes(content)
  shutil.copy(f"{FOLDER}/config.json", tmp_path)
  return tmp_path


def test_it_answers_as_the_publishers_model(folder):
  model, params = load_pretrained(str(folder))
  images, logits = published.examples("hf_vit")
  published.assert_same_logits(model, params, images, logits)
  _, safe = load_pretrained(FOLDER)
  jax.tree.map(np.testing.assert_array_equal, params, safe)


def test_a_tree_below_params_is_the_same(folder):
  tree = serialization.msgpack_restore((folder / FILE).read_bytes())
  content = serialization.msgpack_serialize({"params": tree})
  (folder / FILE).write_bytes(content)
  with open_arrays(folder / FILE) as arrays:
    assert arrays.shapes == {
      name: array.shape
      for name, array in load_file(f"{FOLDER}/model.safetensors").items()
    }


@pytest.mark.parametrize(
  "spoil, message",
  [
    (lambda content: content[: len(content) // 2], "damaged or incomplete"),
    (lambda content: content + b"\x01", "damaged or incomplete"),
    (
      lambda content: serialization.msgpack_serialize({"vit": {"a": "text"}}),
      "'vit.a' is not an array of numbers",
    ),
  ],
)
def test_a_damaged_one_is_one_line(folder, spoil, message):
  path = folder / FILE
  path.write_bytes(spoil(path.read_bytes()))
  with (
    pytest.raises(UnreadableFileError, match=message) as error,
    open_arrays(path),
  ):
    pass
  assert "\n" not in str(error.value)
