"""Hugging Face's checkpoints and their configurations."""

import json
import pathlib
import shutil

import pytest

from tests import published
from vit_jax import load_pretrained
from vit_jax.pretrained.arrays import open_arrays, save_arrays
from vit_jax.pretrained.formats import hf_encoders, huggingface
from vit_jax.pretrained.load import open_checkpoint


def test_hugging_face_weights_alone_find_the_configuration_beside_them():
  path = published.path("hf_vit") + "/model.safetensors"
  model, params = load_pretrained(path)
  assert model.layer_norm_epsilon == 1e-12
  published.assert_same_logits(model, params, *published.examples("hf_vit"))


def test_without_a_configuration_the_librarys_defaults_hold(tmp_path):
  source = published.path("hf_vit") + "/model.safetensors"
  path = shutil.copy(source, tmp_path / "weights.safetensors")
  model, params = load_pretrained(str(path), num_heads=3)
  assert (model.gelu, model.layer_norm_epsilon) == ("exact", 1e-12)
  published.assert_same_logits(model, params, *published.examples("hf_vit"))


@pytest.mark.parametrize(
  "config, message",
  [
    ('{"model_type": "deit"}', "model_type='deit', and its arrays are"),
    ('{"hidden_act": "swish"}', "hidden_act='swish' is unknown; choose one"),
    ("{", "config.json is not JSON"),
    ("[1]", "config.json does not hold a JSON object"),
    ("[" * 100_000, "config.json is not JSON"),
    ('{"hidden_act": ["gelu"]}', r"hidden_act=\['gelu'\] must be a text"),
    ('{"num_attention_heads": "3"}', "heads='3' must be a whole number"),
    ('{"num_attention_heads": 2.0}', "heads=2.0 must be a whole number"),
    ('{"num_attention_heads": true}', "heads=True must be a whole number"),
    ('{"layer_norm_eps": null}', "layer_norm_eps=None must be a finite number"),
    ('{"layer_norm_eps": "x"}', "layer_norm_eps='x' must be a finite num"),
    ('{"layer_norm_eps": -1}', "layer_norm_eps=-1 must be more than 0"),
    ('{"layer_norm_eps": 1e308}', "layer_norm_eps=1e.308 must be a finite num"),
    ('{"layer_norm_eps": NaN}', "layer_norm_eps=nan must be a finite num"),
    ('{"image_size": -32}', "image_size=-32 must be a height and a width"),
    ('{"image_size": {"height": 32, "width": 32}}', "image_size={.* must be"),
    ('{"image_size": [32]}', r"image_size=\[32\] must be a height and a width"),
    ('{"id2label": {"a": "b"}}', "id2label has the key 'a'; all must be"),
    ('{"id2label": ["a"]}', r"id2label=\['a'\] must be a JSON object"),
  ],
)
def test_a_bad_configuration_is_one_line(tmp_path, config, message):
  source = pathlib.Path(published.path("hf_vit"))
  shutil.copy(source / "model.safetensors", tmp_path)
  (tmp_path / "config.json").write_text(config)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(str(tmp_path))
  assert "\n" not in str(info.value)


def renamed(arrays):
  """The names of `state_dict()` since release 5, of those that are saved."""
  table = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
  }
  found = {}
  for name, array in arrays.items():
    for old, new in table.items():
      name = name.replace(old, new)
    found[name] = array
  return found


def test_the_names_of_release_5_are_read(tmp_path):
  source = pathlib.Path(published.path("hf_vit"))
  with open_arrays(source / "model.safetensors") as arrays:
    new = renamed(arrays)
  assert "vit.layers.1.attention.o_proj.bias" in new and len(new) == 40
  save_arrays(tmp_path / "model.safetensors", new)
  shutil.copy(source / "config.json", tmp_path)
  model, params = load_pretrained(str(tmp_path))
  published.assert_same_logits(model, params, *published.examples("hf_vit"))


def test_another_pooler_is_refused():
  path = pathlib.Path(published.path("hf_vit"), "model.safetensors")
  with open_arrays(path) as arrays:
    shapes = {**arrays.shapes, "vit.pooler.dense.bias": (48,)}
  config = {"num_attention_heads": 3, "pooler_act": "relu"}
  with pytest.raises(ValueError, match="pooler_act='relu'; only 'tanh' is"):
    hf_encoders.infer(shapes, config)
  found = hf_encoders.infer(shapes, {**config, "pooler_act": "tanh"})
  assert found.fields["representation_size"]


@pytest.mark.parametrize(
  "config, num_classes, loss",
  [
    ({"problem_type": "multi_label_classification"}, 5, "sigmoid"),
    ({"problem_type": "single_label_classification"}, 5, "softmax"),
    ({}, 5, "softmax"),
    ({}, 1, "sigmoid"),
  ],
)
def test_the_loss_is_that_of_the_librarys_pipeline(config, num_classes, loss):
  assert huggingface.loss(config, num_classes) == loss


def test_hugging_face_preprocessing_and_labels_are_read(tmp_path):
  source = pathlib.Path(published.path("hf_vit"))
  shutil.copy(source / "model.safetensors", tmp_path)
  config = json.loads((source / "config.json").read_text())
  config["id2label"] = {str(i): f"class {i}" for i in range(10)}
  (tmp_path / "config.json").write_text(json.dumps(config))
  (tmp_path / "preprocessor_config.json").write_text(
    '{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}'
  )
  origin = open_checkpoint(str(tmp_path)).origin
  assert origin.mean == (0.1, 0.2, 0.3) and origin.std == (0.4, 0.5, 0.6)
  assert origin.class_names == tuple(f"class {i}" for i in range(10))
