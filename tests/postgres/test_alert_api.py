"""Alerts, as people look at them, acknowledge and silence them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.control_plane import ControlPlane
from tests.hot_worker import HotWorker
from tests.platform import until
from tests.postgres.test_alerts import DAG, Chain, found
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.auth.callers import Caller
from traceplane.auth.roles import Role
from traceplane.cli.alerts import _subject
from traceplane.errors import Conflict, Forbidden, InvalidInput, NotFound, SpecInvalid, UserError
from traceplane.http_service.routes import Call
from traceplane.postgres import alert_views
from traceplane.query.datasets import NOW, QueryCaller, QueryDatasets
from traceplane.registry.garbage import Policy, collect
from traceplane.sql.gate import Relation
from traceplane.wire.alerts import (
    AlertDetail,
    AlertQuery,
    AlertsAcknowledged,
    AlertSelection,
    AlertSummary,
    AlertSummaryQuery,
    AlertTestRequest,
    AlertTestResponse,
    AlertView,
    SilenceQuery,
    SilenceRequest,
    SilenceView,
)
from traceplane.wire.channels import ChannelRemovalQuery
from traceplane.wire.control import TaskSelection
from traceplane.wire.jobs import PauseRequest
from traceplane.wire.queries import CatalogQuery


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


class Alerts(Chain):
    def __init__(self, worker: HotWorker) -> None:
        super().__init__(worker)
        self.api, self.admin = worker.plane.api.alerts, worker.plane.admin

    def person(self, role: Role, *roles: str, **more: Any) -> Caller:
        fields = {"name": f"a {role}", "sees_pii": False, **more}
        return replace(self.admin, role=role, roles=frozenset({str(role), *roles}), **fields)

    def call(self, caller: Caller | None, body: Any = None, query: Any = None, **path: str) -> Call[Any]:
        return Call(body, path, query, caller or self.admin, {}, receive=_nothing)

    async def listed(self, caller: Caller | None = None, **query: Any) -> list[AlertView]:
        return (await self.api.listed(self.call(caller, query=AlertQuery(**query)))).alerts

    async def show(self, alert: AlertView, caller: Caller | None = None) -> AlertDetail:
        return await self.api.one(self.call(caller, alert_id=str(alert.alert_id)))

    async def summary(self, caller: Caller | None = None, **query: Any) -> list[AlertSummary]:
        return (await self.api.summary(self.call(caller, query=AlertSummaryQuery(**query)))).alerts

    async def ack(
        self, *alerts: AlertView, caller: Caller | None = None, **selection: Any
    ) -> AlertsAcknowledged:
        chosen = AlertSelection([alert.alert_id for alert in alerts], **selection)
        return await self.api.acknowledge(self.call(caller, chosen))

    async def silence(self, caller: Caller | None = None, **fields: Any) -> SilenceView:
        asked = SilenceRequest(**{"seconds": 3600, "reason": "known", **fields})
        return await self.api.silence(self.call(caller, asked))

    async def silences(self, caller: Caller | None = None) -> list[SilenceView]:
        return (await self.api.silences(self.call(caller, query=SilenceQuery()))).silences


@pytest.fixture
async def alerts(database_url: str, tmp_path: Path) -> AsyncIterator[Alerts]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.sql(
            "insert into channels (org_id, name, config, changed_by)"
            " select org_id, name, '{}', 'test' from orgs, unnest('{ops, pager}'::text[]) name"
        )
        await plane.deploy(DAG)
        yield Alerts(HotWorker(plane, tmp_path / "objects"))


# Looking --------------------------------------------------------------------------------------------


async def test_alerts_are_listed_newest_first_with_why_they_were_not_sent(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"))
    await alerts.again(2, "a", (2, "b"))
    await alerts.load(3, backfill=True)
    await alerts.evaluate(b3=found((3, "c")))
    await alerts.again(1, "b")
    listed = await alerts.listed()
    assert [(a.position, a.title, a.state, a.suppressed) for a in listed] == [
        ("3", "c moved 5000", "suppressed", "backfill"),
        ("2", "b moved 5000", "open", None),
        ("1", "a moved 5000", "retracted", None),
    ]
    newest = listed[0]
    assert (newest.dag, newest.alert, newest.dataset, newest.severity) == (
        *("chain", "large", "transfers", "critical"),
    )
    assert (newest.subject, newest.fields) == ({"tx": "c"}, {"value": 5000})
    assert [a.title[0] for a in await alerts.listed(state="open")] == ["b"]
    assert [a.title[0] for a in await alerts.listed(dag="chain", alert="large", limit=1)] == ["c"]
    assert [a.title[0] for a in await alerts.listed(after=listed[1].alert_id)] == ["a"]


async def test_pages_say_whether_there_may_be_more(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"), (1, "b"), (1, "c"))
    first = await alerts.api.listed(alerts.call(None, query=AlertQuery(limit=2)))
    assert first.after == first.alerts[-1].alert_id
    second = await alerts.api.listed(alerts.call(None, query=AlertQuery(limit=2, after=first.after)))
    assert second.after is None
    assert len({a.alert_id for a in (*first.alerts, *second.alerts)}) == 3


async def test_a_position_is_written_as_scopes_are(alerts: Alerts) -> None:
    daily = DAG.replace("    position: block\n", "    partitions: {by: day}\n")
    daily = daily.replace("datasets:\n", "datasets:\n  blocks: {partitions: {by: day}}\n")
    for name, other in (("chain", "daily"), ("transfers", "days"), ("blocks", "dates")):
        daily = daily.replace(name, other)
    await alerts.plane.deploy(daily)
    await alerts.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, dataset_id, position, severity, title, body, subject,"
        " fields, event_time, incident) select org_id, 'daily', 'large', 'k', 'days', 20000, 'info', 't', '', '{}',"
        " '{}', tp_now(), 'k' from orgs"
    )
    assert [a.position for a in await alerts.listed()] == ["2024-10-04"]


async def test_an_alert_is_shown_with_its_messages(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"))
    await alerts.plane.sql(
        "update alert_deliveries set state = 'dead', tries = 3, ended_at = tp_now(),"
        ' failure = \'{"code": "delivery.http_500", "reason": "no"}\''
    )
    detail = await alerts.show((await alerts.listed())[0])
    (message,) = detail.deliveries
    assert (message.channel, message.kind, message.state, message.tries, message.code, message.reason) == (
        *("ops", "alert", "dead", 3, "delivery.http_500", "no"),
    )
    with pytest.raises(NotFound, match="no such alert"):
        await alerts.api.one(alerts.call(None, alert_id="00000000-0000-0000-0000-000000000000"))
    with pytest.raises(InvalidInput):
        await alerts.api.one(alerts.call(None, alert_id="x"))


async def test_the_summary_counts_what_was_suppressed_by_reason(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"), (1, "b"))
    await alerts.again(1, "b", (1, "b"))
    await alerts.silence(alert="large", subject={"tx": "quiet"})
    await alerts.again(2, "a", (2, "quiet"), (2, "loud"))
    await alerts.load(3, backfill=True)
    await alerts.evaluate(b3=found((3, "c"), (3, "d")))
    await alerts.ack((await alerts.listed(state="open"))[0])
    (summary,) = await alerts.summary()
    assert (summary.dag, summary.alert) == ("chain", "large")
    assert (summary.found, summary.sent, summary.retracted, summary.open) == (6, 3, 1, 1)
    assert summary.suppressed == {"backfill": 2, "silenced": 1}


async def test_names_that_do_not_exist_are_refused_with_the_near_one(alerts: Alerts) -> None:
    for query, value in (({"alert": "lorge"}, "large"), ({"dag": "chian"}, "chain")):
        with pytest.raises(NotFound) as refused:
            await alerts.listed(None, **query)
        assert refused.value.code == "alert.unknown"
        assert value in str(refused.value.next_step)
        with pytest.raises(NotFound):
            await alerts.summary(None, **query)
    assert await alerts.listed(alert="large") == []


async def test_the_platforms_own_alerts_are_hidden_with_the_jobs_that_they_are_about(alerts: Alerts) -> None:
    await alerts.plane.deploy(RESTRICTED)
    await alerts.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, position, severity, title, body, subject, fields,"
        " event_time, incident) select org_id, '', 'dead_tasks', job, 0, 'error', job, '',"
        " jsonb_build_object('dag', 'chain', 'job', job), '{}', tp_now(), job"
        " from orgs, unnest('{blocks, load}'::text[]) job"
    )
    assert [a.title for a in await alerts.listed()] == ["load", "blocks"]
    assert [(a.title, a.position) for a in await alerts.listed(alerts.person(Role.READER))] == [
        ("blocks", None)
    ]
    assert await alerts.listed(alerts.person(Role.READER, datasets=("*",))) == []
    assert (await alerts.summary(alerts.person(Role.READER)))[0].found == 1
    assert (await alerts.silence(alert="queue_age", subject={"job": "load"})).alert == "queue_age"


# Rights ---------------------------------------------------------------------------------------------


RESTRICTED = DAG.replace("  transfers:\n", "  transfers:\n    read_roles: [finance]\n")


async def test_an_alert_is_seen_by_those_who_may_read_its_dataset(alerts: Alerts) -> None:
    await alerts.plane.deploy(RESTRICTED)
    await alerts.again(1, "a", (1, "a"))
    await alerts.silence(dag="chain", alert="large", subject={"tx": "z"})
    (seen,) = await alerts.listed()
    stranger = alerts.person(Role.WRITER)
    narrow = alerts.person(Role.WRITER, "finance", datasets=("blocks",))
    for caller in (stranger, narrow):
        assert await alerts.listed(caller) == []
        assert await alerts.summary(caller) == []
        assert await alerts.silences(caller) == []
        with pytest.raises(NotFound):
            await alerts.show(seen, caller)
        with pytest.raises(NotFound):
            await alerts.listed(caller, alert="large")
        assert list((await alerts.ack(seen, caller=caller)).unchanged.values()) == ["unknown"]
        with pytest.raises(NotFound):
            await alerts.ack(caller=caller, alert="large")
        with pytest.raises(NotFound):
            await alerts.silence(caller, dag="chain", alert="large")
        with pytest.raises(Forbidden):
            await alerts.silence(caller)
    member = alerts.person(Role.WRITER, "finance")
    assert len(await alerts.listed(member)) == 1
    assert (await alerts.ack(seen, caller=member)).acknowledged == [seen.alert_id]


async def test_an_alert_in_another_file_is_seen_by_those_who_may_read_its_dataset(alerts: Alerts) -> None:
    await alerts.plane.deploy(RESTRICTED)
    await alerts.plane.deploy(ELSEWHERE)
    await alerts.load(1)
    for held in await alerts.worker.take("seen"):
        await alerts.worker.store(held, found((1, "a")))
    await alerts.plane.sink()
    await alerts.plane.meter()
    assert [(a.dag, a.dataset) for a in await alerts.listed(alert="seen")] == [("watch", "transfers")]
    assert await alerts.listed(alerts.person(Role.READER)) == []


ELSEWHERE = "version: 1\ndag: watch\njobs: []\n" + DAG[DAG.index("alerts:") :].replace(
    "name: large", "name: seen"
).replace("[value]", "[value]\n  position: block")


async def reads(alerts: Alerts, caller: Caller, dataset: str) -> bool:
    """Whether a query may; the catalog says the same."""
    asking = QueryCaller("default", caller.name, str(caller.role), False, caller.roles, caller.datasets)
    listed = {
        d.dataset
        for d in (await alerts.plane.api.datasets(alerts.call(caller, query=CatalogQuery()))).datasets
    }
    async with alerts.admin.database.snapshot() as tx:
        try:
            await QueryDatasets(tx, "default", NOW).read([Relation("tp_d0", dataset)], asking)
            readable = True
        except NotFound:
            readable = False
    assert readable == (dataset in listed)
    return readable


@pytest.mark.parametrize("way", ["when", "entrypoint"])
async def test_rows_found_in_a_dataset_of_another_file_have_its_readers_as_they_are_now(
    alerts: Alerts, way: str
) -> None:
    watch, written = ELSEWHERE, ["watch.seen#alerts"]
    if way == "entrypoint":
        watch = watch.replace("when: value > 1000", "entrypoint: 'a:b'")
        written.append("watch.seen#rows")
    reader, member = alerts.person(Role.READER), alerts.person(Role.READER, "finance")
    narrow = alerts.person(Role.READER, "finance", datasets=("watch.*",))
    await alerts.plane.deploy(watch)
    for dataset in written:
        assert await reads(alerts, reader, dataset)
        assert not await reads(alerts, narrow, dataset), "it may not read the dataset that they were found in"
    await alerts.plane.deploy(RESTRICTED)
    for dataset in written:
        assert not await reads(alerts, reader, dataset)
        assert await reads(alerts, member, dataset)
    await alerts.plane.deploy(RESTRICTED.replace("[finance]", "[]"))
    for dataset in written:
        assert not await reads(alerts, member, dataset)
        assert await reads(alerts, alerts.admin, dataset)
    await alerts.plane.deploy(DAG)
    for dataset in written:
        assert await reads(alerts, reader, dataset)


async def test_alerts_about_ranges_have_the_readers_of_the_rows(alerts: Alerts) -> None:
    tens = """- name: tens
  runtime: dispatcher
  operator: aggregator
  inputs: [{from: {dataset: transfers}}]
  outputs: [{dataset: tens}]
  config: {size: 10}
