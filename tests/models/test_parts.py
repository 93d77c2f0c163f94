"""Where parameters lie, against tables that are written out by hand."""

import ast
import functools
import pathlib
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.models.tiny_vit import tiny
from vit_jax import make_resnet, make_vit
from vit_jax.models import parts as parts_module
from vit_jax.models.masked_vit import masked
from vit_jax.models.model import Model
from vit_jax.models.parts import (
  DECODER,
  ENCODER,
  HEAD,
  INPUT,
  LayerNames,
  Part,
  Parts,
  Stack,
  guessed,
)
from vit_jax.models.position import Positions
from vit_jax.models.scan import make_blocks
from vit_jax.models.tokens import Tokens
from vit_jax.models.variants import FAMILIES, VITS
from vit_jax.models.vit import EncoderBlock
from vit_jax.training import lora
from vit_jax.training.optimizer import make_optimizer, trainable_filter
from vit_jax.training.settings import LoraSettings, OptimizerSettings

ROOT = pathlib.Path(__file__).parents[2]
IMAGE = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)


@functools.cache
def flat_shapes(model, *args):
  boxed = jax.eval_shape(model.init, jax.random.key(0), *(args or (IMAGE,)))
  return flatten_dict(nn.unbox(boxed["params"]), sep="/")


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
  "masked": (masked(tiny(), 8), {**TOKEN, "mask": 3}, PATCHES),
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
  "ResNet": (make_resnet("R50x1", 5, layers=(1, 2)), RESNET, RESNETS),
}
HEADS = {"head", "head_dist", "pre_logits"}
NOT_TAKEN_OVER = {"head", "head_dist", "mask"}


def test_every_family_is_in_the_table():
  assert FAMILIES.keys() <= MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
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
    assert parts.reads_pixels(path) == (path == reads_pixels), path
    assert parts.stacked_axes(path) == 0
  assert reads_pixels in shapes
  # The same by the names alone, apart from a model's own kernel of pixels.
  by_names = guessed(shapes)
  for path, root in roots.items():
    assert by_names.depth(path) == depths[root], path
    assert by_names.is_head(path) == (root in HEADS)
    assert by_names.own_task(path) == (root in NOT_TAKEN_OVER)


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
    assert parts.stacked_axes(path) == guessed(shapes).stacked_axes(path)
    assert parts.stacked_axes(path) == (root == "blocks")
    assert parts.in_layer(path) == (root == "blocks")
  path = "blocks/msa/out/kernel"
  each = ["block_0/msa/out/kernel", "block_1/msa/out/kernel"]
  assert parts.unstacked(path, 2) == each
  assert parts.unstacked("norm/scale", 2) == ["norm/scale"]
  np.testing.assert_array_equal(guessed(shapes).depth(path), [2, 1])


@pytest.mark.parametrize(
  "path, num_axes, logical, inputs, outputs",
  [
    ("block_0/mlp/expand/kernel", 2, None, (0,), (1,)),
    ("block_0/msa/query/kernel", 3, None, (0,), (1, 2)),
    ("block_0/msa/out/kernel", 3, None, (0, 1), (2,)),
    ("blocks/mlp/expand/kernel", 3, None, (1,), (2,)),
    ("blocks/msa/query/kernel", 4, None, (1,), (2, 3)),
    ("blocks/msa/out/kernel", 4, None, (1, 2), (3,)),
    ("block_0/q/kernel", 3, ("embed", "heads", "head_size"), (0,), (1, 2)),
    ("block_0/o/kernel", 3, ("heads", "head_size", "embed"), (0, 1), (2,)),
    ("block_0/conv/kernel", 4, (None,) * 4, (0, 1, 2), (3,)),
    ("patches/E/kernel", 2, ("patch", "embed"), (0,), (1,)),
  ],
)
def test_axes_of_kernels(path, num_axes, logical, inputs, outputs):
  found = Parts.plain(2).kernel_axes(path, num_axes, logical)
  assert found == (inputs, outputs)


class Layers(nn.Module):
  """An embedding, layers, a norm, and in a decoder what fills the gaps."""

  num_layers: int
  scan: bool = False
  remat = "none"

  @nn.compact
  def __call__(self, z):
    tokens = Tokens(nn.Dense(8, name="embed")(z))
    none = [None] * self.num_layers
    make_block, positions = partial(EncoderBlock, 2, 12), Positions(none, none)
    for layer in make_blocks(self, make_block, positions, train=False):
      tokens = layer(tokens)
    return nn.LayerNorm(name="norm")(tokens.z)


