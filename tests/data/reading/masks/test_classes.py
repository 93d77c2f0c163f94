"""Files of the classes' names and colours, as people write them."""

import pytest

from vit_jax.data.reading.masks.classes import find_classes, read_classes


def read(tmp_path, encoded, **options):
  path = tmp_path / "classes.txt"
  path.write_bytes(encoded if isinstance(encoded, bytes) else encoded.encode())
  return read_classes(str(path).encode(), **options)


@pytest.mark.parametrize(
  "colours", [("", "", ""), (" 0 0 0", " 1 1 1", " 2 2 2")]
)
def test_ignored_without_a_class_keeps_its_number(tmp_path, colours):
  names = ("ignored", "wall", "floor")
  lines = "\n".join(n + c for n, c in zip(names, colours, strict=True))
  found = read(tmp_path, lines)
  assert found.names == ("wall", "floor")
  assert found.numbers == (-1, 0, 1)
  assert read(tmp_path, lines, earlier=True).numbers == (0, 1)
  if colours[0]:
    assert found.colours == {0: -1, 0x010101: 0, 0x020202: 1}


def test_a_name_may_hold_spaces_and_commas(tmp_path):
  text = "\ufeffthe sky, blue  1,2\t3\n\n  road ,, 4 5 6 \n"
  found = read(tmp_path, text)
  assert found.names == ("the sky, blue", "road")
  assert found.colours == {0x010203: 0, 0x040506: 1}
  assert read(tmp_path, "1 2\n3 4 5").names == ("1 2", "3 4 5")


@pytest.mark.parametrize(
  "encoded, message",
  [
    (b"", "classes.txt is empty: write the name of a class in each line"),
    (b"\n \n", "classes.txt is empty"),
    (b"ignored\n", "is only 'ignored': write the name"),
    ("a\nb".encode("utf-16"), "classes.txt is UTF-16: save it as"),
    ("a\nb".encode("utf-16-le"), "is UTF-16: save it"),
    (
      "a\ncaf\u00e9".encode("latin-1"),
      "line 2, is not UTF-8: save it as UTF-8",
    ),
    (b"a" * (1 << 21), "is larger than 1,048,576 bytes"),
    (b"\n".join(b"%d" % k for k in range(70_000)), "names 70,000 classes: at"),
    (b"a\n" + b"b" * 1000 + b" 1 2 300", r"line 2, is 'bbb.*\.\.\.: each line"),
  ],
)
def test_files_that_name_no_classes_are_one_line(tmp_path, encoded, message):
  with pytest.raises(ValueError, match=message) as error:
    read(tmp_path, encoded)
  assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_long_lines_and_many_take_linear_time(tmp_path):
  """Each of these took minutes, or longer."""
  spaces = b" " * 200_000
  found = read(tmp_path, b"a" + spaces + b"b" + b" ," * 100_000 + b"1 2\nc")
  assert len(found.names) == 2
  names = b"\n".join(b"%d" % k for k in range(65_000))
  assert len(read(tmp_path, names).names) == 65_000


def test_the_name_of_the_file_may_differ_in_case(tmp_path):
  path = tmp_path / "Classes.TXT"
  path.write_text("a\nb")
  root = str(tmp_path).encode()
  assert find_classes(root) == str(path).encode()
  assert find_classes(root, earlier=True) is None