"""
    batches = "  tens: {read_roles: [reader]}\n"
    source = RESTRICTED.replace("alerts:\n", tens + "alerts:\n").replace("jobs:\n", batches + "jobs:\n")
    await alerts.plane.deploy(source)
    await alerts.plane.deploy(ELSEWHERE.replace("dataset: transfers", "dataset: tens"))
    assert not await reads(alerts, alerts.person(Role.READER), "watch.seen#alerts")
    assert await reads(alerts, alerts.person(Role.READER, "finance"), "watch.seen#alerts")


@pytest.mark.parametrize("file", ["the same", "another"])
async def test_the_route_of_an_alert_is_for_those_who_may_read_its_dataset(alerts: Alerts, file: str) -> None:
    plane, call = alerts.plane, alerts.call
    await plane.deploy(RESTRICTED)
    dag, route = "chain", "large__route"
    if file == "another":
        dag, route = "watch", "seen__route"
        await plane.deploy(ELSEWHERE)

    async def shown(caller: Caller) -> bool:
        deployed = (await plane.api.deploys.dags(call(caller))).dags
        return (dag, route) in {(d.dag, j.job) for d in deployed for j in d.jobs}

    stranger, member = alerts.person(Role.WRITER), alerts.person(Role.WRITER, "finance")
    assert not await shown(stranger)
    with pytest.raises(NotFound):
        await plane.api.jobs.pause(call(stranger, PauseRequest(dag, route)))
    with pytest.raises((NotFound, Forbidden)):
        await plane.api.tasks.cancel(call(stranger, TaskSelection(dag=dag, job=route)))
    assert await shown(member)
    await plane.api.jobs.pause(call(member, PauseRequest(dag, route)))


async def test_the_route_of_an_alert_is_changed_by_those_who_may_write_what_it_reads(alerts: Alerts) -> None:
    plane, call = alerts.plane, alerts.call
    await plane.deploy(DAG.replace("  transfers:\n", "  transfers:\n    write_roles: [ops]\n"))
    pause = PauseRequest("chain", "large__route")
    with pytest.raises(Forbidden) as refused:
        await plane.api.jobs.pause(call(alerts.person(Role.WRITER), pause))
    assert refused.value.code == "access.dataset_write"
    await plane.api.jobs.pause(call(alerts.person(Role.WRITER, "ops"), pause))


async def test_values_computed_from_personal_data_are_masked(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "ada@example.com"))
    await alerts.silence(alert="large", subject={"tx": "ada@example.com"})
    # A mark that a later deploy adds upstream counts at once.
    await alerts.plane.sql(
        "update datasets set definition = jsonb_set(definition, '{columns,1,pii}', 'true')"
        " where dataset_id = 'transfers'"
    )
    reader = alerts.person(Role.READER)
    (hidden,) = await alerts.listed(reader)
    assert hidden.hides_personal_data
    assert (hidden.subject, hidden.fields, hidden.title) == ({"tx": "***"}, {"value": 5000}, "***")
    for answer in (hidden, await alerts.show(hidden, reader), await alerts.silences(reader)):
        assert "ada" not in repr(answer)
    (seen,) = await alerts.listed(replace(reader, sees_pii=True))
    assert (seen.subject, seen.title) == ({"tx": "ada@example.com"}, "ada@example.com moved 5000")


async def test_what_a_receiver_answered_is_for_those_who_may_see_the_message(alerts: Alerts) -> None:
    """It may repeat what it got."""
    await alerts.again(1, "a", (1, "ada@example.com"))
    await alerts.plane.sql(
        "update alert_deliveries set state = 'dead', tries = 1, ended_at = tp_now(),"
        ' failure = \'{"code": "delivery.refused", "reason": "the answer was 400: no ada@example.com"}\''
    )
    reader = alerts.person(Role.READER)
    (found,) = await alerts.listed(reader)
    assert "ada" in str((await alerts.show(found, reader)).deliveries[0].reason)
    await alerts.plane.sql(
        "update datasets set definition = jsonb_set(definition, '{columns,1,pii}', 'true')"
        " where dataset_id = 'transfers'"
    )
    (message,) = (await alerts.show(found, reader)).deliveries
    assert (message.state, message.code, message.reason) == ("dead", "delivery.refused", "***")
    (message,) = (await alerts.show(found, replace(reader, sees_pii=True))).deliveries
    assert "ada" in str(message.reason)


async def test_readers_get_no_names_of_channels(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"))
    await alerts.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, position, severity, title, body, subject, fields,"
        " event_time, incident, channels) select org_id, '', 'dead_deliveries', 'k', 0, 'error',"
        " 'Messages do not reach the channel pager', 'See --channel pager',"
        """ '{"channel": "pager"}', '{"messages": 1}', tp_now(), 'k', '{pager}' from orgs"""
    )
    await alerts.silence(alert="dead_deliveries", subject={"channel": "pager"})
    reader, writer = alerts.person(Role.READER, sees_pii=True), alerts.person(Role.WRITER, sees_pii=True)
    about_channel, own = await alerts.listed(reader)
    for answer in (about_channel, await alerts.show(about_channel, reader), await alerts.silences(reader)):
        assert "pager" not in repr(answer)
    assert (about_channel.state, about_channel.subject, about_channel.fields) == (
        *("open", {"channel": "***"}, {"messages": 1}),
    )
    assert (own.title, own.channels) == ("a moved 5000", [])
    assert [message.channel for message in (await alerts.show(own, reader)).deliveries] == ["***"]
    about_channel, own = await alerts.listed(writer)
    assert (about_channel.subject, about_channel.title) == ({"channel": "***"}, "***")
    assert own.channels == ["ops"]
    assert [message.channel for message in (await alerts.show(own, writer)).deliveries] == ["ops"]
    assert (await alerts.listed())[0].subject == {"channel": "pager"}
    (silence,) = await alerts.silences()
    assert silence.subject == {"channel": "pager"}


# Acknowledging --------------------------------------------------------------------------------------


async def test_an_acknowledgement_is_told_once_to_whoever_got_the_alert(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"))
    await alerts.send()
    (alert,) = await alerts.listed()
    done = await alerts.ack(alert, caller=alerts.person(Role.WRITER))
    assert (done.acknowledged, done.unchanged) == ([alert.alert_id], {})
    again = await alerts.ack(alert)
    assert (again.acknowledged, again.unchanged) == ([], {str(alert.alert_id): "acknowledged"})
    (shown,) = await alerts.listed()
    assert (shown.state, shown.acknowledged_by) == ("acknowledged", "a writer")
    assert await alerts.queued() == [
        ("alert", "delivered", "a moved 5000"),
        ("acknowledgement", "waiting", "a moved 5000"),
    ]
    rows = await alerts.plane.sql("select key, incident from alert_deliveries order by number")
    assert rows[1]["key"] == f"{rows[0]['key']}-acknowledgement"
    assert rows[1]["incident"] == rows[0]["incident"]


async def test_nobody_is_told_who_got_nothing(alerts: Alerts) -> None:
    await alerts.load(1, backfill=True)
    await alerts.evaluate(b1=found((1, "a")))
    await alerts.again(2, "a", (2, "b"))
    await alerts.plane.sql("update alert_deliveries set state = 'dead', tries = 1, ended_at = tp_now()")
    assert len((await alerts.ack(*await alerts.listed())).acknowledged) == 2
    assert [kind for kind, _, _ in await alerts.queued()] == ["alert"]


async def test_what_was_retracted_is_not_acknowledged_and_what_comes_back_is_open_again(
    alerts: Alerts,
) -> None:
    await alerts.again(1, "a", (1, "a"))
    await alerts.send()
    (alert,) = await alerts.listed()
    await alerts.ack(alert)
    await alerts.again(1, "b")
    assert (await alerts.ack(alert)).unchanged == {str(alert.alert_id): "retracted"}
    await alerts.again(1, "c", (1, "a"))
    assert [a.state for a in await alerts.listed()] == ["open"]
    await alerts.send()
    assert (await alerts.ack(alert)).acknowledged == [alert.alert_id]
    kinds = [kind for kind, state, _ in await alerts.queued() if state != "withdrawn"]
    assert kinds == ["alert", "retraction", "alert", "acknowledgement"]


async def test_a_group_is_acknowledged_as_the_one_message_that_it_was(alerts: Alerts) -> None:
    await alerts.plane.deploy(DAG + "  group_above: 2\n")
    await alerts.again(1, "a", (1, "a"), (1, "b"), (1, "c"))
    await alerts.send()
    first, *others = await alerts.listed()
    assert len((await alerts.ack(first)).acknowledged) == 3
    assert {alert.state for alert in await alerts.listed()} == {"acknowledged"}
    assert set((await alerts.ack(*others)).unchanged.values()) == {"acknowledged"}
    assert await alerts.queued() == [
        ("alert", "delivered", "3 alerts: large"),
        ("acknowledgement", "waiting", "3 alerts: large"),
    ]


async def test_all_open_alerts_of_a_name_are_acknowledged(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"), (1, "b"))
    await alerts.load(2, backfill=True)
    await alerts.evaluate(b2=found((2, "c")))
    assert len((await alerts.ack(alert="large", dag="chain")).acknowledged) == 2
    assert {a.state for a in await alerts.listed()} == {"acknowledged", "suppressed"}
    assert (await alerts.ack(alert="large")).acknowledged == []
    with pytest.raises(NotFound):
        await alerts.ack(alert="lorge")


# Silences -------------------------------------------------------------------------------------------


async def test_a_silence_holds_for_a_while_or_until_it_is_ended(alerts: Alerts) -> None:
    made = await alerts.silence(dag="chain", alert="large", subject={"tx": "a"}, seconds=60)
    assert await alerts.silences() == [made]
    await alerts.again(1, "a", (1, "a"), (1, "b"))
    assert await alerts.suppressed() == ["silenced", None]
    await alerts.plane.pass_time(61)
    assert await alerts.silences() == []
    forever = await alerts.silence()
    await alerts.again(2, "a", (2, "a"))
    assert await alerts.suppressed() == ["silenced", None, "silenced"]
    await alerts.api.unsilence(alerts.call(None, silence_id=str(forever.silence_id)))
    await alerts.again(3, "a", (3, "a"))
    assert (await alerts.suppressed())[-1] is None
    with pytest.raises(NotFound):
        await alerts.api.unsilence(alerts.call(None, silence_id=str(forever.silence_id)))


async def test_silences_are_bounded_in_number_and_listed_in_pages(alerts: Alerts) -> None:
    await alerts.plane.sql(
        "insert into alert_silences (org_id, alert, subject, ends_at, reason, created_by)"
        " select org_id, 'large', jsonb_build_object('tx', n), tp_now() + (n > 0)::int * interval '1 hour', 'known',"
        " 'test' from orgs, generate_series(-9, 999) n"
    )
    one = await alerts.silence()  # those that are over do not count
    with pytest.raises(Conflict) as caught:
        await alerts.silence()
    assert caught.value.code == "silence.too_many"
    pages: list[list[UUID]] = []
    after = None
    while not pages or after is not None:
        answer = await alerts.api.silences(alerts.call(None, query=SilenceQuery(after=after, limit=400)))
        pages.append([silence.silence_id for silence in answer.silences])
        after = answer.after
    assert [len(page) for page in pages] == [400, 400, 200]
    assert len({silence_id for page in pages for silence_id in page}) == 1000
    assert pages[0][0] == one.silence_id
    await alerts.api.unsilence(alerts.call(None, silence_id=str(one.silence_id)))
    async with alerts.plane.database.transaction() as tx:
        await alert_views.silence(
            tx, await alerts.plane.value("select org_id from orgs"), dag=None, alert=None, subject={},
            lasts=timedelta(hours=1), reason="known", by="test", most=1000,
        )  # fmt: skip
        second = asyncio.create_task(alerts.silence())
        await until(lambda: alerts.plane.waits_or_ended(second))
    with pytest.raises(Conflict):  # two at once count each other
        await second


async def test_a_silence_that_would_silence_nothing_is_refused(alerts: Alerts) -> None:
    for fields, code in (
        ({"alert": "lorge"}, "alert.unknown"),
        ({"dag": "other", "alert": "large"}, "alert.unknown"),
        ({"subject": {"txx": "a"}}, "silence.unknown_column"),
    ):
        with pytest.raises((NotFound, InvalidInput)) as refused:
            await alerts.silence(**fields)
        assert refused.value.code == code
    assert await alerts.silences() == []


def test_values_of_a_subject_are_what_messages_have() -> None:
    written = ("n=5", "n=-5", 'n="5"', "n=12.50", "n=true", "n=null", "n=a=b", "n=007", "n=0xab", 'n="')
    assert [_subject(text)[1] for text in written] == [
        5, -5, "5", "12.50", True, None, "a=b", "007", "0xab", '"',
    ]  # fmt: skip


async def test_changes_are_audited(alerts: Alerts) -> None:
    await alerts.again(1, "a", (1, "a"))
    (alert,) = await alerts.listed()
    await alerts.ack(alert)
    made = await alerts.silence()
    assert alerts.admin.act.object["alerts"] == str(alert.alert_id)
    assert alerts.admin.act.object["silence"] == str(made.silence_id)


# Deploys --------------------------------------------------------------------------------------------


async def test_an_alert_needs_channels_that_exist(alerts: Alerts) -> None:
    for name, step in (
        ("opss", "did you mean 'ops'?"),
        ("nobody_at_all", "traceplane channel set nobody_at_all"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await alerts.plane.deploy(DAG.replace("[ops]", f"[ops, {name}]"))
        assert (refused.value.code, refused.value.value) == ("deploy.unknown_channel", name)
        assert step in str(refused.value.next_step)
        assert (await alerts.plane.plan(DAG.replace("[ops]", f"[{name}]"))).blocked_code == refused.value.code


async def test_an_alert_is_removed_and_brought_back_without_loss_of_data(alerts: Alerts) -> None:
    """Nobody reads the rows that it found; what was sent of them stays."""
    await alerts.again(1, "a", (1, "a"))
    await alerts.send()
    without = DAG.partition("alerts:")[0]
    assert "drop" not in (await alerts.plane.plan(without)).text
    await alerts.plane.deploy(without)
    assert [alert.alert for alert in await alerts.listed()] == ["large"]
    await alerts.plane.rollback("chain")
    assert [kind for kind, *_ in await alerts.queued()] == ["alert"]


async def test_a_channel_of_a_deployed_alert_is_removed_only_by_force(alerts: Alerts) -> None:
    remove = alerts.plane.api.channels.remove
    with pytest.raises(Conflict, match="chain/large") as refused:
        await remove(alerts.call(None, query=ChannelRemovalQuery(), name="ops"))
    assert refused.value.code == "channel.in_use"
    assert (await remove(alerts.call(None, query=ChannelRemovalQuery(), name="pager"))).name == "pager"
    await remove(alerts.call(None, query=ChannelRemovalQuery(force=True), name="ops"))
    await alerts.again(1, "a", (1, "a"))
    assert await alerts.suppressed() == ["no_channel"]


async def test_an_alert_on_a_dataset_of_others_is_checked_against_its_columns(alerts: Alerts) -> None:
    watch = (
        DAG[: DAG.index("datasets:")].replace("chain", "watch") + "jobs: []\n" + DAG[DAG.index("alerts:") :]
    )
    with pytest.raises(InvalidInput, match="event_time is a column of type string") as refused:
        await alerts.plane.deploy(watch + "  event_time: tx\n")
    assert (refused.value.code, refused.value.value) == ("deploy.config_invalid", "tx")
    assert "timestamp" in (refused.value.next_step or "")
    with pytest.raises(InvalidInput, match="names the column 'valuee'") as refused:
        await alerts.plane.deploy(watch.replace("value > 1000", "valuee > 1000"))
    assert refused.value.value == "when"
    for text, place in (
        (watch + "  event_time: tx\n", "event_time: »tx"),
        (watch.replace("value > 1000", "valuee > 1000"), "when: »valuee"),
        (watch.replace("dataset: transfers", "dataset: transferss"), "dataset: »transferss"),
    ):
        before, _, after = place.partition("»")
        lines = text[: text.index(before + after) + len(before)].split("\n")
        blocked = (await alerts.plane.plan(text)).blocked
        assert f": dag.yaml:{len(lines)}:{len(lines[-1]) + 1}: " in str(blocked)
    assert (await alerts.plane.plan(watch + "  event_time: tx\n")).blocked_code == "deploy.config_invalid"
    assert (await alerts.plane.plan(watch + "  event_time: value\n")).blocked_code is None


SHOP = """
version: 1
dag: shop
datasets:
  people: {columns: [{name: id, type: bigint}, {name: email, type: string, pii: true}]}
  orders: {columns: [{name: n, type: bigint}, {name: person, type: bigint}, {name: usd, type: bigint}]}
