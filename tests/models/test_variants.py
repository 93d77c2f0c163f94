"""Models by name."""

import json
import operator
import re

import jax
import jax.numpy as jnp
import pytest

from vit_jax import ResNet, Vit, make_model, make_resnet, make_vit
from vit_jax.config import base_config
from vit_jax.models import from_fields, to_fields, variant_of
from vit_jax.models.variants import describe
from vit_jax.run.settings import read

# Layers, hidden size, MLP size and heads, by Table 1 and the papers after it.
TABLE = {
  "Ti": (12, 192, 768, 3),
  "S": (12, 384, 1536, 6),
  "B": (12, 768, 3072, 12),
  "L": (24, 1024, 4096, 16),
  "H": (32, 1280, 5120, 16),
  "g": (40, 1408, 6144, 16),
  "G": (48, 1664, 8192, 16),
}


# Sizes of the heads that are not 64.
HEADS = {"H": 80, "g": 88, "G": 104}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("patch_size", [8, 14, 32])
def test_sizes_are_the_tables(name, patch_size):
  model = make_vit(f"{name}/{patch_size}", 7)
  sizes = (model.num_layers, model.hidden_size, model.mlp_size, model.num_heads)
  assert sizes == TABLE[name]
  assert model.hidden_size // model.num_heads == HEADS.get(name, 64)
  assert (model.patch_size, model.num_classes) == (patch_size, 7)
  assert model.resnet_layers == ()


def test_fields_replace_the_variants():
  model = make_vit("R50+B/16", 7, num_layers=2, pooling="gap", patch_size=2)
  assert (model.num_layers, model.pooling, model.patch_size) == (2, "gap", 2)
  assert make_resnet("R50x1", 7, width=32).width == 32


