"""Where parameters lie, against tables that are written out by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.models.tiny_vit import tiny
from tests.models.towers import (
  AUTOENCODER,
  TOKENS,
  TOWERS,
  Autoencoder,
  TwoTowers,
  flat_shapes,
  modules_of,
)
from tests.rows import some_slow
from vit_jax import make_resnet, make_vit
from vit_jax.families import FAMILIES
from vit_jax.models.masked_vit import masked_vit
from vit_jax.models.parts import (
  DECODER,
  ENCODER,
  INPUT,
  Part,
  Parts,
  Stack,
  guess_parts,
)
from vit_jax.models.variants import VITS
from vit_jax.training import lora
from vit_jax.training.optimizer import make_optimizer, trainable_filter
from vit_jax.training.settings import LoraSettings, OptimizerSettings

# Depth below the head of all that is in each module or parameter at the root.
PLAIN = {"patches": 3, "block_0": 2, "block_1": 1, "norm": 0, "head": 0}
TOKEN = {**PLAIN, "x_class": 3, "position": 3}
GAP = {**PLAIN, "position": 3}
DINOV2 = {**TOKEN, "registers": 3}
STEM = dict.fromkeys(["conv_root", "norm_root", "stage0_unit0"], 1)
RESNET = {**STEM, "stage1_unit0": 1, "stage1_unit1": 1, "head": 0}
PATCHES, RESNETS = "patches/E/kernel", "conv_root/kernel"
MODELS = {
  "paper's": (tiny(), TOKEN, PATCHES),
  "pre-training": (
    tiny(representation_size=8),
    {**TOKEN, "pre_logits": 0},
    PATCHES,
  ),
  "without a head": (
    tiny(num_classes=0),
    {k: v for k, v in TOKEN.items() if k != "head"},
    PATCHES,
  ),
  "gap": (tiny(pooling="gap"), GAP, PATCHES),
  "map": (tiny(pooling="map"), {**GAP, "map_head": 0}, PATCHES),
  "positions in every layer": (
    tiny(position_at="every_layer"),
    {
      **{k: v for k, v in TOKEN.items() if k != "position"},
      "position_0": 3,
      "position_1": 3,
    },
    PATCHES,
  ),
  "relative positions": (
    tiny(position="relative", position_at="shared"),
    {**PLAIN, "x_class": 3, "relative": 3},
    PATCHES,
  ),
  "hybrid": (
    tiny(resnet_layers=(1, 1), patch_size=1, resnet_width=32),
    {**TOKEN, "resnet": 3},
    "resnet/conv_root/kernel",
  ),
  "axial": (make_vit("Axial-Ti/4", 5, num_layers=2), GAP, PATCHES),
  "masked": (masked_vit(tiny(), 8), {**TOKEN, "mask": 3}, PATCHES),
  "dinov2": (tiny(block="dinov2", registers=2), DINOV2, PATCHES),
  "dinov3": (
    tiny(block="dinov3", num_heads=2),
    {**PLAIN, "x_class": 3, "registers": 3},
    PATCHES,
  ),
  "clip": (tiny(block="clip"), {**TOKEN, "norm_pre": 3}, PATCHES),
  "deit": (
    tiny(block="deit"),
    {**TOKEN, "x_dist": 3, "head_dist": 0},
    PATCHES,
  ),
  "deit3": (tiny(block="deit3"), TOKEN, PATCHES),
  "beit": (tiny(block="beit"), {**PLAIN, "x_class": 3}, PATCHES),
  "shared biases": (
    tiny(block="beit", relative_shared=True),
    {**PLAIN, "x_class": 3, "relative": 3},
    PATCHES,
  ),
  "tipsv2": (tiny(block="tipsv2"), DINOV2, PATCHES),
  "aimv2": (tiny(block="aimv2"), GAP, PATCHES),
  "aimv2 with its head": (
    tiny(block="aimv2", pooling="query"),
    {**GAP, "map_head": 0},
    PATCHES,
  ),
  "internvit": (
    tiny(block="internvit"),
    {k: v for k, v in TOKEN.items() if k != "norm"},
    PATCHES,
  ),
  "radio": (
    tiny(block="radio"),
    {k: v for k, v in DINOV2.items() if k != "norm"},
    PATCHES,
  ),
  "pixio": (tiny(block="pixio"), DINOV2, PATCHES),
  "parallel": (tiny(block="parallel"), TOKEN, PATCHES),
  "beit3": (tiny(block="beit3"), TOKEN, PATCHES),
  "eva": (tiny(block="eva"), TOKEN, PATCHES),
  "eva02": (tiny(block="eva02"), TOKEN, PATCHES),
  "rope_axial": (tiny(block="rope_axial"), {**PLAIN, "x_class": 3}, PATCHES),
  "rope_mixed": (tiny(block="rope_mixed"), {**PLAIN, "x_class": 3}, PATCHES),
  "mlcd": (
    tiny(block="mlcd"),
    {**PLAIN, "x_class": 3, "x_class_angles": 3, "norm_pre": 3},
    PATCHES,
  ),
  "pe": (tiny(block="pe"), {**TOKEN, "norm_pre": 3, "map_head": 0}, PATCHES),
  "ResNet": (make_resnet("R50x1", 5, layers=(1, 2)), RESNET, RESNETS),
}
HEADS = {"head", "head_dist", "pre_logits"}
NOT_TAKEN_OVER = {"head", "head_dist", "mask"}
QUICK = ("paper's", "hybrid", "ResNet", "deit", "pe")


def test_every_family_is_in_the_table():
  assert FAMILIES.keys() <= MODELS.keys()


@pytest.mark.parametrize("name", some_slow(MODELS, QUICK))
def test_every_parameter_of_every_family(name):
  model, depths, reads_pixels = MODELS[name]
  shapes = flat_shapes(model)
  parts = Parts.of(model, None)
  roots = {path: path.split("/")[0] for path in shapes}
  assert set(roots.values()) == set(depths)
  in_layer = {"block_0", "block_1"} & set(depths)
  for path, root in roots.items():
    assert parts.depth(path) == depths[root], path
    assert parts.is_head(path) == (root in HEADS), path
    assert parts.own_task(path) == (root in NOT_TAKEN_OVER), path
    outputs = {"head", "head_dist"}
    assert parts.gives_outputs(path) == (root in outputs), path
    assert parts.in_layer(path) == (root in in_layer), path
    assert parts.in_residual_unit(path) == ("_unit" in path), path
    assert parts.reads_pixels(path) == (path == reads_pixels), path
    assert parts.stacked_axes(path) == 0
  assert reads_pixels in shapes
  # The same by the names alone, apart from a model's own kernel of pixels.
  by_names = guess_parts(shapes)
  for path, root in roots.items():
    assert by_names.depth(path) == depths[root], path
    assert by_names.is_head(path) == (root in HEADS)
    assert by_names.own_task(path) == (root in NOT_TAKEN_OVER)
    assert by_names.in_residual_unit(path) == parts.in_residual_unit(path)


LAYERS = {"Ti": 12, "S": 12, "B": 12, "L": 24, "H": 32, "g": 40, "G": 48}


@pytest.mark.parametrize("size", LAYERS)
def test_depths_of_the_papers_variants(size):
  L = LAYERS[size]
  assert LAYERS.keys() == VITS.keys()
  plain = [f"{size}/16", f"Axial-{size}/16", f"R50+{size}/16"]
  models = [make_vit(variant, 10) for variant in plain]
  models += [make_vit(f"{size}/16", 10, block=family) for family in FAMILIES]
  for model in models:
    parts = Parts(model.parts())
    assert parts.num_layers == L
    assert parts.depth("head/bias") == parts.depth("norm/scale") == 0
    assert parts.depth(f"block_{L - 1}/mlp/expand/kernel") == 1
    assert parts.depth("block_0/msa/query/kernel") == L
    assert parts.depth("patches/E/kernel") == L + 1
    stacked = parts.depth("blocks/msa/query/kernel")
    np.testing.assert_array_equal(stacked, np.arange(L, 0, -1))


def test_scanned_layers_are_stacked():
  shapes = flat_shapes(tiny(scan=True))
  parts = Parts.of(tiny(scan=True), None)
  for path in shapes:
    root = path.split("/")[0]
    assert parts.stacked_axes(path) == guess_parts(shapes).stacked_axes(path)
    assert parts.stacked_axes(path) == (root == "blocks")
    assert parts.in_layer(path) == (root == "blocks")
  path = "blocks/msa/out/kernel"
  each = ["block_0/msa/out/kernel", "block_1/msa/out/kernel"]
  assert parts.unstacked_paths(path, 2) == each
  assert parts.unstacked_paths("norm/scale", 2) == ["norm/scale"]
  np.testing.assert_array_equal(guess_parts(shapes).depth(path), [2, 1])


@pytest.mark.parametrize(
  "path, num_axes, logical, inputs, outputs",
  [
    ("block_0/mlp/expand/kernel", 2, None, (0,), (1,)),
    ("block_0/msa/query/kernel", 3, None, (0,), (1, 2)),
    ("block_0/msa/out/kernel", 3, None, (0, 1), (2,)),
    ("blocks/mlp/expand/kernel", 3, None, (1,), (2,)),
    ("blocks/msa/query/kernel", 4, None, (1,), (2, 3)),
    ("blocks/msa/out/kernel", 4, None, (1, 2), (3,)),
    ("resnet/stage0_unit0/conv2/kernel", 4, None, (0, 1, 2), (3,)),
    ("block_0/q/kernel", 3, ("embed", "heads", "head_size"), (0,), (1, 2)),
    ("block_0/o/kernel", 3, ("heads", "head_size", "embed"), (0, 1), (2,)),
    ("block_0/conv/kernel", 4, (None,) * 4, (0, 1, 2), (3,)),
    ("patches/E/kernel", 2, ("patch", "embed"), (0,), (1,)),
  ],
)
def test_axes_of_kernels(path, num_axes, logical, inputs, outputs):
  found = Parts.plain(2).kernel_axes(path, num_axes, logical)
  assert found == (inputs, outputs)


def test_an_encoder_with_a_decoder():
  model = Autoencoder()
  shapes = flat_shapes(model, TOKENS)
  parts = Parts.of(model, None)
  own = {m for m in AUTOENCODER if not m.startswith("encoder")}
  for path, module in modules_of(shapes, AUTOENCODER).items():
    assert parts.depth(path) == AUTOENCODER[module], path
    assert parts.in_layer(path) == ("block" in module)
    assert parts.is_head(path) == (module == "head")
    assert parts.own_task(path) == (module in own)
  scanned = Autoencoder(scan=True)
  stacked = flat_shapes(scanned, TOKENS)
  for parts in (Parts.of(scanned, None), guess_parts(stacked)):
    encoder = parts.depth("encoder/blocks/msa/out/kernel")
    decoder = parts.depth("decoder/blocks/msa/out/kernel")
    np.testing.assert_array_equal(encoder, [6, 5, 4])
    np.testing.assert_array_equal(decoder, [2, 1])


def test_two_towers_are_counted_each_by_itself():
  model = TwoTowers()
  shapes = flat_shapes(model, TOKENS, TOKENS)
  parts, by_names = Parts.of(model, None), guess_parts(shapes)
  for path, module in modules_of(shapes, TOWERS).items():
    assert parts.depth(path) == TOWERS[module], path
    assert (
      parts.in_layer(path) == by_names.in_layer(path) == ("block" in module)
    )
    assert parts.is_head(path) == (module == "logit_scale")
    assert parts.reads_pixels(path) == (path == "image/embed/kernel")
    if module != "logit_scale":
      assert by_names.depth(path) == TOWERS[module], path
  # Two layers of each tower, with what comes before them, stay as they are.
  trained = trainable_filter(2, parts)
  kept = {module for module in TOWERS if trained(f"{module}/kernel")}
  ends = {"logit_scale", "image/norm", "text/norm"}
  assert kept == {*ends, "image/block_2", "image/block_3"}
  with pytest.raises(ValueError, match="between 0 and the model's 4 layers"):
    trainable_filter(5, parts)


def test_the_longest_prefix_decides():
  parts = Parts(
    (
      Part("", ENCODER, Stack(3)),
      Part("decoder", DECODER, Stack(2, after=("out",))),
      Part("decoder/token", INPUT, own_task=True),
      Part("token", INPUT),
    )
  )
  depths = {
    "decoder/out/kernel": 0,
    "decoder/norm/scale": 3,
    "decoder/token": 3,
    "token": 7,
    "tokens": 7,
    "decoder_norm/scale": 7,
    "norm/scale": 3,
  }
  assert {path: parts.depth(path) for path in depths} == depths
  owned = [path for path in depths if parts.own_task(path)]
  assert owned == ["decoder/token"]
  assert Parts((Part("a", ENCODER, Stack(2)),)).depth("b") == 3


def test_layer_decay_is_right_for_both_stacks():
  shapes = flat_shapes(Autoencoder(), TOKENS)
  modules = modules_of(shapes, AUTOENCODER)
  first = {module: path for path, module in modules.items()}
  ones = {
    path: np.ones(shapes[path].shape, np.float32) for path in first.values()
  }
  settings = OptimizerSettings(
    kind="sgd", momentum=0.0, clip_norm=0.0, weight_decay=0.0, layer_decay=0.5
  )
  parts = Parts.of(Autoencoder(), None)
  tx = make_optimizer(settings, lambda _: 1.0, parts=parts)
  updates, _ = jax.jit(tx.update)(ones, tx.init(ones), ones)
  for module, path in first.items():
    np.testing.assert_allclose(updates[path], -(0.5 ** AUTOENCODER[module]))


@pytest.mark.parametrize("listed", [True, False])
def test_muon_takes_the_kernels_of_both_stacks(listed):
  """The kernels of layers get orthogonal updates, and all else Adam's signs."""
  shapes = flat_shapes(Autoencoder(), TOKENS)
  layers = [f"{x}/block_1" for x in ("encoder", "decoder")]
  names = "mlp/expand", "msa/query", "msa/out"
  matrices = [f"{x}/{name}/kernel" for x in layers for name in names]
  others = ["head/kernel", "mask_token", "decoder/embed/kernel"]
  others += ["decoder/block_1/mlp/expand/bias", "encoder/norm/scale"]
  rng = np.random.default_rng(0)
  grads = {
    path: jnp.float32(rng.normal(size=shapes[path].shape))
    for path in (*matrices, *others)
  }
  settings = OptimizerSettings(kind="muon", clip_norm=0.0, weight_decay=0.0)
  parts = Parts.of(Autoencoder(), None) if listed else None
  tx = make_optimizer(settings, lambda _: 1.0, parts=parts)
  updates, _ = jax.jit(tx.update)(grads, tx.init(grads), grads)
  for path in others:
    expected = -np.sign(grads[path])
    np.testing.assert_allclose(updates[path], expected, rtol=1e-4)
  for path in matrices:
    inputs = 8  # The hidden size, or two heads of size four.
    matrix = np.asarray(updates[path]).reshape(inputs, -1)
    singular = np.linalg.svd(matrix, compute_uv=False)
    singular /= 0.2 * max(matrix.shape) ** 0.5
    assert 0.5 < singular.min() and singular.max() < 1.3, path


