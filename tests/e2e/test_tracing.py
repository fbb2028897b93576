"""One trace follows an event through every process: event, task, attempt, the next event, and so on. And every process
sends its metrics, and the dispatcher tells of the runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from tests.e2e.test_first_path import CHAIN
from tests.openlineage_schemas import check
from tests.platform import Platform, until
from tests.ports import free_port


@dataclass(frozen=True)
class SeenSpan:
    name: str
    service: str
    trace: bytes
    span: bytes
    parent: bytes


class Collector:
    """An OTLP/HTTP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[SeenSpan] = []
        self.metrics: dict[tuple[str, str], dict[str, Metric]] = {}
        """The last ones by service and instance."""

    async def start(self, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/traces", self.receive)
        app.router.add_post("/v1/metrics", self.receive_metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    async def receive(self, request: web.Request) -> web.Response:
        batch = ExportTraceServiceRequest.FromString(await request.read())
        for resource in batch.resource_spans:
            service = next(
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            )
            for scope in resource.scope_spans:
                self.spans += [
                    SeenSpan(s.name, service, s.trace_id, s.span_id, s.parent_span_id) for s in scope.spans
                ]
        return web.Response()

    async def receive_metrics(self, request: web.Request) -> web.Response:
        batch = ExportMetricsServiceRequest.FromString(await request.read())
        for resource in batch.resource_metrics:
            named = {a.key: a.value.string_value for a in resource.resource.attributes}
            sent = {m.name: m for scope in resource.scope_metrics for m in scope.metrics}
            self.metrics[named["service.name"], named["service.instance.id"]] = sent
        return web.Response()

    def of(self, service: str) -> dict[str, Metric]:
        (sent,) = [metrics for (name, _), metrics in self.metrics.items() if name == service]
        return sent

    def children(self, parent: SeenSpan, name: str) -> list[SeenSpan]:
        return [
            s for s in self.spans if s.parent == parent.span and s.name == name and s.trace == parent.trace
        ]


async def test_a_trace_follows_an_event_across_processes(database_url: str, tmp_path: Path) -> None:
    collector, port = Collector(), free_port()
    runner = await collector.start(port)
    runs = tmp_path / "runs.jsonl"
    environment = {
        "TRACEPLANE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "TRACEPLANE_OPENLINEAGE_URL": runs.as_uri(),
        "TRACEPLANE_OPENLINEAGE_NAMESPACE": "traceplane://tests",
    }
    try:
        async with Platform.start(database_url, tmp_path, environment=environment) as platform:
            await platform.deploy(CHAIN)
            await platform.emit("in", [7])
            await platform.settled()

            async def runs_are_told() -> bool:
                return runs.exists() and len(runs.read_text().splitlines()) == 4

            await until(runs_are_told, seconds=120)
            for process in platform.processes.values():
                await process.stop()  # flushes what it has not exported yet

            async def all_there() -> bool:
                return len([s for s in collector.spans if s.name == "task.attempt"]) == 2

            await until(all_there, seconds=120)
    finally:
        await runner.cleanup()
    (source,) = [s for s in collector.spans if s.name == "event" and not s.parent]
    assert source.service == "gateway"
    current = source
    for _ in ("copy", "add_one"):
        (task,) = collector.children(current, "task")
        assert task.service == "dispatcher"
        (attempt,) = collector.children(task, "task.attempt")
        assert attempt.service == "worker"
        (current,) = collector.children(attempt, "event")
        assert current.service == "dispatcher"
    for service in ("dispatcher", "gateway", "worker"):
        assert collector.of(service)["process_cpu_seconds_total"].sum.data_points[0].as_double > 0
    sent = collector.of("dispatcher")
    completed = sent["traceplane_tasks_completed_total"].sum
    assert completed.is_monotonic
    by_job = {p.attributes[0].value.string_value: p.as_double for p in completed.data_points}
    assert sorted(by_job.values()) == [1, 1]
    (duration, _) = sent["traceplane_task_seconds"].histogram.data_points
    assert sum(duration.bucket_counts) == duration.count == 1
    assert len(duration.bucket_counts) == len(duration.explicit_bounds) + 1
    assert duration.sum > 0
    assert sent["traceplane_outbox_lag_seconds"].gauge.data_points
    lines = [json.loads(line) for line in runs.read_text().splitlines()]
    for line in lines:
        check(line)
        assert line["job"]["namespace"] == "traceplane://tests/default"
    assert sorted(line["eventType"] for line in lines) == ["COMPLETE", "COMPLETE", "START", "START"]
