"""Alerts: rows that an evaluation found become messages, once each; what is gone is taken back.

A task names positions at which rows changed. The rows that are there now are compared with the alerts known there:
what is new is sent, what is gone is retracted. All of it is one transaction with the end of the task, so whoever
crashes, an alert is known, queued for its channels and done with, or none of it.

Nothing is sent for history: what a backfill or a deploy computes again, or what happened too long ago, is only
recorded, with the reason. A version that is being built tells nobody either; when it begins to serve, it gets tasks for
what it alone has found since, so that no alert is lost between two versions.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.delivery.templates import BEFORE_WORDING, TextTemplate, known_names, worded
from traceplane.dispatcher.in_process.former_alerts import FormerAlerts
from traceplane.dispatcher.in_process.operator import InProcessJob, Misconfigured, Work
from traceplane.errors import InvalidInput
from traceplane.model.json_object import JsonObject
from traceplane.model.message import LONGEST_TEXT, Kind, Message, Severity, as_json
from traceplane.model.positions import Range, merged, without
from traceplane.operators.alerting import Each, RouteConfig
from traceplane.postgres import alert_handovers, alerts, deliveries
from traceplane.postgres.alerts import BUILDING, Found, FoundRow, KnownAlert, NewAlert, Route
from traceplane.postgres.database import Transaction
from traceplane.postgres.deliveries import NewDelivery
from traceplane.postgres.tasks import QueuedTask
from traceplane.wire.tasks import TaskError

_T = TypeVar("_T")

MOST_ALERTS = 10_000
"""Of one task: nobody reads more, and the condition is probably wrong."""
MOST_BYTES = 16 << 20
"""Of the rows of one pass: all organizations wait for it. What is left is done by the next ones."""
LONGEST_SUBJECT = 10_000
"""As JSON, in characters. All of it tells alerts apart, so it cannot be cut."""
_TEXTS_PER_PASS, _LEAST_TEXT = 20_000_000, 1_000
"""Characters; the more messages there are, the shorter are their texts, but not shorter than the least."""
_ROWS_AT_A_TIME = 100
"""Before others have their turn."""
_GROUPED_TITLES = 20
_TOO_MANY = TaskError(
    "alert.too_many",
    f"the condition finds more than {MOST_ALERTS} rows in one task",
    next_step="make the condition narrower, and backfill the scope",
    retryable=False,
)
_TOO_LARGE = TaskError(
    "alert.too_large",
    f"the rows found at one position have more than {MOST_BYTES >> 20} MB",
    next_step="send fewer or shorter columns, and backfill the scope",
    retryable=False,
)
_SUBJECT_TOO_LONG = TaskError(
    "alert.subject_too_long",
    f"the subject of a row has more than {LONGEST_SUBJECT} characters",
    next_step="name columns with short values as the subject, and backfill the scope",
    retryable=False,
)

BACKFILL, STALE, SILENCED, THROTTLED, NO_CHANNEL = (
    "backfill", "stale", "silenced", "throttled", "no_channel",
)  # fmt: skip


async def run(tx: Transaction, job: InProcessJob, batch: Sequence[QueuedTask]) -> Work:
    try:
        config = msgspec.convert(job.config, RouteConfig)
    except msgspec.ValidationError as error:
        raise Misconfigured(str(error)) from None
    source = job.inputs[0]
    route = await alerts.lock_route(tx, job.job_id, config.alert, source.row_generation_id, source.edge.input)
    tasks = batch
    found = await _found(tx, route, tasks)
    if found.count > MOST_ALERTS and len(tasks) > 1:  # one task at a time, to tell which one it is
        tasks = tasks[:1]
        found = await _found(tx, route, tasks)
    if found.count > MOST_ALERTS:
        return Work([], [], {tasks[0].task_id: _TOO_MANY})
    if found.refused_at is not None:
        return _failed(tasks, found.refused_at, _SUBJECT_TOO_LONG)
    end = found.left_from
    if end is not None and not found.rows:
        return _failed(tasks, end, _TOO_LARGE)
    tasks = [task for task in tasks if end is None or _start(task) < end]
    routed = merged(
        (_start(task), task.range_end if end is None else min(task.range_end, end - 1)) for task in tasks
    )
    new = await _new(tx, job.job_id, tasks)
    happened = await _happened(tx, tasks) if route.former_periods else ()
    await Comparison(tx, route, config, new, happened).compare(found.rows, routed)
    unfinished = {task.task_id: end for task in tasks if end is not None and task.range_end >= end}
    completed = [task for task in tasks if task.task_id not in unfinished]
    return Work([], completed, next_positions=unfinished)


async def _found(tx: Transaction, route: Route, tasks: Sequence[QueuedTask]) -> Found:
    ranges = merged((_start(task), task.range_end) for task in tasks)
    return await alerts.found_rows(
        tx, route.generation_id, ranges, MOST_ALERTS + 1, MOST_BYTES, LONGEST_SUBJECT
    )


def _start(task: QueuedTask) -> int:
    """Of what earlier passes have left of a task."""
    return task.range_start if task.next_position is None else task.next_position


def _failed(tasks: Sequence[QueuedTask], position: int, error: TaskError) -> Work:
    """The tasks with this position; the others wait for the next pass."""
    failed = (task.task_id for task in tasks if _start(task) <= position <= task.range_end)
    return Work([], [], dict.fromkeys(failed, error))


async def _new(tx: Transaction, job_id: UUID, tasks: Sequence[QueuedTask]) -> list[Range]:
    """Positions of new events, in these tasks or still on their way: a backfill must not take them for history."""
    ranges = [(task.range_start, task.range_end) for task in tasks if not task.backfill]
    if again := merged((task.range_start, task.range_end) for task in tasks if task.backfill):
        ranges += await alert_handovers.awaited(tx, job_id, again, [task.task_id for task in tasks])
    return merged(ranges)


async def _happened(tx: Transaction, tasks: Sequence[QueuedTask]) -> list[Range]:
    """Positions of new events in these tasks, without those that other versions have left."""
    left = await alerts.without_events(tx, [task.task_id for task in tasks])
    return [
        (task.range_start, task.range_end) for task in tasks if not task.backfill and task.task_id not in left
    ]


class Comparison:
    """Of the rows that are there with the alerts that are known."""

    def __init__(
        self,
        tx: Transaction,
        route: Route,
        config: RouteConfig,
        new: Sequence[Range],
        happened: Sequence[Range] = (),
    ) -> None:
        """`new`: the positions that are no history; `happened`: those of them that no other version has left."""
        self._tx, self._route, self._config, self._new = tx, route, config, merged(new)
        self._happened, self._former = merged(happened), FormerAlerts((), route.periods)
        self._title, self._text = _templates(config)
        self._subjects: dict[str, JsonObject] = {}
        """Of the rows that are there, by their keys, as in messages."""

    async def compare(self, rows: Sequence[FoundRow], routed: Sequence[Range]) -> int:
        """Returns how many alerts are new or gone."""
        found: dict[str, FoundRow] = {}
        async for row in _in_turns(rows):
            subject = _plain(row.subject)
            key = _key(self._route, row, subject)
            found[key], self._subjects[key] = row, subject
        known = await alerts.known(self._tx, self._route, list(found), routed)
        self._former = FormerAlerts((a for a in known.values() if a.subject is not None), self._route.periods)
        known = {key: alert for key, alert in known.items() if alert.subject is None}
        new = await self._see(found, known)
        gone = [alert for key, alert in known.items() if key not in found and self._is_gone(alert)]
        if gone:
            await self._take_back(gone)
        if self._route.former_periods and not self._route.building:
            await self._take_back_former()
        return new + len(gone)

    # What is there ------------------------------------------------------------------------------

    async def _see(self, found: Mapping[str, FoundRow], known: Mapping[str, KnownAlert]) -> int:
        """Returns how many are new."""
        again = [key for key in found if key in known and not self._is_news(known[key])]
        if again:
            await alerts.see_again(self._tx, self._route, again)
        news = {key: row for key, row in found.items() if key not in known or self._is_news(known[key])}
        if not news:
            return 0
        occurrences = {
            key: known[key].occurrence + known[key].retracted if key in known else 1 for key in news
        }
        messages = await self._messages(news, occurrences)
        channels = await deliveries.channels_by_name(self._tx, self._route.org_id, self._config.channels)
        due = {key for key in news if key in known and self._is_due(known[key])}
        due |= {
            key
            for key, message in messages.items()
            if key not in known and self._former.is_released(_plain(message.subject), news[key].position)
        }
        reasons = await self._reasons(news, messages, due, bool(channels))
        sent = self._grouped([message for key, message in messages.items() if key not in reasons])
        incident = sent[0].incident if len(sent) == 1 else None
        await alerts.add(
            self._tx,
            self._route,
            [
                _stored(
                    news[key],
                    messages[key],
                    occurrences[key],
                    (not reasons.get(key) and incident) or key,
                    reasons.get(key),
                )
                for key in news
            ],
            self._config.dataset,
            self._config.owner,
            self._config.channels,
        )
        await deliveries.queue(
            self._tx,
            [
                NewDelivery(self._route.org_id, channel, message)
                for message in sent
                for channel in channels.values()
            ],
        )
        telemetry.count("alerts_found_total", len(news))
        for reason, count in Counter(reasons.values()).items():
            telemetry.count("alerts_suppressed_total", count, reason=reason)
        return len(news)

    def _is_news(self, known: KnownAlert) -> bool:
        """It was gone, or nobody was told of it by a version to which it was no news."""
        if known.retracted or self._is_due(known):
            return True
        if known.suppressed is None:
            return False
        if self._route.building:  # a version that was given up had found it
            return known.suppressed == BUILDING and not known.is_ours and not known.released
        if (
            self._route.job_id is None
        ):  # the platform's own: a channel for them may be set while something lasts
            return known.suppressed == NO_CHANNEL and bool(self._config.channels)
        return self._is_new(known.position) and (known.suppressed == BUILDING or not known.is_ours)

    def _is_due(self, known: KnownAlert) -> bool:
        """This version found it when it did not serve yet, or one did that was replaced before it could send it."""
        held = known.suppressed == BUILDING and (known.is_ours or known.released)
        return held and not known.retracted and not self._route.building

    def _is_new(self, position: int) -> bool:
        """Not history."""
        return _has(self._new, position)

    async def _reasons(
        self,
        news: Mapping[str, FoundRow],
        messages: Mapping[str, Message],
        due: Set[str],
        has_channels: bool,
    ) -> dict[str, str]:
        """Why alerts are not sent; those that are sent have none."""
        silences = await alerts.silences(self._tx, self._route)
        reasons: dict[str, str] = {}
        async for key, row in _in_turns(news.items()):
            reason = (
                self._history(row, messages[key], is_due=key in due)
                or (SILENCED if silences.hold(self._subjects[key]) else None)
                or (NO_CHANNEL if not has_channels else None)
            )
            if reason is not None:
                reasons[key] = reason
        throttled = await self._throttled({key: messages[key] for key in news if key not in reasons})
        return reasons | dict.fromkeys(throttled, THROTTLED)

    def _history(self, row: FoundRow, message: Message, *, is_due: bool) -> str | None:
        if not is_due and not self._is_new(row.position):
            return BACKFILL
        # What another version has left may be about any row of its periods.
        is_left = is_due or not _has(self._happened, row.position)
        if is_left and self._former.was_known(_plain(message.subject), row.position):
            return BACKFILL
        stale_after = self._config.stale_after_seconds
        if stale_after is not None and message.event_time < self._route.now - timedelta(seconds=stale_after):
            return STALE
        return BUILDING if self._route.building else None

    async def _throttled(self, messages: Mapping[str, Message]) -> list[str]:
        """Those for which the throttle is used up, by earlier ones or by the first of these."""
        throttle = self._config.throttle
        if throttle is None or not messages:
            return []
        # By the subjects that are stored, which may be shorter than those of the rows.
        subjects: dict[bytes, JsonObject] = {}
        buckets: dict[str, bytes] = {}
        async for key, message in _in_turns(messages.items()):
            subject = {} if throttle.each is Each.ALERT else _plain(message.subject)
            buckets[key] = _canonical(subject)
            subjects[buckets[key]] = subject
        since = (self._tx, self._route, throttle.per_seconds, throttle.most)
        if throttle.each is Each.ALERT:
            counts = [await alerts.sent_since(*since)]
        else:
            counts = await alerts.sent_about(*since, list(subjects.values()))
        used = Counter(dict(zip(subjects, counts, strict=True)))
        throttled = []
        for key, bucket in buckets.items():
            if used[bucket] >= throttle.most:
                throttled.append(key)
            else:
                used[bucket] += 1
        return throttled

    async def _messages(
        self, news: Mapping[str, FoundRow], occurrences: Mapping[str, int]
    ) -> dict[str, Message]:
        scopes = await self._scopes(row.position for row in news.values())
        longest_text = max(_LEAST_TEXT, min(LONGEST_TEXT, _TEXTS_PER_PASS // len(news)))
        messages = {}
        async for key, row in _in_turns(news.items()):
            bare = self._bare(key, occurrences[key], row, scopes)
            messages[key] = worded(bare, self._title, self._text, longest_text=longest_text)
        return messages

    async def _scopes(self, positions: Iterable[int]) -> dict[int, str]:
        return await alerts.written_positions(self._tx, *self._route.identity, set(positions))

    def _bare(self, key: str, occurrence: int, row: FoundRow, scopes: Mapping[int, str]) -> Message:
        """Without its wording."""
        return Message(
            key=alerts.message_key(key, occurrence),
            incident=key,
            kind=Kind.ALERT,
            alert=self._config.alert,
            severity=Severity(self._config.severity),
            title="",
            text="",
            event_time=row.event_time or self._route.now,
            subject=row.subject,
            fields=row.fields,
            dag=self._route.dag or None,
            position=scopes.get(row.position),
        )

    def _grouped(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Many at once as one message, if the alert says so."""
        above = self._config.group_above
        if above is None or len(messages) <= above:
            return messages
        first = messages[0]
        key = hashlib.sha256(" ".join(sorted(message.key for message in messages)).encode()).hexdigest()
        titles = [message.title for message in messages[:_GROUPED_TITLES]]
        if len(messages) > len(titles):
            titles.append(f"… and {len(messages) - len(titles)} more")
        grouped = Message(
            key=key,
            incident=key,
            kind=Kind.ALERT,
            alert=first.alert,
            severity=first.severity,
            title=f"{len(messages)} alerts: {first.alert}",
            text="\n".join(titles),
            event_time=max(message.event_time for message in messages),
            count=len(messages),
            dag=first.dag,
            position=first.position if len({message.position for message in messages}) == 1 else None,
        )
        return [grouped.bounded()]

    # What is gone -------------------------------------------------------------------------------

    def _is_gone(self, known: KnownAlert) -> bool:
        """For this version. The one that serves also speaks for those before it when something new happens, but not
        for one that is being built."""
        if known.retracted or known.is_ours:
            return not known.retracted
        speaks = not self._route.building and (self._is_new(known.position) or known.released)
        return speaks and (known.suppressed is None or not known.is_built)

    async def _take_back(self, gone: Sequence[KnownAlert]) -> None:
        keys = [alert.key for alert in gone]
        if self._route.building:
            await alerts.forget_by_generation(self._tx, self._route, keys)
            return
        retracted = await alerts.retract(self._tx, self._route, keys)
        telemetry.count("alerts_retracted_total", len(gone))
        scopes = await self._scopes(alert.position for alert in gone) if retracted else {}
        sent = await deliveries.withdraw(self._tx, self._route.org_id, [alert.key for alert in retracted])
        received = {(one.message.key, one.channel_id) for one in sent}
        # A correction by hand is history too: whoever made it need not be told.
        told = {alert.key for alert in gone if alert.subject is not None or self._is_new(alert.position)}
        channels = await deliveries.channels_by_name(
            self._tx, self._route.org_id, list({name for alert in retracted for name in alert.channels})
        )
        await deliveries.queue(
            self._tx,
            [
                NewDelivery(self._route.org_id, channels[name], alert.message(Kind.RETRACTION, scopes))
                for alert in retracted
                for name in alert.channels
                if alert.key in told
                and name in channels
                and (
                    alert.incident != alert.key
                    or (alerts.message_key(alert.key, alert.occurrence), channels[name]) in received
                )
            ],
        )
        await self._end_groups({a.incident for a in retracted if a.incident != a.key and a.key in told})
        await self._hold([alert for alert in gone if alert.is_built and alert.subject is None])

    async def _take_back_former(self) -> None:
        """Alerts of other periods about which nothing is found here any more. One that was to be sent is sent as one of
        these, if it is found."""
        concerned = self._former.concerned(self._new)
        there = await alerts.still_there(
            self._tx, self._route, [(alert, self._former.here(alert)) for alert in concerned]
        )
        if gone := [alert for alert in concerned if alert.is_released or alert.key not in there]:
            await self._take_back(gone)

    async def _end_groups(self, incidents: set[str]) -> None:
        """A message about many alerts is retracted when the last of them is."""
        over = await alerts.ended_incidents(self._tx, self._route, sorted(incidents)) if incidents else []
        sent = await deliveries.withdraw(self._tx, self._route.org_id, over) if over else []
        await deliveries.queue(
            self._tx,
            [NewDelivery(self._route.org_id, one.channel_id, retraction_of(one.message)) for one in sent],
        )

    async def _hold(self, gone: Sequence[KnownAlert]) -> None:
        """Leaves to the version that is being built what it has found, unless it will see by itself that it is gone."""
        if not gone or self._route.job_id is None:
            return
        positions = merged((alert.position, alert.position) for alert in gone)
        coming = await alert_handovers.awaited(
            self._tx, self._route.job_id, positions, by_the_one_being_built=True
        )
        held = [a.key for a in gone if without([(a.position, a.position)], coming)]
        if held:
            await alerts.hold(self._tx, self._route, held)


