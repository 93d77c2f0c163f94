"""The HTML pages of vit_jax report, on runs, and of vit_jax similar."""

import os
from typing import Any

from vit_jax.runtime import callable_module, hints
from vit_jax.runtime.shown import Shown, path_of_run


@hints.accepts("vit_jax.report(run)")
def report(
  *runs: str | os.PathLike[str],
  out: str | os.PathLike[str] | None = None,
  **options: Any,
) -> Shown:
  """Writes a report on one or several runs, as `vit_jax report` does::

    run = vit_jax.train("my_photos")
    vit_jax.report(run)

  Args:
    *runs: Folders of runs, or what `vit_jax.train` returned.
    out: The HTML file to write; by default report.html in a single run's
      folder, and in the current folder for several.
    **options: For a single run, `step`, or `best=True` for the best checkpoint.

  Returns:
    The page, which a notebook shows; `os.fspath` gives its path.

  Raises:
    ValueError: if a folder holds no run, none is given, or matplotlib or Jinja
      is missing.
  """
  if not runs:
    raise ValueError('give a run, as in vit_jax.report("runs/my_photos").')
  from vit_jax.report.write import write_report

  folders = [path_of_run(run) for run in runs]
  options = callable_module.without_workers(options)
  return Shown((write_report(folders, out=out, **options),))


callable_module.make_callable(__name__, report)
