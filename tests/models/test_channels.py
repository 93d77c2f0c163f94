"""A token for each channel: against the paper and ChannelViT's code."""

import functools
import pathlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import equations
from tests.models import tiny_vit as shared
from tests.models.tiny_vit import LAYERS, D, P, images, random_params
from tests.models.tiny_vit import tiny as tiny_vit
from tests.tiny import compilations
from vit_jax.models import Patches, make_vit
from vit_jax.models.channels import ChannelPatches, mean_over_channels, present
from vit_jax.models.composed import Needs, encoder_of
from vit_jax.models.masked_vit import masked_vit
from vit_jax.models.segmenter import segmenter

C = 4
NPZ = pathlib.Path(__file__).parents[1] / "checkpoints" / "channelvit.npz"


def tiny(**fields):
  return tiny_vit(channel_tokens=True, **fields)


@functools.cache
def answers(model):
  return jax.jit(lambda params, x: model.apply({"params": params}, x))


def apply(model, params, x, **options):
  """The answers; those without options by one program for equal models."""
  if options:
    return shared.apply(model, params, x, **options)
  return answers(model)(params, x)


def x_of(channels=C):
  return images(channels=channels)


def layers_of(params, x, channels):
  """The outputs of the paper's layers for one image, (S, D).

  Only some channels are there.
  """
  H, W, _ = x.shape
  E_pos = params["position"]["E_pos"]
  z = [params["x_class"] + E_pos[0]]
  for channel in channels:
    place = 0
    for row in range(0, H, P):
      for column in range(0, W, P):
        pixels = x[row : row + P, column : column + P, channel].reshape(-1)
        token = equations.dense(pixels, params["patches"]["E"])
        place += 1
        z.append(token + E_pos[place] + params["E_channel"][channel])
  z = np.stack(z)
  for layer in range(LAYERS):
    z = equations.block(z, params[f"block_{layer}"], 1e-6, "tanh")
  return z


def expected_logits(params, x, channels):
  """The paper's model of one image, of which some channels are there."""
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  z = layers_of(params, x, channels)
  y = equations.layer_norm(z, params["norm"], 1e-6)[0]
  return equations.dense(y, params["head"])


@pytest.mark.parametrize("channels", [[0, 1, 2, 3], [3, 1], [2]])
def test_it_is_the_papers_model_of_the_channels_that_are_there(channels):
  model, x = tiny(), x_of()
  params = random_params(model, x)
  shapes = {k: params[k].shape for k in ("E_channel", "x_class")}
  assert shapes == {"E_channel": (C, D), "x_class": (D,)}
  assert params["patches"]["E"]["kernel"].shape == (P * P, D)
  lacks = [c for c in range(C) if c not in channels]
  found = apply(model, params, x.at[..., jnp.array(lacks, int)].set(jnp.nan))
  pixels = np.asarray(x, np.float64)
  expected = [expected_logits(params, image, channels) for image in pixels]
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def published():
  """The published code's arrays as a model's parameters, and the rest."""
  with np.load(NPZ) as stored:
    a = dict(stored)
  heads = 2

  def dense(name):
    return {"kernel": a[f"{name}.weight"].T, "bias": a[f"{name}.bias"]}

  def norm(name):
    return {"scale": a[f"{name}.weight"], "bias": a[f"{name}.bias"]}

  def block(name):
    kernel, bias = a[f"{name}.attn.qkv.weight"], a[f"{name}.attn.qkv.bias"]
    size = len(bias) // 3
    msa = {
      part: {
        "kernel": kernel[rows].T.reshape(size, heads, -1),
        "bias": bias[rows].reshape(heads, -1),
      }
      for part, rows in (
        ("query", slice(size)),
        ("key", slice(size, 2 * size)),
        ("value", slice(2 * size, None)),
      )
    }
    out = dense(f"{name}.attn.proj")
    out["kernel"] = out["kernel"].reshape(heads, -1, size)
    expand, contract = dense(f"{name}.mlp.fc1"), dense(f"{name}.mlp.fc2")
    return {
      "norm_msa": norm(f"{name}.norm1"),
      "msa": {**msa, "out": out},
      "norm_mlp": norm(f"{name}.norm2"),
      "mlp": {"expand": expand, "contract": contract},
    }

  kernel = a["patch_embed.proj.weight"]  # (D, 1, 1, P, P)
  params = {
    "patches": {
      "E": {
        "kernel": kernel.reshape(len(kernel), -1).T,
        "bias": a["patch_embed.proj.bias"],
      }
    },
    "E_channel": a["patch_embed.channel_embed"][0, :, :, 0, 0].T,
    "x_class": a["cls_token"][0, 0],
    "position": {"E_pos": a["positions"]},
    "norm": norm("norm"),
    "block_0": block("blocks.0"),
    "block_1": block("blocks.1"),
  }
  return jax.tree.map(jnp.asarray, params), a


