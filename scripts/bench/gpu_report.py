"""Measures vit_jax on a GPU, part by part; scripts/gpu_report.sh starts it.

scripts/gpu_report.sh [--only PART ...] [--config.KEY=VALUE ...]

A part leaves its table in WORK/CARD/PART.json, and the page is written anew
from all of them. A part that was killed leaves nothing and is done again by the
next call; so is one that failed, after a line on the page that says why. The
CIFAR-10 run takes several turns: it is stopped in time, and resumed.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

from scripts.bench.gpu_parts import LIMIT, Failed, Part, Turn, Unfinished, parts
from vit_jax.runtime.files import replacing

PROBE = """
import importlib.metadata, json, jax
device = jax.devices()[0]
found = {}
for name in ("jax", "jaxlib", "flax", "torch", "timm", "transformers"):
  try:
    found[name] = importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    found[name] = "not installed"
print(json.dumps({
  "name": device.device_kind,
  "count": jax.device_count(),
  "memory": (device.memory_stats() or {}).get("bytes_limit", 0),
  "versions": found,
}))
"""
NOTES = {
  "Training": (
    "Whole steps in bfloat16 with Adam. Published for B/16 in JAX, for each "
    "card of eight (JAX-Toolbox): 900 images/s on an A100, 1,459 on an H100."
  ),
  "Prediction": "Weights and computation in bfloat16.",
  "Tests on the GPU": "On one device, with products in full float32.",
  "Exact resume": (
    "A run on the digits is killed and started again; its last checkpoint is "
    "compared with that of a run that nothing disturbed."
  ),
  "FSDP": "The mean losses of each 10 of 40 steps of B/16, on all cards.",
  "CIFAR-10 from scratch": (
    "By configs/cifar10_gpu.py; the aim is 93 % within 20 minutes."
  ),
}


def slug(name: str) -> str:
  return re.sub(r"[^\w]+", "_", name).strip("_").lower()


def probe() -> dict[str, Any]:
  """The card, its memory and the libraries; asked by a process of its own."""
  done = subprocess.run(
    [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
  )
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no output"]
    platforms = os.environ.get("JAX_PLATFORMS", "")
    raise SystemExit(
      f"gpu_report: JAX finds no device with JAX_PLATFORMS={platforms} "
      f"({lines[-1]}). Install JAX for CUDA, or set JAX_PLATFORMS=cpu and give "
      "--tiny to rehearse."
    )
  return json.loads(done.stdout.splitlines()[-1])


def take(name: str, part: Part, work: pathlib.Path, limit: float) -> bool:
  """Measures a part and keeps its table; whether it is done."""
  kept = work / f"{slug(name)}.json"
  said = None
  while True:
    print(f"{name}: starts, and stops after {limit:.0f} s", flush=True)
    turn, start = Turn(kept.with_suffix(".log"), limit), time.monotonic()
    try:
      result = {"table": part.measure(turn)}
    except Unfinished as error:
      result = {"failed": f"stopped after {limit:.0f} s: {error}"}
      if part.resumes and str(error) != said:
        said = str(error)
        print(f"{name}: goes on ({said})", flush=True)
        continue
    except Failed as error:
      result = {"failed": str(error)}
    with replacing(kept) as file:
      file.write(json.dumps(result).encode())
    done = f"done in {time.monotonic() - start:.0f} s"
    print(f"{name}: {result.get('failed', done)}", flush=True)
    return "table" in result


def kept_tables(work: pathlib.Path, names: list[str]) -> dict[str, Any]:
  """What is known of each part: its table, or why there is none."""
  paths = {name: work / f"{slug(name)}.json" for name in names}
  return {n: json.loads(p.read_text()) for n, p in paths.items() if p.exists()}


def page(
  card: dict[str, Any], todo: dict[str, Part], known: dict[str, Any]
) -> str:
  """The page in Markdown, from the tables that there are."""
  versions = ", ".join(f"{n} {v}" for n, v in card["versions"].items())
  today = datetime.date.today().isoformat()
  written = f"Written by `scripts/gpu_report.sh` on {today}"
  python = f"Python {sys.version.split()[0]}"
  lines = [
    "---",
    "orphan: true",
    "---",
    f"# Measured on {card['count']} x {card['name']}",
    "",
    f"{written}: {python}, {versions}. {_progress(todo, known)}",
  ]
  for title, note in NOTES.items():
    lines += ["", f"## {title}", "", note, ""]
    header = None
    names = [name for name, part in todo.items() if part.section == title]
    for name in names:
      rows = known.get(name, {}).get("table", [])
      if rows and rows[:2] != header:
        header = rows[:2]
        lines += header
      lines += rows[2:]
    for name in names:
      if failed := known.get(name, {}).get("failed"):
        lines += ["", f"Not measured, {name}: {failed}"]
      elif name not in known:
        lines += ["", f"To do: {name}."]
  return "\n".join(lines) + "\n"


def _progress(todo: dict[str, Part], known: dict[str, Any]) -> str:
  done = sum("table" in found for found in known.values())
  if done == len(todo):
    return "All parts are done."
  return f"{done} of {len(todo)} parts are done."


def main() -> int:
  parser = argparse.ArgumentParser(description="Measure vit_jax on a GPU.")
  parser.add_argument("--page", type=pathlib.Path, default="docs/gpu.md")
  parser.add_argument("--work", type=pathlib.Path, default="runs/gpu_report")
  parser.add_argument(
    "--only", nargs="+", metavar="PART", help="by their names"
  )
  parser.add_argument(
    "--tiny", action="store_true", help="rehearse, tiny sizes"
  )
  parser.add_argument("--seconds", type=float, default=LIMIT, help="for a part")
  options, flags = parser.parse_known_args()
  if wrong := [flag for flag in flags if not flag.startswith("--config.")]:
    parser.error(f"{wrong[0]} is neither an option nor a --config.KEY=VALUE.")
  card = probe()
  work = options.work / slug(card["name"])
  todo = parts(card["memory"], work / "cifar10_run", flags, tiny=options.tiny)
  if wrong := [name for name in options.only or () if name not in todo]:
    parser.error(f"no part is named {wrong[0]!r}: {', '.join(todo)}.")
  # A part that is done again finds its programs compiled.
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(work / "compiled"))
  for name, part in todo.items():
    known = kept_tables(work, [*todo])
    if "table" in known.get(name, {}):
      print(f"{name}: done before", flush=True)
    elif not options.only or name in options.only:
      take(name, part, work, options.seconds)
      text = page(card, todo, kept_tables(work, [*todo]))
      with replacing(options.page) as file:
        file.write(text.encode())
  known = kept_tables(work, [*todo])
  missing = [name for name in todo if "table" not in known.get(name, {})]
  if missing:
    print(f"not done: {', '.join(missing)}. The same command goes on.")
  else:
    print(f"all parts done, in {options.page}")
  return bool(missing)


if __name__ == "__main__":
  sys.exit(main())
