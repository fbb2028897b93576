"""Log events, metrics and spans of the processes.

Everything starts as an event with a stable dotted name. `emit` writes it as one line on stderr; `count`,
`observe` and `gauge` feed the metrics declared in `METRICS`, the only place where one is named; `span` and
`record_span` follow one piece of work across processes. A trace travels as a W3C `traceparent` string, stored
beside the event or task it belongs to, so event → task → attempt → next event is one trace, across any number of
processes and hours.

Nothing is set up at import. Before `configure`, log lines still appear (as text), metrics are dropped, and
spans pass on the traceparent they were given. Losing telemetry never fails the work it describes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST as METRICS_CONTENT_TYPE

from traceplane.model.printable import json_text, one_line

if TYPE_CHECKING:  # imported on first use: it costs half a second, and a command line rarely traces
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanContext, Tracer

    from traceplane.otlp_metrics import MetricsPush

__all__ = [
    "METRICS",
    "METRICS_CONTENT_TYPE",
    "Metric",
    "Span",
    "configure",
    "count",
    "emit",
    "gauge",
    "observe",
    "record_span",
    "render_metrics",
    "replace_gauge",
    "set_request_id",
    "shutdown",
    "span",
    "writes",
]

Level = Literal["debug", "info", "warning", "error"]
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

PREFIX = "traceplane_"
# Some labels come from users (a job's name, an error's code) and must not fill the memory: beyond this many
# series of one metric, the rest are counted as "other".
MOST_SERIES = 5000

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_BATCHES = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric. Callers pass `name`; it is exported with `prefix`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = _FAST
    prefix: str = PREFIX
    """The trigger's metrics have none: existing dashboards use the names from its guide."""


def _of_trigger(
    name: str,
    kind: Literal["counter", "gauge", "histogram"],
    help: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = _FAST,
) -> Metric:
    return Metric(name, kind, help, labels, buckets, prefix="")


