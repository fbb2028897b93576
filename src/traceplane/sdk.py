"""The interface for operators: the task, its inputs, and how to write, emit and log.

    from traceplane.sdk import OperatorTask

    def daily_totals(task: OperatorTask) -> None:
        trades = task.read("trades")
        task.write("totals", trades.group_by("ticker").aggregate([("volume", "sum")]))

An operator may also return its rows: a mapping from output name to rows, or just the rows when it
has one output. Rows are a list of dicts, a dict of columns, or anything that supports Arrow (pyarrow,
pandas, polars, DuckDB). Files are written to the attempt's own staging folder and become visible
only when the platform commits the task; an operator that raises leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceplane.columnar import parquet_facts
from traceplane.model.checks import BrokenCheck, Check
from traceplane.model.comparisons import Alternatives, DoesNotFit, alternatives, of_ranges
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.scope import Cursor, Partition, Scope
from traceplane.model.task_payload import DirectOutput, Execution, OperatorInput, Ranges, TaskPayload

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Cursor", "EmitRefused", "Execution", "OperatorError", "OperatorTask", "Partition", "Scope"]
"""The public names, for operators and their tests; the rest is internal."""

Content = bytes
Event = dict[str, Any]
Stream = Callable[[list[Event], bool], None]
"""Sends events while the operator runs; the flag says whether to wait until the platform has accepted them."""
Announcement = tuple[Scope | int, str, str]
"""A scope, the kind of the change, and its emission."""


_READ_BACK: dict[pa.Schema, pa.Schema] = {}
"""The schema that a table has when it is read back from a Parquet file."""
_LONGEST_COLUMN_NAME = 512


class OperatorError(Exception):
    """Invalid use of the task; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EmitRefused(OperatorError):
    """The platform did not accept an event."""


@dataclass(frozen=True)
class OperatorOutput:
    name: str
    index: int
    folder: Path
    existing: tuple[str, ...] = ()
    """For an `append` job: the files that the task's scope already has."""
    columns: tuple[SchemaColumn, ...] = ()
    """The columns that the dataset declares, with Arrow types; empty if it declares none."""
    checks: tuple[Check, ...] = ()
    """What its rows are checked for once they are written."""
    cluster_by: tuple[str, ...] = ()
    """The columns by which `write` sorts them within a file."""
    direct: DirectOutput | None = None
    """Where Spark's executors write it themselves."""


@dataclass(frozen=True)
class WrittenFile:
    name: str
    rows: int
    bytes: int
    statistics: dict[str, parquet_facts.ColumnFacts] = field(default_factory=dict)
    content: Content | None = None
    """Content of a small file that is sent with the result, rather than left in the output's folder."""
    stored: bool = False
    """Whether Spark's executors have stored it, so that it is in no folder."""


@dataclass
class Written:
    """What has been written to one output so far."""

    files: list[WrittenFile] = field(default_factory=list)
    schema_hash: str | None = None
    columns: list[SchemaColumn] = field(default_factory=list)
    broken_checks: list[BrokenCheck] = field(default_factory=list)


