"""Fine-tuning: which parameters are taken over, new or frozen."""

import dataclasses
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image

import vit_jax
from configs import digits, finetune
from tests import encoders, published, tiny
from vit_jax import load_pretrained
from vit_jax.models.model import represent
from vit_jax.pretrained import transfer
from vit_jax.pretrained.load import open_checkpoint
from vit_jax.run import build, loop
from vit_jax.run.plan import make_plan
from vit_jax.run.settings import read
from vit_jax.run.start import fresh_state
from vit_jax.tasks.classification.task import ClassificationTask
from vit_jax.tasks.probes import linear_probe
from vit_jax.tasks.probes.number_probe import Numbers

CLASSES = tuple(map(str, range(10)))


def fine_tuning(data_dir, pretrained, **changes):
  """The configuration of a short run on the digits from a checkpoint."""
  config = finetune.get_config()
  config.update(
    pretrained=pretrained, total_epochs=0.0, total_steps=3, batch_size=16
  )
  config.data.update(name="digits", data_dir=str(data_dir))
  config.optimizer.update(warmup_epochs=0.0)
  config.update(save_every_epochs=0.0, save_every_steps=2)
  config.update(changes)
  return config


def flat(params):
  return traverse_util.flatten_dict(jax.device_get(params), sep="/")


def first_params(config):
  """The parameters before the first step, by path, and the plan."""
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  state = fresh_state(plan)
  return flat(state.params), plan


def test_all_but_the_head_is_taken_over(data_dir):
  path = published.path("google_vit_prelogits.npz")
  stored = dict(open_checkpoint(path).read())
  params, plan = first_params(fine_tuning(data_dir, path))
  assert plan.model.representation_size is None
  head = params.pop("head/kernel")
  assert head.shape == (48, 10) and not head.any()
  assert not params.pop("head/bias").any()
  for name in ("head/", "pre_logits/"):
    del stored[name + "kernel"], stored[name + "bias"]
  assert params.keys() == stored.keys()
  for name, array in params.items():
    np.testing.assert_array_equal(array, stored[name])


@pytest.mark.slow
def test_the_representation_layer_can_stay(data_dir):
  path = published.path("google_vit_prelogits.npz")
  config = fine_tuning(data_dir, path)
  config.transfer.keep_pre_logits = True
  params, _ = first_params(config)
  stored = dict(open_checkpoint(path).read())
  name = "pre_logits/kernel"
  np.testing.assert_array_equal(params[name], stored[name])
  assert params["head/kernel"].shape == (40, 10)


@pytest.mark.slow
def test_a_kept_head_gives_the_checkpoints_logits(data_dir):
  path = published.path("google_vit.npz")
  config = fine_tuning(data_dir, path)
  config.transfer.keep_head = True
  params, plan = first_params(config)
  tree = traverse_util.unflatten_dict(params, sep="/")
  examples = published.examples("google_vit.npz")
  published.assert_same_logits(plan.model, tree, *examples)


@pytest.mark.slow
@pytest.mark.parametrize("flip", [False, True])
def test_a_head_may_start_from_a_probe(data_dir, flip, capsys):
  path = published.path("google_vit.npz")
  config = fine_tuning(data_dir, path)
  config.transfer.probe_head = True
  config.train_transform.flip = flip
  config.data.train_split = "train[:60]"
  params, plan = first_params(config)
  said = capsys.readouterr().err
  assert "Fitting a linear probe on 60 images ...\n" in said
  stored = dict(open_checkpoint(path).read())
  np.testing.assert_array_equal(
    params["patches/E/kernel"], stored["patches/E/kernel"]
  )
  transform = plan.preprocessing.transform()
  examples = [plan.source[i] for i in range(60)]
  pixels = np.stack([transform(e["image"]) for e in examples])
  views = [pixels, pixels[:, :, ::-1]] if flip else [pixels]
  tree = traverse_util.unflatten_dict(params, sep="/")
  tree = jax.tree.map(jnp.asarray, tree)
  x = [
    vit_jax.normalize(jnp.asarray(v), **plan.preprocessing.normalization)
    for v in views
  ]
  y = np.concatenate([represent(plan.model, tree, v) for v in x])
  labels = np.tile([e["label"] for e in examples], len(views))
  heads = []
  for l2 in linear_probe.L2S:  # All that may be chosen; one of them is it.
    head = linear_probe.fit(y, labels, 10, l2).head()["head/kernel"]
    heads.append(
      np.allclose(
        params["head/kernel"] / params["head/kernel"].std(),
        head / head.std(),
        atol=1e-3,
      )
    )
  assert any(heads) and params["head/bias"].any()


