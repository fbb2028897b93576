"""A call is refused unless its token covers it, and a report unless its task was granted what it names."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.e2e.attacked_platform import (
    DAG,
    NUL,
    POSTS_TO_GATEWAY,
    TASK,
    AttackedPlatform,
    event,
)
from traceplane.auth.capability import Capability, JobGrants, TaskGrant, WriteGrant, mint
from traceplane.auth.keyring import Keyring, generate
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.auth.store import load_keyring
from traceplane.postgres.database import Database
from traceplane.wire.tasks import ClaimRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Who may call ---------------------------------------------------------------------------------------


async def test_every_call_of_the_gateway_needs_a_token(world: AttackedPlatform) -> None:
    for path in POSTS_TO_GATEWAY:
        assert await world.gateway("POST", path, {}, token=None) == (401, "token.missing")
    for path in (
        "/api/v1/dags",
        "/api/v1/tasks",
        "/api/v1/status",
        TASK.format(uuid4()),
        TASK.format(uuid4()) + "/explain",
    ):
        assert await world.gateway("GET", path, token=None) == (401, "token.missing")


async def test_an_invalid_user_token_is_refused_with_the_reason(world: AttackedPlatform) -> None:
    mistyped = world.platform.user_token[:-1] + ("a" if world.platform.user_token[-1] != "a" else "b")
    reasons = {
        "x": (401, "token.malformed"),
        mistyped: (401, "token.malformed"),
        world.tokens["revoked"]: (401, "token.revoked"),
        world.tokens["expired"]: (401, "token.expired"),
        world.platform.worker_token: (403, "token.wrong_principal"),
        world.token: (401, "jwt.unknown_issuer"),
    }
    for token, reason in reasons.items():
        assert await world.gateway("POST", "/api/v1/events", {"events": [event()]}, token=token) == reason


async def test_a_role_grants_what_it_says_and_no_more(world: AttackedPlatform) -> None:
    denied = (403, "access.role_required")
    for path in ("/api/v1/events", "/api/v1/tasks/retry", "/api/v1/tasks/cancel", "/api/v1/deploy"):
        assert await world.gateway("POST", path, {}, token=world.tokens["reader"]) == denied
    for path in ("/api/v1/plan", "/api/v1/deploy"):
        assert await world.gateway("POST", path, {"text": DAG}, token=world.tokens["writer"]) == denied


async def test_worker_calls_are_for_workers(world: AttackedPlatform) -> None:
    claim = {"worker_id": "w", "runtime": "python", "task_ids": [str(uuid4())]}
    for token, reason in {
        None: (401, "token.missing"),
        world.platform.user_token: (403, "token.wrong_principal"),
        world.token: (401, "token.malformed"),
        "tpw_x": (401, "token.malformed"),
    }.items():
        assert await world.dispatcher("/internal/task-claim", claim, token=token) == reason
        fetch = "/internal/task-fetch?" + "&".join(f"{k}={v}" for k, v in world.fence.items())
        assert await world.dispatcher(fetch, method="GET", token=token) == reason
        take = {"worker_id": "w", "runtime": "python"}
        assert await world.dispatcher("/internal/task-take", take, token=token) == reason


# Capability tokens ----------------------------------------------------------------------------------


def speaking(world: AttackedPlatform, capability_token: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """What a holder of this capability could say, call by call."""
    fence = {**world.fence, **changes}
    return {
        "/internal/heartbeat": {"tokens": [capability_token], "beats": [fence]},
        "/internal/events": {
            "tokens": [capability_token],
            "emissions": [{**fence, "events": [{"output_index": 0, "scope": {"cursor": 1}}]}],
        },
        "/internal/task-complete": {
            "tokens": [capability_token],
            "completions": [{**fence, "status": "completed", "outputs": [world.manifest()]}],
        },
        "/internal/buffer-publish": {
            "tokens": [capability_token],
            "batches": [{**fence, "batch": 0, "output": world.manifest()}],
        },
    }


async def test_a_user_or_worker_token_is_not_a_capability(world: AttackedPlatform) -> None:
    for token in (world.platform.user_token, world.platform.worker_token):
        for path, body in speaking(world, token).items():
            assert await world.dispatcher(path, body) == (401, "token.wrong_kind")


async def test_a_capability_of_another_task_or_attempt_covers_nothing_else(world: AttackedPlatform) -> None:
    refusal = (403, "token.other_task")
    for path, body in speaking(world, world.other_token).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, attempt=world.held.attempt + 1).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, task_id=str(world.tasks[1].task_id)).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, token=1).items():
        assert await world.dispatcher(path, body) == refusal
    unknown = str(uuid4())
    for path, body in speaking(world, world.token, task_id=unknown).items():
        assert await world.dispatcher(path, body) == refusal


def capability(world: AttackedPlatform, expires_at: float) -> Capability:
    write = WriteGrant(0, str(world.output.dataset_uuid), str(world.output.dataset_version))
    task = TaskGrant(str(world.held.task_id), world.held.attempt, 0)
    return Capability("default", (task,), (JobGrants((), (write,)),), expires_at)


async def test_a_forged_capability_is_refused(world: AttackedPlatform) -> None:
    stranger = Keyring((generate(time.time() - 10),))
    foreign = mint(capability(world, time.time() + 3600), stranger, time.time())
    header, claims, signature = world.token.split(".")
    decoded = json.loads(_unpack(header))
    forged = {
        foreign: "token.unknown_key",
        f"{header}.{foreign.split('.')[1]}.{foreign.split('.')[2]}": "token.bad_signature",
        f"{header}.{foreign.split('.')[1]}.{signature}": "token.bad_signature",
        f"{_pack({**decoded, 'alg': 'none'})}.{claims}.": "token.bad_signature",
        f"{_pack({**decoded, 'alg': 'HS256'})}.{claims}.{signature}": "token.bad_signature",
        f"{_pack({**decoded, 'typ': 'JWT'})}.{claims}.{signature}": "token.wrong_kind",
        f"{_pack({**decoded, 'jku': 'https://example.com'})}.{claims}.{signature}": "token.malformed",
        f"{header}.{claims}": "token.malformed",
        "a.b.c": "token.malformed",
        "…": "token.malformed",
    }
    for token, code in forged.items():
        for path, body in speaking(world, token).items():
            assert await world.dispatcher(path, body) == (401, code), token


async def test_an_expired_capability_is_refused_though_it_is_ours(world: AttackedPlatform) -> None:
    database = await Database.connect(world.platform.url, connections=1)
    async with database.transaction() as tx:
        ring = await load_keyring(tx, MasterKeyFile(world.platform.folder / "master.key").keys())
    await database.close()
    signed_at = max(key.activates_at for key in ring.keys)
    expired = mint(capability(world, expires_at=signed_at + 0.01), ring, signed_at)
    for path, body in speaking(world, expired).items():
        assert await world.dispatcher(path, body) == (401, "token.expired")


async def test_a_stale_fence_is_reported_and_changes_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    stale = speaking(world, world.token, lease_token=str(uuid4()))
    batch = stale.pop("/internal/buffer-publish")  # this output takes none
    assert (await world.dispatcher("/internal/buffer-publish", batch))[1] == "task.output_not_buffered"
    for path, body in stale.items():
        url, raw = world.platform.dispatcher_url + path, json.dumps(body).encode()
        status, answer = await world.send("POST", url, token=None, raw=raw)
        assert (status, answer["outcomes"][0]["outcome"]) == (200, "stale")
    assert await world.contents() == before


def _pack(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _unpack(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


# What a worker says ---------------------------------------------------------------------------------


def completion(world: AttackedPlatform, **changes: Any) -> dict[str, Any]:
    return {"tokens": [world.token], "completions": [{**world.fence, "status": "completed", **changes}]}


def staged(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "rows": 1, "bytes": 1, **more}


async def test_files_outside_the_granted_prefix_are_refused(world: AttackedPlatform) -> None:
    (prefix,) = world.held.write_prefixes
    other = world.tasks[1].write_prefixes[0]
    for path in [
        "x",
        "/etc/passwd",
        "../" + prefix + "x",
        prefix + "../x",
        prefix + "a/../../../x",
        prefix + "..",
        prefix,
        prefix + "a//b",
        prefix + "./x",
        prefix + "a/",
        prefix.replace("/1/", "/2/") + "x",
        prefix.rstrip("/") + "x",
        prefix.upper() + "x",
        other + "x",
        "s3://" + prefix + "x",
        prefix.replace("/", "\\") + "x",
    ]:
        body = completion(world, outputs=[world.manifest(files=[staged(path)])])
        assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted"), (
            path
        )


async def test_outputs_and_events_that_were_not_granted_are_refused(world: AttackedPlatform) -> None:
    for change in (
        {"outputs": [world.manifest(output_index=1)]},
        {"outputs": [world.manifest(output_index=10_000)]},
        {"outputs": [world.manifest(dataset_uuid=str(uuid4()))]},
        {"outputs": [world.manifest(dataset_version=str(uuid4()))]},
        {"events": [{"output_index": 1, "scope": {"cursor": 1}}]},
    ):
        body = completion(world, **change)
        assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted"), (
            change
        )
    emission = {**world.fence, "events": [{"output_index": 3, "scope": {"cursor": 1}}]}
    body = {"tokens": [world.token], "emissions": [emission]}
    assert await world.dispatcher("/internal/events", body) == (403, "task.output_not_granted")


async def test_one_invalid_completion_fails_its_whole_call(world: AttackedPlatform) -> None:
    good = {**world.fence, "status": "failed", "error": {"code": "x", "message": "x"}}
    bad = {**world.fence, "status": "completed", "outputs": [world.manifest(output_index=7)]}
    body = {"tokens": [world.token], "completions": [good, bad]}
    assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted")


BAD_REPORTS: list[Callable[[AttackedPlatform], dict[str, Any]]] = [
    lambda w: completion(w, status="done"),
    lambda w: completion(w, attempt=0),
    lambda w: completion(w, attempt=2**31),
    lambda w: completion(w, lease_token="x"),
    lambda w: completion(w, token=-1),
    lambda w: completion(w, token=1000),
    lambda w: completion(w, surprise=1),
    lambda w: completion(w, traceparent="00-xyz"),
    lambda w: completion(w, error={"code": "", "message": "x"}),
    lambda w: completion(w, error={"code": "x"}),
    lambda w: completion(w, error={"code": "x", "message": "x" * 20_001}),
    lambda w: completion(w, error={"code": "x", "message": NUL}),
    lambda w: completion(w, status="failed", error={"code": "x", "message": "x", "logs": [f"a{NUL}"]}),
    lambda w: completion(w, status="failed", error={"code": "x", "message": "x", "line": 2**63}),
    lambda w: completion(w, outputs=[w.manifest(row_count=-1)]),
    lambda w: completion(w, outputs=[w.manifest(bytes=2**63)]),
    lambda w: completion(w, outputs=[w.manifest(row_count=10**15 + 1)]),
    lambda w: completion(w, outputs=[w.manifest(scope={})]),
    lambda w: completion(w, outputs=[w.manifest(output_index=-1)]),
    lambda w: completion(w, outputs=[w.manifest(output_index=10_001)]),
    lambda w: completion(w, outputs=[w.manifest(schema_hash="x" * 129)]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("")])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged(w.held.write_prefixes[0] + NUL)])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x" * 2049)])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": 10**30})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"min": {}}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"max": f"a{NUL}"}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"": {"max": 1}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"null_count": -1}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"max": "x" * 1025}})])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": "a"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": "", "type": "int64"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": NUL, "type": "int64"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema={"a": "int64"})]),
    lambda w: completion(w, outputs=[w.manifest()] * 10_001),
    lambda w: {**completion(w), "tokens": []},
    lambda w: {**completion(w), "tokens": [5]},
    lambda w: {**completion(w), "tokens": [w.token] * 1001},
    lambda w: {**completion(w), "completions": []},
    lambda w: {**completion(w), "completions": [{**w.fence, "status": "canceled"}] * 1001},
]  # fmt: skip


async def test_an_invalid_report_is_refused(world: AttackedPlatform) -> None:
    for make in BAD_REPORTS:
        body = make(world)
        assert await world.dispatcher("/internal/task-complete", body) == (400, "request.invalid"), str(body)[
            :500
        ]


async def test_other_invalid_worker_calls_are_refused(world: AttackedPlatform) -> None:
    beat = {"tokens": [world.token], "beats": [{**world.fence, "progress": [1]}]}
    assert await world.dispatcher("/internal/heartbeat", beat) == (400, "request.invalid")
    beat = {"tokens": [world.token], "beats": [{**world.fence, "progress": {"note": NUL}}]}
    assert await world.dispatcher("/internal/heartbeat", beat) == (400, "request.invalid")
    for take in ({"limit": 0}, {"limit": 1001}, {"wait_seconds": 61}, {"wait_seconds": -1}, {"runtime": NUL}):
        body = {"worker_id": "w", "runtime": "python", **take}
        assert await world.dispatcher("/internal/task-take", body) == (400, "request.invalid"), take
    for runtime in ("dispatcher", "no-such-runtime"):
        body = {"worker_id": "w", "runtime": runtime}
        assert await world.dispatcher("/internal/task-take", body) == (400, "runtime.no_local_queue")
    for claim in ({"worker_id": ""}, {"worker_id": NUL}, {"runtime": 5}, {"task_ids": ["x"]}):
        body = {"worker_id": "w", "runtime": "python", "task_ids": [str(uuid4())], **claim}
        assert await world.dispatcher("/internal/task-claim", body) == (400, "request.invalid"), claim


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "x"},
        {"attempt": "0"},
        {"attempt": str(2**31)},
        {"task_id": "x"},
        {"lease_token": ""},
        {"more": "1"},
    ],
)
async def test_an_invalid_fetch_is_refused(world: AttackedPlatform, change: dict[str, str]) -> None:
    query = "&".join(f"{key}={value}" for key, value in {**world.fence, **change}.items())
    assert await world.dispatcher(f"/internal/task-fetch?{query}", method="GET") == (400, "request.invalid")


async def test_a_refused_claim_says_why_and_changes_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    client = world.platform.worker_client()
    unknown: UUID = uuid4()
    answer = await client.claim(ClaimRequest("w", "python", [unknown, world.held.task_id]))
    wrong = await client.claim(ClaimRequest("w", "abacus", [world.held.task_id]))
    await client.close()
    assert {r.task_id: r.reason for r in answer.refused} == {
        unknown: "unknown",
        world.held.task_id: "running",
    }
    assert [r.reason for r in wrong.refused] == ["wrong_runtime"]
    assert (answer.tasks, answer.tokens, wrong.tasks) == ([], [], [])
    assert await world.contents() == before
