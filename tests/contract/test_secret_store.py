"""One suite for every store of secrets: sealed in Postgres, AWS Secrets Manager, and files of a mounted volume."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio
from aiobotocore.session import AioSession

from tests.aws import CREDENTIALS, REGION
from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.adapters.secret_store import SecretStore
from traceplane.adapters.secret_store_aws import AwsSecretStore
from traceplane.adapters.secret_store_files import FileSecretStore
from traceplane.auth.master_key_file import new_key
from traceplane.auth.roles import Role
from traceplane.errors import InvalidInput, PlatformError, TraceplaneError
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Denied, JobNeeds, ListedSecret, Vault, place_of

RPC, OTHER = SecretName("user", "rpc"), SecretName("user", "other")
PLATFORM_RPC = SecretName("platform", "rpc")
VALUE = 'a value, "quoted", ü'
OPEN_TRANSACTIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
)


class Mounted:
    """A Kubernetes Secret as the kubelet mounts it: the files are links through `..data`, which is replaced in one
    step; the folder of the values before is removed after that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writes = 0

    def write(self, values: Mapping[str, str]) -> None:
        self._writes += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / "..data"
        before = os.readlink(data) if data.is_symlink() else None
        present = self.folder / f"..2026_11_18_02_00_00.{self._writes:09}"
        present.mkdir()
        for name, value in values.items():
            (present / name).write_text(value)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..data_tmp").symlink_to(present.name)
        os.rename(self.folder / "..data_tmp", data)
        for link in self.folder.iterdir():
            if not link.name.startswith("..") and link.name not in values:
                link.unlink()
        if before is not None:
            shutil.rmtree(self.folder / before)


@dataclass
class Stored:
    """A store, and how its users give it values: through it, or behind its back."""

    name: str
    plane: ControlPlane
    vault: Vault
    write: Callable[[SecretName, str, str], Awaitable[None]]

    @property
    def is_writable(self) -> bool:
        return self.name != "files"

    async def put(self, name: SecretName, value: str, org: str = "default") -> None:
        await self.write(name, value, org)

    async def handed(self, *names: SecretName, dag: str = "chain", org: str = "default") -> object:
        needs = JobNeeds(org, dag, "ingest", frozenset(names))
        async with self.plane.database.transaction() as tx:
            lookup = await self.vault.look_up(tx, [needs])
        return (await lookup.values())[needs]

    async def listed(self, org: str = "default") -> list[ListedSecret]:
        return await self.vault.listed(self.plane.database, org)

    async def existing(self, *names: SecretName) -> frozenset[SecretName]:
        return await self.vault.existing(self.plane.database, "default", names)


def _files(folder: Path) -> tuple[SecretStore, Callable[[SecretName, str, str], Awaitable[None]]]:
    values: dict[Path, dict[str, str]] = {}
    mounts: dict[Path, Mounted] = {}

    async def write(name: SecretName, value: str, org: str) -> None:
        place = folder / org / name.namespace
        values.setdefault(place, {})[name.name] = value
        mounts.setdefault(place, Mounted(place)).write(values[place])

    return FileSecretStore(folder), write


@pytest_asyncio.fixture(params=["postgres", "aws", "files"])
async def stored(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path, aws_session: AioSession
) -> AsyncIterator[Stored]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.sql("insert into orgs (slug) values ('acme')")
        keys = (new_key(),)
        match request.param:
            case "files":
                store, write = _files(tmp_path / "secrets")
                (tmp_path / "secrets").mkdir()
            case "aws":
                store = AwsSecretStore(
                    f"test-{uuid4().hex[:8]}",
                    region=REGION,
                    endpoint_url=request.getfixturevalue("aws_endpoint"),
                    session=aws_session,
                    fresh_seconds=0,
                )
            case _:
                store = SealedStore(lambda: keys)
        vault = Vault(store)

        async def set_it(name: SecretName, value: str, org: str) -> None:
            async with plane.database.transaction() as tx:
                setting = await vault.set(tx, org, name, value, by="ada")
            await setting.complete(plane.database)

        await vault.check()
        yield Stored(request.param, plane, vault, write if request.param == "files" else set_it)
        await vault.close()


