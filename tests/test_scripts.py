"""Checks scripts for remote machines, as far as possible without them."""

import contextlib
import csv
import io
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import types
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file

from scripts import make_captions, make_masks, real_weights, tables
from scripts.bench import (
  attention_error,
  depths,
  forms,
  fusions,
  recipes,
  scoreboard,
)
from scripts.bench.scoreboard_models import gflops
from tests import commands, encoders
from tests.data.pictures import disc
from tests.image_files import encode
from tests.models import equations
from vit_jax.models import partitioning, tpu
from vit_jax.models.attention import Msa
from vit_jax.workdir import bucket
from vit_jax.workdir.checkpoint import open_run

SCRIPTS = pathlib.Path(__file__).parent.parent / "scripts"
DOCS = SCRIPTS.parent / "docs"
LAUNCH = SCRIPTS / "launch"


@pytest.mark.parametrize("name", ["tpu_vm.sh", "slurm.sbatch"])
def test_without_arguments_it_says_what_it_needs(name):
  done = subprocess.run(
    ["bash", LAUNCH / name], capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert "--config" in done.stderr


@pytest.mark.parametrize("name", ["tpu_vm.sh", "Dockerfile"])
def test_hosts_install_what_reads_buckets_and_prepared_data(name):
  (extras,) = re.findall(
    r"-e '?\"?\.\[([a-z,]+)\]", (LAUNCH / name).read_text()
  )
  assert {"tpu", "gcs", "tfds"} <= set(extras.split(","))


def _stand_in(folder, name, body):
  """Makes a program of this name that records how it was called."""
  path = folder / name
  path.write_text(f"#!/usr/bin/env bash\n{body}\n")
  path.chmod(0o755)


# Runs on "the hosts" what ssh would, in a shell; answers what gcloud would.
_GCLOUD = """
echo "$*" | head -n 1 >> {folder}/calls
command=
for word; do
  if [ "$last" = --command ]; then command="$word"; fi
  last="$word"
done
case "$1 $2 $4 $command" in
"storage cp "*) cat > {folder}/archive;;
"storage cat "*) cat {folder}/archive;;
*" ssh systemctl"*) echo inactive;;
*" ssh "*) HOME={folder}/home bash -c "$command";;
*" describe "*) echo $(sed -n 1p {folder}/states); sed -i 1d {folder}/states;;
esac
"""


def _launch(tmp_path, *arguments, states=()):
  """Launches on a host that has nothing but stand-ins."""
  if not (SCRIPTS.parent / ".git").exists():
    pytest.skip("this is a source distribution; the script sends a commit")
  (tmp_path / "home").mkdir()
  (tmp_path / "states").write_text("".join(f"{state}\n" for state in states))
  _stand_in(tmp_path, "gcloud", _GCLOUD.format(folder=tmp_path))
  _stand_in(
    tmp_path,
    "python3",
    'case "$*" in\n*venv*) mkdir -p .venv/bin && '
    "ln -sf /bin/true .venv/bin/python;;\nesac",
  )
  _stand_in(tmp_path, "sudo", f"printf '%s\\n' \"$@\" > {tmp_path}/service")
  subprocess.run(
    [LAUNCH / "tpu_vm.sh", *arguments],
    check=True,
    cwd=SCRIPTS.parent,
    timeout=60,
    capture_output=True,
    env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "POLL": "0"},
  )
  calls = (tmp_path / "calls").read_text().splitlines()
  return calls, (tmp_path / "service").read_text().splitlines()


TRAIN = ["--config", "a b.py:B/16,x", "--config.image_size=(8,8)"]


@pytest.mark.slow
def test_every_host_gets_the_arguments_as_they_were(tmp_path):
  target = ("tpu", "zone", "gs://b/v.tar.gz")
  calls, service = _launch(tmp_path, "--project=p", "--iap", *target, *TRAIN)
  assert service[-len(TRAIN) - 2 :] == ["-m", "vit_jax.train", *TRAIN]
  assert "Restart=on-failure" in service
  assert "RestartPreventExitStatus=1 2 3" in service
  (ssh,) = (call for call in calls if " ssh " in call)
  assert ssh.startswith("compute tpus tpu-vm ssh tpu --tunnel-through-iap")
  assert calls[0] == "storage cp --project=p - gs://b/v.tar.gz"
  (checkout,) = (tmp_path / "home").iterdir()
  assert (checkout / "vit_jax" / "train.py").is_file()
  assert (checkout / ".installed").exists()


