"""The models that step.py times: ours, a plain one, and PyTorch's."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import make_vit
from vit_jax.data.batching.loader import num_cores
from vit_jax.models.attention import Msa
from vit_jax.models.layer import LayerConfig, each_token, layer_norm
from vit_jax.models.variants import VITS
from vit_jax.models.vit import Mlp
from vit_jax.training.optimizer import make_optimizer
from vit_jax.training.settings import OptimizerSettings
from vit_jax.training.state import make_init
from vit_jax.training.step import make_train_step

CLASSES, RATE = 1000, 1e-3
Trained = tuple[Any, Any]  # A jitted step of (state, batch), and a state.
Step = Callable[[int], None]  # Takes so many steps, and waits for the last.


class FlashMsa(Msa):
  """`Msa` without A, Eq. 5-8, by an attention that JAX hands to a library."""

  implementation = "cudnn"

  @nn.compact
  def __call__(self, z, R=None, **_):
    U_q, U_k, U_v, U_msa = self.projections(z.shape[-1])
    q, k, v = (each_token(U, z) for U in (U_q, U_k, U_v))  # (B, S, k, D_h)
    implementation: Any = self.implementation
    return each_token(
      U_msa,
      jax.nn.dot_product_attention(q, k, v, implementation=implementation),
    )


class FlashBlock(nn.Module):
  """`EncoderBlock` with `FlashMsa`."""

  num_heads: int
  mlp_size: int
  config: LayerConfig = LayerConfig()

  @nn.compact
  def __call__(self, z, R=None, *, train=False):
    msa = FlashMsa(self.num_heads, self.config, name="msa")
    z = msa(layer_norm(self.config, name="norm_msa")(z)) + z
    mlp = Mlp(self.mlp_size, self.config, name="mlp")
    return mlp(layer_norm(self.config, name="norm_mlp")(z)) + z


class PlainBlock(nn.Module):
  """A Transformer layer made of stock parts."""

  num_heads: int
  mlp_size: int
  dtype: Any

  @nn.compact
  def __call__(self, x):
    y = nn.LayerNorm(dtype=self.dtype)(x)
    x = x + nn.MultiHeadDotProductAttention(
      self.num_heads, dtype=self.dtype, deterministic=True
    )(y, y)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = nn.gelu(nn.Dense(self.mlp_size, dtype=self.dtype)(y))
    return x + nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class PlainVit(nn.Module):
  """The paper's ViT, made of stock parts."""

  patch_size: int
  sizes: tuple[int, int, int, int]  # Layers, hidden, MLP, heads.
  dtype: Any

  @nn.compact
  def __call__(self, x):
    layers, hidden, mlp, heads = self.sizes
    patch = (self.patch_size, self.patch_size)
    x = nn.Conv(hidden, patch, patch, "VALID", dtype=self.dtype)(x)
    x = x.reshape(len(x), -1, hidden)
    token = self.param("cls", nn.initializers.zeros, (1, 1, hidden))
    x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], axis=1)
    init = nn.initializers.normal(0.02)
    x = x + self.param("pos", init, (1, *x.shape[1:]))
    x = x.astype(self.dtype)
    for _ in range(layers):
      x = PlainBlock(heads, mlp, self.dtype)(x)
    x = nn.LayerNorm(dtype=self.dtype)(x)[:, 0]
    return nn.Dense(CLASSES)(x)