@pytest.mark.slow
def test_a_head_of_numbers_may_start_from_a_probe(tmp_path):
  rng = np.random.default_rng(0)
  lines = ["photo,price"]
  for k in range(12):
    pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"{k}.png")
    lines.append(f"{k}.png,{k}.5")
  (tmp_path / "t.csv").write_text("\n".join(lines))
  config = fine_tuning(tmp_path, published.path("google_vit.npz"))
  config.data.update(
    name=None, labels_file=str(tmp_path / "t.csv"), task="regression"
  )
  config.loss.label_smoothing = 0.0
  config.transfer.probe_head = True
  config.batch_size = 8
  config.train_transform.flip = False
  params, plan = first_params(config)
  labels = plan.source.labels(range(len(plan.source)))
  tree = traverse_util.unflatten_dict(params, sep="/")
  transform = plan.preprocessing.transform()
  pixels = np.stack([transform(e["image"]) for e in plan.source])
  x = vit_jax.normalize(jnp.asarray(pixels), **plan.preprocessing.normalization)
  y = represent(plan.model, jax.tree.map(jnp.asarray, tree), x)
  kind = Numbers(labels.mean(axis=0).tolist(), labels.std(axis=0).tolist())
  solutions = kind.solutions(np.asarray(y), labels)
  assert any(  # All L2 that may be chosen; one of them is it.
    np.allclose(params["head/kernel"], head["head/kernel"], atol=1e-5)
    and np.allclose(params["head/bias"], head["head/bias"], atol=1e-4)
    for head in (solutions.probe(l2).head() for l2 in linear_probe.L2S)
  )


@pytest.mark.slow
def test_heads_that_no_probe_can_start_are_refused(data_dir):
  config = fine_tuning(data_dir, encoders.path("hf_deit"))
  config.transfer.probe_head = True
  with pytest.raises(ValueError, match="fits one head, and the model has two"):
    first_params(config)


def test_all_but_the_head_is_taken_unless_it_is_asked_for():
  pretrained = open_checkpoint(published.path("google_vit.npz"))
  size = pretrained.preprocessing.image_size
  stored = {path for path, _ in pretrained.read()}
  taken = {x for x, _ in transfer.leaves(pretrained, pretrained.model, size)}
  assert stored - taken == {"head/kernel", "head/bias"}


def test_a_head_of_other_classes_cannot_stay():
  pretrained = open_checkpoint(published.path("google_vit.npz"))
  with pytest.raises(ValueError, match=r"has 10 classes \(not named\) and the"):
    transfer.adapt_model(
      pretrained, ("a", "b"), {"num_classes": 2}, keep_head=True
    )


@pytest.mark.slow
def test_the_average_starts_from_the_checkpoint_too(data_dir):
  path = published.path("google_vit.npz")
  plan = make_plan(read(fine_tuning(data_dir, path, ema_decay=0.9)))
  plan.evaluation.stream.close()
  state = fresh_state(plan)
  same = jax.tree.map(np.array_equal, state.params, state.averaged_params)
  assert jax.tree.all(same)


