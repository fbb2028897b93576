"""Commands for people who look at data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from traceplane.cli.control import as_json, call
from traceplane.cli.output import hand_on, is_terminal, say, say_json, say_lines
from traceplane.cli.whereabouts import explained, with_user_token
from traceplane.errors import InvalidInput
from traceplane.model.printable import one_line
from traceplane.settings import Settings
from traceplane.wire.control import CatalogResponse, DatasetDetail, QueryTask, QueryTaskRequest, TaskDetail

_WIDEST = 40
_SHOWN_ROWS = 1000
_LOOK_SECONDS = 1.0


@click.command()
@click.argument("sql")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "csv", "arrow", "parquet"]),
    default="table",
    show_default=True,
)
@click.option(
    "--as-of", metavar="DAG@VERSION|TIME", multiple=True, help="Read a version of a DAG, or a time."
)
@click.option("--to-dataset", metavar="NAME", help="Run it on Spark; its result becomes this dataset.")
@click.option("--wait", is_flag=True, help="With --to-dataset: until the result is there.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result to a file.")
@click.pass_obj
def query(
    settings: Settings,
    sql: str,
    format_: str,
    as_of: tuple[str, ...],
    to_dataset: str | None,
    wait: bool,
    output: Path | None,
) -> None:
    """Run one SELECT over datasets; all of them are read at one consistent point."""
    if to_dataset is not None:
        _hand_over(settings, sql, _as_of(as_of), to_dataset, wait)
        return
    import pyarrow.ipc as ipc  # slow to import, and no other command needs it

    from traceplane.client import Client

    versions, at = _as_of(as_of)
    chosen, token = with_user_token(settings)
    client = Client(chosen.gateway_address, token)
    wire: Any = "arrow" if format_ == "table" else format_
    pieces = _explained(settings, client.pieces(sql, format=wire, as_of_version=versions, as_of_time=at))
    if format_ == "table":
        text = "\n".join(_lines(ipc.open_stream(b"".join(pieces)).read_all())) + "\n"
        if output is None:
            say_lines(text)
            return
        pieces = iter([text.encode()])
    if output is not None:
        try:
            with output.open("wb") as file:
                file.writelines(pieces)
        except OSError as error:
            raise InvalidInput(
                "cli.output_unwritable",
                f"the result cannot be written there: {error.strerror}",
                value=str(output),
                next_step="give --output a file in a folder that is there and may be written to",
            ) from error
        return
    if format_ in ("arrow", "parquet") and is_terminal():
        raise InvalidInput(
            "cli.binary_output", "this format is not for a terminal", next_step="give --output"
        )
    hand_on(pieces, is_json=format_ == "json")


def _explained(settings: Settings, pieces: Iterator[bytes]) -> Iterator[bytes]:
    with explained(settings):
        yield from pieces


def _hand_over(
    settings: Settings, sql: str, as_of: tuple[dict[str, int], datetime | None], dataset: str, wait: bool
) -> None:
    versions, at = as_of
    if at is not None:
        raise InvalidInput(
            "cli.bad_as_of",
            "a result dataset is computed as of versions, not of a time",
            value=at.isoformat(),
        )
    request = QueryTaskRequest(sql, dataset, versions)
    made = call(settings, lambda c: c.call("POST", "/v1/query-tasks", QueryTask, request))
    say(f"Task {made.task_id} computes {made.dataset}.")
    while wait:
        task = call(settings, lambda c: c.call("GET", f"/v1/tasks/{made.task_id}", TaskDetail)).task
        if task.state in ("completed", "dead", "canceled"):
            told = f": {task.error.get('message')}" if task.error else ""
            say(f"It is {task.state}{told if task.state != 'completed' else ''}.")
            raise SystemExit(0 if task.state == "completed" else 1)
        time.sleep(_LOOK_SECONDS)


def _as_of(given: tuple[str, ...]) -> tuple[dict[str, int], datetime | None]:
    versions: dict[str, int] = {}
    at = None
    for text in given:
        dag, sign, number = text.rpartition("@")
        if sign and number.isdigit():
            versions[dag] = int(number)
            continue
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(
                "cli.bad_as_of",
                "a query is as of a version of a DAG or a time",
                value=text,
                next_step="for example chain@3 or 2026-01-31T12:00:00Z",
            ) from None
        at = at if at.tzinfo is not None else at.astimezone()
    return versions, at


def _lines(table: Any) -> Iterator[str]:
    names = [one_line(name) for name in table.column_names]
    rows = [[_cell(v) for v in row.values()] for row in table.slice(0, _SHOWN_ROWS).to_pylist()]
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(names)]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
    yield "  ".join("-" * width for width in widths)
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    more = f", the first {_SHOWN_ROWS} shown" if table.num_rows > _SHOWN_ROWS else ""
    yield f"({table.num_rows} {'row' if table.num_rows == 1 else 'rows'}{more})"


def _cell(value: Any) -> str:
    text = "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    text = one_line(text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


@click.command()
@click.argument("dataset", required=False)
@as_json
@click.pass_obj
def datasets(settings: Settings, dataset: str | None, as_json: bool) -> None:
    """List datasets; or show one DATASET with its schema and where its columns come from."""
    if dataset is None:
        listed = call(settings, lambda c: c.call("GET", "/v1/datasets", CatalogResponse))
        if as_json:
            say_json(listed)
            return
        for d in listed.datasets:
            say(f"{d.dataset}  {d.dag}@{d.version}  {d.rows} rows  {d.bytes} bytes")
        return
    path = f"/v1/datasets/{quote(dataset, safe='')}"
    shown = call(settings, lambda c: c.call("GET", path, DatasetDetail))
    if as_json:
        say_json(shown)
        return
    entry = shown.dataset
    say(f"{entry.dataset}  {entry.dag}@{entry.version}  {entry.rows} rows  {entry.bytes} bytes")
    for column in shown.columns:
        marks = "".join((" not null" * (not column.nullable), " pii" * column.pii))
        source = f"  from {', '.join(column.derived_from)}" if column.derived_from else ""
        say(f"  {column.name}  {column.type}{marks}{source}")
    if shown.sql is not None:
        say(f"virtual: {' '.join(shown.sql.split())}")
    for title, jobs in (("produced by", shown.produced_by), ("read by", shown.read_by)):
        if jobs:
            say(f"{title} {', '.join(jobs)}")


COMMANDS: tuple[Any, ...] = (query, datasets)
