"""Secrets and master keys are replaced under load while dispatcher, gateway, Postgres and the command are killed.

No attempt gets a mix of versions, new attempts get the newest one, and afterwards every value opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.test_history import traceplane
from tests.platform import Platform, until
from tests.process.effects import settle, stored_rows
from traceplane.auth.master_key_file import MasterKeyFile, new_key
from traceplane.auth.store import load_keyring, lock_keys, seal_signing_keys_anew
from traceplane.errors import PlatformError
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import JobNeeds, Vault
from traceplane.wire.secrets import SecretSet, SecretValue

SETTINGS = {"fsync": "off"}
FILLERS = 600
KEY = SecretName("user", "key")


def dag(seconds: float) -> str:
    return f"""
version: 1
dag: turning
defaults: {{lease: 2s, retry: {{base: 50ms}}, max_attempts: 50}}
jobs:
- {{name: ticks, activation: source, source: {{kind: manual}}, outputs: [{{dataset: turning.ticks}}]}}
- name: use
  runtime: python
  operator: python
  inputs: [{{from: {{job: ticks}}}}]
  outputs: [{{dataset: turning.used}}]
  secrets: {{KEY: key}}
  config: {{entrypoint: "secret_users:in_time", url: "https://rpc.example/${{secret:key}}", seconds: {seconds}}}
