"""Datasets, and the sources through which data comes from outside."""

from __future__ import annotations

from traceplane.client.connection import Connection, quoted
from traceplane.wire.control import ScopeExplanation
from traceplane.wire.coverage import CoverageStrip
from traceplane.wire.files import FileSourcesResponse, FileSourceView
from traceplane.wire.queries import (
    CatalogEntry,
    CatalogResponse,
    ColumnLineage,
    DatasetDetail,
    DatasetHistory,
)
from traceplane.wire.webhooks import WebhooksResponse, WebhookView

_DATASETS = "/api/v1/datasets"


class Datasets:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(
        self, find: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[CatalogEntry]:
        """Datasets that the caller may read, by name, with their sizes: those that have `find` in their name, that of
        their DAG, or their description, and of them the first `limit` that come `after` a name."""
        asked = {"find": find, "after": after, "limit": limit}
        return self._connection.ask("GET", _DATASETS, CatalogResponse, **asked).datasets

    def get(self, dataset: str) -> DatasetDetail:
        """A dataset with its columns and the jobs that write and read it."""
        return self._connection.ask("GET", f"{_DATASETS}/{quoted(dataset)}", DatasetDetail)

    def coverage(
        self, dataset: str, first: int | str | None = None, last: int | str | None = None, *, cells: int = 500
    ) -> CoverageStrip:
        """What it holds, lacks and computes from `first` to `last`, by stretches of positions."""
        path = f"{_DATASETS}/{quoted(dataset)}/coverage"
        return self._connection.ask("GET", path, CoverageStrip, first=first, last=last, cells=cells)

    def column_lineage(self, dataset: str, column: str) -> ColumnLineage:
        """What a column is computed from, and what is computed from it, where that is known."""
        path = f"{_DATASETS}/{quoted(dataset)}/column-lineage"
        return self._connection.ask("GET", path, ColumnLineage, column=column)

    def history(self, dataset: str) -> DatasetHistory:
        """How it grew over time, and how fresh it is."""
        return self._connection.ask("GET", f"{_DATASETS}/{quoted(dataset)}/history", DatasetHistory)

    def explain(self, dataset: str, first: int | str, last: int | str) -> ScopeExplanation:
        """Why positions or partitions from `first` to `last` are missing."""
        path = f"{_DATASETS}/{quoted(dataset)}/explain"
        return self._connection.ask("GET", path, ScopeExplanation, first=first, last=last)


class Webhooks:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[WebhookView]:
        """Webhook sources, and what they refused."""
        return self._connection.ask("GET", "/api/v1/webhooks", WebhooksResponse).webhooks


class FileSources:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[FileSourceView]:
        """File sources, and what they found."""
        return self._connection.ask("GET", "/api/v1/files", FileSourcesResponse).sources