def _has(ranges: Sequence[Range], position: int) -> bool:
    """Of ordered ranges."""
    nth = bisect_right(ranges, position, key=lambda positions: positions[0])
    return nth > 0 and position <= ranges[nth - 1][1]


async def _in_turns(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Lets others have their turn now and then: one organization's rows must not hold up the dispatcher."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % _ROWS_AT_A_TIME == 0:
            await asyncio.sleep(0)


def _templates(config: RouteConfig) -> tuple[TextTemplate, TextTemplate]:
    names = known_names(config.subject, config.fields, fixed=BEFORE_WORDING)
    try:
        return TextTemplate.parse(config.title, names), TextTemplate.parse(config.text, names)
    except InvalidInput as error:
        raise Misconfigured(error.message) from None


def _key(route: Route, row: FoundRow, subject: JsonObject) -> str:
    identity = [str(route.org_id), route.dag, route.alert, row.position, row.emission, subject]
    return hashlib.sha256(_canonical(identity)).hexdigest()


def _canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _plain(values: Mapping[str, object]) -> JsonObject:
    return {name: as_json(value) for name, value in values.items()}  # type: ignore[arg-type]


def _stored(
    row: FoundRow, message: Message, occurrence: int, incident: str, suppressed: str | None
) -> NewAlert:
    return NewAlert(
        message.incident,
        row.position,
        str(message.severity),
        message.title,
        message.text,
        _plain(message.subject),
        _plain(message.fields),
        message.event_time.astimezone(UTC),
        occurrence,
        incident,
        suppressed,
    )


def retraction_of(message: Message) -> Message:
    return replace(message, kind=Kind.RETRACTION, key=f"{message.key}-{Kind.RETRACTION}")
