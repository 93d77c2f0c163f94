"""Lines fit a terminal, between words; a pipe gets them whole."""

import io

import pytest

from vit_jax.runtime.display import Display
from vit_jax.runtime.printable import say, wrap

FORTY = "As wide as this terminal of forty signs."
LINE = "error: no such folder, and a sentence of many words for the reader"


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize(
  "line, lines",
  [
    ("As wide as this terminal of forty signs.", [FORTY]),
    (
      LINE,
      [
        "error: no such folder, and a sentence of",
        "  many words for the reader",
      ],
    ),
    # Values in columns stay whole; "images/s" is a word.
    (
      "step   100/2,247  loss 2.0810  3,825 images/s",
      ["step   100/2,247  loss 2.0810", "       3,825 images/s"],
    ),
    # What is copied: a path, a command at the end, code.
    (
      "Evaluate it with: vit_jax evaluate 'runs/my photos and more' --best",
      [
        "Evaluate it with:",
        "  vit_jax evaluate 'runs/my photos and more' --best",
      ],
    ),
    (
      "no configuration of this name; `vit_jax configs` lists them.",
      ["no configuration of this name;", "  `vit_jax configs` lists them."],
    ),
    (
      "  /a/path/longer/than/the/width/of/it/all and more",
      ["  /a/path/longer/than/the/width/of/it/all", "    and more"],
    ),
    # Of Chinese, a sign takes two columns.
    (f"names: {'小猫' * 4} {'小狗' * 5} end", [f"names: {'小猫' * 4}"]),
  ],
)
def test_lines_are_wrapped_between_words(line, lines):
  result = wrap(line, 40).split("\n")
  assert result[: len(lines)] == lines
  # Nothing is lost or added.
  assert " ".join(result).split() == line.split()


def test_further_lines_hang():
  assert wrap("model    a ViT of layers", 15).split("\n") == [
    "model    a ViT",
    "  of layers",
  ]
  header = "model    a ViT of four layers, width 64"
  assert wrap(f"{header}\nnext", 30).split("\n") == [
    "model    a ViT of four layers,",
    "         width 64",
    "next",
  ]


def test_a_pipe_and_a_log_get_whole_lines(monkeypatch):
  monkeypatch.setenv("COLUMNS", "40")
  pipe = io.StringIO()
  terminal = Terminal()
  for stream in (pipe, terminal):
    say(LINE, stream)
    say(LINE, stream, whole=True)
  assert pipe.getvalue() == f"{LINE}\n{LINE}\n"
  assert terminal.getvalue() == f"{wrap(LINE, 40)}\n{LINE}\n"
  logged = []
  drawn = Terminal()
  monkeypatch.setattr("sys.stdout", drawn)
  display = Display()
  display.copy_to(logged.append)
  display.note(LINE)
  assert logged == [LINE]
  assert drawn.getvalue() == f"{wrap(LINE, 40)}\n"
