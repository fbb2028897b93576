"""Every crash point, enumerated: the process that owns it dies there by SIGKILL, and nothing is lost or doubled.

All boundaries share one platform; each has positions, or a DAG, of its own. A boundary that is never reached fails
its test. Guarantees 1, 2 and 4 of docs/guarantees.md.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.aws import CREDENTIALS, aws_server
from tests.platform import Platform
from tests.process.crash_scenarios import ON_THE_WAY_OF_ALERTS, SCENARIOS, alerts_arise, events_flow
from tests.process.crashes import FLOW, FUNCTION, PRESSURE, RUNTIMES, SLOW, Crash, CrashingPlatform
from tests.process.effects import settle, watched
from traceplane import crash_points
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

OVER_SQS = ("worker.after_receive", "worker.after_settle")
"""Steps that a worker takes when its wake-ups come from outside the dispatcher's database."""

recovered: list[str] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CrashingPlatform]:
    url = create_database(postgres_server, "crash_points", template=template_database)
    folder: Path = tmp_path_factory.mktemp("crash_points")
    (folder / "traceplane.toml").write_text(RUNTIMES)
    settings = {
        "TRACEPLANE_CONFIG": str(folder / "traceplane.toml"),
        "TRACEPLANE_WORKER_CONCURRENCY": "3",
        "TRACEPLANE_FILE_SOURCE_ALLOW": str(folder),
        "TRACEPLANE_OUTGOING_ALLOW": "127.0.0.0/8",
    }
    async with Platform.start(url, folder, environment=settings) as platform:
        for yaml in (FLOW, SLOW, PRESSURE, FUNCTION):
            await platform.deploy(yaml)
        yield CrashingPlatform(platform)
    drop_database(postgres_server, "crash_points")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sqs_world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CrashingPlatform]:
    url = create_database(postgres_server, "crash_points_sqs", template=template_database)
    with aws_server() as endpoint:
        settings = {"TRACEPLANE_WAKE_QUEUE": "sqs", "TRACEPLANE_SQS_ENDPOINT_URL": endpoint, **CREDENTIALS}
        folder = tmp_path_factory.mktemp("crash_points_sqs")
        async with Platform.start(url, folder, environment=settings) as platform:
            await platform.deploy(FLOW)
            yield CrashingPlatform(platform)
    drop_database(postgres_server, "crash_points_sqs")


@pytest.mark.parametrize("boundary", [b for b in crash_points.ALL if b not in OVER_SQS])
async def test_nothing_is_lost_or_doubled_when_a_process_dies_at(
    world: CrashingPlatform, boundary: str
) -> None:
    await kill_and_recover(world, boundary)
    recovered.append(boundary)


@pytest.mark.parametrize("side", ["before_commit", "after_commit"])
@pytest.mark.parametrize("transaction", ON_THE_WAY_OF_ALERTS)
async def test_an_alert_is_told_once_when_a_dispatcher_dies_at(
    world: CrashingPlatform, transaction: str, side: str
) -> None:
    await kill_and_recover(world, f"{transaction}.{side}", alerts_arise)


@pytest.mark.parametrize("boundary", OVER_SQS)
async def test_nothing_is_lost_or_doubled_over_sqs_when_a_worker_dies_at(
    sqs_world: CrashingPlatform, boundary: str
) -> None:
    await kill_and_recover(sqs_world, boundary)
    recovered.append(boundary)


async def kill_and_recover(
    world: CrashingPlatform, boundary: str, scenario: Callable[[Crash], Awaitable[None]] | None = None
) -> None:
    """`scenario`: another one than that of the boundary."""
    for process in world.platform.processes.values():
        if not process.alive:
            await process.start()
        process.send(signal.SIGCONT)
    # Nothing is left to do, but repeated wake-ups may still lie about, and a process could die of those.
    await world.platform.sql("delete from wake_messages")
    crash = Crash(world, boundary)
    async with watched(world.platform):
        own = SCENARIOS.get(boundary) or SCENARIOS.get(boundary.partition(".")[0], events_flow)
        await (scenario or own)(crash)
    assert crash.dead
    states = await settle(world.platform)
    assert set(states) <= {"completed", "canceled"}
    assert states["canceled"] == world.retired_sources
    assert crash.finished <= await crash.finished_tasks(), "what had ended was done again"


async def test_every_crash_point_was_killed_and_recovered(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {
        item.callspec.params["boundary"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec") and "boundary" in item.callspec.params
    }
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name}" for name in recovered))
        print(f"crash points: {len(recovered)} of {len(crash_points.ALL)} killed and recovered")
    assert set(recovered) == chosen
