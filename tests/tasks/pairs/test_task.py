"""Pairs of images and captions: the task, and whole runs."""

import dataclasses
import math
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from PIL import Image

from configs import pairs
from tests import captioned, encoders, runs
from vit_jax import init_params, make_vit
from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.reading.sources import open_source
from vit_jax.models.two_towers import IMAGE, TEXT, tower_of
from vit_jax.predict import predict_files
from vit_jax.pretrained import text as text_towers
from vit_jax.pretrained.load import load_pretrained, load_text, open_checkpoint
from vit_jax.report.write import report_files
from vit_jax.run import build, few_images, loop
from vit_jax.run.experiments.replay import verify
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.run.summary import header
from vit_jax.run.texts import captions_of
from vit_jax.tasks.pairs.settings import PairsSettings
from vit_jax.tasks.pairs.task import PairsTask
from vit_jax.training import sharding
from vit_jax.training.losses import StepContext
from vit_jax.training.schedules import RunLength

COLOURS = captioned.COLOURS


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """A folder with the pairs in every form, and class folders in `labelled`."""
  root = tmp_path_factory.mktemp("pairs")
  captioned.write_all(root)
  for pair in captioned.pairs():
    path = root / "labelled" / pair.split / pair.colour / pair.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pair.image)
  return root


def config(photos, form="csv", **changes):
  c = pairs.get_config()
  c.update(
    total_epochs=0.0,
    total_steps=8,
    batch_size=16,
    image_size=(16, 16),
    log_every_epochs=0.0,
    log_every_steps=1,
    eval_every_epochs=0.0,
    eval_every_steps=8,
    save_every_epochs=0.0,
    save_every_steps=4,
    digest_every=1,
    ema_decay=0.9,
  )
  c.data.update(captioned.settings(photos, form))
  c.loader.num_workers = 0
  c.optimizer.update(warmup_epochs=0.0, warmup_steps=1)
  c.model.update(num_layers=1, hidden_size=16, mlp_size=32, dropout_rate=0.1)
  c.pairs.update(text_size=16, text_layers=1, text_length=12, vocabulary=300)
  c.update(changes)
  return c


@pytest.mark.slow
def test_a_run_is_resumed_evaluated_verified_and_answers_in_words(
  photos, tmp_path, capsys
):
  changed = config(photos)
  changed.pairs.zero_shot = str(photos / "labelled")
  state, evaluated = loop.train(read(changed), str(tmp_path / "whole"))
  found = evaluate_checkpoint(str(tmp_path / "whole"))
  for key, value in found.items():
    assert value == pytest.approx(evaluated[key], rel=1e-5), key
  ways = [f"eval/{w}_recall{k}" for w in ("text", "image") for k in (1, 5, 10)]
  assert {*ways, "eval/text_rank", "eval/zero_shot"} < {*found}
  assert "zero-shot accuracy is measured on" in capsys.readouterr().err
  assert verify(str(tmp_path / "whole"), trust=True)
  runs.stop(changed, tmp_path / "again", step=4)
  resumed, _ = loop.train(read(changed), str(tmp_path / "again"))
  assert runs.identical(jax.device_get(resumed), jax.device_get(state))

  # Zero-shot classes are those of the two towers, by their formula.
  run = str(tmp_path / "whole")
  text = load_text(run)
  averaged = jax.device_get(state.averaged_params)
  assert text.scale == pytest.approx(np.exp(averaged["log_scale"]), rel=1e-5)
  assert text.bias == pytest.approx(float(averaged["bias"]), rel=1e-5)
  loaded = load_pretrained(run)
  found = loaded.embed_texts(["a red picture", "blue"])
  np.testing.assert_array_equal(found, text.embed(["a red picture", "blue"]))
  assert loaded.features(str(photos / "labelled")).shape[1] == found.shape[1]
  (tmp_path / "names.txt").write_text("\n".join(COLOURS))
  capsys.readouterr()
  images = str(photos / "labelled" / "val" / "red")
  names = str(tmp_path / "names.txt")
  assert predict_files(run, images, texts=names, as_json=True) == 0
  assert capsys.readouterr().out.count("red") > 5