class OperatorTask:
    """One attempt of one task, as its operator sees it."""

    def __init__(
        self,
        *,
        task_id: str,
        attempt: int,
        payload: TaskPayload,
        output_folders: Mapping[str, str],
        temp_dir: str,
        stream: Stream | None = None,
        on_progress: Callable[[int, int, int, str], None] | None = None,
        inline_bytes: int = 0,
        mark: str = "",
    ) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.scope = payload.scope
        self.kind = payload.kind
        self.emission = payload.emission
        self.operator = payload.operator
        self.config = payload.config
        self.secrets = payload.secrets
        """The values of the job's `secrets`, by the names that it gives them."""
        self.unique_key = payload.unique_key
        self.resume = payload.resume
        self.execution = payload.execution
        """For a pipeline's job: the execution."""
        self.spark = payload.spark
        self.inputs = {declared.name: declared for declared in payload.inputs}
        self.views = payload.views
        self.given = payload.given
        self.outputs = {
            declared.name: OperatorOutput(
                declared.name,
                index,
                Path(output_folders[declared.name]),
                declared.existing,
                declared.columns,
                declared.checks,
                declared.cluster_by,
                declared.direct,
            )
            for index, declared in enumerate(payload.outputs)
        }
        self.temp_dir = Path(temp_dir)
        self._on_progress = on_progress
        self.written: dict[str, Written] = {}
        self.emitted: list[Event] = []
        self._stream = stream
        self._inline_bytes = inline_bytes
        """How many bytes of files may still be sent with the result."""
        self._mark = mark
        """Part of the names of files, if several processes write for one task."""

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of an input for this task's scope. If there are none, an empty table with the columns that the
        dataset has or declares; if neither is known, one without columns."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as parquet

        from traceplane.columnar import arrow_types, row_filters

        source = self._input(name)
        selected_columns = list(source.select) or None if columns is None else list(columns)
        if source.access is not None and source.files:
            raise OperatorError(
                "operator.input_elsewhere",
                f"the files of input {name!r} are read by Spark's executors, and are not on this machine; "
                "use the DataFrame that the function receives",
            )
        if not source.files:
            schema = arrow_types.schema_of(source.columns)
            empty = pa.table({}) if schema is None else schema.empty_table()
            return empty if selected_columns is None or schema is None else empty.select(selected_columns)
        types = {column.name: column.type for column in source.columns}

        def meets(column: str, alternatives: Alternatives) -> pc.Expression:
            type_ = arrow_types.type_of(types[column]) if column in types else None
            return row_filters.meets(column, type_, alternatives)

        try:
            where = [meets(c, alternatives(asked, types.get(c))) for c, asked in source.where.items()]
        except DoesNotFit as error:
            raise bad_where(name, error) from None
        if source.time_column is not None and source.times is not None:
            where.append(meets(source.time_column, of_ranges((source.times,))))

        def table(files: Sequence[str], ranges: Ranges) -> pa.Table:
            kept = [meets(source.position or "", of_ranges(ranges))] if ranges else []
            filters = functools.reduce(operator.and_, [*where, *kept]) if where or kept else None
            return parquet.read_table(list(files), columns=selected_columns, filters=filters)

        tables = [table(files, ranges) for files, ranges in source.by_kept_ranges()]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")

    def files(self, name: str = "files") -> dict[str, Path]:
        """The files of the job's own file source that belong to this task's scope: by their paths there, local
        copies, in the order of their paths."""
        return {path: Path(local) for path, local in sorted(self._input(name).attached.items())}

    def write(self, name: str, rows: Any) -> None:
        """Add a Parquet file to an output. All writes to one output must have the same columns; one without rows and
        columns, such as an empty list, adds nothing.

        Values are cast to the types that the dataset declares; a value that the cast would change is refused.
        """
        from traceplane.columnar import arrow_types, plain_rows

        output = self._output(name)
        with _fitting(name):
            table = as_table(rows, output.columns)
            if not table.num_columns:
                return
            table = arrow_types.cast(table, arrow_types.as_declared(table.schema, output.columns))
            table = plain_rows.with_known_types(table)
        if self.unique_key:
            table = self._without_duplicates(name, table)
        if keys := [column for column in output.cluster_by if column in table.column_names]:
            table = table.sort_by([(column, "ascending") for column in keys])
        self.write_table(name, table)

    def write_table(self, name: str, table: pa.Table) -> None:
        """`write` for a table without duplicates. A small one is sent with the task's result, and the platform makes
        the file: this is cheaper than taking over a file."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        inline_bytes = 0 if self._output(name).checks else self._inline_bytes  # Spark reads what it checks
        if table.nbytes > inline_bytes:
            with self.open_writer(name, table.schema) as write:
                write(table)
            return
        sink = pa.BufferOutputStream()
        metadata: list[parquet.FileMetaData] = []
        with parquet.ParquetWriter(sink, table.schema, metadata_collector=metadata) as writer:
            writer.write_table(table)
        content = sink.getvalue()
        written = self.written.get(name) or Written()
        file = f"part-{self._mark}{len(written.files):05d}.parquet"
        if content.size > inline_bytes:
            path = self._output(name).folder / file
            path.write_bytes(content)
            self.add_file(name, path)
            return
        self._inline_bytes -= content.size
        if (schema := _READ_BACK.get(table.schema)) is None:
            schema = _READ_BACK[table.schema] = parquet.read_schema(pa.BufferReader(content))
        facts = parquet_facts.statistics(metadata[0])
        self.count_in(
            name, schema, WrittenFile(file, table.num_rows, content.size, facts, content.to_pybytes())
        )

    def _without_duplicates(self, name: str, table: pa.Table) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        keys = list(self.unique_key)
        if missing := [key for key in keys if key not in table.column_names]:
            raise OperatorError(
                "operator.result_invalid",
                f"output {name!r} lacks columns of its unique_key: {', '.join(missing)}",
            )
        numbered = table.append_column("__row", pa.array(range(table.num_rows), pa.int64()))
        first = numbered.group_by(keys).aggregate([("__row", "min")])
        if existing := self._output(name).existing:
            existing_keys = parquet.read_table(list(existing), columns=keys)
            first = first.join(existing_keys, keys, join_type="left anti")
        return table.take(first.column("__row_min").combine_chunks().sort())

    @contextlib.contextmanager
    def open_writer(self, name: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
        """Writes a Parquet file of an output piece by piece."""
        import pyarrow.parquet as parquet

        from traceplane.columnar import arrow_types

        output = self._output(name)
        files = self.written[name].files if name in self.written else ()
        path = output.folder / f"part-{self._mark}{len(files):05d}.parquet"
        declared = arrow_types.as_declared(schema, output.columns)
        rows = 0

        def write(table: pa.Table) -> None:
            nonlocal rows
            with _fitting(name):
                writer.write_table(arrow_types.cast(table, declared, rows))
            rows += table.num_rows

        try:
            with parquet.ParquetWriter(path, declared) as writer:
                yield write
        except BaseException:
            path.unlink(missing_ok=True)  # an operator may catch this and write its rows in another way
            raise
        self.add_file(name, path)

    def add_file(self, name: str, path: Path) -> int:
        """Add a Parquet file that is already in an output's folder; returns its number of rows."""
        import pyarrow.parquet as parquet

        self._output(name)
        parquet_file = parquet.ParquetFile(path)
        rows: int = parquet_file.metadata.num_rows
        if not parquet_file.schema_arrow.names:
            path.unlink()  # no engine can open a file without columns
            return rows
        facts = parquet_facts.statistics(parquet_file.metadata)
        file = WrittenFile(path.name, rows, os.stat(path).st_size, facts)
        self.count_in(name, parquet_file.schema_arrow, file)
        return rows

    def count_in(self, name: str, schema: pa.Schema, file: WrittenFile) -> None:
        """Add a Parquet file that is wherever its description says."""
        for column in schema.names:
            if not 0 < len(column) <= _LONGEST_COLUMN_NAME or "\0" in column:
                raise OperatorError(
                    "operator.result_invalid",
                    f"output {name!r}: the column name {column[:40]!r} must have 1 to {_LONGEST_COLUMN_NAME} "
                    "characters, and no NUL",
                )
        written = self.written.setdefault(name, Written())
        hashed = schema_hash(schema)
        if written.schema_hash not in (None, hashed):
            raise OperatorError(
                "operator.schema_mixed",
                f"output {name!r} was first written with other columns or types than {schema.names}",
            )
        written.schema_hash = hashed
        written.columns = [SchemaColumn(c.name, str(c.type), c.nullable) for c in schema]
        written.files.append(file)

    def emit(
        self,
        name: str,
        *,
        scope: Scope | int,
        kind: str = "data",
        emission: str = "",
        wait: bool = True,
    ) -> None:
        """Announce a change of an output.

        An always-on source sends its event at once and, unless told not to wait, returns when the platform has
        accepted it; an ordinary task's events are sent with its result. A different `emission` makes a new event
        of the same scope and kind; with the same one it is a duplicate.
        """
        self._announce(name, [(scope, kind, emission)], wait)

    def emit_together(self, name: str, announcements: Iterable[Announcement]) -> None:
        """Announce many changes of an output in one call: all of them are accepted, or none.

        An always-on source may announce at most 1000 at once; the call returns when they are accepted.
        """
        self._announce(name, announcements, wait=True)

    def _announce(self, name: str, announcements: Iterable[Announcement], wait: bool) -> None:
        index = self._output(name).index
        events = [
            {
                "output_index": index,
                "scope": scope_as_dict(Cursor(scope) if isinstance(scope, int) else scope),
                "kind": kind,
                "emission": emission,
            }
            for scope, kind, emission in announcements
        ]
        if self._stream is None:
            self.emitted += events
        elif events:
            self._stream(events, wait)

    def log(self, message: str, *, level: str = "info", **fields: Any) -> None:
        """Write one line to the task's log; plain `print` works as well."""
        pairs = "".join(f" {key}={value!r}" for key, value in fields.items())
        print(f"{level}: {message}{pairs}".replace("\n", "\\n"), file=sys.stdout, flush=True)

    def report_progress(self, stages: int, tasks: int, done: int, application: str = "") -> None:
        """Report the progress of the operator's Spark job; sent with the task's heartbeats."""
        if self._on_progress is not None:
            self._on_progress(stages, tasks, done, application)

    def write_returned(self, returned: Any) -> None:
        """Write the operator's return value: nothing, rows by output name, or the rows of its one output."""
        if returned is None:
            return
        if isinstance(returned, Mapping) and returned and set(returned) <= set(self.outputs):
            for name, rows in returned.items():
                self.write(name, rows)
        elif len(self.outputs) == 1:
            self.write(next(iter(self.outputs)), returned)
        else:
            raise OperatorError(
                "operator.result_invalid",
                f"the operator returned {type(returned).__name__}; with {len(self.outputs)} outputs it must "
                "return None or a mapping from output name to rows",
            )

    def _input(self, name: str) -> OperatorInput:
        if name not in self.inputs:
            raise OperatorError(
                "operator.input_unknown", f"there is no input {name!r}; {_known(self.inputs)}"
            )
        return self.inputs[name]

    def _output(self, name: str) -> OperatorOutput:
        if name not in self.outputs:
            raise OperatorError(
                "operator.output_unknown", f"there is no output {name!r}; {_known(self.outputs)}"
            )
        return self.outputs[name]


