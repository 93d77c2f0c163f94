"""Starts a new head from a linear probe of the training images."""

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.models.model import represent
from vit_jax.run import build
from vit_jax.run.plan import Plan
from vit_jax.tasks.outcome import Stream
from vit_jax.tasks.probes import whole_set


def head(plan: Plan, params: Any) -> dict[str, np.ndarray]:
  """The head's arrays by path, from the probe of `tasks.probes.linear_probe`.

  The training images are prepared as for evaluation, and fitted mirrored as
  well if training mirrors them. `params` are the state's. Raises ValueError if
  the model has two heads, or there are too few images.
  """
  model, settings = plan.model, plan.settings
  if model.distilled:
    raise ValueError(
      "transfer.probe_head=True fits one head, and the model has two: leave it "
      "out."
    )

  def views(params: Any, x: Float[Array, "B H W C"]) -> Float[Array, "B V R"]:
    images = [x, x[:, :, ::-1]][: 1 + settings.train_transform.flip]
    return jnp.stack([represent(model, params, x) for x in images], axis=1)

  count, how = len(plan.source), plan.preprocessing
  read = whole_set.make_represent(views, plan.mesh, how)
  rows = min(settings.batch_size, count)
  loader = build.open_loader(settings, how)
  stream = Stream(plan.source, plan.mesh, how, loader, rows)
  with contextlib.closing(stream):
    batches = read(plan.extras.merge(params), stream, "fitting the head")
    images = whole_set.Readable(batches)
    return whole_set.fit(images, model.num_classes, count).head()