def test_its_features_are_those_of_the_published_code():
  params, a = published()
  model = make_vit(
    "Ti/4",
    num_classes=0,
    channel_tokens=True,
    hidden_size=16,
    num_layers=2,
    mlp_size=64,
    num_heads=2,
    gelu="exact",
  )
  x = jnp.asarray(a["x"]).transpose(0, 2, 3, 1)
  np.testing.assert_allclose(apply(model, params, x), a["y"], atol=1e-5)
  lacks = x.at[..., jnp.array([0, 2])].set(jnp.nan)
  found = apply(model, params, lacks)
  np.testing.assert_allclose(found, a["y_31"], atol=1e-5)
  assert np.abs(a["y"] - a["y_31"]).max() > 0.04


ENCODERS = {
  "token": {},
  "gap": {"pooling": "gap"},
  "map": {"pooling": "map"},
  "relative": {"position": "relative"},
  "every_layer": {"position_at": "every_layer"},
  "shared": {"position": "sincos2d", "position_at": "shared"},
  "scan": {"scan": True},
  "dinov3": {"block": "dinov3", "num_heads": 2},
}
FAST = ("gap",)


@pytest.mark.parametrize(
  "fields",
  [
    pytest.param(fields, marks=() if name in FAST else pytest.mark.slow)
    for name, fields in ENCODERS.items()
  ],
  ids=ENCODERS,
)
def test_a_masked_channel_is_as_if_left_out(fields):
  model, x = tiny(**fields), x_of()
  params = random_params(model, x)
  found = apply(model, params, x.at[..., 1].set(jnp.nan))
  rows = jnp.array([0, 2, 3])
  without = {**params, "E_channel": params["E_channel"][rows]}
  expected = apply(model, without, x[..., rows])
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  whole = apply(model, params, x)
  assert np.abs(np.asarray(whole - found)).max() > 1e-3


def test_the_order_of_channels_changes_nothing():
  model, x = tiny(pooling="gap"), x_of()
  params = random_params(model, x)
  order = jnp.array([2, 0, 3, 1])
  turned = {**params, "E_channel": params["E_channel"][order]}
  found = apply(model, turned, x[..., order])
  expected = apply(model, params, x)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  others = apply(model, params, x[..., order])
  assert np.abs(np.asarray(others - expected)).max() > 1e-3


@pytest.mark.slow
def test_a_part_of_a_channel_can_be_missing():
  """A patch with any NaN is left out, and the mask of patches is of all."""
  model, x = tiny(), x_of()
  params = random_params(model, x)
  holes = x.at[:, 5, 2, 1].set(jnp.nan)
  counts = np.ones((2, C, 2, 3), bool)
  counts[:, 1, 1, 0] = False
  np.testing.assert_array_equal(present(holes, 2, 3), counts)
  whole = x.at[:, 4:8, 0:4, 1].set(jnp.nan)
  found, expected = (apply(model, params, each) for each in (holes, whole))
  np.testing.assert_allclose(found, expected, atol=1e-6)
  mask = jnp.ones((2, 6), bool).at[:, 3].set(False)
  all_lack = x.at[:, 4:8, 0:4].set(jnp.nan)
  np.testing.assert_allclose(
    apply(model, params, x, mask=mask),
    apply(model, params, all_lack),
    atol=1e-6,
  )