class Models:
  """The same task for every model; each method returns a model's `Step`.

  Args:
    variant: Size and patch size of the models.
    batch: Images per step.
    side: Their height and width.
    dtype: Type of the computation.
    forward: Whether to predict only, which converts the parameters as well.
  """

  def __init__(
    self, variant: str, batch: int, side: int, dtype: str, forward: bool
  ):
    self.variant, self.forward = variant, forward
    self.dtype = jnp.dtype(dtype)
    size, _, patch = variant.partition("/")
    self.sizes, self.patch = VITS[size], int(patch)
    self.image_shape = (side, side, 3)
    rng = np.random.default_rng(0)
    self.batch = {
      "image": rng.integers(0, 256, (batch, *self.image_shape), np.uint8),
      "label": rng.integers(0, CLASSES, batch).astype(np.int32),
      "skipped": np.zeros(batch, bool),
    }

  def ours(self, block: type[nn.Module] | None = None) -> Step:
    if self.forward:
      model = self._our_model(block, self.dtype)
      one = jnp.zeros((1, *self.image_shape))
      params = nn.unbox(jax.jit(model.init)(jax.random.key(0), one))
      return self._predict(model, params)
    return self._train(*self.our_step(block))

  def our_step(self, block: type[nn.Module] | None = None) -> Trained:
    """Our jitted train step, and its first state."""
    model = self._our_model(block)
    tx = make_optimizer(OptimizerSettings(clip_norm=0.0), lambda _: RATE)
    state = jax.jit(
      lambda key: nn.unbox(make_init(model, tx, self.image_shape)(key))
    )(jax.random.key(0))
    step = jax.jit(make_train_step(model, tx, lambda _: RATE), donate_argnums=0)
    return step, state

  def _our_model(
    self, block: type[nn.Module] | None = None, stored: Any = jnp.float32
  ) -> nn.Module:
    return make_vit(
      self.variant, CLASSES, dtype=self.dtype, param_dtype=stored, block=block
    )

  def passes(self) -> Step:
    """Our forward and backward pass, without the optimizer."""
    model = make_vit(self.variant, CLASSES, dtype=self.dtype)
    labels = jnp.asarray(self.batch["label"])

    @jax.jit
    def gradient(params, images):
      def loss_of(params):
        logits: Any = model.apply(params, _scaled(images), train=True)
        return optax.softmax_cross_entropy_with_integer_labels(
          logits, labels
        ).mean()

      return jax.grad(loss_of)(params)

    one = jnp.zeros((1, *self.image_shape))
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), one))
    images = jax.device_put(self.batch["image"])
    return repeat(lambda: gradient(params, images))

  def plain(self) -> Step:
    if self.forward:
      model = PlainVit(self.patch, self.sizes, self.dtype)
      one = jnp.zeros((1, *self.image_shape))
      params = jax.jit(model.init)(jax.random.key(0), one)
      params = jax.tree.map(lambda x: x.astype(self.dtype), params)
      return self._predict(model, params)
    return self._train(*self.plain_step())

  def plain_step(self) -> Trained:
    """The plain ViT's jitted train step, and its first state."""
    model = PlainVit(self.patch, self.sizes, self.dtype)
    tx = optax.adamw(RATE, weight_decay=0.0)

    @jax.jit
    def init(key):
      params = model.init(key, jnp.zeros((1, *self.image_shape)))
      return params, tx.init(params)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, batch):
      params, opt_state = state

      def loss_of(params):
        logits: Any = model.apply(params, _scaled(batch["image"]))
        losses = optax.softmax_cross_entropy_with_integer_labels(
          logits, batch["label"]
        )
        return losses.mean()

      loss, grads = jax.value_and_grad(loss_of)(params)
      updates, opt_state = tx.update(grads, opt_state, params)
      return (optax.apply_updates(params, updates), opt_state), loss

    return step, init(jax.random.key(0))

  def _predict(self, model: nn.Module, params: Any) -> Step:
    images = jax.device_put(self.batch["image"])
    predict = jax.jit(lambda params, x: model.apply(params, _scaled(x)))
    return repeat(lambda: predict(params, images))

  def _train(self, step: Callable, state: Any) -> Step:
    batch = jax.device_put(self.batch)
    held = [state]

    def once() -> Any:
      held[0], metrics = step(held[0], batch)
      return metrics

    return repeat(once)

  def hugging_face(self, *, compiled: bool) -> Step:
    from transformers import ViTConfig, ViTForImageClassification  # pyright: ignore[reportMissingImports]

    layers, hidden, mlp, heads = self.sizes
    config = ViTConfig(
      hidden_size=hidden,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      intermediate_size=mlp,
      image_size=self.image_shape[0],
      patch_size=self.patch,
      num_labels=CLASSES,
    )
    return self._torch(ViTForImageClassification(config), compiled)

  def timm(self, *, compiled: bool) -> Step:
    from timm.models.vision_transformer import VisionTransformer  # pyright: ignore[reportMissingImports]

    layers, hidden, mlp, heads = self.sizes
    model = VisionTransformer(
      img_size=self.image_shape[0],
      patch_size=self.patch,
      embed_dim=hidden,
      depth=layers,
      num_heads=heads,
      mlp_ratio=mlp / hidden,
      num_classes=CLASSES,
    )
    return self._torch(model, compiled)

  def _torch(self, model: Any, compiled: bool) -> Step:
    """PyTorch's steps: trains by autocast, predicts with converted weights."""
    import torch  # pyright: ignore[reportMissingImports]

    on_gpu = jax.default_backend() == "gpu"
    device, predicts = "cuda" if on_gpu else "cpu", self.forward
    torch.set_num_threads(num_cores())
    dtype = getattr(torch, self.dtype.name)
    model = model.to(device, dtype if predicts else torch.float32)
    model.train(not predicts)
    answer = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
      model.parameters(), lr=RATE, weight_decay=0.0, fused=on_gpu
    )
    images = torch.tensor(self.batch["image"], device=device)
    images = images.permute(0, 3, 1, 2)
    labels = torch.tensor(self.batch["label"], device=device).long()
    mixed = torch.autocast(device, dtype, enabled=self.dtype != jnp.float32)

    def predict() -> None:
      with torch.inference_mode():
        answer(images.to(dtype) / 127.5 - 1)

    def train() -> None:
      with mixed:
        logits = answer(images.float() / 127.5 - 1)
        logits = getattr(logits, "logits", logits)
        loss = torch.nn.functional.cross_entropy(logits, labels)
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      optimizer.step()

    def run(times: int) -> None:
      for _ in range(times):
        (predict if predicts else train)()
      if on_gpu:
        torch.cuda.synchronize()

    return run


def _scaled(images: jax.Array) -> jax.Array:
  return images.astype(jnp.float32) / 127.5 - 1


def repeat(once: Callable[[], Any]) -> Step:
  def run(times: int) -> None:
    result = None
    for _ in range(times):
      result = once()
    jax.block_until_ready(result)

  return run