def test_lamb_takes_the_norm_of_each_stacked_layer_of_a_decoder():
  kernel = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("f")
  kernel *= np.array([[[1.0]], [[10.0]]], "f")
  params = {"decoder/blocks/mlp/kernel": jnp.asarray(kernel)}
  tx = make_optimizer(
    OptimizerSettings(kind="lamb", clip_norm=0.0),
    lambda _: 1.0,
    parts=Parts.of(Autoencoder(), None),
  )
  updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
  for layer in (0, 1):
    found = updates["decoder/blocks/mlp/kernel"][layer]
    norm = np.linalg.norm(kernel[layer])
    expected = -np.sign(kernel[layer]) * norm / 12**0.5
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_lora_adapts_an_encoder_and_a_decoder_stacked_or_not():
  settings = LoraSettings(rank=2, kernels="decoder/block_.*(query|out)")
  found = {}
  for scan in (False, True):
    model = Autoencoder(scan=scan)
    parts = Parts.of(model, None)

    def params_init(key, model=model):
      return model.init(key, jnp.zeros(TOKENS.shape))["params"]

    init = lora.trained_init(params_init, settings, parts)
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
    flat = flatten_dict(shapes, sep="/")
    found[scan] = {path: x.shape for path, x in flat.items()}
    base = jax.eval_shape(lora.base_init(params_init, parts), jax.random.key(0))
    trained = jax.tree.map(lambda x: jnp.ones(x.shape), shapes)
    whole = jax.eval_shape(
      lambda base, trained: lora.merge(settings, base, trained),
      nn.unbox(base),
      trained,
    )
    expected = flat_shapes(model, TOKENS)
    assert flatten_dict(whole, sep="/") == expected
  head = {"head/kernel": (8, 6), "head/bias": (6,)}
  factors = {
    "query/lora_a": (8, 2),
    "query/lora_b": (2, 2, 4),
    "out/lora_a": (2, 4, 2),
    "out/lora_b": (2, 8),
  }
  each = [f"decoder/block_{i}/msa" for i in (0, 1)]
  apart = {f"{x}/{k}": shape for x in each for k, shape in factors.items()}
  assert found[False] == {**head, **apart}
  stacked = {f"decoder/blocks/msa/{k}": (2, *v) for k, v in factors.items()}
  assert found[True] == {**head, **stacked}


def test_an_unknown_place_is_refused():
  with pytest.raises(ValueError, match="place='middle' of the part 'x' is unk"):
    Part("x", "middle")