@pytest.mark.slow
def test_a_slice_that_is_taken_away_is_asked_for_again(tmp_path):
  calls, _ = _launch(
    tmp_path,
    *("--create=v5litepod-16", "--spot", "tpu", "zone", "gs://b/v.tar.gz"),
    *TRAIN,
    states=[
      *("", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "ACTIVE"),
      *("SUSPENDED", "SUSPENDED", "SUSPENDED", "ACTIVE", "ACTIVE"),
    ],
  )
  words = [call.split()[3] for call in calls if "queued-resources" in call]
  words = [word for word in words if word != "describe"]
  assert words == ["create", "delete", "create"]
  assert sum("--worker=all" in call for call in calls) == 2
  created = next(call for call in calls if " create " in call)
  assert "--node-id=tpu --spot --accelerator-type=v5litepod-16" in created


def _imagenet(folder):
  """Prepares 24 images as TFDS would prepare ImageNet."""
  tfds = pytest.importorskip("tensorflow_datasets")

  class Imagenet2012(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("5.1.0")
    url_infos = {}

    def _info(self):
      features = {
        "image": tfds.features.Image(encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(num_classes=1000),
        "file_name": tfds.features.Text(),
      }
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(features),
        supervised_keys=("image", "label"),
      )

    def _split_generators(self, dl_manager):
      return {s: self._generate_examples() for s in ("train", "validation")}

    def _generate_examples(self):
      rng = np.random.default_rng(0)
      for i in range(24):
        pixels = rng.integers(0, 256, (40, 48, 3), np.uint8)
        file = io.BytesIO(encode(Image.fromarray(pixels), "JPEG"))
        yield i, {"image": file, "label": i, "file_name": f"{i}.JPEG"}

  Imagenet2012(data_dir=folder).download_and_prepare(file_format="array_record")


@pytest.mark.slow
def test_the_command_of_the_page_trains_as_it_is_written(tmp_path, store):
  """Launched on stand-ins, with data and workdir in a bucket on loopback."""
  page = (SCRIPTS.parent / "docs" / "howto" / "tpu_pod.md").read_text()
  (block,) = re.findall(r"```sh\n(scripts/launch/tpu_vm.sh.*?)```", page, re.S)
  command = shlex.split(block.replace("\\\n", " "))
  _, service = _launch(tmp_path, *command[1:])
  arguments = service[service.index("vit_jax.train") + 1 :]
  _imagenet(tmp_path / "tfds")
  target = bucket.blob("gs://my-bucket/tensorflow_datasets").bucket
  target.create()
  for path in (tmp_path / "tfds").rglob("*.*"):
    name = path.relative_to(tmp_path / "tfds")
    if path.is_file():
      blob = target.blob(f"tensorflow_datasets/{name}")
      blob.upload_from_filename(path)
  done = commands.run(
    "vit_jax.train",
    *arguments,
    *("--config.total_steps=2", "--config.batch_size=8"),  # Shorter.
    *("--config.image_size=32", "--config.model.num_layers=1"),
    *("--config.model.hidden_size=16", "--config.model.num_heads=2"),
    *("--config.model.mlp_size=16", "--config.model.representation_size=16"),
  )
  assert done.returncode == 0, done.stderr
  assert "imagenet2012/5.1.0, 24 training examples, 1,000 classes" in (
    done.stdout
  )
  assert "to gs://my-bucket/b16" in done.stdout
  with contextlib.closing(open_run("gs://my-bucket/b16")) as checkpoints:
    assert checkpoints.latest_step == 2


def _slurm(tmp_path, srun, state="RUNNING", **environment):
  """Runs the SLURM script with stand-ins, as a job that appends to its log."""
  log = tmp_path / "log"
  _stand_in(tmp_path, "srun", srun)
  _stand_in(
    tmp_path,
    "scontrol",
    f'case "$1" in\nshow) echo JobState={state} X=1 StdOut={log} Y=2;;\n'
    '*) echo "scontrol $*";;\nesac',
  )
  with open(log, "a") as output:
    done = subprocess.run(
      ["bash", LAUNCH / "slurm.sbatch", "--workdir", "a b"],
      stdout=output,
      stderr=output,
      check=False,
      env={
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        **environment,
      },
    )
  return done.returncode, log.read_text().splitlines()


def test_slurm_starts_one_process_a_task(tmp_path):
  code, lines = _slurm(tmp_path, "printf '%s\\n' \"$@\"")
  assert code == 0
  assert lines[-4:] == ["-m", "vit_jax.train", "--workdir", "a b"]


def _stopped(step):
  return f"echo 'told to stop; step {step} is saved; the same'; exit 143"


@pytest.mark.parametrize("code", [0, 1, 2, 134])
def test_a_slurm_job_that_ended_or_failed_is_not(tmp_path, code):
  found, lines = _slurm(tmp_path, f"exit {code}")
  assert (found, lines) == (code, ["== start 0 of job 7"])


def test_a_slurm_job_that_was_cancelled_is_not(tmp_path):
  code, lines = _slurm(tmp_path, _stopped(5), state="CANCELLED")
  assert code == 143 and "requeue" not in lines[-1]


def test_a_slurm_job_that_saved_is_queued_again_but_not_for_ever(tmp_path):
  for step in (5, 5, 5, 9, 9, 9):
    code, lines = _slurm(tmp_path, _stopped(f"{step},234"))
    assert (code, lines[-1]) == (143, "scontrol requeue 7")
  _, lines = _slurm(tmp_path, _stopped("9,234"))
  assert lines[-1] == "3 starts in a row saved nothing new: not queued again."


@pytest.fixture
def manifests():
  text = (LAUNCH / "jobset.yaml").read_text()
  return {found["kind"]: found for found in yaml.safe_load_all(text)}


def test_the_jobset_fits_its_slice_its_image_and_itself(manifests):
  """It asks for as many chips as the slice has."""
  (replicated,) = manifests["JobSet"]["spec"]["replicatedJobs"]
  job = replicated["template"]["spec"]
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  assert job["parallelism"] == job["completions"]
  shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
  chips = container["resources"]["limits"]["google.com/tpu"]
  assert container["resources"]["requests"]["google.com/tpu"] == chips
  assert math.prod(map(int, shape.split("x"))) == job["completions"] * chips
  dockerfile = (LAUNCH / "Dockerfile").read_text()
  assert f"WORKDIR {container['workingDir']}\n" in dockerfile
  assert container["command"][:3] == ["python", "-m", "vit_jax.train"]
  config = container["command"][3].removeprefix("--config=").partition(":")[0]
  assert (SCRIPTS.parent / config).is_file()
  account = manifests["ServiceAccount"]["metadata"]["name"]
  assert pod["serviceAccountName"] == account
  (rule,) = job["podFailurePolicy"]["rules"]
  assert rule["onExitCodes"]["containerName"] == container["name"]
  assert rule["onExitCodes"]["values"] == [2, 3]


def test_the_jobset_is_valid(manifests):
  """By Kubernetes' own schema, but for what is around the job."""
  (replicated,) = manifests["JobSet"]["spec"]["replicatedJobs"]
  validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed"
  )
  job = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "hosts"},
    "spec": replicated["template"]["spec"],
  }
  for manifest in (job, manifests["ServiceAccount"]):
    validate.validate(manifest, "1.30", strict=True)
  job["spec"]["template"]["spec"]["nodeSelektor"] = {}
  with pytest.raises(validate.ValidationError):
    validate.validate(job, "1.30", strict=True)


