import numpy as np

from tests.extension.pairs import TwoTowers
from vit_jax.models import make_vit
from vit_jax.models.grid import param_shapes
from vit_jax.pretrained.formats import table
from vit_jax.pretrained.formats.mapping import Rule, axis_sizes, check, read_all
from vit_jax.pretrained.formats.table import Layers, Table

# The rows of a CLIP with a text tower of another library, and its own heads.
ROWS = """
base,embeddings.patch_embedding.weight,patches/E/kernel,D C P Q -> (P Q C) D
base,embeddings.patch_embedding.bias,patches/E/bias,
base,embeddings.class_embedding,x_class,
base,embeddings.position_embedding.weight,position/E_pos,
base,post_layernorm.weight,norm/scale,
base,post_layernorm.bias,norm/bias,
root,text.words.weight,text/E,
root,text.places.weight,text/E_pos,
root,text.norm.weight,text/norm/scale,
root,text.norm.bias,text/norm/bias,
root,image_projection.weight,to_text/kernel,O I -> I O
root,image_projection.bias,to_text/bias,
root,text_projection.weight,to_images/kernel,O I -> I O
root,text_projection.bias,to_images/bias,
root,logit_scale,log_scale,
layer,norm1.weight,norm_msa/scale,
layer,norm1.bias,norm_msa/bias,
layer,norm2.weight,norm_mlp/scale,
layer,norm2.bias,norm_mlp/bias,
layer,qkv.weight,msa/query/kernel msa/key/kernel msa/value/kernel,(n k d) D -> n D k d
layer,qkv.bias,msa/query/bias msa/key/bias msa/value/bias,(n k d) -> n k d
layer,out.weight,msa/out/kernel,D (k d) -> k d D
layer,out.bias,msa/out/bias,
mlp,fc1.weight,mlp/expand/kernel,O I -> I O
mlp,fc1.bias,mlp/expand/bias,
mlp,fc2.weight,mlp/contract/kernel,O I -> I O
mlp,fc2.bias,mlp/contract/bias,
"""  # noqa: E501
PAIR = Table(
  "pair",
  (
    Layers("encoder.layers.{}.", rows="clip"),
    Layers("text.blocks.{}.", ours="text", has_base=False),
  ),
  names=ROWS,
)