@pytest.mark.slow
def test_parameters_are_laid_out_over_the_devices(data_dir):
  config = fine_tuning(data_dir, published.path("google_vit.npz"))
  config.mesh.update(data=2, fsdp=4)
  plan = make_plan(read(config))
  plan.evaluation.stream.close()
  state = fresh_state(plan)
  kernel, shape = (
    params["block_0"]["mlp"]["expand"]["kernel"]
    for params in (state.params, plan.shapes.params)
  )
  assert kernel.sharding == shape.sharding
  assert kernel.addressable_shards[0].data.shape == (12, 96)
  stored = dict(open_checkpoint(published.path("google_vit.npz")).read())
  np.testing.assert_array_equal(kernel, stored["block_0/mlp/expand/kernel"])


@pytest.fixture(scope="module")
def digits_run(data_dir, tmp_path_factory):
  """The workdir of a few steps on the digits, with learned positions."""
  folder = tmp_path_factory.mktemp("digits")
  config = digits.get_config()
  config.update(total_epochs=0.0, total_steps=3)
  config.data.data_dir = str(data_dir)
  config.optimizer.warmup_epochs = 0.0
  config.model.update(num_layers=2, position="learned")
  loop.train(read(config), str(folder / "run"))
  return folder / "run"


@pytest.mark.slow
def test_a_run_is_fine_tuned_at_a_higher_resolution_and_resumes_without_it(
  digits_run, data_dir, tmp_path
):
  source = shutil.copytree(digits_run, tmp_path / "source")
  config = fine_tuning(data_dir, str(source), image_size=(12, 16))
  config.normalization.std = (0.25, 0.25, 0.25)
  params, _ = first_params(config)
  assert params["position/E_pos"].shape == (3 * 4, 64)
  whole, _ = loop.train(read(config), str(tmp_path / "whole"))
  shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
  shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "3")
  shutil.rmtree(source)
  resumed, _ = loop.train(read(config), str(tmp_path / "stopped"))
  same = jax.tree.map(np.array_equal, whole.params, resumed.params)
  assert jax.tree.all(same)
  loaded = open_checkpoint(str(tmp_path / "stopped"))
  assert loaded.origin.image_size == (12, 16)
  assert loaded.origin.std == (0.25, 0.25, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, -1])
def test_frozen_parameters_stay_and_take_no_memory(
  digits_run, data_dir, tmp_path, layers
):
  config = fine_tuning(data_dir, str(digits_run))
  config.optimizer.update(freeze_layers=layers, weight_decay=0.1, kind="adam")
  before, _ = first_params(config)
  state, _ = loop.train(read(config), str(tmp_path / "run"))
  after = flat(state.params)
  moved = {k for k in after if not np.array_equal(before[k], after[k])}
  frozen = {k for k in after if k.startswith(("block_0/", "patches/", "posi"))}
  head = {"head/kernel", "head/bias"}
  assert moved == (after.keys() - frozen if layers == 1 else head)
  size = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
  trained = sum(after[k].size for k in moved)
  assert 2 * trained <= size < 2 * trained + 10


@pytest.mark.slow
def test_frozen_layers_have_no_gradient_in_its_norm(digits_run, data_dir):
  """With all but the head frozen, the norm is of the head's gradient alone."""
  config = fine_tuning(data_dir, str(digits_run))
  config.optimizer.freeze_layers = -1
  config.loss.label_smoothing = 0.0
  params, plan = first_params(config)
  tree = jax.tree.map(
    jnp.asarray, traverse_util.unflatten_dict(params, sep="/")
  )
  batches = plan.open_batches(0)
  batch = next(batches)
  batches.close()
  state = fresh_state(plan)
  _, metrics = jax.jit(plan.train_step)(state, batch)
  images = jnp.asarray(batch["image"] / 127.5 - 1, jnp.float32)
  y = np.asarray(
    plan.model.clone(num_classes=0).apply({"params": tree}, images)
  )
  error = np.full((16, 10), 0.1) - np.eye(10)[batch["label"]]
  gradient = np.concatenate([y, np.ones((16, 1))], axis=1).T @ error / 16
  assert float(metrics["gradient_norm"]) == pytest.approx(
    np.linalg.norm(gradient), rel=1e-3
  )


