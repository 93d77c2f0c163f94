"""Converting checkpoints: bits, logits, folders and the command."""

import base64
import errno
import json
import os
import pathlib
import re

import numpy as np
import pytest

import vit_jax
from tests import encoders, published
from tests.commands import run
from tests.rows import first_fast, some_slow
from tests.server import COMMIT, refusal
from vit_jax import load_pretrained
from vit_jax.pretrained.arrays import open_arrays
from vit_jax.pretrained.convert import convert
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.save import TARGETS

# (fixture, format to write, published file to compare with).
SAME = [
  ("google_vit.npz", "google", "google_vit.npz"),
  ("google_vit_linen.npz", "google", None),
  ("google_vit_prelogits.npz", "google", "google_vit_prelogits.npz"),
  ("google_hybrid.npz", "google", "google_hybrid.npz"),
  ("big_vision_tok.npz", "big_vision", "big_vision_tok.npz"),
  ("big_vision_gap.npz", "big_vision", "big_vision_gap.npz"),
  ("tips_vit.npz", "tips", "tips_vit.npz"),
  ("hf_vit", "hf", "hf_vit/model.safetensors"),
  ("timm_vit.safetensors", "timm", "timm_vit.safetensors"),
  ("torchvision_vit.safetensors", "torchvision", "torchvision_vit.safetensors"),
]


# One of each format is fast.
@pytest.mark.parametrize(
  "name, to, reference",
  first_fast(SAME, column=1),
)
def test_the_same_format_comes_back_bit_by_bit(tmp_path, name, to, reference):
  folder = published.converted(name, to, tmp_path / "out")
  again = open_checkpoint(
    str(folder / TARGETS[to].file), **published.CHECKPOINTS[name]
  )
  first = open_checkpoint(published.path(name), **published.CHECKPOINTS[name])
  before, after = dict(first.read()), dict(again.read())
  assert before.keys() == after.keys()
  for path, array in before.items():
    np.testing.assert_array_equal(array, after[path])
  if reference is None:
    return
  original = pathlib.Path(published.path(reference))
  with open_arrays(original) as expected:
    with open_arrays(folder / TARGETS[to].file) as found:
      assert dict(found.shapes) == dict(expected.shapes)
      for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])


