"""Published checkpoints read back: parity with the publishers, and messages."""

import json
import pathlib
import shutil
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import digits
from tests import fixtures
from vit_jax import load_pretrained
from vit_jax.config import base_config
from vit_jax.models import Vit, to_fields
from vit_jax.pretrained import known
from vit_jax.pretrained.array_writer import save_arrays
from vit_jax.pretrained.formats import timm
from vit_jax.pretrained.load import open_pretrained
from vit_jax.run import loop
from vit_jax.run.settings import read
from vit_jax.training.state import TrainState
from vit_jax.workdir.checkpoint import Checkpoints, is_run, open_run
from vit_jax.workdir.description import sealed


def arrays_of(name):
  with np.load(fixtures.path(name)) as stored:
    return dict(stored)


def renamed(arrays, prefix):
  return {f"{prefix}{name}": array for name, array in arrays.items()}


@pytest.mark.parametrize("name", fixtures.CHECKPOINTS)
def test_the_publishers_logits_are_reproduced(name):
  model, params = load_pretrained(
    fixtures.path(name), **fixtures.CHECKPOINTS[name]
  )
  fixtures.assert_same_logits(model, params, *fixtures.examples(name))


def test_hugging_face_weights_alone_find_the_configuration_beside_them():
  path = fixtures.path("hf_vit") + "/model.safetensors"
  model, params = load_pretrained(path)
  assert model.layer_norm_epsilon == 1e-12
  fixtures.assert_same_logits(model, params, *fixtures.examples("hf_vit"))


def test_without_a_configuration_the_librarys_defaults_hold(tmp_path):
  source = fixtures.path("hf_vit") + "/model.safetensors"
  path = shutil.copy(source, tmp_path / "weights.safetensors")
  model, params = load_pretrained(str(path), num_heads=3)
  assert (model.gelu, model.layer_norm_epsilon) == ("exact", 1e-12)
  fixtures.assert_same_logits(model, params, *fixtures.examples("hf_vit"))


@pytest.mark.parametrize(
  "name, format, fields",
  [
    ("google_vit.npz", "google", {"gelu": "tanh", "pooling": "token"}),
    ("google_vit_prelogits.npz", "google", {"representation_size": 40}),
    ("google_hybrid.npz", "google", {"resnet_layers": (1, 1)}),
    ("big_vision_tok.npz", "big_vision", {"position": "learned_grid"}),
    ("big_vision_gap.npz", "big_vision", {"position": "sincos2d"}),
    ("hf_vit", "hf", {"gelu": "exact", "layer_norm_epsilon": 1e-12}),
    ("timm_vit.safetensors", "timm", {"layer_norm_epsilon": 1e-6}),
    ("torchvision_vit.safetensors", "torchvision", {"gelu": "exact"}),
  ],
)
def test_the_model_reports_what_it_was_read_as(name, format, fields):
  path = fixtures.path(name)
  pretrained = open_pretrained(path, **fixtures.CHECKPOINTS[name])
  model, origin = pretrained.model, pretrained.origin
  assert (origin.format, origin.source) == (format, path)
  assert {key: getattr(model, key) for key in fields} == fields
  size = {"google_hybrid.npz": (64, 64), "big_vision_gap.npz": None}
  assert origin.image_size == size.get(name, (32, 32))
  if format == "torchvision":
    assert origin.mean == (0.485, 0.456, 0.406)
    assert origin.std == (0.229, 0.224, 0.225)
  else:
    assert origin.mean == origin.std == (0.5, 0.5, 0.5)


def test_keywords_go_before_the_format():
  path = fixtures.path("google_vit.npz")
  model, params = load_pretrained(
    path, gelu="exact", mean=(0, 0, 0), std=(1, 1, 1)
  )
  assert model.origin.mean == (0, 0, 0) and model.origin.std == (1, 1, 1)
  images, expected = fixtures.examples("google_vit.npz")
  logits = jax.jit(model.apply)({"params": params}, jnp.asarray(images))
  assert 1e-6 < np.abs(logits - expected).max() < 1e-2


def test_positions_are_resized_to_another_image_size():
  path = fixtures.path("google_vit.npz")
  model, params = load_pretrained(path, image_size=(48, 64))
  assert model.origin.image_size == (48, 64)
  assert params["position"]["E_pos"].shape == (1 + 6 * 8, 48)
  images = jnp.zeros((2, 48, 64, 3))
  assert jax.jit(model.apply)({"params": params}, images).shape == (2, 10)