def test_neither_a_variant_nor_a_checkpoint_is_refused():
  config = finetune.get_config()
  with pytest.raises(ValueError, match=r"model.variant is not set: set it"):
    build.build_model(read(config), ClassificationTask(), CLASSES)
  with pytest.raises(ValueError, match="image_size is not set, and no check"):
    build.resolved(read(config), None)


@pytest.mark.slow
def test_a_row_trains_from_a_checkpoint(tmp_path):
  """A shrunken Table 4 run with clipping, momentum and averaging."""
  config = finetune.get_config("b16,imagenet2012,table2")
  config.update(
    pretrained=published.path("google_vit.npz"),
    batch_size=8,
    image_size=(48, 48),
    total_steps=2,
  )
  config.optimizer.warmup_steps = 0
  config.data.update(name="digits", train_split="train", eval_split="test")
  state, evaluated = loop.train(read(config), str(tmp_path / "run"))
  assert int(state.step) == 2
  assert evaluated["eval/examples"] == 359


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov3", "hf_siglip"])
def test_an_encoder_is_trained_alike_on_every_mesh(tmp_path, name):
  config = finetune.get_config()
  config.update(
    pretrained=encoders.path(name),
    batch_size=8,
    image_size=(32, 32),
    total_steps=2,
    total_epochs=0.0,
  )
  config.optimizer.warmup_steps = 0
  config.data.update(name="digits", train_split="train", eval_split="test")
  losses = []
  for fsdp, tensor in ((1, 1), (2, 2)):
    config.mesh.update(fsdp=fsdp, tensor=tensor)
    folder = str(tmp_path / f"{tensor}")
    _, evaluated = loop.train(read(config), folder)
    losses.append(evaluated["eval/loss"])
  assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["google_vit_prelogits.npz", "hf_vit"])
def test_another_number_of_classes_is_a_new_head_of_zeros(name, capsys):
  model, params = load_pretrained(published.path(name), num_classes=5)
  before = model.origin.format, open_checkpoint(published.path(name)).model
  assert about_heads(capsys) == (
    f"{published.path(name)}: the head for 5 classes is new, all zeros, and "
    f"its head of {before[1].num_classes} classes is left out.\n"
  )
  assert (model.num_classes, model.origin.class_names) == (5, ())
  images, _ = published.examples(name)
  logits = jax.jit(model.apply)({"params": params}, jnp.asarray(images))
  np.testing.assert_array_equal(logits, np.zeros((4, 5)))
  headless, features = load_pretrained(published.path(name), num_classes=0)
  assert "head" not in features
  seen = jax.jit(headless.apply)({"params": features}, jnp.asarray(images))
  expected = published.examples(name)[1]
  classes = expected.shape[1]  # With as many, the head is kept.
  whole, params = load_pretrained(published.path(name), num_classes=classes)
  assert about_heads(capsys) == ""
  head = params["head"]
  found = np.asarray(seen) @ np.asarray(head["kernel"]) + np.asarray(
    head["bias"]
  )
  np.testing.assert_allclose(found, expected, atol=1e-4)
  assert whole.num_classes == classes


def about_heads(capsys):
  """What was said, without the lines on what is guessed."""
  lines = capsys.readouterr().err.splitlines(keepends=True)
  return "".join(x for x in lines if "no file says the following" not in x)


def test_a_new_head_does_not_start_at_the_old_ones_bias():
  loaded, _ = tiny.random_model(head_bias=-6.9)
  fields = {"num_classes": 3}
  assert transfer.adapt_model(loaded, ("a", "b", "c"), fields).head_bias == 0
  fields = {"num_classes": 3, "head_bias": -1.0}
  assert transfer.adapt_model(loaded, ("a", "b", "c"), fields).head_bias == -1
  kept = transfer.adapt_model(
    loaded, ("a", "b"), {"num_classes": 2}, keep_head=True
  )
  assert kept.head_bias == -6.9


