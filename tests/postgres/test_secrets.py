"""Secrets in Postgres and over HTTP: set, listed, handed out to jobs, sealed anew, and never read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.control_plane import MASTER_KEY, ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth import store
from traceplane.auth.master_key_file import MasterKeyFile, new_key
from traceplane.auth.roles import Role
from traceplane.dispatcher.leases.job_entry import job_entry
from traceplane.postgres import registry
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealing import MasterKeys
from traceplane.secrets.vault import Denied, JobNeeds, Vault

VALUE = "9f3c-a value, that nothing else has"
RPC = SecretName("user", "rpc")
NEEDS = JobNeeds("default", "chain", "ingest", frozenset({RPC}))


@pytest_asyncio.fixture
async def plane(database_url: str, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        yield plane


@pytest_asyncio.fixture
async def http(plane: ControlPlane) -> AsyncIterator[GatewayHttp]:
    async with GatewayHttp.open(plane) as http:
        yield http


async def handed(plane: ControlPlane, vault: Vault, needs: JobNeeds = NEEDS) -> object:
    async with plane.database.transaction() as tx:
        return (await vault.hand_out(tx, [needs]))[needs]


async def test_a_job_receives_the_newest_version(plane: ControlPlane) -> None:
    vault = Vault(MasterKeys([new_key()]))
    async with plane.database.transaction() as tx:
        assert [await vault.set(tx, "default", RPC, text, by="ada") for text in ("one", "two", "three")] == [
            1,
            2,
            3,
        ]
    assert await handed(plane, vault) == {RPC: "three"}
    assert await plane.value("select count(*) from secret_versions") == 2  # the one before, to go back to
    assert await plane.value("select last_used_at is not null from secrets")


async def test_a_job_that_may_not_use_a_secret_is_denied(plane: ControlPlane) -> None:
    vault = Vault(MasterKeys([new_key()]))
    missing = await handed(plane, vault)
    assert missing == Denied(RPC, "there is no such secret")
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, VALUE, by="ada", allowed_jobs=["chain/head", "market/*"])
    assert isinstance(await handed(plane, vault), Denied)
    for pair in (("chain", "head"), ("market", "anything")):
        assert await handed(plane, vault, JobNeeds("default", *pair, frozenset({RPC}))) == {RPC: VALUE}
    for other in (SecretName("platform", "rpc"), SecretName("user", "RPC")):
        assert isinstance(
            await handed(plane, vault, JobNeeds("default", "chain", "head", frozenset({other}))), Denied
        )
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, "later", by="ada", allow_anew=False)
    assert isinstance(await handed(plane, vault), Denied)  # a new value changes nothing about who may use it


async def test_two_callers_set_two_versions(plane: ControlPlane) -> None:
    vault = Vault(MasterKeys([new_key()]))

    async def set_one(text: str) -> int:
        async with plane.database.transaction() as tx:
            return await vault.set(tx, "default", RPC, text, by="ada")

    await set_one("first")
    assert sorted(await asyncio.gather(*(set_one(str(n)) for n in range(5)))) == [2, 3, 4, 5, 6]


async def test_claims_do_not_wait_for_each_other_to_note_a_use(plane: ControlPlane) -> None:
    vault = Vault(MasterKeys([new_key()]))
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, VALUE, by="ada")
    async with plane.database.transaction() as first:
        await vault.hand_out(first, [NEEDS])
        async with asyncio.timeout(10):
            assert await handed(plane, vault) == {RPC: VALUE}
    assert await plane.value("select last_used_at is not null from secrets")


async def test_a_query_that_is_handed_over_receives_no_secret(plane: ControlPlane, http: GatewayHttp) -> None:
    """Whoever may run queries, but not deploy, writes its text."""
    columns = "datasets: {shop.mid: {columns: [{name: n, type: bigint}]}}\n"
    await plane.deploy(dag("shop", source("shop.in"), job("copy", "shop.in", "shop.mid")) + columns)
    writer = await http.token(Role.WRITER)
    query = {"sql": "select n, '${secret:rpc}' as stolen from shop.mid", "dataset": "shop.result"}
    status, text = await http.send(writer, "POST", "/api/v1/query-tasks", query)
    assert status == 200, text
    job_id = await plane.value("select job_id from jobs where operator = 'query'")
    async with plane.database.transaction() as tx:
        (row,) = await registry.job_payloads(tx, [job_id])
    assert "${secret:rpc}" in str(row.definition.config)
    assert job_entry(row).needs is None


async def test_a_new_master_key_seals_everything_anew_while_it_is_in_use(plane: ControlPlane) -> None:
    old, new = MASTER_KEY, new_key()
    names = [SecretName("user", f"s{n}") for n in range(1200)]
    async with plane.database.transaction() as tx:
        for name in names:
            await Vault(MasterKeys([old])).set(tx, "default", name, f"value of {name}", by="ada")
        ring = await store.load_keyring(tx, [old])
    both, needs = Vault(MasterKeys([new, old])), JobNeeds("default", "d", "j", frozenset(names))
    expected = {name: f"value of {name}" for name in names}
    counts: list[int] = []
    while not counts or counts[-1]:
        async with plane.database.transaction() as tx:
            counts.append(await both.seal_anew(tx))
        assert await handed(plane, both, needs) == expected
    assert counts == [500, 500, 200, 0]
    async with plane.database.transaction() as tx:
        await store.seal_signing_keys_anew(tx, [new, old])
        assert await store.load_keyring(tx, [new]) == ring
    assert await handed(plane, Vault(MasterKeys([new])), needs) == expected
    assert isinstance(await handed(plane, Vault(MasterKeys([old])), needs), Denied)


async def test_a_value_that_was_moved_to_another_secret_does_not_open(plane: ControlPlane) -> None:
    vault = Vault(MasterKeys([new_key()]))
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, VALUE, by="ada")
        await vault.set(tx, "default", SecretName("user", "mine"), "x", by="eve", allowed_jobs=["eve/*"])
        await tx.run(
            "update secret_versions v set sealed_value = o.sealed_value, sealed_key = o.sealed_key"
            " from secret_versions o, secrets s where s.secret_id = o.secret_id and s.name = 'rpc'"
            " and v.secret_id <> o.secret_id"
        )
    mine = JobNeeds("default", "eve", "j", frozenset({SecretName("user", "mine")}))
    async with plane.database.transaction() as tx:
        found = await vault.hand_out(tx, [mine, NEEDS])
    assert isinstance(found[mine], Denied)
    assert found[NEEDS] == {RPC: VALUE}  # nobody else is concerned


# Over HTTP -------------------------------------------------------------------------------------------


async def test_the_api_never_answers_a_value(plane: ControlPlane, http: GatewayHttp, tmp_path: Path) -> None:
    admin = await http.token(Role.ADMIN)
    status, text = await http.send(admin, "PUT", "/api/v1/secrets/user/rpc", {"value": VALUE})
    assert (status, json.loads(text)) == (200, {"name": "rpc", "version": 1})
    body = {"value": VALUE, "allowed_jobs": ["chain/*"]}
    status, text = await http.send(admin, "PUT", "/api/v1/secrets/platform/rpc", body)
    assert (status, json.loads(text)) == (200, {"name": "platform/rpc", "version": 1})
    status, text = await http.send(admin, "GET", "/api/v1/secrets")
    assert status == 200
    assert VALUE not in text
    assert [
        (s["name"], s["version"], s["set_by"], s.get("allowed_jobs")) for s in json.loads(text)["secrets"]
    ] == [
        ("platform/rpc", 1, "default-admin", ["chain/*"]),
        ("rpc", 1, "default-admin", None),
    ]
    dump = str(await plane.sql("select * from secrets, secret_versions"))
    assert VALUE not in dump
    vault = Vault(MasterKeys(MasterKeyFile(tmp_path / "master.key").keys()))
    assert await handed(plane, vault) == {RPC: VALUE}
    status, _ = await http.send(admin, "DELETE", "/api/v1/secrets/user/rpc")
    assert status == 200
    assert isinstance(await handed(plane, vault), Denied)
    assert await plane.value("select count(*) from secret_versions") == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("PUT", "/api/v1/secrets/user/1st", {"value": "x"}, "secret.bad_name"),
        ("PUT", "/api/v1/secrets/other/rpc", {"value": "x"}, "secret.bad_name"),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": ""}, "request.invalid"),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": "x" * 65537}, "request.invalid"),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": "ü" * 65536}, "secret.bad_value"),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": "x", "allowed_jobs": ["chain"]}, "secret.bad_job"),
        ("DELETE", "/api/v1/secrets/user/rpc", None, "secret.unknown"),
    ],
)
async def test_what_is_not_accepted_has_a_code_and_leaves_nothing(
    plane: ControlPlane, http: GatewayHttp, method: str, path: str, body: object, code: str
) -> None:
    status, text = await http.send(await http.token(Role.ADMIN), method, path, body)
    assert 400 <= status < 500
    assert json.loads(text)["error"]["code"] == code
    assert await plane.value("select count(*) from secrets") == 0


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER])
async def test_only_admins_have_to_do_with_secrets(http: GatewayHttp, role: Role) -> None:
    token = await http.token(role)
    for method, path, body in (
        ("GET", "/api/v1/secrets", None),
        ("PUT", "/api/v1/secrets/user/rpc", {"value": "x"}),
        ("DELETE", "/api/v1/secrets/user/rpc", None),
    ):
        assert (await http.send(token, method, path, body))[0] == 403
