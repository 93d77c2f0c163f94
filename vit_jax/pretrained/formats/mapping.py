"""Maps published arrays to our parameters, and back.

A format is a list of rules, each for one published array. Applied in one
direction they load a checkpoint, in the other they write one.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import einops
import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
SAME = "... -> ..."

_APART = "D + "
_MOST_LISTED = 4  # Names listed in each group of a message.
# Pattern of an unknown array's name -> the feature that it points to.
_STRANGERS = {
  r"dist_token|head_dist|distillation": "a distillation token (DeiT)",
  r"reg_token|register": "register tokens",
  r"gamma|\bls[12]\b|lambda_[12]|layer_scale": "LayerScale",
  r"fc_norm": "a layer norm after the pooling",
  r"norm_pre|pre_layrnorm": "a layer norm before the first layer (CLIP)",
  r"[qk]_norm": "normalised queries and keys",
  r"rel_pos|relative_position": "relative positions of another kind",
  r"mask_token|decoder": "a masked pre-training objective",
  r"w12|fc1_g|swiglu": "gated MLPs",
}


@dataclasses.dataclass(frozen=True)
class Rule:
  """One published array and the parameters of ours that it holds."""

  theirs: str  # Name of the published array.
  # Paths of our parameters. If there are several, the first axis of the
  # pattern's right side runs over them.
  ours: tuple[str, ...]
  # `einops.rearrange` pattern from their layout to ours. "D + T D" on its right
  # side makes the first row one parameter, and the others a second.
  pattern: str = SAME
  heads: int | None = None  # Those of its layers; None for the model's.

  def read(
    self, array: np.ndarray, sizes: Mapping[str, int]
  ) -> list[np.ndarray]:
    """Reads our parameters, in the order of `ours`, as views if possible."""
    ours = self._rearrange(array, sizes)
    if self._first_apart:
      return [ours[0], ours[1:]]
    return list(ours) if len(self.ours) > 1 else [ours]

  def write(
    self, arrays: list[np.ndarray], sizes: Mapping[str, int]
  ) -> np.ndarray:
    """Makes the published array from our parameters."""
    if self._first_apart:
      array = np.concatenate([arrays[0][None], arrays[1]])
    else:
      array = np.stack(arrays) if len(self.ours) > 1 else arrays[0]
    return self._rearrange(array, sizes, back=True)

  def needs(self, shapes: Shapes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that the published array must have, given those of ours."""
    shape = shapes[self.ours[0]]
    if self._first_apart:
      shape = (1 + shapes[self.ours[1]][0], *shape)
    elif len(self.ours) > 1:
      shape = (len(self.ours), *shape)
    hollow = np.broadcast_to(np.int8(0), shape)  # It takes no memory.
    return self._rearrange(hollow, sizes, back=True).shape

  @property
  def _first_apart(self) -> bool:
    return _APART in self.pattern

  def _rearrange(
    self, array: np.ndarray, sizes: Mapping[str, int], back: bool = False
  ) -> np.ndarray:
    left, right = self.pattern.replace(_APART, "").split("->")
    pattern = f"{right} -> {left}" if back else f"{left} -> {right}"
    lengths = {**sizes, "n": len(self.ours)}
    if self.heads is not None:
      lengths["k"] = self.heads
    lengths = {axis: n for axis, n in lengths.items() if axis in pattern}
    return einops.rearrange(array, pattern, **lengths)


def axis_sizes(vit: Any) -> dict[str, int]:
  """Sizes of the named axes that patterns split; einops infers the others.

  There are `k` heads, unless a rule has its own, patches of `P` x `Q` pixels,
  and `m` = 2 parts of a gated MLP's fused array (gate, expansion) or of a head.
  A table of positions is for `y` x `x` patches. A rule adds `n`, the number of
  our parameters in one array.
  """
  sizes = {
    "k": vit.num_heads,
    "P": vit.patch_size,
    "Q": vit.patch_size,
    "m": 2,
  }
  grid, size = vit.position_grid, vit.origin and vit.origin.image_size
  if grid is None and size:
    grid = size[0] // vit.stride, size[1] // vit.stride
  if grid is not None:
    sizes["y"], sizes["x"] = grid
  return sizes


def read_all(
  rules: Iterable[Rule], arrays: Mapping[str, np.ndarray], vit: Any
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (path, array) for all our parameters, one rule at a time."""
  sizes = axis_sizes(vit)
  for rule in rules:
    params = rule.read(arrays[rule.theirs], sizes)
    yield from zip(rule.ours, params, strict=True)


def check(
  rules: Iterable[Rule], theirs: Shapes, ours: Shapes, vit: Any, what: str
) -> None:
  """Raises ValueError unless a checkpoint holds exactly what the rules need.

  The rules have to give all of the model's parameters. The shapes `theirs` are
  those of the checkpoint's arrays, `ours` those of the model's parameters. The
  message starts with `what`.
  """
  rules = [*rules]
  if lost := ours.keys() - {path for rule in rules for path in rule.ours}:
    raise ValueError(
      f"{what}: its format has no place for {', '.join(sorted(lost)[:3])}."
    )
  sizes = axis_sizes(vit)
  needed = {rule.theirs: rule.needs(ours, sizes) for rule in rules}
  groups = differences(theirs, needed)
  if any(groups.values()):
    raise ValueError(
      f"{what}: {differences_text(groups)}. Likely cause: "
      f"{_cause(*groups.values())}."
    )


def differences(shapes: Shapes, needed: Shapes) -> dict[str, list[str]]:
  """Describes the arrays that are missing, unknown or of the wrong shape."""
  return {
    "missing": [f"{k} {needed[k]}" for k in needed if k not in shapes],
    "unknown": [f"{k} {shapes[k]}" for k in shapes if k not in needed],
    "wrong shape": [
      f"{k} is {shapes[k]} and should be {needed[k]}"
      for k in needed
      if k in shapes and shapes[k] != needed[k]
    ],
  }


def differences_text(groups: Mapping[str, list[str]]) -> str:
  """The differences as text, with the first few names of each kind."""
  texts = []
  for name, group in groups.items():
    num_more = len(group) - _MOST_LISTED
    more = f" and {num_more} more" if num_more > 0 else ""
    names = ", ".join(group[:_MOST_LISTED]) + more
    texts += [f"{len(group)} {name}: {names}"] if group else []
  return "; ".join(texts)


def _cause(missing: list[str], extra: list[str], wrong: list[str]) -> str:
  names = " ".join(extra)
  strange = [what for k, what in _STRANGERS.items() if re.search(k, names)]
  if strange:
    return f"it has {' and '.join(strange)}, which is not supported here"
  if wrong and all("pos" in name.split(" ")[0] for name in wrong):
    return (
      "the positions are for another image size; give grid=(h, w), the number "
      "of patches along height and width"
    )
  if wrong:
    return (
      "the layers differ in size, as after pruning, or a size was given by "
      "hand that is not the checkpoint's"
    )
  if missing and all("bias" in name for name in missing):
    return "it was trained without these biases, which this model has"
  if missing and extra:
    return "some names come from another library or version"
  if missing:
    return "only part of the model was saved"
  return "more than the model was saved, such as another head"
