"""Attention, rollout, relevance and distance, against NumPy and plain loops."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest

from tests.inspection.float64_vit import (
  GRID,
  HEADS,
  SIZE,
  B,
  L,
  P,
  drawn,
  forward,
  some_images,
  tiny,
)
from tests.tiny import random_params
from vit_jax.inspection.attention_maps import (
  Attention,
  attention_gradients,
  attention_weights,
  mean_attention_distance,
  outliers,
  output_attention,
  relevance,
  rollout,
)
from vit_jax.inspection.embedding_maps import embedding_filters
from vit_jax.models import ResNet, from_fields, make_vit, to_fields
from vit_jax.models.parts import stack

POOLINGS = ("token", "gap", "map")


def random_attention(pooling="token", grid=GRID, seed=0):
  """Random attention weights, not from a model, whose rows sum to 1."""
  rng = np.random.default_rng(seed)
  S = grid[0] * grid[1] + (pooling == "token")
  A = rng.exponential(size=(L, B, HEADS, S, S)).astype(np.float32)
  pool = rng.exponential(size=(B, HEADS, S)).astype(np.float32)
  shares = {"token": np.eye(S)[0], "gap": np.full(S, 1 / S)}
  return Attention(
    A / A.sum(axis=-1, keepdims=True),
    pool / pool.sum(axis=-1, keepdims=True)
    if pooling in ("map", "query")
    else None,
    grid,
    int(pooling == "token"),
    P,
    shares.get(pooling),
    pooling == "token",
  )


@pytest.mark.slow
@pytest.mark.parametrize("pooling", (*POOLINGS, "query"))
def test_weights_are_the_softmax_of_q_and_k(pooling):
  model, params = drawn(pooling=pooling)
  found = attention_weights(model, params, some_images())
  logits, seen = forward(model, params, some_images())
  S = 7 if pooling == "token" else 6
  assert found.layers.shape == (L, B, HEADS, S, S)
  np.testing.assert_allclose(found.layers.sum(axis=-1), 1, atol=1e-5)
  for i in range(L):
    np.testing.assert_allclose(found.layers[i], seen[i], atol=1e-5)
  if pooling in ("map", "query"):
    np.testing.assert_allclose(found.pool, seen["pool"][:, :, 0], atol=1e-5)
  else:
    assert found.pool is None
  assert (found.grid, found.stride) == (GRID, P)
  assert found.prefix == (pooling == "token")
  # The NumPy model agrees with ours in its logits too.
  ours = jax.jit(model.apply)({"params": params}, some_images())
  np.testing.assert_allclose(ours, logits, atol=1e-4)


@pytest.mark.slow
def test_scanned_boxed_and_rematerialised_models_give_the_same_weights():
  (model, params), x = drawn(pooling="token"), some_images()
  expected = attention_weights(model, params, x)
  scanned = model.clone(scan=True, remat="full")
  found = attention_weights(scanned, stack(params), x)
  np.testing.assert_allclose(found.layers, expected.layers, atol=1e-6)
  boxed = random_params(model, SIZE, 1, unbox=lambda params: params)
  found = attention_weights(model, boxed, x)
  np.testing.assert_array_equal(found.layers, expected.layers)


@pytest.mark.slow
def test_a_hybrid_has_the_grid_of_its_features():
  model = tiny(resnet_layers=(1,), resnet_width=32, patch_size=2)
  params = random_params(model, (16, 24), 1)
  found = attention_weights(model, params, some_images((16, 24)))
  assert (found.grid, found.stride) == ((2, 3), 8)
  np.testing.assert_allclose(found.layers.sum(axis=-1), 1, atol=1e-5)
  filters = embedding_filters(model, params)
  kernel = params["resnet"]["conv_root"]["kernel"]
  assert filters.shape == (32, 7, 7, 3)
  np.testing.assert_array_equal(filters[5], kernel[..., 5])


def test_a_model_shows_no_attention_unless_asked():
  """Initialising gives parameters alone, and applying gives logits alone."""
  model, params = drawn(pooling="token")
  made = jax.eval_shape(model.init, jax.random.key(0), some_images())
  assert set(made) == {"params"}
  found = jax.eval_shape(model.apply, {"params": params}, some_images())
  assert found.shape == (B, 3)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", [*POOLINGS, "query"])
def test_gradients_are_finite_differences(pooling):
  (model, params), x = drawn(pooling=pooling), some_images()
  classes = np.array([2, 0])
  seen, gradients = attention_gradients(model, params, x, classes)
  expected = attention_weights(model, params, x)
  np.testing.assert_allclose(seen.layers, expected.layers, atol=1e-6)

  def differences(place, shape):
    found = np.zeros((B, *shape))
    for at in itertools.product(*map(range, shape)):
      change = np.zeros((1, *shape))
      change[(0, *at)] = 1e-5
      up, down = (
        forward(model, params, x, {place: s * change})[0] for s in (1, -1)
      )
      found[(slice(None), *at)] = (up - down)[np.arange(B), classes] / 2e-5
    return found

  S = gradients.layers.shape[-1]
  for i in range(L):
    by_hand = differences(i, (HEADS, S, S))
    np.testing.assert_allclose(gradients.layers[i], by_hand, atol=1e-5)
    assert np.abs(by_hand).max() > 1e-3
  if pooling in ("map", "query"):
    by_hand = differences("pool", (HEADS, 1, S))[:, :, 0]
    np.testing.assert_allclose(gradients.pool, by_hand, atol=1e-5)


def rolled(matrices, start):
  """Multiplies the start row by all matrices, from the last layer, in loops."""
  row = list(start)
  for M in reversed(matrices):
    S = len(row)
    row = [sum(row[q] * M[q][s] for q in range(S)) for s in range(S)]
  return row


def start_of(attention, b, fuse):
  S = attention.layers.shape[-1]
  if attention.pool is not None:
    row = [fuse(attention.pool[b, :, s]) for s in range(S)]
    return [value / sum(row) for value in row]
  if attention.prefix:
    return [1.0] + [0.0] * (S - 1)
  return [1 / S] * S


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_rollout_by_loops(pooling, fusion, discard):
  attention = random_attention(pooling)
  fuse = {"mean": np.mean, "max": max, "min": min}[fusion]
  S = attention.layers.shape[-1]
  pairs = [(q, s) for q in range(S) for s in range(S)]
  found = rollout(attention, fusion, discard)
  assert found.shape == (B, *GRID)
  for b in range(B):
    matrices = []
    for A in attention.layers[:, b].astype(np.float64):
      M = {(q, s): fuse(A[:, q, s]) for q, s in pairs}
      lowest = sorted(pairs, key=lambda at, M=M: M[at])[: int(discard * S * S)]
      for at in lowest:
        if pooling != "token" or at != (0, 0):
          M[at] = 0.0
      for q in range(S):
        M[q, q] += 1
        total = sum(M[q, s] for s in range(S))
        M.update({(q, s): M[q, s] / total for s in range(S)})
      matrices.append([[M[q, s] for s in range(S)] for q in range(S)])
    row = rolled(matrices, start_of(attention, b, fuse))
    np.testing.assert_allclose(sum(row), 1, atol=1e-6)
    patches = np.reshape(row[pooling == "token" :], GRID)
    np.testing.assert_allclose(found[b], patches, atol=1e-6)


def test_the_class_token_keeps_its_own_attention():
  """Its attention to itself stays though it is lowest; a patch's does not."""
  A = np.full((1, 1, 1, 4, 4), 0.2, np.float32)
  A[..., 0, 0] = 0.1
  first = Attention(A, None, (1, 3), 1, 1, np.eye(4)[0])
  kept, whole = rollout(first, discard=1 / 16), rollout(first)
  np.testing.assert_array_equal(kept, whole)
  np.testing.assert_allclose(whole, 0.2 / 1.7, rtol=1e-6)
  none = Attention(A, None, (1, 4), 0, 1, np.full(4, 0.25), False)
  assert rollout(none, discard=1 / 16)[0, 0, 0] == pytest.approx(
    (1 / 1.6 + 3 * 0.2 / 1.8) / 4
  )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_relevance_by_loops(pooling):
  attention = random_attention(pooling)
  gradients = random_attention(pooling, seed=1)
  rng = np.random.default_rng(2)
  signs = rng.choice([-1.0, 1.0], attention.layers.shape).astype(np.float32)
  gradients.layers[...] *= signs
  found = relevance(attention, gradients)
  S = attention.layers.shape[-1]
  for b in range(B):
    matrices = []
    for A, dA in zip(
      attention.layers[:, b], gradients.layers[:, b], strict=True
    ):
      M = np.eye(S)
      for h, q, s in itertools.product(range(HEADS), range(S), range(S)):
        M[q, s] += max(0.0, A[h, q, s] * dA[h, q, s]) / HEADS
      matrices.append(M)
    start = start_of(attention, b, np.mean)
    if pooling == "map":
      start = (attention.pool[b] * gradients.pool[b]).mean(axis=0)
    row = rolled(matrices, start)
    if pooling == "gap":
      row = np.asarray(row) - 1 / S  # The identities alone give this share.
    patches = np.reshape(row[pooling == "token" :], GRID)
    np.testing.assert_allclose(found[b], patches, rtol=1e-5)


