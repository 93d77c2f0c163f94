"""Names of other libraries answer as ours do."""

import operator
import pathlib
import sys

import numpy as np
import pytest

import vit_jax
from tests.photos import write_photos
from vit_jax.config import load_config
from vit_jax.data.batching.own_loop import load_dataset
from vit_jax.inference.predictor import Prediction, Predictions
from vit_jax.inspection.attention_maps import attention_weights
from vit_jax.inspection.label_issues import find_label_errors
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run.in_python import FinishedRun
from vit_jax.runtime.aliases import aliases
from vit_jax.training.state import count_params

TEXTS = ["a red image", "a green image"]
SIGLIP = pathlib.Path(__file__).parents[1] / "checkpoints/texts/hf_siglip"

NUMBERS = ("num_parameters", "count_params", "count_parameters")
ZERO_SHOT = ("zero_shot", "zeroshot", "zero_shot_classify")
TRAINED = ("fit", "finetune", "fine_tune")
LABEL_ERRORS = (
  *("label_errors", "find_label_errors", "label_issues"),
  *("find_label_issues", "find_mislabeled", "mislabeled"),
)
IN_FRONT = {
  **dict.fromkeys(LABEL_ERRORS, find_label_errors),
  **dict.fromkeys(("new_head", "replace_head", "with_head"), vit_jax.new_head),
  **dict.fromkeys(("as_nnx", "to_nnx", "nnx"), vit_jax.as_nnx),
}
KNN = ("knn", "kNN", "knn_accuracy", "knn_probe")
LINEAR = ("linear_probe", "linear_eval")
PROBES = {**dict.fromkeys(KNN, "knn"), **dict.fromkeys(LINEAR, "linear")}
OF_LOADED = {
  name: alias.answers
  for name, alias in aliases("loaded").items()
  if name not in {*NUMBERS, *ZERO_SHOT, *TRAINED, *IN_FRONT, *PROBES}
}
# Names with their answers, that users of other libraries give most often.
BEST_KNOWN = {
  "embed": "features",
  "encode_image": "features",
  "get_embeddings": "features",
  "encode_text": "embed_texts",
  "classify": "predict",
  "predict_one": "predict",
  "probabilities": "predict_proba",
  "search": "find_similar",
  "show_attention": "attention",
  "to_onnx": "export",
  "save_pretrained": "save",
  "classes": "class_names",
  "img_size": "image_size",
  "embed_dim": "model.hidden_size",
  "patch_size": "model.patch_size",
  "depth": "model.num_layers",
  "image_mean": "preprocessing.mean",
}
OF_PACKAGE = {
  **dict.fromkeys(TRAINED, vit_jax.train),
  **dict.fromkeys(
    (
      *("from_pretrained", "load_model", "load_run"),
      *("load", "load_checkpoint"),
    ),
    vit_jax.load_pretrained,
  ),
  **dict.fromkeys(
    ("ViT", "VisionTransformer", "vision_transformer"), vit_jax.make_vit
  ),
  **dict.fromkeys(
    ("create_model", "get_model", "build_model"), vit_jax.make_model
  ),
  **dict.fromkeys(
    ("list_pretrained", "available_models", "model_names"), vit_jax.list_models
  ),
  **dict.fromkeys(
    (
      *("load_data", "load_dataset", "get_dataset", "create_dataset"),
      *("read_dataset", "Dataset", "dataset", "get_data", "DataLoader"),
      *("dataloader", "get_dataloader", "make_dataloader", "create_loader"),
      *("make_loader", "get_loader", "data_loader", "loader", "ImageFolder"),
      *("from_folder", "load_folder", "read_folder"),
      "image_dataset_from_directory",
    ),
    load_dataset,
  ),
  **dict.fromkeys(LABEL_ERRORS, find_label_errors),
  **dict.fromkeys(
    ("num_params", *NUMBERS, "n_params", "param_count", "parameter_count"),
    count_params,
  ),
  **dict.fromkeys(
    ("lr_find", "lr_finder", "find_learning_rate", "lr_range_test"),
    vit_jax.find_lr,
  ),
  "few_shot": vit_jax.fewshot,
  "get_config": load_config,
  "load_config": load_config,
  "attention_weights": attention_weights,
}
TAKE_A_MODEL = {
  name: alias.answers
  for name, alias in aliases("vit_jax").items()
  if name not in OF_PACKAGE and name not in PROBES
}


@pytest.fixture(scope="module")
def clip():
  return vit_jax.load_pretrained(SIGLIP)


@pytest.mark.parametrize("name, ours", OF_LOADED.items())
def test_a_name_of_another_library_answers_as_ours(clip, name, ours):
  assert getattr(clip, name) == operator.attrgetter(ours)(clip)


@pytest.mark.parametrize("name, ours", BEST_KNOWN.items())
def test_names_that_are_known_best_are_in_the_table(name, ours):
  assert OF_LOADED[name] == ours


@pytest.mark.parametrize("name", IN_FRONT)
def test_a_function_takes_the_model_in_front(clip, name):
  call = getattr(clip, name)
  assert (call.func, call.args) == (IN_FRONT[name], (clip,))


@pytest.mark.parametrize("name, ours", TAKE_A_MODEL.items())
def test_a_function_of_the_package_is_one_of_a_loaded_model(name, ours):
  class Model:
    preprocessing = origin = None

    def __getattr__(self, of):
      return lambda *args, **keywords: (of, args, keywords)

  given = getattr(vit_jax, name)(Model(), "a.jpg", top=1)
  assert given == (ours.removeprefix("loaded."), ("a.jpg",), {"top": 1})


