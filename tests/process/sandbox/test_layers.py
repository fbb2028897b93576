"""Which layers of isolation hold here, and when the sandbox refuses to start without them."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from tests.process.sandbox.attacks import AS_ROOT, WITHOUT, run, whatever_the_layers
from traceplane import telemetry
from traceplane.errors import InvalidInput, PlatformError
from traceplane.sandbox.confinement import LANDLOCK, NAMESPACES, SECCOMP, UID_SLOTS
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


async def test_says_which_layers_hold_and_why_others_do_not(sandbox: Sandbox) -> None:
    isolation = sandbox.isolation
    assert isolation.weakness() is None
    for layer in WITHOUT:
        assert isolation.missing[layer] == "disabled in the settings"
    assert isolation.has(UID_SLOTS) == AS_ROOT
    assert isolation.has(LANDLOCK) == (isolation.landlock_abi > 0)


@whatever_the_layers
async def test_refuses_to_start_where_tasks_could_read_each_other() -> None:
    too_weak = frozenset({LANDLOCK, NAMESPACES})
    with pytest.raises(PlatformError) as refusal:
        await Sandbox.start(SandboxSettings(slots=1, disabled_layers=too_weak))
    assert refusal.value.code == "sandbox.too_weak"
    assert "disabled in the settings" in refusal.value.message


@whatever_the_layers
async def test_runs_with_weak_isolation_only_if_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test")
    too_weak = frozenset({LANDLOCK, NAMESPACES, UID_SLOTS, SECCOMP})
    weak = await Sandbox.start(SandboxSettings(slots=1, disabled_layers=too_weak, allow_weak=True))
    warned, *_ = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "sandbox.weak" in line]
    assert warned["reason"] == weak.isolation.weakness(), "an operator of the platform has to know why"
    try:
        assert weak.isolation.weakness() is not None
        assert (await run(weak, "nothing")).code is None
    finally:
        await weak.close()


@whatever_the_layers
async def test_refuses_a_root_worker_that_cannot_change_its_uid() -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    with pytest.raises(PlatformError, match="runs as root") as refusal:
        await Sandbox.start(SandboxSettings(slots=1, disabled_layers=frozenset({UID_SLOTS})))
    assert refusal.value.code == "sandbox.too_weak"


@whatever_the_layers
async def test_invalid_settings_are_named() -> None:
    with pytest.raises(InvalidInput, match="no such layer"):
        SandboxSettings(disabled_layers=frozenset({"landlok"}))
    with pytest.raises(InvalidInput, match="at least one slot"):
        SandboxSettings(slots=0)


@whatever_the_layers
async def test_two_workers_of_one_host_never_share_a_uid(sandbox: Sandbox) -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    other = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    try:
        mine, theirs = [
            await asyncio.gather(*(run(s, "describe") for _ in range(2))) for s in (sandbox, other)
        ]
        assert all(r.code is None for r in (*mine, *theirs))
        assert not set(sandbox.uids) & set(other.uids)
    finally:
        await other.close()
