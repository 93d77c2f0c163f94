"""The table of published checkpoints."""

import re
from collections import Counter

import pytest

from vit_jax.pretrained import known
from vit_jax.pretrained.fetch import cached_path, without_secrets
from vit_jax.pretrained.hub import REPOSITORY
from vit_jax.pretrained.locate import storage_url


@pytest.mark.parametrize("name", known.KNOWN)
def test_known_addresses_are_well_formed(name):
  entry = known.KNOWN[name]
  assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
  assert entry.model.split("/")[0] in entry.description
  scheme, _, rest = entry.url.partition("://")
  if scheme == "gs":
    url = storage_url(rest)
    assert url.startswith("https://storage.googleapis.com/vit_models/")
    assert url.endswith(".npz")
    assert rest.endswith(cached_path(url).name)
    assert without_secrets(url) == url
  elif scheme == "hf":
    assert name.startswith("hf_")
    assert REPOSITORY.fullmatch(rest)
  else:
    assert scheme == "https"
    assert without_secrets(entry.url) == entry.url
    assert entry.is_pickle
    assert name.startswith("torchvision_")


def test_known_names_follow_their_models():
  assert max(Counter(e.url for e in known.KNOWN.values()).values()) == 1
  for name, entry in known.KNOWN.items():
    model = entry.model.lower().replace("/", "").replace("+", "_")
    stem = re.sub(r"^(hf|torchvision)_", "", name)
    assert stem == model or stem.startswith(f"{model}_"), name
    if size := re.search(r"_(\d{3})$", name):
      assert entry.image_size == int(size[1])


def test_known_rows():
  rows = known.rows()
  assert [row[0] for row in rows] == list(known.KNOWN)
  assert rows[0][1:3] == ("Ti/16 224", "ImageNet-21k (AugReg)")
  marked = [row[0] for row in rows if "convert it once" in row[3]]
  assert marked == [n for n in known.KNOWN if n.startswith("torchvision_")]
