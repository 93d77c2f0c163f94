"""The libraries' models for scoreboard.py, and the steps that they share."""

import dataclasses
import functools
import importlib.util
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

SHAPES = {"B/16": (768, 3072, 12, 12), "L/16": (1024, 4096, 16, 24)}
SIDE, CLASSES = 224, 1000


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


def ours(
  _: pathlib.Path, shape: tuple[int, ...], attention: str = "float32"
) -> Any:
  import jax.numpy as jnp

  from vit_jax import make_vit

  fields: Any = {"num_classes": CLASSES, "num_layers": shape[-1]}
  fields |= {"dtype": jnp.bfloat16, "attention_dtype": attention}
  model = next(k for k, known in SHAPES.items() if known[0] == shape[0])
  return make_vit(model, **fields)


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
  from big_vision.models import vit  # pyright: ignore[reportMissingImports]

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
  import equinox as eqx  # pyright: ignore[reportMissingImports]
  import jax
  import jax.numpy as jnp
  from equimo.vision.models.vit import VisionTransformer  # pyright: ignore[reportMissingImports]

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
  from jimm.models.vit import VisionTransformer  # pyright: ignore[reportMissingImports]

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


OURS = ("ours", "ours, bfloat16 attention")
ROUGH = ("big_vision", "Equimo")  # Their attention is bfloat16.
LIBRARIES = {
  OURS[0]: ours,
  OURS[1]: functools.partial(ours, attention="bfloat16"),
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
  whole, rows = (
    sharding.replicated_sharding(mesh),
    sharding.batch_sharding(mesh),
  )
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