@pytest.mark.slow
@pytest.mark.parametrize("patch_size", [16, 32])
def test_hybrids_have_the_tokens_their_name_says(patch_size):
  model = make_vit(f"R50+B/{patch_size}", 7, pooling="gap", num_layers=1)
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  tokens = (224 // patch_size) ** 2
  assert shapes["position"]["E_pos"].value.shape[0] == tokens


@pytest.mark.parametrize("stages", [1, 2])
def test_stages_set_the_tokens_of_a_hybrid(stages):
  """A cell is 4 pixels wide after one stage, and 8 after two."""
  config = base_config()
  config.model.update(variant="Ti/1", num_layers=1, pooling="gap")
  config.model.resnet_layers = (1,) * stages
  model = make_model(**read(config).model.given(), num_classes=7)
  image = jax.ShapeDtypeStruct((1, 32, 64, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  cell = 4 * 2 ** (stages - 1)
  tokens = (32 // cell) * (64 // cell)
  assert shapes["position"]["E_pos"].value.shape[0] == tokens


def test_a_stage_without_units_is_refused():
  """Its stride would be counted, though no unit has it."""
  with pytest.raises(ValueError, match=r"^resnet_layers=\(1, 0\) .* 1 or more"):
    make_vit("Ti/1", resnet_layers=(1, 0))


def test_make_model_makes_both():
  assert isinstance(make_model("B/16", 7), Vit)
  assert isinstance(make_model("R50+B/16", 7), Vit)
  model = make_model("R152x2", 7, head_bias=-10.0)
  assert isinstance(model, ResNet)
  assert (model.layers, model.width) == ((3, 8, 36, 3), 128)
  assert (model.num_classes, model.head_bias) == (7, -10.0)


VITS = (
  "",
  "B",
  "B/",
  "B/0",
  "B/16x",
  "X/16",
  "vit_base_patch16_clip_224",
  "R101+B/16",
  " B/16",
)
A_VIT = "Ti, S, B, L, H, g, G with its patch size, as in B/16 or Axial-B/16, or"
A_RESNET = "R50, R101, R152 with its width multiple, as in R50x1"


@pytest.mark.parametrize(
  "variant, choice",
  [
    *((variant, A_VIT) for variant in VITS),
    *((variant, A_RESNET) for variant in ("R50x0", "R34x1", "R99x2")),
  ],
)
def test_unknown_models_are_refused(variant, choice):
  message = f"variant={variant!r} is unknown; write one of {choice}"
  with pytest.raises(ValueError, match=re.escape(message)):
    make_model(variant, 7)


@pytest.mark.parametrize(
  "names, same",
  [
    ("B16 B_16 B-16 b/16 ViT-B/16 vit_b_16 vit_base_patch16_224", "B/16"),
    ("b-p16 ViT-B-16-224 deit_base_patch16_224 vitb16", "B/16"),
    ("Ti16 vit_tiny_patch16_384", "Ti/16"),
    ("G14 vit-G-14", "G/14"),
    ("g14 vit_giant_patch14_224", "g/14"),
  ],
)
def test_a_variant_is_known_by_its_names_elsewhere(names, same):
  """Timm's giant has the width 1408 of g, and ImageNet has 1,000 classes."""
  for name in names.split():
    assert make_model(name) == make_vit(same, num_classes=1000)


@pytest.mark.parametrize("name", ["S", "s", "small", "vit_small", "ViT-S"])
def test_a_size_alone_is_a_variant_beside_its_patches(name):
  assert make_model(name, patch_size=8) == make_vit("S/8")
  with pytest.raises(ValueError, match="with its patch size, as in B/16"):
    make_model(name)


@pytest.mark.parametrize("name", ["resnet50", "ResNet-50", "resnet_50"])
def test_a_resnet_is_known_by_its_names_elsewhere(name):
  assert (
    make_model(name, 10) == make_resnet(name, 10) == make_resnet("R50x1", 10)
  )


@pytest.mark.parametrize(
  "others, ours",
  [
    ("classes n_classes nb_classes num_labels num_class", "num_classes"),
    ("depth n_layers num_hidden_layers", "num_layers"),
    ("dim embed_dim hidden_dim", "hidden_size"),
    ("mlp_dim intermediate_size", "mlp_size"),
    ("heads n_heads num_attention_heads", "num_heads"),
  ],
)
def test_a_field_is_known_by_its_names_elsewhere(others, ours):
  for other in others.split():
    named = operator.call(make_vit, "Ti/16", **{other: 6})
    assert named == operator.call(make_vit, "Ti/16", **{ours: 6})
    with pytest.raises(
      TypeError, match=f"{ours} is given twice: leave {other}"
    ):
      operator.call(make_vit, "Ti/16", **{other: 6, ours: 6})
  for name in ("variant", "name", "model_name", "arch"):
    assert operator.call(make_model, **{name: "Ti/16"}) == make_vit("Ti/16")
  for name in ("dropout", "drop_rate"):
    assert make_vit("Ti/16", **{name: 0.1}) == make_vit(
      "Ti/16", dropout_rate=0.1
    )


@pytest.mark.parametrize("name", ["image_size", "img_size"])
@pytest.mark.parametrize("variant", ["Ti/16", "R50x1"])
def test_the_size_of_images_is_said_not_to_be_kept(name, variant):
  said = r"not keep image_size=32: vit_jax\.init_params\(model, key, 32\) draws"
  with pytest.warns(UserWarning, match=said) as warned:
    model = operator.call(make_model, variant, **{name: 32})
  assert model == make_model(variant)
  assert len(warned) == 1


def test_a_model_without_weights_is_what_is_made():
  plain = make_vit("Ti/16", num_classes=3)
  for no_weights in ({"pretrained": False}, {"weights": None}):
    assert operator.call(make_model, "Ti/16", 3, **no_weights) == plain


SIZES = {"patch_size": 4, "hidden_size": 64, "num_layers": 4, "num_heads": 2}
FOUR = "patch_size, hidden_size, num_layers, num_heads instead"


@pytest.mark.parametrize(
  "others, more",
  [
    ("patch_size width depth heads", {}),
    ("patch_size hidden_size layers num_heads", {}),
    ("patch_size embed_dim depth num_heads", {"mlp_dim": 96}),
    ("patch_size hidden_size num_hidden_layers num_attention_heads", {}),
  ],
)
def test_sizes_suffice_without_a_variant(others, more):
  given = dict(zip(others.split(), SIZES.values(), strict=True)) | more
  mlp_size = more.get("mlp_dim", 256)  # Four times the width.
  same = make_vit("B/16", 3, **SIZES, mlp_size=mlp_size)
  for make in (make_model, make_vit):
    assert operator.call(make, num_classes=3, **given) == same


@pytest.mark.parametrize(
  "make, given, message",
  [
    (make_vit, {}, f'make_vit("B/16", num_classes=10), or give {FOUR}.'),
    (make_model, {"num_labels": 3}, f"num_classes=10), or give {FOUR}."),
    (make_vit, {"width": 64, "depth": 2}, "give patch_size, num_heads too."),
    (make_vit, {"width": 64, "dim": 64}, "hidden_size is given twice"),
    (make_resnet, {}, 'in vit_jax.make_resnet("R50x1", num_classes=10).'),
  ],
)
def test_a_variant_or_all_sizes_are_needed(make, given, message):
  with pytest.raises(TypeError, match=re.escape(message)):
    make(**given)


def test_the_name_of_a_variant_is_no_field():
  with pytest.raises(TypeError, match=r"name 'B/16': give vit_jax\.make_vit"):
    operator.call(Vit, "B/16")
  with pytest.raises(
    TypeError, match=r"no field dim, depth: vit_jax\.make_vit"
  ):
    operator.call(Vit, patch_size=16, dim=64, depth=2)
  with pytest.raises(ValueError, match=r"load_pretrained\(NAME\) reads"):
    make_vit("B/16", pretrained=True)
  with pytest.raises(AttributeError, match=r"no predict: use loaded\.predict"):
    operator.methodcaller("predict", "cat.jpg")(make_vit("B/16"))
  with pytest.raises(AttributeError, match=r"summary: use loaded\.summary\(\)"):
    operator.methodcaller("summary")(make_vit("B/16"))


def test_names_of_half_a_model_are_refused():
  with pytest.raises(ValueError, match="width multiple, as in R50x1"):
    make_resnet("R50", 7)
  message = r"1/16 or 1/32 of the image; choose R50\+B/16 or R50\+B/32"
  with pytest.raises(ValueError, match=message):
    make_vit("R50+B/14", 7)


@pytest.mark.parametrize(
  "variant, message",
  [
    ("B/16", "Vit has no field deep, widht; it has attention, attention_"),
    ("R50x1", "ResNet has no field deep, widht; it has dtype, epsilon, "),
  ],
)
def test_unknown_fields_are_refused(variant, message):
  with pytest.raises(ValueError, match=message):
    make_model(variant, 7, widht=3, deep=2)


@pytest.mark.parametrize(
  "field, meant",
  [
    ("dropout_rte", "did you mean dropout_rate?"),
    ("device", "JAX chooses the device; to use the CPU, start Python with "),
    ("mlp_ratio", "give mlp_size, which is the width times the ratio."),
    ("in_chans", "a model takes the channels of its images from them: vit_j"),
    ("drop_path_rate", 'models of a family have it, as block="deit3".'),
  ],
)
def test_a_field_that_was_likely_meant_is_named(field, meant):
  message = f"Vit has no field {field}; {meant}"
  with pytest.raises(ValueError, match=re.escape(message)):
    make_vit("B/16", 7, **{field: 1})


@pytest.mark.parametrize("scan", [False, True])
def test_a_model_is_called_with_its_parameters(scan):
  model = make_vit("Ti/16", 7, num_layers=1, scan=scan)
  for called in (model, make_resnet("R50x1", 7)):
    with pytest.raises(ValueError, match=r"give model\.apply\({.params"):
      called(jnp.zeros((1, 32, 32, 3)))


@pytest.mark.parametrize(
  "name", ["Ti/4", "B/16", "H/14", "G/14", "R50+B/16", "R50+L/32", "R152x2"]
)
def test_a_model_knows_its_name(name):
  assert variant_of(make_model(name, 10, head_bias=1.0)) == name


@pytest.mark.parametrize(
  "name, fields, sizes",
  [
    (
      "B/16",
      {"num_heads": 6},
      "ViT with 12 layers of width 768, 6 heads, patches of 16 x 16",
    ),
    (
      "R50+Ti/32",
      {"resnet_width": 32},
      (
        "ViT with 12 layers of width 192, 3 heads, on a ResNet, "
        "patches of 32 x 32"
      ),
    ),
    ("R50x2", {"layers": (1, 2)}, "ResNet with blocks 1-2, width 128"),
  ],
)
def test_a_model_of_other_sizes_has_no_name(name, fields, sizes):
  model = make_model(name, 10, **fields)
  assert variant_of(model) is None
  assert describe(model) == sizes
  assert describe(make_model(name, 10)) == name


@pytest.mark.parametrize("name", ["S/8", "R50+S/32", "R50x1"])
def test_fields_come_back_through_json(name):
  types = {"param_dtype": jnp.bfloat16}
  if name != "R50x1":
    types["attention_dtype"] = jnp.bfloat16
  model = make_model(name, 7, **types)
  again = from_fields(json.loads(json.dumps(to_fields(model))))
  assert to_fields(again) == to_fields(model)
  assert {k: getattr(again, k) for k in types} == types


def test_fields_of_no_model_are_refused():
  with pytest.raises(
    ValueError, match="kind='Cnn' is no kind of model; choose one of V"
  ):
    from_fields({"kind": "Cnn"})
