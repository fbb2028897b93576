"""Alerts and dashboards use metrics and labels that exist, Prometheus understands them, and each has a runbook."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus import PrometheusUnavailable, promtool
from traceplane.telemetry import METRICS

ROOT = Path(__file__).parents[2]
RULES_FILE = ROOT / "ops/prometheus-rules.yml"
RULES = [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]
DASHBOARDS = {
    path.name: json.loads(path.read_text()) for path in sorted((ROOT / "ops").glob("grafana-*.json"))
}
TARGETS = [
    (name, target)
    for name, board in DASHBOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", ())
]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for _, target in TARGETS]

# Words of PromQL in our expressions.
WORDS = {
    *("absent", "and", "by", "histogram_quantile", "increase", "max", "min", "or", "rate", "sum", "topk"),
    "unless",
}
OF_PROCESSES = {
    "process_cpu_seconds_total": {"instance"},
    "process_resident_memory_bytes": {"instance"},
    "process_open_fds": {"instance"},
}
"""What the client library and Prometheus add."""
RUNBOOK = "{{ $externalLabels.traceplane }}/docs/"


def labels_of_series() -> dict[str, set[str]]:
    """Every name on /metrics, with its labels."""
    series = dict(OF_PROCESSES)
    for metric in METRICS:
        name, labels = metric.prefix + metric.name, set(metric.labels)
        if metric.kind == "histogram":
            series |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            series[name] = labels
    return series


def labels_in(expression: str) -> set[str]:
    """Those that it groups by or selects."""
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    selectors = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", "".join(re.findall(r"\{[^}]*\}", expression)))
    return {label.strip() for group in groups for label in group.split(",")} | set(selectors)


def metric_names(expression: str) -> set[str]:
    bare = re.sub(r'\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|"[^"]*"', "", expression)
    return set(re.findall(r"[a-z_]\w*", bare)) - WORDS


@pytest.mark.parametrize("expression", sorted(set(EXPRESSIONS)))
def test_an_expression_uses_metrics_and_labels_that_exist(expression: str) -> None:
    series, names = labels_of_series(), metric_names(expression)
    assert names
    assert names <= series.keys()
    assert labels_in(expression) <= set().union(*(series[name] for name in names))


def test_legends_and_texts_use_labels_of_their_expressions() -> None:
    for where, target in TARGETS:
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= labels_in(target["expr"]), (where, target)
    for rule in RULES:
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= labels_in(rule["expr"]), rule["alert"]


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {name for _, target in TARGETS for name in metric_names(target["expr"])}
    left_out = {"cache_refresh_failures_total"}  # shown as those in a row
    names = {metric.prefix + metric.name for metric in METRICS} - left_out
    assert {name for name in names if not any(s.startswith(name) for s in shown)} == set()


def test_the_dashboard_of_the_platform_is_what_its_list_of_panels_says() -> None:
    written = runpy.run_path(str(ROOT / "ops/dashboards.py"))["text"]()
    assert (ROOT / "ops/grafana-platform.json").read_text() == written, "run python ops/dashboards.py"


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    for name, board in DASHBOARDS.items():
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids)), name
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, (name, panel["title"])
            taken |= cells


def test_every_alert_has_a_severity_and_a_runbook_that_names_it() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        address = rule["annotations"]["runbook_url"]
        assert address.startswith(RUNBOOK)
        page = ROOT / "docs" / address.removeprefix(RUNBOOK).replace(".html", ".md")
        assert f"`{rule['alert']}`" in page.read_text(), rule["alert"]
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_prometheus_takes_every_rule_and_every_panel_and_alerts_when_it_should(tmp_path: Path) -> None:
    try:
        tool = promtool()
    except PrometheusUnavailable as reason:
        pytest.skip(f"the rules are not run by Prometheus itself: {reason}")
    panels = [{"record": f"panel:{n}", "expr": target["expr"]} for n, (_, target) in enumerate(TARGETS)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}))
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(_cases()))
    for command in (
        ["check", "rules", str(RULES_FILE), str(tmp_path / "panels.yml")],
        ["test", "rules", str(tmp_path / "tests.yml")],
    ):
        done = subprocess.run([tool, *command], check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def _cases() -> dict[str, Any]:
    """What an hour of metrics looks like, and which alerts fire at its end."""
    healthy = {
        "traceplane_outbox_lag_seconds": "0x60",
        'traceplane_workers{runtime="python"}': "2x60",
        "signals_consumed_total": "0+10x60",
        "pipelines_matched_total": "0+1x60",
    }
    cases: list[tuple[dict[str, str], set[str]]] = [
        ({}, set()),
        ({'traceplane_queue_depth{job="a/b"}': "5x60"}, set()),
        (
            {'traceplane_queue_depth{job="a/b"}': "5x60", 'traceplane_workers{runtime="python"}': "0x60"},
            {"NoWorkers"},
        ),
        ({"traceplane_outbox_lag_seconds": "0x20 stale"}, {"DispatcherDown"}),
        ({'traceplane_tasks_dead_total{job="a/b"}': "0x50 1x10"}, {"TasksDead"}),
        ({'traceplane_loop_errors_total{loop="valve"}': "0+10x60"}, {"LoopsFailing"}),
        ({"traceplane_buffered_reports_total": "0+10x60"}, {"SinksStopped"}),
        (
            {"traceplane_buffered_reports_total": "0+10x60", "traceplane_sink_reports_total": "0+10x60"},
            set(),
        ),
        ({'traceplane_deliveries_waiting{channel="ops"}': "3x60"}, {"MessagesWaiting"}),
        ({'traceplane_deliveries_dead{channel="ops"}': "1x60"}, {"MessagesDead"}),
        ({"traceplane_openlineage_lag_seconds": "0+60x60"}, {"OpenLineageLagging"}),
        (
            {
                'traceplane_http_requests_total{route="GET /x",status="503"}': "0+10x60",
                'traceplane_http_requests_total{route="GET /x",status="200"}': "0+90x60",
            },
            {"CallsFailing"},
        ),
    ]
    names = [rule["alert"] for rule in RULES]
    return {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in (healthy | series).items()],
                "promql_expr_test": [
                    {
                        "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
                        "eval_time": "1h",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}]
                        if name in firing
                        else [],
                    }
                    for name in names
                ],
            }
            for series, firing in cases
        ],
    }


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
