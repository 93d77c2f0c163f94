"""The licences of published weights, with their meaning and address.

The table is `licenses.csv`. It has one sentence for each licence, which cannot
replace reading the licence itself.
"""

import csv
import dataclasses
import importlib.resources


@dataclasses.dataclass(frozen=True)
class License:
  """A licence of weights.

  Attributes:
    name: SPDX's name in small letters, or that of its publisher.
    hub: Its name on Hugging Face, "other" if it has none there; "" if the
      licence is unknown.
    kind: "free", "non-commercial", "custom" or "unknown".
    meaning: Its meaning, in a few words.
    url: Where to read it; "" if the licence is unknown.
  """

  name: str
  hub: str
  kind: str
  meaning: str
  url: str

  def __str__(self) -> str:
    """The licence's name, what it means, and where to read it."""
    address = f": {self.url}" if self.url else ""
    return f"{self.name} ({self.meaning}){address}"


def _read() -> dict[str, License]:
  """The rows of `licenses.csv` by name."""
  table = importlib.resources.files("vit_jax.pretrained") / "licenses.csv"
  lines = csv.DictReader(table.read_text("utf-8").splitlines())
  return {row["name"]: License(**row) for row in lines}


LICENSES = _read()