METRICS: tuple[Metric, ...] = (
    Metric("events_accepted_total", "counter", "Dataset events accepted for the first time."),
    Metric("events_duplicate_total", "counter", "Dataset events that had been accepted before."),
    Metric("tasks_created_total", "counter", "Tasks that events created."),
    Metric("tasks_claimed_total", "counter", "Attempts claimed by a worker.", ("job",)),
    Metric("tasks_completed_total", "counter", "Tasks whose outputs were committed.", ("job",)),
    Metric(
        "checks_failed_total", "counter", "Checks of datasets that outputs did not meet.", ("job", "severity")
    ),
    Metric("tasks_failed_total", "counter", "Attempts that failed, by error code.", ("job", "code")),
    Metric("tasks_dead_total", "counter", "Tasks that used up their attempts.", ("job",)),
    Metric("tasks_reaped_total", "counter", "Attempts ended because their lease expired."),
    Metric("files_compacted_total", "counter", "Tasks whose merged files took the place of small ones."),
    Metric("compactions_planned_total", "counter", "Tasks that were made to merge small files."),
    Metric("tasks_returned_total", "counter", "Attempts that stopping workers handed back.", ("job",)),
    Metric("tasks_canceled_total", "counter", "Tasks canceled."),
    Metric("wakeups_sent_total", "counter", "Wake-ups handed to a queue.", ("queue",)),
    Metric("wakeups_resent_total", "counter", "Wake-ups sent again because nobody claimed the task."),
    Metric("outbox_lag_seconds", "gauge", "Age of the oldest outbox row not yet relayed."),
    Metric("queue_depth", "gauge", "Tasks waiting, queued or dispatched.", ("job",)),
    Metric("queue_age_seconds", "gauge", "Age of the oldest waiting task.", ("job",)),
    Metric("tasks_running", "gauge", "Tasks with a live lease.", ("job",)),
    Metric("workers", "gauge", "Workers that were seen lately.", ("runtime",)),
    Metric("jobs_held", "gauge", "Jobs whose dispatch is held by backpressure."),
    Metric("group_commit_size", "histogram", "Calls committed in one transaction.", ("call",), _SIZES),
    Metric("group_commit_seconds", "histogram", "Duration of one group commit.", ("call",)),
    Metric("http_requests_total", "counter", "Requests answered.", ("route", "status")),
    Metric("http_request_seconds", "histogram", "Time to answer a request.", ("route",)),
    Metric("loop_errors_total", "counter", "Passes of a background loop that failed.", ("loop",)),
    Metric("loop_seconds", "histogram", "Duration of one pass of a background loop.", ("loop",)),
    Metric("task_seconds", "histogram", "Duration of an attempt, from claim to end.", ("job",), _SLOW),
    Metric("executions_finished_total", "counter", "Executions of pipelines that ended.", ("status",)),
    Metric("signals_published_total", "counter", "Signals of signal_publish jobs given to triggers."),
    Metric("signals_suppressed_total", "counter", "Signals from recomputed history, not published."),
    Metric("buffered_reports_total", "counter", "Completed attempts that were handed over to a sink."),
    Metric("sink_reports_total", "counter", "Completed attempts that a sink committed."),
    Metric("sink_dead_letters_total", "counter", "Completed attempts whose rows cannot be written."),
    Metric("deliveries_total", "counter", "Messages that channels were given, by outcome.", ("outcome",)),
    Metric("deliveries_waiting", "gauge", "Messages that wait for a channel.", ("channel",)),
    Metric(
        "deliveries_dead",
        "gauge",
        "Messages that could not be delivered and that nobody replayed or dropped.",
        ("channel",),
    ),
    Metric("delivery_wait_seconds", "histogram", "Time from queueing a message to its first try.", (), _SLOW),
    Metric("delivery_send_seconds", "histogram", "Time to send a message once.", (), _SLOW),
    Metric("alerts_found_total", "counter", "Alerts found, whether they are sent or not."),
    Metric("alerts_suppressed_total", "counter", "Alerts that are not sent, by reason.", ("reason",)),
    Metric("alerts_retracted_total", "counter", "Alerts whose cause is gone."),
    Metric("openlineage_events_total", "counter", "OpenLineage events, by outcome.", ("outcome",)),
    Metric("openlineage_lag_seconds", "gauge", "Age of the oldest OpenLineage event not yet sent."),
    Metric("celery_messages_total", "counter", "Executions announced to Celery workers."),
    Metric("datasets_stale_total", "counter", "Datasets that became older than their freshness allows."),
    Metric("cron_ticks_fired_total", "counter", "Ticks of cron sources that fired."),
    Metric(
        "cron_ticks_skipped_total", "counter", "Missed ticks that were skipped, as the source's policy says."
    ),
    Metric("file_partitions_announced_total", "counter", "Partitions of file sources that have new files."),
    Metric("executions_scheduled_total", "counter", "Executions of periodic pipelines launched."),
    Metric("queries_total", "counter", "Queries, by how they ended.", ("outcome",)),
    Metric("query_seconds", "histogram", "Time until a query's result begins, by part.", ("part",)),
    Metric("webhook_deliveries_total", "counter", "Deliveries to webhook sources.", ("source", "outcome")),
    Metric("webhook_refused_total", "counter", "Deliveries that were refused.", ("source", "code")),
    Metric("stale_calls_total", "counter", "Calls refused because their attempt was over.", ("call",)),
    _of_trigger(
        "kafka_consumer_lag", "gauge", "Milliseconds between publishing a signal and being done with it."
    ),
    _of_trigger("kafka_consumer_lag_messages", "gauge", "Signals published and not yet read."),
    _of_trigger("signals_consumed_total", "counter", "Signals processed."),
    _of_trigger("signals_refused_total", "counter", "Messages that are not valid signals.", ("code",)),
    _of_trigger(
        "dead_letters_lost_total", "counter", "Refused messages that could not be put aside in time."
    ),
    _of_trigger(
        "batch_processing_duration_ms", "histogram", "Time of a batch: decoding to commit.", (), _BATCHES
    ),
    _of_trigger(
        "stale_batches_total", "counter", "Batches dropped because another instance has the partition."
    ),
    _of_trigger("pipelines_matched_total", "counter", "Pipelines matched, once per batch."),
    _of_trigger("pipelines_enqueued_total", "counter", "Executions launched."),
    _of_trigger(
        "pipelines_skipped_running_total", "counter", "Matches of pipelines that were already running."
    ),
    _of_trigger("pipelines_without_job_total", "counter", "Matches of pipelines whose job is not deployed."),
    _of_trigger(
        "pipelines_held_back_total", "counter", "Idle pipelines that a limit or a fresh change held back."
    ),
    _of_trigger("custom_rule_errors_total", "counter", "Custom rules that raised an error.", ("rule",)),
    _of_trigger("cache_pipelines", "gauge", "Pipelines in memory."),
    _of_trigger("cache_size_bytes", "gauge", "Memory of the pipelines."),
    _of_trigger(
        "cache_hit_rate",
        "gauge",
        "Share of the last 100 batches, 0 to 1, that found fresh pipelines in memory: read without an error, and"
        " not longer ago than two refresh intervals.",
    ),
    _of_trigger("cache_refresh_duration_ms", "histogram", "Time to refresh the pipelines.", (), _BATCHES),
    _of_trigger("cache_refresh_failures_total", "counter", "Refreshes of the pipelines that failed."),
    _of_trigger("cache_refresh_failures_in_a_row", "gauge", "Failed refreshes since the last good one."),
)


