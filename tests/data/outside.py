"""Data sets that lie beside the checkout, on machines that have them."""

import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[3] / "shared" / "data"


def outside(name: str) -> str:
  """The path of a data set; skips the test where there is none."""
  if not (FOLDER / name).exists():
    pytest.skip(f"{name} is not in a folder shared/data beside the checkout")
  return str(FOLDER / name)
