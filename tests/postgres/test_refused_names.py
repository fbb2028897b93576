"""A name that cannot be meant is refused by every call, which says what was probably meant and what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role

SHOP = (
    dag("shop", source("shop.in"), job("daily", "shop.in", "shop.daily"))
    + """\
datasets:
  shop.daily: {columns: [{name: n, type: bigint}]}
  shop.large: {storage: virtual, sql: "select n from shop.daily where n > 9"}
  shop.larger: {storage: virtual, sql: "select n from shop.large where n > 99"}
"""
)
READER = dag("reader", job("weekly", "shop.dialy", "reader.weekly"))


class Caller:
    def __init__(self, http: GatewayHttp, token: str) -> None:
        self._http, self._token = http, token

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        status, text = await self._http.send(self._token, method, path, body)
        assert 400 <= status < 500, (status, text)
        return status, json.loads(text)["error"]

    async def answered(self, method: str, path: str, body: Any = None) -> Any:
        status, text = await self._http.send(self._token, method, path, body)
        assert status == 200, (status, text)
        return json.loads(text)


@pytest_asyncio.fixture
async def caller(database_url: str) -> AsyncIterator[Caller]:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        await plane.deploy(SHOP)
        yield Caller(http, await http.token(Role.ADMIN))


def emitted(dataset: str) -> tuple[str, str, Any]:
    return "POST", "/api/v1/events", {"events": [{"dataset": dataset, "scope": {"cursor": 1}}]}


def backfilled(dataset: str) -> tuple[str, str, Any]:
    return "POST", "/api/v1/backfill", {"dataset": dataset, "start": 0, "end": 9}


def explained(dataset: str) -> tuple[str, str, Any]:
    return "GET", f"/api/v1/datasets/{dataset}/explain?first=0&last=9", None


def queried(dataset: str, **fields: Any) -> tuple[str, str, Any]:
    return "POST", "/api/v1/query", {"sql": f"select * from {dataset}", **fields}


async def test_a_virtual_dataset_has_no_scopes_and_names_what_it_reads(caller: Caller) -> None:
    for request, step in (
        (emitted("shop.larger"), "emit events of the sources of shop.daily"),
        (backfilled("shop.larger"), "backfill what it reads: shop.daily"),
        (explained("shop.larger"), "explain what it reads: shop.daily"),
    ):
        assert await caller.refused(*request) == (
            400,
            {
                "code": "dataset.virtual",
                "message": "the dataset is virtual: it has no scopes of its own, "
                "and its rows are computed when it is read",
                "value": "shop.larger",
                "next_step": step,
            },
        )


async def test_an_unknown_dataset_is_refused_with_the_name_that_was_probably_meant(caller: Caller) -> None:
    for method, path, body in (
        emitted("shop.dialy"),
        backfilled("shop.dialy"),
        explained("shop.dialy"),
        ("GET", "/api/v1/datasets/shop.dialy", None),
    ):
        status, error = await caller.refused(method, path, body)
        assert (status, error["code"], error["value"]) == (404, "dataset.unknown", "shop.dialy"), path
        assert error["next_step"] == "did you mean 'shop.daily'?", path
    status, error = await caller.refused(*queried("shop.dialy"))
    assert (status, error["code"]) == (404, "query.unknown_relation")
    assert error["next_step"] == "did you mean 'shop.daily'?"
    for request in (emitted("zoo"), backfilled("zoo"), explained("zoo")):
        status, error = await caller.refused(*request)
        assert (
            error["next_step"] == "see `traceplane datasets`; a new dataset is there once its DAG is deployed"
        )


async def test_an_unknown_input_of_a_dag_file_is_shown_where_it_stands(caller: Caller) -> None:
    line = next(n for n, text in enumerate(READER.splitlines(), 1) if "shop.dialy" in text)
    column = READER.splitlines()[line - 1].index("shop.dialy") + 1
    body = {"text": READER, "file": "flows/reader.yaml"}
    status, error = await caller.refused("POST", "/api/v1/deploy", body)
    assert (status, error["code"], error["value"]) == (404, "deploy.unknown_dataset", "shop.dialy")
    assert error["message"].startswith(f"flows/reader.yaml:{line}:{column}: ")
    assert error["next_step"] == "did you mean 'shop.daily'? If not, deploy its producer first"
    plan = await caller.answered("POST", "/api/v1/plan", body)
    assert plan["blocked_code"] == "deploy.unknown_dataset"
    assert f"flows/reader.yaml:{line}:{column}: " in plan["blocked"]


async def test_an_unknown_dataset_of_a_virtual_one_is_shown_at_its_sql(caller: Caller) -> None:
    text = SHOP.replace("from shop.daily", "from zoo")
    line = next(n for n, text in enumerate(text.splitlines(), 1) if "from zoo" in text)
    _, error = await caller.refused("POST", "/api/v1/deploy", {"text": text, "file": "shop.yaml"})
    assert (error["code"], error["value"]) == ("deploy.unknown_dataset", "zoo")
    assert error["message"].startswith(f"shop.yaml:{line}:")
    assert error["next_step"] == "deploy its producer first"


async def test_tasks_of_a_dag_or_job_that_does_not_exist_are_refused(caller: Caller) -> None:
    for path in ("/api/v1/tasks?dag=shup", "/api/v1/tasks?dag=shup&state=dead&standing=open"):
        assert await caller.refused("GET", path) == (
            404,
            {
                "code": "dag.unknown",
                "message": "there is no such DAG",
                "value": "shup",
                "next_step": "did you mean 'shop'?",
            },
        )
    for path in ("/api/v1/tasks?job=dayly", "/api/v1/tasks?dag=shop&job=dayly"):
        status, error = await caller.refused("GET", path)
        assert (status, error["code"], error["value"]) == (404, "job.unknown", "dayly")
        assert error["next_step"] == "did you mean 'daily'?"
    for verb in ("retry", "cancel", "acknowledge"):
        status, error = await caller.refused("POST", f"/api/v1/tasks/{verb}", {"dag": "zoo"})
        assert (status, error["code"], error["next_step"]) == (404, "dag.unknown", "see `traceplane dags`")
        status, error = await caller.refused("POST", f"/api/v1/tasks/{verb}", {"dag": "shop", "job": "zoo"})
        assert (status, error["code"]) == (404, "job.unknown")
    assert await caller.answered("GET", "/api/v1/tasks?dag=shop&job=daily") == {"tasks": []}


async def test_a_version_that_does_not_exist_is_refused_with_those_that_do(caller: Caller) -> None:
    for request in (
        queried("shop.daily", as_of_version={"shop": 9}),
        queried("shop.daily for version as of 9"),
    ):
        status, error = await caller.refused(*request)
        assert (status, error["code"], error["value"]) == (404, "query.nothing_then", "shop.daily")
        assert error["message"] == "DAG shop has no version 9"
        assert error["next_step"] == "its only version is 1"


async def test_a_query_of_a_source_without_rows_says_what_to_query(caller: Caller) -> None:
    status, error = await caller.refused(*queried("shop.in"))
    assert (status, error["code"], error["value"]) == (409, "query.no_columns", "shop.in")
    assert error["message"] == "the dataset has no rows: it consists of the events of source numbers"
    assert (
        error["next_step"]
        == "query a dataset that a job computes from it; `traceplane dataset show shop.in` names the jobs"
    )
