"""Why a demo stopped, in one sentence: the task or the process that failed, or what it waited for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from traceplane.errors import TraceplaneError
from traceplane.postgres.database import Database

DEATHS = 2
"""How often a process may exit by itself: it is restarted, and a second try often works."""
_TEXT_LIMIT = 600


class DemoFailed(Exception):
    """The sentence."""


class Processes:
    """The processes of the demo: their ids and logs, and which of them end by themselves."""

    def __init__(self, logs: Path) -> None:
        self.pids: dict[str, int] = {}
        self.logs = logs
        self._starts: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._killed: set[int] = set()
        self._refused: str | None = None

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def started(self, name: str, pid: int) -> None:
        self.pids[name] = pid
        self._starts[name] += 1

    def kill(self, name: str) -> None:
        """The next start of this process is expected, and not a failure."""
        self._kills[name] += 1
        self._killed.add(self.pids[name])
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[name], signal.SIGKILL)

    def was_killed(self, pid: int) -> bool:
        """By the demo itself, as the process of this id."""
        return pid in self._killed

    def ended(self, supervised: asyncio.Task[None]) -> None:
        """All of them ended: they were stopped, or one refused to work."""
        error = None if supervised.cancelled() else supervised.exception()
        self._refused = str(error.value) if isinstance(error, TraceplaneError) else None

    def check(self) -> None:
        """Raises when a process refuses to work, or ends by itself again and again."""
        if self._refused is not None:
            name = self._refused
            raise DemoFailed(f"the process {name} does not stay up: {last_error(self.log(name))}")
        for name in self._starts:
            if self._deaths(name) > DEATHS:
                raise DemoFailed(f"the process {name} does not stay up: {last_error(self.log(name))}")

    def troubles(self) -> list[str]:
        """Processes that exited by themselves, but not so often that the demo gives up."""
        return [
            f"the process {name} was started again: {last_error(self.log(name))}"
            for name in self._starts
            if self._deaths(name) > 0
        ]

    def _deaths(self, name: str) -> int:
        return self._starts[name] - 1 - self._kills[name]


def last_error(log: Path) -> str:
    """Why a process ended, as its log says it: the event `process.failed`, or else the newest line that tells of
    trouble, or the newest one."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in reversed(lines):
        if (event := _event(line)).get("event") == "process.failed":
            next_step = f" → {event['next_step']}" if "next_step" in event else ""
            return shortened(f"{event['code']}: {event['message']}{next_step}")
    lines = [line for line in lines if line.strip()]
    lines = [line for line in lines if _event(line).get("level") not in ("debug", "info")] or lines
    return shortened(lines[-1]) if lines else "it wrote nothing to its log"


def _event(line: str) -> dict[str, Any]:
    """The event of a log line; empty for other output, such as that of a crash."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


async def progress(database: Database) -> dict[str, Any]:
    """What changes while the platform gets on, however slow the machine is."""
    async with database.transaction() as tx:
        (counts,) = await tx.rows(
            "select (select max(event_id) from events) as events,"
            " (select count(*) from alert_deliveries where state <> 'waiting') as messages,"
            " (select count(*) from dataset_commits) as commits,"
            " (select coalesce(sum(attempt), 0) from tasks) as attempts,"
            " (select count(*) from tasks where state = 'completed') as completed"
        )
    return dict(counts)


async def check_tasks(database: Database) -> None:
    """Raises as soon as a task has used up its attempts: the demo can no longer succeed."""
    if dead := await dead_tasks(database):
        more = f"; {len(dead) - 1} more failed too" if len(dead) > 1 else ""
        raise DemoFailed(f"{dead[0]}{more}")


async def dead_tasks(database: Database) -> list[str]:
    async with database.transaction() as tx:
        rows = await tx.rows(
            "select t.task_id, j.name, t.attempt, t.error from tasks t join jobs j using (job_id)"
            " where t.state = 'dead' order by t.finished_at, t.task_id"
        )
    return [
        f"task {row['task_id']} of the job {row['name']} failed for good at attempt {row['attempt']}: "
        + error_text(row["error"])
        for row in rows
    ]


async def waiting(database: Database) -> str:
    """The unfinished tasks, and the last error of each job that has one."""
    async with database.transaction() as tx:
        rows = await tx.rows(
            "select j.name, t.state::text, count(*) as tasks,"
            " (array_agg(t.error order by t.attempt desc) filter (where t.error is not null))[1] as error"
            " from tasks t join jobs j using (job_id)"
            " where t.state in ('queued', 'dispatched', 'running') and j.activation <> 'source'"
            " group by 1, 2 order by 1, 2"
        )
    if not rows:
        return "no task is unfinished"
    return ", ".join(
        f"{row['tasks']} {row['state']} of the job {row['name']}"
        + (f" (last error: {error_text(row['error'])})" if row["error"] else "")
        for row in rows
    )


def error_text(error: Any) -> str:
    """An error as tasks keep it."""
    error = error or {}
    return shortened(f"{error.get('code', 'unknown')}: {error.get('message', 'no message')}")


def sentence(error: BaseException) -> str:
    match error:
        case DemoFailed():
            return str(error)
        case TraceplaneError():
            return shortened(str(error))
        case _:
            return shortened(f"{type(error).__name__}: {error}")


def shortened(text: str) -> str:
    """On one line and without control characters, since operators wrote some of it."""
    line = "".join(c if c.isprintable() else " " for c in text)
    line = re.sub(r" {2,}", " ", line).strip()
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"
