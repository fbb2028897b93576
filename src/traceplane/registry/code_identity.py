"""Which of the user's modules a job runs, and what they say, as a hash.

From a job's entrypoint, import statements are followed through the project: the modules that lie on the code
paths, with the `__init__` of every package on the way. What is not there (the standard library, installed
packages) is not followed and does not count. Each module is reduced to its syntax tree without positions,
comments, formatting and docstrings, so that only a change of what it does changes the hash. An import that is
made by a call (`importlib.import_module`) cannot be seen.

The command line reads folders (`collect`) and tells problems before anything is sent; the gateway reads what was
sent (`identify`), so that a hash is never somebody's word.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from traceplane.errors import InvalidInput, TooLarge
from traceplane.model import code_bundle
from traceplane.model.dag import Dag, Job
from traceplane.model.runtimes import Driver, Runtime
from traceplane.registry.spec import Fault, near

_OPERATORS_WITH_CODE = frozenset({"python", "pyspark"})
_ENTRYPOINT = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MEANINGLESS_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True, slots=True)
class DeployedCode:
    """What a deploy brings along: a bundle, and the code hash of each job that runs from it."""

    bundle_hash: str
    content: str
    hashes: Mapping[str, str]


def project_in(folders: Sequence[Path]) -> Project:
    return Project([_Folder(folder) for folder in folders])


def project_sent(files: Mapping[str, str]) -> Project:
    return Project([_Sent(files)])


def faults(
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    project: Project,
    *,
    is_elsewhere: Callable[[str], bool],
    no_folder: str | None = None,
) -> Iterator[Fault]:
    """Entrypoints that name nothing. `is_elsewhere` tells of a package outside of the project whether workers have it;
    `no_folder` is where the project would be if it were there.

    Modules are read, not run, so a name is missed only if nothing in its module could make it.
    """
    for job in dag.jobs:
        if not _runs_code(job, runtimes):
            continue
        at, entrypoint = (job.name, "config", "entrypoint"), job.config.get("entrypoint")
        if entrypoint is None:
            yield Fault(
                "code.no_entrypoint", at, "config.entrypoint is missing", "add entrypoint: module:function"
            )
            continue
        if (match := _ENTRYPOINT.fullmatch(str(entrypoint))) is None:
            message = f"{str(entrypoint)[:100]!r} is not of the form package.module:function"
            yield Fault("code.bad_entrypoint", at, message)
            continue
        module, function = match[1], match[2]
        if project.has(module):
            yield from _entrypoint_faults(project, at, module, function)
        elif is_elsewhere(module.partition(".")[0]):
            continue
        elif no_folder is not None:
            message = f"module {module!r} would be in the code folder {no_folder!r}, which does not exist"
            step = "make the folder, or name the one that has the module with --code"
            yield Fault("code.no_folder", at, message, step)
        else:
            message = f"there is no module {module!r} in the code folders, and no such package is installed"
            step = near(module, project.names()) or "name the folder that has it with --code"
            yield Fault("code.module_missing", at, message, step)


def _entrypoint_faults(project: Project, at: tuple[str, ...], module: str, function: str) -> Iterator[Fault]:
    names = project.names_of(module)
    if names is None:
        message = f"there is no module {module!r} in the code folders"
        yield Fault(
            "code.module_missing", at, message, near(module, project.names(module.rpartition(".")[0]))
        )
    elif function not in names.bound and not names.may_be_more:
        message = f"module {module!r} has no function {function!r}"
        yield Fault("code.function_missing", at, message, near(function, names.bound))


def collect(
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    folders: Sequence[Path],
    *,
    is_installed: Callable[[str], bool],
    all_are_there: bool = True,
) -> dict[str, str]:
    """The sources that the jobs of a DAG need from these folders, by path.

    An entrypoint in an installed package needs none, and neither does one that is elsewhere unless `all_are_there`:
    its job runs what the workers have. Raises InvalidInput for a module that is not there or not
    Python, and TooLarge.
    """
    project = project_in(folders)
    files: dict[str, str] = {}
    for job, module in _coded_jobs(dag, runtimes):
        if project.has(module):
            files |= {path: found.text for path, found in project.modules(module, f"job {job.name}").items()}
        elif all_are_there and not is_installed(module.partition(".")[0]):
            raise _missing(module, f"the entrypoint of job {job.name}", str(job.config["entrypoint"]))
    _check_size(files)
    return files


def identify(
    dag: Dag, runtimes: Mapping[str, Runtime], files: Mapping[str, str] | None
) -> DeployedCode | None:
    """The bundle that was sent with a deploy; jobs whose entrypoint it does not have run from the workers' folders."""
    if not files:
        return None
    _check_size(files)
    project = project_sent(files)
    hashes = {
        job.name: project.code_hash(module, f"job {job.name}")
        for job, module in _coded_jobs(dag, runtimes)
        if project.has(module)
    }
    content = code_bundle.encode(files)
    return DeployedCode(code_bundle.hash_of(content), content, hashes)