def _checkpoint():
  """A file's arrays and the parameters of ours that they are, by hand.

  The image tower has three layers of width 12 with 3 heads, the text tower two
  of width 16 with 2 heads.
  """
  random = np.random.default_rng(0)
  theirs, ours = {}, {}

  def add(name, path, shape, moved=lambda x: x):
    theirs[name] = random.normal(size=shape)
    ours[path] = moved(theirs[name])

  def add_affine(name, path, outputs, inputs):
    add(f"{name}.weight", f"{path}/kernel", (outputs, inputs), np.transpose)
    add(f"{name}.bias", f"{path}/bias", (outputs,))

  def add_norm(name, path, width):
    add(f"{name}.weight", f"{path}/scale", (width,))
    add(f"{name}.bias", f"{path}/bias", (width,))

  def add_out(name, path, k, d):
    D = k * d
    add(
      f"{name}.weight", f"{path}/kernel", (D, D), lambda x: x.T.reshape(k, d, D)
    )
    add(f"{name}.bias", f"{path}/bias", (D,))

  at = "vision.embeddings."
  add(
    f"{at}patch_embedding.weight",
    "patches/E/kernel",
    (12, 3, 4, 4),
    lambda x: x.transpose(2, 3, 1, 0).reshape(48, 12),
  )
  add(f"{at}patch_embedding.bias", "patches/E/bias", (12,))
  add(f"{at}class_embedding", "x_class", (12,))
  add(f"{at}position_embedding.weight", "position/E_pos", (5, 12))
  add_norm("vision.post_layernorm", "norm", 12)
  for i in range(3):
    layer, block = f"vision.encoder.layers.{i}.", f"block_{i}/"
    add_norm(f"{layer}layer_norm1", f"{block}norm_msa", 12)
    add_norm(f"{layer}layer_norm2", f"{block}norm_mlp", 12)
    for letter, name in zip("qkv", ("query", "key", "value"), strict=True):
      add(
        f"{layer}self_attn.{letter}_proj.weight",
        f"{block}msa/{name}/kernel",
        (12, 12),
        lambda x: x.T.reshape(12, 3, 4),
      )
      add(
        f"{layer}self_attn.{letter}_proj.bias",
        f"{block}msa/{name}/bias",
        (12,),
        lambda x: x.reshape(3, 4),
      )
    add_out(f"{layer}self_attn.out_proj", f"{block}msa/out", 3, 4)
    add_affine(f"{layer}mlp.fc1", f"{block}mlp/expand", 20, 12)
    add_affine(f"{layer}mlp.fc2", f"{block}mlp/contract", 12, 20)
  add("text.words.weight", "text/E", (64, 16))
  add("text.places.weight", "text/E_pos", (6, 16))
  add_norm("text.norm", "text/norm", 16)
  for i in range(2):
    layer, block = f"text.blocks.{i}.", f"text/block_{i}/"
    add_norm(f"{layer}norm1", f"{block}norm_msa", 16)
    add_norm(f"{layer}norm2", f"{block}norm_mlp", 16)
    weight = theirs[f"{layer}qkv.weight"] = random.normal(size=(48, 16))
    bias = theirs[f"{layer}qkv.bias"] = random.normal(size=48)
    for n, name in enumerate(("query", "key", "value")):
      rows = slice(16 * n, 16 * n + 16)
      ours[f"{block}msa/{name}/kernel"] = weight[rows].T.reshape(16, 2, 8)
      ours[f"{block}msa/{name}/bias"] = bias[rows].reshape(2, 8)
    add_out(f"{layer}out", f"{block}msa/out", 2, 8)
    add_affine(f"{layer}fc1", f"{block}mlp/expand", 32, 16)
    add_affine(f"{layer}fc2", f"{block}mlp/contract", 16, 32)
  add_affine("image_projection", "to_text", 8, 12)
  add_affine("text_projection", "to_images", 8, 16)
  add("logit_scale", "log_scale", ())
  return theirs, ours


def test_an_array_that_holds_two_of_ours_is_read_and_written():
  theirs = np.random.default_rng(0).normal(size=(10, 3))
  rule = Rule("gates.weight", ("gate", "expand"), "(n O) I -> n I O")
  ours = rule.read(theirs, {})
  for array, expected in zip(ours, (theirs[:5].T, theirs[5:].T), strict=True):
    np.testing.assert_array_equal(array, expected)
  np.testing.assert_array_equal(rule.write(ours, {}), theirs)


def test_two_stacks_of_layers_are_read_and_written():
  fields = dict(hidden_size=12, num_layers=3, mlp_size=20, num_heads=3)
  model = TwoTowers(0, make_vit("Ti/4", 0, **fields))
  theirs, ours = _checkpoint()
  rules = PAIR.rules(model, "vision.")
  shapes = {name: array.shape for name, array in theirs.items()}
  check(rules, shapes, param_shapes(model, (2, 2)), model, "a file")
  params = dict(read_all(rules, theirs, model))
  assert params.keys() == ours.keys()
  for path, array in ours.items():
    np.testing.assert_array_equal(params[path], array, err_msg=path)
  sizes = axis_sizes(model)
  for rule in rules:
    array = rule.write([ours[path] for path in rule.ours], sizes)
    np.testing.assert_array_equal(array, theirs[rule.theirs], rule.theirs)
  assert {rule.theirs for rule in rules} == theirs.keys()
  assert not table.unmapped(model, rules)
  image, text = PAIR.stacks
  local = {name.removeprefix("vision."): shapes[name] for name in shapes}
  assert (image.count(local), text.count(shapes)) == (3, 2)


def test_a_model_without_one_of_the_stacks_has_no_rules_for_it():
  names = [rule.theirs for rule in PAIR.rules(make_vit("Ti/4", 0))]
  assert any(name.startswith("encoder.layers.11.") for name in names)
  assert not any(name.startswith("text.") for name in names)