EPSILON, EXACT = "layer_norm_epsilon=1e-12", "gelu='exact'"
SCALE, GATED, CLASSLESS = "layer_scale=", "gated_mlp=True", "class_token=False"
NO_POOL = "timm cannot pool both the class token"
LAYER = "it has a representation layer"
MAP, GAP = "pooling='map'", "pooling='gap'"
HYBRID = "it is a hybrid, and the format has no ResNet before the patches"
# Encoder -> the first thing in it that a format cannot hold, "" for nothing: of
# google, big_vision and torchvision (one text if it is the same for all), and
# of hf or timm, the one that is not its own.
REASONS = {
  "hf_beit": (SCALE, EPSILON),
  "hf_clip": ("norm_pre=True", ""),
  "hf_clip_head": ("norm_pre=True", "pool_unnormed=True"),
  "hf_clip_text": ("norm_pre=True", ""),
  "hf_deit": ("distilled=True", EPSILON),
  "hf_deit_head": ("registers=1", EPSILON),
  "hf_deit_pooler": ("registers=1", LAYER),
  "hf_dinov2": (SCALE, NO_POOL),
  "hf_dinov2_giant": (GATED, ""),
  "hf_dinov2_reg": (SCALE, NO_POOL),
  "hf_dinov3": (SCALE, ""),
  "hf_dinov3_plus": (GATED, ""),
  "hf_dinov3_gates": ("branch_bias=False", "none of timm's models has these"),
  "hf_mae": ((EXACT, EXACT, EPSILON), EPSILON),
  "hf_mae_decoder": ((EXACT, EXACT, EPSILON), EPSILON),
  "hf_siglip": ((MAP, "", MAP), ""),
  "hf_siglip_bare": (("", "", GAP), ""),
  "hf_siglip_head": (("", "", GAP), ""),
  "hf_siglip_text": ((MAP, "", MAP), ""),
  "hf_aimv2": ("branch_bias=False", ""),
  "hf_aimv2_head": ("branch_bias=False", "timm has no attention pooling with"),
  "hf_ijepa": ((EXACT, EXACT, GAP), EPSILON),
  "hf_internvl": (SCALE, ""),
  "hf_internvl_rms": (SCALE, "qk_norm_whole=True would become False"),
  "hf_internvl_token": (SCALE, ""),
  "hf_metaclip2": ("norm_pre=True", ""),
  "hf_mlcd": ("norm_pre=True", "timm has no place for x_class_angles"),
  "hf_mim": ((EXACT, EXACT, EPSILON), EPSILON),
  "hf_msn": ((EXACT, EXACT, ""), ""),
  "hf_pixio": ("registers=2", "timm cannot average the tokens before the pat"),
  "hf_radio": (SCALE, "pooled_tokens=(0, 2) would become (0,)"),
  "hf_tips": (SCALE, ""),
  "hf_tips_giant": (GATED, ""),
  "hf_tips_text": (SCALE, ""),
  "hf_vit_pooler": ((EXACT, EXACT, EPSILON), EPSILON),
  "hf_vit_unbiased": ("qkv_bias=''", EPSILON),
  "timm_beit": (SCALE, ""),
  "timm_beit3": ("norm_inner_mlp=True", "block_0/mlp/norm_inner/bias"),
  "timm_aimv2": ("branch_bias=False", "patches/norm/scale"),
  "timm_clip": ("norm_pre=True", "pool_unnormed=False would become True"),
  "timm_deit": ("distilled=True", ""),
  "timm_deit3": (SCALE, ""),
  "timm_dinov2_giant": (GATED, "mlp_size=85 does not give a whole mlp_ratio"),
  "timm_dinov2_reg": (SCALE, ""),
  "timm_dinov3": (SCALE, GAP),
  "timm_dinov3_bias": (SCALE, GAP),
  "timm_dinov3_plus": (GATED, "it has no place for head/bias"),
  "timm_eva": ("norm_pooled=True", ""),
  "timm_eva02": (GATED, "block_0/mlp/norm_inner/bias"),
  "timm_eva02_tiny": (GATED, "head/bias, head/kernel, position/E_pos"),
  "timm_fc_norm": ("norm_pooled=True", "norm_pooled=True"),
  "timm_flexi": ((EXACT, EXACT, ""), ""),
  "timm_gap": (CLASSLESS, CLASSLESS),
  "timm_gap_placed": (CLASSLESS, CLASSLESS),
  "timm_gap_rope": (CLASSLESS, "it has no place for head/bias"),
  "timm_hybrid_r26": ((EXACT, EXACT, HYBRID), HYBRID),
  "timm_hybrid_r50": ((EXACT, EXACT, HYBRID), HYBRID),
  "timm_intern": (SCALE, "norm_final=False would become True"),
  "timm_radio": (SCALE, "norm_final=False would become True"),
  "timm_rms": (CLASSLESS, CLASSLESS),
  "timm_lingbot": (SCALE, "it has no place for head/bias"),
  "timm_mae": ((EXACT, EXACT, ""), ""),
  "timm_map_all": (CLASSLESS, "block_0/scale_mlp, block_0/scale_msa, regis"),
  "timm_map_reg": (CLASSLESS, "registers"),
  "timm_parallel": (SCALE, "block_0/side_1/mlp/contract/bias"),
  "timm_pe": ("norm_pre=True", "norm_pre/bias, norm_pre/scale, x_class"),
  "timm_pe_lang": (SCALE, "norm_pre/bias, norm_pre/scale"),
  "timm_post_norm": ("norm_after=True", "norm_after=True"),
  "timm_qk_norm": ("qk_norm=True", "it has no place for block_0/msa/norm_key"),
  "timm_relpos_shared": (CLASSLESS, "it has no place for relative/"),
  "timm_relpos_table": (SCALE, "qkv_bias"),
  "timm_rope": (SCALE, "qkv_bias='qkv' would become 'qv'"),
  "timm_rope_mixed": (SCALE, "block_0/frequencies"),
  "timm_rpn": (CLASSLESS, "norm_after=True would become False"),
  "timm_test_vit": ((EXACT, EXACT, ""), ""),
  "timm_siglip": ((MAP, EXACT, MAP), ""),
  "timm_siglip_gap": ((EXACT, EXACT, GAP), ""),
  "timm_siglip_head": ((MAP, EXACT, MAP), MAP),
}
# Encoders that are written as another of transformers' classes, whose arrays
# have other names and which answers the same.
RENAMED = {
  "hf_ijepa": "SiglipForImageClassification",
  "hf_internvl_token": "Dinov2Model",
}
FAST = ("hf_clip_head",)


