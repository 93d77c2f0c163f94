"""What a path is, by what is there."""

import pytest

from tests.image_files import GOOD
from vit_jax.data.reading import recognise
from vit_jax.data.reading.image_folder import ImageFolder
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


def test_a_run_is_not_taken_for_class_folders(tmp_path):
  """Advice to fill or remove its folders would cost the checkpoints."""
  run = tmp_path / "digits"
  (run / "checkpoints" / "2247").mkdir(parents=True)
  (run / "tensorboard").mkdir()
  for opened in (place_of, lambda root: ImageFolder(root, "train", 0.2)):
    with pytest.raises(ValueError, match=f"--workdir {run} ") as caught:
      opened(str(run))
    assert "is the folder of a run, not of images" in str(caught.value)
    assert "remove" not in str(caught.value)


def test_a_class_may_be_called_checkpoints(tmp_path):
  (tmp_path / "checkpoints" / "1").mkdir(parents=True)
  (tmp_path / "checkpoints" / "1" / "a.png").write_bytes(GOOD)
  place = place_of(str(tmp_path))
  assert place and place.key == "root"
