"""Text towers with their weights, and the opening of published ones."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Float

from vit_jax.data.reading.tokenizer import Tokenizer, cut_lines, open_tokenizer
from vit_jax.data.reading.tokenizer_files import TokenizerFiles
from vit_jax.inference.text_head import TextHead
from vit_jax.models.grid import param_shapes
from vit_jax.models.model import unit
from vit_jax.models.text import TextTower
from vit_jax.models.two_towers import scale_of
from vit_jax.pretrained.arrays import Arrays, open_arrays
from vit_jax.pretrained.folder import open_folder
from vit_jax.pretrained.formats import open_clip, texts
from vit_jax.pretrained.formats.mapping import check, read_all
from vit_jax.pretrained.quantised import check_floats, explain_quantisation
from vit_jax.runtime.printable import say

_CLIPS_SCALE = 100.0
# Beginnings of the names of open_clip's projections after a trunk of timm's.
_PROJECTIONS = ("visual.head.", "visual.trunk.head.")
_UNPROJECTED = (
  "its image tower ends in a projection (timm_proj of open_clip_config.json, "
  "{}), which a pair has no place for: its images and texts are not compared"
)
Leaves = Iterable[tuple[str, np.ndarray]]
# Templates around the names of classes, with {} for the name.
TEMPLATES = ("a photo of a {}.",)


@dataclasses.dataclass(frozen=True)
class LoadedText:
  """A text tower with its tokenizer, whose parameters are read on demand.

  It stands for a published text tower as well as for that of a run on pairs.

  Attributes:
    source: The path or address, as the caller wrote it.
    tower: The tower.
    tokenizer: Gives the ids of texts.
    read: Yields (path, array) of its parameters, with one array at a time in
      memory.
    open_files: Reads the tokenizer's files, as a run keeps them.
    read_scale_and_bias: Reads `scale_and_bias`.
    notes: Lines on facts that no file states and that were assumed.
    projected: Whether the image tower beside it ends in a projection of its
      own, which is not read.
  """

  source: str
  tower: TextTower
  tokenizer: Tokenizer
  read: Callable[[], Leaves]
  open_files: Callable[[], TokenizerFiles]
  read_scale_and_bias: Callable[[], tuple[float, float | None]]
  notes: tuple[str, ...] = ()
  projected: bool = False

  @functools.cached_property
  def params(self) -> dict[str, Any]:
    """The tower's parameters, which are read when they are first asked for."""
    flat = {path: jnp.asarray(array) for path, array in self.read()}
    return traverse_util.unflatten_dict(flat, sep="/")

  @functools.cached_property
  def scale_and_bias(self) -> tuple[float, float | None]:
    """The pair of `scale` and `bias`, which are read when first asked for."""
    return self.read_scale_and_bias()

  @property
  def scale(self) -> float:
    """The factor of the cosine similarities with images."""
    return self.scale_and_bias[0]

  @property
  def bias(self) -> float | None:
    """The number added to the scaled similarities; None if there is none."""
    return self.scale_and_bias[1]

  @functools.cached_property
  def files(self) -> TokenizerFiles:
    """The files of the tokenizer."""
    return self.open_files()

  def longer(self) -> Tokenizer:
    """The tokenizer for texts of one more token, which shows what is cut."""
    return self.files.longer

  def embed(
    self, texts: Sequence[str], *, batch_size: int = 64
  ) -> Float[np.ndarray, "N R"]:
    """The representation of each text, as the tower gives it.

    A text that is too long for the tower is cut, as in its library, and a line
    says so. Raises ValueError if a text is empty, or no text is given.
    """
    if not texts:
      raise ValueError("there is no text to embed: give at least one.")
    ids = self.tokenizer(texts)
    for line in cut_lines(texts, self.tokenizer, self.longer):
      say(f"{self.source}: {line}")
    rows = []
    for start in range(0, len(ids), batch_size):
      batch = ids[start : start + batch_size]
      filled = np.zeros((batch_size, ids.shape[1]), np.int32)
      filled[: len(batch)] = batch
      y = self._apply({"params": self.params}, jnp.asarray(filled))
      rows.append(np.asarray(y, np.float32)[: len(batch)])
    return np.concatenate(rows)

  @functools.cached_property
  def _apply(self) -> Any:
    """The compiled function from parameters and ids to representations."""
    return jax.jit(self.tower.apply)

  def head(
    self, names: Sequence[str], templates: Sequence[str] = TEMPLATES
  ) -> TextHead:
    """A classifier of images by the names of classes.

    The representation of a class is the mean of those of its texts, which are
    its name put into each template. They are scaled to length 1 before the
    mean, and so is the mean, as CLIP has it (arXiv:2103.00020, Sec. 3.1.4).

    Equal arguments give the same object, so that the step that classifies
    images is compiled once. Raises ValueError if there is no name or no
    template, or a template has no {} for the name.
    """
    return self._head_of(tuple(names), tuple(templates))

  @functools.cached_property
  def _head_of(self) -> Callable[..., TextHead]:
    """`_make_head`, whose last results are kept."""
    return functools.lru_cache(8)(self._make_head)

  def _make_head(
    self, names: Sequence[str], templates: Sequence[str]
  ) -> TextHead:
    """The head of `head`, computed anew; raises ValueError as that does."""
    for template in templates:
      if "{}" not in template:
        raise ValueError(
          f"the template {template!r} has no {{}}, where a class's name goes."
        )
    texts = [t.replace("{}", name) for name in names for t in templates]
    each = unit(jnp.asarray(self.embed(texts)))
    means = each.reshape(len(names), len(templates), -1).mean(axis=1)
    embeddings = np.asarray(unit(means))
    return TextHead(tuple(names), embeddings, self.scale, self.bias)


