"""The Python client and the gateway's OpenAPI document say the same: every endpoint of the public API has a method,
and every method names path, parameters, body and answer as they are described."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.docs_pages import page
from tests.unit.test_docs import openapi, operations, public_api
from traceplane.client import Client
from traceplane.client.connection import Connection
from traceplane.errors import InvalidInput, PlatformError
from traceplane.wire.control import TaskChanges
from traceplane.wire.pipelines import PipelineChange, PipelineConfig, PipelineRequest, Subscription
from traceplane.wire.sign_in import ProviderSettings

DAG = """
version: 1
dag: t
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: t.in}]}
"""
ID = "0198c5a4-6a4e-7f3b-9d8e-2f6f0c1d7a55"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

NOT_CALLED = ("/auth/", "/api/v1/changes", "/hooks/", "/iceberg/v1/", "/healthz", "/readyz")
"""Of browsers and `traceplane login`, of the web UI, of senders of webhooks, of readers of Iceberg tables, of
load balancers."""
MADE_FROM_FILES = {"DeployRequest": {"code", "requirement_files", "locks"}}
FOR_THE_NEXT_PAGE = {"TaskSelection": {"after"}}


class Asked(Exception):
    pass


@dataclass(frozen=True)
class Sent:
    method: str
    path: str
    body: msgspec.Struct | None
    answer: str | None
    parameters: frozenset[str] = frozenset()


class Recorder:
    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def ask(self, method: str, path: str, kind: type, body: Any = None, /, **query: object) -> Any:
        self.sent.append(Sent(method, path, body, kind.__name__, frozenset(query)))
        raise Asked

    def pieces(self, method: str, path: str, body: Any, check: Any = None) -> Iterator[bytes]:
        self.sent.append(Sent(method, path, body, None))
        raise Asked


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(Connection, "ask", made.ask)
    monkeypatch.setattr(Connection, "pieces", made.pieces)
    return made


@pytest.fixture
def client() -> Client:
    return Client("http://127.0.0.1:1", "tpu_x")


def uses(folder: Path) -> dict[str, list[Callable[[Client], Any]]]:
    """Every method, called so that together they give every field of every body a value."""
    file = folder / "dag.yaml"
    file.write_text(DAG)
    range_ = {"dag": "t", "job": "j", "start": 1, "end": "2026-11-16"}
    rights: dict[str, Any] = {"allowed_jobs": ["t/j"], "any_job": True, "roles": ["ops"]}
    pipeline = PipelineRequest(
        "p",
        PipelineConfig(target="celery", timeout_seconds=5),
        "periodic",
        "ada",
        ["AAPL"],
        "tech",
        [Subscription("x")],
        {"window": 1},
        "* * * * *",
        False,
        9,
    )
    change = PipelineChange(*(getattr(pipeline, name) for name in PipelineChange.__struct_fields__))
    provider = ProviderSettings(
        "https://idp", "c", "secret", "api", "groups", {"a": "reader"}, "reader", {"hd": 1}, ["openid"]
    )
    return {
        "whoami": [lambda c: c.whoami()],
        "plan": [lambda c: c.plan(file)],
        "deploy": [
            lambda c: c.deploy(
                file, expect_version=1, manual_cutover=True, drop_missing=True, no_rematerialize=True
            )
        ],
        "versions": [lambda c: c.versions("t", limit=3)],
        "emit": [
            lambda c: c.emit("t.in", range(3), kind="invalidation", emission="again"),
            lambda c: c.emit("t.in", "2026-11-16..2026-11-17"),
        ],
        "backfill": [
            lambda c: c.backfill("t.in", 1, 2, only="all", partition_size=5, allow_gaps=True, dry_run=True)
        ],
        "status": [lambda c: c.status(dag="t", dataset="t.d", unmet=True)],
        "health": [lambda c: c.health()],
        "tasks": [lambda c: c.tasks(state="dead", standing="serving", limit=5, **range_)],
        "task": [lambda c: c.task(ID)],
        "explain": [lambda c: c.explain(ID)],
        "logs": [lambda c: c.logs(ID)],
        "retry": [lambda c: c.retry(ID), lambda c: c.retry(**range_, state="canceled")],
        "cancel": [lambda c: c.cancel(ID), lambda c: c.cancel(**range_)],
        "acknowledge": [lambda c: c.acknowledge(ID), lambda c: c.acknowledge(**range_)],
        "query": [lambda c: c.query("select 1", max_rows=3)],
        "query_spark": [lambda c: c.query_spark(None, "select 1", max_rows=5)],
        "query_pandas": [lambda c: c.query_pandas("select 1", as_of_version={"t": 1})],
        "query_polars": [lambda c: c.query_polars("select 1", as_of_time=NOON)],
        "pieces": [lambda c: next(c.pieces("select 1", format="csv"))],
        "query_plan": [
            lambda c: c.query_plan("select 1", as_of_version={"t": 1}, engine="spark"),
            lambda c: c.query_plan("select 1", as_of_time=NOON),
        ],
        "query_task": [
            lambda c: c.query_task("select 1", "t.out", as_of_version={"t": 1}),
            lambda c: c.query_task("select 1", "t.out", as_of_time=NOON),
        ],
        "execution": [lambda c: c.execution(ID).__enter__()],
        "dags.all": [lambda c: c.dags.all()],
        "dags.graph": [lambda c: c.dags.graph(), lambda c: c.dags.graph("t", building=True)],
        "dags.overview": [lambda c: c.dags.overview()],
        "events.each": [
            lambda c: next(
                c.events.each(dataset="t.in", kind="data", start=1, end=2, task_id=ID, commit_id=3)
            )
        ],
        "events.effects": [lambda c: c.events.effects(5, depth=2, width=3, after="7")],
        "events.effects_of_task": [lambda c: c.events.effects_of_task(ID, depth=2, width=3, after="7")],
        "dags.cutover": [lambda c: c.dags.cutover("t", drop_missing=True)],
        "dags.rollback": [lambda c: c.dags.rollback("t", to=1, drop_missing=True)],
        "dags.abort": [lambda c: c.dags.abort("t")],
        "dags.delete": [lambda c: c.dags.delete("t", force=True)],
        "jobs.pause": [lambda c: c.jobs.pause("t", "j", reason="r")],
        "jobs.resume": [lambda c: c.jobs.resume("t", "j")],
        "jobs.close_batches": [lambda c: c.jobs.close_batches("t", "j")],
        "datasets.all": [lambda c: c.datasets.all("t", after="t.d", limit=5)],
        "datasets.get": [lambda c: c.datasets.get("t/in ö")],
        "datasets.history": [lambda c: c.datasets.history("t.in")],
        "datasets.coverage": [lambda c: c.datasets.coverage("t.in", 1, 2, cells=10)],
        "datasets.column_lineage": [lambda c: c.datasets.column_lineage("t.in", "n")],
        "datasets.explain": [lambda c: c.datasets.explain("t.in", 1, 2)],
        "webhooks.all": [lambda c: c.webhooks.all()],
        "file_sources.all": [lambda c: c.file_sources.all()],
        "alerts.each": [lambda c: next(c.alerts.each(dag="t", alert="a", state="open"))],
        "alerts.get": [lambda c: c.alerts.get(ID)],
        "alerts.summary": [lambda c: c.alerts.summary(dag="t", alert="a")],
        "alerts.acknowledge": [
            lambda c: c.alerts.acknowledge(ID),
            lambda c: c.alerts.acknowledge(dag="t", alert="a"),
        ],
        "alerts.test": [
            lambda c: c.alerts.test("a", 1, 2, dag="t"),
            lambda c: c.alerts.test("a", 1, 2, file=file),
        ],
        "silences.each": [lambda c: next(c.silences.each())],
        "silences.add": [lambda c: c.silences.add(60, "r", dag="t", alert="a", subject={"a": 1})],
        "silences.end": [lambda c: c.silences.end(ID)],
        "channels.all": [lambda c: c.channels.all()],
        "channels.get": [lambda c: c.channels.get("ops")],
        "channels.set": [lambda c: c.channels.set("ops", {"kind": "slack"}, platform_alerts=True)],
        "channels.remove": [lambda c: c.channels.remove("ops", drop=True, force=True)],
        "channels.test": [lambda c: c.channels.test("ops")],
        "deliveries.each": [lambda c: next(c.deliveries.each(channel="ops", state="dead"))],
        "deliveries.replay": [lambda c: c.deliveries.replay(ID), lambda c: c.deliveries.replay(channel="o")],
        "deliveries.drop": [lambda c: c.deliveries.drop(ID), lambda c: c.deliveries.drop(channel="o")],
        "dead_letters.each": [lambda c: next(c.dead_letters.each(dag="t", job="j", dataset="t.in"))],
        "dead_letters.get": [lambda c: c.dead_letters.get(ID)],
        "dead_letters.replay": [lambda c: c.dead_letters.replay(**range_)],
        "dead_letters.drop": [lambda c: c.dead_letters.drop(**range_)],
        "pipelines.each": [lambda c: next(c.pipelines.each(is_active=True, ticker="AAPL"))],
        "pipelines.get": [lambda c: c.pipelines.get(ID)],
        "pipelines.create": [lambda c: c.pipelines.create(pipeline)],
        "pipelines.change": [lambda c: c.pipelines.change(ID, change)],
        "pipelines.delete": [lambda c: c.pipelines.delete(ID)],
        "pipelines.signals": [lambda c: c.pipelines.signals()],
        "scanner_lists.all": [lambda c: c.scanner_lists.all()],
        "scanner_lists.set": [lambda c: c.scanner_lists.set("tech", ["AAPL"])],
        "scanner_lists.delete": [lambda c: c.scanner_lists.delete("tech")],
        "user_limits.all": [lambda c: c.user_limits.all()],
        "user_limits.set": [lambda c: c.user_limits.set("ada", 5)],
        "executions.each": [lambda c: next(c.executions.each(pipeline_id=ID, status="RUNNING"))],
        "executions.get": [lambda c: c.executions.get(ID)],
        "roles.all": [lambda c: c.roles.all()],
        "roles.define": [lambda c: c.roles.define("finance", includes="writer", sees_pii=True)],
        "roles.delete": [lambda c: c.roles.delete("finance", force=True)],
        "members.all": [lambda c: c.members.all()],
        "members.add": [lambda c: c.members.add("ada", kind="service", email="a@example.com")],
        "members.disable": [lambda c: c.members.disable("ada")],
        "members.grant": [lambda c: c.members.grant("ada", "finance", lasts="30d")],
        "members.withdraw": [lambda c: c.members.withdraw("ada", "finance")],
        "tokens.all": [lambda c: c.tokens.all()],
        "tokens.issue": [
            lambda c: c.tokens.issue("n", member="ada", roles=["r"], datasets=["t.*"], lasts="30d")
        ],
        "tokens.revoke": [lambda c: c.tokens.revoke(ID)],
        "identity_providers.all": [lambda c: c.identity_providers.all()],
        "identity_providers.get": [lambda c: c.identity_providers.get("idp")],
        "identity_providers.set": [lambda c: c.identity_providers.set("idp", provider)],
        "identity_providers.remove": [lambda c: c.identity_providers.remove("idp")],
        "secrets.all": [lambda c: c.secrets.all()],
        "secrets.set": [lambda c: c.secrets.set("rpc", "v", platform=True, **rights)],
        "secrets.allow": [lambda c: c.secrets.allow("rpc", **rights)],
        "secrets.remove": [lambda c: c.secrets.remove("rpc")],
        "audit.each": [lambda c: next(c.audit.each(outcome="refused", since=NOON))],
    }


def methods(client: Client) -> dict[str, Callable[..., Any]]:
    """By name, those of its groups as `channels.set`."""
    named = {name: value for name, value in inspect.getmembers(client) if not name.startswith("_")}
    own = {name: value for name, value in named.items() if callable(value)}
    groups = {name: group for name, group in named.items() if name not in own}
    return own | {
        f"{group}.{name}": value
        for group, grouped in groups.items()
        for name, value in inspect.getmembers(grouped, callable)
        if not name.startswith("_")
    }


@pytest.fixture
def sent(
    client: Client, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Sent]]:
    """What each method sends."""
    monkeypatch.chdir(tmp_path)
    made: dict[str, list[Sent]] = {}
    for name, calls in uses(tmp_path).items():
        for use in calls:
            with contextlib.suppress(Asked):
                use(client)
        made[name], recorder.sent = recorder.sent, []
        assert len(made[name]) == len(calls), name
    return made


def described(paths: dict[str, Any], sent: Sent) -> tuple[str, dict[str, Any]]:
    templates = [p for p in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", p), sent.path)]
    template = min(templates, key=lambda path: path.count("{"))
    return f"{sent.method} {template}", paths[template][sent.method.lower()]


def test_every_method_is_compared_with_the_description(client: Client, tmp_path: Path) -> None:
    assert set(methods(client)) == set(uses(tmp_path)), "a new method of the client needs an entry in `uses`"


async def test_every_endpoint_of_the_public_api_has_a_method(sent: dict[str, list[Sent]]) -> None:
    document = await openapi(public_api())
    called = {described(document["paths"], call)[0] for calls in sent.values() for call in calls}
    public = {name for name, _ in operations(document) if not name.split()[1].startswith(NOT_CALLED)}
    left = public - called - {"GET /openapi.json"}
    assert not left, f"no method of the client calls {sorted(left)}"


async def test_methods_send_and_expect_what_is_described(sent: dict[str, list[Sent]]) -> None:
    document = await openapi(public_api())
    for name, calls in sent.items():
        for call in calls:
            _, operation = described(document["paths"], call)
            parameters = {p["name"] for p in operation["parameters"] if p["in"] == "query"}
            assert call.parameters == parameters, name
            body = None if call.body is None else {"$ref": f"#/components/schemas/{type(call.body).__name__}"}
            content = operation.get("requestBody", {}).get("content", {})
            assert body == content.get("application/json", {}).get("schema"), name
            if call.answer is not None:
                answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
                assert answer == {"$ref": f"#/components/schemas/{call.answer}"}, name


async def test_every_field_of_a_body_can_be_given(sent: dict[str, list[Sent]]) -> None:
    schemas = (await openapi(public_api()))["components"]["schemas"]
    given: dict[str, set[str]] = defaultdict(set)
    for calls in sent.values():
        for call in calls:
            if call.body is not None:
                given[type(call.body).__name__] |= set(msgspec.to_builtins(call.body))
    given.pop("ExecutionChange")  # `execution` makes it from what happens in its block
    for kind, fields in given.items():
        elsewhere = MADE_FROM_FILES.get(kind, set()) | FOR_THE_NEXT_PAGE.get(kind, set())
        assert fields | elsewhere == set(schemas[kind]["properties"]) | elsewhere, kind


def test_every_method_is_documented_with_its_arguments(client: Client) -> None:
    text = page("reference/client.md")
    for name, method in methods(client).items():
        row = re.search(rf"^\| `{re.escape(name)}\(([^`]*)\)` \|", text, re.M)
        assert row is not None, name
        names = [p.strip().lstrip("*").partition("=")[0] for p in re.split(r",(?![^(]*\))", row[1])]
        assert [n for n in names if n] == list(inspect.signature(method).parameters), name


def test_no_method_is_documented_that_does_not_exist(client: Client) -> None:
    documented = set(re.findall(r"^\| `([\w.]+)\(", page("reference/client.md"), re.M))
    assert documented == set(methods(client))


# --- what the client adds to single calls -----------------------------------------------------------


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the gateway says, call by call."""
    said: list[bytes] = []
    monkeypatch.setattr(Connection, "pieces", lambda *_: iter([said.pop(0)]))
    return said


