"""README.md and docs/: blocks are marked; links, names and numbers are true."""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import tomllib

import pytest
import yaml

from tests.pages import (
  FOR_AN_INDEX,
  LINK,
  MARK,
  NAMES,
  NOT_CODE,
  ROOT,
  RUN,
  blocks,
  shown,
)
from vit_jax.__main__ import module_of
from vit_jax.data.reading import holdout
from vit_jax.inference import copies
from vit_jax.inspection import attention_maps, figures, label_issues, overlay
from vit_jax.inspection.photograph import LONGEST
from vit_jax.pretrained.known import KNOWN
from vit_jax.pretrained.settings import INTERPOLATIONS
from vit_jax.report.page import MOST_BYTES
from vit_jax.report.similar_images import find_similar
from vit_jax.run import few_images
from vit_jax.run.settings import Settings
from vit_jax.runtime.settings import all_keys
from vit_jax.tasks import intervals
from vit_jax.tasks.classification import calibration
from vit_jax.tasks.classification.evaluation import MOST_CLASSES
from vit_jax.tasks.probes import label_errors
from vit_jax.tasks.table import ALL_TASKS

COMMAND = re.compile(
  r"^\s*(\$|python|pip|make|pytest|git|vit_jax) ", re.MULTILINE
)
# What a clone has and a wheel lacks: folders beside the package, and make.
OF_A_CLONE = re.compile(
  r"(?<![\w./])(?:scripts|tests|configs|docs|\.ci)/|constraints\.txt|^make ",
  re.MULTILINE,
)


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


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_need_a_clone_say_so(name):
  """The page has the word before such a command, and others need none."""
  text = (ROOT / name).read_text()
  lines = text.splitlines(keepends=True)
  silent = []
  for block in (b for b in blocks(text) if b.language in RUN):
    before = "".join(lines[: block.line - 1]) + block.text
    if block.mark == "clone" or OF_A_CLONE.search(block.text):
      if not re.search(r"\bclone\b", before, re.IGNORECASE):
        silent.append(f"line {block.line}: {block.text}")
  assert silent == []


# The two pages that say that a command has a longer form too.
SAME = re.compile(
  r"`vit_jax train`\s+(?:and|is\s+the\s+same\s+as)\s+"
  r"`python -m vit_jax\.train`"
)


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_written_in_one_way(name):
  """Everywhere as `vit_jax X`; `python -m` is named where both are said."""
  text = SAME.sub("", (ROOT / name).read_text())
  assert re.findall(r"\bpython3? -m\s+vit_jax\S*", text) == []


def test_messages_and_examples_write_commands_as_the_pages_do():
  files = [*ROOT.glob("vit_jax/**/*.py"), *ROOT.glob("configs/**/*.py")]
  longer = [
    file.relative_to(ROOT).as_posix()
    for file in files
    if re.search(r"python -m[\s\"]+vit_jax", file.read_text())
  ]
  assert longer == ["vit_jax/__main__.py"]  # It says that both are the same.


COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)


# Published weights by every name they have, and addresses, but for those of a
# bucket of the reader's own, where runs and data are.
WEIGHTS = {
  name for key, known in KNOWN.items() for name in (key, *known.names)
} | {"dinov2_small"}
FETCHES = re.compile(
  "|".join(
    [rf"(?<![\w/.-]){re.escape(name)}(?![\w/-])" for name in sorted(WEIGHTS)]
    + [r"\bhf://", r"\bgs://(?!my-bucket)", r"\bhttps?://"]
  )
)
# Data sets of TFDS, which are downloaded when they are prepared. `estimate`
# names the same configurations, and reads no data.
OF_TFDS = re.compile(
  r"data\.name=(?!digits)|--config[= ](?:configs/)?"
  r"(?:cifar10|pretrain|deit3|big_vision|mae:|studies/)"
)


