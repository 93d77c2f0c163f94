"""Records what a reference makes of images, for the tests to compare with.

python scripts/parity/record_pixels.py ROW --reference FOLDER [--commit COMMIT]
  [--python PYTHON]

The arguments are those of record.py. Numbers go to tests/parity/pixels/ROW.npz.
"""

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

from scripts.parity import draws, record  # noqa: E402
from scripts.parity.pixels import measure  # noqa: E402


def main() -> None:
  a = record.arguments([*measure.ROWS, *draws.ROWS])
  row: Any = {**measure.ROWS, **draws.ROWS}[a.row]
  found = answers(row, a.python, a.reference)
  meta = {
    "reference": row.reference,
    "commit": a.commit or record.commit_of(a.reference),
    "facts": json.loads(str(found.pop("facts"))),
  }
  if a.row in draws.ROWS:
    draws.write(a.row, meta, found["0"])
    print(draws.differences(a.row))
    return
  measure.write(a.row, {**meta, "digest": measure.digest(row)}, found)
  print(measure.differences(a.row))
  size = (measure.FOLDER / f"{a.row}.npz").stat().st_size
  print(f"{len(row.cases())} cases, {size / 1000:.0f} kB")


def answers(row: Any, python: str, folder: Any) -> dict[str, Any]:
  """What the reference makes of the row's cases."""
  arrays = {f"image_{k}": x for k, x in row.sources().items()}
  arrays["cases"] = np.array(json.dumps(row.cases()))
  program = ROOT / "scripts" / "parity" / "reference" / row.program
  with tempfile.TemporaryDirectory() as place:
    given, taken = f"{place}/given.npz", f"{place}/taken.npz"
    np.savez(given, **arrays)
    extra = str(folder.resolve()) if folder else record.EXTRA
    environment = {**os.environ, "PYTHONPATH": extra}
    command = [python, str(program), given, taken]
    subprocess.run(command, check=True, env=environment)
    with np.load(taken) as file:
      return {name: file[name] for name in file.files}


if __name__ == "__main__":
  main()
