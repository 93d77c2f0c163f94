"""Runs on images that keep their proportions, of a few photographs."""

import contextlib
import io
import json
import math
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from configs import image_folder
from tests import runs
from tests.tasks.answering import Answers
from tests.tiny import compilations
from vit_jax import load_pretrained
from vit_jax.data.example import Example
from vit_jax.data.transforming.sizes import AnySize
from vit_jax.inspection import figures
from vit_jax.models import make_model
from vit_jax.predict import predict_files
from vit_jax.report.measure import read_run
from vit_jax.run import any_size, build, loop
from vit_jax.run.plan import make_plan
from vit_jax.run.saved import evaluate_checkpoint
from vit_jax.run.settings import read
from vit_jax.run.summary import header
from vit_jax.runtime.display import untracked
from vit_jax.training import inputs

SHAPES = ((20, 20), (40, 20), (20, 40), (90, 10), (10, 70), (33, 29))
TOKENS, P = 12, 8


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Photographs of six proportions, of which the colour tells the class."""
  root = tmp_path_factory.mktemp("any_size") / "photos"
  for split in ("train", "test"):
    for name, colour in (("red", 0), ("green", 1)):
      for k, (height, width) in enumerate(SHAPES):
        path = root / split / name / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng((k, colour, len(split)))
        pixels = draw.integers(0, 120, (height, width, 3), np.uint8)
        pixels[..., colour] += 130
        Image.fromarray(pixels).save(path)
  return str(root)


@pytest.fixture
def config(photos):
  return make_config(photos)


def make_config(photos):
  config = image_folder.get_config()
  config.update(
    total_epochs=0.0, total_steps=4, batch_size=8, image_size=(24, 24)
  )
  config.update(
    eval_every_epochs=0.0, save_every_epochs=0.0, save_every_steps=2
  )
  config.update(digest_every=1, log_every_steps=1, log_every_epochs=0.0)
  config.data.update(root=photos, tokens=TOKENS)
  config.model.update(
    variant="Ti/8", hidden_size=24, num_layers=1, mlp_size=32, num_heads=3
  )
  config.optimizer.update(warmup_epochs=0.0, warmup_steps=1)
  config.loss.mixup_alpha = 0.0
  config.loader.num_workers = 0
  return config


def patches_alone(file):
  """The size of an image resized by Pillow, and its patches, in one row."""
  image = Image.open(file)
  height, width = AnySize(TOKENS, P).of((image.height, image.width))
  pixels = image.resize((width, height), Image.Resampling.BILINEAR)
  alone = (np.asarray(pixels, np.float32)[None] / 255 - 0.5) / 0.5
  patches = vit_jax.models.Patches.of(jax.numpy.asarray(alone), P)
  return (height, width), patches


def batch_of(plan):
  with plan.open_batches(0) as batches:
    return dict(next(batches))


def test_a_batch_has_the_patches_of_images_and_their_sizes(config):
  plan = make_plan(read(config))
  batch = batch_of(plan)
  assert batch["image"].shape == (8, TOKENS, P * P * 3)
  assert batch["size"].shape == (8, 1, 2)
  grids = {tuple(size[0]) for size in batch["size"]}
  assert len(grids) > 2 and all(h * w <= TOKENS for h, w in grids)
  patches = jax.device_get(jax.jit(plan.objective.inputs)(batch))
  for row in range(8):
    h, w = batch["size"][row, 0]
    assert patches.image[row].tolist() == [0] * h * w + [-1] * (TOKENS - h * w)
    place = [[n // w, n % w] for n in range(h * w)]
    assert patches.place[row, : h * w].tolist() == place
    pixels = batch["image"][row, : h * w].reshape(-1, 3)
    expected = (pixels / 255 - 0.5) / 0.5
    found = np.asarray(patches.values[row, : h * w]).reshape(-1, 3)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_pictures_of_an_evaluation_show_each_image_as_the_model_sees_it(
  config, monkeypatch
):
  config.update(eval_pictures=3, eval_every_steps=2)
  drawn = []
  keep = figures.sheet_figure

  def sheet_figure(image, names, probability, rollout, *rest):
    drawn.append((image, rollout))
    return keep(image, names, probability, rollout, *rest)

  monkeypatch.setattr(figures, "sheet_figure", sheet_figure)
  plan = make_plan(read(config))
  params = jax.jit(plan.init)(jax.random.key(0)).params
  _, seen = plan.evaluation(params, untracked)
  assert {f"eval/example_{number}" for number in (1, 2, 3)} <= {*seen}
  files = [0, 6, 11]  # The first, the middle and the last of 12.
  for index, (image, rollout) in zip(files, drawn, strict=True):
    shape = AnySize(TOKENS, P).of(SHAPES[index % 6])
    assert image.shape == (*shape, 3)
    assert rollout.shape == (shape[0] // P, shape[1] // P)


@pytest.mark.slow
def test_one_program_trains_on_all_proportions(config, photos):
  plan = make_plan(read(config))
  state = jax.jit(plan.init)(jax.random.key(0))
  images = [Image.open(f"{photos}/train/red/{k}.png") for k in range(6)]
  transform = plan.task.train_transform(
    plan.preprocessing, plan.settings.train_transform
  )
  step = jax.jit(plan.train_step)
  with compilations() as found:
    for image in images:
      file = io.BytesIO()
      image.save(file, "PNG")
      example: Example = {"image": file.getvalue(), "label": 0, "id": ""}
      row = transform.row(example, np.random.default_rng(0))
      batch = {name: np.stack([x] * 8) for name, x in row.items()}
      batch |= {"label": np.zeros(8, np.int32), "skipped": np.zeros(8, bool)}
      state, _ = step(state, batch)
  assert len(found) == 1


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
  """The folder of a run, its metrics and what it printed."""
  folder = tmp_path_factory.mktemp("run")
  changed = make_config(photos)
  changed.update(total_steps=20, eval_every_steps=20)
  changed.optimizer.peak_lr = 3e-3
  with contextlib.redirect_stdout(io.StringIO()) as out:
    _, evaluated = loop.train(read(changed), str(folder))
  return folder, evaluated, out.getvalue()


@pytest.mark.slow
def test_predictions_are_those_of_each_image_alone(run, photos):
  folder, evaluated, out = run
  assert f"at most {TOKENS} patches of {P} x {P}" in out
  assert evaluated["eval/examples"] == 12
  loaded = load_pretrained(str(folder))
  assert loaded.preprocessing.patches == AnySize(TOKENS, P)
  classes = ("green", "red")
  files = [f"{photos}/test/{c}/{k}.png" for c in classes for k in range(6)]
  answers = loaded.predict(files)
  right = [
    answer.names[0] in file for file, answer in zip(files, answers, strict=True)
  ]
  assert np.mean(right) == pytest.approx(evaluated["eval/top1"])
  files = files[:6]
  logits, features = loaded.logits(files), loaded.features(files)
  assert features.shape == (6, 24)
  for file, row, y in zip(files, logits, features, strict=True):
    _, patches = patches_alone(file)
    y_found, found = jax.jit(
      lambda params, patches: loaded.model.apply(
        {"params": params},
        patches,
        method=lambda vit, x: (vit.pooled(x), vit(x)),
      )
    )(loaded.params, patches)
    np.testing.assert_allclose(row, found[0, 0], atol=1e-5)
    np.testing.assert_allclose(y, y_found[0, 0], atol=1e-5)
  prepared = loaded.preprocess(files[:3])
  found = loaded.model.apply({"params": loaded.params}, prepared)[:, 0]
  np.testing.assert_allclose(found, logits[:3], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "task, columns", [("multilabel", "red,large"), ("regression", "height,width")]
)
def test_labels_of_other_kinds(config, photos, tmp_path, task, columns):
  lines = [f"file,split,{columns}"]
  for split in ("train", "test"):
    for name in ("red", "green"):
      for k, (height, width) in enumerate(SHAPES):
        label = f"{height},{width}"
        if task == "multilabel":
          label = f"{int(name == 'red')},{int(height > 30)}"
        lines.append(f"{photos}/{split}/{name}/{k}.png,{split},{label}")
  file = tmp_path / "labels.csv"
  file.write_text("\n".join(lines))
  config.data.update(root=photos, labels_file=str(file), task=task)
  config.loss.label_smoothing = 0.0
  config.update(eval_every_steps=4)
  with contextlib.redirect_stdout(io.StringIO()):
    _, evaluated = loop.train(read(config), str(tmp_path / "run"))
  assert np.isfinite(evaluated["eval/loss"])
  loaded = load_pretrained(str(tmp_path / "run"))
  logits = loaded.logits([f"{photos}/test/red/{k}.png" for k in range(6)])
  assert logits.shape == (6, 2) and len(np.unique(logits, axis=0)) == 6


@pytest.mark.slow
def test_an_autoencoder_of_images_of_any_size(config, photos, tmp_path):
  config.autoencoder.update(
    rate=0.5, decoder_size=8, decoder_layers=1, decoder_heads=2
  )
  config.loss.label_smoothing = 0.0
  config.data.labels = False
  config.update(eval_every_steps=4)
  run = str(tmp_path / "run")
  with contextlib.redirect_stdout(io.StringIO()):
    _, evaluated = loop.train(read(config), run)
  assert np.isfinite(evaluated["eval/loss"])
  found = evaluate_checkpoint(run)
  assert found["eval/loss"] == pytest.approx(evaluated["eval/loss"], rel=1e-5)
  loaded = load_pretrained(run)
  files = [f"{photos}/test/red/{k}.png" for k in range(6)]
  assert loaded.features(files).shape == (6, 24)
  assert read_run(run).problem is None


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_bit(config, tmp_path):
  with contextlib.redirect_stdout(io.StringIO()):
    whole, _ = loop.train(read(config), str(tmp_path / "whole"))
    runs.stop(config, tmp_path / "part", step=2)
    resumed, _ = loop.train(read(config), str(tmp_path / "part"))
  for one, other in zip(
    jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True
  ):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(loss=dict(mixup_alpha=0.2)), "loss.mixup_alpha=0.2 mixes images of"),
    (dict(loss=dict(cutmix_alpha=1.0)), "loss.cutmix_alpha=1.0 mixes images"),
    (dict(cut_from=(32, 32)), r"cut_from=\(32, 32\) cuts images of one size"),
    (dict(eval_transform=dict(crop="center")), "crop='center' cuts images to"),
    (dict(train_transform=dict(as_published=True)), "as_published=True draws"),
    (
      dict(
        eval_pictures=2,
        eval_every_steps=2,
        autoencoder=dict(rate=0.5),
        loss=dict(label_smoothing=0.0),
      ),
      "eval_pictures=2 draws the task autoencoder on images of one",
    ),
    (dict(model=dict(variant="R50+B/32")), "its ResNet reads whole images"),
    (dict(model=dict(position="relative")), "position='relative' counts"),
    (
      dict(masked=dict(rate=0.5), loss=dict(label_smoothing=0.0)),
      "the task masked takes images of one",
    ),
  ],
)
def test_what_takes_images_of_one_size_is_refused(config, changes, message):
  config.update(changes)
  with pytest.raises(ValueError, match=f"^data.tokens=12.*{message}") as info:
    make_plan(read(config))
  assert "\n" not in str(info.value)


def test_a_model_of_another_kind_is_refused(config):
  settings = read(config)
  with pytest.raises(ValueError, match="^data.tokens=12 .* a Answers takes"):
    any_size.check(settings, build.task_of(settings), Answers())


def test_images_to_probe_are_those_of_the_run(config):
  config.fewshot.data.tokens = 64
  with pytest.raises(
    ValueError, match="^fewshot.data.tokens=64: the images of a pr"
  ):
    read(config)


def test_the_header_says_the_share_of_padding(config):
  plan = make_plan(read(config))
  ((_, text),) = [row for row in header(plan, "w") if row[0] == "images"]
  counts = [math.prod(AnySize(TOKENS, P).grid(shape)) for shape in SHAPES]
  share = 1 - sum(counts) / (TOKENS * len(counts))
  assert text == (
    "resized in proportion to at most 12 patches of 8 x 8 (bilinear); "
    f"{share:.1%} of the patches are padding"
  )


@pytest.mark.slow
def test_what_needs_images_of_one_size_says_so(run, photos):
  loaded = load_pretrained(str(run[0]))
  file = f"{photos}/test/red/1.png"
  message = r"^this model's images keep their proportions \(at most 12 .*, and "
  with pytest.raises(ValueError, match=message + r"transform\(image\) makes"):
    loaded.preprocessing.transform()(file)
  square = load_pretrained(str(run[0]), image_size=24)
  assert square.features(file, layers=[1])[0].shape == (1, 9, 24)


@pytest.mark.slow
def test_tokens_of_layers_are_those_of_each_image_alone(run, photos, tmp_path):
  loaded = load_pretrained(str(run[0]))
  files = [f"{photos}/test/red/{k}.png" for k in range(6)]
  (tokens,) = loaded.features(files, layers=[1], batch_size=4)
  last = loaded.patch_features(files)
  (one,) = loaded.features(files[3], layers=[-1], as_maps=True)
  np.testing.assert_allclose(one[0], last[3], atol=1e-5)
  for file, found, maps in zip(files, tokens, last, strict=True):
    (height, width), patches = patches_alone(file)
    model, params = loaded
    (expected,) = vit_jax.features(model, params, patches, layers=[1])
    assert maps.shape == (height // P, width // P, 24)
    np.testing.assert_allclose(found, expected[0], atol=1e-5)
    np.testing.assert_array_equal(maps.reshape(-1, 24), found)
  out = tmp_path / "features.npz"
  with contextlib.redirect_stdout(io.StringIO()) as said:
    options: Any = dict(layers=(1,), tokens=True)
    predict_files(str(run[0]), files, features=str(out), **options)
  assert "features_1 to features_6, of different shapes, to " in said.getvalue()
  arrays = np.load(out)
  assert set(arrays) == {"images", "layers"} | {
    f"features_{number}" for number in range(1, 7)
  }
  for number, (file, expected) in enumerate(zip(files, tokens, strict=True)):
    assert arrays["images"][number] == file
    found = arrays[f"features_{number + 1}"]
    np.testing.assert_allclose(found, expected[None], atol=1e-5)


def prepared_by(facts, file):
  """Patches and their numbers, of a photograph, as the facts of a file say."""
  fact = {name: json.loads(facts[name]) for name in ("patches", "resize")}
  tokens, P = fact["patches"]["tokens"], fact["patches"]["patch_size"]
  assert fact["resize"]["interpolation"] == "bilinear"
  image = Image.open(file)
  sides = np.array([image.height, image.width])
  # All scales, where the file says how to bisect.
  scales = np.arange(1e-3, 3, 1e-4)
  grids = np.maximum(1, np.ceil(sides * scales[:, None] / P)).astype(int)
  h, w = grids[np.flatnonzero(grids.prod(axis=1) <= tokens)[-1]].tolist()
  small = image.resize((w * P, h * P), Image.Resampling.BILINEAR)
  images = np.zeros((tokens, P * P * 3), np.uint8)
  for n in range(h * w):
    top, left = n // w * P, n % w * P
    patch = np.asarray(small)[top : top + P, left : left + P]
    images[n] = patch.reshape(-1)
  return images, np.array([h, w], np.int32)


@pytest.mark.slow
def test_exported_programs_answer_as_the_run(
  run, photos, tmp_path, capsys, monkeypatch
):
  """Their inputs are prepared by what the ONNX file says alone."""
  runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
  loaded = load_pretrained(str(run[0]))
  files = [f"{photos}/test/{c}/{k}.png" for c, k in (("red", 1), ("green", 3))]
  files.append(f"{photos}/test/red/5.png")
  answers = loaded.predict(files)
  monkeypatch.chdir(tmp_path)
  Image.open(files[1]).save("photo.png")
  for name in ("a.onnx", "a.stablehlo"):
    loaded.export(name)
    code = capsys.readouterr().out.partition("installed:\n")[2]
    pasted = {}
    exec(code.replace("photo.jpg", "photo.png"), pasted)  # As it is printed.
    assert capsys.readouterr().out == f"{answers[1].names[0]}\n"
    np.testing.assert_allclose(
      pasted["logits"], loaded.logits(files[1:2]), atol=1e-5
    )
  session = runtime.InferenceSession("a.onnx")
  facts = session.get_modelmeta().custom_metadata_map
  assert "image_size" not in facts and "size has h, w" in facts["patches_rule"]
  rows = [prepared_by(facts, file) for file in files]
  assert len({tuple(size) for _, size in rows}) == 3
  images, size = map(np.stack, zip(*rows, strict=True))
  (found,) = session.run(["logits"], {"images": images, "size": size})
  np.testing.assert_allclose(found, loaded.logits(files), atol=1e-5)
  content = bytearray((tmp_path / "a.stablehlo").read_bytes())
  exported = jax.export.deserialize(content)
  np.testing.assert_allclose(exported.call(images, size), found, atol=1e-5)


@pytest.mark.slow
def test_maps_are_those_of_each_image_alone(run, photos):
  """Without its padding: no map has a value for it, and none counts it."""
  loaded = load_pretrained(str(run[0]))
  files = [f"{photos}/test/red/{k}.png" for k in range(6)]
  found = loaded.attention_maps(files)
  for file, maps in zip(files, found, strict=True):
    image = Image.open(file)
    height, width = AnySize(TOKENS, P).of((image.height, image.width))
    pixels = image.resize((width, height), Image.Resampling.BILINEAR)
    alone = (np.asarray(pixels, np.float32)[None] / 255 - 0.5) / 0.5
    patches = vit_jax.models.Patches.of(jax.numpy.asarray(alone), P)
    _, seen = loaded.model.apply(
      {"params": loaded.params}, patches, mutable="intermediates"
    )
    (A,) = seen["intermediates"]["block_0"]["msa"]["attention"]
    expected = np.asarray(A)[0].mean(axis=1)  # There is no class token.
    assert maps.shape == (3, height // P, width // P)
    np.testing.assert_allclose(maps.reshape(3, -1), expected, atol=1e-5)
  picture = loaded.attention(files[3])
  assert picture.width > 100


@pytest.mark.slow
def test_each_photograph_is_drawn_at_its_own_proportions(run, photos, tmp_path):
  with contextlib.redirect_stdout(io.StringIO()):
    vit_jax.visualize(
      str(run[0]), f"{photos}/test/red", out=tmp_path, pca=True, leave_out=True
    )
  assert (tmp_path / "04_3_pca.png").exists()
  arrays = np.load(tmp_path / "arrays.npz")
  assert arrays["distance"].shape == (1, 3)
  for number, shape in enumerate(SHAPES, 1):
    grid = AnySize(TOKENS, P).grid(shape)
    for key in ("rollout", "relevance", "layers", "attention", "left_out"):
      assert arrays[f"{key}_{number}"].shape[-2:] == grid
    assert arrays[f"pca_{number}"].shape == (*grid, 3)
    assert arrays[f"patches_{number}"].shape == (*grid, 24)
    assert 0 < arrays[f"rollout_{number}"].sum() <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("learns", [None, "both"])
def test_a_run_teaches_another_run(run, config, tmp_path, learns):
  """Its answers, beside the labels, or its features."""
  config.distill.teacher = str(run[0])
  config.update(total_steps=2, eval_every_steps=2)
  if learns:
    config.student.learns = learns
    config.loss.label_smoothing, config.data.labels = 0.0, False
  with contextlib.redirect_stdout(io.StringIO()) as out:
    _, evaluated = loop.train(read(config), str(tmp_path))
  assert "on the patches that the student sees" in out.getvalue()
  found = evaluate_checkpoint(str(tmp_path))
  assert found["eval/loss"] == pytest.approx(evaluated["eval/loss"], rel=1e-5)


@pytest.mark.parametrize(
  "variant, message",
  [
    ("Ti/16", "has patches of 16 x 16 pixels, and the student of 8 x 8: take"),
    ("R50+B/32", r"takes images of one size \(its ResNet reads whole images\)"),
  ],
)
def test_a_teacher_that_sees_other_patches_is_refused(config, variant, message):
  config.distill.teacher = "a_teacher"
  teacher, student = make_model(variant), make_model("Ti/8")
  with pytest.raises(ValueError, match=f"'a_teacher' {message}"):
    any_size.check_teacher(read(config), teacher, student)


@pytest.mark.slow
def test_a_head_starts_from_a_probe_of_images_and_mirrored_ones(
  run, config, tmp_path
):
  config.update(pretrained=str(run[0]), total_steps=1)
  config.model.variant = None
  for name in ("hidden_size", "num_layers", "mlp_size", "num_heads"):
    config.model[name] = None
  config.transfer.probe_head = True
  config.optimizer.freeze_layers = -1
  with contextlib.redirect_stderr(io.StringIO()) as said:
    with contextlib.redirect_stdout(said):
      state, _ = loop.train(read(config), str(tmp_path))
  assert "Fitting a linear probe on 12 images" in said.getvalue()
  assert np.abs(state.params["head"]["kernel"]).max() > 0


@pytest.mark.slow
def test_the_report_shows_images_of_any_size(run):
  facts = read_run(str(run[0]))
  assert facts.problem is None and facts.measured and facts.measured.dataset
  shown = [one for group in facts.measured.groups for one in group.examples]
  maps = {one.rollout.shape for one in shown if one.rollout is not None}
  assert maps <= {AnySize(TOKENS, P).grid(shape) for shape in SHAPES}
  assert len(maps) > 1
  images = [image for image, _ in facts.measured.dataset.augmented]
  assert len({image.shape for image in images}) > 1
  assert all(image.size <= TOKENS * P * P * 3 for image in images)


def test_mirrored_patches_are_those_of_the_mirrored_image():
  image = jax.random.normal(jax.random.key(0), (2, 16, 24, 3))
  of = vit_jax.models.Patches.of

  @jax.jit
  def both(image):
    mirrored = inputs.mirror(of(image, 8), channels=3)
    return mirrored, of(image[:, :, ::-1], 8)

  found, expected = jax.device_get(both(image))
  for row in range(2):
    order = np.lexsort(np.asarray(found.place[row]).T[::-1])
    np.testing.assert_array_equal(
      found.values[row][order], expected.values[row]
    )
    np.testing.assert_array_equal(found.place[row][order], expected.place[row])
