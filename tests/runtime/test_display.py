"""What a terminal of any width shows, and what a pipe and a log file get."""

import io
import re

import pytest
from rich.cells import cell_len

from vit_jax.runtime.display import Display, Metric

METRICS = {
  "train/loss": 2.5,
  "train/top1": 0.25,
  "train/learning_rate": 1e-3,
  "train/images_per_second": 1234.0,
  "train/skipped_images": 0,
  "train/skipped_steps": 0,
}

SHOWN = (Metric("top1", "top-1"),)


class Terminal(io.StringIO):
  def isatty(self):
    return True

  def lines(self):
    """The lines that were drawn, without the codes that move the cursor."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.fixture
def terminal(monkeypatch):
  def make(width):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    return terminal

  return make


def follow(display):
  display.expect(300, metrics=SHOWN)
  display.start(0)
  display.step(1)
  display.report(1, METRICS)
  list(display.track(range(3), "evaluating", 3))
  display.stop()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_progress_is_one_line_of_the_terminal(terminal, width):
  drawn = terminal(width)
  follow(Display())
  lines = drawn.lines()
  assert max(map(cell_len, lines)) <= width
  shown = "\n".join(lines)
  assert "compiling ..." in shown
  assert re.search(r"step +1/300 .*loss 2.5000", shown)
  if width == 80:  # Also beside "evaluating".
    steps = [line for line in lines if "loss 2.5000" in line]
    assert all("1,234 images/s" in line for line in steps)
  assert "evaluating 0/3" in shown
  assert ("━" in shown) == (width == 120)


@pytest.mark.parametrize(
  "count, shown",
  [
    (1, "1 unreadable image replaced  1 step not finite, not applied"),
    (1_200, "1,200 unreadable images replaced  1,200 steps not finite,"),
  ],
)
def test_what_was_replaced_or_not_applied_is_counted(capsys, count, shown):
  display = Display()
  display.expect(300, metrics=SHOWN)
  display.start(0)
  skipped = {"train/skipped_images": count, "train/skipped_steps": count}
  display.report(1, METRICS | skipped)
  assert shown in capsys.readouterr().out


def test_a_pipe_gets_plain_lines_and_no_bars(capsys):
  display = Display()
  follow(display)
  display.report(2, METRICS)
  compiling, first, second = capsys.readouterr().out.splitlines()
  assert compiling == "compiling ..."
  assert first == (
    "step       1/300  loss 2.5000  top-1 25.00%  lr 1.00e-03  1,234 images/s"
  )
  assert re.fullmatch(re.escape(first.replace("1/", "2/")) + ".* left", second)


def test_an_evaluation_stands_beside_the_training_before_it(capsys):
  display = Display()
  display.expect(80, epoch_steps=20, metrics=SHOWN)
  display.start(0)
  evaluated = {"eval/loss": 1.5, "eval/top1": 0.5, "eval/examples": 9}
  evaluated["eval/skipped_images"] = 0
  # A mean over 10 steps at a loss of 2.5, and 30 at 1.5.
  display.report(10, METRICS)
  display.report(40, METRICS | {"train/loss": 1.5, "train/top1": 0.75})
  display.evaluation(40, evaluated)
  assert capsys.readouterr().out.splitlines()[-1] == (
    "eval      40/80  epoch 2.0  loss 1.5000  top-1 50.00%  (9 examples)  "
    "in training: loss 1.7500  top-1 62.50%"
  )
  display.evaluation(60, evaluated)  # No report since then.
  assert "training" not in capsys.readouterr().out
  # The mean of losses that are 0 but for rounding.
  display.report(70, METRICS | {"train/loss": -1e-8})
  display.evaluation(80, evaluated | {"eval/loss": -1e-9})
  out = capsys.readouterr().out
  assert out.count("loss 0.0000") == 3 and "-0.0000" not in out


def test_a_task_may_measure_nothing_in_training(capsys):
  """Its lines then have the loss alone."""
  display = Display()
  display.expect(300, metrics=(Metric("rank", "rank of the features"),))
  display.start(0)
  display.report(1, METRICS)
  evaluated = {"eval/loss": 2.0, "eval/rank": 0.5, "eval/examples": 9}
  display.evaluation(1, evaluated | {"eval/skipped_images": 0})
  _, trained, line = capsys.readouterr().out.splitlines()
  assert "loss 2.5000  lr 1.00e-03" in trained
  assert "rank of the features 50.00%" in line
  assert line.endswith("in training: loss 2.5000")


def test_lines_are_copied_also_those_of_the_bar(terminal):
  drawn, copied = terminal(80), []
  display = Display()
  display.copy_to(copied.append)
  display.note("header")
  follow(display)
  assert copied == [
    "header",
    "step       1/300  loss 2.5000  top-1 25.00%  lr 1.00e-03  1,234 images/s",
  ]
  assert "header" in drawn.getvalue()


def test_a_log_that_cannot_be_written_stops_nothing(capsys):
  def full(_):
    raise OSError("no space")

  display = Display()
  display.copy_to(full)
  display.note("header")
  assert capsys.readouterr().out == "header\n"


def test_other_hosts_show_and_copy_nothing(capsys):
  copied = []
  display = Display(active=False)
  display.copy_to(copied.append)
  follow(display)
  assert capsys.readouterr().out == ""
  assert copied == []


def test_a_note_carries_no_escape_sequences(capsys):
  copied = []
  display = Display()
  display.copy_to(copied.append)
  display.note("cats\x1b[2J é\ndogs\x07")
  assert capsys.readouterr().out == "cats\\x1b[2J é\ndogs\\x07\n"
  assert copied == ["cats\\x1b[2J é\ndogs\\x07"]


@pytest.mark.parametrize(
  "images_per_second, shown",
  [(0.272, "  0.27 images/s"), (9.37, "  9.4 images/s"), (9.98, "  10 images")],
)
def test_few_images_a_second_are_not_none(capsys, images_per_second, shown):
  display = Display()
  follow(display)
  row = METRICS | {"train/images_per_second": images_per_second}
  display.report(2, row)
  assert shown in capsys.readouterr().out
