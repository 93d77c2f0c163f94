"""The same pixels as other libraries make of the same photographs.

Their arrays are in tests/checkpoints/pixels.npz, which make_pixels.py makes.
"""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from tests import libraries, published
from tests.checkpoints import make_pixels
from tests.data.pictures import noise, photographs, png, scene
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.families.family import IMAGENET_MEAN, IMAGENET_STD
from vit_jax.pretrained.folder import open_folder
from vit_jax.pretrained.formats import (
  open_clip,
  processor,
  timm_shared,
  torchvision,
)

with np.load(published.path("pixels.npz")) as stored:
  PIXELS = {k: stored[k] for k in stored}
NAMES = [name for name in PIXELS if not name.endswith(".json")]
FILES = {name: json.loads(str(PIXELS[f"{name}.json"])) for name in NAMES}


def described(name: str) -> Preprocessing:
  """The preprocessing that the library's own description gives."""
  if name.startswith("timm"):
    found = timm_shared.preprocessing(FILES[name])
  elif name == "torchvision":
    found, _ = torchvision.preprocessing("vit_b_16-c867db91.safetensors")
  else:
    pillows = {"resizer": "pillow"} if name.endswith("_pil") else {}
    return processor.read(FILES[name] | pillows)
  _, height, width, _ = PIXELS[name].shape
  return dataclasses.replace(found, size=(height, width))


def levels(name: str) -> tuple[np.ndarray, np.ndarray]:
  """Our pixels and the library's, in levels of 255, for all photographs."""
  found = described(name)
  transform = found.transform()
  ours = np.stack([transform(photo) for photo in photographs().values()])
  theirs = PIXELS[name].astype(np.float32) * found.std + found.mean
  return ours.astype(np.float32), theirs * 255


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_the_librarys(name):
  """To a level; stored in half-precision, a tenth of which is its error."""
  ours, theirs = levels(name)
  difference = np.abs(ours - theirs)
  print(name, difference.max((1, 2, 3)).round(3).tolist())
  assert difference.max() < most(name) + 0.15


def most(name: str) -> float:
  """The largest difference from the library's own pixels, in levels of 255.

  DINOv3's are not rounded. Of all others, each is ours.
  """
  return 0.5 if name == "dinov3" else 0


# Landscape and portrait, larger and smaller than the 24 pixels to make; Pillow
# begins with the height of some.
SHAPES = ((131, 60), (60, 131), (7, 5), (5, 7), (113, 11), (11, 113), (12, 40))
SHAPES += ((24, 24), (28, 36), (23, 25), (300, 451), (451, 300), (24, 90))


@pytest.mark.filterwarnings("ignore")
def test_pixels_are_those_of_the_class_that_is_chosen_by_default(tmp_path):
  """By AutoImageProcessor of transformers 5.23.0, and by timm 1.0.31."""
  library, _ = libraries.needed("transformers", "timm")
  known = make_pixels.transforms()
  seen = 0
  for name, (config, theirs) in known.items():
    if name in make_pixels.HUGGING_FACE:
      (tmp_path / processor.FILE).write_text(json.dumps(config))
      chosen = library.AutoImageProcessor.from_pretrained(tmp_path)
      assert chosen.backend == "torchvision"  # The default where it is there.
      theirs = make_pixels.pixels_of(chosen)
    found = described(name)
    transform = found.transform()
    for shape in SHAPES:
      for picture in (scene(*shape), noise(*shape)):
        expected = theirs(Image.fromarray(picture)).transpose(1, 2, 0)
        expected = (expected * found.std + found.mean) * 255
        difference = np.abs(expected - transform(png(picture))).max()
        assert difference < most(name) + 1e-2, (name, shape)
        seen += 1
  assert seen == 2 * len(SHAPES) * len(NAMES)