_Collector = Counter | Gauge | Histogram


class _Metrics:
    """The live collectors of `METRICS`, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.collectors: dict[str, _Collector] = {}
        self.series: dict[str, dict[tuple[tuple[str, object], ...], Any]] = {m.name: {} for m in METRICS}
        for metric in METRICS:
            name = metric.prefix + metric.name
            match metric.kind:
                case "counter":
                    collector: _Collector = Counter(name, metric.help, metric.labels, registry=self.registry)
                case "gauge":
                    collector = Gauge(name, metric.help, metric.labels, registry=self.registry)
                case "histogram":
                    collector = Histogram(
                        name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets
                    )
            self.collectors[metric.name] = collector

    def one(self, metric: str, labels: Mapping[str, object]) -> Any:
        # prometheus_client checks and sorts the label names on every call (5 µs); caching the series by its
        # labels costs 0.7 µs.
        series = self.series[metric]
        key = tuple(labels.items())
        try:
            return series[key]
        except TypeError:  # a label that cannot be hashed
            return self.one(metric, {name: str(value) for name, value in labels.items()})
        except KeyError:
            pass
        collector = self.collectors[metric]
        if len(series) >= MOST_SERIES:
            return collector.labels(**dict.fromkeys(labels, "other"))
        series[key] = collector.labels(**labels) if labels else collector
        return series[key]


class _State:
    """What `configure` sets; one per process."""

    service: str = "traceplane"
    threshold: int = _LEVELS["info"]
    as_json: bool = False
    metrics: _Metrics | None = None
    provider: TracerProvider | None = None
    tracer: Tracer | None = None
    push: MetricsPush | None = None


_state = _State()


def configure(
    service: str,
    *,
    log_level: Level = "info",
    log_format: Literal["auto", "json", "text"] = "auto",
    otlp_endpoint: str | None = None,
) -> None:
    """Set up this process's telemetry; calling it again starts from zero."""
    shutdown()
    _state.service = service
    _state.threshold = _LEVELS[log_level]
    _state.as_json = log_format == "json" or (log_format == "auto" and not _on_a_terminal())
    _state.metrics = _Metrics()
    # Messages that libraries log through `logging` become events too, so that every line on stderr parses.
    logging.basicConfig(handlers=[_LibraryLog()], level=logging.WARNING, force=True)
    if otlp_endpoint is not None:
        from traceplane.otlp_metrics import MetricsPush

        base = otlp_endpoint.rstrip("/").removesuffix("/v1/traces")
        resource = _resource(service)
        _state.provider = _tracer_provider(resource, base)
        _state.tracer = _state.provider.get_tracer("traceplane")
        _state.push = MetricsPush(_state.metrics.registry, resource, base)