class Autoencoder(nn.Module):
  """An encoder of three layers and a decoder of two; (B, N, C) -> (B, N, C)."""

  scan: bool = False

  @nn.compact
  def __call__(self, x):
    mask = self.param("mask_token", nn.initializers.zeros, (1, 1, 8))
    z = Layers(3, self.scan, name="encoder")(x) + mask
    z = Layers(2, self.scan, name="decoder")(z)
    return nn.Dense(x.shape[-1], name="head")(z)

  def parts(self):
    return (
      Part("encoder", ENCODER, Stack(3)),
      Part("decoder", DECODER, Stack(2), own_task=True),
      Part("mask_token", DECODER, own_task=True),
      Part("head", HEAD, own_task=True),
    )


class TwoTowers(nn.Module):
  """Towers of four and of two layers; two of (B, N, C) -> (B, B)."""

  @nn.compact
  def __call__(self, image, text):
    y = Layers(4, name="image")(image).mean(1)
    t = Layers(2, name="text")(text).mean(1)
    scale = self.param("logit_scale", nn.initializers.ones, ())
    return scale * y @ t.T

  def parts(self):
    return (
      Part("image", ENCODER, Stack(4), pixels="embed/kernel"),
      Part("text", ENCODER, Stack(2)),
      Part("logit_scale", HEAD, own_task=True),
    )


TOKENS = jax.ShapeDtypeStruct((2, 3, 6), jnp.float32)
# From the head: the decoder's layers, what comes before them, which is where
# the encoder ends, the encoder's layers, and what comes before these.
AUTOENCODER = {
  "head": 0,
  "decoder/norm": 0,
  "decoder/block_1": 1,
  "decoder/block_0": 2,
  "decoder/embed": 3,
  "mask_token": 3,
  "encoder/norm": 3,
  "encoder/block_2": 4,
  "encoder/block_1": 5,
  "encoder/block_0": 6,
  "encoder/embed": 7,
}
TOWERS = {
  "logit_scale": 0,
  "image/norm": 0,
  "image/block_3": 1,
  "image/block_2": 2,
  "image/block_1": 3,
  "image/block_0": 4,
  "image/embed": 5,
  "text/norm": 0,
  "text/block_1": 1,
  "text/block_0": 2,
  "text/embed": 3,
}


def modules_of(shapes, table):
  """The module of each path in the table, none of which is left over."""
  found = {}
  for path in shapes:
    (found[path],) = [m for m in table if f"{path}/".startswith(f"{m}/")]
  assert set(found.values()) == set(table)
  return found


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
  for parts in (Parts.of(scanned, None), guessed(stacked)):
    encoder = parts.depth("encoder/blocks/msa/out/kernel")
    decoder = parts.depth("decoder/blocks/msa/out/kernel")
    np.testing.assert_array_equal(encoder, [6, 5, 4])
    np.testing.assert_array_equal(decoder, [2, 1])


def test_two_towers_are_counted_each_by_itself():
  model = TwoTowers()
  shapes = flat_shapes(model, TOKENS, TOKENS)
  parts, by_names = Parts.of(model, None), guessed(shapes)
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


def test_a_model_that_lists_no_parts_is_taken_by_its_names():
  """As if the same model listed them, but for the token at the root."""
  shapes = flat_shapes(Autoencoder(), TOKENS)
  parts = Parts.of(Model(num_classes=3), lambda: shapes)
  assert Parts.of(object(), shapes) == parts
  depths = {**AUTOENCODER, "mask_token": 7}
  own = {m for m in AUTOENCODER if not m.startswith("encoder")}
  for path, module in modules_of(shapes, AUTOENCODER).items():
    assert parts.depth(path) == depths[module], path
    assert parts.own_task(path) == (module in own)
  tree = unflatten_dict(shapes, sep="/")
  assert guessed(tree) == guessed(shapes) == parts
  others = {"Stem_0/kernel": 1, "EncoderBlock_0/a/kernel": 1}
  others["EncoderBlock_1/a/kernel"] = 1
  parts = guessed(dict.fromkeys(others, np.ones(2)))
  assert [parts.depth(path) for path in others] == [3, 2, 1]
  assert [parts.in_layer(path) for path in others] == [False, True, True]


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


def test_an_unknown_place_is_refused():
  with pytest.raises(ValueError, match="place='middle' of the part 'x' is unk"):
    Part("x", "middle")


