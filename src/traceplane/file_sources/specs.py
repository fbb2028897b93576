"""The operators of file sources, as listed in the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from traceplane.file_sources.config import FilesConfig, Format
from traceplane.model import column_types
from traceplane.model.advice import Cause, Remedy
from traceplane.model.dag import Column, Dag, Dataset, Job, SourceKind, Storage, WriteMode
from traceplane.model.partitions import Partitions
from traceplane.operators.spec import ColumnsFrom, Config, ErrorCode, JobMisfit, OperatorSpec, Ports

FILES, ROWS = "files", "file_rows"


def listed_files(dataset_id: str, partitions: Partitions, retention: float | None = None) -> Dataset:
    """The files of a source: those that its readers may read."""
    return Dataset(
        dataset_id,
        storage=Storage.POSTGRES,
        write_mode=WriteMode.DIRECT,
        columns=(
            Column("position", "bigint", nullable=False),
            Column("partition", "string", nullable=False),
            Column("path", "string", nullable=False),
            Column("bytes", "bigint", nullable=False),
            Column("modified_at", "timestamp", nullable=False),
            Column("version", "string", nullable=False),
        ),
        position="position",
        partitions=partitions,
        retention=retention,
        description="Files of a file source, by the partition that their names say.",
    )


# fmt: off
class RowsConfig(Config, frozen=True, kw_only=True):
    format: Annotated[Format, Meta(
        description="`csv` with a header, `json_lines` (an object per line) or `parquet`.")]
    delimiter: Annotated[str, Meta(min_length=1, max_length=1,
        description="What separates the values of a CSV file.")] = ","
# fmt: on


def _files_misfits(job: Job, _: Dag) -> Iterator[JobMisfit]:
    if job.source is None or job.source.kind is not SourceKind.FILE:
        message = "it stands for a file source, and no job names it"
        yield JobMisfit(
            ("operator",), message, "write activation: source, source: { kind: file, path: …, pattern: … }"
        )


def _rows_misfits(job: Job, dag: Dag) -> Iterator[JobMisfit]:
    for output in job.outputs:
        columns = dag.datasets_by_id[output.dataset_id].columns
        if not columns:
            message = f"the dataset {output.dataset_id} declares no columns, so its rows have no types"
            yield JobMisfit(("outputs",), message, "declare its columns under datasets")
        for column in columns:
            if column_types.arrow_type(column.type) is None:
                message = f"rows cannot have the column {column.name}, of the type {column.type}"
                yield JobMisfit(("outputs",), message)
            elif job.config.get("format") == Format.CSV and _is_nested(column.type):
                message = (
                    f"a value of a CSV file cannot be a {column.type}, as the column {column.name} must be"
                )
                yield JobMisfit(("outputs",), message, "use format: json_lines, or an operator of your own")


def _is_nested(type_: str) -> bool:
    return type_.strip().lower().startswith(("array", "map", "struct"))


def _unfit(code: str, meaning: str, step: str) -> ErrorCode:
    return ErrorCode(code, meaning, retried=False, remedy=Remedy(Cause.DEFINITION, step))


FILES_SPEC = OperatorSpec(
    name=FILES,
    summary="Stands for a file source; dispatchers list its files.",
    runtimes=frozenset({"dispatcher"}),
    columns_from=ColumnsFrom.OUTSIDE,
    config=FilesConfig,
    execution_fields=frozenset(FilesConfig.__struct_fields__),
    outputs=Ports(least=1, most=1),
    check=_files_misfits,
)

ROWS_SPEC = OperatorSpec(
    name=ROWS,
    summary="Turns the files of a file source into rows with the declared columns.",
    runtimes=frozenset({"python"}),
    columns_from=ColumnsFrom.OUTSIDE,
    entrypoint="traceplane.file_sources.rows:run",
    config=RowsConfig,
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=1, most=1),
    check=_rows_misfits,
    errors=(
        _unfit("file.unreadable", "a file is not of its format, or has none of the columns",
               "replace the file, which computes its partition again; or correct `format` and deploy"),
        _unfit("file.value_unfit", "a value of a file does not fit its column",
               "replace the file, which computes its partition again; or correct the column's type and deploy"),
    ),
)  # fmt: skip
