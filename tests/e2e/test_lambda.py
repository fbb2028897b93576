"""Jobs whose operators are Lambda functions, each in a real process behind Lambda's own interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session

from tests.aws import CREDENTIALS, REGION, aws_server
from tests.e2e.test_webhooks import post, rows
from tests.lambda_service import Function, LambdaService
from tests.platform import OPERATORS, Platform, until
from tests.process.effects import settle
from tests.terminal import blocks
from tests.webhooks import KEYS, dag, from_github
from traceplane.errors import InvalidInput
from traceplane.wire.control import TaskChanges, TaskSelection

SETTINGS = """
[runtimes.lambda]
driver = "invoke"
invoker = "aws_lambda"
functions = ["my-*"]
capabilities = ["reactive"]
"""


def numbers(*jobs: str, defaults: str = "{lease: 2s, retry: {base: 50ms}}") -> str:
    return f"""
version: 1
dag: numbers
defaults: {defaults}
jobs:
- name: number
  activation: source
  source: {{kind: manual}}
  runtime: lambda
  function: my-number
  operator: function
  outputs: [{{dataset: numbers.in}}]
""" + "".join(jobs)


def job(name: str, reads: str, *more: str) -> str:
    fields = (
        "runtime: lambda",
        f"function: my-{name}",
        "operator: function",
        f"inputs: [{{name: numbers, from: {{dataset: {reads}}}}}]",
        f"outputs: [{{dataset: numbers.{name}}}]",
        *more,
    )
    return f"- name: {name}\n" + "".join(f"  {field}\n" for field in fields)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[LambdaService]:
    async with LambdaService.start(tmp_path) as started:
        yield started


@contextlib.asynccontextmanager
async def started(
    database_url: str, folder: Path, service: LambdaService, settings: str = SETTINGS, **more: str
) -> AsyncIterator[Platform]:
    """A platform without workers, whose dispatcher calls functions of the service."""
    config = folder / "lambda.toml"
    config.write_text(settings)
    environment = {**KEYS, **service.environment(), "TRACEPLANE_CONFIG": str(config), **more}
    async with Platform.start(database_url, folder / "home", environment=environment, workers=0) as platform:
        yield platform


@pytest.fixture
async def platform(database_url: str, tmp_path: Path, service: LambdaService) -> AsyncIterator[Platform]:
    async with started(database_url, tmp_path, service) as one:
        yield one


def add(service: LambdaService, name: str, tmp_path: Path, **options: Any) -> Function:
    handler = f"lambda_functions.{name}"
    return service.add(f"my-{name}", handler, OPERATORS, BESIDE=str(tmp_path), **options)


async def error_of(platform: Platform, state: str = "dead") -> dict[str, Any]:
    error: dict[str, Any] = json.loads(
        await platform.value(f"select error from tasks where state = '{state}'")
    )
    return error


async def test_functions_write_rows_that_other_functions_read(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    number, double = add(service, "number", tmp_path), add(service, "double", tmp_path)
    await platform.deploy(numbers(job("double", "numbers.in")))
    await platform.emit("numbers.in", range(5))
    assert await settle(platform) == {"completed": 10}
    assert await rows(platform, "select n from numbers.double order by n") == [[n * 2] for n in range(5)]
    # On a busy machine a function may be called again before it has claimed its task.
    assert len(number.answered) >= 5 <= len(double.answered)
    assert {*number.answered, *double.answered} == {b'{"accepted": true}'}, "they report by themselves"
    log = await platform.value("select l.text from task_logs l join tasks using (task_id) limit 1")
    assert log == "doubling numbers"


async def test_a_function_holds_no_token_of_the_platform(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    await platform.deploy(numbers())
    await platform.emit("numbers.in", [1])
    assert await settle(platform) == {"completed": 1}
    ((names,),) = await rows(platform, "select environment from numbers.in")
    assert not [name for name in names if name.startswith("TRACEPLANE")]


async def test_a_job_calls_another_function_after_a_deploy_that_rebuilds_nothing(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    other = service.add("my-other", "lambda_functions.number", OPERATORS)
    await platform.deploy(numbers())
    before = await platform.sql("select job_id from jobs order by job_id")
    await platform.deploy(numbers().replace("my-number", "my-other:live"))
    assert await platform.sql("select job_id from jobs order by job_id") == before
    await platform.emit("numbers.in", [1])
    assert await settle(platform) == {"completed": 1}
    assert other.calls == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("function: my-number", "function: theirs"), "does not let jobs call this function"),
        (("  function: my-number\n", ""), "names no function"),
        (("runtime: lambda", "runtime: python"), "calls no functions"),
    ],
)
async def test_a_function_that_the_runtime_does_not_name_is_refused(
    platform: Platform, change: tuple[str, str], says: str
) -> None:
    operator = "operator: python\n  config: {entrypoint: 'basic:copy'}"
    with pytest.raises(InvalidInput, match=says) as refused:
        await platform.deploy(numbers().replace(*change).replace("operator: function", operator))
    assert refused.value.code == "deploy.function_not_allowed"


async def test_a_dispatcher_calls_only_functions_that_its_own_settings_allow(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    """They may be narrower than those of the gateway that took the deploy."""
    number = add(service, "number", tmp_path)
    await platform.deploy(numbers(defaults="{max_attempts: 1}"))
    await platform["dispatcher-1"].stop()
    (tmp_path / "lambda.toml").write_text(SETTINGS.replace("my-*", "your-*"))
    await platform["dispatcher-1"].start()
    await platform.emit("numbers.in", [1])
    assert await settle(platform) == {"dead": 1}
    error = await error_of(platform)
    assert error["code"] == "invoke.refused"
    assert "do not let the job call this function" in error["message"]
    assert number.calls == 0


async def test_a_function_that_fails_says_why(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    add(service, "fail", tmp_path)
    await platform.deploy(numbers(job("fail", "numbers.in", "max_attempts: 1")))
    await platform.emit("numbers.in", [1])
    assert await settle(platform) == {"completed": 1, "dead": 1}
    error = await error_of(platform)
    assert (error["code"], error["type"], error["message"]) == (
        "operator.raised",
        "ValueError",
        "no price for 0xabc",
    )
    assert error["file"].endswith("lambda_functions.py")
    assert error["logs"] == ["about to fail"]


async def test_a_function_that_does_not_end_in_time_is_reported_before_lambda_ends_it(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    hang = add(service, "hang", tmp_path, timeout=8.0)
    await platform.deploy(numbers(job("hang", "numbers.in", "max_attempts: 1")))
    await platform.emit("numbers.in", [1])
    assert await settle(platform) == {"completed": 1, "dead": 1}
    error = await error_of(platform)
    assert error["code"] == "operator.timeout"
    assert "the time that Lambda leaves it" in error["message"]

    async def answered() -> bool:
        return hang.answered == [b'{"accepted": true}']

    await until(answered, what="its process can take another call")


async def test_a_canceled_task_ends_its_function(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    hang = add(service, "hang", tmp_path)
    await platform.deploy(numbers(job("hang", "numbers.in")))
    await platform.emit("numbers.in", [1])
    await until(_exists(tmp_path / "waiting"))
    task_id = await platform.value("select task_id from tasks where state = 'running'")
    await platform.api.call("POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection([task_id]))
    assert await settle(platform) == {"completed": 1, "canceled": 1}

    async def ended() -> bool:
        return bool(hang.answered) or hang.current is None

    await until(ended, seconds=20, what="the function ends")


async def test_a_killed_function_is_called_again_and_commits_once(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    function = add(service, "wait_once", tmp_path)
    await platform.deploy(numbers(job("wait_once", "numbers.in")))
    await platform.emit("numbers.in", [7])
    await until(_exists(tmp_path / "waiting"))
    function.kill()
    assert await settle(platform) == {"completed": 2}
    assert await rows(platform, "select n from numbers.wait_once") == [[7]]
    assert await platform.value("select attempt from tasks order by attempt desc limit 1") == 2


async def test_a_function_and_a_dispatcher_that_die_together_cost_one_lease(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    function = add(service, "wait_once", tmp_path)
    await platform.deploy(numbers(job("wait_once", "numbers.in")))
    await platform.emit("numbers.in", [7])
    await until(_exists(tmp_path / "waiting"))
    await platform["dispatcher-1"].kill()
    function.kill()
    await platform["dispatcher-1"].start()
    assert await settle(platform) == {"completed": 2}
    assert await rows(platform, "select n from numbers.wait_once") == [[7]]
    error = await platform.value("select error is null from tasks order by attempt desc limit 1")
    assert error, "the retry committed"


async def test_a_function_reports_by_itself_when_the_dispatcher_that_called_it_died(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    """Its heartbeats keep the lease, so nothing is computed twice."""
    add(service, "number", tmp_path)
    function = add(service, "wait_once", tmp_path)
    await platform.deploy(numbers(job("wait_once", "numbers.in"), defaults="{lease: 20s}"))
    await platform.emit("numbers.in", [7])
    await until(_exists(tmp_path / "waiting"))
    await platform["dispatcher-1"].kill()
    await platform["dispatcher-1"].start()
    await platform.ready("dispatcher-1")
    beats = await platform.value("select max(lease_expires_at) from tasks")

    async def extended() -> bool:
        return bool(await platform.value("select max(lease_expires_at) > $1 from tasks", beats))

    await until(extended, seconds=30, what="the function extends its lease")
    (tmp_path / "go").touch()
    assert await settle(platform) == {"completed": 2}
    assert await platform.value("select max(attempt) from tasks") == 1
    assert function.calls == 1


async def test_a_delivery_is_read_by_a_function_and_its_rows_are_committed(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    """The rows of a hot table come to the function through the dispatcher, by its capability token."""
    add(service, "deliveries", tmp_path)
    config = "runtime: lambda\n  function: my-deliveries\n  operator: function"
    text = dag(config=config).replace("  shop.orders: { columns: ", "  shop.orders: { description: x } #")
    await platform.deploy(text)
    for number in range(3):
        await post(platform, {"id": number}, from_github({"id": number}, f"d-{number}"))
    assert await settle(platform) == {"completed": 3}
    found = await rows(platform, "select id, key from shop.orders order by id")
    assert found == [[n, f"d-{n}"] for n in range(3)]


async def test_a_cron_source_runs_a_function_for_each_tick(
    platform: Platform, service: LambdaService, tmp_path: Path
) -> None:
    add(service, "number", tmp_path)
    source = '{kind: cron, schedule: "0 * * * *", catch_up: all}'
    text = numbers().replace("{kind: manual}", source)
    await platform.deploy(text.replace("jobs:", "datasets: {numbers.in: {partitions: {by: hour}}}\njobs:", 1))

    async def looked_at() -> bool:
        return bool(await platform.value("select next_tick is not null from cron_schedules"))

    await until(looked_at)
    await platform.sql(
        "update cron_schedules set settled_through = tp_now() - interval '2 hours', due_at = tp_now()"
    )

    async def ticked() -> bool:
        return (await platform.states("number")) == {"completed": 2}

    await until(ticked, seconds=60, what="two ticks")
    assert len(await rows(platform, "select n from numbers.in")) == 2


async def test_a_function_that_cannot_reach_the_dispatcher_answers_with_its_report(
    database_url: str, service: LambdaService, tmp_path: Path
) -> None:
    number = add(service, "number", tmp_path)
    unreachable = {"TRACEPLANE_DISPATCHER_URL": "http://127.0.0.1:1"}
    async with started(database_url, tmp_path, service, **unreachable) as platform:
        await platform.deploy(numbers())
        await platform.emit("numbers.in", [3])
        assert await settle(platform) == {"completed": 1}
        assert await rows(platform, "select n from numbers.in") == [[3]]
    (answer,) = number.answered
    assert json.loads(answer)["status"] == "completed"


async def test_functions_read_and_write_files_in_s3(
    database_url: str, service: LambdaService, tmp_path: Path
) -> None:
    with aws_server() as endpoint:
        session = get_session()
        session.set_credentials("testing", "testing")
        async with session.create_client("s3", region_name=REGION, endpoint_url=endpoint) as s3:
            where = {"LocationConstraint": REGION}
            await s3.create_bucket(Bucket="objects", CreateBucketConfiguration=where)
        s3_settings = {
            **CREDENTIALS,
            "TRACEPLANE_OBJECT_STORE": "s3://objects/data",
            "TRACEPLANE_S3_ENDPOINT_URL": endpoint,
            "TRACEPLANE_AWS_REGION": REGION,
        }
        of_function = {**CREDENTIALS, "TRACEPLANE_S3_ENDPOINT_URL": endpoint, "TMPDIR": str(tmp_path)}
        add(service, "number", tmp_path, **of_function)
        add(service, "double", tmp_path, **of_function)
        async with started(database_url, tmp_path, service, **s3_settings) as platform:
            await platform.deploy(numbers(job("double", "numbers.in")))
            await platform.emit("numbers.in", range(3))
            await platform.settled()
            assert await platform.states() == {"completed": 6}
            assert await rows(platform, "select n from numbers.double order by n") == [[0], [2], [4]]


async def test_the_functions_of_the_guide_run(
    database_url: str, service: LambdaService, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/lambda.md").read_text()
    (settings,), (text,) = blocks(page, "toml"), blocks(page, "yaml")
    code, test = blocks(page, "python")
    (tmp_path / "sales.py").write_text(code)
    (tmp_path / "test_sales.py").write_text(test)
    for name in ("orders", "cents"):
        service.add(f"sales-{name}", f"sales.{name}", tmp_path)
    async with started(database_url, tmp_path, service, settings) as platform:
        await platform.deploy(text)
        await post(platform, {"id": 1, "amount": 12.5}, {})
        assert await settle(platform) == {"completed": 2}
        assert await rows(platform, "select id, cents from sales.cents") == [[1, 1250]]
    command = (sys.executable, "-m", "pytest", "-q", "test_sales.py")
    tested = await asyncio.create_subprocess_exec(*command, cwd=tmp_path)
    assert await tested.wait() == 0


def _exists(path: Path) -> Any:
    async def exists() -> bool:
        return path.exists()

    return exists
