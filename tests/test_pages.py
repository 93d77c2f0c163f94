"""The commands in README.md and docs/ work.

Every fenced block of `sh` or `python` is run, page by page and in order, unless
the line above it is `<!-- not run: REASON -->`; a block under
`<!-- needs: MODULES -->` is run if these are installed. The package is from
a wheel, and the folder has a reader's photographs and nothing of the clone; a
block under `<!-- clone: REASON -->` alone is run in the clone. To make a page
take a minute or two, without a network, the following is changed:

- `python` is this interpreter, and `vit_jax train` gets `SHRUNK`: four steps of
  eight images, evaluated and saved once; without published weights, its model
  has two layers;
- the photographs are noise, a few of each class;
- `weights/clip` is a small model of images and text;
- `b16_augreg`, `b16_augreg_i1k_224` and `hf_s14_dinov2` are small models of
  their formats, which the caches of downloads have already;
- JAX leaves out most optimisations when it compiles.
"""

import functools
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny, wheels
from tests.commands import run
from tests.pages import NAMES, ROOT, blocks
from vit_jax.models import Origin
from vit_jax.pretrained import fetch, known, locate

SHRUNK = (
  *("--config.total_epochs=0", "--config.total_steps=4"),
  *("--config.batch_size=8", "--config.loader.num_workers=0"),
  "--config.optimizer.warmup_epochs=0",
  *("--config.log_every_epochs=0", "--config.log_every_steps=4"),
  *("--config.eval_every_epochs=0", "--config.eval_every_steps=4"),
  *("--config.save_every_epochs=0", "--config.save_every_steps=4"),
)
# Workdirs that a page needs, and that another page makes.
TAKES = {
  "docs/howto/pytorch.md": "runs/mine",
  "docs/howto/attention.md": "runs/my_photos",
}


@pytest.fixture(scope="session")
def downloads(made_once):
  """A cache with the checkpoints that the pages name."""
  return made_once("downloads", add_downloads)


def add_downloads(folder):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("VIT_JAX_CACHE", str(folder))
    for name, num_classes in (("b16_augreg", 7), ("b16_augreg_i1k_224", 1000)):
      url = locate.storage_url(known.KNOWN[name].url.removeprefix("gs://"))
      path = fetch.cached_path(url)
      path.parent.mkdir(parents=True)
      model = tiny.vit(Origin(name, "google", (224, 224))).clone(
        num_classes=num_classes, patch_size=16, num_layers=6
      )
      params = tiny.random_params(model, (224, 224), 0)
      tiny.save_google(path, model, params)
  add_repository(folder / "hf" / "hub", "hf_s14_dinov2")


def add_repository(hub, name):
  """Adds a small DINOv2 to the cache of Hugging Face's library."""
  repository = known.KNOWN[name].url.removeprefix("hf://")
  cached = hub / f"models--{repository.replace('/', '--')}"
  commit = "0" * 40
  (cached / "refs").mkdir(parents=True)
  (cached / "refs" / "main").write_text(commit)
  sizes = dict(num_layers=2, hidden_size=24, mlp_size=96, num_heads=3)
  model = vit_jax.make_vit("S/14", 0, block="dinov2", **sizes)
  params = tiny.random_params(model, (224, 224), 0)
  folder = cached / "snapshots" / commit
  vit_jax.save(model, params, folder, to="hf", image_size=(224, 224))


@pytest.fixture(scope="session")
def site(made_once, distributions):
  """A folder with the installed wheel."""
  install = functools.partial(wheels.install, distributions)
  return made_once("site", install)


