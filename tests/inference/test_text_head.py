"""Zero-shot classes, against NumPy and against transformers."""

import os
import pathlib
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.image_files import plain
from tests.memory import bounded_memory
from vit_jax.inference import text_head
from vit_jax.inference.text_head import TextHead, read_text_head
from vit_jax.predict import predict_files
from vit_jax.pretrained.load import load_pretrained, load_text
from vit_jax.runtime.printable import counted

ENCODERS = pathlib.Path(__file__).parents[1] / "checkpoints" / "encoders"
CLIP = str(ENCODERS.parent / "texts" / "hf_clip")
RNG = np.random.default_rng(0)
E = RNG.normal(size=(3, 4)).astype(np.float32)
GOOD = {"names": np.array(["a", "b", "c"]), "embeddings": E}


@pytest.mark.parametrize("more", [{}, {"scale": 7.0}, {"bias": -2.0}])
def test_logits_are_scaled_cosines(tmp_path, more):
  np.savez(tmp_path / "classes.npz", **GOOD, **more)
  head = read_text_head(str(tmp_path / "classes.npz"))
  assert head.names == ("a", "b", "c")
  assert head.loss == ("sigmoid" if "bias" in more else "softmax")
  y = RNG.normal(size=(5, 4)).astype(np.float32)
  cosine = [
    [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in E] for a in y
  ]
  expected = more.get("scale", 100.0) * np.array(cosine) + more.get("bias", 0)
  np.testing.assert_allclose(head.logits(jnp.asarray(y)), expected, rtol=1e-4)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"names": np.array(["a", "b"])}, r"<U1 \(2,\), embeddings \(3, 4"),
    ({"names": np.arange(3)}, r"names is int64 \(3,\)"),
    ({"embeddings": np.zeros((3, 4))}, "and not zero"),
    ({"embeddings": np.full((3, 4), np.nan)}, "each row must be finite"),
    ({"embeddings": None}, "does not hold the arrays names .*: .*allow_pickle"),
  ],
)
def test_another_file_is_refused_in_a_line(tmp_path, changes, message):
  path = tmp_path / "classes.npz"
  np.savez(path, **(GOOD | changes))
  with pytest.raises(ValueError, match=message) as info:
    read_text_head(str(path))
  assert str(info.value).isprintable()
  path.write_bytes(b"no zip")
  with pytest.raises(ValueError, match="does not hold the arrays names"):
    read_text_head(str(path))


@pytest.mark.slow
def test_a_tower_predicts_the_nearest_text(tmp_path, capsys):
  """The texts' embeddings are those of the images themselves, shuffled."""
  tower = str(ENCODERS / "hf_clip")
  photos = []
  for name in ("one", "two", "three"):
    pixels = RNG.integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    photos.append(str(tmp_path / f"{name}.png"))
  features = tmp_path / "features.npz"
  model, _ = load_pretrained(tower)
  options = {"num_classes": 0} if model.num_classes else {}
  assert predict_files(tower, photos, features=str(features), **options) == 0
  with np.load(features) as found:
    order = [2, 0, 1]
    embeddings = 3 * found["features"][order]
  np.savez(
    tmp_path / "classes.npz",
    names=["three", "one", "two"],
    embeddings=embeddings,
    scale=1000.0,
  )
  capsys.readouterr()
  head = str(tmp_path / "classes.npz")
  assert predict_files(tower, photos, head=head, top=1, as_json=True) == 0
  lines = capsys.readouterr().out.splitlines()
  for name, line in zip(("one", "two", "three"), lines, strict=True):
    assert f'"class": "{name}"' in line
  np.savez(head, names=["a"], embeddings=np.ones((1, 7)))
  with pytest.raises(ValueError, match="--head have 7 values, and the model's"):
    predict_files(tower, photos, head=head)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_transformers_gives_the_same_logits(family):
  torch = pytest.importorskip("torch", reason="needs PyTorch")
  transformers = pytest.importorskip("transformers", reason="needs it")
  source = str(ENCODERS / f"hf_{family}_text")
  theirs = transformers.AutoModel.from_pretrained(source).eval()
  words = torch.tensor([[0, 5, 7, 1], [0, 9, 8, 1], [0, 3, 3, 1]])
  size = theirs.config.vision_config.image_size
  images = RNG.normal(size=(2, size, size, 3)).astype(np.float32)
  pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
  with torch.no_grad():
    text = theirs.get_text_features(input_ids=words)
    expected = theirs(input_ids=words, pixel_values=pixels).logits_per_image
  text = getattr(text, "pooler_output", text)
  bias = getattr(theirs, "logit_bias", None)
  head = TextHead(
    ("a", "b", "c"),
    text.numpy(),
    theirs.logit_scale.exp().item(),
    None if bias is None else bias.item(),
  )
  model, params = load_pretrained(source)
  y = model.apply({"params": params}, jnp.asarray(images))
  np.testing.assert_allclose(head.logits(y), expected, rtol=1e-4, atol=1e-4)