def writes_json() -> bool:
    """Whether events are lines of JSON, which a program reads, rather than text for people."""
    return _state.as_json


def _on_a_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr is missing or closed
        return False


def shutdown(timeout: float = 5.0) -> None:
    """Send the spans still buffered, and metrics once more, waiting at most `timeout` seconds for the collector."""
    provider, push = _state.provider, _state.push
    _state.provider, _state.tracer, _state.push = None, None, None
    if provider is None or push is None:
        return
    # The SDK waits up to 30 s for a collector that is not there, and takes no limit.
    flushes = [threading.Thread(target=part.shutdown, daemon=True) for part in (provider, push)]
    for flush in flushes:
        flush.start()
    until = time.monotonic() + timeout
    for flush in flushes:
        flush.join(max(0.0, until - time.monotonic()))


# --- log events -------------------------------------------------------------------------------------


_encoder = msgspec.json.Encoder(enc_hook=str)


def writes(level: Level) -> bool:
    """Whether events of a level are written, for callers to skip building an expensive one."""
    return _LEVELS[level] >= _state.threshold


_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def set_request_id(request_id: str) -> None:
    """Events of this asyncio task, and of those that it starts, carry the id of the request that caused them."""
    _request_id.set(request_id)


def emit(name: str, /, level: Level = "info", **fields: object) -> None:
    """Write one event as one line on stderr."""
    if _LEVELS[level] < _state.threshold:
        return
    if (request_id := _request_id.get()) is not None:
        fields["request_id"] = request_id
    now = datetime.now(UTC)
    if _state.as_json:
        line = _json_line({"ts": now, "event": name, "service": _state.service, "level": level, **fields})
    else:
        line = _text_line(now, name, level, fields)
    with contextlib.suppress(OSError, ValueError):  # stderr is closed: nobody can read this any more
        sys.stderr.write(line + "\n")


def _json_line(record: dict[str, object]) -> str:
    try:
        return json_text(_encoder.encode(record).decode())
    except (UnicodeEncodeError, TypeError, RecursionError):  # a lone surrogate, an odd key, a cycle
        head = ("ts", "event", "service", "level")
        plain = {key: value if key in head else ascii(value) for key, value in record.items()}
        return json_text(_encoder.encode(plain).decode())


def _text_line(now: datetime, name: str, level: str, fields: Mapping[str, object]) -> str:
    words = "".join(f" {key}={_word(value)}" for key, value in fields.items())
    mark = "" if level == "info" else f" {level.upper()}"
    return f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}{mark} {_state.service} {name}{words}"


def _word(value: object) -> str:
    """A value for a terminal: quoted if it is not one word, and never able to move the cursor."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if "\n" in text:
        return "".join("\n  " + one_line(line) for line in text.splitlines())
    return text if text and " " not in text and text.isprintable() else repr(text)


class _LibraryLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        fields: dict[str, object] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        emit("library.log", level, **fields)


# --- metrics ----------------------------------------------------------------------------------------


def count(metric: str, n: float = 1, /, **labels: object) -> None:
    """Add to a counter."""
    if (metrics := _state.metrics) is not None:
        metrics.one(metric, labels).inc(n)


def observe(metric: str, value: float, /, **labels: object) -> None:
    """Add one value to a histogram."""
    if (metrics := _state.metrics) is not None:
        metrics.one(metric, labels).observe(value)


def gauge(metric: str, value: float, /, **labels: object) -> None:
    """Set one series of a gauge."""
    if (metrics := _state.metrics) is not None:
        metrics.one(metric, labels).set(value)


def replace_gauge(metric: str, values: Mapping[str, float], /) -> None:
    """Set a gauge of one label to exactly these series, so that a deleted job is no longer reported."""
    if (metrics := _state.metrics) is None:
        return
    (label,) = next(declared.labels for declared in METRICS if declared.name == metric)
    metrics.collectors[metric].clear()
    metrics.series[metric].clear()
    for value_of_label, value in values.items():
        metrics.one(metric, {label: value_of_label}).set(value)


def render_metrics() -> bytes:
    """All metrics in Prometheus's text format."""
    return generate_latest(_state.metrics.registry) if _state.metrics is not None else b""


