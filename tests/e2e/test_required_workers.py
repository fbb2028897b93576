"""Jobs that require something of their worker: only a worker that offers it gets their tasks, and until one is there
they wait and say for what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.aws import CREDENTIALS, REGION, aws_server
from tests.dags import dag, job, source
from tests.e2e.test_webhooks import rows
from tests.platform import Platform, until
from tests.process.effects import settle
from tests.terminal import blocks
from traceplane.errors import InvalidInput
from traceplane.wire.control import ExplainResponse, StatusResponse

NEEDS = "requires: { memory: 3g, gpu: 1, labels: [eu] }"
OFFERS = {"TRACEPLANE_WORKER_OFFERS": "memory=8g,gpu=2,label=eu,label=fast"}


def text(*more: str) -> str:
    return dag(
        "main",
        source("main.in"),
        job("plain", "main.in", "main.plain"),
        job("special", "main.in", "main.special", *more),
        defaults="{lease: 2s, retry: {base: 50ms}}",
    )


@pytest.fixture
async def platform(database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(database_url, tmp_path) as started:
        yield started


async def add_able_worker(platform: Platform, number: int = 2) -> None:
    await platform.add_worker(number, **OFFERS).start()


async def plain_done(platform: Platform) -> bool:
    return set(await platform.states("plain")) == {"completed"}


async def reasons(platform: Platform) -> dict[str, str]:
    task_id = await platform.value(
        "select task_id from tasks join jobs using (job_id) where name = 'special' limit 1"
    )
    answer = await platform.api.call("GET", f"/api/v1/tasks/{task_id}/explain", ExplainResponse)
    return {reason.code: reason.sentence for reason in answer.reasons}


async def test_a_job_waits_until_a_worker_has_what_it_requires_and_says_so(platform: Platform) -> None:
    await platform.deploy(text(NEEDS))
    await platform.emit("main.in", range(5))
    await until(lambda: plain_done(platform), seconds=60, what="other jobs run")
    assert await platform.states("special") == {"dispatched": 5}

    async def worker_is_known() -> bool:
        return bool(await platform.value("select count(*) = 1 from workers"))

    await until(worker_is_known, seconds=60, what="the worker says hello")
    said = (await reasons(platform))["no_able_worker"]
    assert "requires memory=3g, gpu=1, label=eu" in said
    assert "lacks memory=3g, gpu=1, label=eu" in said
    assert "traceplane worker --runtime python --offers memory=3g,gpu=1,label=eu" in said
    status = await platform.api.call("GET", "/api/v1/status", StatusResponse)
    (stuck,) = status.stuck
    assert (stuck.job, stuck.reason) == ("special", "no_able_worker")
    await add_able_worker(platform)
    assert await settle(platform) == {"completed": 10}
    ran = await platform.sql(
        "select distinct worker_id from tasks join jobs using (job_id) where name = 'special'"
    )
    plain = await platform.sql(
        "select distinct worker_id from tasks join jobs using (job_id) where name = 'plain'"
    )
    assert set(ran).isdisjoint(plain)


async def test_no_worker_is_woken_or_claims_in_vain(platform: Platform) -> None:
    """The wake-ups of tasks that need more are in a queue that this worker never reads."""
    await platform.deploy(text(NEEDS))
    await platform.emit("main.in", range(20))
    await until(lambda: plain_done(platform), seconds=60, what="other jobs run")
    received = "select count(*), max(receives), count(distinct queue) from wake_messages"
    ((messages, receives, queues),) = await platform.sql(received)
    assert (messages >= 20, receives, queues) == (True, 0, 1)


async def test_requirements_change_in_place_in_both_directions(platform: Platform) -> None:
    await platform.deploy(text(NEEDS))
    before = await platform.sql("select job_id from jobs order by job_id")
    await platform.emit("main.in", [1])
    await until(lambda: plain_done(platform), seconds=60, what="other jobs run")
    await platform.deploy(text())
    assert await settle(platform) == {"completed": 2}
    await platform.deploy(text("requires: { gpu: 1 }"))
    assert await platform.sql("select job_id from jobs order by job_id") == before
    await platform.emit("main.in", [2])

    async def waits() -> bool:
        return "no_able_worker" in await reasons_of_newest(platform)

    await until(waits, seconds=30, what="the job waits")
    await add_able_worker(platform)
    assert await settle(platform) == {"completed": 4}


async def reasons_of_newest(platform: Platform) -> set[str]:
    task_id = await platform.value("select max(task_id::text) from tasks where state = 'dispatched'")
    if task_id is None:
        return set()
    answer = await platform.api.call("GET", f"/api/v1/tasks/{task_id}/explain", ExplainResponse)
    return {reason.code for reason in answer.reasons}


async def test_a_task_may_use_the_memory_that_its_job_requires(platform: Platform) -> None:
    """The runtime's own limit is 2 GB for each task."""
    code = "import resource\ndef tell(task):\n    return [{'limit': resource.getrlimit(resource.RLIMIT_DATA)[0]}]\n"
    needs = "requires: { memory: 6g }"
    limited = dag("main", source("main.in"), job("big", "main.in", "main.big", needs, entrypoint="big:tell"))
    await platform.deploy(limited, {"big.py": code})
    await add_able_worker(platform)
    await platform.emit("main.in", [1])
    assert await settle(platform) == {"completed": 1}
    assert await rows(platform, 'select "limit" from main.big') == [[6 << 30]]


async def test_an_able_worker_that_stops_is_no_longer_counted(platform: Platform) -> None:
    await add_able_worker(platform)

    async def there() -> bool:
        return bool(await platform.value("select count(*) = 2 from workers"))

    await until(there, seconds=60, what="both workers are known")
    await platform["worker-2"].stop()
    assert await platform.value("select count(*) from workers") == 1


async def test_a_runtime_without_workers_cannot_have_what_a_job_requires(platform: Platform) -> None:
    job = "- {name: pass, runtime: dispatcher, operator: pass, requires: {gpu: 1}, inputs: [{from: {dataset: i}}],"
    with pytest.raises(InvalidInput) as refused:
        await platform.deploy(dag("main", source("i"), f"{job} outputs: [{{dataset: o}}]}}\n"))
    assert refused.value.code == "deploy.requires_no_worker"


async def test_the_example_of_the_page_runs_on_the_worker_of_the_page(platform: Platform) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/dag.md").read_text()
    section = page.split("### What a job requires of its worker")[1].split("\n#")[0]
    (example,), (command,) = blocks(section, "yaml"), blocks(section, "bash")
    await platform.deploy(example, {"models.py": "def train(task):\n    return [{'n': task.scope.start}]\n"})
    await platform.emit("models.days", [1])
    await platform.add("able", *command.split()[1:]).start()
    assert await settle(platform) == {"completed": 1}


async def test_over_sqs_too_only_able_workers_are_woken(database_url: str, tmp_path: Path) -> None:
    with aws_server() as endpoint:
        over_sqs = {
            **CREDENTIALS,
            "TRACEPLANE_WAKE_QUEUE": "sqs",
            "TRACEPLANE_SQS_ENDPOINT_URL": endpoint,
            "TRACEPLANE_AWS_REGION": REGION,
        }
        async with Platform.start(database_url, tmp_path, environment=over_sqs) as platform:
            await platform.deploy(text(NEEDS))
            await platform.emit("main.in", range(3))
            await until(lambda: plain_done(platform), seconds=60, what="other jobs run")
            assert await platform.states("special") == {"dispatched": 3}
            await add_able_worker(platform)
            assert await settle(platform) == {"completed": 6}
            assert await platform.value("select max(attempt) from tasks") == 1
