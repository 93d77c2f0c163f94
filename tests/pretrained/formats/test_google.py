"""Google's checkpoints: prefixes, scanned layers and MAP heads."""

import numpy as np
import pytest

from tests import encoders, published
from tests.rows import some_slow
from vit_jax import load_pretrained
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.pretrained.arrays import save_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint

PRE_TRAINED = EvalTransformSettings("center", 256 / 224, "area")


def renamed(arrays, prefix):
  return {f"{prefix}{name}": array for name, array in arrays.items()}


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/"])
def test_a_training_checkpoint_gives_its_image_tower(tmp_path, prefix):
  arrays = renamed(published.arrays("big_vision_tok.npz"), prefix)
  arrays["opt/count"] = np.zeros(1, np.float32)
  if prefix == "params/img/":
    arrays["params/txt/Embed_0/embedding"] = np.zeros((7, 48), np.float32)
  save_arrays(tmp_path / "full.npz", arrays)
  model, params = load_pretrained(str(tmp_path / "full.npz"))
  examples = published.examples("big_vision_tok.npz")
  published.assert_same_logits(model, params, *examples)


@pytest.mark.slow
def test_a_hybrid_as_todays_flax_saves_it(tmp_path):
  """Its group norms have one axis, those of the published files four."""
  arrays = {
    name: array.reshape(-1) if "gn" in name else array
    for name, array in published.arrays("google_hybrid.npz").items()
  }
  assert arrays["gn_root/scale"].ndim == 1
  save_arrays(tmp_path / "flat.npz", arrays)
  model, params = load_pretrained(str(tmp_path / "flat.npz"))
  examples = published.examples("google_hybrid.npz")
  published.assert_same_logits(model, params, *examples)


@pytest.mark.parametrize(
  "name, crop",
  [
    ("google_vit.npz", EvalTransformSettings(antialias=False)),
    ("google_vit_prelogits.npz", PRE_TRAINED),
    ("big_vision_tok.npz", PRE_TRAINED),
  ],
)
def test_preprocessing_is_that_of_the_kind_of_checkpoint(name, crop):
  """Fine-tuning takes the whole picture, pre-training 7/8 of its short side."""
  found = open_checkpoint(published.path(name)).preprocessing
  assert (found.crop, found.mean) == (crop, (0.5,) * 3)


# Arrays of SigLIP in big_vision's files, at the width and depth of the fixture.
SIGLIP = {
  "embedding/kernel": (8, 8, 3, 32),
  "pos_embedding": (1, 16, 32),
  "Transformer/encoderblock_1/LayerNorm_0/scale": (32,),
  "Transformer/encoderblock_1/LayerNorm_1/bias": (32,),
  "Transformer/encoderblock_1/MultiHeadDotProductAttention_0/out/kernel": (
    *(2, 16, 32),
  ),
  "Transformer/encoderblock_1/MlpBlock_0/Dense_1/kernel": (64, 32),
  "Transformer/encoder_norm/bias": (32,),
  "MAPHead_0/probe": (1, 1, 32),
  "MAPHead_0/MultiHeadDotProductAttention_0/key/kernel": (32, 2, 16),
  "MAPHead_0/LayerNorm_0/scale": (32,),
  "MAPHead_0/MlpBlock_0/Dense_0/bias": (64,),
}


def stacked(arrays):
  """The arrays with those of all layers stacked, as big_vision scans them."""
  found = {k: v for k, v in arrays.items() if "encoderblock_" not in k}
  for name in arrays:
    if "encoderblock_0" in name:
      layers = [arrays[name.replace("_0/", f"_{i}/", 1)] for i in (0, 1)]
      found[name.replace("encoderblock_0", "encoderblock")] = np.stack(layers)
  return found


@pytest.mark.parametrize("scanned", some_slow([False, True], [True]))
def test_siglip_answers_in_big_visions_form_as_in_transformers(
  tmp_path, scanned
):
  """SigLIP 2's layers are scanned; a text tower stands beside the image's."""
  convert(encoders.path("hf_siglip"), str(tmp_path / "out"), "big_vision")
  with np.load(tmp_path / "out" / "model.npz") as file:
    arrays = dict(file)
  assert SIGLIP.items() <= {k: v.shape for k, v in arrays.items()}.items()
  arrays = renamed(stacked(arrays) if scanned else arrays, "params/img/")
  arrays |= {"params/t": np.ones(1), "params/txt/head/bias": np.ones(32)}
  save_arrays(tmp_path / "siglip.npz", arrays)
  model, params = load_pretrained(str(tmp_path / "siglip.npz"))
  assert (model.pooling, model.num_classes) == ("map", 0)
  images, tokens, answer = encoders.expected("hf_siglip", "32x32")
  found = encoders.computed(model, params, images)
  encoders.assert_close(found[0], tokens)
  encoders.assert_close(found[1], answer)