def test_the_arrays_of_an_exported_encoder_get_their_names_back(tmp_path):
  """From a tiny DINOv2, as such an export has it: renamed and transposed."""
  folder = pathlib.Path(encoders.path("hf_dinov2"))
  expected = load_file(folder / "model.safetensors")
  expected = {k.removeprefix("dinov2."): v for k, v in expected.items()}
  expected = {k: v for k, v in expected.items() if "classifier" not in k}
  expected["embeddings.mask_token"] *= 0
  arrays, nodes = {"decoder.weight": np.ones(3)}, []

  def node(name, op_type, *inputs):
    named = dict(name=name, op_type=op_type, input=[*inputs])
    nodes.append(types.SimpleNamespace(**named))

  for number, (name, array) in enumerate(expected.items()):
    if name == "embeddings.position_embeddings":
      grid = round((array.shape[1] - 1) ** 0.5)
      arrays["cls"], rest = array[:, :1], array[:, 1:]
      arrays["grid"] = rest.reshape(1, grid, grid, -1)
      node("/backbone/embeddings/Concat_6", "Concat", "cls", "other")
      node("/backbone/embeddings/Reshape_1", "Reshape", "grid", "shape")
    elif name.startswith("encoder") and array.ndim == 2:
      arrays[f"onnx::MatMul_{number}"] = array.T
      path = name.removesuffix(".weight").replace(".", "/")
      wanted = f"onnx::MatMul_{number}"
      node(f"/backbone/{path}/MatMul", "MatMul", "x", wanted)
    elif name != "embeddings.mask_token":
      arrays[f"backbone.{name}"] = array
  node("/decoder/MatMul", "MatMul", "x", "decoder.weight")
  found = real_weights.encoder(nodes, arrays)
  assert {*found} == {*expected}
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)
  config = json.loads((folder / "config.json").read_text())
  assert real_weights.CONFIG.keys() <= config.keys()


