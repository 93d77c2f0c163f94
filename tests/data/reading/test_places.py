"""What a path is, by what is there."""

import pytest

from tests.image_files import GOOD
from vit_jax.data.reading import recognise
from vit_jax.data.reading.places import place_of


@pytest.mark.parametrize(
  "name, content, key",
  [
    ("photos/a.png", GOOD, "root"),
    ("photos/dataset_info.json", b"{}", "dir"),
    ("photos/l.CSV", b"file,label", "root"),
    ("photos.csv/a.png", GOOD, "root"),
    ("l.CSV", b"file,label", "labels_file"),
    ("l.jsonl", b"", "labels_file"),
    ("l.py", b"", None),
    ("elsewhere/l.csv", b"", None),
  ],
)
def test_a_path_is_told_by_what_is_there(tmp_path, name, content, key):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_bytes(content)
  asked = tmp_path / name.split("/")[0]
  if name.startswith("elsewhere"):
    asked = tmp_path / "l.csv"
  place = place_of(str(asked))
  assert (place and place.key) == key
  if key == "dir":
    assert recognise.recognise_path(str(asked)) is None
