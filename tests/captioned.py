"""The same pairs of images and captions in every form that is read."""

import csv
import io
import json
import pathlib
import tarfile
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from tests.data.pictures import png
from vit_jax.pack import writer
from vit_jax.pack.shards import Encoding
from vit_jax.pack.sources import open_sources

FORMS = ("csv", "packed", "webdataset", "tfds")
COLOURS = ("red", "green", "blue")
SHAPES = ("square", "tall", "wide")
SIDES = ((24, 24), (24, 12), (12, 24))
COUNTS = {"train": 27, "val": 18}


class Pair(NamedTuple):
  """An image of a split, and its captions."""

  split: str
  name: str
  image: bytes
  captions: list[str]
  colour: str


def pairs() -> list[Pair]:
  """Pictures of three colours and sides; one in three has two captions."""
  rng = np.random.default_rng(0)
  made = []
  for split, count in COUNTS.items():
    for k in range(count):
      colour, shape = k % 3, k // 3 % 3
      pixels = rng.integers(0, 60, (*SIDES[shape], 3)).astype(np.uint8)
      pixels[..., colour] += 150
      words = COLOURS[colour], SHAPES[shape]
      captions = ["a {} {} picture".format(*words)]
      if k % 3 == 0:
        captions.append("{1}: {0}".format(*words))
      name = f"{split}_{k}.png"
      made.append(Pair(split, name, png(pixels), captions, words[0]))
  return made


def write_csv(folder: pathlib.Path, made: list[Pair]) -> pathlib.Path:
  """Writes the images and `pairs.csv`, and returns its path."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "pairs.csv"
  with path.open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["file", "caption", "split"])
    for pair in made:
      (folder / pair.name).write_bytes(pair.image)
      for text in pair.captions:
        rows.writerow([pair.name, text, pair.split])
  return path


def write_tars(folder: pathlib.Path, made: list[Pair]) -> pathlib.Path:
  """Writes a tar of each split: one caption as .txt, several as .json."""
  folder.mkdir(parents=True)
  for split in COUNTS:
    with tarfile.open(folder / f"{split}-0.tar", "w") as tar:
      for pair in (pair for pair in made if pair.split == split):
        stem = pair.name.removesuffix(".png")
        members = {f"{stem}.png": pair.image}
        if len(pair.captions) == 1:
          members[f"{stem}.txt"] = f"{pair.captions[0]}\n".encode()
        else:
          text = json.dumps({"caption": pair.captions, "width": 24})
          members[f"{stem}.json"] = text.encode()
        for name, content in members.items():
          info = tarfile.TarInfo(name)
          info.size = len(content)
          tar.addfile(info, io.BytesIO(content))
  return folder


def prepare(folder: pathlib.Path, made: list[Pair]) -> None:
  """Prepares the TFDS data set "captioned" 1.0.0, in the form of COCO's."""

  class Captioned(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    url_infos = {}

    def _info(self):
      named = {
        "image": tfds.features.Image(encoding_format="png"),
        "image/filename": tfds.features.Text(),
        "captions": tfds.features.Sequence(
          {"id": np.int64, "text": tfds.features.Text()}
        ),
      }
      described = tfds.features.FeaturesDict(named)
      return tfds.core.DatasetInfo(builder=self, features=described)

    def _split_generators(self, dl_manager):
      return {
        "train": self._generate_examples("train"),
        "test": self._generate_examples("val"),
      }

    def _generate_examples(self, split):
      for number, pair in enumerate(p for p in made if p.split == split):
        texts = [{"id": k, "text": t} for k, t in enumerate(pair.captions)]
        yield (
          number,
          {
            "image": io.BytesIO(pair.image),
            "image/filename": pair.name,
            "captions": texts,
          },
        )

  Captioned(data_dir=folder).download_and_prepare(file_format="array_record")


def settings(root: pathlib.Path, form: str) -> dict[str, str]:
  """What `data` is set to for a form that `write_all` wrote."""
  if form == "csv":
    return {"labels_file": str(root / "csv" / "pairs.csv")}
  if form == "tfds":
    return {"name": "captioned", "data_dir": str(root / "tfds")}
  return {"dir": str(root / form)}


def write_all(root: pathlib.Path) -> None:
  """Writes the pairs in every form."""
  made = pairs()
  path = write_csv(root / "csv", made)
  sources = {"packed": path, "webdataset": write_tars(root / "tars", made)}
  for name, source in sources.items():
    splits = open_sources(str(source))
    writer.pack(splits, str(root / name), Encoding(), workers=1)
  prepare(root / "tfds", made)