@pytest.mark.parametrize("prefix", ["params/", "opt/target/", "params/img/"])
def test_a_training_checkpoint_gives_its_image_tower(tmp_path, prefix):
  arrays = renamed(arrays_of("big_vision_tok.npz"), prefix)
  arrays["opt/count"] = np.zeros(1, np.float32)
  if prefix == "params/img/":
    arrays["params/txt/Embed_0/embedding"] = np.zeros((7, 48), np.float32)
  save_arrays(tmp_path / "full.npz", arrays)
  model, params = load_pretrained(str(tmp_path / "full.npz"))
  examples = fixtures.examples("big_vision_tok.npz")
  fixtures.assert_same_logits(model, params, *examples)


def test_scanned_layers_are_unstacked(tmp_path):
  arrays = arrays_of("big_vision_gap.npz")
  stacked = {
    name: array for name, array in arrays.items() if "block_" not in name
  }
  for name, array in arrays.items():
    if "encoderblock_0" in name:
      other = arrays[name.replace("block_0", "block_1")]
      stacked[name.replace("block_0", "block")] = np.stack([array, other])
  save_arrays(tmp_path / "scanned.npz", stacked)
  model, params = load_pretrained(str(tmp_path / "scanned.npz"))
  examples = fixtures.examples("big_vision_gap.npz")
  fixtures.assert_same_logits(model, params, *examples)


def test_a_map_head_is_read(tmp_path):
  """As SigLIP's image tower: attention pooling and no head."""
  arrays = arrays_of("big_vision_gap.npz")
  del arrays["head/kernel"], arrays["head/bias"]
  rng = np.random.default_rng(0)

  def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)

  arrays["pos_embedding"] = draw(1, 16, 48)
  arrays["MAPHead_0/probe"] = draw(1, 1, 48)
  for name in ("query", "key", "value"):
    module = f"MAPHead_0/MultiHeadDotProductAttention_0/{name}"
    arrays[f"{module}/kernel"] = draw(48, 3, 16)
    arrays[f"{module}/bias"] = draw(3, 16)
  module = "MAPHead_0/MultiHeadDotProductAttention_0/out"
  arrays[f"{module}/kernel"] = draw(3, 16, 48)
  arrays[f"{module}/bias"] = draw(48)
  arrays["MAPHead_0/LayerNorm_0/scale"] = draw(48)
  arrays["MAPHead_0/LayerNorm_0/bias"] = draw(48)
  arrays["MAPHead_0/MlpBlock_0/Dense_0/kernel"] = draw(48, 96)
  arrays["MAPHead_0/MlpBlock_0/Dense_0/bias"] = draw(96)
  arrays["MAPHead_0/MlpBlock_0/Dense_1/kernel"] = draw(96, 48)
  arrays["MAPHead_0/MlpBlock_0/Dense_1/bias"] = draw(48)
  save_arrays(tmp_path / "siglip.npz", renamed(arrays, "params/img/"))
  model, params = load_pretrained(str(tmp_path / "siglip.npz"))
  assert (model.pooling, model.num_classes) == ("map", 0)
  assert model.position == "learned"
  images, _ = fixtures.examples("big_vision_gap.npz")
  y = jax.jit(model.apply)({"params": params}, jnp.asarray(images))
  assert y.shape == (4, 48)
  pooling = params["map_head"]
  same = {
    "probe": pooling["probe"][None],
    "MultiHeadDotProductAttention_0/key/bias": pooling["msa"]["key"]["bias"],
    "LayerNorm_0/scale": pooling["norm"]["scale"],
    "MlpBlock_0/Dense_1/kernel": pooling["mlp"]["contract"]["kernel"],
  }
  for name, array in same.items():
    np.testing.assert_array_equal(arrays[f"MAPHead_0/{name}"], array)


def test_half_precision_weights_come_as_float32(tmp_path):
  arrays = arrays_of("google_vit.npz")
  half = {name: array.astype(np.float16) for name, array in arrays.items()}
  save_arrays(tmp_path / "half.npz", half)
  _, params = load_pretrained(str(tmp_path / "half.npz"))
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))


def changed(name, tmp_path, change):
  """A copy of a fixture after `change` has been at its arrays."""
  arrays = arrays_of(name)
  change(arrays)
  save_arrays(tmp_path / "changed.npz", arrays)
  return str(tmp_path / "changed.npz")


