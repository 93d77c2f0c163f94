"""Position embeddings against their definitions."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import make_vit
from vit_jax.models import attention, position, vit

HIDDEN_SIZE, HEADS, LAYERS = 24, 3, 2
sincos1d = jax.jit(position.sincos1d, static_argnums=(0, 1))
sincos2d = jax.jit(position.sincos2d, static_argnums=(0, 1, 2))


def tiny(**fields):
  return make_vit(
    "Ti/4",
    num_classes=5,
    hidden_size=HIDDEN_SIZE,
    num_layers=LAYERS,
    mlp_size=32,
    num_heads=HEADS,
    **fields,
  )


def random_params(model, *args):
  rng = np.random.default_rng(0)
  variables = jax.eval_shape(model.init, jax.random.key(0), *args)
  return jax.tree.map(
    lambda shape: 0.2 * rng.normal(size=shape.shape).astype(np.float32),
    nn.unbox(variables["params"]),
  )


def apply(model, params, *args):
  return jax.jit(lambda p, *a: model.apply({"params": p}, *a))(params, *args)


def images(height=8, width=12):
  return jax.random.normal(jax.random.key(0), (2, height, width, 3))


def test_sincos1d_is_the_formula():
  S, D = 9, 10
  expected = np.zeros((S, D))
  for p, i in itertools.product(range(S), range(D // 2)):
    angle = p / 10_000 ** (2 * i / D)
    expected[p, 2 * i : 2 * i + 2] = np.sin(angle), np.cos(angle)
  np.testing.assert_allclose(sincos1d(S, D), expected, atol=1e-5)


def test_sincos2d_is_the_formula():
  h, w, D = 3, 5, 16
  omega = [10_000 ** (-i / (D // 4 - 1)) for i in range(D // 4)]
  expected = np.zeros((h, w, D))
  for y, x, (i, frequency) in itertools.product(
    range(h), range(w), enumerate(omega)
  ):
    angles = x * frequency, y * frequency
    expected[y, x, i :: D // 4] = [
      wave(angle) for angle in angles for wave in (np.sin, np.cos)
    ]
  found = sincos2d(h, w, D)
  np.testing.assert_allclose(found, expected.reshape(h * w, D), atol=1e-5)


def test_sincos2d_is_ordered_as_in_big_vision():
  found = np.asarray(sincos2d(2, 3, 8)).reshape(2, 3, 4, 2)
  sin, cos = np.sin(1), np.cos(1)
  # Column 1 of row 0, then column 0 of row 1, at frequency 1.
  np.testing.assert_allclose(found[0, 1, :, 0], [sin, cos, 0, 1], atol=1e-6)
  np.testing.assert_allclose(found[1, 0, :, 0], [0, 1, sin, cos], atol=1e-6)


@pytest.mark.parametrize("class_token", [True, False])
def test_learned2d_joins_column_and_row(class_token):
  h, w, D = 2, 3, 8
  embedding = position.PositionEmbedding("learned2d", (h, w), D, class_token)
  params = random_params(embedding)
  assert params["X_pos"].shape == (w, D // 2)
  assert params["Y_pos"].shape == (h, D // 2)
  E_pos = apply(embedding, params)
  if class_token:
    np.testing.assert_array_equal(E_pos[0], np.zeros(D))
    E_pos = E_pos[1:]
  for i, j in itertools.product(range(h), range(w)):
    expected = np.concatenate([params["X_pos"][j], params["Y_pos"][i]])
    np.testing.assert_array_equal(E_pos[i * w + j], expected)


@pytest.mark.parametrize("class_token", [True, False])
def test_fixed_embeddings_and_the_class_token(class_token):
  def embed(kind):
    made = position.PositionEmbedding(kind, (2, 3), 8, class_token)
    return jax.jit(made.apply)({})

  expected = sincos1d(6 + class_token, 8)
  np.testing.assert_array_equal(embed("sincos1d"), expected)
  expected = sincos2d(2, 3, 8)
  if class_token:
    expected = np.concatenate([np.zeros((1, 8)), expected])
  np.testing.assert_array_equal(embed("sincos2d"), expected)


def test_relative_logits_are_a_triple_loop():
  B, S, D_h = 2, 5, 4
  rng = np.random.default_rng(0)
  q = rng.normal(size=(B, HEADS, S, D_h)).astype(np.float32)
  R = rng.normal(size=(2 * S - 1, HEADS, D_h)).astype(np.float32)
  expected = np.zeros((B, HEADS, S, S))
  for head, i, j in itertools.product(range(HEADS), range(S), range(S)):
    expected[:, head, i, j] = q[:, head, i] @ R[i - j + S - 1, head]
  found = jax.jit(position.relative_logits)(q, R)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_relative_offsets_enter_the_attention():
  z = jax.random.normal(jax.random.key(0), (1, 5, HIDDEN_SIZE))
  D_h = HIDDEN_SIZE // HEADS
  R = jax.random.normal(jax.random.key(1), (9, HEADS, D_h))
  msa = attention.Msa(HEADS)
  params = random_params(msa, z)
  _, state = msa.apply({"params": params}, z, R, mutable="intermediates")
  (A,) = state["intermediates"]["attention"]
  q, k = (
    np.einsum("bsd,dhe->bshe", z, params[name]["kernel"]) + params[name]["bias"]
    for name in ("query", "key")
  )
  for head, i in itertools.product(range(HEADS), range(5)):
    keys = np.stack([k[0, j, head] + R[i - j + 4, head] for j in range(5)])
    powers = np.exp(keys @ q[0, i, head] / D_h**0.5)
    np.testing.assert_allclose(A[0, head, i], powers / powers.sum(), rtol=1e-4)


def tables(params, name):
  """Names of the parameters of position embeddings, in order."""
  return sorted(key for key in params if key.startswith(name))


@pytest.mark.slow
@pytest.mark.parametrize("pooling", vit.POOLINGS)
@pytest.mark.parametrize("place", position.PLACES)
@pytest.mark.parametrize("kind", position.POSITIONS)
def test_every_kind_builds_at_every_place(kind, place, pooling):
  x = images()
  model = tiny(position=kind, position_at=place, pooling=pooling)
  logits, variables = jax.eval_shape(
    lambda key: model.init_with_output(key, x), jax.random.key(0)
  )
  assert logits.shape == (2, 5)
  params = nn.unbox(variables["params"])
  name = "relative" if kind == "relative" else "position"
  expected = [name]
  # Relative offsets act inside every layer: "input" means "every_layer".
  if place == "every_layer" or (kind, place) == ("relative", "input"):
    expected = [f"{name}_{layer}" for layer in range(LAYERS)]
  if kind in (*position.FIXED, "none"):
    expected = []
  assert tables(params, "position") + tables(params, "relative") == expected
  S = 7 if pooling == "token" else 6
  for table in expected:
    sizes = {key: leaf.shape for key, leaf in params[table].items()}
    assert (
      sizes
      == {
        "learned": {"E_pos": (S, HIDDEN_SIZE)},
        "learned_grid": {"E_pos": (6, HIDDEN_SIZE)},
        "learned2d": {
          "X_pos": (3, HIDDEN_SIZE // 2),
          "Y_pos": (2, HIDDEN_SIZE // 2),
        },
        "relative": {"R": (2 * S - 1, HEADS, HIDDEN_SIZE // HEADS)},
      }[kind]
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", position.PLACES)
def test_each_place_adds_where_it_says(place):
  """Runs the blocks by hand and adds the positions between them."""
  model = tiny(position="learned", position_at=place, pooling="gap")
  x = images()
  params = random_params(model, x)
  z = apply(vit.PatchEmbedding(4, HIDDEN_SIZE), params["patches"], x)
  z = z.reshape(2, 6, HIDDEN_SIZE)
  block = vit.EncoderBlock(HEADS, 32)
  for layer in range(LAYERS):
    table = f"position_{layer}" if place == "every_layer" else "position"
    if place != "input" or layer == 0:
      z = z + params[table]["E_pos"][None]
    z = apply(block, params[f"block_{layer}"], z)
  y = apply(nn.LayerNorm(epsilon=1e-6), params["norm"], z).mean(1)
  expected = np.asarray(y) @ params["head"]["kernel"] + params["head"]["bias"]
  found = apply(model, params, x)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_a_learned_grid_the_class_token_has_no_position():
  x = images(8, 12)
  model, grid = tiny(position="learned"), tiny(position="learned_grid")
  params = random_params(grid, x)
  E_pos = np.pad(params["position"]["E_pos"], ((1, 0), (0, 0)))
  found = apply(grid, params, x)
  expected = apply(model, params | {"position": {"E_pos": E_pos}}, x)
  np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  "kind",
  ["relative", "none", "learned2d"],
)
def test_only_without_positions_is_the_order_of_patches_lost(kind):
  x = images(4, 24)
  swapped = x.reshape(2, 4, 6, 4, 3)[:, :, jnp.array([3, 1, 5, 0, 4, 2])]
  model = tiny(position=kind, pooling="gap")
  params = random_params(model, x)
  before = apply(model, params, x)
  after = apply(model, params, swapped.reshape(x.shape))
  if kind == "none":
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-5)
  else:
    assert np.abs(before - after).max() > 1e-4


@pytest.mark.parametrize(
  "kind, message",
  [
    ("learned", r"E_pos was learned .* \(7, 24\), and .* need \(10, 24\): use"),
    ("learned2d", r"Y_pos .* \(2, 12\).*, or load .*\(source, image_size=.H"),
    (
      "relative",
      r"R was learned with shape \(13, 3, 8\).* was trained on\.\n",
    ),
  ],
)
def test_another_grid_is_refused(kind, message):
  model = tiny(position=kind)
  params = random_params(model, images(8, 12))
  with pytest.raises(ValueError, match=message):
    apply(model, params, images(12, 12))


def test_fixed_positions_take_any_grid():
  model = tiny(position="sincos2d")
  params = random_params(model, images(8, 12))
  assert apply(model, params, images(12, 4)).shape == (2, 5)


@pytest.mark.parametrize(
  "fields, message",
  [
    ({"position": "2d"}, "position='2d' is unknown; choose one of learned"),
    ({"position_at": "output"}, "position_at='output' is unknown; choose on"),
    ({"position": "learned2d", "hidden_size": 27}, "divisible by 2, not 27"),
    ({"position": "sincos1d", "hidden_size": 27}, "divisible by 2, not 27"),
    ({"position": "sincos2d", "hidden_size": 30}, "divisible by 4, not 30"),
    ({"position": "sincos2d", "hidden_size": 4, "num_heads": 1}, "8 or more"),
  ],
)
def test_positions_that_cannot_be_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    make_vit("Ti/4", num_classes=5, **({"num_heads": HEADS} | fields))
