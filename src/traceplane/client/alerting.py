"""Alerts, who is told of them and how, and rows that could not be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from traceplane.client.connection import Connection, checked_arguments, every, quoted, uuid_of
from traceplane.client.selections import all_changes, selected
from traceplane.model.json_object import JsonObject
from traceplane.wire.alerts import (
    AlertDetail,
    AlertsAcknowledged,
    AlertSelection,
    AlertsResponse,
    AlertState,
    AlertSummary,
    AlertSummaryResponse,
    AlertTestRequest,
    AlertTestResponse,
    AlertView,
    SilenceRequest,
    SilencesResponse,
    SilenceView,
    SubjectValue,
)
from traceplane.wire.channels import (
    ChannelRemoved,
    ChannelRequest,
    ChannelsResponse,
    ChannelTested,
    ChannelView,
    DeliveriesChanged,
    DeliveriesResponse,
    DeliverySelection,
    DeliveryState,
    DeliveryView,
)
from traceplane.wire.control import TaskChanges, TaskSelection
from traceplane.wire.dead_letters import DeadLetterDetail, DeadLettersResponse, DeadLetterView

_ALERTS = "/api/v1/alerts"
_SILENCES = "/api/v1/alert-silences"
_CHANNELS = "/api/v1/channels"
_DELIVERIES = "/api/v1/deliveries"
_LETTERS = "/api/v1/dead-letters"


class Alerts:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        dag: str | None = None,
        alert: str | None = None,
        state: AlertState | None = None,
        limit: int | None = None,
    ) -> Iterator[AlertView]:
        """What alerts found, newest first."""

        def page(after: UUID | None, size: int) -> tuple[Sequence[AlertView], UUID | None]:
            answer = self._connection.ask(
                "GET", _ALERTS, AlertsResponse, dag=dag, alert=alert, state=state, after=after, limit=size
            )
            return answer.alerts, answer.after

        return every(page, limit)

    def get(self, alert_id: UUID | str) -> AlertDetail:
        """One of them, with its text and its messages."""
        return self._connection.ask(
            "GET", f"{_ALERTS}/{uuid_of(alert_id, 'alert_id', 'alerts.each()')}", AlertDetail
        )

    def summary(self, *, dag: str | None = None, alert: str | None = None) -> list[AlertSummary]:
        """Counts by alert: found, sent, retracted, open, suppressed and why."""
        answer = self._connection.ask(
            "GET", "/api/v1/alert-summary", AlertSummaryResponse, dag=dag, alert=alert
        )
        return answer.alerts

    def acknowledge(
        self, *alert_ids: UUID | str, dag: str | None = None, alert: str | None = None
    ) -> AlertsAcknowledged:
        """Acknowledges some by their ids, or all open ones of an alert."""
        ids = [uuid_of(alert_id, "alert_ids", "alerts.each()") for alert_id in alert_ids]
        with checked_arguments():
            request = AlertSelection(ids, dag, alert)
        acknowledged: list[UUID] = []
        while True:
            answer = self._connection.ask("POST", f"{_ALERTS}/acknowledge", AlertsAcknowledged, request)
            acknowledged += answer.acknowledged
            if not answer.more:
                return AlertsAcknowledged(acknowledged, answer.unchanged)

    def test(
        self,
        alert: str,
        start: int | str,
        end: int | str,
        *,
        dag: str | None = None,
        file: str | Path | None = None,
    ) -> AlertTestResponse:
        """What an alert would raise over committed rows: that of a deployed DAG, or of a DAG file."""
        text, name = (None, "dag.yaml") if file is None else (Path(file).read_text(), str(file))
        with checked_arguments():
            request = AlertTestRequest(alert, start, end, dag, text, name)
        return self._connection.ask("POST", f"{_ALERTS}/test", AlertTestResponse, request)


class Silences:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(self, *, limit: int | None = None) -> Iterator[SilenceView]:
        """Silences that hold now, newest first."""

        def page(after: UUID | None, size: int) -> tuple[Sequence[SilenceView], UUID | None]:
            answer = self._connection.ask("GET", _SILENCES, SilencesResponse, after=after, limit=size)
            return answer.silences, answer.after

        return every(page, limit)

    def add(
        self,
        seconds: int,
        reason: str,
        *,
        dag: str | None = None,
        alert: str | None = None,
        subject: Mapping[str, SubjectValue] | None = None,
    ) -> SilenceView:
        """Sends no alerts for a while: none, or those of a DAG, by a name, or about a subject."""
        request = SilenceRequest(seconds, reason, dag, alert, dict(subject or {}))
        return self._connection.ask("POST", _SILENCES, SilenceView, request)

    def end(self, silence_id: UUID | str) -> SilenceView:
        path = f"{_SILENCES}/{uuid_of(silence_id, 'silence_id', 'silences.each()')}"
        return self._connection.ask("DELETE", path, SilenceView)


class Channels:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[ChannelView]:
        return self._connection.ask("GET", _CHANNELS, ChannelsResponse).channels

    def get(self, name: str) -> ChannelView:
        return self._connection.ask("GET", f"{_CHANNELS}/{quoted(name)}", ChannelView)

    def set(self, name: str, config: JsonObject, *, platform_alerts: bool = False) -> ChannelView:
        """Adds a channel, or changes it: messages that wait for it are sent as it says then. `config` names its
        `kind`: `webhook`, `slack`, `email` or `pagerduty`."""
        request = ChannelRequest(config, platform_alerts)
        return self._connection.ask("PUT", f"{_CHANNELS}/{quoted(name)}", ChannelView, request)

    def remove(self, name: str, *, drop: bool = False, force: bool = False) -> ChannelRemoved:
        """`drop`: with the messages that wait for it. `force`: even if deployed alerts are sent to it."""
        return self._connection.ask(
            "DELETE", f"{_CHANNELS}/{quoted(name)}", ChannelRemoved, drop=drop, force=force
        )

    def test(self, name: str) -> ChannelTested:
        """Sends one message now."""
        return self._connection.ask("POST", f"{_CHANNELS}/{quoted(name)}/test", ChannelTested)


class Deliveries:
    """Messages that were queued for channels."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self, *, channel: str | None = None, state: DeliveryState | None = None, limit: int | None = None
    ) -> Iterator[DeliveryView]:
        """Newest first."""

        def page(before: int | None, size: int) -> tuple[Sequence[DeliveryView], int | None]:
            answer = self._connection.ask(
                "GET",
                _DELIVERIES,
                DeliveriesResponse,
                channel=channel,
                state=state,
                before=before,
                limit=size,
            )
            return answer.deliveries, answer.before

        return every(page, limit)

    def replay(self, *delivery_ids: UUID | str, channel: str | None = None) -> DeliveriesChanged:
        """Sends dead messages again, by their ids or all of a channel, unless their alert was retracted."""
        return self._change("replay", delivery_ids, channel)

    def drop(self, *delivery_ids: UUID | str, channel: str | None = None) -> DeliveriesChanged:
        """Gives up messages that wait or are dead."""
        return self._change("drop", delivery_ids, channel)

    def _change(
        self, verb: str, delivery_ids: Sequence[UUID | str], channel: str | None
    ) -> DeliveriesChanged:
        ids = [uuid_of(each, "delivery_ids", "deliveries.each()") for each in delivery_ids]
        with checked_arguments():
            request = DeliverySelection(ids, channel)
        changed = retracted = 0
        while True:
            answer = self._connection.ask("POST", f"{_DELIVERIES}/{verb}", DeliveriesChanged, request)
            changed, retracted = changed + answer.changed, retracted + answer.retracted
            if not answer.more:
                return DeliveriesChanged(changed, retracted=retracted)


