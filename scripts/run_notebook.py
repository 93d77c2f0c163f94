"""Runs the notebook from start to end and stores its output.

python scripts/run_notebook.py [FOLDER]

FOLDER has the weights that `real_weights.py` makes; without it the pictures of
these weights are lost. It runs on the CPU and without the Internet, so that
everyone gets the same output; the files that it makes go to a temporary folder.
Needs the extra `dev`.
"""

import os
import pathlib
import sys
import tempfile
from unittest import mock

import nbformat
from nbclient import NotebookClient

NOTEBOOK = pathlib.Path(__file__).parent / "vit_jax_colab.ipynb"
# Nothing listens there, so every request fails at once.
_NOWHERE = "http://127.0.0.1:9"
METADATA = {
  "colab": {"provenance": [], "toc_visible": True},
  "kernelspec": {
    "display_name": "Python 3",
    "language": "python",
    "name": "python3",
  },
  "language_info": {"name": "python"},
}


def execute(notebook: nbformat.NotebookNode, folder: pathlib.Path) -> None:
  """Runs every cell in a kernel of its own, working in `folder`.

  Raises:
    nbclient.exceptions.CellExecutionError: if a cell raises an error.
  """
  environment = {
    "JAX_PLATFORMS": "cpu",
    "IPYTHONDIR": str(folder / ".ipython"),
    "JUPYTER_RUNTIME_DIR": str(folder / ".jupyter"),
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), _NOWHERE),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
  }
  client = NotebookClient(
    notebook,
    timeout=600,
    kernel_name="python3",
    resources={"metadata": {"path": str(folder)}},
    record_timing=False,
    coalesce_streams=True,
    extra_arguments=["--log-level=40"],  # Errors.
  )
  with mock.patch.dict(os.environ, environment):
    client.execute()
  notebook.metadata = nbformat.from_dict(METADATA)


def main() -> None:
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  with tempfile.TemporaryDirectory() as folder:
    for weights in sys.argv[1:]:
      link = pathlib.Path(folder, "runs", "dinov2_small")
      link.parent.mkdir()
      link.symlink_to(pathlib.Path(weights).resolve())
    execute(notebook, pathlib.Path(folder))
  nbformat.write(notebook, NOTEBOOK)
  print(f"{NOTEBOOK.name}: {NOTEBOOK.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
  main()