def test_layer_decay_is_right_for_both_stacks():
  shapes = flat_shapes(Autoencoder(), TOKENS)
  modules = modules_of(shapes, AUTOENCODER)
  first = {module: path for path, module in modules.items()}
  ones = {path: jnp.ones(shapes[path].shape) for path in first.values()}
  settings = OptimizerSettings(
    kind="sgd", momentum=0.0, clip_norm=0.0, weight_decay=0.0, layer_decay=0.5
  )
  parts = Parts.of(Autoencoder(), None)
  tx = make_optimizer(settings, lambda _: 1.0, parts=parts)
  updates, _ = tx.update(ones, tx.init(ones), ones)
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
  updates, _ = tx.update(params, tx.init(params), params)
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
      lambda base, trained: lora.merged(settings, base, trained),
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


def test_both_stacks_are_stacked_and_unstacked_in_a_state():
  rng = np.random.default_rng(0)
  shapes = flat_shapes(Autoencoder(), TOKENS)
  values = {k: rng.normal(size=x.shape) for k, x in shapes.items()}
  params = unflatten_dict(values, sep="/")
  params["block_0"] = {"a": np.zeros(2)}  # A stack around the others.
  params["block_1"] = {"a": np.ones(2)}
  state = {"params": params, "mu": (params, None)}
  parts = Parts.of(Autoencoder(), None)
  stacked = parts.stack(state)
  own = flatten_dict(stacked["mu"][0], sep="/")
  np.testing.assert_array_equal(own["blocks/a"], [[0, 0], [1, 1]])
  layers = [f"encoder/block_{i}/msa/out/kernel" for i in range(3)]
  expected = np.stack([values[path] for path in layers])
  found = own["encoder/blocks/msa/out/kernel"]
  np.testing.assert_array_equal(found, expected)
  assert not [path for path in own if "block_" in path]
  jax.tree.map(np.testing.assert_array_equal, parts.unstack(stacked), state)


def test_other_names_of_layers():
  names = LayerNames("layer{}", "layers")
  assert names.of(3) == "layer3" and names.number("layer3") == 3
  others = ("layer", "layer03", "layer_3", "layers", "block_3")
  assert [names.number(name) for name in others] == [None] * 5
  parts = Parts((Part("tower", ENCODER, Stack(2, names)),))
  tree = {"tower": {f"layer{i}": {"a": np.full(2, i)} for i in range(2)}}
  stacked = parts.stack(tree)
  np.testing.assert_array_equal(
    stacked["tower"]["layers"]["a"], [[0, 0], [1, 1]]
  )
  jax.tree.map(np.testing.assert_array_equal, parts.unstack(stacked), tree)
  assert parts.unstacked("tower/layers/a", 1) == ["tower/layer0/a"]


_TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition"}
_MODULES = (
  "block",
  "blocks",
  "head",
  "head_dist",
  "pre_logits",
  "norm",
  "mask",
)
_MODULES += ("map_head", "patches", "position", "kernel", "bias", "conv_root")
_ROOMS = ("models", "training", "tasks", "pretrained", "inference")
_ROOMS += ("inspection", "run")


def _reads_paths(source):
  """Lines that test a parameter's path by the names in it."""
  for node in ast.walk(ast.parse(source)):
    names = {getattr(t, "id", "") for t in getattr(node, "targets", ())}
    if names & {"HEADS", "_OWN_TASK"}:
      yield node.lineno
    if not isinstance(node, ast.Call):
      continue
    function = node.func
    if not (isinstance(function, ast.Attribute) and function.attr in _TESTS):
      continue
    if getattr(function.value, "id", "") == "path":
      yield node.lineno
      continue
    texts = [x for arg in node.args for x in ast.walk(arg)]
    texts = [x.value for x in texts if isinstance(x, ast.Constant)]
    texts = [x for x in texts if isinstance(x, str)]
    modules = {text.strip("/").split("/")[0].rstrip("_") for text in texts}
    if modules & set(_MODULES) and not any("." in text for text in texts):
      yield node.lineno


def test_nothing_else_reads_the_names_in_a_path():
  found = []
  for room in _ROOMS:
    for file in sorted((ROOT / "vit_jax" / room).rglob("*.py")):
      if file == pathlib.Path(parts_module.__file__):
        continue
      lines = _reads_paths(file.read_text())
      found += [f"{file.relative_to(ROOT)}:{line}" for line in lines]
  assert found == []


@pytest.mark.parametrize(
  "line",
  [
    "HEADS = ('head/',)",
    "path.startswith(('norm/', 'head/'))",
    "path.endswith('/kernel')",
    "k.removeprefix('block_')",
    "key.startswith(f'blocks/{rest}')",
    "path.startswith(_TOP)",
  ],
)
def test_a_line_that_reads_a_path_is_seen(line):
  assert list(_reads_paths(line)) == [1]
