"""Secrets in every place where one can be used, told in every way that tasks have; then everything is searched.

Each place is also searched for something that is no secret and must be there: a search that finds nothing because it
looked at nothing would pass otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import aiohttp
import asyncpg
import pyarrow.parquet as parquet
import pytest
from aiohttp import web

from tests.e2e.test_history import traceplane
from tests.platform import Platform, until
from tests.ports import free_port
from tests.spark.conftest import descendants
from tests.webhooks import body, from_github
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Vault

CONTROL = f"control-{secrets.token_hex(6)}"
MARKS = {
    name: secrets.token_hex(6)
    for name in ("signing", "rpc", "hook", "spark", "sql", "platform/node", "platform/redis")
}
VALUES = {
    "signing": f'sign+{MARKS["signing"]}/"q" & ü-end',
    "rpc": f"rpc~{MARKS['rpc']}=%41'tail'",
    "hook": f"hook-{MARKS['hook']}-of-github",
    # Without what has a meaning in a string of SQL: Spark's errors would show parts of it.
    "spark": f'spark-{MARKS["spark"]}-"q"',
    "sql": f"sql-{MARKS['sql']}-word",
    "platform/node": f"node-{MARKS['platform/node']}-path",
    "platform/redis": f"redis-{MARKS['platform/redis']}-password",
}

DAGS = [
    f"""
version: 1
dag: keys
defaults: {{max_attempts: 2, retry: {{base: 50ms}}}}
jobs:
- {{name: ticks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: keys.ticks}}]}}
- name: tell
  runtime: python
  operator: python
  inputs: [{{from: {{job: ticks}}}}]
  outputs: [{{dataset: keys.told}}]
  secrets: {{KEY: signing}}
  config:
    entrypoint: "secret_users:tell_everything"
    url: "https://user:${{secret:rpc}}@rpc.example/v1/${{secret:rpc}}?key=${{secret:rpc}}"
    control: {CONTROL}
- name: numbers
  runtime: python
  operator: python
  inputs: [{{from: {{job: ticks}}}}]
  outputs: [{{name: numbers, dataset: keys.numbers}}]
  config: {{entrypoint: "spark_jobs:numbers"}}
- name: spark-function
  runtime: spark
  operator: pyspark
  inputs: [{{name: numbers, from: {{job: numbers}}}}]
  outputs: [{{dataset: keys.by_function}}]
  secrets: {{KEY: spark}}
  config: {{entrypoint: "spark_jobs:leaks_its_secret"}}
- name: spark-query
  runtime: spark
  operator: sql
  inputs: [{{name: numbers, from: {{job: numbers}}}}]
  outputs: [{{dataset: keys.by_query}}]
  config: {{query: "select raise_error('{CONTROL} ${{secret:sql}}') as n from numbers"}}
""",
    """
version: 1
dag: hooks
datasets: {hooks.orders: {columns: [{name: id, type: bigint}]}}
jobs:
- name: orders
  activation: source
  source: {kind: webhook, path: orders, verify: {preset: github}, secret: {name: hook}}
  outputs: [{dataset: hooks.orders}]
""",
    """
version: 1
dag: chain
defaults: {max_attempts: 2, retry: {base: 50ms}}
jobs:
- name: head
  activation: source
  source: {kind: always_on}
  runtime: python
  operator: block_follower
  outputs: [{name: head, dataset: chain.head}]
  config: {endpoints: ["http://127.0.0.1:9/${secret:platform/node}"], start: 0, interval_seconds: 0.5}
