"""Converts our docstrings, which are plain text, to what Sphinx expects.

They are Google-style, with code in single backticks. A name in backticks
becomes a link if it is documented; other code is shown as it is. Characters
that have a meaning only in reStructuredText are escaped. What Flax adds to the
signatures of its modules is left out.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"`([^`]+)`(?=(\w?))")
# Fields that every `nn.Module` has, and that nobody sets in a call.
_OF_FLAX = re.compile(r", parent: .*$", re.DOTALL)
# Aliases as Python prints them, and as the source names them.
_ALIASES = {
  "~jax.jaxlib._jax.Array": "Array",
  "jaxlib._jax.Array": "Array",
  "str | type[~typing.Any] | ~numpy.dtype | ~jax._src.typing.SupportsDType": (
    "DTypeLike"
  ),
  "Array | ~numpy.ndarray | ~numpy.bool | ~numpy.number | bool | int | float"
  " | complex": "ArrayLike",
  "~collections.abc.Callable[[ArrayLike], ArrayLike]": "optax.Schedule",
  "<class 'jax.numpy.float32'>": "jnp.float32",
}


def plain_text(
  app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
  """Rewrites a docstring in place, before napoleon reads it."""
  lines[:] = [_restructured(line) for line in lines]
  if lines and lines[0] == type.__call__.__doc__:  # The method has none.
    lines.clear()


def _restructured(line: str) -> str:
  parts, end = [], 0
  for match in _CODE.finditer(line):
    parts.append(_escaped(line[end : match.start()]))
    is_name = re.fullmatch(r"[\w.]+", match[1])
    parts.append(f"`{match[1]}`" if is_name else f"``{match[1]}``")
    if match[2]:  # A letter follows, as in `Example`s.
      parts.append("\\ ")
    end = match.end()
  return "".join(parts) + _escaped(line[end:])


def _escaped(text: str) -> str:
  return re.sub(r"[*|\\]", r"\\\g<0>", text)


def short_signature(
  app: Sphinx,
  what: str,
  name: str,
  obj: Any,
  options: Any,
  signature: str | None,
  returns: str | None,
) -> tuple[str | None, str | None]:
  """The signature, with types under the names that the source uses."""
  return _shortened(_OF_FLAX.sub(")", signature or "")), _shortened(returns)


def _shortened(text: str | None) -> str | None:
  for long, short in _ALIASES.items():
    text = text and text.replace(long, short)
  return text or None


def skip_imported(
  app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
  """Leaves out names that a module imports from elsewhere.

  autodoc would do so later, but it looks at their signatures first, and some of
  them make it fail.
  """
  home = getattr(obj, "__module__", None) or "vit_jax"
  elsewhere = not home.startswith("vit_jax")
  return True if what == "module" and elsewhere else None


def setup(app: Sphinx) -> dict[str, bool]:
  app.connect("autodoc-process-docstring", plain_text, priority=400)
  app.connect("autodoc-skip-member", skip_imported)
  app.connect("autodoc-process-signature", short_signature)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