def test_pages_are_read_as_they_are_needed(client: Client, answers: list[bytes]) -> None:
    silence = b'{"silence_id":"%s","ends_at":"2026-11-16T12:00:00Z","reason":"r","created_at":"2026-11-16T12:00:00Z"'
    one = silence % ID.encode() + b',"created_by":"ada"}'
    first = b'{"silences":[' + one + b'],"after":"' + ID.encode() + b'"}'
    answers += [first, first, b'{"silences":[' + one + b"]}"]
    silences = client.silences.each()
    assert len(answers) == 3
    next(silences)
    assert len(answers) == 2
    assert len(list(silences)) == 2
    assert answers == []
    answers += [first, first]
    assert len(list(client.silences.each(limit=1))) == 1
    assert len(answers) == 1


def test_the_tasks_of_a_dag_are_changed_to_the_last(client: Client, answers: list[bytes]) -> None:
    other = ID.replace("0", "1")
    answers += [
        b'{"changed":{"%s":"queued"},"unchanged":[],"after":"%s"}' % (ID.encode(), ID.encode()),
        b'{"changed":{"%s":"queued"},"unchanged":["%s"],"why_unchanged":{"%s":"retired"}}'
        % (other.encode(), ID.encode(), ID.encode()),
    ]
    assert client.retry(dag="t") == TaskChanges(
        {ID: "queued", other: "queued"}, [UUID(ID)], why_unchanged={ID: "retired"}
    )


def test_arguments_that_exclude_each_other_are_refused_before_anything_is_sent(client: Client) -> None:
    for call in (
        lambda: client.retry(ID, dag="t"),
        client.alerts.acknowledge,
        lambda: client.deliveries.drop(ID, channel="ops"),
        lambda: client.query("select 1", as_of_version={"t": 1}, as_of_time=NOON),
        lambda: client.task("seven"),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.code == "client.bad_argument"


def test_an_answer_of_another_shape_is_an_error(client: Client, answers: list[bytes]) -> None:
    answers.append(b'{"dags":[{"dag":"t"}]}')
    with pytest.raises(PlatformError) as refused:
        client.dags.all()
    assert refused.value.code == "service.bad_answer"
