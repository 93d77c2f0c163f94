"""Downloads repositories from a stand-in for Hugging Face on this machine."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from huggingface_hub import constants

from tests import published
from tests.server import COMMIT, refusal, serving
from vit_jax.pretrained import known
from vit_jax.pretrained.folder import OF_TEXTS
from vit_jax.pretrained.licenses import LICENSES
from vit_jax.pretrained.load import load_pretrained
from vit_jax.pretrained.locate import drop_download, locate

BODY = np.random.default_rng(0).bytes(3 * 2**18 + 17)
CONFIG = json.dumps({"model_type": "vit"}).encode()
PLAIN = {"config.json": CONFIG, "model.safetensors": BODY}
WEIGHTS = f"/o/n/resolve/{COMMIT}/model.safetensors"


def blobs(cache):
  """The files that the library has downloaded, whatever their names."""
  return [path for path in cache.glob("*/blobs/*") if path.is_file()]


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_a_repository_is_downloaded_once(hub):
  processor = b'{"do_resize": true}'
  hub.add_repository({**PLAIN, "preprocessor_config.json": processor})
  folder = locate("hf://o/n")
  assert names(folder) == sorted([*PLAIN, "preprocessor_config.json"])
  assert (folder / "model.safetensors").read_bytes() == BODY
  assert locate("hf://o/n") == folder
  assert hub.gets(WEIGHTS) == 1


def test_the_licence_of_a_repository_is_said_once(hub, monkeypatch, capsys):
  hub.add_repository(PLAIN)
  entry = known.Known(
    *("hf://o/n", "B/16", 224, "noise", 1),
    license="dinov3-license",
    gated=True,
  )
  monkeypatch.setitem(known.KNOWN, "hf_b16_noise", entry)
  locate("hf_b16_noise")
  said = capsys.readouterr().err
  assert "hf_b16_noise: its licence is dinov3-license (Meta" in said
  assert "accepted its terms at https://huggingface.co/o/n.\n" in said
  locate("hf_b16_noise")
  assert "licence" not in capsys.readouterr().err


@pytest.mark.parametrize(
  "name, kind",
  [
    ("hf_b16_dinov3", "custom"),
    ("timm_b16_dinov3", "custom"),
    ("hf_b16_pixio", "non-commercial"),
    ("timm_h14_metaclip2_224", "non-commercial"),
    ("timm_l14_aimv2_224", "custom"),
    ("hf_h16_radiov4", "custom"),
    ("timm_b32_clip_224", "unknown"),
    ("timm_l14_pe_core", "free"),
  ],
)
def test_terms_are_said_before_any_byte_is_asked_for(hub, capsys, name, kind):
  """These repositories are not served here, so nothing can be fetched."""
  entry = known.KNOWN[name]
  assert LICENSES[entry.license].kind == kind
  with pytest.raises(OSError, match="the server answers 404"):
    locate(name)
  said = capsys.readouterr().err
  assert f"{name}: its licence is {LICENSES[entry.license]}" in said
  page = "token (`hf auth login`, or HF_TOKEN) of an account that "
  page += "has accepted its terms at https://huggingface.co/facebook/"
  assert (
    (page in said)
    == entry.gated
    == name.startswith(("hf_b16_dinov3", "hf_b16_pixio"))
  )


def test_a_cached_repository_needs_no_network(hub, monkeypatch):
  hub.add_repository(PLAIN)
  folder = locate("hf://o/n")
  hub.pages.clear()
  assert locate("hf://o/n") == folder
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  count = len(hub.requests)
  assert locate("hf://o/n") == folder
  assert len(hub.requests) == count
  message = refusal(locate, "hf://o/other")
  assert "it is not in the cache, and HF_HUB_OFFLINE is set" in message


@pytest.mark.parametrize(
  "other", ["processor_config.json", "model.fp16.safetensors"]
)
def test_files_of_other_names_that_are_read_are_downloaded(hub, other):
  files = dict(PLAIN)
  if other.startswith("model"):
    del files["model.safetensors"]
  hub.add_repository({**files, other: BODY})
  assert names(locate("hf://o/n")) == sorted([*files, other])


@pytest.mark.parametrize("content", [{"architecture": ""}, {"text_config": {}}])
def test_both_towers_are_downloaded_where_texts_are_asked_for(hub, content):
  """timm's file is an image tower, and that of transformers has both."""
  whole = {"open_clip_model.safetensors": BODY, "tokenizer.json": b"{}"}
  config = {"config.json": json.dumps(content).encode()}
  files = {**PLAIN, **config, "open_clip_config.json": b"{}", **whole}
  hub.add_repository(files)
  image = {"config.json", "model.safetensors"}
  assert {*names(locate("hf://o/n"))} == image
  wanted = {*files}
  if "text_config" in content:
    wanted.remove("open_clip_model.safetensors")
  assert {*names(locate("hf://o/n", OF_TEXTS))} == wanted


