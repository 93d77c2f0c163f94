"""Settings of self-distillation; imports the standard library alone."""

import dataclasses

from vit_jax.runtime.checks import (
  BELOW_1,
  BETWEEN_0_AND_1,
  DEPTH,
  NOT_NEGATIVE,
  POSITIVE,
  WIDTH,
  Rule,
  up_to,
)
from vit_jax.runtime.settings import Duration, Section, setting
from vit_jax.tasks.crops import fit_areas

CENTERINGS = ("mean", "sinkhorn")
_ROUNDING = 1e-6  # Shares such as three times 1/3 do not sum to 1 exactly.
_WIDEST = 4096  # Side of a crop in pixels; each of its patches attends to all.


def _fit_masks(settings: "SelfDistillationSettings") -> None:
  """Raises ValueError if the shares of masked patches are in reverse order."""
  if settings.mask_from > settings.mask_to:
    raise ValueError(
      f"mask_from={settings.mask_from} is more than "
      f"mask_to={settings.mask_to}: swap them."
    )


def _fit_sizes(settings: "SelfDistillationSettings") -> None:
  """Raises ValueError if the sizes of crops do not fit the other settings."""
  s = settings
  shares = [share for *_, share in s.crop_sizes]
  if abs(sum(shares) - 1) > _ROUNDING:
    text = " + ".join(f"{share:g}" for share in shares)
    raise ValueError(
      f"crop_sizes has shares of {text} = {sum(shares):g}, the last number of "
      "each row: they must sum to 1."
    )
  if s.gram_scale > 1:
    raise ValueError(
      f"gram_scale={s.gram_scale} has no effect beside crop_sizes, which has "
      "the sizes for the Gram teacher: leave it out."
    )
  for large, small, gram, _ in s.crop_sizes:
    row = f"crop_sizes has a row of {large}, {small}, {gram}"
    for side, what, key in (
      (small, "second", "small_crops"),
      (gram, "third", "gram_weight"),
    ):
      if (side > 0) != (getattr(s, key) > 0):
        raise ValueError(
          f"{row}, and {key}={getattr(s, key):g}: the {what} number must be 0 "
          f"if {key} is 0, and a size otherwise."
        )
    if small > large:
      raise ValueError(
        f"{row}: small crops of {small} pixels are larger than large ones of "
        f"{large}: swap them."
      )
    if 0 < gram < large:
      raise ValueError(
        f"{row}: the Gram teacher has to see large crops at {large} pixels or "
        "more."
      )