# Pixels of each name, for whoever looks at a photograph.
SHADES = {
  "red": (200, 20, 20),
  "orange": (230, 130, 20),
  "brown": (110, 60, 15),
  "yellow": (230, 220, 40),
  "green": (30, 160, 50),
  "blue": (20, 60, 200),
  "purple": (150, 30, 170),
  "black": (20, 15, 25),
  "white": (245, 240, 240),
  "grey": (128, 120, 125),
}


@pytest.mark.parametrize("name", SHADES)
def test_a_colour_is_called_by_its_name(name):
  pixels = np.full((4, 6, 3), SHADES[name], np.uint8)
  found = make_captions.colours(pixels)
  assert found.shape == (4, 6)
  assert {make_captions.NAMES[k] for k in found.ravel()} == {name}


def test_captions_say_the_class_the_colours_and_the_pieces(
  tmp_path, monkeypatch, capsys
):
  """Three blue bands on green, and no speck is counted."""
  pixels = np.full((64, 64, 3), SHADES["green"], np.uint8)
  for top in (4, 26, 48):
    pixels[top : top + 13] = SHADES["blue"]
  pixels[20, 20] = SHADES["blue"]
  for split in ("train", "test"):
    place = tmp_path / "in" / split / "pizza" / "1.png"
    place.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(place)
  out = tmp_path / "captions.csv"
  monkeypatch.setattr("sys.argv", ["", str(tmp_path / "in"), str(out)])
  make_captions.main()
  assert "2 different captions" in capsys.readouterr().out
  first = "a photo of pizza, blue and green, with 3 blue pieces"
  second = "3 blue pieces and some green in a picture of pizza"
  with out.open() as file:
    rows = [*csv.DictReader(file)]
  assert [tuple(row.values()) for row in rows] == [
    (f"{split}/pizza/1.png", caption, split)
    for split in ("train", "test")
    for caption in (first, second)
  ]


def test_masks_are_of_what_lies_in_the_middle(tmp_path, monkeypatch):
  """A disc of another colour, in photographs of two classes."""
  image, inside = disc((200, 40, 30))
  for split in ("train", "test"):
    for name in ("pizza", "steak"):
      place = tmp_path / "in" / split / name / "1.png"
      place.parent.mkdir(parents=True)
      image.save(place)
  arguments = [str(tmp_path / "in"), str(tmp_path / "out")]
  monkeypatch.setattr("sys.argv", ["", *arguments])
  make_masks.main()
  expected = Image.fromarray(inside).resize(
    (341, 256), Image.Resampling.NEAREST
  )
  middle = np.asarray(expected)
  for split in ("train", "test"):
    for number, name in enumerate(("pizza", "steak"), start=1):
      file = f"{split}/{name}_1.png"
      with Image.open(tmp_path / "out" / "masks" / file) as image:
        mask = np.asarray(image)
      with Image.open(tmp_path / "out" / "images" / file) as image:
        assert image.size == (341, 256)
      assert {*np.unique(mask)} == {0, number}
      both = ((mask == number) & middle).sum()
      assert both > 0.97 * ((mask == number) | middle).sum()


def test_the_scoreboards_line_goes_through_two_and_four_layers():
  def row(cycles, times, mcycles):
    sizes = dict(memory_gib=1.0, sent_mib=8.0, seconds=60.0)
    operations = {("mlp", "f32[2]"): (times, mcycles)}
    return dict(mcycles=cycles, operations=operations, **sizes)

  found = scoreboard.extended(row(22, 2, 6), row(40, 4, 11), 12)
  assert found["mcycles"] == 40 + 4 * 18 and found["memory_gib"] == 1
  assert found["operations"] == {("mlp", "f32[2]"): (12, 11 + 4 * 5)}


def test_the_scoreboard_counts_the_operations_of_b16():
  # 17.56 thousand million multiply-adds an image, as timm counts them.
  assert gflops((768, 3072, 12, 12), "forward") == pytest.approx(35.1, rel=0.01)


