"""Published Vision Transformers by short names.

A name consists of the model, its pre-training and, if it is fine-tuned, the
data set and image size of the fine-tuning: `b16_augreg_i1k_384` is a ViT-B/16
pre-trained with AugReg on ImageNet-21k and fine-tuned on ImageNet at 384 x 384.

- model: `ti16`, `s16`, `s32`, `b8`, `b16`, `b32`, `l16`, `l32`, `h14`, and the
  hybrids `r50_b16`, `r26_s32`, `r50_l32`;
- `_i21k`: the paper's models (arXiv:2010.11929), pre-trained on ImageNet-21k;
  `_i1k_<size>`: these models fine-tuned on ImageNet;
- `_augreg`: the models of "How to train your ViT?" (arXiv:2106.10270),
  pre-trained on ImageNet-21k; they are usually the better start for
  fine-tuning. `_augreg_i1k_<size>` is fine-tuned on ImageNet, in some cases
  from another run than the one that `_augreg` names;
- `_sam`: models trained on ImageNet alone with SAM (arXiv:2106.01548), at 224;
- `hf_...`: models on Hugging Face (extra `hf`) in the form of transformers, by
  their publishers; those of `_dinov2` are trained without labels
  (arXiv:2304.07193);
- `timm_...`: timm's models, also on Hugging Face. After the model comes the
  family: `_dinov3`, `_tipsv2`, `_pe_core`, `_radiov4`, `_siglip2_384` and so
  on. `s+` is written `splus`, and `gopt` is SigLIP 2's giant-opt;
- `_tipsv2` without a prefix, as in `b14_tipsv2`: the publisher's own files for
  JAX;
- `torchvision_...`: torchvision's models; `_swag_<size>` ends with the image
  size. They are published only as pickles and have to be converted once.

The table is `known.csv`. The models of AugReg are those that its README
recommends, and at 224 and for B/8 those that timm chose. Where Hugging Face's
main branch has only a pickle, the revision is the one in which the hub's own
converter offers the same weights as safetensors. AugReg's R+Ti/16 is missing,
since its stem is the root of a ResNet without any stages.

A licence is the one that the publisher's page or model card gives, or else the
one in timm's configuration of the file. It is "unknown" if none of these gives
one for the weights.
"""

import csv
import dataclasses
import fnmatch
import importlib.resources
import os
import re
import shlex
from typing import Any
from urllib.parse import unquote

from vit_jax.pretrained.licenses import LICENSES
from vit_jax.runtime import hints
from vit_jax.runtime.printable import say

# Endings of files that can run code when they are loaded.
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle", ".pth.tar")


@dataclasses.dataclass(frozen=True)
class Known:
  """A published checkpoint.

  Attributes:
    url: Its address: gs://, hf:// or https://.
    model: The variant as the paper writes it, such as B/16 or R50+B/16.
    image_size: Height and width of the images it was last trained on.
    trained_on: The data sets in the order of training, and the recipe.
    parameters: Number of the encoder's parameters, without its head and
      representation layer.
    timm: timm's name of the same weights; "" if it has none. For Google's
      models, timm reads the same file.
    top1: Accuracy on ImageNet's validation images in percent, as its publisher
      gives it for this very file, or as timm measured it (timm's crop differs
      from that of Google's files). None if neither has measured it.
    sha256: The file's checksum, if the publisher gives one.
    family: The encoders that it belongs to, a heading of docs/encoders.md.
    license: The name in `LICENSES` of the licence of its weights.
    gated: Whether Hugging Face gives it only to those who accept its terms.
    score: The publisher's measurement in words, if it is not a top-1 accuracy.
    score_source: The address of the page that gives the measurement.
  """

  url: str
  model: str
  image_size: int
  trained_on: str
  parameters: int
  timm: str = ""
  top1: float | None = None
  sha256: str | None = None
  family: str = ""
  license: str = "unknown"
  gated: bool = False
  score: str = ""
  score_source: str = ""

  @property
  def names(self) -> tuple[str, ...]:
    """The checkpoint's address, and its names on Hugging Face and in timm."""
    _, is_hub, hub = self.url.partition("@")[0].rpartition("hf://")
    hub_names = (hub, hub.rpartition("/")[2]) if is_hub else ()
    return self.url, *hub_names, *filter(None, [self.timm])

  @property
  def terms(self) -> str:
    """A sentence or two on the licence, and on a gate before the weights."""
    text = f"its licence is {LICENSES[self.license]}"
    if self.gated:
      page = self.names[1]
      text += (
        ". It needs a token (`hf auth login`, or HF_TOKEN) of an account that "
        f"has accepted its terms at https://huggingface.co/{page}"
      )
    return text


