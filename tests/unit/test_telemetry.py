"""Log lines parse, metrics match the table and the docs, traces connect through a string."""

from __future__ import annotations

import ast
import gzip
import http.server
import json
import logging
import re
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from traceplane import telemetry

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/operations/telemetry.md").read_text()


@pytest.fixture(autouse=True)
def reset() -> Iterator[None]:
    telemetry.configure("test")
    yield
    telemetry.configure("test")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def render() -> str:
    return telemetry.render_metrics().decode()


def test_an_event_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.emit("reaper.pass", expired=3, name="x", job="a\nb", id=UUID(int=7))
    (line,) = lines(capsys)
    assert list(line)[:4] == ["ts", "event", "service", "level"]
    assert line.pop("ts").endswith("Z")
    assert line == {
        "event": "reaper.pass",
        "service": "test",
        "level": "info",
        "expired": 3,
        "name": "x",
        "job": "a\nb",
        "id": str(UUID(int=7)),
    }


def test_a_field_that_json_cannot_hold_still_gives_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    telemetry.emit("a.b", text="\ud800", keys={object(): 1}, cycle=cycle, number=float("nan"))
    (line,) = lines(capsys)
    assert "\\ud800" in line["text"]
    assert line["event"] == "a.b"


def test_events_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test", log_level="warning")
    telemetry.emit("a.info")
    telemetry.emit("a.warning", "warning")
    assert [line["event"] for line in lines(capsys)] == ["a.warning"]


def test_text_format_is_readable_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test", log_format="text")
    telemetry.emit("reaper.pass", expired=3, seconds=0.123456, why="two words")
    telemetry.emit("reaper.error", "error", message="")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} test reaper\.pass expired=3 seconds=0\.1235 why='two words'", first
    )
    assert second.endswith("ERROR test reaper.error message=''")


@pytest.mark.parametrize("terminal", [True, False])
def test_terminals_get_text_and_programs_get_json_by_default(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    telemetry.configure("test")
    telemetry.emit("a.b", n=1)
    assert capsys.readouterr().err.startswith("{") is not terminal


def test_a_field_cannot_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test", log_format="text")
    telemetry.emit("a.b", value="\x1b[2J", trace="Traceback\n  \x1b[2J")
    assert "\x1b" not in capsys.readouterr().err


def test_library_log_messages_become_events(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("some.library").warning("%s is odd", "this")
    logging.getLogger("some.library").info("not this")
    (line,) = lines(capsys)
    assert (line["event"], line["level"], line["logger"]) == ("library.log", "warning", "some.library")
    assert line["message"] == "this is odd"


def test_a_closed_stderr_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(sys, "stderr", Closed())
    telemetry.emit("a.b")


def test_metrics_are_rendered_with_their_labels() -> None:
    telemetry.count("tasks_claimed_total", 2, job="a")
    telemetry.count("tasks_claimed_total", job="a")
    telemetry.count("tasks_failed_total", job="a", code="x")
    telemetry.count("tasks_failed_total", code="x", job="a")
    telemetry.observe("group_commit_size", 17, call="complete")
    telemetry.gauge("jobs_held", 4)
    text = render()
    assert 'traceplane_tasks_claimed_total{job="a"} 3.0' in text
    assert 'traceplane_tasks_failed_total{code="x",job="a"} 2.0' in text
    assert 'traceplane_group_commit_size_bucket{call="complete",le="32.0"} 1.0' in text
    assert "traceplane_jobs_held 4.0" in text
    assert "process_resident_memory_bytes" in text


def test_a_deleted_job_is_no_longer_reported() -> None:
    telemetry.replace_gauge("queue_depth", {"a": 1, "b": 2})
    telemetry.replace_gauge("queue_depth", {"b": 3})
    telemetry.gauge("queue_depth", 5, job="c")
    found = re.findall(r'traceplane_queue_depth\{job="(\w)"\} (\S+)', render())
    assert sorted(found) == [("b", "3.0"), ("c", "5.0")]


def test_an_undeclared_metric_or_label_raises() -> None:
    with pytest.raises(KeyError):
        telemetry.count("tasks_invented_total")
    with pytest.raises(ValueError, match="label"):
        telemetry.count("tasks_claimed_total", color="red")


def test_labels_from_users_neither_fill_the_memory_nor_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MOST_SERIES", 3)
    for code in ("a", "b", ["odd"], "d", "e", "a"):
        telemetry.count("tasks_failed_total", job="j", code=code)
    found = re.findall(r'traceplane_tasks_failed_total\{code="(.+)",job="(\w+)"\} (\S+)', render())
    assert sorted(found) == [
        ("['odd']", "j", "1.0"),
        ("a", "j", "2.0"),
        ("b", "j", "1.0"),
        ("other", "other", "2.0"),
    ]


def test_configuring_again_starts_from_zero() -> None:
    telemetry.count("tasks_reaped_total", 5)
    telemetry.configure("test")
    assert "traceplane_tasks_reaped_total 0.0" in render()


# --- the docs ---------------------------------------------------------------------------------------


def test_every_metric_is_documented_as_it_is_declared() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) ?\| (.+) \|$", DOC, re.MULTILINE)
    documented = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), help) for name, kind, labels, help in rows
    ]
    assert documented == [(m.name, m.kind, m.labels, m.help) for m in telemetry.METRICS]