@pytest.mark.slow
def test_a_run_on_images_of_any_size(photos, tmp_path):
  changed = config(photos)
  changed.data.tokens = 6
  changed.pairs.zero_shot = str(photos / "labelled")
  run = str(tmp_path / "run")
  _, evaluated = loop.train(read(changed), run)
  found = evaluate_checkpoint(run)
  for key, value in found.items():
    assert value == pytest.approx(evaluated[key], rel=1e-5), key
  loaded = load_pretrained(run)
  files = str(photos / "labelled" / "val" / "red")
  answers = loaded.predict(files, texts=["a red picture", "blue"])
  features = loaded.features(files)
  patches: Any = loaded.preprocess(files)
  assert patches.values.shape[1] == 6 and len(answers) == len(features)

  @jax.jit
  def represented(params, patches):
    pooled = loaded.model.apply({"params": params}, patches, method="pooled")
    variables = {"params": params}
    return loaded.model.apply(variables, pooled, method="representation")

  expected: Any = represented(loaded.params, patches)
  np.testing.assert_allclose(features, expected[:, 0], atol=1e-5)


def test_a_tokenizer_is_made_of_no_caption_that_is_held_out(tmp_path, capsys):
  rows = ["file,caption"]
  for n in range(20):
    Image.new("RGB", (8, 8)).save(tmp_path / f"{n}.png")
    rows.append(f"{n}.png,word{n}")
  (tmp_path / "pairs.csv").write_text("\n".join(rows))
  c = pairs.get_config()
  c.data.update(labels_file=str(tmp_path / "pairs.csv"))
  settings = read(c)
  held_out = open_source("eval", settings.data)
  names = {pathlib.Path(name).stem for name in held_out.ids(range(4))}
  texts = [*captions_of(settings)]
  assert len(texts) == 16
  assert not {f"word{name}" for name in names} & {*texts}
  capsys.readouterr()
  build.open_texts(settings, build.task_of(settings))
  assert "tokens, of 16 training captions" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", [f for f in captioned.FORMS if f != "csv"])
def test_a_run_on_every_form_measures_as_that_on_the_file(
  photos, tmp_path, form, capsys
):
  """The tokenizer is the same, and so is an evaluation of the same weights."""
  changes = {"total_steps": 1, "eval_every_steps": 1, "save_every_steps": 1}
  folders = {name: tmp_path / name for name in ("csv", form)}
  for name, folder in folders.items():
    changed = config(photos, form=name, **changes)
    changed.model.dropout_rate = 0.0
    changed.optimizer.update(peak_lr=0.0, weight_decay=0.0)
    changed.pairs.zero_shot = str(photos / "labelled")
    loop.train(read(changed), str(folder))
  said = capsys.readouterr().err
  assert said.count("tokens, of 36 training captions.") == 2
  tokenizers = [load_text(str(folder)).tokenizer for folder in folders.values()]
  texts = ["a red tall picture", "unheard of"]
  np.testing.assert_array_equal(*(one(texts) for one in tokenizers))
  expected, found = (evaluate_checkpoint(str(f)) for f in folders.values())
  assert found.keys() == expected.keys()
  ways = [f"eval/{way}_recall{k}" for way in ("text", "image") for k in (1, 5)]
  for key in (*ways, "eval/text_rank", "eval/cosine", "eval/zero_shot"):
    assert found[key] == pytest.approx(expected[key], rel=1e-5), key
  assert report_files([str(folders[form])]) == 0
  page = (folders[form] / "report.html").read_text()
  assert "Best pairs" in page and "picture (rank " in page


@pytest.mark.slow
def test_eight_devices_share_the_parameters(photos, tmp_path):
  """By FSDP, with the losses of one device, and with scanned layers."""
  unread = dict(eval_every_steps=0, save_every_steps=0, digest_every=0)
  settings = config(photos, total_steps=3, ema_decay=0.0, **unread)
  settings.model.update(dropout_rate=0.0)
  make_mesh = sharding.make_mesh

  def on_one(**axes):
    return make_mesh(devices=jax.devices()[:1])

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, "make_mesh", on_one)
    loop.train(read(settings), str(tmp_path / "one"))
  settings.mesh.update(data=1, fsdp=8)
  state, _ = loop.train(read(settings), str(tmp_path / "eight"))
  leaves = jax.tree.leaves(state.params)
  split = [leaf for leaf in leaves if "fsdp" in leaf.sharding.spec]
  assert len(split) > 10
  np.testing.assert_allclose(
    runs.losses(tmp_path / "eight"), runs.losses(tmp_path / "one"), rtol=1e-4
  )


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"pairs.image": "frozen"},
      "pairs.image='frozen' needs a pretrained image",
    ),
    ({"pairs.text": "frozen"}, "pairs.text='frozen' needs a pretrained text"),
    ({"pairs.image": "lora"}, "lora.rank=0 leaves pairs.image='lora' without"),
    ({"batch_size": 1}, "batch_size=1: a pair is compared with the others"),
    ({"pairs.tokenizer": "nowhere"}, "pairs.tokenizer='nowhere' is not a to"),
    (
      {"pairs.image": "frozen", "pairs.text": "frozen"},
      "leave nothing to train",
    ),
  ],
)
def test_what_cannot_be_trained_is_one_line(photos, changes, message):
  changed = config(photos)
  changed.update_from_flattened_dict(changes)
  changed.mesh.update(data=1, fsdp=1, tensor=-1)
  with pytest.raises(ValueError, match=message) as error:
    make_plan(read(changed))
  assert "\n" not in str(error.value)


