"""Writes docs/encoders.md: the encoders that are read, and how many of all.

python -m scripts.encoders_page [FILE ...]

The page is made of docs/_static/encoders.csv, which has a row for each family,
of the published checkpoints and their licences, and of what
scripts/parity/coverage.py found, docs/_static/coverage.csv. FILEs are tables
that it wrote with --csv: their rows replace those of the same encoders.
"""

import collections
import fnmatch
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

from scripts import tables
from vit_jax.pretrained.known import KNOWN, Known
from vit_jax.pretrained.licenses import LICENSES

HERE = pathlib.Path(__file__).parents[1]
PAGE = HERE / "docs/encoders.md"
FAMILIES = HERE / "docs/_static/encoders.csv"
COVERAGE = HERE / "docs/_static/coverage.csv"
VERSIONS = {"timm": "1.0.31", "transformers": "5.24"}
COLUMNS: tuple[str, ...] = (
  "library",
  "family",
  "name",
  "answer",
  "error",
  "reason",
  "pooling",
)
Row = dict[str, str]

INTRO = """\
# Encoders

This page lists the encoders that a run can start from, by family. `vit_jax convert
--list` has the short names of the checkpoints, and [published
weights](howto/weights.md) says what to do with them. The licences are those of the
weights: read them before you use or share weights.
"""  # noqa: E501
PARTS = """\
## What each of them can do

"Same" counts the library's architectures of the family that give the same answer here,
out of all that it has. All families can be trained: `model.block` is the preset to
train one from scratch, and families without a preset are the paper's `Vit` or start
from a checkpoint. The fast form is that of attention on TPUs
([scaling](evidence/scaling.md)). The last column is the pooling of the library, which
loading keeps. Where some models of a family pool otherwise, the words after "of" tell
which: a library, a part of the name of the architecture or the class, or an entry of
config.json. `--pooling` sets another pooling
([compared](evidence/results.md#poolings-and-bfloat16-on-trained-weights)). Files of
facebookresearch/dinov2 and of open_clip (CLIP, MetaCLIP, SigLIP), and
`flax_model.msgpack` of transformers 4, are read as well, but not written.
"""  # noqa: E501
COUNTED = """\
## How many encoders give the same answers

We took every plain Vision Transformer and hybrid of timm and every such class of
transformers, with two layers at its real width, random weights and a new head of seven
classes. Each is saved by its library, opened here and asked about one image. Its answer
is the same if no logit differs by more than 1e-5 of the largest.
"""  # noqa: E501
ROUNDING = """\
The difference beyond 1e-5, of `vit_large_r50_s32_224`, comes from rounding in the ResNet
of a hybrid: our answer is 1.6e-5 away from timm's in float64, and timm's own in float32
is 1.8e-5 away.
"""  # noqa: E501
REFUSED = """\
## What is refused, and why

A refusal is one line, which names the cause.
"""


def main() -> None:
  rows = merged(tables.read(COVERAGE), *map(tables.read, sys.argv[1:]))
  tables.write(COVERAGE, COLUMNS, rows)
  PAGE.write_text(page(tables.read(FAMILIES), rows), "utf-8")


def merged(*tables: list[Row]) -> list[Row]:
  """The rows of all tables, the last of each encoder, by library and name."""
  rows = {}
  for table in tables:
    for row in table:
      rows[row["library"], row["name"]] = {k: row[k] for k in COLUMNS}
  return [rows[key] for key in sorted(rows)]


def page(families: list[Row], coverage: list[Row]) -> str:
  """The page's text."""
  members = assigned(families, coverage)
  parts = [
    INTRO,
    "\n".join(_published(families)) + "\n",
    PARTS,
    "\n".join(_abilities(families, members)) + "\n",
    COUNTED,
    "\n".join(_counts(coverage)) + "\n",
    ROUNDING,
    REFUSED,
    "\n".join(_refusals(coverage)) + "\n",
  ]
  return "\n".join(parts)


def assigned(
  families: list[Row], coverage: list[Row]
) -> dict[tuple[str, str], list[Row]]:
  """The encoders of each family and library; the first pattern counts."""
  members: dict[tuple[str, str], list[Row]] = collections.defaultdict(list)
  for row in coverage:
    library = row["library"]
    for family in families:
      patterns = family[library].split()
      if any(fnmatch.fnmatchcase(row["name"], p) for p in patterns):
        members[family["family"], library].append(row)
        break
  return members


