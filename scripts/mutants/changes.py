"""The places of a module that can be changed, and their names.

A mutant is named by its module, its function and its text, not by its line, so
that it is found again in code that has moved. Prose is left out of the text.
"""

import ast
import copy
import dataclasses
import random
from collections import Counter
from collections.abc import Iterator

KINDS = ("comparison", "constant", "sign", "default", "removed")
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
  ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
  ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
  ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
  ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
  ast.FloorDiv: ast.Mult,
}  # fmt: skip
# What these write or how wide it is is no promise.
_TALK = {"say", "_say", "print", "warn", "logging", "log", "debug", "info"}
_LOOKS = {"stacklevel", "indent", "width", "style"}
_LONGEST = 160  # Characters of a statement in a name.


@dataclasses.dataclass(frozen=True)
class Mutant:
  """The name of a change.

  Attributes:
    module: The file, relative to the tree.
    function: Function or class that holds it, with those around it; "" outside.
    kind: One of `KINDS`.
    statement: Source of the statement, of which the head alone where it has a
      body.
    change: Source of the part that changes, before and after; "" where the
      statement is removed.
    index: Number of those before it of which all else is equal.
  """

  module: str
  function: str
  kind: str
  statement: str
  change: str
  index: int = 0


@dataclasses.dataclass(frozen=True)
class Edit:
  """Bytes of the source to replace."""

  start: int
  end: int
  text: str

  def of(self, source: str) -> str:
    """The whole source after the change."""
    data = source.encode()
    text = self.text.encode()
    return (data[: self.start] + text + data[self.end :]).decode()


def mutants_of(module: str, source: str) -> dict[Mutant, Edit]:
  """All changes of a module, in its order."""
  starts, total = [0], 0
  for line in source.encode().splitlines(keepends=True):
    starts.append(total := total + len(line))
  found: dict[Mutant, Edit] = {}
  seen: Counter[Mutant] = Counter()
  for function, kind, statement, node, text in _places(ast.parse(source)):
    change = f"{_short(_unworded(node))} -> {_short(text)}"
    change = "" if kind == "removed" else change
    name = Mutant(module, function, kind, statement, change)
    start = starts[node.lineno - 1] + node.col_offset
    assert node.end_lineno and node.end_col_offset is not None
    end = starts[node.end_lineno - 1] + node.end_col_offset
    found[dataclasses.replace(name, index=seen[name])] = Edit(start, end, text)
    seen[name] += 1
  return found


Place = tuple[str, str, str, ast.stmt | ast.expr, str]


def _places(tree: ast.Module) -> Iterator[Place]:
  """(function, kind, statement, what is replaced, by what) of each change."""
  yield from _of_body(tree, "")


def _of_body(parent: ast.AST, function: str) -> Iterator[Place]:
  for child in ast.iter_child_nodes(parent):
    if isinstance(child, ast.stmt):
      yield from _of_statement(
        child, function, isinstance(parent, ast.ClassDef)
      )
    elif isinstance(child, ast.excepthandler | ast.match_case):
      yield from _of_body(child, function)


def _of_statement(
  node: ast.stmt, function: str, in_class: bool
) -> Iterator[Place]:
  if _without_meaning(node):
    return
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
    inner = f"{function}.{node.name}".lstrip(".")
    if not isinstance(node, ast.ClassDef):
      yield from _of_defaults(node.args, inner)
    yield from _of_body(node, inner)
    return
  statement = _head(node)
  if _removable(node):
    yield function, "removed", statement, node, "pass"
  field = in_class and isinstance(node, ast.AnnAssign)
  for child in _read(node):
    for kind, expression, text in _of_expression(child):
      kind = "default" if field and kind == "constant" else kind
      yield function, kind, statement, expression, text
  yield from _of_body(node, function)


def _without_meaning(node: ast.stmt) -> bool:
  """Whether it is a docstring, a message, an import or a list of names."""
  if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
    return True
  if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
    return True
  if isinstance(node, ast.If) and ast.unparse(node.test).startswith(
    ("TYPE_CHECKING", "__name__")
  ):
    return True
  if not isinstance(node, ast.Expr):
    return False
  names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
  called = getattr(getattr(node.value, "func", None), "attr", "")
  return isinstance(node.value, ast.Constant) or bool(
    _TALK & (names | {called})
  )


def _of_defaults(arguments: ast.arguments, function: str) -> Iterator[Place]:
  positional = [*arguments.posonlyargs, *arguments.args]
  pairs = [
    *zip(positional[::-1], arguments.defaults[::-1], strict=False),
    *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
  ]
  for argument, default in pairs:
    text = _other_constant(default)
    if default is not None and text is not None:
      named = f"{argument.arg}={ast.unparse(default)}"
      yield function, "default", named, default, text


def _head(node: ast.stmt) -> str:
  """The statement in one line, without its body."""
  head = copy.copy(node)
  for part in ("body", "orelse", "finalbody", "handlers", "cases"):
    if hasattr(head, part):
      setattr(head, part, [])
  return _short(_unworded(head))


