"""Data sets as publishers and tools hand them out: tiny, but laid out so."""

import json

import numpy as np

from tests.data.pictures import png
from tests.data.reading.layouts import classes

MASK = png(np.repeat(np.array([[0, 1, 2, 255]], np.uint8), 4, axis=0))
IMAGE = png(np.zeros((4, 4, 3), np.uint8))
BOXES = "0 0.5 0.5 0.1 0.1"


def some(folder, count, ending=".jpg", content: bytes | str = IMAGE):
  """So many files in a folder, named by numbers."""
  return {f"{folder}/{n}{ending}": content for n in range(count)}


def pairs(form, count, head, mark=","):
  """A table of two captions for each image."""
  texts = [form.format(n=n, k=k) for n in range(count) for k in range(2)]
  return "\n".join([head, *texts])


COCO = {
  "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(6)],
  "annotations": [
    {"id": n + 10 * k, "image_id": n, "caption": f"thing {n} {k}"}
    for n in range(6)
    for k in range(2)
  ],
}
OPEN_IMAGES = "ImageID,Source,LabelName,Confidence\n" + "\n".join(
  f"{n},verification,/m/{label},{confidence}"
  for n in range(6)
  for label, confidence in (("01", n % 2), ("02", 1))
)
CHEXPERT = "Path,Sex,Edema,Effusion\n" + "\n".join(
  f"CheXpert-v1.0-small/train/patient{n}/study1/view1.jpg,F,{cells}"
  for n, cells in enumerate(["0.0,", "1.0,1.0"] * 3)
)

