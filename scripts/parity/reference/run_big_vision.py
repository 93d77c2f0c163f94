"""Runs google-research/big_vision: its S/16 baseline.

`update_fn` is nested in its `main`, so its lines on Mixup, the gradient and the
update are called here in their order; optimizer, schedule, model, loss and
Mixup are its own functions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax
from common import Job, Stubs
from flax.traverse_util import flatten_dict, unflatten_dict
from jax_draws import Draws

Stubs("tensorflow", "tensorflow_datasets", "clu", "overrides", "tensorstore")

import big_vision.models.vit as bv_vit  # noqa: E402
import big_vision.optax as bv_optax  # noqa: E402
import big_vision.utils as u  # noqa: E402


def main() -> None:
  job = Job()
  c, draws = job.config, Draws(job.masks, job.mixing)
  model = bv_vit.Model(
    c["classes"],
    patch_size=(c["patch"], c["patch"]),
    width=c["hidden"],
    depth=c["layers"],
    mlp_dim=c["mlp"],
    num_heads=c["heads"],
    posemb="sincos2d",
    rep_size=True,
    pool_type="gap",
    dtype_mm=c["dtype"],
  )
  config = ml_collections.ConfigDict(
    dict(
      grad_clip_norm=1.0,
      optax_name="scale_by_adam",
      optax=dict(mu_dtype=c["mu_dtype"]),
      lr=c["rate"],
      wd=c["weight_decay"],
      schedule=dict(warmup_steps=c["warmup"], decay_type="cosine"),
      mixup=dict(p=0.2),
    )
  )
  own = {name: jnp.asarray(x) for name, x in job.params.items()}
  params = unflatten_dict(own, sep="/")
  sizes = dict(total_steps=job.steps, batch_size=len(job.images[0]))
  tx, schedules = bv_optax.make(config, params, sched_kw=sizes)
  opt = tx.init(params)
  zeros = jax.tree.map(jnp.zeros_like, params)
  ones = jax.tree.map(jnp.ones_like, params)

  @jax.jit
  def update(params: Any, opt: Any, images: Any, labels: Any) -> Any:
    rng = jax.random.PRNGKey(0)
    _, (images, labels), _ = u.get_mixup(rng, config.mixup.p)(images, labels)

    def loss_fn(params: Any) -> Any:
      rngs = {"dropout": rng}
      logits, _ = model.apply({"params": params}, images, train=True, rngs=rngs)
      return u.softmax_xent(logits=logits, labels=labels)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss

  @jax.jit
  def decayed(step: Any) -> Any:
    def counted(path: Any, leaf: Any) -> Any:
      name = jax.tree_util.keystr(path[-1:], simple=True)
      return step if name == "count" else leaf

    state = jax.tree_util.tree_map_with_path(counted, tx.init(params))
    updates, _ = tx.update(zeros, state, ones)
    return jax.tree.map(lambda x: -x.ravel()[0], updates)

  probe = jax.jit(lambda p: model.apply({"params": p}, job.probe)[0])
  for t in range(job.steps):
    draws.step = t
    params, opt, loss = update(params, opt, job.images[t], job.one_hot(t))
    (schedule,) = schedules
    decay = flatten_dict(decayed(t), sep="/")
    job.log(loss, float(schedule(t)) * c["rate"], decay)
    if job.due():
      job.keep("params", flatten_dict(params, sep="/"))
      job.keep("logits", {"": probe(params)})
  job.save()


if __name__ == "__main__":
  main()
