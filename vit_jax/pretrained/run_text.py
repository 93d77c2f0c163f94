"""Loads the text tower of a run on pairs, or of a published model."""

from typing import Any

from vit_jax.models.parts import Parts
from vit_jax.models.two_towers import BIAS, LOG_SCALE, TEXT, TwoTowers, scale_of
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.text import LoadedText, load_text
from vit_jax.workdir.checkpoint import is_run


def load_any_text(source: str) -> LoadedText:
  """Loads a text tower with its tokenizer, as `load_text`, of a run too.

  Raises ValueError as `load_text` does, or if the run has no text tower.
  """
  if not is_run(source):
    return load_text(source)
  loaded = open_checkpoint(source, hold=Loaded.read_params, as_trained=True)
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
