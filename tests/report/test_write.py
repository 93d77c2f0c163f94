"""Writing a report, and what is refused or reported instead."""

import os
import shutil
import sys

import pytest

import vit_jax
from vit_jax.report.write import report_files


def test_folders_without_a_run_are_refused(tmp_path):
  with pytest.raises(ValueError, match="none holds no checkpoints: give the"):
    report_files([str(tmp_path / "none")], out=str(tmp_path / "r.html"))
  with pytest.raises(ValueError, match="--best=True needs a single run"):
    report_files(["a", "b"], best=True)
  with pytest.raises(ValueError, match="s3://bucket/run must be a local f"):
    report_files(["s3://bucket/run"])
  assert not (tmp_path / "r.html").exists()


def test_a_function_names_its_keywords():
  with pytest.raises(ValueError, match="^step=2 needs a single run"):
    vit_jax.report("a", "b", step=2)


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
  monkeypatch.delitem(sys.modules, "vit_jax.report.page")
  monkeypatch.delattr("vit_jax.report.page", raising=False)
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(ValueError, match="jinja2 is not installed: pip"):
    report_files([str(tmp_path)], out=str(tmp_path / "r.html"))


@pytest.mark.slow
def test_data_that_have_moved_are_reported(workdir, root, tmp_path, capsys):
  page_file = tmp_path / "report.html"
  run, out, moved = (
    str(tmp_path / "run"),
    str(page_file),
    str(tmp_path / "moved"),
  )
  shutil.copytree(workdir, run)
  root.rename(moved)
  try:
    assert report_files([run], out=out) == 0
    said = capsys.readouterr().out
    assert f"{run}: not evaluated: " in said and str(root) in said
    text = page_file.read_text()
    assert "could not be evaluated" in text and "Loss by step" in text
    assert "image_size" in text  # The configuration is shown all the same.
    assert report_files([run], out=out, root=moved) == 0
    assert "could not be evaluated" not in page_file.read_text()
    with pytest.raises(ValueError, match="no checkpoint of step 7"):
      report_files([run], out=out, root=moved, step=7)
  finally:
    os.rename(moved, root)
