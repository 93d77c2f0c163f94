"""Integers in the place of weights are refused; those of positions are not."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from tests.rows import some_slow
from tests.tiny import random_params
from vit_jax.pretrained.load import load_pretrained, load_text, open_checkpoint

WEIGHT = "vit.encoder.layer.0.attention.attention.query.weight"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
  """A small ViT as transformers has it."""
  folder = tmp_path_factory.mktemp("hf") / "vit"
  vit = vit_jax.make_vit(
    "Ti/8", num_classes=3, num_layers=1, hidden_size=12, mlp_size=24
  )
  params = random_params(vit, (32, 32), 0)
  vit_jax.save(vit, params, folder, image_size=32)
  return folder


def _copy(weights, tmp_path, arrays, **config):
  """The weights with some other arrays, and entries of their config.json."""
  stored = load_file(weights / "model.safetensors")
  assert WEIGHT in stored
  save_file({**stored, **arrays}, tmp_path / "model.safetensors")
  entries = json.loads((weights / "config.json").read_text())
  (tmp_path / "config.json").write_text(json.dumps({**entries, **config}))
  return str(tmp_path)


@pytest.mark.parametrize(
  "dtype",
  some_slow(
    [np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_],
    [np.int8, np.bool_],
  ),
)
@pytest.mark.parametrize("stated", [True, False])
def test_integers_are_no_weights(weights, tmp_path, dtype, stated):
  about = {"quantization_config": {"quant_method": "torchao"}} if stated else {}
  arrays = {WEIGHT: np.ones((12, 12), dtype)}
  folder = _copy(weights, tmp_path, arrays, **about)
  start = r"config.json has a quantization_config \('torchao'\): " * stated
  name = np.dtype(dtype).name
  with pytest.raises(
    ValueError, match=f"{start}array '{WEIGHT}' holds {name}, where floats bel"
  ):
    open_checkpoint(folder)


@pytest.mark.parametrize(
  "arrays",
  [
    {WEIGHT: np.ones((12, 6), np.uint8)},  # Two of 4 bits in a byte.
    {f"{WEIGHT}.absmax": np.ones(3, np.float32)},
    {"qweight": np.ones(3, np.int32)},
  ],
)
def test_the_configuration_is_named_for_other_arrays(weights, tmp_path, arrays):
  about = {"quantization_config": {"quant_method": "bitsandbytes"}}
  folder = _copy(weights, tmp_path, arrays, **about)
  with pytest.raises(
    ValueError,
    match=r"a quantization_config \('bitsandbytes'\): .*uantised weights are",
  ):
    open_checkpoint(folder)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_floats_of_eight_bits_are_refused(weights, tmp_path, kind):
  folder = _copy(
    weights,
    tmp_path,
    {WEIGHT: np.ones((12, 12), np.uint8)},
    quantization_config={},
  )
  path = tmp_path / "model.safetensors"
  content = path.read_bytes()
  at = content.index(WEIGHT.encode())
  start, rest = (
    content[:at],
    content[at:].replace(b'"U8"', b'"%b"' % kind.encode(), 1),
  )
  size = int.from_bytes(start[:8], "little") + len(kind) - 2
  path.write_bytes(size.to_bytes(8, "little") + start[8:] + rest)
  with pytest.raises(
    ValueError, match=f"{WEIGHT}.*of type {kind}; one of BOOL"
  ):
    open_checkpoint(folder)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_and_indices_are_read(weights, tmp_path, dtype):
  stored = load_file(weights / "model.safetensors")
  arrays = {
    WEIGHT: stored[WEIGHT].astype(dtype),
    "vit.embeddings.position_ids": np.arange(17)[None],
  }
  folder = _copy(weights, tmp_path, arrays, quantization_config=None)
  loaded = load_pretrained(folder)
  kernel = loaded.params["block_0"]["msa"]["query"]["kernel"]
  wanted = stored[WEIGHT].T.reshape(kernel.shape)
  np.testing.assert_allclose(kernel, wanted, rtol=1e-3, atol=1e-5)


def test_a_text_tower_of_integers_is_refused(tmp_path):
  texts = pathlib.Path(__file__).parents[1] / "checkpoints" / "texts"
  folder = shutil.copytree(texts / "hf_clip", tmp_path / "hf_clip")
  arrays = load_file(folder / "model.safetensors")
  ids = np.arange(8)[None]  # As earlier releases wrote them.
  arrays["text_model.embeddings.position_ids"] = ids
  save_file(arrays, folder / "model.safetensors")
  load_text(str(folder))
  name = "text_model.encoder.layers.0.self_attn.q_proj.weight"
  arrays[name] = arrays[name].astype(np.int8)
  save_file(arrays, folder / "model.safetensors")
  with pytest.raises(ValueError, match=f"array '{name}' holds int8, where"):
    load_text(str(folder))
