"""Commands that read data."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from traceplane.cli.coverage import contents
from traceplane.cli.cron import describe as describe_cron
from traceplane.cli.grammar import Noun
from traceplane.cli.output import (
    as_json,
    hand_on,
    is_terminal,
    say,
    say_json,
    say_lines,
    say_table,
    work_goes_on,
    write_file,
)
from traceplane.cli.whereabouts import call, explained, with_user_token
from traceplane.errors import InvalidInput
from traceplane.model.counted import counted
from traceplane.model.printable import one_line
from traceplane.settings import Settings
from traceplane.wire.control import TaskDetail
from traceplane.wire.queries import (
    CatalogResponse,
    ColumnLineage,
    DatasetDetail,
    QueryPlan,
    QueryRequest,
    QueryTask,
    QueryTaskRequest,
)

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = ["table", "json", "csv", "arrow", "parquet"]
_MAX_CELL_WIDTH = 40
_SHOWN_ROWS = 1000
_POLL_SECONDS = 1.0


@click.group(cls=Noun)
def dataset() -> None:
    """Query datasets, list them, compute their history."""


@dataset.command()
@click.argument("sql", required=False)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read the SELECT from a file, or with - from stdin.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(_FORMATS),
    help="How the result is written; by default as the suffix of --output says, or as a table.",
)
@as_json
@click.option(
    "--as-of", metavar="DAG@VERSION|TIME", multiple=True, help="Read data as of a DAG's version or a time."
)
@click.option("--to-dataset", metavar="NAME", help="Run it on Spark and store the result as this dataset.")
@click.option("--wait", is_flag=True, help="With --to-dataset: wait for the result.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "duckdb", "spark"]),
    default="auto",
    show_default=True,
    help="What runs it: DuckDB, or Spark as a task whose result is waited for; auto: Spark for much data.",
)
@click.option("--explain", is_flag=True, help="Show which engine would run it, and what it would read.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to a file.")
@click.pass_obj
def query(
    settings: Settings,
    sql: str | None,
    file: Path | None,
    format_: str | None,
    as_json: bool,
    as_of: tuple[str, ...],
    to_dataset: str | None,
    wait: bool,
    engine: Any,
    explain: bool,
    output: Path | None,
) -> None:
    """Run one SELECT over datasets; all of them are read at one point in time."""
    sql = _text_of(sql, file)
    if explain:
        _explain(settings, QueryRequest(sql, None, *_as_of(as_of), engine=engine), as_json)
        return
    if to_dataset is not None:
        _hand_over(settings, sql, _as_of(as_of), to_dataset, wait, as_json)
        return
    if as_json and format_ not in (None, "json"):
        raise click.UsageError("use --format or --json, not both")
    format_ = "json" if as_json else format_ or _format_of(output)
    import pyarrow.ipc as ipc  # slow to import, and no other command needs it

    from traceplane.client import Client

    versions, at = _as_of(as_of)
    chosen, token = with_user_token(settings)
    client = Client(chosen.gateway_address, token)
    wire: Any = "arrow" if format_ == "table" else format_
    pieces = _explained(
        settings,
        client.pieces(
            sql,
            format=wire,
            as_of_version=versions,
            as_of_time=at,
            engine=engine,
            handed_over=_say_handed_over,
        ),
    )
    if format_ == "table":
        text = "\n".join(table_lines(ipc.open_stream(b"".join(pieces)).read_all())) + "\n"
        if output is None:
            say_lines(text)
            return
        pieces = iter([text.encode()])
    if output is not None:
        try:
            write_file(output, pieces)
        except OSError as error:
            raise InvalidInput(
                "cli.output_unwritable",
                f"the result cannot be written there: {error.strerror}",
                value=str(output),
                next_step="set --output to a file in an existing, writable folder",
            ) from error
        return
    if format_ in ("arrow", "parquet") and is_terminal():
        raise InvalidInput(
            "cli.binary_output", "a terminal cannot show this format", next_step="use --output"
        )
    hand_on(pieces, is_json=format_ == "json")


def _text_of(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise click.UsageError("give a SELECT, or --file")
    if file is None:
        assert sql is not None
        return sql
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise click.BadParameter(f"it cannot be read as text: {error}", param_hint="--file") from None


def _format_of(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix.lower().removeprefix(".")
    if suffix in ("", "txt"):
        return "table"
    if suffix not in _FORMATS:
        raise InvalidInput(
            "cli.unknown_format",
            "the suffix of --output is that of no format",
            value=str(output),
            next_step=f"end it with .{', .'.join(_FORMATS[1:])}, or say which with --format",
        )
    return suffix


def _explain(settings: Settings, request: QueryRequest, as_json: bool) -> None:
    plan = call(settings, lambda c: c.call("POST", "/api/v1/query-plan", QueryPlan, request))
    if as_json:
        say_json(plan)
        return
    say(f"engine: {plan.engine} ({plan.reason})")
    say(f"files: {plan.files} of {plan.of_files}, about {plan.bytes:,} bytes; limit: {plan.limit_bytes:,}")
    for dataset, generation in sorted(plan.generations.items()):
        say(f"reads: {dataset}, generation {generation}")


def _say_handed_over(made: QueryTask) -> None:
    """Where the result does not go, so that it may be piped on."""
    reason = f": {made.reason}" if made.reason else ""
    say(f"Spark computes it as task {made.task_id}, stored as {made.dataset}{reason}.", err=True)


def _explained(settings: Settings, pieces: Iterator[bytes]) -> Iterator[bytes]:
    with explained(settings):
        yield from pieces


def _hand_over(
    settings: Settings,
    sql: str,
    as_of: tuple[dict[str, int], datetime | None],
    dataset: str,
    wait: bool,
    as_json: bool,
) -> None:
    request = QueryTaskRequest(sql, dataset, *as_of)
    query_task = call(settings, lambda c: c.call("POST", "/api/v1/query-tasks", QueryTask, request))
    if as_json:
        say_json(query_task)
    else:
        say(f"Task {query_task.task_id} computes {query_task.dataset}.")
    path = f"/api/v1/tasks/{query_task.task_id}"
    with work_goes_on("the task", f"traceplane explain {query_task.task_id}"):
        while wait:
            task = call(settings, lambda c: c.call("GET", path, TaskDetail)).task
            if task.state in ("completed", "dead", "canceled"):
                message = f": {task.error.get('message')}" if task.error else ""
                say(f"It is {task.state}{message if task.state != 'completed' else ''}.", err=as_json)
                raise SystemExit(0 if task.state == "completed" else 1)
            time.sleep(_POLL_SECONDS)


def _as_of(texts: tuple[str, ...]) -> tuple[dict[str, int], datetime | None]:
    versions: dict[str, int] = {}
    at = None
    for text in texts:
        dag, sign, number = text.rpartition("@")
        if sign and number.isdigit():
            versions[dag] = int(number)
            continue
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(
                "cli.bad_as_of",
                "--as-of must be a version of a DAG or a time",
                value=text,
                next_step="for example chain@3 or 2026-01-31T12:00:00Z",
            ) from None
        at = at if at.tzinfo is not None else at.astimezone()
    return versions, at


def table_lines(table: pa.Table) -> Iterator[str]:
    """The first rows as text. Several columns may have the same name, as in a join."""
    names = [one_line(name) for name in table.column_names]
    columns = [map(_cell, column.to_pylist()) for column in table.slice(0, _SHOWN_ROWS).columns]
    rows = list(zip(*columns, strict=True))
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(names)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    more = f", the first {_SHOWN_ROWS} shown" if table.num_rows > _SHOWN_ROWS else ""
    yield f"({counted(table.num_rows, 'row')}{more})"


def _cell(value: Any) -> str:
    text = one_line(_as_text(value))
    return text if len(text) <= _MAX_CELL_WIDTH else text[: _MAX_CELL_WIDTH - 1] + "…"


def _as_text(value: Any) -> str:
    import pyarrow as pa

    match value:
        case None:
            return ""
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case pa.MonthDayNano():
            return _interval(value.months, value.days, value.nanoseconds)
        case _:
            return str(value)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """`14 months 3 days 1:00:00.5`"""
    parts = [counted(number, unit) for number, unit in ((months, "month"), (days, "day")) if number]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), 10**9)
        clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:09}".rstrip(
            "0"
        ).rstrip(".")
        parts.append(f"-{clock}" if nanoseconds < 0 else clock)
    return " ".join(parts)


def _named(context: click.Context, parameter: click.Parameter, name: str) -> str:
    if name == "":
        raise click.BadParameter("the name is empty", ctx=context, param=parameter)
    return name


@dataset.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """List datasets, with what they hold."""
    listed = call(settings, lambda c: c.call("GET", "/api/v1/datasets", CatalogResponse))
    if as_json:
        say_json(listed)
        return
    say_table(
        ("dataset", "version", "holds"),
        ((d.dataset, f"{d.dag}@{d.version}", contents(d)) for d in listed.datasets),
        "no datasets that you may see",
    )


@dataset.command()
@click.argument("name", callback=_named)
@as_json
@click.pass_obj
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show the dataset NAME: its schema, the lineage of its columns, its jobs."""
    path = f"/api/v1/datasets/{quote(name, safe='')}"
    shown = call(settings, lambda c: c.call("GET", path, DatasetDetail))
    if as_json:
        say_json(shown)
        return
    entry = shown.dataset
    say(f"{entry.dataset}  {entry.dag}@{entry.version}  {contents(entry)}")
    for column in shown.columns:
        marks = "".join((" not null" * (not column.nullable), " pii" * column.pii))
        source = f"  from {', '.join(column.derived_from)}" if column.derived_from else ""
        reason = f"  declassified: {column.declassified}" if column.declassified else ""
        say(f"  {column.name}  {column.type}{marks}{source}{reason}")
    if shown.sql is not None:
        say(f"virtual: {' '.join(shown.sql.split())}")
    if shown.cron is not None:
        say(describe_cron(shown.cron))
    for verb, roles in (("read", shown.read_roles), ("written", shown.write_roles)):
        if roles is not None:
            say(f"{verb} by the roles {', '.join(roles)}" if roles else f"{verb} by admins only")
    for title, jobs in (("produced by", shown.produced_by), ("read by", shown.read_by)):
        if jobs:
            say(f"{title} {', '.join(jobs)}")


@dataset.command()
@click.argument("name", callback=_named)
@click.argument("column")
@as_json
@click.pass_obj
def lineage(settings: Settings, name: str, column: str, as_json: bool) -> None:
    """Show what a COLUMN of the dataset NAME is computed from, and what is computed from it."""
    path = f"/api/v1/datasets/{quote(name, safe='')}/column-lineage"
    found = call(settings, lambda c: c.call("GET", path, ColumnLineage, query={"column": column}))
    if as_json:
        say_json(found)
        return
    for one in found.columns:
        source = f"  from {', '.join(one.derived_from)}" if one.derived_from else ""
        say(f"{one.dataset}.{one.column}{source}")
    if found.cut:
        say("There are more datasets than were looked at; ask about a column nearer to them.")