def silent_downloads(text):
  """Lists the blocks that need the network, where the page does not say so.

  It has to say so before the block or in its section, and where a reader sees
  it: outside of comments, which neither a code host nor the site shows. Data
  sets of TFDS have to be prepared.
  """
  lines = text.splitlines(keepends=True)
  found = []
  for block in (b for b in blocks(text) if b.language in RUN):
    words = "download" if FETCHES.search(block.text) else ""
    if OF_TFDS.search(block.text) and "vit_jax estimate" not in block.text:
      words = words or "download|prepare"
    if not words:
      continue
    start = len("".join(lines[: block.line - 1]))
    end = start + len(block.text)
    seen = COMMENT.sub("", text[:end] + HEADING.split(text[end:])[0])
    if not re.search(words, seen, re.IGNORECASE):
      found.append(f"line {block.line}: {block.text}")
  return found


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_download_say_so(name):
  assert silent_downloads((ROOT / name).read_text()) == []


@pytest.mark.parametrize(
  "words",
  [
    "predict hf://owner/name cat.jpg",
    "predict vit_small_patch14_dinov2.lvd142m cat.jpg",
    "predict facebook/dinov2-small cat.jpg",
    "predict https://example.com/b16.npz cat.jpg",
    "predict gs://vit_models/augreg/B_16.npz cat.jpg",
    "train --config cifar10 --workdir runs/x",
    "train my_photos --pretrained hf_s14_dinov2",
  ],
)
def test_a_download_in_a_comment_is_silent(words):
  block = f"```sh\nvit_jax {words}\n```\n"
  mark = "<!-- not run: downloads a model -->\n"
  said = "It is downloaded once.\n\n"
  assert len(silent_downloads(f"# A\n\n{mark}{block}")) == 1
  assert len(silent_downloads(f"# A\n\n{mark}{block}\n# B\n\n{said}")) == 1
  assert silent_downloads(f"# A\n\n{said}{mark}{block}") == []
  assert silent_downloads(f"# A\n\n{mark}{block}\n{said}") == []
  local = "predict runs/x cat.jpg --workdir gs://my-bucket/x"
  assert silent_downloads(f"```sh\nvit_jax {local}\n```\n") == []


OURS = "https://github.com/vit-jax/vit_jax/blob/main/"


@pytest.mark.parametrize("name", NAMES)
def test_links_into_the_repository_lead_to_files(name):
  path = ROOT / name
  links = [link.partition("#")[0] for link in LINK.findall(shown(name))]
  paths = [path.parent / link for link in links if "://" not in link]
  paths += [
    ROOT / link.removeprefix(OURS) for link in links if link.startswith(OURS)
  ]
  assert [path for path in paths if not path.exists()] == []


TO_A_LINE = re.compile(r"\]\(([^)\s]+) \"([^\"]+)\"\)")


@pytest.mark.parametrize("name", NAMES)
def test_links_to_a_line_name_one_line(name):
  """Their title is in one line of the file, as the site's build demands."""
  path = ROOT / name
  wrong = []
  for link, marker in TO_A_LINE.findall(path.read_text()):
    pattern = re.escape(marker) + (r"\b" if marker[-1].isalnum() else "")
    lines = (path.parent / link).read_text().splitlines()
    if sum(bool(re.search(pattern, line)) for line in lines) != 1:
      wrong.append((link, marker))
  assert wrong == []


# Paths of the repository, and dotted names of the package. A path with a
# placeholder, such as tests/<folder>/test_<module>.py, names no file.
PATH = re.compile(
  r"(?<![\w./-])((?:vit_jax|tests|configs|docs|scripts|\.ci|\.github)/[\w./-]*)"
  r"(?![\w./-]*[<*])"
)
DOTTED = re.compile(r"(?<![\w./-])vit_jax(?:\.\w+)+(?![\w.]*/)")