def drop_biases(arrays):
  for name in [*arrays]:
    if name.endswith(("query/bias", "key/bias", "value/bias")):
      del arrays[name]


@pytest.mark.parametrize(
  "change, message",
  [
    (
      lambda a: a.update({"Transformer/extra/gamma": np.zeros(3, "f4")}),
      r"1 unknown: Transformer/extra/gamma \(3,\). Likely cause: .*LayerScale",
    ),
    (drop_biases, "6 missing: .* and 2 more. .*without these biases"),
    (
      lambda a: a.update({"head/kernel": np.zeros((48, 9), "f4")}),
      r"1 wrong shape: head/kernel is \(48, 9\) and should be \(48, 10\)",
    ),
    (
      lambda a: a.update(
        {"Transformer/posembed_input/pos_embedding": np.zeros((1, 7, 48), "f4")}
      ),
      r"6 positions are of no square grid: give grid=\(h, w\)",
    ),
    (lambda a: a.pop("head/kernel"), "only a part of the model was saved"),
    (
      lambda a: a.pop("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"),
      "no array '.*Dense_0/kernel', which tells the model's size",
    ),
  ],
)
def test_what_does_not_fit_is_listed_with_its_cause(tmp_path, change, message):
  path = changed("google_vit.npz", tmp_path, change)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(path)
  assert "\n" not in str(info.value)
  assert str(info.value).startswith(path)


def test_a_strange_grid_can_be_told(tmp_path):
  def widen(arrays):
    name = "Transformer/posembed_input/pos_embedding"
    arrays[name] = np.zeros((1, 1 + 2 * 3, 48), np.float32)

  path = changed("google_vit.npz", tmp_path, widen)
  model, params = load_pretrained(path, grid=(2, 3))
  assert model.origin.image_size == (16, 24)
  images = jnp.zeros((1, 16, 24, 3))
  assert jax.jit(model.apply)({"params": params}, images).shape == (1, 10)


@pytest.mark.parametrize(
  "name, overrides, message",
  [
    ("timm_vit.safetensors", {}, "heads cannot be told .* of 48: give num_h"),
    ("google_vit.npz", {"heads": 3}, "Vit has no field heads; it has .*num_he"),
    ("google_vit.npz", {"step": 3}, "step is of a workdir's checkpoints"),
    ("google_vit.npz", {"image_size": 30}, r"stride of 8 pixels; \(32, 32\)"),
    (
      "google_vit.npz",
      {"image_size": 64, "interpolation": "nearest"},
      "interpolation='nearest' is unknown; choose one of linear, bicubic",
    ),
    (
      "google_vit.npz",
      {"interpolation": "foo"},
      "interpolation='foo' is unknown; choose one of linear, bicubic",
    ),
    (
      "google_vit.npz",
      {"image_size": (48,)},
      r"image_size=\(48,\) must be a h",
    ),
    ("google_vit.npz", {"scan": True}, "scan=True is how a run is trained"),
    ("google_vit.npz", {"image_size": "48"}, "image_size='48' must be a heig"),
    ("google_vit.npz", {"grid": (4, 0)}, r"grid=\(4, 0\) must be a height an"),
    ("google_vit.npz", {"mean": 0.5}, "mean=0.5 must be three numbers, as of"),
    ("google_vit.npz", {"std": (0, 1, 1)}, r"std=.* must be .* above 0"),
    ("google_vit.npz", {"dtype": "foo"}, "dtype='foo' is no type; choose su"),
    ("google_vit.npz", {"num_heads": "3"}, "num_heads='3' must be a whole n"),
    (
      "google_vit.npz",
      {"layer_norm_epsilon": -1},
      "silon=-1 must be more than",
    ),
  ],
)
def test_bad_keywords_are_one_line(name, overrides, message):
  path = fixtures.path(name)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(path, **overrides)
  assert "\n" not in str(info.value)


def test_another_architecture_is_named(tmp_path):
  save_arrays(tmp_path / "x.npz", {"conv1/w": np.zeros(3), "fc/b": np.zeros(2)})
  with pytest.raises(ValueError, match=r"2 arrays \(conv1/w, fc/b, ...\) are"):
    load_pretrained(str(tmp_path / "x.npz"))