class Models(dict[str, Known]):
  """Published checkpoints by their names, in the order of the table.

  A number or a slice gives names, as of a list: `list_models()[:2]`.
  """

  def __getitem__(self, key: Any) -> Any:
    if isinstance(key, int | slice):
      return [*self][key]
    return super().__getitem__(key)

  def __repr__(self) -> str:
    """A line for each checkpoint: its name, its model and its training data."""
    width = max(map(len, self), default=0) + 2
    return "\n".join(
      f"{name:<{width}}{one.model} {one.image_size}, {one.trained_on}"
      for name, one in self.items()
    )


# The heads of the columns of `rows`.
COLUMNS = (
  "name",
  "model",
  "parameters",
  "trained on",
  "top-1",
  "licence",
  "address",
)


def rows(pattern: str = "*") -> list[tuple[str, ...]]:
  """A printable row of `COLUMNS` for each checkpoint whose name matches.

  If no whole name matches, the pattern may match a part of a name.
  """
  models = _matching(pattern) or _matching(f"*{pattern}*")
  return [_row(name, checkpoint) for name, checkpoint in models.items()]


def _row(name: str, checkpoint: Known) -> tuple[str, ...]:
  """The printable row of a checkpoint, in the order of `COLUMNS`."""
  gate = ", gated" if checkpoint.gated else ""
  return (
    name,
    f"{checkpoint.model} {checkpoint.image_size}",
    f"{checkpoint.parameters / 1e6:.0f} M",
    checkpoint.trained_on,
    "" if checkpoint.top1 is None else f"{checkpoint.top1:.1f}",
    f"{checkpoint.license}{gate}",
    _address(checkpoint.url),
  )


def _address(url: str) -> str:
  """A checkpoint's address, with a note if it is a pickle."""
  if url.endswith(PICKLES):
    return f"{url} (a pickle: convert it once)"
  return url


@hints.accepts(
  'vit_jax.list_models("*dinov2*")',
  same={"filter": "pattern"},
)
def list_models(pattern: str = "*", *, pretrained: bool = True) -> Models:
  """The published checkpoints that `load_pretrained` knows, by their names.

  The result has those whose own name, or one of whose `Known.names`, matches
  the pattern, such as "*dinov2*". A number or a slice as its index gives names,
  as in `list_models()[:2]`. All of them have weights, so `pretrained`, which
  another library needs to say so, changes nothing.

  If none matches, a line says how many names contain the pattern.

  >>> import vit_jax
  >>> checkpoint = vit_jax.list_models("b16_augreg")["b16_augreg"]
  >>> checkpoint.model, checkpoint.image_size
  ('B/16', 224)
  """
  del pretrained
  models = _matching(pattern)
  if not models:
    wider = f"*{pattern.strip('*')}*"
    count = len(_matching(wider))
    hint = f'list_models("{wider}") has {count}' if count else "list_models()"
    hint += " that contain it." if count else " has all names."
    say(f"No name is exactly {pattern!r}: {hint}")
  return models


def _matching(pattern: str) -> Models:
  """The checkpoints of which a name matches a pattern, such as "*dinov2*"."""
  return Models(
    (name, checkpoint)
    for name, checkpoint in KNOWN.items()
    if fnmatch.filter((name, *checkpoint.names), pattern)
  )


