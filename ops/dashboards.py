"""Writes `grafana-platform.json`: python ops/dashboards.py. Panels are listed here, one line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "grafana-platform.json"

Panel = tuple[str, str, list[tuple[str, str]]]
"""Title, unit, and expressions with their legends."""


def _rate(metric: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate(traceplane_{metric}[5m]))"


def _quantile(metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.95, sum by ({labels}) (rate(traceplane_{metric}_bucket[5m])))"


ROWS: dict[str, list[Panel]] = {
    "Events and tasks": [
        (
            "Events",
            "cps",
            [(_rate("events_accepted_total"), "accepted"), (_rate("events_duplicate_total"), "duplicate")],
        ),
        (
            "Tasks",
            "cps",
            [
                (_rate("tasks_created_total"), "created"),
                (_rate("tasks_completed_total"), "completed"),
                (_rate("tasks_canceled_total"), "canceled"),
            ],
        ),
        (
            "Failures",
            "cps",
            [
                (_rate("tasks_failed_total", "code"), "{{code}}"),
                (_rate("tasks_dead_total"), "dead"),
                (_rate("checks_failed_total", "severity"), "checks: {{severity}}"),
            ],
        ),
        (
            "Waiting tasks",
            "short",
            [("topk(10, sum by (job) (traceplane_queue_depth))", "{{job}}")],
        ),
        ("Oldest waiting task", "s", [("topk(10, max by (job) (traceplane_queue_age_seconds))", "{{job}}")]),
        ("Jobs held by backpressure", "short", [("max(traceplane_jobs_held)", "jobs")]),
        (
            "Made by the platform",
            "cps",
            [
                (_rate("cron_ticks_fired_total"), "cron ticks"),
                (_rate("cron_ticks_skipped_total"), "skipped cron ticks"),
                (_rate("file_partitions_announced_total"), "partitions of files"),
                (_rate("executions_scheduled_total"), "periodic executions"),
                (_rate("compactions_planned_total"), "planned compactions"),
                (_rate("files_compacted_total"), "compactions"),
            ],
        ),
        (
            "Datasets that became stale",
            "short",
            [("sum(increase(traceplane_datasets_stale_total[1h]))", "in an hour")],
        ),
    ],
    "Workers and Spark": [
        ("Workers", "short", [("sum by (runtime) (traceplane_workers)", "{{runtime}}")]),
        (
            "Running tasks",
            "short",
            [("topk(10, sum by (job) (traceplane_tasks_running))", "{{job}}")],
        ),
        ("Duration of attempts (95 %)", "s", [(f"topk(10, {_quantile('task_seconds', 'job')})", "{{job}}")]),
        (
            "Attempts",
            "cps",
            [
                (_rate("tasks_claimed_total"), "claimed"),
                (_rate("tasks_returned_total"), "handed back"),
                (_rate("tasks_reaped_total"), "lease expired"),
                (_rate("stale_calls_total", "call"), "stale {{call}}"),
            ],
        ),
    ],
    "Dispatcher and Postgres": [
        (
            "Wake-ups",
            "cps",
            [
                (_rate("wakeups_sent_total", "queue"), "{{queue}}"),
                (_rate("wakeups_resent_total"), "sent again"),
            ],
        ),
        ("Age of the oldest wake-up not sent", "s", [("max(traceplane_outbox_lag_seconds)", "s")]),
        ("Duration of transactions (95 %)", "s", [(_quantile("group_commit_seconds", "call"), "{{call}}")]),
        ("Calls in one transaction (95 %)", "short", [(_quantile("group_commit_size", "call"), "{{call}}")]),
        ("Duration of loops (95 %)", "s", [(f"topk(10, {_quantile('loop_seconds', 'loop')})", "{{loop}}")]),
        ("Loops that fail", "cps", [(_rate("loop_errors_total", "loop"), "{{loop}}")]),
    ],
    "Gateway and queries": [
        ("Calls", "reqps", [(_rate("http_requests_total", "status"), "{{status}}")]),
        (
            "Time to answer (95 %)",
            "s",
            [(f"topk(10, {_quantile('http_request_seconds', 'route')})", "{{route}}")],
        ),
        ("Queries", "cps", [(_rate("queries_total", "outcome"), "{{outcome}}")]),
        ("Time to the first row (95 %)", "s", [(_quantile("query_seconds", "part"), "{{part}}")]),
        (
            "Webhooks",
            "cps",
            [
                (_rate("webhook_deliveries_total", "source, outcome"), "{{source}} {{outcome}}"),
                (_rate("webhook_refused_total", "source, code"), "{{source}} refused: {{code}}"),
            ],
        ),
    ],
    "Sinks, alerts and messages": [
        (
            "Buffered datasets",
            "cps",
            [
                (_rate("buffered_reports_total"), "handed over"),
                (_rate("sink_reports_total"), "committed"),
                (_rate("sink_dead_letters_total"), "dead letters"),
            ],
        ),
        (
            "Alerts",
            "cps",
            [
                (_rate("alerts_found_total"), "found"),
                (_rate("alerts_suppressed_total", "reason"), "suppressed: {{reason}}"),
                (_rate("alerts_retracted_total"), "retracted"),
            ],
        ),
        (
            "Messages",
            "short",
            [
                ("max by (channel) (traceplane_deliveries_waiting)", "{{channel}} waiting"),
                ("max by (channel) (traceplane_deliveries_dead)", "{{channel}} dead"),
            ],
        ),
        ("Tries", "cps", [(_rate("deliveries_total", "outcome"), "{{outcome}}")]),
        (
            "Delivery (95 %)",
            "s",
            [(_quantile("delivery_wait_seconds"), "wait"), (_quantile("delivery_send_seconds"), "send")],
        ),
        (
            "OpenLineage",
            "cps",
            [
                (_rate("openlineage_events_total", "outcome"), "{{outcome}}"),
                ("max(traceplane_openlineage_lag_seconds)", "lag, s"),
            ],
        ),
    ],
    "Pipelines": [
        ("Executions", "cps", [(_rate("executions_finished_total", "status"), "{{status}}")]),
        (
            "Signals and Celery",
            "cps",
            [
                (_rate("signals_published_total"), "published"),
                (_rate("signals_suppressed_total"), "suppressed"),
                (_rate("celery_messages_total"), "to Celery"),
            ],
        ),
    ],
    "Processes": [
        ("CPU", "percentunit", [("sum by (instance) (rate(process_cpu_seconds_total[5m]))", "{{instance}}")]),
        ("Memory", "bytes", [("sum by (instance) (process_resident_memory_bytes)", "{{instance}}")]),
        ("Open files", "short", [("sum by (instance) (process_open_fds)", "{{instance}}")]),
    ],
}


def dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        for number, (name, unit, targets) in enumerate(row):
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "timeseries",
                    "title": name,
                    "datasource": source,
                    "gridPos": {"h": 8, "w": 8, "x": number % 3 * 8, "y": y + number // 3 * 8},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {"expr": expression, "legendFormat": legend, "refId": chr(ord("A") + n)}
                        for n, (expression, legend) in enumerate(targets)
                    ],
                }
            )
        y += (len(row) + 2) // 3 * 8
    return {
        "title": "Traceplane",
        "uid": "traceplane-platform",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "tags": ["traceplane"],
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