@pytest.mark.parametrize(
  "config, message",
  [
    ('{"model_type": "deit"}', "model_type='deit', and only 'vit'"),
    ('{"hidden_act": "swish"}', "hidden_act='swish'; known are gelu"),
    ("{", "config.json is no JSON"),
    ("[1]", "config.json holds no JSON object"),
    ("[" * 100_000, "config.json is no JSON"),
    ('{"hidden_act": ["gelu"]}', r"hidden_act=\['gelu'\]; known are gelu"),
    ('{"num_attention_heads": "3"}', "heads='3' must be a whole number, 1 or"),
    ('{"num_attention_heads": 2.0}', "heads=2.0 must be a whole number"),
    ('{"num_attention_heads": true}', "heads=True must be a whole number"),
    ('{"layer_norm_eps": null}', "layer_norm_eps=None must be a number above"),
    ('{"layer_norm_eps": "x"}', "layer_norm_eps='x' must be a number above 0"),
    ('{"layer_norm_eps": -1}', "layer_norm_eps=-1 must be a number above 0"),
    ('{"layer_norm_eps": NaN}', "layer_norm_eps=nan must be a number above 0"),
    ('{"image_size": -32}', "image_size=-32 must be a height and a width"),
    ('{"image_size": {"height": 32, "width": 32}}', "image_size={.* must be"),
    ('{"image_size": [32]}', r"image_size=\[32\] must be a height and a width"),
    ('{"image_mean": 0.5}', "image_mean=0.5 must be three numbers, as of red"),
    ('{"image_mean": null}', "image_mean=None must be three numbers"),
    ('{"image_mean": ["a", 1, 1]}', "image_mean=.* must be three numbers"),
    ('{"image_mean": [0, 0, 0, 0]}', "image_mean=.* must be three numbers"),
    ('{"image_std": [0, 0, 0]}', r"image_std=.* must be three numbers above 0"),
    ('{"id2label": {"a": "b"}}', "id2label has the key 'a'; all must be the"),
    ('{"id2label": ["a"]}', r"id2label=\['a'\] must be a JSON object"),
  ],
)
def test_a_bad_configuration_is_one_line(tmp_path, config, message):
  source = pathlib.Path(fixtures.path("hf_vit"))
  shutil.copy(source / "model.safetensors", tmp_path)
  (tmp_path / "config.json").write_text(config)
  with pytest.raises(ValueError, match=message) as info:
    load_pretrained(str(tmp_path))
  assert "\n" not in str(info.value)


def test_hugging_face_preprocessing_and_labels_are_read(tmp_path):
  source = pathlib.Path(fixtures.path("hf_vit"))
  shutil.copy(source / "model.safetensors", tmp_path)
  config = json.loads((source / "config.json").read_text())
  config["id2label"] = {str(i): f"class {i}" for i in range(10)}
  (tmp_path / "config.json").write_text(json.dumps(config))
  (tmp_path / "preprocessor_config.json").write_text(
    '{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}'
  )
  origin = open_pretrained(str(tmp_path)).origin
  assert origin.mean == (0.1, 0.2, 0.3) and origin.std == (0.4, 0.5, 0.6)
  assert origin.class_names == tuple(f"class {i}" for i in range(10))


def timm_shapes(positions, **more):
  return {
    "patch_embed.proj.weight": (48, 3, 8, 8),
    "cls_token": (1, 1, 48),
    "pos_embed": (1, positions, 48),
    "blocks.0.mlp.fc1.weight": (96, 48),
    **more,
  }


@pytest.mark.parametrize(
  "config, message",
  [
    ({"model_args": 5}, "model_args=5 must be a JSON object"),
    ({"pretrained_cfg": [1]}, r"pretrained_cfg=\[1\] must be a JSON object"),
    ({"model_args": {"num_heads": "3"}}, "num_heads='3' must be a whole numb"),
    ({"model_args": {"img_size": 0}}, "img_size=0 must be a height and a wi"),
    ({"pretrained_cfg": {"input_size": 3.5}}, "img_size=3.5 must be a heigh"),
    ({"mean": 0.5}, "mean=0.5 must be three numbers"),
    ({"std": [1, 1, 0]}, r"std=\[1, 1, 0\] must be three numbers above 0"),
    ({"label_names": 3}, "label_names=3 must be a list of names"),
    ({"model_args": {"act_layer": ["a"]}}, r"act_layer=.*; known are gelu"),
    (
      {"global_pool": "avg"},
      "global_pool='avg', and there is a class token: only .*'token' can be",
    ),
    ({"model_args": {"global_pool": "map"}}, "global_pool='map', and there"),
  ],
)
def test_a_bad_timm_configuration_is_one_line(config, message):
  with pytest.raises(ValueError, match=message) as info:
    timm.facts(timm_shapes(17), config)
  assert "\n" not in str(info.value)


