"""Contrastive losses against their formulas in NumPy, on any mesh."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import libraries
from tests.rows import some_slow
from vit_jax.training import contrastive, sharding

B, R = 24, 5
RNG = np.random.default_rng(0)
LOG_SCALE, BIAS = np.float32(np.log(7.0)), np.float32(-3.0)
EIGHT = dict(data=2, fsdp=2, tensor=2)


def _unit(x):
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def _vectors(rows=B):
  return [_unit(RNG.normal(size=(rows, R))) for _ in "uv"]


U, V = _vectors()
SAME = np.arange(B) % 20  # Four pairs of equal texts.
SHIFTED = (U, V, LOG_SCALE, BIAS)


def _numpy_sigmoid(u, v, log_scale, bias, groups):
  """The losses, and the gradients of their mean."""
  u, v = (np.asarray(x, np.float64) for x in (u, v))
  scale = np.exp(np.float64(log_scale))
  cosines = u @ v.T
  z = 2 * np.eye(len(u)) - 1
  counts = (groups[:, None] != groups[None]) | np.eye(len(u), dtype=bool)
  log_p = -np.logaddexp(0, -z * (scale * cosines + bias))
  losses = -(log_p * counts).sum(1)
  slope = -z * (1 - np.exp(log_p)) * counts / len(u)
  return losses, (
    scale * slope @ v,
    scale * slope.T @ u,
    scale * (slope * cosines).sum(),
    slope.sum(),
  )


def _numpy_softmax(u, v, log_scale, groups):
  u, v = (np.asarray(x, np.float64) for x in (u, v))
  scale = np.exp(np.float64(log_scale))
  cosines, own = u @ v.T, np.eye(len(u))
  counts = (groups[:, None] != groups[None]) | own.astype(bool)
  e = np.exp(scale * cosines) * counts
  rows, columns = e / e.sum(1, keepdims=True), e / e.sum(0, keepdims=True)
  losses = -(np.log(rows.diagonal()) + np.log(columns.diagonal())) / 2
  slope = ((rows + columns) / 2 - own) / len(u)
  return losses, (
    scale * slope @ v,
    scale * slope.T @ u,
    scale * (slope * cosines).sum(),
  )


KINDS = {
  "sigmoid": (contrastive.sigmoid_loss, _numpy_sigmoid, SHIFTED),
  "softmax": (contrastive.softmax_loss, _numpy_softmax, SHIFTED[:3]),
}


def _with_gradients(loss, same, *given):
  same = None if same is None else jnp.asarray(same)
  given = [jnp.asarray(x) for x in given]

  def mean(*given):
    losses = loss(*given, groups=same)
    return losses.mean(), losses

  which = tuple(range(len(given)))
  gradient = jax.jit(jax.value_and_grad(mean, which, has_aux=True))
  results = gradient(*given)
  (_, losses), gradients = results
  return losses, gradients


def _assert_close(found, expected, rtol=1e-5):
  pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
  for a, b in pairs:
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize(
  "alike, most",
  some_slow(
    itertools.product((False, True), (2**22, 5 * B - 1, 1)),
    [(True, 5 * B - 1)],
  ),
)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients(monkeypatch, kind, alike, most):
  """In one block, in six of which the last is not full, and by columns."""
  monkeypatch.setattr(contrastive, "BLOCK", most)
  loss, numpy, given = KINDS[kind]
  same, ids = (SAME, SAME) if alike else (None, np.arange(B))
  found = _with_gradients(loss, same, *given)
  _assert_close(found, numpy(*given, groups=ids))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_as_large_as_learning_makes_them(kind):
  loss, numpy, given = KINDS[kind]
  u, v, _, *rest = given
  given = (u, np.float32(u * 0.6 + v * 0.8), np.float32(np.log(100)), *rest)
  found = _with_gradients(loss, None, *given)
  _assert_close(found, numpy(*given, groups=np.arange(B)), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_alone_among_the_same_an_example_has_its_own_term_left(kind):
  loss, _, given = KINDS[kind]
  losses, gradients = _with_gradients(loss, np.zeros(B, int), *given)
  own = np.exp(LOG_SCALE) * (U * V).sum(1) + BIAS
  expected = np.logaddexp(0, -own) if kind == "sigmoid" else np.zeros(B)
  np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
  assert all(np.isfinite(g).all() for g in gradients)


def test_ids_of_texts_are_equal_if_texts_are():
  tokens = RNG.integers(0, 4, (2000, 6)).astype(np.int32)
  ids = np.asarray(contrastive.text_groups(jnp.asarray(tokens)))
  texts = {tuple(row) for row in tokens.tolist()}
  both = {(one, *row) for one, row in zip(ids, tokens.tolist(), strict=True)}
  assert len(set(ids.tolist())) == len(both) == len(texts) < 2000


def _on(axes, loss):
  """The compiled loss and gradients over a mesh, and its arguments' places."""
  mesh = sharding.make_mesh(devices=jax.devices(), **axes)
  split, whole = (
    sharding.batch_sharding(mesh),
    sharding.replicated_sharding(mesh),
  )
  return jax.jit(
    sharding.on_mesh(functools.partial(_with_gradients, loss), mesh)
  ), lambda x: jax.device_put(x, split if np.ndim(x) else whole)


