"""One trace follows an event through every process: event, task, attempt, the next event, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.test_first_path import CHAIN
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

    async def start(self, port: int) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/traces", self.receive)
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

    def children(self, parent: SeenSpan, name: str) -> list[SeenSpan]:
        return [
            s for s in self.spans if s.parent == parent.span and s.name == name and s.trace == parent.trace
        ]


async def test_a_trace_follows_an_event_across_processes(database_url: str, tmp_path: Path) -> None:
    collector, port = Collector(), free_port()
    runner = await collector.start(port)
    environment = {"TRACEPLANE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    try:
        async with Platform.start(database_url, tmp_path, environment=environment) as platform:
            await platform.deploy(CHAIN)
            await platform.emit("in", [7])
            await platform.settled()
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
