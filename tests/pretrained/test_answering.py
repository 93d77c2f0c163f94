"""What a loaded model answers: probabilities, texts for classes, similar files.

What `predict` and `features` give is in `test_loaded.py`.
"""

import dataclasses
import itertools
import os
import pathlib
import shutil

import numpy as np
import pytest
from jax.nn import sigmoid

import vit_jax
from tests.photos import (
  ORIGIN,
  PARAMS,
  VIT,
  logits_of,
  normalized,
  pixels_of,
  softmax,
  write_photos,
)
from tests.pretrained.test_loaded import loaded_of
from tests.pretrained.test_text import FOLDER as TEXTS
from vit_jax.tasks import choose
from vit_jax.tasks.choose import answering
from vit_jax.training.settings import LossSettings


@pytest.fixture(scope="module")
def loaded():
  return loaded_of(VIT)[0]


@pytest.fixture(scope="module")
def clip():
  return vit_jax.load_pretrained(str(TEXTS / "hf_siglip"))


@pytest.fixture
def photos(tmp_path):
  return write_photos(tmp_path)


def test_probabilities_of_all_classes_are_in_their_order(loaded, photos):
  logits = logits_of(VIT, PARAMS, normalized([*map(pixels_of, photos)]))
  found = loaded.predict_proba(pathlib.Path(photos[0]).parent, batch_size=4)
  np.testing.assert_allclose(found, softmax(logits), atol=1e-6)
  with pytest.raises(ValueError, match=r"nowhere\.png: No such file"):
    loaded.predict_proba([photos[0], "nowhere.png"])
  numbers = dataclasses.replace(loaded, open_task=lambda: answering("mse"))
  with pytest.raises(ValueError, match=r"gives numbers, .*\[0\]\.values"):
    numbers.predict_proba(photos[0])


def test_the_similar_images_are_those_of_the_highest_cosine(loaded, photos):
  y = loaded.features(photos)
  y = y / np.linalg.norm(y, axis=1, keepdims=True)
  cosines = y @ y[2]
  best = [k for k in np.argsort(-cosines) if k != 2][:4]
  folder = pathlib.Path(photos[0]).parent
  for given in (folder, photos):
    found = loaded.find_similar(photos[2], given, k=4)
    assert [one.image for one in found] == [photos[k] for k in best]
    np.testing.assert_allclose(
      [one.cosine for one in found], cosines[best], atol=1e-5
    )
  (same, *_) = loaded.find_similar(pixels_of(photos[2]), folder)
  assert same.image == photos[2]
  assert same.cosine == pytest.approx(1, abs=1e-5)


def test_images_in_memory_are_searched_too(loaded, photos):
  """A query in a list is left out as well, and no array is printed."""
  pixels = pixels_of(photos[1])
  found = loaded.find_similar(photos[:1], [photos[0], pixels, photos[2]])
  lines = repr(found).splitlines()
  assert {line[7:] for line in lines} == {"an image in memory", photos[2]}
  assert found._repr_html_().count("<img") == 1


def test_a_loaded_model_has_its_text_tower_itself(loaded):
  with pytest.raises(ValueError, match=r"given as a Loaded: .*\.embed_texts"):
    vit_jax.load_text(loaded)


def test_labels_of_no_folder_are_no_setting(loaded):
  with pytest.raises(ValueError, match="^'gone' is neither a folder nor a f"):
    loaded.labelled_features("gone")


def test_a_checkpoint_of_a_run_is_loaded_first(loaded, photos):
  for call, end in ((loaded.predict, "predict"), (loaded.export, "export")):
    with pytest.raises(TypeError, match=f"load_pretrained.* and its {end}"):
      call(photos[0], step=200)


@pytest.mark.parametrize("opened", [str, pathlib.Path, pixels_of])
def test_the_similarity_of_two_images_is_a_number(loaded, photos, opened):
  a, b = loaded.features(photos[:2])
  expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
  found = loaded.similarity(opened(photos[0]), opened(photos[1]))
  assert isinstance(found, float)
  (similar,) = loaded.find_similar(photos[0], photos[1])
  assert found == pytest.approx(float(expected), abs=1e-5)
  assert found == pytest.approx(similar.cosine, abs=1e-6)
  assert vit_jax.similarity(loaded, photos[0], photos[1]) == pytest.approx(
    similar.cosine, abs=1e-6
  )