def _runs_code(job: Job, runtimes: Mapping[str, Runtime]) -> bool:
    return job.operator in _OPERATORS_WITH_CODE and runtimes[job.runtime].driver is Driver.QUEUE


def _coded_jobs(dag: Dag, runtimes: Mapping[str, Runtime]) -> Iterator[tuple[Job, str]]:
    """Jobs that import the user's code in a worker, with the module of their entrypoint."""
    for job in dag.jobs:
        if _runs_code(job, runtimes):
            match = _ENTRYPOINT.fullmatch(str(job.config.get("entrypoint", "")))
            if match is None:
                raise InvalidInput(
                    "code.bad_entrypoint",
                    f"job {job.name}: config.entrypoint is not of the form package.module:function",
                    value=job.config.get("entrypoint"),
                )
            yield job, match[1]


def _check_size(files: Mapping[str, str]) -> None:
    sizes = {path: len(text.encode()) for path, text in files.items()}
    for path, size in sizes.items():
        if size > code_bundle.MAX_MODULE_BYTES:
            raise TooLarge(
                "code.too_large",
                f"a module of a deploy may have {code_bundle.MAX_MODULE_BYTES} bytes; {path} has {size}",
                value=path,
                next_step="keep data in a dataset, not in a module",
            )
    if (total := sum(sizes.values())) > code_bundle.MAX_BUNDLE_BYTES:
        raise TooLarge(
            "code.too_large",
            f"the modules of a deploy may have {code_bundle.MAX_BUNDLE_BYTES} bytes together",
            value=total,
            next_step="install what seldom changes on the workers as a package",
        )


# --- modules and their imports --------------------------------------------------------------------


