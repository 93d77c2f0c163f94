"""The two apps of docs/howto/serve.md, as they stand there."""

import gc
import io
import math
import pathlib
import re
import shutil
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import pages, published
from tests.data.decoding.claims import claiming
from tests.data.pictures import scene
from vit_jax.data import image_size

PAGE = pathlib.Path(__file__).parents[1] / "docs/howto/serve.md"
NAMES = tuple("abcdefghij")


def app(number: int, most_lines: int) -> str:
  """The code of an app of the page."""
  code = [
    b.text for b in pages.blocks(PAGE.read_text()) if b.language == "python"
  ]
  assert code[number].count("\n") <= most_lines
  return code[number]


def encoded(picture, kind="png", orientation=None):
  file, exif = io.BytesIO(), Image.Exif()
  if orientation:
    exif[0x0112] = orientation
  Image.fromarray(picture).save(file, kind, exif=exif)
  return file.getvalue()


def run(code, **names):
  module = types.ModuleType("app")
  module.__dict__.update(names)
  sys.modules["app"] = module  # FastAPI looks up annotations there.
  exec(compile(code, "app.py", "exec"), module.__dict__)
  return module


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  """A published model, whose classes have names."""
  folder = tmp_path_factory.mktemp("served") / "vit"
  shutil.copytree(published.path("hf_vit"), folder)
  (folder / "labels.txt").write_text("\n".join(NAMES))
  return str(folder)


@pytest.fixture(scope="module")
def loaded(checkpoint):
  return vit_jax.load_pretrained(checkpoint)


@pytest.mark.slow
def test_the_service_answers_as_predict_does(
  tmp_path, monkeypatch, checkpoint, loaded
):
  """For a photograph on its side too; what it refuses is one line."""
  pytest.importorskip("fastapi", reason="needs FastAPI")
  from fastapi.testclient import TestClient

  exported = vit_jax.export_model(loaded, platforms=["cpu"])
  path = tmp_path / "model.jaxexport"
  path.write_bytes(exported.serialize())
  monkeypatch.setenv("MODEL", str(path))
  monkeypatch.setenv("CHECKPOINT", checkpoint)
  module = run(app(0, 55))
  assert module.loaded.held is None  # Its weights are in the exported file.
  client = TestClient(module.app)
  photos = [
    encoded(scene(60, 90)),
    encoded(scene(60, 90), "jpeg", orientation=6),
  ]
  sent = [("files", (f"{k}.x", photo)) for k, photo in enumerate(photos)]
  answers = client.post("/predict", files=sent).json()
  for number, photo in enumerate(photos):
    (tmp_path / f"{number}.x").write_bytes(photo)
    (expected,) = loaded.predict([str(tmp_path / f"{number}.x")], top=1)
    answer = answers[number]
    best = max(answer, key=answer.get)
    assert best == expected.names[0]
    assert answer[best] == pytest.approx(expected.probability[0], rel=1e-4)
  assert answers[0] != answers[1]

  broken = client.post("/predict", files=[("files", ("a.jpg", b"no image"))])
  assert broken.status_code == 422
  assert broken.json()["detail"].startswith("a.jpg: ")
  many = client.post("/predict", files=sent[:1] * 17)
  assert many.status_code == 413 and "17 images" in many.json()["detail"]
  wide = claiming(40_000)["PNG RGB"]
  claim = client.post("/predict", files=[("files", ("a.png", wide))])
  assert claim.status_code == 422 and "a.png: " in claim.json()["detail"]
  monkeypatch.setattr(module, "MOST_PIXELS", 60 * 90 - 1)
  claim = client.post("/predict", files=sent)
  assert claim.status_code == 422
  assert "0.x: send an image of at most 5,399 pix" in claim.json()["detail"]
  monkeypatch.setattr(module, "MOST_BYTES", 100)
  large = client.post("/predict", files=sent)
  assert large.status_code == 413
  assert "at most 100 bytes" in large.json()["detail"]


def test_two_images_at_most_are_decoded_at_once():
  """The function of the page, without the libraries that serve it."""
  code = app(0, 55)
  start, end = code.index("def prepared"), code.index('@app.post("/predict")')
  (decoders,) = map(int, re.findall(r"threading.Semaphore\((\d)\)", code))
  at_once, most, two_are_here = [], [], threading.Event()

  def prepare(encoded):
    at_once.append(encoded)
    most.append(len(at_once))
    if len(at_once) == 2:
      two_are_here.set()
    two_are_here.wait(60)
    at_once.remove(encoded)
    return encoded

  module = run(
    code[start:end],
    math=math,
    image_size=image_size,
    MOST_PIXELS=100,
    DECODERS=threading.Semaphore(decoders),
    prepare=prepare,
  )
  photos = [encoded(scene(10, 10))[:-12] + bytes([k]) for k in range(8)]
  with ThreadPoolExecutor(8) as pool:
    assert [*pool.map(module.prepared, photos)] == photos
  assert max(most) == decoders == 2
  with pytest.raises(ValueError, match="an image of at most 100 pixels"):
    module.prepared(encoded(scene(10, 11)))


@pytest.mark.slow
# Gradio leaves an event loop open, which is told when it is collected.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_demo_answers_as_predict_does(
  tmp_path, monkeypatch, checkpoint, loaded
):
  gradio = pytest.importorskip("gradio", reason="needs Gradio")
  monkeypatch.setattr(sys, "argv", ["demo.py", checkpoint])
  module = run(app(1, 26), __name__="demo")
  path = tmp_path / "photo.png"
  path.write_bytes(encoded(scene(60, 90)))
  gc.collect()  # That loop, while its warning is ignored.
  (expected,) = loaded.predict([str(path)], top=5)
  answer = module.classify(str(path))
  assert [*answer] == [*expected.names]
  np.testing.assert_allclose([*answer.values()], expected.probability)
  monkeypatch.setattr(module, "MOST_PIXELS", 60 * 90 - 1)
  with pytest.raises(gradio.Error, match="at most 5,399 pixels"):
    module.classify(str(path))
  path.write_bytes(b"no image")
  with pytest.raises(gradio.Error, match="not an image of a known format"):
    module.classify(str(path))