def _published(families: list[Row]) -> Iterator[str]:
  """The table of sizes, licences and scores."""
  yield "| family | sizes | licence of the weights | best published score |"
  yield "| --- | --- | --- | --- |"
  for family in families:
    checkpoints = [k for k in KNOWN.values() if k.family == family["family"]]
    if not checkpoints:
      continue
    sizes = ", ".join(dict.fromkeys(k.model for k in checkpoints))
    licenses = ", ".join(_license(x) for x in _licenses(checkpoints))
    gated = any(k.gated for k in checkpoints)
    gate = "; some need a token" * gated
    cells = (_title(family), sizes, licenses + gate, _score(checkpoints))
    yield f"| {' | '.join(cells)} |"


def _licenses(checkpoints: list[Known]) -> list[str]:
  return list(dict.fromkeys(k.license for k in checkpoints))


def _license(name: str) -> str:
  """A licence's name with its address, and its kind unless it is free."""
  found = LICENSES[name]
  text = f"[{name}]({found.url})" if found.url else name
  kind = "" if found.kind in ("free", "unknown") else f" ({found.kind})"
  return text + kind


def _score(checkpoints: list[Known]) -> str:
  """The best accuracy, or else the last score, and where it is published."""
  scored = [k for k in checkpoints if k.top1 is not None]
  if scored:
    best = max(scored, key=lambda k: k.top1 or 0)
    text = f"ImageNet {best.top1:.1f} ({best.model} at {best.image_size})"
  else:
    scored = [k for k in checkpoints if k.score]
    if not scored:
      return "none for these files"
    best = scored[-1]
    text = f"{best.score} ({best.model})"
  return f"{text}, [source]({best.score_source})" if best.score_source else text


def _title(family: Row) -> str:
  """A family's name, with the address of its paper."""
  if not family["paper"]:
    return family["family"]
  return f"[{family['family']}](https://arxiv.org/abs/{family['paper']})"


def _abilities(
  families: list[Row], members: dict[tuple[str, str], list[Row]]
) -> Iterator[str]:
  """The table of what is read, written, fast and pooled."""
  yield (
    "| family | same in timm | same in transformers | other files | "
    "`model.block` | writes | fast form | pooling |"
  )
  yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
  for family in families:
    counts = [
      _share(members.get((family["family"], library), []))
      for library in VERSIONS
    ]
    keys = ("other", "block", "writes", "fast", "pooling")
    cells = [family["family"], *counts, *(family[key] for key in keys)]
    yield f"| {' | '.join(cells)} |"


def _share(rows: list[Row]) -> str:
  """How many of some encoders are the same, "" for none."""
  same = sum(row["answer"] == "same" for row in rows)
  return f"{same} of {len(rows)}" if rows else ""


def _counts(coverage: list[Row]) -> Iterator[str]:
  """The table of how many of each module are the same."""
  yield "| library | module | encoders | same | refused | beyond 1e-5 |"
  yield "| --- | --- | --- | --- | --- | --- |"
  for library, version in VERSIONS.items():
    rows = [row for row in coverage if row["library"] == library]
    modules = dict.fromkeys(row["family"] for row in rows)
    for module in modules:
      among = [row for row in rows if row["family"] == module]
      yield _count(f"{library} {version}", f"`{module}`", among)
    yield _count(f"**{library} {version}**", "**all**", rows)


def _count(library: str, module: str, rows: list[Row]) -> str:
  answers = collections.Counter(row["answer"] for row in rows)
  numbers = [len(rows), *(answers[x] for x in ("same", "refused", "other"))]
  return f"| {' | '.join([library, module, *map(str, numbers)])} |"


def _refusals(coverage: Iterable[Row]) -> Iterator[str]:
  """The table of causes, with what is refused for them."""
  causes: dict[str, list[str]] = collections.defaultdict(list)
  for row in coverage:
    if row["answer"] == "refused":
      causes[cause(row["reason"])].append(row["name"])
  yield "| cause | encoders |"
  yield "| --- | --- |"
  for text, names in sorted(causes.items()):
    yield f"| {text} | {', '.join(f'`{name}`' for name in names)} |"


def cause(reason: str) -> str:
  """What a message says of the model, without its path and its name."""
  text = reason.removeprefix("FOLDER: ")
  text = re.sub(r"^its config\.json says (\w+)='[^']*', which", r"its \1", text)
  text = re.sub(r"^its config\.json says (\w+)='[^']*'[:,] ", "", text)
  return text.removesuffix(".").replace("|", r"\|")


if __name__ == "__main__":
  main()