@pytest.mark.slow
def test_the_error_of_attention_is_that_of_rounded_logits():
  """In the form for TPUs, beside the same roundings in NumPy."""
  rng = np.random.default_rng(0)
  D, S = 64, 50
  z, W = rng.normal(size=(S, D)), rng.normal(size=(D, D)) / 2
  kernels = {"query": W, "key": np.eye(D), "value": np.eye(D)}
  of_heads = {"bias": np.zeros((1, D))}
  params = {k: {"kernel": x[:, None], **of_heads} for k, x in kernels.items()}
  params["out"] = {"kernel": np.eye(D)[None], "bias": np.zeros(D)}
  with (
    jax.enable_x64(),
    mock.patch.object(partitioning, "platform", lambda: "tpu"),
  ):
    arrays = jax.tree.map(jnp.asarray, (params, z[None]))
    found = [
      attention_error.of_layer(Msa(1), *arrays, dtype)
      for dtype in ("float32", "bfloat16")
    ]

  def rounded(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)

  z, q = rounded(z), rounded(z) @ rounded(W / 8)
  exact = equations.softmax(q @ z.T) @ z
  for logits, error in zip(
    (rounded(q) @ z.T, rounded(rounded(q) @ z.T)), found, strict=True
  ):
    difference = rounded(rounded(equations.softmax(logits)) @ z) - exact
    expected = np.linalg.norm(difference) / np.linalg.norm(exact)
    assert error == pytest.approx(expected, rel=0.2)
  assert found[1] > 1.2 * found[0]


def test_a_chip_has_the_form_with_the_least_cycles_for_each_width():
  def row(model, cycles, *form):
    fields = dict(zip(forms.FIELDS, map(str, form), strict=True))
    return {"chip": "own", "model": model, "mcycles": str(cycles), **fields}

  one, two = (True, False), (False, True)
  rows = [row("B/16", 9.5, *one), row("L/16", 100, *one)]
  rows += [row("B/16", 10, *two), row("L/16", 99, *two)]
  assert forms.best(rows) == {"own": {768: one, 1024: two}}
  kept = tables.read(forms.TABLE)
  keys = {tuple(row[name] for name in forms.KEY) for row in kept}
  assert len(keys) == len(kept) == 5 * 2 * 2 ** len(forms.FIELDS)
  assert forms.best(kept) == {
    chip: {width: tuple(form) for width, form in known.items()}
    for chip, known in tpu.FORWARD.items()
  }


def test_the_scoreboards_page_is_that_of_its_rows():
  rows = tables.read(scoreboard.TABLE)
  text = scoreboard.page(rows)
  assert text == scoreboard.PAGE.read_text()
  fewer = [row for row in rows if row["library"] != "jimm"]
  assert "not compiled yet" in scoreboard.page(fewer)
  heads = re.findall(r"^\| .*Mcycles.*|^\| library.*", text, re.MULTILINE)
  assert heads and all("*estimate*" in head for head in heads)
  known = {tuple(row[name] for name in scoreboard.KEY) for row in rows}
  assert len(known) == len(rows)


def _step(layers, clock=True):
  """A row of `estimate` on v5e: 2.5 Mcycles, and 6.5 for each layer."""
  cycles, tflop = 2.5e6 + 6.5e6 * layers, 0.1 + 0.4 * layers
  reduced = {"all-reduce": {"count": 3, "mib": 2}} if layers > 2 else {}
  return {
    "chips": 8,
    "mesh": {"data": 1, "fsdp": 8},
    "images_per_chip": 64.0,
    "mcycles": cycles / 1e6,
    "model_tflop": tflop,
    "hbm_gib": {"peak": 0.2 + 0.15 * layers, "of": 16.0},
    "collectives": {"all-gather": {"count": layers, "mib": 8}, **reduced},
    "mfu": tflop * 1e12 / (cycles * 131_072) if clock else None,
    "images_per_second": 64 / cycles * 1.5e9 if clock else None,
  }


def test_a_deep_model_lies_on_the_line_of_two_of_few_layers():
  row = depths.extrapolated([_step(2), _step(4)], (2, 4), 12)
  assert row["chips"] == 8 and row["mesh"]["fsdp"] == 8
  assert row["mcycles"] == pytest.approx(80.5)
  assert row["hbm_gib"] == pytest.approx({"peak": 2.0, "of": 16.0})
  assert row["mfu"] == pytest.approx(4.9e12 / (80.5e6 * 131_072))
  assert row["images_per_second"] == pytest.approx(64 / 80.5e6 * 1.5e9)
  assert row["collectives"]["all-gather"] == {"count": 12, "mib": 8}
  assert row["collectives"]["all-reduce"] == {"count": 15, "mib": 10}


