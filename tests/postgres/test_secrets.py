"""Secrets in Postgres and over HTTP: set, listed, handed out to jobs, sealed anew, and never read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.control_plane import MASTER_KEY, ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth import store
from traceplane.auth.master_key_file import MasterKeyFile, new_key
from traceplane.auth.roles import Role
from traceplane.dispatcher.leases.job_entry import job_entry
from traceplane.errors import InvalidInput
from traceplane.postgres import registry
from traceplane.secrets.own_settings import with_secrets
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Denied, JobNeeds, Vault
from traceplane.settings import Settings

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


def sealed(*keys: bytes) -> Vault:
    return Vault(SealedStore(lambda: keys))


async def handed(plane: ControlPlane, vault: Vault, needs: JobNeeds = NEEDS) -> object:
    async with plane.database.transaction() as tx:
        return (await vault.hand_out(tx, [needs]))[needs]


async def test_a_job_receives_the_newest_version(plane: ControlPlane) -> None:
    vault = sealed(new_key())
    async with plane.database.transaction() as tx:
        settings = [await vault.set(tx, "default", RPC, text, by="ada") for text in ("one", "two", "three")]
    assert [await setting.complete(plane.database) for setting in settings] == [1, 2, 3]
    assert await handed(plane, vault) == {RPC: "three"}
    assert await plane.value("select count(*) from secret_versions") == 2  # the one before, to go back to
    assert await plane.value("select last_used_at is not null from secrets")


async def test_a_job_that_may_not_use_a_secret_is_denied(plane: ControlPlane) -> None:
    vault = sealed(new_key())
    missing = await handed(plane, vault)
    assert missing == Denied(RPC, "there is no such secret")
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, VALUE, by="ada", jobs=(["chain/head", "market/*"],))
    assert isinstance(await handed(plane, vault), Denied)
    for pair in (("chain", "head"), ("market", "anything")):
        assert await handed(plane, vault, JobNeeds("default", *pair, frozenset({RPC}))) == {RPC: VALUE}
    for other in (SecretName("platform", "rpc"), SecretName("user", "RPC")):
        assert isinstance(
            await handed(plane, vault, JobNeeds("default", "chain", "head", frozenset({other}))), Denied
        )
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, "later", by="ada")
    assert isinstance(await handed(plane, vault), Denied)  # a new value changes nothing about who may use it


async def test_two_callers_set_two_versions(plane: ControlPlane) -> None:
    vault = sealed(new_key())

    async def set_one(text: str) -> Any:
        async with plane.database.transaction() as tx:
            setting = await vault.set(tx, "default", RPC, text, by="ada")
        return await setting.complete(plane.database)

    await set_one("first")
    assert sorted(await asyncio.gather(*(set_one(str(n)) for n in range(5)))) == [2, 3, 4, 5, 6]


async def test_claims_do_not_wait_for_each_other_to_note_a_use(plane: ControlPlane) -> None:
    vault = sealed(new_key())
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
            await sealed(old).set(tx, "default", name, f"value of {name}", by="ada")
        ring = await store.load_keyring(tx, [old])
    both, needs = sealed(new, old), JobNeeds("default", "d", "j", frozenset(names))
    expected = {name: f"value of {name}" for name in names}
    counts: list[int] = []
    while not counts or counts[-1]:
        async with plane.database.transaction() as tx:
            counts.append(await SealedStore(lambda: (new, old)).seal_anew(tx))
        assert await handed(plane, both, needs) == expected
    assert counts == [500, 500, 200, 0]
    async with plane.database.transaction() as tx:
        await store.seal_signing_keys_anew(tx, lambda: [new, old])
        assert await store.load_keyring(tx, [new]) == ring
    assert await handed(plane, sealed(new), needs) == expected
    assert isinstance(await handed(plane, sealed(old), needs), Denied)


async def test_a_value_that_was_moved_to_another_secret_does_not_open(plane: ControlPlane) -> None:
    vault = sealed(new_key())
    async with plane.database.transaction() as tx:
        await vault.set(tx, "default", RPC, VALUE, by="ada")
        await vault.set(tx, "default", SecretName("user", "mine"), "x", by="eve", jobs=(["eve/*"],))
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
    assert (status, json.loads(text)) == (
        200,
        {"name": "platform/rpc", "version": 1, "warnings": ["there is no DAG chain yet"]},
    )
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
    vault = sealed(*MasterKeyFile(tmp_path / "master.key").keys())
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
        ("PUT", "/api/v1/secrets/user/rpc", {"value": "x", "roles": ["No such"]}, "secret.bad_role"),
        ("DELETE", "/api/v1/secrets/user/rpc", None, "secret.unknown"),
        ("POST", "/api/v1/secrets/user/rpc/rights", {"any_job": True}, "secret.unknown"),
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
async def test_who_is_no_admin_and_has_no_role_of_a_secret_neither_sets_nor_sees_it(
    plane: ControlPlane, http: GatewayHttp, role: Role
) -> None:
    admin, token = await http.token(Role.ADMIN), await http.token(role)
    await http.send(admin, "PUT", "/api/v1/secrets/user/rpc", {"value": VALUE, "roles": ["finance"]})
    assert await http.send(token, "GET", "/api/v1/secrets") == (200, '{"secrets":[]}')
    for name in ("rpc", "missing"):  # and does not learn which of them exists
        status, text = await http.send(token, "PUT", f"/api/v1/secrets/user/{name}", {"value": "x"})
        assert (status, json.loads(text)["error"]["code"]) == (403, "secret.not_yours")
    assert (await http.send(token, "DELETE", "/api/v1/secrets/user/rpc"))[0] == 403
    assert (await http.send(token, "POST", "/api/v1/secrets/user/rpc/rights", {}))[0] == 403
    assert await plane.value("select count(*) from secrets") == 1


async def test_who_has_a_role_of_a_secret_sets_its_value_and_nothing_else(
    plane: ControlPlane, http: GatewayHttp, tmp_path: Path
) -> None:
    admin, writer = await http.token(Role.ADMIN), await http.token(Role.WRITER)
    path = "/api/v1/secrets/user/rpc"
    await http.send(admin, "PUT", path, {"value": VALUE, "allowed_jobs": ["chain/*"], "roles": ["writer"]})
    await http.send(admin, "PUT", "/api/v1/secrets/user/other", {"value": VALUE})
    status, text = await http.send(writer, "PUT", path, {"value": "another value"})
    assert (status, json.loads(text)) == (200, {"name": "rpc", "version": 2})
    for right, wanted in (("any_job", True), ("allowed_jobs", ["mine/*"]), ("roles", [])):
        status, text = await http.send(writer, "PUT", path, {"value": "x", right: wanted})
        assert (status, json.loads(text)["error"]["code"]) == (403, "secret.rights_are_admins")
    _, text = await http.send(writer, "GET", "/api/v1/secrets")
    (listed,) = json.loads(text)["secrets"]
    assert (listed["name"], listed["allowed_jobs"], listed["roles"]) == ("rpc", ["chain/*"], ["writer"])
    status, text = await http.send(admin, "POST", f"{path}/rights", {"any_job": True, "roles": []})
    assert (status, json.loads(text)) == (200, {"name": "rpc"})
    assert (await http.send(writer, "PUT", path, {"value": "newer"}))[0] == 403
    assert await handed(plane, sealed(*MasterKeyFile(tmp_path / "master.key").keys())) == {
        RPC: "another value"
    }


async def test_names_of_jobs_and_roles_that_do_not_exist_are_accepted_with_a_warning(
    plane: ControlPlane, http: GatewayHttp
) -> None:
    await plane.deploy(dag("shop", source("shop.in"), job("copy", "shop.in", "shop.out")))
    admin = await http.token(Role.ADMIN)
    await http.send(admin, "PUT", "/api/v1/roles/finance", {"includes": "reader"})
    path = "/api/v1/secrets/user/rpc"

    async def warnings(method: str, path: str, **body: Any) -> list[str]:
        status, text = await http.send(admin, method, path, body)
        assert status == 200, text
        return json.loads(text).get("warnings", [])

    assert await warnings("PUT", path, value=VALUE, allowed_jobs=["shop/cpy"]) == [
        "there is no job shop/cpy yet; did you mean 'shop/copy'?"
    ]
    assert await warnings("PUT", path, value="12345\n") == [
        "a value of fewer than 6 characters is not hidden in logs and errors"
    ]
    assert (
        await warnings("POST", f"{path}/rights", allowed_jobs=["shop/copy", "shop/*"], roles=["finance"])
        == []
    )
    assert await warnings("POST", f"{path}/rights", allowed_jobs=["shp/*", "a/b"], roles=["finanse"]) == [
        "there is no role finanse yet; did you mean 'finance'?",
        "there is no DAG shp yet; did you mean 'shop/*'?",
        "there is no job a/b yet",
    ]
    assert await warnings("POST", f"{path}/rights", allowed_jobs=["sign-in/okta", "channel/team"]) == [
        "there is no identity provider okta yet",
        "there is no channel team yet",
    ]
    assert await warnings("POST", f"{path}/rights", any_job=True, roles=["writer"]) == []


# Of the platform itself ------------------------------------------------------------------------------


async def test_a_setting_may_refer_to_a_secret_of_the_platform(plane: ControlPlane) -> None:
    keys = (new_key(),)
    settings = Settings(
        kafka_sasl_password="${secret:platform/kafka}",
        celery_broker_url="redis://:${secret:platform/redis}@broker/0",
    )
    with pytest.raises(InvalidInput) as refused:
        await with_secrets(settings, plane.database, lambda: keys)
    assert (refused.value.code, refused.value.value) == ("settings.secret_unknown", "platform/kafka")
    async with plane.database.transaction() as tx:
        for name in ("kafka", "redis"):
            await sealed(*keys).set(
                tx, "default", SecretName("platform", name), f"{name}-password", by="ada", jobs=([],)
            )
    read = await with_secrets(settings, plane.database, lambda: keys)
    assert (read.kafka_sasl_password, read.celery_broker_url) == (
        "kafka-password",
        "redis://:redis-password@broker/0",
    )
    assert await plane.value("select count(*) from secrets where last_used_at is not null") == 2
    plain = Settings(kafka_sasl_password="pass$word")
    assert await with_secrets(plain, plane.database, lambda: keys) is plain


@pytest.mark.parametrize("text", ["${secret:kafka}", "${secret:platform/}", "${secret"])
async def test_a_setting_refers_to_nothing_else(plane: ControlPlane, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await with_secrets(Settings(kafka_sasl_password=text), plane.database, lambda: (new_key(),))
    assert refused.value.code == "settings.invalid"
    assert "kafka_sasl_password" in refused.value.message