def _read() -> dict[str, Known]:
  """The rows of `known.csv` by our names."""
  table = importlib.resources.files("vit_jax.pretrained") / "known.csv"
  kinds = {"image_size": int, "parameters": int, "top1": float, "gated": bool}
  checkpoints = {}
  for row in csv.DictReader(table.read_text("utf-8").splitlines()):
    name = row.pop("name")
    values = {k: kinds.get(k, str)(v) for k, v in row.items() if v}
    checkpoints[name] = Known(**values)
  return checkpoints


KNOWN = _read()
_BY_NAME = {name: one for one in KNOWN.values() for name in one.names}


def find(source: str) -> Known | None:
  """The checkpoint with this name or address; None if it is not known.

  The name may be ours, timm's or Hugging Face's. timm's name may lack its last
  part if `only_timm_name` completes it.
  """
  source = only_timm_name(source) or source
  return KNOWN.get(source.lower()) or _BY_NAME.get(source)


def only_timm_name(source: str) -> str:
  """Completes timm's name of an architecture to that of its only known weights.

  Returns "" if `source` is a whole name already, or if no weights or several
  are known. Of several, such as those of vit_base_patch16_224, timm chooses.
  """
  if "/" in source or "." in source:
    return ""
  whole = [
    name
    for name in _BY_NAME
    if name.startswith(f"{source}.") and "/" not in name
  ]
  return whole[0] if len(whole) == 1 else ""


def class_names(source: str, num_classes: int) -> tuple[str, ...]:
  """ImageNet's class names for a known source that has its 1,000 classes.

  The source was trained on ImageNet. Each name is the first of a class's names
  in WordNet. Other sources get ().
  """
  checkpoint = find(source)
  if checkpoint is None or num_classes != 1000:
    return ()
  if "ImageNet" not in checkpoint.trained_on.split(" (")[0].split(", "):
    return ()
  names = importlib.resources.files("vit_jax.pretrained") / "imagenet_names.txt"
  return tuple(names.read_text("utf-8").splitlines())


def license_of(source: str) -> str | None:
  """The name in `LICENSES` of a known source's licence; None if not known.

  A revision of a repository has the licence of the repository.
  """
  address = source.partition("@")[0] if source.startswith("hf://") else source
  if checkpoint := find(source) or find(address.removeprefix("hf://")):
    return None if checkpoint.license == "unknown" else checkpoint.license
  return None


def refuse_pickle(source: str) -> None:
  """Raises ValueError if a path or an address has the ending of a pickle."""
  name, download = source, ""
  if "://" in source:
    name = unquote(source).rpartition("/")[2]
    download = f"curl -LO {shlex.quote(source)} && "
  if name.lower().endswith(PICKLES) and not os.path.isdir(source):
    raise ValueError(
      f"{source} is a pickle, {conversion(name, download)}, and give that file."
    )


def conversion(name: str, download: str = "") -> str:
  """Says why a pickle is refused, and gives the command that converts it.

  `download` is shell text that goes before this command.
  """
  return (
    "which can run code when it is loaded; convert it once on a machine with "
    f"PyTorch, by `{download}{_command(name)}`"
  )


def _command(name: str) -> str:
  """The shell command that converts the pickle `name` to safetensors."""
  output = f"{name.removesuffix('.tar').rpartition('.')[0]}.safetensors"
  program = (
    "import torch; from safetensors.torch import save_file; "
    f"d = torch.load({name!r}, map_location='cpu', weights_only=True); "
    f"save_file(d.get('state_dict', d.get('model', d)), {output!r})"
  )
  quoted = re.sub(r'(["\\$`])', r"\\\1", program)
  return f'python -c "{quoted}"'


# Advice for a pickle whose file name does not show that it is one.
TORCH_ADVICE = (
  "unpickling can run code, so it is refused; convert it once on a machine "
  "with PyTorch: " + _command("F.pth")
)
