"""Similar images: the page, the table, and vectors that are kept."""

import csv
import os

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import published
from tests.data.pictures import noise, scene
from tests.pretrained.test_text import FOLDER as TEXTS
from vit_jax.inference.predictor import image_features
from vit_jax.predict import mark_files
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.report import similar_images
from vit_jax.report.similar_images import find_similar

MODEL = published.path("google_vit.npz")


@pytest.fixture
def photos(tmp_path):
  """Seven pictures; one is in both splits, compressed anew and smaller."""
  root = tmp_path / "photos"
  for name in ("train", "test"):
    (root / name).mkdir(parents=True)
  for number in range(3):
    picture = noise(40 + number, 60)
    Image.fromarray(picture).save(root / "train" / f"noise_{number}.png")
  whole = Image.fromarray(scene(96, 128))
  whole.save(root / "train" / "scene.png")
  whole.save(root / "test" / "scene.jpg", quality=80)
  whole.resize((96, 72)).save(root / "test" / "small.png")
  Image.new("RGB", (30, 50), (200, 30, 30)).save(root / "test" / "red.png")
  return root


def table(folder):
  with (folder / "similar.csv").open(newline="", encoding="utf-8") as file:
    return [*csv.DictReader(file)]


@pytest.mark.slow
def test_neighbours_and_near_duplicates_across_splits(photos, tmp_path, capsys):
  out = tmp_path / "found"
  assert find_similar(MODEL, [str(photos)], out=str(out)) == 0
  rows = {row["file"].replace(os.sep, "/"): row for row in table(out)}
  assert len(rows) == 7
  group = {name for name, row in rows.items() if row["duplicates"] == "1"}
  assert group == {"train/scene.png", "test/scene.jpg", "test/small.png"}
  assert {row["duplicates"] for row in rows.values()} == {"", "1"}
  assert rows["test/red.png"]["split"] == "test"

  # The nearest by the features that the library gives, in NumPy.
  loaded = open_checkpoint(MODEL, hold=Loaded.read_params)
  names = [*rows]
  y = image_features(
    loaded.model,
    loaded.params,
    [str(photos / name) for name in names],
    preprocessing=loaded.preprocessing,
  ).astype(np.float64)
  y /= np.linalg.norm(y, axis=1, keepdims=True)
  cosines = y @ y.T
  np.fill_diagonal(cosines, -1)
  for number, name in enumerate(names):
    nearest = rows[name]["nearest_1"].replace(os.sep, "/")
    found = cosines[number, names.index(nearest)]
    assert found == pytest.approx(cosines[number].max(), abs=1e-6)
    assert float(rows[name]["cosine_1"]) == pytest.approx(found, abs=2e-6)

  html = (out / "index.html").read_text("utf-8")
  assert "across splits" in html and "http" not in html.replace(
    "http-equiv", ""
  )
  printed = capsys.readouterr().out
  assert "computing 7." in printed
  assert "1 group of near-duplicates (3 images), 1 of them across" in printed


@pytest.mark.slow
def test_only_new_and_changed_images_are_computed(photos, tmp_path, capsys):
  options = dict(out=str(tmp_path / "found"), batch_size=3)
  find_similar(MODEL, [str(photos)], **options)
  before = table(tmp_path / "found")
  Image.new("RGB", (30, 50), (20, 30, 130)).save(photos / "test" / "red.png")
  Image.new("RGB", (9, 50), (20, 130, 30)).save(photos / "test" / "green.png")
  capsys.readouterr()
  find_similar(MODEL, [str(photos)], **options)
  assert "6 of 8 vectors are kept" in capsys.readouterr().out
  again = table(tmp_path / "found")
  find_similar(MODEL, [str(photos)], **options)
  assert "8 of 8 vectors are kept" in capsys.readouterr().out
  assert table(tmp_path / "found") == again
  scenes = [
    [row["cosine_1"] for row in rows if "scene" in row["file"]]
    for rows in (before, again)
  ]
  assert scenes[0] == scenes[1]
  with pytest.raises(
    ValueError, match="vectors of another model, size or pool"
  ):
    find_similar(published.path("big_vision_tok.npz"), [str(photos)], **options)


def test_a_query_finds_its_nearest_but_not_itself(photos, tmp_path, capsys):
  query = str(photos / "train" / "scene.png")
  find_similar(
    MODEL,
    [str(photos)],
    out=str(tmp_path / "found"),
    query=[query],
    neighbours=3,
  )
  rows = table(tmp_path / "found")
  assert [row["rank"] for row in rows] == ["1", "2", "3"]
  files = [row["file"].replace(os.sep, "/") for row in rows]
  assert {*files[:2]} == {"test/scene.jpg", "test/small.png"}
  assert "train/scene.png" not in files
  assert "The nearest of 1 query among 7 images" in capsys.readouterr().out


