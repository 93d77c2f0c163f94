"""Messages that name flags of a command, as callers in Python read them."""

import pytest
from absl import flags

from vit_jax.runtime import hints, keywords


def _raised(message, form, **given):
  """The message of a call whose function raises `message`."""

  @hints.accepts("make(images)", keys=form)
  def make(images=(), *, root="", allow_changes=False, class_name=None):
    raise ValueError(message)

  with pytest.raises(ValueError, match=r"\S") as error:
    make(**given)
  return str(error.value)


@pytest.mark.parametrize(
  "form, said",
  [
    ("settings", 'settings={"data.task": "multilabel", "data.unknown": "9"}'),
    ("DataSettings", 'vit_jax.DataSettings(task="multilabel", unknown="9")'),
    ("keywords", 'task="multilabel", unknown="9"'),
  ],
)
def test_keys_are_written_as_the_call_takes_them(form, said):
  flags_of_keys = "--config.data.task=multilabel --config.data.unknown='9'"
  message = f"They are learned with {flags_of_keys}."
  assert _raised(message, form) == f"They are learned with {said}."


@pytest.mark.parametrize(
  "text, said",
  [
    ("--config.image_size=(224,224).", 'settings={"image_size": (224, 224)}.'),
    ("--config.pairs.captions=7;", 'settings={"pairs.captions": 7};'),
    ("--config.data.root names it.", "data.root names it."),
    (
      "--config.model.variant=B/16, or --config.pretrained=hf.",
      'settings={"model.variant": "B/16"}, or settings={"pretrained": "hf"}.',
    ),
  ],
)
def test_values_have_the_types_of_the_configuration(text, said):
  assert _raised(f"set {text}", "settings") == f"set {said}"


def test_flags_with_a_keyword_of_their_name_are_that_keyword():
  said = _raised("--class_name='x': pass --allow_changes or --out.", "settings")
  assert said == "class_name='x': pass allow_changes=True or --out."


def test_a_name_or_a_path_after_a_flag_is_its_value():
  said = _raised(
    "needs --root, such as --root my_photos; --root is DIR.", "settings"
  )
  assert said == 'needs root, such as root="my_photos"; root is DIR.'


def test_the_flag_of_another_command_stays():
  @hints.accepts("load(name)")
  def load(name, **options):
    del name, options
    raise ValueError(
      "evaluate --calibrate writes it; --pooling=gap takes others"
    )

  with pytest.raises(
    ValueError, match=r"^evaluate --calibrate .*; pooling=gap"
  ):
    load("a")


def test_a_command_that_is_quoted_keeps_its_flags():
  message = "as in: vit_jax train x.csv --config.data.task=regression"
  assert _raised(message, "settings") == message


def test_on_the_command_line_flags_stay(monkeypatch):
  monkeypatch.setattr(keywords.flags, "FLAGS", _Parsed(), raising=True)
  assert _raised("--config.data.task=pairs", "settings") == (
    "--config.data.task=pairs"
  )


class _Parsed(flags.FlagValues):
  def is_parsed(self):
    return True


def test_a_section_beside_an_argument_of_its_name_is_given_by_its_keys():
  @hints.accepts("train(data)")
  def train(data=None, **settings): ...

  with pytest.raises(TypeError, match=r'settings=\{"data.unknown": "\?"\}'):
    train("a.csv", data={"unknown": "?"})
