"""The text tower of a run on pairs."""

from typing import Any

from vit_jax.models.parts import Parts
from vit_jax.models.two_towers import BIAS, LOG_SCALE, TEXT, TwoTowers, scale_of
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.text import LoadedText


def text_of_run(source: str, loaded: Loaded) -> LoadedText:
  """The text tower of a run that is opened as trained, with its tokenizer.

  Raises ValueError if the run has no text tower.
  """
  model: Any = loaded.model
  if not isinstance(model, TwoTowers) or model.text is None:
    raise ValueError(
      f"{source} has no text tower: take a run on pairs, or published weights "
      "of images and text."
    )
  params = loaded.params
  if model.scan:
    params = Parts.of(model, params).unstack(params)
  task: Any = loaded.task
  bias = params.get(BIAS)
  return LoadedText(
    source=source,
    tower=model.text.clone(scan=False, parent=None),
    params=params[TEXT],
    tokenizer=task.tokenizer.tokenizer,
    scale=scale_of(float(params[LOG_SCALE])),
    bias=None if bias is None else float(bias),
    longer=lambda: task.tokenizer.longer,
  )
