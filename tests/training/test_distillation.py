"""Distillation: the loss by NumPy, and what the teacher sees."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.training.distillation import Distilled, Teacher
from vit_jax.training.losses import Classification, StepContext
from vit_jax.training.settings import DistillSettings, LossSettings

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
T, W = 3.0, 0.25


class Seen(nn.Module):
  """Answers with all the pixels that it gets, times a parameter."""

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, ())
    return scale * x.reshape(len(x), -1)


def teacher(size=(4, 4), mean=MEAN, std=STD, **settings):
  return Teacher(Seen(), size, mean, std, DistillSettings(**settings))


def _softmax(x):
  e = np.exp(x - x.max(axis=1, keepdims=True))
  return e / e.sum(axis=1, keepdims=True)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _divergence(kind, s, t):
  """KL of the teacher's distributions and the student's at T, in float64."""
  if kind == "softmax":
    p, q = _softmax(t / T), _softmax(s / T)
    return T**2 * (p * (np.log(p) - np.log(q))).sum(axis=1)
  p, q = _sigmoid(t / T), _sigmoid(s / T)
  yes, no = np.log(p) - np.log(q), np.log(1 - p) - np.log(1 - q)
  return T**2 * (p * yes + (1 - p) * no).sum(axis=1)


def _cross_entropy(kind, s, t):
  """With the teacher's answers in place of labels."""
  if kind == "softmax":
    return -np.log(_softmax(s))[np.arange(len(s)), t.argmax(axis=1)]
  right = np.where(t > 0, _sigmoid(s), 1 - _sigmoid(s))
  return -np.log(right).sum(axis=1)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("answers", ["soft", "hard"])
def test_the_loss_is_that_of_the_formula(kind, answers):
  rng = np.random.default_rng(0)
  s, t = rng.normal(0, 2, (2, 6, 5))
  labelled = rng.uniform(size=6)
  expected = _divergence(kind, s, t)
  if answers == "hard":
    expected = _cross_entropy(kind, s, t)
  loss = jax.jit(
    teacher(kind=answers, temperature=T, weight=W).loss, static_argnums=0
  )
  found = loss(kind, *map(np.float32, (s, t, labelled)))
  expected = (1 - W) * labelled + W * expected
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["soft", "hard"])
def test_deits_form_has_a_token_for_the_teacher(answers):
  """DeiT's code: KL summed over all, T^2 / (B K), on the token's logits."""
  rng = np.random.default_rng(0)
  B, K = 6, 12
  first, second, t = rng.normal(0, 2, (3, B, K))
  label = rng.integers(0, K, B)
  own = teacher((2, 2), (0,) * 3, (1,) * 3, form="deit", kind=answers,
                temperature=T, weight=W)  # fmt: skip
  labelled = Classification(K, LossSettings(), (0,) * 3, (1,) * 3)
  objective = Distilled(labelled, own)
  images = jnp.asarray(t.reshape(B, 2, 2, 3), jnp.float32)

  def loss(heads):
    def apply(images, method):
      assert method == "by_head"
      return heads

    targets, params = jax.nn.one_hot(label, K), {"scale": jnp.ones(())}
    context = StepContext(frozen={"teacher": params})
    loss, score, *_ = objective.loss(apply, images, targets, context)
    return loss.mean(), score

  heads = tuple(jnp.asarray(x, jnp.float32) for x in (first, second))
  both = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (found, score), gradient = both(heads)
  base = -np.log(_softmax(first))[np.arange(B), label]
  p, q = _softmax(t / T), _softmax(second / T)
  taught = (p * (np.log(p) - np.log(q))).sum() * T**2 / (B * K)
  if answers == "hard":
    taught = -np.log(_softmax(second))[np.arange(B), t.argmax(axis=1)].mean()
  expected = (1 - W) * base.mean() + W * taught
  assert float(found) == pytest.approx(expected, rel=1e-5)
  right = (first + second).argmax(axis=1) == label
  np.testing.assert_array_equal(score, right)
  # Labels reach the class token's logits alone.
  to_first = (1 - W) * (_softmax(first) - np.eye(K)[label]) / B
  np.testing.assert_allclose(gradient[0], to_first, atol=1e-6)


def _logits(teacher, pixels, mean=(0.5,) * 3, std=(0.5,) * 3):
  shift, scale = np.float32(mean), np.float32(std)
  images = jnp.asarray((pixels - shift) / scale, jnp.float32)
  params = {"scale": jnp.ones(())}
  seen = teacher.logits(params, images, mean, std)
  return np.asarray(seen).reshape(len(pixels), *teacher.image_size, 3)


def test_the_teacher_has_its_own_normalisation():
  pixels = np.random.default_rng(0).uniform(size=(2, 4, 4, 3))
  expected = (pixels - np.array(MEAN)) / np.array(STD)
  np.testing.assert_allclose(_logits(teacher(), pixels), expected, atol=1e-5)
  seen = _logits(teacher(), pixels, MEAN, STD)
  np.testing.assert_allclose(seen, expected, atol=1e-5)


@pytest.mark.parametrize("size", [(4, 16), (4, 4)])
def test_the_teacher_has_its_own_size(size):
  """A ramp stays the same ramp, but where the border is repeated."""
  ramp = (np.arange(8) + 0.5) / 8
  pixels = np.broadcast_to(ramp[None, None, :, None], (1, 4, 8, 3))
  plain = dict(mean=(0.5,) * 3, std=(0.5,) * 3)
  seen = _logits(teacher(size, **plain), pixels)
  expected = 2 * (np.arange(size[1]) + 0.5) / size[1] - 1
  inner = slice(1, -1)
  for row in seen[0, :, inner, 0]:
    np.testing.assert_allclose(row, expected[inner], atol=1e-5)


def test_the_teacher_sees_mixed_images_and_gets_no_gradient():
  """Its answer to a mixture is not the mixture of its answers' targets."""
  own = teacher((2, 2), temperature=T, weight=W)
  mixed = LossSettings(mixup_alpha=0.5)
  labelled = Classification(12, mixed, (0.5,) * 3, (0.5,) * 3)
  objective = Distilled(labelled, own)
  rng = np.random.default_rng(0)
  batch = {
    "image": jnp.asarray(rng.integers(0, 256, (4, 2, 2, 3)), jnp.uint8),
    "label": jnp.arange(4),
  }
  images, targets = jax.jit(objective.prepare)(batch, jax.random.key(1))
  share = float(np.asarray(targets)[0, 0])
  pixels = np.asarray(batch["image"]) / 255
  mixed = share * pixels + (1 - share) * np.roll(pixels, 1, axis=0)
  assert 0.5 < share < 1
  s = rng.normal(size=(4, 12)).astype(np.float32)

  def loss(teacher_params, logits):
    context = StepContext(frozen={"teacher": teacher_params})
    return objective.loss(lambda _: logits, images, targets, context)[0].sum()

  params = {"scale": jnp.ones(())}
  slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  found, (to_teacher, to_student) = slopes(params, jnp.asarray(s))
  t = ((mixed - np.array(MEAN)) / np.array(STD)).reshape(4, -1)
  labelled = -(np.asarray(targets) * np.log(_softmax(s))).sum(axis=1)
  expected = (1 - W) * labelled + W * _divergence("softmax", s, t)
  assert float(found) == pytest.approx(expected.sum(), rel=1e-5)
  assert float(to_teacher["scale"]) == 0
  assert np.abs(to_student).min() > 0