def test_every_encoder_goes_through_the_contract():
  """Resized, written back, in other formats, and in its own library."""
  assert {*REASONS} == {*encoders.NAMES}


@pytest.mark.parametrize("name", some_slow(REASONS, FAST))
def test_an_encoder_is_the_publishers_and_goes_back(tmp_path, name):
  """At every size; its own format then has the same arrays, bit by bit."""
  fixed = name.startswith("hf_aimv2")  # transformers takes one size.
  for size in ("32x32", *([] if fixed else ["24x40", "48x48"])):
    images, _, answer = encoders.expected(name, size)
    model, params = at_size(encoders.path(name), images.shape[1:3])
    found = encoders.computed(model, params, images)[1]
    encoders.assert_close(found, answer, 1e-5)
  own = name.split("_")[0]
  convert(encoders.path(name), str(tmp_path / "out"), own)
  if name in RENAMED:
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [RENAMED[name]]
    images, _, answer = encoders.expected(name, "32x32")
    model, params = load_pretrained(str(tmp_path / "out"))
    found = encoders.computed(model, params, images)[1]
    encoders.assert_close(found, answer, 1e-5)
    return
  before, after = map(arrays_of, (encoders.path(name), tmp_path / "out"))
  assert before.keys() == after.keys()
  for key, array in before.items():
    np.testing.assert_array_equal(after[key], array)
  again = open_checkpoint(str(tmp_path / "out")).model
  first = open_checkpoint(encoders.path(name)).model
  scaled = getattr(first, "layer_scale", None) is not None
  free = dict(origin=None, **{"layer_scale": 1.0} if scaled else {})
  assert again.clone(**free) == first.clone(**free)


def at_size(path, sides):
  """A model, used for images of a height and a width."""
  if open_checkpoint(path).model.resizes_positions:
    return load_pretrained(path)
  return load_pretrained(path, image_size=sides)


def arrays_of(folder):
  """The arrays of an image tower by name, without what is not read."""
  with open_arrays(pathlib.Path(folder) / "model.safetensors") as arrays:
    found = {name: np.array(arrays[name]) for name in arrays.shapes}
  unread = ("text_", "logit_", "decoder.", "temperature")
  if "classifier.weight" in found:
    unread += ("vision_model.head.",)
  # Published files have them, or do not.
  bases = r"^(vit|deit|vision_model|vision_encoder)\."
  return {
    re.sub(bases, "", name): array
    for name, array in found.items()
    if not name.startswith(unread) and not name.endswith("mask_token")
  }


