"""Refuses weights that were quantised, which would be read as other numbers.

Their integers mean something together with scales alone, and each library keeps
these in another way.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vit_jax.pretrained.arrays import Arrays
from vit_jax.runtime.printable import quoted

_CONFIG = "quantization_config"
_ADVICE = "quantised weights are not read; get the original weights"


def check_floats(arrays: Arrays, needed: Iterable[str]) -> None:
  """Raises ValueError if one of the `needed` arrays holds no floats.

  Others, such as the ids of positions, may hold integers.
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
def explained(config: Mapping[str, Any]) -> Iterator[None]:
  """Names the quantisation that a config.json states in front of a ValueError.

  Quantised arrays may have other names, types or shapes.
  """
  try:
    yield
  except ValueError as error:
    stated = config.get(_CONFIG)
    if not stated:
      raise
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    of_method = f" ({quoted(method)})" if method else ""
    advice = (
      "" if _ADVICE in str(error) else f" {_ADVICE[0].upper()}{_ADVICE[1:]}."
    )
    raise ValueError(
      f"its config.json has a {_CONFIG}{of_method}: {error}{advice}"
    ) from error
