"""`traceplane alert`: what alerts found, and who acknowledged it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.scopes import parse_range
from traceplane.cli.whereabouts import call
from traceplane.model import durations
from traceplane.model.counted import counted
from traceplane.model.hidden_values import PLACEHOLDER
from traceplane.settings import Settings
from traceplane.wire.alerts import (
    AlertDetail,
    AlertMessageView,
    AlertsAcknowledged,
    AlertSelection,
    AlertsResponse,
    AlertState,
    AlertSummary,
    AlertSummaryResponse,
    AlertTested,
    AlertTestRequest,
    AlertTestResponse,
    AlertView,
    SilenceRequest,
    SilencesResponse,
    SilenceView,
    SubjectValue,
)

_PATH = "/api/v1/alerts"
_SILENCES = "/api/v1/alert-silences"
_WHY_NOT_SENT = {
    "backfill": "it is history: a backfill, a rebuild or a rollback computed it, or it was there before the alert",
    "stale": "it happened longer ago than stale_after of the alert",
    "building": "only a version that does not serve yet has found it; it is sent when that version serves",
    "silenced": "somebody silenced it; see `traceplane alert silences`",
    "throttled": "its throttle was used up",
    "no_channel": "none of its channels exists; see `traceplane channel list`",
}
_WHY_UNCHANGED = {
    "acknowledged": "it was acknowledged before",
    "retracted": "it was retracted",
    "unknown": "there is no such alert; see `traceplane alert list`",
}


@click.group(cls=Noun)
def alert() -> None:
    """What alerts found, whether it was sent, and who acknowledged it."""


_dag = click.option("--dag", help="Only this DAG's.")
_alert = click.option("--alert", help="Only this alert's.")


@alert.command("list")
@_dag
@_alert
@click.option("--state", type=click.Choice(get_args(AlertState)), help="Only these.")
@click.option("--after", type=click.UUID, help="Continue behind an earlier page.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_(
    settings: Settings,
    dag: str | None,
    alert: str | None,
    state: str | None,
    after: UUID | None,
    limit: int,
    as_json: bool,
) -> None:
    """List what alerts found, newest first."""
    filters = {"dag": dag, "alert": alert, "state": state, "after": after, "limit": limit}
    answer = call(settings, lambda c: c.call("GET", _PATH, AlertsResponse, query=_query(**filters)))
    if as_json:
        say_json(answer)
        return
    for one in answer.alerts:
        say(_line(one))
    if not answer.alerts:
        say("no alerts")
    if answer.after is not None:
        say(f"there may be more: --after {answer.after}")


def _query(**filters: object) -> dict[str, str]:
    return {name: str(value) for name, value in filters.items() if value is not None}


def _line(one: AlertView) -> str:
    state = f"not sent: {one.suppressed}" if one.state == "suppressed" else one.state
    by = f" by {one.acknowledged_by}" if one.state == "acknowledged" else ""
    position = f"  at {one.position}" if one.position is not None else ""
    return (
        f"{one.alert_id}  {one.found_at:%Y-%m-%d %H:%M:%S}  {_name(one.dag, one.alert)}  {one.severity}"
        f"{position}  {one.title}  {_values(one.subject)}  {state}{by}"
    )


def _name(dag: str, alert: str) -> str:
    return f"{dag}/{alert}" if dag else alert


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_written(value)}" for name, value in values.items())


def _written(value: SubjectValue) -> str:
    """As `--subject` takes it."""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


@alert.command()
@click.argument("alert_id", type=click.UUID)
@as_json
@click.pass_obj
def show(settings: Settings, alert_id: UUID, as_json: bool) -> None:
    """Show what ALERT_ID is about, and its messages."""
    answer = call(settings, lambda c: c.call("GET", f"{_PATH}/{alert_id}", AlertDetail))
    if as_json:
        say_json(answer)
        return
    for line in _shown(answer):
        say(line)


def _shown(detail: AlertDetail) -> Iterator[str]:
    one = detail.alert
    yield f"{one.title} ({one.severity}, {one.state})"
    yield from (f"  {line}" for line in detail.text.splitlines())
    about = f" about {one.dataset}" if one.dataset is not None else ""
    position = f", position {one.position}" if one.position is not None else ""
    owner = f", owner {one.owner}" if one.owner else ""
    yield f"- Alert {_name(one.dag, one.alert)}{about}{position}{owner}"
    if one.subject or one.fields:
        yield f"- {_values({**one.subject, **one.fields})}"
    if one.hides_personal_data:
        yield "- Values are hidden: your token may not see them"
    happened = f", happened at {one.event_time:%Y-%m-%d %H:%M:%S}" if one.event_time is not None else ""
    again = f", {counted(detail.occurrence, 'time')} so far" if detail.occurrence > 1 else ""
    yield f"- Found at {one.found_at:%Y-%m-%d %H:%M:%S}{again}{happened}"
    if one.suppressed is not None:
        yield f"- Not sent ({one.suppressed}): {_WHY_NOT_SENT.get(one.suppressed, one.suppressed)}"
    if one.retracted_at is not None:
        yield f"- Retracted at {one.retracted_at:%Y-%m-%d %H:%M:%S}: its cause is gone"
    if one.acknowledged_at is not None:
        yield f"- Acknowledged by {one.acknowledged_by} at {one.acknowledged_at:%Y-%m-%d %H:%M:%S}"
    for message in detail.deliveries:
        yield f"- {_message(message)}"
    yield from _replays(detail)
    if one.state == "open":
        yield f"Next step: traceplane alert ack {one.alert_id}"


def _replays(detail: AlertDetail) -> Iterator[str]:
    """What to do about dead messages. A retracted alert is not sent again."""
    dead: dict[str, list[str]] = {}
    for message in detail.deliveries:
        is_over = message.kind == "alert" and detail.alert.retracted_at is not None
        if message.state == "dead" and not is_over:
            dead.setdefault(message.channel, []).append(str(message.delivery_id))
    for channel, ids in dead.items():
        works = "" if channel == PLACEHOLDER else f" until `traceplane channel test {channel}` succeeds"
        yield (
            f"Next step for an admin: correct the channel{works}, then run "
            f"`traceplane message replay {' '.join(ids)}`"
        )


def _message(one: AlertMessageView) -> str:
    tries = f" after {counted(one.tries, 'attempt')}" if one.tries else ""
    reason = f": {one.code}: {one.reason}" if one.code is not None else ""
    return f"{one.channel}: {one.kind} {one.state}{tries}{reason}"


@alert.command()
@_dag
@_alert
@as_json
@click.pass_obj
def summary(settings: Settings, dag: str | None, alert: str | None, as_json: bool) -> None:
    """Count the alerts that were found, by whether they were given to channels and how they stand now."""
    query = _query(dag=dag, alert=alert)
    answer = call(
        settings, lambda c: c.call("GET", "/api/v1/alert-summary", AlertSummaryResponse, query=query)
    )
    if as_json:
        say_json(answer)
        return
    for one in answer.alerts:
        say(_summary(one))
    if not answer.alerts:
        say("no alerts")


def _summary(one: AlertSummary) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in one.suppressed.items())
    suppressed = sum(one.suppressed.values())
    return (
        f"{_name(one.dag, one.alert)}  {one.found} found: {one.sent} given to channels, "
        f"{suppressed} not sent{f' ({reasons})' if reasons else ''}  now {one.open} open, {one.retracted} retracted"
        f"  last found at {one.last_found_at:%Y-%m-%d %H:%M:%S}"
    )


@alert.command()
@click.argument("name")
@click.option("--dag", help="The DAG whose deployed alert is tested.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A DAG file whose alert is tested, deployed or not.",
)
@click.option(
    "--range", "range_", metavar="A..B", required=True, help="Positions or partitions from A to B, inclusive."
)
@as_json
@click.pass_obj
def test(
    settings: Settings, name: str, dag: str | None, file: Path | None, range_: str, as_json: bool
) -> None:
    """Show what the alert NAME would raise over committed rows. Nothing is sent."""
    if (dag is None) == (file is None):
        raise click.UsageError("give --dag, or --file")
    start, end = parse_range(range_)
    text = None if file is None else file.read_text(errors="replace")
    request = AlertTestRequest(name, start, end, dag, text, "dag.yaml" if file is None else file.name)
    answer = call(settings, lambda c: c.call("POST", f"{_PATH}/test", AlertTestResponse, request))
    if as_json:
        say_json(answer)
        return
    for one in answer.alerts:
        say(_tested(one))
    if answer.found > len(answer.alerts):
        say(f"and {answer.found - len(answer.alerts)} more")
    reasons = ", ".join(f"{count} {reason}" for reason, count in answer.suppressed.items())
    kept = sum(answer.suppressed.values())
    more = "more than " if answer.and_more else ""
    say(
        f"{more}{counted(answer.found, 'alert')}, {answer.found - kept} would have been sent"
        f"{f', {kept} not ({reasons})' if kept else ''}"
    )


def _tested(one: AlertTested) -> str:
    time = f"  {one.event_time:%Y-%m-%d %H:%M:%S}" if one.event_time is not None else ""
    reason = f"would not be sent: {one.suppressed}" if one.suppressed is not None else "would be sent"
    return f"at {one.position}{time}  {one.title}  {_values(one.subject)}  {reason}"


@alert.command()
@click.argument("alert_ids", type=click.UUID, nargs=-1)
@click.option("--alert", help="All open ones of this alert, instead of ids.")
@click.option("--dag", help="With --alert: only this DAG's.")
@as_json
@click.pass_obj
def ack(
    settings: Settings, alert_ids: tuple[UUID, ...], alert: str | None, dag: str | None, as_json: bool
) -> None:
    """Acknowledge alerts: you are dealing with them. The channels that got them are told."""
    if bool(alert_ids) == (alert is not None):
        raise click.UsageError("give the ids of alerts, or --alert")
    if dag is not None and alert is None:
        raise click.UsageError("--dag needs --alert")
    request = AlertSelection(list(alert_ids), dag, alert)
    done: list[UUID] = []
    while True:
        answer = call(settings, lambda c: c.call("POST", f"{_PATH}/acknowledge", AlertsAcknowledged, request))
        done += answer.acknowledged
        if not answer.more:
            break
    if as_json:
        say_json(AlertsAcknowledged(done, answer.unchanged))
    else:
        for alert_id, why in answer.unchanged.items():
            say(f"{alert_id}: {_WHY_UNCHANGED[why]}")
        say(f"{counted(len(done), 'alert')} acknowledged" if done or answer.unchanged else "no open alerts")
    if not done:
        raise SystemExit(1)


@alert.command()
@click.option("--dag", help="Only this DAG's; without it, those of all DAGs.")
@click.option("--alert", help="Only this alert; without it, all alerts.")
@click.option(
    "--subject",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only alerts whose subject has this value. A number is a number, unless it is in double quotes.",
)
@click.option("--for", "lasts", required=True, metavar="DURATION", help="How long, for example 2h.")
@click.option("--reason", required=True, help="Why; others see it.")
@as_json
@click.pass_obj
def silence(
    settings: Settings,
    dag: str | None,
    alert: str | None,
    subject: tuple[str, ...],
    lasts: str,
    reason: str,
    as_json: bool,
) -> None:
    """Send no alerts of a kind for a while. They are still recorded."""
    try:
        seconds = int(durations.parsed(lasts).total_seconds())
    except durations.BadDuration as error:
        raise click.BadParameter(str(error), param_hint="--for") from None
    request = SilenceRequest(seconds, reason, dag, alert, dict(map(_subject, subject)))
    answer = call(settings, lambda c: c.call("POST", _SILENCES, SilenceView, request))
    if as_json:
        say_json(answer)
    else:
        say(_silence(answer))
        say(f"to end it: traceplane alert unsilence {answer.silence_id}")


def _subject(text: str) -> tuple[str, SubjectValue]:
    column, equals, value = text.partition("=")
    if not (column and equals):
        raise click.BadParameter(f"{text!r} is not COLUMN=VALUE", param_hint="--subject")
    return column, _value(value)


def _value(text: str) -> SubjectValue:
    """Whole numbers, true, false and null are what they are; what is in quotes, and all else, is text."""
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})|true|false|null", text):
        return json.loads(text)  # type: ignore[no-any-return]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


@alert.command()
@click.option("--after", type=click.UUID, help="Continue behind an earlier page.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def silences(settings: Settings, after: UUID | None, limit: int, as_json: bool) -> None:
    """List the silences that hold now, newest first."""
    query = _query(after=after, limit=limit)
    answer = call(settings, lambda c: c.call("GET", _SILENCES, SilencesResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for one in answer.silences:
        say(_silence(one))
    if not answer.silences:
        say("nothing is silenced")
    if answer.after is not None:
        say(f"there are more: --after {answer.after}")


@alert.command()
@click.argument("silence_id", type=click.UUID)
@as_json
@click.pass_obj
def unsilence(settings: Settings, silence_id: UUID, as_json: bool) -> None:
    """End the silence SILENCE_ID now."""
    answer = call(settings, lambda c: c.call("DELETE", f"{_SILENCES}/{silence_id}", SilenceView))
    if as_json:
        say_json(answer)
    else:
        say(f"no longer silenced: {_silenced(answer)}")


def _silence(one: SilenceView) -> str:
    return (
        f"{one.silence_id}  {_silenced(one)}  until {one.ends_at:%Y-%m-%d %H:%M:%S} UTC  "
        f"by {one.created_by}: {one.reason}"
    )


def _silenced(one: SilenceView) -> str:
    what = f"alert {one.alert}" if one.alert is not None else "all alerts"
    where = f" of {one.dag}" if one.dag is not None else ""
    which = f" with {_values(one.subject)}" if one.subject else ""
    return f"{what}{where}{which}"