def test_every_log_event_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z_.]+)` \| (?:debug|info|warning|error)", DOC, re.MULTILINE))
    emitted = set()
    for file in (ROOT / "src/traceplane").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="emit" | "note")
                    | ast.Attribute(value=ast.Name(id="telemetry"), attr="emit"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    emitted.add(name)
    assert emitted - documented == set(), "add these to docs/operations/telemetry.md"


# --- traces -----------------------------------------------------------------------------------------

INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(http.server.ThreadingHTTPServer):
    """An OTLP/HTTP collector that remembers the spans it was sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        super().__init__(("127.0.0.1", 0), CollectorHandler)

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.add(self.path)
        is_spans = self.path == "/v1/traces"
        for resource_spans in ExportTraceServiceRequest.FromString(body if is_spans else b"").resource_spans:
            attributes = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
            self.server.services.add(attributes["service.name"])
            for scope_spans in resource_spans.scope_spans:
                self.server.spans.extend(scope_spans.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        telemetry.configure("dispatcher", otlp_endpoint=f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


def ids(traceparent: str | None) -> tuple[bytes, bytes]:
    assert traceparent is not None
    _, trace_id, span_id, _ = traceparent.split("-")
    return bytes.fromhex(trace_id), bytes.fromhex(span_id)


def test_two_spans_joined_only_by_a_string_are_parent_and_child(collector: Collector) -> None:
    with telemetry.span("event.accept", dataset="blocks") as accepting:
        stored = accepting.traceparent
    with telemetry.span(
        "task.attempt", traceparent=stored, job=UUID(int=1), attempt=2, nothing=None
    ) as attempt:
        attempt.set(rows=10)
    telemetry.shutdown()
    parent, child = collector.span("event.accept"), collector.span("task.attempt")
    assert (parent.trace_id, parent.span_id) == ids(stored)
    assert parent.parent_span_id == b""
    assert (child.trace_id, child.parent_span_id) == (parent.trace_id, parent.span_id)
    assert (child.trace_id, child.span_id) == ids(attempt.traceparent)
    attributes = {a.key: a.value.string_value or a.value.int_value for a in child.attributes}
    assert attributes == {"job": str(UUID(int=1)), "attempt": 2, "rows": 10}
    assert collector.services == {"dispatcher"}
    assert collector.paths == {"/v1/traces", "/v1/metrics"}


def test_a_chain_of_finished_spans_leads_from_event_to_event(collector: Collector) -> None:
    now = time.time_ns()
    at: str | None = INCOMING
    for step, name in enumerate(("event", "task", "attempt", "downstream")):
        at = telemetry.record_span(name, at, now + step, now + step + 1, job="j")
    telemetry.shutdown()
    assert collector.span("event").parent_span_id == ids(INCOMING)[1]
    for parent, child in (("event", "task"), ("task", "attempt"), ("attempt", "downstream")):
        assert collector.span(child).parent_span_id == collector.span(parent).span_id
    assert {span.trace_id for span in collector.spans} == {ids(INCOMING)[0]}
    assert collector.span("attempt").start_time_unix_nano == now + 2
    assert collector.span("attempt").end_time_unix_nano == now + 3


def test_a_span_inside_another_is_its_child_and_links_are_kept(collector: Collector) -> None:
    with telemetry.span("outer") as outer, telemetry.span("inner", links=[INCOMING, "nonsense"]):
        pass
    telemetry.shutdown()
    inner = collector.span("inner")
    assert (inner.trace_id, inner.parent_span_id) == ids(outer.traceparent)
    assert [(link.trace_id, link.span_id) for link in inner.links] == [ids(INCOMING)]


def test_an_exception_is_recorded_and_propagates(collector: Collector) -> None:
    with pytest.raises(RuntimeError), telemetry.span("fails"):
        raise RuntimeError("no")
    telemetry.shutdown()
    failed = collector.span("fails")
    assert failed.status.code == 2
    assert failed.events[0].name == "exception"


def test_an_unsampled_trace_stays_unsampled(collector: Collector) -> None:
    with telemetry.span("quiet", traceparent=INCOMING[:-1] + "0") as quiet:
        pass
    telemetry.shutdown()
    assert quiet.traceparent is not None
    assert quiet.traceparent.endswith("-00")
    assert collector.spans == []


@pytest.mark.parametrize(
    "broken", ["", "x", INCOMING[:-3], "00-" + "0" * 32 + "-" + "0" * 16 + "-01", INCOMING.upper()]
)
def test_a_traceparent_that_cannot_be_read_starts_a_trace(collector: Collector, broken: str) -> None:
    with telemetry.span("fresh", traceparent=broken) as fresh:
        pass
    telemetry.shutdown()
    assert collector.span("fresh").parent_span_id == b""
    assert (collector.span("fresh").trace_id, collector.span("fresh").span_id) == ids(fresh.traceparent)


def test_without_tracing_the_traceparent_is_passed_on() -> None:
    with telemetry.span("a", traceparent=INCOMING, job="j") as span:
        span.set(rows=1)
        assert span.traceparent == INCOMING
    with telemetry.span("a") as span:
        assert span.traceparent is None
    assert telemetry.record_span("a", INCOMING, 1, 2) == INCOMING


def test_without_tracing_a_span_costs_about_a_microsecond() -> None:
    def one() -> None:
        with telemetry.span("a", traceparent=INCOMING, job="j"):
            pass

    # The best of many short runs: a busy machine only makes it slower. The bound leaves room for slow ones.
    assert min(timeit.repeat(one, number=1000, repeat=50)) / 1000 < 5e-6


def test_an_unreachable_collector_delays_shutdown_by_seconds_at_most() -> None:
    """In a process of its own: the exporter goes on trying in a thread, and its jitter is drawn from `random`, of which
    other tests need the state."""
    code = (
        "from traceplane import telemetry\n"
        "telemetry.configure('test', otlp_endpoint='http://127.0.0.1:9')\n"
        "for _ in range(5000):\n"
        "    telemetry.record_span('lost', None, 1, 2)\n"
        "telemetry.shutdown(timeout=1.0)\n"
        "print('over', flush=True)\n"
        "import os; os._exit(0)\n"
    )
    ended = subprocess.run(
        (sys.executable, "-c", code),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    assert ended.stdout == b"over\n"
