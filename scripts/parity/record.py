"""Records the trajectory of a reference, for the tests to compare with.

python scripts/parity/record.py ROW --reference FOLDER [--commit COMMIT]
  [--python PYTHON]

FOLDER is a checkout of the row's reference, which the reader has fetched: this
script fetches nothing and keeps nothing of it but numbers, in
tests/parity/ROW.npz. COMMIT is found by git where FOLDER has its history.
PYTHON runs the reference, and needs its libraries; by default it is the one
that runs this. For a library (timm, peft, torch, transformers), FOLDER is left
out; where PYTHON does not find it, PARITY_PYTHONPATH names its folder.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from scripts.parity import ours, recording, rows  # noqa: E402
from scripts.parity.row import build, normalized  # noqa: E402

# Where other libraries of the reference are, if not where PYTHON looks.
EXTRA = os.environ.get("PARITY_PYTHONPATH", "")


def main() -> None:
  a = arguments(list(rows.ROWS))
  row = rows.ROWS[a.row]
  setup = row.setup()
  inputs = row.inputs(setup)
  run_it = functools.partial(run, row, setup, inputs, a.python, a.reference)
  found = run_it({})
  meta = {
    "reference": row.reference,
    "commit": a.commit or commit_of(a.reference),
    "digest": inputs.digest(),
    "facts": json.loads(str(found.pop("facts"))),
  }
  recording.write(a.row, meta, trajectory(row, setup, found))
  for name, change in row.variants.items():
    other = trajectory(row, setup, run_it(change))
    gap = recording.differences(other, recording.read(a.row))
    meta.setdefault("effects", {})[name] = gap
    print(name, shown(gap))
  place = recording.write(a.row, meta, trajectory(row, setup, found))
  print(f"{place}: {place.stat().st_size / 1000:.0f} kB")
  mine = row.run(setup, inputs, recording.MARKS)
  compared = recording.differences(mine, recording.read(a.row), row.scale)
  print(shown(compared), "beyond:", recording.beyond(compared, row.tolerances))


def arguments(names: list[str]) -> argparse.Namespace:
  """The command's arguments; it records one of these rows."""
  main = sys.modules["__main__"]
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument("row", choices=names)
  parser.add_argument("--reference", type=pathlib.Path)
  parser.add_argument("--commit", default="")
  parser.add_argument("--python", default=sys.executable)
  return parser.parse_args()


def shown(gap: dict[str, float]) -> str:
  return ", ".join(f"{kind} {value:.1e}" for kind, value in gap.items())


def commit_of(folder: pathlib.Path | None) -> str:
  if folder is None:
    return ""
  command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  return done.stdout.strip()


def run(
  row: Any, setup: Any, inputs: Any, python: str, folder: Any, change: Any
) -> dict[str, Any]:
  """Runs the reference on the inputs, and returns what it writes."""
  preprocessing = build.make_preprocessing(setup.settings)
  arrays: dict[str, Any] = {
    "config": np.array(
      json.dumps(
        {
          **row.recipe,
          "marks": recording.MARKS,
          "reference": str(folder.resolve()) if folder else "",
          **change,
        }
      )
    ),
    "images": normalized(inputs.images, preprocessing),
    "labels": inputs.labels,
    "mixing": inputs.mixing,
    "probe": inputs.probe,
  }
  for name, array in row.written(setup, inputs.params).items():
    arrays[f"params/{name}"] = array
  for i, (u, p) in enumerate(zip(inputs.uniforms, inputs.chances, strict=True)):
    arrays[f"mask/{i}"] = u < np.float32(p)
  arrays |= {f"extra/{k}": v for k, v in setup.theirs.items()}
  program = ROOT / "scripts" / "parity" / "reference" / row.program
  with tempfile.TemporaryDirectory() as place:
    given, taken = f"{place}/given.npz", f"{place}/taken.npz"
    np.savez(given, **arrays)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    places = [str(folder.resolve())] if folder else []
    environment["PYTHONPATH"] = os.pathsep.join([*places, EXTRA])
    subprocess.run(
      [python, str(program), given, taken], check=True, env=environment
    )
    with np.load(taken) as file:
      return {name: file[name] for name in file.files}


def trajectory(row: Any, setup: Any, found: dict[str, Any]) -> Any:
  """What the reference found, by our paths."""

  def at(kind: str) -> dict[int, Any]:
    names = [name for name in found if name.startswith(f"{kind}_")]
    steps = sorted({int(n.split("/")[0].split("_")[1]) for n in names})
    return {
      step: {
        n.partition("/")[2]: found[n]
        for n in names
        if n.startswith(f"{kind}_{step}/")
      }
      for step in steps
    }

  owners = row.owners(setup)
  rate, decay = (
    {path: found[f"{kind}/{name}"] for path, name in owners.items()}
    for kind in ("rate", "decay")
  )
  params, averaged = (
    {step: row.read(setup, arrays) for step, arrays in at(kind).items()}
    for kind in ("params", "averaged")
  )
  logits = {step: arrays[""] for step, arrays in at("logits").items()}
  loss = found["loss"]
  return ours.Trajectory(loss, rate, decay, params, averaged, logits)


if __name__ == "__main__":
  main()