class DeadLetters:
    """Completed attempts whose rows could not be written into buffered datasets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        dag: str | None = None,
        job: str | None = None,
        dataset: str | None = None,
        limit: int | None = None,
    ) -> Iterator[DeadLetterView]:
        """Oldest first."""

        def page(after: int | None, size: int) -> tuple[Sequence[DeadLetterView], int | None]:
            answer = self._connection.ask(
                "GET",
                _LETTERS,
                DeadLettersResponse,
                dag=dag,
                job=job,
                dataset=dataset,
                after=after,
                limit=size,
            )
            return answer.letters, answer.after

        return every(page, limit)

    def get(self, task_id: UUID | str) -> DeadLetterDetail:
        """One of them, with its files and the row that was refused."""
        path = f"{_LETTERS}/{uuid_of(task_id, 'task_id', 'dead_letters.each()')}"
        return self._connection.ask("GET", path, DeadLetterDetail)

    def replay(
        self,
        *task_ids: UUID | str,
        dag: str | None = None,
        job: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> TaskChanges:
        """Lets sinks try them again."""
        return all_changes(self._page("replay"), selected(task_ids, dag, job, start, end))

    def drop(
        self,
        *task_ids: UUID | str,
        dag: str | None = None,
        job: str | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
    ) -> TaskChanges:
        """Gives them up."""
        return all_changes(self._page("drop"), selected(task_ids, dag, job, start, end))

    def _page(self, verb: str) -> Callable[[TaskSelection], TaskChanges]:
        def page(request: TaskSelection) -> Any:
            return self._connection.ask("POST", f"{_LETTERS}/{verb}", TaskChanges, request)

        return page
