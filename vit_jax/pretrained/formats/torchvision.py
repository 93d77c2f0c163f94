"""torchvision's `VisionTransformer`.

Kernels are transposed; query, key and value are fused in `in_proj_weight`. The
GELU is exact, images are normalised with ImageNet's mean and standard
deviation, and there is always a class token. How pictures are resized follows
from the files' names.
"""

from typing import Any

from vit_jax.data.preprocessing import Preprocessing
from vit_jax.data.settings import EvalTransformSettings
from vit_jax.families.family import IMAGENET_MEAN, IMAGENET_STD
from vit_jax.models import BaseVit
from vit_jax.pretrained.formats import architecture
from vit_jax.pretrained.formats.architecture import Architecture, length, need
from vit_jax.pretrained.formats.mapping import Rule, Shapes
from vit_jax.pretrained.formats.table import Layers, Table

# Key of the configuration under which the file's name is passed.
FILE = "_file"
# Beginning of a published file's name -> side of the crop, short side before
# the crop, and filter.
_RESIZE = {
  "vit_b_16-": (224, 256, "bilinear"),
  "vit_b_32-": (224, 256, "bilinear"),
  "vit_l_16-": (224, 242, "bilinear"),
  "vit_l_32-": (224, 256, "bilinear"),
  "vit_b_16_swag-": (384, 384, "bicubic"),
  "vit_l_16_swag-": (512, 512, "bicubic"),
  "vit_h_14_swag-": (518, 518, "bicubic"),
  "vit_b_16_lc_swag-": (224, 224, "bicubic"),
  "vit_l_16_lc_swag-": (224, 224, "bicubic"),
  "vit_h_14_lc_swag-": (224, 224, "bicubic"),
}
# Width and depth of its models, whose heads are known.
_PUBLISHED = ((768, 12), (1024, 24), (1280, 32))
_LAYERS = "encoder.layers.encoder_layer_"
_POSITION = "encoder.pos_embedding"
_TABLE = Table("torchvision", (Layers(_LAYERS + "{}."),))


def prefix(shapes: Shapes) -> str | None:
  """The empty prefix; None for other formats."""
  return "" if "conv_proj.weight" in shapes and _POSITION in shapes else None


def infer(shapes: Shapes, config: Any = None, _: Any = None) -> Architecture:
  """Infers the model that these arrays are the parameters of.

  Raises ValueError if an array that tells a size is missing or has other axes
  than it needs.
  """
  D, _, P, _ = need(shapes, "conv_proj.weight", 4)
  fields: dict[str, Any] = dict(
    num_classes=length(shapes, "heads.head.bias", 0),
    patch_size=P,
    hidden_size=D,
    num_layers=_TABLE.stacks[0].count(shapes),
    mlp_size=need(shapes, f"{_LAYERS}0.mlp.0.weight", 2)[0],
    num_heads=architecture.guess_num_heads(D),
    representation_size=length(shapes, "heads.pre_logits.bias", None),
    gelu="exact",
  )
  tokens = need(shapes, _POSITION, 3)[1] - 1
  pictures, guessed = preprocessing(str((config or {}).get(FILE)))
  if (D, fields["num_layers"]) not in _PUBLISHED:
    guessed |= {"num_heads"}
  return Architecture(
    "torchvision",
    fields,
    tokens,
    preprocessing=pictures,
    interpolation="bicubic_corners",
    guessed=guessed,
  )


def preprocessing(file: str) -> tuple[Preprocessing, frozenset[str]]:
  """The evaluation transform of the weights that are published as `file`.

  For any other name it is that of vit_b_16, which is a guess. The second result
  has the names of guessed facts.
  """
  names = [name for name in _RESIZE if file.startswith(name)]
  side, short, interpolation = _RESIZE[(names or [*_RESIZE])[0]]
  ratio = short / side
  crop = EvalTransformSettings("center", ratio, interpolation, corner="even")
  pictures = Preprocessing(None, crop, mean=IMAGENET_MEAN, std=IMAGENET_STD)
  return pictures, frozenset(() if names else ("crop",))


def rules(vit: BaseVit, _: Shapes | None = None) -> list[Rule]:
  """The rules for all arrays of a checkpoint; there is only one naming."""
  return _TABLE.rules(vit)