def test_attention_of_the_output_token():
  attention = random_attention()
  np.testing.assert_array_equal(
    output_attention(attention, 1)[0, 1],
    attention.layers[1, 0, 1, 0, 1:].reshape(GRID),
  )
  attention = random_attention("gap")
  np.testing.assert_allclose(
    output_attention(attention, 0)[1, 0],
    attention.layers[0, 1, 0].mean(axis=0).reshape(GRID),
  )


@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_distance_by_loops(pooling):
  attention = random_attention(pooling)
  found = mean_attention_distance(attention)
  assert found.shape == (L, B, HEADS)
  first = int(pooling == "token")
  centres = [
    (P * (i + 0.5), P * (j + 0.5)) for i in range(GRID[0]) for j in range(3)
  ]
  for at in itertools.product(range(L), range(B), range(HEADS)):
    A = attention.layers[at]
    means = []
    for q, (y, x) in enumerate(centres):
      row = A[q + first, first:]
      away = [np.hypot(y - v, x - u) for v, u in centres]
      means.append(
        sum(a * d for a, d in zip(row, away, strict=True)) / sum(row)
      )
    np.testing.assert_allclose(found[at], np.mean(means), rtol=1e-5)


def test_uniform_attention_has_the_mean_distance_of_a_grid():
  """On a line of n patches the mean distance is (n^2 - 1) / 3n patches."""
  n = 5
  A = np.full((1, 1, 1, n + 1, n + 1), 1 / (n + 1), np.float32)
  for grid in ((1, n), (n, 1)):
    found = mean_attention_distance(Attention(A, None, grid, 1, 16))
    assert found.item() == pytest.approx(16 * (n * n - 1) / (3 * n), rel=1e-6)
  # In a square of four, one patch is the query itself, two are 1 patch away
  # and one is sqrt(2) away.
  A = np.full((1, 1, 1, 4, 4), 1 / 4, np.float32)
  found = mean_attention_distance(Attention(A, None, (2, 2), 0, 16))
  assert found.item() == pytest.approx(16 * (2 + 2**0.5) / 4, rel=1e-6)


