"""Makes tiny models of images and text, by transformers' own code.

PYTHONPATH=. python tests/checkpoints/texts/make.py FOLDER [NAME ...]

It needs torch, transformers, tokenizers and sentencepiece. Each folder holds a
model with random weights, a tokenizer that is trained on the captions, and in
expected.npz the captions' ids, images and the model's answers.
"""

import io
import json
import pathlib
import re
import sys

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors
from transformers.models.tipsv2 import modeling_tipsv2, tokenization_tipsv2

CAPTIONS = json.loads(
  (pathlib.Path(__file__).parent / "captions.json").read_text()
)
LENGTH = 20
TEXT = dict(
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=2,
  num_attention_heads=2,
  max_position_embeddings=LENGTH,
)
VISION = dict(
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=1,
  num_attention_heads=2,
  image_size=16,
  patch_size=8,
)


def pieces(kind: str, **options) -> bytes:
  """A model of sentencepiece, without the tables of a normalisation."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text.lower() for text in CAPTIONS),
    model_writer=model,
    model_type=kind,
    normalization_rule_name="identity",
    hard_vocab_limit=False,
    bos_id=-1,
    minloglevel=2,
    **options,
  )
  return model.getvalue()


def bpe(symbols: list[str], end: str = "") -> dict:
  """A vocabulary, and merges that build the captions' words from the left.

  What a trainer learns is another thing at each call, as it breaks ties so.
  """
  words = sorted(set(re.findall("[a-z]+", " ".join(CAPTIONS).lower())))
  merges: dict[tuple[str, str], None] = {}
  for word in words:
    first, *others = [*word[:-1], word[-1] + end]
    for other in others:
      merges[first, other] = None
      first += other
  joined = ["".join(merge) for merge in merges]
  vocab = {x: n for n, x in enumerate(dict.fromkeys((*symbols, *joined)))}
  return dict(vocab=vocab, merges=[*merges], model_max_length=LENGTH)


def clip_tokenizer(folder: pathlib.Path):
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  ends = [f"{symbol}</w>" for symbol in alphabet]
  special = ["<|startoftext|>", "<|endoftext|>"]
  # The end has the largest id, as in CLIP.
  learned = bpe([*alphabet, *ends, special[0]], "</w>")
  learned["vocab"][special[1]] = len(learned["vocab"])
  return transformers.CLIPTokenizer(**learned)


def siglip_tokenizer(folder: pathlib.Path):
  path = folder / "spiece.model"
  path.write_bytes(
    pieces("unigram", vocab_size=80, eos_id=1, unk_id=2, pad_id=0)
  )
  return transformers.SiglipTokenizer(str(path), model_max_length=LENGTH)


def siglip2_tokenizer(folder: pathlib.Path):
  special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
  bytes_ = [f"<0x{number:02X}>" for number in range(256)]
  letters = sorted({*"".join(CAPTIONS).lower().replace(" ", "\u2581")})
  learned = bpe([*special, *bytes_, *letters[:60]])
  return transformers.Siglip2Tokenizer(
    **learned, add_eos_token=True, padding_side="right"
  )


def tips_tokenizer(folder: pathlib.Path):
  model = pieces(
    "bpe", vocab_size=320, byte_fallback=True, pad_id=0, unk_id=1, eos_id=2
  )
  (folder / "tokenizer.model").write_bytes(model)
  kind = tokenization_tipsv2.Tipsv2Tokenizer
  return kind.from_pretrained(folder, model_max_length=LENGTH)


def metaclip_tokenizer(folder: pathlib.Path):
  """Beginning, padding, end and unknown are 0 to 3, as in XLM-V."""
  special = ["<s>", "<pad>", "</s>", "<unk>"]
  letters = sorted({*"".join(CAPTIONS).replace(" ", "\u2581")})
  learned = bpe([*special, *letters[:60], "\u2581"])
  model = models.BPE(learned["vocab"], learned["merges"], unk_token="<unk>")
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  tokenizer.post_processor = processors.TemplateProcessing(
    "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
  )
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    model_max_length=LENGTH,
    **dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>"),
  )


def metaclip(tokenizer):
  ends = dict(bos_token_id=0, pad_token_id=1, eos_token_id=2)
  config = transformers.MetaClip2Config(
    text_config=TEXT | ends | dict(vocab_size=len(tokenizer)),
    vision_config=VISION,
    projection_dim=12,
  )
  return transformers.MetaClip2Model(config)


def clip(tokenizer):
  config = transformers.CLIPConfig(
    text_config=TEXT
    | dict(
      vocab_size=len(tokenizer),
      eos_token_id=tokenizer.eos_token_id,
      bos_token_id=tokenizer.bos_token_id,
      pad_token_id=tokenizer.pad_token_id,
    ),
    vision_config=VISION,
    projection_dim=12,
  )
  return transformers.CLIPModel(config)


def siglip(tokenizer):
  more = dict(
    vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, pad_token_id=1
  )
  config = transformers.SiglipConfig(
    text_config=TEXT | more, vision_config=VISION
  )
  return transformers.SiglipModel(config)


def tips(tokenizer):
  vision = {k: v for k, v in VISION.items() if k != "intermediate_size"}
  config = modeling_tipsv2.Tipsv2Config(
    text_config=TEXT | dict(vocab_size=len(tokenizer)),
    vision_config=vision | dict(mlp_ratio=2),
  )
  return modeling_tipsv2.Tipsv2Model(config)


MODELS = {
  "hf_clip": (clip_tokenizer, clip),
  "hf_metaclip2": (metaclip_tokenizer, metaclip),
  "hf_siglip": (siglip_tokenizer, siglip),
  "hf_siglip2": (siglip2_tokenizer, siglip),
  "hf_tips": (tips_tokenizer, tips),
}


def make(name: str, folder: pathlib.Path) -> None:
  make_tokenizer, make_model = MODELS[name]
  folder.mkdir(parents=True)
  tokenizer = make_tokenizer(folder)
  torch.manual_seed(0)
  model = make_model(tokenizer).eval()
  with torch.no_grad():
    for key, array in model.named_parameters():
      if not key.startswith(("logit_", "temperature")):
        array.copy_(torch.randn_like(array) * 0.3)
      elif key == "logit_bias":
        array.fill_(-3.0)
  model.save_pretrained(folder)
  tokenizer.save_pretrained(folder)
  options = dict(padding="max_length", max_length=LENGTH, truncation=True)
  texts = tokenizer(CAPTIONS, return_tensors="pt", **options)
  # The processors of SigLIP give no mask.
  masked = {"attention_mask"} if name == "hf_tips" else set()
  inputs = {k: texts[k] for k in {"input_ids"} | masked}
  rng = np.random.default_rng(0)
  images = rng.normal(size=(3, 16, 16, 3)).astype(np.float32)
  pixels = torch.tensor(images.transpose(0, 3, 1, 2))
  with torch.no_grad():
    features = model.get_text_features(**inputs)
    answer = model(pixel_values=pixels, **inputs)
  np.savez(
    folder / "expected.npz",
    ids=texts["input_ids"].numpy().astype(np.int32),
    features=getattr(features, "pooler_output", features).numpy(),
    images=images,
    logits=answer.logits_per_image.numpy(),
  )


if __name__ == "__main__":
  for each in sys.argv[2:] or MODELS:
    make(each, pathlib.Path(sys.argv[1]) / each)