@pytest.mark.parametrize("axes", some_slow([{}, EIGHT], [EIGHT]), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_eight_devices_do_what_one_does(kind, axes):
  loss, numpy, given = KINDS[kind]
  function, place = _on(axes, loss)
  given = [place(x) for x in (SAME, *given)]
  _assert_close(function(*given), numpy(*KINDS[kind][2], groups=SAME))


@pytest.mark.slow
@pytest.mark.parametrize("axes", [{}, EIGHT], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_device_has_the_logits_of_all_pairs(monkeypatch, kind, axes):
  """By the shapes of the compiled program, which are those of a device."""
  rows, columns = B // (4 if axes else 8), 4
  monkeypatch.setattr(contrastive, "BLOCK", rows * columns)
  function, place = _on(axes, KINDS[kind][0])
  given = [place(x) for x in (SAME, *KINDS[kind][2])]
  text = function.lower(*given).compile().as_text()
  found = {
    tuple(map(int, shape.split(",")))
    for shape in re.findall(r"\bf32\[([\d,]+)\]", text or "")
  }
  assert (rows, columns) in found  # A block of logits.
  sizes = [np.prod(shape) for shape in found if R not in shape]
  assert max(sizes) < rows * B < B * B


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_the_same_loss_and_gradients(kind):
  """Of `CLIPModel` and `SiglipModel` with random weights."""
  transformers, torch = libraries.needed("transformers", "torch")
  sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  sizes |= dict(num_attention_heads=2, projection_dim=16, projection_size=16)
  text = dict(sizes, vocab_size=30, max_position_embeddings=6)
  image = dict(sizes, image_size=8, patch_size=4)
  name = dict(sigmoid="Siglip", softmax="CLIP")[kind]
  config = getattr(transformers, f"{name}Config")(
    text_config=text, vision_config=image, projection_dim=16
  )
  torch.manual_seed(0)
  model = getattr(transformers, f"{name}Model")(config)
  rng = np.random.default_rng(0)
  with torch.no_grad():
    if kind == "sigmoid":
      model.logit_bias.fill_(-4.0)
    model.logit_scale.fill_(2.0)
  found = model(
    input_ids=torch.tensor(rng.integers(3, 30, (9, 6))),
    pixel_values=torch.tensor(rng.normal(size=(9, 3, 8, 8)), dtype=torch.float),
    return_loss=True,
  )
  numbers = [model.logit_scale]
  numbers += [model.logit_bias] if kind == "sigmoid" else []
  given = [found.image_embeds, found.text_embeds, *numbers]
  theirs = torch.autograd.grad(found.loss, given)
  arrays = [jnp.asarray(x.detach().numpy()) for x in given]
  arrays[2:] = [x.reshape(()) for x in arrays[2:]]
  losses, gradients = _with_gradients(KINDS[kind][0], None, *arrays)
  assert float(losses.mean()) == pytest.approx(found.loss.item(), rel=1e-5)
  expected = [
    x.numpy().reshape(y.shape) for x, y in zip(theirs, arrays, strict=True)
  ]
  _assert_close(gradients, expected)