def test_an_axial_layer_has_heads_along_rows_and_then_along_columns():
  """All queries of a row of patches attend to it alone: each row has 1 / h."""
  model = make_vit("Axial-Ti/4", num_classes=3, num_layers=2)
  h, w = 2, 3
  images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("f")
  found = attention_weights(model, random_params(model, (8, 12), 0), images)
  assert found.num_layers == 2 and len(found.layers) == 4
  k = model.num_heads
  for layer in (0, 1):
    maps = output_attention(found, layer)
    assert maps.shape == (2, 2 * k, h, w)
    rows, columns = maps[:, :k], maps[:, k:]
    np.testing.assert_allclose(rows.sum(axis=-1), 1 / h, rtol=1e-5)
    np.testing.assert_allclose(columns.sum(axis=-2), 1 / w, rtol=1e-5)
    assert np.ptp(rows.sum(axis=-2)) > 1e-3  # Not even along a row.
  assert mean_attention_distance(found).shape == (2, 2, 2 * k)


def test_attention_to_the_class_token_alone_has_no_distance():
  A = np.zeros((1, 1, 1, 5, 5), np.float32)
  A[..., 0] = 1
  found = mean_attention_distance(Attention(A, None, (2, 2), 1, 16))
  assert found.item() == 0


def test_a_resnet_has_no_attention():
  resnet = ResNet(3, layers=(1,), width=32)
  with pytest.raises(ValueError, match="ResNet has neither attention nor"):
    attention_weights(resnet, {}, some_images())


