"""Finding the file of a checkpoint that a user names."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from tests import published
from tests.server import files, refusal
from vit_jax.pretrained import known, load
from vit_jax.pretrained.known import TORCH_ADVICE, conversion
from vit_jax.pretrained.locate import check_trusted, is_trusted, locate

BODY = np.random.default_rng(0).bytes(1000)

pytestmark = pytest.mark.usefixtures("cache")


def test_a_path_that_exists_wins(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("HOME", str(tmp_path))
  folder = tmp_path / "b16_i21k"
  folder.mkdir()
  (folder / "x.npz").touch()
  assert locate("b16_i21k") == pathlib.Path("b16_i21k")
  assert locate("~/b16_i21k/x.npz") == folder / "x.npz"


@pytest.mark.parametrize(
  ("source", "words"),
  [
    ("", "neither a file or folder"),
    ("no/such/file.npz", "neither a file or folder"),
    ("https://", "is not an address"),
    ("http://[/x.npz", "is not an address"),
    ("s3://bucket/x.npz", "s3:// cannot be read"),
    ("hf://google", "names no repository"),
    ("hf://google/../x", "names no repository"),
    ("hf://google/vit\n@main", "names no repository"),
    ("hf://google/vit@../../x", "names no repository"),
    ("hf://google/vit@/x", "names no repository"),
    ("hf://google/vit@a//b", "names no repository"),
    ("hf://google/vit/tree/main", "names no repository"),
  ],
)
def test_sources_that_are_none(source, words):
  assert words in refusal(locate, source)


def test_the_name_of_data_suggests_its_run(tmp_path, monkeypatch):
  (tmp_path / "runs" / "digits" / "checkpoints").mkdir(parents=True)
  (tmp_path / "mydigits").mkdir()
  monkeypatch.chdir(tmp_path)
  message = refusal(locate, "digits")
  assert "the nearest names are runs/digits, mydigits" in message


@pytest.mark.parametrize(
  "source, near",
  [
    ("hf_b32_clip", "timm_b32_clip_224"),
    ("openai/clip-vit-base-patch32", "timm_b32_clip_224"),
    ("CLIP ViT-B/32", "timm_b32_clip_224"),
    ("dinov2_vits14", "hf_s14_dinov2"),
    ("s14_dinov2", "hf_s14_dinov2"),
    ("mae_b16", "timm_b16_mae"),
    ("google/siglip2-base-patch16-224-x", "hf_b16_siglip2_224"),
  ],
)
def test_an_unknown_name_suggests_those_of_its_parts(source, near):
  """Whatever their order, and the publisher's name before them."""
  message = refusal(locate, source)
  assert re.search(f"; the nearest name(s are| is) {near}[,;]", message)


def test_a_part_alone_suggests_names_that_have_it():
  message = refusal(locate, "clip")
  names = message.split("names are ")[1].split(";")[0].split(", ")
  assert len(names) == 3 and all("_clip_" in name for name in names)


def test_unknown_name_suggests_the_nearest():
  message = refusal(locate, "b16_augrep")
  assert "the nearest names are b16_augreg, " in message
  assert "vit_jax convert --list" in message
  message = refusal(locate, "google/vit-tiny")
  assert "it would be hf://google/vit-tiny" in message
  message = refusal(locate, "vit_base_patch16_224.other")
  assert "names are vit_base_patch16_224." in message
  assert "it would be hf://timm/vit_base_patch16_224.other" in message
  message = refusal(locate, "vit_base_patch16_224.sma")
  assert message.count(" vit_base_patch16_224.sam_in1k") == 1
  # timm's name without the part that says which weights.
  message = refusal(locate, "vit_base_patch16_224")
  assert "b16_augreg_i1k_224 (vit_base_patch16_224.augreg_in21k_ft" in message
  assert "timm_b16_dino (vit_base_patch16_224.dino)" in message


def test_the_only_weights_of_timms_architecture_are_taken(hub, capsys):
  """Where there are several, as above, timm chooses, and the user has to."""
  whole = "deit_tiny_patch16_224.fb_in1k"
  hub.add_repository({"model.safetensors": BODY}, name=f"timm/{whole}")
  folder = locate("deit_tiny_patch16_224")
  assert (folder / "model.safetensors").read_bytes() == BODY
  said = f"deit_tiny_patch16_224 is taken for {whole}, the only such"
  assert said in capsys.readouterr().err
  assert locate(whole) == folder
  assert "taken for" not in capsys.readouterr().err
  assert known.class_names("deit_tiny_patch16_224", 1000)
  for name in ("vit_base_patch16_224", "deit_tiny", whole, "b16_augreg", ""):
    assert known.only_timm_name(name) == ""


def test_google_storage_address(site, monkeypatch):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.root)
  path = "/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz"
  site.add(path, BODY)
  name = "vit_models/imagenet21k+imagenet2012/R50+ViT-B_16.npz"
  assert locate(f"gs://{name}").name == "R50+ViT-B_16.npz"
  assert locate("r50_b16_i1k_384").read_bytes() == BODY
  assert site.gets(path) == 1
  assert "Authorization" not in site.requests[0][2]
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.root.split("//")[1])
  assert locate("r50_b16_i1k_384").read_bytes() == BODY