@pytest.mark.slow
def test_a_model_may_be_given_by_its_name_or_its_run(clip, tmp_path):
  photo = write_photos(tmp_path)[0]
  expected = clip.features(photo)
  run = FinishedRun("runs/x", 3, {})
  run.__dict__["loaded"] = clip
  for model in (clip, SIGLIP, str(SIGLIP), run):
    np.testing.assert_array_equal(vit_jax.embed(model, photo), expected)
  for model in (clip, SIGLIP, run):
    assert vit_jax.count_params(model) == clip.num_params
  answers = vit_jax.predict(clip, photo, texts=TEXTS)
  assert repr(answers) == repr(clip.predict(photo, texts=TEXTS))


def test_an_image_without_a_model_says_where_the_model_stands(tmp_path):
  photo = write_photos(tmp_path)[0]
  for call in (vit_jax.preprocess, vit_jax.attention):
    with pytest.raises(ValueError, match=r"in front, as in vit_jax\.\w+\(load"):
      call(photo)
  with pytest.raises(
    ValueError, match=r"as in vit_jax\.similarity\(loaded, im"
  ):
    vit_jax.similarity(photo, photo)
  with pytest.raises(ValueError, match=r"nonesuch(?!.* in front)"):
    vit_jax.similarity("nonesuch", photo)


def test_one_layer_is_a_list_of_one(clip, tmp_path):
  photo = write_photos(tmp_path)[0]
  (expected,) = clip.features(photo, layers=[-1])
  for given in ({"layers": -1}, {"layer": -1}):
    (found,) = clip.features(photo, **given)
    np.testing.assert_array_equal(found, expected)


def test_a_module_and_its_parameters_are_too_many():
  for call in (vit_jax.predict, vit_jax.export):
    with pytest.raises(TypeError, match=r"; as in vit_jax\.\w+\(loaded, "):
      operator.call(call, "model", "params", "a.jpg")


@pytest.mark.parametrize("of", ["predict", "embed", "attention", "export"])
def test_a_module_alone_is_not_enough(clip, of):
  for model in clip:  # The module, and the parameters.
    with pytest.raises(
      TypeError, match=r"the first argument has to be a loaded model"
    ):
      getattr(vit_jax, of)(model, "a.jpg")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_called(clip, name):
  assert getattr(clip, name)() == clip.num_params > 0


@pytest.mark.parametrize("name, probe", PROBES.items())
def test_a_probe_is_a_function_of_its_own(clip, name, probe, monkeypatch):
  def fewshot(model, data, **options):
    return model, data, options

  monkeypatch.setattr(sys.modules["vit_jax.fewshot"], "fewshot", fewshot)
  expected = (clip, "photos", {"probe": probe, "seeds": 1})
  assert getattr(vit_jax, name)(clip, "photos", seeds=1) == expected
  assert getattr(clip, name)("photos", seeds=1) == expected
  with pytest.raises(TypeError, match="probe is set by this call"):
    getattr(clip, name)("photos", probe="few_shot")


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_texts_may_follow_the_images(clip, name, tmp_path):
  photo = write_photos(tmp_path)[0]
  expected = clip.predict(photo, texts=TEXTS, top=1)
  ask = getattr(clip, name)
  assert [*map(repr, ask(photo, TEXTS, top=1))] == [*map(repr, expected)]
  assert [*map(repr, ask(photo, texts=TEXTS, top=1))] == [*map(repr, expected)]
  with pytest.raises(TypeError, match="texts is (given twice|set by this)"):
    ask(photo, TEXTS, texts=TEXTS)


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_a_function_of_another_library_is_ours(name):
  assert getattr(vit_jax, name) is OF_PACKAGE[name]


class _Model:
  """Answers with the name that was asked for."""

  def __getattr__(self, name):
    return f"its {name}"


@pytest.mark.parametrize("name", [*aliases("run")])
def test_a_run_answers_as_its_model(name):
  run = FinishedRun("runs/x", 3, {})
  run.__dict__["loaded"] = _Model()
  answers = aliases("run")[name].answers
  given = getattr(run, name)
  if answers == "workdir":
    assert given == "runs/x"
  elif name in PROBES:
    assert given.__wrapped__ == "its fewshot"
  elif name == "zero_shot":
    assert given.__wrapped__ == "its predict"
  elif name in ("report", *LABEL_ERRORS):
    of_run = {"report": vit_jax.report}.get(name, find_label_errors)
    assert (given.func, given.args) == (of_run, (run,))
  else:
    shown = given() if callable(given) else given
    assert shown == f"its {answers.removeprefix('loaded.')}"
  assert hasattr(Loaded, answers.removeprefix("loaded.")) or name in (
    *("model", "params", "report", *LABEL_ERRORS),
    *("path", "folder", "dir"),
    *("output_dir", "log_dir", "save_dir"),
  )


ONE = Prediction(
  "a.jpg", index=(1, 0), probability=(0.9, 0.1), names=("dog", "cat")
)


@pytest.mark.parametrize("name, alias", aliases("answer").items())
def test_an_answer_answers_as_ours(name, alias):
  assert getattr(ONE, name) == ONE[name] == getattr(ONE, alias.answers)


def test_the_only_answer_answers_for_all():
  answers = Predictions([ONE])
  assert (answers.label, answers.score) == ("dog", 0.9)
  assert answers.class_name == "dog"
  for several in (Predictions([ONE, ONE]), Predictions()):
    with pytest.raises(AttributeError, match=r"\[answer\.label for answer in"):
      operator.attrgetter("label")(several)