def task(**settings):
  return PairsTask(pairs=PairsSettings(**settings))


def model_of(given):
  sizes = dict(num_layers=1, hidden_size=8, mlp_size=16, num_heads=2)
  return given.adapted(make_vit("Ti/8", 0, **sizes))


def one_update(given, updates):
  """The parameters before and after an update of all by `updates`."""
  model = model_of(given)
  params = init_params(model, jax.random.key(0), 16)
  tx: optax.GradientTransformation = given.optimizer(
    optax.scale(1.0), None, RunLength(10, 4, 4)
  )
  grads = jax.tree.map(lambda x: jnp.full_like(x, updates), params)
  steps, _ = jax.jit(lambda g, p: tx.update(g, tx.init(p), p))(grads, params)
  after = optax.apply_updates(params, steps)
  return [traverse_util.flatten_dict(tree, sep="/") for tree in (params, after)]


@pytest.mark.parametrize(
  "settings, said",
  [
    ({}, "the image and the text towers"),
    ({"image": "frozen"}, "the text tower; the image tower stays as it is"),
  ],
)
def test_what_is_trained_is_said(settings, said):
  assert task(**settings).trained == said


@pytest.mark.slow
def test_towers_that_begin_with_weights_learn_slowly():
  given = task(start_lr=0.1, vocabulary=20)
  setup = given.text_setup.of(given.pairs, None, None, ("image",))
  given = dataclasses.replace(given, text_setup=setup)
  before, after = one_update(given, 1.0)
  for path, array in before.items():
    factor = 0.1 if tower_of(path) == "image" else 1.0
    np.testing.assert_allclose(after[path] - array, factor, atol=1e-5)


@pytest.mark.slow
def test_a_frozen_tower_keeps_its_values_and_takes_no_memory():
  given = task(image="frozen", vocabulary=20)
  before, after = one_update(given, 1.0)
  moved = {p for p in before if not np.array_equal(before[p], after[p])}
  assert moved == {p for p in before if tower_of(p) != "image"}
  params = init_params(model_of(given), jax.random.key(0), 16)
  tx = given.optimizer(optax.trace(0.9), None, RunLength(10, 4, 4))
  sizes = [x.size for x in jax.tree.leaves(tx.init(params))]
  flat = traverse_util.flatten_dict(params, sep="/")
  assert sum(sizes) == sum(flat[path].size for path in moved)


@pytest.mark.slow
def test_the_scale_of_the_softmax_loss_stays_below_100():
  before, after = one_update(task(loss="softmax", vocabulary=20), 9.0)
  assert before["log_scale"] == pytest.approx(np.log(1 / 0.07))
  assert after["log_scale"] == pytest.approx(np.log(100))
  assert "bias" not in before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize("distinct", [True, False])
