"""Runs google-research/vision_transformer: Table 4, and Table 3's parts.

For Table 4 the step is its `make_update_fn`, with the optimizer of its
`train_and_evaluate`, which builds it inside. For Table 3 its model and its
schedule are used: it has no pre-training, so that the rest is the paper's text,
with Adam by optax or by torch.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import Job, Stubs
from flax.traverse_util import flatten_dict, unflatten_dict
from jax_draws import Draws

Stubs(
  *("tensorflow", "tensorflow_datasets", "tensorflow_text", "tensorflow_hub"),
  *("clu", "pandas", "flaxformer"),
)

import ml_collections  # noqa: E402

from vit_jax import models_vit, train, utils  # noqa: E402

# The names of the published files, and those that Flax gives today.
_TODAY = {
  "LayerNorm_2": "LayerNorm_1",
  "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
  "MlpBlock_3": "MlpBlock_0",
}


def today(name: str) -> str:
  found = re.search(r"encoderblock_\d+/(\w+)/", name)
  old = found[1] if found else ""
  return name.replace(f"/{old}/", f"/{_TODAY.get(old, old)}/") if old else name


def main() -> None:
  job, draws = Job(), None
  c = job.config
  if job.masks:
    draws = Draws(job.masks, job.mixing)
  model = models_vit.VisionTransformer(
    num_classes=c["classes"],
    patches=ml_collections.ConfigDict({"size": (c["patch"], c["patch"])}),
    transformer=dict(
      num_layers=c["layers"],
      mlp_dim=c["mlp"],
      num_heads=c["heads"],
      dropout_rate=c["dropout"],
      attention_dropout_rate=0.0,
    ),
    hidden_size=c["hidden"],
    representation_size=c.get("representation"),
  )
  schedule = utils.create_learning_rate_schedule(
    job.steps, c["rate"], c["schedule"], c["warmup"]
  )
  names = {today(name): name for name in job.params}
  own = {today(name): jnp.asarray(x) for name, x in job.params.items()}
  params = unflatten_dict(own, sep="/")
  first = model.init(jax.random.PRNGKey(0), job.probe, train=False)["params"]
  assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, params)
  kind = table_4 if c["optimizer"] == "sgd" else table_3
  steps = kind(job, model, schedule, params)
  probe = jax.jit(lambda p: model.apply({"params": p}, job.probe, train=False))
  for t in range(job.steps):
    if draws:
      draws.step = t
    loss, params, decay = next(steps)
    rates = {names[k]: schedule(t) * x for k, x in decay.items()}
    job.log(loss, schedule(t), rates)
    if job.due():
      found = flatten_dict(params, sep="/")
      job.keep("params", {names[k]: x for k, x in found.items()})
      job.keep("logits", {"": probe(params)})
  job.save()


def table_4(job: Job, model: Any, schedule: Any, params: Any) -> Any:
  """`make_update_fn`, on one device."""
  c = job.config
  tx = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.sgd(
      learning_rate=schedule,
      momentum=0.9,
      accumulator_dtype=c["momentum_dtype"],
    ),
  )
  update = train.make_update_fn(
    apply_fn=model.apply, accum_steps=c["accumulation"], tx=tx
  )
  decay = dict.fromkeys(flatten_dict(params, sep="/"), 0.0)
  one = jax.tree.map(lambda x: x[None], (params, tx.init(params)))
  (params, opt_state), key = one, jax.random.PRNGKey(0)[None]
  # Parts of a batch are runs of it there, and every n-th example here.
  rows = np.arange(job.images.shape[1]).reshape(-1, c["accumulation"]).T.ravel()
  for t in range(job.steps):
    batch = {"image": job.images[t][rows], "label": job.one_hot(t)[rows]}
    batch = jax.tree.map(lambda x: x[None], batch)
    params, opt_state, loss, key = update(params, opt_state, batch, key)
    yield loss[0], jax.tree.map(lambda x: x[0], params), decay


def table_3(job: Job, model: Any, schedule: Any, params: Any) -> Any:
  c = job.config

  def loss_of(params: Any, images: Any, labels: Any) -> Any:
    rngs = {"dropout": jax.random.PRNGKey(0)}
    logits = model.apply({"params": params}, images, train=True, rngs=rngs)
    if c["loss"] == "softmax":
      return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * labels, axis=1))
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    return -jnp.mean(jnp.sum(labels * yes + (1 - labels) * no, axis=1))

  gradient = jax.jit(jax.value_and_grad(loss_of))
  decays = {k: k.endswith("kernel") for k in flatten_dict(params, sep="/")}
  decay = {k: c["weight_decay"] * v for k, v in decays.items()}
  make = by_torch if c["optimizer"] == "torch" else by_optax
  update = make(job, schedule, params, decays)
  for t in range(job.steps):
    loss, grads = gradient(params, job.images[t], job.one_hot(t))
    params = update(t, grads, params)
    yield loss, params, decay


def by_optax(job: Job, schedule: Any, params: Any, decays: Any) -> Any:
  c, mask = job.config, unflatten_dict(decays, sep="/")
  adam = optax.adamw(
    schedule, b1=0.9, b2=0.999, weight_decay=c["weight_decay"], mask=mask
  )
  clip = optax.clip_by_global_norm(c["clip"]) if c["clip"] else optax.identity()
  tx = optax.chain(clip, adam)
  state = [tx.init(params)]

  @jax.jit
  def step(grads: Any, state: Any, params: Any) -> Any:
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  def update(t: int, grads: Any, params: Any) -> Any:
    del t
    params, state[0] = step(grads, state[0], params)
    return params

  return update


def by_torch(job: Job, schedule: Any, params: Any, decays: Any) -> Any:
  import torch

  c = job.config
  own = {
    k: torch.tensor(np.array(x)).requires_grad_()
    for k, x in flatten_dict(params, sep="/").items()
  }
  groups = [
    {"params": [own[k] for k in own if decays[k] == on], "weight_decay": decay}
    for on, decay in ((True, c["weight_decay"]), (False, 0.0))
  ]
  adam = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.999), eps=1e-8)
  job.facts["torch"] = torch.__version__

  def update(t: int, grads: Any, params: Any) -> Any:
    del params
    for k, x in flatten_dict(grads, sep="/").items():
      own[k].grad = torch.tensor(np.array(x))
    torch.nn.utils.clip_grad_norm_(own.values(), c["clip"])
    for group in adam.param_groups:
      group["lr"] = float(schedule(t))
    adam.step()
    found = {k: jnp.asarray(x.detach().numpy()) for k, x in own.items()}
    return unflatten_dict(found, sep="/")

  return update


if __name__ == "__main__":
  main()