@pytest.fixture
def folder(tmp_path):
  """A reader's folder, with photographs in it and nothing else."""
  rng = np.random.default_rng(0)
  photographs = ["cat.jpg", "photo1.jpg", "x.jpg", "more_photos/1.jpg"]
  photographs += ["photos/2.jpg", "new_photos/3.jpg"]
  photographs += [
    f"my_photos/{kind}/{number}.jpg"
    for kind in ("cat", "dog")
    for number in range(10)
  ]
  scenes = [f"{split}/{n}" for split in ("train", "val") for n in range(10)]
  photographs += [f"my_scenes/images/{scene}.jpg" for scene in scenes]
  for name in photographs:
    path = tmp_path / "folder" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (72, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
  for scene in scenes:
    path = tmp_path / "folder" / "my_scenes" / "masks" / f"{scene}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = rng.integers(0, 3, (72, 96), dtype=np.uint8)
    Image.fromarray(classes).save(path)
  clip = ROOT / "tests" / "checkpoints" / "texts" / "hf_clip"
  shutil.copytree(clip, tmp_path / "folder" / "weights" / "clip")
  return tmp_path / "folder"


# Stands for `python` and `vit_jax` in PATH. What `SHRUNK` sets as well is left
# out where a page gives its short form, since a key is refused if given twice.
SHIM = """#!{python}
import os, sys
words, given = {words}, sys.argv[1:]
if given[: len({trains})] == {trains}:
  for name in ("--epochs", "--batch_size"):
    if name in given:
      at = given.index(name)
      del given[at : at + 2]
  given += {shrunk}
  if not any("pretrained" in word for word in given):
    given.append("--config.model.num_layers=2")
os.execv(words[0], [*words, *given])
"""


@pytest.fixture
def shell(tmp_path, folder, site, downloads):
  """Returns a function that runs a script in a folder, as a shell would."""
  binary, command = tmp_path / "bin", str(site / "bin" / "vit_jax")
  binary.mkdir()
  for name, words, trains in (
    ("python", [], ["-m", "vit_jax.train"]),
    ("vit_jax", [command], ["train"]),
  ):
    text = SHIM.format(
      python=sys.executable,
      words=[sys.executable, *words],
      trains=trains,
      shrunk=list(SHRUNK),
    )
    (binary / name).write_text(text)
    (binary / name).chmod(0o755)
  nowhere = "http://127.0.0.1:9"  # Nothing is fetched, and nothing waits.
  environment = {
    **os.environ,
    "PATH": f"{binary}:{os.environ['PATH']}",
    "PYTHONPATH": str(site),
    "HOME": str(tmp_path),
    "TFDS_DATA_DIR": str(tmp_path / "tfds"),
    "VIT_JAX_CACHE": str(downloads),
    "HF_HOME": str(downloads / "hf"),
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "HTTP_PROXY": nowhere,
    "HTTPS_PROXY": nowhere,
  }

  def run(script, where, in_a_clone=False):
    done = subprocess.run(
      ["bash", "-e", "-c", script],
      cwd=ROOT if in_a_clone else folder,
      env=environment,
      capture_output=True,
      text=True,
      timeout=600,
      check=False,
    )
    assert done.returncode == 0, f"{where}\n{script}\n{done.stderr}"
    return done.stdout

  return run


def scripts(name):
  """Yields (where, script, in_a_clone) for the blocks that are run, in order.

  Blocks of Python that follow each other are one program.
  """
  program, start = "", 0
  for block in blocks((ROOT / name).read_text()):
    if not block.is_run:
      continue
    if block.language == "python":
      start = start if program else block.line
      program += block.text
      continue
    if program:
      yield f"{name}:{start}", _as_shell(program), False
      program = ""
    yield f"{name}:{block.line}", block.text, block.mark == "clone"
  if program:
    yield f"{name}:{start}", _as_shell(program), False


def _as_shell(program):
  return f"python - <<'END_OF_PROGRAM'\n{program}\nEND_OF_PROGRAM\n"


def making(workdir):
  """The first command on any page that makes this workdir."""
  for name in NAMES:
    for where, script, _ in scripts(name):
      for command in re.split(r"(?<!\\)\n", script):
        if re.search(rf"--workdir {workdir}$", command):
          return where, command
  raise AssertionError(f"no page makes {workdir}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if any(scripts(n))])
def test_a_page_can_be_followed(name, shell):
  if name in TAKES:
    where, command = making(TAKES[name])
    shell(command, where)
  for where, script, in_a_clone in scripts(name):
    shell(script, where, in_a_clone)


@pytest.mark.slow
def test_the_pages_run_what_the_wheel_holds(shell, site, folder):
  """Neither the clone nor its folders can be reached from there."""
  program = (
    "import importlib.util as u, vit_jax\n"
    "beside = [n for n in ('configs', 'scripts', 'tests') if u.find_spec(n)]\n"
    "print(vit_jax.__file__, beside)\n"
  )
  found = shell(_as_shell(program), "here")
  assert found == f"{site / 'vit_jax' / '__init__.py'} []\n"
  assert {path.name for path in folder.iterdir()} == {
    *("cat.jpg", "photo1.jpg", "x.jpg", "more_photos", "photos", "weights"),
    *("my_photos", "my_scenes", "new_photos"),
  }


@pytest.mark.slow
def test_the_readme_quotes_what_training_on_the_digits_prints(
  tmp_path, monkeypatch
):
  """The same lines, and a top-1 that is within a point."""
  monkeypatch.chdir(tmp_path)
  done = run(
    "vit_jax.train", "digits", JAX_DISABLE_MOST_OPTIMIZATIONS="0", XLA_FLAGS=""
  )
  assert done.returncode == 0, done.stderr
  (quoted,) = re.findall(
    r"^```\n(Taking .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
  )
  printed = f"{done.stderr}\n{done.stdout}".splitlines()
  said = [" ".join(line.split()) for line in printed]
  for line in quoted.splitlines():
    first = " ".join(line.split())
    ends = ("Evaluate", "See")
    if first.startswith(("Taking", "devices", "model", "data", "run", *ends)):
      assert first in said
  last = r"eval +2,247/2,247 .* top-1 ([\d.]+)%"
  (theirs,), (ours,) = (
    re.findall(last, text) for text in (quoted, done.stdout)
  )
  assert abs(float(theirs) - float(ours)) <= 1.0
