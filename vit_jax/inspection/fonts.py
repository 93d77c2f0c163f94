"""Fonts for names in any script, or their transliteration.

DejaVu Sans, which comes with matplotlib, has Latin, Greek, Cyrillic, Arabic and
Hebrew. A text in another script takes a font of the machine that has all of its
characters. Without such a font, its letters are spelled by their Unicode names,
or left to the browser that shows an SVG.
"""

import functools
import importlib.util
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from PIL import ImageDraw, ImageFont

FOLDERS = (
  "/usr/share/fonts",
  "/usr/local/share/fonts",
  "~/.local/share/fonts",
  "~/.fonts",
  "/System/Library/Fonts",
  "/Library/Fonts",
  "~/Library/Fonts",
  "C:/Windows/Fonts",
  "~/AppData/Local/Microsoft/Windows/Fonts",
)
BESIDE = "aZ09(%).,|…"  # Characters that are written beside a name.
_NO_CHARACTER = "\U0010ffff"  # Drawn like any missing character.
# The start of a character's name in Unicode, before its sound.
_NAMED = re.compile(r"\b(?:LETTER|SYLLABLE|CHARACTER|SIGN)(?: SMALL)? (.+)")
_with_script: dict[str, list[str]] = {}  # The machine's fonts by script.


def forget() -> None:
  """Forgets which fonts the machine has, so that they are searched again."""
  for cached in (font_file, _machine_fonts, _open, _unshaped):
    cached.cache_clear()
  _with_script.clear()


def lacks_font(text: str) -> bool:
  """Whether no font, DejaVu included, has all characters of the text."""
  if text.isascii() or font_file(text) is not None:
    return False
  return not _has(None, text)


def stand_in(text: str) -> str:
  """A text of about the same width whose characters DejaVu has."""
  return "".join(c if _has(None, c) else _as_wide(c) for c in text)


def _as_wide(character: str) -> str:
  """A character that DejaVu has, about as wide as this one."""
  if unicodedata.category(character).startswith("M"):  # Stands over another.
    return ""
  is_wide = unicodedata.east_asian_width(character) in "WF"
  return "—" if is_wide else "n"


def readable(text: str) -> str:
  """The text; characters that no font has are spelled in Latin, as "neko"."""
  if not lacks_font(text):
    return text
  return "".join(c if _has(None, c) else _spell(c) for c in text)


def pillow_font(text: str, size: float) -> ImageFont.FreeTypeFont:
  """The font in which to draw a `readable` text, at a size in pixels."""
  return _open(font_file(text), round(size))


def write(
  draw: ImageDraw.ImageDraw,
  place: tuple[float, float],
  text: str,
  size: float,
  width: float,
  anchor: str = "mm",
  ink: str = "black",
) -> None:
  """Writes a line, shortened in the middle where it is wider than `width`.

  `size`, the height of the text, is in pixels, as `place` and `width` are.
  `anchor` says, as in Pillow, which point of the text lies at `place`.
  """
  text = readable(text)
  font = pillow_font(text, size)
  text = shortened(text, lambda some: font.getlength(some) <= width)
  draw.text(place, text, ink, font, anchor)


def shortened(text: str, fits: Callable[[str], bool]) -> str:
  """The text, or as much of both its ends as fits, with "…" between them."""
  short = text
  length = len(text)
  while length > 2 and not fits(short):
    length -= 1
    head = text[: length // 2]
    tail = text[len(text) - (length - length // 2) :]
    short = f"{head}…{tail}"
  return short


@functools.lru_cache(4096)
def font_file(text: str) -> str | None:
  """A font of the machine for a text, if DejaVu lacks one of its characters.

  None if DejaVu has them all, or no font of the machine has them all.
  """
  lacking = [c for c in text if not (c.isascii() or _has(None, c))]
  if not lacking:
    return None
  script = unicodedata.name(lacking[0], "?").split()[0]  # THAI CHARACTER ...
  if script not in _with_script:  # Fonts are searched once for each script.
    probe = lacking[0] + BESIDE
    _with_script[script] = [f for f in _machine_fonts() if _has(f, probe)]
  return next((f for f in _with_script[script] if _has(f, text)), None)


@functools.cache
def _machine_fonts() -> list[str]:
  """The font files of the machine, upright ones of ordinary weight first."""
  folders = [pathlib.Path(os.path.expanduser(name)) for name in FOLDERS]
  paths = [path for folder in folders for path in folder.rglob("*.[to]t[fc]")]
  return sorted(map(str, paths), key=lambda p: ("Regular" not in p, p))


@functools.lru_cache(64)
def _open(path: str | None, size: int) -> ImageFont.FreeTypeFont:
  """Opens a font of the machine, or DejaVu."""
  if path is not None:
    return ImageFont.truetype(path, size)
  spec = importlib.util.find_spec("matplotlib")
  if spec is None or spec.origin is None:  # inspect_data works without it.
    default = ImageFont.load_default(size)
    assert isinstance(default, ImageFont.FreeTypeFont)
    return default
  fonts = pathlib.Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
  return ImageFont.truetype(fonts / "DejaVuSans.ttf", size)


@functools.lru_cache(64)
def _unshaped(path: str | None) -> ImageFont.FreeTypeFont:
  """A font without text shaping, which would add a circle to a lone mark."""
  font = _open(path, 16)
  return font.font_variant(layout_engine=ImageFont.Layout.BASIC)


def _has(path: str | None, text: str) -> bool:
  """Whether a font has all characters of a text; the path None is DejaVu's.

  It has none if its file cannot be opened.
  """
  try:
    font: Any = _unshaped(path)
  except OSError:
    return False
  drawn: Any = font.getmask
  missing = bytes(drawn(_NO_CHARACTER))
  return all(c.isspace() or bytes(drawn(c)) != missing for c in text)


def _spell(character: str) -> str:
  """A character without its marks, or its sound or number in Unicode."""
  plain = unicodedata.normalize("NFKD", character)[0]
  if plain != character and _has(None, plain):
    return plain
  name = unicodedata.name(character, "")
  if sound := _NAMED.search(name):
    return sound[1].lower()
  if unicodedata.category(character) in ("Lm", "Mn"):  # A length sign or mark.
    return ""
  return f"U+{ord(character):04X} "
