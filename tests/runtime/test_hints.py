"""What is meant by a path or a name that does not exist."""

import os

import pytest

from vit_jax.runtime import hints


@pytest.mark.parametrize(
  "typed, meant",
  [
    ("nope.jpg", []),  # Only its ending is like that of another.
    ("cats.jpg", ["cat.jpg"]),
    ("cat.jpeg", ["cat.jpg"]),
    ("cat.png", ["cat.jpg"]),
    ("my-photos/", ["my_photos"]),
    ("picture", ["picture.jpg"]),
  ],
)
def test_a_path_is_near_by_its_name_not_its_ending(
  tmp_path, monkeypatch, typed, meant
):
  monkeypatch.chdir(tmp_path)
  for name in ("cat.jpg", "picture.jpg", "my_photos"):
    (tmp_path / name).touch()
  assert hints.beside(typed) == meant


@hints.accepts("f(1, top=3)", same={"k": "top"}, elsewhere={"texts": "-t"})
def _f(x, *, top=3):
  return x, top


def test_arguments_are_known_by_their_names_elsewhere():
  assert _f(1, k=5) == _f(1, top=5) == (1, 5)


@pytest.mark.parametrize(
  "keywords, said",
  [
    ({}, "missing a required argument: 'x'; as in f(1, top=3)"),
    ({"x": 1, "text": 2}, "argument 'text'; did you mean -t?"),
    ({"x": 1, "topp": 2}, "argument 'topp'; did you mean top?"),
    ({"x": 1, "zzzzzz": 2}, "argument 'zzzzzz'; as in f(1, top=3)"),
    ({"x": 1, "k": 2, "top": 2}, "top is given twice: leave k out."),
  ],
)
def test_a_wrong_argument_names_the_right_one(keywords, said):
  with pytest.raises(TypeError) as caught:
    _f(**keywords)
  assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
  "path, said",
  [
    ("a.json", "it is a file."),
    ("photos", "it is a folder."),
    ("pipe", "it is no regular file."),
    ("link", "it is a link to 'gone', which is not there."),
  ],
)
def test_a_path_that_is_there_is_never_meant_by_itself(tmp_path, path, said):
  (tmp_path / "a.json").touch()
  (tmp_path / "a.jsonl").touch()
  (tmp_path / "photos").mkdir()
  os.mkfifo(tmp_path / "pipe")
  (tmp_path / "link").symlink_to("gone")
  path = str(tmp_path / path)
  assert path not in hints.beside(path)
  assert hints.of_path(path) == said
