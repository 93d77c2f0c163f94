"""Compares libraries' Vision Transformers on TPUs, by the TPU compiler.

python scripts/scoreboard.py --reference big_vision=FOLDER ...
python scripts/scoreboard.py --reference ... --library big_vision --chip v5e
python scripts/scoreboard.py --render

A call compiles one row that the table lacks, the first of those that the flags
leave, and adds it to docs/_static/scoreboard.csv; with --render it compiles
nothing, and writes docs/scoreboard.md from that table. The folders are clones
of the libraries, which this program imports and never fetches; a row records
their commits. Each library runs its own model; the loss, Adam with weight
decay, the batch of a chip and the mesh are the same for all.

A whole model takes minutes to compile. By default a row therefore comes from
models of 2 and 4 layers, and a line in the number of layers; --whole compiles
the model itself, and the page compares both.
"""

import argparse
import csv
import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from vit_jax.estimate import set_environment

HERE = pathlib.Path(__file__).parents[1]
TABLE = HERE / "docs/_static/scoreboard.csv"
PAGE = HERE / "docs/scoreboard.md"
SHAPES = {"B/16": (768, 3072, 12, 12), "L/16": (1024, 4096, 16, 24)}
IMAGES = {"B/16": 64, "L/16": 32}  # On each chip.
CHIPS = {
  "v5e": "v5e:2x4",
  "v6e": "v6e:2x4",
  "v4": "v4:2x2x2",
  "v5p": "v5p:2x2x2",
  "tpu7x": "tpu7x:2x2x1",
}
STEPS = ("train", "forward")
DEPTHS = (2, 4)
NAMES = (
  *("library", "commit", "model", "step", "chip", "layers", "libtpu", "jax"),
  *("mcycles", "mfu", "memory_gib", "sent_mib", "seconds", "operations"),
)
KEY = ("library", "model", "step", "chip", "layers")
SIDE, CLASSES = 224, 1000
Row = dict[str, Any]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "--reference", nargs="*", default=[], metavar="NAME=FOLDER"
  )
  parser.add_argument("--library", choices=LIBRARIES)
  parser.add_argument("--model", choices=SHAPES)
  parser.add_argument("--step", choices=STEPS)
  parser.add_argument("--chip", choices=CHIPS)
  parser.add_argument("--whole", action="store_true", help="compile all layers")
  parser.add_argument("--render", action="store_true", help="write the page")
  parser.add_argument("--table", type=pathlib.Path, default=TABLE)
  options = parser.parse_args()
  rows = read(options.table)
  if options.render:
    PAGE.write_text(page(rows))
    return
  folders = dict(text.split("=", 1) for text in options.reference)
  folders["ours"] = str(HERE)
  known = {tuple(row[name] for name in KEY) for row in rows}
  for key in wanted(options):
    if key not in known and key[0] in folders:
      row = measured(key, pathlib.Path(folders[key[0]]))
      add(options.table, row)  # Another call may have added rows meanwhile.
      print(*key, f"{row['mcycles']:.1f} Mcycles, {row['seconds']:.0f} s")
      return
  print("No row is missing, of those whose library has a --reference.")


def wanted(options: Any) -> Iterator[tuple[str, ...]]:
  """The keys of the rows that the flags leave, the most telling first."""

  def chosen(name: str, values: Any) -> Any:
    given = getattr(options, name)
    return (given,) if given else values

  for chip in chosen("chip", CHIPS):
    for model in chosen("model", SHAPES):
      for step in chosen("step", STEPS):
        for library in chosen("library", LIBRARIES):
          layers = str(SHAPES[model][-1]) if options.whole else "2, 4"
          yield library, model, step, chip, layers


def read(table: pathlib.Path) -> list[Row]:
  if not table.exists():
    return []
  with table.open(newline="") as file:
    return list(csv.DictReader(file))


def add(table: pathlib.Path, row: Row) -> None:
  new = not table.exists()
  with table.open("a", newline="") as file:
    writer = csv.DictWriter(file, NAMES, lineterminator="\n")
    if new:
      writer.writeheader()
    writer.writerow(row)


