"""What an alert would raise over committed rows. Nothing is sent, and nothing is written.

The condition is Spark SQL; it is translated for the engine that answers queries. So whoever tests an alert may read
what they may query, and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from traceplane.auth.callers import Caller
from traceplane.auth.rights import Access
from traceplane.delivery.templates import BEFORE_WORDING, TextTemplate, known_names, worded
from traceplane.errors import Forbidden, InvalidInput, NotFound, UserError
from traceplane.gateway import partition_names
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.model.dag import Dag, Job
from traceplane.model.message import Kind, Message, Severity, Value, as_json
from traceplane.model.positions import Range
from traceplane.model.silences import Silences
from traceplane.operators.alerting import EVALUATE, ROUTE, Each, RouteConfig, Throttle
from traceplane.postgres import deliveries, registry
from traceplane.postgres.alert_views import Silence
from traceplane.postgres.database import Transaction
from traceplane.postgres.registry import StoredDataset
from traceplane.query.datasets import QueryCaller
from traceplane.query.service import Queries
from traceplane.registry.spec import evaluation_query as spec
from traceplane.secrets.references import found_in
from traceplane.wire.alerts import MOST_SHOWN, AlertTested, AlertTestResponse

MOST_FOUND = 10_000
_MOST_SCOPES = 100
"""Of a condition that has to be evaluated scope by scope."""
_INTEGERS = ("bigint", "long", "int", "integer")
_NOT_IN_THE_ENGINE = ("query.function_denied", "query.syntax_denied")
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True, slots=True)
class Tested:
    """An alert of a DAG, deployed or not, and what decides whether it is sent."""

    config: RouteConfig
    query: str
    """Of its evaluation."""
    position: str
    """The column of the rows' positions."""
    dataset_id: str
    positions: Range
    has_channels: bool
    silences: Silences


@dataclass(frozen=True, slots=True)
class _Found:
    position: int
    subject: dict[str, Value]
    fields: dict[str, Value]
    event_time: datetime | None
    emission: str | None


async def look_up(
    tx: Transaction,
    caller: Caller,
    access: Access,
    dag: Dag,
    alert: str,
    positions: tuple[str | int, str | int],
    silences: Sequence[Silence],
) -> Tested:
    """`silences`: as the caller sees them. The file is the caller's own and may name alerts of others, so that values
    which it guesses would show whether they are silenced there."""
    jobs = {job.operator: job for job in dag.jobs if job.generated_for == alert}
    evaluate, config = jobs[EVALUATE], msgspec.convert(jobs[ROUTE].config, RouteConfig)
    if evaluate.inputs[0].dataset_id != config.dataset:
        raise _not_testable(alert, "its rows are found by a function, which runs on Spark alone")
    assert config.dataset is not None
    stored = await registry.datasets_by_id(tx, caller.org, [config.dataset])
    if config.dataset not in stored or not access.reads(config.dataset):
        raise await unknown_dataset(tx, caller.org, config.dataset, access)
    if found_in(evaluate.config["query"]):
        raise _not_testable(alert, "it refers to a secret, which only tasks receive")
    dataset = stored[config.dataset]
    partitions = await partition_names.with_names(tx, caller.org, dataset.partitions, *positions)
    return Tested(
        config,
        evaluate.config["query"],
        _position(evaluate, dataset, alert),
        config.dataset,
        partition_names.positions(partitions, *positions),
        bool(await deliveries.channels_by_name(tx, caller.org_id, config.channels)),
        Silences(
            silence.subject
            for silence in silences
            if silence.dag in (None, dag.name) and silence.alert in (None, alert)
        ),
    )


def _position(evaluate: Job, dataset: StoredDataset, alert: str) -> str:
    types = {column["name"]: column["type"] for column in dataset.definition.get("columns") or ()}
    name = dataset.definition.get("position") or spec.position_column(evaluate.config["query"])
    if name is None or types.get(name, "bigint") not in _INTEGERS:
        raise _not_testable(alert, "no column of its dataset has the positions of rows as numbers")
    return name


def _not_testable(alert: str, why: str) -> InvalidInput:
    return InvalidInput(
        "alert.not_testable",
        f"the alert cannot be tested without Spark: {why}",
        value=alert,
        next_step="deploy it and run `traceplane backfill`, which sends nothing, then see `traceplane alert list`",
    )


