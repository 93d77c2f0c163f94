"""Arguments of `open_source`, and imports that no module of data may have."""

import pathlib
import sys

import pytest

from vit_jax import data

DIGITS = data.DataSettings(name="digits")


def test_a_name_or_a_root_is_needed():
  with pytest.raises(ValueError, match="the configuration names no data"):
    data.open_source("train", data.DataSettings())
  with pytest.raises(ValueError, match="split='dev' is unknown"):
    data.open_source("dev", data.DataSettings(name="digits"))


def test_no_module_imports_jax_or_tensorflow():
  folder = pathlib.Path(data.__file__).parent
  for module in folder.rglob("*.py"):
    lines = module.read_text().splitlines()
    imports = [
      line.split()[1] for line in lines if line.startswith(("import ", "from "))
    ]
    assert not {"jax", "tensorflow"} & {name.split(".")[0] for name in imports}


def test_without_the_extra_tfds_one_line_says_so(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  reader = "vit_jax.data.reading.tfds_source"
  monkeypatch.delitem(sys.modules, reader, raising=False)
  settings = data.DataSettings(name="cifar10")
  with pytest.raises(ValueError, match="tensorflow_datasets is not") as caught:
    data.open_source("train", settings)
  assert str(caught.value).endswith('pip install "vit_jax[tfds]"')
  assert len(data.open_source("train", DIGITS)) == 1438
