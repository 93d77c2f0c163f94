"""Principal components of patches' features as colours, as for DINO."""

import numpy as np
from jaxtyping import Float

Colours = Float[np.ndarray, "n h w 3"]


def patch_colours(
  maps: Float[np.ndarray, "n h w D"], foreground: float | None = None
) -> Colours:
  """The first three principal components over the patches of all images.

  Each is scaled to [0, 1], and a component's sign is that of its largest part.

  Args:
    maps: Features of the patches.
    foreground: Share in (0, 1) of the range of the first component, above which
      a patch is kept; the others become black, and the next three components of
      those that are kept are the colours. The first component is turned so that
      patches at the edges of the images lie lower.

  Raises:
    ValueError: if too few patches are kept.
  """
  n, h, w, D = maps.shape
  X = maps.reshape(-1, D).astype(np.float64)
  X = X - X.mean(axis=0)
  _, V = np.linalg.eigh(X.T @ X)
  V = V[:, ::-1][:, :4]  # The largest first.
  V = V * np.sign(V[np.abs(V).argmax(axis=0), np.arange(V.shape[1])])
  scores = X @ V
  kept, first = np.ones(len(X), bool), 0
  if foreground is not None:
    edge = np.ones((n, h, w), bool)
    edge[:, 1:-1, 1:-1] = False
    one, edge = scores[:, 0], edge.ravel()
    one = one if one[edge].mean() <= one.mean() else -one
    kept, first = _scaled(one[:, None])[:, 0] > foreground, 1
    if kept.sum() < 2:
      raise ValueError(
        f"--foreground={foreground} keeps {kept.sum()} patches: lower it."
      )
  colours = np.zeros((len(X), 3))
  colours[kept] = _scaled(scores[kept, first : first + 3])
  return colours.reshape(n, h, w, 3)


def _scaled(values: np.ndarray) -> np.ndarray:
  """Each column scaled to [0, 1]."""
  low, high = values.min(axis=0), values.max(axis=0)
  return (values - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
