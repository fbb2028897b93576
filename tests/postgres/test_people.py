"""Members, roles and tokens of an organization: who may do what, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role


class People:
    def __init__(self, plane: ControlPlane, http: GatewayHttp, admin: str) -> None:
        self.plane, self.http, self.admin = plane, http, admin

    async def send(
        self, method: str, path: str, body: Any = None, token: str | None = None
    ) -> tuple[int, Any]:
        status, text = await self.http.send(token or self.admin, method, f"/api/v1/{path}", body)
        await self.plane.api.refresh()
        return status, json.loads(text)

    async def do(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        status, answer = await self.send(method, path, body, token)
        assert status == 200, answer
        return answer

    async def refused(self, method: str, path: str, body: Any = None, token: str | None = None) -> str:
        status, answer = await self.send(method, path, body, token)
        assert 400 <= status < 500
        code: str = answer["error"]["code"]
        return code

    async def token(self, member: str, **fields: Any) -> str:
        made = await self.do("POST", "tokens", {"name": member, "member": member, **fields})
        token: str = made["token"]
        return token


@pytest_asyncio.fixture
async def people(database_url: str, tmp_path: Path) -> AsyncIterator[People]:
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        GatewayHttp.open(plane) as http,
    ):
        yield People(plane, http, await http.token(Role.ADMIN, name="root"))


async def test_a_member_has_the_roles_that_it_was_given(people: People) -> None:
    await people.do("PUT", "members/ada", {"email": "ada@example.com"})
    token = await people.token("ada")
    assert await people.refused("GET", "status", token=token) == "access.role_required"
    await people.do("PUT", "roles/finance", {"includes": "writer", "sees_pii": True})
    await people.do("PUT", "members/ada/roles/finance", {})
    assert await people.do("GET", "whoami", token=token) == {
        "org": "default",
        "name": "ada",
        "kind": "user",
        "role": "writer",
        "roles": ["finance"],
        "sees_pii": True,
    }
    assert await people.refused("GET", "members", token=token) == "access.role_required"
    await people.do("DELETE", "members/ada/roles/finance")
    assert await people.refused("GET", "status", token=token) == "access.role_required"


async def test_memberships_expire(people: People) -> None:
    await people.do("PUT", "members/bob", {"kind": "service"})
    await people.do("PUT", "members/bob/roles/reader", {})
    (role,) = (await people.do("PUT", "members/bob/roles/reader", {"lasts": "1h"}))["roles"]
    assert role["expires_at"]
    token = await people.token("bob")
    assert (await people.do("GET", "whoami", token=token))["kind"] == "service"
    await people.plane.sql("update org_role_memberships set expires_at = tp_now()")
    await people.plane.api.refresh()
    assert await people.refused("GET", "status", token=token) == "access.role_required"
    assert (await people.do("GET", "members"))["members"][0]["roles"] == []


async def test_a_disabled_member_is_refused_until_it_is_added_again(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "members/ada/roles/reader", {})
    token = await people.token("ada")
    await people.do("GET", "whoami", token=token)
    assert (await people.do("DELETE", "members/ada"))["disabled_at"]
    assert await people.refused("GET", "status", token=token) == "token.revoked"
    asked = {"name": "laptop", "member": "ada"}
    assert await people.refused("POST", "tokens", asked) == "member.disabled"
    await people.do("PUT", "members/ada", {})
    assert await people.refused("GET", "status", token=token) == "token.revoked"
    assert (await people.do("GET", "whoami", token=await people.token("ada")))["roles"] == ["reader"]


async def test_a_role_that_is_defined_anew_is_not_that_of_old_tokens(people: People) -> None:
    await people.do("PUT", "roles/finance", {"includes": "writer"})
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "members/ada/roles/admin", {})
    nobodys = (await people.do("POST", "tokens", {"name": "ci", "roles": ["finance"]}))["token"]
    cut = await people.token("ada", roles=["finance", "reader"])
    await people.do("DELETE", "roles/finance")
    await people.do("PUT", "roles/finance", {"includes": "admin", "sees_pii": True})
    assert await people.refused("GET", "status", token=nobodys) == "access.role_required"
    assert (await people.do("GET", "whoami", token=cut))["roles"] == ["reader"]


async def test_a_token_without_rights_comes_with_a_warning(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    asked = {"name": "laptop", "member": "ada"}
    assert (await people.do("POST", "tokens", asked))["warning"] == (
        "ada has no roles, so the token has no rights; give it one with `traceplane member grant ada ROLE`"
    )
    await people.do("PUT", "members/ada/roles/reader", {})
    assert "warning" not in await people.do("POST", "tokens", asked | {"roles": ["reader"]})
    warning = (await people.do("POST", "tokens", asked | {"roles": ["admin", "reader"]}))["warning"]
    assert warning == (
        "ada does not have the role admin, so the token lacks it; give it with `traceplane member grant ada admin`"
    )


async def test_members_that_a_sign_in_named_are_looked_after_by_that_name(people: People) -> None:
    await people.plane.sql(
        "insert into org_members (org_id, kind, name, created_by)"
        " select org_id, 'user', 'idp:ada-1', 'sign-in' from orgs"
    )
    assert (await people.do("DELETE", "members/idp:ada-1"))["disabled_at"]
    assert "disabled_at" not in await people.do("PUT", "members/idp:ada-1", {})
    await people.do("PUT", "members/idp:ada-1/roles/reader", {})
    await people.token("idp:ada-1")
    assert await people.refused("PUT", "members/idp:nobody", {}) == "member.bad_name"


async def test_a_token_is_cut_down_to_roles_and_datasets(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "members/ada/roles/admin", {})
    reader = await people.token("ada", roles=["reader"])
    assert (await people.do("GET", "whoami", token=reader))["role"] == "reader"
    some = await people.token("ada", datasets=["shop.*"], lasts="30d")
    assert (await people.do("GET", "whoami", token=some))["datasets"] == ["shop.*"]
    # An admin's token for some datasets must not make itself one for all.
    assert (
        await people.refused("POST", "tokens", {"name": "x", "roles": ["admin"]}, some) == "access.cut_down"
    )
    await people.do("DELETE", "members/ada/roles/admin")
    await people.do("PUT", "members/ada/roles/writer", {})
    assert (await people.do("GET", "whoami", token=reader))["role"] == "reader"


async def test_a_token_for_some_datasets_changes_nothing_of_the_organization(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "members/ada/roles/admin", {})
    await people.do("PUT", "secrets/user/key", {"value": "v", "roles": ["admin"]})
    some = await people.token("ada", datasets=["shop.*"])
    reader = await people.token("ada", roles=["reader"])
    listed = (await people.do("GET", "tokens", token=some))["tokens"]
    assert {t["member"] for t in listed} == {"ada"}, "those of its member"
    ids = {("some" if "datasets" in t else "reader"): t["token_id"] for t in listed}
    (root,) = [t["token_id"] for t in (await people.do("GET", "tokens"))["tokens"] if t["name"] == "root"]
    assert await people.refused("PUT", "secrets/user/key", {"value": "w"}, some) == "access.cut_down"
    assert (await people.do("GET", "secrets", token=some))["secrets"] == []
    for mine, others in ((some, (root, ids["reader"])), (reader, (root, ids["some"]))):
        for other in others:
            assert await people.refused("DELETE", f"tokens/{other}", token=mine) == "access.cut_down"
    await people.do("DELETE", f"tokens/{ids['reader']}", token=reader)
    await people.do("DELETE", f"tokens/{ids['some']}", token=some)


async def test_a_role_that_something_names_is_deleted_only_by_force(people: People) -> None:
    await people.do("PUT", "roles/finance", {})
    await people.do("PUT", "secrets/user/key", {"value": "v", "roles": ["finance"]})
    named = "datasets: {out: {read_roles: [finance]}}\n"
    await people.plane.deploy(dag("main", source("in"), job("copy", "in", "out")) + named)
    status, answer = await people.send("DELETE", "roles/finance")
    assert (status, answer["error"]["code"]) == (409, "role.in_use")
    assert "dataset out, secret user/key" in answer["error"]["message"]
    await people.do("DELETE", "roles/finance?force=true")
    assert await people.refused("DELETE", "roles/finance?force=true") == "role.unknown"


async def test_who_has_no_roles_is_told_so(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    status, answer = await people.send("GET", "status", token=await people.token("ada"))
    assert (status, answer["error"]["code"]) == (403, "access.role_required")
    assert answer["error"]["message"] == "you have no roles, or they have expired"
    assert answer["error"]["value"] == "ada"


async def test_who_has_no_roles_still_learns_who_they_are(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    token = await people.token("ada")
    who = await people.do("GET", "whoami", token=token)
    assert who == {
        "org": "default",
        "name": "ada",
        "kind": "user",
        "roles": [],
        "sees_pii": False,
        "next_step": "ask an admin of the organization for a role: `traceplane member grant ada ROLE`",
    }
    await people.do("PUT", "members/ada/roles/reader", {})
    who = await people.do("GET", "whoami", token=token)
    assert (who["role"], who.get("next_step")) == ("reader", None)


async def test_no_token_keeps_a_role_that_is_deleted_while_it_is_issued(people: People) -> None:
    await people.do("PUT", "roles/finance", {"includes": "writer"})
    async with people.plane.database.transaction() as tx:
        await tx.run("select from orgs for update")  # a new token waits for it, after its roles were checked
        issuing = asyncio.create_task(people.do("POST", "tokens", {"name": "late", "roles": ["finance"]}))
        await waiting(people.plane, 1)
        deleting = asyncio.create_task(people.do("DELETE", "roles/finance"))
        await waiting(people.plane, 2)
    await asyncio.gather(issuing, deleting)
    assert await people.plane.value("select roles from access_tokens where name = 'late'") == []


async def waiting(plane: ControlPlane, sessions: int) -> None:
    """Until so many sessions wait for a lock."""
    count = "select count(*) from pg_locks where not granted"
    async with asyncio.timeout(10):
        while await plane.value(count) < sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_tokens_are_listed_with_their_last_use_and_revoked_at_once(people: People) -> None:
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "members/ada/roles/reader", {})
    mine, other = await people.token("ada", lasts="1h"), await people.token("ada")
    await people.do("GET", "whoami", token=mine)
    listed = (await people.do("GET", "tokens", token=mine))["tokens"]
    assert [(t["member"], "last_used_at" in t, "expires_at" in t) for t in listed] == [
        ("ada", False, False),
        ("ada", True, True),
    ]
    assert mine not in json.dumps(listed)
    everyones = (await people.do("GET", "tokens"))["tokens"]
    (root,) = [t for t in everyones if t["name"] == "root"]
    assert await people.refused("DELETE", f"tokens/{root['token_id']}", token=mine) == "token.not_found"
    await people.do("DELETE", f"tokens/{listed[1]['token_id']}", token=other)
    assert await people.refused("GET", "status", token=mine) == "token.revoked"
    assert await people.refused("DELETE", "tokens/none") == "token.bad_id"


async def test_members_and_roles_of_another_organization_do_not_exist(people: People) -> None:
    await people.plane.sql("insert into orgs (slug) values ('other')")
    stranger = await people.http.token(Role.ADMIN, org="other")
    await people.do("PUT", "members/ada", {})
    await people.do("PUT", "roles/finance", {})
    assert await people.do("GET", "members", token=stranger) == {"members": []}
    assert await people.refused("PUT", "members/ada/roles/reader", {}, stranger) == "member.unknown"
    assert await people.refused("DELETE", "roles/finance", token=stranger) == "role.unknown"
    await people.do("PUT", "members/ada", {"kind": "service"}, stranger)
    assert await people.refused("PUT", "members/ada/roles/finance", {}, stranger) == "role.unknown"
    (root,) = [t for t in (await people.do("GET", "tokens"))["tokens"] if t["name"] == "root"]
    assert await people.refused("DELETE", f"tokens/{root['token_id']}", token=stranger) == "token.not_found"
    assert (await people.do("GET", "members"))["members"][0]["kind"] == "user"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("PUT", "roles/admin", {"includes": "reader"}, "role.reserved"),
        ("DELETE", "roles/reader", None, "role.reserved"),
        ("DELETE", "roles/nothing", None, "role.unknown"),
        ("PUT", "roles/Finance", {}, "role.bad_name"),
        ("PUT", "roles/finance", {"includes": "owner"}, "request.invalid"),
        ("PUT", "members/-x", {}, "member.bad_name"),
        ("PUT", "members/x", {"kind": "robot"}, "request.invalid"),
        ("DELETE", "members/nobody", None, "member.unknown"),
        ("PUT", "members/nobody/roles/reader", {}, "member.unknown"),
        ("PUT", "members/root/roles/reader", {"lasts": "soon"}, "request.invalid"),
        ("PUT", "members/root/roles/reader", {"lasts": "0d"}, "request.invalid"),
        ("POST", "tokens", {"name": "x"}, "token.needs_roles"),
        ("POST", "tokens", {"name": "x", "roles": ["nothing"]}, "role.unknown"),
        ("POST", "tokens", {"name": "x", "member": "nobody"}, "member.unknown"),
        ("POST", "tokens", {"name": " x", "roles": ["reader"]}, "token.bad_name"),
        ("POST", "tokens", {"name": "x", "roles": ["reader"], "datasets": []}, "request.invalid"),
    ],
)
async def test_what_is_refused_writes_nothing(
    people: People, method: str, path: str, body: Any, code: str
) -> None:
    count = (
        "select (select count(*) from org_members) + (select count(*) from org_roles)"
        " + (select count(*) from org_role_memberships) + (select count(*) from access_tokens)"
    )
    before = await people.plane.value(count)
    assert await people.refused(method, path, body) == code
    assert await people.plane.value(count) == before
