"""Names from elsewhere, in a form that a line of output can hold."""


def printable(text: str) -> str:
  """With what cannot be printed written as in Python's strings, such as \\n.

  Lone surrogates, which JSON can hold and UTF-8 cannot, are written likewise.
  """
  if text.isprintable():  # Nearly always, and this takes no time.
    return text
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quoted(value: object) -> str:
  """The value as Python writes it, cut to a fair length."""
  return _cut(repr(value))


def one_line(error: Exception) -> str:
  """The error's message, which may quote a file, as a line of fair length."""
  text = "".join(c if c.isprintable() else " " for c in str(error))
  return _cut(text.rstrip(". "))


def _cut(text: str) -> str:
  return text if len(text) <= 120 else f"{text[:117]}..."