def test_texts_that_claim_gigabytes_are_refused(tmp_path):
  os.mkfifo(tmp_path / "fifo.npz")
  with zipfile.ZipFile(
    tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED
  ) as file:
    file.writestr("names.npy", b"")
  content = (tmp_path / "bomb.npz").read_bytes()
  at = content.index(b"PK\1\2") + 24  # What the member unpacks to.
  claim = (2**31).to_bytes(4, "little")
  (tmp_path / "bomb.npz").write_bytes(content[:at] + claim + content[at + 4 :])
  reasons = {
    "fifo.npz": "a FIFO, not",
    "bomb.npz": "it unpacks to 2,147,483,648",
  }
  for name, reason in reasons.items():
    with bounded_memory(2**24), pytest.raises(ValueError, match=reason):
      read_text_head(str(tmp_path / name))


@pytest.fixture
def classes(tmp_path):
  path = tmp_path / "classes.txt"
  path.write_text("cat\n\nred plate\n", "utf-8")
  return str(path)


@pytest.mark.parametrize(
  "given, names, are_whole",
  [
    (["cat,dog"], ["cat", "dog"], False),
    (["a red circle, the sea"], ["a red circle", "the sea"], True),
    (["A cat,dog"], ["A cat", "dog"], False),
    (["a cat, asleep", "an owl"], ["a cat, asleep", "an owl"], True),
    (["cat"], ["cat"], False),
  ],
)
def test_texts_in_the_command(given, names, are_whole):
  assert text_head.names_of(given) == (names, are_whole)
  around = [text_head.AS_IT_IS] if are_whole else ["a photo of a {}.", "{}"]
  (line,) = text_head.lines_on_texts(given, names, around)
  assert line.startswith(f"Comparing with {counted(len(names), 'text')}, ")
  assert ("as they are" in line) == are_whole
  assert ("in 'a photo of a {}.' and 1 more: " in line) != are_whole
  assert repr(names[0]) in line
  assert ("repeat --texts" in line) == (len(given) == 1)


def test_a_file_of_texts_is_read(classes):
  assert text_head.names_of([classes]) == (["cat", "red plate"], False)
  assert not text_head.lines_on_texts([classes], ["cat", "red plate"], ["{}"])


@pytest.mark.slow
def test_texts_with_commas_answer_as_those_of_a_file(tmp_path, classes, capsys):
  image = str(tmp_path / "a.png")
  plain(size=(21, 16)).save(image)
  answers = []
  for texts in (classes, "cat,red plate", ("cat", "red plate")):
    assert predict_files(CLIP, [image], as_json=True, texts=texts) == 0
    answers.append(capsys.readouterr().out)
  assert answers[0] == answers[1] == answers[2]


@pytest.mark.slow
def test_names_of_classes_answer_as_their_saved_head_does(
  tmp_path, classes, capsys
):
  out, image = str(tmp_path / "classes.npz"), str(tmp_path / "a.png")
  plain(size=(21, 16)).save(image)
  answers = []
  for given in (dict(texts=classes, save_head=out), dict(head=out)):
    assert predict_files(CLIP, [image], as_json=True, **given) == 0
    answers.append(capsys.readouterr().out)
  assert answers[0] == answers[1] and "red plate" in answers[0]
  head = read_text_head(out)
  expected = load_text(CLIP).head(["cat", "red plate"])
  np.testing.assert_allclose(head.embeddings, expected.embeddings, rtol=1e-6)
  assert head.scale == pytest.approx(expected.scale)
  assert head.names == ("cat", "red plate") and head.bias is None


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(head="h.npz", texts="t.txt"), "both name the classes: drop one"),
    (dict(templates=("a {}",)), "--template needs --texts"),
    (dict(save_head="h.npz"), "--save_head needs --texts"),
    (dict(texts="{empty}"), "names no class: write one in each line"),
    (dict(texts="{twice}"), "names cat 2 times"),
    (dict(texts="{bytes}"), "is not UTF-8 text"),
    (dict(texts=" , "), "--texts names no class: give them with commas"),
    (dict(texts=("a cat", "a cat")), "--texts names a cat 2 times"),
  ],
)
def test_classes_that_cannot_be_are_refused(tmp_path, options, message):
  plain(size=(21, 16)).save(tmp_path / "a.png")
  (tmp_path / "empty").write_text(" \n")
  (tmp_path / "twice").write_text("cat\ndog\n cat\n")
  (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
  if str(options.get("texts", "")).startswith("{"):
    options = options | {"texts": str(tmp_path / options["texts"][1:-1])}
  with pytest.raises(ValueError, match=message) as info:
    predict_files(CLIP, [str(tmp_path / "a.png")], **options)
  assert "\n" not in str(info.value)
