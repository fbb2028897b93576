"""File sources as people see them: what the last listing found, and what was refused."""

from __future__ import annotations

from traceplane.auth.rights import access_of
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import source_files
from traceplane.wire.files import FileSourcesResponse, FileSourceView, RefusedFilesView

READER = "reader"


class FileSources:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/files", None, FileSourcesResponse, self.views, READER,
                  "File sources, and what they found."),
        ]  # fmt: skip

    async def views(self, call: Call[None]) -> FileSourcesResponse:
        async with call.principal.database.transaction() as tx:
            sources = await source_files.of_org(tx, call.principal.org)
            access = await access_of(tx, call.principal.org, call.principal)
        return FileSourcesResponse(
            [
                FileSourceView(
                    dag=source.dag,
                    job=source.job,
                    dataset=source.dataset_id,
                    path=source.config.path,
                    pattern=source.config.pattern,
                    listed_at=source.listed_at,
                    due_at=source.due_at,
                    problem=source.problem,
                    matched=source.matched,
                    ignored=source.ignored,
                    waiting=source.waiting,
                    refusals=[RefusedFilesView(r.code, r.count, r.example) for r in source.refusals],
                )
                for source in sources
                if access.reads(source.dataset_id)
            ]
        )