class Sources(Protocol):
    """One entry of the search path."""

    def read(self, path: str) -> str | None:
        """None if there is no such file."""

    def is_folder(self, path: str) -> bool: ...

    def modules(self, folder: str) -> list[str]:
        """The names of the modules and packages directly in a folder."""

    def shown(self, path: str) -> str:
        """For people."""


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str) -> str | None:
        try:
            return (self._folder / path).read_bytes().decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except UnicodeDecodeError as error:
            raise InvalidInput(
                "code.not_utf8",
                f"a module is not UTF-8 text, at byte {error.start}",
                value=self.shown(path),
                next_step="save it as UTF-8",
            ) from None

    def is_folder(self, path: str) -> bool:
        return (self._folder / path).is_dir()

    def modules(self, folder: str) -> list[str]:
        try:
            found = sorted((self._folder / folder).iterdir())
        except OSError:
            return []
        return [path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").is_file()]

    def shown(self, path: str) -> str:
        return str(self._folder / path)


class _Sent:
    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._folders = {
            path.rsplit("/", depth)[0] for path in files for depth in range(1, path.count("/") + 1)
        }

    def read(self, path: str) -> str | None:
        return self._files.get(path)

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def modules(self, folder: str) -> list[str]:
        below = [path.removeprefix(folder) for path in self._files if path.startswith(folder)]
        return sorted({path.partition("/")[0].removesuffix(".py") for path in below})

    def shown(self, path: str) -> str:
        return path


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the import system finds a name: a module, a package, or a package without `__init__`."""

    root: Sources | None
    path: str | None
    inside: tuple[tuple[Sources, str], ...] = ()
    """Where its submodules are looked for."""


@dataclass(frozen=True, slots=True)
class _Import:
    name: str
    line: int
    is_needed: bool
    """Whether the module cannot do without it: not inside of a `try`, and not a name that may be no module."""
    is_relative: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    text: str
    digest: str
    imports: tuple[_Import, ...]
    names: Names


class Project:
    """The modules on some code paths, each read once."""

    def __init__(self, roots: Sequence[Sources]) -> None:
        self._roots = tuple((root, "") for root in roots)
        self._places: dict[str, _Place | None] = {}
        self._modules: dict[str, Module] = {}

    def has(self, name: str) -> bool:
        return self._find(name.partition(".")[0]) is not None

    def names(self, package: str = "") -> list[str]:
        """The modules that are there, at the top or in a package, by their whole names."""
        above = self._find(package) if package else _Place(None, None, self._roots)
        inside = above.inside if above is not None else ()
        prefix = f"{package}." if package else ""
        return [
            prefix + name for root, folder in inside for name in root.modules(folder) if name != "__init__"
        ]

    def names_of(self, module: str) -> Names | None:
        """What a module binds at its top; None if it is not there."""
        place = self._find(module)
        if place is None or place.root is None or place.path is None:
            return None
        return self._load(place.root, place.path).names

    def code_hash(self, name: str, wanted_by: str) -> str:
        whole = hashlib.sha256()
        for path, module in sorted(self.modules(name, wanted_by).items()):
            whole.update(f"{path}\0{module.digest}\0".encode())
        return whole.hexdigest()

    def modules(self, name: str, wanted_by: str) -> dict[str, Module]:
        """The module of an entrypoint and all that it imports of the project, by path."""
        if (place := self._find(name)) is None or place.path is None:
            raise _missing(name, f"the entrypoint of {wanted_by}", wanted_by)
        found: dict[str, Module] = {}
        pending = [name]
        seen: set[str] = set()
        while pending:
            wanted = pending.pop()
            for place in self._on_the_way(wanted):
                if place.root is None or place.path is None or place.path in found:
                    continue
                module = found[place.path] = self._load(place.root, place.path)
                for imported in module.imports:
                    if imported.name not in seen and self._is_ours(imported, place.root.shown(place.path)):
                        seen.add(imported.name)
                        pending.append(imported.name)
        return found

    def _on_the_way(self, name: str) -> Iterator[_Place]:
        """The packages above a module, then the module itself."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if (place := self._find(".".join(parts[:count]))) is not None:
                yield place

    def _is_ours(self, imported: _Import, file: str) -> bool:
        if self._find(imported.name) is not None:
            return True
        nearest = imported.name
        while (place := self._find(nearest)) is None and "." in nearest:
            nearest = nearest.rpartition(".")[0]
        # Part of a package without `__init__` may be installed; a package with one is here as a whole.
        if imported.is_needed and (imported.is_relative or (place is not None and place.path is not None)):
            raise _missing(imported.name, "an import", f"{file}:{imported.line}")
        return place is not None

    def _find(self, name: str) -> _Place | None:
        if name not in self._places:
            parent, _, last = name.rpartition(".")
            above = self._find(parent) if parent else _Place(None, None, self._roots)
            self._places[name] = None if above is None else _find_inside(above.inside, last)
        return self._places[name]

    def _load(self, root: Sources, path: str) -> Module:
        if path not in self._modules:
            text = root.read(path)
            assert text is not None
            if not code_bundle.is_module_path(path):
                raise InvalidInput(
                    "code.bad_path",
                    "the name of a module has letters, digits and underscores of ASCII only",
                    value=root.shown(path),
                    next_step="rename it",
                )
            _check_size({path: text})
            self._modules[path] = _parse(text, path, root.shown(path))
        return self._modules[path]


def _find_inside(folders: Sequence[tuple[Sources, str]], name: str) -> _Place | None:
    """As Python does it: the first package or module wins; folders without `__init__` are one package together."""
    portions = []
    for root, folder in folders:
        base = f"{folder}{name}"
        if root.read(f"{base}/__init__.py") is not None:
            return _Place(root, f"{base}/__init__.py", ((root, f"{base}/"),))
        if root.read(f"{base}.py") is not None:
            return _Place(root, f"{base}.py")
        if root.is_folder(base):
            portions.append((root, f"{base}/"))
    return _Place(None, None, tuple(portions)) if portions else None


def _parse(text: str, path: str, shown: str) -> Module:
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


def _imports(tree: ast.Module, path: str, shown: str) -> Iterator[_Import]:
    for node, needed in _import_statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _Import(alias.name, node.lineno, needed)
            continue
        base = _base(node, path, shown)
        yield _Import(base, node.lineno, needed, node.level > 0)
        for alias in node.names:  # may be a submodule, or something that the module defines
            if alias.name != "*":
                yield _Import(f"{base}.{alias.name}", node.lineno, is_needed=False)
    if path.endswith("/__init__.py"):
        for exported in _exported(tree):  # what `from package import *` imports
            yield _Import(f"{code_bundle.module_name(path)}.{exported}", 1, is_needed=False)


def _import_statements(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, however deep it stands, and whether the module cannot do without it."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, needed = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, needed
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, name, None)
            if isinstance(inside, list):  # a conditional expression has one too, which is no block
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
            next_step="import the module by its whole name",
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


@dataclass(frozen=True, slots=True)
class Names:
    """What a module binds at its top."""

    bound: frozenset[str]
    may_be_more: bool
    """Whether some of it cannot be seen: made by a call, or imported by a star."""


_MAKES_NAMES = frozenset({"__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars"})


def _names(tree: ast.Module) -> Names:
    """Of functions and classes only what they declare `global`; of all other statements whatever they bind."""
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


def _missing(name: str, what: str, where: str) -> InvalidInput:
    return InvalidInput(
        "code.module_missing",
        f"{what} names the module {name!r}, which is not on the code paths",
        value=where,
        next_step="name the folder that has it with --code, or correct the name",
    )


# --- the canonical form of a module ---------------------------------------------------------------


def _digest(tree: ast.Module) -> str:
    """A hash of the syntax tree that is the same under every Python that Traceplane runs on.

    So it is not made from `ast.dump`: newer versions add fields, which are empty for older code and left out here.
    """
    whole = hashlib.sha256()
    pending: list[object] = [tree]
    while pending:  # by hand, since expressions may be nested deeper than Python's stack
        item = pending.pop()
        if isinstance(item, ast.AST):
            whole.update(f"({type(item).__name__}\n".encode())
            pending.append(_Mark(")"))
            for name, value in sorted(_fields(item), reverse=True):
                pending += [value, _Mark(name)]
        elif isinstance(item, list):
            whole.update(b"[\n")
            pending.append(_Mark("]"))
            pending += reversed(item)
        elif isinstance(item, _Mark):
            whole.update(f"{item}\n".encode())
        else:
            told = hex(item) if type(item) is int else ascii(item)  # repr refuses very long integers
            whole.update(f"{type(item).__name__} {told}\n".encode())
    return whole.hexdigest()


class _Mark(str):
    """Part of the form itself, rather than a value of the program."""


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
    """Versions differ in how they cut the text of an f-string into pieces."""
    whole: list[object] = []
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            before = whole.pop() if whole and isinstance(whole[-1], str) else ""
            if text := f"{before}{part.value}":
                whole.append(text)
        else:
            whole.append(part)
    return whole