def test_a_repository_of_an_adapter_is_named_as_one(hub):
  config = json.dumps({"base_model_name_or_path": "o/base"}).encode()
  files = {"adapter_config.json": config, "adapter_model.safetensors": BODY}
  hub.add_repository(files)
  message = refusal(load_pretrained, "hf://o/n")
  assert "is an adapter of 'o/base' that peft saved" in message


def test_only_what_is_read_is_downloaded(hub):
  others = ("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "README.md")
  others += ("training_args.bin", "model.fp16.bin", "text/model.safetensors")
  hub.add_repository(PLAIN | dict.fromkeys(others, b"?"))
  assert names(locate("hf://o/n")) == sorted(PLAIN)
  asked = {path for _, path, _ in hub.requests}
  assert not [path for path in asked if path.endswith(others)]


def test_a_tokenizer_is_downloaded_where_it_is_asked_for(hub):
  hub.add_repository({**PLAIN, "tokenizer.json": b"{}", "merges.txt": b"?"})
  assert names(locate("hf://o/n")) == sorted(PLAIN)
  folder = locate("hf://o/n", ("tokenizer.json", "spiece.model"))
  assert names(folder) == sorted([*PLAIN, "tokenizer.json"])


def test_a_repository_follows_its_branch(hub):
  hub.add_repository(PLAIN)
  locate("hf://o/n")
  newer = {**PLAIN, "model.safetensors": BODY[::-1]}
  hub.add_repository(newer, commit="a" * 40)
  folder = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY[::-1]


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", COMMIT])
def test_a_revision_is_one_part_of_the_address(hub, revision):
  quoted = revision.replace("/", "%2F")
  hub.add_repository(PLAIN, revision=quoted)
  newer = {**PLAIN, "model.safetensors": BODY[::-1]}
  hub.add_repository(newer, commit="a" * 40)
  folder = locate(f"hf://o/n@{revision}")
  assert (folder / "model.safetensors").read_bytes() == BODY
  other = locate("hf://o/n")
  assert (other / "model.safetensors").read_bytes() == BODY[::-1]


def sharded():
  shards = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
  weight_map = {"a": shards[0], "b": shards[1], "c": shards[0]}
  index = json.dumps({"weight_map": weight_map}).encode()
  files = {"config.json": CONFIG, "model.safetensors.index.json": index}
  return files | {shards[0]: BODY, shards[1]: BODY[::-1]}


def test_shards(hub):
  files = sharded()
  hub.add_repository(files)
  folder = locate("hf://o/n")
  assert names(folder) == sorted(files)
  assert {n: (folder / n).read_bytes() for n in files} == files


def test_a_shard_that_is_missing(hub):
  files = sharded()
  del files["model-00002-of-00002.safetensors"]
  hub.add_repository(files)
  message = refusal(load_pretrained, "hf://o/n")
  assert "model-00001-of-00002.safetensors" in message


def test_published_weights_load_from_a_repository(hub):
  folder = pathlib.Path(published.path("hf_vit"))
  files = ("config.json", "model.safetensors")
  hub.add_repository({name: (folder / name).read_bytes() for name in files})
  model, params = load_pretrained("hf://o/n")
  assert model.origin.source == "hf://o/n"
  published.assert_same_logits(model, params, *published.examples("hf_vit"))


def test_a_pickle_is_not_downloaded(hub, cache):
  hub.add_repository({"config.json": CONFIG, "pytorch_model.bin": BODY})
  page = hub.pages[f"/o/n/resolve/{COMMIT}/pytorch_model.bin"]
  hub.pages["/o/n/resolve/main/pytorch_model.bin"] = page
  message = refusal(locate, "hf://o/n")
  assert "has its weights only as pytorch_model.bin" in message
  assert "weights_only=True" in message
  assert [b.read_bytes() for b in blobs(cache)] == [CONFIG]


def test_a_repository_without_weights(hub):
  hub.add_repository({"config.json": CONFIG})
  none = {"X-Error-Code": "EntryNotFound"}
  path = "/o/n/resolve/main/pytorch_model.bin"
  hub.add(path, status=404, headers=none)
  assert "has no model.safetensors; choose" in refusal(locate, "hf://o/n")


@pytest.mark.parametrize(
  "status, code, words",
  [
    (404, "RepoNotFound", "the server answers 404; check the name, if it is "),
    (401, "RepoNotFound", "is private log in with `hf auth login` or set HF_T"),
    (404, "RevisionNotFound", "no such revision; check the part after the @"),
    (403, "GatedRepo", "accept its terms at http.*/o/n, then log .*HF_TOKEN"),
    (500, "", "the server answers 500; .*or try again later"),
  ],
)
def test_answers_that_are_errors(hub, cache, status, code, words):
  headers = {"X-Error-Code": code}
  hub.add("/api/models/o/n/revision/main", status=status, headers=headers)
  assert re.search(words, refusal(locate, "hf://o/n"))
  assert not blobs(cache)


def test_a_name_that_the_library_refuses(hub):
  message = refusal(locate, "hf://o/a--b")
  assert "this is not the name of a repository" in message
  assert not hub.requests


def test_a_cut_download_leaves_nothing(hub, cache):
  hub.add_repository(PLAIN)
  hub.pages[WEIGHTS].cut = 2**19
  message = refusal(locate, "hf://o/n")
  assert "the download failed or was cut (RemoteProtocolError)" in message
  assert hub.gets(WEIGHTS) == 6
  assert [b.read_bytes() for b in blobs(cache)] == [CONFIG]
  hub.pages[WEIGHTS].cut = None
  folder = locate("hf://o/n")
  assert (folder / "model.safetensors").read_bytes() == BODY


def test_a_file_of_another_size_than_promised(hub, cache):
  hub.add_repository(PLAIN)
  hub.pages[WEIGHTS].headers["X-Linked-Size"] = str(len(BODY) + 9)
  assert "try again later" in refusal(locate, "hf://o/n")
  assert [b.read_bytes() for b in blobs(cache)] == [CONFIG]


def test_no_network(hub):
  hub.shutdown()
  hub.server_close()
  assert "the host refuses the connection" in refusal(locate, "hf://o/n")


def test_the_token_goes_to_the_hub_alone(hub, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_hush")
  hub.add_repository(PLAIN)
  with serving() as cdn:
    there = cdn.add("/blob", BODY).replace("127.0.0.1", "localhost")
    headers = hub.pages[WEIGHTS].headers
    linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": len(BODY)}
    hub.add(WEIGHTS, headers=headers | linked, location=there)
    folder = locate("hf://o/n")
    assert (folder / "model.safetensors").read_bytes() == BODY
    assert cdn.gets("/blob") == 1
    sent = [key for *_, headers in cdn.requests for key in headers]
  assert "authorization" not in map(str.lower, sent)
  tokens = {h.get("authorization") for _, p, h in hub.requests if "/o/n" in p}
  assert tokens == {"Bearer hf_hush"}


def test_a_cache_that_cannot_be_written(hub, cache):
  hub.add_repository(PLAIN)
  cache.write_text("a file")
  assert "cannot write to the cache: " in refusal(locate, "hf://o/n")


def test_without_the_extra_one_line_says_so(hub, monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  message = refusal(locate, "hf://o/n")
  assert message.startswith("hf://o/n needs huggingface_hub, which is not ins")
  assert message.endswith('pip install "vit_jax[hf]"')
  assert not hub.requests


def test_weights_that_were_damaged_are_fetched_anew(hub, cache):
  files = ("config.json", "model.safetensors")
  theirs = pathlib.Path(published.path("hf_vit"))
  hub.add_repository({n: (theirs / n).read_bytes() for n in files})
  folder = locate("hf://o/n")
  with open(folder / "model.safetensors", "r+b") as file:
    file.truncate(1000)
  message = refusal(load_pretrained, "hf://o/n")
  assert message.endswith("removed; the same command fetches it anew.")
  assert names(folder) == ["config.json"]
  assert len(blobs(cache)) == 1
  load_pretrained("hf://o/n")
  assert hub.gets(WEIGHTS) == 2


def test_intact_weights_stay_though_they_cannot_be_read(hub):
  """Fetching them again would change nothing, and others may use them."""
  hub.add_repository(PLAIN)
  assert "removed" not in refusal(load_pretrained, "hf://o/n")
  assert names(locate("hf://o/n")) == sorted(PLAIN)
  assert hub.gets(WEIGHTS) == 1


def test_nothing_outside_the_cache_is_removed(hub, tmp_path):
  path = tmp_path / "model.safetensors"
  path.write_bytes(b"cut")
  assert not drop_download(path)
  assert path.exists()


def start(site, cache):
  """Starts a process with the variables that a user sets."""
  code = "from vit_jax.pretrained.locate import locate; "
  code += "print(locate('hf://o/n'))"
  environment = {
    "HF_ENDPOINT": f"{site.root}/",
    "HF_HOME": str(cache),
    "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
  }
  return subprocess.Popen(
    [sys.executable, "-c", code],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | environment,
  )


def asked(site, method, count):
  """Waits until the weights have been requested this often."""
  for _ in range(3000):
    if [r[:2] for r in site.requests].count((method, WEIGHTS)) == count:
      return
    time.sleep(0.01)
  raise AssertionError(f"the weights were not asked for: {site.requests}")


@pytest.mark.slow
def test_two_processes_download_once(site, cache):
  site.add_repository(PLAIN)
  hold = site.pages[WEIGHTS].hold = threading.Event()
  with start(site, cache) as first:
    asked(site, "GET", 1)
    with start(site, cache) as second:
      asked(site, "HEAD", 2)  # The second now waits for the first, or asks too.
      hold.set()
      outputs = [process.communicate()[0] for process in (first, second)]
  assert first.returncode == second.returncode == 0
  assert outputs[0] == outputs[1]
  folder = pathlib.Path(outputs[0].strip())
  assert cache in folder.parents
  assert (folder / "model.safetensors").read_bytes() == BODY
  assert site.gets(WEIGHTS) == 1
