"""Compares the losses of self-distillation with DINOv2's own, on equal inputs.

python scripts/parity/self_distillation_losses.py FOLDER

FOLDER is a checkout of facebookresearch/dinov2, which the reader has fetched;
torch is needed beside what this package needs. It prints the largest difference
of each loss and of its gradient, relative to the largest value, and of the
centers after 20 updates.
"""

import argparse
import importlib
import os
import pathlib
import sys
import warnings
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from vit_jax.tasks import self_distillation_losses as losses  # noqa: E402
from vit_jax.tasks.self_distillation_objective import masked  # noqa: E402

torch: Any = importlib.import_module("torch")

B, K, D, N, M, SMALL = 6, 32, 16, 9, 5, 4
TEMPERATURE = 0.05
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
  return RNG.normal(size=shape).astype(np.float32)


def relative(ours: Any, theirs: Any) -> float:
  a, b = (np.asarray(x, np.float64) for x in (ours, theirs))
  return float(np.abs(a - b).max() / np.abs(b).max())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("folder", type=pathlib.Path)
  sys.path.insert(0, str(parser.parse_args().folder.resolve()))
  warnings.simplefilter("ignore")
  for name, gaps in compared().items():
    print(f"{name}: {', '.join(f'{gap:.1e}' for gap in gaps)}")


def compared() -> dict[str, tuple[float, ...]]:
  """Differences by the name of what is compared: of values, of gradients."""
  theirs: Any = importlib.import_module("dinov2.loss")
  # One process has nothing to add up.
  torch.distributed.all_reduce = lambda *_, **__: None
  found = {}
  for compare in (teachers, class_tokens, patches, koleo, centers):
    found |= compare(theirs)
  return found


def tensor(x: np.ndarray, grad: bool = False) -> Any:
  return torch.tensor(x, requires_grad=grad)


def teachers(theirs: Any) -> dict[str, tuple[float, ...]]:
  """The two kinds of centering."""
  loss, center, answers = theirs.DINOLoss(K), normal(K), normal(2 * B, K)
  loss.center = tensor(center)[None]
  by_mean = loss.softmax_center_teacher(tensor(answers), TEMPERATURE)
  balanced = loss.sinkhorn_knopp_teacher(tensor(answers), TEMPERATURE)
  ours = losses.centered(jnp.array(answers), jnp.array(center), TEMPERATURE)
  alike = losses.sinkhorn_knopp(jnp.array(answers), TEMPERATURE)
  return {
    "centering by the mean": (relative(ours, by_mean),),
    "Sinkhorn-Knopp": (relative(alike, balanced),),
  }


def class_tokens(theirs: Any) -> dict[str, tuple[float, ...]]:
  """The loss of large and small crops, weighted as SSLMetaArch does."""
  loss = theirs.DINOLoss(K)
  pair = torch.softmax(tensor(normal(2, B, K)), dim=-1)
  large, small = normal(2, B, K), normal(SMALL, B, K)
  tensors = tensor(large, True), tensor(small, True)
  terms = 2 + 2 * SMALL
  swapped = torch.cat((pair[1], pair[0]))
  total = loss([tensors[0].flatten(0, 1)], [swapped]) * 2 / terms
  total = total + loss([*tensors[1]], [*pair]) / terms
  total.backward()

  def ours(large: Any, small: Any) -> Any:
    taught = jnp.array(pair.numpy()).swapaxes(0, 1)
    answers = large.swapaxes(0, 1), small.swapaxes(0, 1)
    return losses.class_loss(taught, *answers, 0.1).mean()

  value, slopes = jax.value_and_grad(ours, (0, 1))(large, small)
  gaps = [relative(a, b.grad) for a, b in zip(slopes, tensors, strict=True)]
  return {"class token": (relative(value, total.detach()), *gaps)}


def patches(theirs: Any) -> dict[str, tuple[float, ...]]:
  """The loss of masked patches, for both kinds of centering."""
  loss, center = theirs.iBOTPatchLoss(K), normal(K)
  loss.center = tensor(center)[None, None]
  masks = np.zeros((2 * B, N), bool)
  for mask in masks:
    mask[RNG.permutation(N)[: RNG.integers(0, M + 1)]] = True
  places = masked(jnp.array(masks), M)
  at, counts = np.asarray(places["where"])[..., None], places["counts"]
  told, said = normal(2 * B, N, K), normal(2 * B, N, K)
  rows = tensor(masks).flatten().nonzero().flatten()
  teacher = tensor(told).flatten(0, 1)[rows]
  by_mean = loss.softmax_center_teacher(teacher[None], TEMPERATURE)[0]
  number = torch.tensor([len(rows)])
  alike = loss.sinkhorn_knopp_teacher(teacher, TEMPERATURE, number)
  own = jnp.take_along_axis(jnp.array(told), at, 1)
  flat = own.reshape(-1, K), TEMPERATURE, counts.reshape(-1)
  pairs = {
    "mean": (by_mean, losses.centered(own, jnp.array(center), TEMPERATURE)),
    "Sinkhorn-Knopp": (alike, losses.sinkhorn_knopp(*flat).reshape(own.shape)),
  }
  found = {}
  for kind, (answers, taught) in pairs.items():
    student = tensor(said).flatten(0, 1)[rows].clone().requires_grad_()
    total = loss.forward_masked(
      student, answers, tensor(masks), n_masked_patches=len(rows)
    )
    total.backward()

    def ours(said: Any, taught: Any = taught) -> Any:
      student = jnp.take_along_axis(said, at, 1)
      return losses.patch_loss(taught, student, counts, 0.1).mean()

    value, slope = jax.value_and_grad(ours)(jnp.array(said))
    slope = np.asarray(slope).reshape(-1, K)[rows.numpy()]
    gaps = relative(value, total.detach()), relative(slope, student.grad)
    found[f"masked patches, centered by {kind}"] = gaps
  return found


def koleo(theirs: Any) -> dict[str, tuple[float, ...]]:
  """KoLeo of features that are not close to each other."""
  features = normal(B, D)
  own = tensor(features, True)
  total = theirs.KoLeoLoss()(own)
  total.backward()
  value, slope = jax.value_and_grad(lambda x: losses.koleo(x).mean())(features)
  gaps = relative(value, total.detach()), relative(slope, own.grad)
  return {"KoLeo": gaps}


def centers(theirs: Any) -> dict[str, tuple[float, ...]]:
  """Both centers after 20 updates, by their absolute difference."""
  of_class, of_patch = theirs.DINOLoss(K), theirs.iBOTPatchLoss(K)
  first, second = jnp.zeros(K), jnp.zeros(K)
  for _ in range(20):
    answers, rows = normal(2 * B, K), normal(2 * B * M, K)
    counts = RNG.random(len(rows)) < 0.5
    for loss, given in (
      (of_class, tensor(answers)),
      (of_patch, tensor(rows[counts])[None]),
    ):
      loss.softmax_center_teacher(given, TEMPERATURE)
      loss.update_center(given)
    first = losses.next_center(first, jnp.array(answers))
    second = losses.next_center(
      second, jnp.array(rows), counts=jnp.array(counts)
    )
  for loss in (of_class, of_patch):
    loss.apply_center_update()
  gaps = (
    np.abs(np.asarray(first) - of_class.center.numpy()[0]).max(),
    np.abs(np.asarray(second) - of_patch.center.numpy()[0, 0]).max(),
  )
  return {"centers after 20 updates": tuple(map(float, gaps))}


if __name__ == "__main__":
  main()
