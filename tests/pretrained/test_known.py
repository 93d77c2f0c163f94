"""The table of published checkpoints."""

import dataclasses
import pathlib
import re
import shlex
import sys
import types
from collections import Counter

import pytest

import vit_jax
from vit_jax.pretrained import known
from vit_jax.pretrained.fetch import cached_path, without_secrets
from vit_jax.pretrained.hub import REPOSITORY
from vit_jax.pretrained.licenses import LICENSES
from vit_jax.pretrained.locate import storage_url


def test_known_addresses_are_well_formed():
  for name in known.KNOWN:
    check_address(name)


def check_address(name):
  entry = known.KNOWN[name]
  assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
  scheme, _, rest = entry.url.partition("://")
  if scheme == "gs":
    url = storage_url(rest)
    bucket = "tips_data" if entry.family == "TIPSv2" else "vit_models"
    assert url.startswith(f"https://storage.googleapis.com/{bucket}/")
    assert url.endswith(".npz")
    assert rest.endswith(cached_path(url).name)
    assert without_secrets(url) == url
  elif scheme == "hf":
    publisher = "timm" if rest.startswith("timm/") else "hf"
    assert name.startswith(f"{publisher}_")
    assert REPOSITORY.fullmatch(rest)
  else:
    assert scheme == "https"
    assert without_secrets(entry.url) == entry.url
    assert entry.url.endswith(known.PICKLES)
    assert name.startswith("torchvision_")


def test_known_names_follow_their_models():
  assert max(Counter(e.url for e in known.KNOWN.values()).values()) == 1
  for name, entry in known.KNOWN.items():
    model = entry.model.lower().replace("+/", "plus").replace("/", "")
    model = model.replace("+", "_")
    stem = re.sub(r"^(hf|timm|torchvision)_", "", name)
    assert stem == model or stem.startswith(f"{model}_"), name
    if size := re.search(r"_(\d{3})$", name):
      assert entry.image_size == int(size[1])


def test_names_of_other_libraries_are_known():
  """Of timm's that read the same file, and of Hugging Face's repositories."""
  names = {
    "B16_augreg": "b16_augreg",
    "vit_base_patch16_224.augreg_in21k": "b16_augreg",
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k": "r50_l32_augreg_i1k_224",
    "google/vit-base-patch16-224": "hf_b16_224",
    "hf://google/vit-large-patch32-384": None,  # Without its revision.
    "google/vit-large-patch32-384": "hf_l32_384",
    "dinov2-small": "hf_s14_dinov2",
    "vit_base_patch16_384.augreg_in21k_ft_in1k": None,  # Another file.
  }
  for name, ours in names.items():
    assert known.find(name) == known.KNOWN.get(ours), name
  assert known.class_names("google/vit-base-patch16-224", 1000)
  assert known.license_of("facebook/dinov2-base") == "apache-2.0"
  every = [name for entry in known.KNOWN.values() for name in entry.names]
  assert len(every) == len({*every})
  found = vit_jax.list_models("facebook/dinov2*")
  assert [*found] == [f"hf_{size}14_dinov2" for size in "sbl"]
  assert [*vit_jax.list_models("*_sam")] == [*vit_jax.list_models("*/sam/*")]
  names = [*known.KNOWN]
  assert vit_jax.list_models()[:2] == names[:2]
  assert vit_jax.list_models()[-1] == names[-1]
  shown = repr(vit_jax.list_models()).splitlines()
  assert [line.split()[0] for line in shown] == names
  assert vit_jax.list_models(pretrained=True) == vit_jax.list_models()
  by_pattern = vit_jax.list_models("*dinov2*", pretrained=True)
  assert by_pattern == vit_jax.list_models("*dinov2*") != known.KNOWN
  assert vit_jax.list_models() == known.KNOWN and not known.rows("nonesuch")


def test_a_name_that_is_only_a_part_is_said(capsys):
  assert not vit_jax.list_models("dinov2")
  count = sum(
    any("dinov2" in name for name in (short, *entry.names))
    for short, entry in known.KNOWN.items()
  )
  said = capsys.readouterr().err
  assert f'list_models("*dinov2*") has {count} that contain it' in said
  assert not vit_jax.list_models("nonesuch")
  assert "list_models() has all names" in capsys.readouterr().err
  assert vit_jax.list_models("*dinov2*") and not capsys.readouterr().err


def test_every_row_has_a_licence_that_says_what_it_means():
  kinds = {"free", "non-commercial", "custom", "unknown"}
  assert {license.kind for license in LICENSES.values()} == kinds
  for name, license in LICENSES.items():
    assert name == license.name and license.meaning
    assert license.url.startswith("https://") != (name == "unknown")
  for name, entry in known.KNOWN.items():
    assert entry.license in LICENSES and entry.family, name
    measured = entry.score or entry.top1 is not None
    assert entry.score_source.startswith("https://") == bool(measured), name
  free = known.KNOWN["hf_s14_dinov2"]
  assert free.terms.startswith("its licence is apache-2.0 (commercial use is")
  custom = dataclasses.replace(free, license="dinov3-license", gated=True)
  assert "dinov3-license (Meta's own terms" in custom.terms
  gate = "accepted its terms at https://huggingface.co/facebook/dinov2-small"
  assert custom.terms.endswith(gate)