@pytest.mark.parametrize("name", some_slow(REASONS, FAST))
def test_every_other_format_takes_an_encoder_or_says_why(tmp_path, name):
  """With the first thing that it cannot hold, and never another format's."""
  papers, other = REASONS[name]
  papers = (papers,) * 3 if isinstance(papers, str) else papers
  reasons = dict(
    zip(("google", "big_vision", "torchvision"), papers, strict=True)
  )
  reasons["timm" if name.startswith("hf") else "hf"] = other
  images, _, _ = encoders.expected(name, "32x32")
  for to, reason in reasons.items():
    options = {}
    if reason:
      what = r"(as \w+, )?(it has no place for )?" + re.escape(reason)
      with pytest.raises(ValueError, match=f"^{to} .*: {what}") as info:
        convert(encoders.path(name), str(tmp_path / to), to)
      assert "\n" not in str(info.value) and not (tmp_path / to).exists()
    if reason == EPSILON and "pooler" not in name:
      options = {"layer_norm_epsilon": 1e-6}
    if reason and not options:
      continue
    convert(encoders.path(name), str(tmp_path / to), to, **options)
    file = tmp_path / to / ("" if to in ("hf", "timm") else TARGETS[to].file)
    heads = {} if to in ("hf", "timm") else {"num_heads": 2}
    before, after = (
      encoders.computed(*load_pretrained(str(path), **given), images)[1]
      for path, given in ((encoders.path(name), options), (file, heads))
    )
    encoders.assert_close(after, before, 1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REASONS)
def test_its_own_library_loads_every_array_and_no_other(tmp_path, name):
  """Nothing is left to chance, and the answer is the publisher's."""
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  convert(encoders.path(name), str(tmp_path), own := name.split("_")[0])
  from tests.checkpoints.encoders import make

  library = pytest.importorskip({"hf": "transformers"}.get(own, own))
  if own == "timm":  # It refuses missing and unexpected arrays itself.
    model = library.create_model(f"local-dir:{tmp_path}", pretrained=True)
  else:
    config = json.loads((tmp_path / "config.json").read_text())
    kind = getattr(library, config["architectures"][0])
    model, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
  compute = (
    make.answers_of_timm if own == "timm" else make.answers_of_huggingface
  )
  images, _, answer = encoders.expected(name, "32x32")
  with torch.no_grad():
    x = torch.from_numpy(images.transpose(0, 3, 1, 2))
    found = compute(model.eval(), x)[1]
  encoders.assert_close(found.numpy(), answer, 1e-5)


SLOW = {
  "google_vit.npz": ("timm", "big_vision"),
  "google_vit_linen.npz": ("hf",),
  "google_vit_prelogits.npz": ("big_vision",),
  "big_vision_tok.npz": ("google", "hf"),
  "timm_vit.safetensors": ("hf", "torchvision"),
  "torchvision_vit.safetensors": ("timm", "hf"),
}


@pytest.mark.parametrize(
  "name, to",
  [
    ("google_vit.npz", "hf"),
    ("big_vision_tok.npz", "timm"),
    *(
      pytest.param(name, to, marks=pytest.mark.slow)
      for name, formats in SLOW.items()
      for to in formats
    ),
  ],
)
def test_another_format_gives_the_same_logits(tmp_path, name, to):
  folder = published.converted(name, to, tmp_path / "out")
  overrides = {"num_heads": 3} if to == "torchvision" else {}
  model, params = load_pretrained(
    str(folder) if to in ("hf", "timm") else str(folder / TARGETS[to].file),
    **overrides,
  )
  published.assert_same_logits(model, params, *published.examples(name))


def test_an_unknown_format_is_refused_before_the_source_is_read(tmp_path):
  message = "format 'keras' is unknown; choose one of google, big_vision, hf"
  with pytest.raises(ValueError, match=message):
    convert("no checkpoint", str(tmp_path / "out"), "keras")


def test_a_folder_named_as_an_onnx_file_is_said_to_be_for_export(tmp_path):
  with pytest.raises(ValueError, match="x.onnx': For ONNX, .* export SOURCE"):
    convert(published.path("google_vit.npz"), str(tmp_path / "x.onnx"), "hf")


@pytest.mark.parametrize("to", ["pytorch", "transformers"])
def test_the_formats_of_pytorch_are_named(tmp_path, to):
  with pytest.raises(
    ValueError, match=r"libraries read hf \(transformers\), ti"
  ):
    convert("no.npz", str(tmp_path), to)