def test_the_loss_is_the_papers_in_numpy(kind, distinct):
  given = task(loss=kind, distinct=distinct, vocabulary=20, text_length=4)
  model = model_of(given)
  objective = given.objective(model, Preprocessing((16, 16)))
  rng = np.random.default_rng(0)
  text = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [1, 2, 3, 0]], np.int32)
  batch = {
    "image": rng.integers(0, 256, (3, 16, 16, 3)).astype(np.uint8),
    "text": text,
  }
  params = init_params(model, jax.random.key(0), 16)
  inputs, groups = objective.prepare(
    {k: jnp.asarray(x) for k, x in batch.items()}, jax.random.key(0)
  )
  told = jax.jit(model.apply)({"params": params}, inputs)
  loss, cosine, *_ = jax.jit(
    lambda told: objective.loss(lambda _: told, inputs, groups, StepContext())
  )(told)
  z = np.asarray(told.logits(), np.float64)
  expected = np.zeros(3)
  for i in range(3):
    others = [
      j
      for j in range(3)
      if j != i and not (distinct and (text[i] == text[j]).all())
    ]
    if kind == "sigmoid":
      expected[i] = np.log1p(np.exp(-z[i, i]))
      expected[i] += sum(np.log1p(np.exp(z[i, j])) for j in others)
    else:
      for row in (z[i], z[:, i]):
        total = sum(np.exp(row[j] - row[i]) for j in (i, *others))
        expected[i] += np.log(total) / 2
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  own = z.diagonal() - (0 if told.bias is None else float(told.bias))
  np.testing.assert_allclose(
    cosine, own / np.exp(float(told.log_scale)), rtol=1e-4, atol=1e-6
  )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", "lora"])
def test_a_new_text_tower_learns_beside_a_published_encoder(
  photos, tmp_path, how, capsys
):
  """Frozen, as in LiT, or with LoRA, whose base no checkpoint holds."""
  c = config(photos, total_steps=2, eval_every_steps=2, save_every_steps=2)
  c.model.update(dict.fromkeys(("num_layers", "hidden_size", "mlp_size")))
  c.model.dropout_rate, c.image_size, c.digest_every = None, None, 0
  c.pretrained = str(encoders.FOLDER / "hf_dinov2")
  c.pairs.image = how
  c.lora.rank = 2 if how == "lora" else 0
  _, evaluated = loop.train(read(c), str(tmp_path / "run"))
  said = re.search(r"trains ([\d,]+) of ([\d,]+) p", capsys.readouterr().out)
  assert said
  trained, whole = (int(number.replace(",", "")) for number in said.groups())
  shapes = open_checkpoint(str(tmp_path / "run"), as_trained=True).shapes
  sizes = {path: math.prod(shape) for path, shape in shapes.items()}
  others = sum(size for p, size in sizes.items() if tower_of(p) != "image")
  assert whole == sum(sizes.values()) > trained >= others
  assert how == "lora" or trained == others
  found = evaluate_checkpoint(str(tmp_path / "run"))
  for key, value in found.items():
    assert value == pytest.approx(evaluated[key], rel=1e-4), key


def _published(photos):
  """The configuration that begins with both towers of a CLIP."""
  c = config(photos)
  c.model.update(dict.fromkeys(("variant", "num_layers", "hidden_size")))
  c.model.update(mlp_size=None, num_heads=None, pooling=None, position=None)
  c.image_size = None
  c.pretrained = str(encoders.FOLDER.parent / "texts" / "hf_clip")
  return c


def test_few_pairs_are_told_of_a_frozen_image_tower(photos, monkeypatch):
  c = _published(photos)
  plan = make_plan(read(c))
  says = (
    f"{len(plan.source)} images are few: --config.pairs.image=frozen trains "
    "the text tower alone, which takes a third of the work in the image tower"
  )
  rows = header(plan, "runs/x")
  assert ("training", "the image and the text towers") in rows
  assert ("", says) in rows
  monkeypatch.setattr(few_images, "FEW", len(plan.source))
  assert ("", says) not in header(plan, "runs/x")
  c.pairs.image = "frozen"
  monkeypatch.setattr(few_images, "FEW", 1000)
  texts = [text for _, text in header(make_plan(read(c)), "runs/x")]
  assert not any("images are few" in text for text in texts)


def test_a_text_tower_is_opened_once(photos, monkeypatch):
  """Its tokenizer and its weights come from the same file."""
  opened = []
  open_text = text_towers.open_text

  def counted(*arguments):
    opened.append(open_text(*arguments))
    return opened[-1]

  monkeypatch.setattr(text_towers, "open_text", counted)
  plan = make_plan(read(_published(photos)))
  (text,) = opened
  assert plan.start is not None and plan.start.text_tower is text
  assert plan.task.text_setup.files == text.files
  assert plan.task.text_setup.weights == (IMAGE, TEXT)
  paths = {path for path, _ in plan.start.read()}
  assert {f"{TEXT}/{path}" for path, _ in text.read()} <= paths
