"""Commands for the audit log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json, say_lines
from traceplane.cli.whereabouts import call
from traceplane.model import durations
from traceplane.settings import Settings
from traceplane.wire.audit import MOST_ENTRIES, AuditEntry, AuditResponse

_PATH = "/api/v1/audit"


@click.group(cls=Noun)
def audit() -> None:
    """Who changed what, and who was refused what."""


class _Time(click.DateTime):
    """A time in UTC, or how long ago it was."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, str):
            with contextlib.suppress(durations.BadDuration):
                return datetime.now(UTC).replace(tzinfo=None) - durations.parsed(value)
        time: datetime = super().convert(value, param, ctx)
        return time


_time = _Time(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
_since = click.option(
    "--since", type=_time, metavar="TIME", help="From this time on, in UTC, or for so long: 1d."
)
_until = click.option("--until", type=_time, metavar="TIME", help="Before this time, in UTC, or so long ago.")
_principal = click.option("--principal", help="Of one caller.")
_action = click.option("--action", help="A part of the action, such as `secrets` or `deploy`.")
_refused = click.option("--refused", is_flag=True, help="Only what was refused.")


@audit.command("list")
@_since
@_until
@_principal
@_action
@_refused
@click.option("--limit", type=click.IntRange(1, MOST_ENTRIES), default=50, show_default=True)
@as_json
@click.pass_obj
def list_(settings: Settings, /, limit: int, as_json: bool, **chosen: Any) -> None:
    """Show the newest entries."""
    answer = _page(settings, {**_query(**chosen), "limit": str(limit)})
    if as_json:
        say_json(answer)
        return
    if not answer.entries:
        say("no entries")
    for entry in answer.entries:
        names = " ".join(f"{name}={value}" for name, value in entry.object.items())
        times = f" ({entry.times} times)" if entry.times > 1 else ""
        where = f"  from {entry.remote}" if entry.remote else ""
        say(
            f"{entry.at:%Y-%m-%d %H:%M:%S}  {entry.principal}  {entry.action}  {names}".rstrip()
            + f"  {entry.outcome}{times}{where}"
        )


@audit.command("export")
@_since
@_until
@_principal
@_action
@_refused
@click.pass_obj
def export(settings: Settings, /, **chosen: Any) -> None:
    """Print all entries as JSON lines, oldest first."""
    for entry in _all(settings, _query(**chosen)):
        say_lines(msgspec.json.encode(entry).decode())


def _all(settings: Settings, query: dict[str, str]) -> Iterator[AuditEntry]:
    after = 0
    while True:
        page = _page(settings, {**query, "after": str(after), "limit": str(MOST_ENTRIES)}).entries
        yield from page
        if len(page) < MOST_ENTRIES:
            return
        after = page[-1].audit_id


def _page(settings: Settings, query: dict[str, str]) -> AuditResponse:
    return call(settings, lambda c: c.call("GET", _PATH, AuditResponse, query=query))


def _query(
    since: datetime | None, until: datetime | None, principal: str | None, action: str | None, refused: bool
) -> dict[str, str]:
    given = {
        "since": _in_utc(since),
        "until": _in_utc(until),
        "principal": principal,
        "action": action,
        "outcome": "refused" if refused else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _in_utc(time: datetime | None) -> str | None:
    return None if time is None else time.replace(tzinfo=UTC).isoformat()
