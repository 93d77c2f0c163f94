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

from vit_jax.runtime.printable import first_of

Shapes = Mapping[str, tuple[int, ...]]
SAME = "... -> ..."

_APART = "D + "  # In a pattern: the first row is a parameter by itself.
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
  """One published array, and those of our parameters that it holds."""

  theirs: str  # Name of the published array.
  # Paths of our parameters. If there are several, the first axis of the
  # pattern's right side runs over them.
  ours: tuple[str, ...]
  # `einops.rearrange` pattern from their layout to ours. "D + T D" on its right
  # side makes the first row one parameter, and the others a second.
  pattern: str = SAME
  heads: int | None = None  # Heads of its layer; None for the model's number.
  # The length of the published array along axis 1, if only its first rows are
  # ours. Such a rule reads, and cannot write.
  stored_rows: int | None = None
  rows: int | None = None  # How many of these rows are ours.

  def read(
    self, array: np.ndarray, sizes: Mapping[str, int]
  ) -> list[np.ndarray]:
    """Reads our parameters, in the order of `ours`, as views if possible."""
    if self.rows is not None:
      array = array[:, : self.rows]
    ours = self._rearrange(array, sizes)
    if self._has_first_row_apart:
      return [ours[0], ours[1:]]
    return list(ours) if len(self.ours) > 1 else [ours]

  def write(
    self, arrays: list[np.ndarray], sizes: Mapping[str, int]
  ) -> np.ndarray:
    """Makes the published array from our parameters."""
    if self._has_first_row_apart:
      array = np.concatenate([arrays[0][None], arrays[1]])
    else:
      array = np.stack(arrays) if len(self.ours) > 1 else arrays[0]
    return self._rearrange(array, sizes, back=True)

  def needs(self, shapes: Shapes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that the published array must have, from our `shapes`."""
    shape = shapes[self.ours[0]]
    if self._has_first_row_apart:
      shape = (1 + shapes[self.ours[1]][0], *shape)
    elif len(self.ours) > 1:
      shape = (len(self.ours), *shape)
    empty = np.broadcast_to(np.int8(0), shape)  # It takes no memory.
    needed = self._rearrange(empty, sizes, back=True).shape
    if self.stored_rows is not None:
      needed = (needed[0], self.stored_rows, *needed[2:])
    return needed

  @property
  def _has_first_row_apart(self) -> bool:
    """Whether the first row of the array is a parameter by itself."""
    return _APART in self.pattern

  def _rearrange(
    self, array: np.ndarray, sizes: Mapping[str, int], back: bool = False
  ) -> np.ndarray:
    """Applies the pattern to a published array.

    With `back`, turns an array of our parameters into the published one.
    """
    left, right = self.pattern.replace(_APART, "").split("->")
    pattern = f"{right} -> {left}" if back else f"{left} -> {right}"
    lengths = {**sizes, "n": len(self.ours)}
    if self.heads is not None:
      lengths["k"] = self.heads
    lengths = {axis: n for axis, n in lengths.items() if axis in pattern}
    return einops.rearrange(array, pattern, **lengths)


def axis_sizes(vit: Any) -> dict[str, int]:
  """Sizes of the axes by name, for patterns that split axes.

  `k` is the number of heads, unless a rule has its own. Patches have `P` x `Q`
  pixels, and a table of positions is for `y` x `x` patches. `m` = 2 counts the
  two parts of a gated MLP's fused array (gate, expansion), or the two halves of
  a head (`timm._to_halves`). A rule adds `n`, the number of our parameters in
  one array.
  """
  sizes = {
    "k": vit.num_heads,
    "P": vit.patch_size,
    "Q": vit.patch_size,
    "m": 2,
  }
  grid = vit.position_grid
  size = vit.origin.image_size if vit.origin else None
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
    cause = _likely_cause(
      missing=groups["missing"],
      unknown=groups["unknown"],
      wrong=groups["wrong shape"],
    )
    raise ValueError(
      f"{what}: {differences_text(groups)}. Likely cause: {cause}."
    )


def differences(shapes: Shapes, needed: Shapes) -> dict[str, list[str]]:
  """Lines on arrays that differ, by "missing", "unknown" and "wrong shape"."""
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
    if not group:
      continue
    texts.append(f"{len(group)} {name}: {first_of(group, _MOST_LISTED)}")
  return "; ".join(texts)


def _likely_cause(
  missing: list[str], unknown: list[str], wrong: list[str]
) -> str:
  """The likely cause of differences, from the lines of each group."""
  names = " ".join(unknown)
  features = [
    feature
    for pattern, feature in _STRANGERS.items()
    if re.search(pattern, names)
  ]
  if features:
    return f"it has {' and '.join(features)}, which is not supported here"
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
  if missing and unknown:
    return "some names come from another library or version"
  if missing:
    return "only part of the model was saved"
  return "more than the model was saved, such as another head"