"""


def value(number: int) -> str:
    return f"version-{number}-of-the-key"


DIGESTS = {hashlib.sha256(value(n).encode()).hexdigest(): n for n in range(10_000)}


async def patient_set(platform: Platform, name: str, text: str) -> None:
    while True:
        try:
            request = SecretValue(value=text)
            await platform.api.call("PUT", f"/api/v1/secrets/user/{name}", SecretSet, request)
            return
        except PlatformError:
            await asyncio.sleep(0.05)


class Turning:
    """A platform whose key and master key are replaced, and how often which process was killed."""

    def __init__(self, platform: Platform, postgres: Path, draw: random.Random) -> None:
        self.platform, self.postgres, self.draw = platform, postgres, draw
        self.server = EmbeddedPostgres.ensure(postgres, settings=SETTINGS, die_with_parent=True)
        self.kills: Counter[str] = Counter()
        self.rotations = 0
        self.version = 0
        """The last one whose `secret set` was answered."""
        self.at_least: dict[int, int] = {}
        """The version that was set when a position was emitted."""
        self.done = asyncio.Event()

    @property
    def is_enough(self) -> bool:
        return min(self.kills[name] for name in ("gateway", "dispatcher-1", "postgres", "command")) >= 1

    async def kill(self) -> None:
        while not self.done.is_set():
            await asyncio.sleep(self.draw.uniform(0.3, 1.0))
            name = self.draw.choice(("gateway", "dispatcher-1", "postgres"))
            if name == "postgres":
                await asyncio.to_thread(self.server.kill)
                self.server = await asyncio.to_thread(
                    EmbeddedPostgres.ensure, self.postgres, settings=SETTINGS, die_with_parent=True
                )
            else:
                await self.platform[name].kill()
                await self.platform[name].start()
            self.kills[name] += 1

    async def set_versions(self) -> None:
        while not self.done.is_set():
            await patient_set(self.platform, "key", value(self.version + 1))
            self.version += 1
            await asyncio.sleep(self.draw.uniform(0.0, 0.3))

    async def rotate(self) -> None:
        """Replaces the master key over and over; every other time the command is killed on its way."""
        while not self.done.is_set():
            environment = {**self.platform.environment, "TRACEPLANE_STATE_URL": self.platform.url}
            command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "traceplane.cli.main", "keys", "rotate-master"),
                env=environment,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            if self.draw.random() < 0.5:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(command.wait(), self.draw.uniform(0.3, 1.0))
                if command.returncode is None:
                    command.kill()
                    self.kills["command"] += 1
            self.rotations += await command.wait() == 0

    async def emit(self, at_least: int) -> int:
        """Emits until there was enough of everything; returns how many positions."""
        position = 0
        while position < at_least or not self.is_enough:
            self.at_least[position] = self.version
            await self.platform.emit("turning.ticks", [position], patient=True)
            position += 1
            await asyncio.sleep(0.02)
        return position

    async def run(self, at_least: int) -> int:
        await patient_set(self.platform, "key", value(1))
        self.version = 1
        await self.platform.deploy(dag(0.2))
        meanwhile = [asyncio.create_task(act()) for act in (self.kill, self.set_versions, self.rotate)]
        try:
            return await self.emit(at_least)
        finally:
            self.done.set()
            await asyncio.gather(*meanwhile)
            await self.platform.ready("gateway", "dispatcher-1")


async def all_values(platform: Platform, *names: SecretName) -> dict[SecretName, str]:
    vault = Vault(SealedStore(MasterKeyFile(platform.folder / "master.key").keys))
    needs = JobNeeds("default", "d", "j", frozenset(names))
    database = await Database.connect(platform.url, connections=1)
    try:
        async with database.transaction() as tx:
            found = (await vault.hand_out(tx, [needs]))[needs]
    finally:
        await database.close()
    assert isinstance(found, dict), found
    return found


async def turned(tmp_path: Path, at_least: int, seed: int) -> None:
    folder, draw = tmp_path / "postgres", random.Random(seed)
    server = EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True)
    try:
        await migrate(server.state_url)
        async with Platform.start(server.state_url, tmp_path / "home", workers=2) as platform:
            fillers = {SecretName("user", f"filler-{n}"): f"filler {n}" for n in range(FILLERS)}
            for name, text in fillers.items():
                await patient_set(platform, name.name, text)
            turning = Turning(platform, folder, draw)
            count = await turning.run(at_least)
            assert await settle(platform, seconds=600) == {"completed": count}
            rows = await stored_rows(platform, "turning.used", 0, count)
            assert [row["position"] for row in rows] == list(range(count))
            received = {row["position"]: row["digests"].split() for row in rows}
            mixed = {p: digests for p, digests in received.items() if len(digests) != 1}
            assert mixed == {}
            versions = {p: DIGESTS[digest] for p, (digest,) in received.items()}
            outdated = {p: v for p, v in versions.items() if v < turning.at_least[p]}
            assert outdated == {}, "a new attempt takes the newest version"
            print(
                f"{count} tasks with {len(set(versions.values()))} of {turning.version} versions,"
                f" {turning.rotations} master keys, kills: {dict(turning.kills)}"
            )
            for arguments in (("rotate-master",), ("rotate-master", "--forget-old")):
                code, _, err = await traceplane(platform, "keys", *arguments)
                assert code == 0, err
            assert len((platform.folder / "master.key").read_text().split()) == 1
            found = await all_values(platform, KEY, *fillers)
            assert found[KEY] in (value(turning.version), value(turning.version + 1))
            assert {name: found[name] for name in fillers} == fillers
    finally:
        EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True).destroy()


@pytest.mark.timeout(400)
async def test_keys_are_replaced_under_load_while_everything_is_killed(tmp_path: Path) -> None:
    await turned(tmp_path, 40, 15)


@pytest.mark.chaos
async def test_keys_are_replaced_for_minutes_while_everything_is_killed(tmp_path: Path) -> None:
    await turned(tmp_path, 3_000, random.randrange(1 << 30))


async def test_a_running_task_finishes_with_its_version(database_url: str, tmp_path: Path) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await patient_set(platform, "key", value(1))
        await platform.deploy(dag(12.0))
        await platform.emit("turning.ticks", [0])

        async def runs() -> bool:
            return "running" in await platform.states()

        await until(runs)
        await patient_set(platform, "key", value(2))
        assert (await traceplane(platform, "keys", "rotate-master"))[0] == 0
        assert await platform.states() == {"running": 1}, "it should still run"
        await platform.emit("turning.ticks", [1])
        assert await platform.settled() == {"completed": 2}
        rows = await stored_rows(platform, "turning.used", 0, 2)
        assert [DIGESTS[row["digests"]] for row in rows] == [1, 2]


async def test_no_key_is_forgotten_that_a_secret_is_being_sealed_with(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path, workers=0) as platform:
        database = await Database.connect(database_url, connections=1)
        try:
            vault = Vault(SealedStore(MasterKeyFile(platform.folder / "master.key").keys))
            async with database.transaction() as tx:
                await vault.set(tx, "default", KEY, value(1), by="ada")
                code, _, err = await traceplane(platform, "keys", "rotate-master")
                assert code == 0, err
                forgetting = asyncio.create_task(
                    traceplane(platform, "keys", "rotate-master", "--forget-old")
                )
                await asyncio.wait([forgetting], timeout=3)
            code, _, err = await forgetting
            assert code == 0, err
        finally:
            await database.close()
        assert len((platform.folder / "master.key").read_text().split()) == 1
        assert await all_values(platform, KEY) == {KEY: value(1)}


async def test_a_signing_key_is_sealed_with_the_master_key_of_the_moment(
    database_url: str, tmp_path: Path
) -> None:
    """A rotation that waits for another command must not seal with a key that was forgotten meanwhile."""
    async with Platform.start(database_url, tmp_path, workers=0) as platform:
        file = MasterKeyFile(platform.folder / "master.key")
        before = file.keys()
        database = await Database.connect(database_url, connections=1)
        try:
            async with database.transaction() as tx:
                await lock_keys(tx)
                rotating = asyncio.create_task(traceplane(platform, "keys", "rotate"))
                replacing = asyncio.create_task(traceplane(platform, "keys", "rotate-master"))
                await asyncio.wait([rotating, replacing], timeout=3)
                assert file.keys() == before, "the file is changed by one command at a time"
                file.put_first(new_key())
                await seal_signing_keys_anew(tx, file.keys)
                file.keep_first()
            for command in (rotating, replacing):
                code, _, err = await command
                assert code == 0, err
            code, _, err = await traceplane(platform, "keys", "rotate-master", "--forget-old")
            assert code == 0, err
            async with database.transaction() as tx:
                assert len((await load_keyring(tx, file.keys())).keys) == 2
        finally:
            await database.close()
        assert len(file.keys()) == 1
