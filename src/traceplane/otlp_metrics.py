"""The metrics of this process, sent to an OpenTelemetry collector: those of `/metrics`, under the same names.

They are counted once, in the registry of Prometheus. What cannot be sent is not kept: the next values hold it too,
since all of them are sums since the start of the process.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

INTERVAL_SECONDS = 15.0
_SEND_SECONDS = 5


class MetricsPush:
    """Sends what a registry holds every few seconds, and a last time at the end."""

    def __init__(self, registry: CollectorRegistry, resource: Resource, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._registry, self._resource = registry, resource
        self._started = time.time_ns()
        self._exporter = OTLPMetricExporter(endpoint=endpoint + "/v1/metrics", timeout=_SEND_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        self._stop.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._send()
        self._send()

    def _send(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = [_metric(family, self._started, time.time_ns()) for family in self._registry.collect()]
        scope = ScopeMetrics(InstrumentationScope("traceplane"), metrics, "")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))


def _metric(family: Family, started: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    if family.type == "histogram":
        return Metric(family.name, family.documentation, "", _histogram(samples, started, now))
    points = [NumberDataPoint(sample.labels, started, now, sample.value) for sample in samples]
    if family.type == "counter":  # the registry leaves out the end of its name
        total = Sum(points, AggregationTemporality.CUMULATIVE, True)
        return Metric(f"{family.name}_total", family.documentation, "", total)
    return Metric(family.name, family.documentation, "", Gauge(points))


def _histogram(samples: Iterable[Sample], started: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint

    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        of_series = series.setdefault(tuple(labels.items()), {})
        of_series[sample.labels.get("le", sample.name.rpartition("_")[2])] = sample.value
    points = []
    for labels_of, values in series.items():
        total, count = values.pop("sum"), values.pop("count")
        bounds, counts = _buckets(values)
        points.append(
            HistogramDataPoint(
                dict(labels_of), started, now, int(count), total, counts, bounds,
                min=None, max=None,  # type: ignore[arg-type]  # nobody knows them
            )
        )  # fmt: skip
    return Histogram(points, AggregationTemporality.CUMULATIVE)


def _buckets(cumulative: Mapping[str, float]) -> tuple[Sequence[float], Sequence[int]]:
    """Bounds, and what is between them; Prometheus counts what is below each."""
    ordered = sorted((float(bound), int(count)) for bound, count in cumulative.items())
    counts = [count - before for (_, count), (_, before) in zip(ordered, [(0.0, 0), *ordered], strict=False)]
    return [bound for bound, _ in ordered if not math.isinf(bound)], counts