# --- traces -----------------------------------------------------------------------------------------


_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Span:
    """A piece of work being timed; `traceparent` is passed to its children.

    This base class is the span of a process that does not trace: it passes on its parent's traceparent.
    """

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent

    def set(self, **attributes: object) -> None:
        """Add attributes known only once the work is under way."""

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class _RecordingSpan(Span):
    __slots__ = ("_current", "_span")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        parent: str | None,
        links: Sequence[str],
        attributes: Mapping[str, object],
    ) -> None:
        self._span = tracer.start_span(
            name, _context(parent), attributes=_attributes(attributes), links=_links(links)
        )
        super().__init__(_format(self._span.get_span_context()))

    def set(self, **attributes: object) -> None:
        self._span.set_attributes(_attributes(attributes))

    def __enter__(self) -> Span:
        from opentelemetry.trace import use_span

        self._current = use_span(self._span, end_on_exit=True)
        self._current.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._current.__exit__(kind, error, traceback)


def span(
    name: str, /, *, traceparent: str | None = None, links: Sequence[str] = (), **attributes: object
) -> Span:
    """Time a piece of work: `with span("task.attempt", traceparent=row.traceparent, job=job) as s: …`.

    Its parent is `traceparent`, or else the enclosing span, or else it starts a trace.
    An exception that leaves the block is recorded on the span and propagates.
    """
    if (tracer := _state.tracer) is None:
        return Span(traceparent)
    return _RecordingSpan(tracer, name, traceparent, links, attributes)


def record_span(
    name: str, traceparent: str | None, start_ns: int, end_ns: int, /, **attributes: object
) -> str | None:
    """Record finished work, timed in Unix nanoseconds; returns the traceparent for its children."""
    if (tracer := _state.tracer) is None:
        return traceparent
    done = tracer.start_span(
        name, _context(traceparent), attributes=_attributes(attributes), start_time=start_ns
    )
    done.end(end_ns)
    return _format(done.get_span_context())


def _resource(service: str) -> Resource:
    """Of two workers, each has its own counters."""
    from opentelemetry.sdk.resources import Resource

    instance = f"{socket.gethostname()}:{os.getpid()}"
    return Resource.create(
        {"service.name": service, "service.namespace": "traceplane", "service.instance.id": instance}
    )


def _tracer_provider(resource: Resource, base: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=base + "/v1/traces", timeout=5)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=65536, max_export_batch_size=2048)
    )
    return provider


def _context(traceparent: str | None) -> Any:
    """The parent as OpenTelemetry wants it: None means the current span, if there is one."""
    if traceparent is None:
        return None
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    parent = _parse(traceparent)
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def _attributes(attributes: Mapping[str, object]) -> dict[str, str | bool | int | float]:
    """Ids and enums as text, since OpenTelemetry refuses other types; None is left out."""
    return {
        key: value if isinstance(value, (str, bool, int, float)) else str(value)
        for key, value in attributes.items()
        if value is not None
    }


def _links(traceparents: Sequence[str]) -> Any:
    if not traceparents:
        return None
    from opentelemetry.trace import Link

    return [Link(parent) for parent in map(_parse, traceparents) if parent is not None]


def _parse(traceparent: str) -> SpanContext | None:
    """A traceparent that cannot be read starts a new trace, as W3C Trace Context asks."""
    from opentelemetry.trace import SpanContext, TraceFlags

    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def _format(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