def measured(key: tuple[str, ...], folder: pathlib.Path) -> Row:
  """Compiles the row of a key, in one program or in two smaller ones."""
  set_environment()  # Before JAX is imported.
  from vit_jax.estimate import compiler

  library, model, step, chip, layers = key
  depths = [int(n) for n in layers.split(",")]
  found = [compiled(library, folder, key[1:4], depth) for depth in depths]
  depth = SHAPES[model][-1]
  row = found[0] if len(found) == 1 else extended(*found, depth)
  top = sorted(row["operations"].items(), key=lambda pair: -pair[1][1])[:10]
  kind = compiler.CHIPS[chip]
  work = gflops((*SHAPES[model][:3], depth), step) * IMAGES[model] * 1e9
  if kind.flop_per_cycle:
    row["mfu"] = f"{work / row['mcycles'] / 1e6 / kind.flop_per_cycle:.4f}"
  for name in ("mcycles", "memory_gib", "sent_mib", "seconds"):
    row[name] = round(row[name], 3)
  return row | {
    **dict(zip(KEY, key, strict=True)),
    "commit": commit(folder),
    "libtpu": importlib.metadata.version("libtpu"),
    "jax": importlib.metadata.version("jax"),
    "operations": json.dumps(
      [(*name, round(n), round(c, 3)) for name, (n, c) in top]
    ),
  }


def commit(folder: pathlib.Path) -> str:
  """The commit of a clone, with a plus if its files differ from it."""

  def git(*command: str) -> str:
    line = ("git", "-C", str(folder), *command)
    return subprocess.run(line, capture_output=True, text=True).stdout.strip()

  changed = git("status", "--porcelain", "--untracked-files=no", "*.py")
  return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)


@dataclasses.dataclass
class Adapter:
  """A library's model, as the train step calls a linen module.

  Attributes:
    make: Draws the parameters, a tree.
    logits: Maps (params, images) to logits; images are float32 (B, H, W, C).
  """

  make: Callable[[Any], Any]
  logits: Callable[[Any, Any], Any]
  num_classes: int = CLASSES

  def init(self, key: Any, images: Any) -> Any:
    del images
    return {"params": self.make(key)}

  def apply(self, variables: Any, images: Any, **_: Any) -> Any:
    return self.logits(variables["params"], images).astype("float32")


def ours(_: pathlib.Path, shape: tuple[int, ...]) -> Any:
  import jax.numpy as jnp

  from vit_jax import make_vit

  fields: Any = {"num_classes": CLASSES, "num_layers": shape[-1]}
  model = next(k for k, known in SHAPES.items() if known[0] == shape[0])
  return make_vit(model, dtype=jnp.bfloat16, **fields)


def vision_transformer(folder: pathlib.Path, shape: tuple[int, ...]) -> Any:
  """Its encoder has no dtype to set, and computes in float32.

  Its package is called vit_jax too, so the two modules are loaded one by one.
  """
  import ml_collections

  for name in ("models_resnet", "models_vit"):
    module = _load(folder / f"vit_jax/{name}.py", f"vit_jax.{name}")
  hidden, mlp, heads, layers = shape
  encoder = dict(mlp_dim=mlp, num_heads=heads, num_layers=layers)
  model = module.VisionTransformer(
    num_classes=CLASSES,
    patches=ml_collections.ConfigDict(dict(size=(16, 16))),
    transformer=encoder | dict(dropout_rate=0.0, attention_dropout_rate=0.0),
    hidden_size=hidden,
  )
  return _linen(model, lambda x: x, train=True)


def big_vision(folder: pathlib.Path, shape: tuple[int, ...]) -> Any:
  for name in ("big_vision.utils", "big_vision.models.common"):
    sys.modules[name] = mock.MagicMock()  # Only its checkpoints need them.
  sys.path.insert(0, str(folder))
  from big_vision.models import vit  # pyright: ignore

  hidden, mlp, heads, layers = shape
  model = vit.Model(
    CLASSES,
    patch_size=(16, 16),
    width=hidden,
    depth=layers,
    mlp_dim=mlp,
    num_heads=heads,
    pool_type="tok",
    dtype_mm="bfloat16",
  )
  return _linen(model, lambda answers: answers[0], train=True)


