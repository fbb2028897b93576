"""Alerts, as people look at them, acknowledge and silence them.

An alert is seen by those who may read the dataset that it is about. Its values are masked, as those of personal data,
for those who may not see it; so are the answers of its receivers, which may repeat them. Readers get no names of
channels, and the alert about a channel shows its values to admins alone.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Literal
from uuid import UUID

from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access, access_of
from traceplane.auth.roles import Role
from traceplane.errors import Conflict, Forbidden, InvalidInput, NotFound
from traceplane.gateway import alert_tests, partition_names
from traceplane.gateway.file_reading import FileReading
from traceplane.http_service.routes import Call, Route
from traceplane.model.dag import Dag
from traceplane.model.hidden_values import PLACEHOLDER
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Kind
from traceplane.model.near_names import near
from traceplane.model.partitions import Partitions
from traceplane.model.runtimes import Runtime
from traceplane.operators.alerting import ROUTE, found_dataset
from traceplane.operators.platform_alerts import DEAD_DELIVERIES, DEFINITIONS
from traceplane.postgres import alert_views, deliveries, registry
from traceplane.postgres.alert_views import KnownAlert, ListedAlert, QueuedMessage, Readable, Silence
from traceplane.postgres.database import Transaction, retry_on_conflict
from traceplane.postgres.deliveries import NewDelivery
from traceplane.query.datasets import QueryCaller
from traceplane.query.service import Queries
from traceplane.registry.spec import dag_file, normalized
from traceplane.wire.alerts import (
    MOST_ACKNOWLEDGED,
    MOST_SILENCES,
    AlertDetail,
    AlertMessageView,
    AlertQuery,
    AlertsAcknowledged,
    AlertSelection,
    AlertsResponse,
    AlertSummary,
    AlertSummaryQuery,
    AlertSummaryResponse,
    AlertTestRequest,
    AlertTestResponse,
    AlertView,
    SilenceQuery,
    SilenceRequest,
    SilencesResponse,
    SilenceView,
)

READER, WRITER = "reader", "writer"
_IDS_AUDITED = 50


class AlertApi:
    def __init__(self, queries: Queries, runtimes: Mapping[str, Runtime]) -> None:
        self._queries, self._runtimes = queries, runtimes
        self._files = FileReading()

    def close(self) -> None:
        self._files.close()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/alerts", None, AlertsResponse, self.listed, READER,
                  "Alerts that were found, newest first.", query=AlertQuery),
            Route("GET", "/api/v1/alerts/{alert_id}", None, AlertDetail, self.one, READER,
                  "One alert with its messages."),
            Route("GET", "/api/v1/alert-summary", None, AlertSummaryResponse, self.summary, READER,
                  "How many alerts were found, sent and suppressed.", query=AlertSummaryQuery),
            Route("POST", "/api/v1/alerts/acknowledge", AlertSelection, AlertsAcknowledged, self.acknowledge, WRITER,
                  "Acknowledge alerts."),
            Route("POST", "/api/v1/alerts/test", AlertTestRequest, AlertTestResponse, self.test, WRITER,
                  "What an alert would raise over committed rows."),
            Route("GET", "/api/v1/alert-silences", None, SilencesResponse, self.silences, READER,
                  "Silences that hold now, newest first.", query=SilenceQuery),
            Route("POST", "/api/v1/alert-silences", SilenceRequest, SilenceView, self.silence, WRITER,
                  "Send no alerts of a kind for a while."),
            Route("DELETE", "/api/v1/alert-silences/{silence_id}", None, SilenceView, self.unsilence, WRITER,
                  "End a silence."),
        ]  # fmt: skip

    # Looking ---------------------------------------------------------------------------------------

    async def listed(self, call: Call[None]) -> AlertsResponse:
        query: AlertQuery = call.query
        caller = call.principal
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            found = await alert_views.listed(
                tx,
                caller.org_id,
                _readable(access),
                dag=query.dag,
                alert=query.alert,
                state=query.state,
                after=query.after,
                limit=query.limit,
            )
            if not found:
                await _refuse_unknown(tx, caller, access, query.dag, query.alert)
            views = await _views(tx, caller, found)
        return AlertsResponse(views, found[-1].alert_id if len(found) == query.limit else None)

    async def one(self, call: Call[None]) -> AlertDetail:
        caller, alert_id = (
            call.principal,
            _id(call.path_params["alert_id"], "alert.bad_id", "the id of an alert is a UUID"),
        )
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            found = await alert_views.listed(tx, caller.org_id, _readable(access), alert_id=alert_id, limit=1)
            if not found:
                raise NotFound(
                    "alert.unknown",
                    "there is no such alert",
                    value=str(alert_id),
                    next_step="see `traceplane alert list`",
                )
            (alert,) = found
            (view,) = await _views(tx, caller, found)
            messages = await alert_views.messages(tx, caller.org_id, {alert.key, alert.incident})
        return AlertDetail(
            view,
            [_message_view(message, caller, view) for message in messages],
            text=(alert.body and PLACEHOLDER) if view.hides_personal_data else alert.body,
            occurrence=alert.occurrence,
        )

    async def summary(self, call: Call[None]) -> AlertSummaryResponse:
        query: AlertSummaryQuery = call.query
        caller = call.principal
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            counts = await alert_views.counts(tx, caller.org_id, _readable(access), query.dag, query.alert)
            if not counts:
                await _refuse_unknown(tx, caller, access, query.dag, query.alert)
        by_alert: dict[tuple[str, str], list[alert_views.AlertCounts]] = {}
        for count in counts:
            by_alert.setdefault((count.dag, count.alert), []).append(count)
        return AlertSummaryResponse([_summary(*alert, of_alert) for alert, of_alert in by_alert.items()])

    async def test(self, call: Call[AlertTestRequest]) -> AlertTestResponse:
        caller, asked = call.principal, call.body
        written = None
        if asked.text is not None:  # a hostile file may take seconds to refuse
            known = frozenset(self._runtimes)
            parse = partial(dag_file.parse, asked.text, asked.file, known_runtimes=known)
            written = await self._files.read(caller.org, caller.counted_as, parse)
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            dag = written or await _deployed(tx, caller, access, asked)
            if not any(job.operator == ROUTE and job.generated_for == asked.alert for job in dag.jobs):
                names = [j.generated_for for j in dag.jobs if j.operator == ROUTE and j.generated_for]
                raise NotFound(
                    "alert.unknown",
                    f"the DAG {dag.name} has no alert of this name",
                    value=asked.alert[:200],
                    next_step=near(asked.alert, names) or "name an alert of the DAG",
                )
            silences = await _shown(tx, caller, access, await alert_views.silences(tx, caller.org_id))
            tested = await alert_tests.look_up(
                tx, caller, access, dag, asked.alert, (asked.start, asked.end), silences
            )
        asker = QueryCaller(
            *(caller.org, caller.name, str(caller.role), caller.sees_pii, caller.roles, caller.datasets),
            counted_as=caller.counted_as,
        )
        return await alert_tests.run(self._queries, caller, asker, tested)

    # Acknowledging ---------------------------------------------------------------------------------

    async def acknowledge(self, call: Call[AlertSelection]) -> AlertsAcknowledged:
        caller, asked = call.principal, call.body

        async def once() -> AlertsAcknowledged:
            async with caller.database.transaction() as tx:
                access = await access_of(tx, caller.org, caller)
                readable = _readable(access)
                done = await alert_views.acknowledge(
                    tx,
                    caller.org_id,
                    readable,
                    ids=asked.alert_ids,
                    dag=asked.dag,
                    alert=asked.alert,
                    most=MOST_ACKNOWLEDGED,
                    by=caller.name,
                )
                if not done:
                    await _refuse_unknown(tx, caller, access, asked.dag, asked.alert)
                await _tell(tx, caller.org_id, done)
                ids = [alert.alert_id for alert in done]
                unchanged = [alert_id for alert_id in asked.alert_ids if alert_id not in set(ids)]
                why = await alert_views.why_not_acknowledged(tx, caller.org_id, readable, unchanged)
                caller.act.object["alerts"] = ", ".join(map(str, ids[:_IDS_AUDITED]))
            return AlertsAcknowledged(
                ids,
                {str(alert_id): reason for alert_id, reason in why.items()},  # type: ignore[misc]
                more=asked.alert is not None and len(ids) == MOST_ACKNOWLEDGED,
            )

        return await retry_on_conflict(once)

    # Silences --------------------------------------------------------------------------------------

    async def silences(self, call: Call[None]) -> SilencesResponse:
        query: SilenceQuery = call.query
        caller = call.principal
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            shown = await _shown(tx, caller, access, await alert_views.silences(tx, caller.org_id))
        left = [silence for silence in shown if query.after is None or silence.silence_id < query.after]
        page = left[: query.limit]
        after = page[-1].silence_id if len(left) > len(page) else None
        return SilencesResponse([_silence_view(silence) for silence in page], after)

    async def silence(self, call: Call[SilenceRequest]) -> SilenceView:
        caller, asked = call.principal, call.body
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            if access.is_limited and (asked.dag is None or asked.alert is None):
                raise Forbidden(
                    "access.silence_all",
                    "you may not read all datasets, so you silence one alert at a time",
                    value=caller.name,
                    next_step="name the DAG and the alert",
                )
            await _refuse_unknown(tx, caller, access, asked.dag, asked.alert)
            _check_subject(asked, await _meant(tx, caller, access, asked.dag, asked.alert))
            made = await alert_views.silence(
                tx,
                caller.org_id,
                dag=asked.dag,
                alert=asked.alert,
                subject=asked.subject,
                lasts=timedelta(seconds=asked.seconds),
                reason=asked.reason,
                by=caller.name,
                most=MOST_SILENCES,
            )
            if made is None:
                raise Conflict(
                    "silence.too_many",
                    f"{MOST_SILENCES} silences hold in the organization",
                    value=asked.alert,
                    next_step="silence more alerts at once, with fewer values of their subjects; or end silences: "
                    "see `traceplane alert silences`",
                )
            caller.act.object["silence"] = str(made.silence_id)
        return _silence_view(made)

    async def unsilence(self, call: Call[None]) -> SilenceView:
        caller, silence_id = (
            call.principal,
            _id(call.path_params["silence_id"], "silence.bad_id", "the id of a silence is a UUID"),
        )
        async with caller.database.transaction() as tx:
            access = await access_of(tx, caller.org, caller)
            held = await alert_views.silences(tx, caller.org_id)
            shown = await _shown(tx, caller, access, [one for one in held if one.silence_id == silence_id])
            if not shown:
                raise NotFound(
                    "silence.unknown",
                    "no such silence holds now",
                    value=str(silence_id),
                    next_step="see `traceplane alert silences`",
                )
            await alert_views.unsilence(tx, caller.org_id, silence_id)
        return _silence_view(shown[0])


def _readable(access: Access) -> Readable:
    hidden = sorted(f"{dag}/{job}" for dag, job in access.hidden)
    return Readable(sorted(access.unreadable), hidden if access.within is None else None)


def _id(text: str, code: str, message: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(code, message, value=text[:200]) from None


async def _deployed(tx: Transaction, caller: Caller, access: Access, asked: AlertTestRequest) -> Dag:
    await _refuse_unknown(tx, caller, access, asked.dag, asked.alert)
    assert asked.dag is not None
    version = await registry.active_version(tx, caller.org, asked.dag)
    if version is None:
        raise NotFound(
            "dag.unknown", "no such DAG is deployed", value=asked.dag, next_step="see `traceplane dags`"
        )
    return normalized.load(version.spec)


async def _known(tx: Transaction, caller: Caller) -> list[KnownAlert]:
    own = [KnownAlert("", alert.name, None, list(alert.subject)) for alert in DEFINITIONS]
    return [*own, *await alert_views.known(tx, caller.org_id)]


async def _meant(
    tx: Transaction, caller: Caller, access: Access, dag: str | None, alert: str | None
) -> list[KnownAlert]:
    """The alerts with this name, as far as the caller may see them."""
    return [
        known
        for known in await _known(tx, caller)
        if dag in (None, known.dag)
        and alert in (None, known.alert)
        and (access.within is None if known.dataset_id is None else access.reads(known.dataset_id))
    ]


async def _refuse_unknown(
    tx: Transaction, caller: Caller, access: Access, dag: str | None, alert: str | None
) -> None:
    if (dag is None and alert is None) or await _meant(tx, caller, access, dag, alert):
        return
    known = await _meant(tx, caller, access, None, None)
    dags = {one.dag for one in known} - {""}
    if dag is not None and dag not in dags:
        raise NotFound(
            "alert.unknown",
            "no DAG of this name has alerts",
            value=dag[:200],
            next_step=near(dag, sorted(dags)) or "see `traceplane dags`",
        )
    names = sorted({one.alert for one in known if dag in (None, one.dag)})
    assert alert is not None
    raise NotFound(
        "alert.unknown",
        "there is no alert of this name" if dag is None else f"the DAG {dag} has no alert of this name",
        value=alert[:200],
        next_step=near(alert, names) or "see `traceplane alert summary`",
    )


# What people see of an alert -------------------------------------------------------------------------


async def _views(tx: Transaction, caller: Caller, found: Sequence[ListedAlert]) -> list[AlertView]:
    about = {(alert.dag, alert.alert, alert.dataset_id) for alert in found}
    hidden = await _hidden_parts(tx, caller, about)
    positions = await _positions(tx, caller.org, found)
    views = []
    for alert in found:
        parts = hidden.get((alert.dag, alert.alert, alert.dataset_id), frozenset())
        view = AlertView(
            alert_id=alert.alert_id,
            dag=alert.dag,
            alert=alert.alert,
            state=alert.state,
            severity=alert.severity,
            # That of the platform's own has names alone, of what its subject is.
            title=PLACEHOLDER if parts and (alert.dag or "subject" in parts) else alert.title,
            found_at=alert.found_at,
            event_time=None if "event_time" in parts else alert.event_time,
            dataset=alert.dataset_id,
            subject=_masked(alert.subject) if "subject" in parts else alert.subject,
            fields=_masked(alert.fields) if "fields" in parts else alert.fields,
            position=positions.get(alert.alert_id),
            suppressed=alert.suppressed,
            owner=alert.owner,
            channels=alert.channels if _knows_channels(caller) else [],
            retracted_at=alert.retracted_at,
            acknowledged_at=alert.acknowledged_at,
            acknowledged_by=alert.acknowledged_by,
            hides_personal_data=bool(parts),
        )
        views.append(view)
    return views


async def _hidden_parts(
    tx: Transaction, caller: Caller, about: Collection[alert_views.About]
) -> dict[alert_views.About, frozenset[str]]:
    """Which parts of these alerts the caller may not see."""
    hidden = {} if caller.sees_pii else await alert_views.personal_parts(tx, caller.org_id, about)
    if not caller.is_admin:
        hidden |= {one: frozenset({"subject"}) for one in about if one[:2] == ("", DEAD_DELIVERIES.name)}
    return hidden


def _knows_channels(caller: Caller) -> bool:
    """Writers name them in their DAGs; to readers they are none of their business."""
    return caller.role in (Role.WRITER, Role.ADMIN)


def _message_view(message: QueuedMessage, caller: Caller, alert: AlertView) -> AlertMessageView:
    return AlertMessageView(
        **asdict(message)
        | ({} if _knows_channels(caller) else {"channel": PLACEHOLDER})
        | ({"reason": message.reason and PLACEHOLDER} if alert.hides_personal_data else {})
    )


def _masked(values: JsonObject) -> JsonObject:
    return dict.fromkeys(values, PLACEHOLDER)


async def _positions(tx: Transaction, org: str, found: Sequence[ListedAlert]) -> dict[UUID, str]:
    """As scopes are written."""
    ids = {found_dataset(alert.dag, alert.alert) for alert in found}
    stored = await registry.datasets_by_id(
        tx, org, sorted(ids | {a.dataset_id for a in found if a.dataset_id})
    )
    written: dict[UUID, str] = {}
    by_partitions: dict[Partitions, list[ListedAlert]] = {}
    for alert in found:
        if alert.position is not None and alert.dag:
            dataset = stored.get(found_dataset(alert.dag, alert.alert)) or stored.get(alert.dataset_id or "")
            partitions = dataset.partitions if dataset is not None else Partitions()
            by_partitions.setdefault(partitions, []).append(alert)
    for partitions, alerts in by_partitions.items():
        ranges = [(alert.position, alert.position) for alert in alerts]
        texts = await partition_names.written(tx, org, partitions, ranges)  # type: ignore[arg-type]
        written |= {alert.alert_id: text for alert, text in zip(alerts, texts, strict=True)}
    return written


def _summary(dag: str, alert: str, counts: Sequence[alert_views.AlertCounts]) -> AlertSummary:
    return AlertSummary(
        dag,
        alert,
        found=sum(count.found for count in counts),
        sent=sum(count.found for count in counts if count.suppressed is None),
        retracted=sum(count.retracted for count in counts),
        open=sum(count.open for count in counts),
        last_found_at=max(count.last_found_at for count in counts),
        suppressed={count.suppressed: count.found for count in counts if count.suppressed is not None},
    )


# Acknowledgements and silences -----------------------------------------------------------------------


async def _tell(tx: Transaction, org_id: UUID, done: Sequence[alert_views.Acknowledged]) -> None:
    """Whoever got an alert is told that somebody is dealing with it. Those of a group were one message, and are one
    incident to whoever got it."""
    alerts = [alert for alert in done if alert.suppressed is None]
    sent = await deliveries.sent(
        tx,
        org_id,
        sorted({alert.incident for alert in alerts}),
        sorted({alert.message_key for alert in alerts}),
    )
    await deliveries.queue(
        tx,
        [
            NewDelivery(
                org_id,
                one.channel_id,
                replace(
                    one.message,
                    key=f"{one.message.key}-{Kind.ACKNOWLEDGEMENT}",
                    kind=Kind.ACKNOWLEDGEMENT,
                ),
            )
            for one in sent
        ],
    )


def _check_subject(asked: SilenceRequest, meant: Sequence[KnownAlert]) -> None:
    """A column that no subject has would silence nothing."""
    columns = {column for alert in meant for column in alert.subject or ()}
    for column in asked.subject if columns else ():
        if column not in columns:
            raise InvalidInput(
                "silence.unknown_column",
                "no subject of such an alert has this column",
                value=column[:200],
                next_step=near(column, sorted(columns)) or f"name one of {', '.join(sorted(columns))}",
            )


async def _shown(
    tx: Transaction, caller: Caller, access: Access, held: Sequence[Silence]
) -> Sequence[Silence]:
    """These silences, without what the caller may not see of them."""
    if not held or (caller.is_admin and caller.sees_pii and not access.is_limited):
        return held
    known = await _known(tx, caller)
    parts = await _hidden_parts(tx, caller, {(one.dag, one.alert, one.dataset_id) for one in known})
    # What silences mean, found by what they name: there may be a thousand of them, and as many alerts.
    by_name: dict[tuple[str | None, str | None], list[KnownAlert]] = defaultdict(list)
    for one in known:
        for name in itertools.product((None, one.dag), (None, one.alert)):
            by_name[name].append(one)

    @functools.cache
    def judged(dag: str | None, alert: str | None) -> Literal["hidden", "masked", "shown"]:
        meant = by_name.get((dag, alert), [])
        unreadable = [a for a in meant if a.dataset_id is not None and not access.reads(a.dataset_id)]
        if alert is not None and meant and len(unreadable) == len(meant):
            return "hidden"
        masked = unreadable or any("subject" in parts.get((a.dag, a.alert, a.dataset_id), ()) for a in meant)
        return "masked" if masked else "shown"

    judgements = [(silence, judged(silence.dag, silence.alert)) for silence in held]
    return [
        replace(silence, subject=_masked(silence.subject)) if judgement == "masked" else silence
        for silence, judgement in judgements
        if judgement != "hidden"
    ]


def _silence_view(silence: Silence) -> SilenceView:
    return SilenceView(**asdict(silence))
