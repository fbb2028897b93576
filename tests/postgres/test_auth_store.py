from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from traceplane import errors
from traceplane.auth import store
from traceplane.auth.capability import Capability, JobGrants, TaskGrant, mint, verify
from traceplane.auth.keyring import Keyring
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.auth.opaque import Principal, TokenBook
from traceplane.auth.roles import Role
from traceplane.postgres.database import Database

MASTER = bytes(range(32))
OTHER_MASTER = bytes(range(1, 33))
START = 1_800_000_000.0


async def set_clock(database: Database, at: float) -> None:
    async with database.transaction() as tx:
        await tx.run(
            "create or replace function tp_now() returns timestamptz language sql stable parallel safe"
            f" as 'select to_timestamp({at!r}::float8)'"
        )


async def load(database: Database, master_key: bytes = MASTER) -> Keyring:
    async with database.transaction() as tx:
        return await store.load_keyring(tx, [master_key])


async def rotate_key(database: Database, overlap_seconds: float, master_key: bytes = MASTER) -> Keyring:
    async with database.transaction() as tx:
        return await store.rotate_signing_key(tx, lambda: [master_key], overlap_seconds)


async def stored_keys(database: Database) -> list[dict[str, Any]]:
    async with database.transaction() as tx:
        return [dict(row) for row in await tx.rows("select * from signing_keys order by created_at")]


def capability_at(now: float) -> Capability:
    return Capability("default", (TaskGrant("task", 1, 0),), (JobGrants((), ()),), now + 1000)


def code_of(token: str, ring: Keyring, now: float) -> str:
    with pytest.raises(errors.Unauthenticated) as refused:
        verify(token, ring, now)
    return refused.value.code


# Signing keys ---------------------------------------------------------------------------------------


async def test_a_rotated_signing_key_is_published_then_signs_then_retires_for_every_process(
    database: Database,
) -> None:
    await set_clock(database, START)
    first = (await load(database)).current(START)
    early = mint(capability_at(START), await load(database), START)
    await rotate_key(database, overlap_seconds=100.0)

    await set_clock(database, START + 99.9)
    published = await load(database)
    assert published.current(START + 99.9).kid == first.kid
    assert first.kid in {jwk["kid"] for jwk in published.jwks(START)["keys"]}
    assert len(published.keys) == 2
    last = mint(capability_at(START), published, START + 99.9)

    await set_clock(database, START + 100)
    signing = await load(database)
    assert signing.current(START + 100).kid != first.kid
    late = mint(capability_at(START), signing, START + 100)
    assert verify(late, published, START + 99.9) == capability_at(START)  # by one that has not looked since
    for token in (early, last, late):
        assert verify(token, signing, START + 199.9) == capability_at(START)

    await set_clock(database, START + 200)
    retired = await load(database)
    assert [key.kid for key in retired.keys] == [signing.current(START + 100).kid]
    assert verify(late, retired, START + 200) == capability_at(START)
    assert {code_of(token, retired, START + 200) for token in (early, last)} == {"token.unknown_key"}
    # A process that still holds the old ring judges by time, and so the same.
    assert code_of(last, signing, START + 200) == "token.unknown_key"


async def test_a_loaded_ring_is_the_rotated_one(database: Database) -> None:
    await set_clock(database, START + 0.123456)
    await load(database)
    rotated = await rotate_key(database, overlap_seconds=100.0)
    assert await load(database) == rotated


async def test_a_pending_key_that_is_dropped_is_dropped_in_the_database_too(database: Database) -> None:
    await set_clock(database, START)
    pending = (await rotate_key(database, overlap_seconds=100.0)).keys[-1]
    sooner = await rotate_key(database, overlap_seconds=10.0)
    assert pending.kid not in {key.kid for key in sooner.keys}
    assert await load(database) == sooner


async def test_processes_that_start_together_create_one_key(database: Database) -> None:
    rings = await asyncio.gather(*(load(database) for _ in range(8)))
    assert len({ring.keys[0].kid for ring in rings}) == 1
    assert len(await stored_keys(database)) == 1


async def test_the_second_first_load_waits_for_the_first(database: Database) -> None:
    async with database.transaction() as tx:
        made = await store.load_keyring(tx, [MASTER])
        second = asyncio.create_task(load(database))
        await _until_someone_waits_for_a_lock(database)
    assert await second == made
    assert len(await stored_keys(database)) == 1


