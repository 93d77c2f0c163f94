"""The notebook: the committed outputs, and its results when it is run.

`make notebook` runs it and saves its outputs.
"""

import ast
import base64
import importlib
import importlib.metadata
import io
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import types
import zipfile

import nbformat
import numpy as np
import pytest
from PIL import Image

from scripts import run_notebook
from tests.image_files import GOOD
from vit_jax.data.reading.image_folder import ImageFolder

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOK = nbformat.read(run_notebook.NOTEBOOK, as_version=4)
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
# The kernel prints these values as JSON at the end.
FACTS = """
import json

rows = np.eye(1, attention.layers.shape[-1]).repeat(len(pictures), axis=0)
for layer in attention.layers.mean(axis=2)[::-1]:
  mixed = (layer + np.eye(layer.shape[-1])) / 2
  rows = np.einsum("bq,bqs->bs", rows, mixed)
print(json.dumps(dict(
  online=ONLINE,
  digits_top1=digits_top1,
  tuned_top1=tuned_top1,
  classes=[names[k] for k in classes],
  rollout_sums=rows.sum(axis=1).tolist(),
  rollout_error=float(abs(
    rows[:, 1:].reshape(rollout.shape) - rollout
  ).max()),
  relevance=[float(relevance.min()), float(relevance.max())],
  similarity_shape=similarity.shape,
  difference=difference,
  top1=[top1[name, size] for size in (100, 1438) for name in ("CNN", "ViT")],
  results=[os.path.relpath(result) for result in results],
  count_b32=count_b32,
  shuffled=[shuffled_difference, float(abs(one).max())],
  distances=[float(far[k - 1, j - 1]) for k, j in (farthest, nearest)],
)))
"""
ANSWER = re.compile(
  r"<details><summary>Answer</summary>\n\n```python\n(.*?)```\n\n.+</details>",
  re.DOTALL,
)
ANSWERS = [
  answer
  for cell in NOTEBOOK.cells
  if cell.cell_type == "markdown"
  for answer in ANSWER.findall(cell.source)
]


def _outputs(cells, kind):
  return [
    output
    for cell in cells
    for output in cell.outputs
    if output.output_type == kind
  ]


def test_the_pictures_of_trained_weights_are_kept():
  cells = {cell.id: cell for cell in CODE}
  assert len(_pictures([cells["trained"]])) == 2
  # Filters, positions, and how far the heads look.
  assert len(_pictures([cells["embeddings"]])) == 3
  assert run_notebook.NOTEBOOK.stat().st_size < 400_000


def _pictures(cells):
  shown = _outputs(cells, "display_data")
  return [
    Image.open(io.BytesIO(base64.b64decode(output.data[kind])))
    for output in shown
    for kind in ("image/png", "image/jpeg")
    if kind in output.data
  ]


def test_what_is_kept_shows_no_error_and_no_machine():
  assert _outputs(CODE, "error") == []
  streams = _outputs(CODE, "stream")
  assert {stream.name for stream in streams} == {"stdout"}
  text = "".join(stream.text for stream in streams)
  assert "error: " not in text and "\x1b" not in text
  assert re.findall(r"(?<![\w.])/(?:\w+/)+\w*|~/\S*|0x[0-9a-f]+", text) == []
  for output in _outputs(CODE, "display_data"):
    kinds = {"image/png", "image/jpeg", "text/markdown", "text/plain"}
    assert set(output.data) <= kinds


def test_code_that_is_shown_is_that_of_the_library():
  """Every class and function shown is the same as in its module today."""
  modules = ROOT / "vit_jax"
  library = "".join(
    path.read_text() for path in sorted(modules.rglob("*.py"))
  ).replace("\n", "")
  library = re.sub(r"\s+", "", library)
  shown = [
    output.data["text/markdown"]
    for output in _outputs(CODE, "display_data")
    if "text/markdown" in output.data
  ]
  assert len(shown) >= 8
  for text in shown:
    code = text.removeprefix("```python\n").removesuffix("```")
    current = re.sub(r"\s+", "", code) in library
    assert current, f"not the code of today; run `make notebook`:\n{code}"