async def test_a_job_receives_what_was_set_last(stored: Stored) -> None:
    assert await stored.handed(RPC) == Denied(RPC, "there is no such secret")
    for value in ("one", VALUE):
        await stored.put(RPC, value)
        assert await stored.handed(RPC) == {RPC: value}
    await stored.put(OTHER, "another")
    assert await stored.handed(RPC, OTHER) == {RPC: VALUE, OTHER: "another"}


async def test_namespaces_and_organizations_are_apart(stored: Stored) -> None:
    await stored.put(RPC, "of users")
    await stored.put(PLATFORM_RPC, "of the platform")
    await stored.put(RPC, "of acme", "acme")
    assert await stored.handed(RPC, PLATFORM_RPC) == {RPC: "of users", PLATFORM_RPC: "of the platform"}
    assert await stored.handed(RPC, org="acme") == {RPC: "of acme"}
    assert isinstance(await stored.handed(PLATFORM_RPC, org="acme"), Denied)
    assert [s.name for s in await stored.listed("acme")] == [RPC]
    assert sorted(s.name for s in await stored.listed()) == [PLATFORM_RPC, RPC]


async def test_who_may_use_it_is_set_apart_from_its_value(stored: Stored) -> None:
    await stored.put(RPC, VALUE)
    async with stored.plane.database.transaction() as tx:
        rights = await stored.vault.allow(tx, "default", RPC, jobs=(["chain/*"],), roles=["finance"])
        assert (rights.allowed_jobs, rights.roles) == (("chain/*",), ("finance",))
        assert (await stored.vault.rights(tx, "default", [RPC]))[RPC] == rights
    assert await stored.existing(RPC, OTHER) == {RPC}
    await stored.put(RPC, "new")
    assert await stored.handed(RPC) == {RPC: "new"}
    assert isinstance(await stored.handed(RPC, dag="market"), Denied)
    (listed,) = await stored.listed()
    assert (listed.rights.allowed_jobs, listed.rights.roles) == (("chain/*",), ("finance",))


async def test_a_list_has_the_last_use_and_what_the_store_knows_of_versions_and_no_value(
    stored: Stored,
) -> None:
    await stored.put(RPC, VALUE)
    (before,) = await stored.listed()
    assert before.last_used_at is None
    await stored.handed(RPC)
    await stored.put(RPC, "new value")
    (after,) = await stored.listed()
    assert after.last_used_at is not None
    assert after.set_at is not None
    match stored.name:
        case "postgres":
            assert (before.version, after.version, after.set_by) == (1, 2, "ada")
        case "aws":
            assert len({before.version, after.version, None}) == 3
        case _:
            assert (after.version, after.set_by) == (None, None)
    assert "new value" not in repr(after)
    assert VALUE not in repr(before)


async def test_one_that_was_removed_can_be_set_again(stored: Stored) -> None:
    if not stored.is_writable:
        pytest.skip("whoever mounts the volume removes files")
    database = stored.plane.database
    assert not await stored.vault.remove(database, "default", RPC)
    async with database.transaction() as tx:
        setting = await stored.vault.set(tx, "default", RPC, VALUE, by="ada", jobs=(["elsewhere/*"],))
    await setting.complete(database)
    assert await stored.vault.remove(database, "default", RPC)
    assert not await stored.vault.remove(database, "default", RPC)
    assert await stored.existing(RPC) == set()
    assert await stored.listed() == []
    assert await stored.handed(RPC) == Denied(RPC, "there is no such secret")
    await stored.put(RPC, "again")
    assert await stored.handed(RPC) == {RPC: "again"}, "its rights are not those from before"