def test_a_new_head_is_zero_and_the_rest_is_the_same():
  model, params = load_pretrained(published.path("google_vit.npz"))
  changed, new = vit_jax.new_head(model, params, 3)
  images = jnp.asarray(published.examples("google_vit.npz")[0])
  logits = jax.jit(changed.apply)({"params": new}, images)
  np.testing.assert_array_equal(logits, np.zeros((len(images), 3)))
  np.testing.assert_array_equal(
    vit_jax.features(changed, new, images),
    vit_jax.features(model, params, images),
  )
  with pytest.raises(ValueError, match="num_classes"):
    vit_jax.new_head(model, params, -1)
  with pytest.raises(ValueError, match="num_classes=-1 must not be negative"):
    load_pretrained(published.path("google_vit.npz"), num_classes=-1)


def seen_by(kernel, images):
  """The patch embeddings of images of one patch, (B, P, P, C)."""
  return images.reshape(len(images), -1) @ kernel


def test_a_grey_image_is_seen_as_its_three_equal_channels_were():
  rng = np.random.default_rng(0)
  kernel, grey = rng.normal(size=(4 * 4 * 3, 5)), rng.normal(size=(2, 4, 4, 1))
  one, line = transfer.adapt_channels(kernel, 3, 1)
  expected = seen_by(kernel, np.repeat(grey, 3, axis=3))
  np.testing.assert_allclose(seen_by(one, grey), expected)
  assert line == "3 channels of its first kernel are added up for grey images"


def test_more_channels_take_the_kernels_in_turn():
  rng = np.random.default_rng(0)
  kernel = rng.normal(size=(7, 7, 3, 2))
  found, line = transfer.adapt_channels(kernel, 3, 5)
  for channel, old in enumerate((0, 1, 2, 0, 1)):
    np.testing.assert_allclose(found[:, :, channel], kernel[:, :, old] * 0.6)
  assert line.endswith("images of 5 channels, and multiplied by 3/5")
  flat = rng.normal(size=(4 * 4 * 3, 5))
  images = rng.normal(size=(2, 4, 4, 3))
  six, _ = transfer.adapt_channels(flat, 3, 6)
  twice = np.concatenate([images, images], axis=3)
  np.testing.assert_allclose(seen_by(six, twice), seen_by(flat, images))


@pytest.mark.parametrize(
  "bands, line",
  [
    ("nir Blue green red", ", and those of nir begin at 0"),
    ("blue green red", "the weights of its first kernel"),
  ],
)
def test_named_bands_are_seen_as_the_rgb_picture_was(bands, line):
  rng = np.random.default_rng(0)
  names = bands.split()
  images = rng.normal(size=(2, 4, 4, len(names)))
  rgb = images[..., [names.index(c) for c in (names[-1], "green", names[-3])]]
  kernel = rng.normal(size=(4 * 4 * 3, 5))
  found, said = transfer.adapt_channels(kernel, 3, len(names), names)
  np.testing.assert_allclose(seen_by(found, images), seen_by(kernel, rgb))
  assert said.startswith("red, green and blue keep the") and said.endswith(line)


def test_bands_without_all_of_red_green_and_blue_take_the_kernels_in_turn():
  kernel = np.random.default_rng(0).normal(size=(4 * 4 * 3, 5))
  for bands in ((), ("red", "green", "nir", "swir")):
    found, said = transfer.adapt_channels(kernel, 3, 4, bands)
    np.testing.assert_array_equal(
      found, transfer.adapt_channels(kernel, 3, 4)[0]
    )
    assert "are repeated for images of 4" in said


