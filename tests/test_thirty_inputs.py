"""Thirty inputs as people have them, and the test that has each right value.

The name of an input says its kind and what is odd in it.
"""

import re

import pytest

from tests.pages import ROOT

READING = "data/reading/"
MASKS = READING + "test_mask_folder.py"
LAYOUTS = READING + "test_layouts.py"
LABELS = READING + "test_labels.py"
FILES = READING + "test_label_file.py"
SHEET = "inspection/test_data_sheet_tasks.py"
PARQUET = "pack/test_parquet.py"
WHITE = "test_white_is_class_1_of_two"
NAMES = "test_names_of_masks_may_differ"
NO_CLASSES = "test_folders_that_are_no_classes_are_refused"
APART = "test_labels_that_may_be_apart_are_said_and_parted"
SPELLINGS = "test_files_are_found_by_other_spellings"

INPUTS = {
  "mask_white_with_colours": (MASKS, WHITE),
  "mask_white_two_names": (MASKS, WHITE),
  "mask_white_no_names": (MASKS, WHITE),
  "mask_onehot_pages": (
    READING + "masks/test_files.py",
    "test_more_than_one_page_is_refused",
  ),
  "mask_zero_is_no_class": (MASKS, "test_ignored_keeps_its_number"),
  "mask_upper_case_ending": (MASKS, NAMES),
  "mask_with_suffix": (MASKS, NAMES),
  "mask_jpeg": (MASKS, "test_a_missing_mask_is_told_by_what_is_there"),
  "mask_beside_image": (
    MASKS,
    "test_masks_beside_images_are_refused_in_words_of_masks",
  ),
  "layout_split_in_name": (LAYOUTS, "test_splits_of_many_names"),
  "layout_images_and_masks": (LAYOUTS, NO_CLASSES),
  "layout_coco": (LAYOUTS, NO_CLASSES),
  "layout_val_without_classes": (LAYOUTS, NO_CLASSES),
  "labels_apart_by_spaces": (LABELS, APART),
  "labels_apart_by_commas": (LABELS, APART),
  "labels_unknown": (LABELS, "test_empty_cells_are_counted"),
  "labels_one_hot": (LABELS, "test_columns_with_a_single_1_are_the_classes"),
  "labels_other_case": (FILES, SPELLINGS),
  "labels_accents": (FILES, SPELLINGS),
  "captions_quote": (
    READING + "test_tables.py",
    "test_quotes_that_part_no_cells_are_text",
  ),
  "captions_list_as_text": (
    READING + "test_captions.py",
    "test_a_list_in_text_is_several_captions",
  ),
  "captions_coco_json": (SHEET, "test_captions_of_coco_are_looked_through"),
  "inspect_several_labels": (
    SHEET,
    "test_several_labels_of_a_file_beside_the_images",
  ),
  "inspect_masks": (
    SHEET,
    "test_every_task_has_its_labels_counted_and_shown",
  ),
  "parquet_id_as_class": (PARQUET, "test_an_id_is_no_class"),
  "parquet_empty_label": (PARQUET, "test_columns_that_are_refused"),
  "parquet_paths_alone": (
    "pack/test_writer.py",
    "test_images_of_which_none_can_be_read",
  ),
  "tar_of_macos": (
    "pack/test_tars.py",
    "test_by_products_of_macos_are_left_out",
  ),
  "predict_same_names": (
    "inference/test_mask_files.py",
    "test_every_image_has_a_mask_of_its_own",
  ),
  "weights_of_int8": (
    "pretrained/test_quantised.py",
    "test_integers_are_no_weights",
  ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_each_input_has_its_test(name):
  file, function = INPUTS[name]
  text = (ROOT / "tests" / file).read_text("utf-8")
  assert len(re.findall(rf"^def {function}\(", text, re.MULTILINE)) == 1


def test_there_are_thirty():
  assert len(INPUTS) == 30
