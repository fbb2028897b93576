"""Which engine runs a query, and what one reads that is handed to Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.postgres.copy_jobs import held_for, with_schema
from tests.postgres.test_file_compaction import POSITIONED, with_worker
from traceplane.auth.roles import Role
from traceplane.errors import Conflict, Forbidden
from traceplane.http_service.routes import Call
from traceplane.query.service import query_hash
from traceplane.wire.queries import QueryPlan, QueryRequest, QueryTask, QueryTaskRequest

MIB = 1 << 20


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url, query_spark_above_mb=1) as opened:
        await opened.deploy(POSITIONED)
        await written(opened, *range(3))
        yield opened
        await opened.api.close()


async def written(plane: ControlPlane, *positions: int, **fields: Any) -> None:
    """Commits of half a megabyte each."""
    reports = []
    for held in await held_for(plane, *positions, **fields):
        _, report = with_schema(held, n="int64")
        outputs = [msgspec.structs.replace(o, bytes=MIB // 2) for o in report.outputs]
        reports.append((held, msgspec.structs.replace(report, outputs=outputs)))
    await plane.report(*reports)


def call(plane: ControlPlane, role: Role = Role.ADMIN, **fields: Any) -> Call[Any]:
    caller = replace(plane.admin, role=role, roles=frozenset({str(role)}))
    request = QueryRequest(**{"sql": "select * from mid", "engine": "auto", **fields})

    async def stays() -> Any:
        await asyncio.Event().wait()

    return Call(request, {}, None, caller, {}, receive=stays)


async def planned(plane: ControlPlane, **fields: Any) -> QueryPlan:
    return await plane.api.query_plan(call(plane, **fields))


async def handed_over(plane: ControlPlane, **fields: Any) -> QueryTask:
    answer = await plane.api.query(call(plane, **fields))
    assert (b"traceplane-engine", b"spark") in answer.headers
    pieces: list[bytes] = []

    async def push(piece: bytes) -> None:
        pieces.append(piece)

    await answer.write(push)
    return msgspec.json.decode(b"".join(pieces), type=QueryTask)


async def test_the_plan_says_which_engine_and_why(plane: ControlPlane) -> None:
    plan = await planned(plane)
    assert (plan.engine, plan.files, plan.of_files, plan.bytes) == ("spark", 3, 3, 3 * MIB // 2)
    assert plan.reason == "3 files with about 1.5 MB to read, more than 1.0 MB"
    assert list(plan.generations) == ["mid"]
    some = await planned(plane, sql="select * from mid where n = 1")
    assert (some.engine, some.files, some.bytes) == ("duckdb", 1, MIB // 2), "of the pruned file list"
    assert (await planned(plane, engine="duckdb")).engine == "duckdb"
    assert (await planned(plane, sql="select * from mid where n = 1", engine="spark")).engine == "spark"


async def test_spark_reads_what_was_there_when_the_query_was_handed_over(plane: ControlPlane) -> None:
    await with_worker(plane)
    before = {row["path"] for row in await files(plane)}
    made = await handed_over(plane)
    assert made.reason == "3 files with about 1.5 MB to read, more than 1.0 MB"
    assert made.as_of is not None
    await written(plane, 1, 7, emission="later")
    assert before == await read_by(plane, made.task_id)
    assert before != {row["path"] for row in await files(plane)}


async def files(plane: ControlPlane) -> list[Any]:
    return await plane.sql(
        "select c.files->0->>'path' as path from dataset_commits c"
        " join datasets d on d.current_generation_id = c.generation_id"
        " where d.dataset_id = 'mid' and c.superseded_by is null"
    )


async def test_without_a_spark_worker_the_caller_learns_what_to_do(plane: ControlPlane) -> None:
    with pytest.raises(Conflict) as refused:
        await handed_over(plane)
    assert refused.value.code == "query.no_spark"
    assert "engine duckdb" in str(refused.value.next_step)


async def test_who_may_store_nothing_hands_nothing_over(plane: ControlPlane) -> None:
    await with_worker(plane)
    with pytest.raises(Forbidden) as refused:
        await handed_over(plane, role=Role.READER)
    assert refused.value.code == "query.may_not_hand_over"


async def test_a_query_that_becomes_a_task_is_in_the_audit_log(plane: ControlPlane) -> None:
    """It makes a dataset and a task, so it is a change, unlike one that is answered at once."""
    await with_worker(plane)
    everything = {"sql": "select * from mid", "engine": "spark"}
    async with GatewayHttp.open(plane) as http:
        will, rita = [await http.token(Role(role), name=role) for role in ("writer", "reader")]
        assert (await http.send(rita, "POST", "/api/v1/query", everything))[0] == 403
        assert (await http.send(will, "POST", "/api/v1/query-plan", everything))[0] == 200
        status, text = await http.send(will, "POST", "/api/v1/query", everything)
        assert status == 200, text
    rows = await plane.sql(
        "select principal, object, outcome from audit_log where action = 'POST /api/v1/query' order by outcome"
    )
    asked = {"query_hash": query_hash(everything["sql"])}
    assert [tuple(row) for row in rows] == [
        ("writer", {**asked, "dataset": json.loads(text)["dataset"]}, "ok"),
        ("reader", asked, "query.may_not_hand_over"),
    ]


async def test_a_query_as_of_a_time_reads_what_was_there_on_spark_too(plane: ControlPlane) -> None:
    await with_worker(plane)
    then = await plane.value("select tp_now()")
    before = {row["path"] for row in await files(plane)}
    await written(plane, 1, 7, emission="later")
    assert (await planned(plane, as_of_time=then)).engine == "spark"
    assert (await planned(plane, as_of_time=then)).files == len(before)
    made = await handed_over(plane, as_of_time=then)
    assert made.as_of == then
    assert before == await read_by(plane, made.task_id)
    assert before != {row["path"] for row in await files(plane)}


async def test_a_time_to_come_is_the_moment_of_the_hand_over(plane: ControlPlane) -> None:
    await with_worker(plane)
    now = await plane.value("select tp_now()")
    made = await handed_over(plane, as_of_time=now + timedelta(days=1))
    assert made.as_of is not None
    assert now <= made.as_of < now + timedelta(hours=1)


async def test_a_result_dataset_may_be_computed_as_of_a_time(plane: ControlPlane) -> None:
    then = await plane.value("select tp_now()")
    before = {row["path"] for row in await files(plane)}
    await written(plane, 1, emission="later")
    request = QueryTaskRequest("select * from mid", "result", as_of_time=then)
    made = await plane.api.query_task(msgspec.structs.replace(call(plane), body=request))
    assert made.as_of == then
    assert before == await read_by(plane, made.task_id)


async def test_a_task_whose_moment_was_deleted_while_it_waited_is_canceled(plane: ControlPlane) -> None:
    """Otherwise it would compute its result from the rest, and nobody would know."""
    await with_worker(plane)
    made = await handed_over(plane)
    await written(plane, 1, emission="later")
    await plane.sql("update generation_cursors set forgotten_until = tp_now()")
    await plane.meter()
    assert made.task_id not in {h.task_id for h in await plane.claim(await plane.send(), runtime="spark")}
    (task,) = await plane.sql("select state::text, error from tasks where task_id = $1", made.task_id)
    assert task["state"] == "canceled"
    assert task["error"]["code"] == "query.history_gone"
    assert "mid" in task["error"]["message"]


async def read_by(plane: ControlPlane, task_id: UUID) -> set[str]:
    """The files that a task gets when it is claimed."""
    await plane.meter()
    claimed = await plane.claim(await plane.send(), runtime="spark")
    (held,) = [held for held in claimed if held.task_id == task_id]
    return {file.path for file in held.task.input_files[0]}