@pytest.mark.parametrize("name", NAMES)
def test_paths_and_modules_that_pages_name_exist(name):
  text = shown(name)
  paths = {path.rstrip(".") for path in PATH.findall(text)}
  assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
  tests = re.findall(r"(?<![\w./])(?:\w+/)*test_\w+\.py", text)
  tests = [path.removeprefix("tests/") for path in tests]
  assert [path for path in tests if not (ROOT / "tests" / path).exists()] == []
  for label, target in re.findall(r"\[([\w./]+\.py)\]\((\S+?)[ )]", text):
    assert f"/{target}".endswith(f"/{label}")
  dotted = {name for name in DOTTED.findall(text) if not name.endswith(".md")}
  assert [name for name in sorted(dotted) if not _resolves(name)] == []


def test_the_new_names_of_the_changelog_exist():
  """Of its table of modules that have moved, which has an old name once."""
  text = (ROOT / "CHANGELOG.md").read_text()
  after = text.partition("| old | new |\n| --- | --- |\n")[2]
  lines = after.partition("\n\n")[0].splitlines()
  rows = [line.strip("| ").split(" | ") for line in lines]
  names = set()
  for old, new in rows:
    for name, inside in re.findall(r"`(\w+\.[\w.]+)`(?: \((.*?)\))?", new):
      names |= {f"{name}.{x}" for x in re.findall(r"`(\w+)`", inside)} or {name}
    if new.startswith("the same below"):
      ends = {name.rpartition(".")[2] for name in re.findall(r"`(.*?)`", old)}
      names |= {f"{new.split('`')[1]}.{end}" for end in ends}
  folders = {path.name for path in (ROOT / "vit_jax").iterdir()}
  names = {name for name in names if name.partition(".")[0] in folders}
  assert len(names) > 80 and len({old for old, _ in rows}) == len(rows)
  assert [x for x in sorted(names) if not _resolves(f"vit_jax.{x}")] == []


def _resolves(name):
  """Whether a name is a module, or an attribute of one or of its class."""
  home, _, attribute = name.rpartition(".")
  try:
    if importlib.util.find_spec(name):
      return True
  except ModuleNotFoundError:  # The part before the last dot is no module.
    pass
  try:
    return hasattr(pkgutil.resolve_name(home), attribute)
  except (ModuleNotFoundError, AttributeError):
    return False


@pytest.mark.parametrize("name", NAMES)
def test_what_commands_name_exists(name):
  """Includes commands that are not run, or that are in a table."""
  text = shown(name)
  keys = set(all_keys(Settings))
  sections = {key.rpartition(".")[0] for key in keys}
  named = set(re.findall(r"--config\.([\w.]*\w)", text))
  assert named <= keys | sections
  published = re.findall(r"\.pretrained=(\w+)(?![\w/.:])", text)
  published += re.findall(r"load_pretrained\(\"(\w+)\"", text)
  published += re.findall(r"\bhf_[a-z]\d\w+|\bhf_dinov2\w+", text)
  assert {*published} - {"CHECKPOINT"} <= {*KNOWN}
  files = set(re.findall(r"\b(?:configs|scripts)/\w+\.\w+", text))
  assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
  modules = re.findall(r"python -m (vit_jax\.\w+)", text)
  modules += [
    module_of(command)
    for block in blocks(text)
    if block.language == "sh"
    for command in re.findall(r"^vit_jax (\w+)", block.text, re.MULTILINE)
  ]
  for module in modules:
    assert importlib.util.find_spec(module)
  makefile = (ROOT / "Makefile").read_text()
  targets = re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", text, re.MULTILINE)
  for target in filter(None, map("".join, targets)):
    assert f"\n{target}:" in makefile


def test_the_page_of_a_package_index_has_no_relative_links():
  links = LINK.findall(FOR_AN_INDEX.read_text())
  assert links and all(link.startswith("https://") for link in links)


def _pinned(package, python):
  """The version of a package in constraints.txt, for a Python from 3.12 on."""
  pin = rf"^{package}==(\S+)(?: ; python_version {python} \"3.12\")?$"
  (version,) = re.findall(
    pin, (ROOT / "constraints.txt").read_text(), re.MULTILINE
  )
  return version


