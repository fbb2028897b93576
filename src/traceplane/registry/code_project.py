"""Finds the user's modules on the code paths as Python would, reads each once, and follows their imports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from traceplane.errors import InvalidInput, TooLarge
from traceplane.model import code_bundle
from traceplane.registry import module_syntax
from traceplane.registry.module_syntax import Import, Module, Names


def project_in(folders: Sequence[Path]) -> Project:
    return Project([_Folder(folder) for folder in folders])


def project_sent(files: Mapping[str, str]) -> Project:
    return Project([_Sent(files)])


class CodePath(Protocol):
    """One entry of the search path."""

    def read(self, path: str) -> str | None:
        """None if there is no such file."""

    def is_folder(self, path: str) -> bool: ...

    def modules(self, folder: str) -> list[str]:
        """Names of the modules and packages directly inside a folder."""

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
            paths = sorted((self._folder / folder).iterdir())
        except OSError:
            return []
        return [path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()]

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

    root: CodePath | None
    path: str | None
    inside: tuple[tuple[CodePath, str], ...] = ()
    """Where to look for its submodules."""


class Project:
    """The modules on some code paths, each read once."""

    def __init__(self, roots: Sequence[CodePath]) -> None:
        self._roots = tuple((root, "") for root in roots)
        self._places: dict[str, _Place | None] = {}
        self._modules: dict[str, Module] = {}

    def has(self, name: str) -> bool:
        return self._find(name.partition(".")[0]) is not None

    def names(self, package: str = "") -> list[str]:
        """Full names of the modules at the top level or in a package."""
        above = self._find(package) if package else _Place(None, None, self._roots)
        inside = above.inside if above is not None else ()
        prefix = f"{package}." if package else ""
        return [
            prefix + name for root, folder in inside for name in root.modules(folder) if name != "__init__"
        ]

    def names_of(self, module: str) -> Names | None:
        """The names a module binds at its top level; None if there is no such module."""
        place = self._find(module)
        if place is None or place.root is None or place.path is None:
            return None
        return self._load(place.root, place.path).names

    def text_of(self, module: str) -> str | None:
        """The source of a module; None if there is no such module."""
        place = self._find(module)
        if place is None or place.root is None or place.path is None:
            return None
        return self._load(place.root, place.path).text

    def code_hash(self, name: str, wanted_by: str) -> str:
        digest = hashlib.sha256()
        for path, module in sorted(self.modules(name, wanted_by).items()):
            digest.update(f"{path}\0{module.digest}\0".encode())
        return digest.hexdigest()

    def modules(self, name: str, wanted_by: str) -> dict[str, Module]:
        """The module of an entrypoint and all project modules that it imports, by path."""
        if (place := self._find(name)) is None or place.path is None:
            raise missing_module(name, f"the entrypoint of {wanted_by}", wanted_by)
        modules: dict[str, Module] = {}
        pending = [name]
        seen: set[str] = set()
        while pending:
            name_to_load = pending.pop()
            for place in self._on_the_way(name_to_load):
                if place.root is None or place.path is None or place.path in modules:
                    continue
                module = modules[place.path] = self._load(place.root, place.path)
                for imported in module.imports:
                    if imported.name not in seen and self._is_ours(imported, place.root.shown(place.path)):
                        seen.add(imported.name)
                        pending.append(imported.name)
        return modules

    def _on_the_way(self, name: str) -> Iterator[_Place]:
        """The packages above a module, then the module itself."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if (place := self._find(".".join(parts[:count]))) is not None:
                yield place

    def _is_ours(self, imported: Import, file: str) -> bool:
        if self._find(imported.name) is not None:
            return True
        nearest = imported.name
        while (place := self._find(nearest)) is None and "." in nearest:
            nearest = nearest.rpartition(".")[0]
        # Part of a package without `__init__` may be installed elsewhere; a package with one is complete here.
        if imported.is_needed and (imported.is_relative or (place is not None and place.path is not None)):
            raise missing_module(imported.name, "an import", f"{file}:{imported.line}")
        return place is not None

    def _find(self, name: str) -> _Place | None:
        if name not in self._places:
            parent, _, last = name.rpartition(".")
            above = self._find(parent) if parent else _Place(None, None, self._roots)
            self._places[name] = None if above is None else _find_inside(above.inside, last)
        return self._places[name]

    def _load(self, root: CodePath, path: str) -> Module:
        if path not in self._modules:
            text = root.read(path)
            assert text is not None
            if not code_bundle.is_module_path(path):
                raise InvalidInput(
                    "code.bad_path",
                    "a module's name must consist of ASCII letters, digits and underscores",
                    value=root.shown(path),
                    next_step="rename it",
                )
            check_size({path: text})
            self._modules[path] = module_syntax.parse(text, path, root.shown(path))
        return self._modules[path]


def _find_inside(folders: Sequence[tuple[CodePath, str]], name: str) -> _Place | None:
    """As Python does: the first package or module wins; folders without `__init__` together form one package."""
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


def missing_module(name: str, what: str, where: str) -> InvalidInput:
    return InvalidInput(
        "code.module_missing",
        f"{what} names the module {name!r}, which is not on the code paths",
        value=where,
        next_step="pass the folder that has it with --code, or correct the name",
    )


def check_size(files: Mapping[str, str]) -> None:
    sizes = {path: len(text.encode()) for path, text in files.items()}
    for path, size in sizes.items():
        if size > code_bundle.MAX_MODULE_BYTES:
            raise TooLarge(
                "code.too_large",
                f"a module of a deploy must not exceed {code_bundle.MAX_MODULE_BYTES} bytes; {path} has {size}",
                value=path,
                next_step="keep data in a dataset, not in a module",
            )
    if (total := sum(sizes.values())) > code_bundle.MAX_BUNDLE_BYTES:
        raise TooLarge(
            "code.too_large",
            f"the modules of a deploy must not exceed {code_bundle.MAX_BUNDLE_BYTES} bytes in total",
            value=total,
            next_step="install code that rarely changes on the workers as a package",
        )
