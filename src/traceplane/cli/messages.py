"""`traceplane message`: messages that were queued for channels."""

from __future__ import annotations

from typing import get_args
from uuid import UUID

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.model.counted import counted
from traceplane.settings import Settings
from traceplane.wire.channels import (
    DeliveriesChanged,
    DeliveriesResponse,
    DeliverySelection,
    DeliveryState,
    DeliveryView,
)

_PATH = "/api/v1/deliveries"


@click.group(cls=Noun)
def message() -> None:
    """Messages that were queued for channels."""


@message.command("list")
@click.option("--channel", help="Only this channel's.")
@click.option("--state", type=click.Choice(get_args(DeliveryState)), help="Only these.")
@click.option("--before", type=click.IntRange(min=0), help="Continue behind an earlier page.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_(
    settings: Settings, channel: str | None, state: str | None, before: int | None, limit: int, as_json: bool
) -> None:
    """List messages, newest first."""
    filters = {"channel": channel, "state": state, "before": before, "limit": limit}
    query = {name: str(value) for name, value in filters.items() if value is not None}
    answer = call(settings, lambda c: c.call("GET", _PATH, DeliveriesResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for delivery in answer.deliveries:
        say(_line(delivery))
    if not answer.deliveries:
        say("no messages")
    if answer.before is not None:
        say(f"there may be more: --before {answer.before}")


def _line(one: DeliveryView) -> str:
    tries = f" after {counted(one.tries, 'attempt')}" if one.tries > 1 else ""
    reason = "" if one.code is None else f"  {one.code}: {one.reason}"
    return (
        f"{one.delivery_id}  {one.created_at:%Y-%m-%d %H:%M:%S}  {one.channel}  {one.kind} {one.alert}"
        f" ({one.severity}): {one.title}  {one.state}{tries}{reason}"
    )


_ids = click.argument("delivery_ids", type=click.UUID, nargs=-1)
_channel = click.option("--channel", help="All of this channel, instead of ids.")


@message.command()
@_ids
@_channel
@as_json
@click.pass_obj
def replay(settings: Settings, delivery_ids: tuple[UUID, ...], channel: str | None, as_json: bool) -> None:
    """Queue dead messages again, by id or by channel. They keep their keys.

    Those whose alert was retracted meanwhile are withdrawn.
    """
    _change(settings, "replay", delivery_ids, channel, as_json, done="queued again", none="no dead messages")


@message.command()
@_ids
@_channel
@as_json
@click.pass_obj
def drop(settings: Settings, delivery_ids: tuple[UUID, ...], channel: str | None, as_json: bool) -> None:
    """Give up messages that wait or are dead, by id or by channel."""
    none = "no messages that wait or are dead"
    _change(settings, "drop", delivery_ids, channel, as_json, done="dropped", none=none)


def _change(
    settings: Settings,
    verb: str,
    ids: tuple[UUID, ...],
    channel: str | None,
    as_json: bool,
    *,
    done: str,
    none: str,
) -> None:
    if bool(ids) == (channel is not None):
        raise click.UsageError("give the ids of messages, or --channel")
    request = DeliverySelection(list(ids), channel)
    changed, retracted, more = 0, 0, True
    while more:
        answer = call(settings, lambda c: c.call("POST", f"{_PATH}/{verb}", DeliveriesChanged, request))
        changed, retracted, more = changed + answer.changed, retracted + answer.retracted, answer.more
    if as_json:
        say_json(DeliveriesChanged(changed, retracted=retracted))
    else:
        say(f"{counted(changed, 'message')} {done}" if changed or retracted else none)
        if retracted:
            say(f"{counted(retracted, 'message')} withdrawn instead: the alert was retracted meanwhile")
    if not changed:
        raise SystemExit(1)