async def test_rotations_at_the_same_moment_follow_each_other(database: Database) -> None:
    await load(database)
    await asyncio.gather(*(rotate_key(database, overlap_seconds=0.0) for _ in range(4)))
    assert len(await stored_keys(database)) == 5
    assert len((await load(database)).keys) == 1


async def test_a_sealed_key_at_rest_holds_no_part_of_the_private_key(database: Database) -> None:
    await load(database)
    ring = await rotate_key(database, overlap_seconds=100.0)
    rows = {row["kid"]: row for row in await stored_keys(database)}
    assert set(rows) == {key.kid for key in ring.keys}
    for key in ring.keys:
        scalar = key.private_key.private_numbers().private_value.to_bytes(32, "big")
        plain = serialization.NoEncryption()
        secrets = [
            scalar,
            key.private_key.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, plain
            ),
            key.private_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
            ),
            key.private_key.private_bytes(
                serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, plain
            ),
            base64.urlsafe_b64encode(scalar).rstrip(b"="),
            scalar.hex().encode(),
            b"PRIVATE KEY",
            MASTER,
        ]
        row = rows[key.kid]
        assert set(row["public_jwk"]) == {"kty", "crv", "x", "y", "use", "alg", "kid"}
        at_rest = bytes(row["sealed_private_key"]) + repr(row).encode()
        assert not any(secret in at_rest for secret in secrets)


async def test_a_key_sealed_with_another_master_key_is_not_silently_replaced(database: Database) -> None:
    made = await load(database)
    for call in (load(database, OTHER_MASTER), rotate_key(database, 60.0, OTHER_MASTER)):
        with pytest.raises(errors.InvalidInput) as refused:
            await call
        assert refused.value.code == "keyring.unseal_failed"
    assert await load(database) == made


async def test_rotation_without_overlap_recovers_from_a_lost_master_key(database: Database) -> None:
    await set_clock(database, START)
    await load(database)
    lost = await rotate_key(database, overlap_seconds=100.0)  # a current key and a pending one
    token = mint(capability_at(START), lost, START)

    await set_clock(database, START + 1)
    ring = await rotate_key(database, 0.0, OTHER_MASTER)
    assert await load(database, OTHER_MASTER) == ring
    assert len(ring.keys) == 1
    assert ring.current(START + 1).retires_at is None
    assert code_of(token, ring, START + 1) == "token.unknown_key"
    ends = {row["kid"]: row["retires_at"] for row in await stored_keys(database)}
    assert {ends[key.kid].timestamp() for key in lost.keys} == {START + 1}
    later = await rotate_key(database, 60.0, OTHER_MASTER)  # and from here on as ever
    assert len(later.keys) == 2


async def test_a_key_that_retired_long_ago_keeps_its_end(database: Database) -> None:
    await set_clock(database, START)
    old = (await load(database)).keys[0]
    await rotate_key(database, 0.0)
    await set_clock(database, START + 50)
    await rotate_key(database, 0.0)
    ends = {row["kid"]: row["retires_at"] for row in await stored_keys(database)}
    assert ends[old.kid].timestamp() == START


# User and worker tokens -----------------------------------------------------------------------------


async def book(database: Database) -> TokenBook:
    async with database.transaction() as tx:
        return await store.load_token_book(tx)


async def issue(database: Database, name: str = "spark", org: str = "default", **more: Any) -> str:
    async with database.transaction() as tx:
        principal = Principal.USER if "role" in more else Principal.WORKER
        return await store.issue_token(tx, principal, org=org, name=name, **more)


async def rotate(
    database: Database,
    overlap_seconds: float,
    *,
    principal: Principal = Principal.WORKER,
    org: str = "default",
    name: str = "spark",
) -> str:
    async with database.transaction() as tx:
        return await store.rotate_token(tx, principal, org=org, name=name, overlap_seconds=overlap_seconds)


async def revoke(database: Database, org: str = "default", name: str = "spark") -> int:
    async with database.transaction() as tx:
        return await store.revoke_tokens(tx, Principal.WORKER, org=org, name=name)


async def add_org(database: Database, slug: str) -> None:
    async with database.transaction() as tx:
        await tx.run("insert into orgs (slug) values ($1)", slug)


def verdict(known: TokenBook, token: str, now: float, principal: Principal = Principal.WORKER) -> str:
    try:
        known.check(token, principal, now)
    except errors.TraceplaneError as refused:
        return refused.code
    return "ok"


