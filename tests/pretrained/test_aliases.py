"""Names of other libraries answer as ours do."""

import pathlib

import pytest

import vit_jax
from tests.photos import write_photos
from vit_jax.config import load_config
from vit_jax.inspection.attention_maps import attention_weights
from vit_jax.pretrained.aliases import aliases
from vit_jax.pretrained.loaded import Loaded
from vit_jax.run.in_python import FinishedRun

TEXTS = ["a red image", "a green image"]
SIGLIP = pathlib.Path(__file__).parents[1] / "checkpoints/texts/hf_siglip"

OF_LOADED = {
  "features": (
    "embed",
    "encode_image",
    "extract_features",
    "get_image_features",
  ),
  "embed_texts": ("encode_text", "get_text_features"),
  "predict": ("classify",),
  "find_similar": ("nearest", "similar"),
  "export": ("to_onnx",),
  "save": ("save_pretrained",),
  "class_names": ("classes",),
  "image_size": ("img_size", "input_size"),
}
NUMBERS = ("num_parameters", "count_params", "count_parameters")
ZERO_SHOT = ("zero_shot", "zeroshot", "zero_shot_classify")
TRAINED = ("fit", "finetune", "fine_tune")
OF_PACKAGE = {
  **dict.fromkeys(TRAINED, vit_jax.train),
  "from_pretrained": vit_jax.load_pretrained,
  "load_model": vit_jax.load_pretrained,
  "load_run": vit_jax.load_pretrained,
  "get_config": load_config,
  "load_config": load_config,
  "attention_weights": attention_weights,
}
PAIRS = [(ours, name) for ours in OF_LOADED for name in OF_LOADED[ours]]


@pytest.fixture(scope="module")
def clip():
  return vit_jax.load_pretrained(SIGLIP)


@pytest.mark.parametrize("ours, name", PAIRS)
def test_a_name_of_another_library_answers_as_ours(clip, ours, name):
  assert getattr(clip, name) == getattr(clip, ours)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_called(clip, name):
  assert getattr(clip, name)() == clip.num_params > 0


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_texts_may_follow_the_images(clip, name, tmp_path):
  photo = write_photos(tmp_path)[0]
  expected = clip.predict(photo, texts=TEXTS, top=1)
  ask = getattr(clip, name)
  assert [*map(repr, ask(photo, TEXTS, top=1))] == [*map(repr, expected)]
  assert [*map(repr, ask(photo, texts=TEXTS, top=1))] == [*map(repr, expected)]
  with pytest.raises(TypeError, match="texts is given twice|multiple values"):
    ask(photo, TEXTS, texts=TEXTS)


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_a_function_of_another_library_is_ours(name):
  assert getattr(vit_jax, name) is OF_PACKAGE[name]


def test_every_alias_is_tested():
  of_loaded = {name for _, name in PAIRS} | {*NUMBERS, *ZERO_SHOT, *TRAINED}
  assert {*aliases("loaded")} == of_loaded
  assert {*aliases("vit_jax")} == {*OF_PACKAGE}


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
  elif name == "zero_shot":
    assert given.__wrapped__ == "its predict"
  else:
    shown = given() if callable(given) else given
    assert shown == f"its {answers.removeprefix('loaded.')}"
  assert hasattr(Loaded, answers.removeprefix("loaded.")) or name in (
    *("path", "folder", "dir"),
    *("output_dir", "log_dir", "save_dir"),
  )