def test_it_imports_nothing_that_a_wheel_lacks():
  """The folders beside the package are no packages once it is installed."""
  imports = [
    node
    for cell in CODE
    for node in ast.walk(ast.parse(re.sub(r"(?m)^[!%].*", "", cell.source)))
    if isinstance(node, ast.Import | ast.ImportFrom)
  ]
  names = {getattr(node, "module", None) for node in imports}
  names |= {alias.name for node in imports for alias in node.names}
  tops = {name.partition(".")[0] for name in names - {None}}
  beside = {path.parent.name for path in ROOT.glob("*/*.py")} - {"vit_jax"}
  assert "configs" in beside and "vit_jax" in tops
  assert not beside & tops


def _used():
  """Modules and names of the package that the notebook takes, as "a.b"."""
  for source in [*(cell.source for cell in CODE), *ANSWERS]:
    for node in ast.walk(ast.parse(re.sub(r"(?m)^[!%].*", "", source))):
      if isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
      elif isinstance(node, ast.Attribute):
        yield ast.unparse(node)


def test_its_names_are_those_of_the_api_pages():
  """So each can be looked up; none is private."""
  pages = "".join(p.read_text() for p in (ROOT / "docs" / "api").glob("*.md"))
  known = re.findall(r":: (vit_jax[\w.]*)", pages)
  names = sorted(set(_used()))
  assert [n for n in names if re.search(r"\._(?!_)", n)] == []
  ours = [name for name in names if re.fullmatch(r"vit_jax(\.\w+)+", name)]
  hidden = [
    name
    for name in ours
    if not {name, name.rpartition(".")[0]} & {*known} - {"vit_jax"}
    # A module that can be called is on the page by its function's name.
    and f"{name}.{name.rpartition('.')[2]}" not in known
    and name not in ("vit_jax.__version__", "vit_jax.__file__")
  ]
  assert len(ours) > 20 and hidden == []


def test_nothing_is_imported_before_the_install_and_tools_are_folded():
  """So no import has to be made again; three exercises are there."""
  assert CODE[0].id == "install"
  folded = [cell for cell in CODE if cell.metadata.get("cellView") == "form"]
  assert CODE[0] in folded and len(ANSWERS) == 3
  for cell in folded:
    assert cell.source.startswith("# @title ")
    assert cell.metadata["jupyter"]["source_hidden"]
  kept = [cell for cell in CODE if cell not in folded]
  assert max(len(cell.source.splitlines()) for cell in kept) <= 30


def test_a_sentence_stands_before_every_cell_of_code():
  kinds = [cell.cell_type for cell in NOTEBOOK.cells]
  for before, cell in itertools.pairwise(NOTEBOOK.cells):
    if cell.cell_type == "code":
      assert before.cell_type == "markdown", cell.id
  assert (kinds[0], kinds[-1]) == ("markdown", "markdown")


def test_a_step_is_shown_before_the_library_trains():
  """Ten lines: loss, gradient, update, compiled."""
  cells = {cell.id: cell.source for cell in CODE}
  ids = list(cells)
  assert ids.index("step") < ids.index("claim") < ids.index("digits")
  lines = cells["step"].partition("\n\n\n")[2].splitlines()
  lines = [line for line in lines if line]
  assert len(lines) <= 10
  for word in ("value_and_grad", "jax.jit", "tx.update", "apply_updates"):
    assert word in "".join(lines)


def test_what_needs_a_download_says_so():
  """Every cell that asks whether there is the Internet, and the install."""
  for before, cell in itertools.pairwise(NOTEBOOK.cells):
    downloads = "ONLINE" in cell.source or "has_trained" in cell.source
    if cell.cell_type == "code" and cell.id != "tools" and downloads:
      assert "**needs a download**" in before.source.lower(), cell.id


def test_the_claim_is_told_as_it_came_out():
  """The sentence after the comparison has the numbers that the cell printed."""
  (cell,) = (cell for cell in CODE if cell.id == "claim")
  (text,) = (cell for cell in NOTEBOOK.cells if cell.id == "claim-result")
  printed = re.findall(r"[\d.]+(?=%)", cell.outputs[0].text)
  told = re.findall(r"[\d.]+(?=\s%)", text.source)
  assert len(printed) == 8 and sorted(told) == sorted(printed)


@pytest.mark.parametrize("name", ["digits-curves", "finetune-curves"])
def test_its_curves_are_in_colour(name):
  (cell,) = (cell for cell in CODE if cell.id == name)
  (picture,) = _pictures([cell])
  hue, saturation, _ = np.moveaxis(np.asarray(picture.convert("HSV")), 2, 0)
  assert np.ptp(hue[saturation > 128]) > 64