async def test_a_rotated_token_works_until_the_overlap_ends(database: Database) -> None:
    await set_clock(database, START)
    old = await issue(database, name="ann", role=Role.WRITER)
    new = await rotate(database, 60.0, principal=Principal.USER, name="ann")
    known = await book(database)
    assert verdict(known, old, START + 59.9, Principal.USER) == "ok"
    assert verdict(known, old, START + 60, Principal.USER) == "token.expired"
    successor = known.check(new, Principal.USER, START + 1e9)
    assert (successor.org, successor.name, successor.role) == ("default", "ann", Role.WRITER)
    assert successor.expires_at is None


async def test_live_tokens_of_a_name_are_counted_and_an_unknown_name_has_a_next_step(
    database: Database,
) -> None:
    await set_clock(database, START)
    for seconds in (None, 20.0, 60.0):
        await issue(database, lifetime_seconds=seconds)
    await set_clock(database, START + 30)
    async with database.transaction() as tx:
        assert await store.live_tokens(tx, Principal.WORKER, org="default", name="spark") == 2
        assert await store.live_tokens(tx, Principal.WORKER, org="default", name="other") == 0
    with pytest.raises(errors.NotFound) as refused:
        await rotate(database, 0.0, name="sparc")
    assert refused.value.next_step == "did you mean 'spark'?"


async def test_every_older_live_token_ends_with_the_overlap(database: Database) -> None:
    await set_clock(database, START)
    older = [await issue(database) for _ in range(2)]
    ending = await issue(database, lifetime_seconds=20.0)
    await set_clock(database, START + 10)
    older.append(await issue(database))
    newest = await rotate(database, 60.0)
    known = await book(database)
    assert {verdict(known, token, START + 69.9) for token in older} == {"ok"}
    assert {verdict(known, token, START + 70) for token in older} == {"token.expired"}
    assert verdict(known, ending, START + 20) == "token.expired", "an overlap never prolongs a token"
    assert verdict(known, newest, START + 1e9) == "ok"


async def test_rotating_again_within_the_overlap_leaves_one_token_in_the_end(database: Database) -> None:
    await set_clock(database, START)
    first = await issue(database)
    second = await rotate(database, 60.0)
    third = await rotate(database, 60.0)  # at the same moment: the clock does not tell them apart
    await set_clock(database, START + 30)
    fourth = await rotate(database, 60.0)
    known = await book(database)
    assert {verdict(known, token, START + 59.9) for token in (first, second, third, fourth)} == {"ok"}
    assert [verdict(known, token, START + 90) for token in (first, second, third)] == ["token.expired"] * 3
    assert verdict(known, fourth, START + 1e9) == "ok"


async def test_the_successor_of_an_expiring_token_lives_as_long_as_it_did(database: Database) -> None:
    await set_clock(database, START)
    await issue(database, lifetime_seconds=1000.0)
    for rotated_at in (START + 900, START + 1800):
        await set_clock(database, rotated_at)
        token = await rotate(database, 10.0)
        known = await book(database)
        assert verdict(known, token, rotated_at + 999.9) == "ok"
        assert verdict(known, token, rotated_at + 1000) == "token.expired"


async def test_rotation_and_revocation_keep_to_their_org_principal_and_name(database: Database) -> None:
    await set_clock(database, START)
    await add_org(database, "acme")
    mine = await issue(database)
    others = {
        "org": await issue(database, org="acme"),
        "principal": await issue(database, role=Role.ADMIN),
        "name": await issue(database, name="spark-2"),
    }
    successor = await rotate(database, 0.0)
    assert await revoke(database, org="acme", name="spark-2") == 0
    known = await book(database)
    assert verdict(known, mine, START) == "token.expired"
    assert known.check(successor, Principal.WORKER, START).org == "default"
    assert verdict(known, others["org"], START + 1e9) == "ok"
    assert verdict(known, others["principal"], START + 1e9, Principal.USER) == "ok"
    assert verdict(known, others["name"], START + 1e9) == "ok"

    assert await revoke(database, org="acme") == 1
    known = await book(database)
    assert verdict(known, others["org"], START) == "token.revoked"
    assert verdict(known, successor, START) == "ok"


async def test_a_name_of_another_org_is_not_found(database: Database) -> None:
    await add_org(database, "acme")
    await issue(database)
    with pytest.raises(errors.NotFound) as refused:
        await rotate(database, 60.0, org="acme")
    assert refused.value.code == "token.not_found"


async def test_a_revocation_ends_a_token_and_its_predecessor_in_the_overlap(database: Database) -> None:
    await set_clock(database, START)
    old = await issue(database)
    new = await rotate(database, 60.0)
    assert await revoke(database) == 2
    assert await revoke(database) == 0
    known = await book(database)
    assert [verdict(known, token, START) for token in (old, new)] == ["token.revoked"] * 2
    with pytest.raises(errors.NotFound):
        await rotate(database, 60.0)


