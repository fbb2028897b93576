"""The audit log: no change without its row, no row without its change, every refusal, and nothing that is secret."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role
from traceplane.gateway import audit
from traceplane.postgres import history
from traceplane.postgres.audit import Act
from traceplane.postgres.history import Kind

DAG = dag("shop", source("shop.in"), job("copy", "shop.in", "shop.out"))
DAY = 24 * 3600
SECRET = "sixteen tons of number nine coal"


@pytest.fixture
async def http(plane: ControlPlane) -> AsyncIterator[GatewayHttp]:
    async with GatewayHttp.open(plane) as opened:
        yield opened


async def expect(http: GatewayHttp, token: str, method: str, path: str, body: Any = None) -> Any:
    status, text = await http.send(token, method, path, body)
    assert status == 200, text
    return json.loads(text)


async def entries(plane: ControlPlane) -> list[tuple[str, str, dict[str, str], str, int]]:
    await plane.api.audit.flush()
    rows = await plane.sql(
        "select principal, action, object, outcome, times from audit_log order by audit_id"
    )
    return [tuple(row) for row in rows]


async def test_every_change_leaves_a_row_and_what_changes_nothing_leaves_none(
    plane: ControlPlane, http: GatewayHttp
) -> None:
    admin = await http.token(Role.ADMIN, name="ada")
    events = {"events": [{"dataset": "shop.in", "scope": {"cursor": 1}}]}
    calls: list[tuple[str, str, Any, dict[str, str] | None]] = [
        ("POST", "/api/v1/plan", {"text": DAG}, None),
        ("POST", "/api/v1/deploy", {"text": DAG}, {"dag": "shop"}),
        ("POST", "/api/v1/events", events, {"dataset": "shop.in"}),
        ("POST", "/api/v1/events", events, None),
        ("POST", "/api/v1/jobs/pause", {"dag": "shop", "job": "copy"}, {"dag": "shop", "job": "copy"}),
        ("POST", "/api/v1/jobs/resume", {"dag": "shop", "job": "copy"}, {"dag": "shop", "job": "copy"}),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": SECRET}, {"namespace": "user", "name": "rpc"}),
        ("PUT", "/api/v1/scanner-lists/tech", {"tickers": ["MSFT"]}, {"name": "tech"}),
        ("POST", "/api/v1/query", {"sql": "select 1 as n"}, None),
        ("GET", "/api/v1/status", None, None),
        ("DELETE", "/api/v1/scanner-lists/tech", None, {"name": "tech"}),
    ]
    expected = []
    for method, path, body, named in calls:
        await expect(http, admin, method, path, body)
        if named is not None:
            route = path.replace("user/rpc", "{namespace}/{name}").replace("lists/tech", "lists/{name}")
            expected.append(("ada", f"{method} {route}", named, "ok", 1))
        assert await entries(plane) == expected, path
    text = json.dumps([[str(v) for v in row] for row in await plane.sql("select * from audit_log")])
    assert SECRET not in text
    assert "MSFT" not in text
    assert "select" not in text


async def test_a_row_says_which_rights_were_given(plane: ControlPlane, http: GatewayHttp) -> None:
    admin = await http.token(Role.ADMIN, name="root")
    token = {
        "name": "ci",
        "member": "ada",
        "roles": ["finance", "reader"],
        "datasets": ["shop.*"],
        "lasts": "30d",
    }
    rights = {"allowed_jobs": ["shop/copy"], "roles": ["finance"]}
    for method, path, body, named in (
        ("PUT", "roles/finance", {"includes": "writer", "sees_pii": True},
         {"role": "finance", "includes": "writer", "sees_pii": "true"}),
        ("PUT", "members/ada", {"kind": "service"}, {"member": "ada"}),
        ("PUT", "members/ada/roles/finance", {"lasts": "1h"}, {"member": "ada", "role": "finance", "lasts": "1h"}),
        ("POST", "tokens", token, token | {"roles": "finance, reader", "datasets": "shop.*"}),
        ("PUT", "secrets/user/rpc", {"value": SECRET}, {"namespace": "user", "name": "rpc"}),
        ("POST", "secrets/user/rpc/rights", rights,
         {"namespace": "user", "name": "rpc", "allowed_jobs": "shop/copy", "roles": "finance"}),
    ):  # fmt: skip
        await expect(http, admin, method, f"/api/v1/{path}", body)
        assert (await entries(plane))[-1][2] == named, path


async def test_a_row_says_from_where_and_with_which_request(plane: ControlPlane, http: GatewayHttp) -> None:
    admin = await http.token(Role.ADMIN, name="ada")
    headers = {"authorization": f"Bearer {admin}", "x-request-id": "order-17"}
    async with http.session.post("/api/v1/deploy", json={"text": DAG}, headers=headers) as answer:
        assert answer.status == 200
    (row,) = await plane.sql("select kind, remote, request_id, org_id from audit_log")
    assert tuple(row)[:3] == ("token", "127.0.0.1", "order-17")
    assert row["org_id"] == plane.admin.org_id


async def test_a_change_that_is_rolled_back_leaves_no_row_and_a_row_that_fails_rolls_back_the_change(
    plane: ControlPlane, http: GatewayHttp
) -> None:
    admin = await http.token(Role.ADMIN, name="ada")
    await expect(http, admin, "POST", "/api/v1/deploy", {"text": DAG})
    assert (await http.send(admin, "POST", "/api/v1/deploy", {"text": DAG, "expect_version": 7}))[0] == 409
    assert len(await entries(plane)) == 1
    await plane.sql("alter table audit_log add constraint full_disk check (audit_id < 0) not valid")
    for method, path, body in (
        ("PUT", "/api/v1/scanner-lists/tech", {"tickers": ["MSFT"]}),
        ("POST", "/api/v1/events", {"events": [{"dataset": "shop.in", "scope": {"cursor": 1}}]}),
    ):
        status, text = await http.send(admin, method, path, body)
        assert status == 500, text
    assert await plane.value("select count(*) from scanner_lists") == 0
    assert await plane.value("select count(*) from events") == 0


async def test_calls_that_are_committed_together_have_a_row_each(
    plane: ControlPlane, http: GatewayHttp
) -> None:
    await plane.deploy(DAG)
    writers = [await http.token(Role.WRITER, name=f"writer-{n}") for n in range(8)]
    await asyncio.gather(
        *(
            expect(
                http,
                token,
                "POST",
                "/api/v1/events",
                {"events": [{"dataset": "shop.in", "scope": {"cursor": n}}]},
            )
            for n, token in enumerate(writers)
        )
    )
    assert sorted(row[0] for row in await entries(plane)) == [f"writer-{n}" for n in range(8)]


async def test_every_refusal_of_somebody_who_is_known_is_recorded(
    plane: ControlPlane, http: GatewayHttp
) -> None:
    reader, worker = await http.token(Role.READER, name="rita"), await http.worker_token()
    revoked = await http.token(Role.ADMIN, name="gone")
    await plane.sql("update access_tokens set revoked_at = tp_now() where name = 'gone'")
    await plane.api.refresh()
    for _ in range(3):
        assert (await http.send(reader, "PUT", "/api/v1/user-limits/u", {"launches_per_hour": 1}))[0] == 403
    assert (await http.send(revoked, "GET", "/api/v1/status"))[0] == 401
    assert (await http.send(worker, "GET", "/api/v1/status"))[0] == 403
    denied = {"sql": "select * from read_csv('/etc/passwd')"}
    assert (await http.send(reader, "POST", "/api/v1/query", denied))[0] == 403
    for unknown in ("", "tpu_nonsense"):
        assert (await http.send(unknown, "GET", "/api/v1/status"))[0] == 401
    found = await entries(plane)
    assert found[0] == (
        "rita",
        "PUT /api/v1/user-limits/{user_id}",
        {"user_id": "u"},
        "access.role_required",
        3,
    )
    assert [(row[0], row[1], row[3]) for row in found[1:]] == [
        ("gone", "GET /api/v1/status", "token.revoked"),
        ("default-worker", "GET /api/v1/status", "token.wrong_principal"),
        ("rita", "POST /api/v1/query", "query.function_denied"),
    ]
    assert "passwd" not in json.dumps(
        [[str(v) for v in r] for r in await plane.sql("select * from audit_log")]
    )


async def test_denied_queries_are_recorded_without_their_text(plane: ControlPlane, http: GatewayHttp) -> None:
    reader, writer = await http.token(Role.READER, name="rita"), await http.token(Role.WRITER, name="will")
    denied = {
        "select * from read_csv('/etc/passwd')": "query.function_denied",
        "select * from hr.salaries": "query.unknown_relation",
        "drop table x": "query.not_a_select",
        "select 1; select 2": "query.several_statements",
    }
    for sql in denied:
        assert (await http.send(reader, "POST", "/api/v1/query", {"sql": sql}))[0] >= 400
        task = {"sql": sql, "dataset": "results.x"}
        assert (await http.send(writer, "POST", "/api/v1/query-tasks", task))[0] >= 400
    slip = {"sql": "select nothing from (select 1 as n)"}
    assert (
        json.loads((await http.send(reader, "POST", "/api/v1/query", slip))[1])["error"]["code"]
        == "query.invalid"
    )
    found = await entries(plane)
    for name, action in (("rita", "POST /api/v1/query"), ("will", "POST /api/v1/query-tasks")):
        rows = {row[2]["query_hash"]: row[3] for row in found if (row[0], row[1]) == (name, action)}
        assert rows == {hashlib.sha256(sql.encode()).hexdigest(): code for sql, code in denied.items()}
    assert [row[4] for row in found] == [1] * 8
    for word in ("passwd", "salaries", "drop"):
        assert word not in str(found)


async def test_many_refusals_take_little_memory_and_few_rows(plane: ControlPlane, http: GatewayHttp) -> None:
    reader = await http.token(Role.READER, name="rita")
    await asyncio.gather(
        *(
            http.send(reader, "PUT", f"/api/v1/user-limits/{n % 7}", {"launches_per_hour": 1})
            for n in range(200)
        )
    )
    await plane.api.audit.flush(at_end=True)
    found = await entries(plane)
    assert len(found) < 60
    assert sum(row[4] for row in found) == 200


async def test_one_caller_cannot_fill_it_with_ever_different_names(
    plane: ControlPlane, http: GatewayHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await http.token(Role.READER, name="rita")
    for n in range(100):
        await http.send(reader, "PUT", f"/api/v1/user-limits/{n}", {"launches_per_hour": 1})
        if n % 10 == 0:
            await plane.api.audit.flush()
    assert len(await entries(plane)) == 20
    later = time.monotonic() + 61
    monkeypatch.setattr(audit, "time", SimpleNamespace(monotonic=lambda: later))
    found = await entries(plane)
    assert found[20:] == [("rita", "PUT /api/v1/user-limits/{user_id}", {}, "access.role_required", 80)]
    await http.send(reader, "PUT", "/api/v1/user-limits/again", {"launches_per_hour": 1})
    assert (await entries(plane))[21:] == [
        ("rita", "PUT /api/v1/user-limits/{user_id}", {"user_id": "again"}, "access.role_required", 1)
    ]


async def test_refusals_in_one_organization_leave_others_their_details(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_MOST_ROWS_OF_AN_ORGANIZATION", 5)
    await plane.sql("insert into orgs (slug) values ('other')")
    ids = {row["slug"]: row["org_id"] for row in await plane.sql("select slug, org_id from orgs")}
    for n in range(10):
        plane.api.audit.refuse(
            Act(ids["default"], f"caller-{n}", "token", "GET /x", object={"name": "a"}), "no"
        )
    plane.api.audit.refuse(Act(ids["other"], "otto", "token", "GET /x", object={"name": "b"}), "no")
    found = await entries(plane)
    assert len(found) == 6
    assert found[-1][:3] == ("otto", "GET /x", {"name": "b"})


async def test_only_admins_read_it_and_only_their_own(plane: ControlPlane, http: GatewayHttp) -> None:
    await plane.sql("insert into orgs (slug) values ('other')")
    admin = await http.token(Role.ADMIN, name="ada")
    other = await http.token(Role.ADMIN, org="other", name="otto")
    await expect(http, admin, "POST", "/api/v1/deploy", {"text": DAG})
    await expect(http, other, "PUT", "/api/v1/scanner-lists/tech", {"tickers": ["MSFT"]})
    for token in (await http.token(Role.READER), await http.token(Role.WRITER)):
        assert (await http.send(token, "GET", "/api/v1/audit"))[0] == 403
    await plane.api.audit.flush()
    mine = await expect(http, admin, "GET", "/api/v1/audit?outcome=ok")
    assert [(e["principal"], e["action"]) for e in mine["entries"]] == [("ada", "POST /api/v1/deploy")]
    theirs = await expect(http, other, "GET", "/api/v1/audit")
    assert [e["principal"] for e in theirs["entries"]] == ["otto"]


async def test_it_is_read_in_pages_and_by_filters(plane: ControlPlane, http: GatewayHttp) -> None:
    admin, reader = await http.token(Role.ADMIN, name="ada"), await http.token(Role.READER, name="rita")
    for n in range(5):
        await expect(http, admin, "PUT", f"/api/v1/scanner-lists/l{n}", {"tickers": ["MSFT"]})
    await http.send(reader, "POST", "/api/v1/deploy", {"text": DAG})
    await plane.api.audit.flush()

    async def listed(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await expect(http, admin, "GET", f"/api/v1/audit?{query}"))["entries"]
        return found

    every = await listed("")
    assert [e["audit_id"] for e in every] == sorted((e["audit_id"] for e in every), reverse=True)
    assert await listed("after=0") == every[::-1]
    assert await listed("limit=2") == every[:2]
    assert await listed(f"limit=2&before={every[1]['audit_id']}") == every[2:4]
    assert await listed(f"limit=2&after={every[3]['audit_id']}") == [every[2], every[1]]
    assert [e["principal"] for e in await listed("outcome=refused")] == ["rita"]
    assert len(await listed("principal=ada&action=scanner-lists")) == 5
    assert await listed("until=2020-01-01T00:00:00Z") == []
    assert len(await listed("since=2020-01-01T00:00:00Z")) == 6
    assert (await http.send(admin, "GET", "/api/v1/audit?since=2020-01-01T00:00:00"))[0] == 400
    for bad in ("limit=0", "limit=1001", "outcome=x", "since=x", "before=x"):
        assert (await http.send(admin, "GET", f"/api/v1/audit?{bad}"))[0] == 400


async def test_it_is_append_only_until_its_history_ends(plane: ControlPlane, http: GatewayHttp) -> None:
    admin = await http.token(Role.ADMIN, name="ada")
    await expect(http, admin, "PUT", "/api/v1/scanner-lists/old", {"tickers": ["MSFT"]})
    for statement in (
        "update audit_log set principal = 'x'",
        "delete from audit_log",
        "truncate audit_log",
    ):
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            await plane.sql(statement)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with plane.admin.database.transaction() as tx:
                await tx.run(statement)
    await plane.pass_time(31 * DAY)
    await expect(http, admin, "PUT", "/api/v1/scanner-lists/new", {"tickers": ["MSFT"]})
    for dry_run in (True, False):
        async with plane.database.transaction() as tx:
            page = await history.end(tx, Kind.AUDIT, timedelta(days=30), None, 100, dry_run=dry_run)
        assert page.ended == 1
    assert [row[2] for row in await entries(plane)] == [{"name": "new"}]