def test_a_chip_without_a_clock_has_cycles_alone():
  rows = [_step(1, clock=False), _step(3, clock=False)]
  row = depths.extrapolated(rows, (1, 3), 12)
  assert row["mcycles"] == pytest.approx(80.5)
  assert row["mfu"] is row["images_per_second"] is None


@pytest.mark.parametrize("text", ["2", "4,2", "2,2", "0,2", "two,4", "1,2,3"])
def test_depths_are_two_that_grow(text):
  assert depths.depths_of("2,4") == (2, 4)
  with pytest.raises(ValueError, match=f"depths='{text}' must be two numbers"):
    depths.depths_of(text)


def test_the_page_of_recipes_shows_the_rows_that_are_kept():
  rows, page = tables.read(recipes.TABLE), (DOCS / "recipes.md").read_text()
  for table in recipes.costs(rows), recipes.inputs(rows):
    assert "\n".join(table) in page
  assert len({recipes.key_of(row) for row in rows}) == len(rows)
  assert {*recipes.STEPS} == {recipe.step for recipe in recipes.RECIPES}


def test_chip_hours_are_images_by_their_rate():
  shared = {"step": "big_vision_s16", "layers": "unrolled"}
  rows = [
    {**shared, "tpu": "v5e-8", "images_per_second": "2000"},
    {**shared, "tpu": "v6e-8", "images_per_second": "4000"}
    | {"layers": "scanned"},
  ]
  first = recipes.costs(rows)[2]
  images = 90 * 0.99 * 1_281_167
  slow, fast = (f"{images / rate / 3600:,.0f}" for rate in (2000, 4000))
  assert f"| - | {slow} | - | {fast} (s) | 24 to 28 on v3 |" in first


def test_many_chips_read_as_many_jpeg_files_as_they_train_on():
  rows = [
    {"step": step, "tpu": tpu, "images_per_second": rate}
    for step in recipes.STEPS
    for tpu, rate in (("v5e-8", "1000"), ("v5p-8", "3000"))
  ]
  first = recipes.inputs(rows)[2]
  # 115,440 bytes an image; 112 cores decode 1,101 each a second.
  read = [n * rate * 115_440 * 8 / 1e9 for n, rate in ((64, 1e3), (256, 1e3))]
  read.append(4096 * 3e3 * 115_440 * 8 / 1e9)
  cells = ["4,000", f"{4000 / (112 * 1101):.0%}", *(f"{x:,.0f}" for x in read)]
  assert first == f"| `big_vision_s16` | {' | '.join(cells)} |"


PROGRAM = """HloModule jit_f

%inside (p: f32[4,8]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %negate.1 = f32[4,8]{1,0} negate(%p)
}

ENTRY %main (a: f32[4,8], b: bf16[8]) -> (f32[4,8], f32[4,8]) {
  %a = f32[4,8]{1,0} parameter(0)
  %b = bf16[8]{0} parameter(1)
  %both_fusion.2 = f32[4,8]{1,0} fusion(%a, %b), kind=kLoop, calls=%inside, \
metadata={op_name="jit(f)/mul" stack_frame_id=1}
  %copy.3 = f32[4,8]{1,0} copy(%both_fusion.2)
  ROOT %tuple = (f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(%copy.3, %both_fusion.2)
}
"""


def test_the_operations_of_a_program_are_those_outside_of_fusions():
  fusion, copy = fusions.operations(PROGRAM)
  assert (fusion.name, fusion.source) == ("both_fusion.2", "jit(f)/mul")
  assert fusion.operands == (128, 16) and fusion.num_bytes == 272
  assert [fusion.large(least) for least in (1, 17, 129)] == [2, 1, 0]
  assert (copy.kind, copy.num_bytes) == ("copy", 256)
  times = {"both_fusion.2": 0.5}
  profile = fusions.Profile([fusion, copy], 528.0, times)
  assert fusions.kinds(profile, 1) == ["| both_fusion | 1 | 0 | 500.0 |"]
  said = fusions.summary("ours", profile)
  assert said.startswith("ours: 2 operations, 1 of them copies; 0.00 GB")
