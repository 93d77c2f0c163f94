"""Our configurations of the rows, their teachers and LoRA's bases."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from configs import deit3, finetune, mae, pretrain
from scripts.parity import inputs as given_inputs
from scripts.parity.inputs import Arrays
from scripts.parity.ours import CLASSES
from vit_jax.config import base_config
from vit_jax.models.grid import grid_of, param_shapes
from vit_jax.models.paths import within
from vit_jax.pretrained.formats import hf_encoders, timm
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes
from vit_jax.run import build
from vit_jax.tasks.autoencoder.objective import draw_patches
from vit_jax.training.distillation import Teacher
from vit_jax.training.state import Extras

MAE = dict(rate=0.75, decoder_size=16, decoder_layers=2, decoder_heads=2)


def table_4() -> Any:
  config = finetune.get_config("l16_i21k,imagenet2012")
  config.accumulation_steps = 1
  return config


def deit3_b() -> Any:
  config = deit3.get_config("B/16")
  # The recipe's are for the 1,000 classes that its loss is summed over.
  for key in ("clip_norm", "epsilon"):
    config.optimizer[key] *= CLASSES / deit3.CLASSES
  return config


def deit_b() -> Any:
  """DeiT B, for which this package has no configuration file."""
  config = base_config()
  config.normalization.update(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
  )
  config.model.update(block="deit", drop_path_rate=0.1, drop_path_grows=True)
  config.loss.update(label_smoothing=0.1, mixup_alpha=0.8, cutmix_alpha=1.0)
  config.optimizer.update(
    decay="deit",
    peak_lr=1e-3,
    final_lr=1e-5,
    weight_decay=0.05,
    clip_norm=0.0,
  )
  config.update(ema_decay=0.99, ema_warmup=False)
  return config


def frozen(model: Any, rules: Any, seed: int) -> tuple[Arrays, Arrays]:
  """Arrays of a model, by our paths and by the reference's names."""
  side = given_inputs.SIDE // model.patch_size
  params = given_inputs.make_params(param_shapes(model, (side, side)), seed)
  sizes = axis_sizes(model)
  theirs = {
    rule.theirs: rule.write([params[path] for path in rule.ours], sizes)
    for rule in rules(model)
  }
  return params, theirs


def on_device(params: Arrays) -> Any:
  return jax.tree.map(jnp.asarray, unflatten_dict(params, sep="/"))


def distilled(**settings: Any) -> Callable[[], Any]:
  def make() -> Any:
    config = deit_b()
    config.distill.update(form="deit", **settings)
    return config

  return make


def teacher(settings: Any, model: Any) -> tuple[Extras, Arrays]:
  """A teacher of the student's sizes, with one head and its own arrays."""
  own = model.clone(distilled=False, drop_path_rate=0.0)
  params, theirs = frozen(own, timm.rules, seed=99)
  pixels = build.make_preprocessing(settings)
  size = given_inputs.SIDE, given_inputs.SIDE
  made = Teacher(own, size, pixels.mean, pixels.std, settings.distill)
  extras = ({"teacher": on_device(params)},)
  return Extras(teacher=made, frozen_params=extras), theirs


def layer_decay() -> Any:
  config = deit_b()
  config.optimizer.update(
    decay="cosine", final_lr=1e-6, peak_lr=4e-3, layer_decay=0.65
  )
  config.update(ema_decay=0.0)
  return config


def lora() -> Any:
  config = base_config()
  config.lora.update(rank=4, alpha=8.0)
  config.optimizer.update(peak_lr=5e-4, weight_decay=0.1)
  return config


def muon() -> Any:
  config = base_config()
  config.optimizer.update(
    kind="muon", peak_lr=5e-4, momentum=0.95, weight_decay=0.1
  )
  return config


def autoencoder() -> Any:
  config = mae.get_config("B/16")
  config.autoencoder.update(MAE)
  config.optimizer.peak_lr = 1e-3
  return config


def hidden_patches(settings: Any, model: Any) -> tuple[Extras, Arrays]:
  """The noise that hides what a run's steps hide, in transformers."""
  h, w = grid_of(model, settings.image_size)
  key = jax.random.key(settings.seed)

  def order(step: Any) -> Any:
    own_key, _ = jax.random.split(jax.random.fold_in(key, step))
    rows = jnp.arange(settings.batch_size)
    draw = draw_patches(own_key, rows, h * w, settings.autoencoder.rate)
    return jnp.concatenate([draw["seen"], draw["hidden"]], axis=1)

  orders = jax.lax.map(order, jnp.arange(settings.total.steps))
  noise = np.asarray(orders).argsort(axis=-1) / np.float32(h * w)
  return Extras(), {"noise": noise.astype(np.float32)}


def base(settings: Any, model: Any) -> tuple[Extras, Arrays]:
  """LoRA's base."""
  params, theirs = frozen(model, hf_encoders.rules, seed=98)
  kept = {k: v for k, v in params.items() if not within(k, "head")}
  extras = ({"base": on_device(kept)},)
  return Extras(settings.lora, frozen_params=extras), theirs


def products(model: Any) -> list[Rule]:
  """LoRA's products by peft's names, shortened."""
  found = [
    Rule("classifier.weight", ("head/kernel",), "K D -> D K"),
    Rule("classifier.bias", ("head/bias",)),
  ]
  wide = dict.fromkeys(("query", "key", "value"), "msa")
  kinds = {**wide, "out": "msa", "expand": "mlp", "contract": "mlp"}
  for layer in range(model.num_layers):
    for kind, part in kinds.items():
      ours_a, ours_b = (
        (f"block_{layer}/{part}/{kind}/lora_{x}",) for x in "ab"
      )
      a = "r (k d) -> k d r" if kind == "out" else "r D -> D r"
      b = "(k d) r -> r k d" if kind in wide else "D r -> r D"
      found.append(Rule(f"{layer}.{kind}.a", ours_a, a))
      found.append(Rule(f"{layer}.{kind}.b", ours_b, b))
  return found


def plain(model: Any) -> Any:
  return model.clone(distilled=False)


def imagenet() -> Any:
  config = pretrain.get_config("B/16,imagenet2012")
  config.optimizer.peak_lr = 5e-4  # 3e-3 learns these few images by heart.
  return config


def accumulated() -> Any:
  config = table_4()
  config.accumulation_steps = 4
  return config
