"""The Iceberg REST catalog, read-only: the datasets of one state as tables, for engines that are not ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from traceplane import telemetry
from traceplane.adapters.object_store import BucketAccess, ObjectStore
from traceplane.auth.callers import Caller
from traceplane.errors import NotFound, TraceplaneError
from traceplane.http_service.routes import Call, ErrorShape, Route
from traceplane.iceberg.derivation import Derivation, DerivedTable
from traceplane.iceberg.derived_files import DerivedFiles
from traceplane.iceberg.states import CatalogState, state_of
from traceplane.iceberg.tables import Tables
from traceplane.postgres import pinned
from traceplane.postgres.database import Database
from traceplane.query.datasets import QueryCaller
from traceplane.query.service import Queries
from traceplane.settings import Settings
from traceplane.wire.iceberg import (
    CatalogConfig,
    ConfigQuery,
    IcebergError,
    IcebergErrorBody,
    LoadedTable,
    Namespace,
    Namespaces,
    NamespacesQuery,
    StorageCredential,
    StorageCredentials,
    TableIdentifier,
    TableIdentifiers,
)

READER = "reader"
_BASE = "/iceberg/v1"
_NAMESPACES = "/v1/{prefix}/namespaces"
_ENDPOINTS = [
    f"GET {_NAMESPACES}",
    f"GET {_NAMESPACES}/{{namespace}}",
    f"HEAD {_NAMESPACES}/{{namespace}}",
    f"GET {_NAMESPACES}/{{namespace}}/tables",
    f"GET {_NAMESPACES}/{{namespace}}/tables/{{table}}",
    f"HEAD {_NAMESPACES}/{{namespace}}/tables/{{table}}",
    f"GET {_NAMESPACES}/{{namespace}}/tables/{{table}}/credentials",
]


def _error_body(error: TraceplaneError) -> IcebergErrorBody:
    """What clients print is the type and the message, so the next step is part of it."""
    text = str(error).removeprefix(f"{error.code}: ")
    return IcebergErrorBody(IcebergError(text, error.code, error.status))


_ERRORS = ErrorShape(IcebergErrorBody, _error_body)


class IcebergApi:
    """`database` is the platform's: only it can tell what is being written."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        settings: Settings,
        open_store: Callable[[], ObjectStore],
        query_caller: Callable[[Caller], QueryCaller],
    ) -> None:
        self._database, self._query_caller = database, query_caller
        self._derived = DerivedFiles(open_store, settings.home / "spill")
        self._tables = Tables(Derivation(queries, self._derived))

    async def close(self) -> None:
        await self._derived.close()

    def routes(self) -> list[Route]:
        below = f"{_BASE}/{{prefix}}/namespaces"
        return [
            _route(f"{_BASE}/config", CatalogConfig, self.config, "Pin a state of the catalog.", ConfigQuery),
            _route(below, Namespaces, self.namespaces, "DAGs that have tables.", NamespacesQuery),
            _route(f"{below}/{{namespace}}", Namespace, self.namespace, "One of them."),
            _route(f"{below}/{{namespace}}/tables", TableIdentifiers, self.tables, "The tables of a DAG."),
            _route(
                f"{below}/{{namespace}}/tables/{{table}}", LoadedTable, self.table, "A dataset as a table."
            ),
            _route(
                f"{below}/{{namespace}}/tables/{{table}}/credentials",
                StorageCredentials,
                self.credentials,
                "New credentials for the files of a table.",
            ),
        ]

    async def config(self, call: Call[None]) -> CatalogConfig:
        state = state_of(call.query.warehouse)
        if state.at is None and not state.is_live:
            state = replace(state, at=await pinned.settled_moment(self._database))
        return CatalogConfig({}, {"prefix": str(state)}, _ENDPOINTS)

    async def namespaces(self, call: Call[None]) -> Namespaces:
        names = await self._names(call)
        if call.query.parent:
            _known(call.query.parent, names)
            return Namespaces([])
        return Namespaces([[name] for name in sorted(names)])

    async def namespace(self, call: Call[None]) -> Namespace:
        name = call.path_params["namespace"]
        _known(name, await self._names(call))
        return Namespace([name], {})

    async def tables(self, call: Call[None]) -> TableIdentifiers:
        namespace = call.path_params["namespace"]
        names = await self._names(call)
        _known(namespace, names)
        return TableIdentifiers([TableIdentifier([namespace], name) for name in sorted(names[namespace])])

    async def table(self, call: Call[None]) -> LoadedTable:
        table = await self._load(call)
        asked = (call.header("x-iceberg-access-delegation") or "").split(",")
        wanted = "vended-credentials" in (mode.strip() for mode in asked)
        credentials = await self._credentials(call.principal, table) if wanted else []
        config = credentials[0].config if credentials else {}
        return LoadedTable(table.metadata_location, table.metadata, config, credentials)

    async def credentials(self, call: Call[None]) -> StorageCredentials:
        return StorageCredentials(await self._credentials(call.principal, await self._load(call)))

    async def _names(self, call: Call[None]) -> dict[str, list[str]]:
        caller = self._query_caller(call.principal)
        return await self._tables.names(call.principal.database, caller, _state(call))

    async def _load(self, call: Call[None]) -> DerivedTable:
        params, principal = call.path_params, call.principal
        dataset, table = await self._tables.load(
            principal.database,
            principal.org_id,
            self._query_caller(principal),
            _state(call),
            params["namespace"],
            params["table"],
        )
        telemetry.emit(
            "iceberg.table_loaded",
            principal=principal.name,
            dataset=dataset.dataset_id,
            generation=str(dataset.generation_id),
            state=params["prefix"],
        )
        return table

    async def _credentials(self, caller: Caller, table: DerivedTable) -> list[StorageCredential]:
        store = self._derived.store
        access = await store.read_access(table.folders, caller.name)
        if access is None:
            return []
        # One for each folder: DuckDB takes a single one to be for the folder of the metadata alone.
        properties = _as_properties(access)
        return [StorageCredential(f"{store.location(folder)}/", properties) for folder in table.folders]


def _route(path: str, response: object, handler: object, summary: str, query: object = None) -> Route:
    return Route("GET", path, None, response, handler, READER, summary, query=query, errors=_ERRORS)  # type: ignore[arg-type]


def _state(call: Call[None]) -> CatalogState:
    return state_of(call.path_params["prefix"])


def _known(namespace: str, names: dict[str, list[str]]) -> None:
    if namespace not in names:
        raise NotFound(
            "iceberg.unknown_namespace",
            "there is no DAG of this name with a dataset that you can load",
            value=namespace,
            next_step="list the namespaces; datasets with personal data need a token issued with --pii",
        )


def _as_properties(access: BucketAccess) -> dict[str, str]:
    properties = {
        "s3.access-key-id": access.access_key,
        "s3.secret-access-key": access.secret_key,
        "s3.session-token": access.session_token,
        "s3.session-token-expires-at-ms": str(int(access.expires_at.timestamp() * 1000)),
        "s3.region": access.region,
        "client.region": access.region,
    }
    if access.endpoint_url is not None:
        properties |= {"s3.endpoint": access.endpoint_url, "s3.path-style-access": "true"}
    return properties
