"""Results of functions that notebooks show: files, texts, tables, pictures."""

import base64
import dataclasses
import html
import io
import os
import pathlib
from collections.abc import Mapping, Sequence

_MOST = 12  # The most pictures that are shown.
_KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
_SIDE = 96  # Longest side of a small picture, in pixels.


@dataclasses.dataclass(frozen=True, repr=False)
class Shown:
  """Pictures (PNG, JPEG) or a page (HTML); `os.fspath` gives the first path.

  Attributes:
    paths: The files, at least one.
    text: A line above them.
  """

  paths: tuple[str, ...]
  text: str = ""

  def __fspath__(self) -> str:
    return self.paths[0]

  def __repr__(self) -> str:
    return "\n".join([*filter(None, [self.text]), *self.paths])

  def _repr_html_(self) -> str:
    """The text, and the pictures or pages, as a notebook shows them."""
    parts = [f"<p>{html.escape(self.text)}</p>"] if self.text else []
    parts += map(_element, self.paths[:_MOST])
    more = len(self.paths) - _MOST
    if more > 0:
      folder = os.path.dirname(self.paths[-1])
      parts.append(f"<p>{more} more in {html.escape(folder)}</p>")
    return "".join(parts)


class Text(str):
  """A text of several lines, which a notebook shows as it is printed."""

  def __repr__(self) -> str:
    return str(self)


def table(facts: Mapping[str, str]) -> str:
  """Names and values as a table of HTML, escaped."""
  rows = "".join(
    f'<tr><th style="text-align:left">{html.escape(name)}</th>'
    f'<td style="text-align:left">{html.escape(value)}</td></tr>'
    for name, value in facts.items()
  )
  return f"<table>{rows}</table>"


def pictures(captions: Sequence[tuple[str, str]]) -> str:
  """Small pictures of image files beside captions, as HTML, escaped.

  A file that cannot be read, and any after the first 12, has a caption alone.
  """
  rows = []
  for number, (path, caption) in enumerate(captions):
    picture = _thumbnail(path) if number < _MOST else ""
    rows.append(
      f'<tr><td>{picture}</td><td style="text-align:left">'
      f"{html.escape(caption)}</td></tr>"
    )
  return f"<table>{''.join(rows)}</table>"


def _thumbnail(path: str) -> str:
  """A small picture of an image file as HTML; "" if it cannot be read."""
  # Imported here, as only notebooks draw pictures.
  from PIL import Image

  file = io.BytesIO()
  try:
    with Image.open(path) as image:
      image.thumbnail((_SIDE, _SIDE))
      image.convert("RGB").save(file, "png")
  except (OSError, ValueError, Image.DecompressionBombError):
    return ""
  data = base64.b64encode(file.getvalue()).decode()
  return f'<img src="data:image/png;base64,{data}">'


def is_loaded(value: object) -> bool:
  """Whether a value is what `load_pretrained` returns, by its attributes.

  To compare with the class would import the models. A model alone has no
  `preprocessing`. A run has no `origin`, which is looked for first, since the
  `preprocessing` of a run would load its checkpoint.
  """
  return hasattr(value, "origin") and hasattr(value, "preprocessing")


def path_of_run(run: object) -> str:
  """The folder of a run, given as a path or as the result of `vit_jax.train`.

  Raises ValueError for an object that has no path.
  """
  if isinstance(run, str | os.PathLike):
    return os.fspath(run)
  # The result of `load_pretrained` may differ from its run.
  source = getattr(getattr(run, "origin", None), "source", "runs/my_photos")
  raise ValueError(
    f"a run was needed, and this is of type {type(run).__name__}: give its "
    f'folder, as in "{source}", or what vit_jax.train returned.'
  )


def _element(path: str) -> str:
  """The HTML that shows a picture or a page."""
  content = pathlib.Path(path).read_bytes()
  if kind := _KINDS.get(os.path.splitext(path)[1].lower()):
    data = base64.b64encode(content).decode()
    return f'<img src="data:image/{kind};base64,{data}" style="max-width:100%">'
  page = html.escape(content.decode(), quote=True)
  return (
    f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'
  )