@dataclasses.dataclass(frozen=True)
class SelfDistillationSettings(Section):
  """Self-distillation, in place of labels (DINO, iBOT, DINOv2).

  The teacher is the average of the model's parameters. The decay of the average
  is `ema_decay` at the first step, and rises to 1. Large crops have the run's
  `image_size`, unless there are `crop_sizes`.
  """

  prototypes: int = setting(
    0,
    "Number of outputs of the heads, 65,536 in the papers; 0 trains on labels.",
    must=up_to(1_000_000, "the heads have a column for each", 0),
  )
  head_size: int = setting(
    2048, "Width of the heads' MLPs.", must=WIDTH, needs="prototypes"
  )
  head_layers: int = setting(
    3, "Number of layers of the heads' MLPs.", must=DEPTH, needs="prototypes"
  )
  bottleneck: int = setting(
    256,
    "Width of the MLPs' outputs, which are compared with the prototypes.",
    must=WIDTH,
    needs="prototypes",
  )
  separate_head: bool = setting(
    False,
    "Give the patches a head of their own, beside that of the class token.",
    needs="prototypes",
  )
  small_crops: int = setting(
    8,
    "Number of small crops of an image, beside two large ones.",
    must=up_to(100, "each goes through the encoder", 0),
    needs="prototypes",
  )
  small_size: int = setting(
    96,
    "Side of a small crop in pixels, a multiple of the patch size.",
    must=WIDTH,
    needs="prototypes",
    tunes="small_crops",
  )
  crop_sizes: tuple[tuple[int, int, int, float], ...] = setting(
    (),
    "Rows of sizes of crops, of which each batch takes one, in place of "
    "image_size, small_size and gram_scale (DINOv3's stage of high "
    "resolution). A row has the sides in pixels of a large crop, of a small "
    "one (0 for none) and of the large one for the Gram teacher (0 for none), "
    "and the share of the batches that take this row.",
    must=Rule(
      "be rows of three sides in pixels, up to 4,096, and a share of the "
      "batches above 0, as in ((256,112,384,0.4),(384,112,576,0.6))",
      lambda rows: all(
        0 < large <= _WIDEST
        and 0 <= small <= _WIDEST
        and 0 <= gram <= _WIDEST
        and share > 0
        for large, small, gram, share in rows
      ),
    ),
    needs="prototypes",
    fits=_fit_sizes,
  )
  area: float = setting(
    0.32,
    "Large crops cover more than this share of an image, small ones less.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    fits=fit_areas,
  )
  min_area: float = setting(
    0.05,
    "Least share of an image's area that a small crop shows.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    tunes="small_crops",
    fits=fit_areas,
  )
  colours: bool = setting(
    True,
    "Change the colours of crops, make some grey, blur and solarize some; for "
    "images of 1 or 3 channels.",
    needs="prototypes",
  )
  class_weight: float = setting(
    1.0,
    "Weight of the class token's loss.",
    must=NOT_NEGATIVE,
    needs="prototypes",
    deprecated="weigh the other losses by patch_weight and koleo_weight.",
  )
  patch_weight: float = setting(
    1.0,
    "Weight of the loss of masked patches; 0 masks none, as in DINO.",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
  koleo_weight: float = setting(
    0.1,
    "Weight of the loss that keeps features of different images apart (KoLeo).",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
  gram_weight: float = setting(
    0.0,
    "Weight of the loss that keeps the inner products between an image's patch "
    "features near those of an earlier teacher (Gram anchoring), 1 to 2 in "
    "DINOv3; 0 is off.",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
  gram_scale: int = setting(
    1,
    "Factor by which large crops are enlarged for the teacher of Gram "
    "anchoring, 2 in DINOv3; its features are then resized to the crops' "
    "patches.",
    must=up_to(4, "the number of patches grows with its square", 1),
    needs="gram_weight",
  )
  gram_every: Duration = setting(
    Duration(),
    "Time after which the teacher of Gram anchoring is renewed, 10,000 steps "
    "in DINOv3; 0 keeps the first weights.",
    needs="gram_weight",
  )
  mask_probability: float = setting(
    0.5,
    "Share of the large crops with masked patches.",
    must=Rule("lie in [0, 1]", lambda x: 0 <= x <= 1),
    needs="prototypes",
    tunes="patch_weight",
  )
  mask_from: float = setting(
    0.1,
    "Least share of the patches to mask in a crop with masked patches.",
    must=BELOW_1,
    needs="prototypes",
    tunes="patch_weight",
    fits=_fit_masks,
  )
  mask_to: float = setting(
    0.5,
    "Largest share of the patches to mask in a crop with masked patches.",
    must=BETWEEN_0_AND_1,
    needs="prototypes",
    tunes="patch_weight",
    fits=_fit_masks,
  )
  centering: str = setting(
    "mean",
    "What keeps the teacher from giving one answer for all images: a running "
    'mean is subtracted from its logits ("mean"), or Sinkhorn-Knopp has all '
    'prototypes used equally ("sinkhorn").',
    choices=CENTERINGS,
    needs="prototypes",
  )
  center_momentum: float = setting(
    0.9,
    "Decay rate of the running mean of the teacher's logits.",
    must=BELOW_1,
    needs="prototypes",
    tunes="centering=mean",
    deprecated="leave it out; it is 0.9 in DINO, iBOT and DINOv2.",
  )
  student_temperature: float = setting(
    0.1,
    "Temperature that divides the student's logits.",
    must=POSITIVE,
    needs="prototypes",
    deprecated="leave it out; it is 0.1 in DINO, iBOT and DINOv2.",
  )
  first_temperature: float = setting(
    0.04,
    "Temperature that divides the teacher's logits at the first step.",
    must=POSITIVE,
    needs="temperature_warmup",
  )
  teacher_temperature: float = setting(
    0.07,
    "Temperature of the teacher's logits after the warm-up.",
    must=POSITIVE,
    needs="prototypes",
  )
  temperature_warmup: Duration = setting(
    Duration(),
    "Time over which the teacher's temperature rises from first_temperature, "
    "30 of 100 epochs in DINOv2.",
    needs="prototypes",
  )
  freeze_last: Duration = setting(
    Duration(),
    "Time in which the heads' last layer stays as it is, one epoch in DINOv2.",
    needs="prototypes",
  )
  clip_norm: float = setting(
    3.0,
    "Largest norm of the encoder's gradient, and of each head's; 0 is off. "
    "Gradients are clipped by it before optimizer.clip_norm.",
    must=NOT_NEGATIVE,
    needs="prototypes",
  )