def test_a_folder_as_a_query_is_each_of_its_images(photos, tmp_path):
  folder = str(photos / "test")
  find_similar(
    MODEL, [str(photos)], out=str(tmp_path / "found"), query=[folder]
  )
  rows = table(tmp_path / "found")
  names = ("red.png", "scene.jpg", "small.png")
  files = [os.path.join(folder, name) for name in names]
  assert [*dict.fromkeys(row["query"] for row in rows)] == files


def test_an_image_that_cannot_be_read_is_left_out_by_name(
  photos, tmp_path, capsys
):
  (photos / "test" / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
  options = dict(out=str(tmp_path / "found"))
  assert find_similar(MODEL, [str(photos)], **options) == 1
  assert "broken.jpg: left out: " in capsys.readouterr().err
  assert len(table(tmp_path / "found")) == 7


def test_vectors_are_kept_if_the_run_is_stopped(photos, tmp_path, monkeypatch):
  predict = similar_images.predict

  def stopped(*args, **keywords):
    yield next(predict(*args, **keywords))[:4]
    raise KeyboardInterrupt

  options = dict(out=str(tmp_path / "found"))
  with monkeypatch.context() as patch:
    patch.setattr(similar_images, "predict", stopped)
    with pytest.raises(KeyboardInterrupt):
      find_similar(MODEL, [str(photos)], **options)
  with np.load(tmp_path / "found" / "vectors.npz") as kept:
    assert len(kept["files"]) == 4


@pytest.mark.parametrize(
  "make, options, message",
  [
    (lambda root: None, {}, "holds no images"),
    (
      lambda root: Image.new("RGB", (9, 9)).save(root / "one.png"),
      {},
      "1 image could be read, and images are compared with others",
    ),
    (
      lambda root: [
        Image.new("RGB", (9, 9), (k, 0, 0)).save(root / f"{k}.png")
        for k in (9, 99)
      ],
      {"query": ["nowhere.jpg"]},
      "--query=nowhere.jpg: there is no such file.$",
    ),
    (
      lambda root: [
        Image.new("RGB", (9, 9), (k, 0, 0)).save(root / f"{k}.png")
        for k in (9, 99)
      ],
      {"query": ["99.png"]},
      r"--query=99.png: there is no such file; did you mean .*photos/99.png\?$",
    ),
    (
      lambda root: [
        Image.new("RGB", (9, 9), (k, 0, 0)).save(root / f"{k}.png")
        for k in (9, 99)
      ],
      {"query": [os.curdir]},
      "--query=.: the folder holds no images",
    ),
  ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, make, options, message):
  root = tmp_path / "photos"
  root.mkdir()
  (tmp_path / "empty").mkdir()
  monkeypatch.chdir(tmp_path / "empty")
  make(root)
  with pytest.raises(ValueError, match=message) as error:
    find_similar(MODEL, [str(root)], out=str(tmp_path / "found"), **options)
  assert "\n" not in str(error.value)


@pytest.mark.slow
def test_kept_vectors_that_are_damaged_are_computed_anew(
  photos, tmp_path, capsys
):
  out = tmp_path / "found"
  out.mkdir()
  (out / "vectors.npz").write_bytes(b"no archive")
  assert find_similar(MODEL, [str(photos)], out=str(out)) == 0
  said = capsys.readouterr()
  assert "vectors.npz is damaged or not a file that this command" in said.err
  assert "0 of 7 vectors are kept" in said.out
  assert find_similar(MODEL, [str(photos)], out=str(out)) == 0
  assert "7 of 7 vectors are kept" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gs://bucket/found", "http://x/found"])
def test_addresses_are_not_written(photos, name, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match="is an address, and only local files"):
    find_similar(MODEL, [str(photos)], out=name)
  with pytest.raises(ValueError, match="is an address, and only local files"):
    mark_files(MODEL, [str(photos)], name)
  assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.slow
def test_a_text_is_a_query_of_a_model_of_images_and_texts(photos, tmp_path):
  """The nearest are those of the product of the unit vectors."""
  folder = tmp_path / "found"
  pair = str(TEXTS / "hf_siglip")
  find_similar(pair, [str(photos)], out=str(folder), query=["a cat"])
  loaded = vit_jax.load_pretrained(pair)
  rows = table(folder)
  text = loaded.embed_texts("a cat")[0]
  for row in rows:
    image = loaded.features(str(photos / row["file"]))[0]
    cosine = image @ text / np.linalg.norm(image) / np.linalg.norm(text)
    assert float(row["cosine"]) == pytest.approx(float(cosine), abs=1e-5)
  assert [row["query"] for row in rows] == ["a cat"] * len(rows)
  assert "query: a cat" in (folder / "index.html").read_text("utf-8")


def test_a_text_without_a_text_tower_is_refused_at_once(photos, tmp_path):
  with pytest.raises(ValueError, match="a cat: there is no such file"):
    find_similar(MODEL, [str(photos)], out=str(tmp_path), query=["a cat"])
  assert not (tmp_path / "vectors.npz").exists()