def test_the_similarity_of_several_images_is_a_matrix(loaded, photos):
  y = loaded.features(photos)
  y = y / np.linalg.norm(y, axis=1, keepdims=True)
  folder = str(pathlib.Path(photos[0]).parent)
  for images, others, rows, columns in (
    (photos[:2], photos, slice(2), slice(None)),
    (folder, photos[1:3], slice(None), slice(1, 3)),
    (photos[0], folder, slice(1), slice(None)),
    ([photos[0]], photos[1], slice(1), slice(1, 2)),
    (f"{folder}/*", [photos[1]], slice(None), slice(1, 2)),
  ):
    found = loaded.similarity(images, others)
    np.testing.assert_allclose(found, y[rows] @ y[columns].T, atol=1e-5)


def test_a_text_may_stand_for_an_image(clip, photos):
  texts = ["a cat", "the dog"]
  y, t = clip.features(photos[:2]), clip.text_tower.embed(texts)
  y, t = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (y, t))
  found = clip.similarity(photos[:2], texts)
  np.testing.assert_allclose(found, y @ t.T, atol=1e-5)
  one = clip.similarity(photos[0], texts[0])
  assert one == pytest.approx(found[0, 0], abs=1e-6)


def test_texts_take_the_place_of_classes(clip, photos):
  """SigLIP: the sigmoid of scaled cosines and a bias, for each text."""
  text = clip.text_tower
  for texts, whole in (
    (["a cat", "the dog"], ["a cat", "the dog"]),
    (["cat", "dog"], ["a photo of a cat.", "a photo of a dog."]),
  ):
    y, t = clip.features(photos[:2]), text.embed(whole)
    y, t = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (y, t))
    expected = sigmoid(text.scale * y @ t.T + text.bias)
    answers = clip.predict(photos[:2], texts=texts)
    for answer, row in zip(answers, expected, strict=True):
      found = dict(answer)
      np.testing.assert_allclose(
        [found[name] for name in texts], row, rtol=1e-4
      )
  head = text.head(["cat"], ["{}"])
  assert text.head(("cat",), ("{}",)) is head  # Compiled once for both.


REFUSED = {
  "the same text twice": (["cat", "cat"], "texts names cat 2 times"),
  "no text": ([], r"texts names no class: give a list, as in texts=\["),
  "of a model without": (["cat", "dog"], "has no text tower"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_texts_that_are_refused(loaded, photos, kind):
  texts, message = REFUSED[kind]
  with pytest.raises(ValueError, match=message):
    loaded.predict(photos[0], texts=texts)


@pytest.mark.parametrize(
  "ask, name",
  [
    (lambda loaded, photos: loaded.predict(photos, top=0), "top=0"),
    (lambda loaded, photos: loaded.predict(photos, top="all"), "top='all'"),
    (lambda loaded, photos: loaded.predict(photos, batch_size=0), "batch_size"),
    (lambda loaded, photos: loaded.features(photos, batch_size=0), "batch_siz"),
    (
      lambda loaded, photos: loaded.find_similar(photos[0], photos, top=0),
      "top=0",
    ),
  ],
)
def test_numbers_from_one_on_are_needed(loaded, photos, ask, name):
  with pytest.raises(ValueError, match=f"^{name}.* must be "):
    ask(loaded, photos)


def test_what_is_no_search_is_refused(loaded, photos):
  with pytest.raises(ValueError, match="2 images were given: call find_simil"):
    loaded.find_similar(photos[:2], photos)
  with pytest.raises(ValueError, match="no other images to search"):
    loaded.find_similar(photos[0], photos[:1])


@pytest.mark.parametrize(
  "query, said",
  [
    ("a red car", "a red car: there is no such file. To search by a text"),
    ("photo", r"no such file; did you mean photos\? To search by a text"),
    ("photo.png", r"photo\.png: No such file or directory"),
    ("other/photos", "other/photos: No such file or directory"),
  ],
)
def test_a_query_without_a_text_tower(
  loaded, photos, tmp_path, monkeypatch, query, said
):
  (tmp_path / "photos").mkdir()
  (tmp_path / "marked").mkdir()  # It is like "a red car", and not meant.
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=said):
    loaded.find_similar(query, photos)


def test_a_text_finds_the_images_that_it_is_nearest_to(clip, photos, capsys):
  y, t = clip.features(photos), clip.embed_texts("a cat")
  y, t = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (y, t))
  cosines = (y @ t.T)[:, 0]
  with pytest.raises(ValueError, match="images are searched here.*texts="):
    clip.find_similar(photos[0], ["a cat", "a dog"])
  found = clip.find_similar("a cat", pathlib.Path(photos[0]).parent, top=3)
  best = np.argsort(-cosines)[:3]
  assert [one.image for one in found] == [photos[k] for k in best]
  np.testing.assert_allclose(
    [x.cosine for x in found], cosines[best], atol=1e-5
  )
  assert (
    "'a cat' is no file, and is taken for a text." in capsys.readouterr().err
  )
  first = f"{found[0].cosine:.3f}  {found[0].image}"
  assert repr(found).splitlines()[0] == first
  assert found._repr_html_().count("<img") == 3


