"""Reads a module without running it: its imports, the names that it binds, and a hash of its code."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from traceplane.errors import InvalidInput
from traceplane.model import code_bundle

_HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MEANINGLESS_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_MAKES_NAMES = frozenset({"__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars"})


@dataclass(frozen=True, slots=True)
class Import:
    name: str
    line: int
    is_needed: bool
    """Whether the import is required: not inside a `try`, and not a name that may be something else than a module."""
    is_relative: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    text: str
    digest: str
    imports: tuple[Import, ...]
    names: Names


@dataclass(frozen=True, slots=True)
class Names:
    """The names a module binds at its top level."""

    bound: frozenset[str]
    may_be_more: bool
    """Whether some names cannot be seen: defined by a call, or imported by `*`."""


def parse(text: str, path: str, shown: str) -> Module:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InvalidInput(
            "code.syntax",
            f"a module is not valid Python: {error.msg}",
            value=f"{shown}:{error.lineno or 1}",
            next_step="correct it; nothing was deployed",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(
            "code.syntax", f"a module cannot be parsed: {type(error).__name__} {error}", value=f"{shown}:1"
        ) from None
    return Module(text, _digest(tree), tuple(_imports(tree, path, shown)), _names(tree))


def _imports(tree: ast.Module, path: str, shown: str) -> Iterator[Import]:
    for node, needed in _import_statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, needed)
            continue
        base = _base(node, path, shown)
        yield Import(base, node.lineno, needed, node.level > 0)
        for alias in node.names:  # may be a submodule, or something that the module defines
            if alias.name != "*":
                yield Import(f"{base}.{alias.name}", node.lineno, is_needed=False)
    if path.endswith("/__init__.py"):
        for exported in _exported(tree):  # the names that `from package import *` imports
            yield Import(f"{code_bundle.module_name(path)}.{exported}", 1, is_needed=False)


def _import_statements(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import at any depth, and whether it is required."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, needed = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, needed
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, name, None)
            if isinstance(inside, list):  # a conditional expression has a body too, but it is not a block
                may_fail = name == "body" and (_catches(node) or _is_for_type_checkers(node))
                pending += [(statement, needed and not may_fail) for statement in inside]


def _catches(node: ast.AST) -> bool:
    return isinstance(node, ast.Try | ast.TryStar) and bool(node.handlers)


def _is_for_type_checkers(node: ast.AST) -> bool:
    test = getattr(node, "test", None)
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def _base(node: ast.ImportFrom, path: str, shown: str) -> str:
    if not node.level:
        return node.module or ""
    package = code_bundle.module_name(path).split(".")
    if not path.endswith("/__init__.py"):
        package.pop()
    kept = package[: len(package) - (node.level - 1)]
    if len(package) < node.level:
        raise InvalidInput(
            "code.module_missing",
            "a relative import leaves its package",
            value=f"{shown}:{node.lineno}",
            next_step="import the module by its full name",
        )
    return ".".join([*kept, node.module] if node.module else kept)


def _exported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
            and isinstance(node.value, ast.List | ast.Tuple)
        ):
            for item in node.value.elts:
                if (
                    isinstance(item, ast.Constant)
                    and isinstance(item.value, str)
                    and item.value.isidentifier()
                ):
                    yield item.value


def _names(tree: ast.Module) -> Names:
    """For functions and classes, only names they declare `global`; for other statements, every name they bind."""
    bound: set[str] = set()
    may_be_more = False
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.Import() | ast.ImportFrom():
                aliases = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
                bound.update(aliases)
                may_be_more = may_be_more or "*" in aliases
            case ast.Name(ctx=ast.Store()):
                bound.add(node.id)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                bound.add(node.name)
            case ast.MatchMapping() if node.rest:
                bound.add(node.rest)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            bound.update(inner.names)
        word = getattr(inner, "id", getattr(inner, "attr", getattr(inner, "name", None)))
        may_be_more = may_be_more or word in _MAKES_NAMES
    return Names(frozenset(bound), may_be_more)


def _digest(tree: ast.Module) -> str:
    """A hash of the syntax tree that is the same under every Python that Traceplane runs on.

    `ast.dump` would not do: newer versions add fields, which are empty for older code and left out here.
    """
    digest = hashlib.sha256()
    pending: list[object] = [tree]
    while pending:  # not recursive, since expressions may be nested deeper than Python's stack
        item = pending.pop()
        if isinstance(item, ast.AST):
            digest.update(f"({type(item).__name__}\n".encode())
            pending.append(_Mark(")"))
            for name, value in sorted(_fields(item), reverse=True):
                pending += [value, _Mark(name)]
        elif isinstance(item, list):
            digest.update(b"[\n")
            pending.append(_Mark("]"))
            pending += reversed(item)
        elif isinstance(item, _Mark):
            digest.update(f"{item}\n".encode())
        else:
            text = hex(item) if type(item) is int else ascii(item)  # repr refuses very long integers
            digest.update(f"{type(item).__name__} {text}\n".encode())
    return digest.hexdigest()


class _Mark(str):
    """Part of the serialized form, rather than a value of the program."""


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    if isinstance(node, ast.Constant):
        yield "value", node.value
        return
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, _HAS_DOCSTRING) and _is_text(value[:1]):
            value = value[1:]
        elif isinstance(node, ast.JoinedStr):
            value = _joined(value)
        if name not in _MEANINGLESS_FIELDS and value is not None and value != []:
            yield name, value


def _is_text(statements: list[ast.stmt]) -> bool:
    return any(
        isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
        for s in statements
    )


def _joined(parts: list[ast.expr]) -> list[object]:
    """Python versions differ in how they split the text of an f-string."""
    whole: list[object] = []
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            before = whole.pop() if whole and isinstance(whole[-1], str) else ""
            if text := f"{before}{part.value}":
                whole.append(text)
        else:
            whole.append(part)
    return whole