@pytest.mark.parametrize(
  "bands, differs",
  [
    ((), False),
    (("red", "green", "blue"), False),
    (("b", "g", "r"), False),
    (("blue", "green", "red"), True),
  ],
)
def test_a_run_takes_over_bands_in_their_order(bands, differs):
  loaded = open_checkpoint(published.path("google_vit.npz"))
  size = loaded.preprocessing.image_size
  kept, found = (
    dict(transfer.leaves(loaded, loaded.model, size, bands=names))
    for names in ((), bands)
  )
  changed = [k for k in kept if (kept[k] != found[k]).any()]
  assert changed == (["patches/E/kernel"] if differs else [])


KEEP = "keep the weights of its first kernel"
LEFT = "those of b, g are left out"


@pytest.mark.parametrize(
  "old, new, line",
  [
    ("b,g,r,n", "n,r,g,b", f"n, r, g, b {KEEP}"),
    (
      "b,g,r,n",
      "r,N,swir",
      f"r, N {KEEP}, and those of swir begin at 0; {LEFT}",
    ),
    ("a,b,g,r,n", "n,r,a", f"n, r, a {KEEP}; {LEFT}"),
  ],
)
def test_bands_of_a_run_keep_the_weights_of_their_names(old, new, line):
  rng = np.random.default_rng(0)
  before, after = old.lower().split(","), new.split(",")
  kernel = rng.normal(size=(4 * 4 * len(before), 5))
  images = rng.normal(size=(2, 4, 4, len(after)))
  seen = np.zeros((2, 4, 4, len(before)))
  for place, name in enumerate(after):
    if name.lower() in before:
      seen[..., before.index(name.lower())] = images[..., place]
  found, said = transfer.adapt_channels(
    kernel, len(before), len(after), after, before
  )
  np.testing.assert_allclose(seen_by(found, images), seen_by(kernel, seen))
  assert said == line


@pytest.mark.parametrize(
  "channels, bands, order",
  [
    (3, ("blue", "green", "red"), None),
    (3, ("red", "green", "blue"), (2, 1, 0)),
    (3, (), (2, 1, 0)),  # Pictures.
    (3, ("x", "y", "z"), (0, 1, 2)),  # A line says that none is known.
  ],
)
def test_a_run_from_a_run_takes_over_bands_by_their_names(
  channels, bands, order, capsys
):
  loaded = open_checkpoint(published.path("google_vit.npz"))
  named = dataclasses.replace(
    loaded.preprocessing, bands=("blue", "green", "red")
  )
  size = loaded.preprocessing.image_size
  before = dict(transfer.leaves(loaded, loaded.model, size))
  capsys.readouterr()
  loaded = dataclasses.replace(loaded, inputs={"image": named})
  options: Any = dict(channels=channels, bands=bands)
  found = dict(transfer.leaves(loaded, loaded.model, size, **options))
  kernel = before["patches/E/kernel"]
  parts = kernel.reshape(-1, 3, kernel.shape[-1])[:, order or (0, 1, 2)]
  np.testing.assert_array_equal(
    found["patches/E/kernel"], parts.reshape(kernel.shape)
  )
  said = capsys.readouterr().err
  assert bool(said) == (order is not None)
  assert ("as none has the same name" in said) == (order == (0, 1, 2))


@pytest.mark.parametrize(
  "name",
  ["google_vit.npz", pytest.param("google_hybrid.npz", marks=pytest.mark.slow)],
)
def test_only_the_first_kernel_changes_for_other_channels(name, capsys):
  loaded = open_checkpoint(published.path(name))
  size = loaded.preprocessing.image_size
  kept, changed = (
    dict(transfer.leaves(loaded, loaded.model, size, channels=channels))
    for channels in (3, 1)
  )
  differ = [k for k in kept if kept[k].shape != changed[k].shape]
  assert len(differ) == 1 and differ[0].endswith(("E/kernel", "root/kernel"))
  assert f"{name}: 3 channels of its first" in capsys.readouterr().err
