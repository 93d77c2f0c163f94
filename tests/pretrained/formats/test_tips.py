"""TIPS and TIPSv2 in JAX, as their authors' code computes them."""

import numpy as np
import pytest

from tests import encoders, published
from vit_jax import load_pretrained
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.convert import convert


def stored(name):
  with np.load(published.path(f"{name}_io.npz")) as io:
    return dict(io)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["", "_24x40"])
@pytest.mark.parametrize("name", ["tips_vit", "tips_gated"])
def test_all_tokens_are_the_authors_at_every_size(name, size):
  expected = stored(name)
  model, params = load_pretrained(published.path(f"{name}.npz"))
  assert model.registers == 1 and model.gated_mlp == (name == "tips_gated")
  images = expected[f"images{size}"]
  tokens, answer = encoders.computed(model, params, images)
  encoders.assert_close(tokens, expected[f"tokens{size}"], 1e-5)
  encoders.assert_close(answer, expected[f"logits{size}"], 1e-5)


@pytest.mark.parametrize(
  "to",
  [
    "tips",
    pytest.param("hf", marks=pytest.mark.slow),
    pytest.param("timm", marks=pytest.mark.slow),
  ],
)
def test_it_is_written_for_each_library_that_has_it(tmp_path, to):
  """With LayerScale as ones, where the library has it, and then without."""
  source = published.path("tips_gated.npz")
  convert(source, str(tmp_path / "out"), to)
  out = tmp_path / "out"
  again = out / "model.npz" if to == "tips" else out
  images = stored("tips_gated")["images"]
  expected = stored("tips_gated")["tokens"]
  found = encoders.computed(*load_pretrained(str(again)), images)[0]
  encoders.assert_close(found, expected, 1e-5)
  convert(str(again), str(tmp_path / "back"), "tips")
  with open_arrays(tmp_path / "back" / "model.npz") as arrays:
    with np.load(source) as first:
      assert {*arrays.shapes} == {*first}
      for name in first:
        np.testing.assert_array_equal(arrays[name], first[name])


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, what",
  [
    ("hf_tips", "gelu='exact' would become 'tanh'"),
    ("hf_dinov2", "tips has no place for head/bias, head/kernel"),
    ("hf_pixio", "position='learned_all', and tips has a table"),
    ("hf_siglip", "it has no second class token, and tips always has two"),
  ],
)
def test_what_it_cannot_express_is_refused(tmp_path, name, what):
  with pytest.raises(ValueError, match=f"^tips cannot express .*{what}"):
    convert(encoders.path(name), str(tmp_path / "out"), "tips")


@pytest.mark.slow
def test_layer_scale_becomes_a_part_of_the_weights(tmp_path):
  path = encoders.path("hf_tips")
  options = {"gelu": "tanh"}
  convert(path, str(tmp_path / "out"), "tips", **options)
  file = str(tmp_path / "out" / "model.npz")
  images = encoders.expected("hf_tips", "32x32")[0]
  expected = encoders.computed(*load_pretrained(path, **options), images)
  found = encoders.computed(*load_pretrained(file), images)
  encoders.assert_close(found[1], np.asarray(expected[1]), 1e-5)
