"""The rows of the comparison."""

import functools

from configs import big_vision_s16, pretrain
from scripts.parity import our_configs as configs
from scripts.parity import ours, pairs, self_distillation
from scripts.parity.inputs import SIDE
from scripts.parity.ours import CLASSES
from scripts.parity.recording import Tolerances
from scripts.parity.row import BATCH, SIZES, WARMUP, Row
from vit_jax.pretrained.formats import google, hf_encoders, hf_pairs, timm

_TINY = dict(SIZES, side=SIDE, warmup=WARMUP)
_google = functools.partial(
  Row,
  reference="google-research/vision_transformer",
  program="run_google.py",
)
_big_vision = functools.partial(
  Row,
  reference="google-research/big_vision",
  program="run_big_vision.py",
  config=big_vision_s16.get_config,
  rules=google.big_vision_rules,
)
_deit = functools.partial(
  Row,
  reference="facebookresearch/deit",
  program="run_deit.py",
  rules=timm.rules,
)
_layers = functools.partial(
  Row,
  program="run_layer_decay.py",
  config=configs.layer_decay,
  rules=timm.rules,
  adapt=configs.plain,
)
_TABLE_4 = dict(
  SIZES,
  optimizer="sgd",
  rate=0.03,
  schedule="cosine",
  warmup=WARMUP,
  dropout=0.1,
  accumulation=1,
  momentum_dtype="float32",
)
_SGD_FAULTS = (
  "warm-up off by one",
  "momentum as an average",
  "Nesterov's momentum",
  "a clip of each array",
  "a clip after the momentum",
  "1 % of smoothing",
  "the head's rate",
  "a decay of 1e-3",
  "1 % more dropout",
  "another GELU",
)
_ADAM_FAULTS = (
  "warm-up off by one",
  "biases decayed",
  "no decay of the head",
  "decay in the gradient",
  "a clip after decay",
  "the head's rate",
  "Adam's epsilon",
  "b2 of 0.99",
)
_TABLE_3 = dict(
  SIZES, warmup=WARMUP, dropout=0.1, representation=SIZES["hidden"]
)
_BIG_VISION = dict(
  SIZES,
  rate=1e-3,
  weight_decay=1e-4,
  warmup=WARMUP,
  mu_dtype="float32",
  dtype="float32",
)
_DEIT = dict(
  _TINY,
  epoch_steps=ours.EXAMPLES // BATCH,
  model="deit",
  optimizer="adamw",
  rate=1e-3,
  clip=None,
  bce=False,
  smoothing=0.1,
  drop_path=0.1,
  ema=0.99,
  distillation="none",
  alpha=0.5,
  tau=1.0,
)
_DEIT3 = dict(
  _DEIT,
  model="deit3",
  optimizer="lamb",
  rate=3e-3,
  bce=True,
  smoothing=0.0,
  drop_path=0.2,
  ema=0.0,
)
_DISTILLED = dict(_DEIT, model="deit_distilled")
_TAUGHT = (
  "the other share for the teacher",
  "the teacher's head for the labels",
  "drop path that does not grow",
  "smoothing of the wrong mass",
  "an average one step late",
)
_LAYERS = dict(
  _TINY,
  rate=4e-3,
  weight_decay=0.05,
  layer_decay=0.65,
  drop_path=0.1,
  groups="beit",
  norm="head",
  schedule="timm",
)
_LAYER_FAULTS = (
  "layers counted from another end",
  "embeddings with the first block",
  "the last norm with the last block",
  "another layer decay",
  "warm-up off by one",
  "biases decayed",
  "decay in the gradient",
  "drop path that does not grow",
  "the head's rate",
)
_UNSEEN = "Adam's epsilon"
_SHARED = (
  "In a run of ours, each part of a batch draws its own dropout. In the "
  "reference all parts share one draw, and in this comparison ours do too."
)
_NORM = (
  "timm puts the last norm into the last block's group. Ours has the head's "
  "rate, as in BeiT, and for this comparison timm's has it too."
)
_AVERAGE = (
  "The average's decay is 0.99 instead of 0.99996, with which faults of the "
  "average would not be seen in so few steps."
)
_PAPER = (
  "The reference has no pre-training: its model and its schedule are used, and "
  "the loss, the decay and the clipping are written from the paper."
)

_DINOV2 = dict(
  SIZES,
  side=SIDE,
  warmup=WARMUP,
  rate=self_distillation.RATE,
  prototypes=self_distillation.PROTOTYPES,
  head=self_distillation.HEAD,
  bottleneck=self_distillation.BOTTLENECK,
  small=self_distillation.SMALL,
  held=self_distillation.HELD,
  temperature_warmup=self_distillation.WARM,
)
_GRAM = dict(
  _DINOV2, gram=self_distillation.GRAM, renewed=self_distillation.RENEWED
)
_OTHER_WARM_UPS = (
  "Our learning rate rises as t / w, and the reference's as t / (w - 1). We "
  "interpolate the positions of small crops to the crop's grid, and the "
  "reference to a grid that is 0.1 larger. For this comparison, the reference "
  "does both as we do."
)
_EQUAL = (
  "Equal captions of a batch are not negatives of each other here. In "
  "transformers they are, so their terms are subtracted from its loss."
)

