"""Which tests may find a change."""

import ast
import pathlib
import re

from scripts.mutants.changes import Mutant

_MOST_FILES = 2  # Besides those that mirror the module.


def mirrored(tree: pathlib.Path, module: str) -> list[str]:
  """Test files of a module: tests/a/test_b.py and tests/a/test_b_*.py."""
  files = sorted(tree.glob("tests/**/test_*.py"))
  names = [str(file.relative_to(tree)) for file in files]
  return [name for name in names if is_mirror(module, name)]


def is_mirror(module: str, file: str) -> bool:
  """Whether a test file is one of a module's own."""
  path = pathlib.Path(module.removesuffix("/__init__.py"))
  folder = pathlib.Path("tests", *path.parts[1:-1])
  test = pathlib.Path(file)
  own = f"test_{path.stem}"
  return test.parent == folder and f"{test.stem}_".startswith(f"{own}_")


def naming(tree: pathlib.Path, mutant: Mutant) -> list[str]:
  """Other test files that import the module, or its importers' own.

  Those that name the function come first, then those of few imports.
  """
  found: list[str] = []
  own = mirrored(tree, mutant.module)
  for modules in ([mutant.module], _importers(tree, mutant.module)):
    names = {_dotted(module) for module in modules}
    ranked = []
    for path in tree.glob("tests/**/test_*.py"):
      text = path.read_text()
      imports = _imports(text)
      if imports & names:
        last = mutant.function.split(".")[-1]
        unnamed = not re.search(rf"\b{re.escape(last)}\b", text)
        file = str(path.relative_to(tree))
        ranked.append((not last or unnamed, len(imports), file))
    found += [f for *_, f in sorted(ranked) if f not in own and f not in found]
    if own or found:
      break
  return found[:_MOST_FILES]


def _dotted(module: str) -> str:
  return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(text: str) -> set[str]:
  """Names of imported modules, and of what is imported from them."""
  found = set()
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      found.add(node.module)
      found.update(f"{node.module}.{alias.name}" for alias in node.names)
  return found


def _importers(tree: pathlib.Path, module: str) -> list[str]:
  """Modules of the package that import it."""
  name = _dotted(module)
  paths = sorted(tree.glob("vit_jax/**/*.py"))
  found = [path for path in paths if name in _imports(path.read_text())]
  return [str(path.relative_to(tree)) for path in found]
