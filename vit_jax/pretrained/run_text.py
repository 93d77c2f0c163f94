"""The text tower of a run on pairs."""

from typing import Any

from vit_jax.models.paths import below, within
from vit_jax.models.two_towers import BIAS, LOG_SCALE, TEXT, TwoTowers, scale_of
from vit_jax.pretrained.formats.texts import NoTextTowerError
from vit_jax.pretrained.loaded import Loaded
from vit_jax.pretrained.text import Leaves, LoadedText


def text_of_run(loaded: Loaded) -> LoadedText:
  """The text tower of a run that was opened `as_trained`, with its tokenizer.

  Raises NoTextTowerError if the run has none.
  """
  model: Any = loaded.model
  source = loaded.origin.source
  if not isinstance(model, TwoTowers) or model.text is None:
    raise NoTextTowerError(source)
  task: Any = loaded.task
  files = task.text_setup.files

  numbers: dict[str, float] = {}  # Scale and bias, once they are read.

  def read() -> Leaves:
    for path, array in loaded.read():
      if path in (LOG_SCALE, BIAS):
        numbers[path] = float(array)
      elif within(path, TEXT):
        yield below(path, TEXT), array

  def scale_and_bias() -> tuple[float, float | None]:
    if not numbers:
      for _ in read():  # Reading the leaves fills `numbers`.
        pass
    return scale_of(numbers[LOG_SCALE]), numbers.get(BIAS)

  return LoadedText(
    source=source,
    tower=model.text.clone(scan=False, parent=None),
    tokenizer=files.tokenizer,
    read=read,
    open_files=lambda: files,
    read_scale_and_bias=scale_and_bias,
  )
