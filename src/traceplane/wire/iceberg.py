"""The Iceberg REST catalog in the public API: its messages are those of Iceberg's own specification."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class IcebergWire(msgspec.Struct, frozen=True, rename="kebab"):
    pass


class IcebergError(IcebergWire, frozen=True):
    message: str
    """With the value and the next step."""
    type: str
    """The stable code of the error."""
    code: int
    """The HTTP status."""


class IcebergErrorBody(IcebergWire, frozen=True):
    error: IcebergError


class ConfigQuery(IcebergWire, frozen=True):
    warehouse: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """The state of the catalog: a time, `live`, or DAG@VERSION; by commas. Empty: as of now."""


class CatalogConfig(IcebergWire, frozen=True):
    defaults: dict[str, str]
    overrides: dict[str, str]
    """`prefix`: the state of the catalog, which is part of all further paths."""
    endpoints: list[str]


class NamespacesQuery(IcebergWire, frozen=True, rename="camel"):
    parent: str | None = None
    page_token: str | None = None
    """Pages: there is one."""


class Namespaces(IcebergWire, frozen=True):
    namespaces: list[list[str]]


class Namespace(IcebergWire, frozen=True):
    namespace: list[str]
    properties: dict[str, str]


class TableIdentifier(IcebergWire, frozen=True):
    namespace: list[str]
    name: str


class TableIdentifiers(IcebergWire, frozen=True):
    identifiers: list[TableIdentifier]


class StorageCredential(IcebergWire, frozen=True):
    prefix: str
    config: dict[str, str]


class StorageCredentials(IcebergWire, frozen=True):
    storage_credentials: list[StorageCredential]


class LoadedTable(IcebergWire, frozen=True):
    metadata_location: str
    metadata: dict[str, Any]
    config: dict[str, str]
    storage_credentials: list[StorageCredential]
