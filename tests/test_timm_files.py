"""The rows of timm's files, against timm's own account of them."""

import functools
import json
import math
import struct

import numpy as np
import pytest
from PIL import Image

from tests import libraries
from tests.data.pictures import noise, png, scene
from vit_jax.pretrained import known
from vit_jax.pretrained.load import open_checkpoint

ROWS = {
  name: entry.url.removeprefix("hf://timm/")
  for name, entry in known.KNOWN.items()
  if entry.url.startswith("hf://timm/")
}
# Rows whose licence is not that of timm's configuration, which has a default,
# but that of the publisher's model card; OpenAI names none for its weights.
OTHER_LICENSES = {
  "timm_l14_internvit_v25": "mit",
  **{name: "unknown" for name, id in ROWS.items() if id.endswith(".openai")},
}
# Parts of a head, by the beginnings of our names.
HEAD = ("head/", "head_dist/", "pre_logits/")
TYPES = {"float32": ("F32", 4), "int64": ("I64", 8), "bool": ("BOOL", 1)}
# Not square, larger and smaller than the pictures to make.
SHAPES = ((300, 451), (613, 340), (90, 61))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ROWS)
def test_a_file_of_timms_is_what_its_row_says(tmp_path, name):
  """Of the real depth and width; the file has room for numbers, and none."""
  timm, torch = libraries.needed("timm", "torch")
  entry, theirs = known.KNOWN[name], ROWS[name]
  with torch.device("meta"):
    model = timm.create_model(theirs)
  published = model.pretrained_cfg
  assert published["hf_hub_id"] == f"timm/{theirs}"
  license = OTHER_LICENSES.get(name, published["license"])
  assert entry.license == license
  timm.models._hub.save_config_for_hf(model, str(tmp_path / "config.json"))
  write_room_for(model.state_dict(), tmp_path / "model.safetensors")
  loaded = open_checkpoint(str(tmp_path))
  sizes = {leaf: math.prod(shape) for leaf, shape in loaded.shapes.items()}
  encoder = [n for leaf, n in sizes.items() if not leaf.startswith(HEAD)]
  assert sum(encoder) == entry.parameters
  size = published["input_size"][1:]
  assert size == (entry.image_size,) * 2
  assert (entry.top1 is not None) <= (published["num_classes"] == 1000)
  options = timm.data.resolve_model_data_config(model)
  assert_same_pixels(json.dumps(options), loaded.preprocessing)


def write_room_for(arrays, path):
  """Writes safetensors of these types and shapes, whose bytes are a hole."""
  header, end = {}, 0
  for name, array in arrays.items():
    kind, width = TYPES[str(array.dtype).removeprefix("torch.")]
    begin, end = end, end + width * array.numel()
    header[name] = {
      "dtype": kind,
      "shape": list(array.shape),
      "data_offsets": [begin, end],
    }
  text = json.dumps(header).encode()
  with path.open("wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)


@functools.cache
def assert_same_pixels(options, preprocessing):
  """Checks that every pixel is timm's, to a hundredth of a level of 255."""
  (timm,) = libraries.needed("timm")
  theirs = timm.data.create_transform(**json.loads(options))
  ours = preprocessing.transform()
  height, width = preprocessing.image_size
  for shape in SHAPES:
    for picture in (scene(*shape), noise(*shape)):
      expected = theirs(Image.fromarray(picture)).numpy().transpose(1, 2, 0)
      expected = expected[:height, :width]
      expected = (expected * preprocessing.std + preprocessing.mean) * 255
      assert np.abs(expected - ours(png(picture))).max() < 1e-2, shape