async def test_a_store_that_cannot_be_written_says_so_and_changes_nothing(stored: Stored) -> None:
    if stored.is_writable:
        pytest.skip("it can be written")
    await stored.put(RPC, VALUE)
    with pytest.raises(TraceplaneError) as refused:
        async with stored.plane.database.transaction() as tx:
            await stored.vault.set(tx, "default", RPC, "x", by="ada", jobs=([],))
    assert (refused.value.code, refused.value.status) == ("secret.read_only", 409)
    assert "default/user/rpc where the volume comes from" in str(refused.value.next_step)
    with pytest.raises(TraceplaneError):
        await stored.vault.remove(stored.plane.database, "default", RPC)
    assert await stored.handed(RPC) == {RPC: VALUE}


async def test_a_value_that_is_too_long_is_refused(stored: Stored) -> None:
    for value in ("", "x" * 65537):
        with pytest.raises(InvalidInput) as refused:
            async with stored.plane.database.transaction() as tx:
                await stored.vault.set(tx, "default", RPC, value, by="ada")
        assert refused.value.code == "secret.bad_value"


# Files -----------------------------------------------------------------------------------------------


async def test_values_that_change_together_are_never_read_apart(tmp_path: Path) -> None:
    """A mount is replaced all the time; whoever reads two of its files gets two that belong together."""
    mounted, store = Mounted(tmp_path / "default" / "user"), FileSecretStore(tmp_path)
    places = [place_of("default", RPC), place_of("default", OTHER)]
    done = threading.Event()
    pairs: set[tuple[object, ...]] = set()
    mounted.write({"rpc": "0", "other": "0"})

    def replace() -> None:
        number = 0
        while not done.is_set():
            number += 1
            mounted.write({"rpc": str(number), "other": str(number)})

    replacing = asyncio.create_task(asyncio.to_thread(replace))
    try:
        while len(pairs) < 50:
            values = store.values(places)
            if isinstance(values[places[0]], str):
                pairs.add(tuple(values[place] for place in places))
            await asyncio.sleep(0)
    finally:
        done.set()
        await replacing
    assert all(first == second for first, second in pairs)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe", "its file is not text in UTF-8"),
        (b"\n", "its file is empty"),
        (b"x" * 70_000, "its file is too long"),
        (None, "it is not a plain file"),
    ],
)
async def test_a_file_that_holds_no_text_concerns_only_those_who_need_it(
    database_url: str, tmp_path: Path, content: bytes | None, why: str
) -> None:
    folder = tmp_path / "secrets" / "default" / "user"
    folder.mkdir(parents=True)
    (folder / "other").write_text("fine\n")
    if content is None:
        os.mkfifo(folder / "rpc")
    else:
        (folder / "rpc").write_bytes(content)
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        stored = Stored("files", plane, Vault(FileSecretStore(tmp_path / "secrets")), _nothing)
        denied = await stored.handed(RPC)
        assert isinstance(denied, Denied)
        assert why in denied.why
        assert await stored.handed(OTHER) == {OTHER: "fine"}


async def _nothing(name: SecretName, value: str, org: str) -> None: ...


async def test_a_folder_that_is_not_there_is_found_when_a_process_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        await FileSecretStore(tmp_path / "missing").check()
    assert "secret_folder" in str(refused.value)


# AWS -------------------------------------------------------------------------------------------------


async def set_in(vault: Vault, plane: ControlPlane, value: str, *jobs: str) -> None:
    async with plane.database.transaction() as tx:
        setting = await vault.set(tx, "default", RPC, value, by="ada", jobs=(jobs,) if jobs else None)
    await setting.complete(plane.database)


