"""Names in any script: a font that has them, or Latin letters."""

import io
import pathlib
import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image, ImageDraw

from vit_jax.inspection import canvas, charts, fonts


def square(side):
  pen = TTGlyphPen(None)
  pen.moveTo((0, 0))
  for corner in ((0, side), (side, side), (side, 0)):
    pen.lineTo(corner)
  pen.closePath()
  return pen.glyph()


@pytest.fixture
def machine(monkeypatch, tmp_path):
  """Fills the machine's folder of fonts, with squares for its characters."""
  monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path),))

  def install(name, characters):
    characters = f"{characters}{fonts._BESIDE}"
    order = [".notdef", *(f"c{n}" for n in range(len(characters)))]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(order)
    codes = map(ord, characters)
    builder.setupCharacterMap(dict(zip(codes, order[1:], strict=True)))
    sides = [300, *(700 for _ in characters)]
    glyphs = map(square, sides)
    builder.setupGlyf(dict(zip(order, glyphs, strict=True)))
    builder.setupHorizontalMetrics(dict.fromkeys(order, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / f"{name}.ttf")
    return str(tmp_path / f"{name}.ttf")

  def forget():
    for cached in (fonts.font_file, fonts._machine_fonts):
      cached.cache_clear()
    fonts._with_script.clear()

  forget()
  yield install
  forget()


@pytest.mark.parametrize(
  "name, spelled",
  [
    ("cat", "cat"),
    ("Käse", "Käse"),
    ("Ягода", "Ягода"),
    ("ねこ", "neko"),
    ("コーヒー", "kohi"),
    ("고양이", "goyangi"),
    ("猫", "U+732B "),
    ("Ａ級", "AU+7D1A "),
  ],
)
def test_without_a_font_names_are_spelled(machine, name, spelled):
  assert fonts.readable(name) == spelled
  assert fonts.font_file(spelled) is None


def test_a_font_of_the_machine_is_taken_that_has_every_character(machine):
  machine("part", "ね")
  (pathlib.Path(fonts.FOLDERS[0]) / "bad.ttf").write_bytes(b"no font")
  whole = machine("whole", "ねこ ")
  assert fonts.readable("ねこ a") == "ねこ a"
  assert fonts.font_file("ねこ a") == whole
  assert fonts.readable("ねこ 猫") == "neko U+732B "
  sheet = Image.new("RGB", (200, 40), "white")
  fonts.write(ImageDraw.Draw(sheet), (0, 20), "ねこ", 30, 200, "lm")
  # Two squares of 0.7 of the size, 30 pixels, and not those of 0.3.
  black = (np.asarray(sheet) < 128).all(axis=-1).sum()
  assert black == pytest.approx(2 * 21**2, rel=0.1)


@pytest.mark.parametrize("has_font", [False, True])
def test_charts_draw_them_without_a_warning(machine, has_font):
  names = ["ねこ", "Käse", "cat"]
  path = machine("kana", "ねこ 13") if has_font else None
  figure = charts.confusion_figure(np.eye(3, dtype=int), names)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    figure.savefig(io.BytesIO(), format="svg")
    canvas.pixels(figure)
  ticks = figure.axes[0].get_xticklabels()
  told = [text.get_text() for text in ticks]
  assert told == ["ねこ" if has_font else "neko", *names[1:]]
  assert ticks[0].get_fontproperties().get_file() == path


def test_a_long_name_is_shortened_in_the_middle():
  sheet = Image.new("RGB", (300, 40), "white")
  fonts.write(ImageDraw.Draw(sheet), (0, 20), 60 * "name ", 20, 150, "lm")
  black = (np.asarray(sheet) < 128).any(axis=(0, 2))
  assert 120 < np.flatnonzero(black).max() <= 150


@pytest.mark.parametrize("has_matplotlib", [False, True])
def test_umlauts_without_a_font_lose_their_dots(
  machine, monkeypatch, has_matplotlib
):
  if not has_matplotlib:
    monkeypatch.setattr(fonts.importlib.util, "find_spec", lambda name: None)
  fonts._open.cache_clear()
  spelled = fonts.readable("Käse")
  fonts._open.cache_clear()
  fonts.font_file.cache_clear()
  assert spelled == ("Käse" if has_matplotlib else "Kase")
