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


def built(out: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Builds the source distribution, and the wheel from it, into `out`."""
  _python("-m", "build", "--outdir", out, ROOT, cwd=out)
  (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
  return sdist, wheel


def installed(out: pathlib.Path) -> pathlib.Path:
  """A folder for PYTHONPATH with the package and `bin/vit_jax`.

  What the package needs is taken from this interpreter's environment, whose
  own clone of the package is taken from the path.
  """
  _, wheel = built(out)
  quiet = ("-q", "--no-deps", "--no-index")
  _python(
    "-m", "pip", "install", *quiet, f"--target={out / 'site'}", wheel, cwd=out
  )
  (out / "site" / "sitecustomize.py").write_text(_NO_CLONE)
  return out / "site"