""",
]


def forms(value: str) -> set[bytes]:
    """A secret as it usually appears, and its parts; of base64 only what does not depend on what is around it."""
    texts = {
        value[:10],
        value,
        repr(value)[1:-1],
        json.dumps(value)[1:-1],
        quote(value),
        quote_plus(value),
    }
    texts |= {quote(value, safe=""), json.dumps(value, ensure_ascii=False)[1:-1], value.encode().hex()}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value.encode()).decode()[4:-4]
        texts |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return {text.encode() for text in texts}


FORMS = {form: name for name, value in VALUES.items() for form in forms(value)}
FORMS |= {mark.encode(): name for name, mark in MARKS.items()}


def found_in(content: bytes) -> set[str]:
    return {name for form, name in FORMS.items() if form in content}


# Where to look ---------------------------------------------------------------------------------------


async def tables(url: str) -> dict[str, bytes]:
    """What `pg_dump` would write of each table, and what the server shows of its sessions."""
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "select format('%I.%I', schemaname, tablename) as name from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        )
        dump = {}
        for row in names:
            rows = io.BytesIO()
            await connection.copy_from_query(f"select * from {row['name']}", output=rows)
            dump[row["name"]] = rows.getvalue()
        sessions = await connection.fetch("select query, application_name from pg_stat_activity")
        dump["pg_stat_activity"] = str(sessions).encode()
        return dump
    finally:
        await connection.close()


async def api_answers(platform: Platform, ids: dict[str, list[str]]) -> dict[str, bytes]:
    """The answers to every GET route, and to a few calls that repeat what was deployed."""
    headers = {"authorization": f"Bearer {platform.user_token}"}
    answers: dict[str, bytes] = {}
    async with aiohttp.ClientSession(platform.gateway_url, headers=headers) as session:
        async with session.get("/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        for template in (path for path, methods in paths.items() if "get" in methods):
            for path in _filled(template, ids):
                async with session.get(path) as answer:
                    assert answer.status < 500, (path, await answer.text())
                    answers[path] = await answer.read()
        for text in DAGS:
            async with session.post("/api/v1/plan", json={"text": text}) as answer:
                answers[f"plan {text[:30]}"] = await answer.read()
    return answers


def _filled(template: str, ids: dict[str, list[str]]) -> Iterator[str]:
    paths = [template]
    for name, values in ids.items():
        if f"{{{name}}}" in template:
            paths = [path.replace(f"{{{name}}}", value) for path in paths for value in values]
    for path in paths:
        unknown = path.replace("{", "").replace("}", "")  # an id that nothing has
        yield unknown
        if template == "/api/v1/versions":
            yield from (f"{path}?dag={name}" for name in ("keys", "hooks", "chain"))
        if template.endswith("{dataset_id}/explain"):
            yield f"{path}?first=0&last=9"


def files_below(folder: Path) -> dict[str, bytes]:
    """Of Parquet files, the rows too: they are compressed."""
    kept = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                kept[str(path.relative_to(folder))] = path.read_bytes()
                if path.suffix == ".parquet":
                    kept[f"rows of {path.name}"] = str(parquet.read_table(path).to_pylist()).encode()
    return kept


class Watched:
    """The command lines and environments of all processes that were started, seen while they ran."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.seen: set[bytes] = set()

    def look(self) -> None:
        for pid in {self._pid, *descendants(self._pid)}:
            for file in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    self.seen.add(Path(f"/proc/{pid}/{file}").read_bytes())

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async def look_again() -> None:
            while True:
                await asyncio.to_thread(self.look)
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look_again())
        try:
            yield
        finally:
            looking.cancel()


class Traces:
    """A collector that keeps what it is sent, as it is."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def _receive(self, request: web.Request) -> web.Response:
        self.received.append(await request.read())
        return web.Response()

    @contextlib.asynccontextmanager
    async def collecting(self, port: int) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield
        finally:
            await runner.cleanup()


# The test --------------------------------------------------------------------------------------------


async def set_before_the_start(url: str, home: Path, name: str) -> None:
    """The dispatcher's own settings refer to it."""
    home.mkdir()
    database = await Database.connect(url, connections=1)
    async with database.transaction() as tx:
        vault = Vault(SealedStore(MasterKeyFile(home / "master.key").keys))
        await vault.set(tx, "default", SecretName("platform", name.partition("/")[2]), VALUES[name], by="ada")
    await database.close()


async def use_everything(platform: Platform) -> None:
    for name, value in VALUES.items():
        code, out, err = await traceplane(platform, "secret", "set", name, stdin=value)
        assert code == 0, err
        assert not found_in((out + err).encode())
    for text in DAGS:
        await platform.deploy(text)
    await platform.emit("keys.ticks", range(5))
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(platform.gateway_url, timeout=timeout) as session:
        for number, key in enumerate((VALUES["hook"], "wrong")):
            content = {"id": number}
            headers = {"content-type": "application/json", **from_github(content, f"d-{number}", key=key)}
            async with session.post("/hooks/default/orders", data=body(content), headers=headers) as answer:
                assert answer.status == (200 if number == 0 else 403), await answer.text()

    async def told() -> bool:
        states = {
            job: await platform.states(job) for job in ("tell", "spark-function", "spark-query", "orders")
        }
        unfinished = {"queued", "dispatched", "running"}
        return all(found and not unfinished & set(found) for found in states.values())

    await until(told, seconds=400)
    failed = "select count(*) from tasks t join jobs j using (job_id) where j.name = 'head' and t.error is not null"

    async def followed() -> bool:
        return bool(await platform.value(failed))

    await until(followed, seconds=120)