ARCHIVES = {
  "Kaggle, sorted": {
    **classes("chest_xray/train", ("NORMAL", "PNEUMONIA"), 4),
    **classes("chest_xray/val", ("NORMAL", "PNEUMONIA"), 1),
    **classes("chest_xray/test", ("NORMAL", "PNEUMONIA"), 2),
    **classes("chest_xray/chest_xray/train", ("NORMAL", "PNEUMONIA"), 4),
    **classes("chest_xray/__MACOSX/train", ("NORMAL", "PNEUMONIA"), 4),
  },
  "Kaggle, Intel scenes": {
    **classes("scenes/seg_train/seg_train", ("forest", "sea"), 4),
    **classes("scenes/seg_test/seg_test", ("forest", "sea"), 2),
    "scenes/seg_pred/seg_pred/": 3,
  },
  "Kaggle, a competition": {
    **some("aptos/train_images", 10, ".png"),
    **some("aptos/test_images", 3, ".png"),
    "aptos/train.csv": "id_code,diagnosis\n"
    + "\n".join(f"{n},{n % 2}" for n in range(10)),
  },
  "Kaggle, cats and dogs": {
    **{
      f"dogs/train/{c}.{n}.jpg": IMAGE for c in ("cat", "dog") for n in (0, 1)
    },
    **some("dogs/test1", 3),
  },
  "Kaggle, Carvana": {
    **some("cars/train", 4),
    **some("cars/train_masks", 4, "_mask.gif", MASK),
    **some("cars/test", 2),
  },
  "Roboflow, folders": {
    **classes("flowers/train", ("daisy", "rose"), 4),
    **classes("flowers/valid", ("daisy", "rose"), 2),
    **classes("flowers/test", ("daisy", "rose"), 1),
    "flowers/README.roboflow.txt": "",
  },
  "Roboflow, several labels": {
    **some("leaves", 10),
    "leaves/_classes.csv": "filename, rust, scab\n"
    + "\n".join(f"{n}.jpg, {n % 2}, 1" for n in range(10)),
  },
  "Roboflow, masks": {
    **some("road/train", 4),
    **some("road/train", 4, "_mask.png", MASK),
    "road/train/_classes.csv": "Pixel Value, Class\n0, none\n1, road\n2, car",
    **some("road/valid", 2),
    **some("road/valid", 2, "_mask.png", MASK),
  },
  "COCO, images": {
    **some("coco/train2017", 6),
    **some("coco/val2017", 2),
    "coco/annotations/captions_train2017.json": json.dumps(COCO),
  },
  "VOC": {
    **some("VOC2012/JPEGImages", 4),
    **some("VOC2012/SegmentationClass", 3, ".png", MASK),
    **some("VOC2012/SegmentationObject", 3, ".png", MASK),
    **some("VOC2012/Annotations", 4, ".xml", "<a/>"),
    "VOC2012/ImageSets/Segmentation/train.txt": "0",
  },
  "YOLO": {
    **some("boats/images/train", 4),
    **some("boats/images/val", 2),
    **some("boats/labels/train", 4, ".txt", BOXES),
    **some("boats/labels/val", 2, ".txt", BOXES),
  },
  "ADE20K": {
    **some("ADEChallengeData2016/images/training", 4),
    **some("ADEChallengeData2016/images/validation", 2),
    **some("ADEChallengeData2016/annotations/training", 4, ".png", MASK),
    **some("ADEChallengeData2016/annotations/validation", 2, ".png", MASK),
    "ADEChallengeData2016/objectInfo150.txt": "",
  },
  "Cityscapes": {
    f"cityscapes/{kind}/{split}/bonn/bonn_{n}{ending}": content
    for kind, ending, content in (
      ("leftImg8bit", "_leftImg8bit.png", IMAGE),
      ("gtFine", "_gtFine_labelIds.png", MASK),
    )
    for split, count in (("train", 4), ("val", 2))
    for n in range(count)
  },
  "CVAT, ImageNet 1.0": classes("task_1", ("cat", "dog"), 10),
  "CVAT, segmentation mask 1.1": {
    **some("task_2/JPEGImages", 3),
    **some("task_2/SegmentationClass", 3, ".png", MASK),
    **some("task_2/SegmentationObject", 3, ".png", MASK),
    "task_2/ImageSets/Segmentation/default.txt": "0",
    "task_2/labelmap.txt": "# label:color_rgb:parts:actions\nroad:1,2,3::",
  },
  "Label Studio, CSV": {
    **some("media/upload/1", 10),
    "media/project-1.csv": "annotation_id,choice,id,image\n"
    + "\n".join(f"{n},{'ab'[n % 2]},{n},upload/1/{n}.jpg" for n in range(10)),
  },
  "Label Studio, YOLO": {
    **some("project-2/images", 3),
    **some("project-2/labels", 3, ".txt", BOXES),
    "project-2/classes.txt": "cat",
    "project-2/notes.json": "{}",
  },
  "ImageNet": {
    **classes("ILSVRC/train", ("n01440764", "n01443537"), 4),
    **classes("ILSVRC/val", ("n01440764", "n01443537"), 2),
  },
  "ImageNet, val as it comes": {
    **classes("CLS-LOC/train", ("n01440764", "n01443537"), 4),
    **some("CLS-LOC/val", 3, ".JPEG"),
    **some("CLS-LOC/test", 3, ".JPEG"),
  },
  "Food-101": {
    **classes("food-101/images", ("pizza", "sushi"), 10),
    "food-101/meta/classes.txt": "pizza\nsushi",
  },
  "Oxford pets": {
    **some("pets/images", 4),
    **some("pets/annotations/trimaps", 4, ".png", MASK),
    "pets/annotations/list.txt": "",
  },
  "MVTec AD": {
    **classes("mvtec/bottle/train", ("good",), 3),
    **classes("mvtec/bottle/test", ("good", "broken"), 2),
    **classes("mvtec/cable/train", ("good",), 3),
    **classes("mvtec/cable/test", ("good", "bent"), 2),
  },
  "COCO, captions": {
    **some("coco/train2017", 6),
    "coco/annotations/captions_train2017.json": json.dumps(COCO),
  },
  "Flickr8k": {
    **some("flickr8k/Images", 6),
    "flickr8k/captions.txt": pairs(
      "{n}.jpg,thing {n} {k} .", 6, "image,caption"
    ),
  },
  "Flickr30k": {
    **some("flickr30k/flickr30k_images", 6),
    "flickr30k/results.csv": pairs(
      "{n}.jpg| {k}| thing {n} {k} .",
      6,
      "image_name| comment_number| comment",
    ),
  },
  "CheXpert": {
    **{
      f"CheXpert-v1.0-small/train/patient{n}/study1/view1.jpg": IMAGE
      for n in range(6)
    },
    "CheXpert-v1.0-small/train.csv": CHEXPERT,
  },
  "Open Images": {
    **some("open_images/train", 6),
    "open_images/train-annotations-human-imagelabels.csv": OPEN_IMAGES,
  },
}
"""By name, as in the table of docs/howto/data.md, the files of an archive."""
