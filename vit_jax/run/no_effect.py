"""Keys that a run sets and that change nothing in it, with the reason.

Keys that no configuration can mean are refused before, by `check_needs` and the
task. Those here may come from a configuration of which another key was changed,
or depend on the weights and the data, so the header of a new run names them.
"""

import numpy as np
from flax.traverse_util import flatten_dict

from vit_jax.data.example import sides
from vit_jax.data.reading.sources import looked_at, window_changes
from vit_jax.models.paths import beside
from vit_jax.run.plan import Plan
from vit_jax.run.train_loop import FIRST_TRACED
from vit_jax.run.trained import trained_filter
from vit_jax.runtime.settings import changed, untuned


def keys_without_effect(plan: Plan) -> list[str]:
  """A line for each key that is set and has no effect, with the reason."""
  changes = changed(plan.settings)
  reasons = {**untuned(plan.settings), **plan.task.unread}
  reasons |= {
    key: reason
    for key, why in _IN_A_PLAN.items()
    if key in changes and (reason := why(plan))
  }
  return [
    f"{key}={changes[key][0]!r}, {reason}"
    for key, reason in reasons.items()
    if key in changes
  ]


def _no_images_held_out(plan: Plan) -> str:
  """Why keys that hold images out have no effect; "" if they have one."""
  given = not sides(plan.source)
  return "as the images to evaluate on are given" if given else ""


def _no_window(plan: Plan) -> str:
  """Why the darkest and the brightest value have no effect, or ""."""
  spec, start = plan.preprocessing.spec, plan.start
  of_start = start is not None and start.preprocessing.window == spec.window
  if of_start or window_changes(looked_at(plan.source), spec):
    return ""
  return "as it leaves the images looked at as they are"


def _has_no_masks(plan: Plan) -> str:
  """Why the meaning of the values of masks has no effect, or ""."""
  has_masks = plan.task.labels.reader == "mask_folder"
  return "" if has_masks else "as the labels are no masks"


def _no_positions_fitted(plan: Plan) -> str:
  """Why the interpolation of positions has no effect, or ""."""
  if plan.start is None:
    return ""
  # Imported here, since only runs that start from a checkpoint need it.
  from vit_jax.pretrained.transfer import resizes_positions

  size = plan.preprocessing.image_size
  if resizes_positions(plan.start, plan.model, size):
    return ""
  return "as no positions of the checkpoint are fitted to another grid"


def _no_layer_to_keep(plan: Plan) -> str:
  """Why `keep_pre_logits` has no effect, or ""."""
  if plan.start is None:
    return ""
  if getattr(plan.start.model, "representation_size", None) is None:
    return "as the checkpoint has no representation layer"
  kept = plan.settings.transfer.keep_head
  return "as transfer.keep_head keeps that layer" if kept else ""


def _no_pre_logits(plan: Plan) -> str:
  """Why probes cannot read another layer than y of Eq. 4, or ""."""
  if getattr(plan.model, "representation_size", None) is not None:
    return ""
  return "as the model has no representation layer"


def _no_positions(plan: Plan) -> str:
  """Why it has no effect where positions are added, or ""."""
  has_none = getattr(plan.model, "position", "") == "none"
  return "as model.position='none' adds none" if has_none else ""


def _no_path_is_dropped(plan: Plan) -> str:
  """Why it has no effect how the rate of dropped paths grows, or ""."""
  rate = getattr(plan.model, "drop_path_rate", 0.0)
  return "" if rate else "as model.drop_path_rate is 0"


def _labels_have_no_share(plan: Plan) -> str:
  """Why keys of the labels' loss have no effect, or ""."""
  distill = plan.settings.distill
  if not distill.teacher or distill.weight < 1:
    return ""
  return "as distill.weight=1.0 leaves the labels no share of the loss"


def _head_is_given(plan: Plan) -> str:
  """Why the initial bias of the head has no effect, or ""."""
  transfer = plan.settings.transfer
  for name in ("keep_head", "probe_head"):
    if getattr(transfer, name):
      return f"as transfer.{name} gives the head its bias"
  return ""


def _ends_before_the_trace(plan: Plan) -> str:
  """Why no step is traced, or ""."""
  if plan.lengths.total >= FIRST_TRACED:
    return ""
  return f"as the run ends before step {FIRST_TRACED}, the first to be traced"


def _no_tpu(plan: Plan) -> str:
  """Why keys of TPUs have no effect, or ""."""
  platform = plan.mesh.devices.flat[0].platform
  return "" if platform == "tpu" else f"as it is for TPUs, not a {platform}"


def _probes_prepare_alike(plan: Plan) -> str:
  """Why keys of the images of a probe have no effect."""
  del plan
  return "as the images of a probe are read once each, as those of the run"


def _trained_paths(plan: Plan) -> list[str]:
  """The paths of the parameters that are trained."""
  shapes = flatten_dict(plan.param_shapes, sep="/")
  return [*filter(trained_filter(plan, shapes), shapes)]


def _patches_are_frozen(plan: Plan) -> str:
  """Why a rate of the patch embedding has no effect, or ""."""
  kernels = (beside(path, "kernel") for path in _trained_paths(plan))
  if any(map(plan.parts.reads_pixels, kernels)):
    return ""
  return "as the patch embedding is not trained"


def _layers_are_frozen(plan: Plan) -> str:
  """Why rates that fall from layer to layer have no effect, or ""."""
  depths = map(plan.parts.depth, _trained_paths(plan))
  return "" if any(map(np.any, depths)) else "as the head alone is trained"


# A key, and what says why it has no effect in a plan, or "" if it has one.
_IN_A_PLAN = {
  "data.eval_fraction": _no_images_held_out,
  "data.held_out_by": _no_images_held_out,
  "normalization.window": _no_window,
  "data.mask_values": _has_no_masks,
  "transfer.interpolation": _no_positions_fitted,
  "transfer.keep_pre_logits": _no_layer_to_keep,
  "profile_steps": _ends_before_the_trace,
  "scoped_vmem_mib": _no_tpu,
  "model.splash": _no_tpu,
  "fewshot.data.sampling": _probes_prepare_alike,
  "fewshot.data.bands": _probes_prepare_alike,
  "fewshot.pre_logits": _no_pre_logits,
  "model.position_at": _no_positions,
  "model.drop_path_grows": _no_path_is_dropped,
  "model.head_bias": _head_is_given,
  "loss.class_weights": _labels_have_no_share,
  "loss.label_smoothing": _labels_have_no_share,
  "loss.binary_targets": _labels_have_no_share,
  "optimizer.patches_lr": _patches_are_frozen,
  "optimizer.layer_decay": _layers_are_frozen,
}
