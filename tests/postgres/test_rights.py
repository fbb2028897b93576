"""Rights on datasets: who lacks them cannot tell a dataset from one that does not exist, by any route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.control_plane import ControlPlane
from traceplane.auth.callers import Caller
from traceplane.auth.rights import may_read, may_write
from traceplane.auth.roles import Role
from traceplane.errors import Forbidden, NotFound, TraceplaneError
from traceplane.gateway.pipelines import PipelineApi
from traceplane.http_service.routes import Call
from traceplane.query.datasets import NOW, QueryCaller, QueryDatasets
from traceplane.sql.gate import Relation
from traceplane.wire.control import (
    BackfillRequest,
    EmitRequest,
    ManualEvent,
    ScopeQuery,
    StatusQuery,
    TaskQuery,
    TaskSelection,
)
from traceplane.wire.deploys import DagName, DeployRequest, RollbackRequest
from traceplane.wire.jobs import JobName, PauseRequest
from traceplane.wire.pipelines import (
    ExecutionQuery,
    PipelineChange,
    PipelineConfig,
    PipelineQuery,
    PipelineRequest,
)
from traceplane.wire.queries import CatalogQuery, QueryTaskRequest

PAY = """
version: 1
dag: pay
read_roles: [finance]
write_roles: [ops]
datasets:
  pay.public: {read_roles: [reader], write_roles: [writer]}
  pay.shown: {storage: virtual, read_roles: [reader], sql: "select n from pay.salaries"}
  pay.batches: {read_roles: [reader]}
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: pay.in}]}
- name: salaries
  runtime: python
  operator: python
  inputs: [{from: {dataset: pay.in}}]
  outputs: [{dataset: pay.salaries}]
  config: {entrypoint: "basic:copy"}
- name: public
  runtime: python
  operator: python
  inputs: [{from: {dataset: pay.salaries}}]
  outputs: [{dataset: pay.public}]
  config: {entrypoint: "basic:copy"}
- name: tens
  runtime: dispatcher
  operator: aggregator
  inputs: [{from: {dataset: pay.salaries}}]
  outputs: [{dataset: pay.batches}]
  config: {size: 10}
"""
OPEN = """
version: 1
dag: open
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: open.in}]}
- name: copy
  runtime: python
  operator: python
  inputs: [{from: {dataset: open.in}}]
  outputs: [{dataset: open.out}]
  config: {entrypoint: "basic:copy"}
"""
READS_ACROSS = """
version: 1
dag: across
jobs:
- name: copy
  runtime: python
  operator: python
  inputs:
  - from: {dataset: pay.salaries}
  outputs: [{dataset: across.out}]
  config: {entrypoint: "basic:copy"}
"""
PAY_RUNS = """
version: 1
dag: runs
read_roles: [finance]
jobs:
- name: run
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: runs.out}]
  config: {entrypoint: "basic:copy"}
"""
MAIL = """
version: 1
dag: mail
datasets:
  mail.sent: {columns: [{name: position, type: bigint}, {name: email, type: string, pii: true}]}
  mail.runs: {columns: [{name: email, type: string, pii: true}]}
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: mail.in}]}
- name: sent
  runtime: python
  operator: python
  inputs: [{from: {dataset: mail.in}}]
  outputs: [{dataset: mail.sent}]
  config: {entrypoint: "basic:copy"}
- name: greet
  runtime: python
  operator: python
  inputs: [{from: {dataset: mail.sent}}]
  outputs: [{dataset: mail.greetings}]
  config: {entrypoint: "basic:copy"}
- name: narrow
  runtime: python
  operator: python
  inputs: [{from: {dataset: mail.sent}, columns: [position]}]
  outputs: [{dataset: mail.narrow}]
  config: {entrypoint: "basic:copy"}
- name: run
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: mail.runs}]
  config: {entrypoint: "basic:copy"}