async def test_a_rotation_during_a_revocation_revives_nothing(database: Database) -> None:
    old = await issue(database)
    async with database.transaction() as tx:
        assert await store.revoke_tokens(tx, Principal.WORKER, org="default", name="spark") == 1
        rotation = asyncio.create_task(rotate(database, 60.0))
        await _until_someone_waits_for_a_lock(database)
    with pytest.raises(errors.NotFound):
        await rotation
    assert verdict(await book(database), old, START) == "token.revoked"


async def test_no_token_is_stored(database: Database) -> None:
    issued = [await issue(database), await issue(database, name="ann", role=Role.READER)]
    async with database.transaction() as tx:
        at_rest = str([dict(row) for row in await tx.rows("select * from access_tokens")])
    assert not any(token[4:20] in at_rest for token in issued)


async def _until_someone_waits_for_a_lock(database: Database) -> None:
    async with asyncio.timeout(60):
        while True:
            async with database.transaction() as tx:
                if await tx.value(
                    "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
                    " where not l.granted and d.datname = current_database()"
                ):
                    return


# The master key -------------------------------------------------------------------------------------


def test_a_master_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "home" / "master.key"
    before = os.umask(0)
    try:
        key = MasterKeyFile(path).keys()[0]
    finally:
        os.umask(before)
    assert len(key) == 32
    assert MasterKeyFile(path).keys()[0] == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path], "no second copy stays behind"


def test_threads_that_start_together_share_one_master_key(tmp_path: Path) -> None:
    at_once = 8
    barrier = threading.Barrier(at_once)

    def read(path: Path) -> bytes:
        barrier.wait(10)
        return MasterKeyFile(path).keys()[0]

    with ThreadPoolExecutor(at_once) as pool:
        for number in range(50):
            path = tmp_path / str(number) / "master.key"
            keys = set(pool.map(read, [path] * at_once))
            assert len(keys) == 1
            assert {len(key) for key in keys} == {32}
            assert list(path.parent.iterdir()) == [path]


READER = """
import sys
from pathlib import Path
from traceplane.auth.master_key_file import MasterKeyFile
print("ready", flush=True)
for line in sys.stdin:
    print(MasterKeyFile(Path(line.strip())).keys()[0].hex(), flush=True)
"""


def test_processes_that_start_together_share_one_master_key(tmp_path: Path) -> None:
    with ExitStack() as running:
        processes = [running.enter_context(_python(READER)) for _ in range(2)]
        assert [_line(process) for process in processes] == ["ready", "ready"]
        for number in range(50):
            path = tmp_path / str(number) / "master.key"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(f"{path}\n")
                process.stdin.flush()
            keys = [_line(process) for process in processes]
            assert keys == [MasterKeyFile(path).keys()[0].hex()] * 2
            assert len(keys[0]) == 64


def test_a_reader_sees_no_master_key_or_a_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "master.key"
    link = os.link

    def watched(source: str, target: Path) -> None:
        assert not path.exists()
        assert len(bytes.fromhex(Path(source).read_text())) == 32
        link(source, target)

    monkeypatch.setattr(os, "link", watched)
    key = MasterKeyFile(path).keys()[0]
    assert bytes.fromhex(path.read_text()) == key


def test_the_second_process_to_create_a_master_key_takes_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "master.key"
    link = os.link

    def overtaken(source: str, target: Path) -> None:
        target.write_text(MASTER.hex() + "\n")
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    assert MasterKeyFile(path).keys()[0] == MASTER
    assert list(tmp_path.iterdir()) == [path]


CRASHING = """
import os, sys
from pathlib import Path
from traceplane.auth.master_key_file import MasterKeyFile
setattr(os, sys.argv[2], lambda *_: os._exit(9))
MasterKeyFile(Path(sys.argv[1])).keys()
"""


@pytest.mark.parametrize("step", ["urandom", "fsync", "link"])
def test_a_crash_while_creating_a_master_key_leaves_none(tmp_path: Path, step: str) -> None:
    path = tmp_path / "master.key"
    with _python(CRASHING, str(path), step) as process:
        assert process.wait(30) == 9
    assert not path.exists()
    key = MasterKeyFile(path).keys()[0]
    assert len(key) == 32
    assert MasterKeyFile(path).keys()[0] == key


def _python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
