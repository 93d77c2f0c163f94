"""The rows of CSV, TSV and JSON files, against those written into them."""

import csv
import io
import json

import pytest

from vit_jax.data.reading.tables import cells_of, column, list_columns


def rows_of(folder, text, name="rows.csv", chosen=None):
  (folder / name).write_text(text, newline="")
  return [row.by_column for row in cells_of(str(folder / name), chosen)]


def captions_of(folder, text, name="rows.csv", chosen=None):
  return [[*row.values()][1] for row in rows_of(folder, text, name, chosen)]


ENDS = [("rows.tsv", "\t"), ("rows.csv", "|")]


@pytest.mark.parametrize("name, mark", ENDS)
@pytest.mark.parametrize(
  "texts",
  [
    ["red box", '"start of a quote', 'end of it"', "middle"],
    ["red", '"never closed', "middle", "last"],
    ['"Hello" he said', "x", '6" pipe', 'a "quoted" word'],
    ['"a', '"b', '"c', 'd"'],
    ["x", '"""', '"a""b', "y"],
  ],
)
def test_quotes_that_part_no_cells_are_text(tmp_path, name, mark, texts):
  rows = [f"im{k}.jpg{mark}{text}" for k, text in enumerate(texts)]
  text = "\n".join([f"file{mark}caption", *rows])
  assert captions_of(tmp_path, text, name) == texts


def test_files_without_an_ending_are_rows_as_well(tmp_path):
  text = 'id\tcaption\n9\t"a quote\n10\tends" here\n11\t"b\n12\tc"\n'
  expected = ['"a quote', 'ends" here', '"b', 'c"']
  assert captions_of(tmp_path, text, "rows.tsv") == expected
  text = 'id\tcaption\nab\t"a quote\nxyz\tends"\n'
  assert captions_of(tmp_path, text, "rows.tsv") == ['"a quote', 'ends"']


TEXTS = [
  "one line",
  "two lines\nof a text",
  "a, b\nc, d",
  'a "quote"\nand im3, "more"',
  "1, 2\n3, 4",
  "windows\r\nlines",
  "\nbegins late",
]


@pytest.mark.parametrize("name, mark", [("r.csv", ","), ("r.csv", ";"), *ENDS])
@pytest.mark.parametrize("files", ["im{}.jpg", "img-{}", "{}0000"])
def test_quoted_texts_may_have_several_lines(tmp_path, name, mark, files):
  """As the standard library writes them, which RFC 4180 describes."""
  out = io.StringIO(newline="")
  writer = csv.writer(out, delimiter=mark)
  writer.writerow(["file", "caption"])
  for k, text in enumerate(TEXTS):
    writer.writerow([files.format(k), text])
  texts = captions_of(tmp_path, out.getvalue(), name)
  assert texts == [text.strip() for text in TEXTS]


@pytest.mark.parametrize(
  "text, message",
  [
    (
      'file,caption\na.jpg,x\nb.jpg,"start\nc.jpg,end"\nd.jpg,y\n',
      "line 4 is within a double quote that opens in line 3, and line 4 seems",
    ),
    (
      'caption,file\n"start,a.jpg\nx,b.jpg\nend",c.jpg\n',
      "line 4 is .* line 3 seems to be a row of its own, of 'b.jpg': write two",
    ),
    (
      'file,caption\na.jpg,"start\nb.jpg,x\nc.jpg,y\n',
      "is not CSV: unexpected end of data; a double quote opens in line 2",
    ),
    (
      'file,caption,x\na.jpg,"two\nlines"\n',
      "line 3 has 2 cells, not 3: a double quote opens in line 2: close",
    ),
    ('file,caption\n1,"start\n2,end"\n', "line 3 seems to be a row of its own"),
  ],
)
def test_a_quote_never_takes_in_an_image(tmp_path, text, message):
  with pytest.raises(ValueError, match=message) as error:
    rows_of(tmp_path, text)
  assert "\n" not in str(error.value)


def test_flickr30k_is_read(tmp_path):
  text = "image_name| comment_number| comment\n"
  text += "1.jpg| 0| Two men , one dog .\n1.jpg| 1| A dog; a man .\n"
  names = ("image_name", "comment_number", "comment")
  rows = ("1.jpg", "0", "Two men , one dog ."), ("1.jpg", "1", "A dog; a man .")
  found = [dict(zip(names, row, strict=True)) for row in rows]
  assert rows_of(tmp_path, text) == found
  with pytest.raises(ValueError, match="line 4 has 2 cells, not 3: put dou"):
    rows_of(tmp_path, text + "2.jpg| 4 A dog\n")


