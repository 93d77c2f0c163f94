"""Names from elsewhere, in a form that a line of output can hold."""


def printable(text: str) -> str:
  """With what cannot be printed written as in Python's strings, such as \\n.

  Lone surrogates, which JSON can hold and UTF-8 cannot, are written likewise.
  """
  if text.isprintable():  # Nearly always, and this takes no time.
    return text
  return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
