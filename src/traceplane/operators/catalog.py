"""The list of operators: each has a name and the location of its spec, as `module:NAME`.

Built-in operators are listed here. Those of other packages are found in the entry-point group `traceplane.operators`
of the installed packages, on the first lookup of a name that is not built in. The same function loads both, on first
use. Results are cached until the process ends: a package installed in the meantime is seen by the next process.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from traceplane.model.near_names import nearest
from traceplane.operators import config
from traceplane.operators.spec import OperatorSpec

GROUP = "traceplane.operators"

BUILT_IN: Mapping[str, str] = {
    "aggregator": "traceplane.operators.dispatching:AGGREGATOR",
    "alert_evaluate": "traceplane.operators.alerting:ALERT_EVALUATE",
    "alert_route": "traceplane.operators.alerting:ALERT_ROUTE",
    "block_follower": "traceplane.chain.operators.specs:BLOCK_FOLLOWER",
    "compact": "traceplane.operators.processing:COMPACT",
    "file_rows": "traceplane.file_sources.specs:ROWS_SPEC",
    "files": "traceplane.file_sources.specs:FILES_SPEC",
    "integrity_check": "traceplane.chain.operators.specs:INTEGRITY_CHECK",
    "pass": "traceplane.operators.dispatching:PASS",
    "pyspark": "traceplane.operators.processing:PYSPARK",
    "python": "traceplane.operators.processing:PYTHON",
    "query": "traceplane.operators.processing:QUERY",
    "range_ingest": "traceplane.chain.operators.specs:RANGE_INGEST",
    "scopes": "traceplane.operators.dispatching:SCOPES",
    "signal_generate": "traceplane.operators.market:SIGNAL_GENERATE",
    "signal_publish": "traceplane.operators.market:SIGNAL_PUBLISH",
    "source": "traceplane.operators.dispatching:SOURCE",
    "splitter": "traceplane.operators.dispatching:SPLITTER",
    "sql": "traceplane.operators.processing:SQL",
    "webhook": "traceplane.webhooks.specs:WEBHOOK",
    "webhook_rows": "traceplane.webhooks.specs:WEBHOOK_ROWS",
}
_ITSELF = "traceplane"
_FAMILIES = frozenset({"dispatcher", "python", "spark"})


@dataclass(frozen=True, slots=True)
class Listed:
    """An operator that a package lists."""

    name: str
    place: str
    """Location of its spec."""
    package: str
    version: str = ""

    @property
    def is_built_in(self) -> bool:
        return self.package == _ITSELF

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()


@dataclass(frozen=True, slots=True)
class UnusableOperator:
    """Why an operator cannot be used."""

    code: str
    message: str
    next_step: str


class _Unusable(Exception):
    pass


def find(name: str) -> OperatorSpec | None:
    """The operator's spec; None if it does not exist or cannot be used."""
    listed = _listed(name)
    if listed is None:
        return None
    try:
        return _load(listed)
    except _Unusable:
        return None


def problem(name: str) -> UnusableOperator | None:
    """Why the operator cannot be used; None if it can."""
    rivals = _all().get(name, ())
    if not rivals:
        return UnusableOperator(
            "deploy.unknown_operator",
            f"there is no operator {name[:100]!r}",
            nearest(name, names())
            or f"use one of {', '.join(names())}, or install the package that has it where the gateway runs",
        )
    if len(rivals) > 1:
        packages = " and ".join(map(str, rivals))
        return UnusableOperator(
            "deploy.operator_ambiguous",
            f"the operator {name!r} is in {len(rivals)} packages: {packages}",
            "uninstall all but one of them, or rename the operator in one",
        )
    try:
        _load(rivals[0])
    except _Unusable as error:
        return UnusableOperator(
            "deploy.operator_broken",
            f"the operator {name!r} of {rivals[0]} cannot be used: {error}",
            "correct or upgrade the package where the gateway runs, and restart the gateway",
        )
    return None


def package(name: str) -> Listed | None:
    """The package of an operator that is not built in."""
    listed = _listed(name)
    return None if listed is None or listed.is_built_in else listed


def names() -> list[str]:
    """Names of all listed operators, whether they can be used or not."""
    return sorted(_all())