@pytest.fixture
def installing(monkeypatch, capsys):
  """Runs the notebook's `install` with a stand-in for git and pip.

  Returns what it calls and what it prints.
  """
  cells = {cell.id: cell.source for cell in CODE}

  def install(jax, kind, code=0):
    calls = []

    def run(command, **how):
      said = " ".join(command).removeprefix(f"{sys.executable} -m ")
      calls.append(re.sub(r"/\S+/vit_jax_packages", "vit_jax_packages", said))
      said = f"{command[-1]}: a warning\n"
      return subprocess.CompletedProcess(command, code, said)

    def version(name):
      if jax is None:
        raise importlib.metadata.PackageNotFoundError(name)
      return jax

    namespace = {}
    with monkeypatch.context() as patch:
      patch.setattr(subprocess, "run", run)
      patch.setattr(importlib.metadata, "version", version)
      exec(cells["install"], namespace)  # It finds vit_jax, and installs none.
      capsys.readouterr()
      namespace["install"](kind)
    return calls, capsys.readouterr().out

  return install


@pytest.mark.parametrize("jax", ["0.10.2", "0.11.0.dev20260801", "1.0.0rc1"])
@pytest.mark.parametrize("kind", ["cpu", "gpu", "cuda12", "tpu"])
def test_a_new_jax_is_taken_as_it_is(installing, jax, kind):
  (clone, venv, pip), said = installing(jax, kind)
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  assert f"--branch=v{project['version']} {project['urls']['Source']}" in clone
  assert venv == "venv --system-site-packages --without-pip vit_jax_packages"
  there = "pip --python vit_jax_packages/bin/python install -q "
  assert pip == f"{there}.[figures,hf] scikit-learn"
  assert said.count("a warning") == 3
  assert "The JAX that is here is used." in said


@pytest.mark.parametrize(
  "kind, last",
  [
    ("cpu", ".[figures,hf] scikit-learn"),
    ("tpu", ".[tpu,figures,hf] scikit-learn"),
    ("gpu", ".[gpu,figures,hf] scikit-learn"),
    ("cuda12", ".[figures,hf] scikit-learn jax[cuda12]"),
  ],
)
def test_an_old_jax_is_replaced_by_the_tested_one(installing, kind, last):
  for jax in (None, "0.7.2", "0.10.1"):
    calls, _ = installing(jax, kind)
    there = "pip --python vit_jax_packages/bin/python install -q "
    assert calls[-1] == f"{there}-c constraints.txt {last}"
    assert ("jax-cuda12-pjrt" in " ".join(calls)) == (kind == "gpu")


def test_where_git_fails_it_says_what_git_says(installing, capsys):
  with pytest.raises(SystemExit, match="error: git clone .* failed"):
    installing("0.10.2", "cpu", code=128)
  assert "vit_jax_source: a warning" in capsys.readouterr().out


def test_what_is_installed_is_used_without_a_restart(tmp_path, monkeypatch):
  """Of older modules that were imported before, only the replaced ones go."""
  cells = {cell.id: cell.source for cell in CODE}
  names = ("of_both", "of_old", "of_new", "shared")
  for version, missing in (("old", "of_new"), ("new", "of_old")):
    for name in {*names} - {missing}:
      package = tmp_path / version / name
      package.mkdir(parents=True)
      text = f"version = {version!r}\n"
      start = f"from {name}.part import version\n"
      (package / "part.py").write_text(text)
      if name != "shared":  # As `google` is: a folder of many packages.
        (package / "__init__.py").write_text(start)
  monkeypatch.setattr(sys, "path", [str(tmp_path / "old"), *sys.path])
  monkeypatch.setenv("PYTHONPATH", "elsewhere")
  for name in ("of_both", "of_old", "shared.part"):
    importlib.import_module(name)
  before = sys.modules["of_old"]
  namespace = {}
  exec(cells["install"], namespace)
  namespace["look_first_in"](tmp_path / "new")
  try:
    assert importlib.import_module("of_both").version == "new"
    assert importlib.import_module("of_both.part").version == "new"
    assert importlib.import_module("of_new").version == "new"
    assert importlib.import_module("of_old") is before
    assert sys.modules["shared.part"].version == "old"
    paths = [str(tmp_path / "new"), "elsewhere"]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == paths
  finally:
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
      del sys.modules[name]