def test_a_model_without_classes_names_what_gives_it_some(loaded, photos):
  bare = dataclasses.replace(
    loaded, model=loaded.model.clone(num_classes=0), held=None
  )
  said = (
    r"has no classes .* loaded\.fit\(\"my_photos\"\) .* loaded\.features\(i"
  )
  with pytest.raises(ValueError, match=said):
    bare.predict(photos[0])


def test_a_model_of_masks_names_the_command_that_writes_them(
  loaded, photos, monkeypatch
):
  bare = dataclasses.replace(
    loaded, model=loaded.model.clone(num_classes=0), held=None
  )
  task = choose.task_class("segmentation")()
  monkeypatch.setattr(type(bare), "task", task)
  said = "task segmentation, .* `vit_jax predict .* with --masks=FOLDER to wri"
  with pytest.raises(ValueError, match=said):
    bare.predict(photos[0])
  with pytest.raises(AttributeError, match="`vit_jax predict RUN IMAGES --mas"):
    bare.masks  # noqa: B018


@pytest.fixture
def classes(tmp_path):
  """A folder of two class folders, and its files and their labels."""
  folder = tmp_path / "class_folders"
  for name in ("dog", "cat"):
    (folder / name).mkdir(parents=True)
    write_photos(folder / name)
  files = sorted(str(path) for path in folder.rglob("*.*"))
  return folder, files, [int("/dog/" in path) for path in files]


def test_the_features_of_a_folder_come_with_its_labels(loaded, classes):
  folder, files, labels = classes
  x, y, class_names, images = loaded.labelled_features(folder)
  np.testing.assert_array_equal(x, loaded.features(folder))
  assert (list(y), class_names) == (labels, ("cat", "dog"))
  assert list(images) == files
  parts = [loaded.labelled_features(folder, split=s) for s in ("train", "eval")]
  assert len(parts[1].labels) and all({*p.labels} == {0, 1} for p in parts)
  assert sorted(parts[0].images + parts[1].images) == files
  count = len(files)
  assert repr(loaded.labelled_features(folder)) == (
    f"features {x.shape} and labels ({count},) of {count} images, class_names "
    "('cat', 'dog')"
  )


def test_a_file_of_labels_gives_them_too(loaded, classes):
  folder, files, labels = classes
  table = folder.parent / "labels.csv"
  rows = [
    f"{path},{'ab'[label]}" for path, label in zip(files, labels, strict=True)
  ]
  table.write_text("\n".join(["image,label", *rows]))
  found = loaded.labelled_features(str(table))
  assert (list(found.labels), found.class_names) == (labels, ("a", "b"))
  assert list(found.images) == files
  elsewhere = folder.parent / "tables" / "labels.csv"
  elsewhere.parent.mkdir()
  lines = [f"{os.path.relpath(row, folder)}" for row in rows]
  elsewhere.write_text("\n".join(["image,label", *lines]))
  found = loaded.labelled_features(str(elsewhere), root=folder)
  assert [*map(os.path.samefile, found.images, files)] == [True] * len(files)
  with pytest.raises(ValueError, match="leave root out"):
    loaded.labelled_features(folder, root=folder)


def labels_of_run(loaded, name, **data):
  """A model with the task and the settings of a run."""
  kind = choose.task_class(name)
  return dataclasses.replace(
    loaded,
    step=1,
    description={"config": {"data": data}},
    open_task=kind,
  )


@pytest.fixture
def write_table(classes):
  """A function that writes a file of labels, with a row for each image."""
  folder, files, _ = classes

  def write(header, rows):
    cells = itertools.cycle(rows)
    lines = [f"{file},{next(cells)}" for file in files]
    path = folder.parent / "labels.csv"
    path.write_text("\n".join([f"image,{header}", *lines]))
    return path, len(files)

  return write


def test_numbers_of_a_file_are_numbers_and_not_places(
  loaded, write_table, capsys
):
  path, count = write_table("weight", ["18.1", "10.2", "30.5"])
  wanted = np.resize(np.array([18.1, 10.2, 30.5], np.float32), count)
  for model, options, says in (
    (loaded, {}, True),
    (loaded, {"task": "regression"}, False),
    (labels_of_run(loaded, "regression"), {}, False),
  ):
    capsys.readouterr()
    found = model.labelled_features(path, **options)
    assert found.labels.dtype == np.float32
    np.testing.assert_array_equal(found.labels, wanted)
    assert found.class_names == ("weight",)
    line = "is read with task='regression', as weight has numbers such as 18.1"
    assert (line in capsys.readouterr().err) == says
  asked = loaded.labelled_features(path, task="classification")
  assert asked.class_names == ("10.2", "18.1", "30.5")


