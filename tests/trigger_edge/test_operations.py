"""Alerts and dashboard name metrics that exist, and pages that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from traceplane.telemetry import METRICS

ROOT = Path(__file__).parents[2]
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "ops/prometheus-rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = json.loads((ROOT / "ops/grafana-trigger.json").read_text())["panels"]

# Other words in expressions: functions, keywords, labels.
WORDS = {"absent", "and", "by", "histogram_quantile", "increase", "max", "min", "or", "rate", "sum"}
LABELS = {"code", "le", "status"}


def series() -> set[str]:
    """Every name on /metrics."""
    names = set()
    for metric in METRICS:
        name = metric.prefix + metric.name
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if metric.kind == "histogram" else {name}
    return names


def metric_names(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
    return set(re.findall(r"[a-z_]\w*", bare)) - WORDS - LABELS


def test_every_metric_of_the_alerts_and_the_dashboard_exists() -> None:
    expressions = [rule["expr"] for rule in RULES] + [t["expr"] for p in PANELS for t in p["targets"]]
    assert len(expressions) > 20
    assert {name for e in expressions for name in metric_names(e)} <= series()
    for expression in expressions:
        assert all(expression.count(a) == expression.count(b) for a, b in ("()", "[]", "{}"))


def test_every_metric_of_the_trigger_is_on_the_dashboard() -> None:
    shown = {name for p in PANELS for t in p["targets"] for name in metric_names(t["expr"])}
    of_trigger = {m.name for m in METRICS if not m.prefix} - {"cache_refresh_failures_total"}
    assert {name for name in of_trigger if not any(s.startswith(name) for s in shown)} == set()


def test_every_alert_has_a_severity_and_a_page_that_documents_it() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        page = (ROOT / rule["annotations"]["runbook"]).read_text()
        assert f"`{rule['alert']}`" in page, rule["alert"]


def test_the_metrics_of_the_guide_exist() -> None:
    assert {
        "kafka_consumer_lag", "signals_consumed_total", "batch_processing_duration_ms",
        "pipelines_matched_total", "pipelines_enqueued_total", "pipelines_skipped_running_total",
        "cache_size_bytes", "cache_refresh_duration_ms", "cache_hit_rate",
    } <= {m.prefix + m.name for m in METRICS}  # fmt: skip


def test_the_alerts_of_the_guide_exist() -> None:
    critical = [rule for rule in RULES if rule["labels"]["severity"] == "critical"]
    conditions = {(rule["expr"], rule.get("for")) for rule in critical}
    assert ("max(kafka_consumer_lag) > 1000", "1m") in conditions
    assert ("max(cache_refresh_failures_in_a_row) > 3", None) in conditions
    assert any("increase(signals_consumed_total[5m])) == 0" in expression for expression, _ in conditions)
    warnings = [rule["expr"] for rule in RULES if rule["labels"]["severity"] == "warning"]
    assert any("batch_processing_duration_ms" in e and e.endswith("> 200") for e in warnings)
    assert "sum(rate(pipelines_enqueued_total[1m])) * 60 > 100" in warnings