def test_timm_averages_only_without_a_class_token():
  shapes = timm_shapes(16)
  del shapes["cls_token"]
  facts = timm.facts(shapes, {"global_pool": "avg"})
  assert (facts.fields["pooling"], facts.tokens) == ("gap", 16)
  with pytest.raises(ValueError, match="no class token: only .*'avg' can be"):
    timm.facts(shapes, {"global_pool": "token"})


@pytest.mark.parametrize(
  "positions, config, position",
  [
    (16, {}, "learned_grid"),
    (17, {}, "learned"),
    (16, {"model_args": {"no_embed_class": True}}, "learned_grid"),
    (16, {"architecture": "vit"}, "learned"),
    (16, {"model_args": {"img_size": [24, 40]}}, "learned"),
    (15, {"model_args": {"img_size": [24, 40]}}, "learned_grid"),
    (16, {"pretrained_cfg": {"input_size": [3, 24, 40]}}, "learned"),
    (16, {"pretrained_cfg": {"input_size": [3, 32, 32]}}, "learned_grid"),
  ],
)
def test_timm_may_leave_the_class_token_without_a_position(
  positions, config, position
):
  """`no_embed_class`: N positions beside a class token."""
  facts = timm.facts(timm_shapes(positions), config)
  assert facts.fields["position"] == position
  assert facts.tokens == positions - (position == "learned")


def test_timms_image_size_is_the_models_or_else_its_preprocessings():
  size = {"pretrained_cfg": {"input_size": [3, 24, 40]}}
  facts = timm.facts(timm_shapes(16), size)
  assert facts.image_size == (24, 40)
  own = {**size, "model_args": {"img_size": 32}}
  assert timm.facts(timm_shapes(16), own).image_size == (32, 32)


def test_imagenets_classes_have_names_where_the_source_is_known():
  names = known.class_names("b16_augreg_i1k_384", 1000)
  assert len(names) == len(set(names)) == 1000
  assert names[207] == "golden retriever" and names[963] == "pizza"
  url = known.KNOWN["b16_i1k_384"].url
  assert known.class_names(url, 1000) == names
  assert known.class_names("b16_augreg", 21_843) == ()
  assert known.class_names("elsewhere.npz", 1000) == ()


def test_imagenets_names_are_in_the_order_of_its_synsets():
  shared = pathlib.Path(__file__).parents[3] / "shared"
  samples = shared / "data" / "imagenet_samples"
  if not samples.exists():
    pytest.skip("needs shared/data/imagenet_samples beside the repository")
  names = known.class_names("torchvision_b16", 1000)
  found = []
  for path in sorted(samples.iterdir()):  # Such as n01518878_ostrich.JPEG.
    name = path.stem.split("_", 1)[1].replace("_", " ")
    if name in names and names.count(name) == 1:
      found.append(names.index(name))
  assert len(found) > 100
  assert found == sorted(found)


def test_an_empty_folder_says_what_it_lacks(tmp_path):
  with pytest.raises(ValueError, match="without checkpoints/, as a workdir"):
    load_pretrained(str(tmp_path))


def test_a_workdir_gives_the_averaged_parameters(data_dir, tmp_path):
  config = digits.get_config()
  config.update(total_epochs=0.0, total_steps=3, ema_decay=0.5)
  config.data.data_dir = str(data_dir)
  config.optimizer.warmup_epochs = 0.0
  config.model.num_layers = 1
  workdir = str(tmp_path / "run")
  state, _ = loop.train(read(config), workdir)
  model, params = load_pretrained(workdir)
  expected = jax.device_get(state.averaged_params)
  same = jax.tree.map(np.array_equal, params, expected)
  assert jax.tree.all(same)
  assert model.origin.format == "vit_jax"
  assert model.origin.image_size == (8, 8)
  assert model.origin.class_names == tuple(map(str, range(10)))
  with pytest.raises(ValueError, match="no checkpoint of step 7; there is one"):
    load_pretrained(workdir, step=7)
  bare = {"a": np.zeros(2, np.float32)}
  save_arrays(tmp_path / "run.safetensors", bare)
  with pytest.raises(ValueError, match="named as in no format known here"):
    load_pretrained(str(tmp_path / "run.safetensors"))