@pytest.mark.slow
def test_the_vector_of_a_missing_channel_gets_no_gradient():
  model, x = tiny(num_layers=1), x_of()
  params = random_params(model, x)
  x = x.at[..., 2].set(jnp.nan).at[0, ..., 3].set(jnp.nan)
  gradient = jax.jit(
    jax.grad(lambda p: (model.apply({"params": p}, x) ** 2).sum())
  )(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
  rows = np.abs(gradient["E_channel"]).max(axis=1)
  assert rows[2] == 0
  assert (rows[[0, 1, 3]] > 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_an_image_without_any_channel_gives_no_nan(pooling):
  """Rows of a batch that no image fills are such images."""
  model, x = tiny(pooling=pooling, channel_sampling=True), x_of()
  params = random_params(model, x)
  x = x.at[0].set(jnp.nan)
  rngs = {"dropout": jax.random.key(0)}

  def loss(p):
    logits = model.apply({"params": p}, x, train=True, rngs=rngs)
    return (logits**2).sum(), logits

  gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
  leaves = [*jax.tree.leaves(gradient), logits]
  assert all(np.isfinite(leaf).all() for leaf in leaves)


def drawn(has, draws):
  """Which channels are kept of an image with the channels `has`, by draw."""
  counts = jnp.tile(jnp.array(has)[None, :, None, None], (draws, 1, 2, 1))
  values = jnp.zeros((draws, len(has), 2, 1, 3))
  kept = ChannelPatches(values, counts).sampled(jax.random.key(5)).counts
  assert (kept == kept[:, :, :1]).all()  # All patches of a channel alike.
  return np.asarray(kept[:, :, 0, 0])


def test_as_many_channels_are_drawn_as_the_paper_says():
  """Every number of channels is equally likely, then every set of as many."""
  draws = 12_000
  kept = drawn([True, True, False, True], draws)
  assert not kept[:, 2].any()
  sets = Counter(map(tuple, kept[:, [0, 1, 3]].astype(int).tolist()))
  for number, of_a_number in ((1, 3), (2, 3), (3, 1)):
    each = {k: n for k, n in sets.items() if sum(k) == number}
    assert len(each) == of_a_number
    p = 1 / 3 / of_a_number
    deviation = (draws * p * (1 - p)) ** 0.5
    assert all(abs(n - draws * p) < 5 * deviation for n in each.values())
  assert len(sets) == 7


@pytest.mark.slow
def test_training_alone_draws_channels_and_each_image_by_itself():
  fields = dict(pooling="gap", num_layers=1)
  model = tiny(channel_sampling=True, **fields)
  # As many as the sets of channels, for which one program then is enough.
  x = jnp.tile(x_of()[:1], (2**C - 1, 1, 1, 1))
  params = random_params(model, x)
  rngs = {"dropout": jax.random.key(1)}
  first, again = (
    apply(model, params, x, train=True, rngs=rngs) for _ in range(2)
  )
  np.testing.assert_array_equal(first, again)
  assert len(np.unique(np.asarray(first).round(5), axis=0)) > 3
  fixed = apply(tiny(**fields), params, x)
  np.testing.assert_array_equal(apply(model, params, x), fixed)
  # The answer for an image is that of some set of its channels.
  sets = [[i for i in range(C) if n >> i & 1] for n in range(1, 2**C)]
  lacks = [jnp.array([i for i in range(C) if i not in s], int) for s in sets]
  all_sets = jnp.stack([x[0].at[..., i].set(jnp.nan) for i in lacks])
  of_sets = np.asarray(apply(model, params, all_sets))
  nearest = np.abs(np.asarray(first)[:, None] - of_sets).max(axis=2).min(axis=1)
  assert nearest.max() < 1e-5


def test_other_channels_need_no_other_program():
  model, x = tiny(channel_sampling=True, num_layers=1), x_of()
  params = random_params(model, x)
  rngs = {"dropout": jax.random.key(1)}
  step = jax.jit(
    lambda p, x: model.apply({"params": p}, x, train=True, rngs=rngs)
  )
  lacks = [np.array(x) for _ in range(3)]
  lacks[1][..., 1], lacks[2][..., 2:] = np.nan, np.nan
  step(params, lacks[0]).block_until_ready()
  with compilations() as found:
    for each in lacks:
      step(params, each).block_until_ready()
  assert found == []


def test_a_map_is_the_mean_over_the_channels_that_are_there():
  x = x_of(3).at[0, ..., 1].set(jnp.nan)
  z = jnp.asarray(np.random.default_rng(0).normal(size=(2, 18, 5)), jnp.float32)
  found = mean_over_channels(z, x, (2, 3))
  each = np.asarray(z).reshape(2, 3, 6, 5)
  np.testing.assert_allclose(found[0], each[0, [0, 2]].mean(axis=0), atol=1e-6)
  np.testing.assert_allclose(found[1], each[1].mean(axis=0), atol=1e-6)


def expected_patches(params, x, channels):
  """The normed patches of an image by the paper's model, (N, D).

  Each is the mean over the channels that are there.
  """
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  z = layers_of(params, x, channels)
  z = equations.layer_norm(z, params["norm"], 1e-6)[1:]
  return z.reshape(len(channels), -1, z.shape[-1]).mean(axis=0)


@pytest.mark.parametrize("channels", [[0, 1, 2, 3], [3, 1], [2]])
def test_a_segmenter_reads_the_mean_over_the_channels_that_are_there(channels):
  model, x = segmenter(tiny(), 3), x_of()
  params = random_params(model, x)
  lacks = [c for c in range(C) if c not in channels]
  found = apply(model, params, x.at[..., jnp.array(lacks, int)].set(jnp.nan))
  for row, image in zip(found, np.asarray(x, np.float64), strict=True):
    y = expected_patches(params, image, sorted(channels))
    expected = equations.dense(y, params["head"])
    np.testing.assert_allclose(
      row.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_dpt_head_reads_the_channels_that_are_there():
  """As by a model that never had the others."""
  model = segmenter(tiny(num_layers=4), 1, head="dpt")
  x, kept = x_of(), jnp.array([0, 3])
  params = random_params(model, x)
  found = apply(model, params, x.at[..., jnp.array([1, 2])].set(jnp.nan))
  params["E_channel"] = params["E_channel"][kept]
  alone = apply(model, params, x[..., kept])
  np.testing.assert_allclose(found, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_segmenter_reads_the_channels_that_training_keeps():
  """Its logits are those for images of these channels alone."""
  model = segmenter(tiny(channel_sampling=True), 3)
  x = x_of()
  params = random_params(model, x)
  alone = []
  for kept in range(1, 2**C):
    lacks = [c for c in range(C) if not kept >> c & 1]
    lacking = x.at[..., jnp.array(lacks, int)].set(jnp.nan)
    alone.append(apply(model, params, lacking))
  train = jax.jit(
    lambda params, key: model.apply(
      {"params": params}, x, train=True, rngs={"dropout": key}
    )
  )
  seen = set()
  for seed in range(12):
    found = train(params, jax.random.key(seed))
    for row, image in enumerate(found):
      apart = [float(jnp.abs(image - each[row]).max()) for each in alone]
      assert min(apart) < 1e-4
      seen.add(int(np.argmin(apart)))
  assert len(seen) > 4


def test_images_of_other_channels_are_refused():
  model = tiny()
  params = random_params(model, x_of())
  with pytest.raises(ValueError, match="^images of 3 channel.s., .* for 4: gi"):
    apply(model, params, x_of(3))


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(channel_tokens=False, channel_sampling=True), "set channel_tokens="),
    (dict(block="axial", pooling="gap"), "block=AxialBlock goes along rows"),
  ],
)
def test_what_does_not_go_with_it_is_said(fields, message):
  with pytest.raises(ValueError, match=message):
    tiny_vit(**{"channel_tokens": True, **fields})


def test_a_hybrid_is_refused():
  with pytest.raises(ValueError, match="ResNet mixes them"):
    make_vit("R50+Ti/16", 3, channel_tokens=True)


def test_objectives_that_read_one_token_of_a_patch_are_refused():
  said = (
    "^masked.rate: channel_tokens=True gives .*: leave model.channel_tokens "
  )
  with pytest.raises(
    ValueError, match=f"{said}out, and all files that lack ba"
  ):
    masked_vit(tiny(), 3)
  pooled = Needs("lejepa.weight", patches=False, all_patches=False)
  assert encoder_of(tiny(), pooled).channel_tokens


def test_images_of_any_size_are_refused():
  model, x = tiny(), x_of()
  params = random_params(model, x)
  with pytest.raises(ValueError, match="no Patches: each channel of a patch"):
    apply(model, params, Patches.of(x, P))