@cache
def running_once() -> list[str]:
    """The operators whose jobs have only one task."""
    return [spec.name for spec in _built_in_specs() if spec.runs_once]


@cache
def batching() -> list[str]:
    """The operators that collect positions into batches."""
    return [spec.name for spec in _built_in_specs() if spec.range_size_field is not None]


@cache
def publishing_signals() -> list[str]:
    return [spec.name for spec in _built_in_specs() if spec.publishes_signals]


def listed(name: str) -> tuple[Listed, ...]:
    """All operators that claim a name."""
    return _all().get(name, ())


@cache
def code_identity(name: str) -> str:
    """A hash of all files of the operator's package; empty for a built-in one, whose upgrades rebuild nothing."""
    spec = find(name)
    if package(name) is None or spec is None or spec.entrypoint is None:
        return ""
    top = spec.entrypoint.partition(":")[0].partition(".")[0]
    digest = hashlib.sha256()
    for path, content in _files_of(top):
        digest.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()


def forget() -> None:
    """Look again at what is installed."""
    for cached in (_installed, _all, _load, code_identity):
        cached.cache_clear()


def _files_of(module: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(place).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(place).as_posix(), path.read_bytes()
    if spec is not None and spec.submodule_search_locations is None and spec.origin is not None:
        yield Path(spec.origin).name, Path(spec.origin).read_bytes()


def _built_in_specs() -> Iterator[OperatorSpec]:
    return (spec for name in BUILT_IN if (spec := find(name)) is not None)


def _listed(name: str) -> Listed | None:
    """Packages are not searched for a built-in name: most names are built in, and searching all packages is slow."""
    if name in BUILT_IN:
        return Listed(name, BUILT_IN[name], _ITSELF)
    rivals = _installed().get(name, ())
    return rivals[0] if len(rivals) == 1 else None


@cache
def _all() -> Mapping[str, tuple[Listed, ...]]:
    built_in = {name: (Listed(name, place, _ITSELF),) for name, place in BUILT_IN.items()}
    foreign = _installed()
    return {
        name: (*built_in.get(name, ()), *foreign.get(name, ())) for name in built_in.keys() | foreign.keys()
    }


@cache
def _installed() -> Mapping[str, tuple[Listed, ...]]:
    operators: dict[str, tuple[Listed, ...]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        name, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown", "")
        listed = Listed(entry.name, entry.value, name, version)
        if listed not in operators.get(entry.name, ()):
            operators[entry.name] = (*operators.get(entry.name, ()), listed)
    return operators


@cache
def _load(listed: Listed) -> OperatorSpec:
    module, _, attribute = listed.place.partition(":")
    try:
        spec = getattr(importlib.import_module(module), attribute.strip())
    except (Exception, SystemExit) as error:  # whatever a package does when it is imported
        raise _Unusable(f"{listed.place} cannot be imported: {type(error).__name__}: {error}") from None
    if not isinstance(spec, OperatorSpec):
        raise _Unusable(f"{listed.place} is not an OperatorSpec")
    if reason := _flaw(spec, listed):
        raise _Unusable(reason)
    return spec


def _flaw(spec: OperatorSpec, listed: Listed) -> str | None:
    if spec.name != listed.name:
        return f"{listed.place} is named {spec.name!r}"
    if unknown := sorted(spec.runtimes - _FAMILIES):
        return f"there is no runtime {unknown[0]!r}; use one of {', '.join(sorted(_FAMILIES))}"
    fields = {field.name: field for field in config.fields(spec)}
    if undescribed := [name for name, field in fields.items() if not field.description]:
        return f"the field {undescribed[0]!r} of its config has no description"
    of_config = {
        spec.code_field,
        spec.query_field,
        spec.history_field,
        spec.deletion_field,
        spec.range_size_field,
        *spec.execution_fields,
        *spec.source_fields,
        *spec.identity_fields,
    }
    if missing := sorted(of_config - {None} - fields.keys()):  # type: ignore[type-var]
        return f"its config has no field {missing[0]!r}"
    if not listed.is_built_in and spec.entrypoint is None:
        return "it has no entrypoint"
    if not listed.is_built_in and "dispatcher" in spec.runtimes:
        return "only built-in operators run in the dispatcher"
    if not listed.is_built_in and spec.runs_once:
        return "only built-in operators run once"
    return None