@contextlib.asynccontextmanager
async def slow(endpoint: str, asked: asyncio.Event, answers: asyncio.Event) -> AsyncIterator[str]:
    """The same service, but nothing reaches it before `answers` is set."""
    place = urlsplit(endpoint)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            asked.set()
            await answers.wait()
            writer.write(piece)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(place.hostname, place.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(ask(reader, there[1]), answer(there[0], writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_slow_aws_holds_no_transaction_open_and_gives_no_job_more_meanwhile(
    database_url: str, tmp_path: Path, aws_endpoint: str, aws_session: AioSession
) -> None:
    asked, answers, environment = asyncio.Event(), asyncio.Event(), f"slow-{uuid4().hex[:8]}"
    options = {"region": REGION, "session": aws_session, "fresh_seconds": 0}
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        slow(aws_endpoint, asked, answers) as slow_endpoint,
    ):
        held = AwsSecretStore(environment, endpoint_url=slow_endpoint, **options)
        vault = Vault(AwsSecretStore(environment, endpoint_url=aws_endpoint, **options))
        stored = Stored("aws", plane, vault, _nothing)
        await set_in(vault, plane, "old", "chain/*", "market/*")
        setting = asyncio.create_task(set_in(Vault(held), plane, "new", "chain/ingest", "archive/*"))
        await asked.wait()
        assert await plane.value(OPEN_TRANSACTIONS) == 0
        assert await stored.handed(RPC) == {RPC: "old"}
        for dag in (
            "market",
            "archive",
        ):  # one that may not use the new value, one that may not use the old one
            assert isinstance(await stored.handed(RPC, dag=dag), Denied)
        answers.set()
        await setting
        assert await stored.handed(RPC) == {RPC: "new"}
        assert await stored.handed(RPC, dag="archive") == {RPC: "new"}
        assert isinstance(await stored.handed(RPC, dag="market"), Denied)
        for store in (held, vault):
            await store.close()


async def test_no_call_of_the_gateway_holds_a_transaction_open_while_a_slow_aws_is_asked(
    database_url: str, tmp_path: Path, aws_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    asked, answers = asyncio.Event(), asyncio.Event()
    async with (
        slow(aws_endpoint, asked, answers) as slow_endpoint,
        ControlPlane.open(
            database_url,
            home=tmp_path,
            secret_store="aws",
            secret_environment=f"slow-{uuid4().hex[:8]}",
            secretsmanager_endpoint_url=slow_endpoint,
            aws_region=REGION,
        ) as plane,
        GatewayHttp.open(plane) as http,
    ):
        admin, writer = [await http.token(role) for role in (Role.ADMIN, Role.WRITER)]

        async def call(token: str, method: str, path: str, body: object = None) -> tuple[int, str]:
            """While AWS has not answered a question, no transaction is open."""
            calling, held = asyncio.create_task(http.send(token, method, path, body)), []
            while not calling.done():
                question = asyncio.create_task(asked.wait())
                await asyncio.wait((calling, question), return_when=asyncio.FIRST_COMPLETED)
                question.cancel()
                if asked.is_set():
                    asked.clear()
                    held.append(await plane.value(OPEN_TRANSACTIONS))
                    answers.set()  # wakes who waits, and the next waits again
                    answers.clear()
            assert held, "AWS was asked"
            assert not any(held), (method, path)
            return await calling

        secrets = "/api/v1/secrets"
        new = {"value": VALUE, "roles": ["writer"]}
        assert (await call(admin, "PUT", f"{secrets}/user/rpc", new))[0] == 200
        assert (await call(writer, "PUT", f"{secrets}/user/rpc", {"value": "new"}))[0] == 200
        assert '"rpc"' in (await call(admin, "GET", secrets))[1]
        rights = {"allowed_jobs": ["chain/*"]}
        assert (await call(admin, "POST", f"{secrets}/user/rpc/rights", rights))[0] == 200
        assert "secret.unknown" in (await call(admin, "POST", f"{secrets}/user/rcp/rights", rights))[1]

        def text(dag_name: str, secret: str) -> dict[str, str]:
            use = job("use", f"{dag_name}.in", f"{dag_name}.out", config=f"key: '${{secret:{secret}}}'")
            return {"text": dag(dag_name, source(f"{dag_name}.in"), use)}

        assert "secret" not in (await call(admin, "POST", "/api/v1/plan", text("chain", "rpc")))[1]
        assert "deploy.secret_unknown" in (await call(admin, "POST", "/api/v1/plan", text("chain", "rcp")))[1]
        for dag_name, secret, outcome in (
            ("chain", "rpc", '"version":1'),
            ("chain", "rcp", "deploy.secret_unknown"),
            ("market", "rpc", "deploy.secret_not_allowed"),
        ):
            answer = await call(admin, "POST", "/api/v1/deploy", text(dag_name, secret))
            assert outcome in answer[1], answer
        assert (await call(admin, "DELETE", f"{secrets}/user/rpc"))[0] == 200


async def test_a_secret_that_aws_did_not_take_is_completed_by_setting_it_again(
    database_url: str, tmp_path: Path, aws_endpoint: str, aws_session: AioSession
) -> None:
    environment = f"lost-{uuid4().hex[:8]}"
    options = {"region": REGION, "session": aws_session, "fresh_seconds": 0}
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        lost = AwsSecretStore(environment, endpoint_url="http://127.0.0.1:9", **options)
        vault = Vault(AwsSecretStore(environment, endpoint_url=aws_endpoint, **options))
        stored = Stored("aws", plane, vault, _nothing)
        await set_in(vault, plane, "old", "chain/*")
        with pytest.raises(PlatformError) as failure:
            await set_in(Vault(lost), plane, "new", "archive/*")
        assert failure.value.code == "secret.store_unavailable"
        assert isinstance(await stored.handed(RPC), Denied)
        assert isinstance(await stored.handed(RPC, dag="archive"), Denied)
        await set_in(vault, plane, "new", "archive/*")
        assert await stored.handed(RPC, dag="archive") == {RPC: "new"}
        with pytest.raises(PlatformError):
            await Vault(lost).remove(plane.database, "default", RPC)
        assert await stored.handed(RPC, dag="archive") == {RPC: "new"}
        await lost.close()
        await vault.close()


async def test_a_value_from_aws_is_asked_for_again_after_a_moment(
    database_url: str, tmp_path: Path, aws_endpoint: str, aws_session: AioSession
) -> None:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        slow, other = (
            AwsSecretStore(
                "moment", region=REGION, endpoint_url=aws_endpoint, session=aws_session, fresh_seconds=seconds
            )
            for seconds in (60, 0)
        )
        vault = Vault(slow)
        stored = Stored("aws", plane, vault, _nothing)
        await set_in(vault, plane, "one")
        assert await stored.handed(RPC) == {RPC: "one"}
        await set_in(Vault(other), plane, "two")
        assert await stored.handed(RPC) == {RPC: "one"}
        slow._fresh_seconds = 0
        assert await stored.handed(RPC) == {RPC: "two"}
        async with other._session.create_client(
            "secretsmanager", region_name=REGION, endpoint_url=aws_endpoint
        ) as client:
            names = [entry["Name"] for entry in (await client.list_secrets())["SecretList"]]
        assert "/moment/default/user/rpc" in names
        await slow.close()
        await other.close()


async def test_aws_that_does_not_answer_denies_a_job_and_nothing_else(
    database_url: str, tmp_path: Path, aws_session: AioSession
) -> None:
    store = AwsSecretStore("x", region=REGION, endpoint_url="http://127.0.0.1:9", session=aws_session)
    with pytest.raises(PlatformError) as refused:
        await store.check()
    assert refused.value.code == "secret.store_unavailable"
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        denied = await Stored("aws", plane, Vault(store), _nothing).handed(RPC)
    assert isinstance(denied, Denied)
    assert "AWS Secrets Manager failed" in denied.why
    await store.close()
