"""The commands in README.md and docs/ work, and their links lead somewhere.

Every fenced block of `sh` or `python` is run, page by page and in order, unless
the line above it is `<!-- not run: REASON -->`; a block under
`<!-- needs: MODULES -->` is run if these are installed. To make a page take a
minute or two, without a network, the following is changed:

- `python` is this interpreter, and `python -m vit_jax.train` gets `SHRUNK`:
  four steps of eight images, evaluated and saved once;
- the photographs are noise, a few of each class;
- `b16_augreg` and `b16_augreg_i1k_224` are small models of that format, which
  the cache of downloads has already;
- JAX leaves out most optimisations when it compiles.
"""

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.commands import run
from vit_jax.models import Origin
from vit_jax.pretrained import fetch, known, locate
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import all_keys

ROOT = pathlib.Path(__file__).parent.parent
FOR_AN_INDEX = ROOT / "docs" / "package.md"
ON_THE_SITE = sorted({*(ROOT / "docs").rglob("*.md")} - {FOR_AN_INDEX})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", FOR_AN_INDEX]
PAGES += ON_THE_SITE
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
RUN = ("sh", "python")
# Output, listings, and blocks that only Sphinx reads.
NOT_CODE = ("", "{toctree}", "{eval-rst}")

FENCE = re.compile(r"(?:^(.*)\n)?^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
MARK = re.compile(r"<!-- (not run|needs):\s*(.*?)\s*-->")
COMMAND = re.compile(r"^\s*(\$|python|pip|make|pytest|git) ", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?: \"[^\n]*?\")?\)")

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
# Files that exist after a page was followed.
MADE = {
  "README.md": [
    "runs/my_photos/metrics.jsonl",
    "out_dir/config.json",
    "model.jaxexport",
    "figures/01_cat_rollout.png",
    "runs/mine/report.html",
  ],
  "docs/howto/weights.md": ["features.npz", "out_dir/config.json"],
  "docs/tutorial.md": [
    "figures/01_0_rollout.png",
    "runs/my_photos/report.html",
  ],
  "docs/howto/own_loop.md": ["runs/own_loop/checkpoints"],
  "docs/howto/fine_tune.md": ["runs/mine_256/metrics.jsonl"],
  "docs/howto/stop_and_resume.md": ["runs/by_day/metrics.jsonl"],
  "docs/howto/pytorch.md": [
    "out_hf/preprocessor_config.json",
    "out_timm/config.json",
    "out_torchvision/model.safetensors",
  ],
  "docs/howto/attention.md": ["figures_cat/arrays.npz"],
  "docs/howto/report.md": ["runs/watched/report.html", "compared.html"],
  "docs/configuration.md": ["runs/short/metrics.jsonl"],
}


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of a page.

  Attributes:
    line: Number of its first line.
    language: The word after the fence.
    text: The content.
    mark: The kind of comment above: "not run", "needs" or "".
    says: The text of this comment.
  """

  line: int
  language: str
  text: str
  mark: str
  says: str

  @property
  def is_run(self) -> bool:
    """Whether it can be, here."""
    if self.language not in RUN or self.mark == "not run":
      return False
    modules = self.says.split(", ") if self.mark else ()
    return all(importlib.util.find_spec(name) for name in modules)


def blocks(text):
  found = []
  for match in FENCE.finditer(text):
    mark = MARK.fullmatch((match[1] or "").strip())
    line = text.count("\n", 0, match.start(3)) + 1
    found.append(
      Block(line, match[2], match[3], *(mark.groups() if mark else ("", "")))
    )
  return found


def complaints(text):
  """Lists the blocks that are neither run nor marked with a reason."""
  found = []
  for block in blocks(text):
    if block.language not in RUN + NOT_CODE:
      found.append(f"line {block.line}: {block.language!r} is not sh or python")
    if block.language == "" and COMMAND.search(block.text):
      found.append(f"line {block.line}: a command that no `sh` marks as one")
    if block.mark and (not block.says or block.language not in RUN):
      found.append(f"line {block.line}: a mark without reason or command")
  marks = sum(bool(block.mark) for block in blocks(text))
  if len(MARK.findall(text)) != marks:
    found.append("a mark that no block follows at once")
  return found


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_run_or_says_why_not(name):
  assert complaints((ROOT / name).read_text()) == []


@pytest.mark.parametrize(
  "text, complaint",
  [
    ("```bash\nls\n```\n", "'bash' is not sh or python"),
    ("```\nmake test\n```\n", "a command that no `sh` marks"),
    ("<!-- not run: -->\n```sh\nls\n```\n", "a mark without reason"),
    ("<!-- not run: it is slow -->\n\n```sh\nls\n```\n", "no block follows"),
    ("<!-- not run: it is slow -->\n```\nlisting\n```\n", "without reason or"),
  ],
)
def test_the_check_finds(text, complaint):
  (found,) = complaints(text)
  assert complaint in found


def test_a_block_with_a_reason_is_not_run():
  (block,) = blocks("<!-- not run: it is slow -->\n```sh\nls\n```\n")
  assert not block.is_run
  (block,) = blocks("```sh\nls\n```\n")
  assert block.is_run
  assert block.text == "ls\n"


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_to_files(name):
  path = ROOT / name
  links = [link for link in LINK.findall(path.read_text()) if "://" not in link]
  missing = [
    link
    for link in links
    if link.partition("#")[0]
    and not (path.parent / link.partition("#")[0]).exists()
  ]
  assert missing == []


# Paths of the repository, and dotted names of the package. A path with a
# placeholder, such as tests/<folder>/test_<module>.py, names no file.
PATH = re.compile(
  r"(?<![\w./-])((?:vit_jax|tests|configs|docs|scripts|\.ci|\.github)/[\w./-]*)"
  r"(?![\w./-]*[<*])"
)
DOTTED = re.compile(r"(?<![\w./-])vit_jax(?:\.\w+)+(?![\w.]*/)")


@pytest.mark.parametrize("name", NAMES)
def test_paths_and_modules_that_pages_name_exist(name):
  text = (ROOT / name).read_text()
  paths = {path.rstrip(".") for path in PATH.findall(text)}
  assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
  tests = re.findall(r"(?<![\w./])(?:\w+/)*test_\w+\.py", text)
  tests = [path.removeprefix("tests/") for path in tests]
  assert [path for path in tests if not (ROOT / "tests" / path).exists()] == []
  for label, target in re.findall(r"\[([\w./]+\.py)\]\((\S+?)[ )]", text):
    assert f"/{target}".endswith(f"/{label}")
  dotted = {name for name in DOTTED.findall(text) if not name.endswith(".md")}
  assert [name for name in sorted(dotted) if not _resolves(name)] == []


def _resolves(name):
  """Whether a dotted name is a module, or an attribute of one."""
  home, _, attribute = name.rpartition(".")
  try:
    if importlib.util.find_spec(name):
      return True
  except ModuleNotFoundError:  # The part before the last dot is no module.
    pass
  try:
    return hasattr(importlib.import_module(home), attribute)
  except ModuleNotFoundError:
    return False


@pytest.mark.parametrize("name", NAMES)
def test_what_commands_name_exists(name):
  """Includes commands that are not run, or that are in a table."""
  text = (ROOT / name).read_text()
  keys = set(all_keys(Settings))
  sections = {key.rpartition(".")[0] for key in keys}
  named = set(re.findall(r"--config\.([\w.]*\w)", text))
  assert named <= keys | sections
  files = set(re.findall(r"\b(?:configs|scripts)/\w+\.\w+", text))
  assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
  for module in re.findall(r"python -m (vit_jax\.\w+)", text):
    assert importlib.util.find_spec(module)
  makefile = (ROOT / "Makefile").read_text()
  targets = re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", text, re.MULTILINE)
  for target in filter(None, map("".join, targets)):
    assert f"\n{target}:" in makefile


def test_the_api_pages_name_each_module_above_its_documentation():
  for path in sorted((ROOT / "docs/api").glob("*.md")):
    found = re.findall(
      r"^(## [\w.]+)\n\n```\{eval-rst\}\n\.\. automodule:: vit_jax\.([\w.]+)$",
      path.read_text(),
      re.MULTILINE,
    )
    assert [title for title, _ in found] == [f"## {name}" for _, name in found]


def test_the_reference_has_every_key_and_a_word_on_each():
  path = ROOT / "docs" / "config_tables.py"
  spec = importlib.util.spec_from_file_location("config_tables", path)
  tables = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(tables)
  rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*) \|$", tables.keys(), re.M)
  keys = [key for row in rows for key in re.findall(r"`([\w.]+)`", row[0])]
  assert sorted(keys) == sorted(all_keys(Settings))
  assert [row for row in rows if not row[2]] == []


@pytest.fixture(scope="session")
def downloads(tmp_path_factory):
  """A cache with the checkpoints that the pages name."""
  folder = tmp_path_factory.mktemp("cache")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("VIT_JAX_CACHE", str(folder))
    for name, num_classes in (
      ("b16_augreg", 7),
      ("b16_augreg_i1k_224", 1000),
    ):
      url = locate.storage_url(known.KNOWN[name].url.removeprefix("gs://"))
      path = fetch.cached_path(url)
      path.parent.mkdir(parents=True)
      model = tiny.vit(Origin(name, "google", (224, 224))).clone(
        num_classes=num_classes, patch_size=16, num_layers=6
      )
      params = tiny.random_params(model, (224, 224), 0)
      tiny.save_google(path, model, params)
  return folder


@pytest.fixture
def checkout(tmp_path):
  """A folder like a checkout, with photographs in it."""
  folder = tmp_path / "checkout"
  folder.mkdir()
  files = ("constraints.txt", "pyproject.toml")
  for name in ("configs", "scripts", "tests", *files):
    (folder / name).symlink_to(ROOT / name)
  rng = np.random.default_rng(0)
  photographs = ["cat.jpg", "photo1.jpg", "more_photos/1.jpg", "photos/2.jpg"]
  photographs += [
    f"my_photos/{kind}/{number}.jpg"
    for kind in ("cat", "dog")
    for number in range(10)
  ]
  for name in photographs:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (72, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
  return folder


@pytest.fixture
def shell(tmp_path, checkout, downloads):
  """Returns a function that runs a script in `checkout`, as a shell would."""
  binary = tmp_path / "bin" / "python"
  binary.parent.mkdir()
  shrunk = " ".join(f"'{flag}'" for flag in SHRUNK)
  binary.write_text(
    "#!/usr/bin/env bash\n"
    'case " $* " in\n'
    f'*" -m vit_jax.train "*) exec "{sys.executable}" "$@" {shrunk};;\n'
    f'*) exec "{sys.executable}" "$@";;\n'
    "esac\n"
  )
  binary.chmod(0o755)
  nowhere = "http://127.0.0.1:9"  # Nothing is fetched, and nothing waits.
  environment = {
    **os.environ,
    "PATH": f"{binary.parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "HOME": str(tmp_path),
    "TFDS_DATA_DIR": str(tmp_path / "tfds"),
    "VIT_JAX_CACHE": str(downloads),
    "JAX_PLATFORMS": "cpu",
    "HTTP_PROXY": nowhere,
    "HTTPS_PROXY": nowhere,
  }

  def run(script, where):
    done = subprocess.run(
      ["bash", "-e", "-c", script],
      cwd=checkout,
      env=environment,
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
    assert done.returncode == 0, f"{where}\n{script}\n{done.stderr}"

  return run


def scripts(name):
  """Yields (where, script) for the blocks of a page that are run, in order.

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
      yield f"{name}:{start}", _as_shell(program)
      program = ""
    yield f"{name}:{block.line}", block.text
  if program:
    yield f"{name}:{start}", _as_shell(program)


def _as_shell(program):
  return f"python - <<'END_OF_PROGRAM'\n{program}\nEND_OF_PROGRAM\n"


def making(workdir):
  """The first command on any page that makes this workdir."""
  for name in NAMES:
    for where, script in scripts(name):
      for command in re.split(r"(?<!\\)\n", script):
        if re.search(rf"--workdir {workdir}$", command):
          return where, command
  raise AssertionError(f"no page makes {workdir}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if any(scripts(n))])
def test_a_page_can_be_followed(name, shell, checkout):
  if name in TAKES:
    where, command = making(TAKES[name])
    shell(command, where)
  for where, script in scripts(name):
    shell(script, where)
  made = MADE.get(name, ())
  assert [path for path in made if not (checkout / path).exists()] == []


OURS = "https://github.com/vit-jax/vit_jax/blob/main/"


@pytest.mark.parametrize("name", NAMES)
def test_links_into_the_repository_lead_to_files(name):
  links = LINK.findall((ROOT / name).read_text())
  paths = [link.removeprefix(OURS) for link in links if link.startswith(OURS)]
  assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_page_of_a_package_index_has_no_relative_links():
  links = LINK.findall(FOR_AN_INDEX.read_text())
  assert links and all(link.startswith("https://") for link in links)


@pytest.mark.slow
def test_the_readme_quotes_what_training_on_the_digits_prints(tmp_path):
  """The same lines, and a top-1 that is within a point."""
  done = run(
    "vit_jax.train",
    "--config=configs/digits.py",
    f"--workdir={tmp_path / 'run'}",
    JAX_DISABLE_MOST_OPTIMIZATIONS="0",
    XLA_FLAGS="",
  )
  assert done.returncode == 0, done.stderr
  (quoted,) = re.findall(
    r"^```\n(devices  .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
  )
  said = [" ".join(line.split()) for line in done.stdout.splitlines()]
  for line in quoted.splitlines():
    first = " ".join(line.split())
    if first.startswith(("devices", "model", "data")):
      assert first in said
  last = r"eval +2,247/2,247 .* top-1 ([\d.]+)%"
  (theirs,), (ours,) = (
    re.findall(last, text) for text in (quoted, done.stdout)
  )
  assert abs(float(theirs) - float(ours)) <= 1.0
