"""Names of files and folders that would move a terminal's cursor."""

import base64
import re
import xml.etree.ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.report.example import config_of
from vit_jax.inspection.data_sheet import inspect_folder
from vit_jax.inspection.settings import InspectSettings
from vit_jax.pack.sources import open_sources
from vit_jax.pack.writer import Encoding, pack
from vit_jax.predict import predict_files
from vit_jax.report.write import report_files
from vit_jax.run.experiments.probe import probe_checkpoint
from vit_jax.run.loop import train
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import ProbeSettings, read
from vit_jax.runtime.display import Display
from vit_jax.runtime.settings import replaced

ODD = "\x1b[31mred\nline"


def _photographs(root):
  rng = np.random.default_rng(0)
  for split, count in (("train", 8), ("test", 4)):
    for name in (ODD, "plain"):
      folder = root / split / name
      folder.mkdir(parents=True)
      for number in range(count):
        photo = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(photo).save(folder / f"{ODD}{number}.png")
    (root / split / "plain" / f"{ODD}cut.png").write_bytes(b"no image")


@pytest.mark.slow
def test_no_command_prints_an_escape_sequence(tmp_path, capfd):
  """Neither of names of classes and images, nor of folders it is given."""
  root, workdir, out = (tmp_path / ODD / x for x in ("a", "run", "report.html"))
  _photographs(root)
  config = config_of(root)
  config.loader.on_unreadable = "skip"
  settings = replaced(ProbeSettings(), {"data.root": str(root)})
  settings = replaced(settings, {"loader.on_unreadable": "skip"})
  sheet = str(tmp_path / ODD / "sheet.png")
  inspect_folder(str(root), InspectSettings(), sheet)
  train(read(config), str(workdir))
  evaluate_checkpoint(str(workdir))
  probe_checkpoint(str(workdir), settings, shots=2, display=Display())
  assert predict_files(str(workdir), [str(root)], top=2) == 1
  answers = str(tmp_path / ODD / "answers.csv")
  assert predict_files(str(workdir), [str(root)], out=answers) == 1
  assert report_files([str(workdir)], out=str(out)) == 0
  folder = str(tmp_path / ODD / "packed")
  pack(open_sources(str(root)), folder, Encoding(), name="odd", workers=1)
  printed = capfd.readouterr()
  assert printed.out.count(r"\x1b[31mred\nline") > 20
  assert r"\x1b[31mred\nlinecut.png" in printed.err
  assert "\x1b" not in printed.out + printed.err
  page = out.read_text()
  assert r"\x1b[31mred\nline" in page and "\x1b" not in page
  charts = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)
  assert charts
  for chart in charts:
    xml.etree.ElementTree.fromstring(base64.b64decode(chart))
