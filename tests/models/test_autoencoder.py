"""A masked autoencoder: what its encoder sees, and what it predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.libraries import needed
from tests.rows import some_slow
from tests.tiny import random_params
from vit_jax import make_vit
from vit_jax.models.autoencoder import autoencoder, sincos
from vit_jax.models.parts import Parts
from vit_jax.models.vit import Vit
from vit_jax.pretrained.load import load_pretrained
from vit_jax.tasks.autoencoder.objective import Reconstruction
from vit_jax.training.losses import StepContext

SIZES = dict(decoder_size=16, decoder_layers=2, decoder_heads=2)
N, K = 16, 4  # Patches, and those that the encoder sees.


def tiny(**fields):
  sizes = dict(num_layers=2, hidden_size=32, mlp_size=64, num_heads=2)
  return make_vit("Ti/8", 0, **sizes | fields)


def draw(B, seed=0):
  rng = np.random.default_rng(seed)
  order = np.stack([rng.permutation(N) for _ in range(B)])
  return split(order)


def split(order):
  """The draw that sees the first patches of an order, and hides the others."""
  return {"seen": jnp.array(order[:, :K]), "hidden": jnp.array(order[:, K:])}


def images(B, channels=3):
  rng = np.random.default_rng(1)
  return jnp.array(rng.normal(size=(B, 32, 32, channels)), jnp.float32)


def predictions(model, params, x, choice):
  return jax.jit(model.apply)({"params": params, "draw": choice}, x)


@pytest.mark.parametrize(
  "pooling, prefix", some_slow([("token", 1), ("gap", 0)], [("token", 1)])
)
def test_the_encoder_sees_a_quarter_of_the_tokens(pooling, prefix):
  """By the shapes of its layers, and by operations."""
  model = autoencoder(tiny(pooling=pooling, num_layers=1), **SIZES)
  encoder = model.trunk
  x, choice = images(2), draw(2)
  params = random_params(model, (32, 32), 0)
  _, seen = jax.eval_shape(
    lambda: model.apply(
      {"params": params, "draw": choice},
      x,
      capture_intermediates=True,
      mutable="intermediates",
    )
  )
  seen = seen["intermediates"]
  shape = seen["block_0"]["__call__"][0].shape
  assert shape == (2, prefix + K, 32)
  shape = seen["decoder"]["block_1"]["__call__"][0].shape
  assert shape == (2, prefix + N, 16)

  def flops(count):
    def encode(params, x, keep):
      tokens = encoder.apply({"params": params}, x, method="embed").take(keep)
      return encoder.apply({"params": params}, tokens, method="run").z

    keep = np.tile(np.arange(count), (2, 1))
    embedded = jax.jit(
      lambda p, x: encoder.apply({"params": p}, x, method="embed").z
    )
    costs = [
      step.compile().cost_analysis()["flops"]
      for step in (
        jax.jit(encode).lower(params, x, keep),
        embedded.lower(params, x),
      )
    ]
    return costs[0] - costs[1]

  share = (prefix + K) / (prefix + N)
  assert flops(K) < (share + 0.05) * flops(N)


@pytest.mark.slow
def test_predictions_belong_to_places_and_do_not_see_hidden_pixels():
  model = autoencoder(tiny(), **SIZES)
  params = random_params(model, (32, 32), 0)
  x, choice = images(2), draw(2)
  found = predictions(model, params, x, choice)
  assert found.shape == (2, N - K, 8 * 8 * 3)
  rng = np.random.default_rng(2)
  mixed = {
    name: jnp.array(rng.permuted(np.array(places), axis=1))
    for name, places in choice.items()
  }
  again = predictions(model, params, x, mixed)
  for b in range(2):
    at = np.argsort(mixed["hidden"][b])  # The hidden places, in order.
    order = np.argsort(choice["hidden"][b])
    np.testing.assert_allclose(
      again[b][at], found[b][order], rtol=1e-4, atol=1e-5
    )
  changed = np.array(x)
  for b, places in enumerate(choice["hidden"]):
    for row, column in zip(*np.divmod(np.array(places), 4), strict=True):
      changed[b, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 9
  same = predictions(model, params, jnp.array(changed), choice)
  np.testing.assert_array_equal(same, found)


@pytest.mark.slow
def test_without_a_draw_all_is_seen_and_predicted():
  model = autoencoder(tiny(), **SIZES)
  params = random_params(model, (32, 32), 0)
  x = images(1)
  found = jax.jit(model.apply)({"params": params}, x)
  whole = {"seen": np.arange(N)[None], "hidden": np.zeros((1, 0), int)}
  whole = jax.tree.map(jnp.array, whole)
  assert found.shape == (1, N, 192)
  assert predictions(model, params, x, whole).shape == (1, 0, 192)
  # The encoder by itself is the plain model.
  z, _ = model.apply({"params": params}, x, method="encode")
  plain, _ = model.trunk.apply({"params": params}, x, method="encode")
  assert type(model.trunk) is Vit
  np.testing.assert_array_equal(z, plain)


@pytest.mark.slow
def test_scanned_layers_predict_the_same():
  model = autoencoder(tiny(), **SIZES)
  params = random_params(model, (32, 32), 0)
  x, choice = images(2), draw(2)
  found = predictions(model, params, x, choice)
  stacked = Parts.of(model, params).stack(params)
  assert {"blocks"} <= stacked.keys() & stacked["decoder"].keys()
  scanned = predictions(model.clone(scan=True), stacked, x, choice)
  np.testing.assert_allclose(scanned, found, rtol=1e-5, atol=1e-6)


def test_positions_of_the_decoder_are_the_formula():
  found, D = sincos(2, 3, 8), 8
  for place in range(6):
    y, x = divmod(place, 3)
    row = [
      wave(at / 10_000 ** (i / (D // 4)))
      for at in (x, y)
      for wave in (np.sin, np.cos)
      for i in range(D // 4)
    ]
    np.testing.assert_allclose(found[place], row, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
  "fields, sizes, message",
  [
    (
      dict(pooling="map"),
      {},
      "pooling='map' and representation_size=None: the",
    ),
    (dict(representation_size=8), {}, "and no representation_size"),
    (dict(patch_dropout_rate=0.5), {}, "set it to 0"),
    (dict(block="axial", pooling="gap"), {}, "its layers need all patches"),
    ({}, dict(decoder_size=6), "decoder_size=6 has to be divisible by 4"),
    ({}, dict(decoder_heads=3), "and by decoder_heads=3"),
    ({}, dict(decoder_layers=0), "decoder_layers=0 must be 1 or more"),
  ],
)
def test_what_hides_nothing_or_does_not_divide_is_refused(
  fields, sizes, message
):
  with pytest.raises(ValueError, match=message):
    autoencoder(tiny(**fields), **{**SIZES, **sizes})


def test_a_hybrid_and_a_mask_are_refused():
  with pytest.raises(ValueError, match="a hybrid's ResNet mixes neighbouring"):
    autoencoder(make_vit("R50+Ti/16", 0), **SIZES)
  with pytest.raises(ValueError, match="takes no mask of patches: give those"):
    autoencoder(tiny(), **SIZES).apply(
      {}, images(1), mask=np.ones((1, N), bool)
    )


HEADS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


def theirs(transformers, norm_pixels):
  """A small model with random weights, also where they begin as 0 or 1."""
  torch = pytest.importorskip("torch")
  torch.manual_seed(0)
  config = transformers.ViTMAEConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    decoder_hidden_size=16,
    decoder_num_hidden_layers=2,
    decoder_num_attention_heads=2,
    decoder_intermediate_size=64,
    mask_ratio=0.75,
    norm_pix_loss=norm_pixels,
  )
  model = transformers.ViTMAEForPreTraining(config).eval()
  with torch.no_grad():
    for name, array in model.named_parameters():
      if "pos" not in name:
        array.add_(0.2 * torch.randn_like(array))
    positions = np.array(sincos(4, 4, 16))
    model.decoder.decoder_pos_embed[0, 1:] = torch.tensor(positions)
    model.decoder.decoder_pos_embed[0, 0] = 0
  return model


def decoder_params(arrays):
  """Our decoder's parameters of their arrays, by hand."""

  def layer(prefix):
    found = {}
    for ours, name in (
      ("norm_msa", "layernorm_before"),
      ("norm_mlp", "layernorm_after"),
    ):
      found[ours] = {
        "scale": arrays[f"{prefix}{name}.weight"],
        "bias": arrays[f"{prefix}{name}.bias"],
      }
    msa = {}
    for ours, name in HEADS.items():
      weight = arrays[f"{prefix}attention.{name}.weight"]
      bias = arrays[f"{prefix}attention.{name}.bias"]
      msa[ours] = {
        "kernel": weight.T.reshape(16, 2, 8),
        "bias": bias.reshape(2, 8),
      }
    out = f"{prefix}attention.o_proj."
    msa["out"] = {
      "kernel": arrays[out + "weight"].T.reshape(2, 8, 16),
      "bias": arrays[out + "bias"],
    }
    mlp = {
      ours: {
        "kernel": arrays[f"{prefix}mlp.{name}.weight"].T,
        "bias": arrays[f"{prefix}mlp.{name}.bias"],
      }
      for ours, name in (("expand", "fc1"), ("contract", "fc2"))
    }
    return {**found, "msa": msa, "mlp": mlp}

  dense = {
    ours: {
      "kernel": arrays[f"decoder.decoder_{name}.weight"].T,
      "bias": arrays[f"decoder.decoder_{name}.bias"],
    }
    for ours, name in (("embed", "embed"), ("predict", "pred"))
  }
  norm = {
    "scale": arrays["decoder.decoder_norm.weight"],
    "bias": arrays["decoder.decoder_norm.bias"],
  }
  blocks = {
    f"block_{i}": layer(f"decoder.decoder_layers.{i}.") for i in range(2)
  }
  mask = arrays["decoder.mask_token"].reshape(-1)
  return {**dense, **blocks, "norm": norm, "mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("norm_pixels", [True, False])
def test_loss_pixels_and_gradients_are_those_of_transformers(
  norm_pixels, tmp_path
):
  (transformers,) = needed("transformers")
  torch = pytest.importorskip("torch")
  model = theirs(transformers, norm_pixels)
  model.save_pretrained(tmp_path)
  noise = np.random.default_rng(0).random((3, N)).astype(np.float32)
  choice = split(noise.argsort(axis=1))
  x = images(3)
  output = model(
    torch.tensor(np.array(x).transpose(0, 3, 1, 2)), noise=torch.tensor(noise)
  )
  output.loss.backward()

  encoder, params = load_pretrained(str(tmp_path))
  ours = autoencoder(encoder, **SIZES)
  state = {k: v.detach().numpy() for k, v in model.named_parameters()}
  params = {**params, "decoder": decoder_params(state)}
  objective = Reconstruction(0.75, norm_pixels, 8, (0.5,) * 3, (0.5,) * 3)

  def loss_of(params):
    def apply(x, draw):
      return ours.apply({"params": params, "draw": draw}, x)

    targets = {"draw": choice, "pixels": objective.targets(x, choice)}
    return objective.loss(apply, x, targets, StepContext()).value.mean()

  params = jax.tree.map(jnp.asarray, params)
  loss, grads = jax.jit(jax.value_and_grad(loss_of))(params)
  assert float(loss) == pytest.approx(output.loss.item(), rel=1e-5)
  logits = output.logits.detach().numpy()
  hidden = np.take_along_axis(logits, choice["hidden"][..., None], axis=1)
  found = predictions(ours, params, x, choice)
  np.testing.assert_allclose(found, hidden, rtol=1e-5, atol=1e-5)
  slopes = {k: v.grad for k, v in model.named_parameters()}
  slopes = {k: v.numpy() for k, v in slopes.items() if v is not None}
  expected = decoder_params(slopes)
  scale = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale),
    grads["decoder"],
    expected,
  )
  E = slopes["vit.embeddings.patch_embeddings.projection.weight"]
  E = E.transpose(2, 3, 1, 0).reshape(192, 32)
  np.testing.assert_allclose(
    grads["patches"]["E"]["kernel"], E, rtol=1e-4, atol=1e-5 * np.abs(E).max()
  )
  x_class = slopes["vit.embeddings.cls_token"].reshape(-1)
  np.testing.assert_allclose(
    grads["x_class"], x_class, rtol=1e-4, atol=1e-5 * np.abs(x_class).max()
  )