def _default(function, name):
  return inspect.signature(function).parameters[name].default


def _and(names):
  return f"{', '.join(names[:-1])} and {names[-1]}"


LOW, HIGH = overlay.PERCENTILES
WITHOUT_PICTURES = [
  f"`{name}`"
  for name, record in ALL_TASKS.items()
  if "eval_pictures" in record.task_class().refuses
]
# Words of a page, with the numbers and names of the code.
TOLD = (
  ("howto/attention.md", f"{attention_maps.OUTLIER_NORM} times the image's"),
  ("howto/attention.md", f"above {attention_maps.OUTLIER_SHARE} even shares"),
  ("howto/attention.md", f"own resolution up to {LONGEST:,} pixels a side"),
  ("howto/attention.md", f"on the sheet up to {figures.ON_A_SHEET}"),
  ("howto/attention.md", f"by layer up to {figures.IN_A_GRID}"),
  ("howto/attention.md", f"from the {LOW}nd to the {HIGH}th percentile"),
  (
    "howto/label_errors.md",
    f"needs {label_errors.LEAST_IMAGES} images or more",
  ),
  ("howto/label_errors.md", f"fewer than {label_errors.FEW_IMAGES} images"),
  ("howto/label_errors.md", f"first {label_issues.PICTURES} that are listed"),
  ("howto/report.md", f"for up to {MOST_CLASSES} classes"),
  ("howto/report.md", f"from {intervals.FEW} images on"),
  ("howto/report.md", f"stays below {MOST_BYTES / 1e6:g} MB"),
  ("howto/report.md", f"It takes {calibration.LEAST_IMAGES} images or more"),
  ("howto/report.md", f"The tasks {_and(WITHOUT_PICTURES)} draw none"),
  (
    "howto/similar.md",
    f"`--duplicates`, {_default(find_similar, 'duplicates')}",
  ),
  (
    "howto/similar.md",
    f"`--neighbours`, {_default(find_similar, 'neighbours')}",
  ),
  ("howto/similar.md", f"thumbnails of {copies.SIDE} x {copies.SIDE}"),
  ("howto/verify.md", f"`digest_every` steps ({Settings().digest_every})"),
  ("tutorial.md", f"for fewer than {few_images.FEW:,} of them"),
  ("tutorial.md", f"on fewer than {holdout.FEW:,} photographs may choose"),
  *(("howto/weights.md", f"`{name}` (") for name in INTERPOLATIONS),
  ("compatibility.md", f"JAX {_pinned('jax', '<')} and Flax"),
  ("install.md", f"has JAX {_pinned('jax', '<')}, and today's"),
  ("compatibility.md", f"Flax {_pinned('flax', '<')} on Python 3.11"),
  ("compatibility.md", f"libtpu {_pinned('libtpu', '<')} and"),
  ("compatibility.md", f"and {_pinned('libtpu', '>=')}: estimates"),
  ("compatibility.md", f"and {_pinned('flax', '>=')}; qwix"),
  ("compatibility.md", f"| {_pinned('grain', '')} |"),
)


def test_a_page_names_the_pythons_of_the_workflow():
  if not (ROOT / ".github").exists():
    pytest.skip("this is a source distribution, without the workflow")
  jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
  pythons, *_ = (job["strategy"]["matrix"]["python"] for job in jobs.values())
  text = (ROOT / "docs/compatibility.md").read_text()
  assert f"| {_and(pythons)} | CI" in " ".join(text.split())


@pytest.mark.parametrize("name, words", TOLD)
def test_what_a_page_tells_of_the_code_is_true(name, words):
  text = " ".join((ROOT / "docs" / name).read_text().split())
  assert words in text


def test_every_extra_is_on_the_page():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  ours = {"docs", "dev"}  # Of contributors.
  text = (ROOT / "docs" / "install.md").read_text()
  rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
  names = {name for row in rows for name in re.findall(r"`(.+?)`", row)}
  assert names == {*project["optional-dependencies"]} - ours
