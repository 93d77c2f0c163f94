"""The text tower of big_vision's `two_towers`, beside an image tower.

Arrays are laid out as ours are, and layers named as in `google`, which reads
the image tower. The files do not record the pooling: it is that of SigLIP and
SigLIP 2, the last token's output.
"""

import dataclasses

from vit_jax.models.text import TextTower
from vit_jax.pretrained.formats import google
from vit_jax.pretrained.formats.architecture import need
from vit_jax.pretrained.formats.mapping import Shapes
from vit_jax.pretrained.formats.table import Layers, Table
from vit_jax.pretrained.formats.text_family import TextLayout

_TABLE = Table(
  "two_towers_text", (Layers("Encoder_0/encoderblock_{}/", rows="google"),)
)
_EMBEDDING = "Embed_0/embedding"
# Prefixes of the names of the pair's arrays, and of the text tower's.
_BASES = (("", "txt/"), ("params/", "params/txt/"), ("", ""))


def infer(shapes: Shapes) -> TextLayout | None:
  """The text tower of these arrays; None if they are of another format.

  Raises ValueError if an array that shows a size is missing or has other axes.
  """
  bases = (pair for pair in _BASES if pair[1] + _EMBEDDING in shapes)
  outside, base = next(bases, (None, ""))
  if outside is None:
    return None
  own = {name: x for name, x in shapes.items() if name.startswith(base)}
  names = google.numbering(own)
  first = f"{base}Encoder_0/encoderblock"
  scanned = f"{first}/{names['msa']}/query/kernel" in own
  first += "" if scanned else "_0"
  V, D = need(own, base + _EMBEDDING, 2)
  query = need(own, f"{first}/{names['msa']}/query/kernel", 3 + scanned)
  mlp = need(own, f"{first}/{names['mlp']}/Dense_0/kernel", 2 + scanned)
  num_layers = query[0] if scanned else _count(own, f"{base}Encoder_0/")
  head = f"{base}head/kernel"
  tower = TextTower(
    num_classes=0,
    vocabulary=V,
    length=need(own, f"{base}pos_embedding", 3)[1],
    hidden_size=D,
    num_layers=num_layers,
    mlp_size=mlp[-1],
    num_heads=query[-2],
    pooling="last",
    representation_size=need(own, head, 2)[1] if head in own else None,
    projection_bias=f"{base}head/bias" in own,
  )
  rules = [
    dataclasses.replace(rule, theirs=rule.theirs.format(**names))
    for rule in _TABLE.rules(tower, base)
  ]
  rules = google.stack_rules(rules) if scanned else rules
  pair = {f"{outside}t": "logit_scale", f"{outside}b": "logit_bias"}
  return TextLayout("big_vision's SigLIP", tower, rules, own, pair)


def _count(shapes: Shapes, before: str) -> int:
  """The number of layers whose names start with `before`."""
  inside = (x.removeprefix(before) for x in shapes if x.startswith(before))
  layers = {name.split("/")[0] for name in inside}
  return len([name for name in layers if name.startswith("encoderblock_")])