jobs:
- {name: a, activation: source, source: {kind: manual}, outputs: [{dataset: people_in}]}
- {name: b, activation: source, source: {kind: manual}, outputs: [{dataset: orders_in}]}
- {name: c, runtime: python, operator: python, inputs: [{from: {dataset: people_in}}], outputs: [{dataset: people}], config: {entrypoint: "a:b"}}
- {name: d, runtime: python, operator: python, inputs: [{from: {dataset: orders_in}}], outputs: [{dataset: orders}], config: {entrypoint: "a:b"}}
- name: joined
  runtime: spark
  operator: sql
  inputs: [{from: {dataset: orders}}, {from: {dataset: people}, read: all}]
  outputs: [{dataset: joined}]
  config: {query: "select o.n, o.usd, lower(p.email) as who, substr(sha2(p.email, 256), 1, 8) as tag from orders o join people p on p.id = o.person"}
alerts:
- name: large
  dataset: joined
  when: usd > 1000
  position: n
  subject: [SUBJECT]
  title: "large"
  channels: [ops]
"""  # noqa: E501


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        (("[SUBJECT]", "[who]"), "who"),
        (("[SUBJECT]", "[n]\n  columns: [usd, tag]"), "tag"),
        (("[SUBJECT]", "[n]\n  emission: tag"), "tag"),
        (("[SUBJECT]", "[n]\n  event_time: who"), "who"),
        (("[SUBJECT]", "[who, tag]\n  declassified: {tag: cut off}"), "who"),
        (("when: usd > 1000", "sql: select upper(who) as name, n from rows"), "name"),
        (("when: usd > 1000", "entrypoint: a:b"), "name"),
        (
            (
                "when: usd > 1000\n  position: n\n  subject: [SUBJECT]",
                "sql: |\n    select * from rows where (\n    usd > 0) union all select who, usd, n, n from rows"
                "\n  position: n\n  subject: [n]",
            ),
            "n",
        ),
    ],
)
async def test_personal_data_does_not_leave_by_an_alert(
    alerts: Alerts, changed: tuple[str, str], column: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await alerts.plane.deploy(SHOP.replace(*changed).replace("SUBJECT", "name"))
    assert (refused.value.code, refused.value.value) == ("deploy.alert_personal_data", column)
    assert await alerts.plane.value("select count(*) from dags where name = 'shop'") == 0


async def test_what_is_computed_from_other_columns_is_sent(alerts: Alerts) -> None:
    await alerts.plane.deploy(SHOP.replace("SUBJECT", "n").replace("title", "columns: [usd]\n  title"))


async def test_a_column_may_be_sent_if_somebody_says_why(alerts: Alerts) -> None:
    reasoned = SHOP.replace("[SUBJECT]", "[tag]\n  declassified: {tag: cut off}")
    plan = await alerts.plane.plan(reasoned)
    assert "shop.large#alerts: the column tag is declassified: cut off" in plan.text
    await alerts.plane.deploy(reasoned)
    again = await alerts.plane.plan(reasoned)
    assert again.noop
    await alerts.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, dataset_id, severity, title, body, subject, fields,"
        " event_time, incident) select org_id, 'shop', 'large', 'k', 'joined', 'info', 't', '', '{\"tag\": \"x\"}',"
        " '{}', tp_now(), 'k' from orgs"
    )
    (seen,) = await alerts.listed(alerts.person(Role.READER))
    assert seen.subject == {"tag": "x"}
    with pytest.raises(SpecInvalid, match=r"spec\.unknown_column"):
        await alerts.plane.deploy(reasoned.replace("{tag: cut", "{tags: cut"))


async def test_a_mark_that_the_same_file_adds_counts(alerts: Alerts) -> None:
    unmarked = SHOP.replace(", pii: true", "")
    await alerts.plane.deploy(
        unmarked.replace("alerts:", "").replace(unmarked[unmarked.index("- name: large") :], "")
    )
    with pytest.raises(InvalidInput) as refused:
        await alerts.plane.deploy(SHOP.replace("SUBJECT", "who"))
    assert refused.value.code == "deploy.alert_personal_data"


async def test_a_plan_names_the_alert_and_what_changes_of_its_condition(alerts: Alerts) -> None:
    text = (await alerts.plane.plan(DAG.replace("1000", "500"))).text
    assert "-/+ job large (alert_evaluate of the alert large): rebuilt, its definition changed" in text
    assert '      config.query: "value > 1000" → "value > 500"\n' in text
    assert "-/+ job large__route (alert_route of the alert large): rebuilt, downstream of large" in text


# Testing --------------------------------------------------------------------------------------------


async def commit(alerts: Alerts, *rows: tuple[int, str, int]) -> None:
    """Rows of `transfers`: block, transaction, value."""
    await alerts.plane.emit("blocks", sorted({block for block, _, _ in rows}))
    for held in await alerts.worker.take("load"):
        block = held.task.scope.cursor  # type: ignore[union-attr]
        mine = [{"block": b, "tx": tx, "value": v} for b, tx, v in rows if b == block]
        schema = pa.schema([("block", pa.int64()), ("tx", pa.string()), ("value", pa.int64())])
        table = pa.Table.from_pylist(mine, schema=schema)
        assert await alerts.plane.report((held, alerts.worker.done(held, table))) == ["committed"]


async def try_out(
    alerts: Alerts, first: int, last: int, text: str | None = None, caller: Caller | None = None
) -> AlertTestResponse:
    asked = AlertTestRequest("large", first, last, None if text else "chain", text)
    return await alerts.api.test(alerts.call(caller, asked))


ROWS = ((1, "a", 5000), (1, "b", 10), (2, "a", 2000), (2, "c", 1001), (3, "d", 9000))


async def test_an_alert_is_tested_on_history_without_sending(alerts: Alerts) -> None:
    await commit(alerts, *ROWS)
    answer = await try_out(alerts, 1, 2)
    assert [(a.position, a.title, a.subject, a.fields, a.suppressed) for a in answer.alerts] == [
        ("1", "a moved 5000", {"tx": "a"}, {"value": 5000}, None),
        ("2", "a moved 2000", {"tx": "a"}, {"value": 2000}, None),
        ("2", "c moved 1001", {"tx": "c"}, {"value": 1001}, None),
    ]
    assert (answer.found, answer.suppressed) == (3, {})
    assert await alerts.events() == []
    assert await alerts.queued() == []


async def test_a_test_says_what_would_keep_an_alert_back(alerts: Alerts) -> None:
    await commit(alerts, *ROWS)
    await alerts.silence(alert="large", subject={"tx": "d"})
    throttled = DAG + "  throttle: {most: 1, per: 1h}\n"
    answer = await try_out(alerts, 1, 3, throttled)
    assert (answer.found, answer.suppressed) == (4, {"throttled": 1, "silenced": 1})
    answer = await try_out(alerts, 1, 3, DAG.replace("[ops]", "[none_such]"))
    assert answer.suppressed == {"silenced": 1, "no_channel": 3}


async def test_a_definition_that_is_not_deployed_is_tested(alerts: Alerts) -> None:
    await commit(alerts, *ROWS)
    assert (await try_out(alerts, 1, 3, DAG.replace("1000", "1500"))).found == 3
    grouped = DAG.replace(
        "when: value > 1000", "sql: select tx, max(block) as block, sum(value) as value from rows group by tx"
    )
    answer = await try_out(alerts, 1, 3, grouped)
    assert answer.found == 5  # of each block by itself
    with pytest.raises(InvalidInput) as refused:
        await try_out(alerts, 1, 300, grouped)
    assert refused.value.code == "alert.range_too_wide"


@pytest.mark.parametrize(
    "condition",
    [
        "entrypoint: a:b",
        "when: reflect('java.lang.Math', 'abs', value) > 1",
        "when: tx = '${secret:key}'",
    ],
)
async def test_what_needs_spark_is_said(alerts: Alerts, condition: str) -> None:
    await commit(alerts, *ROWS)
    with pytest.raises(InvalidInput) as refused:
        await try_out(alerts, 1, 3, DAG.replace("when: value > 1000", condition))
    assert refused.value.code == "alert.not_testable"
    assert "traceplane backfill" in str(refused.value.next_step)


@pytest.mark.parametrize(
    ("column", "time"),
    [
        ("value", "1970-01-01T01:23:20+00:00"),  # a number has seconds
        ("cast('2026-11-16' as date)", "2026-11-16T00:00:00+00:00"),
        ("cast('2026-11-16 01:02:03' as timestamp)", "2026-11-16T01:02:03+00:00"),
        ("cast('2026-11-16 01:02:03.5' as timestamp_ntz)", "2026-11-16T01:02:03.500000+00:00"),
        ("cast(null as timestamp)", None),
    ],
)
async def test_event_times_are_those_that_spark_would_take(
    alerts: Alerts, column: str, time: str | None
) -> None:
    await commit(alerts, *ROWS[:1])
    text = DAG.replace("when: value > 1000", f"sql: select *, {column} as at from rows\n  event_time: at")
    for asked in (text, *([DAG + "  event_time: value\n"] if column == "value" else [])):
        [found] = (await try_out(alerts, 1, 1, asked)).alerts
        assert (found.event_time and found.event_time.isoformat()) == time


async def test_a_number_that_is_no_time_is_refused(alerts: Alerts) -> None:
    await commit(alerts, (1, "a", 10**15))
    with pytest.raises(InvalidInput, match="1000000000000000 in a row, which is no time"):
        await try_out(alerts, 1, 1, DAG + "  event_time: value\n")


async def test_who_may_not_read_the_dataset_tests_nothing(alerts: Alerts) -> None:
    await alerts.plane.deploy(RESTRICTED)
    for text in (None, DAG):
        with pytest.raises(NotFound):
            await try_out(alerts, 1, 3, text, alerts.person(Role.WRITER))


@pytest.mark.parametrize("start", [1, "2026-01-01"])
async def test_a_test_does_not_tell_whether_an_unreadable_dataset_exists(
    alerts: Alerts, start: int | str
) -> None:
    await alerts.plane.deploy(RESTRICTED)
    answers = []
    for dataset in ("transfers", "none_such"):
        text = f"version: 1\ndag: probe\njobs: []\nalerts:\n{DAG.partition('alerts:')[2]}"
        asked = AlertTestRequest("large", start, start, None, text.replace("transfers", dataset))
        with pytest.raises(NotFound) as refused:
            await alerts.api.test(alerts.call(alerts.person(Role.WRITER), asked))
        answers.append({**refused.value.as_dict(), "value": ""})
    assert answers[0] == answers[1]


async def test_a_test_shows_no_personal_data(alerts: Alerts) -> None:
    await commit(alerts, *ROWS)
    await alerts.plane.sql(
        "update datasets set definition = jsonb_set(definition, '{columns,1,pii}', 'true')"
        " where dataset_id = 'transfers'"
    )
    with pytest.raises(UserError) as refused:
        await try_out(alerts, 1, 3, None, alerts.person(Role.WRITER))
    assert "moved" not in str(refused.value)


async def test_guessed_subjects_do_not_show_what_is_silenced(alerts: Alerts) -> None:
    """The file may name an alert of others, whose silences the caller sees masked."""
    await commit(alerts, *ROWS)
    await alerts.plane.sql(
        "update datasets set definition = jsonb_set(definition, '{columns,1,pii}', 'true')"
        " where dataset_id = 'transfers'"
    )
    await alerts.silence(dag="chain", alert="large", subject={"tx": "d"})
    guess = DAG.replace("when: value > 1000", "sql: select block, value, 'd' as tx from rows")
    answer = await try_out(alerts, 1, 1, guess, alerts.person(Role.WRITER))
    assert (answer.found, answer.suppressed) == (1, {})
    assert (await try_out(alerts, 1, 1, guess)).suppressed == {"silenced": 1}


# History --------------------------------------------------------------------------------------------


async def ended(alerts: Alerts, tmp_path: Path) -> tuple[int, int]:
    """How many messages and alerts ended."""
    policy = Policy(timedelta(days=1), timedelta(days=30))
    done = await collect(alerts.plane.database, FolderObjectStore(tmp_path), policy)
    return done.deliveries, done.alerts


async def test_alerts_end_with_history_unless_they_could_be_found_again(
    alerts: Alerts, tmp_path: Path
) -> None:
    await alerts.again(1, "a", (1, "stays"), (1, "goes"))
    await alerts.send()
    await alerts.again(1, "b", (1, "stays"))
    await alerts.silence(seconds=60)
    await alerts.again(2, "a", (2, "waits"))
    await alerts.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, generations, severity, title, body, subject, fields,"
        " event_time, incident, retracted_at) select org_id, '', 'disk', key, array[gen_random_uuid()], 'info', key,"
        " '', '{}', '{}', tp_now(), key, case when key = 'over' then tp_now() end"
        " from orgs, unnest('{over, open}'::text[]) key"
    )
    assert await ended(alerts, tmp_path) == (0, 0)
    await alerts.plane.pass_time(31 * 86400)
    assert await ended(alerts, tmp_path) == (2, 1)  # the retraction of the other has not been sent yet
    await alerts.send()
    await alerts.plane.pass_time(31 * 86400)
    assert await ended(alerts, tmp_path) == (1, 1)
    assert sorted(a.title for a in await alerts.listed()) == ["open", "stays moved 5000", "waits moved 5000"]
    assert await alerts.plane.value("select count(*) from alert_silences") == 0
    await alerts.again(1, "c", (1, "stays"))
    assert await alerts.queued() == []