class _Unworded(ast.NodeTransformer):
  """Leaves prose out, which may be reworded: f-strings and text with spaces."""

  def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
    return ast.Constant("...")

  def visit_Constant(self, node: ast.Constant) -> ast.expr:
    is_prose = isinstance(node.value, str) and " " in node.value
    return ast.Constant("...") if is_prose else node


def _unworded(node: ast.AST) -> str:
  return ast.unparse(_Unworded().visit(copy.deepcopy(node)))


def _short(text: str) -> str:
  text = " ".join(text.split())
  return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _removable(node: ast.stmt) -> bool:
  """Whether what follows still has its names without it."""
  if isinstance(node, ast.Assign):
    return not any(
      isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
      for n in ast.walk(node)
    )
  if isinstance(node, ast.Return):
    return node.value is None
  kinds = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
  return isinstance(node, kinds)


def _read(node: ast.stmt) -> Iterator[ast.expr]:
  """Expressions that a statement evaluates, but no annotation or message."""
  if isinstance(node, ast.Raise):
    return
  for name, value in ast.iter_fields(node):
    for child in value if isinstance(value, list) else [value]:
      if isinstance(child, ast.withitem):
        child = child.context_expr
      if isinstance(child, ast.expr) and name != "annotation":
        yield child


def _of_expression(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
  """(kind, expression, its replacement), from the outside to the inside."""
  if isinstance(node, ast.JoinedStr):
    return
  if isinstance(node, ast.expr):
    for kind, text in _replacements(node):
      yield kind, node, text
  for child in ast.iter_child_nodes(node):
    if isinstance(child, ast.keyword) and child.arg in _LOOKS:
      continue
    yield from _of_expression(child)


def _replacements(node: ast.expr) -> Iterator[tuple[str, str]]:
  if isinstance(node, ast.Compare):
    for i, operator in enumerate(node.ops):
      other = copy.copy(node)
      other.ops = [*node.ops]
      other.ops[i] = _COMPARISONS[type(operator)]()
      yield "comparison", f"({ast.unparse(other)})"
  elif isinstance(node, ast.BoolOp):
    other = copy.copy(node)
    other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "comparison", f"({ast.unparse(other)})"
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
    yield "comparison", f"({ast.unparse(node.operand)})"
  elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    yield "sign", f"({ast.unparse(node.operand)})"
  elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
    if not (_is_text(node.left) or _is_text(node.right)):
      other = copy.copy(node)
      other.op = _OPERATORS[type(node.op)]()
      yield "sign", f"({ast.unparse(other)})"
  elif (text := _other_constant(node)) is not None:
    yield "constant", text


def _is_text(node: ast.expr) -> bool:
  """Whether it is text, or a path or sum that ends with one."""
  if isinstance(node, ast.BinOp):
    return _is_text(node.left) or _is_text(node.right)
  constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
  return constant or isinstance(node, ast.JoinedStr)


def _other_constant(node: ast.expr | None) -> str | None:
  """Another value: the next integer, twice the number, the opposite."""
  if not isinstance(node, ast.Constant):
    return None
  value = node.value
  if isinstance(value, bool):
    return repr(not value)
  if isinstance(value, int):
    return repr(value + 1)
  if isinstance(value, float):
    return repr(2 * value or 1.0)
  return None


def room(module: str) -> str:
  """The folder of a module in the package; "commands" for those outside."""
  parts = module.split("/")
  return parts[1] if len(parts) > 2 else "commands"


def shares(lines: dict[str, int], total: int) -> dict[str, int]:
  """Splits a number in proportion to lines, by largest remainders."""
  whole = sum(lines.values())
  exact = {name: total * count / whole for name, count in lines.items()}
  found = {name: int(value) for name, value in exact.items()}
  by_rest = sorted(exact, key=lambda name: (found[name] - exact[name], name))
  for name in by_rest[: total - sum(found.values())]:
    found[name] += 1
  return found


def sample(sources: dict[str, str], total: int, seed: int) -> list[Mutant]:
  """Mutants drawn from each room in proportion to its lines.

  Kinds take turns, and no function is drawn twice while others are left.
  """
  lines: Counter[str] = Counter()
  rooms: dict[str, list[Mutant]] = {}
  for module, source in sorted(sources.items()):
    lines[room(module)] += len(source.splitlines())
    rooms.setdefault(room(module), []).extend(mutants_of(module, source))
  drawn = []
  for name, count in shares(lines, total).items():
    order = rooms[name]
    random.Random(f"{seed} {name}").shuffle(order)
    drawn += _take(order, count)
  return drawn


def _take(order: list[Mutant], count: int) -> list[Mutant]:
  functions: Counter[tuple[str, str]] = Counter()
  kinds: Counter[str] = Counter()
  taken: list[Mutant] = []
  for _ in range(min(count, len(order))):
    one = min(
      (m for m in order if m not in taken),
      key=lambda m: (functions[m.module, m.function], kinds[m.kind]),
    )
    functions[one.module, one.function] += 1
    kinds[one.kind] += 1
    taken.append(one)
  return taken