def open_text(
  source: str, path: pathlib.Path, tokenizer: str | None = None
) -> LoadedText:
  """Opens the text tower of `source`, a file or a folder at `path`.

  The file is a CLIP, MetaCLIP 2, SigLIP, SigLIP 2 or TIPSv2 that transformers
  saved, or its text tower alone, a model of open_clip, or a SigLIP of
  big_vision. Of its arrays, only the scale and the bias are read. `tokenizer`
  is a folder with another tokenizer than that beside the weights. Raises
  NoTextTowerError if there is no text tower, and ValueError as `load.load_text`
  does.
  """
  files = open_folder(_weights_path(path))
  folder = pathlib.Path(files.weights).parent
  with explain_quantisation(files.config), open_arrays(files.weights) as arrays:
    layout = texts.infer(arrays.shapes, files.config, source)
    projected = [x for x in arrays.shapes if x.startswith(_PROJECTIONS)]
    check_floats(arrays, (rule.theirs for rule in layout.rules))
    tower = layout.tower
    what = f"{source} is not the text tower of a {layout.family} model"
    check(layout.rules, layout.shapes, param_shapes(tower, (1, 1)), tower, what)
    similarity = _similarity(arrays, layout.pair)
  notes = [similarity.note] if similarity.note else []
  if projected:
    notes.append(_UNPROJECTED.format(projected[0]))

  def read() -> Leaves:
    with open_arrays(files.weights) as arrays:
      for leaf, array in read_all(layout.rules, arrays, tower):
        yield leaf, array.astype(np.float32, copy=False)

  tokenizer_folder = (
    pathlib.Path(tokenizer).expanduser() if tokenizer else folder
  )
  clean = open_clip.cleaning(files.config)
  opened_tokenizer = open_tokenizer(
    tokenizer_folder, layout.family, tower.length, clean
  )
  if opened_tokenizer.size > tower.vocabulary:
    raise ValueError(
      f"{source}: {opened_tokenizer.file} has {opened_tokenizer.size:,} tokens "
      f"and the text tower {tower.vocabulary:,}: it is not the tokenizer of "
      "these weights."
    )
  return LoadedText(
    source=source,
    tower=tower,
    tokenizer=dataclasses.replace(opened_tokenizer, folder=tokenizer_folder),
    read=read,
    open_files=lambda: TokenizerFiles.read(
      tokenizer_folder, layout.family, tower.length, clean
    ),
    read_scale_and_bias=lambda: (similarity.scale, similarity.bias),
    notes=(*notes, *opened_tokenizer.notes),
    projected=bool(projected),
  )


def _weights_path(path: pathlib.Path) -> pathlib.Path:
  """`path` itself, or open_clip's file of both towers in this folder.

  That file is taken if the folder's other weights are the image tower alone.
  """
  whole = path / open_clip.WEIGHTS
  return whole if whole.exists() and open_clip.is_whole_beside(path) else path


class _Similarity(NamedTuple):
  """The numbers by which image and text are compared: scale * cosine + bias.

  Attributes:
    note: A line if no scale is stored, else "".
  """

  scale: float
  bias: float | None
  note: str = ""


def _similarity(arrays: Arrays, pair: Mapping[str, str]) -> _Similarity:
  """Reads the scale and the bias; `pair` tells which array holds which.

  Raises ValueError if the scale is out of bounds.
  """
  stored = {
    what: float(arrays[name].reshape(-1)[0])
    for name, what in pair.items()
    if arrays.shapes.get(name) in ((), (1,))
  }
  bias = stored.get("logit_bias")
  if "logit_scale" in stored:
    return _Similarity(scale_of(stored["logit_scale"]), bias)
  if "temperature" in stored:
    T = stored["temperature"]
    # Raises an error if 1 / T is out of bounds.
    scale_of(-math.log(T) if T > 0 else math.nan)
    return _Similarity(1 / T, bias)
  note = f"no scale is stored: similarities are multiplied by {_CLIPS_SCALE:g}"
  return _Similarity(_CLIPS_SCALE, bias, note)
