"""What the programs that run a reference share; it knows none of them.

Each is started by `record.py`, with the reference's folder on its path, as
`python PROGRAM INPUTS OUTPUTS`. It imports nothing of this package.
"""

import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any
from unittest import mock

import numpy as np


class Stubs(MetaPathFinder, Loader):
  """Empty stand-ins for libraries that a reference's step does not use."""

  def __init__(self, *names: str):
    self.names = names
    sys.meta_path.insert(0, self)

  def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
    del path, target
    stub = any(name == k or name.startswith(f"{k}.") for k in self.names)
    return ModuleSpec(name, self, is_package=True) if stub else None

  def create_module(self, spec: Any) -> Any:
    found = mock.MagicMock(name=spec.name)
    found.__path__, found.__spec__ = [], spec
    return found

  def exec_module(self, module: Any) -> None:
    del module


class Job:
  """The inputs of a reference's run, and what it finds.

  Attributes:
    config: The recipe, and the sizes of the tiny model.
    params: The first arrays, by the reference's names.
    images, labels: The batches, normalised float32 (T, B, H, W, C), and (T, B).
    masks: The draws of each call of dropout or drop path, each (T, *shape).
    mixing: Mixup's lambda, CutMix's lambda and its box's centre, (T, 4).
    probe: Images whose logits are wanted.
  """

  def __init__(self):
    with np.load(sys.argv[1]) as file:
      arrays = {name: file[name] for name in file.files}
    self.config = json.loads(str(arrays.pop("config")))
    self.images, self.labels = arrays.pop("images"), arrays.pop("labels")
    self.mixing, self.probe = arrays.pop("mixing"), arrays.pop("probe")
    self.params = self._under(arrays, "params/")
    masks = self._under(arrays, "mask/")
    self.masks = [masks[str(i)] for i in range(len(masks))]
    self.extra = self._under(arrays, "extra/")
    self.steps = len(self.images)
    self.found: dict[str, Any] = {}
    self.loss: list[float] = []
    self.rate: list[dict[str, float]] = []
    self.decay: list[dict[str, float]] = []
    self.facts: dict[str, Any] = {}

  @staticmethod
  def _under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, Any]:
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in names}

  def one_hot(self, t: int) -> np.ndarray:
    return np.eye(self.config["classes"], dtype=np.float32)[self.labels[t]]

  def log(self, loss: float, rate: Any, decay: Any) -> None:
    """Of one step; rate and decay are by name, or one number for all."""
    self.loss.append(float(loss))
    for kept, value in ((self.rate, rate), (self.decay, decay)):
      by_name = (
        value if isinstance(value, dict) else dict.fromkeys(self.params, value)
      )
      kept.append({name: float(by_name[name]) for name in self.params})

  def due(self) -> bool:
    """Whether the arrays after the last logged step are wanted."""
    return len(self.loss) in self.config["marks"]

  def keep(self, kind: str, arrays: dict[str, Any]) -> None:
    for name, array in arrays.items():
      self.found[f"{kind}_{len(self.loss)}/{name}"] = np.array(array)

  def save(self, *libraries: Any) -> None:
    """Writes what was found, and the versions of the reference's libraries."""
    self.facts |= {module.__name__: module.__version__ for module in libraries}
    self.found["loss"] = np.array(self.loss, np.float64)
    for name in self.params:
      for kind in ("rate", "decay"):
        found = [x[name] for x in getattr(self, kind)]
        self.found[f"{kind}/{name}"] = np.array(found)
    self.found["facts"] = np.array(json.dumps(self.facts))
    np.savez(sys.argv[2], **self.found)