def _zipped(path, top, classes):
  with zipfile.ZipFile(path, "w") as file:
    for name in classes:
      for number in range(2):
        file.writestr(f"{top}{name}/{number}.png", GOOD)
  return str(path)


@pytest.fixture
def uploaded(monkeypatch, tmp_path):
  """Gives the notebook files, as from Colab's dialogue; returns its result."""
  cell = next(cell for cell in CODE if cell.id == "photos-tools")
  namespace = {"RUNS": tmp_path / "runs", "pathlib": pathlib, "shutil": shutil}
  exec(cell.source, namespace)

  def hand_in(*names):
    files = types.SimpleNamespace(upload=lambda: dict.fromkeys(names, b""))
    colab = types.SimpleNamespace(files=files)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    return namespace["uploaded"]()

  return hand_in


@pytest.mark.parametrize("top", ["", "my_photos/"])
def test_an_upload_is_learned_from_alone(uploaded, tmp_path, top):
  """Earlier uploads, under the same name or another, do not matter."""
  photos = tmp_path / "photos.zip"
  uploaded(_zipped(tmp_path / "first.zip", top, ["tea", "water"]))
  uploaded(_zipped(photos, top, ["cup", "plate"]))
  folder = uploaded(_zipped(photos, top, ["cat", "dog"]))
  assert ImageFolder(str(folder), "train").class_names == ("cat", "dog")


def test_what_is_no_single_zip_is_refused(uploaded, tmp_path):
  picture = tmp_path / "cat.jpg"
  picture.write_bytes(b"no zip")
  archive = _zipped(tmp_path / "photos.zip", "", ["cat", "dog"])
  for names in ((), (str(picture),), (archive, archive + "2")):
    with pytest.raises(ValueError, match="choose one zip file of a folder"):
      uploaded(*names)


@pytest.mark.slow
def test_it_runs_from_start_to_end(tmp_path):
  notebook = nbformat.read(run_notebook.NOTEBOOK, as_version=4)
  added = [*ANSWERS, FACTS]
  notebook.cells += [nbformat.v4.new_code_cell(source) for source in added]
  run_notebook.execute(notebook, tmp_path)
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  assert _outputs(cells, "error") == []
  assert {stream.name for stream in _outputs(cells, "stream")} == {"stdout"}
  facts = json.loads(cells.pop().outputs[0].text)
  del cells[-len(ANSWERS) :]
  assert facts["online"] is False
  assert facts["digits_top1"] > 0.95
  assert all(0.5 < share < 1 for shares in facts["top1"] for share in shares)
  assert facts["tuned_top1"] > 0.85
  assert facts["classes"] == ["china", "flower"]
  np.testing.assert_allclose(facts["rollout_sums"], 1, atol=1e-5)
  assert facts["rollout_error"] < 1e-5
  assert 0 <= facts["relevance"][0] < facts["relevance"][1]
  assert facts["similarity_shape"] == [12, 12, 12, 12]
  assert facts["difference"] < 1e-5
  # E has 3 (32^2 - 16^2) 768 numbers more; there are 147 positions less.
  assert facts["count_b32"] == 86_567_656 + 3 * 768**2 - 147 * 768
  assert facts["shuffled"][0] < 1e-4 * facts["shuffled"][1]
  assert facts["distances"][0] > facts["distances"][1] > 0
  assert facts["results"] == ["runs/tuned.zip", "runs/tuned_hf.zip"]
  for name in ("tuned.zip", "tuned_hf/model.safetensors", "google/model.npz"):
    assert (tmp_path / "runs" / name).stat().st_size > 100_000
  # The figures are the committed ones, and none is of a single colour.
  # Those of weights that are not here are left out.
  of_trained = ("trained", "embeddings")
  kept = _pictures(cell for cell in CODE if cell.id not in of_trained)
  drawn = _pictures(cell for cell in cells if cell.id not in of_trained)
  sizes = [[image.size for image in images] for images in (drawn, kept)]
  np.testing.assert_allclose(*sizes, atol=2)
  assert all(len(image.getcolors(2**24)) > 2 for image in drawn)