IMAGENET = {
  "image_mean": IMAGENET_MEAN,
  "image_std": IMAGENET_STD,
}
SQUARE = {"height": 224, "width": 224}
# What the publishers' files say, as far as it is not the default of the class.
PUBLISHED = {
  "aimv2": {"image_processor_type": "CLIPImageProcessor"},
  "beit": {"feature_extractor_type": "BeitFeatureExtractor", "size": 224}
  | {"do_center_crop": False, "resample": 2},
  "dinov3": {"image_processor_type": "DINOv3ViTImageProcessorFast"},
  "ijepa": {"image_processor_type": "ViTImageProcessor"},
  "internvl": {"image_processor_type": "GotOcr2ImageProcessorFast"}
  | {"size": {"height": 448, "width": 448}, "crop_to_patches": False},
  "metaclip_2": {"image_processor_type": "CLIPImageProcessor"}
  | {"size": {"shortest_edge": 378}, "crop_size": 378},
  "mlcd": {"image_processor_type": "CLIPImageProcessor"}
  | {"size": {"shortest_edge": 336}, "crop_size": 336},
  "nearest": {"image_processor_type": "ViTImageProcessor", "resample": 0},
  "nearest_dinov3": {"image_processor_type": "DINOv3ViTImageProcessor"}
  | {"resample": 0},
  "pixio": {"image_processor_type": "BitImageProcessor", "resample": 3}
  | {"size": {"height": 256, "width": 256}, "do_center_crop": False}
  | IMAGENET,
  "radio": {"image_processor_type": "CLIPImageProcessor", "size": SQUARE}
  | {"do_center_crop": False, "do_normalize": False},
  "siglip": {"image_processor_type": "SiglipImageProcessor", "resample": 3}
  | {"size": {"height": 384, "width": 384}},
  "tipsv2": {"image_processor_type": "Tipsv2ImageProcessor"},
  "vit_msn": {"image_processor_type": "ViTImageProcessor"} | IMAGENET,
}
FILE, NESTED = processor.FILE, processor.NESTED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("files", [(FILE,), (NESTED,), (FILE, NESTED)])
@pytest.mark.parametrize("family", PUBLISHED)
def test_pixels_of_published_files_are_those_of_the_class(
  tmp_path, family, files
):
  """At their own sizes, of either file, or of both where they differ."""
  (library,) = libraries.needed("transformers")
  config = PUBLISHED[family]
  other = {"image_processor_type": "ViTImageProcessor", "size": 32}
  if FILE in files:
    first = config if len(files) == 1 else other
    (tmp_path / FILE).write_text(json.dumps(first))
  if NESTED in files:
    section = json.dumps({processor.SECTION: config})
    (tmp_path / NESTED).write_text(section)
  (tmp_path / "model.safetensors").touch()
  found = open_folder(tmp_path)
  assert found.pictures_file == files[-1]
  ours = processor.read(found.pictures, found.pictures_file)
  chosen = library.AutoImageProcessor.from_pretrained(tmp_path)
  theirs, transform = make_pixels.pixels_of(chosen), ours.transform()
  for shape in ((300, 451), (613, 340), (90, 61), (480, 640)):
    for picture in (scene(*shape), noise(*shape)):
      expected = theirs(Image.fromarray(picture)).transpose(1, 2, 0)
      expected = (expected * ours.std + ours.mean) * 255
      difference = np.abs(expected - transform(png(picture)))
      assert difference.max() < most(family) + 1e-2, shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [(24, 24), (24, 32), (32, 24)])
@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_pixels_of_open_clips_files_are_its_own(size, mode, name):
  """Rectangles are covered, and cut from the centre, if it is so told."""
  (transform,) = libraries.needed("open_clip.transform")
  told = {"size": [*size], "resize_mode": mode, "interpolation": name}
  ours = processor.read(open_clip.pictures({"preprocess_cfg": told}))
  side = size[0] if size[0] == size[1] else size
  theirs = transform.image_transform(
    side, is_train=False, resize_mode=mode, interpolation=name
  )
  for shape in (*SHAPES, (25, 49), (480, 640)):
    picture = noise(*shape)
    expected = theirs(Image.fromarray(picture)).numpy().transpose(1, 2, 0)
    expected = (expected * ours.std + ours.mean) * 255
    difference = np.abs(expected - ours.transform()(png(picture)))
    assert difference.max() < 1e-2, shape


TIMM_MODULES = ("vision_transformer", "deit", "eva", "beit")
TIMM_MODULES += ("vision_transformer_hybrid", "vision_transformer_relpos")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pixels_of_every_way_that_timm_has_are_its_own():
  """Of all checkpoints of its ViTs, EVA, PE and BEiT: 50 ways and sizes."""
  (library,) = libraries.needed("timm")
  ways = {}
  for module in TIMM_MODULES:
    listed = {"module": module, "pretrained": True, "include_tags": True}
    for name in library.list_models(**listed):
      published_as = library.models.get_pretrained_cfg(name)
      config = published_as.to_dict(remove_source=True, remove_null=True)
      config = json.loads(json.dumps(config))  # As it stands in a file.
      chosen = library.data.resolve_data_config(pretrained_cfg=config)
      way = tuple(sorted((key, str(value)) for key, value in chosen.items()))
      ways.setdefault(way, (name, config, chosen))
  assert len(ways) > 45
  for name, config, chosen in ways.values():
    size = timm_shared.image_size({}, config)
    ours = dataclasses.replace(timm_shared.preprocessing(config), size=size)
    theirs, transform = (
      library.data.create_transform(**chosen),
      ours.transform(),
    )
    for shape in ((300, 451), (613, 340), (90, 61), (480, 640)):
      for picture in (scene(*shape), noise(*shape)):
        expected = theirs(Image.fromarray(picture)).numpy().transpose(1, 2, 0)
        expected = (expected * ours.std + ours.mean) * 255
        difference = np.abs(expected - transform(png(picture)))
        assert difference.max() < 1e-2, (name, shape)


@pytest.mark.parametrize("name", ["clip", "timm_center", "deit"])
def test_a_plain_resize_would_be_seen(name):
  """What was done before to every published model is off by several levels."""
  ours, _ = levels(name)
  plain = Preprocessing(described(name).size).transform()
  whole = np.stack([plain(photo) for photo in photographs().values()])
  assert np.abs(ours - whole).mean() > 3