@pytest.mark.parametrize(
  "options, message",
  [
    ({"fusion": "sum"}, "fusion='sum' is unknown; choose one of mean, max"),
    ({"discard": 1.0}, r"discard=1.0 must be in \[0, 1\)"),
    ({"discard": float("nan")}, r"discard=nan must be in"),
  ],
)
def test_unknown_rollouts_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    rollout(random_attention(), **options)


def test_unknown_classes_are_refused():
  model, params = drawn(pooling="token")
  for classes in ([0, 3], [-1, 0]):
    with pytest.raises(ValueError, match="not all among the model's 3"):
      attention_gradients(model, params, some_images(), np.array(classes))


def test_the_maps_of_an_encoder_leave_its_registers_out():
  model: Any = from_fields(
    to_fields(tiny()) | dict(kind="ModernVit", registers=3, pooling="token_gap")
  )
  params = random_params(model, SIZE, 1)
  found = attention_weights(model, params, some_images())
  S = 4 + GRID[0] * GRID[1]
  assert found.layers.shape == (L, B, HEADS, S, S) and found.prefix == 4
  rows = np.arange(S, dtype=np.float32)
  np.testing.assert_array_equal(found.maps(rows).ravel(), rows[4:])
  assert found.readout is not None
  np.testing.assert_allclose(found.readout[0], 0.5)
  np.testing.assert_allclose(found.readout[4:].sum(), 0.5, rtol=1e-6)
  assert (rollout(found).sum(axis=(1, 2)) < 1).all()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_patches_left_out_get_nothing(pooling):
  """As with the columns of their keys at 0, and all others as they were."""
  attention = random_attention(pooling)
  left_out = np.zeros((B, *GRID), bool)
  left_out[0, 1, 0] = left_out[1, 0, 1] = True
  found = attention.without(left_out)
  keys = [attention.prefix + 1 * GRID[1] + 0, attention.prefix + 1]
  expected = attention.layers.copy()
  for b, key in enumerate(keys):
    expected[:, b, :, :, key] = 0
  np.testing.assert_array_equal(found.layers, expected)
  if pooling == "map":
    assert (found.pool[[0, 1], :, keys] == 0).all()
  maps = output_attention(found, 0)
  assert (maps[0, :, 1, 0] == 0).all() and (maps[1, :, 0, 1] == 0).all()
  if pooling == "token":  # Else the residual passes their own shares on.
    assert rollout(found)[0, 1, 0] == 0
  assert (rollout(found)[~left_out] > 0).all()


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_outliers_are_those_of_numpy(prefix):
  """A norm of over 3 medians, or over 10 even shares of a layer."""
  h, w = 6, 8
  S = prefix + h * w
  A = np.full((L, 2, HEADS, S, S), 1 / S, np.float32)
  # All queries of one head, or one in four of every head: both are half.
  A[0, 0, :, ::2, prefix + 9] += 21 / S
  A[1, 1, :, ::2, prefix + 10] += 17 / S
  norms = np.ones((2, h, w))
  norms[1, 2, 3], norms[1, 4, 5] = 3.01, 2.99
  attention = Attention(A, None, (h, w), prefix, P)
  share = np.array(
    [
      [np.mean(A[:, b, :, :, s], axis=(1, 2)).max() for s in range(S)]
      for b in range(2)
    ]
  )[:, prefix:].reshape(2, h, w)
  expected = (share > 10 / S) | (
    norms > 3 * np.median(norms, axis=(1, 2))[:, None, None]
  )
  found = outliers(attention, norms)
  np.testing.assert_array_equal(found, expected)
  assert np.argwhere(found).tolist() == [[0, 1, 1], [1, 2, 3]]