def test_several_labels_are_a_matrix_with_nan_for_unknown(loaded, write_table):
  path, count = write_table("round,red", ["1,0", "0,1", "1,1", "0,"])
  rows = np.array([[1, 0], [0, 1], [1, 1], [0, np.nan]], np.float32)
  wanted = np.resize(rows, (count, 2))
  run = labels_of_run(loaded, "multilabel")
  for model, options in (
    (loaded, {}),
    (loaded, {"task": "multilabel"}),
    (dataclasses.replace(run, model=named(run.model, "round", "red")), {}),
  ):
    found = model.labelled_features(path, **options)
    np.testing.assert_array_equal(found.labels, wanted)
    assert found.class_names == ("round", "red")


def test_labels_that_cannot_be_read_are_to_be_written_otherwise(
  loaded, write_table
):
  path, _ = write_table("round,red", ["1,0", "0,1", "1,1", "0,?"])
  with pytest.raises(ValueError, match=r"knows, leave the cell empty[.]$"):
    loaded.labelled_features(path, task="multilabel")


def named(model, *names):
  return model.clone(origin=dataclasses.replace(ORIGIN, class_names=names))


@pytest.mark.parametrize(
  "task, scores",
  [
    ("multilabel", "evaluate(data, per_class=True)"),
    ("pairs", "evaluate(data)"),
  ],
)
def test_a_confusion_matrix_of_other_tasks_is_refused_first(
  loaded, task, scores
):
  other = labels_of_run(loaded, task)
  with pytest.raises(
    ValueError, match="does not answer with a single class"
  ) as said:
    other.confusion_matrix("no such folder")
  assert f"loaded.{scores} has its scores." in str(said.value)


def test_a_task_that_no_labels_have_is_refused(loaded, classes):
  with pytest.raises(ValueError, match="task='pairs' is unknown here: give 'c"):
    loaded.labelled_features(classes[0], task="pairs")
  with pytest.raises(ValueError, match="is no file of labels, from which task"):
    loaded.labelled_features(classes[0], task="regression")


def test_folders_in_a_list_stand_for_their_images(loaded, classes):
  folder, files, _ = classes
  dogs = [file for file in files if "/dog/" in file]
  images = [files[0], str(folder / "dog")]
  assert [one.image for one in loaded.predict(images)] == [files[0], *dogs]
  assert len(loaded.features(np.array(images))) == 1 + len(dogs)


def test_labels_are_given_from_the_threshold_on(loaded, photos):
  logits = logits_of(VIT, PARAMS, normalized([pixels_of(photos[0])]))
  p = np.sort(sigmoid(logits[0]))[::-1]
  for threshold, given in ((float(p[3]), 4), (1.0, 0)):
    task = dataclasses.replace(
      choose.task_class("multilabel")(LossSettings(kind="sigmoid")),
      threshold=threshold - 1e-6,
    )
    several = dataclasses.replace(loaded, open_task=lambda task=task: task)
    (answer,) = several.predict(photos[0], top=2)
    assert len(answer.labels) == given
    assert answer.labels == tuple(name for name, _ in answer)[:given]
    assert len(answer.probability) == max(2, given)
    first, _, others = answer.text.partition("; not given: ")
    assert (first == "no label") == (not given)
    assert others.count("%") == len(answer.probability) - given
  (one,) = loaded.predict(photos[0])
  assert one.labels == (one.label,)


def test_a_folder_with_splits_has_each_image_once(loaded, classes, tmp_path):
  folder, files, labels = classes
  for split in ("train", "test"):
    shutil.copytree(folder, tmp_path / "split" / split)
  found = loaded.labelled_features(tmp_path / "split")
  assert list(found.labels) == labels * 2
  assert len({*found.images}) == len(found.images) == 2 * len(files)


def test_a_folder_without_classes_has_no_labels(loaded, photos):
  with pytest.raises(ValueError, match="class"):
    loaded.labelled_features(pathlib.Path(photos[0]).parent)


def test_outputs_have_the_word_of_their_task(loaded):
  words = {"classification": "classes", "regression": "targets"}
  for name, word in words.items():
    run = labels_of_run(loaded, name)
    assert repr(run).splitlines()[0].endswith(f" parameters, 5 {word}")
    assert run.facts[word] == "5"
