"""What is meant by a path or a name that does not exist."""

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