async def run(queries: Queries, caller: Caller, asker: QueryCaller, tested: Tested) -> AlertTestResponse:
    found: dict[bytes, _Found] = {}
    for positions in _scopes(tested):
        sql = _sql(tested, positions)
        for row in await _rows(queries, caller, asker, tested, sql):
            identity = [row.position, row.emission, {name: as_json(v) for name, v in row.subject.items()}]
            found.setdefault(msgspec.json.encode(identity, order="sorted"), row)
    rows = sorted(found.values(), key=lambda row: (row.event_time or _NO_TIME, row.position))
    reasons = await asyncio.to_thread(_reasons, tested, rows)
    title = TextTemplate.parse(
        tested.config.title, known_names(tested.config.subject, tested.config.fields, fixed=BEFORE_WORDING)
    )
    async with caller.database.transaction() as tx:
        stored = (await registry.datasets_by_id(tx, caller.org, [tested.dataset_id]))[tested.dataset_id]
        shown = list(zip(rows, reasons, strict=True))[:MOST_SHOWN]
        written = await partition_names.written(
            tx, caller.org, stored.partitions, [(row.position, row.position) for row, _ in shown]
        )
    return AlertTestResponse(
        len(rows),
        [
            AlertTested(
                title=_titled(title, tested.config, row),
                position=position,
                subject={name: as_json(value) for name, value in row.subject.items()},
                fields={name: as_json(value) for name, value in row.fields.items()},
                event_time=row.event_time,
                suppressed=reason,
            )
            for (row, reason), position in zip(shown, written, strict=True)
        ],
        suppressed={reason: count for reason, count in Counter(reasons).items() if reason is not None},
        and_more=len(rows) > MOST_FOUND,
    )


_NO_TIME = datetime.min.replace(tzinfo=UTC)


def _scopes(tested: Tested) -> list[Range]:
    first, last = tested.positions
    if spec.only_chooses(tested.query):
        return [tested.positions]
    if last - first >= _MOST_SCOPES:
        raise InvalidInput(
            "alert.range_too_wide",
            f"a condition given by `sql` is evaluated for each scope, up to {_MOST_SCOPES} of them",
            value=tested.config.alert,
            next_step="name a smaller range",
        )
    return [(position, position) for position in range(first, last + 1)]


def _sql(tested: Tested, positions: Range) -> str:
    config = tested.config
    try:
        return spec.duckdb_query(
            tested.query,
            (*config.subject, *config.fields),
            dataset_id=tested.dataset_id,
            position=tested.position,
            positions=positions,
            most=MOST_FOUND + 1,
        )
    except ValueError as error:
        raise _not_testable(config.alert, str(error)) from None


async def _rows(
    queries: Queries, caller: Caller, asker: QueryCaller, tested: Tested, sql: str
) -> list[_Found]:
    try:
        result = await queries.run(caller.database, asker, sql, format_="json")
        async with contextlib.aclosing(result.pieces) as pieces:
            text = b"".join([piece async for piece in pieces])
    except UserError as error:
        if isinstance(error, Forbidden | NotFound) and error.code not in _NOT_IN_THE_ENGINE:
            raise
        raise _not_testable(tested.config.alert, f"{error.code}: {error.message}") from error
    decoded = await asyncio.to_thread(_DECODER.decode, text)
    config, subjects = tested.config, len(tested.config.subject)
    rows = []
    for position, event_time, emission, *values in decoded["rows"]:
        subject = dict(zip(config.subject, values[:subjects], strict=True))
        fields = dict(zip(config.fields, values[subjects:], strict=True))
        try:
            rows.append(_Found(position, subject, fields, _time(event_time), emission))
        except (OverflowError, OSError, TypeError, ValueError):
            why = f"its event_time is {event_time!r} in a row, which is no time"
            raise _not_testable(config.alert, why) from None
    return rows


def _time(value: str | int | Decimal | None) -> datetime | None:
    """Of a date, a time or, as Spark takes numbers, the seconds since 1970."""
    if value is None:
        return None
    if not isinstance(value, str):
        return datetime.fromtimestamp(float(value), UTC)
    time = datetime.fromisoformat(value)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _titled(title: TextTemplate, config: RouteConfig, row: _Found) -> str:
    bare = Message(
        key="test",
        incident="test",
        kind=Kind.ALERT,
        alert=config.alert,
        severity=Severity(config.severity),
        title="",
        text="",
        event_time=row.event_time or datetime.now(UTC),
        subject=row.subject,
        fields=row.fields,
    )
    return worded(bare, title).title


def _reasons(tested: Tested, rows: Sequence[_Found]) -> list[str | None]:
    """Why each would not be sent, as of its event time: that history is not sent, and what is stale, is not judged."""
    throttle = _Throttle(tested.config.throttle)
    reasons: list[str | None] = []
    for row in rows:
        plain = {name: as_json(value) for name, value in row.subject.items()}
        if tested.silences.hold(plain):
            reasons.append("silenced")
        elif not tested.has_channels:
            reasons.append("no_channel")
        else:
            reasons.append(None if throttle.passes(plain, row.event_time) else "throttled")
    return reasons


class _Throttle:
    """In the order of event times; what has none is found at once."""

    def __init__(self, throttle: Throttle | None) -> None:
        self._throttle = throttle
        self._sent: defaultdict[bytes, list[datetime]] = defaultdict(list)

    def passes(self, subject: Mapping[str, object], time: datetime | None) -> bool:
        if self._throttle is None:
            return True
        by_alert = self._throttle.each is Each.ALERT
        sent = self._sent[b"" if by_alert else msgspec.json.encode(subject, order="sorted")]
        now = time or _NO_TIME
        if self._throttle.per_seconds and now > _NO_TIME + timedelta(seconds=self._throttle.per_seconds):
            since = now - timedelta(seconds=self._throttle.per_seconds)
            sent[:] = [earlier for earlier in sent if earlier > since]
        if len(sent) >= self._throttle.most:
            return False
        sent.append(now)
        return True
