"""Zero-shot classes from a model of images and text, by the commands."""

import numpy as np
import pytest

from tests.image_files import plain
from tests.pretrained.test_text import FOLDER
from vit_jax.embed import embed_texts
from vit_jax.inference.text_head import read_text_head
from vit_jax.predict import predict_files
from vit_jax.pretrained.text import load_text

CLIP = str(FOLDER / "hf_clip")


@pytest.fixture
def classes(tmp_path):
  path = tmp_path / "classes.txt"
  path.write_text("cat\n\nred plate\n", "utf-8")
  return str(path)


def test_a_file_of_texts_answers_as_the_texts_do(tmp_path, classes, capsys):
  out, image = str(tmp_path / "classes.npz"), str(tmp_path / "a.png")
  plain(size=(21, 16)).save(image)
  embed_texts(CLIP, [], out=out, texts=classes)
  assert "Wrote 2 texts of 12 values" in capsys.readouterr().out
  head = read_text_head(out)
  expected = load_text(CLIP).head(["cat", "red plate"])
  np.testing.assert_allclose(head.embeddings, expected.embeddings, rtol=1e-6)
  assert head.scale == pytest.approx(expected.scale)
  assert head.names == ("cat", "red plate") and head.bias is None
  answers = []
  for given in (dict(head=out), dict(texts=classes)):
    assert predict_files(CLIP, [image], as_json=True, **given) == 0
    answers.append(capsys.readouterr().out)
  assert answers[0] == answers[1] and "red plate" in answers[0]


def test_texts_of_arguments_are_taken_as_they_are(tmp_path):
  out = str(tmp_path / "two.npz")
  embed_texts(CLIP, ["a cat", "a dog"], out=out)
  found = read_text_head(out).embeddings
  each = load_text(CLIP).embed(["a cat", "a dog"])
  each /= np.linalg.norm(each, axis=1, keepdims=True)
  np.testing.assert_allclose(found, each, atol=1e-6)


@pytest.mark.parametrize(
  "names, options, message",
  [
    ([], {}, "give texts, as in .* or --texts=FILE with the name"),
    (["a"], dict(texts="c.txt"), "--texts=FILE .* instead"),
    (["a"], dict(templates=("a {}",)), "--template goes around the names"),
    ([], dict(texts="{empty}"), "names no class: write one in each line"),
    ([], dict(texts="{twice}"), "names cat 2 times"),
    ([], dict(texts="{bytes}"), "is not UTF-8 text"),
  ],
)
def test_bad_input_is_one_line(tmp_path, names, options, message):
  (tmp_path / "empty").write_text(" \n")
  (tmp_path / "twice").write_text("cat\ndog\n cat\n")
  (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
  if str(options.get("texts", "")).startswith("{"):
    options = options | {"texts": str(tmp_path / options["texts"][1:-1])}
  with pytest.raises(ValueError, match=message) as info:
    embed_texts(CLIP, names, out=str(tmp_path / "o.npz"), **options)
  assert "\n" not in str(info.value) and not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(head="h.npz", texts="t.txt"), "both name the classes: drop one"),
    (dict(templates=("a {}",)), "--template needs --texts"),
  ],
)
def test_predict_takes_one_kind_of_classes(tmp_path, options, message):
  plain(size=(21, 16)).save(tmp_path / "a.png")
  with pytest.raises(ValueError, match=message):
    predict_files(CLIP, [str(tmp_path / "a.png")], **options)