ROWS: dict[str, Row] = {
  "table4": _google(
    title="Table 4 fine-tuning of L/16 on ImageNet",
    recipe=_TABLE_4,
    config=configs.table_4,
    faults=_SGD_FAULTS,
    variants={"momentum in bfloat16": {"momentum_dtype": "bfloat16"}},
  ),
  "table4_accumulated": _google(
    title="Table 4 fine-tuning, each batch in 4 parts",
    recipe=dict(_TABLE_4, accumulation=4),
    config=configs.accumulated,
    faults=("gradient summed over the parts", *_SGD_FAULTS[:6]),
    different=(_SHARED,),
  ),
  "big_vision_s16": _big_vision(
    title="S/16, 90 epochs on ImageNet",
    recipe=_BIG_VISION,
    faults=(*_ADAM_FAULTS, "labels that are not mixed", "another GELU"),
    variants={"first moment in bfloat16": {"mu_dtype": "bfloat16"}},
  ),
  "big_vision_s16_bfloat16": _big_vision(
    title="S/16, 90 epochs on ImageNet, bfloat16 activations",
    recipe=dict(_BIG_VISION, dtype="bfloat16"),
    fields={"dtype": "bfloat16"},
    faults=tuple(f for f in _ADAM_FAULTS if f != _UNSEEN),
    different=(
      f"One fault of the float32 rows is not seen in bfloat16: {_UNSEEN}.",
    ),
    tolerances=Tolerances(loss=1e-2, arrays=1e-2, logits=3e-2),
  ),
  "deit3": _deit(
    title="DeiT III B/16: LAMB, sigmoid loss, drop path, LayerScale",
    recipe=_DEIT3,
    config=configs.deit3_b,
    scale=CLASSES,
    faults=(
      "LAMB for all arrays",
      "query, key and value by themselves",
      "trust ratio before decay",
      "a clip of the mean's size",
      "drop path that grows",
      "targets that are shares",
      "labels that are not mixed",
      "the schedule a step late",
      "the head's rate",
      "biases decayed",
      "another GELU",
    ),
  ),
  "deit_b": _deit(
    title="DeiT B/16: AdamW, Mixup, CutMix, smoothing, drop path, average",
    recipe=_DEIT,
    config=configs.deit_b,
    adapt=configs.plain,
    different=(_AVERAGE,),
    faults=(
      "smoothing of the wrong mass",
      "drop path that does not grow",
      "an average one step late",
      "an average that warms up",
      "labels that are not mixed",
      "the schedule a step late",
      "biases decayed",
      "decay in the gradient",
      "b2 of 0.99",
      "another GELU",
    ),
  ),
  "distillation_hard": _deit(
    title="DeiT's hard distillation",
    recipe=dict(_DISTILLED, distillation="hard"),
    config=configs.distilled(kind="hard", weight=0.5),
    extras=configs.teacher,
    faults=("Hinton's form", "soft for hard", *_TAUGHT),
  ),
  "distillation_soft": _deit(
    title="DeiT's soft distillation",
    recipe=dict(_DISTILLED, distillation="soft", alpha=0.1, tau=3.0),
    config=configs.distilled(kind="soft", weight=0.1, temperature=3.0),
    extras=configs.teacher,
    faults=(
      "Hinton's form",
      "the loss without T squared",
      "hard for soft",
      *_TAUGHT,
    ),
  ),
  "layer_decay_beit": _layers(
    title="Fine-tuning with layer decay, BeiT's groups",
    reference="microsoft/unilm",
    recipe=_LAYERS,
    faults=_LAYER_FAULTS,
    variants={"BeiT's own warm-up, t / (w - 1)": {"schedule": "beit"}},
  ),
  "layer_decay_timm": _layers(
    title="Fine-tuning with layer decay, timm's groups",
    reference="timm",
    recipe=dict(_LAYERS, groups="timm"),
    faults=_LAYER_FAULTS,
    different=(_NORM,),
    variants={"timm's group of the last norm": {"norm": "last block"}},
  ),
  "lora": Row(
    title="LoRA of all kernels of the blocks, rank 4",
    reference="peft",
    program="run_lora.py",
    recipe=dict(
      _TINY,
      rate=5e-4,
      decay=0.1,
      rank=4,
      alpha=8.0,
    ),
    config=configs.lora,
    rules=configs.products,
    extras=configs.base,
    faults=(
      "LoRA's alpha by the root of the rank",
      "LoRA's alpha not divided by the rank",
      "LoRA's products decayed",
      "warm-up off by one",
      "a clip after decay",
      "the head's rate",
      "Adam's epsilon",
    ),
  ),
  "table3_imagenet": _google(
    title="Table 3 pre-training of B/16 on ImageNet, Adam by torch",
    recipe=dict(
      _TABLE_3,
      optimizer="torch",
      loss="softmax",
      rate=5e-4,
      schedule="cosine",
      weight_decay=0.3,
      clip=1.0,
    ),
    config=configs.imagenet,
    faults=(*_ADAM_FAULTS, "1 % more dropout", "another GELU"),
    different=(_PAPER,),
  ),
  "table3_imagenet21k": _google(
    title="Table 3 pre-training of L/16 on ImageNet-21k, Adam by optax",
    recipe=dict(
      _TABLE_3,
      optimizer="optax",
      loss="sigmoid",
      rate=1e-3,
      schedule="linear",
      weight_decay=0.03,
      clip=0.0,
    ),
    config=functools.partial(pretrain.get_config, "L/16,imagenet21k"),
    faults=(
      *_ADAM_FAULTS,
      "1 % more dropout",
      "a final rate of a tenth",
      "another GELU",
    ),
    different=(_PAPER,),
  ),
  "muon": Row(
    title="Muon for the blocks' kernels, Adam for the rest",
    reference="NumPy",
    program="run_muon.py",
    recipe=dict(
      _TINY,
      rate=5e-4,
      decay=0.1,
      momentum=0.95,
      muon="numpy",
    ),
    config=configs.muon,
    rules=hf_encoders.rules,
    faults=(
      "Muon without Nesterov's momentum",
      "Muon's momentum of 0.9",
      "Muon's factor by the other side",
      "four iterations of Muon",
      "biases decayed",
      "warm-up off by one",
      "a clip after decay",
      "the head's rate",
    ),
    variants={
      "momentum not corrected for its start": {"muon": "numpy, uncorrected"},
      "torch.optim.Muon, whose iteration is in bfloat16": {"muon": "torch"},
    },
  ),
  "mae": Row(
    title="A masked autoencoder: a quarter of the patches seen, AdamW",
    reference="transformers",
    program="run_mae.py",
    recipe=dict(
      _TINY,
      rate=1e-3,
      decay=0.05,
      answers=ours.PATCHES,
      rate_of_masks=configs.MAE["rate"],
      decoder=configs.MAE["decoder_size"],
      decoder_layers=configs.MAE["decoder_layers"],
      decoder_heads=configs.MAE["decoder_heads"],
    ),
    config=configs.autoencoder,
    fields=dict(position="learned", pooling="token"),
    extras=configs.hidden_patches,
    rules=hf_encoders.rules,
    faults=(
      "a patch's variance is biased",
      "pixels that are not normalised",
      "the decoder's positions of y first",
      "the decoder's positions in order",
      "one more patch is seen",
      "b2 of 0.99",
      "biases decayed",
      "warm-up off by one",
      "another GELU",
    ),
    different=(
      (
        "The encoder's table of positions is trained on both sides, although "
        "transformers keeps it fixed. The logits that are compared are the "
        "pixels of four patches, none of them hidden."
      ),
    ),
  ),
  "dinov2": self_distillation.SelfDistilled(
    title="DINOv2: crops, masks, centers, KoLeo, and the averaged teacher",
    reference="facebookresearch/dinov2",
    program="run_dinov2.py",
    recipe=_DINOV2,
    config=self_distillation.config,
    rules=self_distillation.rules,
    different=(_OTHER_WARM_UPS,),
    faults=(
      "a center one step late",
      "the teacher's temperature",
      "masks for the teacher too",
      "KoLeo on unnormalised features",
      "momentum at its end value",
      "a last layer that is not held",
      "a constant weight decay",
      "biases decayed",
    ),
  ),
  "dinov3_gram": self_distillation.SelfDistilled(
    title="DINOv3's Gram anchoring in DINOv2's training",
    reference="facebookresearch/dinov3",
    program="run_dinov2.py",
    recipe=_GRAM,
    config=self_distillation.gram_config,
    rules=self_distillation.rules,
    different=(
      _OTHER_WARM_UPS,
      (
        "GramLoss is DINOv3's, and all other code is DINOv2's, whose clone "
        "PARITY_PYTHONPATH names. The Gram teacher sees the crops at their "
        "own size."
      ),
    ),
    faults=(
      "Gram of features as they are",
      "Gram without products below 0",
      "Gram's teacher a step late",
      "Gram's teacher never renewed",
      "the teacher's temperature",
    ),
  ),
  "siglip": pairs.Paired(
    title="SigLIP: an image tower and a text tower from scratch",
    reference="transformers",
    program="run_siglip.py",
    recipe=dict(
      _TINY,
      rate=pairs.RATE,
      decay=pairs.DECAY,
      clip=1.0,
      vocabulary=pairs.VOCABULARY,
      length=pairs.LENGTH,
      pad=pairs.PAD,
      equal="left out",
      padding="read",
      decayed="kernels",
    ),
    config=pairs.config,
    rules=hf_pairs.rules,
    adapt=pairs.siglip,
    different=(_EQUAL,),
    faults=(
      "a mean over all pairs of the batch",
      "the scale for its logarithm",
      "the bias within the scale",
      "equal captions are negatives",
      "vectors that are not normalised",
      "the mean of a text's tokens",
    ),
    variants={
      "padding that no token attends to": {"padding": "left out"},
      "a decay of the scale and the bias": {"decayed": "scale and bias too"},
    },
  ),
}
