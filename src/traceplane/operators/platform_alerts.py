"""Definitions of the platform's own alerts, which are the same for everyone. The dispatcher evaluates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceplane.model.message import Severity
from traceplane.operators.alerting import RouteConfig


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    severity: Severity
    subject: tuple[str, ...]
    fields: tuple[str, ...]
    title: str
    text: str
    group_above: int | None = None

    def routed_to(self, channels: Sequence[str]) -> RouteConfig:
        return RouteConfig(
            alert=self.name,
            severity=self.severity,
            subject=self.subject,
            fields=self.fields,
            title=self.title,
            text=self.text,
            channels=tuple(channels),
            group_above=self.group_above,
        )


_OF_A_JOB = ("dag", "job")
DEAD_TASKS = Definition(
    "dead_tasks", Severity.ERROR, _OF_A_JOB, ("tasks", "code"),
    "{dag}/{job} has dead tasks", "The error is {fields.code}. See `traceplane tasks --dag {dag} --state dead`.",
)  # fmt: skip
QUEUE_AGE = Definition(
    "queue_age", Severity.WARNING, _OF_A_JOB, ("minutes",),
    "A task of {dag}/{job} has waited for {fields.minutes} minutes", "See `traceplane status`.",
)  # fmt: skip
FAILING_SOURCE = Definition(
    "failing_source", Severity.ERROR, _OF_A_JOB, ("code",),
    "The source {dag}/{job} fails", "The error is {fields.code}. See `traceplane tasks --dag {dag}`.",
)  # fmt: skip
FAILED_CHECK = Definition(
    "failed_check", Severity.WARNING, ("dataset", "check", "scope"), ("problem", "rows"),
    "{dataset} {scope} does not meet the check {check}", "{fields.problem}", group_above=10,
)  # fmt: skip
STALE_DATASET = Definition(
    "stale_dataset", Severity.WARNING, ("dataset", "check"), ("problem",),
    "{dataset} gets no rows", "{fields.problem}",
)  # fmt: skip
DEAD_DELIVERIES = Definition(
    "dead_deliveries", Severity.ERROR, ("channel",), ("messages", "code"),
    "Messages do not reach the channel {channel}",
    "The error is {fields.code}. See `traceplane message list --channel {channel} --state dead`.",
)  # fmt: skip
DISK = Definition(
    "disk", Severity.CRITICAL, ("folder",), ("free_mb",),
    "{fields.free_mb} MB are free in {folder}", "The platform stops working when the disk is full.",
)  # fmt: skip
DEFINITIONS = (DEAD_TASKS, QUEUE_AGE, FAILING_SOURCE, FAILED_CHECK, STALE_DATASET, DEAD_DELIVERIES, DISK)
