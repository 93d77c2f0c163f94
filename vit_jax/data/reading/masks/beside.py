"""The kinds of files that lie beside images: masks of classes, or numbers."""

import dataclasses

from vit_jax.data.reading.folders import EXTENSIONS, endings_in
from vit_jax.data.reading.masks.files import ENDINGS

_OF_MASKS = (b"masks", b"mask", b"annotations", b"labels")
_OF_NUMBERS = (
  b"depth",
  b"depths",
  b"depth_maps",
  b"disparity",
  b"disparities",
  b"height",
  b"heights",
  b"dsm",
  b"ndsm",
  b"elevation",
  b"density",
  b"densities",
  b"density_maps",
  b"targets",
)


@dataclasses.dataclass(frozen=True)
class PairedFiles:
  """A kind of files that are paired with images, and how they are found.

  Attributes:
    key: The setting of the configuration that reads them.
    singular, plural: The words for such files.
    names: Names of their folder, in lower case, the usual first.
    words: Further names of their folder, as their letters alone, in lower case.
    suffixes: Texts that a file's name may add to its image's, before the
      ending.
    endings: Endings of the files that are read.
    also_seen: Endings of further files by which such a folder is recognised.
  """

  key: str
  singular: str
  plural: str
  names: tuple[bytes, ...]
  words: frozenset[str]
  suffixes: tuple[bytes, ...]
  endings: tuple[bytes, ...]
  also_seen: tuple[bytes, ...] = EXTENSIONS

  @property
  def task(self) -> str:
    """The name of the task that reads these files."""
    return self.key.partition("=")[2]

  def are_in(self, folder: bytes) -> bool:
    """Whether a file with such an ending is among a folder's first files.

    The endings are `endings` and `also_seen`; the files may lie at any depth.
    """
    seen = {*self.also_seen, *self.endings}
    return not endings_in(folder).isdisjoint(seen)


MASKS = PairedFiles(
  key="data.task=segmentation",
  singular="mask",
  plural="masks",
  names=_OF_MASKS,
  words=frozenset(
    "annotation annotations groundtruth gt gtcoarse gtfine gts label labels "
    "mask masks segmentation segmentationclass segmentationclassaug "
    "segmentationobject segmentations trimaps".split()
  ),
  suffixes=(
    b"_mask",
    b"-mask",
    b"_masks",
    b"_gt",
    b"_GT",
    b"_seg",
    b"_segmentation",
    b"_label",
    b"_labels",
    b"_L",
    b"_lab",
    b"_annotation",
    b"_groundtruth",
    b"_gtFine_labelIds",
    b"_gtFine_labelTrainIds",
    b"_gtCoarse_labelIds",
  ),
  endings=ENDINGS,
)
NUMBERS = PairedFiles(
  key="data.task=dense_regression",
  singular="target",
  plural="targets",
  names=_OF_NUMBERS,
  words=frozenset(
    "depth depths depthmap depthmaps disparity disparities height heights "
    "heightmap heightmaps dsm ndsm elevation elevations density densities "
    "densitymap densitymaps target targets".split()
  ),
  suffixes=(
    b"_depth",
    b"-depth",
    b"_disparity",
    b"_disp",
    b"_height",
    b"_dsm",
    b"_density",
    b"_target",
    b"_gt",
    b"_GT",
  ),
  endings=(b".png", b".tif", b".tiff", b".npy"),
)
NUMBERS_AS_MASKS = dataclasses.replace(
  NUMBERS, names=MASKS.names, words=MASKS.words, suffixes=MASKS.suffixes
)
"""Numbers in a folder that is named like one of masks."""