@contextlib.contextmanager
def _fitting(output: str) -> Iterator[None]:
    from traceplane.columnar.arrow_types import DoesNotFit
    from traceplane.columnar.plain_rows import NotRows

    try:
        yield
    except DoesNotFit as error:
        raise OperatorError("operator.value_does_not_fit", f"output {output!r}, {error}") from None
    except NotRows as error:
        raise OperatorError("operator.result_invalid", f"output {output!r}: {error}") from None


def bad_where(name: str, error: DoesNotFit) -> OperatorError:
    return OperatorError(
        "operator.misconfigured", f"where of the input {name!r} does not fit its columns: {error.suggestion}"
    )


def _known(names: Mapping[str, object]) -> str:
    return f"the job declares {', '.join(sorted(names))}" if names else "the job declares none"


def load(entrypoint: str) -> Callable[..., Any]:
    """The function that `package.module:function` names, found on the code paths."""
    module_name, _, function_name = entrypoint.partition(":")
    if not module_name or not function_name:
        raise OperatorError(
            "operator.no_entrypoint", f"{entrypoint!r} is not of the form package.module:function"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            message = f"there is no module {error.name!r} on the code paths"
            raise OperatorError("operator.no_entrypoint", message) from error
        raise
    operator = getattr(module, function_name, None)
    if not callable(operator):
        message = f"module {module_name!r} has no function {function_name!r}"
        raise OperatorError("operator.no_entrypoint", message)
    return operator  # type: ignore[no-any-return]


def as_table(rows: Any, declared: Iterable[SchemaColumn] = ()) -> pa.Table:
    """Convert anything an operator may write to an Arrow table."""
    import pyarrow as pa

    from traceplane.columnar.plain_rows import NotRows, table_of

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, Mapping | Sequence) and not isinstance(rows, str | bytes):
        return table_of(rows, declared)
    raise NotRows(f"{type(rows).__name__} cannot be written as rows")


def schema_hash(schema: pa.Schema) -> str:
    """A hash of the names, types and nullability of the columns, in order, as sixteen hex digits."""
    columns = [[column.name, str(column.type), column.nullable] for column in schema]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def scope_as_dict(scope: Scope) -> dict[str, Any]:
    if isinstance(scope, Cursor):
        return {"cursor": scope.position}
    return {"partition_key": scope.name, "start": scope.start, "end": scope.end}