def test_a_licence_that_nobody_checked_is_none_to_publish_under(monkeypatch):
  entry = known.Known("hf://o/n", "B/16", 224, "noise", 1)
  monkeypatch.setitem(known.KNOWN, "b16_noise", entry)
  assert "unknown (nobody has checked it" in entry.terms
  assert known.license_of("b16_noise") is None
  assert known.license_of("hf://google/vit-base-patch16-224@x") == "apache-2.0"


def test_known_rows():
  rows = known.rows()
  assert [row[0] for row in rows] == list(known.KNOWN)
  assert rows[0][1:4] == ("Ti/16 224", "6 M", "ImageNet-21k (AugReg)")
  assert all(len(row) == len(known.COLUMNS) for row in rows)
  marked = [row[0] for row in rows if "convert it once" in row[-1]]
  assert marked == [n for n in known.KNOWN if n.startswith("torchvision_")]


def test_parameters_are_those_of_the_paper():
  models = vit_jax.list_models()
  # By hand, for B/16 at 224: twelve layers, patches, positions, class token and
  # the last layer norm.
  layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
  ends = 16 * 16 * 3 * 768 + 768 + 197 * 768 + 768 + 2 * 768
  assert models["b16_augreg"].parameters == 12 * layer + ends
  assert models["b16_i1k_384"].parameters == 12 * layer + ends + 380 * 768
  # The published counts, less a head of 1,000 classes.
  heads = {"l16_i1k_224": 304_326_632 - 1025 * 1000}
  heads["hf_h14_i21k"] = 632_045_800 - 1281 * 1000
  assert {name: models[name].parameters for name in heads} == heads


def test_accuracies_are_given_only_for_imagenet():
  scored = {n: e for n, e in known.KNOWN.items() if e.top1 is not None}
  assert scored
  for name, entry in scored.items():
    assert 70 < entry.top1 < 91
    assert re.search(r"(^|, )ImageNet( [(]|$)", entry.trained_on), name


def test_imagenets_classes_have_names_where_the_source_is_known():
  names = known.class_names("b16_augreg_i1k_384", 1000)
  assert len(names) == len(set(names)) == 1000
  assert names[207] == "golden retriever" and names[963] == "pizza"
  url = known.KNOWN["b16_i1k_384"].url
  assert known.class_names(url, 1000) == names
  assert known.class_names("b16_augreg", 21_843) == ()
  assert known.class_names("elsewhere.npz", 1000) == ()


def test_imagenets_names_are_in_the_order_of_its_synsets():
  shared = pathlib.Path(__file__).parents[3] / "shared"
  samples = shared / "data" / "imagenet_samples"
  if not samples.exists():
    pytest.skip("needs shared/data/imagenet_samples beside the repository")
  names = known.class_names("torchvision_b16", 1000)
  found = []
  for path in sorted(samples.iterdir()):  # Such as n01518878_ostrich.JPEG.
    name = path.stem.split("_", 1)[1].replace("_", " ")
    if name in names and names.count(name) == 1:
      found.append(names.index(name))
  assert len(found) > 100
  assert found == sorted(found)


@pytest.mark.parametrize("saved", [{}, {"state_dict": {}}, {"model": {}}])
@pytest.mark.parametrize("name", ["best.pth", "best.pth.tar", "best.bin"])
def test_the_conversion_of_a_pickle_writes_what_the_checkpoint_holds(
  monkeypatch, name, saved
):
  """Training programs keep the arrays beside the epoch and the optimizer."""
  arrays, written = {"w": 1}, {}
  kept = dict.fromkeys(saved, arrays) or arrays
  torch = types.SimpleNamespace(load=lambda *_, **__: {**kept})
  library = types.SimpleNamespace(
    save_file=lambda what, where: written.update({where: what})
  )
  monkeypatch.setitem(sys.modules, "torch", torch)
  monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("s"))
  monkeypatch.setitem(sys.modules, "safetensors.torch", library)
  with pytest.raises(ValueError, match=f"^{name} is a pickle") as caught:
    known.refuse_pickle(name)
  exec(shlex.split(str(caught.value).split("`")[1])[2], {})
  assert written == {"best.safetensors": arrays}


def test_a_part_of_a_name_lists_those_that_have_it():
  assert known.rows("dinov2") == known.rows("*dinov2*") != []
  assert [row[0] for row in known.rows("b16_augreg")] == ["b16_augreg"]