def test_a_header_of_many_columns_takes_no_quadratic_time(tmp_path):
  """If each were counted among all, these would take half a minute."""
  names = [f"c{k}" for k in range(40_000)]
  text = f"file,{','.join(names)}\n0.jpg{',1' * len(names)}\n"
  (row,) = rows_of(tmp_path, text)
  assert [*row] == ["file", *names]
  with pytest.raises(ValueError, match="line 1 has two columns 'c7'"):
    rows_of(tmp_path, text.replace("c39999", "c7"))


@pytest.mark.parametrize(
  "names, chosen",
  [
    (["id", "path"], "path"),
    (["Path", "Sex"], "Path"),
    (["Image Index", "x"], "Image Index"),
    (["ImageID"], "ImageID"),
    (["image_name", "split"], "image_name"),
    (["File", "file"], "file"),
    (["File", "FILE", "Id"], "Id"),
    (["name"], None),
  ],
)
def test_a_column_is_found_by_its_name(names, chosen):
  candidates = ("file", "path", "image_id", "id", "image_name", "image_index")
  assert column(candidates, names) == chosen


def test_a_message_names_some_columns():
  assert list_columns(["a", "b"]) == "a, b"
  assert list_columns(["a\x1b[2J", "\u202eb"]) == "a\\x1b[2J, \\u202eb"
  assert list_columns([str(k) for k in range(20_000)]) == (
    "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (20,000 columns)"
  )


ROWS = [{"file": "0.jpg", "label": "a"}, {"file": "1.jpg", "label": ["b"]}]
COCO = {
  "info": {},
  "images": [{"id": 5, "file_name": "b.jpg"}, {"id": 7, "file_name": "a.jpg"}],
  "annotations": [
    {"id": 1, "image_id": 7, "caption": "x"},
    {"id": 2, "image_id": 5, "caption": "y"},
    {"id": 3, "image_id": 7, "caption": "z"},
  ],
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_json_may_be_a_list_of_rows(tmp_path, name, indent):
  assert rows_of(tmp_path, json.dumps(ROWS, indent=indent), name) == ROWS
  lines = "\n".join(map(json.dumps, ROWS))
  assert rows_of(tmp_path, "\n" + lines, name) == ROWS


@pytest.mark.parametrize("indent", [None, 2])
def test_the_captions_of_coco_are_read(tmp_path, indent):
  found = rows_of(tmp_path, json.dumps(COCO, indent=indent), "coco.json")
  assert found == [
    {"file": "a.jpg", "caption": "x"},
    {"file": "b.jpg", "caption": "y"},
    {"file": "a.jpg", "caption": "z"},
  ]


BOXES = {**COCO, "annotations": [{"image_id": 7, "category_id": 1, "bbox": []}]}
KARPATHY = {"images": [{"filename": "a.jpg", "sentences": []}], "dataset": "x"}


@pytest.mark.parametrize(
  "content, message",
  [
    (
      BOXES,
      ("annotations of objects, and only COCO's captions are read: for lab"),
    ),
    (
      KARPATHY,
      r"is one JSON object \(its keys: images, dataset\); give CSV, T",
    ),
    (
      {"a": {"b": 1}},
      r"is one JSON object \(its keys: a\); give CSV, TSV, JSO",
    ),
    ([1], "item 1 is not an object with keys such as file"),
    (
      {**COCO, "images": [{"id": 5}]},
      "is not in the form of COCO's captions .Key",
    ),
    ({**COCO, "images": [5]}, "is not in the form of COCO's captions .Type"),
    (
      {**COCO, "annotations": [5]},
      "is not in the form of COCO's captions .Type",
    ),
    (
      {**COCO, "images": []},
      "is not in the form of COCO's captions .KeyError.7",
    ),
  ],
)
def test_other_json_is_refused_in_a_line(tmp_path, content, message):
  with pytest.raises(ValueError, match=message) as error:
    rows_of(tmp_path, json.dumps(content, indent=2), "rows.json")
  assert "\n" not in str(error.value)


def test_one_object_in_one_line_is_no_row(tmp_path):
  content = json.dumps({"a.jpg": "cat", "b.jpg": "dog"})
  with pytest.raises(
    ValueError, match=r"one JSON object .its keys: a.jpg, b.j"
  ):
    rows_of(tmp_path, content, "rows.json")
  row = {"name": "a.jpg", "label": "cat"}  # Its column is chosen by a key.
  text = "\n".join([json.dumps(row)] * 2)
  assert rows_of(tmp_path, text, "rows.json") == [row, row]


@pytest.mark.parametrize(
  "text", ["[" * 100_000, '[{"file": "a"}', "{\n", "[1]\n[2]"]
)
def test_damaged_json_is_refused_in_a_line(tmp_path, text):
  with pytest.raises(ValueError, match="is not JSON: ") as error:
    rows_of(tmp_path, text, "rows.json")
  assert "\n" not in str(error.value)