def equimo(folder: pathlib.Path, shape: tuple[int, ...]) -> Any:
  """A module of one image; its parameters are cast as it has no dtype."""
  sys.path.insert(0, str(folder / "src"))
  import equinox as eqx  # pyright: ignore
  import jax
  import jax.numpy as jnp
  from equimo.vision.models.vit import VisionTransformer  # pyright: ignore

  hidden, mlp, heads, layers = shape

  def whole(key: Any) -> Any:
    return VisionTransformer(
      *(SIDE, 3, hidden, 16, heads, [layers]),
      key=key,
      mlp_ratio=mlp / hidden,
      reg_tokens=0,
      global_pool="token",
      num_classes=CLASSES,
    )

  shapes = eqx.filter_eval_shape(whole, jax.random.PRNGKey(0))
  arrays, fixed = eqx.partition(shapes, _is_float)
  tree = jax.tree.structure(arrays)

  def make(key: Any) -> Any:
    return jax.tree.leaves(eqx.filter(whole(key), eqx.is_inexact_array))

  def logits(params: Any, images: Any) -> Any:
    model = eqx.combine(jax.tree.unflatten(tree, _bfloat16(params)), fixed)
    images = images.transpose(0, 3, 1, 2).astype(jnp.bfloat16)
    key = jax.random.PRNGKey(0)
    return jax.vmap(lambda x: model(x, key=key, inference=True))(images)

  return Adapter(make, logits)


def jimm(folder: pathlib.Path, shape: tuple[int, ...]) -> Any:
  sys.path.insert(0, str(folder / "src"))
  import jax.numpy as jnp
  from flax import nnx
  from jimm.models.vit import VisionTransformer  # pyright: ignore

  hidden, mlp, heads, layers = shape

  def whole(rngs: nnx.Rngs) -> Any:
    return VisionTransformer(
      num_classes=CLASSES,
      num_layers=layers,
      num_heads=heads,
      mlp_dim=mlp,
      hidden_size=hidden,
      dropout_rate=0.0,
      dtype=jnp.bfloat16,
      rngs=rngs,
    )

  return _nnx(whole, lambda model, images: model(images))


def bonsai(folder: pathlib.Path, shape: tuple[int, ...]) -> Any:
  """Its parameters are cast to bfloat16, as it has no dtype to set."""
  from flax import nnx

  module = _load(folder / "bonsai/models/vit/modeling.py", "bonsai_vit")
  hidden, mlp, heads, layers = shape
  config = dataclasses.replace(
    module.ModelConfig.vit_p16_224(),
    hidden_dim=hidden,
    mlp_dim=mlp,
    num_heads=heads,
    num_layers=layers,
  )

  def call(model: Any, images: Any) -> Any:
    return model(images.astype("bfloat16"), rngs=nnx.Rngs(0))

  def whole(rngs: nnx.Rngs) -> Any:
    return module.ViTClassificationModel(config, rngs=rngs)

  return _nnx(whole, call, cast=True)


LIBRARIES = {
  "ours": ours,
  "vision_transformer": vision_transformer,
  "big_vision": big_vision,
  "Equimo": equimo,
  "jimm": jimm,
  "bonsai": bonsai,
}


def _load(path: pathlib.Path, name: str) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec and spec.loader
  module = sys.modules[name] = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _linen(model: Any, logits: Callable[[Any], Any], **options: Any) -> Adapter:
  import jax
  import jax.numpy as jnp

  image = jnp.zeros((1, SIDE, SIDE, 3))

  def make(key: Any) -> Any:
    return model.init(key, image, train=False)["params"]

  def call(params: Any, images: Any) -> Any:
    rngs = {"dropout": jax.random.key(0)}
    return logits(model.apply({"params": params}, images, rngs=rngs, **options))

  return Adapter(make, call)


def _nnx(
  whole: Callable[[Any], Any],
  call: Callable[[Any, Any], Any],
  cast: bool = False,
) -> Adapter:
  import jax
  from flax import nnx

  shapes = nnx.eval_shape(lambda: whole(nnx.Rngs(0)))
  graph, params, rest = nnx.split(shapes, nnx.Param, ...)
  tree = jax.tree.structure(params)

  def make(key: Any) -> Any:
    return jax.tree.leaves(nnx.state(whole(nnx.Rngs(key)), nnx.Param))

  def logits(params: Any, images: Any) -> Any:
    leaves = _bfloat16(params) if cast else params
    return call(
      nnx.merge(graph, jax.tree.unflatten(tree, leaves), rest), images
    )

  return Adapter(make, logits)


def _bfloat16(params: Any) -> Any:
  import jax

  return jax.tree.map(lambda x: x.astype("bfloat16"), params)