"""
HIDDEN = ("pay.in", "pay.salaries")


class People:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.reader = self.caller("rita", Role.READER)
        self.writer = self.caller("will", Role.WRITER)
        self.finance = self.caller("fay", Role.READER, "finance")
        self.ops = self.caller("otto", Role.WRITER, "ops")
        self.both = self.caller("bo", Role.WRITER, "ops", "finance")
        self.narrow = replace(plane.admin, name="nina", datasets=("open.*",))

    def caller(self, name: str, role: Role, *roles: str) -> Caller:
        return replace(
            self.plane.admin, name=name, role=role, roles=frozenset({str(role), *roles}), sees_pii=False
        )

    def call(self, caller: Caller, body: Any = None, query: Any = None, **path: str) -> Call[Any]:
        return Call(body, path, query, caller, {}, receive=_nothing)


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}


@pytest.fixture
async def people(database_url: str) -> AsyncIterator[People]:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(PAY)
        await plane.deploy(OPEN)
        await plane.emit("pay.in", [1, 2])
        await plane.emit("open.in", [1])
        yield People(plane)


def test_a_role_reserved_or_not_gives_the_right_and_a_pattern_takes_it() -> None:
    class Somebody(msgspec.Struct, frozen=True):
        role: str = "reader"
        roles: frozenset[str] = frozenset({"reader"})
        datasets: tuple[str, ...] | None = None

    reader, admin = Somebody(), Somebody("admin", frozenset({"admin"}))
    writer, finance = Somebody("writer", frozenset({"writer"})), Somebody("reader", frozenset({"finance"}))
    for roles, expected in {
        None: (True, True, True, True),
        ("reader",): (True, True, True, True),
        ("writer",): (False, True, False, True),
        ("finance",): (False, False, True, True),
        ("finance", "writer"): (False, True, True, True),
        ("admin",): (False, False, False, True),
        (): (False, False, False, True),
    }.items():
        callers = (reader, writer, finance, admin)
        assert tuple(may_read(c, "a.b", roles) for c in callers) == expected, roles
        assert tuple(may_write(c, "a.b", roles) for c in callers) == expected, roles
    narrow = Somebody("admin", frozenset({"admin"}), ("a.*", "b"))
    assert [may_read(narrow, d, None) for d in ("a.b", "b", "bb", "A.b", "a")] == [
        True, True, False, False, False
    ]  # fmt: skip


async def test_what_a_caller_may_not_read_is_nowhere(people: People) -> None:
    api, call = people.plane.api, people.call
    for caller, seen in (
        (people.reader, {"open.in", "open.out", "pay.public", "pay.shown"}),
        (people.writer, {"open.in", "open.out", "pay.public", "pay.shown"}),
        (people.narrow, {"open.in", "open.out"}),
        (people.finance, {"open.in", "open.out", "pay.public", "pay.shown", "pay.batches", *HIDDEN}),
        (people.plane.admin, {"open.in", "open.out", "pay.public", "pay.shown", "pay.batches", *HIDDEN}),
    ):
        catalog = await api.datasets(call(caller, query=CatalogQuery()))
        assert {d.dataset for d in catalog.datasets} == seen, caller.name
        status = await api.status_of(caller, StatusQuery())
        assert {d.dataset for d in status.datasets} <= seen
        listed = await api.tasks.listing(call(caller, query=TaskQuery()))
        assert {t.job for t in listed.tasks} == (
            {"copy"} | ({"salaries"} if "pay.salaries" in seen else set())
        )
        assert ("pay/salaries" in status.counts) == ("pay.salaries" in seen)
        jobs = {(d.dag, j.job) for d in (await api.deploys.dags(call(caller))).dags for j in d.jobs}
        assert (("pay", "salaries") in jobs) == ("pay.salaries" in seen)
        everything = msgspec.json.encode([catalog, status, listed]).decode()
        if "pay.salaries" not in seen:
            assert "pay.salaries" not in everything


async def test_pipelines_of_a_hidden_job_and_their_executions_are_nowhere(people: People) -> None:
    plane, api, call = people.plane, PipelineApi(), people.call
    await plane.deploy(PAY_RUNS)
    request = PipelineRequest("nightly", PipelineConfig(dag="runs", job="run"), scanner_tickers=["A"])
    made = await api.create(call(plane.admin, request))
    execution = await plane.value(
        "insert into executions (pipeline_id, target, signal_id, signal, created_at)"
        " values ($1, 'task', 's', '{}', tp_now()) returning execution_id",
        made.pipeline_id,
    )
    for caller, seen in ((people.finance, 1), (people.reader, 0), (people.narrow, 0)):
        assert len((await api.listing(call(caller, query=PipelineQuery()))).pipelines) == seen
        assert len((await api.executions(call(caller, query=ExecutionQuery()))).executions) == seen
        if not seen:
            one = await refused(api.show(call(caller, pipeline_id=str(made.pipeline_id))))
            other = await refused(api.execution(call(caller, execution_id=str(execution))))
            gone = await refused(api.delete(call(caller, pipeline_id=str(made.pipeline_id))))
            assert (one.code, other.code, gone.code) == (
                "pipeline.unknown", "execution.unknown", "pipeline.unknown"
            )  # fmt: skip


async def test_counts_of_all_pipelines_are_for_those_who_may_see_all_jobs(people: People) -> None:
    plane, api, call = people.plane, PipelineApi(), people.call
    await plane.sql(
        "insert into signal_minutes select org_id, date_trunc('minute', tp_now()), 20, 2, 1.5 from orgs"
        " where slug = 'default'"
    )
    for caller, seen in (
        (people.finance, (20, 2)),
        (people.reader, (None, None)),
        (people.narrow, (None, None)),
    ):
        answer = await api.signals(call(caller))
        (minute,) = [one for one in answer.minutes if one.has_trigger]
        assert (minute.signals, minute.matches) == seen
        assert (minute.lag_seconds, answer.is_limited) == (1.5, seen == (None, None))


async def refused(work: Awaitable[Any]) -> TraceplaneError:
    with pytest.raises(TraceplaneError) as caught:
        await work
    return caught.value


async def test_every_call_answers_as_if_a_hidden_dataset_did_not_exist(people: People) -> None:
    """Word for word, but for the name."""
    api, call = people.plane.api, people.call

    def calls(caller: Caller, dataset: str) -> list[Awaitable[Any]]:
        sql = f'select * from "{dataset}"'
        return [
            api.dataset(call(caller, dataset_id=dataset)),
            api.explain_scope(call(caller, query=ScopeQuery("1", "2"), dataset_id=dataset)),
            api.emit(call(caller, EmitRequest([ManualEvent(dataset=dataset, partition="1")]))),
            api.backfill(call(caller, BackfillRequest(dataset, "1", "2"))),
            api.query_task(call(caller, QueryTaskRequest(sql, "mine.result"))),
            read(people, caller, dataset),
        ]

    for caller in (people.writer, people.narrow):
        for hidden, missing in zip(calls(caller, "pay.salaries"), calls(caller, "pay.xalaries"), strict=True):
            one, other = await refused(hidden), await refused(missing)
            assert isinstance(one, NotFound)
            said = (one.code, str(one).replace("pay.salaries", "pay.xalaries"))
            assert said == (other.code, str(other)), caller.name
            assert "pay.salaries" not in str(other)


async def read(people: People, caller: Caller, dataset: str) -> None:
    """As a query does."""
    asking = QueryCaller("default", caller.name, str(caller.role), False, caller.roles, caller.datasets)
    async with people.plane.admin.database.snapshot() as tx:
        await QueryDatasets(tx, "default", NOW).read([Relation("tp_d0", dataset)], asking)


async def test_a_virtual_dataset_has_rights_of_its_own_and_ranges_have_those_of_their_rows(
    people: People,
) -> None:
    for caller in (people.reader, people.finance):
        await read(people, caller, "pay.shown")
    await read(people, people.finance, "pay.batches")
    for hidden in ("pay.salaries", "pay.batches"):
        assert (await refused(read(people, people.reader, hidden))).code == "query.unknown_relation"
    detail = await people.plane.api.dataset(people.call(people.reader, dataset_id="pay.shown"))
    assert detail.sql is None, "it names what the reader may not read"


@pytest.mark.parametrize("of", ["file", "dataset"])
async def test_an_empty_list_leaves_a_dataset_to_admins(people: People, of: str) -> None:
    plane, api, call = people.plane, people.plane.api, people.call
    if of == "file":
        closed = OPEN + "read_roles: []\nwrite_roles: []\n"
    else:
        closed = OPEN + "read_roles: [reader]\ndatasets: {open.in: {read_roles: [], write_roles: []}}\n"
    plan = await plane.plan(closed)
    assert "~ dataset open.in\n      read_roles: null → []" in plan.text
    await plane.deploy(closed)
    for caller in (people.reader, people.writer, people.both):
        assert (await refused(read(people, caller, "open.in"))).code == "query.unknown_relation"
        assert "open.in" not in {
            d.dataset for d in (await api.datasets(call(caller, query=CatalogQuery()))).datasets
        }
    await read(people, plane.admin, "open.in")
    shown = await api.dataset(call(plane.admin, dataset_id="open.in"))
    assert (shown.read_roles, shown.write_roles) == ([], [])

    await plane.deploy(closed.replace("read_roles: []", "read_roles: [reader]"))
    await read(people, people.reader, "open.in")
    emit = api.emit(call(people.writer, EmitRequest([ManualEvent(dataset="open.in", partition="7")])))
    assert (await refused(emit)).code == "access.dataset_write"
    await plane.emit("open.in", [7])


async def test_only_who_may_write_changes_what_a_dataset_holds(people: People) -> None:
    api, call = people.plane.api, people.call
    event = EmitRequest([ManualEvent(dataset="pay.in", partition="7")])

    def changes(caller: Caller) -> dict[str, Callable[[], Awaitable[Any]]]:
        return {
            "emit": lambda: api.emit(call(caller, event)),
            "backfill": lambda: api.backfill(call(caller, BackfillRequest("pay.salaries", "1", "2"))),
            "pause": lambda: api.jobs.pause(call(caller, PauseRequest("pay", "salaries"))),
            "resume": lambda: api.jobs.resume(call(caller, JobName("pay", "salaries"))),
            "close": lambda: api.jobs.close_batches(call(caller, JobName("pay", "tens"))),
            "cancel": lambda: api.tasks.cancel(call(caller, TaskSelection(dag="pay", job="salaries"))),
            "retry": lambda: api.tasks.retry(
                call(caller, TaskSelection(dag="pay", job="salaries", state="canceled"))
            ),
            "acknowledge": lambda: api.tasks.acknowledge(
                call(caller, TaskSelection(dag="pay", job="salaries"))
            ),
        }

    reads_only = people.caller("fred", Role.WRITER, "finance")
    for name, change in changes(reads_only).items():
        error = await refused(change())
        assert isinstance(error, Forbidden), name
        assert error.code == "access.dataset_write", name
    for name, change in changes(people.ops).items():  # may write, but not read: there is nothing for them
        assert isinstance(await refused(change()), NotFound), name
    for change in changes(people.both).values():
        await change()
    for change in changes(people.plane.admin).values():
        await change()


async def test_tasks_by_id_are_unknown_or_not_to_be_changed(people: People) -> None:
    api, call, plane = people.plane.api, people.call, people.plane
    tasks = (await api.tasks.listing(call(plane.admin, query=TaskQuery(job="salaries")))).tasks
    ids = [task.task_id for task in tasks]
    for look in (api.tasks.task, api.tasks.explain, api.tasks.logs):
        error = await refused(look(call(people.reader, task_id=str(ids[0]))))
        assert error.code == "task.unknown"
        await look(call(people.finance, task_id=str(ids[0])))
    answer = await api.tasks.cancel(call(people.writer, TaskSelection(task_ids=ids)))
    assert not answer.changed
    assert set(answer.why_unchanged.values()) == {"unknown"}
    reads_only = people.caller("fred", Role.WRITER, "finance")
    assert (
        await refused(api.tasks.cancel(call(reads_only, TaskSelection(task_ids=ids))))
    ).code == "access.dataset_write"
    assert set((await api.tasks.cancel(call(people.both, TaskSelection(task_ids=ids)))).changed) == {
        *map(str, ids)
    }


async def test_what_code_wrote_is_shown_to_those_who_may_read_its_inputs(people: People) -> None:
    api, call, plane = people.plane.api, people.call, people.plane
    assert await plane.run_all()  # until the job `public` has tasks
    listed = (await api.tasks.listing(call(people.reader, query=TaskQuery(job="public")))).tasks
    assert listed, "it writes a public dataset"
    error = await refused(api.tasks.logs(call(people.reader, task_id=str(listed[0].task_id))))
    assert error.code == "access.task_output"
    shown = await api.tasks.task(call(people.reader, task_id=str(listed[0].task_id)))
    assert not shown.inputs, "pay.salaries is not named"
    assert (await api.tasks.task(call(people.finance, task_id=str(listed[0].task_id)))).inputs


async def test_what_code_wrote_about_personal_data_is_shown_to_those_who_may_see_it(people: People) -> None:
    api, call, plane = people.plane.api, people.call, people.plane
    await plane.deploy(MAIL)
    await plane.emit("mail.in", [1])
    await plane.run_all()
    await plane.sql(
        'update tasks t set error = \'{"code": "task.failed", "message": "no host for ada@x.example"}\''
        " from jobs j join dags d using (dag_id) where t.job_id = j.job_id and d.name = 'mail'"
    )
    sees = replace(people.reader, sees_pii=True)
    for job, is_told in (("sent", False), ("greet", False), ("narrow", True)):
        for caller, expected in ((people.reader, is_told), (sees, True), (plane.admin, True)):
            listed = await api.tasks.listing(call(caller, query=TaskQuery(dag="mail", job=job)))
            task_id = str(listed.tasks[0].task_id)
            views = [
                listed,
                await api.tasks.task(call(caller, task_id=task_id)),
                await api.tasks.explain(call(caller, task_id=task_id)),
            ]
            assert ["ada@" in msgspec.json.encode(view).decode() for view in views] == [expected] * 3, job
            if expected:
                await api.tasks.logs(call(caller, task_id=task_id))
            else:
                error = await refused(api.tasks.logs(call(caller, task_id=task_id)))
                assert error.code == "access.task_output"


async def test_errors_of_executions_about_personal_data_are_shown_to_those_who_may_see_it(
    people: People,
) -> None:
    plane, api, call = people.plane, PipelineApi(), people.call
    await plane.deploy(MAIL)
    request = PipelineRequest("nightly", PipelineConfig(dag="mail", job="run"), scanner_tickers=["A"])
    made = await api.create(call(plane.admin, request))
    await plane.sql(
        "insert into executions (pipeline_id, target, status, signal_id, signal, created_at, finished_at, error)"
        " values ($1, 'task', 'FAILED', 's', '{}', tp_now(), tp_now(),"
        """ '{"code": "task.failed", "message": "no host for ada@x.example"}')""",
        made.pipeline_id,
    )
    for caller, expected in ((people.reader, False), (plane.admin, True)):
        (shown,) = (await api.executions(call(caller, query=ExecutionQuery()))).executions
        assert shown.error is not None
        assert shown.error["code"] == "task.failed"
        assert ("ada@" in str(shown.error)) == expected


async def test_a_pipeline_is_changed_by_those_who_may_write_what_its_job_writes(people: People) -> None:
    plane, api, call = people.plane, PipelineApi(), people.call
    await plane.deploy(PAY_RUNS.replace("read_roles: [finance]", "write_roles: [ops]"))
    request = PipelineRequest("nightly", PipelineConfig(dag="runs", job="run"), scanner_tickers=["A"])
    made = str((await api.create(call(plane.admin, request))).pipeline_id)
    to_celery = PipelineChange(config=PipelineConfig(target="celery"))
    for work in (
        api.change(call(people.writer, to_celery, pipeline_id=made)),
        api.change(call(people.writer, PipelineChange(is_active=False), pipeline_id=made)),
        api.delete(call(people.writer, pipeline_id=made)),
    ):
        assert (await refused(work)).code == "access.dataset_write"
    await api.change(call(people.ops, to_celery, pipeline_id=made))
    await api.delete(call(people.ops, pipeline_id=made))


async def test_a_refusal_about_all_jobs_of_a_dag_names_no_hidden_one(people: People) -> None:
    error = await refused(people.plane.api.tasks.cancel(people.call(people.writer, TaskSelection(dag="pay"))))
    assert error.code == "access.dataset_write"
    assert not any(job in str(error) for job in ("numbers", "salaries", "tens"))


async def test_a_deploy_needs_the_right_to_read_what_the_dag_reads(people: People) -> None:
    api, call = people.plane.api, people.call
    widened = replace(people.narrow, datasets=("open.*", "across.*"))
    for deploy in (api.deploys.plan, api.deploys.deploy):
        error = await refused(deploy(call(widened, DeployRequest(READS_ACROSS, file="across.yaml"))))
        assert error.code == "deploy.read_right"
        assert "across.yaml:9:" in str(error)
        assert "pay.salaries" in str(error)
    assert (
        await refused(api.deploys.deploy(call(people.narrow, DeployRequest(READS_ACROSS))))
    ).code == "deploy.read_right"
    for change in (
        lambda: api.deploys.deploy(call(people.narrow, DeployRequest(PAY))),
        lambda: api.deploys.rollback(call(people.narrow, RollbackRequest("pay"))),
        lambda: api.deploys.abort(call(people.narrow, DagName("pay"))),
    ):
        assert (await refused(change())).code == "access.dataset_write"
    both = replace(people.narrow, datasets=("across.*", "pay.salaries"))
    assert (await api.deploys.deploy(call(both, DeployRequest(READS_ACROSS)))).changed


async def test_a_plan_says_which_roles_the_organization_does_not_have(people: People) -> None:
    plane = people.plane
    await plane.sql(
        "insert into org_roles (org_id, name, includes, created_by) select org_id, 'finance', 'reader', 'x' from orgs"
    )
    text = (await plane.plan(OPEN + "read_roles: [finanse]\nwrite_roles: [writer, finance]\n")).text
    assert (
        "! read_roles of open.in and 1 more dataset: the organization has no role 'finanse'; did you mean 'finance'?"
        in text
    )
    assert "no role 'finance'" not in text
    assert "no role 'writer'" not in text
    shown = await plane.api.dataset(people.call(people.finance, dataset_id="pay.salaries"))
    assert (shown.read_roles, shown.write_roles) == (["finance"], ["ops"])


async def test_rights_change_in_place_and_belong_to_the_version_that_serves(people: People) -> None:
    api, call, plane = people.plane.api, people.call, people.plane

    async def sees() -> bool:
        return "pay.salaries" in {
            d.dataset for d in (await api.datasets(call(people.reader, query=CatalogQuery()))).datasets
        }

    opened = PAY.replace("read_roles: [finance]\n", "", 1)
    plan = await plane.plan(opened)
    assert '~ dataset pay.salaries\n      read_roles: ["finance"] → null' in plan.text
    assert "0 to rebuild" in plan.text
    assert not await sees()
    changed = await plane.deploy(opened)
    assert not changed.building
    assert await sees()
    await plane.rollback("pay")
    assert not await sees()
