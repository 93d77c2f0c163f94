"""What one cell of a file of labels holds."""

import pytest

from vit_jax.data.reading.cells import AS_BEFORE, find_separator, values_of


@pytest.mark.parametrize(
  "text, values",
  [
    ('["cat", "dog"]', ["cat", "dog"]),
    ("['cat', 'dog']", ["cat", "dog"]),
    ("""['a dog\\'s "toy"', "it's"]""", ['a dog\'s "toy"', "it's"]),
    ('[ "a, b" ]', ["a, b"]),
    ("('cat', 'dog')", ["cat", "dog"]),
    ("('cat',)", ["cat"]),
    ("{'dog', 'cat'}", ["cat", "dog"]),
    ("[3, 7]", [3, 7]),
    ("['', \"it's\", '\"\" b']", ["", "it's", '"" b']),
    ("[]", []),
    ('["caf\\u00e9"]', ["caf\u00e9"]),
    ("[[1, 2], 3]", "[[1, 2], 3]"),
    ("[red box] on a table", "[red box] on a table"),
    ("(a photo)", "(a photo)"),
    ("('s Hertogenbosch", "('s Hertogenbosch"),
    ("('cat')", "('cat')"),
    ("[cat, dog]", "[cat, dog]"),
    ('{"a": 1}', '{"a": 1}'),
    ("[__import__('os').getcwd()]", "[__import__('os').getcwd()]"),
    ("polar bear", "polar bear"),
    ("", ""),
    (5, 5),
    (["cat;dog"], ["cat;dog"]),
  ],
)
def test_a_list_in_text_is_a_list(text, values):
  assert values_of(text, None) == values
  assert values_of(text, AS_BEFORE) == text


@pytest.mark.parametrize(
  "text",
  [
    '["cat", "dog"',
    '["cat", dog]',
    "['cat' 'dog']",  # As NumPy writes it, and Python reads 'catdog'.
    "['cat'\n 'dog']",
    "['it''s', 'dog']",  # As SQL doubles a quote, and Python reads 'its'.
    '[\'a ""\', "b" "c"]',
    '["cat", ["dog"]]',
    '["cat"] and more',
    "['" + "a" * 70_000 + "']",
    "['a'," + "[" * 60_000,
  ],
)
def test_a_damaged_list_is_refused(text):
  with pytest.raises(
    ValueError, match=("begins like a list and is not one: write")
  ):
    values_of(text, None)


@pytest.mark.parametrize(
  "separator, text, values",
  [
    (" ", "scab  rust ", ["scab", "rust"]),
    (" ", "scab\trust", ["scab", "rust"]),
    (",", "polar bear, cat,", ["polar bear", "cat"]),
    (", ", "polar bear, cat", ["polar bear", "cat"]),
    (",;", "a;b,c", ["a", "b", "c"]),
    ("|", "a;b|c", ["a;b", "c"]),
    ("]", "a]b", ["a", "b"]),
    ("^-", "a-b^c", ["a", "b", "c"]),
    ("[],", "[cat, polar bear]", ["cat", "polar bear"]),
    (",", "", []),
    (",", '["a", "b"]', ['["a"', '"b"]']),
    (",", 5, 5),
  ],
)
def test_a_separator_parts(separator, text, values):
  assert values_of(text, separator) == values


@pytest.mark.parametrize(
  "names, of_one, mark, found",
  [
    ("scab|rust complex|scab rust|healthy", False, " ", ["scab rust"]),
    (
      "scab|rust complex|scab rust|healthy",
      True,
      " ",
      ["rust complex", "scab rust"],
    ),
    ("cat|cat, dog|dog, sun|sun", False, ",", ["cat, dog", "dog, sun"]),
    ("cat,dog|dog,sun|sun,cat", False, ",", None),
    ("cold, nut|warm, nut|warm, oat", False, ",", None),
    ("warm, nut|cold|warm", False, ",", ["warm, nut"]),
    ("Salem, Oregon|Bend, Oregon|Rome, Italy", False, "", []),
    ("a+b|a|b|c", False, "+", ["a+b"]),
    ("scab_rust|scab|rust", False, "_", ["scab_rust"]),
    ("clear primary|haze primary|cloudy", True, " ", None),
    ("clear primary|haze primary|cloudy", False, "", []),
    ("polar bear|cat|dog", True, "", []),
    ("polar bear|brown bear|black cat|brown cat", False, "", []),
    ("maple_tree|oak_tree|pine_tree", True, "", []),
    ("tench, Tinca tinca|goldfish, Carassius auratus", False, "", []),
    ("Paris, France|Lyon, France|Rome, Italy", False, "", []),
    ("tiger|tiger cat|Persian cat|sea lion|hot dog", False, "", []),
    ("2020-01-01|2020-01-02", True, "", []),
    ("/m/01|/m/02|/g/01x", True, "", []),
    ("animal/dog|animal/cat", True, "", []),
    ("[cat, dog]|[dog]|[cat]", False, "[],", ["[cat, dog]"]),
    ("{cat,dog}|{dog,sun}", True, "{},", None),
    ("(cat dog)|(dog)|(cat)", False, "", []),
    ("[cat]|[dog]", True, "", []),
    ("", False, "", []),
  ],
)
def test_names_that_are_put_together(names, of_one, mark, found):
  names = names.split("|")
  several = [name for name in names if mark and mark[-1] in name]
  expected = several if found is None else found
  assert find_separator(names, of_one) == (mark, expected)