@pytest.mark.parametrize(
  "name", ["vit_models", "vit_models/", "b/folder/", "b/../x", "-/x", "b//x"]
)
def test_google_storage_names_that_are_none(name):
  assert "names no object" in refusal(locate, f"gs://{name}")


def test_checksum_of_the_table(site, monkeypatch):
  url = site.add("/x.npz", BODY)
  entry = known.Known(url, "B/16", 224, "noise", 1, sha256="0" * 64)
  monkeypatch.setitem(known.KNOWN, "b16_noise", entry)
  message = refusal(locate, "b16_noise")
  sha256 = re.findall(r"expected 0{64} but got (\w{64})", message)[0]
  right = dataclasses.replace(entry, sha256=sha256)
  monkeypatch.setitem(known.KNOWN, "b16_noise", right)
  assert locate("B16_noise").read_bytes() == BODY


def test_the_licence_is_said_before_the_download_and_once(
  site, monkeypatch, capsys
):
  url = f"{site.root}/x.npz"
  entry = known.Known(url, "B/16", 224, "noise", 1, license="cc-by-nc-4.0")
  monkeypatch.setitem(known.KNOWN, "b16_noise", entry)
  said = (
    "b16_noise: its licence is cc-by-nc-4.0 (no commercial use): "
    "https://creativecommons.org/licenses/by-nc/4.0/.\n"
  )
  refusal(locate, "b16_noise")  # There is no such file.
  assert capsys.readouterr().err.startswith(said)
  site.add("/x.npz", BODY)
  locate("b16_noise")
  assert capsys.readouterr().err.startswith(said)
  locate("b16_noise")
  assert capsys.readouterr().err == ""


@pytest.mark.parametrize("end", [".pth", ".PT", ".bin?x=1", ".ckpt", ".pkl"])
def test_pickles_are_refused_before_the_download(site, tmp_path, end):
  message = refusal(locate, site.add(f"/model{end}"))
  assert "weights_only=True" in message
  assert "save_file" in message
  assert not site.requests
  path = tmp_path / f"model{end}"
  path.touch()
  if "?" not in end:
    assert "weights_only=True" in refusal(locate, str(path))


def test_torchvision_says_how_to_convert():
  message = refusal(locate, "torchvision_b16")
  url = "https://download.pytorch.org/models/vit_b_16-c867db91.pth"
  command = re.findall(r"`(.*)`", message)[0]
  get, convert = command.split(" && ")
  assert get == f"curl -LO {url}"
  program = convert.removeprefix("python -c ").strip('"')
  compile(program, "command", "exec")
  assert "b_16-c867db91.pth', map_location='cpu', weights_only=True)" in program
  assert "'vit_b_16-c867db91.safetensors'" in program
  assert TORCH_ADVICE.endswith(conversion("F.pth").split("`")[1])


def test_a_download_that_cannot_be_read_is_fetched_anew(site, cache):
  body = (published.FOLDER / "google_vit.npz").read_bytes()
  middle = len(body) // 2
  broken = body[:middle] + bytes(400) + body[middle + 400 :]
  for bad in (body[:-60], broken, b"<html>"):
    message = refusal(load.load_pretrained, site.add("/a/x.npz", bad))
    assert re.search(r"x.npz.*; the same command fetches it", message)
    assert files(cache) == []
  load.load_pretrained(site.add("/a/x.npz", body))
  assert files(cache)


def test_a_web_page_in_place_of_a_file_is_named(site, cache):
  html = {"Content-Type": "text/html"}
  url = site.add("/x.npz", b"<!DOCTYPE html><p>Log in", headers=html)
  message = refusal(load.load_pretrained, url)
  assert "a web page or an error in XML, not what was asked for" in message
  assert "the same command fetches it anew" in message
  assert files(cache) == []


def test_only_downloads_are_removed(tmp_path, cache):
  for path in (tmp_path / "x.npz", cache / "x.npz"):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="was asked for; an .npz or a"):
      load.load_pretrained(str(path))
    assert path.exists()


@pytest.mark.parametrize(
  "source, workdir, trusted",
  [
    ("gs://team/packed", "gs://team/run", True),
    ("gs://other/packed", "gs://team/run", False),
    ("gs://team.evil/packed", "gs://team/run", False),
    ("gs://team/../other/packed", "gs://team/run", False),
    ("gs://team/packed", "runs/team", False),
    ("gs://team/packed", None, False),
    ("https://team/packed", "https://team/run", False),
    ("s3://team/packed", "gs://team/run", False),
    ("hf://o/n", "hf://o/n", False),
    ("gs://", "gs://", False),
    ("no/such/place", None, True),
    ("/dev/zero", None, False),
  ],
)
def test_what_only_a_file_names_is_asked_in_the_bucket_of_the_run_alone(
  source, workdir, trusted
):
  assert is_trusted(source, workdir) == trusted


def test_a_refusal_names_the_flag_and_no_secret():
  with pytest.raises(ValueError, match="the teacher is") as caught:
    check_trusted("https://me:word@e.org/a\x1b?key=1", "the teacher", "base")
  assert str(caught.value) == (
    "the teacher is https://e.org/a\\x1b, which only the run's checkpoint "
    "gives: if you trust it, give --base=https://e.org/a\\x1b (base= in "
    "Python)."
  )