@pytest.mark.parametrize(
  "path", ["http://x/a.npz", "hf://owner/name", "s3://bucket/run", "foo://x"]
)
def test_no_address_but_gs_is_a_workdir(path):
  assert not is_run(path)


def test_without_gcsfs_a_public_object_is_fetched(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
  with pytest.raises((ValueError, OSError), match="127.0.0.1:9/bucket/a.npz"):
    load_pretrained("gs://bucket/a.npz")
  with pytest.raises(ValueError, match="no checkpoints: .*gs:// needs gcsfs"):
    open_run("gs://bucket/run")


RUN = Vit(3, 8, 24, 1, 48, 3, pooling="gap")


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory):
  """A workdir, as training leaves it."""
  config = base_config()
  config.image_size = (16, 16)
  config.normalization.update(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
  description = {
    "config": config.to_dict(),
    "model": to_fields(RUN),
    "class_names": list("abc"),
  }
  init = jax.jit(RUN.init)
  params = init(jax.random.key(0), jnp.zeros((1, 16, 16, 3)))["params"]
  folder = tmp_path_factory.mktemp("saved") / "run"
  checkpoints = Checkpoints(str(folder))
  state = TrainState(jnp.int32(2), nn.unbox(params), {"count": jnp.int32(2)})
  checkpoints.save(state, 2, description, None)
  checkpoints.close()
  return folder


@pytest.mark.parametrize(
  "fields, message",
  [
    (
      {"num_heads": 2, "gelu": "exact"},
      r"not trained with num_heads=2, gelu='exact': 7 wrong shape: .*3 more. L",
    ),
    ({"pooling": "token"}, r"1 missing: x_class \(24,\); 1 wrong shape: pos"),
    ({"num_layers": 2}, "was not trained with num_layers=2: 16 missing: bl"),
    ({"heads": 2}, "Vit has no field heads"),
  ],
)
def test_a_workdirs_arrays_are_those_of_the_model_asked_for(
  saved_run, fields, message
):
  with pytest.raises(ValueError, match=message) as info:
    open_pretrained(str(saved_run), **fields)
  assert "\n" not in str(info.value)
  model = open_pretrained(str(saved_run), gelu="exact").model
  assert model.gelu == "exact"


def test_a_workdir_is_read_without_a_word(saved_run, capfd):
  load_pretrained(str(saved_run))
  assert capfd.readouterr() == ("", "")


def _truncate(folder):
  for path in (folder / "params").rglob("d/*"):
    path.write_bytes(path.read_bytes()[:100])


def _write(text):
  return lambda folder: (folder / "description/metadata").write_text(text)


@pytest.mark.parametrize(
  "damage, message",
  [
    (lambda f: shutil.rmtree(f / "params"), 'Item "params" was not found'),
    (lambda f: shutil.rmtree(f / "description"), '"description" was not fo'),
    (_write('{"config'), "Unterminated string"),
    (_write("[1]"), "not a JSON object"),
    (_truncate, "OUT_OF_RANGE"),
    (lambda f: (f / "params/_METADATA").write_text("{"), "Expecting property"),
  ],
)
def test_a_damaged_checkpoint_is_named(
  saved_run, tmp_path, capfd, damage, message
):
  shutil.copytree(saved_run, tmp_path / "run")
  damage(tmp_path / "run/checkpoints/2")
  whole = rf"checkpoint 2 of .*/run is damaged.* \(.*{message}.*\): choose anot"
  with pytest.raises(ValueError, match=whole) as info:
    load_pretrained(str(tmp_path / "run"))
  assert "\n" not in str(info.value)
  assert capfd.readouterr().err == ""


def test_a_description_without_a_model_is_refused(saved_run, tmp_path):
  shutil.copytree(saved_run, tmp_path / "run")
  path = tmp_path / "run/checkpoints/2/description/metadata"
  description = json.loads(path.read_text())
  del description["model"], description["digest"]
  path.write_text(json.dumps(sealed(description)))
  with pytest.raises(ValueError, match="its description has no model"):
    load_pretrained(str(tmp_path / "run"))
