"""Runs transformers' masked autoencoder with torch's AdamW.

Its noise, which hides patches, is given. The tables of positions of the encoder
are trained, as ours are; those of the decoder are facebookresearch/mae's.
"""

import numpy as np
import torch
import torch_draws  # noqa: F401  # It lets transformers be imported.
import transformers
from common import Job
from hf_vit import today
from torch_draws import keep, rising_then_cosine, tensors


def make_model(c: dict) -> transformers.ViTMAEForPreTraining:
  config = transformers.ViTMAEConfig(
    hidden_size=c["hidden"],
    num_hidden_layers=c["layers"],
    num_attention_heads=c["heads"],
    intermediate_size=c["mlp"],
    hidden_act="gelu",
    image_size=c["side"],
    patch_size=c["patch"],
    layer_norm_eps=1e-6,
    decoder_hidden_size=c["decoder"],
    decoder_num_hidden_layers=c["decoder_layers"],
    decoder_num_attention_heads=c["decoder_heads"],
    decoder_intermediate_size=4 * c["decoder"],
    mask_ratio=c["rate_of_masks"],
    norm_pix_loss=True,
    attn_implementation="eager",
  )
  return transformers.ViTMAEForPreTraining(config)


def positions(side: int, D: int) -> np.ndarray:
  """Sine and cosine of x, then of y, as facebookresearch/mae has them."""
  frequency = 1 / 10_000 ** (np.arange(D // 4) / (D / 4))
  y, x = np.divmod(np.arange(side * side), side)
  waves = [
    wave(place[:, None] * frequency)
    for place in (x, y)
    for wave in (np.sin, np.cos)
  ]
  return np.concatenate(waves, axis=1).astype(np.float32)


def main() -> None:
  job = Job()
  c = job.config
  model = make_model(c)
  names = {today(name, model): name for name in job.params}
  state = {new: torch.tensor(job.params[name]) for new, name in names.items()}
  fixed = "decoder.decoder_pos_embed"
  table = torch.tensor(positions(c["side"] // c["patch"], c["decoder"]))
  state[fixed] = torch.nn.functional.pad(table, (0, 0, 1, 0))[None]
  model.load_state_dict(state)
  model.vit.embeddings.position_embeddings.requires_grad_(True)
  own = {k: p for k, p in model.named_parameters() if k != fixed}
  decays = {
    k
    for k, p in own.items()
    if k.endswith("weight") and p.ndim > 1 and "norm" not in k
  }
  groups = [
    {"params": [own[k] for k in own if (k in decays) == on], "weight_decay": w}
    for on, w in ((True, c["decay"]), (False, 0.0))
  ]
  adam = torch.optim.AdamW(groups, lr=c["rate"], betas=(0.9, 0.95), eps=1e-8)
  images, _, probe = tensors(job)
  noise = torch.tensor(job.extra["noise"])
  in_order = torch.arange(noise.shape[2])[None].repeat(len(probe), 1)
  factor = rising_then_cosine(c, job.steps)

  def pixels() -> torch.Tensor:
    model.config.mask_ratio = model.vit.embeddings.config.mask_ratio = 0.0
    logits = model(pixel_values=probe, noise=in_order.float()).logits
    ratio = c["rate_of_masks"]
    model.config.mask_ratio = model.vit.embeddings.config.mask_ratio = ratio
    return logits[:, : c["answers"]]

  model.train()
  for t in range(job.steps):
    rate = c["rate"] * factor(t)
    loss = model(pixel_values=images[t], noise=noise[t]).loss
    model.zero_grad()
    loss.backward()
    for group in adam.param_groups:
      group["lr"] = rate
    adam.step()
    decay = {names[k]: rate * c["decay"] * (k in decays) for k in own}
    job.log(loss.item(), rate, decay)
    arrays = {names[k]: p.detach().numpy() for k, p in own.items()}
    keep(job, model, arrays, pixels)
  job.save(torch, transformers)


if __name__ == "__main__":
  main()
