"""Secrets on real processes: set, received by a sandboxed task, rotated, and found nowhere else."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from tests.e2e.test_history import traceplane
from tests.platform import Platform
from traceplane.errors import UserError

VALUE = 'k+9/"x" & 7f3e1c55d0ab'
ROTATED = "another-7f3e1c55d0ac"


def dag(
    entrypoint: str, *, secrets: str = "{KEY: signing}", url: str = "https://rpc.example/${secret:rpc}"
) -> str:
    return f"""
version: 1
dag: keys
jobs:
- {{name: ticks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: keys.ticks}}]}}
- name: use
  runtime: python
  operator: python
  inputs: [{{from: {{job: ticks}}}}]
  outputs: [{{dataset: keys.used}}]
  secrets: {secrets}
  config: {{entrypoint: "{entrypoint}", url: "{url}"}}
  max_attempts: 1
"""


def forms(value: str) -> list[bytes]:
    """A secret in the forms in which it usually appears."""
    texts = [value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe=""), quote(value)]
    texts += [base64.b64encode(value.encode())[:-4].decode(), value.encode().hex()]
    return [text.encode() for text in texts]


async def set_secret(platform: Platform, name: str, value: str, *arguments: str) -> None:
    code, out, err = await traceplane(platform, "secret", "set", name, *arguments, stdin=f"{value}\n")
    assert code == 0, err
    assert value not in out + err


async def digests(platform: Platform) -> list[str]:
    code, out, err = await traceplane(
        platform, "query", "select digest from keys.used order by position", "--format", "json"
    )
    assert code == 0, err
    return [row[0] for row in json.loads(out)["rows"]]


def digest(key: str, url: str) -> str:
    return hashlib.sha256(f"{key}|{url}".encode()).hexdigest()


async def test_a_task_receives_its_secrets_and_a_new_version_needs_no_deploy(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await set_secret(platform, "signing", VALUE, "--job", "keys/use")
        await set_secret(platform, "rpc", "token-1")
        await platform.deploy(dag("secret_users:digest"))
        await platform.emit("keys.ticks", [0])
        await platform.settled()
        await set_secret(platform, "signing", ROTATED)
        await platform.emit("keys.ticks", [1])
        assert await platform.settled() == {"completed": 2}
        url = "https://rpc.example/token-1"
        assert await digests(platform) == [digest(VALUE, url), digest(ROTATED, url)]
        assert not (await platform.deploy(dag("secret_users:digest"))).changed
        code, out, _ = await traceplane(platform, "secret", "list")
        assert code == 0
        assert "signing  version 2" in out
        assert "used by keys/use" in out


async def test_a_task_without_its_secret_fails_and_says_which(database_url: str, tmp_path: Path) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await set_secret(platform, "signing", VALUE)
        await set_secret(platform, "rpc", "token-1")
        await platform.deploy(dag("secret_users:digest"))
        await traceplane(platform, "secret", "remove", "signing")
        await platform.emit("keys.ticks", [0])
        assert await platform.settled() == {"dead": 1}
        error = json.loads(await platform.value("select error::text from tasks where state = 'dead'"))
        assert error["code"] == "secret.denied"
        assert "signing: there is no such secret" in error["message"]
        await set_secret(platform, "signing", VALUE)
        code, _, err = await traceplane(platform, "retry", "--dag", "keys")
        assert code == 0, err
        assert await platform.settled() == {"completed": 1}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "deploy.secret_unknown"),
        ({"secrets": "{KEY: others}"}, "deploy.secret_not_allowed"),
        ({"secrets": "{KEY: platform/signing}"}, "deploy.secret_not_allowed"),
        ({"url": "${secret:platform/signing}", "secrets": "{}"}, "deploy.secret_not_allowed"),
    ],
)
async def test_a_deploy_is_refused_before_a_task_lacks_a_secret(
    database_url: str, tmp_path: Path, arguments: dict[str, str], code: str
) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await set_secret(platform, "rpc", "token-1")
        await set_secret(platform, "others", VALUE, "--job", "elsewhere/*")
        await set_secret(platform, "platform/signing", VALUE)
        with pytest.raises(UserError) as refused:
            await platform.deploy(dag("secret_users:digest", **arguments))
        assert refused.value.code == code
        assert await platform.value("select count(*) from dags") == 0


async def test_a_secret_is_found_nowhere(database_url: str, tmp_path: Path) -> None:
    """An operator prints it in every usual form and fails with it; then everything that is kept is searched."""
    async with Platform.start(database_url, tmp_path) as platform:
        await set_secret(platform, "signing", VALUE)
        await set_secret(platform, "rpc", ROTATED)
        await platform.deploy(dag("secret_users:leak"))
        await platform.emit("keys.ticks", [0])
        assert await platform.settled() == {"dead": 1}
        task = str(await platform.value("select task_id from tasks where state = 'dead'"))
        shown = [
            (await traceplane(platform, *command))[1]
            for command in (
                ("explain", task),
                ("logs", task),
                ("status",),
                ("versions", "keys"),
                ("secret", "list"),
            )
        ]
        assert "cannot reach https://rpc.example/*** with ***" in shown[0]
        assert "raw ***" in shown[1]
        assert shown[1].count("***") >= 7
        running = b"".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        everything = kept + await rows_of_all_tables(database_url) + "".join(shown).encode() + running
        for value in (VALUE, ROTATED):
            assert not [form for form in forms(value) if form in everything]


async def rows_of_all_tables(url: str) -> bytes:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) as name from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        )
        rows = [await connection.fetch(f"select t::text as row from {table['name']} t") for table in tables]
        return "\n".join(row["row"] or "" for found in rows for row in found).encode()
    finally:
        await connection.close()
