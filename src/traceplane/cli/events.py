"""`traceplane event`: emits events of a source by hand; `traceplane file` and `traceplane webhook`: sources that list
files or receive deliveries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, ask, say, say_json
from traceplane.cli.scopes import MAY_BE_NEGATIVE, NamedPartitions, parse_scopes, without_options
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.http_service.client import Caller
from traceplane.settings import Settings
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.files import FileSourcesResponse
from traceplane.wire.scalars import MAX_BATCH, Scope
from traceplane.wire.webhooks import WebhooksResponse

MANY_EVENTS = 100_000
"""More events than this need a confirmation."""


@click.group(cls=Noun)
def event() -> None:
    """Emit events of sources by hand."""


@event.command(context_settings=MAY_BE_NEGATIVE)
@click.argument("dataset")
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE...", callback=without_options)
@click.option("--kind", type=click.Choice(["data", "invalidation"]), default="data", show_default=True)
@click.option(
    "--emission",
    default="",
    help="A new value makes a new event for the same scope, such as a correction.",
)
@click.option("--yes", is_flag=True, help=f"Emit more than {MANY_EVENTS:,} events without confirmation.")
@as_json
@click.pass_obj
def emit(
    settings: Settings,
    dataset: str,
    scopes: tuple[str, ...],
    kind: Any,
    emission: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Emit events of a source DATASET.

    SCOPE is a cursor (1207), a range of cursors (1200..1299, one event each), a partition (1200-1299, one event for
    the whole range), or the name of one (2026-11-16, eu) or of several (2026-11-01..2026-11-16, one event each).
    """
    ranges = [parse_scopes(text) for text in scopes]
    _ask_before_many(sum(len(r) for r in ranges if isinstance(r, Sequence)), dataset, yes=yes)
    events = (event for some in ranges for event in _events(dataset, some, kind, emission))

    async def send(caller: Caller) -> EmitResponse:
        accepted = duplicates = 0
        while batch := list(itertools.islice(events, MAX_BATCH)):
            request = EmitRequest(batch)
            answer = await caller.call("POST", "/api/v1/events", EmitResponse, request)
            accepted, duplicates = accepted + answer.accepted, duplicates + answer.duplicates
        return EmitResponse(accepted, duplicates)

    answer = call(settings, send)
    if as_json:
        say_json(answer)
    else:
        duplicates = f", {answer.duplicates} already accepted before" if answer.duplicates else ""
        say(f"{answer.accepted} accepted{duplicates}")


def _ask_before_many(count: int, dataset: str, *, yes: bool) -> None:
    """A typo should not make a million tasks."""
    if count <= MANY_EVENTS or yes:
        return
    if not ask(f"Emit {count:,} events of {dataset}? Each makes a task for every job that reads it."):
        raise InvalidInput(
            "cli.many_events",
            f"no event was emitted: more than {MANY_EVENTS:,} events need a confirmation",
            value=count,
            next_step="check the range, then confirm it at a terminal or use --yes",
        )


def _events(
    dataset: str, scopes: Sequence[int] | Sequence[Scope] | NamedPartitions, kind: Any, emission: str
) -> Iterator[ManualEvent]:
    if isinstance(scopes, NamedPartitions):
        through = scopes.last if scopes.last != scopes.first else None
        yield ManualEvent(dataset, None, kind, emission, partition=scopes.first, through=through)
        return
    for scope in scopes:
        one = scope if isinstance(scope, Scope) else Scope(cursor=scope)
        yield ManualEvent(dataset, one, kind, emission)


@click.group(cls=Noun)
def webhook() -> None:
    """Sources that receive deliveries over HTTP."""


@webhook.command("list")
@as_json
@click.pass_obj
def list_webhooks(settings: Settings, as_json: bool) -> None:
    """List the webhook sources, and what they refused."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/webhooks", WebhooksResponse))
    if as_json:
        say_json(answer)
        return
    for hook in answer.webhooks:
        say(f"POST /hooks/{hook.org}/{hook.path}  {hook.dag}.{hook.job}, verified: {hook.verification}")
        for variable in hook.keys_missing:
            say(f"  ! the gateway lacks the key {variable}")
        for refusal in hook.refusals:
            say(f"  {refusal.code}: {refusal.count:,}, last at {refusal.last_at:%Y-%m-%d %H:%M:%S} UTC")
    if not answer.webhooks:
        say("There are no webhook sources.")


@click.group(cls=Noun)
def file() -> None:
    """Sources that list files in a folder or a bucket."""


@file.command("list")
@as_json
@click.pass_obj
def list_files(settings: Settings, as_json: bool) -> None:
    """List the file sources, and what they found."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/files", FileSourcesResponse))
    if as_json:
        say_json(answer)
        return
    for source in answer.sources:
        listed = (
            "not listed yet"
            if source.listed_at is None
            else f"listed {source.listed_at:%Y-%m-%d %H:%M:%S} UTC"
        )
        say(f"{source.path} {source.pattern}  {source.dag}.{source.job}, {listed}")
        found = f"{source.matched:,} {'file matches' if source.matched == 1 else 'files match'}"
        waiting = f", {source.waiting:,} not announced yet" if source.waiting else ""
        say(f"  {found}, {source.ignored:,} ignored{waiting}")
        if source.problem is not None:
            say(f"  ! {source.problem}")
        for refused in source.refusals:
            say(f"  ! {refused.count:,} refused: {refused.reason}, such as {refused.example}")
    if not answer.sources:
        say("There are no file sources.")