def test_what_was_loaded_is_written_as_its_source_is(tmp_path):
  path = published.path("google_vit.npz")
  loaded = load_pretrained(path)
  vit_jax.convert(path, tmp_path / "from_path", to="hf")
  vit_jax.convert(loaded, tmp_path / "from_loaded", to="hf")
  for file in (tmp_path / "from_path").iterdir():
    other = (tmp_path / "from_loaded" / file.name).read_bytes()
    theirs = file.read_bytes().replace(b"from_path", b"from_loaded")
    assert other == theirs, file.name
  with pytest.raises(ValueError, match="gelu: the model is loaded already"):
    vit_jax.convert(loaded, tmp_path / "other", to="hf", gelu="exact")
  with pytest.raises(ValueError, match="folder to write is missing"):
    vit_jax.convert(loaded, to="hf")
  with pytest.raises(ValueError, match="For ONNX, there is `vit_jax export"):
    vit_jax.convert(loaded, to="onnx")


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
  (tmp_path / "kept").write_text("mine")
  with pytest.raises(ValueError, match="exists and is not empty"):
    published.converted("google_vit.npz", "hf", tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_the_folder_one_stands_in_is_filled(tmp_path, monkeypatch):
  folder = tmp_path / "empty"
  folder.mkdir()
  monkeypatch.chdir(folder)
  published.converted("google_vit.npz", "big_vision", ".")
  names = ["README.md", "model.npz", "preprocessor_config.json"]
  assert sorted(os.listdir()) == names
  assert "# empty\n" in (folder / "README.md").read_text()
  assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize(
  "folder, message",
  [
    ("notes.txt/x", "notes.txt/x' cannot be written .Not a directory.: choose"),
    ("notes.txt/x/y", "notes.txt/x/y' cannot be written .Not a directory."),
    ("/proc/x", "'/proc/x' cannot be written "),
    ("gs://bucket/x", "gs://bucket/x is an address, and only local files"),
    ("", "the path to write to is empty: give a path"),
  ],
)
def test_a_folder_that_cannot_be_written_is_named(
  tmp_path, monkeypatch, folder, message
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises((ValueError, OSError), match=message):
    published.converted("google_vit.npz", "big_vision", folder)
  assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_is_said_of_the_folder(tmp_path, monkeypatch):
  def fail(_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "fsync", fail)
  with pytest.raises(OSError, match="out' cannot be written .No space left"):
    published.converted("google_vit.npz", "big_vision", tmp_path / "out")
  assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  ["google_vit.npz", "big_vision_tok.npz", "torchvision_vit.safetensors"],
)
def test_transformers_loads_it_to_the_same_logits(tmp_path, name):
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  transformers = pytest.importorskip("transformers", reason="needs it")
  folder = published.converted(name, "hf", tmp_path / "out")
  model, report = transformers.ViTForImageClassification.from_pretrained(
    folder, output_loading_info=True
  )
  assert not any(report.values())
  images, expected = published.examples(name)
  with torch.no_grad():
    logits = model(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
  difference = np.abs(logits - expected).max()
  assert difference <= 1e-4 * np.abs(expected).max()


@pytest.mark.slow
def test_the_command(tmp_path):
  path = published.path("google_vit.npz")
  done = run("vit_jax.convert", path, str(tmp_path / "out"), "--to", "hf")
  assert (done.returncode, done.stderr) == (0, "")
  assert "ViTForImageClassification.from_pretrained" in done.stdout
  listed = run("vit_jax.convert", "--list")
  assert listed.returncode == 0
  assert any(row.startswith("b16_augreg ") for row in listed.stdout.split("\n"))
  refused = run(
    "vit_jax.convert", path, str(tmp_path / "other"), "--to", "torchvision"
  )
  assert refused.returncode == 2
  assert refused.stderr.startswith("error: torchvision cannot express this")
  assert refused.stderr.count("\n") == 1
  assert [path.name for path in tmp_path.iterdir()] == ["out"]
  for to, message in {
    "onnx": "For ONNX, there is `vit_jax export SOURCE model.onnx`.",
    "hf": "error: the folder to write is missing: give a source",
  }.items():
    assert message in run("vit_jax.convert", path, "--to", to).stderr
  both = run("vit_jax.convert", "--list", path)
  assert both.returncode == 2 and both.stderr.count("\n") == 1
  assert "--list lists the checkpoints whose names match" in both.stderr
  few = run("vit_jax.convert", "--list", "b8*").stdout.splitlines()
  assert [row.split()[0] for row in few[1:]] == [
    "b8_augreg",
    "b8_augreg_i1k_224",
  ]
  bare = run("vit_jax.convert", path)
  assert bare.returncode == 2 and bare.stderr.count("\n") == 1


def add_upload(hub, files):
  """Answers an upload to o/n as Hugging Face does for small files."""

  def page(path, content):
    hub.add(path, json.dumps(content).encode())

  page("/api/repos/create", {"url": f"{hub.root}/o/n"})
  page("/api/validate-yaml", {"errors": [], "warnings": []})
  modes = [
    {"path": f, "uploadMode": "regular", "shouldIgnore": False} for f in files
  ]
  page("/api/models/o/n/preupload/main", {"files": modes})
  commit = {"commitUrl": f"{hub.root}/o/n/commit/{COMMIT}", "commitOid": COMMIT}
  page("/api/models/o/n/commit/main", commit)


def pushed(hub):
  """The files of the one commit that the server has got."""
  (body,) = hub.posts["/api/models/o/n/commit/main"]
  lines = [json.loads(line) for line in body.splitlines()]
  return {
    line["value"]["path"]: base64.b64decode(line["value"]["content"])
    for line in lines
    if line["key"] == "file"
  }


def test_a_conversion_is_pushed_with_its_card(hub, tmp_path, capsys):
  written = ("config.json", "preprocessor_config.json", "README.md")
  written += ("model.safetensors",)
  add_upload(hub, written)
  source = published.path("google_vit.npz")
  folder = tmp_path / "out"
  convert(source, str(folder), "hf", push="o/n", license="apache-2.0")
  found = pushed(hub)
  assert sorted(found) == sorted(written)
  for name, content in found.items():
    assert content == (folder / name).read_bytes()
  card = found["README.md"].decode()
  assert '\nlicense: "apache-2.0"\n---\n' in card
  assert str(tmp_path) not in card and "`google_vit.npz`" in card
  out = capsys.readouterr().out
  assert f"Uploaded it as {hub.root}/o/n/commit/{COMMIT}" in out


@pytest.mark.parametrize(
  "options, message",
  [
    ({"push": "o/n"}, "needs a licence, and the source's is not known"),
    ({"push": "n", "license": "mit"}, "--push='n' names no repository"),
    ({"push": "o/n@main", "license": "mit"}, "names no repository; write ow"),
  ],
)
def test_nothing_is_written_for_a_push_that_cannot_be(
  hub, tmp_path, options, message
):
  source = published.path("google_vit.npz")
  with pytest.raises(ValueError, match=message):
    convert(source, str(tmp_path / "out"), "hf", **options)
  assert not [*tmp_path.glob("out*")] and not hub.requests


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refused_push_is_one_line_and_keeps_the_folder(hub, tmp_path, status):
  add_upload(hub, ["README.md"])
  hub.add("/api/repos/create", b"{}", status=status)
  folder = tmp_path / "out"
  message = refusal(
    lambda source: convert(
      source, str(folder), "hf", push="o/n", license="mit"
    ),
    published.path("google_vit.npz"),
  )
  assert f"o/n is not uploaded: the server answers {status}" in message
  assert message.endswith(f"What was written stays in {folder}.")
  assert (folder / "model.safetensors").exists()
