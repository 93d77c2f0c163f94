"""Fine-tunes a ViT by transformers' Trainer; finetune.py beside it runs it.

python scripts/bench/finetune_trainer.py ROOT WEIGHTS OUTPUT EPOCHS BATCH_SIZE \
  WORKERS LEARNING_RATE

ROOT has train/ and test/. The images are prepared by torchvision, by the mean,
the standard deviation and the size of the model's image processor.
"""

import sys
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from torchvision import datasets, transforms  # pyright: ignore[reportMissingImports]


def main() -> None:
  root, weights, output, epochs, batch_size, workers, rate = sys.argv[1:]
  processor = transformers.AutoImageProcessor.from_pretrained(weights)
  side = processor.size["height"]
  to_array = [
    transforms.ToTensor(),
    transforms.Normalize(processor.image_mean, processor.image_std),
  ]
  changed = [
    transforms.RandomResizedCrop(side),
    transforms.RandomHorizontalFlip(),
    *to_array,
  ]
  whole = [transforms.Resize(side), transforms.CenterCrop(side), *to_array]
  train = datasets.ImageFolder(f"{root}/train", transforms.Compose(changed))
  test = datasets.ImageFolder(f"{root}/test", transforms.Compose(whole))
  model = transformers.ViTForImageClassification.from_pretrained(
    weights, num_labels=len(train.classes), ignore_mismatched_sizes=True
  )
  trainer = transformers.Trainer(
    model,
    transformers.TrainingArguments(
      output_dir=output,
      num_train_epochs=int(epochs),
      per_device_train_batch_size=int(batch_size),
      per_device_eval_batch_size=int(batch_size),
      learning_rate=float(rate),
      lr_scheduler_type="cosine",
      dataloader_num_workers=int(workers),
      dataloader_drop_last=True,
      logging_steps=1,
      disable_tqdm=True,
      save_strategy="no",
      report_to="none",
      use_cpu=True,
    ),
    data_collator=collate,
    train_dataset=train,
    eval_dataset=test,
    compute_metrics=accuracy,
  )
  trainer.train()
  trainer.save_model()
  print(trainer.evaluate())


def collate(examples: list[tuple[Any, int]]) -> dict[str, Any]:
  """The batch that the model takes, from pairs of an image and its class."""
  images, labels = zip(*examples, strict=True)
  return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def accuracy(prediction: Any) -> dict[str, float]:
  answers = np.argmax(prediction.predictions, axis=1)
  return {"top1": float(np.mean(answers == prediction.label_ids))}


if __name__ == "__main__":
  main()
