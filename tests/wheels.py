"""The package as a user gets it: a wheel, installed away from the clone."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent

# Python runs this after it has read what editable installs add to the path.
_NO_CLONE = """
import os, sys
sys.path[:] = [
  p for p in sys.path if not os.path.exists(os.path.join(p, "tests/pages.py"))
]
"""


def _python(*arguments: str | pathlib.Path, cwd: pathlib.Path) -> None:
  kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  done = subprocess.run(
    [sys.executable, *map(str, arguments)],
    cwd=cwd,
    env={**kept, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr


def build(out: pathlib.Path) -> None:
  """Builds the source distribution, and the wheel from it, into `out`."""
  _python("-m", "build", "--outdir", out, ROOT, cwd=out)


def install(distributions: pathlib.Path, site: pathlib.Path) -> None:
  """Makes `site` a folder for PYTHONPATH with the package and `bin/vit_jax`.

  What the package needs is taken from this interpreter's environment, whose
  own clone of the package is taken from the path.
  """
  (wheel,) = distributions.glob("*.whl")
  quiet = ("-q", "--no-deps", "--no-index")
  _python("-m", "pip", "install", *quiet, f"--target={site}", wheel, cwd=site)
  (site / "sitecustomize.py").write_text(_NO_CLONE)
