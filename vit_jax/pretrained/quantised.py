"""Refuses quantised weights, which would be read as wrong numbers.

Their integers have to be multiplied by scales, which every library stores in a
way of its own.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vit_jax.pretrained.arrays import Arrays
from vit_jax.runtime.printable import quoted

_CONFIG = "quantization_config"
_ADVICE = "quantised weights are not read; get the original weights"


def check_floats(arrays: Arrays, needed: Iterable[str]) -> None:
  """Raises ValueError if one of the `needed` arrays does not hold floats.

  Other arrays, such as the ids of positions, may hold integers.
  """
  kinds = {n: arrays.dtypes[n] for n in needed if n in arrays.dtypes}
  wrong = [n for n, kind in kinds.items() if "float" not in kind]
  if wrong:
    more = f" (as do {len(wrong) - 1} others)" if wrong[1:] else ""
    raise ValueError(
      f"array {quoted(wrong[0])} holds {kinds[wrong[0]]}{more}, where floats "
      f"belong: {_ADVICE}."
    )


@contextlib.contextmanager
def explain_quantisation(config: Mapping[str, Any]) -> Iterator[None]:
  """Adds the quantisation that a config.json states to a ValueError's message.

  Quantised arrays may have other names, types or shapes, so any check of them
  may fail. Raises the ValueError again, unchanged if config.json states none.
  """
  try:
    yield
  except ValueError as error:
    stated = config.get(_CONFIG)
    if not stated:
      raise
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    of_method = f" ({quoted(method)})" if method else ""
    advice = ""
    if _ADVICE not in str(error):
      advice = f" {_ADVICE[0].upper()}{_ADVICE[1:]}."
    raise ValueError(
      f"its config.json has a {_CONFIG}{of_method}: {error}{advice}"
    ) from error