def _is_float(leaf: Any) -> bool:
  import jax
  import jax.numpy as jnp

  found = isinstance(leaf, jax.ShapeDtypeStruct)
  return found and jnp.issubdtype(leaf.dtype, jnp.inexact)


def lowered(library: str, folder: Any, shape: Any, step: str, mesh: Any) -> Any:
  """A step of a library's model on the mesh, of `shape[-1]` layers."""
  import flax.linen as nn
  import jax
  import jax.numpy as jnp

  from vit_jax.training import sharding
  from vit_jax.training.optimizer import make_optimizer, make_schedule
  from vit_jax.training.settings import OptimizerSettings
  from vit_jax.training.state import make_init
  from vit_jax.training.step import make_train_step

  model, batch = LIBRARIES[library](folder, shape[:-1]), shape[-1]
  whole, rows = sharding.replicated(mesh), sharding.batch_sharding(mesh)
  images = jax.ShapeDtypeStruct(
    (batch, SIDE, SIDE, 3), jnp.uint8, sharding=rows
  )
  if step == "forward":

    def classify(params: Any, images: Any) -> Any:
      images = images.astype(jnp.float32) / 127.5 - 1
      answers = model.apply({"params": params}, images, train=False)
      return jax.lax.top_k(jax.nn.softmax(answers.astype(jnp.float32)), 1)

    image = jnp.zeros((1, SIDE, SIDE, 3))
    make = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    kept = "float32" if library == "vision_transformer" else "bfloat16"
    params = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, kept, sharding=whole),
      nn.unbox(make),
    )
    return sharding.jit_replicated(classify, mesh).lower(params, images)
  options = OptimizerSettings(weight_decay=0.1, weight_decay_on="")
  schedule = make_schedule(options, 10_000, 100, 1000)
  tx = make_optimizer(options, schedule)
  state = sharding.array_shapes(make_init(model, tx, (SIDE, SIDE, 3)), mesh)
  label = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=rows)
  jitted = sharding.jit_train_step(
    make_train_step(model, tx, schedule), state, mesh
  )
  return jitted.lower(state, {"image": images, "label": label})


def gflops(shape: tuple[int, ...], step: str) -> float:
  """Operations of the products for an image; three times to train."""
  hidden, mlp, _, layers = shape
  patches = (SIDE // 16) ** 2
  tokens = patches + 1
  layer = tokens * (4 * hidden**2 + 2 * hidden * mlp) + 2 * tokens**2 * hidden
  ends = patches * 16 * 16 * 3 * hidden + CLASSES * hidden
  return 2e-9 * (layers * layer + ends) * (3 if step == "train" else 1)


def compiled(library: str, folder: Any, key: tuple, layers: int) -> Row:
  """What one compiled program costs."""
  from vit_jax.estimate import compiler
  from vit_jax.training import sharding

  model, step, name = key
  shape = (*SHAPES[model][:3], layers)
  chip, devices = compiler.devices_of(CHIPS[name])
  mesh = sharding.make_mesh(devices=devices)
  images = IMAGES[model] // chip.devices
  program = lowered(
    library, folder, (*shape, images * len(devices)), step, mesh
  )
  work = gflops(shape, step)
  found, _ = compiler.cost(program, chip, mesh, images, work)
  operations = {(a, b): (n, c / 1e6) for a, b, n, c in found["by_op"]}
  return {
    "mcycles": found["mcycles"],
    "memory_gib": found["hbm_gib"]["peak"],
    "sent_mib": sum(one["mib"] for one in found["collectives"].values()),
    "seconds": found["compile_seconds"],
    "operations": operations,
  }


def extended(few: Row, more: Row, layers: int) -> Row:
  """The row of `layers` layers on the line through those of DEPTHS."""
  share = (layers - DEPTHS[1]) / (DEPTHS[1] - DEPTHS[0])

  def line(a: float, b: float) -> float:
    return b + (b - a) * share

  row = {
    k: line(few[k], more[k]) for k in ("mcycles", "memory_gib", "sent_mib")
  }
  row["seconds"] = few["seconds"] + more["seconds"]
  row["operations"] = {}
  for name, pair in more["operations"].items():
    pairs = zip(few["operations"].get(name, (0, 0)), pair, strict=True)
    row["operations"][name] = tuple(max(0, line(a, b)) for a, b in pairs)
  return row


if __name__ == "__main__":
  main()
