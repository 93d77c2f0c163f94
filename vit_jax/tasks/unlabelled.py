"""The base of the tasks that learn from images alone, without labels."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from vit_jax.data.reading.labels import NONE
from vit_jax.runtime import hints
from vit_jax.tasks.scores import PROBES
from vit_jax.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class UnlabelledTask(Task):
  """A task whose runs leave an encoder, and answer nothing by themselves."""

  labels = NONE
  reported = "curves"

  def advice(
    self,
    run: str,
    data: str | None,
    evaluated: Mapping[str, Any],
    *,
    best: bool,
  ) -> list[str]:
    """Lines on using the encoder, and on how to learn whether it is better."""
    flag = ["--best"] if best else []
    uses = hints.uses_of_features(data or "my_photos", run, *flag)
    probe = shlex.join(["vit_jax", "fewshot", run, "CLASSES", *flag])
    tune = shlex.join(["vit_jax", "train", "CLASSES", "--pretrained", run])
    lines = [f"Use its features: {uses}."]
    ways = f"{tune} fine-tunes it"
    if not any(score.key in evaluated for score in PROBES):
      ways = f"{probe} measures its features by labels, as nothing else here "
      ways += f"does, and {tune} fine-tunes it"
    lines.append(
      f"With CLASSES, a folder with a folder for each class: {ways}."
    )
    return lines