@pytest.mark.timeout(900)
async def test_a_secret_is_found_nowhere_after_it_was_used_everywhere(tmp_path: Path) -> None:
    home, port, traces = tmp_path / "home", free_port(), Traces()
    server = EmbeddedPostgres.ensure(tmp_path / "postgres", settings={"fsync": "off"}, die_with_parent=True)
    environment = {
        "TRACEPLANE_LOG_LEVEL": "debug",
        "TRACEPLANE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "TRACEPLANE_CELERY_BROKER_URL": "redis://:${secret:platform/redis}@127.0.0.1:9/0",
        "TRACEPLANE_SPARK_MASTER": "local[2]",
        "TRACEPLANE_SPARK_MEMORY_MB": "640",
    }
    try:
        await migrate(server.state_url)
        await set_before_the_start(server.state_url, home, "platform/redis")
        async with (
            traces.collecting(port),
            Platform.start(server.state_url, home, environment=environment, executed=True) as platform,
        ):
            await platform.add("spark-1", "worker", "--runtime", "spark").start()
            started = [p.running.pid for p in platform.processes.values() if p.running is not None]
            watched = [Watched(pid) for pid in started]
            async with contextlib.AsyncExitStack() as meanwhile:
                for one in watched:
                    await meanwhile.enter_async_context(one.watching())
                await use_everything(platform)
            tasks = [str(row[0]) for row in await platform.sql("select task_id from tasks")]
            datasets = [row[0] for row in await platform.sql("select dataset_id from datasets")]
            answers = await api_answers(platform, {"task_id": tasks, "dataset_id": datasets})
            told = str(await platform.value("select task_id from task_logs limit 1"))
            for command in (
                *(
                    ("explain", told),
                    ("logs", told),
                    ("status",),
                    ("tasks", "list"),
                    ("webhooks",),
                    ("doctor",),
                ),
                *(("secret", "list"), ("versions", "keys"), ("files",), ("jobs", "list")),
            ):
                _, out, err = await traceplane(platform, *command)
                answers[" ".join(command)] = (out + err).encode()
            for process in platform.processes.values():
                await process.stop()  # flushes what it has not exported yet
            dump = await tables(server.state_url)
        places = {
            "tables": dump,
            "files of the platform": files_below(home),
            "files of Postgres": files_below(server.folder) | files_below(server.data),
            "answers": answers,
            "traces": {"all": b"".join(traces.received)},
            "processes": {"all": b"\0".join(seen for one in watched for seen in one.seen)},
        }
        leaks = {
            f"{place}: {where}: {name}"
            for place, contents in places.items()
            for where, content in contents.items()
            for name in found_in(content)
        }
        assert leaks == set()
        _check_that_it_looked(places)
        sealed = [name for name in dump if name.endswith("secret_versions")]
        assert dump[sealed[0]].count(b"\n") >= len(VALUES)
    finally:
        EmbeddedPostgres.ensure(
            tmp_path / "postgres", settings={"fsync": "off"}, die_with_parent=True
        ).destroy()


def _check_that_it_looked(places: dict[str, dict[str, bytes]]) -> None:
    def content(place: str, part: str = "") -> bytes:
        return b"".join(text for where, text in places[place].items() if part in where)

    for place, part in (
        ("tables", "tasks"),
        ("tables", "task_logs"),
        ("files of the platform", "worker-1.log"),
        ("files of the platform", "spark/logs"),
        ("answers", "/explain"),
        ("answers", "/logs"),
    ):
        assert CONTROL.encode() in content(place, part), (place, part)
        assert b"***" in content(place, part), (place, part)
    assert b"user:***@rpc.example" in content("answers", "/logs")
    assert b"task.attempt" in content("traces")
    assert b"SparkConnectServer" in content("processes")
    assert b"TRACEPLANE_HOME" in content("processes")
    assert any("postgres.log" in name for name in places["files of Postgres"])
    assert any("pg_wal" in name for name in places["files of Postgres"])
