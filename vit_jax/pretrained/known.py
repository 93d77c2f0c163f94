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
- `hf_...`: Google's models as Hugging Face publishes them (extra `hf`);
- `torchvision_...`: torchvision's models; `_swag_<size>` ends with the image
  size. They are published only as pickles and have to be converted once.

`Vit` can express all of them. AugReg's R+Ti/16 is missing, since its stem is
the root of a ResNet without any stages.
"""

import dataclasses
import importlib.resources

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle")
"""Endings of files that can run code when they are loaded."""


@dataclasses.dataclass(frozen=True)
class Known:
  """A published checkpoint.

  Attributes:
    url: Its address: gs://, hf:// or https://.
    model: The variant as the paper writes it, such as B/16 or R50+B/16.
    image_size: Height and width of the images it was last trained on.
    trained_on: The data sets in the order of training, and the recipe.
    sha256: The file's checksum, if the publisher gives one.
  """

  url: str
  model: str
  image_size: int
  trained_on: str
  sha256: str | None = None

  @property
  def description(self) -> str:
    """The checkpoint in one line."""
    size = self.image_size
    return f"ViT-{self.model} for {size} x {size}, {self.trained_on}"

  @property
  def is_pickle(self) -> bool:
    """Whether it has to be converted before it can be read."""
    return self.url.endswith(PICKLES)


def rows() -> list[tuple[str, str, str, str]]:
  """A printable row for each: name, model and size, training data, address."""
  return [
    (
      name,
      f"{known.model} {known.image_size}",
      known.trained_on,
      known.url + (" (a pickle: convert it once)" if known.is_pickle else ""),
    )
    for name, known in KNOWN.items()
  ]


_I21K = "ImageNet-21k"
_I1K = "ImageNet-21k, ImageNet"
_GOOGLE = "gs://vit_models"
_PYTORCH = "https://download.pytorch.org/models"

# From google-research/vision_transformer's README and changelog.
_PAPER = (
  ("b16", "B/16", "ViT-B_16"),
  ("b32", "B/32", "ViT-B_32"),
  ("l16", "L/16", "ViT-L_16"),
  ("l32", "L/32", "ViT-L_32"),
  ("h14", "H/14", "ViT-H_14"),
  ("r50_b16", "R50+B/16", "R50+ViT-B_16"),
)
_NOT_FINE_TUNED = ("h14",)
_FINE_TUNED_224 = ("b16", "l16")

# From that README's table of recommended checkpoints; for B/8, timm's choice.
_AUGREG = {
  "ti16": ("Ti/16", "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"),
  "s16": ("S/16", "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0"),
  "s32": ("S/32", "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0"),
  "b8": ("B/8", "B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"),
  "b16": ("B/16", "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"),
  "b32": ("B/32", "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0"),
  "l16": ("L/16", "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0"),
  "r26_s32": (
    "R26+S/32",
    "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0",
  ),
  "r50_l32": (
    "R50+L/32",
    "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1",
  ),
}
# Learning rates of the fine-tuned counterparts in the README, all at 384.
_AUGREG_384 = {
  "ti16": "0.03",
  "s16": "0.03",
  "s32": "0.01",
  "b16": "0.03",
  "b32": "0.01",
  "l16": "0.01",
  "r26_s32": "0.01",
  "r50_l32": "0.01",
}
# The pre-training run and the learning rate of the checkpoint at 224 that timm
# uses; None stands for the run in `_AUGREG`.
_AUGREG_224 = {
  "ti16": (None, "0.03"),
  "s16": (None, "0.03"),
  "s32": ("S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03"),
  "b8": (None, "0.01"),
  "b16": (None, "0.01"),
  "b32": ("B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0", "0.03"),
  "l16": ("L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01"),
  "r26_s32": (
    "R26_S_32-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1",
    "0.03",
  ),
  "r50_l32": (None, "0.01"),
}

_SAM = (
  ("s16", "S/16", "ViT-S_16"),
  ("b16", "B/16", "ViT-B_16"),
  ("b32", "B/32", "ViT-B_32"),
  ("l16", "L/16", "ViT-L_16"),
  ("l32", "L/32", "ViT-L_32"),
)

# Where the main branch holds only a pickle, the commit is the one in which the
# hub's own converter offers the same weights as safetensors.
_HUGGING_FACE = (
  ("b16_i21k", "B/16", 224, _I21K, "vit-base-patch16-224-in21k"),
  ("b32_i21k", "B/32", 224, _I21K, "vit-base-patch32-224-in21k"),
  ("l16_i21k", "L/16", 224, _I21K, "vit-large-patch16-224-in21k"),
  (
    "l32_i21k",
    "L/32",
    224,
    _I21K,
    "vit-large-patch32-224-in21k@1170e42b7c584b04363ac5ad6b246001e8ba9113",
  ),
  ("h14_i21k", "H/14", 224, _I21K, "vit-huge-patch14-224-in21k"),
  ("b16_224", "B/16", 224, _I1K, "vit-base-patch16-224"),
  ("b16_384", "B/16", 384, _I1K, "vit-base-patch16-384"),
  ("b32_384", "B/32", 384, _I1K, "vit-base-patch32-384"),
  (
    "l16_224",
    "L/16",
    224,
    _I1K,
    "vit-large-patch16-224@8041a8c7b0517e25d4cfa63f2e2e35b50b853386",
  ),
  (
    "l32_384",
    "L/32",
    384,
    _I1K,
    "vit-large-patch32-384@7cb790d8aa73dc7882e7190b95f2dbde837abe21",
  ),
)

_SWAG = "Instagram (SWAG), ImageNet"
_TORCHVISION = (
  ("b16", "B/16", 224, "ImageNet", "vit_b_16-c867db91"),
  ("b32", "B/32", 224, "ImageNet", "vit_b_32-d86f8d99"),
  ("l16", "L/16", 224, "ImageNet", "vit_l_16-852ce7e3"),
  ("l32", "L/32", 224, "ImageNet", "vit_l_32-c7638314"),
  ("b16_swag_384", "B/16", 384, _SWAG, "vit_b_16_swag-9ac1b537"),
  ("l16_swag_512", "L/16", 512, _SWAG, "vit_l_16_swag-4f3808c9"),
  ("h14_swag_518", "H/14", 518, _SWAG, "vit_h_14_swag-80465313"),
)


def _paper() -> dict[str, Known]:
  table = {}
  for name, model, file in _PAPER:
    url = f"{_GOOGLE}/imagenet21k/{file}.npz"
    table[f"{name}_i21k"] = Known(url, model, 224, _I21K)
  for name, model, file in _PAPER:
    base = f"{_GOOGLE}/imagenet21k+imagenet2012/{file}"
    if name in _FINE_TUNED_224:
      table[f"{name}_i1k_224"] = Known(f"{base}-224.npz", model, 224, _I1K)
    if name not in _NOT_FINE_TUNED:
      table[f"{name}_i1k_384"] = Known(f"{base}.npz", model, 384, _I1K)
  return table


def _augreg() -> dict[str, Known]:
  table = {}
  for name, (model, run) in _AUGREG.items():
    url = f"{_GOOGLE}/augreg/{run}.npz"
    table[f"{name}_augreg"] = Known(url, model, 224, f"{_I21K} (AugReg)")
  for name, (model, run) in _AUGREG.items():
    tuned = []
    if name in _AUGREG_224:
      run_224, rate = _AUGREG_224[name]
      tuned.append((224, run_224 or run, rate))
    if name in _AUGREG_384:
      tuned.append((384, run, _AUGREG_384[name]))
    for size, start, rate in tuned:
      end = f"imagenet2012-steps_20k-lr_{rate}-res_{size}.npz"
      url = f"{_GOOGLE}/augreg/{start}--{end}"
      table[f"{name}_augreg_i1k_{size}"] = Known(
        url, model, size, f"{_I1K} (AugReg)"
      )
  return table


def _others() -> dict[str, Known]:
  table = {}
  for name, model, file in _SAM:
    url = f"{_GOOGLE}/sam/{file}.npz"
    table[f"{name}_sam"] = Known(url, model, 224, "ImageNet (SAM)")
  for name, model, size, data, repository in _HUGGING_FACE:
    url = f"hf://google/{repository}"
    table[f"hf_{name}"] = Known(url, model, size, data)
  for name, model, size, data, file in _TORCHVISION:
    url = f"{_PYTORCH}/{file}.pth"
    table[f"torchvision_{name}"] = Known(url, model, size, data)
  return table


KNOWN: dict[str, Known] = {**_augreg(), **_paper(), **_others()}


def class_names(source: str, num_classes: int) -> tuple[str, ...]:
  """ImageNet's class names for a source that was last trained on ImageNet.

  Each is the first of a class's names in WordNet. Other sources get ().
  """
  known = KNOWN.get(source.lower())
  if known is None:
    known = next((k for k in KNOWN.values() if k.url == source), None)
  if known is None or num_classes != 1000:
    return ()
  if "ImageNet" not in known.trained_on.split(" (")[0].split(", "):
    return ()
  names = importlib.resources.files("vit_jax.pretrained") / "imagenet_names.txt"
  return tuple(names.read_text("utf-8").splitlines())
